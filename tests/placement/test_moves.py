"""Partitions follow the cluster: nodes come and go, replicas change, and every row stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from lowmark.catalog import AlterZone, TableId
from lowmark.placement import Adjust, RebalanceConfig
from lowmark.placement.assignments import PartitionId
from lowmark.runtime import Outcome
from table.world import TableNode, TableWorld, log_table

T = TypeVar("T")


def replicas(world: TableWorld, count: int, *, by: int = 1) -> None:
    world.execute(by, AlterZone(name="default", replicas=count))


def join(world: TableWorld, number: int, *, rack: str = "") -> TableNode:
    """One more node."""
    node = world.nodes[number] = world.new_node(number)
    node.rack = rack
    node.start(join=world.wait_leader().address)
    world.run_until(lambda: node.tables_ is not None)
    assert isinstance(node, TableNode)
    return node


def slow_down(node: TableNode, lane: str, ms: float) -> None:
    """Let each step of a lane begin this much later."""
    slowed = node.clock.lane(lane)
    plain = slowed.submit

    def submit(step: Callable[[], T], on_done: Callable[[Outcome[T]], None]) -> None:
        node.clock.call_later(ms, lambda: plain(step, on_done))

    slowed.submit = submit  # type: ignore[method-assign]


def holders(world: TableWorld, table: TableId, number: int = 0) -> set[int]:
    """The nodes that have anything of a partition on their disk."""
    return {node.number for node in world.up if (table, number) in node.tables.on_disk()}


def settled(world: TableWorld, *tables: TableId) -> bool:
    """Whether nothing moves, and copies are where they should be and nowhere else."""
    some = world.up[0].placement
    for table in tables:
        described = world.up[0].catalog.latest.table(table)
        assert described is not None
        for number in range(described.partitions):
            partition = PartitionId(table, number)
            keys = some.keys(partition)
            baseline = some.zones.revision(described.zone_id)
            if keys.stable is None or keys.pending is not None or keys.lock is not None:
                return False
            if (keys.trigger or 0) < baseline or keys.planned is not None:
                return False
            if holders(world, table, number) != set(keys.stable.nodes):
                return False
    return True


def settle(world: TableWorld, *tables: TableId) -> None:
    world.run_until(lambda: settled(world, *tables), timeout_ms=120_000)


def stable(world: TableWorld, table: TableId, number: int = 0) -> tuple[int, ...]:
    return world.up[0].placement.routes(table, number)


@pytest.mark.slow
def test_more_replicas_are_added_and_taken_away_again() -> None:
    # given a table of one replica with rows
    world = TableWorld()
    table = world.create(1, log_table("events", partitions=3))
    world.append(table, rows=5)
    # when its zone asks for three
    replicas(world, 3)
    world.run_until(lambda: stable(world, table) == (1, 2, 3), timeout_ms=120_000)
    settle(world, table)
    # then every node has every row
    for node in world.up:
        world.run_until(lambda node=node: node.tables.get(table, 0).view.end == 5)  # type: ignore[misc]
    assert world.append(table).first == 5
    # and when it asks for one again, one is left, with all of them
    replicas(world, 1)
    world.run_until(lambda: len(stable(world, table)) == 1, timeout_ms=120_000)
    settle(world, table)
    assert world.append(table).first == 6


@pytest.mark.slow
def test_a_node_that_comes_gets_its_share_and_one_that_goes_leaves_it() -> None:
    # given a table on three nodes
    world = TableWorld()
    replicas(world, 3)
    table = world.create(1, log_table("events", partitions=4))
    world.append(table, rows=5)
    # when a fourth one comes
    join(world, 4)
    world.run_until(lambda: any(4 in stable(world, table, n) for n in range(4)), timeout_ms=120_000)
    settle(world, table)
    # then each has three quarters of it
    counts = [sum(n in stable(world, table, p) for p in range(4)) for n in (1, 2, 3, 4)]
    assert counts == [3, 3, 3, 3]
    assert world.append(table).first == 5
    # and when it leaves, the others have all of it
    world.wait(world[4].here.leave(), timeout_ms=120_000)
    world[4].stop()
    del world.nodes[4]
    world.run_until(
        lambda: all(stable(world, table, n) == (1, 2, 3) for n in range(4)), timeout_ms=120_000
    )
    settle(world, table)
    assert world.append(table).first == 6


@pytest.mark.slow
def test_a_restart_moves_nothing() -> None:
    # given a table on two of three nodes
    world = TableWorld()
    replicas(world, 2)
    table = world.create(1, log_table("events", partitions=6))
    world.run_for(10_000)
    settle(world, table)
    before = [stable(world, table, number) for number in range(6)]
    # when a node is down for a minute
    world[3].crash()
    world.run_for(60_000)
    world[3].start()
    world.run_until(lambda: world[3].tables_ is not None)
    world.run_for(10_000)
    # then everything is where it was
    settle(world, table)
    assert [stable(world, table, number) for number in range(6)] == before


@pytest.mark.slow
@pytest.mark.parametrize("adjust", Adjust)
def test_targets_that_change_while_rows_are_copied_end_at_the_last_one(
    adjust: Adjust, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableNode, "rebalance", RebalanceConfig(adjust=adjust, retry_delay_ms=200))
    # given a table of one replica
    world = TableWorld(nodes=3)
    table = world.create(1, log_table("events", partitions=2))
    world.append(table, rows=5)
    # when replicas change again and again
    for count in (2, 3, 2, 3):
        replicas(world, count)
        world.run_for(30)
    # then the last one counts
    world.run_until(lambda: stable(world, table) == (1, 2, 3), timeout_ms=120_000)
    settle(world, table)
    assert world.append(table).first == 5


@pytest.mark.slow
def test_a_move_away_from_its_leader_does_not_wait_for_the_retry_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TableNode, "rebalance", RebalanceConfig(retry_delay_ms=60_000))
    # given a partition on one node, which leads it
    world = TableWorld(nodes=3)
    replicas(world, 1)
    table = world.create(1, log_table("events", partitions=1))
    world.append(table, rows=5)
    [at] = stable(world, table)
    zone = world[1].catalog.latest.default_zone
    assert zone is not None
    # when it goes to another node, whose disk is so slow that it leads, and knows that it is to
    # move the partition, before the change of members is over
    to = at % 3 + 1
    slow_down(world[to], "wal", 50)
    assert world.wait(world[1].placement.zones.choose(zone, (to,)))
    # then that node finds the change in its way, and says that it is stable as soon as it is over
    world.run_until(lambda: stable(world, table) == (to,), timeout_ms=5_000)
    settle(world, table)
    assert world.append(table).first == 5


@pytest.mark.slow
def test_a_leader_that_dies_in_the_middle_is_followed_by_one_that_goes_on() -> None:
    world = TableWorld(nodes=4)
    replicas(world, 3)
    table = world.create(1, log_table("events", partitions=1))
    world.append(table, rows=5)
    world.run_for(8_000)
    settle(world, table)
    out = next(n for n in (1, 2, 3, 4) if n not in stable(world, table))
    inside = stable(world, table)[0]
    zone = world[1].catalog.latest.default_zone
    assert zone is not None
    # when the nodes are named by hand, and the leader dies as soon as the move has begun
    wanted = tuple(sorted({*stable(world, table), out} - {inside}))
    assert world.wait(world[1].placement.zones.choose(zone, wanted))
    partition = PartitionId(table, 0)
    world.run_until(lambda: world.up[0].placement.keys(partition).moving)
    leader = world.leading(table).group.node
    world[leader].crash()
    world.run_for(3_000)
    world[leader].start()
    # then it is moved all the same
    world.run_until(lambda: stable(world, table) == wanted, timeout_ms=120_000)
    world.run_until(lambda: len(world.up) == 4)
    settle(world, table)
    assert world.append(table).first == 5
