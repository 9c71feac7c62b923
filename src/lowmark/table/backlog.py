"""The batches of a partition that are still there, as columns of numbers.

A batch is a row of seven numbers: about 40 bytes, whatever it holds. Batches are only added at the
end and cut at the front, and what stands in a column never changes; so a view is a column and a
count, costs nothing to take, and stays true on any thread for as long as a reader keeps it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowmark.errors import Corrupt, invariant
from lowmark.table.adopting import Adopted

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]

_FIELDS: tuple[tuple[str, Any], ...] = (
    ("place", np.uint64),
    ("first", np.uint64),
    ("time", np.uint64),
    ("rows", np.uint32),
    ("schema", np.uint32),
    ("size", np.uint32),
    ("change", np.uint8),
)
_CAPACITY = 64
FITTING_MAX = 8_192
"""Batches that are read in one go, at most: small ones cost something, too."""


class Columns(NamedTuple):
    """One array a number, all of the same length."""

    place: U64
    """Where a batch stands in the log: its index."""
    first: U64
    time: U64
    rows: U32
    schema: U32
    size: U32
    change: U8


@dataclass(frozen=True, slots=True)
class View:
    """The backlog as it was at one moment, and the ledger that goes with it: what readers work
    from, on any thread.
    """

    columns: Columns
    count: int
    """How many batches there are; the columns may be longer."""
    start: int
    """The first offset that can be read; it may lie within the first batch."""
    end: int
    """The next offset to be assigned."""
    closed: int
    """No row at or below this time will ever be added."""
    ledger: Adopted | None = None
    """What has the rows below its horizon; from there on, they are in the backlog or expired."""
    cut_time: int = 0
    """No row below the start is later than this. It may be later than all of them."""
    lineage: int = 0
    """Which reset of the partition it is of (`group.lineages`): those of two lineages may have
    other batches at the same offsets and places. The backend that gives a view out says so."""

    @property
    def readable(self) -> Adopted | None:
        """The ledger, if its rows may be read: not if it ends before the backlog begins.

        Then retention went further than it, and all its rows are older than some that have
        expired. What changed or deleted its keys may be among those: it would bring back rows that
        no reader should see any more.
        """
        return None if self.ledger is None or self.ledger.horizon < self.start else self.ledger

    @property
    def places(self) -> U64:
        """Where the batches stand in the log."""
        return self.columns.place[: self.count]

    @property
    def first(self) -> U64:
        """Their first offsets."""
        return self.columns.first[: self.count]

    @property
    def time(self) -> U64:
        """Their times; they never fall."""
        return self.columns.time[: self.count]

    @property
    def rows(self) -> U32:
        """How many rows they have."""
        return self.columns.rows[: self.count]

    @property
    def size(self) -> U32:
        """How many bytes they have in the log."""
        return self.columns.size[: self.count]

    @property
    def least_schema(self) -> int:
        """The lowest schema version that a batch has; 0: there is none."""
        return int(self.columns.schema[: self.count].min()) if self.count else 0

    def batch_at(self, offset: int) -> int:
        """The position of the batch that holds an offset, or of the first one after it."""
        at = bisect_right(_numbers(self.columns.first), offset, 0, self.count) - 1
        if at >= 0 and offset < int(self.columns.first[at]) + int(self.columns.rows[at]):
            return at
        return at + 1

    def offset_after(self, time: int) -> int:
        """The first offset whose time lies above a time."""
        at = bisect_right(_numbers(self.columns.time), time, 0, self.count)
        return int(self.columns.first[at]) if at < self.count else self.end

    def offset_from(self, time: int) -> int:
        """The first offset whose time is a time or later."""
        at = bisect_left(_numbers(self.columns.time), time, 0, self.count)
        return int(self.columns.first[at]) if at < self.count else self.end

    def bytes_from(self, offset: int) -> int:
        """How much the batches from an offset on have in the log."""
        return int(self.size[self.batch_at(offset) :].sum(dtype=np.uint64))

    def goes_on_in(self, later: View, at: int) -> bool:
        """Whether the rows below an offset are known to be the same in a view of another lineage.

        They are, if the batch before it is: a leader gives no batch the time of another one, and
        logs that have one entry in common have all before it. What the backlog does not have any
        more can't be compared.
        """
        if not at or self.lineage == later.lineage:
            return True
        mine, theirs = self.batch_at(at - 1), later.batch_at(at - 1)
        if mine >= self.count or theirs >= later.count or int(self.first[mine]) >= at:
            return False
        # Compaction may have moved it in the log since.
        own, others = self.columns[1:], later.columns[1:]
        pairs: list[Any] = list(zip(own, others, strict=True))
        return all(int(a[mine]) == int(b[theirs]) for a, b in pairs)

    def fitting(self, low: int, high: int, bytes_max: int) -> int:
        """Where batches end that begin at `low`, lie before `high` and have at most so many bytes.

        At least one batch, however large; and no more than are worth reading in one go.
        """
        sizes = np.cumsum(self.size[low : min(high, low + FITTING_MAX)], dtype=np.uint64)
        count = int(np.searchsorted(sizes, np.uint64(bytes_max), "right"))
        return min(low + max(1, count), high)


class Backlog:
    """The columns, and how far they go. Changed on the loop only."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.cut_time = 0
        """See `View`: the time of the last row that was cut, or a later one after a restart."""
        self._columns = _empty(_CAPACITY)
        self._count = 0
        self.view = View(self._columns, 0, 0, 0, 0)
        """What is there now; another value after each change."""

    def __len__(self) -> int:
        return self._count

    def add(self, index: int, *, rows: int, time: int, schema: int, size: int, change: int) -> int:
        """Add a batch at the end; gives its first offset."""
        at, first = self._count, self.end
        columns = self._columns
        if at == len(columns.place):
            columns = self._columns = _copied(columns, 0, at, 2 * at)
        columns.place[at] = index
        columns.first[at] = first
        columns.time[at] = time
        columns.rows[at] = rows
        columns.schema[at] = schema
        columns.size[at] = size
        columns.change[at] = change
        self._count = at + 1
        self.end = first + rows
        return first

    @property
    def least_schema(self) -> int:
        """See `View`."""
        return int(self._columns.schema[: self._count].min()) if self._count else 0

    def time_of(self, offset: int) -> int:
        """The time of a row that is there."""
        at = bisect_right(_numbers(self._columns.first), offset, 0, self._count) - 1
        return int(self._columns.time[at])

    def publish(self, closed: int, ledger: Adopted | None = None) -> None:
        """Let readers see it, together with the ledger that is adopted."""
        self.view = View(
            self._columns, self._count, self.start, self.end, closed, ledger, self.cut_time
        )

    def cut(self, offset: int) -> int:
        """Begin at an offset; gives how many batches went. One that straddles the cut stays."""
        invariant(self.start <= offset <= self.end, "a cut stays within the backlog")
        if offset > self.start:
            self.cut_time = self.time_of(offset - 1)
        self.start = offset
        gone = bisect_right(_numbers(self._columns.first), offset, 0, self._count) - 1
        if gone >= 0 and offset >= int(self._columns.first[gone]) + int(self._columns.rows[gone]):
            gone += 1
        gone = max(gone, 0)
        if gone:
            left = self._count - gone
            self._columns = _copied(self._columns, gone, self._count, max(2 * left, _CAPACITY))
            self._count = left
        return gone

    def moved(self, old: int, new: int) -> bool:
        """A batch has another place in the log; False if there is none at the old one."""
        places = np.flatnonzero(self._columns.place[: self._count] == old)
        if not len(places):
            return False
        # Views keep the old column: what they name stays readable until they are gone.
        column = self._columns.place.copy()
        column[places[0]] = new
        self._columns = self._columns._replace(place=column)
        return True

    def indexes(self) -> U64:
        """Where the batches stand in the log."""
        return self._columns.place[: self._count]

    def encode(self) -> bytes:
        """All columns, one after another."""
        return b"".join(column[: self._count].tobytes() for column in self._columns)

    @classmethod
    def decode(cls, data: bytes, *, count: int, start: int, end: int) -> Backlog:
        """What `encode` gave."""
        backlog = cls()
        at, columns = 0, []
        for _, kind in _FIELDS:
            size = count * np.dtype(kind).itemsize
            columns.append(np.frombuffer(data, kind, count, at) if count else np.empty(0, kind))
            at += size
        if at != len(data):
            raise Corrupt("a snapshot of a partition has a backlog of another length than it says")
        whole = Columns(*columns)
        backlog._columns = _copied(whole, 0, count, max(2 * count, _CAPACITY))
        backlog._count, backlog.start, backlog.end = count, start, end
        return backlog


def _numbers(column: U64) -> memoryview:
    """For looking up one number at a time: much faster than asking an array for each."""
    return memoryview(column)  # type: ignore[arg-type]


def _empty(capacity: int) -> Columns:
    return Columns(*(np.zeros(capacity, kind) for _, kind in _FIELDS))


def _copied(columns: Columns, low: int, high: int, capacity: int) -> Columns:
    fresh = _empty(capacity)
    for name, _ in _FIELDS:
        getattr(fresh, name)[: high - low] = getattr(columns, name)[low:high]
    return fresh
