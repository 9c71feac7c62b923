"""Frames between named addresses: what a network can do, its limits, and the ways it can refuse.

A frame is best effort: it arrives whole and unchanged, or not at all. It may arrive twice, and a
later one may arrive before it; the real network does neither, but nobody may count on that. There
is no receipt either. `on_cut` says that frames to or from a peer may have been lost: it is a hint
to ask sooner, not a promise to be told of every loss.

All groups of a node share one endpoint, so two nodes share one connection in each direction. What
is small and can't wait is sent as urgent: it does not stand behind megabytes on a slow link.

Nobody is swamped. A sender whose queue is full is refused, and told once when there is room again.
A receiver that can't keep up pauses a peer: what that peer sends stays with it, and fills its queue
there. Whoever finds rubbish inside a well-formed frame cuts the peer off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lowmark.errors import LowmarkError, Rejected, Unavailable, invariant
from lowmark.runtime.disk import Buffer

FRAME_HEADER_BYTES = 8

# Called with the sender's name and a frame. The frame is `bytes` or a read-only memoryview; it is
# the receiver's to keep, and nobody changes it. A slice of it may be kept without a copy; but any
# slice, however short, keeps the whole frame in memory: 100 bytes may hold on to 16 MiB.
OnFrame = Callable[[str, Buffer], None]
OnCut = Callable[[str, LowmarkError], None]
OnRoom = Callable[[str], None]


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
    rest_ms_max: int = 5_000  # also how long a peer that was cut off is not heard

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


TLS_SCHEME: Final = "lowmark+tls://"
"""Before the address of a server that speaks TLS."""
CA_VARIABLE: Final = "LOWMARK_CA"
"""Names the file of authorities, where no other is given."""


def speaks_tls(address: str) -> bool:
    """Whether an address says that its server does."""
    return address.startswith(TLS_SCHEME)


def named_together(addresses: Iterable[str]) -> list[str]:
    """Addresses that a user has named in one text or one list, each once.

    TLS before the first is meant for all of them: any may be the one that answers, and is shown the
    token. Everything that takes several addresses takes them through here.
    """
    found = [one.strip() for one in addresses]
    scheme = TLS_SCHEME if found and speaks_tls(found[0]) else ""
    return list(dict.fromkeys(f"{scheme}{one.removeprefix(scheme)}" for one in found))


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of a real address; a host of IPv6 loses its brackets."""
    host, colon, port = address.removeprefix(TLS_SCHEME).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise AddressUnusable(address, reason="it is not of the form host:port")
    return host, int(port)


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


class PeerRefused(NotAPeer):
    """The other side could not prove who it is, or did not believe that we are who we say."""

    def __init__(self, peer: str, *, reason: str) -> None:
        super().__init__(peer, reason=reason)
        self.reason = reason
        self.hint = (
            "Compare the certificates and the authorities of both nodes (`lowmark tls show DIR`),"
            " and their clocks."
        )


class Endpoint(Protocol):
    """One address, and the way from there to all others."""

    @property
    def address(self) -> str:
        """The name that others send to; a port 0 has been replaced by the real one."""

    @property
    def listens_at(self) -> str:
        """Where it really listens; the same, unless told otherwise."""

    def send(self, to: str, buffers: Sequence[Buffer], *, urgent: bool = False) -> bool:
        """Send the buffers as one frame; False if the peer's queue has no room for it now.

        An urgent frame goes ahead of those that are not, and finds room where they find none; it
        waits only for the frame that is being sent. Urgent frames keep their order, and so do the
        others.

        The buffers are not copied, and there is no moment at which they are given back: whoever
        sends a buffer never changes it again. After a False, `on_room` tells once when the queue
        has drained to half, or was dropped with its connection.
        """

    def queued_bytes(self, to: str) -> int:
        """How many bytes still wait to be sent to a peer, headers included."""

    def pause(self, peer: str) -> None:
        """Give no more frames from a peer until `resume`; it may have to wait with what it sends.

        At most what one read brought is kept here; the rest stays in the peer's queue. If the
        connection is lost meanwhile, as it is after `silent_ms_max`, so is what was kept. Pausing
        twice is fine, and lasts over a new connection.
        """

    def resume(self, peer: str) -> None:
        """Give a peer's frames again, in order, beginning with those that were kept."""

    def cut(self, peer: str, reason: str) -> None:
        """A peer sent rubbish: end its connections, and hear nothing from it for `rest_ms_max`.

        `on_cut` is told `PeerMisbehaved` with this reason, once. What the peer has sent and we have
        not been given is lost, and so is what waits to be sent to it.
        """

    def close(self) -> None:
        """Drop everything that waits, and call nothing any more. Closing twice is fine."""


def ignore_room(peer: str) -> None:
    """For those who send again when they have something new, and not when there is room."""


class Network(Protocol):
    """Where endpoints come from."""

    def endpoint(
        self,
        address: str,
        on_frame: OnFrame,
        on_cut: OnCut,
        *,
        on_room: OnRoom = ignore_room,
        listen: str | None = None,
    ) -> Endpoint:
        """Listen for an address; the callbacks run on the loop, one at a time.

        `address` is what others know it by, `listen` where it listens, if that is not the same:
        0.0.0.0:7400 for n1.example:7400. Port 0 takes a free one, in `address` too.
        """


class _NoNetwork:
    def endpoint(
        self,
        address: str,
        on_frame: OnFrame,
        on_cut: OnCut,
        *,
        on_room: OnRoom = ignore_room,
        listen: str | None = None,
    ) -> Endpoint:
        del on_frame, on_cut, on_room, listen
        raise AddressUnusable(address, reason="this runtime was built without a network")


NO_NETWORK: Network = _NoNetwork()


class _Nowhere:
    """An address that exists in name only. What is sent from it is lost, as frames may be."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.listens_at = address

    def send(self, to: str, buffers: Sequence[Buffer], *, urgent: bool = False) -> bool:
        del to, buffers, urgent
        return True

    def queued_bytes(self, to: str) -> int:
        del to
        return 0

    def pause(self, peer: str) -> None:
        del peer

    def resume(self, peer: str) -> None:
        del peer

    def cut(self, peer: str, reason: str) -> None:
        del peer, reason

    def close(self) -> None:
        pass


class LoneNetwork:
    """The network of a node that reaches no other and that none can reach: inside one process."""

    def endpoint(
        self,
        address: str,
        on_frame: OnFrame,
        on_cut: OnCut,
        *,
        on_room: OnRoom = ignore_room,
        listen: str | None = None,
    ) -> Endpoint:
        """An endpoint that no frame ever comes to."""
        del on_frame, on_cut, on_room, listen
        return _Nowhere(address)


LONE_NETWORK = LoneNetwork()
