"""Wall clocks that a test sets, and one that goes by steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from lowmark.runtime import RealLoop

STEP_MS = int(os.environ.get("LOWMARK_WALL_STEP_MS", "0"))
"""With this, the clock of all tests stands still and moves on by so much at a time. That finds what
needs two calls to be in different milliseconds: `LOWMARK_WALL_STEP_MS=20 make test`."""


@contextmanager
def wall_clock(wall_ms: Callable[[], int]) -> Iterator[None]:
    """Let databases that are opened in this process have this wall clock."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RealLoop, "wall_ms", lambda _: wall_ms())
        yield


def by_steps(step_ms: int) -> Callable[[], int]:
    """A wall clock that stands still for `step_ms`, and then moves on by as much."""
    return lambda: time.time_ns() // 1_000_000 // step_ms * step_ms


def standing() -> Callable[[], int]:
    """A wall clock that never moves."""
    now_ms = time.time_ns() // 1_000_000
    return lambda: now_ms
