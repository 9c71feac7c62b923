"""Batches of rows from the backlog, in order: of a bounded reader, one partition after the other,
so that what was fetched ahead is of one partition only; of one that follows, in turns.

A reader works from views, which never change, asks the database for the batches that they name, and
decodes them on the caller's thread. A bounded reader holds what it is going to read from the moment
it is made, so a cut that comes meanwhile takes nothing from it. One
that follows holds nothing, unless it is given a lease: if a cut passes it, it says which rows it
has missed. A lease is renewed while the reader is read from; it ends by itself if it is not, and
the reader says so.

A compacted reader takes the rows below the horizon from the ledger of its view, and goes on in the
backlog right there: each offset has one source. One that follows stays with its ledger and its
place in the backlog, whatever is published meanwhile; only if the backlog was cut before it came
that far, it goes on in the newer ledger. A ledger's files are held from before it is read until its
horizon is passed: however long a reader follows, no more than one ledger of a partition stays for
it.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa

from lowmark.backend.errors import (
    NOT_HELD,
    BatchesMoved,
    HoldUnknown,
    PackageMissing,
    PartitionReset,
    ReaderEnded,
    RowsLost,
)
from lowmark.backend.filtering import Where
from lowmark.backend.ledgers import Ledgers
from lowmark.backend.port import Backend
from lowmark.backend.values import BatchRange, Held, Hold, PartitionStatus, ReadRange
from lowmark.catalog import Table, TableId
from lowmark.client.edges import edge
from lowmark.convert.pythonic import convert_rows, converts_of
from lowmark.errors import Conflict, LowmarkError, Rejected, Unavailable, invariant
from lowmark.ids import group_name
from lowmark.ledger import Lost
from lowmark.runtime import Buffer
from lowmark.table import (
    CHANGE,
    I64,
    OFFSET,
    Adopted,
    Change,
    DeletesGone,
    ReleaseLease,
    RenewLease,
    Shape,
    TakeLease,
    View,
)

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

BATCH_BYTES = 4 << 20
"""Read in one go, if not told otherwise."""
LEASE_MS_MIN = 1_000
_DELETE = int(Change.DELETE)
_AHEAD_MAX = 32
"""A bounded reader asks for this many reads at once."""
_WHY = "rows are being read"
_PLACES = {True: [OFFSET, CHANGE], False: [OFFSET]}
"""Of rows with deletes among them, and without."""
_WAIT_S = 0.5
"""A reader that follows looks at least so often whether it was closed."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that a reader could not give, and why."""

    partition: int
    first: int
    last: int
    kind: Literal["superseded", "deleted", "expired", "lost"]


class GapFound(Conflict):
    """A reader has come to rows that are gone."""

    def __init__(self, gap: Gap) -> None:
        where = f"offsets {gap.first} to {gap.last} of partition {gap.partition}"
        onward = gap.last + 1
        skip = 'To go on over gaps and have them listed in `gaps`: on_gap="skip" (--on-gap skip; in'
        skip += ' Spark .option("failOnDataLoss", "false")).'
        match gap.kind:
            case "superseded":
                what = f"{where} are no longer in the backlog, which begins at {onward}"
                detail = "They were compacted: the last row of each key is in the ledger."
                hint = "For the last row of each key: read(compacted=True) (--compacted). For the"
                hint += ' changes that are left: read(start="earliest") (--start earliest).'
                hint += f" {skip}"
            case "deleted":
                what = f"deletes at {where} may be gone"
                detail = "Every known reader had passed them. Keys that this reader knows from"
                detail += " before may be deleted, and it can't be given the deletes."
                hint = "Begin again with an empty state: read(compacted=True) (--compacted). A"
                hint += ' cursor of kind="compacted" holds deletes until you have read them.'
                hint += f" {skip}"
            case "lost":
                what = f"rows at {where} are lost"
                detail = "The ledger was damaged; when it was rebuilt, they could not be brought"
                detail += " back, and an operator accepted that. They may have replaced rows"
                detail += " before them."
                hint = f"{skip} `lowmark ledger show` lists all that are lost."
            case _:
                what = f"{where} are {gap.kind}"
                detail = "They were cut off by the table's retention."
                hint = 'For the changes that are left: read(start="earliest") (--start earliest).'
                hint += f" {skip}"
        super().__init__(what, detail=detail, hint=hint)
        self.gap = gap


@dataclass(slots=True)
class PartitionReader:
    """Where a reader is in one partition."""

    partition: int
    at: int
    end: int | None
    """Where it ends; None: it follows."""
    view: View
    """What it works from; a follower takes a newer one each time."""
    files: Hold | None = None
    """What keeps the files of its ledger, or did of the last one."""
    ahead: tuple[int, Iterator[list[Buffer]]] | None = None
    """What was asked for at once and is not read yet, and the position of its first batch."""
    last: tuple[Buffer, int, int] | None = None
    """The last batch that was read: itself, its position, and the first row of it that counted."""
    ledger: Adopted | None = None
    """What rows below its horizon come from; None: everything comes from the backlog."""
    offsets: I64 | None = None
    """Of the last rows that came from the ledger."""
    given: bool = False
    """Whether it has come from somewhere: it may know keys that were deleted since."""
    deletes_known: int = 0
    """It knows of no key whose delete below this offset it could miss."""

    @property
    def held_from(self) -> int:
        """The first offset that is left of what it has not given."""
        return self.at if self.ledger is not None else max(self.at, self.view.start)

    @property
    def reads_ledger(self) -> bool:
        """Whether rows may be left that come from its ledger."""
        if self.ledger is None:
            return False
        horizon = self.ledger.horizon
        return self.at < (horizon if self.end is None else min(self.end, horizon))


@dataclass(frozen=True, slots=True)
class Reading:
    """What is to be read."""

    shape: Shape
    starts: Mapping[int, int]
    ends: Mapping[int, int] | None
    limit: int | None = None
    batch_bytes: int = BATCH_BYTES
    on_gap: Literal["raise", "skip"] = "raise"
    name: str = "a reader"
    lease_ms: int | None = None
    """How long the backlog is held for it after it was last read from."""
    newest: Callable[[], Table] | None = None
    """The table as it is now; raises if it is no more."""
    earliest: bool = False
    """Whether it begins wherever the backlog does: a cut before it is made is no gap."""
    whole: bool = False
    """Whether all changes are meant: what was compacted and cut is a gap, what expired is not."""
    ledgers: Ledgers | None = None
    described: Callable[[], Table] | None = None
    """The table as it is now, or as it was when it was dropped."""
    compacted: bool = False
    """Whether rows below the horizon come from the ledger."""
    trusted: bool = False
    """Whether a hold has kept deletes for it since before: a cursor does."""
    midway: frozenset[int] = frozenset()
    """Partitions in which it may know keys, though it begins at 0: it starts at a time."""
    where: Where | None = None
    """Which rows are given; it has the shape."""


def horizon_of(view: View) -> int:
    """Where the backlog takes over from the ledger, or begins, if there is none."""
    return view.start if view.readable is None else max(view.start, view.readable.horizon)


@edge(but=("close",))
class Reader:
    """Iterate for record batches, or take everything at once.

    It is an Arrow stream, too: `pa.table(reader)`, `polars.DataFrame(reader)` and DuckDB take it.
    Close one that you do not read to its end, best by `with`; a stream of it that is read after
    that is an error (`ReaderEnded`), not a part of the rows. `position` says where to go on: give
    it as `start` to another reader, today or after a restart.
    """

    def __init__(self, backend: Backend, reading: Reading) -> None:
        self._backend = backend
        self._reading = reading
        self._table = reading.shape.table.id
        self.gaps: list[Gap] = []
        """Rows that could not be given (with `on_gap="skip"`)."""
        self._left = reading.limit
        self._closed = False
        self._released = False
        """Whether all that it held is let go: Ctrl-C may end a close half-way."""
        self._ended = False
        """Whether it has come to its end, and was not closed before."""
        self._spent = False
        """Whether its end was given, too: it has nothing more for another use."""
        self._first: pa.RecordBatch | None = None
        """A batch that was read before it was asked for: the next one to give."""
        self._lease: _Lease | None = None
        self._seen = 0
        """The changes that it knows of; see `Backend.wait`."""
        self._newer: dict[int, Hold] = {}
        """By partition, what holds the ledger that came after the one of `_hold`."""
        # Drawn before it is taken: Ctrl-C at any moment from here on releases it.
        self._hold = Hold.drawn()
        try:
            ranges, name = self._ranges(), reading.name
            held = backend.hold(self._table, ranges, holder=name, why=_WHY, hold=self._hold)
            whole = held.partitions.keys() == ranges.keys()
            invariant(whole, "a reader has all partitions that it asked for")
            self._parts = self._open(held)
            if reading.lease_ms is not None:
                kind: Literal["raw", "compacted"] = "compacted" if reading.compacted else "raw"
                self._lease = _Lease(backend, self._table, reading.lease_ms)
                try:
                    self._lease.take(self._parts, reading.name, kind)
                except DeletesGone:
                    if not reading.trusted:
                        raise
                    # Its cursor began with nothing and has come this far: it misses no delete, and
                    # holds those that are left. A lease can't begin here, and is not needed.
                    self._lease.release()
                    self._lease = None
        except BaseException:
            self.close()  # a caller that has no reader can't close it, and it would hold all that
            raise
        self._batches = self._run()

    @property
    def schema(self) -> pa.Schema:
        """Of every batch."""
        where = self._reading.where
        return self._reading.shape.schema if where is None else where.schema

    @property
    def position(self) -> dict[int, int]:
        """The next offset of each partition that was not given yet."""
        return {part.partition: part.at for part in self._parts}

    # -- what it holds --------------------------------------------------------------------------

    @property
    def _ledgers_kept(self) -> Literal["none", "beside", "below"]:
        """See `ReadRange.ledger`."""
        if self._reading.compacted:
            return "below"
        # All changes: its manifest may be needed; see `_begin`.
        return "beside" if self._reading.whole else "none"

    def _ranges(self) -> dict[int, ReadRange]:
        """What is to be held of each partition."""
        ends, ledger = self._reading.ends, self._ledgers_kept
        return {
            number: ReadRange(start, None if ends is None else ends.get(number, start), ledger)
            for number, start in self._reading.starts.items()
        }

    def _open(self, held: Held) -> list[PartitionReader]:
        """Begin in each partition as it was when it was held."""
        parts, below = [], self._ledgers_kept == "below"
        for number, status in sorted(held.partitions.items()):
            part = self._open_one(status)
            part.files = held.files.get(number)
            if below:
                part.ledger = status.view.readable
            elif status.view.readable is None or not status.expired:
                self._let_go(part)
            parts.append(part)
        return parts

    def _open_one(self, status: PartitionStatus) -> PartitionReader:
        reading, view, number = self._reading, status.view, status.partition
        start = reading.starts[number]
        if reading.whole and view.readable is not None:
            start = 0
        elif reading.earliest and not reading.compacted:
            start = max(start, view.start)
        end = None if reading.ends is None else min(reading.ends.get(number, start), view.end)
        if end is not None and end > start:
            reading.shape.learn(view, view.batch_at(start), view.batch_at(end - 1) + 1)
        given = start > 0 or number in reading.midway
        return PartitionReader(number, start, end, view, given=given and not reading.trusted)

    def _let_go(self, part: PartitionReader) -> None:
        """Have the files of its ledger held no longer; twice is harmless."""
        files, part.files = part.files, None
        if files is not None:
            self._backend.release(files)

    def _leave_ledger(self, part: PartitionReader) -> None:
        """It has read what it wants of its ledger, and never comes back to it."""
        part.ledger = None
        self._let_go(part)

    def _use_newer(self, part: PartitionReader) -> None:
        """Read from the ledger of now: its files stay until it is left, or this reader is closed.

        It may be newer than the one of the view: its horizon is further on, and that is all.
        """
        number = part.partition
        wanted = {number: ReadRange(part.at, part.at, "below")}
        held = self._backend.hold(self._table, wanted, holder=self._reading.name, why=_WHY)
        before = self._newer.get(number)
        self._newer[number] = held.hold
        if before is not None:
            self._backend.release(before)
        self._let_go(part)
        part.ledger, part.files = held.partitions[number].view.readable, held.files.get(number)
        if self._closed:  # on another thread, just now: it may not have seen this hold
            self._let_go(part)
            self._backend.release(held.hold)

    # -- iterating ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        first, self._first = self._first, None
        if first is not None:
            return first
        try:
            return next(self._batches)
        except StopIteration:
            self._spent = self._ended
            raise

    def _begin(self, part: PartitionReader) -> None:
        """Begin behind what went by retention before it was compacted: all changes are meant, and
        these are none any more. What was compacted and then cut stays a gap.
        """
        reading, ledger = self._reading, part.view.readable
        if not reading.whole or part.files is None or ledger is None:
            return
        assert reading.ledgers is not None
        assert reading.described is not None
        expired = reading.ledgers.open(ledger, reading.described).manifest.expired
        part.at = max(part.at, min(expired, part.view.start))
        self._let_go(part)

    def _run(self) -> Iterator[pa.RecordBatch]:
        where = self._reading.where
        try:
            for part in () if self._closed else self._parts:
                self._begin(part)
            while not self._closed and self._left != 0:
                moved = False
                if self._lease is not None:
                    self._lease.renew_if_due()
                for part in self._parts:
                    before = part.at
                    for batch in self._turn(part):
                        if self._left is not None:
                            batch = batch.slice(0, self._left)
                            self._left -= batch.num_rows
                            if not self._left:
                                self._stop_behind(part, batch)
                        if batch.num_rows:
                            yield batch if where is None else where.give(batch)
                        if self._left == 0 or self._closed:
                            self._ended = self._left == 0
                            return
                    moved |= part.at > before  # also over deletes, which may not be given
                if moved:
                    continue
                if self._reading.ends is not None:
                    self._ended = not self._closed
                    return
                self._wait()
            self._ended = self._left == 0
        finally:
            self.close()

    def _turn(self, part: PartitionReader) -> Iterator[pa.RecordBatch]:
        """What a partition gives before the next one has its turn: of a bounded read everything.

        So one partition at a time has batches in memory that were fetched and not given.
        """
        before = -1
        while not self._closed and before < part.at:
            before = part.at
            yield from self._next(part)
            if part.end is None:
                return
            if part.at >= part.end:
                part.ahead = None  # nothing of it is under way any more
                return
            if self._lease is not None:
                self._lease.renew_if_due()

    def _wait(self) -> None:
        """Wait for more; raise if nothing can come any more."""
        self._check_there()
        try:
            self._seen = self._backend.wait(self._hold, _WAIT_S, seen=self._seen)
        except LowmarkError as error:
            if isinstance(error, HoldUnknown) and self._closed:
                return  # on another thread, just now
            self._check_there()
            raise

    def _look(self, part: PartitionReader) -> View:
        """The backlog of now."""
        try:
            return self._backend.view(self._table, part.partition)
        except LowmarkError:
            self._check_there()
            raise

    def _check_of_now(self, part: PartitionReader) -> None:
        """Give nothing of a view if a later reset is known: a partition is read of one lineage."""
        lineages = self._backend.lineages
        if lineages and lineages.of(group_name(self._table, part.partition)) > part.view.lineage:
            raise PartitionReset(self._table, part.partition, at=part.at)

    def _check_there(self) -> None:
        """Raise if the table was dropped: that says more than what became of its partitions."""
        if self._reading.newest is not None:
            self._reading.newest()

    def _next(self, part: PartitionReader) -> Iterator[pa.RecordBatch]:
        """The next batches of a partition: as many as are read in one go."""
        if part.end is None:
            newer = self._look(part)
            if not part.view.goes_on_in(newer, part.at):
                raise PartitionReset(self._table, part.partition, at=part.at)
            part.view = newer
        self._check_of_now(part)
        view, end = part.view, part.end if part.end is not None else part.view.end
        if self._reading.compacted:
            yield from self._from_ledger(part, end)
            if not part.reads_ledger:
                self._leave_ledger(part)
            if self._closed or _has_newer(part):
                return  # what the backlog lacks by now is in the newer ledger: on with that one
        self._skip_gap(part)
        if part.at >= end:
            return
        low = view.batch_at(part.at)
        # Not beyond its end: what lies there is not held for it, and may be gone.
        high = view.fitting(low, view.batch_at(end - 1) + 1, self._reading.batch_bytes)
        shape, where = self._reading.shape, self._reading.where
        held = part.end is not None
        if not held:
            shape.learn(view, low, high)
        columns = view.columns
        try:
            entries = self._fetch(part, low, high)
        except BatchesMoved:
            if held:
                raise RowsLost(
                    f"offsets {part.at} to {end - 1} of partition {part.partition} are gone,"
                    " though they were held for this reader",
                    detail=NOT_HELD,
                    hint="Read again from the earliest.",
                ) from None
            return  # a cut came first: the next view says so
        except Unavailable:
            self._check_there()
            raise
        changes = columns.change[low:high].tolist()
        firsts, counts = columns.first[low:high].tolist(), columns.rows[low:high].tolist()
        for at, command in zip(range(low, high), entries, strict=False):
            first, rows = firsts[at - low], counts[at - low]
            if first >= end:
                return
            from_row, to_row = max(0, part.at - first), min(rows, end - first)
            part.at, part.given = first + to_row, True
            part.last = (command, at, from_row)
            if changes[at - low] == _DELETE and not shape.with_deletes:
                continue
            number = part.partition
            batch = shape.read_at(view, at, command, partition=number, low=from_row, high=to_row)
            yield batch if where is None else where.passing(batch)

    def _from_ledger(self, part: PartitionReader, end: int) -> Iterator[pa.RecordBatch]:
        """What is left of the rows below the horizon."""
        ledgers, described = self._reading.ledgers, self._reading.described
        assert ledgers is not None
        assert described is not None
        if not part.reads_ledger and _has_newer(part):
            # The backlog was cut before this reader came that far: on in the newer ledger.
            self._use_newer(part)
        if part.ledger is None or part.at >= min(end, part.ledger.horizon):
            return
        self._skip_deletes(part, part.ledger)
        horizon = part.ledger.horizon
        ledger = ledgers.open(part.ledger, described)
        stop = min(end, horizon)
        self._skip_lost(part, ledger.manifest.lost, stop)
        self._skip_expired(part, min(ledger.manifest.expired, stop))
        shape, where = self._reading.shape, self._reading.where
        for batch, offsets in ledger.batches(shape, start=part.at, end=stop, where=where):
            self._check_of_now(part)
            part.at, part.offsets, part.given = int(offsets[-1]) + 1, offsets, True
            yield batch
        part.at, part.offsets = max(part.at, stop), None

    def _skip_lost(self, part: PartitionReader, lost: Sequence[Lost], stop: int) -> None:
        """Report what a ledger should have and has not, before any row of it is given."""
        for one in lost:
            first, last = max(one.first, part.at), min(one.last, stop - 1)
            if first > last:
                continue
            gap = Gap(part.partition, first, last, "lost")
            if self._reading.on_gap == "raise":
                raise GapFound(gap)
            if gap not in self.gaps:
                self.gaps.append(gap)

    def _skip_expired(self, part: PartitionReader, before: int) -> None:
        """A reader that goes on somewhere below what went by retention has missed rows and deletes
        of it; one that begins has missed nothing.
        """
        begins = not part.at and not part.given
        if begins or part.at >= before:
            return
        gap = Gap(part.partition, part.at, before - 1, "expired")
        if self._reading.on_gap == "raise":
            raise GapFound(gap)
        self.gaps.append(gap)
        part.at = before

    def _skip_deletes(self, part: PartitionReader, ledger: Adopted) -> None:
        """A reader that goes on somewhere below deletes that are gone may not get them."""
        known, below = part.deletes_known, ledger.deletes_below
        part.deletes_known = max(known, below)
        if not part.given or part.at >= below or below <= known:
            return
        gap = Gap(part.partition, part.at, below - 1, "deleted")
        if self._reading.on_gap == "raise":
            raise GapFound(gap)
        if gap not in self.gaps:
            self.gaps.append(gap)

    def _fetch(self, part: PartitionReader, low: int, high: int) -> list[Buffer]:
        """Batches of a partition. Of a bounded read, the next ones are asked for at once."""
        if part.end is None:
            wanted = [BatchRange.of(part.view, low, high)]
            return next(self._backend.batches(self._table, part.partition, wanted, held=False))
        first, ahead = part.ahead or (low, iter(()))
        found = next(ahead, None) if first == low else None
        if found is None:
            ranges = self._ranges_from(part, low)
            ahead = self._backend.batches(self._table, part.partition, ranges, held=True)
            found = next(ahead)
        part.ahead = (high, ahead)
        return found

    def _ranges_from(self, part: PartitionReader, low: int) -> list[BatchRange]:
        """What comes next, in the pieces in which it is read."""
        assert part.end is not None
        ranges: list[BatchRange] = []
        last = part.view.batch_at(part.end - 1) + 1
        while low < last and len(ranges) < _AHEAD_MAX:
            high = part.view.fitting(low, last, self._reading.batch_bytes)
            ranges.append(BatchRange.of(part.view, low, high))
            low = high
        return ranges

    def _stop_behind(self, part: PartitionReader, given: pa.RecordBatch) -> None:
        """Stand right behind the last row that was given, though its batch has more."""
        rows, where = given.num_rows, self._reading.where
        if where is not None:
            part.at = where.offset_of(given, rows - 1) + 1
            return
        if part.offsets is not None:
            part.at = int(part.offsets[rows - 1]) + 1
            return
        assert part.last is not None
        command, at, low = part.last
        shape = self._reading.shape
        places = Shape(shape.table, _PLACES[shape.with_deletes], newest=self._reading.newest)
        offsets = places.read_at(part.view, at, command, partition=part.partition, low=low)
        part.at = offsets.column(OFFSET)[rows - 1].as_py() + 1

    def _skip_gap(self, part: PartitionReader) -> None:
        if part.at >= part.view.start or (part.end is not None and part.at >= part.end):
            return
        behind = part.view.start if part.end is None else min(part.view.start, part.end)
        ledger = part.view.readable
        compacted = ledger is not None and part.at < ledger.horizon
        kind: Literal["superseded", "expired"] = "superseded" if compacted else "expired"
        gap = Gap(part.partition, part.at, behind - 1, kind)
        if self._reading.on_gap == "raise":
            raise GapFound(gap)
        self.gaps.append(gap)
        part.at = behind

    # -- all at once ----------------------------------------------------------------------------

    def _whole(self) -> Iterator[pa.RecordBatch]:
        """All batches that are left; an error, not a part of them, if it is closed before."""
        self._check_whole()
        if self._spent:
            raise ReaderEnded(read=True)
        return self._up_to_the_end()

    def _up_to_the_end(self) -> Iterator[pa.RecordBatch]:
        yield from self
        self._check_whole()

    def _check_whole(self) -> None:
        # One that follows has no other end than to be closed.
        bounded = self._reading.ends is not None or self._reading.limit is not None
        if bounded and self._closed and not self._ended:
            raise ReaderEnded(read=False)

    def to_arrow(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(list(self._whole()), schema=self.schema)

    def to_batches(self) -> pa.RecordBatchReader:
        """A stream of batches for programs that speak Arrow; read it before this is closed."""
        return pa.RecordBatchReader.from_batches(self.schema, self._whole())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as an Arrow stream, once: for `pa.table(reader)`, Polars, DuckDB.

        The first batch is read here, so that a gap at the start is raised as what it is. What goes
        wrong later comes as an error of the program that reads, with our text in it. A stream that
        is not read takes no rows away: DuckDB makes one for the names of the columns alone.
        """
        whole = self._whole()
        if self._first is None:
            self._first = next(self._batches, None)
        stream = pa.RecordBatchReader.from_batches(self.schema, whole)
        capsule: object = stream.__arrow_c_stream__(requested_schema)
        return capsule

    def to_pandas(self, **more: Any) -> pd.DataFrame:
        """All rows, as pandas has them."""
        _imported("pandas")
        return self.to_arrow().to_pandas(**more)

    def to_polars(self) -> pl.DataFrame:
        """All rows, as Polars has them."""
        polars = _imported("polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow())
        return frame

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """All rows, as a relation of DuckDB that can be queried any number of times.

        Without a connection it is of DuckDB's default one. The rows are held in memory; to query
        them once as a stream, name the reader itself in the query.
        """
        made = _imported("duckdb") if connection is None else connection
        relation: duckdb.DuckDBPyRelation = made.from_arrow(self.to_arrow())
        return relation

    def to_pylist(self) -> list[dict[str, Any]]:
        """All rows, as dicts: a UUID is a `uuid.UUID`, a map is a dict."""
        rows: list[dict[str, Any]] = self.to_arrow().to_pylist()
        convert_rows(rows, converts_of(self.schema))
        return rows

    # -- closing --------------------------------------------------------------------------------

    def close(self) -> None:
        """Hold nothing any more, and end the iteration."""
        if self._released:
            return
        self._closed = True
        try:
            if self._lease is not None:
                self._lease.release()
        finally:
            for hold in self._holds():
                self._backend.release(hold)
            for part in getattr(self, "_parts", ()):  # there are none, if it could not be made
                part.ahead = None  # nothing more is read in advance
        self._released = True

    def _holds(self) -> list[Hold]:
        return [self._hold, *self._newer.values()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_hold"):
            self.close()


def _imported(package: str) -> Any:
    """An optional package: not every installation has it, and some are slow to import."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise PackageMissing(package, needed_for=f"to_{package}()") from error


def _has_newer(part: PartitionReader) -> bool:
    """Whether the backlog was cut before a reader that follows came that far, and its rows are in
    a ledger that is newer than the reader's. One whose horizon it has passed never is.
    """
    if part.end is not None or part.at >= part.view.start:
        return False
    newer = part.view.readable
    return newer is not None and newer != part.ledger and part.at < newer.horizon


class _Lease:
    """The hold of one reader in all its partitions; it follows the reader."""

    def __init__(self, backend: Backend, table: TableId, ttl_ms: int) -> None:
        if ttl_ms < LEASE_MS_MIN:
            raise Rejected(
                f"a lease of {ttl_ms} ms is too short", hint=f"Use at least {LEASE_MS_MIN} ms."
            )
        self._backend = backend
        self._table = table
        self._ttl_ms = ttl_ms
        self._name = f"reader-{os.urandom(6).hex()}"
        self._holder = int.from_bytes(os.urandom(7), "little")
        self._parts: Sequence[PartitionReader] = ()
        self._renewed_s = 0.0

    def take(
        self, parts: Sequence[PartitionReader], why: str, kind: Literal["raw", "compacted"]
    ) -> None:
        """Hold what is left to read."""
        self._parts = parts
        name, holder, ttl_ms = self._name, self._holder, self._ttl_ms
        self._backend.propose(
            self._table,
            {
                part.partition: TakeLease(name, holder, part.held_from, ttl_ms, why, kind)
                for part in parts
            },
        )
        self._renewed_s = time.monotonic()

    def renew_if_due(self) -> None:
        """Hold what is left to read for as long again; raises if it was let go meanwhile."""
        if (time.monotonic() - self._renewed_s) * 1_000 < self._ttl_ms / 3:
            return
        self._backend.propose(
            self._table,
            {part.partition: RenewLease(self._name, self._holder, part.at) for part in self._parts},
        )
        self._renewed_s = time.monotonic()

    def release(self) -> None:
        """It does not wait: without it, the lease ends by itself."""
        released = ReleaseLease(self._name, self._holder)
        commands = {part.partition: released for part in self._parts}
        self._backend.propose(self._table, commands, wait=False)
