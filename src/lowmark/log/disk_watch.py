"""Knows whether little of the disk is free, so that phase 3 runs as soon as that is so.

How much is free is looked at when a WAL file begins (the WAL says what it found), when one is in
segments, and every `disk_check_interval_ms`: a log that takes no writes notices, too, that another
program fills its disk. A look is one `statvfs`, on a lane, since a sick disk may not answer.

The look that first finds less than `disk_low_bytes` starts phase 3 in all groups. Later looks start
nothing: what can be freed changes when segments or live sets do, and then phase 1 runs, which asks
`is_low`. So a disk that stays low costs a log at rest nothing but the looks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lowmark.log.config import LogConfig
from lowmark.log.tasks import Tasks
from lowmark.runtime import Disk, Outcome

logger = logging.getLogger(__name__)


class DiskWatch:
    """Looks now and then, and calls once when little is free."""

    def __init__(
        self, disk: Disk, config: LogConfig, *, tasks: Tasks, on_low: Callable[[], None]
    ) -> None:
        self._disk = disk
        self._low_bytes = config.disk_low_bytes
        self._interval_ms = config.disk_check_interval_ms if config.disk_low_bytes else 0
        self._tasks = tasks
        self._on_low = on_low
        self._looking = False
        self.is_low = False
        """Whether the last look found less than `disk_low_bytes`."""

    def plan(self) -> None:
        """Look again after a while, and then on and on."""
        if self._interval_ms:
            self._tasks.now_and_then(self._interval_ms, self._tick)

    def _tick(self) -> None:
        self.look()
        self.plan()

    def look(self) -> None:
        """Ask the disk, unless it is being asked already."""
        if self._low_bytes and not self._looking:
            self._looking = True
            self._tasks.run(self._disk.free_bytes, self._looked)

    def _looked(self, outcome: Outcome[int]) -> None:
        self._looking = False
        if outcome.error is None:  # else what is written next says what is wrong with the disk
            self.found(outcome.value())

    def found(self, free: int) -> None:
        """Hear how much is free."""
        was_low, self.is_low = self.is_low, free < self._low_bytes
        if self.is_low == was_low:
            return
        extra = {"directory": self._disk.describe(""), "free_bytes": free}
        if self.is_low:
            # No warning: nothing is refused yet, and each command on a small disk would print one.
            logger.info("little is free on the disk", extra=extra)
            self._on_low()
        else:
            logger.info("enough is free on the disk again", extra=extra)
