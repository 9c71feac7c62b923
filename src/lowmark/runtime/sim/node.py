"""One node of a simulated cluster: its own clock and lanes on the world's loop, and its own death.

All nodes of a world share one `SimLoop`, which is true time. A node sees that time through a clock
of its own, which may be wrong, run fast or slow, and jump. Whatever a node has asked to be called
for, and its steps that have not run, die with it; what a step has done to the disk stays done.

A `SimNode` is one life. After a crash it calls nothing any more, whoever still holds on to it;
`restarted()` gives the next life of the same machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from lowmark.errors import invariant
from lowmark.runtime.loop import Outcome, Timer
from lowmark.runtime.sim.disk import WorldStopped
from lowmark.runtime.sim.loop import SimLoop

T = TypeVar("T")
Callback = Callable[[], None]

_MILLION = 1_000_000


class _NodeTimer:
    """Known to its node as long as it may go off."""

    def __init__(self, node: SimNode, callback: Callback) -> None:
        self._node = node
        self._callback = callback
        self.inner: Timer | None = None

    def start(self, inner: Timer) -> None:
        self.inner = inner
        self._node.waiting[self] = None

    def cancel(self) -> None:
        self._node.waiting.pop(self, None)
        if self.inner is not None:
            self.inner.cancel()

    def __call__(self) -> None:
        self._node.run(self._go_off)

    def _go_off(self) -> None:
        if self in self._node.waiting:  # it may have been cancelled while the node was held up
            del self._node.waiting[self]
            self._callback()


class _NodeLane:
    """As a lane of the world's loop, except that its steps belong to a node."""

    def __init__(self, node: SimNode, name: str) -> None:
        self._node = node
        self._name = name
        self._starts_at_us = 0
        self._done_at_us = 0

    def submit(self, step: Callable[[], T], on_done: Callable[[Outcome[T]], None]) -> None:
        node, world = self._node, self._node.world
        if node.crashed:
            return
        earliest_us = max(world.elapsed_us(), self._starts_at_us)
        self._starts_at_us = earliest_us + world.draw_us(self._name)

        def run() -> None:
            node.note(f"lane {self._name}")
            try:
                outcome = Outcome(step())
            except Exception as error:
                outcome = Outcome(None, error)
            done_at_us = world.elapsed_us() + world.draw_us(self._name)
            self._done_at_us = max(self._done_at_us, done_at_us)
            node.at(self._done_at_us, lambda: on_done(outcome))

        node.at(self._starts_at_us, run)


class SimNode:
    """A loop for one node: give it to `sim_runtime` in place of the world's.

    `rate` is how fast its clock runs, 1.0 being right; `skew_ms` is how far its wall clock is
    ahead. Both may be changed at any time: setting `skew_ms` is a jump of the wall clock. Elapsed
    time never jumps, but runs at the same rate. A timer keeps the moment that it was started for
    when the rate changes.

    A node can be held up (`hold_up`): it does everything, but late.

    If the node's disk stops the world (`WorldStopped`), it stops for this node only: the node
    crashes, and the others go on.
    """

    def __init__(self, world: SimLoop, name: str, *, skew_ms: int = 0, rate: float = 1.0) -> None:
        self.world = world
        self.name = name
        self.crashed = False
        self.waiting: dict[_NodeTimer, None] = {}
        self._held_until_us = 0
        self._held: deque[Callback] = deque()
        self._lanes: dict[str, _NodeLane] = {}
        self._at_crash: list[Callback] = []
        # The clock is a line through one point, in whole numbers, so that it is the same anywhere.
        self._rate_ppm = _ppm(rate)
        self._since_us = world.elapsed_us()
        self._elapsed_then_us = world.elapsed_us()
        self._wall_at_zero_us = 0
        self.skew_ms = skew_ms

    # -- the clock --------------------------------------------------------------------------------

    def wall_ms(self) -> int:
        return (self._wall_at_zero_us + self.elapsed_us()) // 1_000

    def elapsed_us(self) -> int:
        passed_us = self.world.elapsed_us() - self._since_us
        return self._elapsed_then_us + passed_us * self._rate_ppm // _MILLION

    @property
    def skew_ms(self) -> int:
        """How far the wall clock is ahead of the world's; what drifted counts too."""
        return self.wall_ms() - self.world.wall_ms()

    @skew_ms.setter
    def skew_ms(self, skew_ms: int) -> None:
        self._wall_at_zero_us = (self.world.wall_ms() + skew_ms) * 1_000 - self.elapsed_us()

    @property
    def rate(self) -> float:
        """How fast the clock runs; 1.0 is right."""
        return self._rate_ppm / _MILLION

    @rate.setter
    def rate(self, rate: float) -> None:
        self._elapsed_then_us = self.elapsed_us()
        self._since_us = self.world.elapsed_us()
        self._rate_ppm = _ppm(rate)

    # -- the loop ---------------------------------------------------------------------------------

    def call_soon(self, callback: Callback) -> None:
        self.at(self.world.elapsed_us(), callback)

    def call_later(self, delay_ms: float, callback: Callback) -> Timer:
        # Rounded up, so that no timer goes off before its time by the node's own clock.
        delay_us = -(-int(delay_ms * 1_000) * _MILLION // self._rate_ppm)
        return self.at(self.world.elapsed_us() + delay_us, callback)

    def at(self, time_us: int, callback: Callback) -> Timer:
        """Call back at a time of the world's clock, if this life lasts until then."""
        timer = _NodeTimer(self, callback)
        if not self.crashed:
            timer.start(self.world.at(time_us, timer))
        return timer

    def lane(self, name: str) -> _NodeLane:
        if name not in self._lanes:
            self._lanes[name] = _NodeLane(self, name)
        return self._lanes[name]

    def note(self, what: str) -> None:
        """Add to the world's trace."""
        self.world.note(f"{self.name} {what}")

    def run_until(self, condition: Callable[[], bool], *, timeout_ms: float = 60_000) -> None:
        """Run the whole world until the condition holds; the timeout is in the world's time."""
        self.world.run_until(condition, timeout_ms=timeout_ms)

    def close(self) -> None:
        """Forget everything that was still to be done, and give back what lives on this loop."""
        if self.crashed:
            return
        self.crashed = True
        for timer in list(self.waiting):
            timer.cancel()
        for give_back in self._at_crash:
            give_back()

    # -- life and death ---------------------------------------------------------------------------

    def run(self, callback: Callback) -> None:
        """Call something as this node: not at all if it is dead, to its death if its disk stops.

        While the node is held up, and until it has done what waited, it waits behind that.
        """
        if self.crashed:
            return
        if self._held or self.world.elapsed_us() < self._held_until_us:
            self._held.append(callback)
            if len(self._held) == 1:
                self.world.at(self._held_until_us, self._catch_up)
            return
        try:
            callback()
        except WorldStopped:
            self.crash()

    def hold_up(self, ms: float) -> None:
        """Do nothing for so long, as a process that is suspended, or that has other work to do.

        What was to happen meanwhile happens afterwards, in the same order. A node that is held up
        already is held up for longer.
        """
        since_us = max(self.world.elapsed_us(), self._held_until_us)
        self._held_until_us = since_us + int(ms * 1_000)

    def _catch_up(self) -> None:
        """Do the first thing that waits; what it takes may hold up the next."""
        if self.crashed:
            return
        try:
            if self.world.elapsed_us() >= self._held_until_us:
                try:
                    self._held[0]()
                finally:
                    self._held.popleft()  # until now, what came meanwhile waited behind it
        except WorldStopped:
            self.crash()
        finally:
            if self._held:
                self.world.at(self._held_until_us, self._catch_up)

    def at_crash(self, callback: Callback) -> None:
        """Call back when this life ends."""
        self._at_crash.append(callback)

    def crash(self) -> None:
        """End this life now: nothing that it has asked for will ever be called.

        Its disk is not touched; what of it survives is `SimDisk.crashed` or `killed`. Crash a node
        from outside, between two turns: a callback of the node that is under way goes on to its
        end, and may write to the disk until then.
        """
        if not self.crashed:
            self.note("crashed")
            self.close()

    def restarted(self) -> SimNode:
        """The next life of the same machine: its clock goes on, nothing else does."""
        invariant(self.crashed, "a node has one life at a time")
        return SimNode(self.world, self.name, skew_ms=self.skew_ms, rate=self.rate)


def _ppm(rate: float) -> int:
    ppm = round(rate * _MILLION)
    invariant(ppm > 0, "a clock moves forward")
    return ppm
