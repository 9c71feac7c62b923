"""Rows go by the age or the size of their table: of tables without a key, or with compaction=off.

By age, a row goes when it is older than `retention_ms`: of a partition that nobody writes to, the
last one too. By size, the oldest batches go until the rest has no more than `retention_bytes`; the
newest batch stays, however large it is, so that what was just written can be read.

The leader of a partition computes an offset from what it knows, and has the group cut there. The
cut itself decides how far it goes: it passes no cursor and no lease that came before it. What went
leaves an expired gap. As-of reads hold the low watermark, not the backlog of a table with
retention: one that reads on for longer than rows are kept finds the gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np

from lowmark.catalog import Catalogs, Table, TableId
from lowmark.errors import LowmarkError
from lowmark.group import Future, together
from lowmark.holds import Hold, SafePoint
from lowmark.runtime import COUNTER_BITS, HybridClock, millis_of
from lowmark.table import Partition, Trim, Trimmed, View


@dataclass(frozen=True, slots=True)
class Retained:
    """What retention did to one partition, or would do."""

    table: TableId
    number: int
    start: int
    """Where the backlog began."""
    wanted: int
    """Rows below this offset are too many, or too old."""
    cut: int
    """Where it begins now: lower than wanted if somebody holds it, or a batch straddles it."""
    bytes: int
    """What went, as it was in the log."""
    held_by: tuple[Hold, ...]

    @property
    def rows(self) -> int:
        """So many rows went."""
        return self.cut - self.start


def has_retention(table: Table) -> bool:
    """Whether rows of a table go by age or size."""
    settings = table.settings
    limited = settings.retention_ms is not None or settings.retention_bytes is not None
    return limited and (not table.key or settings.compaction == "off")


def expired_before(view: View, table: Table, *, now_ms: int) -> int:
    """Below this offset rows are too many, or too old."""
    settings, offset = table.settings, view.start
    if not view.count:
        return offset
    if settings.retention_ms is not None:
        since_ms = max(now_ms - settings.retention_ms, 0)
        offset = max(offset, view.offset_from(since_ms << COUNTER_BITS))
    if settings.retention_bytes is not None:
        sizes = np.cumsum(view.size, dtype=np.uint64)
        surplus = int(sizes[-1]) - settings.retention_bytes
        if surplus > 0:
            # The first batches that have the surplus between them; never the newest.
            gone = int(np.searchsorted(sizes, np.uint64(surplus), side="left")) + 1
            offset = max(offset, int(view.first[min(gone, view.count - 1)]))
    return offset


class Retention:
    """Applies it to partitions that this node leads."""

    def __init__(self, clock: HybridClock, catalogs: Catalogs) -> None:
        self._clock = clock
        self._catalogs = catalogs

    def run(
        self, partitions: Iterable[Partition], *, dry_run: bool = False
    ) -> Future[list[Future[Retained]]]:
        """Cut what is too old or too much; resolves when all have their answer."""
        catalog, answers = self._catalogs.latest, []
        for partition in partitions:
            table = catalog.table(partition.table)
            if table is not None and has_retention(table) and partition.group.ready:
                answers.append(self._one(partition, table, dry_run=dry_run))
        return together(answers)

    def _one(self, partition: Partition, table: Table, *, dry_run: bool) -> Future[Retained]:
        now = self._clock.now()
        view = partition.view
        offset = expired_before(view, table, now_ms=millis_of(now))
        trim = Trim(offset, expire=True)

        def retained(safe: SafePoint) -> Retained:
            cut = max(safe.position, view.start)
            went = view.bytes_from(view.start) - view.bytes_from(cut)
            held = safe.held_by if safe.position < offset else ()
            return Retained(table.id, partition.number, view.start, offset, cut, went, held)

        if offset <= view.start:
            return Future.of(retained(SafePoint(view.start, offset, ())))
        if dry_run:
            return Future.of(retained(partition.state.would_trim(trim, now)))
        try:
            asked = partition.ask(trim)
        except LowmarkError as error:
            return Future.failed(error)
        return asked.map(lambda outcome: retained(cast("Trimmed", outcome).safe))


FREED_BYTES_MIN = 64 << 20
"""As much as a segment has by default."""


@dataclass(frozen=True, slots=True)
class _Tally:
    """A backlog as it was at the last look."""

    start: int
    end: int
    bytes: int
    freed: int = 0
    """What went since the last snapshot that was asked for."""


class Freeing:
    """Asks for a snapshot where a cut has left much in the log that is not needed.

    A cut changes what is live; files go when a snapshot says so (phase 1 of the log). Each member
    has its own log, so every node looks at its own copies. A snapshot costs something, too: it is
    asked for when what it would free is a quarter of the backlog, or more than a segment.

    A process that starts anew begins to count anew: a snapshot by age comes in any case.
    """

    def __init__(self) -> None:
        self._tallies: dict[tuple[TableId, int], _Tally] = {}

    def look(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Have a snapshot taken where it is worth it; gives where."""
        worth, tallies = [], {}
        for partition in partitions:
            key = partition.table, partition.number
            tally = _grown(self._tallies.get(key), partition.view)
            if 4 * tally.freed >= tally.freed + tally.bytes > 0 or tally.freed >= FREED_BYTES_MIN:
                worth.append(partition)
                partition.group.snapshot()
                tally = _Tally(tally.start, tally.end, tally.bytes)
            tallies[key] = tally
        self._tallies = tallies
        return worth


def _grown(old: _Tally | None, view: View) -> _Tally:
    """What became of a backlog since the last look; counts only what is new, if nothing went."""
    if old is None:
        return _Tally(view.start, view.end, _bytes_of(view))
    grown = view.bytes_from(old.end) if view.end > old.end else 0
    if view.start <= old.start:
        return _Tally(old.start, view.end, old.bytes + grown, old.freed)
    left = _bytes_of(view)
    freed = max(old.bytes + grown - left, 0)
    return _Tally(view.start, view.end, left, old.freed + freed)


def _bytes_of(view: View) -> int:
    return int(view.size.sum(dtype=np.uint64))
