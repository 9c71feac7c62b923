"""Frames over TCP, with or without TLS, on the loop's own asyncio.

An endpoint listens, and dials each peer it sends to. Frames travel only from the side that dialled,
so two nodes have two connections, and neither needs to agree with the other on which one to keep.
A connection starts with a hello each way: the one who dialled says who it is, the other proves that
it is the one who was meant. With TLS, each name must also be in its bearer's certificate; without,
it is believed.

A connection that fails takes the frames that waited for it along: by the time the peer can be
reached again they are old, and Raft has better ones. After a failure the endpoint rests, longer
each time, and dials again only when there is something to send. A peer that dials us ends the rest:
a node that comes back after long is reached at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from random import Random
from typing import TypeAlias

from lowmark.errors import LowmarkError
from lowmark.runtime.certificates import LOOK_MS, Certificates
from lowmark.runtime.disk import Buffer, bytes_in
from lowmark.runtime.frames import frame_header, hello
from lowmark.runtime.network import (
    FRAME_HEADER_BYTES,
    AddressInUse,
    AddressUnusable,
    FrameTooLong,
    NetworkLimits,
    NotAPeer,
    OnCut,
    OnFrame,
    OnRoom,
    PeerLost,
    PeerMisbehaved,
    PeerRefused,
    host_and_port,
    ignore_room,
)
from lowmark.runtime.real_loop import RealLoop
from lowmark.runtime.tls import Tls, TlsFiles
from lowmark.runtime.wires import Owner, TlsWire, Wire

_JOIN_BYTES = 64 << 10  # below that, bytes are cheaper to copy together than to send alone
_SLICE_BYTES = 256 << 10  # at most this much of a large buffer is copied when a socket is full
_SCRATCH_BYTES = 256 << 10


_Frame: TypeAlias = tuple[list[Buffer], int]
"""Its buffers, header first, and how many bytes they are."""


class _Outgoing:
    """What waits for one peer, and the connection that carries it there."""

    def __init__(self, endpoint: _RealEndpoint, peer: str) -> None:
        self._endpoint = endpoint
        self._peer = peer
        self._host, self._port = host_and_port(peer)
        self._queue: deque[Buffer] = deque()  # what is being sent: as a rule one frame
        self._urgent: deque[_Frame] = deque()
        self._patient: deque[_Frame] = deque()
        self._queue_bytes = 0  # of all three
        self._urgent_bytes = 0  # of those that wait
        self._refused = False  # a frame, since there was room
        self._dialling: asyncio.Task[None] | None = None
        self._wire: Wire | None = None
        self._greeted = False
        self._pumps_soon = False
        self._resting: asyncio.TimerHandle | None = None
        self._rest_ms = endpoint.limits.rest_ms_min
        self._plain = False
        """Whether it is dialled without TLS now: it hung up on a handshake."""

    @property
    def wire(self) -> Wire | None:
        """The connection, or the attempt to make one."""
        return self._wire

    def queued_bytes(self) -> int:
        unsent = self._wire.unsent_bytes() if self._wire is not None else 0
        return self._queue_bytes + unsent

    def push(self, buffers: Sequence[Buffer], size: int, *, urgent: bool) -> bool:
        frame_bytes, limits = FRAME_HEADER_BYTES + size, self._endpoint.limits
        if urgent:
            full = self._urgent_bytes + size > limits.frame_bytes_max
        else:
            full = self.queued_bytes() + frame_bytes > limits.queued_bytes_max
        if full:
            self._refused = True
            return False
        frame = [
            buffer.cast("B") if isinstance(buffer, memoryview) else buffer
            for buffer in (frame_header(buffers), *buffers)
        ]
        (self._urgent if urgent else self._patient).append((frame, frame_bytes))
        self._queue_bytes += frame_bytes
        self._urgent_bytes += frame_bytes if urgent else 0
        if self._greeted:
            if not self._pumps_soon:
                # At the end of this turn, so that what all groups send in it goes out together.
                self._pumps_soon = True
                self._endpoint.loop.asyncio.call_soon(self._pump)
        elif self._wire is None and self._resting is None:
            self._dial()
        return True

    def close(self) -> None:
        self._drop()
        if self._dialling is not None:
            self._dialling.cancel()
        if self._resting is not None:
            self._resting.cancel()
        if self._wire is not None:
            self._wire.let_go()

    def hang_up(self) -> None:
        """End the connection, or the attempt to make one; the next frame makes a new one."""
        wire = self._wire
        if wire is not None:
            if self._dialling is not None:
                self._dialling.cancel()
            wire.let_go()
            self._rest()

    def is_back(self) -> None:
        """The peer has just dialled us: it is there, however long it was away."""
        if self._resting is not None:
            self._resting.cancel()
            self._rest_ms = self._endpoint.limits.rest_ms_min
            self._rested()

    # -- the way there ----------------------------------------------------------------------------

    def _dial(self) -> None:
        self._wire = self._endpoint.dialling_wire(self, self._peer, plain=self._plain)
        self._dialling = self._endpoint.loop.asyncio.create_task(self._connect(self._wire))

    async def _connect(self, wire: Wire) -> None:
        running = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._endpoint.limits.hello_ms_max / 1000):
                # A name is looked up each time: it may mean another machine than the last time.
                await running.create_connection(lambda: wire, self._host, self._port)
        except TimeoutError:
            wire.end(PeerLost(self._peer, reason="it does not answer"))
        except (OSError, UnicodeError) as error:  # the latter: no such name can be looked up
            wire.end(PeerLost(self._peer, reason=str(error)))

    def on_made(self, wire: Wire) -> None:
        """We wait for it to be ready."""

    def on_ready(self, wire: Wire) -> None:
        refusal = wire.refusal(self._peer)
        if refusal is not None:
            wire.end(PeerRefused(self._peer, reason=refusal))
        else:
            wire.write(hello(self._endpoint.address))

    def on_hello(self, wire: Wire, address: str) -> None:
        if address != self._peer:
            wire.end(NotAPeer(self._peer, reason=f"it calls itself {address}"))
            return
        self._greeted = True
        self._rest_ms = self._endpoint.limits.rest_ms_min
        self._pump()

    def on_frame(self, wire: Wire, frame: Buffer) -> None:
        del frame
        wire.end(PeerMisbehaved(self._peer, reason="it sent a frame where only we do"))

    def on_turn(self, wire: Wire) -> None:
        """Nothing is passed on: no frame comes this way."""

    def on_writable(self) -> None:
        self._pump()

    def on_end(self, wire: Wire, error: LowmarkError) -> None:
        # With TLS first, each time: the peer may have been started with it meanwhile.
        hung_up = wire.was_made and isinstance(wire, TlsWire) and wire.heard_nothing
        self._plain = hung_up and self._endpoint.tls_optional
        self._endpoint.tell_cut(self._peer, error)
        self._rest()

    def _rest(self) -> None:
        self._drop()
        self._wire = None
        limits = self._endpoint.limits
        # Half of the rest is chance, so that a cluster does not dial a returning node in step.
        rest_ms = self._rest_ms * (1 + self._endpoint.random.random()) / 2
        self._rest_ms = min(self._rest_ms * 2, limits.rest_ms_max)
        self._resting = self._endpoint.loop.asyncio.call_later(rest_ms / 1000, self._rested)
        self._tell_room()

    def _drop(self) -> None:
        for queue in (self._queue, self._urgent, self._patient):
            queue.clear()
        self._queue_bytes = self._urgent_bytes = 0
        self._greeted = False

    def _rested(self) -> None:
        self._resting = None
        if self._queue_bytes:
            self._dial()

    # -- the bytes --------------------------------------------------------------------------------

    def _pump(self) -> None:
        self._pumps_soon = False
        while self._queue_bytes and self._wire is not None and self._wire.has_room():
            if not self._queue:
                self._take_frames()
            data = self._next_bytes()
            self._queue_bytes -= len(data)
            self._wire.write(data)
        self._tell_room()
        if not self._queue_bytes:
            # Somebody may run the loop until this queue is empty, and must be asked again.
            self._endpoint.loop.call_soon(_nothing)

    def _tell_room(self) -> None:
        if self._refused and self.queued_bytes() <= self._endpoint.limits.queued_bytes_max // 2:
            self._refused = False
            self._endpoint.tell_room(self._peer)

    def _take_frames(self) -> None:
        """Take what is sent next: all that is urgent; else one frame, or some that are short.

        What is urgent and comes now waits for no more than these.
        """
        if self._urgent:
            for frame, _ in self._urgent:
                self._queue.extend(frame)
            self._urgent.clear()
            self._urgent_bytes = 0
            return
        room = _JOIN_BYTES
        while self._patient and room > 0:
            frame, size = self._patient.popleft()
            self._queue.extend(frame)
            room -= size

    def _next_bytes(self) -> Buffer:
        """Small buffers joined, large ones in slices: few calls, and few bytes copied.

        A header is joined with the beginning of what follows, however large.
        """
        queue = self._queue
        if len(queue[0]) >= _JOIN_BYTES:
            return self._beginning(_SLICE_BYTES)
        small: list[Buffer] = []
        room = _JOIN_BYTES
        while queue and (length := len(queue[0])) <= room:
            small.append(queue.popleft())
            room -= length
        if queue and room:
            small.append(self._beginning(room))
        return b"".join(small)

    def _beginning(self, most: int) -> Buffer:
        first = memoryview(self._queue[0])
        if len(first) <= most:
            self._queue.popleft()
        else:
            self._queue[0] = first[most:]
        return first[:most]


class _RealEndpoint:
    def __init__(
        self,
        network: RealNetwork,
        address: str,
        *,
        on_frame: OnFrame,
        on_cut: OnCut,
        on_room: OnRoom,
        listen: str,
    ) -> None:
        self._listener, self._address, self._listens_at = _listen(address, listen, network.limits)
        self._network = network
        self._on_frame = on_frame
        self._on_cut = on_cut
        self._on_room = on_room
        self._closed = False
        self._outgoing: dict[str, _Outgoing] = {}
        self._incoming: dict[str, Wire] = {}
        self._strangers: list[Wire] = []
        self._paused: set[str] = set()
        self._deaf_until_us: dict[str, int] = {}  # to peers that were cut off
        self._accepting: set[asyncio.Task[object]] = set()
        self._full: asyncio.TimerHandle | None = None
        self.loop, self.limits, self.random = network.loop, network.limits, network.random
        self._listen()

    @property
    def address(self) -> str:
        return self._address

    @property
    def listens_at(self) -> str:
        return self._listens_at

    def send(self, to: str, buffers: Sequence[Buffer], *, urgent: bool = False) -> bool:
        size = bytes_in(buffers)
        if size > self.limits.frame_bytes_max:
            raise FrameTooLong(frame_bytes=size, frame_bytes_max=self.limits.frame_bytes_max)
        if self._closed:
            return False
        outgoing = self._outgoing.get(to)
        if outgoing is None:
            outgoing = self._outgoing[to] = _Outgoing(self, to)
        return outgoing.push(buffers, size, urgent=urgent)

    def queued_bytes(self, to: str) -> int:
        outgoing = self._outgoing.get(to)
        return 0 if outgoing is None else outgoing.queued_bytes()

    def pause(self, peer: str) -> None:
        self._paused.add(peer)
        wire = self._incoming.get(peer)
        if wire is not None:
            wire.pause_reading()

    def resume(self, peer: str) -> None:
        self._paused.discard(peer)
        wire = self._incoming.get(peer)
        if wire is not None:
            for _ in wire.inbox:
                self.loop.call_soon(wire.pass_on)
            wire.resume_reading()

    def cut(self, peer: str, reason: str) -> None:
        if self._closed:
            return
        now_us = self.loop.elapsed_us()
        self._deaf_until_us = {
            name: until_us for name, until_us in self._deaf_until_us.items() if until_us > now_us
        }
        self._deaf_until_us[peer] = now_us + self.limits.rest_ms_max * 1_000
        incoming = self._incoming.pop(peer, None)
        if incoming is not None:
            incoming.inbox.clear()
            incoming.let_go()
        self.tell_cut(peer, PeerMisbehaved(peer, reason=reason))
        outgoing = self._outgoing.get(peer)
        if outgoing is not None:
            outgoing.hang_up()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._network.forget(self)
        self._stop_listening()
        self._listener.close()
        for outgoing in self._outgoing.values():
            outgoing.close()
        for wire in (*self._incoming.values(), *self._strangers):
            wire.let_go()

    def judge_again(self, tls: Tls, *, now_s: float, all_of_them: bool) -> None:
        """Cut connections whose other side is not believed any more. `all_of_them`: an authority is
        gone, and each has to prove again who it is.
        """
        dialled = [outgoing.wire for outgoing in self._outgoing.values()]
        for wire in (*self._incoming.values(), *self._strangers, *dialled):
            refusal = None if wire is None else wire.refused_now(tls, now_s=now_s)
            if wire is None or not wire.is_secure:
                continue
            if refusal is not None:
                wire.end(PeerRefused(wire.peer, reason=refusal))
            elif all_of_them:
                wire.end(PeerLost(wire.peer, reason="who is believed has changed"))

    def dialling_wire(self, owner: Owner, peer: str, *, plain: bool) -> Wire:
        """A connection to be made to a peer."""
        return self._network.wire(owner, peer=peer, dials=True, plain=plain)

    @property
    def tls_optional(self) -> bool:
        """Whether a peer that speaks no TLS is one, too."""
        return self._network.tls_optional

    def tell_cut(self, peer: str, error: LowmarkError) -> None:
        """Tell, on the loop, that frames to or from a peer may be lost."""
        self._call(lambda: self._on_cut(peer, error))

    def tell_room(self, peer: str) -> None:
        """Tell, on the loop, that a queue which was full takes frames again."""
        self._call(lambda: self._on_room(peer))

    def _call(self, callback: Callable[[], None]) -> None:
        def call_unless_closed() -> None:
            if not self._closed:
                callback()

        self.loop.call_soon(call_unless_closed)

    # -- those who dial us ------------------------------------------------------------------------

    # asyncio's own server leaks a connection that is accepted in the moment it closes (3.11), and
    # only logs when there are too many; so we accept ourselves.

    def _listen(self) -> None:
        self._full = None
        self.loop.asyncio.add_reader(self._listener, self._accept)

    def _stop_listening(self) -> None:
        self.loop.asyncio.remove_reader(self._listener)
        if self._full is not None:
            self._full.cancel()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # whoever it was has thought better of it
        except OSError as error:
            # Too many open files, most likely. They wait in the backlog while we wait for room.
            self._stop_listening()
            self._full = self.loop.asyncio.call_later(self.limits.rest_ms_max / 1000, self._listen)
            self.tell_cut("a new peer", PeerLost("a new peer", reason=str(error)))
            return
        connection.setblocking(False)
        making = self.loop.asyncio.connect_accepted_socket(
            lambda: self._network.wire(self, peer="", dials=False), connection
        )
        task: asyncio.Task[object] = self.loop.asyncio.create_task(making)
        self._accepting.add(task)  # asyncio itself does not hold on to its tasks
        task.add_done_callback(self._accepting.discard)

    def on_made(self, wire: Wire) -> None:
        if self._closed:
            wire.let_go()
            return
        full = len(self._incoming) + len(self._strangers) >= self.limits.incoming_max
        self._strangers.append(wire)
        if full:
            reason = f"{self.limits.incoming_max} connections are open (network.incoming_max)"
            wire.end(PeerLost(wire.peer, reason=reason))

    def on_ready(self, wire: Wire) -> None:
        """The one who dialled speaks first."""

    def on_hello(self, wire: Wire, address: str) -> None:
        refusal = wire.refusal(address)
        if refusal is not None:
            wire.end(PeerRefused(wire.peer, reason=f"it calls itself {address}; {refusal}"))
            return
        self._strangers.remove(wire)
        if self._deaf_until_us.get(address, 0) > self.loop.elapsed_us():
            wire.let_go()  # that it is cut off has been told
            return
        before = self._incoming.get(address)
        if before is not None:
            # The peer knows best: it would not dial again if the old connection were any good.
            before.end(PeerLost(address, reason="it has connected again"))
        wire.peer = address
        self._incoming[address] = wire
        wire.write(hello(self._address))
        if address in self._paused:
            wire.pause_reading()
        outgoing = self._outgoing.get(address)
        if outgoing is not None:
            outgoing.is_back()

    def on_frame(self, wire: Wire, frame: Buffer) -> None:
        wire.inbox.append(frame)
        self.loop.call_soon(wire.pass_on)

    def on_turn(self, wire: Wire) -> None:
        # What is kept for a paused peer goes with its connection; else a peer that connects again
        # and again would fill our memory.
        if wire.inbox and wire.peer not in self._paused and not self._closed:
            self._on_frame(wire.peer, wire.inbox.popleft())

    def on_writable(self) -> None:
        """Nothing waits: all we ever say to those who dial us is hello."""

    def on_end(self, wire: Wire, error: LowmarkError) -> None:
        if self._incoming.get(wire.peer) is wire:
            del self._incoming[wire.peer]
        else:
            self._strangers.remove(wire)
        self.tell_cut(wire.peer, error)


class RealNetwork:
    """TCP. An address is host:port; port 0 takes a free one, and the endpoint says which."""

    def __init__(
        self,
        loop: RealLoop,
        *,
        random: Random,
        limits: NetworkLimits | None = None,
        tls: TlsFiles | None = None,
        tls_optional: bool = False,
        tls_look_ms: float = LOOK_MS,
    ) -> None:
        """`tls_optional`: others may speak without TLS, too."""
        self.loop = loop
        self.tls_optional = tls is not None and tls_optional
        self.random = random
        self.limits = limits or NetworkLimits()
        self.certificates = None if tls is None else Certificates(loop, tls, look_ms=tls_look_ms)
        self._scratch = memoryview(bytearray(0 if tls is None else _SCRATCH_BYTES))
        self._endpoints: list[_RealEndpoint] = []
        loop.at_close(self._close)
        if self.certificates is not None:
            self._tls = self.certificates.tls
            self.certificates.at_look(self._judge_again)

    def endpoint(
        self,
        address: str,
        on_frame: OnFrame,
        on_cut: OnCut,
        *,
        on_room: OnRoom = ignore_room,
        listen: str | None = None,
    ) -> _RealEndpoint:
        if self.certificates is not None:
            self.certificates.check_ours(host_and_port(address)[0])
        endpoint = _RealEndpoint(
            self,
            address,
            on_frame=on_frame,
            on_cut=on_cut,
            on_room=on_room,
            listen=address if listen is None else listen,
        )
        self._endpoints.append(endpoint)
        return endpoint

    def wire(self, owner: Owner, *, peer: str, dials: bool, plain: bool = False) -> Wire:
        """A connection that is about to be made, with TLS if there is TLS."""
        if self.certificates is None or plain:
            return Wire(owner, peer=peer, limits=self.limits)
        tls = self.certificates.tls
        session = tls.dial() if dials else tls.answer()
        return TlsWire(
            owner,
            peer=peer,
            limits=self.limits,
            session=session,
            scratch=self._scratch,
            may_be_plain=self.tls_optional and not dials,
        )

    def forget(self, endpoint: _RealEndpoint) -> None:
        """An endpoint was closed."""
        self._endpoints.remove(endpoint)

    def _judge_again(self) -> None:
        """Cut connections that would not be made any more."""
        assert self.certificates is not None
        before, self._tls = self._tls, self.certificates.tls
        gone = before.authorities - self._tls.authorities
        for endpoint in list(self._endpoints):
            endpoint.judge_again(
                self._tls, now_s=self.loop.wall_ms() / 1_000, all_of_them=bool(gone)
            )

    def _close(self) -> None:
        for endpoint in list(self._endpoints):
            endpoint.close()


def _nothing() -> None:
    pass


def _listen(address: str, listen: str, limits: NetworkLimits) -> tuple[socket.socket, str, str]:
    """A socket that listens, the name that others dial, and where it really listens."""
    if len(address.encode()) > limits.address_bytes_max:
        raise AddressUnusable(address, reason=f"it has over {limits.address_bytes_max} bytes")
    known_as, known_port = host_and_port(address)
    if _is_any_host(known_as):
        raise AddressUnusable(
            address, reason="other nodes can't dial it; give the address to listen at separately"
        )
    host, port = host_and_port(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()  # all addresses: those of IPv4, too
    try:
        listener = socket.create_server(
            (host, port), family=family, backlog=128, dualstack_ipv6=both
        )
        listener.setblocking(False)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(listen) from error
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise AddressUnusable(listen, reason=reason) from error
    real_port = listener.getsockname()[1]
    return listener, _with_port(address, known_port or real_port), _with_port(listen, real_port)


def _with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"


def _is_any_host(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
