"""A log to measure, and feeding it: batches go in, a few at a time, until all are durable."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lowmark.log import GroupLog, Log, LogConfig, Written
from lowmark.runtime import RealDisk, Runtime, real_runtime

TIMEOUT_MS = 600_000
TERM = 1
SMALL_BYTES = 100
SMALL_GROUPS = 64
SMALL_BATCH = 1_000

Batch = list[tuple[GroupLog, list[bytes]]]
"""What goes in together: entries per group."""


class _Hasty(RealDisk):
    """A disk that does not wait for its bytes: to build what a turn will find, never to measure."""

    def open(self, path: str, mode: Any) -> Any:
        file = super().open(path, mode)
        file.datasync = file.sync = lambda: None  # type: ignore[method-assign]
        return file

    def sync_dir(self, path: str) -> None:
        del path


@contextlib.contextmanager
def opened(
    folder: Path, config: LogConfig, *, hasty: bool = False
) -> Iterator[tuple[Runtime, Log]]:
    """A log in that folder, on a loop of its own."""
    runtime = real_runtime(str(folder))
    if hasty:
        runtime = replace(runtime, disk=_Hasty(str(folder)))
    try:
        log = Log.open(runtime, config)
        try:
            yield runtime, log
        finally:
            log.close()
    finally:
        runtime.loop.close()


class Feed:
    """Keeps so many batches in flight. A batch is done when its last entry is durable."""

    def __init__(self, runtime: Runtime, log: Log, *, in_flight: int) -> None:
        self._runtime = runtime
        self._in_flight = in_flight
        self._batches: Iterator[Batch] = iter(())
        self._ends: deque[int] = deque()
        self._appended = 0
        self._over = True
        self.entries = 0
        """Durable so far."""
        log.on_written = self._written

    def run(self, batches: Iterable[Batch]) -> None:
        """Feed all of them, and wait until they are durable."""
        self._batches, self._over = iter(batches), False
        self._fill()
        self._runtime.loop.run_until(lambda: self._over and not self._ends, timeout_ms=TIMEOUT_MS)

    def _written(self, event: Written) -> None:
        self.entries += event.last - event.first + 1
        # The WAL writes in the order of the appends, so counting is enough.
        if self._ends and self.entries >= self._ends[0]:
            self._ends.popleft()
            self._fill()

    def _fill(self) -> None:
        while not self._over and len(self._ends) < self._in_flight:
            batch = next(self._batches, None)
            if batch is None:
                self._over = True
                return
            for group, datas in batch:
                group.append(TERM, datas)
                self._appended += len(datas)
            self._ends.append(self._appended)


def spread(groups: int) -> list[int]:
    """How many entries of a small batch each group gets: as even as it goes."""
    return [SMALL_BATCH * (i + 1) // groups - SMALL_BATCH * i // groups for i in range(groups)]


def small_batches(groups: list[GroupLog], count: int) -> Iterator[Batch]:
    """Batches of 1,000 entries of 100 bytes over all groups; a few different ones, in turn."""
    made = [
        [(group, [os.urandom(SMALL_BYTES) for _ in range(n)])
         for group, n in zip(groups, spread(len(groups)), strict=True)]
        for _ in range(min(count, 8))
    ]  # fmt: skip
    return (made[i % len(made)] for i in range(count))
