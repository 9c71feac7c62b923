"""Who belongs to the cluster: founding, joining, coming back, leaving, and being there."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from lowmark.errors import Corrupt, Rejected, Unavailable
from lowmark.group import Groups, QuarantinedHere
from lowmark.log import Log
from lowmark.metastore import (
    Cluster,
    ClusterRefused,
    ClusterSettings,
    Entry,
    MetastoreConfig,
    NodeInfo,
    Put,
    Topology,
    identify,
    load_identity,
    missing,
)
from lowmark.metastore.coordinator import JOIN_SERVICE, JoinAsk, JoinReply, Turned, Welcome
from lowmark.metastore.errors import NotInCluster
from lowmark.metastore.identity import MetastoreMissing
from lowmark.metastore.nodes import (
    ATTRIBUTES_MAX,
    NAME_BYTES_MAX,
    check_node,
    decode_topology,
    lease_of,
)
from lowmark.runtime import DiskFull
from lowmark.runtime.sim import SimDisk, WorldStopped, sim_runtime
from metastore.world import QUICK, TINY_LOG, Node, Watcher, World

LEASE_MS = QUICK.lease_ms


def voters(world: World) -> set[int]:
    members = world.wait_leader().metastore.group.members()
    return set() if members.joint else set(members.incoming)


def learners(world: World) -> set[int]:
    return set(world.wait_leader().metastore.group.members().learners)


def wait_members(world: World, *, vote: set[int], follow: set[int]) -> None:
    world.run_until(lambda: (voters(world), learners(world)) == (vote, follow))


def up(world: World) -> set[int]:
    """The nodes in the topology, as all that are up know it; empty while they differ."""
    known = [
        {node.number for node in one.here.topology.nodes} for one in world.nodes.values() if one.up
    ]
    return known[0] if all(one == known[0] for one in known) else set()


def serves(world: World, node: Node, value: bytes = b"v") -> None:
    """The node reads what it wrote."""
    world.wait(node.metastore.put(b"probe", value))
    entry = world.wait(node.metastore.get(b"probe"))
    assert entry is not None
    assert entry.value == value


# -- founding and joining -----------------------------------------------------------------------


def test_the_first_node_founds_a_metastore_of_one_member() -> None:
    # given settings for a cluster
    chosen = ClusterSettings(id="", members=5, schema_sync_delay_ms=250, clock_max_skew_ms=100)
    # when the first node starts
    world = World(nodes=1, settings=chosen)
    here = world[1].here
    # then it is alone, it leads, and all is settled
    assert here.settings == msgspec.structs.replace(chosen, id=here.settings.id)
    assert len(here.settings.id) == 16
    assert (voters(world), learners(world)) == ({1}, set())
    assert here.topology == Topology(version=1, nodes=(world[1].info,))
    assert here.nodes() == [world[1].info]
    # and the logical topology is a value of the metastore
    entry = world.wait(here.metastore.get(b"topology"))
    assert entry is not None
    assert decode_topology(entry.value) == here.topology
    serves(world, world[1])


def test_nodes_that_join_become_members_up_to_the_number_and_the_rest_are_learners() -> None:
    world = World(nodes=1)
    wait_members(world, vote={1}, follow=set())
    for number, vote, follow in (
        (2, {1, 2}, set()),
        (3, {1, 2, 3}, set()),
        (4, {1, 2, 3}, {4}),
        (5, {1, 2, 3}, {4, 5}),
    ):
        # when one more node joins
        node = world.add(number)
        # then it has its place, and reads and writes as all others do
        wait_members(world, vote=vote, follow=follow)
        serves(world, node, b"%d" % number)
        assert node.here.settings == world[1].here.settings
    world.run_until(lambda: up(world) == {1, 2, 3, 4, 5})
    versions = {node.here.topology.version for node in world.nodes.values()}
    assert versions == {5}, "the version grows by one with every change"


def test_the_number_of_members_is_the_clusters_not_the_nodes() -> None:
    # given a cluster that settled on one member, and nodes that are configured for more
    world = World(nodes=3, settings=ClusterSettings(id="", members=1))
    wait_members(world, vote={1}, follow={2, 3})


@pytest.mark.slow
def test_a_node_joins_by_way_of_any_node() -> None:
    world = World()
    world.run_for(1_000)
    for number, seed in ((4, 3), (5, 4)):
        node = world.nodes[number] = world.new_node(number)
        node.start(join=world[seed].address)
        world.run_until(lambda node=node: node.here.ready.done)  # type: ignore[misc]
        serves(world, node)


def test_a_node_that_finds_nobody_waits_until_somebody_is_there() -> None:
    # given a node that asks where nobody is
    world = World(nodes=1)
    world[1].stop()
    late = world.nodes[2] = world.new_node(2)
    late.start(join="n1:1")
    world.run_for(5_000)
    assert not late.here.ready.done
    with pytest.raises(NotInCluster):
        _ = late.here.settings
    # when somebody is
    world[1].start()
    world.run_until(lambda: late.here.ready.done)
    serves(world, late)


@pytest.mark.slow
def test_many_nodes_that_join_at_once_are_all_let_in() -> None:
    world = World(nodes=1)
    for number in range(2, 8):
        node = world.nodes[number] = world.new_node(number)
        node.start(join=world[1].address)
    world.run_until(lambda: up(world) == set(range(1, 8)))
    world.run_until(lambda: len(voters(world)) == 3 and len(learners(world)) == 4)
    assert world[1].here.topology.version == 7


def test_what_a_node_says_of_itself_is_known_to_all() -> None:
    world = World(nodes=1)
    node = world.nodes[2] = world.new_node(2)
    node.rack = "r7"
    node.start(join=world[1].address)
    world.run_until(lambda: up(world) == {1, 2})
    found = world[1].here.topology.find(2)
    assert found == node.info
    assert found is not None
    assert found.all_attributes == {"rack": "r7"}


# -- who is not let in --------------------------------------------------------------------------


def refused(world: World, node: Node, *, join: str = "n1:1") -> ClusterRefused:
    node.start(join=join)
    world.run_until(lambda: node.here.ready.done)
    error = node.here.ready.error
    assert isinstance(error, ClusterRefused)
    return error


class Named(Node):
    """A node with a name of its own choice."""

    name = "n2"

    @property
    def info(self) -> NodeInfo:
        return msgspec.structs.replace(super().info, name=self.name)


def test_a_name_belongs_to_one_node_up_or_down() -> None:
    # given a cluster with a node n2, which is down
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    world[2].crash()
    world.run_for(3 * LEASE_MS)
    # when another node comes under that name
    error = refused(world, Named(world, 9))
    # then it is not let in, and is told whose name it is
    assert "there is a node n2 already" in error.message
    assert "node 2" in error.detail


def test_an_address_belongs_to_one_node_that_is_up() -> None:
    # given a node at an address
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    leader = world.wait_leader()
    other = next(node for node in world.nodes.values() if node is not leader)
    asked = JoinAsk(NodeInfo(number=9, name="n9", address=other.address), "")
    # then another one at the same address is refused
    error = world.wait_error(leader.here._coordinator.let_in(asked))
    assert isinstance(error, ClusterRefused)
    assert f"belongs to node n{other.number}" in error.message
    # but when that one is taken for gone, its address is free
    other.crash()
    world.run_until(lambda: leader.here.topology.find(other.number) is None)
    assert isinstance(world.wait(leader.here._coordinator.let_in(asked)), Welcome)


def test_a_new_machine_at_the_address_of_a_lost_one_joins_as_a_new_node() -> None:
    # given a node that was lost with its disk, and is taken for gone
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    leader = world.wait_leader()
    lost = next(node for node in world.nodes.values() if node.number not in {1, leader.number})
    world.wait(leader.metastore.put(b"key", b"value"))
    lost.crash()
    world.run_until(lambda: leader.here.topology.find(lost.number) is None)
    # when another one comes up at its address
    new = world.nodes[9] = world.new_node(9)
    new.address = lost.address
    new.start(join=world[1].address)
    world.run_until(lambda: new.here.ready.done)
    # then it is in, follows, and answers; the lost one keeps its place until it leaves
    wait_members(world, vote={1, 2, 3}, follow={9})
    entry = world.wait(new.metastore.get(b"key"))
    assert entry is not None
    assert entry.value == b"value"
    # and when the new one is gone and the lost one is found, it is the one that is there
    new.crash()
    world.run_until(lambda: world.wait_leader().here.topology.find(9) is None)
    lost.start()
    world.run_until(lambda: world.wait_leader().here.topology.find(lost.number) is not None)
    world.wait(lost.metastore.put(b"key", b"again"))


@pytest.mark.slow
@pytest.mark.parametrize("days", [1, -1])
def test_a_clock_that_jumps_makes_nobody_gone_and_keeps_nobody(days: int) -> None:
    # given a cluster
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    leader = world.wait_leader()
    version = leader.here.topology.version
    # when the clock of its leader jumps, and is put right again
    leader.clock.skew_ms += days * 86_400_000
    world.run_for(4 * QUICK.lease_ms)
    leader.clock.skew_ms -= days * 86_400_000
    world.run_for(4 * QUICK.lease_ms)
    # then nobody was taken for gone
    assert world.wait_leader().here.topology.version == version
    # and who is gone is noticed, whatever time it is in the log
    gone = next(node for node in world.nodes.values() if node is not world.wait_leader())
    gone.crash()
    began = world.loop.elapsed_us()
    world.run_until(lambda: world.wait_leader().here.topology.find(gone.number) is None)
    assert (world.loop.elapsed_us() - began) / 1_000 < 3 * QUICK.lease_ms
    # and what it held is not held any more
    state = world.wait_leader().metastore.state
    world.run_until(lambda: f"node.{gone.number}" not in state.leases)


@pytest.mark.slow
def test_a_full_disk_that_takes_no_address_ends_no_node() -> None:
    # given a node whose disk takes no small files
    world = World(nodes=2)
    wait_members(world, vote={1, 2}, follow=set())
    disk = world[2].disk
    plain = type(disk).open
    full = True

    def refuses(path: str, mode: str) -> object:
        if full and path.startswith("node") and mode == "create":
            raise DiskFull(path)
        return plain(disk, path, mode)  # type: ignore[arg-type]

    disk.open = refuses  # type: ignore[method-assign,assignment]
    # when another node joins, whose address is to be noted
    world.add(3)
    wait_members(world, vote={1, 2, 3}, follow=set())
    world.run_for(2 * QUICK.lease_ms)
    assert load_identity(disk).peers.keys() == {"1"}  # type: ignore[union-attr]
    # then it goes on, and notes it as soon as there is room
    full = False
    world.run_until(lambda: load_identity(disk).peers.keys() == {"1", "3"})  # type: ignore[union-attr]


def test_a_node_of_another_cluster_is_not_let_in_and_does_no_harm() -> None:
    # given two clusters
    one, two = World(seed=1, nodes=2), World(seed=2, nodes=2)
    for world in (one, two):
        wait_members(world, vote={1, 2}, follow=set())
    assert one[1].here.settings.id != two[1].here.settings.id
    # when a node of the second comes up in the world of the first
    stranger = one.nodes[7] = one.new_node(7)
    two[2].stop()
    stranger.disk, stranger.number = two[2].disk, 2
    one[2].stop()
    stranger.start(join="n1:1")
    one.run_until(lambda: stranger.here.refused is not None)
    # then it is told so, and is what it was
    assert stranger.here.refused is not None
    assert "belongs to another cluster" in stranger.here.refused.message
    identity = load_identity(stranger.disk)
    assert identity is not None
    assert identity.cluster == two[1].here.settings.id
    # and the cluster has its own node back, whenever that comes
    stranger.crash()
    one[2].start()
    wait_members(one, vote={1, 2}, follow=set())
    serves(one, one[2])


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "-a"},
        {"name": "n" * (NAME_BYTES_MAX + 1)},
        {"number": 0},
        {"number": 1 << 63},
        {"address": ""},
        {"rack": "r" * 1_025},
        {"endpoint": "d" * 1_025},
        {"attributes": {"k": "v" * 1_024}},
        {"attributes": {f"k{n}": "" for n in range(ATTRIBUTES_MAX + 1)}},
    ],
)
def test_what_can_not_be_a_node_is_refused(changes: dict[str, object]) -> None:
    good = NodeInfo(
        number=2,
        name="n" * NAME_BYTES_MAX,
        address="n2:1",
        rack="r" * 1_020,
        attributes={f"k{n}": "" for n in range(ATTRIBUTES_MAX)},
    )
    check_node(good)
    with pytest.raises(Rejected):
        check_node(msgspec.structs.replace(good, **changes))


def ask_to_join(world: World, question: bytes) -> JoinReply:
    """Ask node 1 as node 2 does, with any bytes."""
    groups = world[2].groups
    assert groups is not None
    answer = world.wait(groups.calls.ask_at("n1:1", JOIN_SERVICE, question))
    return msgspec.msgpack.decode(answer, type=JoinReply)  # type: ignore[no-any-return]


def test_a_request_to_join_that_makes_no_sense_is_turned_away() -> None:
    world = World(nodes=2)
    world.run_for(1_000)
    good = world[2].info
    for question in (
        b"",
        b"nonsense",
        msgspec.msgpack.encode([1, 2, 3]),
        msgspec.msgpack.encode(JoinAsk(msgspec.structs.replace(good, number=3), "")),
        msgspec.msgpack.encode(JoinAsk(msgspec.structs.replace(good, name="!"), "")),
    ):
        assert isinstance(ask_to_join(world, question), Turned)
    assert up(world) == {1, 2}


def test_the_answer_of_somebody_who_is_no_node_is_not_believed() -> None:
    # given somebody who answers nonsense
    world = World(nodes=1)
    world[1].stop()
    runtime = sim_runtime(5, disk=SimDisk(), loop=world.loop, network=world.network)
    liar = Groups(runtime, Log.open(runtime, world.log_config), node=9, address="n9:1")
    liar.calls.serve(JOIN_SERVICE, lambda *args: args[3](b"nonsense"), strangers=True)
    node = world.nodes[2] = world.new_node(2)
    node.start(join="n9:1")
    world.run_for(2_000)
    # then the node asks on
    assert not node.here.ready.done


# -- who a node is ------------------------------------------------------------------------------


def test_a_data_directory_has_one_name_for_ever() -> None:
    disk = SimDisk()
    drawn = identify(disk, draw=lambda top: top - 1)
    assert (drawn.number, drawn.name) == ((1 << 53) - 1, f"node-{(1 << 53) - 1:014x}")
    assert identify(disk, draw=lambda _: 7) == drawn == load_identity(disk)
    with pytest.raises(Rejected):
        identify(disk, draw=lambda _: 7, name="other")


def test_a_data_directory_keeps_rack_and_attributes_until_others_are_given() -> None:
    disk = SimDisk()

    def started(**given: Any) -> tuple[str, dict[str, str]]:
        found = identify(disk, draw=lambda _: 7, **given)
        assert found == load_identity(disk)
        return found.rack, found.attributes

    assert started() == ("", {})
    assert started(rack="r1", attributes={"disk": "ssd"}) == ("r1", {"disk": "ssd"})
    assert started() == ("r1", {"disk": "ssd"})
    assert started(rack="r2") == ("r2", {"disk": "ssd"})
    assert started(attributes={"cpu": "fast"}) == ("r2", {"cpu": "fast"})
    # what a node can't have is not kept
    with pytest.raises(Rejected, match="too long"):
        started(rack="r" * 1_100)
    assert started() == ("r2", {"cpu": "fast"})
    assert started(rack="", attributes={}) == ("", {})
    assert started() == ("", {})


def test_a_node_is_who_its_data_directory_says() -> None:
    runtime = sim_runtime(1, disk=SimDisk())
    log = Log.open(runtime)
    groups = Groups(runtime, log, node=3, address="n3:1")
    node = NodeInfo(number=3, name="n3", address="n3:1")
    with pytest.raises(Rejected, match="identified before"):
        Cluster(runtime, log, groups, node=node)


@pytest.mark.parametrize("members", [0, 2, 4, 9])
def test_a_number_of_members_without_a_sound_majority_is_refused(members: int) -> None:
    with pytest.raises(Rejected):
        MetastoreConfig(members=members)


# -- crashes ------------------------------------------------------------------------------------


def start_until_the_disk_stops(world: World, node: Node, calls: int, *, join: str = "") -> bool:
    """Start a node that loses its power at a disk call; False if it had more calls than that."""
    node.disk.stop_at_call = node.disk.calls + calls
    try:
        node.start(join=join)
        world.run_until(
            lambda: node.clock.crashed or (node.up and node.here.ready.done), timeout_ms=5_000
        )
        stopped = node.clock.crashed
        world.run_for(0 if stopped else 500)
        stopped = stopped or node.clock.crashed
    except WorldStopped:
        stopped = True
    node.disk.stop_at_call = None
    if not node.clock.crashed:
        node.clock.crash()
    node.disk = node.disk.crashed(Random(f"{calls} {join}"))
    node._down()
    return stopped


@pytest.mark.slow
def test_a_founder_that_crashes_at_any_disk_call_founds_its_cluster_when_it_comes_back() -> None:
    calls = 1
    while True:
        world = World(seed=calls, nodes=0)
        node = world.nodes[1] = world.new_node(1)
        stopped = start_until_the_disk_stops(world, node, calls)
        before = load_identity(node.disk)
        # when it comes back
        node.start()
        world.run_until(lambda node=node: node.here.ready.done)  # type: ignore[misc]
        # then there is one cluster, with the id that was written down, if any was
        if before is not None and before.cluster:
            assert node.here.settings.id == before.cluster
        assert node.here.topology == Topology(version=1, nodes=(node.info,))
        serves(world, node)
        history = world.wait(node.metastore.history(b"cluster"))
        assert len(history) == 1
        # and the next one comes back to it, too
        node.crash()
        node.start()
        world.run_until(lambda node=node: node.here.ready.done)  # type: ignore[misc]
        assert node.here.nodes() == [node.info]
        if not stopped:
            break
        calls += 1
    assert calls > 20


@pytest.mark.slow
def test_a_node_that_crashes_at_any_disk_call_of_joining_is_in_when_it_comes_back() -> None:
    calls = 1
    while True:
        world = World(seed=calls, nodes=1)
        node = world.nodes[2] = world.new_node(2)
        stopped = start_until_the_disk_stops(world, node, calls, join="n1:1")
        if calls % 3 == 0:
            world[1].crash()
            world[1].start()
        # when it comes back
        node.start(join="n1:1")
        world.run_until(lambda node=node: node.here.ready.done)  # type: ignore[misc]
        # then it is in, once, and has its vote
        wait_members(world, vote={1, 2}, follow=set())
        serves(world, node)
        assert [one.number for one in node.here.nodes()] == [1, 2]
        if not stopped:
            break
        calls += 1
    assert calls > 20


@pytest.mark.slow
def test_a_founder_does_not_found_its_cluster_once_more() -> None:
    # given a founder that has done its work
    world = World()
    world.run_for(1_000)
    identity = load_identity(world[1].disk)
    assert identity is not None
    assert identity.founding is None
    # when it loses its copy, but not who it is
    world[1].stop()
    for path in reversed(world[1].disk.tree()):
        if path.startswith(("groups/metastore/", "wal/")) and not path.endswith("/"):
            world[1].disk.unlink(path)
    for path in ("groups/metastore/snapshots", "groups/metastore"):
        world[1].disk.remove_dir(path)
    # then it makes no new copy by itself: the folder may only be away for a while
    with pytest.raises(MetastoreMissing):
        world[1].start()
    # when its operator gives the copy up
    world[1].stop()
    for path in world[1].disk.tree():
        if path.startswith("roster/metastore@"):
            world[1].disk.unlink(path)
    world[1].start()
    world.run_for(3_000)
    # then there is no second cluster: it follows the one there is
    assert not world[1].metastore.coordinates
    others = world.wait_leader()
    assert others.number != 1
    serves(world, others)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [True, False])
def test_all_nodes_come_back_at_once(killed: bool) -> None:
    # given a cluster of voters and learners
    world = World(nodes=5)
    wait_members(world, vote={1, 2, 3}, follow={4, 5})
    serves(world, world[5], b"before")
    # when all lose their power, for longer than their leases
    for node in world.nodes.values():
        node.crash(killed=killed)
    world.run_for(5 * LEASE_MS)
    for node in world.nodes.values():
        node.start()
    # then all are there again, with what they had, and nobody was taken for gone
    world.wait_leader()
    world.run_for(3 * LEASE_MS)
    assert up(world) == {1, 2, 3, 4, 5}
    assert world[1].here.topology.version == 5
    entry = world.wait(world[4].metastore.get(b"probe"))
    assert isinstance(entry, Entry)
    assert entry.value == b"before"
    wait_members(world, vote={1, 2, 3}, follow={4, 5})


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_node_that_moves_to_another_address_is_found_there(number: int) -> None:
    # given a cluster with voters and a learner
    world = World(nodes=4)
    wait_members(world, vote={1, 2, 3}, follow={4})
    # when one of them comes back somewhere else
    node = world[number]
    node.crash()
    node.address = f"n{number}:2"
    node.start()
    # then everybody knows, and it works as before
    world.run_until(
        lambda: all(
            (found := one.here.topology.find(number)) is not None and found.address == node.address
            for one in world.nodes.values()
        )
    )
    serves(world, node)
    for other in world.nodes.values():
        saved = load_identity(other.disk)
        assert saved is not None
        if other is not node:
            assert saved.peers[str(number)] == node.address


@pytest.mark.slow
def test_nodes_that_all_move_find_each_other_by_an_address_that_they_are_given() -> None:
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    for node in world.nodes.values():
        node.crash()
        node.address = f"n{node.number}:2"
    # when each is told where one of the others is
    for node in world.nodes.values():
        node.start(join="n2:2" if node.number == 1 else "n1:2")
    # then they elect a leader, who writes down where all of them are
    infos = tuple(node.info for node in world.nodes.values())
    world.run_until(lambda: all(node.here.topology.nodes == infos for node in world.nodes.values()))
    serves(world, world[3])


@pytest.mark.slow
@pytest.mark.parametrize("place", range(4))
def test_a_node_whose_copy_is_damaged_starts_and_says_so_by_name(place: int) -> None:
    # given a node whose copy has a damaged segment, perhaps with what it knows of the cluster
    world = World(log_config=TINY_LOG)
    wait_members(world, vote={1, 2, 3}, follow=set())
    damaged = world[3]
    for number in range(400):
        world.wait(world[1].metastore.put(b"t.%d" % (number % 7), bytes(100)))
        if number % 100 == 99:
            assert damaged.log is not None
            damaged.log.roll()
        if number == 200:
            damaged.metastore.group.snapshot()
    world.run_until(lambda: damaged.log is not None and damaged.log.idle)
    damaged.stop()
    paths = [p for p in damaged.disk.tree() if p.startswith("groups/metastore/")]
    segments = sorted(path for path in paths if path.endswith(".segment"))
    assert len(segments) > 3
    damaged.disk.flip_bit(segments[place % len(segments)], 8 * 200)
    for _ in range(2):
        # when it starts, also when it knows of the damage already
        damaged.start()
        world.run_for(3_000)
        # then it is up, and whatever it can't do has a name
        wrote = damaged.metastore.put(b"through", b"it")
        asked = damaged.metastore.get(b"t.3")
        world.run_until(lambda w=wrote, a=asked: w.done and a.done)  # type: ignore[misc]
        assert wrote.error is None or isinstance(wrote.error, Unavailable)
        assert asked.error is None or isinstance(asked.error, QuarantinedHere | Corrupt)
        if damaged.metastore.group.stopped is not None:
            watcher = Watcher()
            damaged.metastore.watch(prefix=b"t.", on_event=watcher.on_event, on_end=watcher.on_end)
        damaged.crash(killed=True)
    serves(world, world[1])


@pytest.mark.parametrize("seed", range(1, 7))
def test_nodes_that_join_a_founder_which_has_moved_do_not_answer_it_where_it_was(seed: int) -> None:
    # given a founder that was alone, as an embedded one is, and is now at another address
    world = World(seed, nodes=1, metastore_config=MetastoreConfig(lease_ms=60_000))
    world[1].metastore.group.snapshot()
    world.run_for(1_000)
    world[1].stop()
    world[1].address = "n1:2"
    world[1].start()
    # when two nodes join it, right away
    for number in (2, 3):
        world.nodes[number] = world.new_node(number)
        world[number].start(join="n1:2")
    # then they are up to date long before a lease is over
    world.run_until(
        lambda: all(
            node.here.ready.done
            and len(node.metastore.group.members().voters) == 3
            and node.metastore.state.latest == world[1].metastore.state.latest
            for node in world.nodes.values()
        ),
        timeout_ms=10_000,
    )
    # and all know where all are
    for node in world.nodes.values():
        assert {one.address for one in node.here.nodes()} == {"n1:2", "n2:1", "n3:1"}


def test_a_copy_of_a_data_directory_is_not_let_in_beside_its_original() -> None:
    # given a node that is up, and a copy of its directory from before it joined
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    twin = world.new_node(2)
    twin.address = "n2:9"
    error = refused(world, twin)
    assert "belongs to node n2" in error.message
    assert world[1].here.topology.find(2) == world[2].info


# -- leaving ------------------------------------------------------------------------------------


@pytest.mark.parametrize("leads", [True, False])
def test_one_of_two_leaves_and_the_other_goes_on_alone(leads: bool) -> None:
    # given two voters: a change needs both of them
    world = World(nodes=2)
    wait_members(world, vote={1, 2}, follow=set())
    leader = world.wait_leader()
    leaver = leader if leads else world[3 - leader.number]
    other = world[3 - leaver.number]
    # when one leaves, and is switched off as soon as it may be
    world.wait(leaver.here.leave())
    leaver.stop()
    refused = other.here._groups.transport.refused
    refused[leaver.info.address] = "its certificate was revoked"
    # then the other is a majority by itself
    wait_members(world, vote={other.number}, follow=set())
    serves(world, other)
    assert {node.number for node in other.here.topology.nodes} == {other.number}
    # and nothing is said any more of why the one that left was refused
    world.run_until(lambda: not refused)
    # and the one that left does not come back
    with pytest.raises(ClusterRefused, match="has left"):
        leaver.start()


@pytest.mark.parametrize("after_ms", [0, 2, 10, 20, 40, 400])
def test_leaving_has_an_answer_whenever_the_node_is_closed(after_ms: int) -> None:
    # given a node that leaves, and hears no answers from the others
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    leader = world.wait_leader()
    leaver = next(world[n] for n in (1, 2, 3) if n != leader.number)
    leaving = leaver.here.leave()
    world.loop.run_for(after_ms)
    world.isolate(leaver.number)
    world.loop.run_for(after_ms)
    # when it is closed
    leaver.here.close()
    # then its operator is not left waiting
    world.run_until(lambda: leaving.done)


def test_the_last_node_can_not_leave() -> None:
    world = World(nodes=1)
    error = world.wait_error(world[1].here.leave())
    assert isinstance(error, ClusterRefused)
    serves(world, world[1])


def test_of_two_nodes_that_leave_at_once_one_stays() -> None:
    world = World(nodes=2)
    wait_members(world, vote={1, 2}, follow=set())
    both = [world[1].here.leave(), world[2].here.leave()]
    world.run_until(lambda: all(future.done for future in both))
    errors = [future.error for future in both]
    assert [type(error) for error in errors].count(type(None)) == 1
    [stays] = [world[n] for n, error in enumerate(errors, start=1) if error is not None]
    wait_members(world, vote={stays.number}, follow=set())
    serves(world, stays)


@pytest.mark.slow
@pytest.mark.parametrize("leads", [True, False])
def test_a_voter_that_leaves_is_replaced_by_a_learner_that_is_up(leads: bool) -> None:
    # given learners of which the first is down
    world = World(nodes=5)
    wait_members(world, vote={1, 2, 3}, follow={4, 5})
    world[4].crash()
    world.run_until(lambda: world.wait_leader().here.topology.find(4) is None)
    leader = world.wait_leader()
    leaver = leader if leads else next(world[n] for n in (1, 2, 3) if n != leader.number)
    # when a voter leaves
    world.wait(leaver.here.leave())
    leaver.stop()
    # then the one that is up takes its place
    wait_members(world, vote={1, 2, 3, 5} - {leaver.number}, follow={4})
    serves(world, world[5])
    # and a node may come under its name, as another node
    again = Named(world, 9)
    again.name = f"n{leaver.number}"
    again.start(join=world[5].address)
    world.run_until(lambda: again.here.ready.done)
    assert again.here.ready.error is None


def test_a_learner_that_leaves_changes_no_vote() -> None:
    world = World(nodes=4)
    wait_members(world, vote={1, 2, 3}, follow={4})
    world.wait(world[4].here.leave())
    wait_members(world, vote={1, 2, 3}, follow=set())
    assert "node.4" not in {one.name for one in world[1].metastore.standing().leases}


@pytest.mark.slow
def test_a_node_can_not_leave_while_the_others_have_no_majority_without_it() -> None:
    # given three voters of which one is down
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    world[3].crash()
    world.run_until(lambda: world[1].here.topology.find(3) is None)
    # then no other may leave: the two that were left would not agree on anything
    error = world.wait_error(world[2].here.leave())
    assert isinstance(error, ClusterRefused)
    assert "no majority" in error.message
    serves(world, world[2])
    # until it is back
    world[3].start()
    world.run_until(lambda: up(world) == {1, 2, 3})
    world.wait(world[2].here.leave())


@pytest.mark.slow
def test_a_node_that_crashes_while_it_leaves_has_left_or_has_not() -> None:
    calls = 1
    while leaves_until_the_disk_stops(calls):
        calls += 1
    assert calls > 3


def leaves_until_the_disk_stops(calls: int) -> bool:
    """Have a voter leave that loses its power at a disk call; False if it had no such call."""
    world = World(seed=calls)
    wait_members(world, vote={1, 2, 3}, follow=set())
    node = world[3]
    node.disk.stop_at_call = node.disk.calls + calls
    leaving = node.here.leave()
    world.run_until(lambda: leaving.done or node.clock.crashed)
    stopped = node.clock.crashed
    node.crash()
    node.disk.stop_at_call = None
    # when it comes back
    try:
        node.start()
    except ClusterRefused:
        pass
    else:
        assert stopped, "it had left"
        world.run_for(4 * LEASE_MS)
    # then it is in, or it knows that it is not; and the others agree
    identity = load_identity(node.disk)
    assert identity is not None
    if identity.left:
        wait_members(world, vote={1, 2}, follow=set())
    else:
        wait_members(world, vote={1, 2, 3}, follow=set())
        assert world[1].here.topology.find(3) is not None
    serves(world, world[1])
    return stopped


# -- being there --------------------------------------------------------------------------------


def test_a_node_whose_lease_runs_out_leaves_the_topology_and_comes_back() -> None:
    # given a node that is cut off
    world = World(nodes=4)
    wait_members(world, vote={1, 2, 3}, follow={4})
    world.run_until(lambda: up(world) == {1, 2, 3, 4})
    world.isolate(4)
    began = world.loop.elapsed_us()
    # then it is taken for gone after its lease, and not before
    leader = world.wait_leader()
    world.run_until(lambda: leader.here.topology.find(4) is None)
    took_ms = (world.loop.elapsed_us() - began) / 1_000
    assert LEASE_MS * 2 / 3 <= took_ms <= 3 * LEASE_MS
    # but it still belongs to the cluster, and keeps its place
    assert 4 in {node.number for node in leader.here.nodes()}
    assert learners(world) == {4}
    # and when it is back, everybody sees that
    world.heal()
    world.run_until(lambda: up(world) == {1, 2, 3, 4})
    assert leader.here.topology.version == 6


@pytest.mark.slow
def test_nobody_is_taken_for_gone_because_of_another_leader() -> None:
    # given a cluster whose leader changes again and again
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    before = world[1].here.topology.version
    for _ in range(6):
        leader = world.wait_leader()
        leader.metastore.group.transfer(leader.number % 3 + 1)
        world.run_for(400)
    # and that is without one for longer than any lease
    leader = world.wait_leader()
    for node in world.nodes.values():
        world.isolate(node.number)
        world.network.cut(
            [node.address], [o.address for o in world.nodes.values() if o is not node]
        )
    world.run_for(3 * LEASE_MS)
    world.heal()
    world.wait_leader()
    world.run_for(3 * LEASE_MS)
    # then all are where they were
    assert up(world) == {1, 2, 3}
    assert world[1].here.topology.version == before


@pytest.mark.slow
def test_a_new_leader_gives_everybody_the_time_of_a_lease() -> None:
    # given nodes that were all down for longer than their leases
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    for node in world.nodes.values():
        node.crash()
    world.run_for(3 * LEASE_MS)
    # when two of them elect a leader, and the third one is late
    world[1].start()
    world[2].start()
    leader = world.wait_leader()
    world.run_for(LEASE_MS * 0.9)
    # then it is not taken for gone yet, and if it comes now, it never is
    assert leader.here.topology.find(3) is not None
    world[3].start()
    world.run_for(3 * LEASE_MS)
    assert (up(world), leader.here.topology.version) == ({1, 2, 3}, 3)


def test_a_node_that_renews_its_lease_in_the_last_moment_is_not_taken_for_gone() -> None:
    # given a leader that believes a node to be gone
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    world.run_until(lambda: up(world) == {1, 2, 3})
    leader = world.wait_leader()
    other = next(node for node in world.nodes.values() if node is not leader)
    coordinator = leader.here._coordinator

    def renewed() -> bool:
        lease = coordinator._metastore.state.leases.get(lease_of(other.number))
        seen, _ = coordinator._seen.get(other.number, (0, 0))
        return lease is not None and lease.expires_at != seen

    world.run_until(renewed)
    now = coordinator.look()
    assert now is not None
    # when it writes that down, and the node has renewed its lease since the leader looked
    coordinator._drop(other.info, now)
    world.run_for(500)
    # then the write changes nothing: the node was never out, not even for a moment
    assert leader.here.topology == now.topology


def test_a_leader_that_crashes_is_taken_for_gone_by_the_next_one() -> None:
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    first = world.wait_leader()
    first.crash()
    second = world.wait_leader(other_than=first.number)
    world.run_until(lambda: second.here.topology.find(first.number) is None)
    # it keeps its vote: it may come back any moment
    assert voters(world) == {1, 2, 3}
    first.start()
    world.run_until(lambda: up(world) == {1, 2, 3})


def test_a_node_that_says_goodbye_is_out_of_the_topology_at_once() -> None:
    world = World()
    wait_members(world, vote={1, 2, 3}, follow=set())
    world.run_for(2 * LEASE_MS)
    other = next(node for node in world.nodes.values() if node is not world.wait_leader())
    began = world.loop.elapsed_us()
    world.wait(other.here.close(leave_topology=True))
    world.run_until(lambda: world.wait_leader().here.topology.find(other.number) is None)
    assert world.loop.elapsed_us() - began < LEASE_MS * 1_000


def test_who_follows_the_topology_is_told_every_change_once() -> None:
    world = World(nodes=2)
    world.run_until(lambda: up(world) == {1, 2})
    told: list[Topology] = []
    world[2].here.on_topology(told.append)
    world.add(3)
    world.run_until(lambda: up(world) == {1, 2, 3})
    world[3].crash()
    world.run_until(lambda: up(world) == {1, 2})
    assert [one.version for one in told] == [2, 3, 4]
    assert [[node.number for node in one.nodes] for one in told] == [[1, 2], [1, 2, 3], [1, 2]]


def test_the_metastore_has_no_say_in_who_a_stranger_is() -> None:
    # given a value under a node's key that is not the cluster's own doing
    world = World(nodes=1, metastore_config=replace(QUICK, members=1))
    assert world.wait(
        world[1].metastore.invoke_if(missing(b"nodes.of.mine"), [Put(b"nodes.of.mine", b"x")])
    )
    # then it is nobody's node
    assert [node.number for node in world[1].here.nodes()] == [1]
