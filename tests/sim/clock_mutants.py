"""Clocks with one thing wrong, on purpose: what lives with a wrong clock must be able to find.

Each mutant is a context manager; within it, every world that is made has the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from lowmark.group.clocks import Clocks
from lowmark.runtime import Agreed, HybridClock
from sim.mutants import replaced

__all__ = ["CLOCK_MUTANTS"]


def believes_its_own_clock() -> AbstractContextManager[None]:
    """As before nodes asked each other."""

    def agreed(self: Clocks, wall_ms: int) -> Agreed | None:
        del self
        return Agreed(wall_ms, wall_ms)

    return replaced(Clocks, "agreed", agreed)


def believes_the_latest_clock() -> AbstractContextManager[None]:
    def agreed(self: Clocks, wall_ms: int) -> Agreed | None:
        others = [high_us + self._elapsed_us() for high_us in self._highs]
        latest_ms = max([wall_ms, *(us // 1_000 for us in others)])
        return Agreed(latest_ms, latest_ms)

    return replaced(Clocks, "agreed", agreed)


def follows_no_log() -> AbstractContextManager[None]:
    """Only as far as any other time: within the skew."""

    def follow_log(self: HybridClock, time: int) -> bool:
        return self.follow(time)

    return replaced(HybridClock, "follow_log", follow_log)


def takes_nothing_back() -> AbstractContextManager[None]:
    """What a wrong clock gave before others were heard of."""
    return replaced(HybridClock, "heard_more", lambda self: None)


CLOCK_MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "believes its own clock": believes_its_own_clock,
    "believes the latest clock": believes_the_latest_clock,
    "follows no log": follows_no_log,
    "takes nothing back": takes_nothing_back,
}
