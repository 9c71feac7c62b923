"""Several processes that compact one table: which of them does, and what becomes of the others.

A second process is a second `Database` on the same backend, as a server has it for a client of its
own: it shares nothing but what the backend keeps. Clocks are turned by hand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction.operating import at_step, set_options
from compaction.world import Stopped, World, folded, stop_before
from eventually import eventually
from inside import backend_of
from lowmark.backend.errors import Cancelled, RunUnderWay
from lowmark.client import Database, Table, Told
from lowmark.compaction import automatic, compactor
from lowmark.compaction import run as run_module
from lowmark.compaction.automatic import Automatic
from lowmark.compaction.claims import ClaimWatch, HeldClaim, SeenClaim
from lowmark.compaction.context import RunOptions
from lowmark.errors import Rejected, Unavailable
from lowmark.ledger import RunRecord
from sim.mutants import replaced

EAGER: dict[str, str | int] = {"compaction": "auto", "dirty_bytes": 1, "dirty_percent": 1}
LEASE_MS = 20_000
SHORT_MS = 1_000


@pytest.fixture
def auto(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "data", options=EAGER) as one:
        one.write(*[(f"k{number % 5}", number) for number in range(20)])
        one.settle()
        yield one


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock by which workers judge the claims of others."""
    now_s = [1_000.0]
    monkeypatch.setattr(automatic, "_now_s", lambda: now_s[0])
    return now_s


class Process:
    """Another process that has the database, and a worker in it."""

    def __init__(self, world: World, *, lease_ms: int = LEASE_MS) -> None:
        self.db = Database(world.db.backend)
        self.told: list[Told] = []
        self.worker: Automatic = self.db.worker(
            engine="local", lease_ms=lease_ms, tell=self.told.append
        )

    @property
    def table(self) -> Table:
        return self.db.table("t")

    @property
    def events(self) -> list[str]:
        return [one.event for one in self.told]

    def look_until(self, step: str, act: Callable[[], object]) -> list[str]:
        """Let its worker look, and do something before a step of its run."""
        told = at_step(step, act)
        begun = self.worker._begun

        def begins(*given: Any, **more: Any) -> RunOptions:
            options = begun(*given, **more)
            tell = options.step

            def both(name: str) -> None:
                tell(name)
                told(name)

            return replace(options, step=both)

        with replaced(self.worker, "_begun", begins):
            return self.worker.look()

    @contextmanager
    def suspended(self, step: str) -> Iterator[Callable[[], list[str]]]:
        """Its worker has claimed the table, and stands still before a step, as by SIGSTOP: nothing
        is renewed. What is given lets it wake up, and gives the runs that it has made.
        """
        reached, go_on, asleep = threading.Event(), threading.Event(), threading.Event()
        made: list[list[str]] = []
        claims = self.db._compactor.claims
        renew = claims.renew

        def renew_awake(held: HeldClaim, turn: int) -> bool:
            if asleep.is_set():
                raise Unavailable("this process is suspended")
            return renew(held, turn)

        def stand() -> None:
            asleep.set()
            reached.set()
            assert go_on.wait(60)

        def run() -> None:
            try:
                with replaced(claims, "renew", renew_awake):
                    made.append(self.look_until(step, stand))
            finally:
                reached.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert reached.wait(60)

        def wake() -> list[str]:
            asleep.clear()
            go_on.set()
            thread.join(60)
            return made[0]

        try:
            yield wake
        finally:
            wake()


def claim_of(world: World) -> SeenClaim:
    return world.table._compactor.claims.of(world.table.descriptor.id)


def published_by(world: World) -> set[str]:
    """The runs that have published what is read now."""
    pointers = world.table._compactor.records.pointers(world.table.descriptor.id)
    return {one.run for one in pointers.values()}


# -- one of several -------------------------------------------------------------------------------


def test_of_two_workers_one_makes_the_run_and_the_other_does_not_notice(auto: World) -> None:
    first, second = Process(auto), Process(auto)
    seen: list[object] = []

    def other_looks() -> None:
        # when another worker looks while the first one works
        seen.append(second.worker.look())
        with pytest.raises(RunUnderWay):
            second.table.compact(engine="local")

    made = first.look_until("carry out the work", other_looks)
    # then it makes no run, and takes that for no failure
    assert len(made) == 1
    assert seen == [[]]
    assert (first.events, second.events) == (["began", "done"], [])
    assert second.worker.problems == {}
    assert [one.run for one in auto.table.runs()] == made
    # and nothing is left of the claim
    assert claim_of(auto) == SeenClaim()
    auto.check()
    auto.check_tidy()


def test_of_two_workers_that_see_no_claim_the_second_to_write_it_has_none(auto: World) -> None:
    # given a worker that looked before another one had claimed the table
    first, second = Process(auto), Process(auto)
    late: list[object] = []

    def look_late() -> None:
        with (
            replaced(second.db._compactor.claims, "all", dict),
            replaced(second.db._compactor, "_under_way", set),
        ):
            late.append(second.worker.look())

    # when it writes its claim, then that fails, and it leaves the table to the other one
    (run,) = first.look_until("note the run", look_late)
    assert late == [[]]
    assert second.events == []
    assert second.worker.problems == {}
    assert published_by(auto) == {run}
    auto.check()


def test_a_claim_is_over_only_if_it_was_seen_unchanged_for_its_lease(auto: World) -> None:
    claims, table = auto.table._compactor.claims, auto.table.descriptor.id
    now_s = [0.0]
    watch = ClaimWatch(claims, lambda: now_s[0])
    held = claims.take(table, "r", SeenClaim(), lease_ms=LEASE_MS, detached=False)
    assert held is not None
    # given a holder that renews it, however rarely
    for turn in range(1, 4):
        assert watch.look() == ({}, {table})
        now_s[0] += 19.9
        assert watch.look() == ({}, {table})
        assert claims.renew(held, turn)
        now_s[0] += 19.9
    # when it does so no more, then the claim is over when its lease has passed, and no earlier
    assert watch.look() == ({}, {table})
    now_s[0] += 19.9
    assert watch.look() == ({}, {table})
    now_s[0] += 0.2
    free, others = watch.look()
    assert (set(free), others) == ({table}, set())
    # but if it is renewed just before it is taken, it is not taken
    assert claims.renew(held, 4)
    assert claims.take(table, "s", free[table], lease_ms=LEASE_MS, detached=False) is None
    # and one that sees it for the first time waits for all of its lease
    assert ClaimWatch(claims, lambda: 1e9).look() == ({}, {table})


def test_the_time_in_which_a_worker_could_not_look_does_not_count_against_a_claim(
    auto: World,
) -> None:
    claims, table = auto.table._compactor.claims, auto.table.descriptor.id
    now_s = [0.0]
    watch = ClaimWatch(claims, lambda: now_s[0])
    assert claims.take(table, "r", SeenClaim(), lease_ms=LEASE_MS, detached=False)
    assert watch.look() == ({}, {table})

    def no_answer() -> dict[int, SeenClaim]:
        raise Unavailable("no node answers")

    # given nodes that answer neither the worker nor the holder for longer than the lease
    now_s[0] += 5
    with replaced(claims, "all", no_answer), pytest.raises(Unavailable):
        watch.look()
    now_s[0] += LEASE_MS / 1_000
    # when they are back, then the holder has the time of a lease to renew its claim
    assert watch.look() == ({}, {table})
    now_s[0] += LEASE_MS / 1_000 - 0.1
    assert watch.look() == ({}, {table})
    now_s[0] += 0.2
    assert set(watch.look()[0]) == {table}


def test_a_claim_that_is_renewed_after_a_worker_looked_is_not_removed_by_that_worker(
    auto: World,
) -> None:
    claims, table = auto.table._compactor.claims, auto.table.descriptor.id
    held = claims.take(table, "r", SeenClaim(), lease_ms=LEASE_MS, detached=False)
    assert held is not None
    # given a worker that took it for over when it looked, and has compacted other tables since
    seen = claims.of(table)
    # when its holder wakes up and renews it, then it stays
    assert claims.renew(held, 1)
    claims.forget(table, seen)
    assert claims.of(table).claim == held.claim
    # and one that stands as it was seen goes
    claims.forget(table, claims.of(table))
    assert claims.of(table) == SeenClaim()


# -- a worker that is gone, or seems to be --------------------------------------------------------


@pytest.mark.parametrize("step", ["carry out the work", "publish partition 0", "adopt partition 0"])
def test_a_worker_that_is_suspended_past_its_lease_publishes_nothing_when_it_wakes_up(
    auto: World, clock: list[float], step: str
) -> None:
    first, second = Process(auto), Process(auto)
    with first.suspended(step) as wake:
        [left] = auto.table.runs()
        # given another worker that has seen its claim once: it waits
        assert second.worker.look() == []
        clock[0] += LEASE_MS / 1_000 - 0.1
        assert second.worker.look() == []
        # when the lease is over, then it goes on with that run
        clock[0] += 0.2
        assert second.worker.look() == [left.run]
        assert second.events == ["resumed", "done"]
        [done] = auto.table.runs()
        assert (done.state, done.resumed) == ("done", 1)
        pointers = auto.table._compactor.records.pointers(auto.table.descriptor.id)
        # and a person may compact the table again, though the first process was never heard of
        auto.write(("k1", 100), ("k9", 1))
        newer = auto.compact()
        # when the first one wakes up, then it has made nothing, and has changed nothing
        assert wake() == []
    assert first.events == ["began", "cancelled"]
    assert [one.run for one in auto.table.runs()] == [newer.run, left.run]
    assert auto.table.runs()[1] == done
    assert published_by(auto) == {newer.run}
    assert pointers[0].run == left.run
    assert claim_of(auto) == SeenClaim()
    auto.check()
    auto.check_tidy()


def test_a_run_that_was_taken_over_keeps_what_the_other_process_holds(
    auto: World, clock: list[float]
) -> None:
    # given a worker that has taken a run over, and reads under the lease that goes by its name
    first, second = Process(auto), Process(auto)
    held: list[list[str]] = []

    def leases() -> list[str]:
        status = backend_of(auto.table).status(auto.table.descriptor.id)[0]
        return [one.name for one in status.leases]

    with first.suspended("carry out the work") as wake:
        assert second.worker.look() == []
        clock[0] += LEASE_MS / 1_000 + 1

        def first_wakes() -> None:
            # when the first one wakes up, and ends
            held.append(leases())
            assert wake() == []
            held.append(leases())

        (run,) = second.look_until("carry out the work", first_wakes)
    # then the lease has stayed
    assert held == [[f"compaction {run}"]] * 2
    auto.check()
    auto.check_tidy()


def test_a_worker_that_wakes_up_in_the_middle_of_the_other_ones_run_publishes_nothing(
    auto: World, clock: list[float]
) -> None:
    # given two workers that are about to publish for the same run, of which one was suspended
    first, second = Process(auto), Process(auto)
    with first.suspended("publish partition 0") as wake:
        assert second.worker.look() == []
        clock[0] += LEASE_MS / 1_000 + 1

        def first_wakes() -> None:
            # when that one wakes up, and all that it needs is still there
            assert wake() == []
            # then only the other one may publish, and note how far the run is
            assert published_by(auto) == set()
            assert [one.state for one in auto.table.runs()] == ["running"]

        (run,) = second.look_until("publish partition 0", first_wakes)
    assert first.events == ["began", "cancelled"]
    assert published_by(auto) == {run}
    assert [(one.state, one.resumed) for one in auto.table.runs()] == [("done", 1)]
    auto.check()
    auto.check_tidy()


@pytest.mark.parametrize("part", ["the worker", "what makes its runs"])
def test_a_run_is_left_to_the_others_when_its_process_ends_in_good_order(
    auto: World, part: str
) -> None:
    first, second = Process(auto), Process(auto)
    # when a worker is asked to end while it works, whichever of its parts hears of it first
    finish = first.worker.finish if part == "the worker" else first.db._compactor.finish
    assert first.look_until("carry out the work", finish) == []
    assert first.worker.problems == {}
    assert first.events == ["began", "left"]
    # then another one goes on with its run at once
    [left] = auto.table.runs()
    assert left.state == "interrupted"
    assert second.worker.look() == [left.run]
    assert second.events == ["resumed", "done"]
    auto.check()
    auto.check_tidy()


def test_a_run_of_a_person_is_resumed_by_workers_only_if_they_compact_its_table(
    auto: World,
) -> None:
    # given a run by hand of a table that is not compacted by itself, whose process has ended
    set_options(auto, compaction="manual")
    with pytest.raises(Stopped):
        auto.table.compact(engine="local", step=stop_before("publish partition 0"))
    [left] = auto.table.runs()
    other = Process(auto)
    assert other.worker.look() == []
    # when it is compacted by itself from now on, then they go on with that run
    set_options(auto, compaction="auto")
    assert other.worker.look() == [left.run]
    auto.check()


def test_a_run_that_a_node_lost_sight_of_is_fenced_by_the_one_in_its_place(auto: World) -> None:
    # given a run that has written its files, and whose process no node knows of for a moment
    other = Process(auto)
    theirs: list[RunRecord] = []

    def in_its_place() -> None:
        # when a person compacts the table by another process
        with replaced(other.db._compactor, "_under_way", set):
            theirs.append(other.table.compact(engine="local"))

    with pytest.raises(Cancelled, match="taken over"):
        auto.table.compact(engine="local", step=at_step("publish partition 0", in_its_place))
    # then the first one has published nothing, and what the other one has written is all there
    assert published_by(auto) == {theirs[0].run}
    assert [(one.run == theirs[0].run, one.state) for one in auto.table.runs()] == [
        (True, "done"),
        (False, "cancelled"),
    ]
    auto.check()
    auto.check_tidy()


# -- runs that wait for a worker ------------------------------------------------------------------


def test_a_run_that_a_person_leaves_to_workers_is_made_by_one_of_them(auto: World) -> None:
    set_options(auto, compaction="manual")
    # given a run that waits, as it was asked for
    plan = auto.table.compact(detach=True, verify=True, trim=False)
    assert plan.state == "planned"
    assert auto.table.runs() == [plan]
    assert auto.view().ledger is None
    # when workers look, then one makes it, once
    first, second = Process(auto), Process(auto)
    assert first.worker.look() == [plan.run]
    assert second.worker.look() == []
    assert first.events == ["began", "done"]
    [done] = auto.table.runs()
    assert (done.state, done.resumed, done.verify, done.trim) == ("done", 0, True, False)
    assert (done.engine, done.where) == ("local", "this process")
    assert auto.view().start == 0
    assert claim_of(auto) == SeenClaim()
    auto.check()
    # and with nothing to do, nothing waits
    assert auto.table.compact(detach=True).state == "nothing"
    assert claim_of(auto) == SeenClaim()


def test_a_run_that_waits_can_be_cancelled_and_is_given_up_for_another_one(auto: World) -> None:
    set_options(auto, compaction="manual")
    other = Process(auto)
    first = auto.table.compact(detach=True)
    assert other.table.cancel_run(first.run).state == "cancelled"
    assert other.worker.look() == []
    second = auto.table.compact(detach=True)
    # one that waits is not given up for another one that would: it may have other options
    with pytest.raises(RunUnderWay, match=second.run):
        other.table.compact(detach=True, rewrite=True)
    assert auto.table.runs()[0] == second
    third = other.table.compact(engine="local")
    assert other.worker.look() == []
    states = {one.run: one.state for one in auto.table.runs()}
    assert states == {first.run: "cancelled", second.run: "cancelled", third.run: "done"}
    with pytest.raises(Rejected, match="takes no engine"):
        auto.table.compact(detach=True, engine="local")
    auto.check()


@pytest.mark.parametrize(("step", "waits"), [("note the plan", 0), ("leave it to a worker", 1)])
def test_a_process_that_dies_while_it_leaves_a_run_to_workers(
    auto: World, clock: list[float], step: str, waits: int
) -> None:
    set_options(auto, compaction="manual")
    # given a process that was killed: it gives nothing back
    with (
        pytest.raises(Stopped),
        replaced(auto.table._compactor.claims, "give_back", lambda *_, **__: None),
    ):
        auto.table.compact(detach=True, step=stop_before(step))
    # when the lease is over, then a worker makes the run, if there is one
    other = Process(auto)
    assert other.worker.look() == []
    clock[0] += LEASE_MS / 1_000 + 1
    assert len(other.worker.look()) == waits
    assert [one.state for one in auto.table.runs()] == ["done"] * waits
    assert claim_of(auto) == SeenClaim()
    auto.check()


def test_a_run_that_has_waited_for_long_begins_with_the_watermark_and_the_catalog_of_now(
    auto: World,
) -> None:
    set_options(auto, compaction="manual")
    plan = auto.table.compact(detach=True, verify=True)
    # given a plan whose version of the catalog is gone before a worker begins it
    auto.table.alter(add={"w": "string"})
    auto.write(("k1", 100), ("k9", 9))
    auto.settle()
    backend = backend_of(auto.table)
    latest = backend.catalog().version
    assert backend.ask(lambda: backend.catalogs.compact(latest))
    # when one does, then it works with that of now, and with all rows that are old enough by now
    assert Process(auto).worker.look() == [plan.run]
    [done] = auto.table.runs()
    assert (done.state, done.resumed, done.verify) == ("done", 0, True)
    assert (done.catalog, done.began_at_ms) == (latest, plan.began_at_ms)
    assert done.watermark > plan.watermark
    assert done.partitions[0].horizon > plan.partitions[0].horizon
    (layout,) = auto.manifest().layouts
    assert [column.name for column in layout.columns] == ["id", "v", "w"]
    assert folded(auto.table.read(compacted=True)) == auto.model


def _fails_while_it_plans(world: World) -> None:
    def fails(*_: object, **__: object) -> RunRecord:
        raise Unavailable("no node answers")

    with replaced(run_module.Run, "plan", fails), pytest.raises(Unavailable):
        world.table.compact(engine="local")


def _cancels_an_older_run(world: World) -> None:
    with pytest.raises(Rejected, match="there is no run"):
        world.table.cancel_run("an older one")


IN_BETWEEN: dict[str, Callable[[World], object]] = {
    "a rebuild with nothing to do": lambda world: world.table.rebuild_ledger(),
    "a run that has nothing to do": lambda world: world.compact(),
    "a run that fails while it plans": _fails_while_it_plans,
    "a cancel of another run": _cancels_an_older_run,
}


@pytest.mark.parametrize("act", IN_BETWEEN)
@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_was_left_to_workers_stays_so_whatever_else_takes_the_claim(
    auto: World, begun: bool, act: str
) -> None:
    # given a run for workers that no worker has begun, or whose worker has ended in good order
    set_options(auto, compaction="manual")
    auto.compact()
    plan = auto.table.compact(detach=True, rewrite=True)
    first, second = Process(auto), Process(auto)
    if begun:
        first.look_until("carry out the work", first.worker.finish)
    before = claim_of(auto).claim
    assert before is not None
    # when another call takes the claim for a moment, and gives it back
    IN_BETWEEN[act](auto)
    # then it is again what it was, and the next worker makes the run
    assert claim_of(auto).claim == before
    assert second.worker.look() == [plan.run]
    assert auto.table.runs()[0].state == "done"
    assert claim_of(auto) == SeenClaim()
    auto.check()


def test_a_word_to_end_stays_with_a_run_whose_claim_was_taken_for_a_moment(
    auto: World, clock: list[float]
) -> None:
    # given a run that was cancelled, and whose worker has died before it could end it
    first, second = Process(auto), Process(auto)
    with first.suspended("publish partition 0") as wake:
        [run] = auto.table.runs()
        assert second.table.cancel_run(run.run).state == "running"
        # when another call takes its claim, since no node knows of the worker any more
        with replaced(second.db._compactor, "_under_way", set), pytest.raises(Rejected):
            second.table.cancel_run("an older one")
        # then the next worker that looks ends the run, and does not resume it
        assert second.worker.look() == []
        assert [one.state for one in auto.table.runs()] == ["cancelled"]
        assert wake() == []
    assert published_by(auto) == set()


def test_a_run_is_left_to_workers_also_if_the_last_write_of_its_process_fails(
    auto: World, clock: list[float]
) -> None:
    set_options(auto, compaction="manual")
    backend, armed = backend_of(auto.db), threading.Event()
    write = backend.write

    def fails_once(*given: Any, **more: Any) -> bool:
        if armed.is_set():
            armed.clear()
            raise Unavailable("the metastore has no leader")
        return write(*given, **more)

    # given a metastore whose leader changes when the claim is to be left without a holder
    with replaced(backend, "write", fails_once):
        plan = auto.table.compact(detach=True, step=at_step("leave it to a worker", armed.set))
    assert (plan.state, armed.is_set()) == ("planned", False)
    # when the lease of that claim is over, then a worker makes the run: it does wait, as was said
    other = Process(auto)
    assert other.worker.look() == []
    clock[0] += LEASE_MS / 1_000 + 1
    assert other.worker.look() == [plan.run]
    auto.check()


# -- cancelling -----------------------------------------------------------------------------------


def test_a_run_in_a_worker_ends_when_another_process_cancels_it(
    auto: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a process that has not the folder of the run: it is on another machine
    monkeypatch.setattr(compactor, "leave_word", lambda *_: None)
    worker, person = Process(auto, lease_ms=SHORT_MS), Process(auto)
    token = threading.Event()

    def cancel() -> None:
        [run] = person.table.runs()
        assert person.table.cancel_run(run.run).state == "running"
        active = worker.db._compactor._active[auto.table.descriptor.id]
        eventually(lambda: active.context.token.cancelled)
        token.set()

    # when a person cancels it there, then the worker hears of it by the claim
    assert worker.look_until("carry out the work", cancel) == []
    assert token.is_set()
    assert worker.events == ["began", "cancelled"]
    assert [one.state for one in auto.table.runs()] == ["cancelled"]
    assert published_by(auto) == set()
    assert claim_of(auto) == SeenClaim()
    auto.check()
    auto.check_tidy()


def test_a_run_that_was_cancelled_is_not_resumed_though_its_worker_died_before_it_ended(
    auto: World, clock: list[float]
) -> None:
    first, second = Process(auto), Process(auto)
    with first.suspended("publish partition 0") as wake:
        # given a run that a person has cancelled, and whose worker is not there to hear of it
        [run] = second.table.runs()
        assert second.table.cancel_run(run.run).state == "running"
        assert second.worker.look() == []
        # when its lease is over, then another worker gives it up
        clock[0] += LEASE_MS / 1_000 + 1
        assert second.worker.look() == []
        assert [one.state for one in auto.table.runs()] == ["cancelled"]
        # and makes another one, since the table is due
        (other,) = second.worker.look()
        assert wake() == []
    assert published_by(auto) == {other}
    auto.check()
    auto.check_tidy()


def test_a_worker_that_looked_before_a_run_was_cancelled_does_not_resume_it(
    auto: World, clock: list[float]
) -> None:
    first, second = Process(auto), Process(auto)
    with first.suspended("publish partition 0") as wake:
        [run] = second.table.runs()
        assert second.worker.look() == []
        clock[0] += LEASE_MS / 1_000 + 1
        look = second.worker._watch.look

        def look_then_cancel() -> object:
            found = look()
            assert auto.table.cancel_run(run.run).state == "running"
            return found

        # when a person cancels a run after a worker has seen that its lease is over
        with replaced(second.worker._watch, "look", look_then_cancel):
            assert second.worker.look() == []
        # then that worker has not begun, and ends the run when it looks again
        assert second.events == []
        assert second.worker.look() == []
        clock[0] += LEASE_MS / 1_000 + 1
        assert second.worker.look() == []
        assert [one.state for one in auto.table.runs()] == ["cancelled"]
        assert wake() == []
    assert published_by(auto) == set()


def test_a_run_that_another_worker_takes_over_at_this_moment_is_asked_to_end_all_the_same(
    auto: World,
) -> None:
    claims, table = auto.table._compactor.claims, auto.table.descriptor.id
    assert claims.take(table, "r", SeenClaim(), lease_ms=LEASE_MS, detached=False)
    of, taken = claims.of, list[HeldClaim | None]()

    def look_then_take(number: int) -> SeenClaim:
        seen = of(number)
        if not taken:
            taken.append(claims.take(number, "r", seen, lease_ms=LEASE_MS, detached=False))
        return seen

    # when another process takes the claim between the look and the word
    with replaced(claims, "of", look_then_take):
        claims.ask_to_end(table, "r")
    # then that process finds the word
    assert taken[0] is not None
    assert claims.of(table).claim == taken[0].claim
    assert claims.of(table).cancelled
