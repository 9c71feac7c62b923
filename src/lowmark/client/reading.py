"""Batches of rows from the backlog, in order, partition by partition in turns.

A reader works from views, which never change, and asks the loop only where in the log the next
batches stand; it reads and decodes them on the caller's thread. A bounded reader holds what it is
going to read from the moment it is made, so a cut that comes meanwhile takes nothing from it. One
that follows holds nothing, unless it is given a lease: if a cut passes it, it says which rows it
has missed. A lease is renewed while the reader is read from; it ends by itself if it is not, and
the reader says so.

A compacted reader takes the rows below the horizon from the ledger of its view, and goes on in the
backlog right there: each offset has one source. One that follows stays with its ledger and its
place in the backlog, whatever is published meanwhile; only if the backlog was cut before it came
that far, it goes on in the newer ledger. A ledger's files are held from before it is read until its
horizon is passed: however long somebody follows, no more than one ledger of a partition stays for
it.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa
from pyroaring import BitMap64

from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import PackageMissing, ReaderEnded, RowsLost
from lowmark.backend.ledgers import Ledgers
from lowmark.catalog import Table
from lowmark.client.edges import edge
from lowmark.client.fetching import Moved, fetch, plan_ahead
from lowmark.errors import Conflict, Rejected
from lowmark.group import when_all
from lowmark.ledger import Lost
from lowmark.log import ReadPlan
from lowmark.runtime import Buffer
from lowmark.table import (
    CHANGE,
    I64,
    OFFSET,
    Adopted,
    Change,
    Partition,
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

__all__ = ["Gap", "GapFound", "Reader", "Reading", "Way", "horizon_of"]

BATCH_BYTES = 4 << 20
"""Read in one go, if not told otherwise."""
LEASE_MS_MIN = 1_000
_DELETE = int(Change.DELETE)
_PLANNED_MAX = 32
"""So many reads are planned in one turn of the loop."""
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
        skip = 'To go on over gaps and have them listed in `gaps`: on_gap="skip" (--on-gap skip).'
        match gap.kind:
            case "superseded":
                what = f"{where} are no longer in the backlog, which begins at {onward}"
                detail = "They were compacted: the last row of each key is in the ledger."
                hint = "For the last row of each key: read(compacted=True) (--compacted). For the"
                hint += ' changes that are left: read(start="earliest") (--start earliest).'
                hint += f" {skip}"
            case "deleted":
                what = f"deletes at {where} may be gone"
                detail = "Every known reader had passed them. Keys that you know from before may"
                detail += " have been deleted without your hearing of it."
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
class Way:
    """A reader's way through one partition."""

    partition: Partition
    at: int
    end: int | None
    """Where it ends; None: it follows."""
    view: View
    """What it works from; a follower takes a newer one each time."""
    plans: dict[int, ReadPlan] = field(default_factory=dict)
    """How to read what comes next, by its first batch."""
    last: tuple[Buffer, int, int] | None = None
    """The last batch that was read: itself, its position, and the first row of it that counted."""
    ledger: Adopted | None = None
    """What rows below its horizon come from; None: everything comes from the backlog."""
    hold: Callable[[], None] | None = None
    """Ends what keeps the files of its ledger, or did of the last one; may be called again."""
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

    def release(self) -> None:
        """Have the files of its ledger held no longer. On any thread; twice is harmless."""
        if self.hold is not None:
            self.hold()

    def leave_ledger(self) -> None:
        """It has read what it wants of its ledger, and never comes back to it."""
        self.ledger = None
        self.release()


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
    """Whether somebody has held deletes for it since before: a cursor does."""


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

    def __init__(
        self, backend: Embedded, partitions: Mapping[int, Partition], reading: Reading
    ) -> None:
        self._backend = backend
        self._reading = reading
        self.gaps: list[Gap] = []
        """Rows that could not be given (with `on_gap="skip"`)."""
        self._left = reading.limit
        self._closed = False
        self._ended = False
        """Whether it has come to its end, and was not closed before."""
        self._spent = False
        """Whether its end was given, too: it has nothing more for another use."""
        self._first: pa.RecordBatch | None = None
        """A batch that was read before it was asked for: the next one to give."""
        self._changed = threading.Event()
        self._ends: list[Callable[[], None]] = []
        self._ways = backend.ask_now(lambda: self._open(partitions))
        self._lease: _Lease | None = None
        if reading.lease_ms is not None:
            kind: Literal["raw", "compacted"] = "compacted" if reading.compacted else "raw"
            self._lease = _Lease(backend, self._ways, reading.lease_ms, reading.name, kind)
            self._ends.append(self._lease.release)
        self._batches = self._run()

    @property
    def schema(self) -> pa.Schema:
        """Of every batch."""
        return self._reading.shape.schema

    @property
    def position(self) -> dict[int, int]:
        """The next offset of each partition that was not given yet."""
        return {way.partition.number: way.at for way in self._ways}

    # -- on the loop ----------------------------------------------------------------------------

    def _open(self, partitions: Mapping[int, Partition]) -> list[Way]:
        reading, ways = self._reading, []
        follows = reading.ends is None
        holder = f"{reading.name} {id(self):x}"
        for number, start in sorted(reading.starts.items()):
            partition = partitions[number]
            view = partition.view
            if reading.whole and view.readable is not None:
                start = 0
            elif reading.earliest and not reading.compacted:
                start = max(start, view.start)
            end = None if reading.ends is None else min(reading.ends.get(number, start), view.end)
            way = Way(partition, start, end, view, given=start > 0 and not reading.trusted)
            if reading.whole and view.readable is not None and partition.state.expired:
                # Its manifest says what of it is no gap; see `_begin`.
                self._ends.append(way.release)
                if reading.ledgers is not None:
                    way.hold = reading.ledgers.take(view.readable.manifest)
            if reading.compacted:
                self._ends.append(way.release)
                self._use(way, view.readable)
            ways.append(way)
            first = max(start, way.ledger.horizon) if way.ledger is not None else start
            if follows:
                self._ends.append(partition.follow(self._changed.set))
            elif end is not None and first < end:
                pins = BitMap64(view.places[view.batch_at(first) : view.batch_at(end - 1) + 1])
                log = partition.group.log
                log.hold(holder, kind="reader", pins=pins, why="rows are being read")
                self._ends.append(lambda log=log: log.release(holder, "reader"))  # type: ignore[misc]
        return ways

    def _use(self, way: Way, ledger: Adopted | None) -> None:
        """Read from a ledger from now on: its files stay until the way leaves it, or this reader
        is closed.
        """
        way.release()
        way.ledger = ledger
        if ledger is not None and self._reading.ledgers is not None:
            way.hold = self._reading.ledgers.take(ledger.manifest)
            if self._closed:  # on another thread, just now: it may have released the last one
                way.release()

    def _use_newer(self, way: Way) -> None:
        """Read from the ledger of the view, unless one that is newer still was adopted meanwhile:
        its files may have gone before they were taken. The next view has that one.
        """
        self._use(way, way.view.readable)
        if way.partition.view.readable != way.ledger:
            way.leave_ledger()

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

    def _begin(self, way: Way) -> None:
        """Begin behind what went by retention before it was compacted: all changes are meant, and
        these are none any more. What was compacted and then cut stays a gap.
        """
        reading, ledger = self._reading, way.view.readable
        if not reading.whole or way.hold is None or ledger is None:
            return
        assert reading.ledgers is not None
        assert reading.described is not None
        expired = reading.ledgers.open(ledger, reading.described).manifest.expired
        way.at = max(way.at, min(expired, way.view.start))
        way.release()

    def _run(self) -> Iterator[pa.RecordBatch]:
        try:
            for way in () if self._closed else self._ways:
                self._begin(way)
            while not self._closed and self._left != 0:
                self._changed.clear()
                moved = False
                if self._lease is not None:
                    self._lease.renew_if_due()
                for way in self._ways:
                    before = way.at
                    for batch in self._next(way):
                        if self._left is not None:
                            batch = batch.slice(0, self._left)
                            self._left -= batch.num_rows
                            if not self._left:
                                self._stop_behind(way, batch.num_rows)
                        if batch.num_rows:
                            yield batch
                        if self._left == 0 or self._closed:
                            self._ended = self._left == 0
                            return
                    moved |= way.at > before  # also over deletes, which may not be given
                if moved:
                    continue
                if self._reading.ends is not None:
                    self._ended = not self._closed
                    return
                self._check_goes_on()
                self._changed.wait(_WAIT_S)
            self._ended = self._left == 0
        finally:
            self.close()

    def _check_goes_on(self) -> None:
        """Raise if nothing can come any more: nobody shall wait for it."""
        if self._reading.newest is not None:
            self._reading.newest()
        for way in self._ways:
            stopped = way.partition.group.stopped
            if stopped is not None:
                self._backend.check()  # closed in between: that says more
                raise stopped.again()

    def _next(self, way: Way) -> Iterator[pa.RecordBatch]:
        """The next batches of a partition: as many as are read in one go."""
        if way.end is None:
            way.view = way.partition.view
        view, end = way.view, way.end if way.end is not None else way.view.end
        if self._reading.compacted:
            yield from self._from_ledger(way, end)
            if not way.reads_ledger:
                way.leave_ledger()
            if self._closed or _has_newer(way):
                return  # what the backlog lacks by now is in the newer ledger: on with that one
        self._skip_gap(way)
        if way.at >= end:
            return
        low = view.batch_at(way.at)
        # Not beyond its end: what lies there is not held for it, and may be gone.
        high = view.fitting(low, view.batch_at(end - 1) + 1, self._reading.batch_bytes)
        shape, held = self._reading.shape, way.end is not None
        columns = view.columns
        try:
            entries = self._fetch(way, low, high)
        except Moved:
            if held:
                raise RowsLost(
                    f"offsets {way.at} to {end - 1} of partition {way.partition.number} are gone,"
                    " though they were held for this reader",
                    hint="This is a bug of Lowmark: report it. Read again from the earliest.",
                ) from None
            return  # a cut came first: the next view says so
        changes = columns.change[low:high].tolist()
        firsts, counts = columns.first[low:high].tolist(), columns.rows[low:high].tolist()
        for at, command in zip(range(low, high), entries, strict=False):
            first, rows = firsts[at - low], counts[at - low]
            if first >= end:
                return
            from_row, to_row = max(0, way.at - first), min(rows, end - first)
            way.at, way.given = first + to_row, True
            way.last = (command, at, from_row)
            if changes[at - low] == _DELETE and not shape.with_deletes:
                continue
            number = way.partition.number
            yield shape.read_at(view, at, command, partition=number, low=from_row, high=to_row)

    def _from_ledger(self, way: Way, end: int) -> Iterator[pa.RecordBatch]:
        """What is left of the rows below the horizon."""
        ledgers, described = self._reading.ledgers, self._reading.described
        assert ledgers is not None
        assert described is not None
        if not way.reads_ledger and _has_newer(way):
            # The backlog was cut before this reader came that far: on in the newer ledger.
            self._use_newer(way)
        if way.ledger is None or way.at >= min(end, way.ledger.horizon):
            return
        self._skip_deletes(way, way.ledger)
        horizon = way.ledger.horizon
        ledger = ledgers.open(way.ledger, described)
        stop = min(end, horizon)
        self._skip_lost(way, ledger.manifest.lost, stop)
        self._skip_expired(way, min(ledger.manifest.expired, stop))
        for batch, offsets in ledger.batches(self._reading.shape, start=way.at, end=stop):
            way.at, way.offsets, way.given = int(offsets[-1]) + 1, offsets, True
            yield batch
        way.at, way.offsets = max(way.at, stop), None

    def _skip_lost(self, way: Way, lost: Sequence[Lost], stop: int) -> None:
        """What a ledger should have and has not is told before any row of it is given."""
        for one in lost:
            first, last = max(one.first, way.at), min(one.last, stop - 1)
            if first > last:
                continue
            gap = Gap(way.partition.number, first, last, "lost")
            if self._reading.on_gap == "raise":
                raise GapFound(gap)
            if gap not in self.gaps:
                self.gaps.append(gap)

    def _skip_expired(self, way: Way, before: int) -> None:
        """Whoever goes on somewhere below what went by retention has missed rows and deletes of
        it; who begins has missed nothing.
        """
        if not 0 < way.at < before:
            return
        gap = Gap(way.partition.number, way.at, before - 1, "expired")
        if self._reading.on_gap == "raise":
            raise GapFound(gap)
        self.gaps.append(gap)
        way.at = before

    def _skip_deletes(self, way: Way, ledger: Adopted) -> None:
        """Whoever goes on somewhere below deletes that are gone may not hear of them."""
        known, way.deletes_known = way.deletes_known, max(way.deletes_known, ledger.deletes_below)
        if not way.given or not 0 < way.at < ledger.deletes_below or ledger.deletes_below <= known:
            return
        gap = Gap(way.partition.number, way.at, ledger.deletes_below - 1, "deleted")
        if self._reading.on_gap == "raise":
            raise GapFound(gap)
        if gap not in self.gaps:
            self.gaps.append(gap)

    def _fetch(self, way: Way, low: int, high: int) -> list[Buffer]:
        """Batches of a partition. Of a bounded read, the next ones are planned at once."""
        get = partial(fetch, self._backend, way.partition, way.view, low, high)
        if way.end is None:
            return get(held=False)
        if low not in way.plans:
            way.plans = self._plan(way, low)
        return get(held=True, plan=way.plans.pop(low, None))

    def _plan(self, way: Way, low: int) -> dict[int, ReadPlan]:
        """How to read what comes next, by its first batch."""
        assert way.end is not None
        ranges: list[tuple[int, int]] = []
        last = way.view.batch_at(way.end - 1) + 1
        while low < last and len(ranges) < _PLANNED_MAX:
            high = way.view.fitting(low, last, self._reading.batch_bytes)
            ranges.append((low, high))
            low = high
        plans = plan_ahead(self._backend, way.partition, way.view, ranges)
        return {first: plan for (first, _), plan in zip(ranges, plans, strict=False)}

    def _stop_behind(self, way: Way, rows: int) -> None:
        """Stand right behind the last row that was given, though its batch has more."""
        if way.offsets is not None:
            way.at = int(way.offsets[rows - 1]) + 1
            return
        assert way.last is not None
        command, at, low = way.last
        shape = self._reading.shape
        places = Shape(shape.table, _PLACES[shape.with_deletes], newest=self._reading.newest)
        offsets = places.read_at(way.view, at, command, partition=way.partition.number, low=low)
        way.at = offsets.column(OFFSET)[rows - 1].as_py() + 1

    def _skip_gap(self, way: Way) -> None:
        if way.at >= way.view.start or (way.end is not None and way.at >= way.end):
            return
        behind = way.view.start if way.end is None else min(way.view.start, way.end)
        ledger = way.view.readable
        compacted = ledger is not None and way.at < ledger.horizon
        kind: Literal["superseded", "expired"] = "superseded" if compacted else "expired"
        gap = Gap(way.partition.number, way.at, behind - 1, kind)
        if self._reading.on_gap == "raise":
            raise GapFound(gap)
        self.gaps.append(gap)
        way.at = behind

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
        """All rows, as dicts."""
        rows: list[dict[str, Any]] = self.to_arrow().to_pylist()
        return rows

    # -- closing --------------------------------------------------------------------------------

    def close(self) -> None:
        """Hold nothing any more, and end the iteration."""
        if self._closed:
            return
        self._closed = True
        self._changed.set()
        ends, self._ends = self._ends, []
        if ends and not self._backend.closed:
            self._backend.tell(lambda: _call_all(ends))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_ends"):
            self.close()


def _imported(package: str) -> Any:
    """An optional package: not every installation has it, and some are slow to import."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise PackageMissing(package, needed_for=f"to_{package}()") from error


def _has_newer(way: Way) -> bool:
    """Whether the backlog was cut before a reader that follows came that far, and its rows are in
    a ledger that is newer than the reader's. One whose horizon it has passed never is.
    """
    if way.end is not None or way.at >= way.view.start:
        return False
    newer = way.view.readable
    return newer is not None and newer != way.ledger and way.at < newer.horizon


class _Lease:
    """The hold of one reader in all its partitions; it follows the reader."""

    def __init__(
        self,
        backend: Embedded,
        ways: list[Way],
        ttl_ms: int,
        why: str,
        kind: Literal["raw", "compacted"],
    ) -> None:
        if ttl_ms < LEASE_MS_MIN:
            raise Rejected(
                f"a lease of {ttl_ms} ms is too short", hint=f"Use at least {LEASE_MS_MIN} ms."
            )
        self._backend = backend
        self._ways = ways
        self._ttl_ms = ttl_ms
        self._name = f"reader-{os.urandom(6).hex()}"
        self._holder = int.from_bytes(os.urandom(7), "little")
        self._ask(lambda way: TakeLease(self._name, self._holder, way.held_from, ttl_ms, why, kind))
        self._renewed_s = time.monotonic()

    def _ask(self, command: Callable[[Way], TakeLease | RenewLease]) -> None:
        asked = [(way.partition, command(way)) for way in self._ways]
        self._backend.ask(lambda: when_all([one.ask(wanted) for one, wanted in asked]))

    def renew_if_due(self) -> None:
        """Hold what is left to read for as long again; raises if it was let go meanwhile."""
        if (time.monotonic() - self._renewed_s) * 1_000 < self._ttl_ms / 3:
            return
        self._ask(lambda way: RenewLease(self._name, self._holder, way.at))
        self._renewed_s = time.monotonic()

    def release(self) -> None:
        """On the loop; nobody waits for it: without it, the lease ends by itself."""
        for way in self._ways:
            way.partition.ask(ReleaseLease(self._name, self._holder))


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()
