"""The simulated network's faults."""

from __future__ import annotations

import pytest

from lowmark.errors import LowmarkError
from lowmark.runtime import Buffer, NetworkLimits
from lowmark.runtime.sim import SimLoop, SimNetwork, Weather


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


def test_frames_under_way_outlive_their_sender_until_its_next_life_is_heard() -> None:
    loop, network = world(Weather(delay_us_min=1_000, delay_us_max=1_000))
    a, b = Node(network, "a"), Node(network, "b")
    a.send("b", "late")
    network.crash("a")
    loop.run_for(10)
    assert b.frames == ["a:late"]
    # given frames of two lives under way, of which those of the second come first
    a = Node(network, "a")
    network.weather = Weather(delay_us_min=9_000, delay_us_max=9_000)
    a.send("b", "old")
    network.crash("a")
    network.weather = Weather(delay_us_min=1, delay_us_max=1, overtake=1.0, detour_us_max=0)
    Node(network, "a").send("b", "new")
    # then those of the first are heard no more
    loop.run_for(1_000)
    assert b.frames == ["a:late", "a:new"]


@pytest.mark.parametrize("seed", range(20))
def test_frames_under_way_die_with_the_process_they_were_sent_to(seed: int) -> None:
    # given frames that may take long ways
    loop, network = world(Weather(duplicate=0.5, overtake=0.5), seed=seed)
    a, _ = Node(network, "a"), Node(network, "b")
    a.send("b", "1")
    loop.run_for(100)
    a.send("b", *map(str, range(2, 30)))
    # when the receiver crashes and is back at once
    network.crash("b")
    again = Node(network, "b")
    loop.run_for(1_000)
    # then its next life hears nothing that was meant for the last one, and the sender knows
    assert again.frames == []
    assert a.cuts == ["b"]
    assert a.endpoint.queued_bytes("b") == 0
    a.send("b", "new")
    loop.run_for(1_000)
    assert set(again.frames) == {"a:new"}


def test_a_frame_sent_while_nobody_listens_finds_whoever_has_come_by_then() -> None:
    loop, network = world(Weather(delay_us_min=1_000, delay_us_max=1_000))
    a = Node(network, "a")
    a.send("b", "early")
    b = Node(network, "b")
    loop.run_for(10)
    assert b.frames == ["a:early"]


def test_whoever_sent_to_a_crashed_peer_notices_without_sending_again() -> None:
    loop, network = world()
    a, _ = Node(network, "a"), Node(network, "b")
    a.send("b", "x")
    loop.run_for(1_000)
    network.crash("b")
    again = Node(network, "b")
    loop.run_for(1_000)
    assert a.cuts == ["b"]
    a.send("b", "y")
    loop.run_for(1_000)
    assert again.frames == ["a:y"]
    assert a.cuts == ["b"]


def test_frames_that_waited_for_a_paused_receiver_die_with_it() -> None:
    loop, network = world()
    a, b = Node(network, "a"), Node(network, "b")
    b.endpoint.pause("a")
    a.send("b", "1", "2")
    loop.run_for(1_000)
    assert a.endpoint.queued_bytes("b") == 18
    network.crash("b")
    again = Node(network, "b")
    loop.run_for(1_000)
    assert (b.frames, again.frames, a.cuts) == ([], [], ["b"])
    assert a.endpoint.queued_bytes("b") == 0


def test_a_receiver_that_breaks_over_a_frame_that_waited_gets_the_next_one_too() -> None:
    loop, network = world()
    a = Node(network, "a")
    heard: list[bytes] = []

    def hear(_: str, frame: Buffer) -> None:
        heard.append(bytes(frame))
        if frame == b"1":
            raise RuntimeError("broken")

    b = network.endpoint("b", hear, lambda *_: None)
    b.pause("a")
    a.send("b", "1", "2")
    loop.run_for(1_000)
    b.resume("a")
    with pytest.raises(RuntimeError, match="broken"):
        loop.run_for(1_000)
    loop.run_for(1_000)
    assert heard == [b"1", b"2"]


def test_what_was_sent_before_a_cut_off_never_arrives_not_even_on_a_long_way() -> None:
    # given a rest that is shorter than the ways of some frames
    loop = SimLoop(1)
    weather = Weather(delay_us_min=50_000, delay_us_max=50_000)
    network = SimNetwork(loop, limits=NetworkLimits(rest_ms_min=1, rest_ms_max=2), weather=weather)
    a, b = Node(network, "a"), Node(network, "b")
    a.send("b", "old")
    b.send("a", "old")
    b.endpoint.cut("a", "rubbish")
    loop.run_for(1_000)
    assert (a.frames, b.frames) == ([], [])
    assert (a.cuts, b.cuts) == (["b"], ["a"])
    a.send("b", "new")
    loop.run_for(1_000)
    assert b.frames == ["a:new"]


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
