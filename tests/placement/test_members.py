"""The metastore's own members move by the same keys and steps as a partition's nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowmark.metastore import NodeInfo
from lowmark.placement.assignments import METASTORE, Assignments, Keys
from lowmark.placement.members import members_target
from lowmark.placement.writes import local_keys
from metastore.world import FAST, World


def nodes(*numbers: int) -> dict[int, NodeInfo]:
    return {n: NodeInfo(number=n, name=f"n{n}", address=f"n{n}:1") for n in numbers}


@pytest.mark.parametrize(
    ("heading", "belong", "up", "wanted", "voters", "learners"),
    [
        ((1,), (1,), {1}, 3, (1,), ()),
        ((1,), (1, 2, 3, 4), {1, 2, 3, 4}, 3, (1, 2, 3), (4,)),
        ((1,), (1, 9, 5), {1, 9, 5}, 3, (1, 5, 9), ()),
        ((1, 2, 3), (1, 2, 3, 4), {1, 4}, 3, (1, 2, 3), (4,)),  # down, but it may be back
        ((1, 2, 3), (1, 2, 4), {1, 2, 4}, 3, (1, 2, 4), ()),  # one has left
        ((1, 2, 3), (1, 2, 4), {1, 2}, 3, (1, 2), (4,)),  # the next one is down
        ((4, 5, 6), (1, 2, 4, 5, 6), {1, 2, 4, 5, 6}, 3, (4, 5, 6), (1, 2)),
    ],
)
def test_voters_stay_and_others_take_the_places_that_are_free(
    heading: tuple[int, ...],
    belong: tuple[int, ...],
    up: set[int],
    wanted: int,
    voters: tuple[int, ...],
    learners: tuple[int, ...],
) -> None:
    now = Assignments(heading, 0)
    target = members_target(now, now, nodes(*belong), up, wanted)
    assert (target.nodes, target.learners) == (voters, learners)


def test_a_newcomer_that_is_down_keeps_no_other_from_its_place() -> None:
    # given a node that shall vote, and died before it did
    stable, heading = Assignments((1, 2, 3), 0, (4, 5)), Assignments((1, 2, 4), 0, (5,))
    target = members_target(stable, heading, nodes(1, 2, 4, 5), {1, 2, 5}, 3)
    # then another one takes its place, and it follows when it is back
    assert (target.nodes, target.learners) == ((1, 2, 5), (4,))
    # but while it is up, it stays
    target = members_target(stable, heading, nodes(1, 2, 4, 5), {1, 2, 4, 5}, 3)
    assert (target.nodes, target.learners) == ((1, 2, 4), (5,))


def keys(world: World) -> Keys:
    return local_keys(world.wait_leader().metastore, METASTORE)


def test_who_joins_and_leaves_stands_in_the_keys_and_the_group_follows() -> None:
    # given a cluster of one
    world = World(nodes=1)
    assert keys(world).stable == Assignments((1,), 0)
    # when others come
    for number in (2, 3, 4):
        world.add(number)
    # then three vote, one follows, and nothing else is under way
    world.run_until(world.members_settled)
    assert keys(world).stable == Assignments((1, 2, 3), 0, (4,))
    group = world.wait_leader().metastore.group
    assert group.members().voters == {1, 2, 3}
    assert group.members().learners == {4}
    assert keys(world).lock is None
    # and when a voter leaves, the one that followed takes its place
    world.wait(world[2].here.leave())
    world[2].stop()
    del world.nodes[2]
    world.run_until(lambda: keys(world).stable == Assignments((1, 3, 4), 0))
    assert world.wait_leader().metastore.group.members().voters == {1, 3, 4}


@pytest.mark.slow
def test_writes_go_on_in_every_stage() -> None:
    world = World(nodes=3)
    for number in (4, 5):
        node = world.nodes[number] = world.new_node(number)
        node.start(join=world.wait_leader().address)
    # while members change, every write is answered soon
    for written in range(100):
        world.wait(world.wait_leader().metastore.put(b"t.k", b"%d" % written), timeout_ms=1_000)
        world.run_for(5)
    world.run_until(world.members_settled)
    assert keys(world).stable == Assignments((1, 2, 3), 0, (4, 5))


@pytest.mark.slow
def test_a_newcomer_that_dies_is_named_until_it_is_back() -> None:
    # given a node that dies as soon as it is let in
    world = World(nodes=2, config=replace(FAST, catch_up_stall_ms=400))
    node = world.nodes[3] = world.new_node(3)
    node.start(join=world.wait_leader().address)
    world.run_until(lambda: keys(world).pending is not None)
    node.crash()
    # then the leader says why its members could not be changed, keeps pending, and serves
    leader = world.wait_leader()
    assert leader.members is not None
    world.run_until(lambda: leader.members.problem != "")  # type: ignore[union-attr]
    assert "members could not be changed by node n3" in leader.members.problem
    world.wait(leader.metastore.put(b"t.k", b"v"))
    # and when it is known to be down, it only follows
    world.run_until(lambda: keys(world).heading == Assignments((1, 2), 0, (3,)))
    # and when it is back, it votes, and nothing is wrong any more
    node.start()
    world.run_until(world.members_settled)
    assert keys(world).stable == Assignments((1, 2, 3), 0)
    leader = world.wait_leader()
    assert leader.members is not None
    assert leader.members.problem == ""


@pytest.mark.parametrize("seed", range(6))
def test_a_leader_that_dies_in_the_middle_is_followed_by_one_that_goes_on(seed: int) -> None:
    world = World(seed, nodes=3)
    node = world.nodes[4] = world.new_node(4)
    node.start(join=world.wait_leader().address)
    world.run_until(lambda: keys(world).pending is not None)
    world.run_for(seed * 3)
    leader = world.wait_leader()
    leader.crash()
    world.run_until(lambda: world.leader() is not None)
    leader.start()
    world.run_until(world.members_settled)
    assert keys(world).stable == Assignments((1, 2, 3), 0, (4,))
