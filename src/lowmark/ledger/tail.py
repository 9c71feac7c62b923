"""The part of a backlog that a run reads, as another process can read it.

A tail is planned by a node that has a copy of the partition, when all of it is in sealed segments.
It says two things of the same batches: in which segments of that node they stand, and at which
places of the log, which are the same at every copy. A process that sees the node's directory opens
the segments and needs nothing else of the log; any other one asks a node for the places. Segments
may be merged meanwhile: then a name leads to nothing, and `SourceMoved` says to plan again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np

from lowmark.group import open_command
from lowmark.ledger.errors import SourceMoved
from lowmark.log import ReadPlan, ReferenceExpired
from lowmark.log.read_plan import InSegment, rows_of
from lowmark.log.segments import SegmentReader
from lowmark.runtime import Buffer, Disk
from lowmark.table import Columns, View

_CHUNK_BYTES = 8 << 20
_OPEN_MAX = 64
"""Segments that are open at a time: a mapped file keeps a handle."""
_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("first", np.uint64),
    ("time", np.uint64),
    ("rows", np.uint32),
    ("schema", np.uint32),
    ("size", np.uint32),
    ("change", np.uint8),
)


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive batches of a tail that stand in one segment."""

    segment: int
    indexes: bytes
    """Numbers of 64 bits, little endian."""


class Tail(msgspec.Struct, frozen=True, array_like=True):
    """Batches of a partition, from offset `low` to before `high`."""

    group: str
    folder: str
    incarnation: bytes
    low: int
    high: int
    pieces: tuple[Piece, ...] = ()
    columns: tuple[bytes, ...] = ()
    """What the backlog knows of each batch."""
    root: str = ""
    """The data directory of the node that has these segments, on its machine."""
    place: str = ""
    """Which directory its folder is (`place_of`): elsewhere the same path may lead to another."""
    addresses: tuple[str, ...] = ()
    """Where servers give the same batches over the network: the first one is the best."""
    lineage: int = 0
    """Of the view that they are of: see `View`."""

    @property
    def size(self) -> int:
        """What its batches have in the log."""
        return int(np.frombuffer(self.columns[4], np.uint32).sum(dtype=np.uint64)) if self else 0

    def __bool__(self) -> bool:
        return self.low < self.high


def tail_of(view: View, plan: ReadPlan, *, at: int, low: int, high: int) -> Tail | None:
    """The batches of a view that a plan reads, from position `at` on; None if one is in memory."""
    pieces = []
    for piece in plan.pieces:
        if not isinstance(piece, InSegment):
            return None
        pieces.append(Piece(piece.number, np.array(piece.indexes, np.uint64).tobytes()))
    count = sum(len(piece.indexes) // 8 for piece in pieces)
    columns = tuple(getattr(view.columns, name)[at : at + count].tobytes() for name, _ in _COLUMNS)
    return Tail(plan.group, plan.folder, plan.incarnation, low, high, tuple(pieces), columns)


Span: TypeAlias = tuple[int, int]
"""Batches of a tail, from a position to before another one."""


class Source(Protocol):
    """Where the batches of a tail are read from."""

    def read(self, spans: Sequence[Span]) -> Iterator[Sequence[Buffer]]:
        """The commands of each span, in order; a few megabytes are in memory at a time."""

    def close(self) -> None:
        """Let go of what it has open."""


class TailReader:
    """Reads a tail, once or often, a few megabytes at a time."""

    def __init__(self, source: Source, tail: Tail, *, partition: int) -> None:
        self._source = source
        self._tail = tail
        self.partition = partition

    @cached_property
    def view(self) -> View:
        """The batches, as the backlog knows them."""
        return view_of(self._tail)

    @property
    def skip(self) -> int:
        """This many rows of the first batch lie below the tail."""
        view = self.view
        return max(0, self._tail.low - int(view.columns.first[0])) if view.count else 0

    def chunks(
        self, pace: Callable[[int], None], *, wanted: Callable[[int, int], bool] | None = None
    ) -> Iterator[tuple[int, int, Sequence[Buffer]]]:
        """Batches `low` to `high` and their commands; what is not `wanted` is not read."""
        view, spans, low = self.view, list[Span](), 0
        while low < view.count:
            high = view.fitting(low, view.count, _CHUNK_BYTES)
            if wanted is None or wanted(low, high):
                spans.append((low, high))
            low = high
        for (low, high), commands in zip(spans, self._source.read(spans), strict=True):
            pace(int(view.size[low:high].sum(dtype=np.uint64)))
            yield low, high, commands

    def close(self) -> None:
        """Let go of all files."""
        self._source.close()


def view_of(tail: Tail) -> View:
    """The batches of a tail, as the backlog knows them."""
    columns = tail.columns or (b"",) * len(_COLUMNS)  # nothing is new, but all is rewritten
    arrays = {
        name: np.frombuffer(data, kind)
        for (name, kind), data in zip(_COLUMNS, columns, strict=True)
    }
    places = [np.frombuffer(piece.indexes, np.uint64) for piece in tail.pieces]
    place = np.concatenate(places) if places else np.zeros(0, np.uint64)
    columns_of = Columns(place=place, **arrays)
    return View(columns_of, len(place), tail.low, tail.high, 0, lineage=tail.lineage)


class Segments:
    """The sealed segments of a node, in its directory; see `Source`."""

    def __init__(self, disk: Disk, tail: Tail, *, partition: int) -> None:
        self._disk = disk
        self._tail = tail
        self._partition = partition
        self._readers: dict[int, SegmentReader] = {}
        self._places = [np.frombuffer(piece.indexes, np.uint64) for piece in tail.pieces]
        self._ends = np.cumsum([len(places) for places in self._places])

    def read(self, spans: Sequence[Span]) -> Iterator[Sequence[Buffer]]:
        """See `Source`."""
        for low, high in spans:
            yield self._read(low, high)

    def _read(self, low: int, high: int) -> list[Buffer]:
        """Commands, checked each time: pages that were let go of come from the disk again."""
        found: list[Buffer] = []
        ends = self._ends
        at = int(np.searchsorted(ends, low, "right"))
        while low < high:
            start = int(ends[at]) - len(self._places[at])
            stop = min(high, int(ends[at]))
            indexes = self._places[at][low - start : stop - start].tolist()
            number = self._tail.pieces[at].segment
            try:
                reader = self._reader(number)
                rows = rows_of(reader, indexes)
                if len(rows) != len(indexes):
                    raise ReferenceExpired(reader.path)
                entries = reader.read(rows)
            except ReferenceExpired as expired:
                raise SourceMoved(self._partition) from expired
            found += [open_command(entry.data).data for entry in entries]
            low, at = stop, at + 1
        return found

    def _reader(self, number: int) -> SegmentReader:
        """An open segment, mapped: what is read a second time is there already."""
        reader = self._readers.get(number)
        if reader is None:
            while len(self._readers) >= _OPEN_MAX:
                self._forget(next(iter(self._readers)))
            tail = self._tail
            reader = self._readers[number] = SegmentReader(
                self._disk, tail.folder, number, incarnation=tail.incarnation, mapped=True
            )
        return reader

    def _forget(self, number: int) -> None:
        self._readers.pop(number).close()

    def close(self) -> None:
        """Let go of all files."""
        for number in list(self._readers):
            self._forget(number)
