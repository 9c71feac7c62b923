"""A network in virtual time: frames late, lost, doubled and overtaking, as the seed has it.

Addresses are plain names. Frames travel on connections, and a connection dies with the endpoint
that it leads to: what is still under way then never arrives at the next endpoint of that address.
What a sender sent before it died arrives all the same, until its next life is heard of; so it is
with real sockets. Single frames may be dropped, doubled and overtaken on a connection that lives:
TCP does none of that, but nobody may count on it.

A frame waits in its sender's queue until it arrives, and while its receiver has paused the sender.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowmark.errors import invariant
from lowmark.runtime.disk import Buffer, bytes_in
from lowmark.runtime.network import (
    FRAME_HEADER_BYTES,
    AddressInUse,
    FrameTooLong,
    NetworkLimits,
    OnCut,
    OnFrame,
    OnRoom,
    PeerLost,
    PeerMisbehaved,
    ignore_room,
)
from lowmark.runtime.sim.loop import SimLoop
from lowmark.runtime.sim.node import SimNode

Callback = Callable[[], None]

_CLOSED = "the other side closed it"


@dataclass(slots=True, kw_only=True)
class Weather:
    """How bad the network is. The chances are between 0 and 1, per frame."""

    delay_us_min: int = 50
    delay_us_max: int = 2_000
    drop: float = 0.0
    duplicate: float = 0.0
    overtake: float = 0.0  # the frame goes a way of its own, which may be quicker or much slower
    detour_us_max: int = 50_000  # how much slower
    bytes_per_s: int = 0  # from one address to another; 0: no matter how much it is


class _Connection:
    """The way from one endpoint to another, and what waits on it."""

    def __init__(
        self, number: int, sender: _SimEndpoint, to: str, target: _SimEndpoint | None
    ) -> None:
        self.number = number
        self.sender = sender
        self.to = to
        self.target = target  # nobody, if nobody listens there yet
        self.broken = False
        self.queued_bytes = 0
        self.refused = False  # a frame, since there was room

    def is_dead(self) -> bool:
        """Whether it leads nowhere, which its sender may not know yet."""
        return self.broken or (self.target is not None and self.target.closed)


@dataclass(slots=True, kw_only=True, eq=False)
class _Flight:
    """A frame under way."""

    connection: _Connection
    sent: tuple[Buffer, ...]
    frame: bytes
    queued: bool  # a double is not
    dropped: bool


class _SimEndpoint:
    def __init__(
        self,
        network: SimNetwork,
        address: str,
        *,
        on_frame: OnFrame,
        on_cut: OnCut,
        on_room: OnRoom,
        listens_at: str,
        run: Callable[[Callback], None],
    ) -> None:
        self.closed = False
        self._network = network
        self._address = address
        self._listens_at = listens_at
        self._on_frame = on_frame
        self._on_cut = on_cut
        self._on_room = on_room
        self._run = run
        self._outgoing: dict[str, _Connection] = {}
        self._incoming: dict[str, _Connection] = {}  # those that are not known to have ended
        self._newest: dict[str, int] = {}  # connection from each peer, also when it has ended
        self._lost: set[str] = set()  # peers that on_cut told of, and no frame passed since
        self._paused: set[str] = set()
        self._kept: dict[str, deque[_Flight]] = {}  # what came while its sender was paused
        self._deaf_until_us: dict[str, int] = {}  # to peers that were cut off

    @property
    def address(self) -> str:
        return self._address

    @property
    def listens_at(self) -> str:
        return self._listens_at

    # -- what the owner asks for ------------------------------------------------------------------

    def send(self, to: str, buffers: Sequence[Buffer], *, urgent: bool = False) -> bool:
        limits = self._network.limits
        size = bytes_in(buffers)
        if size > limits.frame_bytes_max:
            raise FrameTooLong(frame_bytes=size, frame_bytes_max=limits.frame_bytes_max)
        if self.closed:
            return False
        connection = self._outgoing.get(to)
        if connection is None:
            connection = self._outgoing[to] = self._network.connect(self, to)
        queued_bytes = connection.queued_bytes + FRAME_HEADER_BYTES + size
        if queued_bytes > limits.queued_bytes_max + urgent * limits.frame_bytes_max:
            connection.refused = True
            return False
        connection.queued_bytes = queued_bytes
        self._network.carry(connection, buffers, urgent=urgent)
        return True

    def queued_bytes(self, to: str) -> int:
        connection = self._outgoing.get(to)
        return 0 if connection is None else connection.queued_bytes

    def pause(self, peer: str) -> None:
        self._paused.add(peer)

    def resume(self, peer: str) -> None:
        self._paused.discard(peer)
        self._network.soon(lambda: self._take_kept(peer))

    def cut(self, peer: str, reason: str) -> None:
        if self.closed:
            return
        limits, now_us = self._network.limits, self._network.now_us()
        self._deaf_until_us[peer] = now_us + limits.rest_ms_max * 1_000
        incoming = self._incoming.pop(peer, None)
        if incoming is not None:
            incoming.broken = True
        self._tell(lambda: self._on_cut(peer, PeerMisbehaved(peer, reason=reason)))
        self._hang_up(peer)
        self._network.hang_up(self, on=peer)
        self._network.soon(lambda: self._take_kept(peer))  # to nowhere; but their sender notices

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._outgoing.clear()
            self._network.forget(self)
            for peer in self._kept:
                self._network.soon(lambda peer=peer: self._take_kept(peer))  # type: ignore[misc]

    # -- what the network tells -------------------------------------------------------------------

    def keeps(self, flight: _Flight) -> bool:
        """Whether a frame that came has to wait, behind others or for its sender's pause to end."""
        sender = flight.connection.sender.address
        if self.closed or (sender not in self._paused and sender not in self._kept):
            return False
        self._kept.setdefault(sender, deque()).append(flight)
        return True

    def refuses(self, connection: _Connection) -> bool:
        """Whether the peer was cut off a short while ago, or has connected again since."""
        peer = connection.sender.address
        is_deaf = self._deaf_until_us.get(peer, 0) > self._network.now_us()
        return is_deaf or connection.number < self._newest.get(peer, 0)

    def receive(self, connection: _Connection, frame: bytes) -> None:
        """A frame has come to this address."""
        sender = connection.sender.address
        self._newest[sender] = connection.number
        self._incoming[sender] = connection
        self._lost.discard(sender)
        self._run(lambda: self._on_frame(sender, frame))

    def left(self, connection: _Connection, size: int) -> None:
        """A frame does not wait on a connection any more."""
        connection.queued_bytes -= FRAME_HEADER_BYTES + size
        half = self._network.limits.queued_bytes_max // 2
        if connection.refused and connection.queued_bytes <= half:
            self._tell_room(connection)

    def arrived(self, to: str) -> None:
        """A frame got through."""
        self._lost.discard(to)

    def lost(self, peer: str, reason: str) -> None:
        """A frame did not get through: tell it once, until one does."""
        if not self.closed and peer not in self._lost:
            self._lost.add(peer)
            self._run(lambda: self._on_cut(peer, PeerLost(peer, reason=reason)))

    def found_dead(self, connection: _Connection, reason: str) -> None:
        """A frame came to the end of a connection that leads nowhere."""
        if self._outgoing.get(connection.to) is connection:
            self._hang_up(connection.to)
            self.lost(connection.to, reason)

    def was_cut_by(self, peer: str) -> None:
        """A peer wants to hear nothing from us for a while."""
        outgoing = self._outgoing.get(peer)
        if outgoing is not None:
            outgoing.broken = True
        self.gone(peer)

    def gone(self, peer: str) -> None:
        """The connections with a peer have ended: notice it after a while, if there were any."""
        incoming, outgoing = self._incoming.pop(peer, None), self._outgoing.get(peer)
        if outgoing is not None and not outgoing.is_dead():
            outgoing = None  # it is being made, and leads to whoever comes next

        def notice() -> None:
            # Old news are no news: it was found out, or the peer is back already.
            is_news = incoming is not None and incoming.number == self._newest[peer]
            if outgoing is not None and self._outgoing.get(peer) is outgoing:
                self._hang_up(peer)
                is_news = True
            if is_news:
                self.lost(peer, _CLOSED)

        if incoming is not None or outgoing is not None:
            self._network.later(notice)

    # -- helpers ----------------------------------------------------------------------------------

    def _hang_up(self, peer: str) -> None:
        connection = self._outgoing.pop(peer, None)
        if connection is not None:
            connection.broken = True
            if connection.refused:
                self._tell_room(connection)

    def _take_kept(self, peer: str) -> None:
        kept = self._kept.get(peer)
        waits = peer in self._paused and not self.closed
        if kept is None or (waits and not kept[0].connection.is_dead()):
            return
        flight = kept.popleft()
        if not kept:
            del self._kept[peer]
        # Before it lands: whatever its receiver makes of it, the next one follows.
        self._network.soon(lambda: self._take_kept(peer))
        self._network.land(flight)

    def _tell_room(self, connection: _Connection) -> None:
        connection.refused = False
        self._tell(lambda: self._on_room(connection.to))

    def _tell(self, callback: Callback) -> None:
        def tell() -> None:
            if not self.closed:
                self._run(callback)

        self._network.soon(tell)


class _NodeNetwork:
    """The network as one node has it: its endpoints die with the node."""

    def __init__(self, network: SimNetwork, node: SimNode) -> None:
        self._network = network
        self._node = node

    def endpoint(
        self,
        address: str,
        on_frame: OnFrame,
        on_cut: OnCut,
        *,
        on_room: OnRoom = ignore_room,
        listen: str | None = None,
    ) -> _SimEndpoint:
        invariant(not self._node.crashed, "a node that crashed listens to nobody")
        endpoint = self._network.endpoint(
            address, on_frame, on_cut, on_room=on_room, listen=listen, run=self._node.run
        )
        self._node.at_crash(endpoint.close)
        return endpoint


def _run_at_once(callback: Callback) -> None:
    callback()


class SimNetwork:
    """All addresses of one simulated world."""

    def __init__(
        self,
        loop: SimLoop,
        *,
        limits: NetworkLimits | None = None,
        weather: Weather | None = None,
    ) -> None:
        self.limits = limits or NetworkLimits()
        self.weather = weather or Weather()
        self._loop = loop
        self._endpoints: dict[str, _SimEndpoint] = {}
        self._cut: set[tuple[str, str]] = set()
        self._arrives_at_us: dict[tuple[str, str, bool], int] = {}
        self._sending: dict[tuple[str, str], deque[int]] = {}  # when each frame will be sent
        self._connections = 0
        self._ports = 0

    def endpoint(
        self,
        address: str,
        on_frame: OnFrame,
        on_cut: OnCut,
        *,
        on_room: OnRoom = ignore_room,
        listen: str | None = None,
        run: Callable[[Callback], None] = _run_at_once,
    ) -> _SimEndpoint:
        """As any network's; `run` is how callbacks are called."""
        if address.endswith(":0"):
            self._ports += 1
            address = f"{address.removesuffix(':0')}:{self._ports}"
        if address in self._endpoints:
            raise AddressInUse(address)
        endpoint = self._endpoints[address] = _SimEndpoint(
            self,
            address,
            on_frame=on_frame,
            on_cut=on_cut,
            on_room=on_room,
            listens_at=listen or address,
            run=run,
        )
        return endpoint

    def of(self, node: SimNode) -> _NodeNetwork:
        """This network as a node has it: its endpoints, and their callbacks, die with the node."""
        return _NodeNetwork(self, node)

    # -- faults -----------------------------------------------------------------------------------

    def cut_one_way(self, sender: str, to: str) -> None:
        """Let nothing through from one address to another, frames under way included."""
        self._cut.add((sender, to))

    def cut(self, some: Sequence[str], others: Sequence[str]) -> None:
        """Let nothing through between two sides, either way."""
        for one in some:
            for other in others:
                self.cut_one_way(one, other)
                self.cut_one_way(other, one)

    def heal(self) -> None:
        """Let everything through again."""
        self._cut.clear()

    def crash(self, address: str) -> None:
        """Close whatever listens at an address, as the death of its process would."""
        if address in self._endpoints:
            self._endpoints[address].close()

    # -- what endpoints ask for -------------------------------------------------------------------

    def forget(self, endpoint: _SimEndpoint) -> None:
        """An endpoint was closed."""
        del self._endpoints[endpoint.address]
        for other in self._endpoints.values():
            other.gone(endpoint.address)

    def hang_up(self, endpoint: _SimEndpoint, *, on: str) -> None:
        """An endpoint has ended its connections with a peer, which will notice."""
        other = self._endpoints.get(on)
        if other is not None:
            other.was_cut_by(endpoint.address)

    def now_us(self) -> int:
        """The world's time."""
        return self._loop.elapsed_us()

    def soon(self, callback: Callback) -> None:
        """Call back in a turn of its own."""
        self._loop.call_soon(callback)

    def later(self, callback: Callback) -> None:
        """Call back when news of a lost connection have had their time to spread."""
        delay_us = self._loop.random.randint(0, self.weather.detour_us_max)
        self._loop.at(self._loop.elapsed_us() + delay_us, callback)

    def connect(self, sender: _SimEndpoint, to: str) -> _Connection:
        """A new way to whoever listens at an address now, or else when the first frame comes."""
        self._connections += 1
        return _Connection(self._connections, sender, to, self._endpoints.get(to))

    def carry(
        self, connection: _Connection, buffers: Sequence[Buffer], *, urgent: bool = False
    ) -> None:
        """Take a frame, and let the seed decide what becomes of it."""
        dice, weather = self._loop.random, self.weather
        sent = tuple(buffers)
        frame = b"".join(sent)
        dropped = dice.random() < weather.drop
        copies = 2 if dice.random() < weather.duplicate else 1
        for copy in range(copies):
            flight = _Flight(
                connection=connection, sent=sent, frame=frame, queued=copy == 0, dropped=dropped
            )
            way = (connection.sender.address, connection.to)
            at_us = self._draw_arrival_us(way, len(frame), urgent=urgent)
            self._loop.at(at_us, lambda flight=flight: self._arrive(flight))  # type: ignore[misc]

    def land(self, flight: _Flight) -> None:
        """A frame has come to the end of its way, and does not wait any more."""
        connection, frame = flight.connection, flight.frame
        sender, to = connection.sender, connection.to
        if flight.queued:
            invariant(b"".join(flight.sent) == frame, "a buffer that was sent never changes")
            sender.left(connection, len(frame))
        if flight.dropped:
            return
        receiver = self._receiver(connection)
        what = f"{sender.address} to {to}, {len(frame)} bytes"
        if (sender.address, to) in self._cut:
            self._loop.note(f"net cut off {what}")
            sender.lost(to, "the network is cut")
        elif receiver is None or connection.is_dead():
            self._loop.note(f"net nobody {what}")
            connection.broken = True
            sender.found_dead(connection, _CLOSED if receiver else "nobody listens there")
        elif receiver.refuses(connection):
            self._loop.note(f"net refused {what}")
            connection.broken = True
            sender.found_dead(connection, _CLOSED)
        else:
            self._loop.note(f"net {what}")
            connection.target = receiver
            sender.arrived(to)
            receiver.receive(connection, frame)

    def _arrive(self, flight: _Flight) -> None:
        receiver = self._receiver(flight.connection)
        if flight.dropped or receiver is None or not receiver.keeps(flight):
            self.land(flight)

    def _receiver(self, connection: _Connection) -> _SimEndpoint | None:
        return connection.target or self._endpoints.get(connection.to)

    def _draw_arrival_us(self, way: tuple[str, str], size: int, *, urgent: bool) -> int:
        dice, weather = self._loop.random, self.weather
        at_us = self._sent_us(way, size, urgent=urgent)
        at_us += dice.randint(weather.delay_us_min, weather.delay_us_max)
        if dice.random() < weather.overtake:
            return at_us + dice.randint(0, weather.detour_us_max)
        at_us = max(at_us, self._arrives_at_us.get((*way, urgent), 0))
        self._arrives_at_us[*way, urgent] = at_us
        return at_us

    def _sent_us(self, way: tuple[str, str], size: int, *, urgent: bool) -> int:
        """When the last byte of a frame leaves a link that takes one frame after another.

        An urgent one waits for the frame that is being sent; it delays none of the others, which is
        near enough for what is small.
        """
        now_us, rate = self._loop.elapsed_us(), self.weather.bytes_per_s
        if not rate:
            return now_us
        sending = self._sending.setdefault(way, deque())
        while sending and sending[0] <= now_us:
            sending.popleft()
        takes_us = size * 1_000_000 // rate
        if urgent:
            return (sending[0] if sending else now_us) + takes_us
        sending.append((sending[-1] if sending else now_us) + takes_us)
        return sending[-1]
