"""Where the work of a run is carried out: on Spark, or right here. And the part of it that runs
there.

A runner takes packs of work, one for each task, and gives the answers. It knows nothing of what the
work is; Spark's is in `lowmark.spark`, which is loaded when it is first needed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Protocol

from lowmark.client.failures import Cancelled
from lowmark.ledger import carry_out
from lowmark.runtime import Disk, RealDisk

__all__ = ["HereRunner", "Runner", "work_off"]


class Runner(Protocol):
    """Carries work out."""

    @property
    def slots(self) -> int:
        """So many tasks run at once."""

    def run(
        self,
        function: Callable[[bytes], bytes],
        packs: Sequence[Sequence[bytes]],
        *,
        label: str,
    ) -> list[bytes]:
        """Call a function on every piece of every pack; gives all answers, in order."""

    def cancel(self) -> None:
        """End what runs; whoever waits for it gets `Cancelled`. From any thread."""

    def close(self) -> None:
        """Nothing more is run."""


_unwanted: ContextVar[threading.Event | None] = ContextVar("unwanted", default=None)


class HereRunner:
    """In this process, one piece after another: no Java, no start, one core."""

    slots = 1

    def __init__(self) -> None:
        self._cancelled = threading.Event()

    def run(
        self,
        function: Callable[[bytes], bytes],
        packs: Sequence[Sequence[bytes]],
        *,
        label: str,
    ) -> list[bytes]:
        """See `Runner`."""
        del label
        token = _unwanted.set(self._cancelled)
        try:
            return [function(piece) for pack in packs for piece in pack]
        finally:
            _unwanted.reset(token)
            self._cancelled.clear()

    def cancel(self) -> None:
        """See `Runner`."""
        self._cancelled.set()

    def close(self) -> None:
        """See `Runner`."""


def work_off(data: bytes) -> bytes:
    """One partition's part of a run, in whatever process this is."""
    return carry_out(data, _ThisProcess())


class _ThisProcess:
    """See `lowmark.ledger.Here`."""

    def now_s(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        event = _unwanted.get()
        if event is None:
            time.sleep(seconds)
        else:
            event.wait(seconds)
            self.check()

    def draw(self) -> str:
        return secrets.token_hex(4)

    def disk(self, root: str) -> Disk:
        return RealDisk(root, create=False)

    def check(self) -> None:
        event = _unwanted.get()
        if event is not None and event.is_set():
            raise Cancelled("the run was cancelled")
