"""How long the cluster waits for nodes that come and go, whichever node coordinates."""

from __future__ import annotations

import pytest

from lowmark.catalog import AlterZone
from lowmark.placement.waiting import NOTE_MS, WAITING_KEY
from placement.test_moves import join, settle, stable
from table.world import TableWorld, log_table

PARTITIONS = 4


def another_coordinates(world: TableWorld) -> None:
    """Have another node coordinate, of those that are up and vote."""
    before = world.wait_leader()
    group = before.metastore.group
    others = group.members().incoming - {before.number}
    to = next(node.number for node in world.up if node.number in others)
    group.transfer(to)
    world.wait_leader(other_than=before.number)


def baseline(world: TableWorld) -> tuple[int, ...]:
    zones = world.up[0].placement.zones
    (zone,) = world.up[0].catalog.latest.zones
    found, _ = zones.baseline(zone)
    assert found is not None
    return found.numbers


def zone(world: TableWorld, **more: object) -> None:
    world.execute(1, AlterZone(name="default", **more))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [0, 3])
def test_a_node_that_is_down_goes_in_time_though_coordinators_change(changes: int) -> None:
    # given a zone that waits 60 s for nodes that are down
    world = TableWorld(nodes=4)
    zone(world, replicas=3, scale_down_ms=60_000)
    table = world.create(1, log_table("events", partitions=PARTITIONS))
    world.run_until(lambda: baseline(world) == (1, 2, 3, 4), timeout_ms=120_000)
    settle(world, table)
    # when one goes, and others coordinate in turn
    world[4].crash()
    world.run_until(lambda: world[1].here.topology.find(4) is None)
    for _ in range(changes):
        world.run_for(15_000)
        another_coordinates(world)
    world.run_for(50_000 - changes * 15_000)
    # then it stays until then, and no longer but for some seconds for each that was elected
    assert 4 in baseline(world)
    world.run_for(12_000 + changes * NOTE_MS)
    assert 4 not in baseline(world)
    # and when no zone waits, no note is left
    world.run_until(lambda: world[1].metastore.get_local(WAITING_KEY) is None)
    settle(world, table)
    assert all(4 not in stable(world, table, number) for number in range(PARTITIONS))


@pytest.mark.slow
def test_a_node_that_comes_is_in_in_time_though_coordinators_change() -> None:
    # given a zone that waits 60 s for nodes that come
    world = TableWorld(nodes=3)
    zone(world, replicas=2, scale_up_ms=60_000)
    world.run_until(lambda: baseline(world) == (1, 2, 3), timeout_ms=120_000)
    # when one comes, and others coordinate in turn
    join(world, 4)
    for _ in range(3):
        world.run_for(15_000)
        another_coordinates(world)
    # then it waits until then, and no longer
    world.run_for(5_000)
    assert baseline(world) == (1, 2, 3)
    world.run_for(12_000 + 3 * NOTE_MS)
    assert baseline(world) == (1, 2, 3, 4)


@pytest.mark.slow
def test_time_in_which_the_cluster_was_down_does_not_count() -> None:
    # given a cluster that is stopped, and started an hour later, but for one node
    world = TableWorld(nodes=4)
    zone(world, replicas=3, scale_down_ms=60_000)
    table = world.create(1, log_table("events", partitions=PARTITIONS))
    world.run_until(lambda: baseline(world) == (1, 2, 3, 4), timeout_ms=120_000)
    settle(world, table)
    before = [stable(world, table, number) for number in range(PARTITIONS)]
    for number in (4, 3, 2, 1):
        world[number].stop()
        world.run_for(2_000)
    world.run_for(3_600_000)
    for number in (1, 2, 3):
        world[number].start()
    world.run_until(lambda: len(world.up) == 3)
    # when another node is elected soon after that, and the last one comes
    world.run_for(20_000)
    another_coordinates(world)
    world.run_for(20_000)
    world[4].start()
    world.run_until(lambda: world[1].here.topology.find(4) is not None)
    world.run_for(20_000)
    # then nothing has moved
    settle(world, table)
    assert baseline(world) == (1, 2, 3, 4)
    assert [stable(world, table, number) for number in range(PARTITIONS)] == before


@pytest.mark.slow
def test_a_node_that_came_back_meanwhile_is_waited_for_anew() -> None:
    # given a node that was down for 40 of 60 s, by the note of the coordinator
    world = TableWorld(nodes=4)
    zone(world, replicas=3, scale_down_ms=60_000)
    world.run_until(lambda: baseline(world) == (1, 2, 3, 4), timeout_ms=120_000)
    world[4].crash()
    world.run_until(lambda: world[1].here.topology.find(4) is None)
    world.run_for(40_000)
    note = world.wait_leader().metastore.get_local(WAITING_KEY)
    assert note is not None
    # when it comes and goes again, and the next coordinator finds the same note
    world[4].start()
    world.run_until(lambda: world[1].here.topology.find(4) is not None)
    world[4].crash()
    world.run_until(lambda: world[1].here.topology.find(4) is None)
    world.run_for(NOTE_MS / 5)
    world.wait(world.wait_leader().metastore.put(WAITING_KEY, bytes(note.value)))
    another_coordinates(world)
    # then it is waited for from then on
    world.run_for(45_000)
    assert 4 in baseline(world)
    world.run_for(25_000)
    assert 4 not in baseline(world)
