"""Nodes that come back at other addresses: some at once, all at once, at each other's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import combinations

import pytest

from lowmark.metastore import load_identity
from lowmark.metastore.errors import MetastoreUnreachable
from metastore.world import Node, World

pytestmark = pytest.mark.slow
SEEDS = pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.release) for seed in range(2, 13))]
)


def settled(nodes: int = 3, seed: int = 1) -> World:
    """A cluster whose nodes are up, and something is written."""
    world = World(seed, nodes=nodes)
    world.wait(world[1].metastore.put(b"before", b"v"))
    return world


def move(world: World, to: Mapping[int, str], *, join: Mapping[int, str] | None = None) -> None:
    """These nodes end, all at once, and come back at these addresses."""
    for number in to:
        world[number].crash()
    for number, address in to.items():
        world[number].address = address
        world[number].start(join=(join or {}).get(number, ""))


def all_know_all(world: World) -> bool:
    """Whether all that are up know where all are, also after a restart."""
    infos = {node.number: node.info for node in world.nodes.values()}
    for node in world.nodes.values():
        if {one.number: one for one in node.here.topology.nodes} != infos:
            return False
        saved = load_identity(node.disk)
        others = {str(n): info.address for n, info in infos.items() if n != node.number}
        if saved is None or dict(saved.peers) != others:
            return False
    return True


def works(world: World, through: Iterable[Node] | None = None) -> None:
    """All know where all are, and each reads what it writes, and what was written before."""
    world.run_until(lambda: all_know_all(world))
    for node in through or world.nodes.values():
        put(world, node)
        for key, value in ((b"through", b"%d" % node.number), (b"before", b"v")):
            entry = world.wait(node.metastore.get(key))
            assert entry is not None
            assert entry.value == value


def put(world: World, node: Node) -> None:
    """Write until it is done: what was on its way to a node before may still move it back once."""
    for _ in range(5):
        with suppress(MetastoreUnreachable):
            world.wait(node.metastore.put(b"through", b"%d" % node.number))
            return
    raise AssertionError(f"node {node.number} can't reach the metastore")


@pytest.mark.parametrize("moved", [*combinations((1, 2, 3), 2)])
@SEEDS
def test_two_of_three_move_at_once(moved: tuple[int, int], seed: int) -> None:
    world = settled(seed=seed)
    # when a majority comes back elsewhere, its leader perhaps among it
    move(world, {number: f"n{number}:2" for number in moved})
    # then both ask the one that has stayed, and find each other by it
    works(world)


@pytest.mark.release
def test_a_majority_of_five_moves_at_once() -> None:
    world = settled(nodes=5)
    move(world, {number: f"n{number}:2" for number in (1, 2, 4, 5)})
    works(world)


@pytest.mark.parametrize("leads", [True, False])
def test_the_leader_of_the_metastore_moves(leads: bool) -> None:
    world = settled()
    leader = world.wait_leader().number
    moved = leader if leads else leader % 3 + 1
    move(world, {moved: f"n{moved}:2"})
    works(world)


@pytest.mark.parametrize(
    "to",
    [
        {1: "n2:1", 2: "n1:1"},
        {2: "n3:1", 3: "n2:1"},
        {1: "n2:1", 2: "n3:1", 3: "n1:1"},
        {1: "n3:1", 3: "n1:2"},
        {1: "n2:1", 2: "n2:2"},
    ],
    ids=str,
)
@SEEDS
def test_a_node_moves_to_where_another_one_was(to: dict[int, str], seed: int) -> None:
    # given nodes at whose addresses others come back: whoever calls there means another node
    world = settled(seed=seed)
    move(world, to)
    works(world)


@pytest.mark.parametrize("seeds", [{2: "n1:2", 3: "n1:2"}, {1: "n2:2", 2: "n3:2", 3: "n1:2"}])
@SEEDS
def test_all_move_at_once_and_are_told_where_one_of_them_is(
    seeds: dict[int, str], seed: int
) -> None:
    world = settled(seed=seed)
    move(world, {number: f"n{number}:2" for number in (1, 2, 3)}, join=seeds)
    works(world)


@pytest.mark.parametrize("crashed", ["mover", "leader", "other"])
@pytest.mark.parametrize(
    "after_ms",
    [
        pytest.param(ms, marks=() if ms in {5, 30, 130} else pytest.mark.release)
        for ms in (1, 5, 10, 20, 30, 45, 60, 90, 130, 200, 400, 800)
    ],
)
def test_a_crash_while_a_new_address_is_made_known(crashed: str, after_ms: int) -> None:
    # given a node that comes back elsewhere
    world = settled(seed=after_ms)
    leader = world.wait_leader().number
    mover, other = (number for number in world.nodes if number != leader)
    move(world, {mover: f"n{mover}:2"})
    # when it, or one of those who are to learn where it is, crashes a moment later
    world.run_for(after_ms)
    dies = {"mover": mover, "leader": leader, "other": other}[crashed]
    world[dies].crash()
    world.run_for(after_ms)
    world[dies].start()
    # then all know it in the end
    works(world)


@pytest.mark.parametrize(
    "after_ms",
    [1, 30, *(pytest.param(ms, marks=pytest.mark.release) for ms in (10, 60, 130, 400))],
)
def test_a_node_moves_again_before_all_know_where_it_is(after_ms: int) -> None:
    world = settled(seed=after_ms)
    move(world, {2: "n2:2"})
    world.run_for(after_ms)
    move(world, {2: "n2:3"})
    world.run_for(after_ms)
    # and comes back to where it was
    move(world, {2: "n2:1"})
    works(world)
