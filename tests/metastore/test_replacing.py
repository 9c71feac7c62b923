"""The directory of a node that takes the place of a lost one: prepared, interrupted, refused."""

from __future__ import annotations

from random import Random

import pytest

from lowmark.group import Future
from lowmark.metastore import ClusterRefused, NodeInfo, identify, load_identity
from lowmark.metastore.replacing import Taken, prepare
from lowmark.runtime.sim import SimDisk
from lowmark.runtime.sim.disk import WorldStopped
from metastore.test_cluster import start_until_the_disk_stops
from metastore.world import World

LOST = NodeInfo(
    number=7, name="n7", address="n7:1", endpoint="n7:2", rack="r1", attributes={"disk": "ssd"}
)


def test_a_prepared_directory_has_what_the_lost_node_had_and_a_number_of_its_own() -> None:
    disk = SimDisk()
    prepare(disk, LOST, draw=lambda _: 41)
    # when its node is started, with no word of rack or attributes
    found = identify(disk, draw=lambda _: 99)
    assert (found.number, found.name, found.replaces) == (42, "n7", 7)
    assert (found.rack, found.attributes) == ("r1", {"disk": "ssd"})
    # and prepared again, it is the same
    assert prepare(disk, LOST, draw=lambda _: 99) == found


def test_a_directory_of_another_node_is_not_prepared() -> None:
    disk = SimDisk()
    identify(disk, draw=lambda _: 6, name="n7")
    before = load_identity(disk)
    with pytest.raises(ClusterRefused, match="the directory of node n7 itself"):
        prepare(disk, LOST, draw=lambda _: 41)
    other = NodeInfo(number=8, name="n8", address="n8:1")
    with pytest.raises(ClusterRefused, match="belongs to another node, n7"):
        prepare(disk, other, draw=lambda _: 41)
    assert load_identity(disk) == before


def test_a_directory_whose_preparation_was_interrupted_is_prepared_again() -> None:
    whole = SimDisk()
    prepare(whole, LOST, draw=lambda _: 41)
    outcomes = set()
    for at in range(1, whole.calls + 1):
        disk = SimDisk()
        disk.stop_at_call = at
        with pytest.raises(WorldStopped):
            prepare(disk, LOST, draw=lambda _: 41)
        for image in disk.crash_images(Random(at)):
            there = load_identity(image.disk)
            outcomes.add(there is not None)
            again = prepare(image.disk, LOST, draw=lambda _: 51)
            assert again.number == (52 if there is None else 42)
            assert load_identity(image.disk) == again
    assert outcomes == {True, False}


class Permits:
    """Nothing stands above the metastore here."""

    def taking(self, lost: NodeInfo, node: NodeInfo) -> Future[Taken]:
        return Future.of(Taken())

    def still_has(self, number: int) -> bool:
        return False


@pytest.mark.slow
def test_a_new_node_that_crashes_at_one_disk_call_after_the_other_takes_the_place() -> None:
    # given three nodes, one of which is lost
    world = World()
    lost = world[2]
    lost.crash(killed=True)
    del world.nodes[2]
    for node in world.nodes.values():
        node.here.judge_replacing(Permits)
    world.run_until(lambda: all(n.here.topology.find(2) is None for n in world.nodes.values()))
    # when the new one crashes at its first disk call, then at its second one, and so on
    node = world.new_node(4)
    node.replaces = lost.info
    calls = 1
    while start_until_the_disk_stops(world, node, calls, join=world[1].address):
        calls += 1
    assert calls > 10
    # then it is in, alone in that place
    world.nodes[4] = node
    node.start()
    world.run_until(lambda: node.here.ready.done and world.members_settled())
    assert {one.number: one.name for one in node.here.nodes()} == {1: "n1", 3: "n3", 4: "n2"}
