"""Nodes that share a world: each has its own clock, its own lanes, and its own death."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from lowmark.errors import LowmarkError
from lowmark.runtime import (
    Buffer,
    Outcome,
    Runtime,
    millis_of,
)
from lowmark.runtime.sim import (
    SimDisk,
    SimLoop,
    SimNetwork,
    Weather,
    sim_runtime,
)
from lowmark.runtime.sim.node import SimNode


class Broken(Exception):
    pass


def never(*_: object) -> None:
    raise Broken


def nothing(*_: object) -> None:
    pass


# -- clocks ---------------------------------------------------------------------------------------


def test_each_node_has_a_wall_clock_of_its_own() -> None:
    world = SimLoop(1)
    right, ahead, behind = (
        SimNode(world, "a"),
        SimNode(world, "b", skew_ms=300),
        SimNode(world, "c"),
    )
    behind.skew_ms = -200
    world.run_for(1_000)
    assert right.wall_ms() == world.wall_ms()
    assert ahead.wall_ms() == world.wall_ms() + 300
    assert behind.wall_ms() == world.wall_ms() - 200


def test_a_wall_clock_jumps_either_way_and_elapsed_time_does_not() -> None:
    node = SimNode(SimLoop(1), "a")
    before_ms, before_us = node.wall_ms(), node.elapsed_us()
    node.skew_ms += 5_000
    assert node.wall_ms() == before_ms + 5_000
    node.skew_ms -= 9_000
    assert node.wall_ms() == before_ms - 4_000
    assert node.elapsed_us() == before_us


@pytest.mark.parametrize("rate", [0.9, 1.0, 1.1])
def test_a_clock_that_runs_fast_or_slow_takes_elapsed_and_wall_time_along(rate: float) -> None:
    world = SimLoop(1)
    world.run_for(77)
    node = SimNode(world, "a", rate=rate)
    began_us, began_ms = node.elapsed_us(), node.wall_ms()
    world.run_for(10_000)
    assert node.elapsed_us() - began_us == int(10_000_000 * rate)
    assert node.wall_ms() - began_ms == int(10_000 * rate)
    assert node.skew_ms == int(10_000 * rate) - 10_000


def test_a_rate_may_change_and_time_goes_on_from_where_it_is() -> None:
    world = SimLoop(1)
    node = SimNode(world, "a", rate=1.1)
    world.run_for(1_000)
    node.rate = 0.9
    assert node.elapsed_us() == 1_100_000
    world.run_for(1_000)
    assert node.elapsed_us() == 2_000_000
    assert node.skew_ms == 0


@pytest.mark.parametrize(("rate", "true_us"), [(0.9, 111_112), (1.0, 100_000), (1.1, 90_910)])
def test_a_timer_goes_off_by_its_nodes_own_clock_and_never_before(
    rate: float, true_us: int
) -> None:
    world = SimLoop(1)
    node = SimNode(world, "a", rate=rate)
    rang: list[int] = []
    node.call_later(100, lambda: rang.append(node.elapsed_us()))
    node.run_until(lambda: bool(rang))
    assert world.elapsed_us() == true_us
    assert rang[0] >= 100_000


def test_a_clock_that_stands_still_is_refused() -> None:
    with pytest.raises(AssertionError):
        SimNode(SimLoop(1), "a", rate=0)


def test_a_runtime_on_a_node_has_the_nodes_clock() -> None:
    node = SimNode(SimLoop(1), "a", skew_ms=4_000)
    runtime = sim_runtime(1, loop=node)
    assert runtime.loop is node
    assert millis_of(runtime.clock.now()) == node.wall_ms()
    runtime.disk.open("f", "create")
    found = runtime.disk.stat("f")
    assert found is not None
    assert found.changed_ms == node.wall_ms()


# -- death ----------------------------------------------------------------------------------------


def test_nothing_that_a_crashed_node_asked_for_is_ever_called() -> None:
    # given a node with a callback, a timer, a step and a step's outcome all waiting
    world = SimLoop(1)
    node, other = SimNode(world, "a"), SimNode(world, "b")
    ran: list[str] = []
    node.lane("wal").submit(lambda: ran.append("step"), never)
    node.run_until(lambda: ran == ["step"])
    node.call_soon(never)
    node.call_later(5, never)
    node.lane("wal").submit(never, never)
    other.call_later(5, lambda: ran.append("other"))
    # when it crashes
    node.crash()
    node.crash()  # twice is fine
    world.run_for(1_000)
    # then only the others are called
    assert ran == ["step", "other"]
    # and whoever still holds on to it asks in vain
    node.call_soon(never)
    node.call_later(1, never).cancel()
    node.lane("wal").submit(never, never)
    world.run_for(1_000)


def test_a_crash_leaves_nothing_in_the_worlds_queue() -> None:
    world = SimLoop(1)
    node = SimNode(world, "a")
    node.call_later(50, never)
    node.lane("wal").submit(never, never)
    node.crash()
    assert not world.turn()


def test_a_node_that_crashes_in_the_middle_of_a_callback_calls_nothing_after_it() -> None:
    world = SimLoop(1)
    node = SimNode(world, "a")

    def crash() -> None:
        node.crash()
        node.call_soon(never)

    node.call_soon(crash)
    node.call_soon(never)
    world.run_for(10)
    assert node.crashed


def test_a_timer_that_was_cancelled_is_forgotten() -> None:
    world = SimLoop(1)
    node = SimNode(world, "a")
    timer = node.call_later(5, never)
    timer.cancel()
    timer.cancel()
    world.run_for(10)
    node.crash()


def test_a_new_life_has_the_machines_clock_and_nothing_else_of_the_old() -> None:
    world = SimLoop(1)
    node = SimNode(world, "a", skew_ms=250, rate=1.05)
    node.call_later(100, never)
    world.run_for(20)
    skew_ms = node.skew_ms
    node.crash()
    again = node.restarted()
    assert (again.name, again.skew_ms, again.rate) == ("a", skew_ms, 1.05)
    ran: list[str] = []
    again.lane("wal").submit(lambda: "x", lambda outcome: ran.append(outcome.value()))
    world.run_for(1_000)
    assert ran == ["x"]
    with pytest.raises(AssertionError):
        again.restarted()


def test_a_disk_that_stops_takes_down_its_own_node_only() -> None:
    # given two nodes, one with a disk that loses its power at the third call
    world = SimLoop(1)
    nodes = {name: SimNode(world, name) for name in "ab"}
    disks = {name: SimDisk() for name in "ab"}
    died: list[str] = []
    written: list[str] = []
    for name, node in nodes.items():
        node.at_crash(lambda name=name: died.append(name))  # type: ignore[misc]
        runtime = sim_runtime(1, loop=node, disk=disks[name])
        file = runtime.disk.open("f", "create")
        for _ in range(3):
            node.lane("wal").submit(
                lambda file=file: file.append([b"x"]),  # type: ignore[misc]
                lambda _, name=name: written.append(name),  # type: ignore[misc]
            )
    disks["a"].stop_at_call = disks["a"].calls + 2
    # then the other one goes on, and so does the world
    world.run_for(1_000)
    assert died == ["a"]
    assert written.count("b") == 3
    assert written.count("a") < 3
    assert nodes["a"].crashed
    assert not nodes["b"].crashed


def test_an_error_of_a_node_still_ends_the_run() -> None:
    node = SimNode(SimLoop(1), "a")
    node.call_soon(never)
    with pytest.raises(Broken):
        node.world.run_for(1)


def test_a_crash_closes_the_nodes_endpoints_without_warning() -> None:
    world = SimLoop(1)
    network = SimNetwork(world)
    node = SimNode(world, "a")
    cuts: list[str] = []
    peer = network.endpoint("b", nothing, lambda name, _: cuts.append(name))
    endpoint = sim_runtime(1, loop=node, network=network).network.endpoint("a", never, never)
    assert endpoint.send("b", [b"x"])
    peer.send("a", [b"never heard"])
    node.crash()
    assert not endpoint.send("b", [b"y"])
    world.run_for(1_000)
    assert cuts == ["a"]
    # and the address is free for the next life
    heard: list[str] = []
    again = sim_runtime(1, loop=node.restarted(), network=network)
    again.network.endpoint("a", lambda sender, _: heard.append(sender), nothing)
    peer.send("a", [b"z"])
    world.run_for(1_000)
    assert heard == ["b"]
    with pytest.raises(AssertionError):
        network.of(node).endpoint("c", never, never)


def test_a_disk_that_stops_while_a_frame_is_received_takes_down_the_receiver_only() -> None:
    world = SimLoop(1)
    network = SimNetwork(world)
    node, disk = SimNode(world, "a"), SimDisk()
    runtime = sim_runtime(1, loop=node, network=network, disk=disk)
    file = disk.open("f", "create")
    runtime.network.endpoint("a", lambda _, frame: file.append([frame]), never)
    disk.stop_at_call = disk.calls + 1
    cuts: list[str] = []
    peer = network.endpoint("b", never, lambda name, _: cuts.append(name))
    peer.send("a", [b"x"])
    world.run_for(1_000)
    assert node.crashed
    assert cuts == ["a"]


# -- a cluster ------------------------------------------------------------------------------------


class Gossip:
    """One life of a node that talks to all others, and writes down what it hears."""

    def __init__(self, runtime: Runtime, name: str, *, names: str, life: int) -> None:
        self._runtime = runtime
        self._name = name
        self._names = names
        self.life = life
        self.heard: list[tuple[str, int, int]] = []
        self.calls = 0
        self._file = runtime.disk.open(f"life-{life}", "create")
        self._endpoint = runtime.network.endpoint(name, self._on_frame, self._on_cut)
        runtime.loop.call_later(1, self._tick)

    def _tick(self) -> None:
        self.calls += 1
        for peer in self._names:
            if peer != self._name:
                self._endpoint.send(peer, [f"{self.life} {self.calls}".encode()])
        self._runtime.loop.call_later(self._runtime.random.randrange(1, 10), self._tick)

    def _on_frame(self, sender: str, frame: Buffer) -> None:
        life, number = map(int, bytes(frame).decode().split())
        self.heard.append((sender, life, number))
        self._runtime.loop.lane("wal").submit(lambda: self._file.append([frame]), self._on_done)

    def _on_done(self, outcome: Outcome[None]) -> None:
        outcome.value()
        self.calls += 1

    def _on_cut(self, peer: str, error: LowmarkError) -> None:
        del peer, error
        self.calls += 1


def run_cluster(seed: int, *, names: str, check: Callable[[Gossip], None]) -> str:
    """Crash, restart, cut, heal and skew as the seed has it; gives the fingerprint of it all."""
    world, dice = SimLoop(seed), Random(seed)
    network = SimNetwork(world, weather=Weather(drop=0.05, duplicate=0.1, overtake=0.1))
    nodes: dict[str, SimNode] = {}
    lives: dict[str, Gossip] = {}
    disks = {name: SimDisk() for name in names}
    dead: list[tuple[Gossip, int]] = []

    def start(name: str, node: SimNode) -> None:
        nodes[name] = node
        runtime = sim_runtime(seed, loop=node, network=network, disk=disks[name])
        life = lives[name].life + 1 if name in lives else 1
        lives[name] = Gossip(runtime, name, names=names, life=life)

    for name in names:
        start(
            name, SimNode(world, name, skew_ms=dice.randint(-200, 200), rate=dice.uniform(0.9, 1.1))
        )
    for _ in range(40):
        name = dice.choice(names)
        match dice.randrange(5):
            case 0:
                nodes[name].crash()
                dead.append((lives[name], lives[name].calls))
                disks[name] = disks[name].crashed(dice)
                world.run_for(dice.randrange(30))
                start(name, nodes[name].restarted())
            case 1:
                network.cut_one_way(name, dice.choice(names))
            case 2:
                network.heal()
            case 3:
                nodes[name].skew_ms += dice.randint(-500, 500)
            case _:
                nodes[name].rate = dice.uniform(0.9, 1.1)
        world.run_for(dice.randrange(50))
    for one in (*lives.values(), *(one for one, _ in dead)):
        check(one)
    assert all(one.calls == calls for one, calls in dead), "the dead do not move"
    return world.digest()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "names"), [*((seed, "abc") for seed in range(8)), (8, "abcde"), (9, "abcdefg")]
)
def test_a_cluster_crashes_and_restarts_and_every_life_is_one_piece(seed: int, names: str) -> None:
    def check(one: Gossip) -> None:
        # What came from a life of a peer is not heard any more after its next life was.
        newest: dict[str, int] = {}
        for sender, life, _ in one.heard:
            assert life >= newest.get(sender, 0)
            newest[sender] = life

    first = run_cluster(seed, names=names, check=check)
    # and one seed gives one story
    assert first == run_cluster(seed, names=names, check=check)


# -- a node that is held up -----------------------------------------------------------------------


def test_a_node_that_is_held_up_does_everything_later_in_the_same_order() -> None:
    # given a node with things to do, one of which takes a while
    world = SimLoop(1)
    node, other = SimNode(world, "a"), SimNode(world, "b")
    done: list[tuple[str, float]] = []

    def do(who: str, *, takes_ms: float = 0.0) -> Callable[[], None]:
        def step() -> None:
            done.append((who, world.elapsed_us() / 1_000))
            node.hold_up(takes_ms)

        return step

    node.call_later(10, do("first", takes_ms=30))
    node.call_later(20, do("second"))
    node.call_later(40, do("third"))
    cancelled = node.call_later(30, never)
    other.call_later(20, do("other"))
    # when it is held up, and gives one of them up before it goes on
    node.hold_up(25)
    world.call_later(40, cancelled.cancel)
    world.run_for(100)
    # then each waits for those before it, and another node for none of them
    assert done == [("other", 20), ("first", 25), ("second", 55), ("third", 55)]


def test_a_node_that_dies_while_it_is_held_up_does_nothing_more() -> None:
    world = SimLoop(1)
    node = SimNode(world, "a")
    node.hold_up(20)
    node.call_later(10, never)
    world.run_for(15)
    node.crash()
    world.run_for(100)
