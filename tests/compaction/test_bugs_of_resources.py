"""What others left behind, lost too early, or took too much of: files, leases, memory, handles, and
the time of others. Told here and survived; see `test_bugs.py`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.operating import at_step, run_aside
from compaction.world import World, folded
from eventually import eventually
from inside import backend_of
from lowmark.backend.errors import Cancelled
from lowmark.compaction import holds as run_holds
from lowmark.compaction import run as run_watching
from lowmark.compaction import runner as running
from lowmark.compaction import work as run_work
from lowmark.errors import Unavailable
from lowmark.ledger import RunRecord, Tail, Work
from lowmark.ledger.work import Throttle

KEYS = [f"k{number}" for number in range(10)]


def fill(world: World, value: int = 0) -> None:
    world.write(*[(key, value) for key in KEYS])
    world.write(*[(key, value + 1) for key in KEYS[:5]])


# -- files that go too early, or stay for ever ----------------------------------------------------


def test_a_file_that_two_ledgers_share_stays_as_long_as_one_of_them_is_needed(
    world: World,
) -> None:
    """Iceberg #13568: expiring one of two references deleted a file that the other one had."""
    world.write(*[(f"k{number}", number) for number in range(100)])
    world.compact()
    (shared,) = world.manifest().files
    reader = world.table.read(compacted=True)
    # given a newer ledger that has that file too, and a reader with the older one
    world.write(("k1", 1_000))
    world.compact()
    assert shared.path in world.manifest().paths()
    world.table.sweep()
    assert len(folded(reader)) == 100
    # when the older one goes, then the file stays
    reader.close()
    world.check_tidy()
    world.check()
    # and when no ledger has it, it goes
    world.compact(rewrite=True)
    assert shared.path not in world.files()
    world.check()


@pytest.mark.parametrize("step", ["publish partition 0", "adopt partition 0"])
def test_a_sweep_takes_nothing_of_a_run_that_is_not_over(world: World, step: str) -> None:
    """Iceberg #4194: files of a job that had not committed yet were taken for orphans."""
    fill(world)
    world.compact()
    fill(world, 10)
    # given a run that goes on, and after that one whose process has ended
    with run_aside(world, until=step) as end:
        files = world.files()
        assert files > world.needed()
        assert world.table.sweep() == []
        assert world.files() >= files
        assert isinstance(end(), RunRecord)
    world.check()
    world.write(("k1", 500))
    left = world.stopped_before(step)
    files = world.files()
    world.table.sweep()
    assert world.files() == files
    # then it can be resumed
    assert world.table.compact(engine="local", resume=left.run).state == "done"
    world.check()
    world.check_tidy()


def test_nothing_is_cut_that_a_run_reads_or_a_cursor_has_not_seen(world: World) -> None:
    """Hudi #19290: a cleaner deleted log files that a pending compaction had listed. Paimon #5819:
    a consumer's pin was not honoured.
    """
    fill(world)
    world.compact(trim=False)
    fill(world, 10)
    world.table.cursors.create("c", start={0: 4})
    with run_aside(world, until="carry out the work") as end:
        # when somebody cuts meanwhile
        (cut,) = world.table.trim({0: world.view().end}).values()
        assert world.view().start <= 4
        assert [hold.holder for hold in cut.safe.held_by] == ["c"]
        world.table.cursors.delete("c")
        world.table.trim({0: world.view().end})
        assert world.view().start <= world.adopted().horizon
        assert isinstance(end(), RunRecord)
    world.check()


def _fails(world: World) -> None:
    def fail() -> None:
        raise Unavailable("the disk is full")

    with pytest.raises(Unavailable):
        world.table.compact(engine="local", step=at_step("publish partition 0", fail))


def _is_cancelled(world: World) -> None:
    def cancel() -> None:
        world.table.cancel_run(world.table.runs()[0].run)

    with pytest.raises(Cancelled):
        world.table.compact(engine="local", step=at_step("carry out the work", cancel))


def _is_done(world: World) -> None:
    world.table.compact(engine="local")


def _was_killed_and_given_up(world: World) -> None:
    run = world.stopped_before("publish partition 0").run
    world.table.cancel_run(run)


def _was_killed_and_resumed(world: World) -> None:
    run = world.stopped_before("publish partition 0").run
    world.table.compact(engine="local", resume=run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [_fails, _is_cancelled, _is_done, _was_killed_and_given_up, _was_killed_and_resumed],
    ids=lambda how: how.__name__.strip("_"),
)
def test_a_run_holds_nothing_when_it_is_over_however_it_ended(
    world: World, how: Callable[[World], None]
) -> None:
    """Fluss #2605: a lease was left behind for ever."""
    fill(world)
    world.settle()
    how(world)
    assert [holder.name for holder in world.table.explain().holders] == []
    world.compact()
    assert world.view().start == world.view().end
    world.check()
    world.check_tidy()


def test_a_run_that_takes_longer_than_its_lease_holds_what_it_reads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fluss #3286: the lease ended before the job did."""
    monkeypatch.setattr(run_holds, "BACKLOG_LEASE_MS", 2_000)
    monkeypatch.setattr(run_watching, "_RENEW_S", 0.01)
    monkeypatch.setattr(run_watching, "_LOOK_S", 0.01)
    fill(world)
    with run_aside(world, until="carry out the work") as end:
        table, backend = world.table.descriptor.id, backend_of(world.table)

        def ends_ms() -> int:
            (lease,) = backend.status(table, [0])[0].leases
            return lease.ends_ms

        first = ends_ms()
        eventually(lambda: ends_ms() > first)
        outcome = end()
    assert isinstance(outcome, RunRecord)
    assert outcome.state == "done"
    world.check()


# -- memory, handles, and all at once -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="nobody tells what is open")
def test_runs_and_readers_leave_no_file_open(world: World) -> None:
    """#6482, #21647: what was read in compaction was never let go of, until the process died."""
    fill(world)
    world.compact()
    world.check()

    def turn(number: int) -> None:
        world.write((f"k{number % 10}", number))
        world.compact(rewrite=number % 3 == 0)
        world.check()

    def open_files() -> int:
        """But for segments of the log: it keeps those that were read last, so many and no more."""
        found = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        paths = [os.readlink(path) for path in found if os.path.lexists(path)]
        return sum(not path.endswith(".segment") for path in paths)

    turn(0)
    before = open_files()
    for number in range(1, 12):
        turn(number)
    assert open_files() <= before + 4


def work(partition: int) -> Work:
    return Work(
        run="r",
        store="s",
        table=b"",
        table_name="t",
        partition=partition,
        epoch=1,
        tail=Tail("", "", b"", 0, 0),
        horizon=0,
        schema=1,
        deletes_below=0,
    )


@pytest.mark.parametrize("slots", [1, 3, 8, 50])
def test_partitions_are_compacted_no_more_at_once_than_there_are_slots(slots: int) -> None:
    """#7223: all partitions of a topic were compacted at once, and the memory was not enough."""
    works = [work(number) for number in range(20)]
    packs = run_work._packed(works, slots)
    assert len(packs) == min(slots, 20)
    assert sorted(one.partition for pack in packs for one in pack) == list(range(20))
    assert max(map(len, packs)) - min(map(len, packs)) <= 1


def test_without_spark_one_partition_is_compacted_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """#7223."""
    work_off = running.work_off
    lock = threading.Lock()
    most: list[int] = []

    def alone(data: bytes) -> bytes:
        assert lock.acquire(blocking=False)
        try:
            most.append(1)
            return work_off(data)
        finally:
            lock.release()

    monkeypatch.setattr("lowmark.compaction.work.work_off", alone)
    with World(tmp_path / "data", partitions=5) as world:
        world.write(*[(f"k{number}", number) for number in range(50)])
        world.compact()
        assert len(most) == 5
        world.check()


# -- rates ----------------------------------------------------------------------------------------


class Clock:
    """Time passes when somebody waits."""

    def __init__(self) -> None:
        self.s = 0.0
        self.waits: list[float] = []

    def now_s(self) -> float:
        return self.s

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.s += seconds


@pytest.mark.parametrize("piece", [1_000, 50_000, 1_000_000])
def test_a_rate_is_kept_however_large_the_pieces_are(piece: int) -> None:
    """KAFKA-13996: a throttle that was set had no effect."""
    clock = Clock()
    throttle = Throttle(100_000, clock)
    for _ in range(5_000_000 // piece):
        throttle(piece)
    assert throttle.total == 5_000_000
    assert 49 <= clock.s <= 51
    assert len(clock.waits) <= 250  # few longer waits, not one for each piece


def test_without_a_rate_nobody_waits_and_all_is_counted() -> None:
    clock = Clock()
    throttle = Throttle(0, clock)
    for _ in range(10):
        throttle(10**9)
    assert (throttle.total, clock.waits) == (10**10, [])


@pytest.mark.slow
def test_each_run_has_the_rates_that_it_was_given_and_a_resumed_one_keeps_them(
    world: World,
) -> None:
    """KAFKA-13996."""
    fill(world)
    run = world.compact(read_rate=10**9, write_rate=10**8)
    assert (run.read_rate, run.write_rate) == (10**9, 10**8)

    def fail() -> None:
        raise Unavailable("the disk is full")

    # when one is resumed, then with the rates that it had, or with those that are given now
    for given, rate in [(None, 10**7), (10**8, 10**8)]:
        fill(world, rate)
        world.settle()
        step = at_step("publish partition 0", fail)
        with pytest.raises(Unavailable):
            world.table.compact(engine="local", read_rate=10**7, step=step)
        more = {} if given is None else {"read_rate": given}
        run = world.table.compact(engine="local", resume=world.table.runs()[0].run, **more)  # type: ignore[arg-type]
        assert (run.read_rate, run.write_rate) == (rate, 0)
        world.check()


# -- what a run tells ----------------------------------------------------------------------------


def test_a_run_tells_what_it_read_wrote_kept_and_how_long_it_took(world: World) -> None:
    """#19335: how many keys there are, and how long the last run took. #5394: the backlog is cut
    after it. #6432: runs that failed could not be told from those that did not.
    """
    fill(world)
    world.compact()
    (run,) = world.table.runs()
    assert (run.state, run.error, run.trigger) == ("done", "", "by hand")
    assert (run.rows_read, run.rows_live) == (15, 10)
    assert run.bytes_read > 0
    assert run.bytes_written >= run.ledger_bytes > 0
    assert run.trimmed_bytes > 0
    assert run.ended_at_ms >= run.began_at_ms > 0
    assert run.seconds > 0
    world.reopen()
    assert world.table.runs() == [run]
