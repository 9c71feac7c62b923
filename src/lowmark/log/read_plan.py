"""Reading: what is in memory at once, the rest by references that compaction can't invalidate.

A reference is a segment's name and an index, never a byte position. It stays good while phase 3
replaces the file behind the name, and for a grace time after the name became a link. After that,
and when phase 1 removed the segment because nothing in it counts any more, carrying the plan out
raises `ReferenceExpired`: plan again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from crc32c import crc32c

from lowmark.log import files, large_format
from lowmark.log.entries import Entry, Run
from lowmark.log.errors import Damaged, ReferenceExpired
from lowmark.log.segments import ReaderCache, SegmentReader
from lowmark.runtime import Disk, FileMissing

__all__ = ["ReadPlan", "read_large"]


@dataclass(slots=True)
class ReadPlan:
    """Entries to read, in order. It can be carried out on any thread, once or often."""

    group: str
    folder: str
    incarnation: bytes
    pieces: list[tuple[int, list[int]] | Run | Entry] = field(default_factory=list)
    """A segment number with the indexes to read there, a run in a large file, or a ready entry."""

    def execute(self, disk: Disk, cache: ReaderCache | None = None) -> list[Entry]:
        """Read it all, with every checksum verified."""
        found: list[Entry] = []
        for piece in self.pieces:
            match piece:
                case Entry():
                    found.append(piece)
                case Run():
                    found.append(read_large(disk, self.folder, piece))
                case (number, indexes):
                    found += self._from_segment(disk, cache, number, indexes)
        return found

    def _from_segment(
        self, disk: Disk, cache: ReaderCache | None, number: int, indexes: list[int]
    ) -> list[Entry]:
        if cache is not None:
            reader = cache.get(self.folder, number, incarnation=self.incarnation)
            return self._pick(reader, indexes)
        reader = SegmentReader(disk, self.folder, number, incarnation=self.incarnation)
        try:
            return self._pick(reader, indexes)
        finally:
            reader.close()

    def _pick(self, reader: SegmentReader, indexes: list[int]) -> list[Entry]:
        wanted = np.array(indexes, np.uint64)
        at = np.searchsorted(reader.rows["index"], wanted)
        at = np.minimum(at, len(reader.rows) - 1)
        missing = np.flatnonzero(reader.rows["index"][at] != wanted)
        if len(missing):
            # Compaction dropped it after the plan was made, or the segment is not what it was.
            raise ReferenceExpired(reader.path)
        return reader.read(reader.rows[at])


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
