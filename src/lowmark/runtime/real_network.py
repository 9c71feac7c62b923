"""Frames over TCP, on the loop's own asyncio.

An endpoint listens, and dials each peer it sends to. Frames travel only from the side that dialled,
so two nodes have two connections, and neither needs to agree with the other on which one to keep.
A connection starts with a hello each way: the one who dialled says who it is, the other proves that
it is the one who was meant.

A connection that fails takes the frames that waited for it along: by the time the peer can be
reached again they are old, and Raft has better ones. After a failure the endpoint rests, longer
each time, and dials again only when there is something to send.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol, assert_never, cast

from lowmark.errors import LowmarkError
from lowmark.runtime.disk import Buffer, bytes_in
from lowmark.runtime.frames import Arrived, FrameReader, Hello, Misread, frame_header, hello
from lowmark.runtime.network import (
    FRAME_HEADER_BYTES,
    AddressInUse,
    AddressUnusable,
    FrameTooLong,
    NetworkLimits,
    NotAPeer,
    OnCut,
    OnFrame,
    PeerLost,
    PeerMisbehaved,
)
from lowmark.runtime.real_loop import RealLoop

__all__ = ["RealNetwork"]

_JOIN_BELOW_BYTES = 64 << 10  # smaller buffers are cheaper to copy together than to send alone
_SLICE_BYTES = 256 << 10  # at most this much of a large buffer is copied when a socket is full


class _Owner(Protocol):
    """Whoever has a wire."""

    def on_made(self, wire: _Wire) -> None:
        """The connection is there."""

    def on_hello(self, wire: _Wire, address: str) -> None:
        """The other side said its name."""

    def on_frame(self, wire: _Wire, frame: Buffer) -> None:
        """A frame arrived, after the hello."""

    def on_room(self) -> None:
        """The socket takes bytes again."""

    def on_end(self, wire: _Wire, error: LowmarkError) -> None:
        """The wire is gone; called once, unless its owner itself let go of it."""


class _Wire(asyncio.BufferedProtocol):
    """One TCP connection."""

    def __init__(self, owner: _Owner, *, peer: str, limits: NetworkLimits) -> None:
        self._owner = owner
        self._limits = limits
        self._reader = FrameReader(limits)
        self._transport: asyncio.Transport | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._ended = False
        self._full = False
        self.peer = peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._ended:
            self._transport.abort()
            return
        # Whatever the socket does not take at once shall wait in our queue, where it is counted.
        self._transport.set_write_buffer_limits(high=0)
        _tune(self._transport.get_extra_info("socket"), self._limits)
        self.peer = self.peer or _name_of(self._transport.get_extra_info("peername"))
        self._alarm = asyncio.get_running_loop().call_later(
            self._limits.hello_ms_max / 1000, self._no_hello
        )
        self._owner.on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        try:
            for event in self._reader.arrived(nbytes):
                match event:
                    case Hello(address=address):
                        self._disarm()
                        self._owner.on_hello(self, address)
                    case Arrived(frame=frame):
                        self._owner.on_frame(self, frame)
                    case _:
                        assert_never(event)
                if self.has_ended():
                    return
        except Misread as misread:
            error = PeerMisbehaved if misread.greeted else NotAPeer
            self.end(error(self.peer, reason=misread.reason))

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(PeerLost(self.peer, reason=str(exc) if exc else "the other side closed it"))

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if not self._ended:
            self._owner.on_room()

    def has_ended(self) -> bool:
        """Whether it was cut."""
        return self._ended

    def has_room(self) -> bool:
        """Whether the socket took everything so far."""
        return not self._full and not self._ended

    def write(self, data: Buffer) -> None:
        """Hand over some bytes."""
        if self._transport is not None and not self._ended:
            self._transport.write(data)

    def unsent_bytes(self) -> int:
        """How much of it the socket has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def end(self, error: LowmarkError) -> None:
        """Cut the connection, and tell the owner why."""
        if not self._ended:
            self.let_go()
            self._owner.on_end(self, error)

    def let_go(self) -> None:
        """Cut the connection without a word."""
        self._ended = True
        self._disarm()
        if self._transport is not None:
            self._transport.abort()

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _no_hello(self) -> None:
        reason = f"it did not say hello within {self._limits.hello_ms_max} ms"
        self.end(NotAPeer(self.peer, reason=reason))


class _Outgoing:
    """What waits for one peer, and the connection that carries it there."""

    def __init__(self, endpoint: _RealEndpoint, peer: str) -> None:
        self._endpoint = endpoint
        self._peer = peer
        self._host, self._port = _parsed(peer)
        self._queue: deque[Buffer] = deque()
        self._queue_bytes = 0
        self._dialling: asyncio.Task[None] | None = None
        self._wire: _Wire | None = None
        self._greeted = False
        self._pumps_soon = False
        self._resting: asyncio.TimerHandle | None = None
        self._rest_ms = endpoint.limits.rest_ms_min

    def queued_bytes(self) -> int:
        unsent = self._wire.unsent_bytes() if self._wire is not None else 0
        return self._queue_bytes + unsent

    def push(self, buffers: Sequence[Buffer]) -> None:
        for buffer in (frame_header(buffers), *buffers):
            self._queue.append(buffer.cast("B") if isinstance(buffer, memoryview) else buffer)
        self._queue_bytes += FRAME_HEADER_BYTES + bytes_in(buffers)
        if self._greeted:
            if not self._pumps_soon:
                # At the end of this turn, so that what all groups send in it goes out together.
                self._pumps_soon = True
                self._endpoint.loop.asyncio.call_soon(self._pump)
        elif self._wire is None and self._resting is None:
            self._dial()

    def close(self) -> None:
        self._drop()
        if self._dialling is not None:
            self._dialling.cancel()
        if self._resting is not None:
            self._resting.cancel()
        if self._wire is not None:
            self._wire.let_go()

    # -- the way there ----------------------------------------------------------------------------

    def _dial(self) -> None:
        self._wire = _Wire(self, peer=self._peer, limits=self._endpoint.limits)
        self._dialling = self._endpoint.loop.asyncio.create_task(self._connect(self._wire))

    async def _connect(self, wire: _Wire) -> None:
        running = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._endpoint.limits.hello_ms_max / 1000):
                await running.create_connection(lambda: wire, self._host, self._port)
        except TimeoutError:
            wire.end(PeerLost(self._peer, reason="it does not answer"))
        except (OSError, UnicodeError) as error:  # the latter: no such name can be looked up
            wire.end(PeerLost(self._peer, reason=str(error)))

    def on_made(self, wire: _Wire) -> None:
        wire.write(hello(self._endpoint.address))

    def on_hello(self, wire: _Wire, address: str) -> None:
        if address != self._peer:
            wire.end(NotAPeer(self._peer, reason=f"it calls itself {address}"))
            return
        self._greeted = True
        self._rest_ms = self._endpoint.limits.rest_ms_min
        self._pump()

    def on_frame(self, wire: _Wire, frame: Buffer) -> None:
        del frame
        wire.end(PeerMisbehaved(self._peer, reason="it sent a frame where only we do"))

    def on_room(self) -> None:
        self._pump()

    def on_end(self, wire: _Wire, error: LowmarkError) -> None:
        del wire
        self._drop()
        self._wire = None
        limits = self._endpoint.limits
        # Half of the rest is chance, so that a cluster does not dial a returning node in step.
        rest_ms = self._rest_ms * (1 + self._endpoint.random.random()) / 2
        self._rest_ms = min(self._rest_ms * 2, limits.rest_ms_max)
        self._resting = self._endpoint.loop.asyncio.call_later(rest_ms / 1000, self._rested)
        self._endpoint.tell_cut(self._peer, error)

    def _drop(self) -> None:
        self._queue.clear()
        self._queue_bytes = 0
        self._greeted = False

    def _rested(self) -> None:
        self._resting = None
        if self._queue:
            self._dial()

    # -- the bytes --------------------------------------------------------------------------------

    def _pump(self) -> None:
        self._pumps_soon = False
        while self._queue and self._wire is not None and self._wire.has_room():
            data = self._next_bytes()
            self._queue_bytes -= len(data)
            self._wire.write(data)
        if not self._queue:
            # Somebody may run the loop until this queue is empty, and must be asked again.
            self._endpoint.loop.call_soon(_nothing)

    def _next_bytes(self) -> Buffer:
        """Small buffers joined, large ones in slices: few calls, and few bytes copied."""
        first = self._queue[0]
        if len(first) > _JOIN_BELOW_BYTES:
            view = memoryview(first)
            if len(view) > _SLICE_BYTES:
                self._queue[0] = view[_SLICE_BYTES:]
            else:
                self._queue.popleft()
            return view[:_SLICE_BYTES]
        small: list[Buffer] = []
        size = 0
        while self._queue and size + len(self._queue[0]) <= _JOIN_BELOW_BYTES:
            small.append(self._queue.popleft())
            size += len(small[-1])
        return b"".join(small)


class _RealEndpoint:
    def __init__(
        self, network: RealNetwork, address: str, on_frame: OnFrame, on_cut: OnCut
    ) -> None:
        self._listener, self._address = _listen(address, network.limits)
        self._network = network
        self._on_frame = on_frame
        self._on_cut = on_cut
        self._closed = False
        self._outgoing: dict[str, _Outgoing] = {}
        self._incoming: dict[str, _Wire] = {}
        self._strangers: list[_Wire] = []
        self._accepting: set[asyncio.Task[object]] = set()
        self._pausing: asyncio.TimerHandle | None = None
        self.loop, self.limits, self.random = network.loop, network.limits, network.random
        self._listen()

    @property
    def address(self) -> str:
        return self._address

    def send(self, to: str, buffers: Sequence[Buffer]) -> bool:
        size = bytes_in(buffers)
        if size > self.limits.frame_bytes_max:
            raise FrameTooLong(frame_bytes=size, frame_bytes_max=self.limits.frame_bytes_max)
        if self._closed:
            return False
        outgoing = self._outgoing.get(to)
        if outgoing is None:
            outgoing = self._outgoing[to] = _Outgoing(self, to)
        queued_bytes = outgoing.queued_bytes() + FRAME_HEADER_BYTES + size
        if queued_bytes > self.limits.queued_bytes_max:
            return False
        outgoing.push(buffers)
        return True

    def queued_bytes(self, to: str) -> int:
        outgoing = self._outgoing.get(to)
        return 0 if outgoing is None else outgoing.queued_bytes()

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

    def tell_cut(self, peer: str, error: LowmarkError) -> None:
        """Tell, on the loop, that frames to or from a peer may be lost."""
        self._call(lambda: self._on_cut(peer, error))

    def _call(self, callback: Callable[[], None]) -> None:
        def call_unless_closed() -> None:
            if not self._closed:
                callback()

        self.loop.call_soon(call_unless_closed)

    # -- those who dial us ------------------------------------------------------------------------

    # asyncio's own server leaks a connection that is accepted in the moment it closes (3.11), and
    # only logs when there are too many; so we accept ourselves.

    def _listen(self) -> None:
        self._pausing = None
        self.loop.asyncio.add_reader(self._listener, self._accept)

    def _stop_listening(self) -> None:
        self.loop.asyncio.remove_reader(self._listener)
        if self._pausing is not None:
            self._pausing.cancel()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # whoever it was has thought better of it
        except OSError as error:
            # Too many open files, most likely. They wait in the backlog while we wait for room.
            self._stop_listening()
            self._pausing = self.loop.asyncio.call_later(
                self.limits.rest_ms_max / 1000, self._listen
            )
            self.tell_cut("somebody", PeerLost("somebody", reason=str(error)))
            return
        connection.setblocking(False)
        making = self.loop.asyncio.connect_accepted_socket(
            lambda: _Wire(self, peer="", limits=self.limits), connection
        )
        task: asyncio.Task[object] = self.loop.asyncio.create_task(making)
        self._accepting.add(task)  # asyncio itself does not hold on to its tasks
        task.add_done_callback(self._accepting.discard)

    def on_made(self, wire: _Wire) -> None:
        if self._closed:
            wire.let_go()
            return
        full = len(self._incoming) + len(self._strangers) >= self.limits.incoming_max
        self._strangers.append(wire)
        if full:
            reason = f"{self.limits.incoming_max} connections are open (network.incoming_max)"
            wire.end(PeerLost(wire.peer, reason=reason))

    def on_hello(self, wire: _Wire, address: str) -> None:
        before = self._incoming.get(address)
        if before is not None:
            # The peer knows best: it would not dial again if the old connection were any good.
            before.end(PeerLost(address, reason="it has connected again"))
        wire.peer = address
        self._strangers.remove(wire)
        self._incoming[address] = wire
        wire.write(hello(self._address))

    def on_frame(self, wire: _Wire, frame: Buffer) -> None:
        peer = wire.peer
        self._call(lambda: self._on_frame(peer, frame))

    def on_room(self) -> None:
        """Nothing waits: all we ever say to those who dial us is hello."""

    def on_end(self, wire: _Wire, error: LowmarkError) -> None:
        if self._incoming.get(wire.peer) is wire:
            del self._incoming[wire.peer]
        else:
            self._strangers.remove(wire)
        self.tell_cut(wire.peer, error)


class RealNetwork:
    """TCP. An address is host:port; port 0 takes a free one, and the endpoint says which."""

    def __init__(
        self, loop: RealLoop, *, random: Random, limits: NetworkLimits | None = None
    ) -> None:
        self.loop = loop
        self.random = random
        self.limits = limits or NetworkLimits()
        self._endpoints: list[_RealEndpoint] = []
        loop.at_close(self._close)

    def endpoint(self, address: str, on_frame: OnFrame, on_cut: OnCut) -> _RealEndpoint:
        endpoint = _RealEndpoint(self, address, on_frame, on_cut)
        self._endpoints.append(endpoint)
        return endpoint

    def forget(self, endpoint: _RealEndpoint) -> None:
        """An endpoint was closed."""
        self._endpoints.remove(endpoint)

    def _close(self) -> None:
        for endpoint in list(self._endpoints):
            endpoint.close()


def _nothing() -> None:
    pass


def _parsed(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise AddressUnusable(address, reason="it is not of the form host:port")
    return host, int(port)


def _listen(address: str, limits: NetworkLimits) -> tuple[socket.socket, str]:
    if len(address.encode()) > limits.address_bytes_max:
        raise AddressUnusable(address, reason=f"it has over {limits.address_bytes_max} bytes")
    host, port = _parsed(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=128)
        listener.setblocking(False)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(address) from error
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise AddressUnusable(address, reason=reason) from error
    return listener, f"{address.rpartition(':')[0]}:{listener.getsockname()[1]}"


def _name_of(peername: tuple[str, int] | None) -> str:
    return f"{peername[0]}:{peername[1]}" if peername else "somebody"


def _tune(connection: socket.socket, limits: NetworkLimits) -> None:
    """Notice a machine that went away without a word."""
    silent_s = max(1, limits.silent_ms_max // 1000)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, silent_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, silent_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limits.silent_ms_max)
