"""The simulated network's faults."""

from __future__ import annotations

import pytest

from lowmark.errors import LowmarkError
from lowmark.runtime import Buffer, SimLoop, SimNetwork, Weather


class Node:
    def __init__(self, network: SimNetwork, address: str) -> None:
        self.address = address
        self.frames: list[str] = []
        self.cuts: list[str] = []
        self.endpoint = network.endpoint(address, self._on_frame, self._on_cut)

    def _on_frame(self, sender: str, frame: Buffer) -> None:
        self.frames.append(f"{sender}:{bytes(frame).decode()}")

    def _on_cut(self, peer: str, error: LowmarkError) -> None:
        del error
        self.cuts.append(peer)

    def send(self, to: str, *texts: str) -> None:
        for text in texts:
            assert self.endpoint.send(to, [text.encode()])


def world(weather: Weather | None = None, *, seed: int = 1) -> tuple[SimLoop, SimNetwork]:
    loop = SimLoop(seed)
    return loop, SimNetwork(loop, weather=weather)


def test_a_frame_takes_a_time_between_the_limits() -> None:
    loop, network = world(Weather(delay_us_min=100, delay_us_max=200))
    a, b = Node(network, "a"), Node(network, "b")
    a.send("b", "x")
    assert a.endpoint.queued_bytes("b") == 9
    loop.run_until(lambda: bool(b.frames))
    assert 100 <= loop.elapsed_us() <= 200
    assert a.endpoint.queued_bytes("b") == 0


def test_dropped_frames_are_gone_without_a_word() -> None:
    loop, network = world(Weather(drop=1.0))
    a, b = Node(network, "a"), Node(network, "b")
    a.send("b", "x", "y")
    loop.run_for(1_000)
    assert (b.frames, a.cuts, a.endpoint.queued_bytes("b")) == ([], [], 0)


def test_some_frames_are_dropped_and_some_are_not() -> None:
    loop, network = world(Weather(drop=0.3))
    a, b = Node(network, "a"), Node(network, "b")
    a.send("b", *map(str, range(1_000)))
    loop.run_for(1_000)
    assert 600 < len(b.frames) < 800


def test_doubled_frames_come_twice_and_are_queued_once() -> None:
    loop, network = world(Weather(duplicate=1.0))
    a, b = Node(network, "a"), Node(network, "b")
    a.send("b", "x")
    loop.run_for(1_000)
    assert b.frames == ["a:x", "a:x"]
    assert a.endpoint.queued_bytes("b") == 0


def test_overtaking_changes_the_order_and_loses_nothing() -> None:
    loop, network = world(Weather(overtake=0.5))
    a, b = Node(network, "a"), Node(network, "b")
    sent = [f"{n:03}" for n in range(100)]
    a.send("b", *sent)
    loop.run_for(1_000)
    assert b.frames != [f"a:{text}" for text in sent]
    assert sorted(b.frames) == [f"a:{text}" for text in sent]


def test_a_one_way_cut_lets_frames_through_the_other_way() -> None:
    loop, network = world()
    a, b = Node(network, "a"), Node(network, "b")
    network.cut_one_way("a", "b")
    a.send("b", "lost")
    b.send("a", "kept")
    loop.run_for(1_000)
    assert (a.frames, b.frames) == (["b:kept"], [])
    assert a.cuts == ["b"]


def test_a_full_cut_divides_a_cluster_and_heals() -> None:
    loop, network = world()
    nodes = {name: Node(network, name) for name in "abc"}
    network.cut(["a"], ["b", "c"])
    for one in nodes.values():
        for to in nodes:
            if to != one.address:
                one.send(to, "1")
    loop.run_for(1_000)
    # then only those on one side hear of each other
    assert {name: node.frames for name, node in nodes.items()} == {
        "a": [],
        "b": ["c:1"],
        "c": ["b:1"],
    }
    # and when it heals, all is well
    network.heal()
    nodes["a"].send("b", "2")
    nodes["b"].send("a", "2")
    loop.run_for(1_000)
    assert nodes["a"].frames == ["b:2"]
    assert nodes["b"].frames == ["c:1", "a:2"]


def test_a_cut_takes_the_frames_that_are_under_way() -> None:
    loop, network = world()
    a, b = Node(network, "a"), Node(network, "b")
    a.send("b", "x")
    network.cut(["a"], ["b"])
    loop.run_for(1_000)
    assert b.frames == []


def test_an_outage_is_told_once_until_something_passes_again() -> None:
    loop, network = world()
    a, b = Node(network, "a"), Node(network, "b")
    for _ in range(2):
        network.cut(["a"], ["b"])
        a.send("b", "1", "2", "3")
        loop.run_for(1_000)
        network.heal()
        a.send("b", "4")
        loop.run_for(1_000)
    assert a.cuts == ["b", "b"]
    assert b.frames == ["a:4", "a:4"]


def test_a_crashed_address_neither_sends_nor_receives_until_somebody_takes_it() -> None:
    loop, network = world()
    a, b = Node(network, "a"), Node(network, "b")
    network.crash("b")
    network.crash("b")  # it is dead already
    a.send("b", "lost")
    assert not b.endpoint.send("a", [b"x"])
    loop.run_for(1_000)
    assert (b.frames, a.cuts) == ([], ["b"])
    again = Node(network, "b")
    a.send("b", "found")
    loop.run_for(1_000)
    assert again.frames == ["a:found"]


def test_frames_under_way_outlive_their_sender_and_find_the_targets_next_life() -> None:
    loop, network = world()
    a, b = Node(network, "a"), Node(network, "b")
    a.send("b", "late")
    network.crash("a")
    network.crash("b")
    again = Node(network, "b")
    loop.run_for(1_000)
    assert (b.frames, again.frames) == ([], ["a:late"])


def test_those_who_heard_from_a_crashed_peer_notice() -> None:
    loop, network = world()
    a, b, c = Node(network, "a"), Node(network, "b"), Node(network, "c")
    a.send("b", "x")
    loop.run_for(1_000)
    network.crash("a")
    loop.run_for(1_000)
    assert (b.cuts, c.cuts) == (["a"], [])


def test_a_buffer_that_changes_after_it_was_sent_is_a_bug_that_shows() -> None:
    loop, network = world()
    a, _ = Node(network, "a"), Node(network, "b")
    buffer = bytearray(b"x")
    a.endpoint.send("b", [buffer])
    buffer[0] = 0
    with pytest.raises(AssertionError, match="never changes"):
        loop.run_for(1_000)


def test_a_list_of_buffers_may_be_used_again() -> None:
    loop, network = world()
    a, b = Node(network, "a"), Node(network, "b")
    buffers = [b"x"]
    a.endpoint.send("b", buffers)
    buffers.clear()
    loop.run_for(1_000)
    assert b.frames == ["a:x"]
