"""Phase 3, the work: copy what is kept of some segments into one, and put it in their place.

After each step this is true (sources 001, 002, 003; `C` is 001-002-003.compacting):
    1. C is written, with a trailer, and synced      the sources count; C is garbage
    2. the folder is synced                          as before
    3. C is linked as 001.segment.new, synced        C is finished: recovery rolls forward
    4. that is renamed over 001.segment, synced      001 holds everything; 002, 003 hold their part
    5. 002 and 003 become symlinks to 001, synced    their space is free, their names still read
    6. C's own name goes
A single segment is replaced by one rename. A reader that has an old file open goes on with it; one
that only has a name finds the same indexes behind it. The copy checks every entry it moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from crc32c import crc32c
from pyroaring import BitMap64

from lowmark.log import files, segment_format
from lowmark.log.compaction_plan import Merge
from lowmark.log.entries import U32, U64
from lowmark.log.errors import Damaged
from lowmark.log.files import SharedFolder, discard, same_file
from lowmark.log.segment_format import IN_LARGE, Rows
from lowmark.log.segments import SegmentReader, SegmentRef, check_entries, live_rows
from lowmark.runtime import Buffer, Disk, File

_READ_BYTES = 128 << 10
_READ_GAP_BYTES = 4 << 10
_GENTLE_SYNC_BYTES = 8 << 20
_BUFFER_BYTES_MIN = 4 << 20  # from here on numpy asks for huge pages


@dataclass(slots=True)
class _Source:
    reader: SegmentReader
    rows: Rows


class Merger:
    """One merge as a row of short steps; `steps()` gives the bytes that each has moved."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        incarnation: bytes,
        merge: Merge,
        keep: BitMap64,
        step_bytes: int,
        shared: SharedFolder | None = None,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._shared = shared if shared is not None else SharedFolder(folder)
        self._incarnation = incarnation
        self._refs = [stats.ref for stats in merge.sources]
        self._keep = keep
        self._step_bytes = step_bytes
        self.numbers = [ref.number for ref in self._refs]
        self.path = f"{folder}/{files.compacting_name(self.numbers)}"
        self.entries = 0
        self.bytes = 0
        self.result: SegmentRef | None = None
        """The new segment; None when nothing was left to keep."""
        self._acts_done = 0
        self._unsynced_bytes = 0
        self.gentle = False
        """While others write, it syncs part by part: one long sync would hold theirs up."""
        self.sync_failed = False
        """Names were changed, and nobody knows whether that will ever be durable."""

    def steps(self) -> Iterator[int]:
        """Run the merge; each turn is one step."""
        sources = [self._open(ref) for ref in self._refs]
        try:
            rows = np.concatenate([source.rows for source in sources])
            yield 0
            if len(rows):
                yield from self._write(sources, rows)
        finally:
            for source in sources:
                source.reader.close()
        if self.result is not None:
            yield from self.finish()

    def finish(self) -> Iterator[int]:
        """Put the merge in its sources' place; called again, it goes on where it failed."""
        acts = finish_merge(self._disk, self._folder, self.numbers)
        while self._acts_done < len(acts):
            faults = self._shared.faults
            acts[self._acts_done]()
            self.sync_failed = True
            self._shared.sync(self._disk, since=faults)
            self.sync_failed = False
            self._acts_done += 1
            yield 0

    def abandon(self) -> bool:
        """Take away what an unfinished merge left; the sources are untouched.

        False when it is too late: once it is linked, sources may be links to it already. In memory
        they would still be pieces of their own, and phase 1 might delete the one file that holds
        them all. So it has to go through, as after a crash.
        """
        finished = merge_is_finished(self._disk, self._folder, self.numbers)
        if finished or (self._acts_done and len(self.numbers) > 1):
            return False
        discard(self._disk, self.path)
        return True

    def _open(self, ref: SegmentRef) -> _Source:
        reader = SegmentReader(self._disk, self._folder, ref.number, incarnation=self._incarnation)
        return _Source(reader, live_rows(reader.rows, ref, self._keep))

    def _write(self, sources: list[_Source], rows: Rows) -> Iterator[int]:
        new_rows = rows.copy()
        new_rows["place"] = 0
        segment_format.lay_out(new_rows)
        faults = self._shared.faults
        discard(self._disk, self.path)
        file = self._disk.open(self.path, "create")
        order = max(ref.order for ref in self._refs)
        head, tail = _ends(new_rows, self.numbers, order, self._incarnation)
        file.append([head])
        # One buffer for all reads: fresh memory for each would cost as much as the copy itself.
        largest = int(new_rows["length"].max())
        buffer = np.empty(max(self._step_bytes, largest, _BUFFER_BYTES_MIN), np.uint8).data
        for source in sources:
            for part in _pieces(source.rows, self._step_bytes):
                yield self._copy(file, source, part, buffer)
        file.append([tail])
        file.datasync()
        yield 0
        self._shared.sync(self._disk, since=faults)
        yield 0
        self.entries = len(new_rows)
        self.result = SegmentRef(
            self.numbers[0],
            int(new_rows["index"][0]),
            int(new_rows["index"][-1]),
            len(new_rows),
            self.bytes,
            0,
            file.size(),
            order,
            int(new_rows["index"][-1]),
            int(new_rows["term"][0]),
            int(new_rows["term"][-1]),
        )
        file.close()

    def _copy(self, file: File, source: _Source, rows: Rows, buffer: memoryview) -> int:
        """Copy some entries: read neighbours together, check each, write them all together."""
        inside = bool((rows["place"][0] & np.uint64(IN_LARGE)) == 0)
        reader = source.reader
        old, path = (
            (reader.file, reader.path) if inside else (reader.large_file(), reader.large_path)
        )
        places, lengths = rows["place"] & np.uint64(IN_LARGE - 1), rows["length"]
        datas: list[Buffer] = []
        sums: list[int] = []
        used = 0
        for at, end in pairwise([0, *_breaks(places, lengths), len(rows)]):
            first, last = int(places[at]), int(places[end - 1]) + int(lengths[end - 1])
            stretch = buffer[used : used + last - first]
            used += len(stretch)
            stretch = stretch[: old.read_into(first, stretch)]
            starts = (places[at:end] - places[at]).tolist()
            for start, length in zip(starts, lengths[at:end].tolist(), strict=True):
                data = stretch[start : start + length]
                sums.append(crc32c(data))  # now, while the bytes are near the processor
                datas.append(data)
        check_entries(self._disk.describe(path), np.array(sums, np.uint32), rows)
        file.append(datas)
        moved = int(lengths.sum(dtype=np.uint64))
        self._unsynced_bytes += moved
        if self.gentle and self._unsynced_bytes >= _GENTLE_SYNC_BYTES:
            file.datasync()
            self._unsynced_bytes = 0
        self.bytes += moved
        return moved


def _ends(rows: Rows, members: list[int], order: int, incarnation: bytes) -> tuple[Buffer, Buffer]:
    """Head and trailer of a segment whose data is written in between."""
    data_bytes = int(rows["length"].sum(dtype=np.uint64))
    buffers = segment_format.encode_segment(
        rows=rows, payload=[], large=0, members=members, order=order, incarnation=incarnation,
        data_bytes=data_bytes,
    )  # fmt: skip
    return buffers[0], buffers[-1]


def _breaks(places: U64, lengths: U32) -> list[int]:
    """Where a new read begins: behind a long gap, and from time to time."""
    far = places[1:] - (places + lengths)[:-1] > _READ_GAP_BYTES
    block = np.uint64(_READ_BYTES)
    cuts: list[int] = (np.flatnonzero(far | (np.diff(places // block) != 0)) + 1).tolist()
    return cuts


def _pieces(rows: Rows, step_bytes: int) -> Iterator[Rows]:
    """Cut rows into pieces that lie in one file, and are read with a step's bytes of memory."""
    if not len(rows):
        return
    inside = (rows["place"] & np.uint64(IN_LARGE)) == 0
    places = rows["place"] & np.uint64(IN_LARGE - 1)
    gaps = places[1:] - (places + rows["length"])[:-1]
    costs = rows["length"].astype(np.uint64)
    costs[1:] += np.where(gaps <= _READ_GAP_BYTES, gaps, 0)
    ends = np.cumsum(costs)
    start = 0
    while start < len(rows):
        done = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, done + step_bytes, "right")))
        other_file = np.flatnonzero(inside[start:end] != inside[start])
        if len(other_file):
            end = start + int(other_file[0])
        yield rows[start:end]
        start = end


def finish_merge(disk: Disk, folder: str, numbers: list[int]) -> list[Callable[[], None]]:
    """The acts that put a written and synced merge in its sources' place; each can be repeated.

    The folder must be synced after each. Recovery runs the same acts, so a crash anywhere between
    them is rolled forward.
    """
    compacting = f"{folder}/{files.compacting_name(numbers)}"
    lowest, *others = [f"{folder}/{files.segment_name(number)}" for number in numbers]

    def rename_single() -> None:
        disk.rename(compacting, lowest)

    def link() -> None:
        new = lowest + files.NEW
        if not (same_file(disk, compacting, lowest) or same_file(disk, compacting, new)):
            discard(disk, new)
            disk.link(compacting, new)

    def rename() -> None:
        new = lowest + files.NEW
        if same_file(disk, compacting, lowest):
            # The sync after this rename may have failed in a process that was killed then. To
            # repeat it would change nothing, so the file gets its name anew: it always has one of
            # the two, and so recovery rolls forward.
            discard(disk, new)
            disk.rename(lowest, new)
        disk.rename(new, lowest)
        # Renaming one name of a file over another of the same file removes neither.
        discard(disk, lowest + files.NEW)

    def symlinks() -> None:
        for other in others:
            stat = disk.stat(other)
            discard(disk, other + files.LINK)
            if stat is None or stat.kind == "file":
                disk.symlink(files.segment_name(numbers[0]), other + files.LINK)
                disk.rename(other + files.LINK, other)

    def unlink() -> None:
        discard(disk, compacting)

    return [rename_single] if not others else [link, rename, symlinks, unlink]


def merge_is_finished(disk: Disk, folder: str, numbers: list[int]) -> bool:
    """Whether recovery must roll a merge forward: it was linked, which happens only when it is
    whole.

    The link count proves nothing (a backup by hard links raises it), so names are compared by
    inode, and the trailer is read.
    """
    compacting = f"{folder}/{files.compacting_name(numbers)}"
    lowest = f"{folder}/{files.segment_name(numbers[0])}"
    if len(numbers) == 1:
        return False
    linked = same_file(disk, compacting, lowest) or same_file(disk, compacting, lowest + files.NEW)
    return linked and _has_trailer(disk, compacting, numbers)


def _has_trailer(disk: Disk, path: str, numbers: list[int]) -> bool:
    file = disk.open(path, "read")
    try:
        head = file.read_at(0, segment_format.HEADER_BYTES)
        header = segment_format.decode_header(path, head, incarnation=None)
        return segment_format.read_trailer(path, file, header) == numbers
    except Damaged:
        return False
    finally:
        file.close()
