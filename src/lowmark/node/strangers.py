"""Connections whose client has not been let in yet: how many there may be, and for how long; and
what a client may send before a call of it begins.

Before a client has shown who it is, it gets a handshake and nothing else. gRPC in pyarrow limits
neither connections nor the time that a handshake takes, and a connection costs memory and a handle.
But each is a socket of this process, and a call that is let in says whose it is. So a connection
becomes known with its first call that is let in; until then it is a stranger's.

    1. A stranger is cut off after `patience_s`, whatever it is doing: a TLS handshake that it does
       not end, a header byte by byte, calls that are refused, or nothing.
    2. More than `strangers_max` of them at a time: the oldest are cut off. A client that means well
       has shown its token in a moment, so it is not among them.
    3. More than `connections_max` connections at a time: all strangers are cut off. Known ones
       stay.
    4. A stranger that has sent more than `stranger_bytes_max`, which no first call needs, is cut
       off; so are those that have sent most, if all of them have sent `strangers_bytes_max`.
    5. A known client that has sent `client_bytes_max` since a call of it began, or a message of a
       stream came from it or went to it, is cut off: no message of a client is that long.

The last two are there because gRPC reads the whole request of a call with one answer before
anything of ours hears of the call, and Arrow sets no limit to it (pyarrow 26). The kernel counts
what has come on a connection. What it costs is some two and a half bytes of memory for each byte.

A look sees the connections of one moment. It comes every `LOOK_S`, or every `CALM_LOOK_S` where the
last one found no stranger and there is no new handle. Strangers may open more than these limits
between two looks: as many as the process has handles for. A few handles are kept for the look
itself. A limit of bytes is passed by no more than comes between two looks. (Where there are many
connections, looks are further apart: see `_SHARE`.) How often one machine may connect is a
firewall's to limit: see the guide.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote

from lowmark.node.cutting import connections, next_handle
from lowmark.node.messages import BODY_BYTES_MAX

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.02
CALM_LOOK_S: Final = 1.0
_SHARE: Final = 10
_CALM_SHARE: Final = 50
"""Looks take at most one part in so many of a processor's time."""
_CALM_BYTES: Final = 1 << 20
_AT_ONCE: Final = struct.pack("ii", 1, 0)
_RESERVE: Final = 4
_TOLD_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What is kept open for whom."""

    patience_s: float = 10.0
    strangers_max: int = 256
    connections_max: int = 4_096
    stranger_bytes_max: int = BODY_BYTES_MAX + (1 << 20)
    """The longest request, with all that goes around it: a client that means well may begin with
    it, on a connection that was lost and is made again."""
    strangers_bytes_max: int = 64 << 20
    """All strangers together."""
    client_bytes_max: int = 512 << 20
    """Twice the longest batch that is taken: streams of one client share a connection."""


class _Looked(NamedTuple):
    """A connection, at a look."""

    since: float
    """A moment at which it was not there yet."""
    number: int
    peer: str
    sent: int
    """How many bytes, since it was last heard of as a client; of a stranger, since it is there."""


class Strangers:
    """Looks after the connections of one port. On any thread."""

    def __init__(self, port: int, door: Door | None = None) -> None:
        self._port = port
        self._door = door or Door()
        self._let_in: dict[str, float] = {}
        """When a call of a client was let in last, or a message of it came."""
        self._since: dict[int, float] = {}
        """Connections, by the number that their socket has on this machine: a moment at which each
        was not there yet. The next connection from a client's port may be another client's."""
        self._marks: dict[int, int] = {}
        """How much had come on a known connection when its client was last heard of."""
        self._looked_at = time.monotonic()
        self._told_at = -_TOLD_S
        self._calm = True
        """Whether there was nothing to watch closely when it looked last."""
        self._reserve: list[int] = []
        """Handles that are given back for each look, which takes some: a flood takes all others."""
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="lowmark-door", daemon=True).start()

    def let_in(self, peer: str) -> None:
        """A call of this client, as Flight has it, was let in; or a message came from it, or went
        to it.
        """
        self._let_in[unquote(peer)] = time.monotonic()

    def close(self) -> None:
        """Look after none any more."""
        self._over.set()

    def _watch(self) -> None:
        self._keep_handles()
        while not self._over.is_set():
            began_s, as_before = time.thread_time(), False
            try:
                self._give_handles()
                free = next_handle()
                self._look()
                as_before = free == next_handle()
                self._keep_handles()
            except Exception:
                logger.exception("connections could not be looked at")
            self._rest(time.thread_time() - began_s, calm=as_before and self._calm)
        self._give_handles()

    def _rest(self, took_s: float, *, calm: bool) -> None:
        """Until the next look: where all are known it comes later, unless a handle is new."""
        began, free = time.monotonic(), next_handle()
        least_s = ((_CALM_SHARE if calm else _SHARE) - 1) * took_s
        most_s = min(CALM_LOOK_S, self._door.patience_s / 2) if calm else 0.0
        while not self._over.wait(LOOK_S):
            rested_s = time.monotonic() - began
            if rested_s >= least_s and (rested_s >= most_s or next_handle() != free):
                return

    def _keep_handles(self) -> None:
        while len(self._reserve) < _RESERVE:
            self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _give_handles(self) -> None:
        while self._reserve:
            os.close(self._reserve.pop())

    def _look(self) -> None:
        before, self._looked_at = self._looked_at, time.monotonic()
        known, strangers, marks = list[_Looked](), list[_Looked](), dict[int, int]()
        for here in connections(self._port):
            number, received = here.number, here.received
            since = self._since.get(number, before)
            if self._is_known(here.peer, since):
                heard = self._let_in[here.peer] >= before
                marks[number] = received if heard else self._marks.get(number, received)
                known.append(_Looked(since, number, here.peer, received - marks[number]))
            else:
                strangers.append(_Looked(since, number, here.peer, received))
        self._marks, self._since = marks, {one.number: one.since for one in known + strangers}
        self._calm = not strangers and all(one.sent < _CALM_BYTES for one in known)
        peers = {one.peer for one in known + strangers}
        for peer, at in list(self._let_in.items()):
            if peer not in peers and at < before:
                del self._let_in[peer]
        self._cut_strangers(self._too_many(strangers, len(known)) | self._too_much(strangers))
        self._cut_clients({one.number for one in known if one.sent > self._door.client_bytes_max})

    def _is_known(self, peer: str, since: float) -> bool:
        return self._let_in.get(peer, 0.0) >= since

    def _too_many(self, strangers: list[_Looked], known: int) -> set[int]:
        door = self._door
        if known + len(strangers) > door.connections_max:
            return {one.number for one in strangers}
        spare = max(0, len(strangers) - door.strangers_max)
        before = self._looked_at - door.patience_s
        return {
            one.number
            for at, one in enumerate(sorted(strangers))
            if at < spare or one.since < before
        }

    def _too_much(self, strangers: list[_Looked]) -> set[int]:
        door, found, together = self._door, set[int](), 0
        for one in sorted(strangers, key=lambda one: one.sent):
            together += one.sent
            if one.sent > door.stranger_bytes_max or together > door.strangers_bytes_max:
                found.add(one.number)
        return found

    def _cut_strangers(self, numbers: set[int]) -> None:
        count = self._cut(numbers, lambda peer, number: self._is_known(peer, self._since[number]))
        if count and self._looked_at > self._told_at + _TOLD_S:
            self._told_at = self._looked_at
            logger.warning(
                "clients that did not show who they are were cut off", extra={"connections": count}
            )

    def _cut_clients(self, numbers: set[int]) -> None:
        count = self._cut(numbers, lambda peer, _: self._let_in[peer] >= self._looked_at)
        if count:
            logger.warning(
                "clients were cut off whose request was too long", extra={"connections": count}
            )

    def _cut(self, numbers: set[int], may_stay: Callable[[str, int], bool]) -> int:
        """`may_stay`: for a connection may have been let in since we looked."""
        count = 0
        for here in connections(self._port) if numbers else ():
            number = here.number
            if number in numbers and not may_stay(here.peer, number):
                with contextlib.suppress(OSError):
                    # A reset, since a client that is still sending may not see a usual end for a
                    # minute: its window is closed, and nobody opens it any more.
                    here.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                    here.socket.shutdown(socket.SHUT_RDWR)
                    count += 1
        return count
