"""What changed in a table between two places, key by key, with the columns that Spark has for it.

Invariants
    1. The feed of a range is the steps (`change_steps`) from the table as it was right before the
       start to the table as it was at the end: carried out on the first, they give the second.
    2. A row's `_commit_version` is its `_time`. In a partition each batch has a time of its own,
       so the rows of a partition with one version are one batch, and a range has all of them or
       none: an offset within a batch is no start and no end. A key has one step for each version;
       so a key and a version tell the rows of a feed apart, without partition and offset.
       Partitions on several nodes may have batches with equal times.
    3. An end by time is closed: no row at or below it can come any more. So the feeds of a to b
       and of b + 1 to c are together the feed of a to c, whatever is appended, compacted or cut
       meanwhile.
    4. What a key was right before the start comes from what is held: from the backlog before the
       start, else from the ledger, whose rows are all older. If a ledger goes further than the
       start, it says what a key was then only if the key does not occur between the start and its
       horizon. Where neither can say it, the feed is refused (`ChangesGone`), never guessed. It
       does not depend on the low watermark: what is held decides, and stays as it is.
    5. Rows come partition by partition, in each by version; an update's pre-image right before its
       post-image. All steps of a key are in one partition, so they come in order.

Rows have the columns that the table has now. One partition at a time is worked on. In memory are
the keys of its range and some numbers for each row; with pre-images, also those of its range, once.
The rows themselves pass through a few megabytes at a time. Of what lies before the start, keys are
read, from the start back to the horizon, until all that occur are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lowmark.backend.ledgers import OpenLedger
from lowmark.backend.port import Backend
from lowmark.backend.values import Held
from lowmark.catalog import Table
from lowmark.client.change_steps import I8, Before, Kind, Steps, Touched, steps_of, with_preimages
from lowmark.client.looking_back import PastReader, chunks_of
from lowmark.client.reading import Gap, PartitionReader, Reading
from lowmark.errors import Rejected
from lowmark.ledger import KEY_SEED
from lowmark.runtime import COUNTER_BITS
from lowmark.table import (
    CHANGE,
    I64,
    OFFSET,
    TIME,
    KeyForm,
    KeyReader,
    Mask,
    Shape,
    View,
)

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = (
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
)
_TIMESTAMP = pa.timestamp("us", "UTC")
FEED_COLUMNS = {
    CHANGE_TYPE: pa.string(),
    COMMIT_VERSION: pa.int64(),
    COMMIT_TIMESTAMP: _TIMESTAMP,
}
"""What a row of the feed has behind the table's columns: the names and types that Spark has."""
_TEXTS = [kind.name.lower().encode() for kind in Kind]
# From buffers: `pa.array` would import pandas first, where there is one, to ask what a list is.
_KINDS = pa.StringArray.from_buffers(
    len(_TEXTS),
    pa.py_buffer(np.cumsum([0, *map(len, _TEXTS)]).astype(np.int32)),
    pa.py_buffer(b"".join(_TEXTS)),
)
_STEPS_MAX = 16_384
"""With pre-images, this many steps become one batch: earlier rows may be larger than later ones."""


class ChangesGone(Rejected):
    """A change feed for which the history is not kept."""

    def __init__(
        self, table: str, partition: int, *, kind: Literal["compacted", "expired", "lost"], why: str
    ) -> None:
        keep = (
            'To keep more from now on: table.alter(options={"history": "7 days"}) (lowmark table'
            ' alter --set "history=7 days").'
        )
        skip = 'To have keys that are gone count as new: on_gap="skip" (--on-gap skip).'
        details = {
            "compacted": "They were compacted: of each key the ledger has the last row, and not"
            " what the key was before. Rows without a key are all there: read(compacted=True).",
            "expired": "They were cut off by the table's retention.",
            "lost": "The ledger was damaged, and rebuilt without them.",
        }
        earliest = 'Begin with start="earliest" (--start earliest), the first place from which on'
        earliest += " every change is known."
        super().__init__(
            f"changes of partition {partition} of table {table} are no longer known: {why}",
            detail=details[kind],
            hint=f"{earliest} {keep if kind == 'compacted' else skip}",
        )
        self.partition, self.kind = partition, kind


@dataclass(frozen=True, slots=True)
class Feed:
    """Which changes are wanted."""

    starts: Mapping[int, int] | None
    """The first offset of each partition; None: `since` says it."""
    since: int | None
    """A time, with all that has it. Neither: from the earliest place from which on all is known."""
    until: int | None
    """The time at which the end is closed; None: the end is by offsets."""
    preimages: bool
    net: bool


def feed_shape(table: Table, columns: Sequence[str] | None, newest: Callable[[], Table]) -> Shape:
    """The columns that a feed gives before its own."""
    names = [column.name for column in table.columns] if columns is None else columns
    own = {CHANGE: CHANGE_TYPE, TIME: COMMIT_VERSION} | {name: name for name in FEED_COLUMNS}
    refused = [name for name in names if name in own]
    if refused:
        raise Rejected(
            f"the columns of a change feed can't name {refused[0]}",
            hint=f"Leave it out: every row has {own[refused[0]]} behind its columns.",
        )
    return Shape(table, names, newest=newest, with_deletes=True)


class ChangesReader(PastReader):
    """A reader of changes, with a `_change_type` each: `insert`, `delete`, `update_preimage` or
    `update_postimage`; see `Table.changes`.

    `time` is where its end is closed: give `time + 1`, or `position`, as the start of the next one.
    """

    def __init__(self, backend: Backend, reading: Reading, feed: Feed) -> None:
        self.time = feed.until
        self._feed = feed
        super().__init__(backend, reading)
        try:
            self._starts = {part.partition: self._start(part) for part in self._parts}
        except BaseException:
            self.close()  # a caller that gets no reader can't close it, and it holds things
            raise

    @property
    def schema(self) -> pa.Schema:
        """Of every batch."""
        own = [pa.field(name, kind) for name, kind in FEED_COLUMNS.items()]
        return pa.schema([*self._reading.shape.schema, *own])

    # -- where it begins ------------------------------------------------------------------------

    @property
    def starts(self) -> dict[int, int]:
        """The first offset of each partition; `position` has the ends."""
        return dict(self._starts)

    @property
    def _ledgers_kept(self) -> Literal["none", "beside", "below"]:
        """Beside the backlog, which is kept as far back as it goes: a ledger may go further than
        the start.
        """
        return "beside"

    def _open(self, held: Held) -> list[PartitionReader]:
        parts = []
        for number, status in sorted(held.partitions.items()):
            part = self._open_one(status)
            part.files, part.ledger = held.files.get(number), status.view.readable
            parts.append(part)
        return parts

    def _start(self, part: PartitionReader) -> int:
        """The first offset of its range, whose changes are all there."""
        view, feed = part.view, self._feed
        if feed.starts is not None:
            start = feed.starts[part.partition]
            if view.start <= start or start >= _end(part):
                return check_commit(view, part.partition, start)
            return self._behind_cut(part, start)
        if feed.since is None:
            return self._earliest(part)
        if feed.until is not None and feed.since > feed.until:
            return _end(part)
        start = view.offset_from(feed.since)
        return self._behind_cut(part, 0) if self._may_lack(part, start, feed.since) else start

    def _earliest(self, part: PartitionReader) -> int:
        """The first offset from which on all is known: the horizon, if something was cut."""
        view, ledger = part.view, self._ledger(part)
        start = view.start
        if start and ledger is not None and self._reading.shape.table.key:
            start = ledger.horizon
        return _whole_from(view, start)

    def _may_lack(self, part: PartitionReader, start: int, since: int) -> bool:
        """Whether rows may have been cut that are not before a time, whose first row in the backlog
        is at `start`.
        """
        view, ledger = part.view, self._ledger(part)
        if not view.start or since > view.cut_time or start > _whole_from(view, view.start):
            return False
        if start < view.start:
            return True  # the cut lies within its batch
        if ledger is None:
            return True
        if 0 < ledger.manifest.watermark < since:
            return False
        # The last row that was cut may still be in the ledger, with its time.
        has_last = bool(ledger.files) and ledger.files[-1].last == view.start - 1
        return not has_last or ledger.offset_of_time(since, after=False) < view.start

    def _behind_cut(self, part: PartitionReader, start: int) -> int:
        """Begin behind what went by retention, if the caller says so."""
        view, ledger = part.view, self._ledger(part)
        why = f"the backlog begins at offset {view.start}"
        if ledger is not None and start < ledger.horizon:
            raise self._gone(part, "compacted", why)
        if self._reading.on_gap == "raise":
            raise self._gone(part, "expired", why)
        self.gaps.append(Gap(part.partition, start, view.start - 1, "expired"))
        return _whole_from(view, view.start)

    def _gone(
        self, part: PartitionReader, kind: Literal["compacted", "expired", "lost"], why: str
    ) -> ChangesGone:
        return ChangesGone(self._reading.shape.table.name, part.partition, kind=kind, why=why)

    # -- reading --------------------------------------------------------------------------------

    def _run(self) -> Iterator[pa.RecordBatch]:
        try:
            for part in self._parts:
                if not self._goes_on():
                    return
                start = self._starts[part.partition]
                if start < _end(part):
                    for batch in self._changes(part, start):
                        self._check_of_now(part)
                        if batch.num_rows:
                            yield batch
                        if not self._goes_on():
                            return
                self._leave_ledger(part)
            self._ended = not self._closed
        finally:
            self.close()

    def _changes(self, part: PartitionReader, start: int) -> Iterator[pa.RecordBatch]:
        """The changes of a partition."""
        view = part.view
        low, high = view.batch_at(start), view.batch_at(_end(part) - 1) + 1
        if not self._reading.shape.table.key:
            for first, last in chunks_of(view, low, high):
                rows = self._rows(part, first, last)
                versions = np.repeat(_numbers(view.time[first:last]), view.rows[first:last])
                yield from self._given(rows, np.zeros(len(versions), np.int8), versions, None)
            return
        touched = self._touched(part, low, high)
        before, found = self._before(part, touched)
        steps = steps_of(touched, before, net=self._feed.net)
        preimages = None
        if self._feed.preimages:
            preimages = self._preimages(part, steps, found)
        for first, last in chunks_of(view, low, high):
            bounds = (int(view.first[first]), int(view.first[last - 1]) + int(view.rows[last - 1]))
            some = slice(*np.searchsorted(steps.offsets, bounds).tolist())
            offsets, kinds = steps.offsets[some], steps.kinds[some]
            if not len(offsets):
                continue
            rows = self._rows(part, first, last, offsets)
            versions = touched.versions[offsets - start]
            if preimages is None:
                yield from self._given(rows, kinds, versions, offsets)
            else:
                shown = preimages.shown(rows, kinds, steps.pre[some])
                for table, step, kinds_of in shown:
                    yield from self._given(table, kinds_of, versions[step], offsets[step])

    def _given(
        self, rows: pa.Table, kinds: I8, versions: I64, offsets: I64 | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows with what a feed says of them. An offset is that of the change, also beside an
        earlier row.
        """
        columns = list(rows.columns)
        names = self._reading.shape.names
        if offsets is not None and OFFSET in names:
            columns[names.index(OFFSET)] = pa.array(offsets)
        micros = (versions >> COUNTER_BITS) * 1_000
        columns += [
            _KINDS.take(pa.array(kinds)),
            pa.array(versions),
            pa.array(micros).cast(_TIMESTAMP),
        ]
        yield from pa.Table.from_arrays(columns, schema=self.schema).to_batches()

    def _rows(
        self, part: PartitionReader, low: int, high: int, offsets: I64 | None = None
    ) -> pa.Table:
        """The rows of batches `low` to before `high`; with offsets, which rise, these alone."""
        view, shape = part.view, self._reading.shape
        firsts = _numbers(view.first[low:high])
        counts = view.rows[low:high].astype(np.int64)
        wanted = list(range(high - low))
        bounds: list[int] = []
        if offsets is not None:
            bounds = np.searchsorted(offsets, [*firsts, firsts[-1] + counts[-1]]).tolist()
            wanted = np.flatnonzero(np.diff(bounds)).tolist()
        commands = self._fetch_held(part, low, high) if len(wanted) else []
        batches = []
        for at in wanted:
            keep = None
            if offsets is not None:
                mine = offsets[bounds[at] : bounds[at + 1]] - firsts[at]
                if len(mine) < counts[at]:
                    keep = np.zeros(counts[at], np.bool_)
                    keep[mine] = True
            number = part.partition
            batches.append(shape.read_at(view, low + at, commands[at], partition=number, keep=keep))
        return pa.Table.from_batches(batches, schema=shape.schema).combine_chunks()

    def _key_reader(self) -> KeyReader:
        return KeyReader(self._reading.shape.table, newest=self._reading.newest)

    def _touched(self, part: PartitionReader, low: int, high: int) -> Touched:
        """The keys of a range."""
        view, reader = part.view, self._key_reader()
        found = [
            some
            for first, last in chunks_of(view, low, high)
            for some in reader.read(view, first, self._fetch_held(part, first, last))
        ]
        kinds = {some.keys.type for some in found}
        kind = kinds.pop() if len(kinds) == 1 else pa.large_binary()  # bytes may have either type
        keys = pa.chunked_array([some.keys.cast(kind) for some in found], kind)
        encoded = keys.dictionary_encode().combine_chunks()
        codes = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy()
        versions = np.repeat(_numbers(view.time[low:high]), view.rows[low:high])
        deletes = np.concatenate([some.deletes_mask for some in found])
        return Touched(encoded.dictionary, codes, deletes, versions, int(view.first[low]))

    # -- what keys were before ------------------------------------------------------------------

    def _before(
        self, part: PartitionReader, touched: Touched
    ) -> tuple[Before, list[tuple[I64, pa.Table]]]:
        """What keys were right before the range; and the rows of those that are in the ledger, with
        their offsets, if pre-images are wanted.
        """
        view, start, ledger = part.view, touched.start, self._ledger(part)
        before = Before.nothing(len(touched.keys))
        low = view.start
        if ledger is not None and ledger.horizon <= start:
            low = max(low, ledger.horizon)
        known = self._look_back(part, touched, before, low)
        if not low or known.all():
            return before, []
        if ledger is None:
            self._check_expired(part)
            return before, []
        if start < ledger.horizon and (touched.first_offsets()[~known] < ledger.horizon).any():
            why = f"rows before offset {ledger.horizon} were compacted, and those before"
            why += f" {view.start} cut"
            raise self._gone(part, "compacted", why)
        if ledger.manifest.lost:
            self._check_lost(part, ledger)
        return before, self._look_in_ledger(part, ledger, touched, before, known)

    def _look_back(self, part: PartitionReader, touched: Touched, before: Before, low: int) -> Mask:
        """Find keys in the backlog from the range back to an offset; says which were there."""
        view, count, reader = part.view, len(touched.keys), self._key_reader()
        known = np.zeros(count, np.bool_)
        behind = view.batch_at(touched.start)
        for first, last in reversed(list(chunks_of(view, view.batch_at(low), behind))):
            if known.all():
                break
            for some in reversed(
                list(reader.read(view, first, self._fetch_held(part, first, last)))
            ):
                codes = _codes(some.keys, touched.keys)
                base = int(view.first[some.low])
                hits = np.flatnonzero(codes >= 0)
                hits = hits[hits + base >= low]
                latest = np.full(count, -1, np.int64)
                latest[codes[hits]] = hits  # of several, the last one wins
                fresh = np.flatnonzero((latest >= 0) & ~known)
                rows = latest[fresh]
                before.lived[fresh] = ~some.deletes_mask[rows]
                before.offsets[fresh] = rows + base
                known[fresh] = True
        return known

    def _look_in_ledger(
        self,
        part: PartitionReader,
        ledger: OpenLedger,
        touched: Touched,
        before: Before,
        known: Mask,
    ) -> list[tuple[I64, pa.Table]]:
        """Find the keys in the ledger that are not known from the backlog."""
        asked = np.flatnonzero(~known)
        keys = touched.keys.take(pa.array(asked))
        left_out: list[Mask | None] = []
        for at, rows in enumerate(ledger.find(keys, KeyForm.hashes(keys, KEY_SEED))):
            places = np.flatnonzero(rows >= 0)
            live, rows = ledger.live(at), rows[places]
            counts = np.ones(len(rows), np.bool_) if live is None else live[rows]
            places, rows = asked[places[counts]], rows[counts]
            lives = ~ledger.deletes(at)[rows]
            known[places] = True
            before.lived[places] = lives
            others = np.ones(ledger.files[at].rows, np.bool_)
            others[rows[lives]] = False
            left_out.append(others)
        if ledger.manifest.expired and not known.all():
            self._check_expired(part)
        found: list[tuple[I64, pa.Table]] = []
        if not self._feed.preimages or not before.lived[asked].any():
            return found
        shape = self._reading.shape
        form = KeyForm.of(shape.table)
        more = tuple(name for name in form.names if name not in shape.names)
        wider, end = shape.with_more(more), ledger.horizon
        for batch, offsets in ledger.batches(wider, start=0, end=end, without=left_out):
            before.offsets[_codes(form.array(batch), touched.keys)] = offsets
            given = batch.select(list(range(len(shape.names))))
            found.append((offsets, pa.Table.from_batches([given], schema=shape.schema)))
        return found

    def _check_expired(self, part: PartitionReader) -> None:
        """Keys that are not found may have been among what went by retention."""
        expired = self._expired(part)
        if self._reading.on_gap == "raise":
            raise self._gone(part, "expired", f"keys may have had rows before offset {expired}")
        self.gaps.append(Gap(part.partition, 0, expired - 1, "expired"))

    def _check_lost(self, part: PartitionReader, ledger: OpenLedger) -> None:
        """What keys were may have been among what the ledger should have and has not."""
        for one in ledger.manifest.lost:
            if self._reading.on_gap == "raise":
                why = f"rows at offsets {one.first} to {one.last} are lost"
                raise self._gone(part, "lost", why)
            self.gaps.append(Gap(part.partition, one.first, one.last, "lost"))

    def _preimages(
        self, part: PartitionReader, steps: Steps, found: list[tuple[I64, pa.Table]]
    ) -> _Preimages:
        """All rows that steps have replaced or deleted; those of the ledger were found before."""
        view = part.view
        wanted = np.unique(steps.pre[steps.pre >= 0])
        for offsets, _ in found:
            wanted = np.setdiff1d(wanted, offsets, assume_unique=True)
        pieces = list(found)
        if len(wanted):
            low, high = view.batch_at(int(wanted[0])), view.batch_at(int(wanted[-1])) + 1
            for first, last in chunks_of(view, low, high):
                end = int(view.first[last - 1]) + int(view.rows[last - 1])
                some = slice(*np.searchsorted(wanted, [int(view.first[first]), end]).tolist())
                if len(wanted[some]):
                    rows = self._rows(part, first, last, wanted[some])
                    pieces.append((wanted[some], rows))
        return _Preimages(self._reading.shape.schema, pieces)


class _Preimages:
    """Rows that were there before, found by their offsets."""

    def __init__(self, schema: pa.Schema, pieces: list[tuple[I64, pa.Table]]) -> None:
        rows = pa.concat_tables([schema.empty_table(), *(table for _, table in pieces)])
        self._rows = rows.combine_chunks()
        offsets = np.concatenate([np.empty(0, np.int64), *(offsets for offsets, _ in pieces)])
        self._order = np.argsort(offsets)
        self._offsets = offsets[self._order]

    def shown(self, rows: pa.Table, kinds: I8, pre: I64) -> Iterator[tuple[pa.Table, I64, I8]]:
        """The rows of steps with their pre-images: the rows to give, the step that each is of, and
        what it is.
        """
        for low in range(0, len(kinds), _STEPS_MAX):
            some = slice(low, low + _STEPS_MAX)
            step, kinds_of, earlier = with_preimages(kinds[some])
            places = self._order[np.searchsorted(self._offsets, pre[some][step[earlier]])]
            both = pa.concat_tables(
                [rows.slice(low, _STEPS_MAX), self._rows.take(pa.array(places))]
            )
            taken = step.copy()
            taken[earlier] = len(kinds[some]) + np.arange(len(places))
            yield both.combine_chunks().take(pa.array(taken)), step + low, kinds_of


# -- places ---------------------------------------------------------------------------------------


def check_commit(view: View, partition: int, offset: int) -> int:
    """An offset where a commit begins, or behind the last one; refused within one."""
    at = view.batch_at(offset)
    if at < view.count and (first := int(view.first[at])) < offset:
        behind = first + int(view.rows[at])
        raise Rejected(
            f"offset {offset} of partition {partition} lies within a commit",
            detail="A change feed has all changes of a commit, or none.",
            hint=f"Use {first} or {behind}.",
        )
    return offset


def _whole_from(view: View, offset: int) -> int:
    """Where the first batch begins that is there as a whole from an offset on."""
    at = view.batch_at(offset)
    if at < view.count and int(view.first[at]) < offset:
        at += 1
    return int(view.first[at]) if at < view.count else view.end


def _end(part: PartitionReader) -> int:
    return part.view.end if part.end is None else part.end


def _codes(keys: pa.Array, among: pa.Array) -> I64:
    """The places of keys among others; -1: it is not there, or there is no key."""
    if keys.type != among.type:
        keys = keys.cast(among.type)
    codes: I64 = pc.index_in(keys, among).cast(pa.int64()).fill_null(-1).to_numpy()
    return codes


def _numbers(column: object) -> I64:
    return np.asarray(column).astype(np.int64)
