"""Strangers, liars and silence: what TCP can do to an endpoint, and what the endpoint does then."""

from __future__ import annotations

import gc
import socket
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from random import Random

import pytest

from lowmark.errors import LowmarkError
from lowmark.runtime import (
    AddressInUse,
    AddressUnusable,
    Buffer,
    Endpoint,
    NetworkLimits,
    PeerMisbehaved,
    RealLoop,
    RealNetwork,
)
from lowmark.runtime.frames import frame_header, hello
from lowmark.runtime.network import NotAPeer, PeerLost
from lowmark.runtime.tls import TlsFiles
from runtime.certificates import Authority

SOON_MS = 20_000
LIMITS = NetworkLimits(frame_bytes_max=1 << 20, rest_ms_min=1, rest_ms_max=8)


class Node:
    def __init__(
        self, loop: RealLoop, *, limits: NetworkLimits = LIMITS, tls: TlsFiles | None = None
    ) -> None:
        self._loop = loop
        self.frames: list[tuple[str, bytes]] = []
        self.cuts: list[tuple[str, LowmarkError]] = []
        network = RealNetwork(loop, random=Random(1), limits=limits, tls=tls)
        self.endpoint: Endpoint = network.endpoint("127.0.0.1:0", self._on_frame, self._on_cut)
        self.address = self.endpoint.address

    def _on_frame(self, sender: str, frame: Buffer) -> None:
        self.frames.append((sender, bytes(frame)))

    def _on_cut(self, peer: str, error: LowmarkError) -> None:
        self.cuts.append((peer, error))

    def waits_for(self, *, frames: int = 0, cuts: int = 0) -> None:
        self._loop.run_until(
            lambda: len(self.frames) >= frames and len(self.cuts) >= cuts, timeout_ms=SOON_MS
        )


@pytest.fixture
def loop() -> Iterator[RealLoop]:
    loop = RealLoop()
    yield loop
    loop.close()


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for one in opened:
        one.close()


@pytest.fixture
def stranger(sockets: list[socket.socket]) -> Callable[[Node], socket.socket]:
    """Dials a node with a bare socket."""

    def dial(node: Node) -> socket.socket:
        host, _, port = node.address.rpartition(":")
        sockets.append(socket.create_connection((host, int(port)), timeout=10))
        return sockets[-1]

    return dial


def was_cut(one: socket.socket) -> bool:
    """Whether the other side has ended the connection, whatever it said before."""
    try:
        while one.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    return True


def framed(data: bytes) -> bytes:
    return frame_header([data]) + data


Dial = Callable[[Node], socket.socket]


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01" + bytes(300),
        b"LWMK\xff\xff\x01\x00a",
        b"LWMK\x01\x00\xff\xff" + b"a" * 100_000,
    ],
)
def test_a_stranger_that_speaks_rubbish_is_cut_off_and_harms_nobody(
    loop: RealLoop, stranger: Dial, rubbish: bytes
) -> None:
    # given two nodes that talk
    a, b = Node(loop), Node(loop)
    a.endpoint.send(b.address, [b"before"])
    b.waits_for(frames=1)
    # when somebody dials one of them and speaks another protocol
    visitor = stranger(b)
    visitor.sendall(rubbish)
    b.waits_for(cuts=1)
    # then it is told under the name of where it came from, and cut off
    ((peer, error),) = b.cuts
    assert peer == "{}:{}".format(*visitor.getsockname())
    assert isinstance(error, NotAPeer)
    assert was_cut(visitor)
    # and the others go on, on the connection they have
    a.endpoint.send(b.address, [b"after"])
    b.waits_for(frames=2)
    assert [frame for _, frame in b.frames] == [b"before", b"after"]
    assert not a.cuts


def test_a_stranger_that_says_nothing_is_cut_off_in_time(loop: RealLoop, stranger: Dial) -> None:
    node = Node(loop, limits=NetworkLimits(hello_ms_max=20))
    silent = stranger(node)
    node.waits_for(cuts=1)
    assert isinstance(node.cuts[0][1], NotAPeer)
    assert "within 20 ms" in str(node.cuts[0][1])
    assert was_cut(silent)


def test_a_proper_hello_is_answered_with_ones_own_name(loop: RealLoop, stranger: Dial) -> None:
    node = Node(loop)
    peer = stranger(node)
    peer.sendall(hello("peer:1") + framed(b"x"))
    node.waits_for(frames=1)
    assert node.frames == [("peer:1", b"x")]
    assert peer.recv(100) == hello(node.address)


@pytest.mark.parametrize(
    ("rubbish", "reason"),
    [
        (struct.pack("<II", (1 << 20) + 1, 0), "frame of 1048577 bytes"),
        (struct.pack("<II", 3, 0) + b"abc", "checksum"),
        (b"\xff" * 1_000, "frame of 4294967295 bytes"),
    ],
)
def test_a_peer_that_turns_bad_is_cut_off_after_its_good_frames(
    loop: RealLoop, stranger: Dial, rubbish: bytes, reason: str
) -> None:
    node = Node(loop)
    peer = stranger(node)
    peer.sendall(hello("peer:1") + framed(b"good") + rubbish + framed(b"never read"))
    node.waits_for(cuts=1)
    assert node.frames == [("peer:1", b"good")]
    ((name, error),) = node.cuts
    assert name == "peer:1"
    assert isinstance(error, PeerMisbehaved)
    assert reason in str(error)
    assert was_cut(peer)


def test_a_frame_of_which_only_the_beginning_came_is_never_delivered(
    loop: RealLoop, stranger: Dial
) -> None:
    for length in (100, 500_000):
        node = Node(loop)
        peer = stranger(node)
        peer.sendall(hello("peer:1") + framed(b"x" * length)[:-1])
        peer.close()
        node.waits_for(cuts=1)
        assert isinstance(node.cuts[0][1], PeerLost)
        assert node.frames == []


def test_a_peer_that_dials_again_takes_the_place_of_its_old_connection(
    loop: RealLoop, stranger: Dial
) -> None:
    # given a connection that the peer has forgotten, as after a power cut
    node = Node(loop)
    old = stranger(node)
    old.sendall(hello("peer:1") + framed(b"old"))
    node.waits_for(frames=1)
    # when the peer dials again
    new = stranger(node)
    new.sendall(hello("peer:1") + framed(b"new"))
    node.waits_for(frames=2, cuts=1)
    # then the old one goes
    assert "connected again" in str(node.cuts[0][1])
    assert was_cut(old)
    new.sendall(framed(b"newer"))
    node.waits_for(frames=3)


def test_connections_are_taken_up_to_a_limit_and_again_when_one_ends(
    loop: RealLoop, stranger: Dial
) -> None:
    # given a node that takes two connections, and has them
    node = Node(loop, limits=NetworkLimits(incoming_max=2))
    peers = [stranger(node), stranger(node)]
    for n, peer in enumerate(peers):
        peer.sendall(hello(f"peer:{n}") + framed(b"x"))
    node.waits_for(frames=2)
    # when a third comes, then it is sent away
    third = stranger(node)
    node.waits_for(cuts=1)
    assert "network.incoming_max" in str(node.cuts[0][1])
    assert was_cut(third)
    # and when one ends, there is room
    peers[0].close()
    node.waits_for(cuts=2)
    stranger(node).sendall(hello("peer:4") + framed(b"in"))
    node.waits_for(frames=3)
    assert node.frames[-1] == ("peer:4", b"in")


def listener(sockets: list[socket.socket]) -> tuple[socket.socket, str]:
    """A bare socket that others can dial; it answers only when told to."""
    one = socket.create_server(("127.0.0.1", 0))
    one.settimeout(10)
    sockets.append(one)
    return one, f"127.0.0.1:{one.getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (hello("other:1"), NotAPeer, "calls itself other:1"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", NotAPeer, "does not speak"),
        (b"", NotAPeer, "hello within 50 ms"),
        (None, PeerMisbehaved, "where only we do"),
    ],
)
def test_whoever_answers_must_be_the_one_who_was_meant(
    loop: RealLoop,
    sockets: list[socket.socket],
    answer: bytes | None,
    kind: type[LowmarkError],
    reason: str,
) -> None:
    # given somebody who answers in a wrong way at a peer's address
    node = Node(loop, limits=NetworkLimits(hello_ms_max=50, rest_ms_min=60_000, rest_ms_max=60_000))
    bare, address = listener(sockets)
    node.endpoint.send(address, [b"secret"])

    def answer_it() -> None:
        other, _ = bare.accept()
        sockets.append(other)
        other.sendall((hello(address) + framed(b"?")) if answer is None else answer)

    loop.call_later(1, answer_it)
    # then it is cut off
    node.waits_for(cuts=1)
    assert node.cuts[0][0] == address
    assert isinstance(node.cuts[0][1], kind)
    assert reason in str(node.cuts[0][1])
    # and has seen no frame unless it said the right name
    seen = b""
    try:
        while piece := sockets[-1].recv(1_000):
            seen += piece
    except ConnectionResetError:
        pass
    if answer is not None:
        assert b"secret" not in seen


def test_a_peer_that_can_not_be_reached_is_left_alone_longer_each_time(loop: RealLoop) -> None:
    # given an address at which nobody listens, and frames for it all the time
    node = Node(loop, limits=NetworkLimits(rest_ms_min=8, rest_ms_max=64))
    gone = Node(loop)
    gone.endpoint.close()
    began_us = loop.elapsed_us()
    for cut in range(1, 7):
        node.endpoint.send(gone.address, [b"x"])
        node.waits_for(cuts=cut)
    # then the rests between the six attempts were at least half of 8, 16, 32, 64 and 64 ms
    assert loop.elapsed_us() - began_us >= 92_000
    assert all(isinstance(error, PeerLost) for _, error in node.cuts)


def test_frames_of_any_size_pass_while_sockets_are_full(loop: RealLoop) -> None:
    # given far more bytes than a socket takes at once, small and large frames mixed
    a, b = Node(loop), Node(loop)
    dice = Random(5)
    sent = []
    for n in range(60):
        sent.append(dice.randbytes(dice.choice([0, 5, 70_000, 300_000, 1_000_000])))
        assert a.endpoint.send(b.address, [b"%d" % n, memoryview(sent[-1])])
    b.waits_for(frames=60)
    assert [frame for _, frame in b.frames] == [b"%d" % n + data for n, data in enumerate(sent)]
    assert a.endpoint.queued_bytes(b.address) == 0


def test_a_peer_that_does_not_read_fills_its_own_queue_only(
    loop: RealLoop, sockets: list[socket.socket]
) -> None:
    # given a peer that says hello and then reads nothing
    limits = NetworkLimits(frame_bytes_max=1 << 20, queued_bytes_max=4 << 20)
    a, b = Node(loop, limits=limits), Node(loop)
    bare, address = listener(sockets)
    a.endpoint.send(address, [b"x"])

    def answer_it() -> None:
        other, _ = bare.accept()
        sockets.append(other)
        other.sendall(hello(address))

    loop.call_later(1, answer_it)
    loop.run_until(lambda: a.endpoint.queued_bytes(address) == 0, timeout_ms=SOON_MS)
    # when it is sent frame after frame
    refused: list[bool] = []

    def send() -> None:
        if a.endpoint.send(address, [bytes(1 << 20)]):
            loop.call_soon(send)
        else:
            refused.append(True)

    send()
    # then its queue fills up, and stays within its limit, while others are served
    loop.run_until(lambda: bool(refused), timeout_ms=SOON_MS)
    assert a.endpoint.queued_bytes(address) <= 4 << 20
    a.endpoint.send(b.address, [b"hello"])
    b.waits_for(frames=1)


def data_segments_in(one: socket.socket) -> int:
    """How many packets with data have come to a socket (struct tcp_info, tcpi_data_segs_in)."""
    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int(struct.unpack_from("<I", info, 152)[0])


def test_what_is_sent_in_one_turn_goes_out_in_one_write(
    loop: RealLoop, sockets: list[socket.socket]
) -> None:
    # given a connection
    node = Node(loop)
    bare, address = listener(sockets)
    node.endpoint.send(address, [b"first"])

    def answer_it() -> None:
        other, _ = bare.accept()
        sockets.append(other)
        other.sendall(hello(address))

    loop.call_later(1, answer_it)
    loop.run_until(lambda: node.endpoint.queued_bytes(address) == 0, timeout_ms=SOON_MS)
    before = data_segments_in(sockets[-1])
    # when many frames are sent in one turn, also one with a large part
    for n in range(200):
        node.endpoint.send(address, [b"group", b"%d" % n])
    node.endpoint.send(address, [b"x" * 40_000])
    loop.run_until(lambda: node.endpoint.queued_bytes(address) == 0, timeout_ms=SOON_MS)
    # then they come together, in as many packets as they need
    received = b""
    while not received.endswith(b"x" * 40_000):
        received += sockets[-1].recv(1 << 20)
    assert data_segments_in(sockets[-1]) - before <= 2


@pytest.mark.parametrize("with_tls", [False, True])
def test_a_large_frame_is_in_memory_once_on_each_side(
    loop: RealLoop, authority: Authority, with_tls: bool
) -> None:
    # given a connection between two nodes
    tls = authority.files("127.0.0.1") if with_tls else None
    limits = NetworkLimits()
    a, b = Node(loop, limits=limits, tls=tls), Node(loop, limits=limits, tls=tls)
    network = RealNetwork(loop, random=Random(1), limits=limits, tls=tls)
    kept: list[Buffer] = []
    c = network.endpoint("127.0.0.1:0", lambda _, frame: kept.append(frame), lambda *_: None)
    a.endpoint.send(c.address, [b"x"])
    a.endpoint.send(b.address, [b"x"])
    loop.run_until(lambda: bool(kept), timeout_ms=SOON_MS)
    b.waits_for(frames=1)
    kept.clear()
    # when a frame of 16 MiB is sent, and received
    data = bytes(limits.frame_bytes_max)
    tracemalloc.start()
    try:
        a.endpoint.send(c.address, [data])
        loop.run_until(lambda: bool(kept), timeout_ms=SOON_MS)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # then its receiver has made room for it once, and nobody else has
    assert kept[0] == data
    assert memoryview(kept[0]).readonly
    assert peak_bytes < limits.frame_bytes_max + (2 << 20)


def test_a_peer_that_was_cut_off_and_dials_again_is_sent_away_without_a_word(
    loop: RealLoop, stranger: Dial
) -> None:
    node = Node(loop, limits=NetworkLimits(rest_ms_min=60_000, rest_ms_max=60_000))
    peer = stranger(node)
    peer.sendall(hello("peer:1") + framed(b"rubbish"))
    node.waits_for(frames=1)
    node.endpoint.cut("peer:1", "it sent rubbish")
    assert was_cut_soon(loop, peer)
    again = stranger(node)
    again.sendall(hello("peer:1") + framed(b"again"))
    assert was_cut_soon(loop, again)
    assert [name for name, _ in node.cuts] == ["peer:1"]
    assert len(node.frames) == 1
    # and another peer is none of its business
    stranger(node).sendall(hello("peer:2") + framed(b"x"))
    node.waits_for(frames=2)


def was_cut_soon(loop: RealLoop, one: socket.socket) -> bool:
    """Whether the other side, which lives on this loop, ends a connection."""
    one.setblocking(False)
    cut: list[bool] = []

    def look() -> None:
        try:
            while one.recv(1 << 16):
                pass
            cut.append(True)
        except BlockingIOError:
            loop.call_later(1, look)
        except ConnectionResetError:
            cut.append(True)

    look()
    loop.run_until(lambda: bool(cut), timeout_ms=SOON_MS)
    return True


def test_a_paused_peer_that_connects_again_and_again_fills_nobodys_memory(
    loop: RealLoop, stranger: Dial
) -> None:
    # given a peer that is paused, and sends frames right behind its hello
    node = Node(loop)
    node.endpoint.pause("peer:1")
    for n in range(5):
        stranger(node).sendall(hello("peer:1") + framed(b"%d" % n))
        node.waits_for(cuts=n)
    # then only what came with its last connection is kept for it
    stranger(node).sendall(hello("peer:1") + framed(b"last"))
    node.waits_for(cuts=5)
    node.endpoint.resume("peer:1")
    node.waits_for(frames=1)
    assert node.frames == [("peer:1", b"last")]


def test_a_name_may_have_another_port_than_the_one_that_is_listened_at(
    loop: RealLoop, sockets: list[socket.socket]
) -> None:
    # given a node behind something that maps ports
    network = RealNetwork(loop, random=Random(1))
    frames: list[Buffer] = []
    endpoint = network.endpoint(
        "n1.example:7400",
        lambda _, frame: frames.append(frame),
        lambda *_: None,
        listen="127.0.0.1:0",
    )
    assert endpoint.address == "n1.example:7400"
    host, _, port = endpoint.listens_at.rpartition(":")
    sockets.append(socket.create_connection((host, int(port)), timeout=10))
    sockets[-1].sendall(hello("peer:1") + framed(b"x"))
    loop.run_until(lambda: bool(frames), timeout_ms=SOON_MS)
    # then it answers with the name by which it is known
    assert sockets[-1].recv(100) == hello("n1.example:7400")


def test_a_place_to_listen_is_refused_by_its_own_name(loop: RealLoop) -> None:
    network = RealNetwork(loop, random=Random(1))
    one = network.endpoint("127.0.0.1:0", lambda *_: None, lambda *_: None)
    with pytest.raises(AddressInUse) as in_use:
        network.endpoint("n1:7400", lambda *_: None, lambda *_: None, listen=one.listens_at)
    assert in_use.value.address == one.listens_at
    with pytest.raises(AddressUnusable) as unusable:
        network.endpoint("n1:7400", lambda *_: None, lambda *_: None, listen="nonsense")
    assert unusable.value.address == "nonsense"


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_nobody_is_known_by_the_address_of_all_hosts(loop: RealLoop, address: str) -> None:
    network = RealNetwork(loop, random=Random(1))
    with pytest.raises(AddressUnusable, match="other nodes can't dial it"):
        network.endpoint(address, lambda *_: None, lambda *_: None)


@pytest.mark.parametrize(
    "address",
    ["", "nonsense", ":1", "host:", "host:x", "host:65536", "host:-1", "a" * 300 + ":1"],
)
def test_what_is_no_address_is_refused(loop: RealLoop, address: str) -> None:
    node = Node(loop)
    network = RealNetwork(loop, random=Random(1))
    with pytest.raises(AddressUnusable):
        network.endpoint(address, lambda *_: None, lambda *_: None)
    if len(address) < 255:
        with pytest.raises(AddressUnusable):
            node.endpoint.send(address, [b"x"])


def test_an_address_of_another_machine_can_not_be_listened_at(loop: RealLoop) -> None:
    # given an address that is reserved for books (RFC 5737)
    network = RealNetwork(loop, random=Random(1))
    with pytest.raises(AddressUnusable, match="Cannot assign"):
        network.endpoint("192.0.2.1:0", lambda *_: None, lambda *_: None)


@pytest.mark.parametrize("name", ["a" * 70 + ".invalid:1", "no such host:1"])
def test_a_name_that_can_not_be_looked_up_is_a_lost_peer(loop: RealLoop, name: str) -> None:
    node = Node(loop)
    node.endpoint.send(name, [b"x"])
    node.waits_for(cuts=1)
    assert isinstance(node.cuts[0][1], PeerLost)


def test_ipv6_addresses_stand_in_brackets(loop: RealLoop) -> None:
    network = RealNetwork(loop, random=Random(1))
    frames: list[Buffer] = []
    try:
        one = network.endpoint("[::1]:0", lambda _, frame: frames.append(frame), lambda *_: None)
    except AddressUnusable:
        pytest.skip("this machine has no IPv6")
    one.send(one.address, [b"x"])
    loop.run_until(lambda: bool(frames), timeout_ms=SOON_MS)
    assert one.address.startswith("[::1]:")


def test_a_loop_that_is_closed_in_the_middle_leaves_nothing_open() -> None:
    # given an endpoint that listens, one that dials, one that rests, and frames under way
    for turns in range(8):
        loop = RealLoop()
        a, b, gone = Node(loop), Node(loop), Node(loop)
        gone.endpoint.close()
        a.endpoint.send(b.address, [bytes(1 << 20)])
        a.endpoint.send(gone.address, [b"x"])
        count: list[int] = []

        def turn(count: list[int] = count, loop: RealLoop = loop) -> None:
            count.append(1)
            loop.call_soon(turn)

        loop.call_soon(turn)
        loop.run_until(lambda count=count, turns=turns: len(count) >= turns)  # type: ignore[misc]
        # when the loop is closed, then no socket is left to the garbage collector to complain of
        loop.close()
    gc.collect()
