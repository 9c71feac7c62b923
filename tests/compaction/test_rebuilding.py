"""Ledgers that are missing or damaged: never a part of an answer, and made again from what is left.

Every damage is done to a table with a whole backlog, to one whose backlog was cut but whose ledger
before is still there, and to one that has nothing but its ledger.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compaction.damage import DAMAGES, NAMED, READS, damage, flip, small_groups, told
from compaction.world import Stopped, World, stop_before
from eventually import eventually
from inside import backend_of
from lowmark.catalog import AddColumns, NewColumn, parse_type
from lowmark.client import Gap, GapFound, Rebuilt, RowsLost, RowsUnrecoverable
from lowmark.errors import Rejected
from lowmark.ledger import LedgerLost, Lost, NothingLike, Pointer, pointer_key
from lowmark.metastore import Put, Remove
from lowmark.table.commands import CreateCursor, DeleteCursor

A_DAY_MS = 86_400_000


# -- given ----------------------------------------------------------------------------------------


def _whole_backlog(world: World) -> None:
    world.write(*[(f"k{number % 12}", number) for number in range(30)], ("k3", None))
    world.compact(trim=False)
    world.write(("k1", 99))


def _older_ledger(world: World) -> None:
    """Nothing of the ledger before is in the newest one, and the backlog goes on behind it."""
    world.write(*[(f"k{number % 12}", number) for number in range(30)])
    world.compact()
    world.write(*[(f"k{number % 7}", 100 + number) for number in range(10)], ("k3", None))
    world.compact(trim=False, rewrite=True)
    world.write(("k1", 99))


def _ledger_only(world: World) -> None:
    world.write(*[(f"k{number % 12}", number) for number in range(30)], ("k3", None))
    world.compact()
    world.write(("k1", 99))


SITUATIONS: dict[str, tuple[Callable[[World], None], int]] = {
    "the backlog is whole": (_whole_backlog, 0),
    "an older ledger is there": (_older_ledger, A_DAY_MS),
    "nothing else is there": (_ledger_only, 0),
}
"""How it comes about, and how long ledgers that were replaced stay."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    """By situation: made once, closed, and copied for each damage."""
    worlds = {}
    for name, (make, grace_ms) in SITUATIONS.items():
        path = tmp_path_factory.mktemp("situation") / "data"
        with World(path, grace_ms=grace_ms) as worlds[name]:
            make(worlds[name])
    return worlds


@pytest.fixture(params=SITUATIONS)
def situation(
    request: pytest.FixtureRequest, made: dict[str, World], tmp_path: Path
) -> Iterator[tuple[str, World]]:
    with made[request.param].copied_to(tmp_path / "data") as world:
        yield request.param, world


@pytest.fixture
def bare(made: dict[str, World], tmp_path: Path) -> Iterator[World]:
    with made["nothing else is there"].copied_to(tmp_path / "data") as world:
        yield world


def _source(situation: str, kind: str) -> str | None:
    """What a ledger is made from; None: it can't be."""
    if kind.startswith("index"):
        return "keys"
    sources = {"the backlog is whole": "backlog", "an older ledger is there": "retired"}
    return sources.get(situation, "files" if kind.startswith("manifest") else None)


def _lose_the_last_file(world: World) -> None:
    """With the manifest: what is left of the files does not come to what was adopted."""
    path = world.path / "ledgers" / world.manifest().files[-1].path
    damage(world, "manifest missing")
    path.unlink()


def _state(world: World) -> tuple[Any, ...]:
    """All that a rebuild may change."""
    return world.files(), world.adopted(), _pointer(world), len(world.table.runs())


def _pointer(world: World, partition: int = 0) -> Pointer | None:
    records = world.table._compactor.records
    return records.pointer(world.table.descriptor.id, partition).pointer


def _only(found: list[Rebuilt]) -> Rebuilt:
    (one,) = found
    return one


# -- every damage, everywhere ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_named_by_every_reader_and_mended_by_a_rebuild(
    situation: tuple[str, World], kind: str
) -> None:
    name, world = situation
    source = _source(name, kind)
    assert [one.sound for one in world.table.verify_ledgers()] == [True]
    # when a file of the ledger is damaged
    path = damage(world, kind)
    # then whoever needs it gets an error by name, and everybody else every row
    failed = told(world)
    assert failed if not kind.startswith("index") else "compacted" not in failed
    # and verify says which file it is
    (verdict,) = world.table.verify_ledgers()
    assert {problem.path for problem in verdict.problems} == {str(path)}
    assert [problem.missing for problem in verdict.problems] == [kind.endswith("missing")]
    # when it is rebuilt
    before = world.adopted()
    if source is None:
        with pytest.raises(RowsUnrecoverable):
            world.table.rebuild_ledger()
        assert world.adopted() == before
        return
    plan = _only(world.table.rebuild_ledger(dry_run=True))
    one = _only(world.table.rebuild_ledger())
    # then it is a new ledger, from the right source, with the same rows
    assert (plan.source, plan.low) == (one.source, one.low)
    assert (one.source, one.same, one.lost) == (source, True, ())
    now = world.adopted()
    assert (now.epoch, now.horizon) == (before.epoch + 1, before.horizon)
    assert now.deletes_below == before.deletes_below
    assert _pointer(world).epoch == now.epoch  # type: ignore[union-attr]
    # and everybody reads everything, also after a restart, and after the next run
    assert not told(world)
    world.check()
    world.reopen()
    world.check()
    assert [verdict.sound for verdict in world.table.verify_ledgers()] == [True]
    world.write(("k2", None), ("new", 1))
    world.compact()
    world.check()
    if not world.grace_ms:
        world.check_tidy()
    # and there is nothing left to do
    assert _only(world.table.rebuild_ledger()).source == "sound"


@pytest.mark.parametrize("kind", DAMAGES)
def test_nothing_is_answered_from_a_part_when_nothing_else_is_there(bare: World, kind: str) -> None:
    damage(bare, kind)
    failed = told(bare)
    # then every read that needs what is damaged ends with its name
    needs_keys = {"as of now", "get", "get_many", "explain a key"}
    assert failed == (needs_keys if kind.startswith("index") else set(READS))


@pytest.mark.parametrize("kind", DAMAGES)
def test_compaction_stops_at_a_damaged_ledger(situation: tuple[str, World], kind: str) -> None:
    _, world = situation
    damage(world, kind)
    # one bit of a file that is kept is not looked at by a run; one that writes it anew does
    rewrite = kind.startswith("file flipped")
    before = world.adopted(), world.view().start
    with pytest.raises(NAMED):
        world.compact(rewrite=rewrite)
    # then nothing was adopted, and nothing was cut that could bring it back
    assert (world.adopted(), world.view().start) == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in DAMAGES if "flipped" not in kind])
def test_the_backlog_is_not_cut_while_nothing_else_has_its_rows(world: World, kind: str) -> None:
    # given a ledger, and all of its backlog
    world.write(("a", 1), ("b", 2), ("a", 3))
    world.compact(trim=False)
    damage(world, kind)
    # when there is nothing new, and what is in the ledger could be cut
    with pytest.raises(NAMED):
        world.table.compact(engine="local")
    # then it was not, and brings everything back
    assert world.view().start == 0
    world.table.rebuild_ledger()
    world.table.compact(engine="local")
    assert world.view().start == 3
    world.check()


@pytest.mark.parametrize("kind", [kind for kind in DAMAGES if not kind.startswith("index")])
def test_the_tide_and_explain_name_the_damage(bare: World, kind: str) -> None:
    damage(bare, kind)
    if kind != "file flipped in its rows":  # the tide reads offsets only: it is right
        with pytest.raises(NAMED):
            bare.table.tide()
    if kind.startswith("manifest"):
        assert "can't be read" in str(bare.table.explain())
        (ledger,) = bare.table.ledgers()
        assert "can't be read" in ledger.problem


@pytest.mark.slow
def test_a_rebuild_leaves_sound_partitions_alone(tmp_path: Path) -> None:
    with World(tmp_path / "data", partitions=3) as world:
        world.write(*[(f"k{number}", number) for number in range(60)])
        world.compact(trim=False)
        before = [world.adopted(number) for number in range(3)]
        damage(world, "file missing", partition=0)
        damage(world, "manifest missing", partition=2)
        # when only one of them is asked for, then only that one is made again
        (one,) = world.table.rebuild_ledger([2])
        assert (one.partition, one.source) == (2, "backlog")
        assert [one.sound for one in world.table.verify_ledgers()] == [False, True, True]
        # and with all of them the other one, too
        assert [one.source for one in world.table.rebuild_ledger()] == ["backlog", "sound", "sound"]
        assert [world.adopted(number).epoch for number in range(3)] == [2, 1, 2]
        assert world.adopted(1) == before[1]
        world.check()
        world.check_tidy()


def test_a_table_without_a_ledger_has_nothing_to_rebuild(world: World) -> None:
    world.write(("a", 1))
    assert [one.epoch for one in world.table.verify_ledgers()] == [None]
    assert _only(world.table.rebuild_ledger()).source == "none"
    assert [one.state for one in world.table.reconcile_ledgers()] == ["none"]
    assert world.table.runs() == []


# -- what the backlog and the sound part of a ledger bring back together --------------------------


@pytest.mark.slow
def test_a_damaged_file_that_the_backlog_still_has_costs_no_row(world: World) -> None:
    # given a ledger of two files, and the backlog of the second one
    world.write(*[(f"k{number}", number) for number in range(40)])
    world.compact()
    world.write(*[(f"k{number}", 100 + number) for number in range(0, 60, 4)], ("k1", None))
    world.compact(trim=False)
    assert len(world.manifest().files) == 2
    kept = world.manifest().files[0].path
    # when the second one is lost, and no older ledger is there
    damage(world, "file missing")
    one = _only(world.table.rebuild_ledger())
    # then the first one is kept, and the rest is folded again
    assert (one.source, one.low, one.lost, one.same) == ("salvage", 40, (), True)
    assert kept in world.manifest().paths()
    world.check()
    world.check_tidy()


@pytest.mark.slow
def test_deletes_that_were_gone_stay_gone_and_others_stay(world: World) -> None:
    # given a delete that everybody has passed, and one that a cursor has not
    world.write(("a", 1), ("b", 2), ("a", None))
    world.compact(trim=False, rewrite=True)
    world.ask(CreateCursor("late", 1, "compacted", 3))
    world.write(("b", None), ("c", 3))
    world.compact(trim=False, rewrite=True)
    before = world.adopted()
    assert before.deletes_below == 3
    damage(world, "manifest missing")
    # when it is rebuilt from the backlog
    one = _only(world.table.rebuild_ledger())
    assert (one.source, one.same) == ("backlog", True)
    # then it lacks no more and no less
    assert world.adopted().deletes_below == 3
    assert world.offsets(compacted=True) == [("b", 3), ("c", 4)]
    # and a cursor that comes now finds what is there
    world.ask(DeleteCursor("late"))
    world.write(("d", 4))
    world.compact()
    world.check()


@pytest.mark.slow
def test_rows_without_a_key_and_older_schema_versions_come_back(tmp_path: Path) -> None:
    with World(tmp_path / "data", options={"keyless_rows": "keep"}) as world:
        table = world.table
        table.append([{"id": None, "v": 1}, {"id": "a", "v": 1}])
        world.compact()
        world.db.execute([_add_column("w")])
        table.append([{"id": None, "v": 2, "w": 2}, {"id": "b", "v": 2, "w": 2}])
        world.compact()
        rows = table.read(compacted=True).to_pylist()
        for file in (0, -1):
            damage(world, "index missing", file=file)
            assert _only(world.table.rebuild_ledger()).source == "keys"
            assert world.table.read(compacted=True).to_pylist() == rows
            assert world.table.get("a") == {"id": "a", "v": 1, "w": None}


def _add_column(name: str) -> AddColumns:
    return AddColumns(table="t", columns=(NewColumn(name=name, type=parse_type("int64")),))


# -- what can't be brought back -------------------------------------------------------------------


def test_a_rebuild_that_would_lose_rows_changes_nothing_and_says_which(bare: World) -> None:
    path = damage(bare, "file missing")
    before = _state(bare)
    (file,) = bare.manifest().files
    with pytest.raises(RowsUnrecoverable) as refused:
        bare.table.rebuild_ledger()
    # then it names the file, the offsets and the number of rows
    words = f"up to {file.live_rows} rows at offsets {file.first} to {file.last}"
    assert words in refused.value.message
    assert str(path) in refused.value.detail
    assert "--accept-loss" in refused.value.hint
    # and a dry run says the same
    (lost,) = _only(bare.table.rebuild_ledger(dry_run=True)).lost
    assert (lost.first, lost.last, lost.rows) == (file.first, file.last, file.live_rows)
    assert _state(bare) == before
    with pytest.raises(LedgerLost):
        bare.table.get("k2")


@pytest.mark.slow
def test_what_is_lost_is_left_out_only_if_that_is_accepted_and_readers_are_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a ledger of row groups of ten rows, and nothing else; some rows were replaced in it
    small_groups(monkeypatch)
    world.batched = False
    world.write(*[(f"k{number}", number) for number in range(40)])
    world.compact()
    world.write(("k1", 100), ("k15", 115), ("k39", None))
    world.compact()
    first = world.manifest().files[0]
    assert first.dead_rows == 3
    # when one bit of its first row group flips
    damage(world, "file flipped in its rows", file=0)
    one = _only(world.table.rebuild_ledger(accept_loss=True))
    # then those rows are lost that stood there and counted, and no other
    assert one.lost == (Lost(first=0, last=9, rows=9),)
    assert world.manifest().lost == one.lost
    gone = {f"k{number}" for number in range(10)} - {"k1"}
    left = {key: value for key, value in world.model.items() if key not in gone}
    gap = Gap(0, 0, 9, "lost")
    for turn in range(3):
        for how in ({"compacted": True}, {"as_of": "now"}):
            # and whoever reads across them is told, or counts them
            with pytest.raises(GapFound) as found:
                world.table.read(**how).to_pylist()
            assert found.value.gap == gap
            with world.table.read(on_gap="skip", **how) as reader:
                rows = {row["id"]: row["v"] for row in reader.to_pylist() if row["v"] is not None}
                assert (rows, reader.gaps) == (left, [gap])
        # and whoever begins behind them is not
        with world.table.read(compacted=True, start=10, on_gap="skip") as reader:
            assert reader.to_arrow().num_rows
            assert "lost" not in {gap.kind for gap in reader.gaps}
        # and a key that is found is right; of one that is not, nobody knows anything
        for key, value in left.items():
            assert world.table.get(key) == {"id": key, "v": value}
        assert world.table.get_many(list(left))[0] is not None
        for ask in (world.table.get, world.table.explain, lambda key: world.table.get_many([key])):
            for key in ("k2", "never written"):
                with pytest.raises(RowsLost):
                    ask(key)
        # and that stays so, after a restart and after more runs
        if turn == 0:
            world.reopen()
        else:
            world.write((f"more {turn}", turn), ("k20", turn))
            left |= {f"more {turn}": turn, "k20": turn}
            world.compact(rewrite=turn == 2)
            assert world.manifest().lost == one.lost
    # but a key that is written again is known
    world.write(("k2", 1), ("k3", None))
    assert (world.table.get("k2"), world.table.get("k3")) == ({"id": "k2", "v": 1}, None)
    world.compact()
    assert world.table.get("k2") == {"id": "k2", "v": 1}
    assert [verdict.sound for verdict in world.table.verify_ledgers()] == [True]
    world.check_tidy()


@pytest.mark.slow
def test_of_a_key_whose_last_row_is_lost_no_older_row_comes_back(world: World) -> None:
    # given a key with an older row that is dead, in a file that is sound
    world.write(*[(f"k{number}", number) for number in range(20)])
    world.compact()
    world.write(("k1", 100), ("k2", None))
    world.compact()
    files = world.manifest().files
    assert [file.dead_rows for file in files] == [2, 0]
    # when the file with its last row is lost
    damage(world, "file missing")
    one = _only(world.table.rebuild_ledger(accept_loss=True))
    assert [(lost.first, lost.last) for lost in one.lost] == [(20, files[1].last)]
    # then neither readers nor the files alone have the older one
    with world.table.read(compacted=True, on_gap="skip") as reader:
        assert "k1" not in {row["id"] for row in reader.to_pylist()}
    assert all(file.dead_rows == 0 for file in world.manifest().files)
    with pytest.raises(RowsLost):
        world.table.get("k1")
    assert world.table.get("k3") == {"id": "k3", "v": 3}


@pytest.mark.slow
def test_without_its_manifest_an_older_ledger_is_kept_and_known_to_be_old(tmp_path: Path) -> None:
    with World(tmp_path / "data", grace_ms=A_DAY_MS) as world:
        # given two ledgers, and a backlog that begins behind both
        world.write(*[(f"k{number}", number) for number in range(20)])
        world.compact()
        world.write(("k1", 100), ("new", 1))
        world.compact()
        world.write(("k5", 500))
        _lose_the_last_file(world)
        with pytest.raises(RowsUnrecoverable):
            world.table.rebuild_ledger()
        # when the loss is accepted
        (lost,) = _only(world.table.rebuild_ledger(accept_loss=True)).lost
        # then what the older one has is kept; but any of it may have been replaced since then
        assert (lost.first, lost.last, lost.stale) == (20, 21, True)
        with world.table.read(as_of="now", on_gap="skip") as reader:
            rows = {row["id"]: row["v"] for row in reader.to_pylist()}
        assert rows == {f"k{number}": number for number in range(20)} | {"k5": 500}
        for key in ("k1", "k2", "new"):
            with pytest.raises(RowsLost):
                world.table.get(key)
            with pytest.raises(RowsLost):
                world.table.get_many([key])
        # and what came later is known
        assert world.table.get("k5") == {"id": "k5", "v": 500}
        world.compact()
        assert world.table.get("k5") == {"id": "k5", "v": 500}


@pytest.mark.slow
def test_without_anything_all_is_lost_and_the_table_goes_on(bare: World) -> None:
    _lose_the_last_file(bare)
    end = bare.adopted().horizon
    (lost,) = _only(bare.table.rebuild_ledger(accept_loss=True)).lost
    assert (lost.first, lost.last) == (0, end - 1)
    assert bare.table.get("k1") == {"id": "k1", "v": 99}
    bare.write(("k7", 7))
    bare.compact()
    assert bare.table.get("k7") == {"id": "k7", "v": 7}
    with pytest.raises(RowsLost):
        bare.table.get("k8")
    bare.check_tidy()


# -- a crash at every step ------------------------------------------------------------------------

_STEPS = (
    "note the run",
    "salvage partition 0",
    "hold partition 0",
    "carry out the work",
    "publish partition 0",
    "adopt partition 0",
    "note the end",
    "sweep",
)


def _stopped(world: World, step: str, **how: Any) -> None:
    """A rebuild whose process ends before a step: as if it was killed."""
    stop = stop_before(step)

    def said(name: str) -> None:
        try:
            stop(name)
        except Stopped:
            world.db.close()
            raise

    with pytest.raises(Stopped):
        world.table.rebuild_ledger(step=said, **how)
    world.reopen()


@pytest.mark.slow
@pytest.mark.parametrize("step", _STEPS)
@pytest.mark.parametrize("kind", ["manifest flipped", "file missing", "index missing"])
def test_a_rebuild_that_is_killed_is_made_again(tmp_path: Path, kind: str, step: str) -> None:
    with World(tmp_path / "data") as world:
        _whole_backlog(world)
        before = world.adopted()
        damage(world, kind)
        _stopped(world, step)
        # then readers get the name of the damage until the new one is adopted, then every row
        adopted = world.adopted() != before
        assert adopted == (step in {"note the end", "sweep"})
        if adopted:
            world.check()
        else:
            assert told(world)
            assert [one.sound for one in world.table.verify_ledgers()] == [False]
        # when it is made again
        one = _only(world.table.rebuild_ledger())
        # then what was published is not made twice, and nothing is left behind
        expected = "sound" if adopted else "published" if step == "adopt partition 0" else None
        assert expected is None or one.source == expected
        assert world.adopted().epoch == 2
        world.check()
        world.check_tidy()
        assert not [run for run in world.table.runs() if run.state in {"running", "interrupted"}]
        world.write(("k4", None))
        world.compact()
        world.check()


@pytest.mark.slow
def test_a_rebuild_that_was_killed_is_not_resumed_as_a_run(world: World) -> None:
    _whole_backlog(world)
    damage(world, "file missing")
    _stopped(world, "publish partition 0")
    run = world.table.runs()[0]
    assert run.state == "interrupted"
    with pytest.raises(Rejected, match="rebuild"):
        world.table.compact(engine="local", resume=run.run)
    assert world.table.cancel_run(run.run).state == "cancelled"
    world.table.rebuild_ledger()
    world.check()
    world.check_tidy()


@pytest.mark.slow
@pytest.mark.parametrize("manifest", [True, False], ids=["with its manifest", "without it"])
def test_a_loss_that_was_accepted_survives_a_crash(tmp_path: Path, manifest: bool) -> None:
    for step in _STEPS[2:6]:
        with World(tmp_path / step) as world:
            _ledger_only(world)
            if manifest:
                damage(world, "file flipped in its rows")
            else:
                _lose_the_last_file(world)
            _stopped(world, step, accept_loss=True)
            # the next one needs no leave for what was published already
            published = step == "adopt partition 0"
            one = _only(world.table.rebuild_ledger(accept_loss=not published))
            assert bool(one.lost) is not published
            assert world.manifest().lost
            with pytest.raises(GapFound):
                world.table.read(compacted=True).to_pylist()


@pytest.mark.slow
def test_a_published_ledger_that_is_damaged_does_not_stop_compaction_for_good(
    world: World,
) -> None:
    # given a run that was killed between publishing and adopting, and its manifest is lost
    world.write(("a", 1), ("b", 2))
    world.compact()
    world.write(("a", 3))
    world.stopped_before("adopt partition 0")
    pointer = _pointer(world)
    assert pointer is not None
    assert pointer.epoch == 2
    (world.path / "ledgers" / pointer.manifest).unlink()
    world.check()  # reads go by what was adopted
    with pytest.raises(NAMED):
        world.table.compact(engine="local")
    # when it is rebuilt, then what was adopted is published again, and compaction goes on
    assert _only(world.table.rebuild_ledger()).source == "adopted"
    assert world.adopted().epoch == 3
    world.check()
    world.compact()
    world.check()
    world.check_tidy()


@pytest.mark.slow
def test_a_first_ledger_that_was_never_adopted_is_made_from_the_backlog(world: World) -> None:
    world.write(("a", 1), ("b", 2), ("a", None))
    world.stopped_before("adopt partition 0")
    pointer = _pointer(world)
    assert pointer is not None
    (world.path / "ledgers" / pointer.manifest).unlink()
    with pytest.raises(NAMED):
        world.table.compact(engine="local")
    assert _only(world.table.rebuild_ledger()).source == "backlog"
    world.check()
    world.write(("c", 3))
    world.compact()
    world.check()
    world.check_tidy()


# -- a metastore that is behind -------------------------------------------------------------------


def _restore(world: World, pointer: Pointer | None) -> None:
    """A backup of the metastore, in which this is what was published last."""
    key = pointer_key(world.table.descriptor.id, 0)
    put = Remove(key) if pointer is None else Put(key, msgspec.json.encode(pointer))
    backend_of(world.db).write([put])


@pytest.mark.slow
@pytest.mark.parametrize("behind", ["an older one", "none", "another one of that epoch"])
def test_a_metastore_that_is_behind_is_set_to_what_was_adopted(tmp_path: Path, behind: str) -> None:
    with World(tmp_path / "data", grace_ms=A_DAY_MS) as world:
        world.write(("a", 1))
        world.compact()
        older = _pointer(world)
        world.write(("b", 2))
        world.compact()
        newest = _pointer(world)
        assert older is not None
        others = {
            "an older one": older,
            "none": None,
            "another one of that epoch": msgspec.structs.replace(older, epoch=2),
        }
        # when the metastore is older than the partition, then compaction stops and says so
        _restore(world, others[behind])
        world.write(("c", 3))
        with pytest.raises(NothingLike, match="reconcile"):
            world.compact()
        world.check()  # reads do not care
        # when it is reconciled
        (one,) = world.table.reconcile_ledgers()
        assert (one.state, one.before, one.after) == ("changed", others[behind], newest)
        assert _pointer(world) == newest
        # then everything goes on, and there is nothing left to do
        assert [one.state for one in world.table.reconcile_ledgers()] == ["same"]
        world.compact()
        world.check()
        assert world.adopted().epoch == 3


@pytest.mark.slow
def test_a_pointer_that_is_ahead_is_left_to_the_next_run(world: World) -> None:
    world.write(("a", 1))
    world.stopped_before("adopt partition 0")
    pointer = _pointer(world)
    assert [one.state for one in world.table.reconcile_ledgers()] == ["ahead"]
    assert _pointer(world) == pointer
    world.compact()
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["manifest missing", "manifest flipped"])
def test_a_manifest_that_can_not_be_read_is_rebuilt_before_it_is_reconciled(
    tmp_path: Path, kind: str
) -> None:
    with World(tmp_path / "data", grace_ms=A_DAY_MS) as world:
        world.write(("a", 1))
        world.compact(trim=False)
        older = _pointer(world)
        world.write(("b", 2))
        world.compact(trim=False)
        damage(world, kind)
        _restore(world, older)
        # when nobody can tell what the partition has adopted, then nothing is written
        with pytest.raises(NAMED):
            world.table.reconcile_ledgers()
        assert _pointer(world) == older
        # but a rebuild brings both back: its epoch is above all
        assert _only(world.table.rebuild_ledger()).source == "backlog"
        assert world.adopted().epoch == 3
        assert [one.state for one in world.table.reconcile_ledgers()] == ["same"]
        world.write(("c", 3))
        world.compact()
        world.check()


# -- sweeping -------------------------------------------------------------------------------------


def test_a_dry_sweep_names_what_a_sweep_removes(world: World) -> None:
    world.write(("a", 1))
    world.compact()
    folder = world.path / "ledgers" / Path(world.adopted().manifest).parent
    (folder / "left behind.parquet").write_bytes(b"nobody names this")
    would = world.table.sweep(dry_run=True)
    assert [Path(path).name for path in would] == ["left behind.parquet"]
    assert (folder / "left behind.parquet").exists()
    assert world.table.sweep() == would
    assert world.table.sweep(dry_run=True) == []
    world.check_tidy()


@pytest.mark.slow
def test_a_damaged_manifest_that_was_replaced_keeps_nobody_from_sweeping(tmp_path: Path) -> None:
    with World(tmp_path / "data", grace_ms=A_DAY_MS) as world:
        _whole_backlog(world)
        old = world.manifest().paths()
        damage(world, "manifest flipped")
        # while it counts, nothing of its partition is swept
        assert world.table.sweep() == []
        assert old <= world.files()
        world.table.rebuild_ledger()
        # when it was replaced, nobody knows what it had: all of its partition stays for its grace
        assert world.table.sweep() == []
        assert old <= world.files()
        world.compact()
        world.check()


def test_a_reader_that_fails_holds_nothing(bare: World) -> None:
    damage(bare, "manifest missing")
    errors = []
    for how in ({"compacted": True}, {"as_of": "now"}):
        with pytest.raises(LedgerLost) as error:
            bare.table.read(**how).to_pylist()
        errors.append(error)  # with all that its traceback keeps alive
    eventually(lambda: not backend_of(bare.table).files_in_use())


@pytest.mark.slow
def test_a_whole_file_checksum_is_enough_to_write_it_anew(world: World) -> None:
    # given a flipped bit where no reader looks: in the magic at the start
    _whole_backlog(world)
    path = world.path / "ledgers" / world.manifest().files[0].path
    world.db.close()
    flip(path, 0)
    world.reopen()
    (verdict,) = world.table.verify_ledgers()
    assert [problem.what for problem in verdict.problems] == ["rows"]
    world.table.rebuild_ledger()
    world.check()
    assert [one.sound for one in world.table.verify_ledgers()] == [True]


# -- whatever happens -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_after_any_damage_and_rebuild_nothing_wrong_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A ledger of many files and row groups, a backlog that is cut anywhere, and one file gone."""
    small_groups(monkeypatch)
    dice = random.Random(seed)
    columns = {"id": "string", "v": "float64"}
    grace_ms = dice.choice([0, A_DAY_MS])
    with World(tmp_path / "data", grace_ms=grace_ms, columns=columns) as world:
        for _ in range(dice.randrange(2, 6)):
            world.write(
                *[
                    (f"k{dice.randrange(60)}", None if dice.random() < 0.2 else dice.random())
                    for _ in range(dice.randrange(1, 60))
                ]
            )
            world.compact(trim=dice.random() < 0.5, rewrite=dice.random() < 0.2)
        world.write(("k1", 0.5), ("k2", None))
        files = world.manifest().files
        kind = dice.choice(list(DAMAGES))
        damage(world, kind, file=dice.randrange(len(files)))
        told(world)
        try:
            world.table.rebuild_ledger()
        except RowsUnrecoverable:
            world.table.rebuild_ledger(accept_loss=True)
        lost = world.manifest().lost
        assert [one.sound for one in world.table.verify_ledgers()] == [True]
        for rewrite in [False, True]:
            if not lost:
                world.check()
            else:
                _check_all_but(world, lost)
            world.write(("k3", 0.25))
            world.compact(rewrite=rewrite)


def _check_all_but(world: World, lost: tuple[Lost, ...]) -> None:
    """Whoever is answered is answered right; whoever can't be is told."""
    for key in sorted(world.written):
        row = {"id": key, "v": world.model[key]} if key in world.model else None
        for ask in (world.table.get, lambda key: world.table.get_many([key])[0]):
            with contextlib.suppress(RowsLost):
                assert ask(key) == row
    assert world.table.get("k1") == {"id": "k1", "v": 0.5}
    for how in ({"compacted": True}, {"as_of": "now"}):
        with pytest.raises(GapFound):
            world.table.read(**how).to_pylist()
        with world.table.read(on_gap="skip", **how) as reader:
            last = {row["id"]: row for row in reader.to_pylist()}
            found = {key: row["v"] for key, row in last.items() if row["v"] is not None}
            assert {gap.kind for gap in reader.gaps} == {"lost"}
        if not any(one.stale for one in lost):
            assert found.items() <= world.model.items()
        assert found.keys() <= world.written
