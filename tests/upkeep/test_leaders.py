"""Leaders are spread: each node leads what it should, also after it was down."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from lowmark.catalog import AlterZone, TableId
from lowmark.placement.assignments import Assignments, Keys, PartitionId
from lowmark.upkeep import leaders
from table.world import TableWorld, log_table

PARTITIONS = 6


@pytest.fixture
def world() -> TableWorld:
    world = TableWorld(nodes=3)
    world.execute(1, AlterZone(name="default", replicas=3))
    return world


def led_by(world: TableWorld, table: TableId) -> dict[int, int]:
    copies = [(node.number, one) for node in world.up for one in node.tables.of(table)]
    return {one.number: number for number, one in copies if one.group.ready}


def wanted(world: TableWorld, table: TableId) -> dict[int, int]:
    return {n: should_lead(world, table, n) for n in range(PARTITIONS)}


def should_lead(world: TableWorld, table: TableId, number: int) -> int:
    """As all nodes say."""
    said = {node.upkeep.should_lead(PartitionId(table, number)) for node in world.up}
    assert len(said) == 1
    (node,) = said
    assert node is not None
    return node


def settle(world: TableWorld, table: TableId, partitions: int = PARTITIONS) -> None:
    """Two looks of every node at partitions that have a leader, and what comes of them."""
    world.run_until(lambda: len(led_by(world, table)) == partitions)
    for _ in range(2):
        world.look()
        world.run_for(1_000)


@pytest.mark.slow
def test_every_node_leads_as_much_as_the_others(world: TableWorld) -> None:
    # given a table whose partitions are on three nodes
    table = world.create(1, log_table("events", partitions=PARTITIONS))
    world.run_until(lambda: len(led_by(world, table)) == PARTITIONS)
    # when all nodes have looked at what they lead
    settle(world, table)
    # then each leads a third of it
    assert led_by(world, table) == wanted(world, table)
    assert Counter(led_by(world, table).values()) == {1: 2, 2: 2, 3: 2}
    # and nothing moves any more
    assert [look.handed_over for look in world.look().values()] == [0, 0, 0]


@pytest.mark.slow
def test_a_node_that_was_down_leads_again_what_it_should(world: TableWorld) -> None:
    # given a node that was down: the others lead what it led
    table = world.create(1, log_table("events", partitions=PARTITIONS))
    settle(world, table)
    world[2].crash()
    world.run_until(lambda: len(led_by(world, table)) == PARTITIONS)
    world.run_for(5_000)
    world.look()
    # when it is back, and the others have looked once
    world[2].restart()
    world.run_until(lambda: world[2] in world.up)
    world.run_for(5_000)
    # then it leads nothing yet: it may be gone again at once
    assert sum(look.handed_over for look in world.look().values()) == 0
    # when they look again, at a time at which what comes back is given once more
    world.run_for(leaders.WAIT_MS)
    settle(world, table)
    # then it does
    assert led_by(world, table) == wanted(world, table)


@pytest.mark.slow
def test_a_leadership_that_comes_back_is_given_less_and_less_often(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaders, "WAIT_MS", 1_000)
    # given a partition whose leader should be node n, which gives it back each time
    table = world.create(1, log_table("events", partitions=1))
    settle(world, table, 1)
    to = should_lead(world, table, 0)
    other = next(node for node in (1, 2, 3) if node != to)
    given: list[int] = []
    # when nodes look again and again
    for _ in range(60):
        if world.leading(table).group.node == to:
            given.append(world[1].run.loop.elapsed_us() // 1_000)
            world.leading(table).group.transfer(other)
            world.run_until(lambda: world.leading(table).group.node == other)
        world.look()
        world.run_for(200)
    # then it waits twice as long each time
    waits = [later - sooner for sooner, later in pairwise(given[1:])]
    assert len(waits) >= 2
    assert waits[0] >= leaders.WAIT_MS
    assert all(later >= 1.5 * sooner for sooner, later in pairwise(waits))


@pytest.mark.slow
def test_few_move_at_a_time(world: TableWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    # given nodes that hand over one partition a look, and one node that leads all
    table = world.create(1, log_table("events", partitions=PARTITIONS))
    for number in range(PARTITIONS):
        world.leading(table, number).group.transfer(1)
    world.run_until(lambda: set(led_by(world, table).values()) == {1})
    monkeypatch.setattr(leaders, "MOVES_MAX", 1)
    # then they go one by one
    assert [world.look()[1].handed_over for _ in range(3)] == [0, 1, 1]


@pytest.mark.slow
def test_leaders_are_even_over_all_tables_of_a_zone_and_over_the_nodes_that_are_not_drained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaders, "WAIT_MS", 1_000)
    # given small tables on five nodes: each has fewer partitions than there are nodes
    world = TableWorld(nodes=5)
    world.execute(1, AlterZone(name="default", replicas=3))
    tables = [world.create(1, log_table(f"t{at}", partitions=2)) for at in range(10)]

    def led() -> Counter[int]:
        return Counter(node for one in tables for node in led_by(world, one).values())

    world.run_until(lambda: led().total() == 20)
    # when all nodes have looked at what they lead
    for _ in range(2):
        world.look()
        world.run_for(1_000)
    # then each leads a fifth
    assert led() == dict.fromkeys(range(1, 6), 4)
    # and when one is drained, the others lead all of it, evenly, though nothing has moved
    operations = world[1].placement.operations
    world.wait(operations.change(paused=True))
    world.wait(operations.drain(5))
    world.everywhere()
    for _ in range(3):
        world.run_for(2 * leaders.WAIT_MS)
        world.look()
    world.run_for(1_000)
    assert led() == dict.fromkeys(range(1, 5), 5)
    assert operations.left_on(5)


def test_a_partition_that_moves_is_led_by_a_node_that_keeps_it() -> None:
    stable, pending = Assignments((1, 2, 3), 1), Assignments((2, 4, 5), 1)
    moving = Keys(stable=stable, pending=pending)
    assert leaders.may_lead(Keys(), frozenset()) == ()
    assert leaders.may_lead(Keys(stable=stable), frozenset()) == (1, 2, 3)
    assert leaders.may_lead(Keys(stable=stable), {2}) == (1, 3)
    assert leaders.may_lead(Keys(stable=stable), {1, 2, 3}) == (1, 2, 3)
    assert leaders.may_lead(moving, frozenset()) == (2,)
    # a node that is drained leads nothing, if any other has the rows
    assert leaders.may_lead(moving, {2}) == (1, 3)
