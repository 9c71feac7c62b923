"""Batches of rows from the backlog, in order, partition by partition in turns.

A reader works from views, which never change, and asks the loop only where in the log the next
batches stand; it reads and decodes them on the caller's thread. A bounded reader holds what it is
going to read from the moment it is made, so a cut that comes meanwhile takes nothing from it. One
that follows holds nothing, unless it is given a lease: if a cut passes it, it says which rows it
has missed. A lease is renewed while the reader is read from; it ends by itself if it is not, and
the reader says so.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa
from pyroaring import BitMap64

from lowmark.catalog import Table
from lowmark.client.embedded import Embedded
from lowmark.client.failures import RowsLost
from lowmark.client.fetching import Moved, fetch, plan_ahead
from lowmark.errors import Conflict, Rejected
from lowmark.group import when_all
from lowmark.log import ReadPlan
from lowmark.runtime import Buffer
from lowmark.table import (
    CHANGE,
    OFFSET,
    Change,
    Partition,
    ReleaseLease,
    RenewLease,
    Shape,
    TakeLease,
    View,
)

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

__all__ = ["Gap", "GapFound", "Reader"]

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
        super().__init__(
            f"offsets {gap.first} to {gap.last} of partition {gap.partition} are {gap.kind}",
            detail="They were cut off by the table's retention.",
            hint="Read from the earliest, or with on_gap='skip', which keeps count of gaps.",
        )
        self.gap = gap


@dataclass(slots=True)
class _Way:
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

    @property
    def held_from(self) -> int:
        """The first offset that is left of what it has not given."""
        return max(self.at, self.view.start)


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


class Reader:
    """Iterate for record batches, or take everything at once.

    Close one that you do not read to its end, best by `with`. `position` says where to go on:
    give it as `start` to another reader, today or after a restart.
    """

    def __init__(
        self, embedded: Embedded, partitions: Mapping[int, Partition], reading: Reading
    ) -> None:
        self._embedded = embedded
        self._reading = reading
        self.gaps: list[Gap] = []
        """Rows that could not be given (with `on_gap="skip"`)."""
        self._left = reading.limit
        self._closed = False
        self._changed = threading.Event()
        self._ends: list[Callable[[], None]] = []
        self._ways = embedded.ask_now(lambda: self._open(partitions))
        self._lease: _Lease | None = None
        if reading.lease_ms is not None:
            self._lease = _Lease(embedded, self._ways, reading.lease_ms, reading.name)
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

    def _open(self, partitions: Mapping[int, Partition]) -> list[_Way]:
        reading, ways = self._reading, []
        follows = reading.ends is None
        holder = f"{reading.name} {id(self):x}"
        for number, start in sorted(reading.starts.items()):
            partition = partitions[number]
            view = partition.view
            if reading.earliest:
                start = max(start, view.start)
            end = None if reading.ends is None else min(reading.ends.get(number, start), view.end)
            ways.append(_Way(partition, start, end, view))
            if follows:
                self._ends.append(partition.follow(self._changed.set))
            elif end is not None and start < end:
                pins = BitMap64(view.places[view.batch_at(start) : view.batch_at(end - 1) + 1])
                log = partition.group.log
                log.hold(holder, kind="reader", pins=pins, why="rows are being read")
                self._ends.append(lambda log=log: log.release(holder, "reader"))  # type: ignore[misc]
        return ways

    # -- iterating ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def _run(self) -> Iterator[pa.RecordBatch]:
        try:
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
                            return
                    moved |= way.at > before  # also over deletes, which may not be given
                if moved:
                    continue
                if self._reading.ends is not None:
                    return
                self._check_goes_on()
                self._changed.wait(_WAIT_S)
        finally:
            self.close()

    def _check_goes_on(self) -> None:
        """Raise if nothing can come any more: nobody shall wait for it."""
        if self._reading.newest is not None:
            self._reading.newest()
        for way in self._ways:
            stopped = way.partition.group.stopped
            if stopped is not None:
                self._embedded.check()  # closed in between: that says more
                raise stopped.again()

    def _next(self, way: _Way) -> Iterator[pa.RecordBatch]:
        """The next batches of a partition: as many as are read in one go."""
        if way.end is None:
            way.view = way.partition.view
        view, end = way.view, way.end if way.end is not None else way.view.end
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
            way.at = first + to_row
            way.last = (command, at, from_row)
            if changes[at - low] == _DELETE and not shape.with_deletes:
                continue
            number = way.partition.number
            yield shape.read_at(view, at, command, partition=number, low=from_row, high=to_row)

    def _fetch(self, way: _Way, low: int, high: int) -> list[Buffer]:
        """Batches of a partition. Of a bounded read, the next ones are planned at once."""
        get = partial(fetch, self._embedded, way.partition, way.view, low, high)
        if way.end is None:
            return get(held=False)
        if low not in way.plans:
            way.plans = self._plan(way, low)
        return get(held=True, plan=way.plans.pop(low, None))

    def _plan(self, way: _Way, low: int) -> dict[int, ReadPlan]:
        """How to read what comes next, by its first batch."""
        assert way.end is not None
        ranges: list[tuple[int, int]] = []
        last = way.view.batch_at(way.end - 1) + 1
        while low < last and len(ranges) < _PLANNED_MAX:
            high = way.view.fitting(low, last, self._reading.batch_bytes)
            ranges.append((low, high))
            low = high
        plans = plan_ahead(self._embedded, way.partition, way.view, ranges)
        return {first: plan for (first, _), plan in zip(ranges, plans, strict=False)}

    def _stop_behind(self, way: _Way, rows: int) -> None:
        """Stand right behind the last row that was given, though its batch has more."""
        assert way.last is not None
        command, at, low = way.last
        shape = self._reading.shape
        places = Shape(shape.table, _PLACES[shape.with_deletes], newest=self._reading.newest)
        offsets = places.read_at(way.view, at, command, partition=way.partition.number, low=low)
        way.at = offsets.column(OFFSET)[rows - 1].as_py() + 1

    def _skip_gap(self, way: _Way) -> None:
        if way.at >= way.view.start or (way.end is not None and way.at >= way.end):
            return
        behind = way.view.start if way.end is None else min(way.view.start, way.end)
        gap = Gap(way.partition.number, way.at, behind - 1, "expired")
        if self._reading.on_gap == "raise":
            raise GapFound(gap)
        self.gaps.append(gap)
        way.at = behind

    # -- all at once ----------------------------------------------------------------------------

    def to_arrow(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(list(self), schema=self.schema)

    def to_batches(self) -> pa.RecordBatchReader:
        """A stream of batches for whoever speaks Arrow."""
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def to_pandas(self, **more: Any) -> pd.DataFrame:
        """All rows, as pandas has them."""
        return self.to_arrow().to_pandas(**more)

    def to_polars(self) -> pl.DataFrame:
        """All rows, as Polars has them."""
        polars = importlib.import_module("polars")  # optional, and slow to import
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow())
        return frame

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
        if ends and not self._embedded.closed:
            self._embedded.tell(lambda: _call_all(ends))

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


class _Lease:
    """The hold of one reader in all its partitions; it follows the reader."""

    def __init__(self, embedded: Embedded, ways: list[_Way], ttl_ms: int, why: str) -> None:
        if ttl_ms < LEASE_MS_MIN:
            raise Rejected(
                f"a lease of {ttl_ms} ms is too short", hint=f"Use at least {LEASE_MS_MIN} ms."
            )
        self._embedded = embedded
        self._ways = ways
        self._ttl_ms = ttl_ms
        self._name = f"reader-{os.urandom(6).hex()}"
        self._holder = int.from_bytes(os.urandom(7), "little")
        self._ask(lambda way: TakeLease(self._name, self._holder, way.held_from, ttl_ms, why))
        self._renewed_s = time.monotonic()

    def _ask(self, command: Callable[[_Way], TakeLease | RenewLease]) -> None:
        asked = [(way.partition, command(way)) for way in self._ways]
        self._embedded.ask(lambda: when_all([one.ask(wanted) for one, wanted in asked]))

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
