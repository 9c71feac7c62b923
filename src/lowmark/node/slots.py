"""A number of places, and the named error for one more."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from lowmark.node.errors import ServerFull


class Slots:
    """A number of places that callers take and give back."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._free = threading.Condition()
        self.taken = 0

    def take(self, some: int = 1, *, wait_s: float = 0.0) -> None:
        """Take some, if they are free before the time is over; at least one taker always may."""
        ends_at = time.monotonic() + wait_s
        with self._free:
            while self.taken and self.taken + some > self._limit:
                left_s = ends_at - time.monotonic()
                if left_s <= 0:
                    raise ServerFull(self._what, limit=self._limit)
                self._free.wait(left_s)
            self.taken += some

    def give(self, some: int = 1) -> None:
        """Give some back."""
        with self._free:
            self.taken -= some
            self._free.notify_all()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Take one for a while."""
        self.take()
        try:
            yield
        finally:
            self.give()
