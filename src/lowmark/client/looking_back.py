"""The table as it was at a time: of each key its last row up to then, unless that was a delete.
Which one that is, `ledger.rule` says: the backlog is folded in the order of offsets, and wins over
the ledger, which is the earlier source.

What the ledger has is all at or before the low watermark, so at or before the time: of its rows,
those count whose key does not come again in the backlog up to then. Over that part of the backlog
two passes are made, as compaction makes them: the first reads keys and changes and finds out which
rows are the last of their key; the second reads those. The time is held from before the
first pass until the reader is closed, so that what it reads can't be compacted away meanwhile. If
the hold was lost all the same, because the node was taken for gone, the last call says so. If the
low watermark had passed the time before, and the table keeps its own past, what the reader holds of
the backlog and of ledgers has to do: it says whether it is exact (`lowmark.table.history`).

The keys of one partition's backlog at a time are kept in memory, all of them; rows are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lowmark.backend.errors import NOT_HELD, BatchesMoved, HoldUnknown, RowsLost
from lowmark.backend.ledgers import OpenLedger
from lowmark.backend.port import Backend
from lowmark.backend.values import BatchRange, Hold
from lowmark.client.lookup import check_lost
from lowmark.client.reading import Gap, GapFound, PartitionReader, Reader, Reading, horizon_of
from lowmark.convert.pythonic import convert_rows, converts_of
from lowmark.ledger import KEY_SEED, LAST_ROW, LedgerFile
from lowmark.runtime import Buffer
from lowmark.table import BelowWatermark, Fold, KeyForm, KeyReader, Keys, Mask, Shape, View

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class LedgerRows:
    """What is in the ledger of a partition as of a time."""

    partition: int
    manifest: str
    """Empty: there is none."""
    horizon: int
    files: list[tuple[LedgerFile, Mask]]
    """And the rows of each that are left out."""
    has_more: bool
    """Whether the backlog has rows beside."""


class PastReader(Reader):
    """A bounded reader that finds out what keys were: what it reads of backlog and ledger is held
    for it.
    """

    @property
    def position(self) -> dict[int, int]:
        """Where what it reads ends: a reader goes on from there."""
        return {part.partition: part.end or 0 for part in self._parts}

    def _goes_on(self) -> bool:
        return not self._closed

    def _ledger(self, part: PartitionReader) -> OpenLedger | None:
        reading = self._reading
        if part.ledger is None or reading.ledgers is None or reading.described is None:
            return None
        return reading.ledgers.open(part.ledger, reading.described)

    def _expired(self, part: PartitionReader) -> int:
        """Rows below this offset went by retention before they were in a ledger, or after it."""
        ledger = self._ledger(part)
        if ledger is None or part.view.start > ledger.horizon:
            return part.view.start
        return ledger.manifest.expired

    def _fetch_held(self, part: PartitionReader, low: int, high: int) -> list[Buffer]:
        """Batches that are held for this reader."""
        wanted = [BatchRange.of(part.view, low, high)]
        try:
            return next(self._backend.batches(self._table, part.partition, wanted, held=True))
        except BatchesMoved:
            raise RowsLost(
                f"offsets {part.view.start} to {_end(part) - 1} of partition {part.partition} are"
                " gone, though they were held for this reader",
                detail=NOT_HELD,
                hint="Read again, from a later time if that fails.",
            ) from None


class AsOfReader(PastReader):
    """A reader of the table as it was.

    While it reads a partition, it has the keys of all its rows in memory. `batch_bytes` does not
    apply: batches are those that were appended, without the rows that did not last.
    """

    def __init__(
        self, backend: Backend, reading: Reading, *, time: int, history: Hold | None
    ) -> None:
        self.time = time
        self._history = history
        """Keeps answers as of the time exact; None: the low watermark has passed it, and the table
        keeps its own past. Then what is held here says whether it is exact."""
        super().__init__(backend, reading)
        try:
            for part in self._parts if history is None else ():
                self._check_own_history(part)
            for part in self._parts:
                expired = self._expired(part)
                if expired:
                    self.gaps.append(Gap(part.partition, 0, expired - 1, "expired"))
                self.gaps += self._lost(part)
            if self.gaps and reading.on_gap == "raise":
                raise GapFound(self.gaps[0])
        except BaseException:
            self.close()  # a caller that gets no reader can't close it, and it holds things
            raise

    @property
    def _ledgers_kept(self) -> Literal["none", "beside", "below"]:
        """With the ledgers that go with the views."""
        return "below"

    def _holds(self) -> list[Hold]:
        return [*super()._holds(), *([] if self._history is None else [self._history])]

    def _check_own_history(self, part: PartitionReader) -> None:
        """Raise if its ledger has rows later than the time, or may have."""
        ledger = self._ledger(part)
        if ledger is None or not ledger.horizon:
            return
        exact_from = ledger.manifest.watermark or self._backend.watermark().value
        if exact_from > self.time:
            name = self._reading.shape.table.name
            raise BelowWatermark(time=self.time, watermark=exact_from, table=name)

    def _lost(self, part: PartitionReader) -> list[Gap]:
        """What its ledger should have and has not: it is all before the time."""
        ledger = self._ledger(part)
        lost = ledger.manifest.lost if ledger is not None else ()
        return [Gap(part.partition, one.first, one.last, "lost") for one in lost]

    def _run(self) -> Iterator[pa.RecordBatch]:
        where = self._reading.where
        try:
            for part in self._parts:
                if not self._goes_on():
                    return
                for batch in self._survivors(part):
                    self._check_of_now(part)
                    if self._left is not None:
                        batch = batch.slice(0, self._left)
                        self._left -= batch.num_rows
                    if batch.num_rows:
                        yield batch if where is None else where.give(batch)
                    if self._closed:
                        return
                    if self._left == 0:
                        self._check_held()
                        self._ended = not self._closed
                        return
                part.at = _end(part)
                self._leave_ledger(part)
            self._check_held()
            self._ended = not self._closed
        finally:
            self.close()

    def _check_held(self) -> None:
        """Raise if what was given may not be all: the watermark has passed the time meanwhile, or
        a partition was reset.
        """
        for part in self._parts:
            self._check_of_now(part)
        if self._history is None:
            return
        try:
            passed_by = self._backend.history_lost(self._history)
        except HoldUnknown:
            if self._closed:
                return  # on another thread, just now
            raise
        if passed_by is not None:
            raise BelowWatermark(time=self.time, watermark=passed_by)

    def _survivors(self, part: PartitionReader) -> Iterator[pa.RecordBatch]:
        view, shape, ledger = part.view, self._reading.shape, self._ledger(part)
        where = self._reading.where
        first, count = _stretch(part)
        masks, keys = self._masks(part, first, count)
        if ledger is not None:
            without = None
            if keys is not None:
                without = ledger.superseded_by(keys, KeyForm.hashes(keys, KEY_SEED))
            # A delete in the ledger says that there is no row: with or without it, none is given.
            yield from self._of_ledger(ledger, without)
        for low, high in chunks_of(view, first, count):
            wanted = [at for at in range(low, high) if _any(masks[at])]
            if not wanted:
                continue
            commands = self._fetch_held(part, low, high)
            for at in wanted:
                command, keep = commands[at - low], masks[at]
                batch = shape.read_at(view, at, command, partition=part.partition, keep=keep)
                yield batch if where is None else where.passing(batch)

    def _of_ledger(
        self, ledger: OpenLedger, without: list[Mask | None] | None
    ) -> Iterator[pa.RecordBatch]:
        shape, where = self._reading.shape, self._reading.where
        if without is None:
            without = [None] * len(ledger.files)
        left_out = [
            ledger.deletes(at) if mask is None else mask | ledger.deletes(at)
            for at, mask in enumerate(without)
        ]
        end = ledger.horizon
        for batch, _ in ledger.batches(shape, start=0, end=end, without=left_out, where=where):
            yield batch

    # -- for programs that read ledgers themselves ------------------------------------------------

    @property
    def shape(self) -> Shape:
        """What rows of any schema version are read as."""
        return self._reading.shape

    def ledger_files(self) -> Iterator[LedgerRows]:
        """The files of ledgers, and which of their rows are not in the table as it was: dead ones,
        deletes, and those whose key comes again in the backlog up to then. All rows that are there
        besides have offsets from the horizon on.

        The files stay as long as this reader is not closed, or a hold on their manifests is there.
        """
        for part in self._parts:
            ledger = self._ledger(part)
            horizon = 0 if ledger is None else ledger.horizon
            files: list[tuple[LedgerFile, Mask]] = []
            _, keys = self._masks(part, *_stretch(part)) if ledger is not None else ({}, None)
            for at, file in enumerate(() if ledger is None else ledger.files):
                assert ledger is not None
                live = ledger.live(at)
                out = ledger.deletes(at).copy()
                if live is not None:
                    out |= ~live
                files.append((file, out))
            if ledger is not None and keys is not None:
                superseded = ledger.superseded_by(keys, KeyForm.hashes(keys, KEY_SEED))
                for (_, out), mask in zip(files, superseded, strict=True):
                    if mask is not None:
                        out |= mask
            manifest = "" if part.ledger is None else part.ledger.manifest
            yield LedgerRows(part.partition, manifest, horizon, files, _end(part) > horizon)
        self._check_held()

    # -- without reading it all -----------------------------------------------------------------

    def count(self) -> int:
        """How many rows there are. Of a table without a key, and of what is in ledgers alone, none
        is read; of the rest, keys and changes.
        """
        with self:
            for gap in self.gaps:
                if gap.kind == "lost":
                    raise GapFound(gap)
            rows = sum(self._count_of(part) for part in self._parts)
            self._check_held()
            return rows

    def _count_of(self, part: PartitionReader) -> int:
        view, ledger = part.view, self._ledger(part)
        first, count = _stretch(part)
        masks, keys = self._masks(part, first, count)
        sizes = view.rows[first:count].tolist()
        rows = sum(
            size if (mask := masks[at]) is None else int(np.count_nonzero(mask))
            for at, size in enumerate(sizes, start=first)
        )
        if ledger is None:
            return rows
        rows += ledger.manifest.live_rows
        if keys is not None:
            found = ledger.superseded_by(keys, KeyForm.hashes(keys, KEY_SEED))
            for at, superseded in enumerate(found):
                if superseded is not None:
                    live = ledger.live(at)
                    gone = superseded & ~ledger.deletes(at)
                    rows -= int(np.count_nonzero(gone if live is None else gone & live))
        return rows

    def row_of(self, values: Sequence[object]) -> dict[str, Any] | None:
        """The row that a key had; None if it was deleted, or not there yet. Keys are compared from
        the last batch back, and then looked up in the ledger.
        """
        with self:
            found = self._row_of(KeyForm.of(self._reading.shape.table).one(values))
            self._check_held()
        if found is None:
            return None
        rows: list[dict[str, Any]] = found.to_pylist()
        convert_rows(rows, converts_of(found.schema))
        return rows[0]

    def _row_of(self, key: int | bytes) -> pa.RecordBatch | None:
        [part] = self._parts
        view, shape, start = part.view, self._reading.shape, horizon_of(part.view)
        reader = KeyReader(shape.table, newest=self._reading.newest)
        wanted = pa.scalar(key, pa.int64() if isinstance(key, int) else pa.binary())
        for low, high in reversed(list(chunks_of(view, *_stretch(part)))):
            commands = self._fetch_held(part, low, high)
            for some in reversed(list(reader.read(view, low, commands))):
                same = pc.equal(some.keys, wanted).fill_null(False)
                first = int(view.columns.first[some.low])
                hits = np.flatnonzero(same.to_numpy(zero_copy_only=False)) + first
                hits = hits[hits >= start]
                if not len(hits):
                    continue
                offset = int(hits[LAST_ROW.order(hits)[-1]])
                if some.deletes_mask[offset - first]:
                    return None
                at = view.batch_at(offset)
                row = offset - int(view.columns.first[at])
                number, keep = part.partition, np.zeros(int(view.columns.rows[at]), bool)
                keep[row] = True
                return shape.read_at(view, at, commands[at - low], partition=number, keep=keep)
        return self._row_in_ledger(part, key)

    def _row_in_ledger(self, part: PartitionReader, key: int | bytes) -> pa.RecordBatch | None:
        ledger, shape = self._ledger(part), self._reading.shape
        place = None if ledger is None else ledger.find_one(KeyForm.hash_one(key, KEY_SEED), key)
        if ledger is None or place is None:
            if self.gaps:  # it may have been among what is gone
                raise GapFound(self.gaps[0])
            return None
        row, offset, _, deleted = ledger.row(shape, *place)
        check_lost(part.partition, ledger.manifest.lost, offset)
        return None if deleted else row

    def _masks(
        self, part: PartitionReader, first: int, count: int
    ) -> tuple[dict[int, Mask | None], pa.Array | None]:
        """Which rows of each batch are there at the time; None: all of them. And the keys of all
        rows between the ledger and the time, if there are any.
        """
        view, table = part.view, self._reading.shape.table
        if first >= count:
            return {}, None
        # A batch has one time, so the end lies between two; but a cut may lie within the first.
        skip = max(0, horizon_of(view) - int(view.columns.first[first]))
        if not table.key:
            masks: dict[int, Mask | None] = dict.fromkeys(range(first, count))
            if skip:
                masks[first] = np.arange(int(view.columns.rows[first])) >= skip
            return masks, None
        fold, reader = Fold(), KeyReader(table, newest=self._reading.newest)
        chunks: list[Keys] = []
        for low, high in chunks_of(view, first, count):
            for some in reader.read(view, low, self._fetch_held(part, low, high)):
                if some.low == first and skip:
                    deletes = some.deletes
                    deletes = deletes[skip:] if isinstance(deletes, np.ndarray) else deletes
                    some = Keys(some.low, some.high, some.keys.slice(skip), deletes)
                fold.add(some.keys, some.deletes)
                chunks.append(some)
        masks = {}
        for some, mask in zip(chunks, fold.masks(), strict=True):
            if some.low == first and skip:
                left = np.ones(len(some.keys), bool) if mask is None else mask
                mask = np.concatenate([np.zeros(skip, bool), left])
            parts = _parted(mask, view.rows[some.low : some.high])
            masks.update(zip(range(some.low, some.high), parts, strict=True))
        return masks, None if part.ledger is None else _keys_of(chunks)


def _end(part: PartitionReader) -> int:
    """The first offset that is later than the time."""
    return part.view.end if part.end is None else part.end


def _stretch(part: PartitionReader) -> tuple[int, int]:
    """The positions of the batches between the ledger and the time: the first, and behind the
    last.
    """
    view, start, end = part.view, horizon_of(part.view), _end(part)
    if end <= start:
        return 0, 0
    return view.batch_at(start), view.batch_at(end - 1) + 1


def _keys_of(chunks: list[Keys]) -> pa.Array:
    """All keys, each as often as it comes; rows without one are left out."""
    arrays = [some.keys.drop_null() for some in chunks]
    if len({array.type for array in arrays}) > 1:
        arrays = [array.cast(pa.large_binary()) for array in arrays]
    return pa.chunked_array(arrays).unique()


def chunks_of(view: View, low: int, count: int) -> Iterator[tuple[int, int]]:
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
