"""Epochs that a driver has left half bound, and rows that were staged for none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lowmark.catalog import AlterZone, TableId
from lowmark.table import (
    Abandon,
    Bind,
    Bound,
    Finish,
    Finished,
    Partition,
    PartitionMachine,
    StagedRowsMissing,
    encode_batch,
    state,
)
from lowmark.table.binding import deciding
from lowmark.upkeep import epochs
from table.world import TableWorld, log_table

DAY_MS, LEFT_MS = 10_000, 4_000
PARTITIONS = 3
QUERY = b"q" * 16
AT = deciding(QUERY, PARTITIONS)
OTHERS = [number for number in range(PARTITIONS) if number != AT]
TASK = 7 << 20 | 1
PLAN = (2, 3, 4)


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day is ten seconds here."""
    monkeypatch.setattr(state, "STAGED_MS", DAY_MS)
    monkeypatch.setattr(state, "LEFT_MS", LEFT_MS)


def staged_world(*, nodes: int = 1, replicas: int = 1) -> tuple[TableWorld, TableId]:
    """A table, and rows of one writer in each of its partitions."""
    world = TableWorld(nodes=nodes)
    world.execute(1, AlterZone(name="default", replicas=replicas))
    table = world.create(1, log_table("events", partitions=PARTITIONS))
    for number, rows in enumerate(PLAN):
        leader = world.leading(table, number)
        world.run_until(lambda one=leader: one.group.version == PartitionMachine.newest_version)  # type: ignore[misc]
        batch = encode_batch(bytes(100), rows=rows, schema=1, transaction=TASK)
        world.wait(leader.append(batch))
    return world, table


def bind(number: int, *, plan: Sequence[int] = PLAN, keep_ms: int = 3_600_000) -> Bind:
    """What a driver asks of one partition."""
    decides = tuple(plan) if number == AT else ()
    return Bind(QUERY, 0, (TASK,), plan[number], plan=decides, keep_ms=keep_ms)


def stands(world: TableWorld, table: TableId) -> dict[int, tuple[int, int]]:
    """How many rows each partition has, and how many transactions wait there."""
    found = [world.leading(table, number).state for number in range(PARTITIONS)]
    return {at: (one.backlog.end, len(one.staged)) for at, one in enumerate(found)}


WAITS = dict.fromkeys(range(PARTITIONS), (0, 1))
BOUND = {number: (rows, 0) for number, rows in enumerate(PLAN)}
DROPPED = dict.fromkeys(range(PARTITIONS), (0, 0))


def look_until(world: TableWorld, table: TableId, wanted: object) -> None:
    """Have all nodes look after what they have, again and again."""
    for _ in range(60):
        for node in world.up:
            world.wait(node.upkeep.tick())
        world.run_for(5_000)
        if stands(world, table) == wanted:
            return
    raise AssertionError(f"{stands(world, table)} is not {wanted}")


@pytest.mark.parametrize("bound", [1, 2])
def test_an_epoch_that_was_decided_is_bound_everywhere_without_its_driver(bound: int) -> None:
    # given a driver that died when this many partitions had its epoch
    world, table = staged_world()
    for number in [AT, *OTHERS][:bound]:
        world.wait(world.leading(table, number).ask(bind(number)))
    world.look()
    before = stands(world, table)
    assert before != BOUND  # a driver may be at it still
    # when none comes for a while, then the leader of the partition that decided it ends it
    look_until(world, table, BOUND)
    # and it is bound once, also if a driver comes after all
    for number in range(PARTITIONS):
        assert isinstance(world.wait(world.leading(table, number).ask(bind(number))), Bound)
    assert stands(world, table) == BOUND
    # and nothing is left to do
    assert not world.leading(table, AT).state.queries.lacking()


def test_an_epoch_that_its_other_partitions_have_forgotten_is_left_alone() -> None:
    # given a write that is none of a stream, and was bound everywhere
    world, table = staged_world()
    for number in [AT, *OTHERS]:
        world.wait(world.leading(table, number).ask(bind(number, keep_ms=100)))
    # when the partition that decided it is looked at only when the others know nothing of it
    world.run_for(2 * LEFT_MS)
    assert world.leading(table, AT).state.queries.lacking()
    world.look()
    # then there is nothing to do, for good
    world.run_for(1_000)
    assert not world.leading(table, AT).state.queries.lacking()
    assert stands(world, table) == BOUND


def test_rows_of_no_epoch_go_after_a_day_and_can_t_be_bound_then() -> None:
    world, table = staged_world()
    # given rows that no driver has bound, for nearly a day
    world.run_for(DAY_MS - 3_000)
    world.look()
    assert stands(world, table) == WAITS
    # when the day is over, then they are dropped everywhere
    look_until(world, table, DROPPED)
    # and a driver that comes later is refused where its epoch is decided, though it has no rows
    # there: so no partition has a part of it
    late = bind(AT, plan=(0, 3, 4) if AT == 0 else (2, 0, 4) if AT == 1 else (2, 3, 0))
    error = world.wait_error(world.leading(table, AT).ask(late))
    assert isinstance(error, StagedRowsMissing)


def with_leader_away(world: TableWorld, table: TableId) -> int:
    """Crash the node that leads the deciding partition; gives which."""
    away = next(
        node.number
        for node in world.up
        for one in node.tables.of(table)
        if one.number == AT and one.group.ready
    )
    world[away].crash()
    return away


def elsewhere(world: TableWorld, table: TableId) -> dict[int, tuple[int, int]]:
    """As `stands`, of partitions that are up."""
    found: list[Partition] = [one for node in world.up for one in node.tables.of(table)]
    return {one.number: (one.state.backlog.end, len(one.state.staged)) for one in found}


@pytest.mark.slow
@pytest.mark.parametrize("decided", [True, pytest.param(False, marks=pytest.mark.release)])
def test_nothing_is_dropped_while_the_partition_that_decides_is_away(decided: bool) -> None:
    # given partitions on a node each, and an epoch that is decided or not
    world, table = staged_world(nodes=3)
    if decided:
        world.wait(world.leading(table, AT).ask(bind(AT)))
    away = with_leader_away(world, table)
    there = elsewhere(world, table)
    assert there
    # when its node is away for many days
    for _ in range(2):
        for node in world.up:
            node.upkeep.tick()
        world.run_for(DAY_MS)
    # then the others keep what waits, whatever its age
    assert elsewhere(world, table) == {number: WAITS[number] for number in there}
    # and when it is back, then the epoch is bound everywhere, or all of it goes
    world[away].restart()
    world.run_until(lambda: world[away].tables_ is not None)
    look_until(world, table, BOUND if decided else DROPPED)


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_an_epoch_is_bound_where_it_can_be_while_another_partition_is_away(first: bool) -> None:
    # given partitions on a node each, and an epoch that is decided, and no more
    world, table = staged_world(nodes=3)
    world.wait(world.leading(table, AT).ask(bind(AT)))
    away, there = OTHERS if first else reversed(OTHERS)
    # when the node of one of the others is away, whichever is asked first
    node = next(node for node in world.up for one in node.tables.of(table) if one.number == away)
    node.crash()
    world.run_for(LEFT_MS + 1_000)
    for one in world.up:
        one.upkeep.tick()
    # then the rest is bound
    world.run_until(lambda: elsewhere(world, table)[there] == BOUND[there])
    assert world.leading(table, AT).state.queries.lacking()
    # and when it is back, all is, and that is noted
    node.restart()
    world.run_until(lambda: node.tables_ is not None)
    look_until(world, table, BOUND)
    world.run_until(lambda: not world.leading(table, AT).state.queries.lacking())


def test_rows_of_many_writers_are_dropped_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(epochs, "ABANDONED_MAX", 2)
    world, table = staged_world()
    # given rows of five writers more, and a day later
    for task in range(5):
        batch = encode_batch(bytes(100), rows=1, schema=1, transaction=100 + task)
        world.wait(world.leading(table, AT).append(batch))
    world.run_for(DAY_MS)
    # when their partition is looked at again and again, then all of them go
    look_until(world, table, DROPPED)
    # and the others know each of them
    given_up = world.leading(table, OTHERS[0]).state.given_up
    assert sorted(given_up) == [100, 101, 102, 103, 104, TASK]


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize(
    # One moment stands for the others.
    "after_ms",
    [
        20,
        *(pytest.param(ms, marks=pytest.mark.release) for ms in (0, 5, 10, 15, 25, 30, 40, 50, 60)),
    ],
)
def test_a_crash_at_any_moment_binds_all_of_an_epoch_or_drops_all(
    decided: bool, after_ms: int
) -> None:
    # given an epoch that is decided or not, and its driver is gone
    world, table = staged_world()
    if decided:
        world.wait(world.leading(table, AT).ask(bind(AT)))
    world.run_for(DAY_MS)
    # when the machine crashes while that is seen to, again and again
    for _ in range(3):
        world[1].upkeep.tick()
        world.run_for(after_ms)
        world[1].crash()
        world.run_for(100)
        world[1].restart()
        world.run_until(lambda: world[1].tables_ is not None)
    # then all is bound, or all is dropped
    look_until(world, table, BOUND if decided else DROPPED)


def test_a_partition_says_what_becomes_of_rows_that_were_asked_for() -> None:
    # given rows that another partition has asked for, and that wait here
    world, table = staged_world()
    leader = world.leading(table, AT)
    assert world.wait(leader.ask(Abandon((TASK,)))) is None
    # when they are dropped, then a repeat gets the same answer
    first = world.wait(leader.ask(Finish(TASK, commit=False)))
    assert isinstance(first, Finished)
    assert world.wait(leader.ask(Finish(TASK, commit=False))) == first
    assert stands(world, table) == WAITS | {AT: (0, 0)}
