"""A network in virtual time: frames late, lost, doubled and overtaking, as the seed has it.

Addresses are plain names. Frames travel by address and not by connection: one that is still under
way when its target crashes arrives at whoever has that address then, and one whose sender crashed
arrives all the same. Both happen with real sockets, only more seldom.
"""

from __future__ import annotations

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
    PeerLost,
)
from lowmark.runtime.sim_loop import SimLoop

__all__ = ["SimNetwork", "Weather"]


@dataclass(slots=True, kw_only=True)
class Weather:
    """How bad the network is. The chances are between 0 and 1, per frame."""

    delay_us_min: int = 50
    delay_us_max: int = 2_000
    drop: float = 0.0
    duplicate: float = 0.0
    overtake: float = 0.0  # the frame goes a way of its own, which may be quicker or much slower
    detour_us_max: int = 50_000  # how much slower


class _SimEndpoint:
    def __init__(self, network: SimNetwork, address: str, on_frame: OnFrame, on_cut: OnCut) -> None:
        self._network = network
        self._address = address
        self._on_frame = on_frame
        self._on_cut = on_cut
        self._closed = False
        self._queued_bytes: dict[str, int] = {}
        self._heard: set[str] = set()  # peers from which a frame came
        self._lost: set[str] = set()  # peers that on_cut told of, and no frame passed since

    @property
    def address(self) -> str:
        return self._address

    def send(self, to: str, buffers: Sequence[Buffer]) -> bool:
        limits = self._network.limits
        size = bytes_in(buffers)
        if size > limits.frame_bytes_max:
            raise FrameTooLong(frame_bytes=size, frame_bytes_max=limits.frame_bytes_max)
        queued_bytes = self.queued_bytes(to) + FRAME_HEADER_BYTES + size
        if self._closed or queued_bytes > limits.queued_bytes_max:
            return False
        self._queued_bytes[to] = queued_bytes
        self._network.carry(self, to, buffers)
        return True

    def queued_bytes(self, to: str) -> int:
        return self._queued_bytes.get(to, 0)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._queued_bytes.clear()
            self._network.forget(self)

    def receive(self, sender: str, frame: bytes) -> None:
        """A frame has come to this address."""
        self._heard.add(sender)
        self._lost.discard(sender)
        self._on_frame(sender, frame)

    def left(self, to: str, size: int) -> None:
        """A frame does not wait here any more."""
        if not self._closed:
            self._queued_bytes[to] -= FRAME_HEADER_BYTES + size

    def arrived(self, to: str) -> None:
        """A frame got through."""
        self._lost.discard(to)

    def lost(self, peer: str, reason: str) -> None:
        """A frame did not get through, and the connection with it."""
        if not self._closed and peer not in self._lost:
            self._lost.add(peer)
            self._on_cut(peer, PeerLost(peer, reason=reason))

    def gone(self, peer: str) -> None:
        """A peer was closed: notice it after a while, if there was a connection from it."""
        if peer in self._heard:
            self._heard.remove(peer)
            self._network.later(lambda: self.lost(peer, "the other side closed it"))


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
        self._arrives_at_us: dict[tuple[str, str], int] = {}

    def endpoint(self, address: str, on_frame: OnFrame, on_cut: OnCut) -> _SimEndpoint:
        if address in self._endpoints:
            raise AddressInUse(address)
        self._endpoints[address] = _SimEndpoint(self, address, on_frame, on_cut)
        return self._endpoints[address]

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

    def forget(self, endpoint: _SimEndpoint) -> None:
        """An endpoint was closed."""
        del self._endpoints[endpoint.address]
        for other in self._endpoints.values():
            other.gone(endpoint.address)

    def later(self, callback: Callable[[], None]) -> None:
        """Call back when news of a lost connection have had their time to spread."""
        delay_us = self._loop.random.randint(0, self.weather.detour_us_max)
        self._loop.at(self._loop.elapsed_us() + delay_us, callback)

    # -- frames -----------------------------------------------------------------------------------

    def carry(self, sender: _SimEndpoint, to: str, buffers: Sequence[Buffer]) -> None:
        """Take a frame, and let the seed decide what becomes of it."""
        dice, weather = self._loop.random, self.weather
        sent = tuple(buffers)
        frame = b"".join(sent)
        dropped = dice.random() < weather.drop
        copies = 2 if dice.random() < weather.duplicate else 1
        for copy in range(copies):

            def arrive(first: bool = copy == 0) -> None:
                if first:
                    invariant(b"".join(sent) == frame, "a buffer that was sent never changes")
                    sender.left(to, len(frame))
                if not dropped:
                    self._arrive(sender, to, frame)

            self._loop.at(self._draw_arrival_us(sender.address, to), arrive)

    def _draw_arrival_us(self, sender: str, to: str) -> int:
        dice, weather = self._loop.random, self.weather
        at_us = self._loop.elapsed_us() + dice.randint(weather.delay_us_min, weather.delay_us_max)
        if dice.random() < weather.overtake:
            return at_us + dice.randint(0, weather.detour_us_max)
        at_us = max(at_us, self._arrives_at_us.get((sender, to), 0))
        self._arrives_at_us[sender, to] = at_us
        return at_us

    def _arrive(self, sender: _SimEndpoint, to: str, frame: bytes) -> None:
        receiver = self._endpoints.get(to)
        what = f"{sender.address} to {to}, {len(frame)} bytes"
        if (sender.address, to) in self._cut:
            self._loop.note(f"net cut off {what}")
            sender.lost(to, "the network is cut")
        elif receiver is None:
            self._loop.note(f"net nobody {what}")
            sender.lost(to, "nobody listens there")
        else:
            self._loop.note(f"net {what}")
            sender.arrived(to)
            receiver.receive(sender.address, frame)
