"""Segments as a group sees them: references in memory, and readers of the files behind them.

A newer piece cancels, from its first index on, whatever older pieces hold: that is how a newer term
overwrites. References carry the range that is left to them, so they are sorted by number and by
index at once, without overlap, and an index has one place.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from crc32c import crc32c
from pyroaring import BitMap64

from lowmark.log import files, large_format, segment_format
from lowmark.log.entries import U32, U64, Entry, entry_checksum, fold_checksums
from lowmark.log.errors import Damaged, EntryGone, ReferenceExpired
from lowmark.log.segment_format import IN_LARGE, Rows, SegmentHeader
from lowmark.log.snapshot_format import Floor
from lowmark.runtime import Disk, DiskFailed, File, FileMissing

_READ_GAP_BYTES = 64 << 10
_CHECKED_SINGLY_MAX = 128
"""This many entries are checked one by one; more, and arrays are faster."""
_TERMS_KNOWN_MAX = 256
"""A segment with more terms than that is asked each time."""


@dataclass(slots=True)
class SegmentRef:
    """A segment that counts: `first` to `last` is what newer pieces have left of it."""

    number: int
    first: int
    last: int
    count: int
    """Entries in the file, cancelled ones included."""
    data_bytes: int
    """Bytes of all its entries, those in the large file included."""
    large: int
    file_bytes: int
    order: int
    """Its place in write order: the highest number that it stands for."""
    file_last: int
    """The last index in the file, whatever newer pieces have left of it."""
    first_term: int
    """The term of the first entry in the file."""
    last_term: int
    """The term at `file_last`."""
    known_terms: list[tuple[int, int]] | None = None
    """Where terms begin in the file, as (first index, term); known once somebody has looked."""

    @property
    def name(self) -> str:
        """Its file's name."""
        return files.segment_name(self.number)

    def known_term_at(self, index: int) -> int | None:
        """The term of an entry of its, if that is known without the file.

        Terms never fall along a log, so a segment that begins and ends with one has no other.
        """
        if index == self.file_last or self.first_term == self.last_term:
            return self.last_term
        if self.known_terms is None:
            return None
        return self.known_terms[bisect_right(self.known_terms, (index, 1 << 64)) - 1][1]

    def learn_terms(self, reader: SegmentReader) -> None:
        """Remember where terms begin, once somebody had to look."""
        terms = reader.terms()
        if len(terms) <= _TERMS_KNOWN_MAX:
            self.known_terms = terms


def ref_of(number: int, header: SegmentHeader, file_bytes: int) -> SegmentRef:
    """A reference to a segment with that header."""
    return SegmentRef(
        number,
        header.first,
        header.last,
        header.count,
        header.data_bytes + header.large_bytes,
        header.large,
        file_bytes,
        header.order or number,
        header.last,
        header.first_term,
        header.last_term,
    )


def place_of(refs: Sequence[SegmentRef], index: int) -> SegmentRef | None:
    """The one segment whose range holds the index."""
    at = bisect_right(refs, index, key=lambda ref: ref.first) - 1
    return refs[at] if at >= 0 and index <= refs[at].last else None


def add_newer(refs: list[SegmentRef], new: SegmentRef) -> list[SegmentRef]:
    """Add a newer segment; give back those that have nothing left because of it."""
    cancelled = []
    while refs and refs[-1].last >= new.first:
        if refs[-1].first < new.first:
            refs[-1].last = new.first - 1
            break
        cancelled.append(refs.pop())
    refs.append(new)
    return cancelled


def void_above(refs: list[SegmentRef], floor: Floor) -> list[SegmentRef]:
    """Cut off what an installed snapshot voids; give back segments that have nothing left."""
    for ref in refs:
        if ref.order < floor.segment:
            ref.last = min(ref.last, floor.index)
    empty = [ref for ref in refs if ref.first > ref.last]
    refs[:] = [ref for ref in refs if ref.first <= ref.last]
    return empty


Allocate: TypeAlias = Callable[[int], memoryview]
"""Gives memory of a length to read into."""


class SegmentReader:
    """An open segment. It goes on reading the file it opened, whatever becomes of the name."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        number: int,
        *,
        incarnation: bytes | None,
        allocate: Allocate | None = None,
        mapped: bool = False,
    ) -> None:
        """With `mapped`, entries are given as they lie in the files' pages: nothing is copied."""
        self._disk = disk
        self._allocate = allocate
        self._maps: dict[str, memoryview] | None = {} if mapped else None
        self._folder = folder
        self._incarnation = incarnation
        self.path = f"{folder}/{files.segment_name(number)}"
        try:
            self.file = disk.open(self.path, "read")
        except FileMissing as missing:
            raise ReferenceExpired(self.path) from missing
        head = self.file.read_at(0, segment_format.HEADER_BYTES)
        where = disk.describe(self.path)
        self.header = segment_format.decode_header(where, head, incarnation=incarnation)
        self.rows = segment_format.read_rows(where, self.file, self.header)
        self._dense = self.header.last - self.header.first + 1 == self.header.count
        self._large: File | None = None

    def close(self) -> None:
        """Give the handles back; what was mapped goes when nobody looks at it any more."""
        if self._maps is not None:
            self._maps.clear()
        self.file.close()
        if self._large is not None:
            self._large.close()

    def positions(self, low: int, high: int) -> tuple[int, int]:
        """The half-open range of rows with indexes from `low` up to and including `high`."""
        first, count = self.header.first, self.header.count
        if self._dense:
            at = min(max(low - first, 0), count)
            return at, min(max(high + 1 - first, at), count)
        at, end = np.searchsorted(self.rows["index"], np.array([low, high + 1], np.uint64))
        return int(at), int(end)

    def term_at(self, index: int) -> int | None:
        """The term of an entry, if the segment holds it."""
        at, end = self.positions(index, index)
        return int(self.rows["term"][at]) if at < end else None

    def bytes_within(self, low: int, high: int) -> int:
        """How much data the entries from `low` up to and including `high` have."""
        at, end = self.positions(low, high)
        return int(self.rows["length"][at:end].sum(dtype=np.uint64))

    def terms(self) -> list[tuple[int, int]]:
        """Where terms begin, as (first index, term)."""
        terms = self.rows["term"]
        starts = np.concatenate(([0], np.flatnonzero(terms[1:] != terms[:-1]) + 1))
        indexes = self.rows["index"][starts].tolist()
        return list(zip(indexes, terms[starts].tolist(), strict=True))

    def read(self, rows: Rows, *, check: bool = True) -> list[Entry]:
        """Read these rows, checking every checksum; neighbours are read in one go.

        Whoever has checked them before, and reads the same mapped pages again, need not.
        """
        inside = (rows["place"] & IN_LARGE) == 0
        if bool(inside.all()):
            return self._read_from(self.file, self.path, rows, rows["place"], check=check)
        entries: list[Entry] = []
        start = 0
        # Runs of rows that lie in the same file; mixed segments alternate between the two.
        for end in [*(np.flatnonzero(np.diff(inside.view(np.int8))) + 1).tolist(), len(rows)]:
            part = rows[start:end]
            if inside[start]:
                entries += self._read_from(self.file, self.path, part, part["place"], check=check)
            else:
                places = part["place"] & np.uint64(IN_LARGE - 1)
                large = self.large_file()
                entries += self._read_from(large, self.large_path, part, places, check=check)
            start = end
        return entries

    @property
    def large_path(self) -> str:
        """Where its large entries are."""
        return f"{self._folder}/{files.large_name(self.header.large)}"

    def large_file(self) -> File:
        """The open large file of this segment."""
        if self._large is None:
            where = self._disk.describe(self.large_path)
            try:
                self._large = self._disk.open(self.large_path, "read")
            except FileMissing as missing:
                if self._was_replaced():
                    raise ReferenceExpired(self.path) from missing
                raise Damaged(where, offset=0, what="the file is missing") from missing
            head = self._large.read_at(0, large_format.HEADER_BYTES)
            large_format.check_header(where, head, incarnation=self._incarnation)
        return self._large

    def _was_replaced(self) -> bool:
        """Whether another file has the name now: then phase 3 moved the large entries, too."""
        try:
            file = self._disk.open(self.path, "read")
        except FileMissing:
            return True
        head = file.read_at(0, segment_format.HEADER_BYTES)
        file.close()
        return head != self.file.read_at(0, segment_format.HEADER_BYTES)

    def _read_from(
        self, file: File, path: str, rows: Rows, places: U64, *, check: bool
    ) -> list[Entry]:
        entries: list[Entry] = []
        lengths = rows["length"]
        for at, end in _blocks(places, lengths):
            starts = places[at:end] - places[at]
            ends = starts + lengths[at:end]
            blob = self._bytes(file, path, int(places[at]), int(ends[-1]))
            bounds = zip(starts.tolist(), ends.tolist(), strict=True)
            datas = [blob[start:stop] for start, stop in bounds]
            part = rows[at:end]
            if check:
                self._check(path, part, places[at:end], datas)
            entries += map(Entry, part["index"].tolist(), part["term"].tolist(), datas)
        return entries

    def _bytes(self, file: File, path: str, place: int, length: int) -> memoryview:
        if self._maps is not None:
            if path not in self._maps:
                self._maps[path] = file.map()
            return self._maps[path][place : place + length]
        if self._allocate is None:
            return memoryview(file.read_at(place, length))
        room = self._allocate(length)
        return room[: file.read_into(place, room)].toreadonly()

    def _check(self, path: str, rows: Rows, places: U64, datas: list[memoryview]) -> None:
        """Raise if one of these entries is not what was written."""
        if len(datas) < _CHECKED_SINGLY_MAX:
            kept = rows[["index", "term", "length", "checksum"]].tolist()
            sound = [
                len(data) == length and entry_checksum(index, term, data) == checksum
                for (index, term, length, checksum), data in zip(kept, datas, strict=True)
            ]
        else:
            lengths = np.fromiter(map(len, datas), np.uint32, len(datas))
            sums: U32 = np.fromiter(map(crc32c, datas), np.uint32, len(datas))
            folded = fold_checksums(sums, rows["index"], rows["term"])
            sound = ((folded == rows["checksum"]) & (lengths == rows["length"])).tolist()
        if not all(sound):
            bad = sound.index(False)
            what = f"entry {int(rows['index'][bad])} fails its checksum"
            raise Damaged(self._disk.describe(path), offset=int(places[bad]), what=what)


def _blocks(places: U64, lengths: U32) -> list[tuple[int, int]]:
    """What to read in one go, from which row to which: gaps cost less than calls."""
    if len(places) < 2:
        return [(0, 1)] if len(places) else []
    gaps = places[1:].astype(np.int64) - (places[:-1] + lengths[:-1]).astype(np.int64)
    cuts = (np.flatnonzero((gaps < 0) | (gaps > _READ_GAP_BYTES)) + 1).tolist()
    return list(itertools.pairwise([0, *cuts, len(places)]))


def check_entries(path: str, sums: U32, rows: Rows) -> None:
    """Check many entries by the sums of their data, as compaction does when it copies them."""
    bad = np.flatnonzero(fold_checksums(sums, rows["index"], rows["term"]) != rows["checksum"])
    if len(bad):
        at = int(bad[0])
        what = f"entry {int(rows['index'][at])} fails its checksum"
        raise Damaged(path, offset=int(rows["place"][at]) & (IN_LARGE - 1), what=what)


class ReaderCache:
    """The most recently used readers of one node, so that open files stay within a limit."""

    def __init__(self, disk: Disk, *, files_max: int) -> None:
        self._disk = disk
        self._files_max = files_max
        self._readers: OrderedDict[tuple[str, int], SegmentReader] = OrderedDict()

    def get(self, folder: str, number: int, *, incarnation: bytes) -> SegmentReader:
        """An open reader of that segment."""
        key = (folder, number)
        reader = self._readers.get(key)
        if reader is None:
            while len(self._readers) >= self._files_max:
                self._readers.popitem(last=False)[1].close()
            try:
                reader = SegmentReader(self._disk, folder, number, incarnation=incarnation)
            except DiskFailed:
                # Perhaps the process has no file handle left: give all of ours back, and try again.
                if not self._readers:
                    raise
                self.close()
                reader = SegmentReader(self._disk, folder, number, incarnation=incarnation)
            self._readers[key] = reader
        self._readers.move_to_end(key)
        return reader

    def close(self) -> None:
        """Close all of them; they are opened again when they are needed."""
        while self._readers:
            self._readers.popitem()[1].close()

    def forget(self, folder: str, number: int | None = None) -> None:
        """Close what is open of a segment, or of a whole folder."""
        for key in [k for k in self._readers if k[0] == folder and number in (None, k[1])]:
            self._readers.pop(key).close()


def live_rows(rows: Rows, ref: SegmentRef, keep: BitMap64) -> Rows:
    """The rows of a segment that are in its range and in the set to keep."""
    low, high = np.searchsorted(rows["index"], np.array([ref.first, ref.last + 1], np.uint64))
    part = rows[low:high]
    wanted = indexes_within(keep, ref.first, ref.last)
    return part[np.isin(part["index"], wanted, assume_unique=True)]


def indexes_within(indexes: BitMap64, first: int, last: int) -> U64:
    """The part of a set from `first` up to and including `last`; the rest is not looked at."""
    part = BitMap64()
    part.add_range(first, last + 1)
    part &= indexes
    return np.frombuffer(part.to_array(), np.uint64)


def entry_gone(group: str, index: int, *, snapshot: int, last: int) -> EntryGone:
    """The error for an index that has no entry, with the reason."""
    if index > last:
        return EntryGone(group, index=index, detail=f"The log ends at {last}.")
    detail = f"It is not live, and the snapshot at {snapshot} covers it."
    return EntryGone(group, index=index, detail=detail)
