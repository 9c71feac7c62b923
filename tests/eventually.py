"""Waiting for another process, the one way we do it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], *, deadline_s: float = 30.0) -> None:
    """Return as soon as the condition holds; fail if it does not by the deadline."""
    ends_at = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < ends_at, f"not true after {deadline_s} seconds"
        time.sleep(0.005)


def suspend(pid: int) -> None:
    """Send a child SIGSTOP, and return when all of it stands still: a signal is on its way for a
    while, and until then the child's threads go on answering.
    """
    os.kill(pid, signal.SIGSTOP)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"process {pid} has ended"
