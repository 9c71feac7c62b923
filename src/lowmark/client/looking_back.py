"""The table as it was at a time: of each key its last row up to then, unless that was a delete.

Two passes over the backlog, as compaction makes them: the first reads keys and changes and finds
out which rows are the last of their key; the second reads those. The time is held from before the
first pass until the reader is closed, so that what it reads can't be compacted away meanwhile. If
the hold was lost all the same, because the node was taken for gone, the last call says so.

The keys of one partition at a time are kept in memory, all of them; the rows are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lowmark.client.embedded import Embedded
from lowmark.client.failures import RowsLost
from lowmark.client.fetching import Moved, fetch
from lowmark.client.keys_of import KeyReader
from lowmark.client.reading import Gap, GapFound, Reader, Reading
from lowmark.runtime import Buffer
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
    """A reader of the table as it was.

    While it reads a partition, it has the keys of all its rows in memory. `batch_bytes` does not
    apply: batches are those that were appended, without the rows that did not last.
    """

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
        self.gaps += [
            Gap(way.partition.number, 0, way.view.start - 1, "expired")
            for way in self._ways
            if way.view.start
        ]
        if self.gaps and reading.on_gap == "raise":
            self.close()
            raise GapFound(self.gaps[0])

    @property
    def position(self) -> dict[int, int]:
        """Where the table as it was ends: whoever has read it goes on from there."""
        return {way.partition.number: way.end or 0 for way in self._ways}

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
                    if self._closed:
                        return
                    if self._left == 0:
                        self._check_held()
                        return
                way.at = end
            self._check_held()
        finally:
            self.close()

    def _check_held(self) -> None:
        """Raise if what was given may not be all: the watermark has passed the time meanwhile."""
        hold = self._hold
        passed_by = self._embedded.ask_now(lambda: hold.passed_by if hold.lost else None)
        if passed_by is not None:
            raise BelowWatermark(time=self.time, watermark=passed_by)

    def _fetch_held(self, part: _Part, low: int, high: int) -> list[Buffer]:
        """Batches that are held for this reader."""
        try:
            return fetch(self._embedded, part.partition, part.view, low, high, held=True)
        except Moved:
            raise RowsLost(
                f"offsets {part.view.start} to {part.end - 1} of partition"
                f" {part.partition.number} are gone, though they were held for this reader",
                hint="This is a bug of Lowmark: report it. Read the table as of a later time.",
            ) from None

    def _survivors(self, part: _Part) -> Iterator[pa.RecordBatch]:
        view, shape = part.view, self._reading.shape
        count = view.batch_at(part.end - 1) + 1 if part.end > view.start else 0
        masks = self._masks(part, count)
        for low, high in _chunks(view, count):
            wanted = [at for at in range(low, high) if _any(masks[at])]
            if not wanted:
                continue
            commands = self._fetch_held(part, low, high)
            for at in wanted:
                yield shape.read_at(
                    view,
                    at,
                    commands[at - low],
                    partition=part.partition.number,
                    keep=masks[at],
                )

    def _masks(self, part: _Part, count: int) -> list[Mask | None]:
        """Which rows of each batch are there at the time; None: all of them."""
        view, table = part.view, self._reading.shape.table
        if not count:
            return []
        # A batch has one time, so the end lies between two; but a cut may lie within the first.
        skip = max(0, view.start - int(view.columns.first[0]))
        if not table.key:
            masks: list[Mask | None] = [None] * count
            if skip:
                masks[0] = np.arange(int(view.columns.rows[0])) >= skip
            return masks
        fold, reader, chunks = Fold(), KeyReader(table), []
        for low, high in _chunks(view, count):
            for some in reader.read(view, low, self._fetch_held(part, low, high)):
                keys, deletes = some.keys, some.deletes
                if some.low == 0 and skip:
                    keys = keys.slice(skip)
                    deletes = deletes[skip:] if isinstance(deletes, np.ndarray) else deletes
                fold.add(keys, deletes)
                chunks.append((some.low, some.high))
        masks = []
        for (low, high), mask in zip(chunks, fold.masks(), strict=True):
            if low == 0 and skip:
                left = int(view.rows[:high].sum(dtype=np.uint64)) - skip
                mask = np.concatenate(
                    [np.zeros(skip, bool), np.ones(left, bool) if mask is None else mask]
                )
            masks += _parted(mask, view.rows[low:high])
        return masks


def _chunks(view: View, count: int) -> Iterator[tuple[int, int]]:
    low = 0
    while low < count:
        high = view.fitting(low, count, _CHUNK_BYTES)
        yield low, high
        low = high


def _parted(mask: Mask | None, rows: npt.NDArray[np.uint32]) -> list[Mask | None]:
    """The mask of several batches as one for each."""
    if mask is None:
        return [None] * len(rows)
    ends = np.cumsum(rows, dtype=np.int64)[:-1]
    return [None if part.all() else part for part in np.split(mask, ends)]


def _any(mask: Mask | None) -> bool:
    return mask is None or bool(mask.any())
