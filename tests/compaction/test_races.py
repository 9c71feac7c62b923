"""Whatever happens to a table while a run compacts it: other runs, a full disk, lost answers, new
readers, old readers, sweeps, and other processes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compaction.faults import calls_of_a_run, store_calls
from compaction.world import World, folded
from inside import backend_of
from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import BatchesMoved, Cancelled, RunUnderWay
from lowmark.client import BelowWatermark, GapFound
from lowmark.compaction.compactor import Compactor
from lowmark.compaction.context import RunOptions
from lowmark.compaction.runner import LocalRunner
from lowmark.errors import Rejected, Unavailable
from lowmark.group import Future, OutcomeUnknown
from lowmark.ledger import RunRecord, run_key, table_folder
from lowmark.ledger.records import POINTER_PREFIX, RUN_PREFIX
from lowmark.metastore import Entry
from lowmark.runtime import DiskFull
from lowmark.table.commands import CreateCursor
from lowmark.table.errors import DeletesGone
from sim.mutants import replaced

Step = Callable[[str], None]


def before(step: str, act: Callable[[], object], *, times: int = 1) -> Step:
    """For `compact(step=...)`: do something before a step is made, the first times."""
    left = times

    def told(name: str) -> None:
        nonlocal left
        if name == step and left:
            left -= 1
            act()

    return told


def published(world: World, partition: int = 0) -> tuple[str, int]:
    """The manifest that the pointer names, and its epoch."""
    records = world.table._compactor.records
    pointer = records.pointers(world.table.descriptor.id).get(partition)
    return ("", 0) if pointer is None else (pointer.manifest, pointer.epoch)


def check_one_ledger(world: World) -> None:
    """What is published was adopted, it has all rows, and nothing is there besides."""
    adopted = world.adopted()
    assert published(world) == (adopted.manifest, adopted.epoch)
    assert adopted.horizon == world.view().end
    world.check()
    world.check_tidy()


# -- two runs -------------------------------------------------------------------------------------


def test_of_two_runs_at_once_the_second_one_is_refused_by_name(world: World) -> None:
    world.write(("a", 1), ("b", 2), ("a", 3))
    refused: list[str] = []

    def another() -> None:
        # when another one is begun, or this one resumed, while the first one goes on
        active = world.table.runs()[0].run
        for resumed in (None, active):
            with pytest.raises(RunUnderWay, match=f"table t is being compacted by run {active}"):
                world.table.compact(engine="local", resume=resumed)
            refused.append(active)

    # then it is refused, and the first one does not notice
    run = world.compact(step=before("carry out the work", another))
    assert len(refused) == 2
    assert [one.run for one in world.table.runs()] == [run.run]
    check_one_ledger(world)
    # and after it another one may be made
    world.write(("a", 4))
    world.compact()
    check_one_ledger(world)


def test_of_many_threads_that_compact_at_once_one_does_and_nothing_is_done_twice(
    world: World,
) -> None:
    world.write(*[(f"k{number % 5}", number) for number in range(40)])
    world.settle()
    outcomes: list[object] = []
    ready = threading.Barrier(6)

    def compact() -> None:
        ready.wait()
        try:
            outcomes.append(world.table.compact(engine="local").partitions[0].state)
        except RunUnderWay:
            outcomes.append("refused")

    threads = [threading.Thread(target=compact) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    # Whoever came after the one that did it found nothing to do.
    assert outcomes.count("adopted") == 1
    assert set(outcomes) <= {"adopted", "refused", "skipped"}
    check_one_ledger(world)


def rival_of(world: World) -> Compactor:
    """One that makes runs as if it were in another process, of a release that knows no claims, and
    heard of no run elsewhere: their holds are gone for a moment when the owner of a directory was
    killed.
    """
    own = world.table._compactor
    return Compactor(world.table._session, own.ledgers)


def compact_by(rival: Compactor, world: World) -> RunRecord:
    with (
        replaced(rival, "give_up_others", lambda *_, **__: False),
        replaced(rival, "_under_way", set),
        replaced(rival, "_claimed", lambda *_, **__: contextlib.nullcontext()),
    ):
        return rival.compact(
            world.table.descriptor,
            range(world.table.partitions),
            LocalRunner,
            RunOptions(engine="local", where="this process"),
        )


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False], ids=["first ledger", "later ledger"])
def test_a_run_that_is_overtaken_says_so_and_publishes_nothing(world: World, first: bool) -> None:
    # given a run that has finished its work
    world.write(("a", 1), ("b", 2))
    if not first:
        world.compact()
    world.write(("a", 3), ("b", None), ("c", 4))
    rival = rival_of(world)
    theirs: list[RunRecord] = []

    def overtake() -> None:
        # when another one, which has more rows, publishes its ledger first
        world.write(("d", 5), ("a", 6))
        world.settle()
        theirs.append(compact_by(rival, world))

    run = world.compact(step=before("publish partition 0", overtake))
    # then this one is overtaken, and the other one's ledger stays
    assert [one.state for one in run.partitions] == ["overtaken"]
    assert [one.state for one in theirs[0].partitions] == ["adopted"]
    assert published(world)[0] == theirs[0].partitions[0].manifest
    assert published(world)[1] == (1 if first else 2)
    check_one_ledger(world)
    world.reopen()
    check_one_ledger(world)


def test_a_run_that_was_given_up_elsewhere_publishes_nothing_and_cuts_nothing(world: World) -> None:
    # given a run that has finished its work
    world.write(("a", 1), ("b", 2), ("a", 3))
    there = world.table.read(as_of="now").to_arrow()
    records, table = world.table._compactor.records, world.table.descriptor.id

    def give_up() -> None:
        # when another process takes it for interrupted
        [one] = records.runs(table)
        records.put_run(msgspec.structs.replace(one, state="cancelled"))

    with pytest.raises(Cancelled, match="given up"):
        world.compact(step=before("publish partition 0", give_up))
    # then it ends by name, and no ledger names its files, which may go at any moment
    assert records.pointers(table) == {}
    assert [one.state for one in world.table.runs()] == ["cancelled"]
    world.table.sweep()
    assert world.table.read(as_of="now").to_arrow().equals(there)
    # and the next run does what it would have done
    world.compact()
    check_one_ledger(world)


def test_a_run_looks_at_its_own_note_only_if_it_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bytes] = []
    get = Embedded.get

    def look(self: Embedded, key: bytes, *, timeout_s: float | None = None) -> Entry | None:
        looks.append(key)
        return get(self, key, timeout_s=timeout_s)

    with World(tmp_path / "w", partitions=3) as world:
        world.write(*[(f"k{number}", number) for number in range(20)])
        world.settle()
        monkeypatch.setattr(Embedded, "get", look)
        # when nothing else is noted of a run, then it looks before its first note, and at its end,
        # when it gives its claim back
        run = world.table.compact(engine="local")
        assert looks.count(run_key(run.table, run.run)) == 2
        # and when another process has noted something, then it looks again, and goes on
        world.write(("k1", 101))
        world.settle()
        looks.clear()
        records = world.table._compactor.records

        def note() -> None:
            [one] = [one for one in records.runs(run.table) if one.state == "running"]
            records.put_run(msgspec.structs.replace(one, error="as it goes on"))

        again = world.table.compact(engine="local", step=before("carry out the work", note))
        assert again.state == "done"
        assert looks.count(run_key(again.table, again.run)) == 3
        world.check()


# -- a full disk ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_moment_fails_the_run_by_name_and_hurts_nothing(
    tmp_path: Path,
) -> None:
    def fill(world: World) -> None:
        world.write(*[(f"k{number % 6}", number) for number in range(20)])
        world.compact()
        world.write(("k1", 101), ("k2", None), ("new", 1))

    with World(tmp_path / "all") as world:
        fill(world)
        calls = calls_of_a_run(world)
    needs_space = {"make folder", "sync", "rename"}
    writes = [at for at, name in enumerate(calls, start=1) if name in needs_space]
    assert len(writes) >= 12
    for number in writes:
        with World(tmp_path / str(number)) as world:
            fill(world)
            world.settle()
            was = published(world)

            # given a disk that is full from some moment of a run on
            def full(name: str, number: int = number) -> None:
                if name in needs_space and len(made.made) >= number:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            # then the run fails by name
            with store_calls(full) as made, pytest.raises(DiskFull, match="no space left"):
                world.table.compact(engine="local")
            failed = world.table.runs()[0]
            assert failed.state == "failed"
            assert "no space left" in failed.error
            # and nothing of it is published; all is read as before, and can be written
            assert published(world) == was
            world.write(("k3", 1_000))
            world.check()
            # when there is space again, then the run is resumed, or another one made
            if number % 2:
                assert world.table.compact(engine="local", resume=failed.run).state == "done"
                world.check()
            world.write(("k4", 2_000), ("k5", None))
            world.compact()
            check_one_ledger(world)


def test_a_partition_without_space_is_tried_again_when_others_have_freed_some(
    tmp_path: Path,
) -> None:
    with World(tmp_path / "w", partitions=2) as world:
        world.write(*[(f"k{number % 6}", number) for number in range(20)])
        world.settle()
        steps: list[str] = []

        # given a disk that has no space for the first partition that is tried
        def full(name: str) -> None:
            if name == "rename" and not tried:
                tried.append(name)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        tried: list[str] = []
        with store_calls(full):
            run = world.table.compact(engine="local", step=steps.append)
        # then it is tried again when the other one is compacted
        assert tried
        assert (run.state, [one.state for one in run.partitions]) == ("done", ["adopted"] * 2)
        assert steps.count("carry out the work") == 2
        world.check()


def no_space_for(ending: str, partition: int) -> contextlib.AbstractContextManager[None]:
    """A disk with no space left for files of a partition whose names end so."""
    rename = os.replace

    def full(source: Any, target: Any) -> None:
        if re.search(rf"/{partition}(/[^/]*)?{re.escape(ending)}$", os.fspath(target)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, target)

    return replaced(os, "replace", full)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partitions", "ending"), [(1, ".keys"), (3, ".keys"), (3, ".json"), (3, ".done")]
)
def test_work_that_finds_no_space_leaves_no_file_behind_and_is_told_of_in_the_run(
    tmp_path: Path, partitions: int, ending: str
) -> None:
    with World(tmp_path / "w", partitions=partitions) as world:
        world.write(*[(f"k{number % 20}", number) for number in range(60)])
        world.settle()
        last = partitions - 1
        # given a disk with space for all files of a partition but one, however often it is tried
        with no_space_for(ending, last), pytest.raises(DiskFull, match="no space left"):
            world.table.compact(engine="local")
        # then the run has failed, and says of that partition why
        [failed] = world.table.runs()
        states = [one.state for one in failed.partitions]
        assert (failed.state, states) == ("failed", ["adopted"] * last + ["planned"])
        assert "no space left" in failed.partitions[last].why
        # and no file of it takes space that others need
        folder = table_folder(world.table.descriptor.id)
        assert [one for one in world.files() if one.startswith(f"{folder}/{last}/")] == []
        world.check()
        # when there is space again, then the run goes on
        done = world.table.compact(engine="local", resume=failed.run)
        assert (done.state, done.partitions[last].why) == ("done", "")
        world.check()
        world.check_tidy()


@pytest.mark.slow
def test_partitions_are_tried_again_as_long_as_others_free_space(tmp_path: Path) -> None:
    with World(tmp_path / "w", partitions=8) as world:
        world.write(*[(f"k{number}", number) for number in range(80)])
        world.settle()
        rounds: list[str] = []
        room, rename = 0, os.replace

        # given a disk that has space for one partition, and then for one more with each that is cut
        def more(name: str) -> None:
            nonlocal room
            if name == "carry out the work":
                rounds.append(name)
                room = 1

        def full(source: Any, target: Any) -> None:
            nonlocal room
            if os.fspath(target).endswith(".parquet"):
                if not room:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                room -= 1
            rename(source, target)

        with replaced(os, "replace", full):
            run = world.table.compact(engine="local", step=more)
        # then all are compacted, one after another
        assert (run.state, {one.state for one in run.partitions}) == ("done", {"adopted"})
        assert {one.why for one in run.partitions} == {""}
        assert len(rounds) == 8
        world.check()
        world.check_tidy()


def test_a_resumed_run_tries_again_when_what_was_finished_before_frees_space(
    tmp_path: Path,
) -> None:
    with World(tmp_path / "w", partitions=2) as world:
        world.write(*[(f"k{number % 6}", number) for number in range(20)])
        world.settle()
        full, really = True, os.replace
        steps: list[str] = []

        # given a disk that has no space for a partition until another one is adopted
        def step(name: str) -> None:
            nonlocal full
            steps.append(name)
            if name == "publish partition 0" and steps.count(name) == 1:
                raise Unavailable("the process is about to end")
            full = full and name != "adopt partition 0"

        def rename(source: Any, target: Any) -> None:
            if full and re.search(r"/1/[^/]*\.parquet$", os.fspath(target)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            really(source, target)

        with replaced(os, "replace", rename):
            # and a run that ends when that one is written, and not published
            with pytest.raises(Unavailable, match="about to end"):
                world.table.compact(engine="local", step=step)
            [failed] = world.table.runs()
            assert [one.state for one in failed.partitions] == ["written", "planned"]
            # when it is resumed, then it is done, as it would have been without the end
            run = world.table.compact(engine="local", resume=failed.run, step=step)
        assert (run.state, [one.state for one in run.partitions]) == ("done", ["adopted"] * 2)
        assert [one.why for one in run.partitions] == ["", ""]
        world.check()
        world.check_tidy()


@pytest.mark.slow
def test_a_run_that_gives_up_without_space_says_so_and_not_that_readers_came(
    tmp_path: Path,
) -> None:
    with World(tmp_path / "w", partitions=2) as world:
        # given deletes at every second offset, and rows that stay
        for number in range(24):
            world.write((f"k{number}", 1))
            world.write((f"k{number}", None))
        starts = iter(range(world.view(0).end - 3, 0, -2))
        world.write(*[(f"stays {number}", number) for number in range(10)])
        world.settle()

        def come() -> None:
            at = next(starts)
            world.ask(CreateCursor(f"from {at}", at + 1, "compacted", at))

        # when readers keep one partition from being adopted, and the other one has no space
        step = before("adopt partition 0", come, times=5)
        with no_space_for(".keys", 1), pytest.raises(DiskFull, match="no space left"):
            world.table.compact(engine="local", step=step)
        # then the run says so
        [failed] = world.table.runs()
        assert "no space left" in failed.error
        assert "no space left" in failed.partitions[1].why
        world.check()
        # and is done when there is some
        assert world.table.compact(engine="local", resume=failed.run).state == "done"
        world.check()


# -- answers that are lost ------------------------------------------------------------------------


@contextlib.contextmanager
def lost_answers(
    world: World, fate: str, *, times: int = 1, of: bytes = POINTER_PREFIX, spared: int = 0
) -> Iterator[list[str]]:
    """The answers to the first writes of a pointer never come; gives what became of the writes.

    They are `applied`, or `lost`, or applied `late`: after somebody has looked. The first of them
    may be `spared`.
    """
    metastore = backend_of(world.table).node.cluster.metastore
    invoke_if, get = metastore.invoke_if, metastore.get
    said: list[str] = []
    waiting: list[Callable[[], Any]] = []
    left = spared

    def lossy(condition: Any, then: Any, otherwise: Any = ()) -> Future[bool]:
        nonlocal left
        if len(said) >= times or not any(one.key.startswith(of) for one in then):
            return invoke_if(condition, then, otherwise)
        if left:
            left -= 1
            return invoke_if(condition, then, otherwise)
        said.append(fate)
        unknown: Future[bool] = Future()
        error = OutcomeUnknown("metastore", why="the answer was lost")
        if fate == "applied":
            invoke_if(condition, then, otherwise).then(lambda _: unknown.reject(error))
        else:
            if fate == "late":
                waiting.append(lambda: invoke_if(condition, then, otherwise))
            unknown.reject(error)
        return unknown

    def looked(key: bytes, *given: Any, **more: Any) -> Any:
        found = get(key, *given, **more)

        def answered(_: object) -> None:
            while waiting:
                waiting.pop()()

        found.then(answered)
        return found

    with replaced(metastore, "invoke_if", lossy), replaced(metastore, "get", looked):
        yield said


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False], ids=["first ledger", "later ledger"])
@pytest.mark.parametrize("fate", ["applied", "lost", "late"])
def test_a_lost_answer_to_the_publication_is_looked_up(
    world: World, fate: str, first: bool
) -> None:
    # given a run whose publication is answered by nobody
    world.write(("a", 1), ("b", 2))
    if not first:
        world.compact()
    world.write(("a", 3), ("b", None), ("c", 4))
    world.settle()
    with lost_answers(world, fate) as said:
        run = world.table.compact(engine="local")
    assert said == [fate]
    # then it is looked up what became of it, and the ledger is published once
    assert run.state == "done"
    assert [one.state for one in run.partitions] == ["adopted"]
    assert published(world) == (run.partitions[0].manifest, 1 if first else 2)
    check_one_ledger(world)
    world.reopen()
    check_one_ledger(world)
    # and the next run goes on from there
    world.write(("c", 5))
    world.compact()
    check_one_ledger(world)


@pytest.mark.slow
@pytest.mark.parametrize("spared", [0, 1, 2])
@pytest.mark.parametrize("fate", ["applied", "lost", "late"])
def test_a_lost_answer_to_a_note_of_a_run_does_not_end_it(
    world: World, fate: str, spared: int
) -> None:
    # given a run of which the metastore's leader dies as one of its notes comes
    world.write(("a", 1), ("b", 2))
    world.settle()
    with lost_answers(world, fate, of=RUN_PREFIX, spared=spared) as said:
        run = world.table.compact(engine="local")
    assert said == [fate]
    # then it is noted again, and the run goes on
    assert run.state == "done"
    assert [one.state for one in world.table.runs()] == ["done"]
    assert published(world) == (run.partitions[0].manifest, 1)
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["at once", "opened again"])
def test_when_nothing_is_known_of_the_publication_the_run_fails_and_keeps_its_files(
    world: World, again: bool
) -> None:
    # given a metastore that answers no write of a pointer
    world.write(("a", 1), ("a", 2), ("b", None))
    world.settle()
    told: list[str] = []
    with lost_answers(world, "lost", times=100), pytest.raises(OutcomeUnknown):
        world.table.compact(engine="local")
    failed = world.table.runs()[0]
    assert failed.state == "failed"
    # then nothing that may still be published is swept
    written = {name for name in world.files() if failed.run in name}
    world.table.sweep()
    assert written <= world.files()
    world.check()
    # when it answers again, then the run is resumed, without any work
    if again:
        world.reopen()
    done = world.table.compact(engine="local", resume=failed.run, step=told.append)
    assert done.state == "done"
    assert "carry out the work" not in told
    check_one_ledger(world)


# -- readers that come during a run ---------------------------------------------------------------


@pytest.mark.parametrize(
    "step", ["hold partition 0", "carry out the work", "publish partition 0", "adopt partition 0"]
)
def test_whoever_comes_while_a_run_works_is_given_the_deletes_it_needs(
    world: World, step: str
) -> None:
    # given a key that was deleted, and nobody who reads: the run would drop the delete
    world.write(("a", 1), ("b", 2))
    world.write(("a", None))
    told: list[str] = []

    def come() -> None:
        # when somebody who has seen the key comes before the ledger is adopted
        world.table.cursors.create("late", kind="compacted", start={0: 1})

    arrive = before(step, come)

    def both(name: str) -> None:
        told.append(name)
        arrive(name)

    run = world.compact(step=both)
    # then the partition is planned anew, and its ledger has the delete
    assert [one.state for one in run.partitions] == ["adopted"]
    assert told.count("carry out the work") == 2
    assert world.adopted().deletes_below <= 1
    rows = world.table.read(compacted=True, cursor="late").to_pylist()
    assert [(row["id"], row["_change"]) for row in rows] == [("b", "upsert"), ("a", "delete")]
    check_one_ledger(world)
    # and when it has passed the delete, the next run drops it
    world.table.cursors.commit("late", {0: 3})
    world.compact(rewrite=True)
    assert [key for key, _ in world.offsets(compacted=True)] == ["b"]
    check_one_ledger(world)


def test_a_ledger_that_was_refused_is_adopted_when_whoever_came_has_gone(world: World) -> None:
    # given a ledger that is refused, because somebody came who needs deletes that it lacks
    world.write(("a", 1), ("b", 2))
    world.write(("a", None))
    told: list[str] = []

    def come_and_go(name: str) -> None:
        # when whoever came has gone before the partition is planned anew
        if name == "adopt partition 0":
            world.table.cursors.create("short", kind="compacted", start={0: 1})
        elif told[-1:] == ["adopt partition 0"]:
            world.table.cursors.delete("short")
        told.append(name)

    run = world.compact(step=come_and_go)
    # then it is adopted after all, and the run says what it did
    assert told.count("carry out the work") == 1
    assert [(one.state, one.rows_read) for one in run.partitions] == [("adopted", 3)]
    assert run.partitions[0].manifest == world.adopted().manifest
    check_one_ledger(world)


def test_a_run_is_not_overtaken_by_what_it_published_itself(world: World) -> None:
    # given a ledger that is refused, because a cursor came that needs deletes which it lacks
    world.write(("a", 1), ("b", 2))
    world.write(("a", None))
    works = 0

    def come_and_go(name: str) -> None:
        nonlocal works
        if name == "adopt partition 0" and not works > 1:
            world.table.cursors.create("short", kind="compacted", start={0: 1})
        if name == "carry out the work":
            works += 1
            if works == 2:
                # when the cursor goes while the partition is written anew
                world.table.cursors.delete("short")

    run = world.compact(step=come_and_go)
    # then what was published first is adopted, the backlog is cut, and the run says so
    (one,) = run.partitions
    assert (works, one.state, one.trimmed_to) == (2, "adopted", 3)
    assert one.manifest == world.adopted().manifest
    check_one_ledger(world)


def test_whoever_comes_after_the_ledger_was_adopted_is_told_that_deletes_are_gone(
    world: World,
) -> None:
    world.write(("a", 1), ("b", 2))
    world.write(("a", None))

    def come() -> None:
        with pytest.raises(DeletesGone):
            world.table.cursors.create("late", kind="compacted", start={0: 1})
        world.table.cursors.create("new", kind="compacted", start="earliest")

    world.compact(step=before("trim partition 0", come))
    rows = world.table.read(compacted=True, cursor="new").to_pylist()
    assert [row["id"] for row in rows] == ["b"]
    check_one_ledger(world)


def test_readers_may_come_again_and_again_while_a_run_works(world: World) -> None:
    # given deletes at every second offset
    for number in range(8):
        world.write((f"k{number}", 1))
        world.write((f"k{number}", None))
    starts = iter([13, 9, 5, 1])

    def come() -> None:
        # when before each adoption somebody comes who needs more of them than all before
        at = next(starts)
        world.ask(CreateCursor(f"from {at}", at + 1, "compacted", at))

    # then the run gives in each time, and is done when nobody comes any more
    run = world.compact(step=before("adopt partition 0", come, times=4))
    assert [one.state for one in run.partitions] == ["adopted"]
    rows = world.table.read(compacted=True, cursor="from 1").to_pylist()
    assert [row["id"] for row in rows] == [f"k{number}" for number in range(8)]
    check_one_ledger(world)


# -- readers that are there -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["bounded", "follows", "follows from the earliest"])
def test_a_reader_sees_no_gap_and_no_repeat_while_ledgers_are_published_under_its_feet(
    world: World, how: str
) -> None:
    # given a reader that takes a few rows at a time, and holds the deletes it has to be told of
    world.write(*[(f"k{number % 11}", number) for number in range(30)])
    world.compact()
    world.write(*[(f"k{number % 7}", number) for number in range(30, 40)])
    at_first = dict(world.model)
    start = {0: 0} if how == "follows" else "earliest"
    reader = world.table.read(
        compacted=True,
        start=start,
        follow=how != "bounded",
        batch_bytes=1,
        lease_ms=600_000,
        columns=["id", "v", "_offset", "_change"],
    )
    offsets: list[int] = []
    state: dict[Any, Any] = {}

    def take() -> bool:
        batch = next(reader, None)
        for row in batch.to_pylist() if batch is not None else []:
            offsets.append(row["_offset"])
            state[row["id"]] = row["v"]
            if row["_change"] == "delete":
                del state[row["id"]]
        return batch is not None

    # when after each batch there is another ledger, and what is not needed is cut and swept
    turn = 0
    while (how == "bounded" and take()) or (how != "bounded" and turn < 12):
        turn += 1
        world.write((f"k{turn % 11}", 100 + turn), (f"k{(turn + 3) % 11}", None), ("last", turn))
        world.compact(rewrite=turn % 2 == 0)
        world.table.sweep()
        if how != "bounded":
            take()
    # then it has seen everything in order, each row once
    if how == "bounded":
        assert state == at_first
    else:
        while offsets[-1] < world.view().end - 1:
            assert take()
        assert state == world.model
    assert offsets == sorted(set(offsets))
    reader.close()
    world.compact()
    check_one_ledger(world)


@pytest.mark.slow
@pytest.mark.parametrize("count", [120, pytest.param(400, marks=pytest.mark.release)])
def test_readers_are_right_while_another_thread_writes_and_compacts(
    world: World, count: int
) -> None:
    # given one who writes the number of each row into it, and compacts all the time
    over = threading.Event()
    trouble: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(count):
                world.write((f"k{number % 13}", number))
                if number % 8 == 7:
                    world.db.advance_watermark()
                    world.table.compact(engine="local", rewrite=number % 3 == 0)
        except BaseException as error:
            trouble.append(error)
        finally:
            over.set()

    def wanted(end: int) -> dict[str, int]:
        return {f"k{number % 13}": number for number in range(end)}

    writer = threading.Thread(target=write)
    writer.start()
    reads, position = 0, 0
    held: dict[str, int] = {}
    while not over.is_set() or reads < 5:
        # then everybody who reads gets the table as it was at some moment, whole
        reader = world.table.read(compacted=True, columns=["id", "v", "_offset", "_change"])
        rows = reader.to_pylist()
        offsets = [row["_offset"] for row in rows]
        assert offsets == sorted(set(offsets))
        assert {row["id"]: row["v"] for row in rows} == wanted(reader.position[0])
        # (with no time for which history stays exact, now may be over before it is read)
        with contextlib.suppress(BelowWatermark):
            now = world.table.read(as_of="now")
            assert {row["id"]: row["v"] for row in now.to_pylist()} == wanted(now.position[0])
        # and whoever goes on where it stood knows the same
        later = world.table.read(compacted=True, start={0: position}, on_gap="skip")
        held |= folded(later)
        position = later.position[0]
        assert held == wanted(position)
        for number in range(13):
            row = world.table.get(f"k{number}")
            assert row is None or row["v"] % 13 == number
        reads += 1
    writer.join()
    assert not trouble
    world.compact()
    check_one_ledger(world)


def test_a_follower_that_holds_nothing_is_told_of_deletes_that_went_under_its_feet(
    world: World,
) -> None:
    # given a follower without a lease that has seen a key
    world.write(("a", 1), ("b", 2))
    reader = world.table.read(compacted=True, follow=True, batch_bytes=1)
    assert next(reader).num_rows == 2
    # when the key is deleted, the delete dropped, and the backlog cut
    world.write(("a", None), ("c", 3))
    world.compact()
    # then it hears that it may have missed deletes, instead of nothing
    with pytest.raises(GapFound) as found:
        next(reader)
    assert found.value.gap.kind == "deleted"


# -- other processes, and sweeps ------------------------------------------------------------------

OPENS = """
import sys
import lowmark
from lowmark.runtime import Locked
try:
    lowmark.open(sys.argv[1], owner=True)
except Locked as locked:
    print("locked", locked.message)
with lowmark.open(sys.argv[1]) as db:
    table = db[db.tables()[0]]
    print(table.read(as_of="now").to_arrow().num_rows)
    table.sweep()
"""


@pytest.mark.slow
def test_another_process_does_no_harm_to_what_is_being_compacted(world: World) -> None:
    world.write(("a", 1), ("a", 2))
    said: list[str] = []

    def another_process() -> None:
        command = [sys.executable, "-c", OPENS, str(world.path)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        said.append(ran.stdout)

    world.compact(step=before("carry out the work", another_process))
    [told] = said
    assert told.startswith("locked")
    assert "is owned by process" in told
    assert told.splitlines()[-1] == "1"
    check_one_ledger(world)


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_sweep_before_any_step_of_a_run_removes_nothing_of_it(
    tmp_path: Path, partitions: int
) -> None:
    with World(tmp_path / "data", partitions=partitions) as world:
        for turn in range(2):
            world.write(*[(f"k{number % 9}", 100 * turn + number) for number in range(20)])
            world.write(("k1", None))
            swept: list[str] = []

            def sweep(step: str, swept: list[str] = swept) -> None:
                runs = [one for one in world.table.runs() if one.state == "running"]
                mine = {name for name in world.files() for one in runs if one.run in name}
                world.table.sweep()
                # then all that the run has written is there, and all that is read
                assert mine <= world.files(), step
                assert world.needed() <= world.files(), step
                world.check()
                swept.append(step)

            run = world.compact(step=sweep)
            assert len(swept) >= 6 + 4 * partitions
            assert {one.state for one in run.partitions} == {"adopted"}
            world.check()
            world.check_tidy()


def test_a_run_that_failed_is_not_swept_until_it_is_given_up(world: World) -> None:
    # given a run that fails after its work
    world.write(("a", 1), ("a", 2))
    world.settle()

    def fail() -> None:
        raise Rejected("for a test")

    with pytest.raises(Rejected, match="for a test"):
        world.table.compact(engine="local", step=before("publish partition 0", fail))
    failed = world.table.runs()[0]
    assert failed.state == "failed"
    left = world.files()
    assert left
    # then its files stay as long as it may be resumed
    assert world.table.sweep() == []
    assert world.files() == left
    # and go when it is given up
    world.table.cancel_run(failed.run)
    assert world.files() == set()
    world.check()
    world.compact()
    check_one_ledger(world)


# -- what a run reads -----------------------------------------------------------------------------


def test_a_tail_that_was_cut_meanwhile_is_refused_and_never_a_part_of_it(world: World) -> None:
    # given a backlog whose first rows were compacted and cut
    world.write(("a", 1), ("b", 2), ("c", 3))
    world.compact()
    world.write(("a", 4), ("d", 5))
    assert (world.view().start, world.view().end) == (3, 5)
    # when a run asks for them, with some that are still there; then it is given none
    table, backend = world.table.descriptor.id, backend_of(world.table)
    with pytest.raises(BatchesMoved, match="from offset 1 on"):
        backend.tail(table, 0, low=1, high=5)
    assert (backend.tail(table, 0, low=3, high=5).low) == 3
