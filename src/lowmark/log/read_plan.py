"""Reading: what is in memory at once, the rest by references that compaction can't invalidate.

A reference is a segment's name and an index, never a byte position. It stays good while phase 3
replaces the file behind the name, and for a grace time after the name became a link. After that,
and when phase 1 removed the segment because nothing in it counts any more, carrying the plan out
raises `ReferenceExpired`: plan again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from lowmark.log import files, large_format
from lowmark.log.entries import U64, Entry, Run
from lowmark.log.errors import Damaged, ReferenceExpired
from lowmark.log.segment_format import Rows
from lowmark.log.segments import Allocate, ReaderCache, SegmentReader, SegmentRef, entry_gone
from lowmark.log.state import GroupState
from lowmark.runtime import Disk, FileMissing


class InSegment(NamedTuple):
    """Entries of one segment, by index; consecutive ones as a range."""

    number: int
    indexes: list[int] | range


class InMemory(NamedTuple):
    """Consecutive entries of runs that follow each other; a large one may be in its file only."""

    runs: list[Run]
    first: int
    last: int


class _Room:
    """How many bytes may still be read. The first entry always fits."""

    def __init__(self, bytes_max: int | None) -> None:
        self.left = bytes_max
        self._first = True

    def takes(self, size: int) -> bool:
        """Whether one more entry of that size comes along."""
        if self.left is None:
            return True
        fits = self._first or size <= self.left
        self._first = False
        self.left = self.left - size if fits else -1
        return fits

    def takes_of(self, ends: U64) -> int:
        """How many of these come along; `ends` are their lengths, summed up one by one."""
        if self.left is None or not len(ends):
            return len(ends)
        fit = int(np.searchsorted(ends, np.uint64(max(0, self.left)), "right"))
        count = max(fit, int(self._first))
        self._first = False
        self.left = self.left - int(ends[count - 1]) if count == len(ends) else -1
        return count

    @property
    def over(self) -> bool:
        """Whether nothing more comes along: an entry did not fit, and those after it must wait."""
        return self.left is not None and self.left < 0


@dataclass(slots=True)
class ReadPlan:
    """Entries to read, in order. It can be carried out on any thread, once or often."""

    group: str
    folder: str
    incarnation: bytes
    bytes_max: int | None = None
    """Stop before the entry that would make it more than so much data, but not before the first."""
    pieces: list[InSegment | InMemory] = field(default_factory=list)

    def execute(
        self,
        disk: Disk,
        cache: ReaderCache | None = None,
        *,
        allocate: Allocate | None = None,
    ) -> list[Entry]:
        """Read it all, with every checksum verified.

        Entries in segments are read into memory that `allocate` gives; else, and with a cache, into
        Python's own.
        """
        found: list[Entry] = []
        room = _Room(self.bytes_max)
        for piece in self.pieces:
            match piece:
                case InMemory():
                    found += self._from_memory(disk, piece, room)
                case InSegment():
                    found += self._from_segment(disk, cache, piece, room, allocate=allocate)
            if room.over:
                break
        return found

    def _from_memory(self, disk: Disk, piece: InMemory, room: _Room) -> list[Entry]:
        runs, first, last = piece
        found: list[Entry] = []
        # Where a run ends is where the next one begins: it may have been overwritten from there on.
        ends = [*(run.first - 1 for run in runs[1:]), last]
        for run, end in zip(runs, ends, strict=True):
            if run.count == 1:
                if not room.takes(run.data_bytes):
                    break
                in_memory = run.payload or run.large is None
                found.append(
                    run.entry(run.first) if in_memory else read_large(disk, self.folder, run)
                )
                continue
            low = max(first, run.first)
            starts = run.starts()[low - run.first : end - run.first + 2]
            found += run.entries(low, low + room.takes_of(starts[1:] - starts[0]) - 1)
            if room.over:
                break
        return found

    def _from_segment(
        self,
        disk: Disk,
        cache: ReaderCache | None,
        piece: InSegment,
        room: _Room,
        *,
        allocate: Allocate | None,
    ) -> list[Entry]:
        if cache is not None:
            reader = cache.get(self.folder, piece.number, incarnation=self.incarnation)
            return self._pick(reader, piece.indexes, room)
        reader = SegmentReader(
            disk, self.folder, piece.number, incarnation=self.incarnation, allocate=allocate
        )
        try:
            return self._pick(reader, piece.indexes, room)
        finally:
            reader.close()

    def _pick(self, reader: SegmentReader, indexes: list[int] | range, room: _Room) -> list[Entry]:
        rows = rows_of(reader, indexes)
        if len(rows) != len(indexes):
            # Compaction dropped it after the plan was made, or the segment is not what it was.
            raise ReferenceExpired(reader.path)
        if room.left is not None:
            rows = rows[: room.takes_of(np.cumsum(rows["length"], dtype=np.uint64))]
        return reader.read(rows)


def rows_of(reader: SegmentReader, indexes: list[int] | range) -> Rows:
    """The rows with these indexes, as far as the segment holds them."""
    if isinstance(indexes, range):
        at, end = reader.positions(indexes.start, indexes.stop - 1)
        return reader.rows[at:end]
    wanted = np.array(indexes, np.uint64)
    places = np.searchsorted(reader.rows["index"], wanted)
    rows: Rows = reader.rows[np.minimum(places, len(reader.rows) - 1)]
    found: Rows = rows[rows["index"] == wanted]
    return found


def read_large(disk: Disk, folder: str, run: Run) -> Entry:
    """A large entry that a recovered WAL only names."""
    if run.large is None or len(run.payload):
        return run.entry(run.first)
    path = f"{folder}/{files.large_name(run.large.number)}"
    where = disk.describe(path)
    try:
        file = disk.open(path, "read")
    except FileMissing as missing:
        raise Damaged(where, offset=0, what="the file is missing") from missing
    length = int(np.frombuffer(run.lengths, np.uint32)[0])
    data = file.read_at(run.large.offset, length)
    file.close()
    stored = int(np.frombuffer(run.checksums, np.uint32)[0])
    if len(data) != length or crc32c(data) != stored:
        what = f"entry {run.first} fails its checksum"
        raise Damaged(where, offset=run.large.offset - large_format.FRAME_BYTES, what=what)
    return Entry(run.first, run.term, data)


# -- consecutive entries of the normal section -----------------------------------------------------
#
# For a follower that catches up, and for decisions by size. Nothing here looks up single indexes:
# the way goes along segments, then along the memtable's runs, which hold the log's tail.


def plan_range(
    state: GroupState, first: int, last: int, *, bytes_max: int
) -> list[InSegment | InMemory]:
    """Where these entries are; the rest is left out when there are surely more than `bytes_max`."""
    pieces: list[InSegment | InMemory] = []
    planned, expected = 0, first
    for ref, low, high in _in_segments(state, first, last):
        if low != expected:
            break
        pieces.append(InSegment(ref.number, range(low, high + 1)))
        expected = high + 1
        planned += ref.data_bytes if _is_whole(ref, low, high) else 0
        if planned > bytes_max:
            return pieces
    if expected <= last:
        pieces.append(_in_memory(state, expected, last, bytes_max=bytes_max - planned))
    return pieces


def _in_memory(state: GroupState, first: int, last: int, *, bytes_max: int) -> InMemory:
    memory = state.memtable
    if not (memory.first or last + 1) <= first <= last <= (memory.last or -1):
        missing = first if first < (memory.first or last + 1) else (memory.last or 0) + 1
        snapshot = state.row.snapshot_index
        raise entry_gone(state.name, missing, snapshot=snapshot, last=state.last_index)
    begin, end = memory.position(first), memory.position(last) + 1
    # A run before which there is too much already is not needed.
    enough = memory.view[begin].bytes_before + memory.view[begin].bytes_below(first) + bytes_max
    end = bisect_right(memory.view, enough, begin + 1, end, key=lambda run: run.bytes_before)
    runs = memory.view[begin:end]
    return InMemory(runs, first, min(last, runs[-1].kept_last))


def size_of(
    state: GroupState, first: int, last: int, *, reader: Callable[[SegmentRef], SegmentReader]
) -> int:
    """How much data entries of the normal section have; only segments at the edges are opened."""
    first, last = max(first, state.row.snapshot_index + 1), min(last, state.last_index)
    size = state.memtable.bytes_within(first, last)
    for ref, low, high in _in_segments(state, first, last):
        whole = _is_whole(ref, low, high)
        size += ref.data_bytes if whole else reader(ref).bytes_within(low, high)
    return size


def log_bytes(state: GroupState) -> int:
    """About how much data the normal section has; segments are counted again when they change."""
    memory, snapshot = state.memtable, state.row.snapshot_index
    size = memory.bytes_within(snapshot + 1, state.last_index)
    if not state.segments:
        return size
    newest = state.segments[-1]
    end = min(newest.last, state.last_index if memory.first is None else memory.first - 1)
    # What follows the snapshot changes only with these: compaction works on what is before it.
    key = (snapshot, newest.number, end)
    if state.segment_bytes_known[0] != key:
        parts = _in_segments(state, snapshot + 1, end)
        counted = sum(_share(ref, high + 1 - low) for ref, low, high in parts)
        state.segment_bytes_known = (key, counted)
    return size + state.segment_bytes_known[1]


def has_bytes(state: GroupState, limit: int) -> bool:
    """Whether there are so many (`log_bytes`). They are counted only if that can be: the log grows
    by what is appended, and what was in memory is weighed anew as a segment.
    """
    size, appended, segment = state.bytes_known
    newest = state.segments[-1].number if state.segments else 0
    if segment != newest or size + state.appended_bytes - appended >= limit:
        size = log_bytes(state)
        state.bytes_known = size, state.appended_bytes, newest
        return size >= limit
    return False


def _in_segments(state: GroupState, first: int, last: int) -> Iterator[tuple[SegmentRef, int, int]]:
    """The segments that hold a range, each with the first and last index of it that is there."""
    if state.memtable.first is not None:
        last = min(last, state.memtable.first - 1)  # what memory has is newer
    refs = state.segments
    for at in range(max(0, bisect_right(refs, first, key=lambda ref: ref.first) - 1), len(refs)):
        ref = refs[at]
        if max(first, ref.first) > last:
            return
        if ref.last >= first:
            yield ref, max(first, ref.first), min(last, ref.last)


def _is_whole(ref: SegmentRef, low: int, high: int) -> bool:
    return (low, high) == (ref.first, ref.file_last)


def _share(ref: SegmentRef, part: int) -> int:
    """About how much of a segment's data so many of its entries have."""
    return ref.data_bytes if part >= ref.count else ref.data_bytes * part // ref.count
