"""One connection, plain or with TLS: bytes from the socket, hello and frames to whoever owns it."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Protocol, assert_never, cast

from lowmark.errors import LowmarkError
from lowmark.runtime.disk import Buffer
from lowmark.runtime.frames import Arrived, FrameReader, Hello, Misread
from lowmark.runtime.network import (
    AddressUnusable,
    NetworkLimits,
    NotAPeer,
    PeerLost,
    PeerMisbehaved,
    PeerRefused,
    host_and_port,
)
from lowmark.runtime.tls import TLS_HANDSHAKE, Tls, TlsSession, Untrusted

_UNSENT_BYTES = 256 << 10
"""The kernel takes no more than this before it can send it: what it has, nothing overtakes."""


class Owner(Protocol):
    """Whoever has a wire."""

    def on_made(self, wire: Wire) -> None:
        """The connection is there."""

    def on_ready(self, wire: Wire) -> None:
        """It is time to say hello."""

    def on_hello(self, wire: Wire, address: str) -> None:
        """The other side said its name."""

    def on_frame(self, wire: Wire, frame: Buffer) -> None:
        """A frame arrived, after the hello."""

    def on_turn(self, wire: Wire) -> None:
        """It is the turn of the first frame in the inbox, as its owner has asked for."""

    def on_writable(self) -> None:
        """The socket takes bytes again."""

    def on_end(self, wire: Wire, error: LowmarkError) -> None:
        """The wire is gone; called once, unless its owner itself let go of it."""


class Wire(asyncio.BufferedProtocol):
    """One TCP connection."""

    def __init__(self, owner: Owner, *, peer: str, limits: NetworkLimits) -> None:
        self._owner = owner
        self._limits = limits
        self._reader = FrameReader(limits)
        self._transport: asyncio.Transport | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._ended = False
        self._full = False
        self.peer = peer
        self.inbox: deque[Buffer] = deque()  # frames that its owner has not passed on yet

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
        if not self.has_ended():
            self._start()

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
            self._owner.on_writable()

    @property
    def was_made(self) -> bool:
        """Whether there was a connection at all."""
        return self._transport is not None

    def has_ended(self) -> bool:
        """Whether it was cut."""
        return self._ended

    def has_room(self) -> bool:
        """Whether the socket took everything so far."""
        return not self._full and not self._ended

    def write(self, data: Buffer) -> None:
        """Hand over some bytes."""
        self._send(data)

    def unsent_bytes(self) -> int:
        """How much of it the socket has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def refusal(self, address: str) -> str | None:
        """Why the other side can't be the one at this address; without TLS it always can."""
        del address
        return None

    @property
    def is_secure(self) -> bool:
        """Whether it has TLS, and both sides have proved who they are."""
        return False

    def refused_now(self, tls: Tls, *, now_s: float) -> str | None:
        """Why the other side, which was believed, is not any more; without TLS it always is."""
        del tls, now_s
        return None

    def pass_on(self) -> None:
        """For the loop to call: pass the next frame of the inbox on."""
        self._owner.on_turn(self)

    def pause_reading(self) -> None:
        """Read nothing, until the kernel's own buffers are full and the other side has to wait."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

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

    def _start(self) -> None:
        self._owner.on_ready(self)

    def _send(self, data: Buffer) -> None:
        if self._transport is not None and not self._ended:
            self._transport.write(data)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _no_hello(self) -> None:
        reason = f"it did not say hello within {self._limits.hello_ms_max} ms"
        self.end(NotAPeer(self.peer, reason=reason))


class TlsWire(Wire):
    """One TCP connection with TLS on it.

    asyncio has TLS, too. But it drops the alert that would tell the other side why it was refused,
    and counts only half of what waits to be sent.
    """

    def __init__(
        self,
        owner: Owner,
        *,
        peer: str,
        limits: NetworkLimits,
        session: TlsSession,
        scratch: memoryview,
        may_be_plain: bool = False,
    ) -> None:
        """`may_be_plain`: one that dials may say by its first byte that it speaks no TLS."""
        super().__init__(owner, peer=peer, limits=limits)
        self._session = session
        self._scratch = scratch  # all wires share it: it is empty again before the next one reads
        self._is_secure = False
        self._may_be_plain = may_be_plain
        self._is_plain = False
        self._heard = False

    @property
    def is_secure(self) -> bool:
        return self._is_secure

    @property
    def heard_nothing(self) -> bool:
        """Whether the other side has not said a byte: so does one without TLS that hangs up."""
        return not self._heard

    def get_buffer(self, sizehint: int) -> memoryview:
        return super().get_buffer(sizehint) if self._is_plain else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        if self._may_be_plain and not self._heard and self._scratch[0] != TLS_HANDSHAKE:
            self._heard = self._is_plain = True
            self._read_plain(self._scratch[:nbytes])
            return
        self._heard = True
        if self._is_plain:
            super().buffer_updated(nbytes)
            return
        self._session.received(self._scratch[:nbytes])
        try:
            if self._shakes_hands():
                self._read_all()
        except Untrusted as untrusted:
            # Whoever is refused is told why, if it understands; then it is cut off.
            self._send(self._session.to_send())
            error = PeerMisbehaved if self._reader.greeted else PeerRefused
            self.end(error(self.peer, reason=untrusted.reason))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_secure or self._is_plain:
            super().connection_lost(exc)
        else:
            why = str(exc) if exc else "the other side closed it"
            self.end(PeerLost(self.peer, reason=f"{why} (in the TLS handshake)"))

    def write(self, data: Buffer) -> None:
        if not self._ended:
            self._send(data if self._is_plain else self._session.write(data))

    def refusal(self, address: str) -> str | None:
        if self._is_plain:
            return None  # it is believed, as without TLS
        try:
            host, _ = host_and_port(address)
        except AddressUnusable:
            return "that is no address"
        return self._session.refusal(host)

    def refused_now(self, tls: Tls, *, now_s: float) -> str | None:
        return tls.refusal(self._session, now_s=now_s) if self._is_secure else None

    def _start(self) -> None:
        self._shakes_hands()

    def _shakes_hands(self) -> bool:
        if not self._is_secure:
            self._is_secure = self._session.shake_hands()
            self._send(self._session.to_send())
            if self._is_secure:
                self._owner.on_ready(self)
        return self._is_secure

    def _read_plain(self, data: memoryview) -> None:
        """What came before it was known that it is plain; the rest comes without a copy."""
        while data and not self.has_ended():
            room = self._reader.room()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            super().buffer_updated(count)

    def _read_all(self) -> None:
        """Nothing stays behind in the session: when reading is paused, nobody would fetch it."""
        while not self.has_ended():
            count = self._session.read_into(self._reader.room())
            if count is None:
                self.end(PeerLost(self.peer, reason="the other side closed it"))
            elif count == 0:
                self._send(self._session.to_send())  # an answer to a change of keys, perhaps
                return
            else:
                super().buffer_updated(count)


def _name_of(peername: tuple[str, int] | None) -> str:
    return f"{peername[0]}:{peername[1]}" if peername else "a peer without an address"


def _tune(connection: socket.socket, limits: NetworkLimits) -> None:
    """Notice a machine that went away without a word; keep what waits where it can be overtaken."""
    silent_s = max(1, limits.silent_ms_max // 1000)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, silent_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, silent_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limits.silent_ms_max)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
