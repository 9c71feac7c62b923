"""Up to which time a node has heard everything, and the look-ups that wait for it to be so.

Only the time of a command that was applied counts. A look-up that waits for a later one has the
leader put its time into the log; all that wait at a node share that. A time that is yet to come is
refused: it can only be waited for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from lowmark.errors import LowmarkError, Unavailable
from lowmark.group import Future
from lowmark.metastore.errors import NotComplete, TimeToCome
from lowmark.runtime import HybridClock, HybridTime, Loop, millis_of

WAITING_MAX = 10_000
_AGAIN_MS_MIN, _AGAIN_MS_MAX = 20, 1_000
_AHEAD_MS_MAX = 1_000
"""How far ahead of this node's clock, beyond the allowed skew, a time may be waited for."""


class Completeness:
    """Those who wait at one node."""

    def __init__(
        self,
        loop: Loop,
        clock: HybridClock,
        *,
        known: Callable[[], int],
        tick: Callable[[int], Future[object]],
        trouble: Callable[[], LowmarkError | None],
    ) -> None:
        self._trouble = trouble
        self._loop = loop
        self._clock = clock
        self._known = known
        self._tick = tick
        self._waiting: list[tuple[int, int, int, Future[None]]] = []
        """A heap: the time, a number of its own, the deadline, who waits."""
        self._numbers = 0
        self._open = 0
        self._asking = False
        self._closed = False

    def when(self, time: int, *, timeout_ms: int) -> Future[None]:
        """When every revision up to a time was applied here."""
        future: Future[None] = Future()
        ahead_ms = millis_of(time) - millis_of(self._clock.now())
        if self._known() >= time:
            future.resolve(None)
        elif ahead_ms > self._clock.max_skew_ms + _AHEAD_MS_MAX:
            future.reject(TimeToCome(ahead_ms=ahead_ms))
        elif self._open == WAITING_MAX:
            why = f"{WAITING_MAX} look-ups wait at this node already"
            future.reject(Unavailable(why, hint="Retry after a short while."))
        else:
            self._wait(time, timeout_ms, future)
        return future

    def _wait(self, time: int, timeout_ms: int, future: Future[None]) -> None:
        self._numbers += 1
        self._open += 1
        now = self._now_ms()
        heapq.heappush(self._waiting, (time, self._numbers, now + timeout_ms, future))

        def late() -> None:
            if not future.done:
                behind = millis_of(time) - millis_of(self._known())
                future.reject(NotComplete(waited_ms=timeout_ms, behind_ms=max(behind, 1)))

        def over(_: Future[None]) -> None:
            self._open -= 1
            timer.cancel()

        timer = self._loop.call_later(timeout_ms, late)
        future.then(over)
        self._ask()

    def moved_on(self) -> None:
        """More was applied."""
        known = self._known()
        while self._waiting and self._waiting[0][0] <= known:
            heapq.heappop(self._waiting)[-1].resolve(None)

    def close(self, error: LowmarkError) -> None:
        """No look-up waits any longer."""
        self._closed = True
        self._refuse_all(error)

    def _refuse_all(self, error: LowmarkError) -> None:
        waiting, self._waiting = self._waiting, []
        for *_, future in waiting:
            if not future.done:
                future.reject(error.again())

    def _ask(self) -> None:
        """Have the leader put its time into the log, as long as a look-up waits for that."""
        while self._waiting and self._waiting[0][-1].done:
            heapq.heappop(self._waiting)  # they have given up
        if not self._waiting or self._asking or self._closed:
            return
        self._asking = True
        left = max(deadline for _, _, deadline, _ in self._waiting) - self._now_ms()
        self._tick(max(left, 1)).then(lambda _: self._asked())

    def _asked(self) -> None:
        trouble = self._trouble()
        if trouble is not None:
            # Only this node could put its time into the log, and it can't write.
            self._refuse_all(trouble)

        def again() -> None:
            self._asking = False
            self._ask()

        wait_ms = _AGAIN_MS_MIN
        if self._waiting:
            short = millis_of(self._waiting[0][0]) - millis_of(HybridTime(self._known()))
            wait_ms = min(max(short, _AGAIN_MS_MIN), _AGAIN_MS_MAX)
        self._loop.call_later(wait_ms, again)

    def _now_ms(self) -> int:
        return self._loop.elapsed_us() // 1_000
