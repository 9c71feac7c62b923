"""What the wall clocks of the cluster's nodes say, and which of them are wrong.

Each node asks all others for their wall clocks, about once a second. An answer was given between
the question and its arrival, so it says what the other clock is ahead of this node's elapsed time,
but for as long as the question took; it counts if that was no longer than half of what clocks may
differ. Elapsed time does not jump: a jump of this node's wall clock is seen at once, without
asking, and that of another one with its next answer. Of a node that is silent, the last answer
counts for ten minutes.

The cluster's time is the middle one of these clocks, this node's among them (`HybridClock.others`).
So one that is wrong among three moves no time; most of them, if they jump together, do. Of two that
differ, none can say which is right: each may go its way, and the one that is behind follows the
other (docs/design/0050).

The answer also has the latest time that a log of the cluster has, as far as the other node knows.
Where that is far ahead, from a time when too few clocks were heard, all nodes come to follow it.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from lowmark.group.calls import Calls, Reply
from lowmark.runtime import Agreed, Buffer, Future, HybridClock, millis_of

logger = logging.getLogger(__name__)

SERVICE: Final = "node.clock"
_ANSWER = struct.Struct("<qQ")
"""The wall clock, in milliseconds; the latest time that a log has."""
_EVERY_MS = 1_000
_EACH_MS = 20
"""With more than fifty nodes, one is asked every so often."""
_FIRST_MS = 200
"""So often one is asked that has not answered yet."""
_KEPT_MS = 600_000
_TIMEOUT_MS = 2_000


class Off(NamedTuple):
    """A node whose clock is further off than clocks may differ."""

    node: int
    ahead_ms: int
    """Ahead of most others, or behind them (negative); of two nodes, ahead of the one that says
    so."""
    of_most: bool


class _Known:
    """What is known of another node's clock."""

    __slots__ = ("answered_ms", "asked_ms", "high_us", "low_us", "open")

    def __init__(self) -> None:
        self.low_us = 0
        """Its wall clock is ahead of this node's elapsed time by this at least,"""
        self.high_us = 0
        """and by this at most."""
        self.answered_ms: int | None = None
        self.asked_ms: int | None = None
        self.open: Future[None] | None = None


class Clocks:
    """The clocks of all nodes, as one of them knows them. All on the loop."""

    def __init__(
        self,
        calls: Calls,
        clock: HybridClock,
        *,
        nodes: Callable[[], Iterable[int]],
        wall_ms: Callable[[], int],
        elapsed_us: Callable[[], int],
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._nodes = nodes
        """All other nodes whose addresses are known."""
        self._wall_ms = wall_ms
        self._elapsed_us = elapsed_us
        self._known: dict[int, _Known] = {}
        self._lows: list[int] = []
        self._highs: list[int] = []
        """Of those that count, each in its order."""
        self._said: tuple[Off, ...] = ()
        self._started = False
        calls.serve(SERVICE, self._asked)
        if not clock.alone:
            clock.others = self.agreed

    # -- asking -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Ask from now on: this node belongs to a cluster."""
        self._started = not self._clock.alone

    def tick(self) -> None:
        """Ask those whose turn it is."""
        if not self._started:
            return
        now_ms = self._elapsed_us() // 1_000
        nodes = sorted(self._nodes())
        for node in self._known.keys() - set(nodes):
            del self._known[node]
        every_ms = max(_EVERY_MS, _EACH_MS * len(nodes))
        for node in nodes:
            known = self._known.setdefault(node, _Known())
            pause_ms = _FIRST_MS if known.answered_ms is None else every_ms
            if known.asked_ms is None or now_ms - known.asked_ms >= pause_ms:
                self.look(node)
        self._count()
        self._say()

    def look(self, node: int) -> Future[None]:
        """Ask a node now; done when it has answered, or will not."""
        known = self._known.setdefault(node, _Known())
        if known.open is None:
            since_us = self._elapsed_us()
            known.asked_ms = since_us // 1_000
            done: Future[None] = Future()
            known.open = done
            answer = self._calls.ask(node, SERVICE, b"", timeout_ms=_TIMEOUT_MS)
            answer.then(partial(self._answered, known, since_us, done))
            return done
        return known.open

    def _answered(
        self, known: _Known, since_us: int, done: Future[None], answer: Future[bytes]
    ) -> None:
        known.open = None
        if answer.error is None and len(answer.result()) == _ANSWER.size:
            wall_ms, logged = _ANSWER.unpack(answer.result())
            now_us = self._elapsed_us()
            low_us, high_us = wall_ms * 1_000 - now_us, (wall_ms + 1) * 1_000 - since_us
            # One that took long says little: only that an earlier one is not true any more.
            before_counts = known.answered_ms is not None and self._counts(known)
            apart = low_us > known.high_us or high_us < known.low_us
            if not before_counts or apart or high_us - low_us <= self._width_us:
                known.low_us, known.high_us = low_us, high_us
            known.answered_ms = now_us // 1_000
            self._count()
            self._clock.follow_log(logged)
        done.resolve(None)

    def _asked(self, address: str, sender: int, question: Buffer, reply: Reply) -> None:
        del address, sender, question
        reply(_ANSWER.pack(self._wall_ms(), self._clock.logged))

    # -- judging ----------------------------------------------------------------------------------

    @property
    def heard(self) -> int:
        """Of how many other nodes the clocks count now."""
        return len(self._highs)

    @property
    def _width_us(self) -> int:
        """What may be open of a clock that counts: then one that is right is never held back, and
        gives no time that others refuse.
        """
        return self._clock.max_skew_ms * 500

    def _counts(self, known: _Known) -> bool:
        return known.high_us - known.low_us <= self._width_us

    def _heard(self) -> dict[int, _Known]:
        """Those that count."""
        since_ms = self._elapsed_us() // 1_000 - _KEPT_MS
        return {
            node: known
            for node, known in self._known.items()
            if known.answered_ms is not None
            and known.answered_ms >= since_ms
            and self._counts(known)
        }

    def _count(self) -> None:
        heard = self._heard().values()
        self._lows = sorted(known.low_us for known in heard)
        self._highs = sorted(known.high_us for known in heard)
        if heard:
            self._clock.heard_more()  # of a node more, or that a clock was put right

    def agreed(self, wall_ms: int) -> Agreed | None:
        """What the clocks say now, if this node's says that; None: there is no other node."""
        if not self._highs:
            return Agreed(wall_ms, wall_ms) if self._known else None
        elapsed_us = self._elapsed_us()
        own_us = wall_ms * 1_000 - elapsed_us
        count = len(self._highs)
        # Of an even number the later one: a clock is wrong only if most others say so.
        low_us = _middle(self._lows, own_us, count // 2)
        high_us = _middle(self._highs, own_us, (count + 1) // 2)
        return Agreed((low_us + elapsed_us) // 1_000, (high_us + elapsed_us) // 1_000)

    def off(self) -> tuple[Off, ...]:
        """The nodes whose clocks are further off than they may be, as far as can be told."""
        heard, elapsed_us = self._heard(), self._elapsed_us()
        if self._clock.alone or not heard:
            return ()
        wall_ms = self._wall_ms()
        own = (wall_ms * 1_000 - elapsed_us, (wall_ms + 1) * 1_000 - elapsed_us)
        bounds = {node: (known.low_us, known.high_us) for node, known in heard.items()}
        if len(heard) == 1:
            low_us = high_us = own[0]
        else:
            bounds[self._calls.node] = own
            lows, highs = (sorted(one[at] for one in bounds.values()) for at in (0, 1))
            low_us, high_us = lows[(len(lows) - 1) // 2], highs[len(highs) // 2]
        may_us = self._clock.max_skew_ms * 1_000
        found = []
        for node, (low, high) in sorted(bounds.items()):
            if low - high_us > may_us:
                found.append(Off(node, (low - high_us) // 1_000, len(heard) > 1))
            elif low_us - high > may_us:
                found.append(Off(node, -((low_us - high) // 1_000), len(heard) > 1))
        return tuple(found)

    @property
    def times_ahead_ms(self) -> int:
        """How far the times that this node gives are ahead of the clocks, since a log has such."""
        agreed = None if self._clock.alone else self.agreed(self._wall_ms())
        if agreed is None:
            return 0
        return max(0, millis_of(self._clock.latest) - agreed.high_ms - self._clock.max_skew_ms)

    def _say(self) -> None:
        """Have people know; once each time that it changes."""
        off = self.off()
        before = {one.node for one in self._said}
        for one in off:
            if one.node not in before:
                logger.warning(
                    "the clock of a node is wrong" if one.of_most else "two nodes' clocks differ",
                    extra={"peer": self._calls.name_of(one.node), "ahead_ms": one.ahead_ms},
                )
        for node in before - {one.node for one in off}:
            logger.info("a node's clock is right again", extra={"peer": self._calls.name_of(node)})
        self._said = off


def _middle(others: list[int], own: int, at: int) -> int:
    """What stands at a place of them in order, this node's among them."""
    if at:
        own = max(own, others[at - 1])
    return min(own, others[at]) if at < len(others) else own
