"""The table as it was at a time: of each key its last row up to then, unless that was a delete.

Two passes over the backlog, as compaction makes them: the first reads keys and changes and finds
out which rows are the last of their key; the second reads those. The time is held from before the
first pass until the reader is closed, so that what it reads can't be compacted away meanwhile. If
the hold was lost all the same, because the node was taken for gone, the last call says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lowmark.client.embedded import Embedded
from lowmark.client.fetching import fetch
from lowmark.client.lookup import keys_of
from lowmark.client.reading import Gap, Reader, Reading
from lowmark.table import AsOfHold, BelowWatermark, Fold, Mask, Partition, View

__all__ = ["AsOfReader"]

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class _Part:
    partition: Partition
    view: View
    end: int
    """The first offset that is later than the time."""


class AsOfReader(Reader):
    """A reader of the table as it was."""

    def __init__(
        self,
        embedded: Embedded,
        partitions: Mapping[int, Partition],
        reading: Reading,
        *,
        time: int,
        hold: AsOfHold,
    ) -> None:
        self.time = time
        self._hold = hold
        super().__init__(embedded, partitions, reading)
        self._ends.append(hold)
        for way in self._ways:
            if way.view.start:
                gap = Gap(way.partition.number, 0, way.view.start - 1, "expired")
                self.gaps.append(gap)

    def _run(self) -> Iterator[pa.RecordBatch]:
        try:
            for way in self._ways:
                end = way.end if way.end is not None else way.view.end
                for batch in self._survivors(_Part(way.partition, way.view, end)):
                    if self._left is not None:
                        batch = batch.slice(0, self._left)
                        self._left -= batch.num_rows
                    if batch.num_rows:
                        yield batch
                    if self._left == 0 or self._closed:
                        return
                way.at = end
            if self._hold.lost:
                raise BelowWatermark(time=self.time, watermark=self._hold.passed_by)
        finally:
            self.close()

    def _survivors(self, part: _Part) -> Iterator[pa.RecordBatch]:
        view, shape = part.view, self._reading.shape
        count = view.batch_at(part.end - 1) + 1 if part.end > view.start else 0
        masks = self._masks(part, count)
        columns = view.columns
        for low, high in _chunks(view, 0, count):
            wanted = [at for at in range(low, high) if _any(masks[at])]
            if not wanted:
                continue
            commands = fetch(self._embedded, part.partition, view, low, high, held=True)
            for at in wanted:
                yield shape.read(
                    commands[at - low],
                    version=int(columns.schema[at]),
                    change=int(columns.change[at]),
                    partition=part.partition.number,
                    first=int(columns.first[at]),
                    time=int(columns.time[at]),
                    keep=masks[at],
                )

    def _masks(self, part: _Part, count: int) -> list[Mask | None]:
        """Which rows of each batch are there at the time; None: all of them."""
        view, table = part.view, self._reading.shape.table
        columns = view.columns
        # A batch has one time, so the end lies between two; but a cut may lie within the first.
        skip = max(0, view.start - int(columns.first[0])) if count else 0
        if not table.key:
            masks: list[Mask | None] = [None] * count
        else:
            fold = Fold()
            for low, high in _chunks(view, 0, count):
                commands = fetch(self._embedded, part.partition, view, low, high, held=True)
                for at, command in zip(range(low, high), commands, strict=True):
                    keys, deletes = keys_of(
                        table,
                        command,
                        version=int(columns.schema[at]),
                        change=int(columns.change[at]),
                    )
                    if at == 0 and skip:
                        keys = keys.slice(skip)
                        deletes = deletes[skip:] if isinstance(deletes, np.ndarray) else deletes
                    fold.add(keys, deletes)
            masks = fold.masks()
        if skip:
            left = int(columns.rows[0]) - skip
            rest = masks[0] if masks[0] is not None else np.ones(left, bool)
            masks[0] = np.concatenate([np.zeros(skip, bool), rest])
        return masks


def _chunks(view: View, low: int, high: int) -> Iterator[tuple[int, int]]:
    while low < high:
        sizes = np.cumsum(view.size[low : min(high, low + 1_024)], dtype=np.uint64)
        end = low + max(1, int(np.searchsorted(sizes, np.uint64(_CHUNK_BYTES), "right")))
        yield low, end
        low = end


def _any(mask: Mask | None) -> bool:
    return mask is None or bool(mask.any())
