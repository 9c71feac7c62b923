"""The loop, its lanes, and the bundle of everything a package may ask of the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Generic, Protocol, TypeVar

from lowmark.runtime.clock import HybridClock
from lowmark.runtime.disk import Disk
from lowmark.runtime.network import NO_NETWORK, Network

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What a step came to: a value, or the error that ended it."""

    result: T | None
    error: Exception | None = None

    def value(self) -> T:
        """The step's value; raises the step's error if it failed."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


class Timer(Protocol):
    """Something that will be called later."""

    def cancel(self) -> None:
        """Do not call it."""


class Lane(Protocol):
    """One named thread that runs steps in order."""

    def submit(self, step: Callable[[], T], on_done: Callable[[Outcome[T]], None]) -> None:
        """Run `step` off the loop, then `on_done` on it."""


class Loop(Protocol):
    """Calls everything, one at a time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as far as this machine knows; it may jump."""

    def elapsed_us(self) -> int:
        """Microseconds since some moment; it never goes back."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back in the next turn."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Call back after a while."""

    def lane(self, name: str) -> Lane:
        """The lane of that name; it is made when first asked for."""

    def run_until(self, condition: Callable[[], bool], *, timeout_ms: float = 60_000) -> None:
        """Run until the condition holds; raise what a callback raised, or TimeoutError."""

    def close(self) -> None:
        """Finish the steps at hand, give everything back, and call nothing any more."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """Everything a package may ask of the world."""

    loop: Loop
    disk: Disk
    clock: HybridClock
    random: Random
    network: Network = NO_NETWORK
