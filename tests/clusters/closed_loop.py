"""A closed loop of requests: each answer makes room for the next one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lowmark.errors import invariant

if TYPE_CHECKING:
    from lowmark.group import Future

T = TypeVar("T")


def percentile(ordered: Sequence[int], share: float) -> int:
    """The least of them that at least this share does not exceed."""
    invariant(len(ordered) > 0 and 0 < share <= 1, "there is something to take a share of")
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


class ClosedLoop(Generic[T]):
    """Keeps so many requests under way until all are answered. One that fails is an error."""

    def __init__(
        self,
        submit: Callable[[int], Future[T]],
        *,
        in_flight: int,
        count: int,
        done: Callable[[dict[str, Any]], None],
        heard: Callable[[int, T], None] | None = None,
    ) -> None:
        self._submit = submit
        self._in_flight = in_flight
        self._count = count
        self._done = done
        self._heard = heard
        self._submitted = 0
        self._answered = 0
        self._took: list[int] = []
        self.began = 0.0

    def start(self) -> None:
        """Begin; `done` hears what came of it."""
        self.began = time.perf_counter()
        for _ in range(min(self._in_flight, self._count)):
            self._next()

    def _next(self) -> None:
        number = self._submitted
        self._submitted += 1
        began_us = time.perf_counter_ns() // 1_000

        def answered(future: Future[T]) -> None:
            answer = future.result()
            self._took.append(time.perf_counter_ns() // 1_000 - began_us)
            if self._heard is not None:
                self._heard(number, answer)
            self._answered += 1
            if self._submitted < self._count:
                self._next()
            elif self._answered == self._count:
                self._end()

        self._submit(number).then(answered)

    def _end(self) -> None:
        seconds = time.perf_counter() - self.began
        took = sorted(self._took)
        self._done(
            {
                "count": self._count,
                "seconds": seconds,
                "p50_ms": percentile(took, 0.5) / 1e3,
                "p99_ms": percentile(took, 0.99) / 1e3,
            }
        )
