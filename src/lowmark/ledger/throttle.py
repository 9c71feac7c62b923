"""Keeps work below a rate of bytes a second, and counts them."""

from __future__ import annotations

from typing import Protocol

_BURST_S = 0.25
"""So much may be owed before anybody waits: many short waits would cost more than they slow."""


class _Clock(Protocol):
    def now_s(self) -> float: ...
    def wait(self, seconds: float) -> None: ...


class Throttle:
    """Told of bytes after they were moved; waits until the rate is kept."""

    def __init__(self, rate: int, clock: _Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._began_s = clock.now_s()
        self.total = 0

    def __call__(self, count: int) -> None:
        """So many bytes more."""
        self.total += count
        if self._rate <= 0:
            return
        ahead_s = self.total / self._rate - (self._clock.now_s() - self._began_s)
        if ahead_s > _BURST_S:
            self._clock.wait(ahead_s)
