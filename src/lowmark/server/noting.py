"""What the lock file says of the process that serves a directory, kept up to date.

Where it answers, from the moment it does; and whether its clients hold anything, so that the next
process that has the directory waits for them (`lowmark.node.owner`).
"""

from __future__ import annotations

import threading

from lowmark.node import Node
from lowmark.node.owner import Awaited, Owner
from lowmark.node.settings import chosen
from lowmark.server.sessions import Holding


class OwnerNote:
    """May be used on any thread."""

    def __init__(self, node: Node, *, hold_ms: int) -> None:
        self._node = node
        self._hold_ms = hold_ms
        self._lock = threading.Lock()
        self._address = ""
        self._alone = ""
        self._holding: Awaited | None = None

    def answers_at(self, address: str, *, alone: str = "") -> None:
        """Where it answers; or why it does not."""
        self._address, self._alone = address, alone
        self._write()

    def held(self, holding: Holding) -> None:
        """Which clients hold anything; see `Sessions`."""
        # It is said again each quarter of the time that they have.
        until_ms = self._node.loop.wall_ms() + self._hold_ms + self._hold_ms // 2
        self._holding = Awaited.of(until_ms, holding.sessions, history=holding.history)
        self._write()

    def _write(self) -> None:
        with self._lock:
            awaited = self._node.awaited  # guests of an owner before may still be on their way
            if self._holding is not None:
                awaited = self._holding.and_also(awaited)
            owner = Owner.here(
                self._address,
                chosen(self._node.settings),
                alone=self._alone,
                awaited=awaited,
                serves=not self._node.embedded,
            )
            self._node.log.note(owner.note(), stays=awaited is not None)
