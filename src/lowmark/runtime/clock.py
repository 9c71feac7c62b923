"""Hybrid time: 48 bits of milliseconds and 16 bits of counter in one integer that only grows.

The milliseconds follow the wall clock while it moves forward; the counter orders what happens
within one of them, and everything that happens while the wall clock stands still or has jumped
back. A message from a node whose clock runs further ahead than `max_skew_ms` is refused: following
it would drag every clock in the cluster into the future.

A node without peers has the only clock there is (`alone`). Every time that it meets, it gave
itself, in this life or an earlier one: it follows all of them, however far ahead they are of a wall
clock that was put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NewType

from lowmark.errors import Rejected, invariant

HybridTime = NewType("HybridTime", int)

COUNTER_BITS = 16
MILLIS_BITS = 48


class ClockSkew(Rejected):
    """A peer's clock is further ahead than the cluster allows."""

    def __init__(self, *, ahead_ms: int, max_skew_ms: int) -> None:
        super().__init__(
            f"a peer's clock is {ahead_ms} ms ahead of ours",
            detail=f"At most {max_skew_ms} ms are allowed (clock.max_skew_ms).",
            hint="Synchronise the clocks of both machines, then retry.",
        )
        self.ahead_ms = ahead_ms
        self.max_skew_ms = max_skew_ms


def millis_of(time: int) -> int:
    """The wall-clock part of a time, in milliseconds since 1970."""
    return time >> COUNTER_BITS


class HybridClock:
    """Gives times that only grow, near the wall clock it is given."""

    def __init__(
        self, wall_ms: Callable[[], int], *, max_skew_ms: int = 500, alone: bool = False
    ) -> None:
        self.alone = alone
        """Whether there is no other clock that this one could be ahead of, or behind."""
        self._wall_ms = wall_ms
        self._max_skew_ms = max_skew_ms
        self._last = 0
        self._reached_ms = 0
        """The latest millisecond that it had by a wall clock; its counter may overflow above it."""

    @property
    def max_skew_ms(self) -> int:
        """How far clocks of the cluster may differ."""
        return self._max_skew_ms

    def allow_skew(self, max_skew_ms: int) -> None:
        """What the cluster has settled, once this node knows it."""
        self._max_skew_ms = max_skew_ms

    @property
    def latest(self) -> int:
        """The last time that it gave, or a later one that it met; may be asked on any thread."""
        return self._last

    def now(self) -> HybridTime:
        """A time above every one that this clock has given or observed."""
        # A counter that overflows carries into the milliseconds: still monotone, and 65,536 times
        # within one millisecond only ever run ahead of the wall by what was really asked for.
        wall_ms = self._wall_ms()
        time, least = wall_ms << COUNTER_BITS, self._last + 1
        self._reached_ms = max(self._reached_ms, wall_ms)
        return self._advance(max(least, time))

    def observe(self, remote: HybridTime) -> HybridTime:
        """Take note of a peer's time, and give one above it; refuse one too far ahead.

        Where this clock is too far ahead itself, since a wall clock was wrong, it follows others
        within that millisecond: each has only its counter to go on by, and would refuse what the
        others give. That is enough for 65,536 times; a clock whose counter has carried goes alone,
        until the wall clock has come there.
        """
        wall_ms = self._wall_ms()
        ahead_ms = millis_of(remote) - wall_ms
        is_there = millis_of(remote) <= self._reached_ms
        if ahead_ms > self._max_skew_ms and not self.alone and not is_there:
            raise ClockSkew(ahead_ms=ahead_ms, max_skew_ms=self._max_skew_ms)
        self._reached_ms = max(self._reached_ms, wall_ms, millis_of(remote))
        return self._advance(max(self._last, remote, (wall_ms << COUNTER_BITS) - 1) + 1)

    def follow(self, time: int) -> None:
        """Give no time at or below this one, which another clock gave; leave one too far ahead."""
        if time > self._last:
            with contextlib.suppress(ClockSkew):
                self.observe(HybridTime(time))

    def catch_up(self, time: HybridTime) -> None:
        """Give no time at or below this one: this node's own log has it, so it was given before.

        However far ahead it is: the wall clock was put back, or it was wrong then.
        """
        self._last = max(self._last, time)
        self._reached_ms = max(self._reached_ms, millis_of(time))

    def _advance(self, time: int) -> HybridTime:
        if time <= self._last:
            invariant(False, "a hybrid clock never goes back")
        if time >> (COUNTER_BITS + MILLIS_BITS):
            invariant(False, "a hybrid time fits into 64 bits")
        self._last = time
        return HybridTime(time)
