"""What any network does: one suite, run over TCP, plain and with TLS, and on the simulated one."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from lowmark.errors import LowmarkError
from lowmark.runtime import (
    AddressInUse,
    AddressUnusable,
    Buffer,
    FrameTooLong,
    Loop,
    NetworkLimits,
    PeerMisbehaved,
    RealLoop,
    RealNetwork,
    Runtime,
)
from lowmark.runtime.network import Network, PeerLost
from lowmark.runtime.sim import SimLoop, SimNetwork, sim_runtime
from runtime.certificates import Authority

SOON_MS = 20_000
HEADER_BYTES = 8
LIMITS = NetworkLimits(
    frame_bytes_max=300_000, queued_bytes_max=1_000_000, rest_ms_min=1, rest_ms_max=4
)


class Broken(Exception):
    pass


class Node:
    """An endpoint that writes down what happens to it."""

    def __init__(self, world: World, address: str, *, listen: str | None = None) -> None:
        self.loop = world.loop
        self.frames: list[tuple[str, bytes]] = []
        self.cuts: list[tuple[str, LowmarkError]] = []
        self.rooms: list[str] = []
        self.breaks_at = b"never"
        self.cuts_at = b"never"
        self.pauses = False
        self.endpoint = world.network.endpoint(
            address, self._on_frame, self._on_cut, on_room=self.rooms.append, listen=listen
        )
        self.address = self.endpoint.address

    def _on_frame(self, sender: str, frame: Buffer) -> None:
        if frame == self.breaks_at:
            raise Broken
        if frame == self.cuts_at:
            self.endpoint.cut(sender, "it sent rubbish")
            return
        if self.pauses:
            self.endpoint.pause(sender)
        assert isinstance(frame, bytes) or memoryview(frame).readonly
        self.frames.append((sender, bytes(frame)))

    def _on_cut(self, peer: str, error: LowmarkError) -> None:
        self.cuts.append((peer, error))

    def send(self, to: Node, *buffers: Buffer) -> bool:
        return self.endpoint.send(to.address, buffers)

    def waits_for(self, *, frames: int = 0, cuts: int = 0) -> None:
        self.loop.run_until(
            lambda: len(self.frames) >= frames and len(self.cuts) >= cuts, timeout_ms=SOON_MS
        )


class World:
    def __init__(self, loop: Loop, network: Network, *, listens_at: str) -> None:
        self.loop = loop
        self.network = network
        self._listens_at = listens_at
        self._count = 0

    def node(self, address: str | None = None, *, listen: str | None = None) -> Node:
        self._count += 1
        return Node(self, address or self._listens_at.format(self._count), listen=listen)

    def passes(self, duration_ms: float) -> None:
        """Let time pass, whatever happens."""
        over: list[bool] = []
        self.loop.call_later(duration_ms, lambda: over.append(True))
        self.loop.run_until(lambda: bool(over), timeout_ms=SOON_MS)


@pytest.fixture(params=["real", "tls", "simulated"])
def world(request: pytest.FixtureRequest, authority: Authority) -> Iterator[World]:
    loop: Loop
    if request.param != "simulated":
        loop = real_loop = RealLoop()
        tls = authority.files("127.0.0.1") if request.param == "tls" else None
        network: Network = RealNetwork(real_loop, random=Random(1), limits=LIMITS, tls=tls)
        yield World(loop, network, listens_at="127.0.0.1:0")
    else:
        loop = sim_loop = SimLoop(1)
        yield World(loop, SimNetwork(sim_loop, limits=LIMITS), listens_at="node-{}")
    loop.close()


def test_a_frame_arrives_whole_with_its_senders_name(world: World) -> None:
    a, b = world.node(), world.node()
    assert a.send(b, b"he", bytearray(b"ll"), memoryview(b"o"))
    b.waits_for(frames=1)
    assert b.frames == [(a.address, b"hello")]


def test_frames_of_one_sender_arrive_in_order_while_all_is_well(world: World) -> None:
    a, b = world.node(), world.node()
    sent = [b"%d" % n * (n % 50) for n in range(500)]
    assert all(a.send(b, frame) for frame in sent)
    b.waits_for(frames=500)
    assert [frame for _, frame in b.frames] == sent


def test_an_urgent_frame_goes_ahead_of_those_that_wait(world: World) -> None:
    # given a peer that is slow to take what it is sent, and more frames than there is room for
    a, b = world.node(), world.node()
    if isinstance(world.network, SimNetwork):
        world.network.weather.bytes_per_s = 1_000_000
    b.pauses = True
    a.send(b, b"first")
    b.waits_for(frames=1)
    sent = 0
    while a.send(b, b"%08d" % sent, bytes(200_000)):
        sent += 1
        world.passes(1)
    # when something urgent is sent, and more of it
    urgent = [b"urgent %d" % n for n in range(3)]
    assert all(a.endpoint.send(b.address, [frame], urgent=True) for frame in urgent)
    b.pauses = False
    b.endpoint.resume(a.address)
    b.waits_for(frames=1 + sent + len(urgent))
    # then it comes before what still waited; all is in order otherwise, and whole
    frames = [frame for _, frame in b.frames[1:]]
    assert frames.index(urgent[-1]) < len(frames) - 1
    assert [frame for frame in frames if frame in urgent] == urgent
    others = [frame for frame in frames if frame not in urgent]
    assert [int(frame[:8]) for frame in others] == list(range(sent))
    assert all(len(frame) == 200_008 for frame in others)


def test_frames_go_both_ways_and_to_oneself(world: World) -> None:
    a, b = world.node(), world.node()
    a.send(b, b"there")
    b.send(a, b"back")
    a.send(a, b"home")
    b.waits_for(frames=1)
    a.waits_for(frames=2)
    assert b.frames == [(a.address, b"there")]
    assert sorted(a.frames) == sorted([(b.address, b"back"), (a.address, b"home")])


def test_frames_of_several_senders_are_kept_apart(world: World) -> None:
    target, senders = world.node(), [world.node() for _ in range(5)]
    for n in range(20):
        for sender in senders:
            sender.send(target, b"%d" % n)
    target.waits_for(frames=100)
    for sender in senders:
        mine = [frame for name, frame in target.frames if name == sender.address]
        assert mine == [b"%d" % n for n in range(20)]


def test_an_empty_frame_is_a_frame(world: World) -> None:
    a, b = world.node(), world.node()
    a.send(b)
    a.send(b, b"", b"")
    b.waits_for(frames=2)
    assert [frame for _, frame in b.frames] == [b"", b""]


def test_a_view_of_wide_items_is_sent_by_its_bytes(world: World) -> None:
    a, b = world.node(), world.node()
    a.send(b, memoryview(b"abcdefgh").cast("Q"))
    b.waits_for(frames=1)
    assert b.frames[0][1] == b"abcdefgh"


def test_a_frame_may_be_as_long_as_the_limit_and_not_one_byte_longer(world: World) -> None:
    a, b = world.node(), world.node()
    longest = bytes(n % 251 for n in range(LIMITS.frame_bytes_max))
    with pytest.raises(FrameTooLong) as refused:
        a.send(b, longest, b"!")
    assert refused.value.frame_bytes == LIMITS.frame_bytes_max + 1
    assert a.send(b, longest[:7], longest[7:])
    b.waits_for(frames=1)
    assert b.frames == [(a.address, longest)]
    assert not b.cuts


def test_a_queue_takes_bytes_up_to_its_limit_and_then_says_no(world: World) -> None:
    a, b, c = world.node(), world.node(), world.node()
    # given a queue that is full to the last byte, because nothing runs
    sizes = [300_000, 300_000, 300_000, 100_000 - 4 * HEADER_BYTES]
    assert all(a.send(b, bytes(size)) for size in sizes)
    assert a.endpoint.queued_bytes(b.address) == LIMITS.queued_bytes_max
    # then not even an empty frame is taken, for this peer
    assert not a.send(b)
    assert a.send(c, b"free")
    # and when it has drained, there is room again
    b.waits_for(frames=4)
    world.loop.run_until(lambda: a.endpoint.queued_bytes(b.address) == 0, timeout_ms=SOON_MS)
    assert a.send(b, b"again")
    b.waits_for(frames=5)
    assert [len(frame) for _, frame in b.frames] == [*sizes, 5]


def test_nothing_is_queued_for_a_peer_nobody_spoke_to(world: World) -> None:
    assert world.node().endpoint.queued_bytes("127.0.0.1:9") == 0


def test_an_address_has_one_endpoint_at_a_time(world: World) -> None:
    a = world.node()
    with pytest.raises(AddressInUse):
        world.node(a.address)
    a.endpoint.close()
    assert world.node(a.address).address == a.address


def test_an_error_in_a_receiver_ends_the_run_and_loses_no_other_frame(world: World) -> None:
    a, b = world.node(), world.node()
    b.breaks_at = b"bad"
    for frame in (b"one", b"bad", b"two"):
        a.send(b, frame)
    with pytest.raises(Broken):
        b.waits_for(frames=3)
    b.waits_for(frames=2)
    assert [frame for _, frame in b.frames] == [b"one", b"two"]


def test_a_peer_that_is_not_there_is_told_and_found_when_it_comes(world: World) -> None:
    # given an address at which nobody listens
    a, b = world.node(), world.node()
    b.endpoint.close()
    assert a.send(b, b"lost")
    a.waits_for(cuts=1)
    ((peer, error),) = a.cuts
    assert peer == b.address
    assert isinstance(error, PeerLost)
    assert a.endpoint.queued_bytes(b.address) == 0
    # when somebody comes to listen there
    b = world.node(b.address)
    a.send(b, b"found")
    # then the next frame arrives, and the lost one stays lost
    b.waits_for(frames=1)
    assert b.frames == [(a.address, b"found")]


def test_both_sides_notice_when_a_peer_goes_away(world: World) -> None:
    a, b, c = world.node(), world.node(), world.node()
    a.send(b, b"x")
    b.send(c, b"y")
    b.waits_for(frames=1)
    c.waits_for(frames=1)
    b.endpoint.close()
    # then whoever heard from it knows, without sending anything
    c.waits_for(cuts=1)
    assert c.cuts[0][0] == b.address
    # and whoever sends to it learns it from that
    a.send(b, b"z")
    a.waits_for(cuts=1)
    assert a.cuts[0][0] == b.address


def test_a_peer_that_comes_back_is_reached_again(world: World) -> None:
    a, b = world.node(), world.node()
    for turn in range(3):
        cuts = len(a.cuts)
        a.send(b, b"%d" % turn)
        b.waits_for(frames=1)
        b.endpoint.close()
        a.send(b, b"lost")
        a.waits_for(cuts=cuts + 1)
        b = world.node(b.address)
    a.send(b, b"end")
    b.waits_for(frames=1)
    assert b.frames == [(a.address, b"end")]


def test_one_dead_peer_does_not_harm_the_others(world: World) -> None:
    a, dead, alive = world.node(), world.node(), world.node()
    dead.endpoint.close()
    for n in range(50):
        a.send(dead, b"lost")
        a.send(alive, b"%d" % n)
    alive.waits_for(frames=50)
    assert [frame for _, frame in alive.frames] == [b"%d" % n for n in range(50)]


def test_a_closed_endpoint_sends_nothing_and_hears_nothing(world: World) -> None:
    a, b, c = world.node(), world.node(), world.node()
    a.send(b, b"x")
    c.send(a, b"y")
    a.endpoint.close()
    a.endpoint.close()  # twice is fine
    assert not a.send(b, b"z")
    assert a.endpoint.queued_bytes(b.address) == 0
    c.waits_for(cuts=1)
    assert (a.frames, a.cuts) == ([], [])


# -- a full queue ---------------------------------------------------------------------------------


def test_whoever_was_refused_is_told_once_when_the_queue_has_drained_to_half(world: World) -> None:
    a, b, c = world.node(), world.node(), world.node()
    # given a full queue, and frames that it refused
    while a.send(b, bytes(100_000)):
        pass
    assert not a.send(b, bytes(100_000))
    a.send(c, b"to somebody else")
    assert a.rooms == []
    # then its sender is told once, when there is room
    world.loop.run_until(lambda: bool(a.rooms), timeout_ms=SOON_MS)
    assert a.endpoint.queued_bytes(b.address) <= LIMITS.queued_bytes_max // 2
    b.waits_for(frames=9)
    c.waits_for(frames=1)
    world.passes(20)
    assert a.rooms == [b.address]
    # and not for what was taken
    a.send(b, b"x")
    b.waits_for(frames=10)
    world.passes(20)
    assert a.rooms == [b.address]
    # and again when it is refused again
    while a.send(b, bytes(300_000)):
        pass
    world.loop.run_until(lambda: len(a.rooms) == 2, timeout_ms=SOON_MS)


def test_a_sender_that_goes_on_whenever_there_is_room_gets_everything_through(world: World) -> None:
    a, b = world.node(), world.node()
    left = [bytes([n]) * 290_000 for n in range(30)]
    sent = list(left)

    def send() -> None:
        while left and a.send(b, left[0]):
            left.pop(0)

    send()
    told = 0
    while left:
        world.loop.run_until(lambda told=told: len(a.rooms) > told, timeout_ms=SOON_MS)  # type: ignore[misc]
        told = len(a.rooms)
        send()
    b.waits_for(frames=30)
    assert [frame for _, frame in b.frames] == sent


def test_a_queue_that_is_lost_with_its_connection_has_room(world: World) -> None:
    a, b = world.node(), world.node()
    b.endpoint.close()
    while a.send(b, bytes(300_000)):
        pass
    world.loop.run_until(lambda: bool(a.rooms), timeout_ms=SOON_MS)
    assert a.endpoint.queued_bytes(b.address) == 0
    assert [peer for peer, _ in a.cuts] == [b.address]


def test_a_closed_endpoint_is_not_told_of_room(world: World) -> None:
    a, b = world.node(), world.node()
    while a.send(b, bytes(300_000)):
        pass
    a.endpoint.close()
    world.passes(20)
    assert a.rooms == []


# -- a receiver that can't keep up ----------------------------------------------------------------


def test_a_paused_peer_is_not_heard_and_its_frames_come_in_order_when_it_is_resumed(
    world: World,
) -> None:
    a, b, c = world.node(), world.node(), world.node()
    a.send(b, b"first")
    b.waits_for(frames=1)
    b.endpoint.pause(a.address)
    b.endpoint.pause(a.address)  # twice is fine
    sent = [b"%d" % n for n in range(50)]
    for frame in sent:
        a.send(b, frame)
    # then others are heard
    c.send(b, b"other")
    b.waits_for(frames=2)
    world.passes(50)
    assert [frame for _, frame in b.frames] == [b"first", b"other"]
    # and when it is resumed, nothing is missing
    b.endpoint.resume(a.address)
    b.endpoint.resume(a.address)
    b.waits_for(frames=52)
    assert [frame for _, frame in b.frames[2:]] == sent
    assert not a.cuts


def test_a_receiver_may_take_one_frame_at_a_time(world: World) -> None:
    # given a receiver that pauses its peer after each frame, while more have come together
    a, b = world.node(), world.node()
    b.pauses = True
    sent = [b"%d" % n for n in range(10)]
    for frame in sent:
        a.send(b, frame)
    for count in range(1, 11):
        b.waits_for(frames=count)
        world.passes(3)
        assert len(b.frames) == count
        b.endpoint.resume(a.address)
    assert [frame for _, frame in b.frames] == sent


def test_what_is_sent_to_one_who_paused_us_waits_in_our_queue_within_its_limit(
    world: World,
) -> None:
    a, b = world.node(), world.node()
    a.send(b, b"first")
    b.waits_for(frames=1)
    b.frames.clear()
    b.endpoint.pause(a.address)
    # when we send whatever is taken, for a while
    sent: list[bool] = []

    def send() -> None:
        while a.send(b, bytes(290_000)):
            sent.append(True)
        a.loop.call_later(1, send)

    send()
    world.loop.run_until(
        lambda: a.endpoint.queued_bytes(b.address) > LIMITS.queued_bytes_max - 300_000,
        timeout_ms=SOON_MS,
    )
    world.passes(100)
    # then it does not get through, apart from what the machine itself keeps, and nothing is lost
    assert a.endpoint.queued_bytes(b.address) > LIMITS.queued_bytes_max - 300_000
    assert b.frames == []
    count = len(sent)
    b.endpoint.resume(a.address)
    b.waits_for(frames=count)
    assert not a.cuts
    assert not b.cuts


def test_a_peer_stays_paused_when_it_connects_again(world: World) -> None:
    a, b = world.node(), world.node()
    b.endpoint.pause(a.address)
    a.send(b, b"x")
    world.passes(20)
    a.endpoint.close()
    a = world.node(a.address)
    a.send(b, b"y")
    world.passes(100)
    assert b.frames == []
    b.endpoint.resume(a.address)
    b.loop.run_until(lambda: (a.address, b"y") in b.frames, timeout_ms=SOON_MS)


# -- rubbish in a well-formed frame ---------------------------------------------------------------


def test_a_peer_that_was_cut_off_is_told_of_once_and_not_heard_until_it_has_rested(
    world: World,
) -> None:
    a, b, c = world.node(), world.node(), world.node()
    b.cuts_at = b"rubbish"
    for frame in (b"good", b"rubbish", b"after", b"after"):
        a.send(b, frame)
    c.send(b, b"other")
    # then nothing that came after the rubbish is heard, and both sides know
    b.waits_for(frames=2, cuts=1)
    a.waits_for(cuts=1)
    assert sorted(b.frames) == sorted([(a.address, b"good"), (c.address, b"other")])
    ((peer, error),) = b.cuts
    assert peer == a.address
    assert isinstance(error, PeerMisbehaved)
    assert "it sent rubbish" in str(error)
    # and others are not affected
    c.send(b, b"more")
    b.waits_for(frames=3)
    assert not c.cuts
    # and after its rest it is heard again
    while b.frames[-1] != (a.address, b"better"):
        a.send(b, b"better")
        world.passes(1)
    assert len(b.cuts) == 1 or all(isinstance(error, PeerLost) for _, error in b.cuts[1:])


def test_a_peer_that_was_cut_off_is_refused_for_the_whole_rest(world: World) -> None:
    a, b = world.node(), world.node()
    a.send(b, b"x")
    b.waits_for(frames=1)
    b.endpoint.cut(a.address, "it sent rubbish")
    began_us = world.loop.elapsed_us()
    while len(b.frames) == 1:
        a.send(b, b"y")
        world.passes(0.1)
    assert world.loop.elapsed_us() - began_us >= LIMITS.rest_ms_max * 1_000


def test_what_waited_for_a_peer_goes_when_it_is_cut_off_and_what_comes_next_arrives(
    world: World,
) -> None:
    a, b = world.node(), world.node()
    while a.send(b, bytes(300_000)):
        pass
    a.endpoint.cut(b.address, "it sent rubbish")
    assert a.endpoint.queued_bytes(b.address) == 0
    world.loop.run_until(lambda: bool(a.rooms), timeout_ms=SOON_MS)
    assert [type(error) for _, error in a.cuts] == [PeerMisbehaved]
    # it is cut off as a sender: we may still send to it
    while not b.frames:
        assert a.send(b, b"new")
        world.passes(1)
    assert b.frames[0] == (a.address, b"new")


def test_one_may_cut_off_a_peer_that_is_gone_and_a_closed_endpoint_cuts_nobody(
    world: World,
) -> None:
    a, b = world.node(), world.node()
    a.endpoint.cut(b.address, "it sent rubbish")
    a.waits_for(cuts=1)
    b.endpoint.close()
    b.endpoint.cut(a.address, "it sent rubbish")
    world.passes(20)
    assert b.cuts == []
    assert [type(error) for _, error in a.cuts] == [PeerMisbehaved]


# -- addresses ------------------------------------------------------------------------------------


def test_a_node_may_listen_elsewhere_than_where_it_is_known(world: World) -> None:
    a = world.node()
    b = world.node("127.0.0.1:0", listen="0.0.0.0:0")
    # then a free port is part of its name
    assert b.address.startswith("127.0.0.1:")
    assert not b.address.endswith(":0")
    assert b.endpoint.listens_at.startswith("0.0.0.0:")
    assert a.endpoint.listens_at == a.address
    a.send(b, b"x")
    b.send(a, b"y")
    b.waits_for(frames=1)
    a.waits_for(frames=1)
    assert b.frames == [(a.address, b"x")]
    assert a.frames == [(b.address, b"y")]


def test_a_runtime_without_a_network_says_so() -> None:
    whole = sim_runtime(1)
    bare = Runtime(loop=whole.loop, disk=whole.disk, clock=whole.clock, random=whole.random)
    with pytest.raises(AddressUnusable, match="without a network"):
        bare.network.endpoint("a", lambda *_: None, lambda *_: None)


def test_limits_leave_room_for_the_longest_frame() -> None:
    NetworkLimits(frame_bytes_max=92, queued_bytes_max=100)
    with pytest.raises(AssertionError):
        NetworkLimits(frame_bytes_max=93, queued_bytes_max=100)
