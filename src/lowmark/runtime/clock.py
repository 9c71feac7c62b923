"""Hybrid time: 48 bits of milliseconds and 16 bits of counter in one integer that only grows.

The milliseconds follow the wall clock while it moves forward; the counter orders what happens
within one of them, and everything that happens while the wall clock stands still or has jumped
back.

One wall clock that is wrong moves no time of the cluster (docs/design/0050). What the nodes' clocks
say is known from `others`; this one gives times within half of `max_skew_ms` of that, wherever its
own wall clock stands, and refuses a message with a time further ahead than `max_skew_ms`: following
it would drag every clock in the cluster into the future. A time that a log has already is another
matter (`follow_log`): it can't be taken back, and reads of the present come behind it.

A node without peers has the only clock there is (`alone`). Every time that it meets, it gave
itself, in this life or an earlier one: it follows all of them, however far ahead they are of a wall
clock that was put back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, NewType

from lowmark.errors import Rejected, invariant

HybridTime = NewType("HybridTime", int)

COUNTER_BITS = 16
MILLIS_BITS = 48
LOG_AHEAD_MS_MAX = 86_400_000
"""A log whose times are further ahead of the clocks than a day moves no other log: leases, cursors
and epochs expire by the times of logs, and all of the cluster's would."""


class Agreed(NamedTuple):
    """What the clocks of a cluster say at a moment, in milliseconds: the middle ones of them.

    Between the two lies what is not known of it: how long messages were under way, and which of two
    clocks is right.
    """

    low_ms: int
    high_ms: int


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
    """Gives times that only grow, near the wall clocks of the cluster.

    They go back in one case, by `heard_more`, and never behind a log.
    """

    def __init__(
        self, wall_ms: Callable[[], int], *, max_skew_ms: int = 500, alone: bool = False
    ) -> None:
        self.alone = alone
        """Whether there is no other clock that this one could be ahead of, or behind."""
        self.others: Callable[[int], Agreed | None] = lambda wall_ms: None
        """What the clocks of the cluster say, if this node's says that; None: there is only it."""
        self._wall_ms = wall_ms
        self._max_skew_ms = max_skew_ms
        self._last = 0
        self._logged = 0
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

    @property
    def logged(self) -> int:
        """The latest time that a log of the cluster has, as far as this clock has followed."""
        return self._logged

    def wall_ms(self) -> int:
        """The wall clock, held to those of the cluster: by it the present is judged."""
        return self._held()[0]

    def _held(self) -> tuple[int, int]:
        """The wall clock as it is held, and how far ahead a time may be that another clock gave."""
        wall_ms = self._wall_ms()
        agreed = None if self.alone else self.others(wall_ms)
        if agreed is None:
            return wall_ms, wall_ms + self._max_skew_ms
        # Half of it on either side: so two clocks that are held differ by no more than is allowed.
        half_ms = self._max_skew_ms // 2
        held_ms = min(max(wall_ms, agreed.low_ms - half_ms), agreed.high_ms + half_ms)
        return held_ms, agreed.high_ms + self._max_skew_ms

    def now(self) -> HybridTime:
        """A time above every one that this clock has given or observed."""
        # A counter that overflows carries into the milliseconds: still monotone, and 65,536 times
        # within one millisecond only ever run ahead of the wall by what was really asked for.
        wall_ms, _ = self._held()
        time, least = wall_ms << COUNTER_BITS, self._last + 1
        self._reached_ms = max(self._reached_ms, wall_ms)
        return self._advance(max(least, time))

    def observe(self, remote: HybridTime) -> HybridTime:
        """Take note of a peer's time, and give one above it; refuse one too far ahead.

        Where this clock is too far ahead itself, since a log has such times, it follows others
        within that millisecond: each has only its counter to go on by, and would refuse what the
        others give. That is enough for 65,536 times; a clock whose counter has carried goes alone,
        until a log has its times or the wall clock has come there.
        """
        wall_ms, limit_ms = self._held()
        is_there = millis_of(remote) <= self._reached_ms
        if millis_of(remote) > limit_ms and not self.alone and not is_there:
            ahead_ms = millis_of(remote) - limit_ms + self._max_skew_ms
            raise ClockSkew(ahead_ms=ahead_ms, max_skew_ms=self._max_skew_ms)
        self._reached_ms = max(self._reached_ms, wall_ms, millis_of(remote))
        return self._advance(max(self._last, remote, (wall_ms << COUNTER_BITS) - 1) + 1)

    def follow(self, time: int) -> bool:
        """Give no time at or below this one, which another clock gave; False: it is too far ahead,
        and is not followed.
        """
        if time > self._last:
            try:
                self.observe(HybridTime(time))
            except ClockSkew:
                return False
        return True

    def follow_log(self, time: int) -> bool:
        """Give no time at or below this one, which a log of the cluster has.

        If it is far ahead, a wrong clock gave it; but rows have it, and the present is behind
        them. False: it is further ahead than a day, and is not followed.
        """
        if time > self._last:
            agreed = None if self.alone else self.others(self._wall_ms())
            if agreed is not None and millis_of(time) > agreed.high_ms + LOG_AHEAD_MS_MAX:
                return False
            self.catch_up(HybridTime(time))
        self._logged = max(self._logged, time)
        return True

    def catch_up(self, time: HybridTime) -> None:
        """Give no time at or below this one: this node's own log has it, so it was given before.

        However far ahead it is: the wall clock was put back, or it was wrong then.
        """
        self._last = max(self._last, time)
        self._logged = max(self._logged, time)
        self._reached_ms = max(self._reached_ms, millis_of(time))

    def heard_more(self) -> None:
        """More is known of the others' clocks: take back what this one gave by a wrong clock.

        A node that starts with a wrong clock asks it for the time before it has heard of another;
        and two nodes, or most, go by a wrong one until it is put right. These times were compared,
        and shown at most: none is in a log. Those of logs stay, up to a day ahead, and what a
        leader has stamped stays below what it stamps next, whatever its clock says. What is ahead
        by less than twice the skew stays, too: the clocks are there soon.
        """
        _, limit_ms = self._held()
        limit_ms += self._max_skew_ms
        if self.alone or millis_of(self._last) <= limit_ms:
            return
        if millis_of(self._logged) > limit_ms + LOG_AHEAD_MS_MAX:
            self._logged = 0  # followed when a wrong clock said that it is not far ahead
        self._last = self._logged
        self._reached_ms = millis_of(self._last)

    def _advance(self, time: int) -> HybridTime:
        if time <= self._last:
            invariant(False, "a hybrid clock never goes back")
        if time >> (COUNTER_BITS + MILLIS_BITS):
            invariant(False, "a hybrid time fits into 64 bits")
        self._last = time
        return HybridTime(time)
