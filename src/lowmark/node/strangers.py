"""Connections whose client has not been let in yet: how many there may be, and for how long.

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

A look sees the connections of one moment. It comes every `LOOK_S`, or every `CALM_LOOK_S` where the
last one found no stranger. Strangers may open more than these limits between two looks: as many as
the process has handles for. A few handles are kept for the look itself. What a stranger sends is
bounded by gRPC: headers of 16 KiB, and the window of a stream. How often one machine may connect is
a firewall's to limit: see the guide.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from lowmark.node.cutting import connections

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.25
CALM_LOOK_S: Final = 1.0
_RESERVE: Final = 4
_TOLD_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What is kept open for whom."""

    patience_s: float = 10.0
    strangers_max: int = 256
    connections_max: int = 4_096


class Strangers:
    """Looks after the connections of one port. On any thread."""

    def __init__(self, port: int, door: Door | None = None) -> None:
        self._port = port
        self._door = door or Door()
        self._let_in: dict[str, float] = {}
        """When a call of a client was let in last."""
        self._since: dict[int, float] = {}
        """Connections, by the number that their socket has on this machine: a moment at which each
        was not there yet. The next connection from a client's port may be another client's."""
        self._looked_at = time.monotonic()
        self._told_at = -_TOLD_S
        self._strange = 0
        """How many strangers there were when it looked last."""
        self._reserve: list[int] = []
        """Handles that are given back for each look, which takes some: a flood takes all others."""
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="lowmark-door", daemon=True).start()

    def let_in(self, peer: str) -> None:
        """A call of this client, as Flight has it, was let in."""
        self._let_in[unquote(peer)] = time.monotonic()

    def close(self) -> None:
        """Look after none any more."""
        self._over.set()

    def _watch(self) -> None:
        self._keep_handles()
        while not self._over.wait(self._pause_s()):
            try:
                self._give_handles()
                self._look()
                self._keep_handles()
            except Exception:
                logger.exception("connections could not be looked at")
        self._give_handles()

    def _pause_s(self) -> float:
        # A look takes time for each connection: where all are known, the next one may come later.
        calm = not self._strange
        return min(CALM_LOOK_S if calm else LOOK_S, self._door.patience_s / 2)

    def _keep_handles(self) -> None:
        while len(self._reserve) < _RESERVE:
            self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _give_handles(self) -> None:
        while self._reserve:
            os.close(self._reserve.pop())

    def _look(self) -> None:
        before, self._looked_at = self._looked_at, time.monotonic()
        since, peers, strangers = dict[int, float](), set[str](), list[tuple[float, int]]()
        for peer, one in connections(self._port):
            number = os.fstat(one.fileno()).st_ino
            since[number] = self._since.get(number, before)
            peers.add(peer)
            if not self._is_known(peer, since[number]):
                strangers.append((since[number], number))
        self._since, self._strange = since, len(strangers)
        for peer, at in list(self._let_in.items()):
            if peer not in peers and at < before:
                del self._let_in[peer]
        self._cut(self._too_many(sorted(strangers), len(since)))

    def _is_known(self, peer: str, since: float) -> bool:
        return self._let_in.get(peer, 0.0) >= since

    def _too_many(self, strangers: list[tuple[float, int]], count: int) -> set[int]:
        door = self._door
        if count > door.connections_max:
            return {number for _, number in strangers}
        spare = max(0, len(strangers) - door.strangers_max)
        before = self._looked_at - door.patience_s
        return {
            number for at, (since, number) in enumerate(strangers) if at < spare or since < before
        }

    def _cut(self, numbers: set[int]) -> None:
        count = 0
        for peer, one in connections(self._port) if numbers else ():
            number = os.fstat(one.fileno()).st_ino
            # It may have been let in since we looked.
            if number in numbers and not self._is_known(peer, self._since[number]):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                    count += 1
        if count and self._looked_at > self._told_at + _TOLD_S:
            self._told_at = self._looked_at
            logger.warning(
                "clients that did not show who they are were cut off", extra={"connections": count}
            )
