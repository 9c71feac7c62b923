"""Runs that are interrupted, repeated, overtaken or harmed: what is read stays what it was, and the
next run comes to what an undisturbed one would have come to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from compaction.operating import STEPS, at_step, flip, run_aside, stopped_within_work
from compaction.world import World, folded
from eventually import eventually
from inside import backend_of, partition_of
from lowmark.backend.errors import RunUnderWay
from lowmark.compaction import runner as running
from lowmark.errors import Conflict, Unavailable
from lowmark.ledger import LedgerDamaged, RunRecord, SourceMoved
from lowmark.ledger import tail as ledger_tail
from lowmark.table import Adopted, encode_batch, encode_rows


def fill(world: World, *, turns: int = 2) -> None:
    """Rows of 40 keys in many batches, every seventh key deleted."""
    for turn in range(turns):
        for first in range(0, 40, 8):
            world.write(*[(f"k{number}", turn) for number in range(first, first + 8)])
        world.write(*[(f"k{number}", None) for number in range(0, 40, 7)])


# -- ended in the middle --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("ledger", [False, True], ids=["the first run", "a later run"])
def test_a_process_that_ends_anywhere_within_the_work_has_changed_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, ledger: bool
) -> None:
    # given rows that are read and written in many small pieces, in both passes
    monkeypatch.setattr(ledger_tail, "_CHUNK_BYTES", 400)
    fill(world)
    if ledger:
        world.compact()
        fill(world)
    before, start = world.view().ledger, world.view().start
    nth, interrupted = 1, 0
    # when the process ends in one place after another, and the run is begun anew each time
    while stopped_within_work(world, monkeypatch, nth=nth):
        # then the horizon, the ledger and the backlog are what they were, and so is what is read
        assert (world.view().ledger, world.view().start) == (before, start)
        world.check()
        nth, interrupted = nth + 5, interrupted + 1
    assert interrupted >= 4
    # and the run that came through is exact, with nothing left of the others
    assert len(world.offsets(compacted=True)) == len(world.model)
    assert [one.state for one in world.table.runs()[:interrupted]] == [
        "done",
        *["cancelled"] * (interrupted - 1),
    ]
    world.check()
    world.check_tidy()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["resumed", "begun anew"])
@pytest.mark.parametrize("step", STEPS[1:])
def test_a_run_that_ended_before_a_step_is_resumed_or_begun_anew(
    world: World, step: str, how: str
) -> None:
    # given a ledger, newer rows, and a run over them whose process has ended
    fill(world, turns=1)
    world.compact()
    fill(world, turns=1)
    horizon = world.adopted().horizon
    run = world.stopped_before(step)
    world.check()
    assert world.adopted().horizon >= horizon
    # when it is resumed, or another one is begun
    if how == "resumed" and run.state == "interrupted":
        assert world.table.compact(engine="local", resume=run.run).state == "done"
    world.compact()
    # then the ledger has every key once, the backlog is cut, and no file too many is there
    assert world.adopted().horizon == world.view().start == world.view().end
    assert len(world.offsets(compacted=True)) == len(world.model)
    assert not [one for one in world.table.runs() if one.state in {"running", "interrupted"}]
    world.check()
    world.check_tidy()


def test_a_restart_right_after_a_run_gives_the_same_rows_and_the_same_history(world: World) -> None:
    fill(world)
    run = world.compact()
    rows = world.offsets(compacted=True)
    world.reopen()
    assert world.offsets(compacted=True) == rows
    assert world.table.runs() == [run]


# -- tried again ----------------------------------------------------------------------------------


def test_rows_that_have_moved_to_other_files_meanwhile_are_looked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given work that finds its segments gone once, as after a merge
    fill(world)
    tries: list[int] = []
    run_pieces = running.LocalRunner.run

    def moved_once(
        self: running.LocalRunner,
        function: Callable[[bytes], bytes],
        packs: Sequence[Sequence[bytes]],
        *,
        label: str,
    ) -> list[bytes]:
        tries.append(len(packs))
        if len(tries) == 1:
            raise SourceMoved(0)
        return run_pieces(self, function, packs, label=label)

    monkeypatch.setattr(running.LocalRunner, "run", moved_once)
    # when it is compacted, then it is planned anew, and done
    run = world.compact()
    assert (len(tries), run.state) == (2, "done")
    world.check()
    world.check_tidy()


def test_a_source_that_is_never_where_it_was_ends_the_run_and_leaves_no_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world)
    world.compact()
    fill(world, turns=1)
    before = world.adopted()

    def always_moved(*_: object, **__: object) -> list[bytes]:
        raise SourceMoved(0)

    world.settle()
    with monkeypatch.context() as patch:
        patch.setattr(running.LocalRunner, "run", always_moved)
        with pytest.raises(Conflict):
            world.table.compact(engine="local")
    # then the log is whole, and the next run is a good one
    assert world.adopted() == before
    world.check()
    world.compact()
    world.check()
    world.check_tidy()


@pytest.mark.parametrize("counts", ["first", "last"])
def test_work_that_is_done_twice_is_published_once(
    world: World, monkeypatch: pytest.MonkeyPatch, counts: str
) -> None:
    """As when Spark tries a task again whose answer was lost, or runs two of them at once."""
    fill(world)
    world.compact()
    fill(world)
    work_off = running.work_off

    def twice(data: bytes) -> bytes:
        answers = [work_off(data), work_off(data)]
        return answers[0] if counts == "first" else answers[1]

    monkeypatch.setattr("lowmark.compaction.work.work_off", twice)
    run = world.compact()
    # then each key is there once, and of the other attempt nothing is left
    assert run.rows_live == len(world.model)
    assert len(world.offsets(compacted=True)) == len(world.model)
    world.check()
    world.check_tidy()


# -- one pair -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_horizon_and_ledger_are_one_pair_whoever_looks_whenever(world: World) -> None:
    # given somebody who writes all the time, and somebody who looks all the time
    over = threading.Event()
    problems: list[str] = []
    pairs: dict[str, Adopted] = {}
    written = list(range(30))

    def write() -> None:
        while not over.is_set():
            number = len(written)
            world.table.append([{"id": f"k{number % 30}", "v": number}])
            written.append(number)

    def look() -> None:
        while not over.is_set():
            view = world.view()
            ledger = view.ledger
            if ledger is None:
                continue
            if not view.start <= ledger.horizon <= view.end:
                problems.append(f"{view.start} {ledger.horizon} {view.end}")
            if pairs.setdefault(ledger.manifest, ledger) != ledger:
                problems.append(f"{ledger.manifest} had another horizon before")
            found = folded(world.table.read(compacted=True))
            if len(found) != 30 or any(value % 30 != int(key[1:]) for key, value in found.items()):
                problems.append(f"{len(found)} keys")

    world.write(*[(f"k{number}", number) for number in range(30)])
    threads = [threading.Thread(target=one, daemon=True) for one in (write, look)]
    for thread in threads:
        thread.start()
    # when it is compacted again and again meanwhile, until several ledgers were seen
    runs = 0
    while not problems and (runs < 10 or len(pairs) < 4):
        runs += 1
        world.db.advance_watermark()
        world.table.compact(engine="local")
        # then what was adopted is what its manifest says, and no row of it is above its horizon
        adopted, manifest = world.adopted(), world.manifest()
        assert (manifest.epoch, manifest.horizon) == (adopted.epoch, adopted.horizon)
        assert manifest.digest_value().form == adopted.digest
        assert all(file.last < manifest.horizon for file in manifest.files)
    over.set()
    for thread in threads:
        thread.join(60)
    # and nobody has seen the horizon of one with the rows of another
    assert problems == []
    world.note([(f"k{number % 30}", number) for number in written[30:]])
    world.compact()
    world.check()
    eventually(lambda: not backend_of(world.table).files_in_use())
    world.check_tidy()


# -- what was there before ------------------------------------------------------------------------


@pytest.mark.slow
def test_the_ledger_before_goes_when_its_grace_time_is_over_and_not_earlier(tmp_path: Path) -> None:
    for grace_ms in [0, 3_600_000]:
        with World(tmp_path / f"{grace_ms}", grace_ms=grace_ms) as world:
            fill(world)
            world.compact()
            old = world.needed()
            fill(world)
            world.compact(rewrite=True)
            assert not old & world.needed()
            assert (old <= world.files()) is bool(grace_ms)
            world.check()


@pytest.mark.parametrize("step", ["publish partition 0", "adopt partition 0"])
def test_a_run_that_could_not_publish_leaves_the_ledger_before_and_can_be_given_up(
    world: World, step: str
) -> None:
    fill(world)
    world.compact()
    before, files = world.adopted(), world.files()
    fill(world)

    def refuse() -> None:
        raise Unavailable("the metastore has no leader")

    world.settle()
    with pytest.raises(Unavailable):
        world.table.compact(engine="local", step=at_step(step, refuse))
    # then what is read is the old one, whose files are all there
    assert world.adopted() == before
    assert files <= world.files()
    world.check()
    # and when the run is given up and made anew, nothing of it is left
    (failed,) = [one for one in world.table.runs() if one.state == "failed"]
    assert "no leader" in failed.error
    assert world.table.cancel_run(failed.run).state == "cancelled"
    world.check()
    world.compact()
    world.check()
    world.check_tidy()


# -- twice ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["carry out the work", "publish partition 0"])
def test_a_second_run_of_a_table_is_refused_while_one_goes_on(world: World, step: str) -> None:
    fill(world)
    with run_aside(world, until=step) as end:
        # when another one is begun, then it is told which one goes on
        with pytest.raises(RunUnderWay, match="is being compacted by run"):
            world.table.compact(engine="local")
        world.check()
        outcome = end()
    assert isinstance(outcome, RunRecord)
    assert outcome.state == "done"
    world.check()


def test_a_run_with_nothing_new_makes_no_ledger_and_leaves_no_trace(world: World) -> None:
    fill(world)
    world.compact()
    before, files, runs = world.adopted(), world.files(), world.table.runs()
    for _ in range(3):
        run = world.table.compact(engine="local")
        assert [(one.state, one.why) for one in run.partitions] == [("skipped", "nothing is new")]
    assert (world.adopted(), world.files(), world.table.runs()) == (before, files, runs)


# -- one bad partition ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["an index", "rows", "a manifest"])
def test_a_damaged_partition_is_told_by_name_and_the_others_are_compacted(
    tmp_path: Path, harm: str
) -> None:
    with World(tmp_path / "data", partitions=4) as world:
        # given four partitions with ledgers, of which one is damaged
        world.write(*[(f"k{number}", 0) for number in range(80)])
        world.compact()
        (file,) = world.manifest(1).files
        names = {
            "an index": file.keys_path,
            "rows": file.path,
            "a manifest": world.adopted(1).manifest,
        }
        bad = world.path / "ledgers" / names[harm]
        flip(bad)
        failed = ""
        for turn in [1, 2]:
            world.write(*[(f"k{number}", turn) for number in range(0, 80, 5)])
            # when the table is compacted, again and again
            world.settle()
            with pytest.raises(LedgerDamaged, match=f"/1/.*{bad.suffix}"):
                world.table.compact(engine="local", rewrite=True)
            # then the others go on each time, and the run says which one it was
            assert [world.adopted(number).epoch for number in range(4)] == [
                1 + turn if number != 1 else 1 for number in range(4)
            ]
            run = world.table.runs()[0]
            assert run.state == "failed"
            assert [one.state for one in run.partitions] == [
                "adopted" if number != 1 else "planned" for number in range(4)
            ]
            assert "damaged" in run.partitions[1].why
            failed = run.run
        # and once it is whole again, it is made up for, without a restart
        flip(bad)
        assert world.table.compact(engine="local", resume=failed).state == "done"
        assert world.adopted(1).horizon == world.view(1).end
        world.check()
        world.check_tidy()


# -- what is known besides rows -------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_that_is_sent_again_is_known_though_none_of_its_rows_is_left(world: World) -> None:
    # given a producer's only batch, whose rows were all replaced
    rows = pa.record_batch({"id": ["a", "b"], "v": pa.array([1, 1], pa.int64())})
    command = encode_batch(
        memoryview(encode_rows(rows)),
        rows=2,
        schema=world.table.descriptor.latest.number,
        producer=b"p" * 16,
    )

    def send() -> object:
        partition = partition_of(world.table)
        return backend_of(world.table).ask(lambda: partition.append(command))

    first = send()
    world.note([("a", 1), ("b", 1)])
    world.write(("a", 2), ("b", 2))
    # when they were compacted away and the database was opened again
    world.compact()
    for _ in range(2):
        world.reopen()
        # then the same batch once more gets its first answer, and nothing is stored
        assert send() == first
        assert world.view().end == 4
        world.check()


def test_the_last_row_that_was_written_wins_whatever_times_stand_in_its_columns(
    tmp_path: Path,
) -> None:
    """Order is that of the log: a column with a time is a value like any other."""
    columns = {"id": "string", "v": "timestamp"}
    with World(tmp_path / "data", columns=columns) as world:
        late, early = "2026-01-02T00:00:00", "2026-01-01T00:00:00"
        world.table.append([{"id": "k", "v": late}, {"id": "k", "v": early}])
        world.table.append([{"id": "gone", "v": late}])
        world.table.append([{"id": "gone", "v": early, "_change": "delete"}])
        world.compact(verify=True)
        (row,) = world.table.read(compacted=True, columns=["id", "v"]).to_pylist()
        assert (row["id"], row["v"].day) == ("k", 1)
