"""Options of a table that change before, during and after runs: nothing is lost that should be
there, and nothing comes back that should not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from compaction.operating import STEPS, at_step, look_after, run_aside, set_options
from compaction.world import World, folded
from inside import backend_of
from lowmark.catalog import CatalogRefused
from lowmark.client import GapFound, Reader
from lowmark.compaction.plan import PlanInput, plan_input, plan_partition
from lowmark.errors import Rejected
from lowmark.ledger import RunRecord
from lowmark.runtime import COUNTER_BITS, HybridTime, millis_of

# -- off, manual, auto ----------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_compaction_may_be_switched_off_at_every_step_of_a_run(world: World, step: str) -> None:
    world.write(*[(f"k{number % 5}", number) for number in range(20)])
    world.compact()
    world.write(*[(f"k{number % 3}", 100 + number) for number in range(6)])
    follower = world.table.read(compacted=True, follow=True)
    world.settle()
    # when it is switched off in the middle, then the run ends as it would have
    run = world.table.compact(
        engine="local", step=at_step(step, lambda: set_options(world, compaction="off"))
    )
    assert run.state == "done"
    assert world.adopted().horizon == world.view().start == 26
    world.check()
    # and readers go on, and writers too
    world.write(("after", 1))
    found: list[dict[str, Any]] = []
    while not found or found[-1]["id"] != "after":
        found += next(follower).to_pylist()
    follower.close()
    world.check()


@pytest.mark.slow
def test_what_was_compacted_is_read_though_compaction_is_off_now(both: World) -> None:
    both.write(*[(f"k{number % 5}", number) for number in range(20)])
    both.compact()
    both.write(("k1", 100))
    set_options(both, compaction="off")
    for _ in range(2):
        both.check()
        assert len(both.offsets(compacted=True)) == 6
        both.reopen()
    # and when it is allowed again, it goes on from there
    set_options(both, compaction=None)
    both.compact()
    both.check()


def test_with_compaction_off_no_run_is_begun_and_none_resumed(world: World) -> None:
    # given a run that was interrupted, and compaction switched off after that
    world.write(*[(f"k{number % 5}", number) for number in range(20)])
    run = world.stopped_before("publish partition 0")
    set_options(world, compaction="off")
    # then nobody compacts it in any way
    for how in [{}, {"dry_run": True}, {"rewrite": True}, {"resume": run.run}]:
        with pytest.raises(Rejected, match="compaction=off"):
            world.table.compact(engine="local", **how)  # type: ignore[arg-type]
    assert world.view().ledger is None
    world.check()
    # and when it is on again, that run is resumed
    set_options(world, compaction="manual")
    assert world.table.compact(engine="local", resume=run.run).state == "done"
    world.check()
    world.check_tidy()


@pytest.mark.parametrize("when", ["never", "at creation", "after rows"])
def test_nothing_is_cut_before_the_first_run_whenever_compaction_was_set(
    tmp_path: Path, when: str
) -> None:
    wanted: dict[str, str | int] = {"compaction": "auto", "dirty_bytes": 1}
    options = wanted if when == "at creation" else None
    with World(tmp_path / "data", options=options) as world:
        world.write(*[(f"k{number % 5}", number) for number in range(20)])
        if when == "after rows":
            set_options(world, **wanted)
        # when everybody tries to free something before there is a ledger
        world.db.advance_watermark()
        look_after(world)
        (cut,) = world.table.trim({0: 20}).values()
        world.reopen()
        # then not a row is gone
        assert (cut.batches, world.view().start) == (0, 0)
        world.check()
        # and the first run has them all
        assert world.compact().rows_read == 20
        world.check()


# -- retention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compaction", ["manual", "auto"])
@pytest.mark.parametrize("limit", ["retention_ms", "retention_bytes"])
def test_retention_and_compaction_of_keys_are_not_both_in_force(
    tmp_path: Path, compaction: str, limit: str
) -> None:
    """Else the last value of a key that nobody writes any more would go by its age."""
    with World(tmp_path / "data", options={"compaction": compaction}) as world:
        world.write(("quiet", 1), ("k", 2))
        with pytest.raises(CatalogRefused, match="without a key or with compaction=off"):
            set_options(world, **{limit: 1})
        look_after(world)
        world.compact()
        world.check()


def test_keys_that_were_deleted_go_and_no_others_and_the_backlog_is_empty(both: World) -> None:
    both.write(*[(f"k{number}", number) for number in range(10)])
    both.write(*[(f"k{number}", None) for number in range(0, 10, 2)])
    both.compact()
    look_after(both)
    assert (both.view().start, both.view().count) == (15, 0)
    assert [key for key, _ in both.offsets(compacted=True)] == ["k1", "k3", "k5", "k7", "k9"]
    both.check()


def test_upkeep_between_two_runs_takes_nothing_that_is_not_in_a_ledger(both: World) -> None:
    # given three values in the ledger, and newer ones that are not
    for turn in range(3):
        both.write(("a", turn), ("b", turn), (f"n{turn}", turn))
        both.compact()
        both.write((f"m{turn}", turn), ("a", 10 + turn))
        # when time passes, and upkeep looks
        look_after(both)
        both.db.advance_watermark()
        look_after(both)
        # then all is there, and in the next ledger, too
        assert both.view().start == both.adopted().horizon
        both.check()


def test_retention_waits_for_a_run_that_reads(world: World) -> None:
    world.batched = False
    world.write(*[(f"k{number % 5}", number) for number in range(20)])
    # given a run that is about to read the backlog
    with run_aside(world, until="carry out the work") as end:
        # when the table is given over to retention, which would leave one row
        set_options(world, compaction="off", retention_bytes=1)
        look = look_after(world)
        # then nothing is cut below the run, and it is said who holds it
        assert world.view().start == 0
        assert [hold.kind for one in look.retained for hold in one.held_by] == ["lease"]
        outcome = end()
    assert isinstance(outcome, RunRecord)
    assert outcome.state == "done"
    # and what the run has cut is not cut a second time: all rows were given up once
    look_after(world)
    assert world.view().start == world.view().end == 20
    assert world.table.get("k1") == {"id": "k1", "v": 16}


def test_what_expired_after_a_ledger_takes_the_ledger_with_it(world: World) -> None:
    """All rows of a ledger are older than any that expired behind it; and a key that was deleted
    there would come back if they were shown.
    """
    # given keys in a ledger, of which one is changed and one deleted later
    world.batched = False
    world.write(("changed", 1), ("deleted", 1), ("quiet", 1))
    world.compact()
    world.write(("changed", 2), ("deleted", None), ("new", 3))
    # when retention takes those rows
    set_options(world, compaction="off", retention_bytes=1)
    look_after(world)
    assert (world.view().start, world.view().end) == (5, 6)
    for turn in range(3):
        # then no key comes back with what it was before
        keys = ["changed", "deleted", "quiet", "new"]
        rows = [None, None, None, {"id": "new", "v": 3}]
        assert [world.table.get(key) for key in keys] == rows
        assert world.table.get_many(keys) == rows
        reader = world.table.read(compacted=True, on_gap="skip")
        assert folded(reader) == {"new": 3}
        looking = world.table.read(as_of="now", on_gap="skip")
        assert [row["id"] for row in looking.to_pylist()] == ["new"]
        # and who looks at the whole is told that rows have expired
        with pytest.raises(GapFound, match="are expired"):
            world.table.read(as_of="now").to_pylist()
        # nor after a restart, nor when it is compacted again
        if not turn:
            world.reopen()
        else:
            set_options(world, compaction="manual", retention_bytes=None)
            world.compact()
            assert (world.adopted().epoch, world.manifest().live_rows) == (2, 1)
    world.check_tidy()


def test_a_ledger_that_expired_is_followed_by_another_one_though_it_lacked_deletes(
    world: World,
) -> None:
    # given a ledger without its deletes, and rows behind it that expire
    world.batched = False
    world.write(("a", 1), ("b", 1), ("a", None))
    world.compact()
    assert world.adopted().deletes_below > 0
    world.write(("c", 1), ("d", 1))
    set_options(world, compaction="off", retention_bytes=1)
    look_after(world)
    # when compaction is on again
    set_options(world, compaction="manual", retention_bytes=None)
    world.compact()
    # then there is a new one, in the next epoch
    assert world.adopted().epoch == 2
    assert folded(world.table.read(compacted=True)) == {"d": 1}


@pytest.mark.parametrize("kind", ["cursor", "position"])
def test_who_goes_on_below_what_expired_is_told_so_though_there_is_a_ledger_again(
    world: World, kind: str
) -> None:
    """The delete of a key that it has seen may be among what expired."""
    world.batched = False
    world.write(("a", 1), ("b", 1))
    world.compact()
    # given somebody who has seen both keys
    world.table.cursors.create("c", kind="compacted")
    world.table.cursors.commit("c", {0: 2})
    world.write(("a", None), ("c", 1), ("d", 1))
    # when the delete expires, and a ledger comes after that
    set_options(world, compaction="off", retention_bytes=1)
    look_after(world)
    set_options(world, compaction="manual", retention_bytes=None)
    world.compact()
    assert world.adopted().horizon == 5

    def go_on(on_gap: Literal["raise", "skip"]) -> Reader:
        if kind == "cursor":
            return world.table.read(compacted=True, cursor="c", on_gap=on_gap)
        return world.table.read(compacted=True, start=2, on_gap=on_gap)

    # then it is told which rows it has not seen, and can go on behind them
    with pytest.raises(GapFound, match="offsets 2 to 3 of partition 0 are expired"):
        go_on("raise").to_pylist()
    reader = go_on("skip")
    assert [row["id"] for row in reader.to_pylist()] == ["d"]
    assert [(gap.first, gap.last, gap.kind) for gap in reader.gaps] == [(2, 3, "expired")]
    # and who begins has nothing to be told
    reader = world.table.read(compacted=True)
    assert folded(reader) == {"d": 1}
    assert reader.gaps == []


def test_what_retention_cuts_off_below_the_horizon_has_not_expired(world: World) -> None:
    # given a backlog that was not cut after a run, and retention that cuts a part of it
    world.batched = False
    world.write(*[(f"k{number}", number) for number in range(10)])
    world.compact(trim=False)
    world.table.cursors.create("c", start={0: 7})
    set_options(world, compaction="off", retention_bytes=1)
    look_after(world)
    assert world.view().start == 7
    # when it is compacted again
    set_options(world, compaction="manual", retention_bytes=None)
    for number in range(2):
        world.check()
        world.write((f"new {number}", 1))
        world.compact()
    # then the ledger has all rows, and nobody is told that any is missing
    world.check()
    assert world.manifest().expired == 0
    assert len(world.offsets(compacted=True, start=3)) == 9


# -- what is too young ----------------------------------------------------------------------------


def given_to_plan(world: World) -> PlanInput:
    """Where the partition stands, with the watermark above all its rows."""
    table, records = world.table.descriptor, world.table._compactor.records
    seen = records.pointer(table.id, 0)
    world.settle()
    mark = world.db.watermark().value
    return plan_input(backend_of(world.table), table, 0, seen, watermark=mark)


def at(given: PlanInput, now_ms: int) -> PlanInput:
    """The same, at another time."""
    return replace(given, status=replace(given.status, wall_ms=now_ms))


def times(world: World) -> list[int]:
    """When each row was written, in milliseconds."""
    rows = world.table.read(columns=["_time"]).to_pylist()
    return [millis_of(HybridTime(row["_time"])) for row in rows]


def test_nothing_above_the_watermark_takes_a_row_away_that_lies_below_it(world: World) -> None:
    # given somebody who looks at the table as it is before keys change
    world.write(("a", 1), ("b", 1), ("c", 1))
    looking = world.table.read(as_of="now")
    then = looking.time  # type: ignore[attr-defined]
    before = dict(world.model)
    world.write(("a", 2), ("b", None))
    # when it is compacted, then only what is older is, and what is younger changes nothing of it
    world.db.advance_watermark()
    run = world.table.compact(engine="local")
    assert (run.rows_live, run.too_young_rows, world.adopted().horizon) == (3, 2, 3)
    assert {row["id"]: row["v"] for row in world.table.read(as_of=then).to_pylist()} == before
    assert {row["id"]: row["v"] for row in looking.to_pylist()} == before
    world.check()
    # and later it is
    looking.close()
    world.compact()
    assert world.adopted().horizon == 5
    world.check()


def test_rows_younger_than_the_least_lag_are_left_alone_and_old_ones_are_not(
    tmp_path: Path,
) -> None:
    with World(tmp_path / "data", batched=False) as world:
        world.write(*[("k", number) for number in range(4)])
        given, wrote = given_to_plan(world), times(world)
        set_options(world, min_lag_ms=1_000)
        table = world.table.descriptor
        for now_ms, why in [
            (wrote[0], "every row is younger than min_lag_ms"),
            (wrote[0] + 999, "every row is younger than min_lag_ms"),
            (0, "every row is younger than min_lag_ms"),  # the clock was set back
        ]:
            plan = plan_partition(0, table, at(given, now_ms))
            assert (plan.state, plan.why, plan.too_young_rows) == ("skipped", why, 4)
        # at the edge: a row of exactly that age is old enough when its millisecond is over
        for row, wrote_ms in enumerate(wrote):
            plan = plan_partition(0, table, at(given, wrote_ms + 1_001))
            assert plan.horizon >= row + 1
            assert plan.held_until if plan.too_young_rows else not plan.held_until
        plan = plan_partition(0, table, at(given, wrote[-1] + 1_001))
        assert (plan.state, plan.horizon, plan.too_young_rows) == ("planned", 4, 0)
        # and a clock that runs ahead makes rows old, never young for ever
        plan = plan_partition(0, table, at(given, wrote[-1] + 10**9))
        assert plan.horizon == 4


def test_rows_are_not_older_for_a_clock_that_was_ahead_once(world: World) -> None:
    # given rows of now, and one that was written while the clock was two hours ahead
    world.write(("k", 1), ("k", 2))
    backend = backend_of(world.table)
    ahead = HybridTime(backend.now().wall_ms + 7_200_000 << COUNTER_BITS)
    backend.ask_now(lambda: backend.node.runtime.clock.catch_up(ahead))
    world.write(("k", 3))
    # then none of them is an hour old
    set_options(world, min_lag_ms=3_600_000)
    world.db.advance_watermark("now")
    plan = world.table.compact(engine="local", dry_run=True)
    assert [(one.state, one.too_young_rows) for one in plan.partitions] == [("skipped", 3)]
    status = backend.status(world.table.descriptor.id)[0]
    assert status.now_ms - status.wall_ms > 7_000_000


def test_a_run_says_how_many_rows_are_too_young_and_takes_the_others(world: World) -> None:
    world.write(("k", 1), ("k", 2))
    set_options(world, min_lag_ms=3_600_000)
    world.db.advance_watermark()
    run = world.table.compact(engine="local")
    assert [(one.state, one.too_young_rows) for one in run.partitions] == [("skipped", 2)]
    assert world.view().ledger is None
    world.check()
    # when the least lag is taken back, they are taken
    set_options(world, min_lag_ms=None)
    world.compact()
    assert world.adopted().horizon == 2
    world.check()
