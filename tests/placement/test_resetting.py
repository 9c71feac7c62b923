"""A partition whose majority is lost: one copy goes on alone, if the operator names the others."""

from __future__ import annotations

import pytest

from lowmark.catalog import AlterZone, TableId
from lowmark.errors import Rejected
from lowmark.metastore import MetastoreConfig
from lowmark.placement.assignments import PartitionId
from placement.test_moves import settle, stable
from table.world import TableWorld, log_table

FIVE = MetastoreConfig(members=5, lease_ms=1_500, request_timeout_ms=3_000, watch_patience_ms=5_000)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> TableWorld:
    """Five nodes, all of which vote in the metastore: it survives the loss of two."""
    world = TableWorld(getattr(request, "param", 1), nodes=5, metastore_config=FIVE)
    world.execute(1, AlterZone(name="default", replicas=3))
    world.run_for(8_000)
    return world


def lose_majority(world: TableWorld, table: TableId) -> tuple[int, list[int]]:
    """Two of three nodes of a partition die, and the cluster knows; who is left, who is lost."""
    nodes = stable(world, table)
    keep = next(n for n in nodes if n != world.leading(table).group.node)
    lost = [n for n in nodes if n != keep]
    for number in lost:
        world[number].crash()
    some = world[keep]
    world.run_until(lambda: all(some.here.topology.find(n) is None for n in lost))
    return keep, lost


@pytest.mark.slow
def test_a_survivor_goes_on_and_is_given_others(world: TableWorld) -> None:
    # given a partition with rows whose majority is lost
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    keep, lost = lose_majority(world, table)
    partition = PartitionId(table, 0)
    # when the operator resets it, and names the others as lost
    asked = next(n for n in world.nodes if n not in lost and n != keep)
    done = world.wait(world[asked].placement.resetting.reset(partition, node=keep, lost=lost))
    # then it has all that the survivor had, and takes rows
    assert (done.node, done.rows, done.lost) == (keep, 5, tuple(sorted(lost)))
    assert world.append(table).first == 5
    # and it has three replicas again, on the nodes that are left
    world.run_until(lambda: len(stable(world, table)) == 3, timeout_ms=120_000)
    assert not set(lost) & set(stable(world, table))
    settle(world, table)
    assert world.append(table).first == 6


@pytest.mark.slow
# In the lives of these seeds a copy is found outdated while no assignment names its node.
@pytest.mark.parametrize("world", [1, 2, 11], indirect=True)
def test_lost_nodes_that_come_back_get_copies_of_the_new_lineage(world: TableWorld) -> None:
    # given a partition that was reset, and whose target has all nodes
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    keep, lost = lose_majority(world, table)
    partition = PartitionId(table, 0)
    world.wait(world[keep].placement.resetting.reset(partition, node=keep, lost=lost))
    world.append(table, rows=2)
    # when the lost ones come back after all, with their old copies, and all five shall have it
    for number in lost:
        world[number].start()
    world.run_until(lambda: len(world.up) == 5)
    for number in lost:
        world.wait(world[keep].placement.operations.fill(number))
    world.execute(keep, AlterZone(name="default", replicas=5))
    world.run_until(lambda: stable(world, table) == (1, 2, 3, 4, 5), timeout_ms=240_000)
    settle(world, table)
    # then each has every row, and their old copies did no harm
    assert world.append(table).first == 7
    for node in world.up:
        world.run_until(lambda node=node: node.tables.get(table, 0).view.end == 8)  # type: ignore[misc]
        assert node.placement.problem == ""


@pytest.mark.slow
def test_lost_nodes_that_come_back_and_are_not_needed_lose_their_copies(
    world: TableWorld,
) -> None:
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    keep, lost = lose_majority(world, table)
    partition = PartitionId(table, 0)
    world.wait(world[keep].placement.resetting.reset(partition, node=keep, lost=lost))
    world.run_until(lambda: len(stable(world, table)) == 3, timeout_ms=120_000)
    for number in lost:
        world[number].start()
    world.run_until(lambda: len(world.up) == 5)
    settle(world, table)
    assert world.append(table).first == 5


@pytest.mark.slow
def test_a_reset_is_refused_unless_all_others_are_lost_and_named(world: TableWorld) -> None:
    table = world.create(1, log_table("events"))
    world.append(table)
    partition = PartitionId(table, 0)
    nodes = stable(world, table)
    some = world[nodes[0]].placement.resetting

    def refused(node: int, lost: list[int]) -> str:
        error = world.wait_error(some.reset(partition, node=node, lost=lost))
        assert isinstance(error, Rejected)
        return f"{error.message} {error.detail} {error.hint}"

    # while the others are up
    assert "needs no reset" in refused(nodes[0], list(nodes[1:]))
    # from a node that has no copy
    out = next(n for n in world.nodes if n not in nodes)
    assert "has no copy" in refused(out, list(nodes))
    # of a partition that is not there
    nothing = world.wait_error(
        some.reset(PartitionId(table, 7), node=nodes[0], lost=list(nodes[1:]))
    )
    assert "there is no partition 7" in nothing.message
    # when the others are down, but not named, or their leases are not over
    keep, lost = lose_majority(world, table)
    some = world[keep].placement.resetting
    assert f"--lost n{lost[1]}" in refused(keep, lost[:1])
    # and nothing has changed
    assert world[keep].placement.keys(partition).stable is not None
    assert stable(world, table) == nodes


@pytest.mark.slow
def test_a_crash_between_the_reset_and_its_write_is_made_good_by_asking_again(
    world: TableWorld,
) -> None:
    # given a survivor that was reset, and died before that was written
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    keep, lost = lose_majority(world, table)
    partition = PartitionId(table, 0)
    world[keep].tables.reset(*partition, listener=world[keep].placement.moves.listener(partition))
    world.run_for(200)
    world[keep].crash()
    world.run_for(300)
    world[keep].start()
    world.run_until(lambda: world[keep].tables_ is not None)
    world.run_until(lambda: world[keep].here.topology.find(keep) is not None)
    # when the operator asks again
    world.run_until(lambda: world[keep].tables.here(table, 0) is not None)
    world.run_for(1_000)
    done = world.wait(world[keep].placement.resetting.reset(partition, node=keep, lost=lost))
    # then it is done
    assert done.rows == 5
    world.run_until(lambda: len(stable(world, table)) == 3, timeout_ms=120_000)
    assert world.append(table).first == 5


@pytest.mark.slow
def test_partitions_that_are_to_move_away_from_lost_nodes_can_be_reset(world: TableWorld) -> None:
    # given two partitions that lost the same nodes
    table = world.create(1, log_table("events", partitions=8))
    world.run_for(500)
    lost = list(stable(world, table)[:2])
    ill = [n for n in range(8) if set(lost) <= set(stable(world, table, n))]
    for number in lost:
        world[number].crash()
    some = next(node for node in world.up if node.number not in lost)
    world.run_until(lambda: all(some.here.topology.find(n) is None for n in lost))
    world.run_for(3_000)
    # when one is reset, its lost nodes are drained, and the other one is to move
    for at, number in enumerate(ill):
        partition = PartitionId(table, number)
        keep = next(n for n in stable(world, table, number) if n not in lost)
        if at:
            world.run_until(lambda one=partition: some.placement.keys(one).pending is not None)  # type: ignore[misc]
        done = world.wait(some.placement.resetting.reset(partition, node=keep, lost=lost))
        # then that can be reset all the same
        assert done.node == keep
    settle(world, table)


@pytest.mark.slow
def test_a_node_that_is_up_is_not_drained_as_lost(world: TableWorld) -> None:
    table = world.create(1, log_table("events"))
    world.run_for(500)
    keep, lost = lose_majority(world, table)
    world.run_for(3_000)
    other = next(n for n in world.nodes if n not in lost and n != keep)
    error = world.wait_error(
        world[keep].placement.resetting.reset(PartitionId(table, 0), node=keep, lost=[*lost, other])
    )
    assert f"named as lost that are up: n{other}" in error.message
    assert world[keep].placement.zones.draining() == frozenset()
