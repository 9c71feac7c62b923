"""Power cuts at every write of the update log: all of a command is there, or nothing of it.

The same command is carried out again and again from the same beginning, each time with a crash one
disk call or one frame later. After it the node comes back, and all nodes agree; whoever heard that
it was done finds it done.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from catalog.world import table
from lowmark.catalog import AddColumns, Command, NewColumn
from lowmark.group import Future
from lowmark.metastore import ClusterSettings
from sim.catalog_world import DrivenNode, DrivenWorld

Act = Callable[[DrivenNode], Future[object]]
COLUMN = NewColumn.of("city", "string")


def a_batch(node: DrivenNode) -> Future[object]:
    batch: list[Command] = [table("b"), AddColumns(table="a", columns=(COLUMN,)), table("c")]
    return node.catalog.execute(batch).map(lambda done: done)


def a_cut(node: DrivenNode) -> Future[object]:
    return node.catalog.compact(3).map(lambda done: done)


def batch_is_there(node: DrivenNode) -> bool:
    latest = node.catalog.latest
    seen = [latest.table_named("public", name) is not None for name in ("b", "c")]
    changed = latest.table_named("public", "a")
    assert changed is not None
    seen.append("city" in [column.name for column in changed.columns])
    seen.append(latest.version == 5)
    assert len(set(seen)) == 1, f"a part of a batch: {seen}"
    return seen[0]


def cut_is_there(node: DrivenNode) -> bool:
    assert node.catalog.earliest.version in (0, 3)
    return node.catalog.earliest.version == 3


ACTS: dict[str, tuple[Act, Callable[[DrivenNode], bool]]] = {
    "a batch": (a_batch, batch_is_there),
    "a cut": (a_cut, cut_is_there),
}
BY_ACT = pytest.mark.parametrize("act", ACTS)


def begin(nodes: int, seed: int = 3) -> DrivenWorld:
    settings = ClusterSettings(id="", schema_sync_delay_ms=50, clock_max_skew_ms=50)
    world = DrivenWorld(seed, nodes=nodes, settings=settings)
    for name in ("a", "x", "y"):
        world.execute(1, table(name))
    world.wait_even(4)
    return world


def settle(world: DrivenWorld) -> None:
    """Until all nodes are up, know the same and agree with their logs."""
    world.run_until(lambda: all(node.catalogs is not None for node in world.all()))
    world.wait_leader()
    world.run_for(600)
    world.wait_even(4)
    world.run_until(lambda: len({node.catalog.earliest.version for node in world.all()}) == 1)
    for node in world.all():
        assert node.catalog.failed is None
    world.check_even()


def check(world: DrivenWorld, act: str, future: Future[object]) -> bool:
    settle(world)
    there = {ACTS[act][1](node) for node in world.all()}
    assert len(there) == 1
    if future.done and future.error is None:
        assert there == {True}, "it was said to be done"
    return there.pop()


def go_on(world: DrivenWorld) -> None:
    """What comes after a crash gets the next version."""
    latest = world[1].catalog.latest.version
    assert world.execute(max(world.nodes), table("after")).catalog.version == latest + 1


@pytest.mark.slow
@BY_ACT
def test_one_node_loses_power_at_any_disk_call(act: str) -> None:
    # given how many disk calls it takes
    world = begin(1)
    before = world[1].disk.calls
    world.wait(ACTS[act][0](world[1]))
    calls = world[1].disk.calls - before
    assert calls >= 2
    outcomes: set[bool] = set()
    images = 0
    for call in range(1, calls + 2):
        # when the power goes at one of them
        world = begin(1)
        node = world[1]
        node.disk.stop_at_call = node.disk.calls + call
        future = ACTS[act][0](node)
        sim = node.clock
        world.run_until(lambda: sim.crashed or future.done)  # noqa: B023
        crashed = node.disk
        sim.crash()
        # then whatever that leaves on the disk has all of it, or nothing
        for image in crashed.crash_images(Random(call), samples=4):
            images += 1
            node._down()
            node.disk = image.disk
            node.start()
            outcomes.add(check(world, act, future))
            go_on(world)
            node.clock.crash()
    # then both happened
    assert outcomes == {True, False}
    assert images > calls


@pytest.mark.slow
@BY_ACT
@pytest.mark.parametrize("who", ["leader", "author", "other"])
def test_one_of_three_nodes_loses_power_at_any_disk_call(act: str, who: str) -> None:
    def cast_of(world: DrivenWorld) -> tuple[DrivenNode, DrivenNode]:
        leader = world[world.wait_leader().number]
        author = next(node for node in world.all() if node is not leader)
        other = next(node for node in world.all() if node not in (leader, author))
        return author, {"leader": leader, "author": author, "other": other}[who]

    world = begin(3)
    author, victim = cast_of(world)
    before = victim.disk.calls
    world.wait(ACTS[act][0](author))
    calls = victim.disk.calls - before
    assert calls >= 2
    for call in range(1, min(calls, 10) + 1):
        world = begin(3)
        author, victim = cast_of(world)
        victim.disk.stop_at_call = victim.disk.calls + call
        future = ACTS[act][0](author)
        sim = victim.clock
        world.run_until(lambda: sim.crashed or future.done)  # noqa: B023
        victim.crash()
        if who != "author":
            # then the others carry it out without it
            world.wait(future)
        victim.start()
        there = check(world, act, future)
        assert there or who == "author"
        go_on(world)


@pytest.mark.slow
@BY_ACT
@pytest.mark.parametrize("killed", [False, True], ids=["power cut", "killed"])
def test_a_sender_dies_after_any_frame(act: str, killed: bool) -> None:
    # given how many frames it takes until the write is everywhere
    def run(frames: int) -> tuple[DrivenWorld, Future[object], list[int]]:
        world = begin(3)
        author = world.follower()
        sent: list[int] = []
        world.network.on_sent = lambda frame: sent.append(frame.sender)
        future = ACTS[act][0](author)
        world.run_until(lambda: future.done or len(sent) >= frames)
        world.network.on_sent = None
        return world, future, sent

    frames = min(len(run(1_000)[2]), 20)
    assert frames > 6
    outcomes: set[bool] = set()
    for frame in range(1, frames + 1):
        world, future, sent = run(frame)
        # when whoever sent the last one dies
        victim = world[sent[-1]]
        victim.crash(killed=killed)
        world.run_for(500)
        victim.start()
        outcomes.add(check(world, act, future))
        go_on(world)
    assert True in outcomes
