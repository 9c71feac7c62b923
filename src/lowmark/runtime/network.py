"""Frames between named addresses: what a network can do, its limits, and the ways it can refuse.

A frame is best effort: it arrives whole and unchanged, or not at all. It may arrive twice, and a
later one may arrive before it; the real network does neither, but nobody may count on that. There
is no receipt either. `on_cut` says that frames to or from a peer may have been lost: it is a hint
to ask sooner, not a promise to be told of every loss.

All groups of a node share one endpoint, so two nodes share one connection in each direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lowmark.errors import LowmarkError, Rejected, Unavailable, invariant
from lowmark.runtime.disk import Buffer

__all__ = [
    "FRAME_HEADER_BYTES",
    "NO_NETWORK",
    "AddressInUse",
    "AddressUnusable",
    "Endpoint",
    "FrameTooLong",
    "Network",
    "NetworkLimits",
    "NotAPeer",
    "OnCut",
    "OnFrame",
    "PeerLost",
    "PeerMisbehaved",
]

FRAME_HEADER_BYTES = 8

OnFrame = Callable[[str, Buffer], None]
OnCut = Callable[[str, LowmarkError], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """How much a network takes before it says no."""

    frame_bytes_max: int = 16 << 20
    queued_bytes_max: int = 64 << 20  # per peer, headers included
    address_bytes_max: int = 255
    incoming_max: int = 1_024  # connections that others may open to one endpoint
    hello_ms_max: int = 5_000  # to be connected and to have said hello, either side
    silent_ms_max: int = 10_000  # for sent bytes to be received by the peer's machine
    rest_ms_min: int = 50  # between two attempts to reach a peer; doubles up to the maximum
    rest_ms_max: int = 5_000

    def __post_init__(self) -> None:
        room = self.queued_bytes_max - FRAME_HEADER_BYTES
        invariant(self.frame_bytes_max <= room, "an empty queue has room for any frame")


class AddressInUse(Unavailable):
    """Somebody listens at this address already."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the address {address} is in use",
            hint="Stop the process that listens there, or choose another address.",
        )
        self.address = address


class AddressUnusable(Rejected):
    """This is no address that can be listened at or connected to."""

    def __init__(self, address: str, *, reason: str) -> None:
        super().__init__(
            f"the address {address} can't be used: {reason}",
            hint="An address is host:port or [ipv6]:port.",
        )
        self.address = address


class FrameTooLong(Rejected):
    """A frame above the limit; nothing of it was sent."""

    def __init__(self, *, frame_bytes: int, frame_bytes_max: int) -> None:
        super().__init__(
            f"a frame of {frame_bytes} bytes is too long",
            detail=f"At most {frame_bytes_max} bytes are allowed (network.frame_bytes_max).",
            hint="Send it in parts.",
        )
        self.frame_bytes = frame_bytes
        self.frame_bytes_max = frame_bytes_max


class PeerLost(Unavailable):
    """The connection to a peer ended, or could not be made."""

    def __init__(self, peer: str, *, reason: str) -> None:
        super().__init__(
            f"the connection with {peer} is gone: {reason}",
            hint="It is made again with the next frame, after a short rest.",
        )
        self.peer = peer


class PeerMisbehaved(Rejected):
    """A peer broke the protocol, and its connection was cut."""

    def __init__(self, peer: str, *, reason: str) -> None:
        super().__init__(
            f"the connection with {peer} was cut: {reason}",
            detail="What it sent since then was not read; other peers are not affected.",
            hint="Check that both sides run versions of Lowmark that belong together.",
        )
        self.peer = peer


class NotAPeer(PeerMisbehaved):
    """Whoever is at the other end did not say a proper hello."""


class Endpoint(Protocol):
    """One address, and the way from there to all others."""

    @property
    def address(self) -> str:
        """The name that others send to."""

    def send(self, to: str, buffers: Sequence[Buffer]) -> bool:
        """Send the buffers as one frame; False if the peer's queue has no room for it now.

        The buffers are not copied, and there is no moment at which they are given back: whoever
        sends a buffer never changes it again.
        """

    def queued_bytes(self, to: str) -> int:
        """How many bytes still wait to be sent to a peer, headers included."""

    def close(self) -> None:
        """Drop everything that waits, and call nothing any more. Closing twice is fine."""


class Network(Protocol):
    """Where endpoints come from."""

    def endpoint(self, address: str, on_frame: OnFrame, on_cut: OnCut) -> Endpoint:
        """Listen at an address; both callbacks run on the loop, one at a time."""


class _NoNetwork:
    def endpoint(self, address: str, on_frame: OnFrame, on_cut: OnCut) -> Endpoint:
        del on_frame, on_cut
        raise AddressUnusable(address, reason="this runtime was built without a network")


NO_NETWORK: Network = _NoNetwork()
