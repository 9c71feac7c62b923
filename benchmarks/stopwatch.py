"""The clock of the measured part of a turn; what comes before and after does not count."""

from __future__ import annotations

import time
from typing import ClassVar, Self


class Stopwatch:
    """Runs inside its `with`; the seconds so far can be asked for at any time."""

    running: ClassVar[int] = 0
    """How many are running in this process: a profile looks only then."""

    def __init__(self) -> None:
        self._began = 0.0
        self._ended: float | None = None

    def __enter__(self) -> Self:
        Stopwatch.running += 1
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = time.perf_counter()
        Stopwatch.running -= 1

    def seconds(self) -> float:
        """How long it has been, or was."""
        return (self._ended or time.perf_counter()) - self._began
