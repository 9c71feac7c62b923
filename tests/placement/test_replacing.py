"""A node takes the place of one that is lost: what moves, what is refused, and what comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowmark.catalog import DropTable, TableId
from lowmark.errors import LowmarkError, Rejected
from lowmark.metastore import ClusterRefused
from lowmark.metastore.coordinator import known
from lowmark.metastore.identity import load_identity
from lowmark.metastore.nodes import TOPOLOGY_KEY, encode
from lowmark.placement.assignments import PartitionId
from lowmark.placement.replacing import Standing
from placement.test_moves import replicas, settle, settled, stable
from placement.test_operations import hold_back
from table.world import TableNode, TableWorld, log_table

pytestmark = pytest.mark.slow


def lose(world: TableWorld, number: int) -> TableNode:
    """A node is gone; its directory as it was is in what is given, for a node that comes back."""
    lost = world[number]
    lost.crash(killed=True)
    del world.nodes[number]
    world.run_until(lambda: is_gone(world, number))
    return lost


def is_gone(world: TableWorld, number: int) -> bool:
    """Whether the coordinator knows that a node is down, and its lease is over."""
    leader = world.leader()
    if leader is None or leader.number not in world.nodes:
        return False
    refused = str(look(world, number).refused)
    return "it is up" not in refused and "lease" not in refused and "heard" not in refused


def look(world: TableWorld, number: int, *, tries: bool = False) -> Standing:
    leader = world[world.wait_leader().number]
    return world.wait(leader.placement.replacing.look(number, tries=tries))


def successor(world: TableWorld, lost: TableNode, number: int, *, address: str = "") -> TableNode:
    """A new machine whose directory is prepared, and that was not started yet."""
    node = world.new_node(number)
    node.replaces, node.address = lost.info, address or f"n{number}:1"
    node.rack = lost.rack
    return node


def start(world: TableWorld, node: TableNode) -> None:
    world.nodes[node.number] = node
    node.start(join=world.wait_leader(other_than=node.number).address)


def joined(world: TableWorld, node: TableNode) -> None:
    world.run_until(lambda: node.here.ready.done)
    node.here.ready.result()
    world.run_until(lambda: node.tables_ is not None)


def came_back(world: TableWorld, lost: TableNode) -> LowmarkError:
    """The lost machine is started again, with its directory; what it is told."""
    lost.address = f"old-{lost.address}"
    lost.start()
    world.run_until(lambda: lost.here.refused is not None, timeout_ms=120_000)
    refused = lost.here.refused
    assert refused is not None
    return refused


def members(world: TableWorld) -> set[int]:
    return set(world.wait_leader().metastore.group.members().voters)


def placed(world: TableWorld, table: TableId, partitions: int) -> list[set[int]]:
    return [set(stable(world, table, number)) for number in range(partitions)]


@pytest.mark.parametrize(
    "address",
    ["n2:1", pytest.param("", marks=pytest.mark.release)],  # (the first is the harder one)
    ids=["where the lost one was", "elsewhere"],
)
def test_a_new_node_gets_what_the_lost_one_had_and_nothing_else_moves(address: str) -> None:
    # given rows on three of five nodes each, and one of the nodes that is lost
    world = TableWorld(nodes=5)
    replicas(world, 3)
    table = world.create(1, log_table("events", partitions=6))
    world.append(table, rows=5)
    settle(world, table)
    before = placed(world, table, 6)
    lost = lose(world, 2)
    # when another one takes its place
    node = successor(world, lost, 6, address=address)
    start(world, node)
    joined(world, node)
    world.run_until(lambda: not any(2 in one for one in placed(world, table, 6)))
    settle(world, table)
    # then it has its name and its partitions, all others are where they were, and no row is lost
    assert placed(world, table, 6) == [{6 if n == 2 else n for n in one} for one in before]
    assert {one.name: one.number for one in node.here.nodes()}["n2"] == 6
    assert len(members(world)) == 3
    assert 2 not in members(world)
    assert world.append(table).first == 5
    # and the lost one, when it is found again, is refused by name, for good
    refused = came_back(world, lost)
    assert refused.message.startswith(f"node n2 was replaced: node 6 at {node.address} ")
    lost.crash(killed=True)
    with pytest.raises(ClusterRefused, match="n2 was replaced: node 6"):
        lost.start()


def test_of_three_voters_the_new_node_takes_the_place_of_the_lost_one() -> None:
    world = TableWorld()
    replicas(world, 3)
    table = world.create(1, log_table("events"))
    world.append(table, rows=3)
    lost = lose(world, 1)
    node = successor(world, lost, 4)
    start(world, node)
    joined(world, node)
    world.run_until(lambda: members(world) == {2, 3, 4})
    world.run_until(lambda: stable(world, table) == (2, 3, 4))
    settle(world, table)
    # then one more may go down
    world[2].crash()
    assert world.append(table).first == 3


def test_a_node_that_is_there_is_not_replaced() -> None:
    # given a node that is up
    world = TableWorld()
    standing = look(world, 2)
    assert "it is up" in str(standing.refused)
    assert "its lease was renewed" in getattr(standing.refused, "detail", "")
    # when a directory was prepared all the same, then it is not let in, and nothing has changed
    node = successor(world, world[2], 4)
    world.nodes[4] = node
    node.start(join=world.wait_leader().address)
    refused = world.wait_error(node.here.ready)
    assert "node n2 can't be replaced: it is up" in refused.message
    assert {one.number for one in world[1].here.nodes()} == {1, 2, 3}


def test_a_node_that_others_hear_is_there() -> None:
    # given a node whose lease the coordinator does not see renewed
    world = TableWorld()
    leader = world.wait_leader().number
    cut, third = (n for n in (1, 2, 3) if n != leader)
    world.network.cut([world[cut].address], [world[leader].address])
    world.run_until(lambda: world[leader].here.topology.find(cut) is None)
    # then another node hears it, and it answers there
    standing = world.wait(world[leader].placement.replacing.look(cut, tries=True))
    assert f"it answers node n{third}" in getattr(standing.refused, "detail", "")


def test_a_node_that_may_be_there_is_waited_for() -> None:
    # given a node that is out of the topology, with a lease that is in force
    world = TableWorld()
    lost = world[2]
    lost.crash(killed=True)
    del world.nodes[2]
    leader = world.wait_leader()
    topology = leader.here.topology.without(2)
    world.wait(leader.metastore.put(TOPOLOGY_KEY, encode(topology)))
    assert world[leader.number].placement.resetting.has_lease(2)
    # when another one is to take its place, then that waits until the lease is over
    node = successor(world, lost, 4)
    start(world, node)
    world.run_until(lambda: _is_in(world, node))
    assert not world[world.wait_leader().number].placement.resetting.has_lease(2)
    joined(world, node)


def test_partitions_that_need_the_lost_node_are_named_and_hold_it_back() -> None:
    # given a table whose only copy is on a node that is lost
    world = TableWorld()
    replicas(world, 1)
    table = world.create(1, log_table("lone"))
    world.append(table, rows=3)
    (holder,) = stable(world, table)
    other = next(n for n in (1, 2, 3) if n != holder)
    lost = lose(world, holder)
    # then it is named, with what to do
    [loss] = look(world, holder).losses
    assert (loss.table, loss.partition, loss.only) == ("public.lone", 0, True)
    assert "lowmark table drop public.lone" in loss.hint
    # and the new node is not let in: nothing begins empty by itself
    node = successor(world, lost, 4)
    start(world, node)
    refused = world.wait_error(node.here.ready)
    assert "1 partition has no majority without it" in refused.message
    assert "public.lone 0" in refused.detail
    assert stable(world, table) == (holder,)
    node.crash(killed=True)
    del world.nodes[4]
    # when its operator has given it up, then the same directory is let in
    world.execute(other, DropTable(name="lone"))
    world.everywhere()
    assert [one.dropped for one in look(world, holder).losses] == [True]
    start(world, node)
    joined(world, node)


def test_of_two_copies_the_one_that_is_left_goes_on_before_the_node_is_replaced() -> None:
    world = TableWorld()
    replicas(world, 2)
    table = world.create(1, log_table("pair"))
    world.append(table, rows=3)
    gone, left = stable(world, table)
    lost = lose(world, gone)
    [loss] = look(world, gone).losses
    assert (loss.left, loss.only) == ((f"n{left}",), False)
    assert loss.hint.endswith(
        f"`lowmark partition reset public.pair 0 --from n{left} --lost n{gone}`."
    )
    # when that is done, by the node itself
    resetting = world[left].placement.resetting
    world.wait(resetting.reset(PartitionId(table, 0), node=left, lost=[gone]))
    node = successor(world, lost, 4)
    start(world, node)
    joined(world, node)
    # then the rows are there, on two nodes, and the new one is not drained as the lost one was
    world.run_until(lambda: len(stable(world, table)) == 2, timeout_ms=120_000)
    settle(world, table)
    assert world.append(table).first == 3
    assert world[left].placement.zones.draining() == frozenset()


def test_a_node_that_was_only_cut_off_does_no_harm_when_it_is_back() -> None:
    # given a node that leads, is cut off, and is replaced
    world = TableWorld()
    replicas(world, 3)
    table = world.create(1, log_table("events"))
    world.append(table, rows=3)
    cut = world.leading(table).group.node
    world.isolate(cut)
    lost = world[cut]
    world.run_until(lambda: any(n.number != cut and n.metastore.coordinates for n in world.up))
    del world.nodes[cut]
    world.run_until(lambda: is_gone(world, cut))
    node = successor(world, lost, 4)
    start(world, node)
    joined(world, node)
    world.run_until(lambda: cut not in stable(world, table))
    settle(world, table)
    assert world.append(table, rows=2).first == 3
    # when it is back
    world.heal()
    # then it hears that it was replaced, no group counts it, and the rows are what they were
    world.run_until(lambda: lost.here.refused is not None, timeout_ms=120_000)
    assert "was replaced: node 4" in str(lost.here.refused)
    assert load_identity(lost.disk).left  # type: ignore[union-attr]
    assert world.append(table).first == 5
    assert set(world.leading(table).group.members().voters) == set(stable(world, table))
    assert cut not in stable(world, table)


def test_until_the_new_node_has_the_rows_the_lost_one_may_be_needed() -> None:
    # given a new node that has not got the rows yet
    world = TableWorld()
    replicas(world, 3)
    table = world.create(1, log_table("events"))
    world.append(table, rows=3)
    lost = lose(world, 2)
    go_on = hold_back(world, table)
    node = successor(world, lost, 4)
    start(world, node)
    joined(world, node)
    world.run_until(lambda: members(world) == {1, 3, 4})
    # when another one goes down, and the lost one is found
    world[3].crash()
    world.run_until(
        lambda: not any(n.tables.get(table, 0).group.ready for n in world.up if n.number == 1)
    )
    lost.start()
    # then it is a majority with the one that is left, and is told nothing before all rows are there
    assert world.append(table, rows=2).first == 3
    assert lost.here.refused is None
    go_on()
    world.run_until(lambda: stable(world, table) == (1, 3, 4), timeout_ms=120_000)
    world.run_until(lambda: lost.here.refused is not None, timeout_ms=120_000)
    assert "was replaced" in str(lost.here.refused)
    world[3].start()
    assert world.append(table).first == 5


def test_a_partition_that_still_has_the_replaced_node_can_be_reset() -> None:
    # given a new node that has no rows yet, and then another loss: one copy is left
    world = TableWorld()
    replicas(world, 3)
    table = world.create(1, log_table("events"))
    world.append(table, rows=3)
    lost = lose(world, 2)
    go_on = hold_back(world, table)
    node = successor(world, lost, 4)
    start(world, node)
    joined(world, node)
    world.run_until(lambda: members(world) == {1, 3, 4})
    lose(world, 3)
    # when its operator names both, the replaced one by its number
    partition = PartitionId(table, 0)
    operations = world[1].placement.operations
    gone = [operations.member_named(partition, one) for one in ("2", "n3")]
    assert gone == [2, 3]
    world.wait(world[1].placement.resetting.reset(partition, node=1, lost=gone))
    go_on()
    # then it goes on with all rows
    assert world.append(table).first == 3
    with pytest.raises(Rejected, match="there is no node 2 "):
        operations.node_named("2")


def _is_in(world: TableWorld, node: TableNode) -> bool:
    leader = world.leader()
    return leader is not None and node.number in known(leader.metastore).nodes


STEPS: dict[str, Callable[[TableWorld, TableNode, TableId], bool]] = {
    "its directory is prepared": lambda *_: True,
    "it is in": lambda world, node, _: _is_in(world, node),
    "it has noted its cluster": lambda _, node, __: bool(load_identity(node.disk).cluster),  # type: ignore[union-attr]
    "it is ready": lambda _, node, __: node.here.ready.done,
    "it has rooms": lambda _, node, __: node.tables_ is not None,
    "it votes": lambda world, _, __: 2 not in members(world),
    "it has the rows": lambda world, _, table: settled(world, table),
}


IN_TEST = [("it is in", True), ("it has noted its cluster", False), ("it votes", False)]
MORE = [(step, too) for step in STEPS for too in (False, True) if (step, too) not in IN_TEST]


@pytest.mark.parametrize(
    ("step", "leader_too"),
    # (the others are like those)
    [*IN_TEST, *(pytest.param(*one, marks=pytest.mark.release) for one in MORE)],
)
def test_what_a_crash_interrupts_the_same_directory_finishes(step: str, leader_too: bool) -> None:
    world = TableWorld()
    replicas(world, 3)
    table = world.create(1, log_table("events"))
    world.append(table, rows=3)
    lost = lose(world, 2)
    node = successor(world, lost, 4)
    # when the new node has come to this step, and crashes
    start(world, node)
    world.run_until(lambda: STEPS[step](world, node, table), timeout_ms=120_000)
    if leader_too:
        leader = world.wait_leader()
        leader.crash()
        leader.start()
    if node.up:
        node.crash()
    world.run_for(100)
    # then the same directory finishes it
    node.start(join=world[1].address)
    joined(world, node)
    world.run_until(lambda: members(world) == {1, 3, 4}, timeout_ms=120_000)
    world.run_until(lambda: stable(world, table) == (1, 3, 4), timeout_ms=120_000)
    settle(world, table)
    assert world.append(table).first == 3


def test_a_directory_is_for_one_lost_node_alone() -> None:
    # given two directories that were prepared for the same node
    world = TableWorld()
    lost = lose(world, 2)
    first, second = successor(world, lost, 4), successor(world, lost, 5)
    start(world, first)
    joined(world, first)
    # when the second one is started, then it is told that it comes too late
    start(world, second)
    refused = world.wait_error(second.here.ready)
    assert "there is no node n2 with number 2 to replace" in refused.message
    second.crash(killed=True)
    del world.nodes[5]
    # and without an address to join by, it founds no cluster
    alone = successor(world, lost, 7)
    with pytest.raises(ClusterRefused, match="belongs to no cluster yet"):
        alone.start()


def test_a_zone_whose_nodes_were_named_has_the_new_one_among_them() -> None:
    # given a zone on three of four nodes, by name
    world = TableWorld(nodes=4)
    replicas(world, 3)
    world.wait(world[1].placement.operations.choose("default", [2, 3, 4]))
    world.everywhere()
    table = world.create(1, log_table("events"))
    world.run_until(lambda: set(stable(world, table)) == {2, 3, 4}, timeout_ms=120_000)
    settle(world, table)
    # when one of them is lost and replaced
    lost = lose(world, 2)
    assert look(world, 2).zones == ("default",)
    node = successor(world, lost, 5)
    start(world, node)
    joined(world, node)
    world.run_until(lambda: set(stable(world, table)) == {3, 4, 5}, timeout_ms=120_000)
    zone = world[1].catalog.latest.zones
    [baseline] = [world[1].placement.zones.baseline(one)[0] for one in zone]
    assert baseline is not None
    assert baseline.chosen == (3, 4, 5)
