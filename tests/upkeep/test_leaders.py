"""Leaders are spread: each node leads what it should, also after it was down."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from lowmark.catalog import AlterZone, TableId
from lowmark.upkeep import leaders
from lowmark.upkeep.leaders import should_lead
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
    routes = world.up[0].placement.routes
    return {n: should_lead(table, n, routes(table, n)) for n in range(PARTITIONS)}


def settle(world: TableWorld, table: TableId, partitions: int = PARTITIONS) -> None:
    """Two looks of every node at partitions that have a leader, and what comes of them."""
    world.run_until(lambda: len(led_by(world, table)) == partitions)
    for _ in range(2):
        world.look()
        world.run_for(1_000)


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


def test_a_leadership_that_comes_back_is_given_less_and_less_often(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaders, "WAIT_MS", 1_000)
    # given a partition whose leader should be node n, which gives it back each time
    table = world.create(1, log_table("events", partitions=1))
    settle(world, table, 1)
    to = should_lead(table, 0, (1, 2, 3))
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


def test_few_move_at_a_time(world: TableWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    # given nodes that hand over one partition a look, and one node that leads all
    table = world.create(1, log_table("events", partitions=PARTITIONS))
    for number in range(PARTITIONS):
        world.leading(table, number).group.transfer(1)
    world.run_until(lambda: set(led_by(world, table).values()) == {1})
    monkeypatch.setattr(leaders, "MOVES_MAX", 1)
    # then they go one by one
    assert [world.look()[1].handed_over for _ in range(3)] == [0, 1, 1]
