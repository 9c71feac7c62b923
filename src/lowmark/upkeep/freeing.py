"""Asks for a snapshot where a cut has left much in the log that nobody needs.

A cut changes what is live; files go when a snapshot says so (phase 1 of the log). Each member has
its own log, so every node looks at its own copies. A snapshot costs something, too: it is asked for
when what it would free is a quarter of the backlog, or more than a segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lowmark.catalog import TableId
from lowmark.table import Partition, View

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
    """A process that starts anew begins to count anew: a snapshot by age comes in any case."""

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
