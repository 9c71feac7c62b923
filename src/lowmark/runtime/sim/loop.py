"""The simulated loop: one thread, virtual time, every delay drawn from the seed.

`trace` holds what happened, in order; `digest()` is its fingerprint. Nothing here depends on hash
order or on object identity, so equal seeds give equal traces in any process.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from random import Random
from typing import TypeVar

from lowmark.runtime.loop import Outcome

T = TypeVar("T")
Callback = Callable[[], None]


class _SimTimer:
    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class _SimLane:
    """Steps in order, each at a drawn time; what they came to, also in order, some time later.

    As with a real thread, the next step may have run before the loop hears of the last one.
    """

    def __init__(self, loop: SimLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._starts_at_us = 0
        self._done_at_us = 0

    def submit(self, step: Callable[[], T], on_done: Callable[[Outcome[T]], None]) -> None:
        loop = self._loop
        earliest_us = max(loop.elapsed_us(), self._starts_at_us)
        self._starts_at_us = earliest_us + loop.draw_us(self._name)

        def run() -> None:
            loop.note(f"lane {self._name}")
            try:
                outcome = Outcome(step())
            except Exception as error:
                outcome = Outcome(None, error)
            done_at_us = loop.elapsed_us() + loop.draw_us(self._name)
            self._done_at_us = max(self._done_at_us, done_at_us)
            loop.at(self._done_at_us, lambda: on_done(outcome))

        loop.at(self._starts_at_us, run)


class SimLoop:
    """Virtual time: nothing waits, everything happens in an order that the seed decides."""

    def __init__(self, seed: int, *, step_us_max: int = 1_000, start_ms: int = 1_000_000) -> None:
        self.random = Random(seed)
        self.skew_ms = 0
        self._step_us_max = step_us_max
        self._start_ms = start_ms
        self._now_us = 0
        self._sequence = 0
        self._queue: list[tuple[int, int, _SimTimer]] = []
        self._lanes: dict[str, _SimLane] = {}
        self._digest = hashlib.blake2b(digest_size=16)
        self.events = 0

    def wall_ms(self) -> int:
        return self._start_ms + self._now_us // 1_000 + self.skew_ms

    def elapsed_us(self) -> int:
        return self._now_us

    def call_soon(self, callback: Callback) -> None:
        self.at(self._now_us, callback)

    def call_later(self, delay_ms: float, callback: Callback) -> _SimTimer:
        return self.at(self._now_us + int(delay_ms * 1_000), callback)

    def at(self, time_us: int, callback: Callback) -> _SimTimer:
        """Call back at a virtual time."""
        timer = _SimTimer(callback)
        self._sequence += 1
        heapq.heappush(self._queue, (max(time_us, self._now_us), self._sequence, timer))
        return timer

    def lane(self, name: str) -> _SimLane:
        if name not in self._lanes:
            self._lanes[name] = _SimLane(self, name)
        return self._lanes[name]

    def draw_us(self, what: str) -> int:
        """How long something takes, drawn from the seed."""
        del what
        return self.random.randrange(1, self._step_us_max + 1)

    def note(self, what: str) -> None:
        """Add to the trace."""
        self.events += 1
        self._digest.update(f"{self._now_us} {what}\n".encode())

    def digest(self) -> str:
        """The fingerprint of everything noted so far."""
        return self._digest.hexdigest()

    def turn(self) -> bool:
        """Do the next thing there is to do; False when there is nothing left."""
        if self._next_at_us() is None:
            return False
        self._now_us, _, timer = heapq.heappop(self._queue)
        callback, timer.callback = timer.callback, None
        if callback is not None:
            callback()
        return True

    def _next_at_us(self) -> int | None:
        while self._queue and self._queue[0][2].callback is None:
            heapq.heappop(self._queue)  # it was cancelled, and takes no time
        return self._queue[0][0] if self._queue else None

    def run_until(self, condition: Callable[[], bool], *, timeout_ms: float = 60_000) -> None:
        deadline_us = self._now_us + int(timeout_ms * 1_000)
        while not condition():
            next_at_us = self._next_at_us()
            if next_at_us is None or next_at_us > deadline_us:
                self._now_us = deadline_us
                raise TimeoutError("the condition did not come true in virtual time")
            self.turn()

    def run_for(self, duration_ms: float) -> None:
        """Let virtual time pass."""
        passed: list[bool] = []
        self.call_later(duration_ms, lambda: passed.append(True))
        self.run_until(lambda: bool(passed), timeout_ms=duration_ms)

    def close(self) -> None:
        """Forget everything that was still to be done."""
        self._queue.clear()
