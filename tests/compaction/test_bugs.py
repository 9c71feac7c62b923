"""What went wrong in other systems that compact, told here and survived.

Each test names the issues that it stands for: `#n` are Pulsar's. Those that a scenario covers as
well are in the table of README.md with that scenario's test.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from compaction.operating import (
    STEPS,
    flip,
    look_after,
    put_pointer,
    remove_pointer,
    set_options,
)
from compaction.world import World, folded
from lowmark.client import GapFound
from lowmark.errors import Corrupt, LowmarkError
from lowmark.ledger import LedgerDamaged, LedgerLost, NothingLike, Pointer
from lowmark.ledger.errors import LedgerMisplaced
from lowmark.runtime import store
from lowmark.table.commands import Finish, TakeLease, Tick

KEYS = [f"k{number}" for number in range(10)]


def fill(world: World, value: int = 0) -> None:
    world.write(*[(key, value) for key in KEYS])
    world.write(*[(key, value + 1) for key in KEYS[:5]])


def pointer(world: World) -> Pointer:
    found = world.table._compactor.records.pointer(world.table.descriptor.id, 0).pointer
    assert found is not None
    return found


# -- one object for the pin, the pointer and the place of reading ---------------------------------


def test_at_every_step_of_a_run_everybody_reads_the_same(world: World) -> None:
    """#12522, #11211, #11287: rows were cut before what replaces them could be read."""
    fill(world)
    world.compact()
    fill(world, 10)
    world.write((KEYS[9], None))
    world.settle()
    steps = []

    def look(step: str) -> None:
        steps.append(step)
        world.check()
        view = world.view()
        assert view.ledger is not None
        assert view.start <= view.ledger.horizon

    world.table.compact(engine="local", step=look)
    assert [step for step in steps if step in STEPS] == list(STEPS)
    world.check()


def test_nothing_that_happens_to_readers_moves_the_horizon_or_the_pointer(world: World) -> None:
    """#12698, #25862, #26483, #26512: resetting or recovering a cursor lost the pointer. #20983:
    cleaning up idle ones deleted the pin. #21865: expiry moved it.
    """
    fill(world)
    world.compact()
    before = world.adopted(), pointer(world), world.view().start
    cursors = world.table.cursors
    # when cursors and leases come, move, are reset, fall behind, end, and are deleted
    cursors.create("raw")
    cursors.create("late", kind="compacted", max_lag_rows=16)
    cursors.create("compacted", kind="compacted")
    cursors.commit("compacted", {0: 12})
    cursors.commit("compacted", {0: 0}, reset=True)
    world.ask(TakeLease("soon over", 1, 15, 1))
    world.write(("k1", 100), ("k1", 101), ("k1", 102))
    world.ask(Tick())
    look_after(world)
    world.reopen()
    assert [cursor.name for cursor in world.table.cursors.list() if cursor.overdue] == ["late"]
    for cursor in world.table.cursors.list():
        world.table.cursors.delete(cursor.name)
    look_after(world)
    world.reopen()
    # then both are where they were, and so is all that is read
    assert (world.adopted(), pointer(world), world.view().start) == before
    world.check()


@pytest.mark.slow
def test_runs_that_end_in_the_middle_move_nothing_back_and_pile_nothing_up(world: World) -> None:
    """#25118, #25119: an interrupted second pass left the horizon far back, and everything stayed.
    #21074: an unload during compaction lost rows and gave others again.
    """
    fill(world)
    world.compact()
    horizon = world.adopted().horizon
    files = len(world.files())
    for turn in range(4):
        world.write((f"new {turn}", turn))
        world.stopped_before("publish partition 0")
        assert world.adopted().horizon == horizon
        assert world.view().start == horizon
        world.check()
        # at most what one run has written, with its notes, is there besides
        assert len(world.files()) <= files + 8
    world.compact()
    assert world.adopted().horizon == world.view().start == world.view().end
    world.check()
    world.check_tidy()


# -- a pointer that is wrong ----------------------------------------------------------------------


def _behind(world: World, old: Pointer, new: Pointer) -> None:
    put_pointer(world, old)


def _none(world: World, old: Pointer, new: Pointer) -> None:
    remove_pointer(world)


def _another(world: World, old: Pointer, new: Pointer) -> None:
    put_pointer(world, msgspec.structs.replace(new, manifest=old.manifest))


def _beyond(world: World, old: Pointer, new: Pointer) -> None:
    put_pointer(world, msgspec.structs.replace(new, epoch=new.epoch + 1, horizon=10_000))


def _below(world: World, old: Pointer, new: Pointer) -> None:
    put_pointer(world, msgspec.structs.replace(old, epoch=new.epoch + 1))


def _nowhere(world: World, old: Pointer, new: Pointer) -> None:
    wrong = "table-3/0/9-nobody.json"
    put_pointer(world, msgspec.structs.replace(new, epoch=new.epoch + 1, manifest=wrong))


WRONG: dict[str, tuple[Callable[[World, Pointer, Pointer], None], type[LowmarkError]]] = {
    "is the one before": (_behind, NothingLike),
    "is gone": (_none, NothingLike),
    "names another ledger of that epoch": (_another, NothingLike),
    "goes beyond the end of the log": (_beyond, LedgerMisplaced),
    "is newer and goes less far": (_below, LedgerMisplaced),
    "names a ledger that is not there": (_nowhere, LedgerLost),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_a_pointer_that_is_wrong_stops_runs_by_name_and_nothing_is_read_from_it(
    tmp_path: Path, case: str
) -> None:
    """#26631: a pointer that was restored led to a snapshot that was gone, and the next run made
    the loss permanent. KAFKA-3330, KAFKA-1819: a checkpoint that did not belong to the log.
    """
    harm, expected = WRONG[case]
    with World(tmp_path / "data", grace_ms=3_600_000) as world:
        fill(world)
        world.compact()
        old = pointer(world)
        fill(world, 10)
        world.compact()
        world.write(("k1", 100))
        adopted, new = world.adopted(), pointer(world)
        # given a pointer that does not fit
        harm(world, old, new)
        for _ in range(2):
            # when a table is compacted, then it is refused, and what was adopted is read
            world.db.advance_watermark()
            with pytest.raises(expected):
                world.table.compact(engine="local")
            assert world.adopted() == adopted
            world.check()
            world.reopen()
        # and with the right one it goes on
        put_pointer(world, new)
        world.compact()
        assert world.adopted().horizon == world.view().end
        world.check()


READS: dict[str, Callable[[World], object]] = {
    "read compacted": lambda world: world.table.read(compacted=True).to_pylist(),
    "read as of now": lambda world: world.table.read(as_of="now").to_pylist(),
    "get": lambda world: world.table.get("k7"),
    "get many": lambda world: world.table.get_many(KEYS),
}


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["missing", "damaged"])
@pytest.mark.parametrize("what", ["manifest", "rows", "index"])
def test_a_ledger_that_can_not_be_read_is_an_error_and_never_a_part_of_an_answer(
    tmp_path: Path, what: str, harm: str
) -> None:
    """#26631, #21551: a snapshot could not be read, and the backlog alone was taken for all."""
    with World(tmp_path / "data") as world:
        fill(world)
        world.compact()
        world.write(("k1", 100))
        (file,) = world.manifest().files
        paths = {"manifest": world.adopted().manifest, "rows": file.path, "index": file.keys_path}
        path = world.path / "ledgers" / paths[what]
        away = path.with_suffix(".away")
        adopted = world.adopted()
        # given a file of it that is gone, or not what was written
        if harm == "missing":
            path.rename(away)
        else:
            flip(path)
        world.reopen()
        world.db.advance_watermark()
        error = LedgerLost if harm == "missing" else LedgerDamaged
        for name, read in READS.items():
            if what == "index" and name == "read compacted":
                # who does not need that file gets the whole answer
                assert folded(world.table.read(compacted=True)) == world.model
                continue
            # when it is read in any other way, then that is told with the name of the file
            with pytest.raises(error, match=path.name):
                read(world)
        # and a run makes nothing of it permanent
        with pytest.raises(Corrupt):
            world.table.compact(engine="local", rewrite=True)
        assert world.adopted() == adopted
        # when it is back, then everything is
        if harm == "missing":
            away.rename(path)
        else:
            flip(path)
        world.reopen()
        world.check()
        world.compact()
        world.check()


# -- runs and readers that never end --------------------------------------------------------------


def _nothing(world: World) -> None:
    pass


def _a_delete(world: World) -> None:
    world.write(("k1", None))


def _a_delete_of_nothing(world: World) -> None:
    world.write(("nobody", None))


def _deletes_of_all(world: World) -> None:
    world.write(*[(key, None) for key in KEYS])


def _no_rows(world: World) -> None:
    for _ in range(20):
        world.ask(Tick())


def _an_end_of_nothing(world: World) -> None:
    world.ask(Finish(99, commit=False))


TAILS = {
    "nothing (#20988)": _nothing,
    "a delete (#2591, #6237)": _a_delete,
    "a delete of nothing (#18833, #18808)": _a_delete_of_nothing,
    "deletes of all (#21916, #21917)": _deletes_of_all,
    "entries that are no rows (#21718)": _no_rows,
    "the end of a transaction that nobody knows (#21718)": _an_end_of_nothing,
}


@pytest.mark.parametrize("tail", TAILS)
def test_whatever_a_log_ends_with_runs_and_readers_come_to_its_end(both: World, tail: str) -> None:
    fill(both)
    TAILS[tail](both)
    for _ in range(2):
        both.compact()
        # then the run has gone to the end, and so does who reads, though nothing may come
        assert both.adopted().horizon == both.view().end
        reader = both.table.read(compacted=True)
        assert folded(reader) == both.model
        assert reader.position == {0: both.view().end}
        both.check()
        TAILS[tail](both)


@pytest.mark.slow
def test_a_run_from_any_place_within_a_batch_ends(world: World) -> None:
    """KAFKA-9133, KAFKA-9826, KAFKA-8764: odd places to begin at made it go round for ever.
    KAFKA-7400: what lay before the beginning was never freed.
    """
    world.write(*[(f"k{number}", number) for number in range(10)])
    world.table.cursors.create("c")
    for offset in [1, 3, 4, 9]:
        # given somebody who holds the backlog from within a batch on
        world.table.cursors.commit("c", {0: offset})
        world.write((f"k{offset}", 100 + offset), ("k0", offset))
        # when it is compacted, then it is, up to the end, and cut as far as that one allows
        run = world.compact()
        assert world.adopted().horizon == world.view().end
        assert world.view().start <= offset
        assert run.partitions[0].held_by == ("cursor c",)
        world.check()
        world.reopen()
        world.check()
    # and when nobody holds it, then it is freed by the next run, though nothing is new
    world.table.cursors.delete("c")
    world.compact()
    assert world.view().start == world.view().end
    world.check()


# -- deletes that are forgotten, or never forgotten -----------------------------------------------


def test_who_stands_before_a_delete_is_told_of_it_though_nothing_comes_after_it(
    both: World,
) -> None:
    """#26190: deletes between a reader and the horizon were passed over if no row came later."""
    both.write(("a", 1), ("b", 1), ("c", 1))
    # given a cursor that has seen all keys
    both.table.cursors.create("c", kind="compacted")
    seen = folded(both.table.read(compacted=True, cursor="c"))
    both.table.cursors.commit("c", {0: 3})
    # when the last one is deleted, nothing follows, and all is compacted, cut and opened again
    both.write(("c", None))
    for _ in range(2):
        both.compact(rewrite=True)
        both.reopen()
    # then it is told
    for row in both.table.read(compacted=True, cursor="c").to_pylist():
        assert (row["id"], row["_change"]) == ("c", "delete")
        del seen[row["id"]]
    assert seen == both.model


def test_deletes_go_when_everybody_has_passed_them_and_by_no_clock(world: World) -> None:
    """KAFKA-4529: deletes went too early by their timestamps. Redpanda #28087 tells of replicas and
    readers away for longer than the time that deletes are kept: deleted keys came back.
    KAFKA-8522: on quiet tables they never went.
    """
    world.write(("a", 1), ("b", 1))
    world.table.cursors.create("slow", kind="compacted", start="latest")
    world.write(("a", None))
    # given a reader that does not move, over many runs
    for turn in range(4):
        world.write(("b", turn))
        run = world.compact(rewrite=True)
        assert run.partitions[0].deletes == 1
    # when it has passed them
    world.table.cursors.commit("slow", {0: world.view().end})
    # then they go with the next run, though nothing is written any more
    run = world.compact(rewrite=True)
    assert (run.partitions[0].deletes, run.partitions[0].deletes_dropped) == (0, 1)
    assert run.rows_live == 1
    world.check()


# -- updates that are lost ------------------------------------------------------------------------


@pytest.mark.parametrize("verify", [False, True])
def test_rows_written_at_every_step_of_a_run_are_there(world: World, verify: bool) -> None:
    """Hudi #7969, Hudi #8132: updates that came during a compaction were lost. #21067: a run was
    over before all was written.
    """
    fill(world)
    world.settle()
    count = 0

    def write(step: str) -> None:
        nonlocal count
        count += 1
        world.write(("k1", 1_000 + count), (f"during {count}", count), ("k2", None))

    world.table.compact(engine="local", step=write, verify=verify)
    world.check()
    world.reopen()
    world.check()
    world.compact(verify=True)
    world.check()


@pytest.mark.parametrize("kind", [".parquet", ".keys", ".json", ".done"])
def test_a_file_that_is_not_whole_is_not_published(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """#21067: a run was declared done with writes under way that failed later."""
    fill(world)
    world.compact()
    before = world.adopted()
    fill(world, 10)
    world.settle()
    sync = store._sync

    def fails(path: str) -> None:
        if kind in path:
            raise OSError(errno.EIO, "the disk is broken")
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_sync", fails)
        with pytest.raises(LowmarkError):
            world.table.compact(engine="local")
    assert world.adopted() == before
    world.check()
    world.compact()
    world.check()
    world.check_tidy()


# -- gaps that say nothing ------------------------------------------------------------------------


def test_a_gap_says_whether_rows_were_compacted_or_have_expired_and_none_says_lost(
    world: World,
) -> None:
    """SPARK-24720, SPARK-25214: a reader could not tell a compacted gap from lost rows."""
    world.batched = False
    fill(world)
    world.compact()
    fill(world, 10)
    with pytest.raises(GapFound) as caught:
        world.table.read(start=3).to_pylist()
    assert caught.value.gap.kind == "superseded"
    # and a compacted reader passes from row to row over what was superseded, and tells of no gap
    reader = world.table.read(compacted=True, start=0)
    reader.to_pylist()
    assert reader.gaps == []
    # when rows behind the ledger expire, that is another kind
    set_options(world, compaction="off", retention_bytes=1)
    look_after(world)
    with pytest.raises(GapFound) as caught:
        world.table.read(start=20).to_pylist()
    assert caught.value.gap.kind == "expired"
