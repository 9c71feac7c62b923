"""One link per pair of nodes for all groups: what goes out in one turn goes out as one frame.

On a slow link, what is urgent does not wait behind what is large. While more waits for a peer than
it takes in a moment, messages go in two kinds of frames. Entries, pieces of snapshots, and calls go
one after another, in frames of moderate size, large messages in parts. Everything else is small,
and goes ahead of them: heartbeats, votes, acknowledgements. (Appends never overtake each other: the
later one would be refused.) One frame, with one large entry at most, may still be ahead.

Messages are best effort, as the network's frames are. When a peer's queue is full, what does not
fit is dropped and its group is told (`Receiver.refused`), so that consensus probes instead of
sending ahead; it sends on when the peer answers. A peer that sends what no sound peer sends is cut
off with a named error. A message for a group that is not here is answered with `NotHere`; the
sender then spares us that group for a while, and a peer that does not is cut off, too. When the
group comes here after all, those who were told so are told that as well (`told_not_here`), and
spare us no longer: whatever a group says shows that it is there.

Of an address that nobody told us of, only questions and answers are heard (see `calls`): it may be
a node that wants to join, or one that we asked without knowing who it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from lowmark.errors import LowmarkError
from lowmark.group import wire
from lowmark.group.wire import Answer, Ask, BadFrame, Item, NotHere, Routed
from lowmark.runtime import Buffer, Endpoint, FrameTooLong, PeerRefused, Runtime

logger = logging.getLogger(__name__)

_STRANGERS_MAX = 1_000
_SAY_AGAIN_MS = 60_000
"""Why a peer is refused is said in the log, and not again for so long."""
_DENIED_MAX = 10_000
_MOMENT_MS = 50
"""A part of an election timeout for which a heartbeat may wait."""
_PART_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """What one peer may do."""

    frame_bytes_max: int = 15 << 20
    """A frame is begun anew above this; one large command may exceed it."""
    bulk_bytes: int = 512 << 10
    """When more than this waits for a peer, what is urgent goes apart, and the rest in such parts,
    or in larger ones, if the peer takes those in a moment."""
    strays_max: int = 10_000
    """Messages for groups that are not here, within `strays_ms`."""
    strays_ms: int = 10_000
    not_here_ms: int = 1_000
    """How long a group is not sent to a node that does not have it."""


class Receiver(Protocol):
    """Who gets what comes in."""

    def received(self, sender: int, group: str, item: Item) -> bool:
        """A message has come; False if the group is not here."""

    def refused(self, to: int, group: str, item: Item) -> None:
        """A message could not be sent."""

    def heard(self, sender: int, *, restarted: bool) -> None:
        """A node gave a sign of life."""

    def called(self, address: str, service: str, item: Ask | Answer, *, known: bool) -> None:
        """A question or an answer has come; `known`: from a node whose address we know."""

    def lost(self, node: int, address: str) -> None:
        """The connection broke; what was under way may be lost. The node is 0 if unknown."""


class _Peer:
    __slots__ = (
        "boot",
        "given_bytes",
        "looked_at_us",
        "moment_bytes",
        "outbox",
        "outbox_bytes",
        "spared",
        "strays",
        "strays_since_ms",
        "taken_bytes",
    )

    def __init__(self) -> None:
        self.given_bytes = 0
        """To the network, since the beginning; `taken_bytes` of them had left when it was last
        looked, at `looked_at_us`, and `moment_bytes` in the moment before."""
        self.taken_bytes = 0
        self.looked_at_us = 0
        self.moment_bytes = 0
        self.outbox: list[Routed] = []
        self.outbox_bytes = 0
        self.boot = 0
        self.strays = 0
        self.strays_since_ms = 0
        self.spared: dict[str, int] = {}


class Transport:
    """The node's link to all others."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        node: int,
        address: str,
        receiver: Receiver,
        listen: str | None = None,
        limits: TransportLimits | None = None,
    ) -> None:
        self._limits = limits or TransportLimits()
        self._loop = runtime.loop
        self._receiver = receiver
        self.boot = runtime.random.getrandbits(62)
        """Drawn when this process started."""
        self._peers: dict[int, _Peer] = {}
        self._addresses: dict[int, str] = {}
        self._nodes: dict[str, int] = {}
        self.node = node
        self._denied: dict[str, dict[int, None]] = {}
        """Which nodes were told that a group is not here; the last groups only."""
        self.last_cut: dict[str, LowmarkError] = {}
        """Why the connection with a peer was last cut, by address."""
        self.refused: dict[str, str] = {}
        """Why a peer that is known is not believed, or does not believe this node, by address."""
        self._said: dict[tuple[str, str], int] = {}
        self.on_refused: Callable[[str, PeerRefused], None] = lambda address, why: None
        """Hears of each time."""
        self.urgent: set[str] = set()
        """Services whose questions are small, and without whose answers nothing is heard."""
        self.on_learned: Callable[[], None] = lambda: None
        """Called before anything is said to a node that is known from now on."""
        self.admits: Callable[[int, int, str, Buffer], bool] = lambda node, boot, address, frame: (
            True
        )
        """Whether a process of a node, by its boot, is believed what it says of groups; its address
        and the frame, to `take_again` when it is."""
        self._endpoint: Endpoint = runtime.network.endpoint(
            address, self._on_frame, self._on_cut, listen=listen, on_room=lambda _: None
        )

    @property
    def address(self) -> str:
        """Where others reach this node."""
        return self._endpoint.address

    @property
    def listens_at(self) -> str:
        """Where it really listens."""
        return self._endpoint.listens_at

    @property
    def addresses(self) -> Mapping[int, str]:
        """Which node is where, as far as known."""
        return self._addresses

    def learn(self, node: int, address: str) -> None:
        """Where a node is; whoever was there before is nowhere any more."""
        old = self._addresses.get(node)
        if old is not None and self._nodes.get(old) == node:
            del self._nodes[old]
            if old != address:
                self.refused.pop(old, None)  # nothing is dialled there any more
        before = self._nodes.get(address)
        if before is not None and before != node:
            del self._addresses[before]
        self._addresses[node] = address
        self._nodes[address] = node
        self.on_learned()

    def boot_of(self, node: int) -> int:
        """Which process of a node was heard last."""
        return self._peer(node).boot

    def take_again(self, address: str, frame: Buffer) -> None:
        """A frame whose sender was not known well enough when it came."""
        self._on_frame(address, frame)

    def forget_refused(self, *, but: AbstractSet[str]) -> None:
        """Nodes are at these addresses alone: why others were refused is of no use any more."""
        for address in self.refused.keys() - but:
            del self.refused[address]

    def close(self) -> None:
        """Send nothing more and hear nothing more."""
        self._endpoint.close()

    # -- out ------------------------------------------------------------------------------------

    def send(self, group: str, item: Item) -> None:
        """Send with the next flush."""
        peer = self._peer(item.to)
        if isinstance(item, NotHere):
            self._deny(group, item.to)
        if peer.spared and not isinstance(item, Ask | Answer):  # a service is no group
            until = peer.spared.get(group)
            if until is not None:
                if self._now_ms() < until:
                    return
                del peer.spared[group]
        size = wire.item_bytes(item) + len(group)
        full = peer.outbox_bytes + size > self._limits.frame_bytes_max
        if peer.outbox and (full or len(peer.outbox) >= wire.ITEMS_MAX):
            self._flush(item.to, peer)
        peer.outbox.append((group, item))
        peer.outbox_bytes += size

    def _deny(self, group: str, node: int) -> None:
        self._denied.setdefault(group, {})[node] = None
        if len(self._denied) > _DENIED_MAX:
            del self._denied[next(iter(self._denied))]

    def told_not_here(self, group: str) -> list[int]:
        """Forget, and give, which nodes were told that a group is not here."""
        return list(self._denied.pop(group, ()))

    def send_to(self, address: str, service: str, item: Ask | Answer) -> bool:
        """Send to an address whose node may be unknown; False if that can't be done now."""
        try:
            return self._endpoint.send(address, wire.encode(self.boot, [(service, item)]))
        except FrameTooLong as error:
            logger.error("a frame was not sent", extra={"peer": address, "reason": error.message})
            return False

    def flush(self) -> None:
        """Send everything that waits, a frame a peer."""
        for node, peer in self._peers.items():
            if peer.outbox:
                self._flush(node, peer)

    def cut(self, node: int, reason: str) -> None:
        """A node sent what no sound one sends: hear nothing more of it for a while."""
        address = self._addresses.get(node)
        if address is not None:
            self._cut(address, reason)

    def pulse(self, node: int) -> None:
        """Tell a node that this one is there."""
        peer = self._peer(node)
        if not peer.outbox:
            self._flush(node, peer)

    def queued_bytes(self, node: int) -> int:
        """How much waits to be sent to a node."""
        address = self._addresses.get(node)
        return 0 if address is None else self._endpoint.queued_bytes(address)

    def _flush(self, node: int, peer: _Peer) -> None:
        items, size = peer.outbox, peer.outbox_bytes
        peer.outbox, peer.outbox_bytes = [], 0
        address = self._addresses.get(node)
        bulk = self._limits.bulk_bytes
        queued = 0 if address is None else self._endpoint.queued_bytes(address)
        if size + queued > bulk:
            urgent: list[Routed] = []
            patient: list[Routed] = []
            for routed in items:
                waits = wire.is_patient(routed[1]) and routed[0] not in self.urgent
                (patient if waits else urgent).append(routed)
            if urgent or not items:
                self._send(node, address, urgent, urgent=True)
            for part in _parts(patient, self._moment_bytes(peer, queued)):
                self._send(node, address, part, urgent=False)
        else:
            self._send(node, address, items, urgent=False)

    def _moment_bytes(self, peer: _Peer, queued: int) -> int:
        """How much a peer took in a moment lately; what is not known is little."""
        now_us, taken = self._loop.elapsed_us(), peer.given_bytes - queued
        took_us = now_us - peer.looked_at_us
        if took_us >= _MOMENT_MS * 1_000:
            moment = (taken - peer.taken_bytes) * _MOMENT_MS * 1_000 // took_us
            peer.looked_at_us, peer.taken_bytes, peer.moment_bytes = now_us, taken, moment
        return max(self._limits.bulk_bytes, min(peer.moment_bytes, _PART_BYTES_MAX))

    def _send(self, node: int, address: str | None, items: list[Routed], *, urgent: bool) -> None:
        try:
            frame = wire.encode(self.boot, items)
            sent = address is not None and self._endpoint.send(address, frame, urgent=urgent)
            self._peer(node).given_bytes += sum(map(len, frame)) if sent else 0
        except FrameTooLong as error:
            logger.error("a frame was not sent", extra={"peer": address, "reason": error.message})
            sent = False
        if not sent:
            for group, item in items:
                self._receiver.refused(node, group, item)

    # -- in -------------------------------------------------------------------------------------

    def _on_frame(self, address: str, frame: Buffer) -> None:
        node = self._nodes.get(address)
        try:
            boot, items = wire.decode(frame)
        except BadFrame as bad:
            self._cut(address, bad.message)
            return
        if any(item.sender != node for _, item in items):
            node = None  # another one than we know there: it has to say first who it is
        # What is for somebody else is for whoever was at this address before.
        items = [(group, item) for group, item in items if _is_for(item, self.node)]
        if node is None:
            for service, item in items:
                if isinstance(item, Ask | Answer):  # the rest will be heard when it is known
                    self._receiver.called(address, service, item, known=False)
            return
        if self.refused:
            self.refused.pop(address, None)
        peer = self._peer(node)
        restarted, peer.boot = peer.boot not in {0, boot}, boot
        self._receiver.heard(node, restarted=restarted)
        answers = False
        admitted = all(isinstance(item, Ask | Answer) for _, item in items) or self.admits(
            node, boot, address, frame
        )
        for group, item in items:
            if isinstance(item, Ask | Answer):
                self._receiver.called(address, group, item, known=True)
            elif not admitted:
                continue
            elif self._receiver.received(node, group, item):
                if isinstance(item, NotHere):
                    peer.spared[group] = self._now_ms() + self._limits.not_here_ms
                elif peer.spared:
                    peer.spared.pop(group, None)
            elif not isinstance(item, NotHere):
                answers = self._stray(address, peer, group, node)
                if not answers:
                    return
        if answers:
            self._flush(node, peer)  # there may be no group here that has a turn for it

    def _stray(self, address: str, peer: _Peer, group: str, node: int) -> bool:
        now = self._now_ms()
        if now - peer.strays_since_ms > self._limits.strays_ms:
            peer.strays, peer.strays_since_ms = 0, now
        peer.strays += 1
        if peer.strays > self._limits.strays_max:
            self._cut(address, f"too many messages for groups that are not here, as {group}")
            return False
        self.send(group, NotHere(node, self.node))
        return True

    def _cut(self, address: str, reason: str) -> None:
        logger.warning("cut off a peer", extra={"peer": address, "reason": reason})
        self._endpoint.cut(address, reason)

    def _on_cut(self, address: str, why: LowmarkError) -> None:
        node = self._nodes.get(address)
        self._receiver.lost(node or 0, address)
        if isinstance(why, PeerRefused):
            self._refused(address, why)
        if node is None and len(self.last_cut) >= _STRANGERS_MAX:
            return  # anybody may come under any name
        self.last_cut[address] = why

    def _refused(self, address: str, why: PeerRefused) -> None:
        """Have people know: by themselves, nodes that refuse each other only try again."""
        if address in self._nodes:
            self.refused[address] = why.reason
        now = self._now_ms()
        said = address.rpartition(":")[0], why.reason  # one that dials has another port each time
        self._said = {one: ms for one, ms in self._said.items() if now - ms < _SAY_AGAIN_MS}
        if said not in self._said and len(self._said) < _STRANGERS_MAX:
            self._said[said] = now
            logger.warning(
                "a peer was refused, or refuses this node",
                extra={"peer": address, "reason": why.reason},
            )
        self.on_refused(address, why)

    def _peer(self, node: int) -> _Peer:
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = _Peer()
        return peer

    def _now_ms(self) -> int:
        return self._loop.elapsed_us() // 1_000


def _parts(items: list[Routed], most: int) -> Iterator[list[Routed]]:
    """In order, each with about `most` bytes; one entry may have more."""
    part: list[Routed] = []
    left = most
    for group, whole in items:
        size = wire.item_bytes(whole)
        for item in wire.parts_of(whole, most) if size > most else (whole,):
            size = wire.item_bytes(item) + len(group)
            if part and size > left:
                yield part
                part, left = [], most
            part.append((group, item))
            left -= size
    if part:
        yield part


def _is_for(item: Item, node: int) -> bool:
    return item.to == node or (item.to == 0 and isinstance(item, Ask))
