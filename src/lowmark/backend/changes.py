"""How often something has changed: counted, so that any number of threads may wait for the next.

A waiter says what it has seen and gets what there is now. Nothing is used up by waiting: an answer
that was lost on its way can be asked for again.
"""

from __future__ import annotations

import threading


class Changes:
    """Counts; may be used on any thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.count = 0

    def add(self) -> None:
        """Something has changed."""
        with self._condition:
            self.count += 1
            self._condition.notify_all()

    def wait(self, seen: int, timeout_s: float) -> int:
        """What there is now: when it is not what was seen, or the time is over."""
        with self._condition:
            self._condition.wait_for(lambda: self.count != seen, timeout_s)
            return self.count
