"""Looking at the single files of a group: segments, large files, snapshots. Nothing is changed.

Each check reads its file once, front to back, in windows, and gives findings instead of raising. It
reads by calls and never by mapping: on a disk that can't give a page, a call fails and can be
reported, while a touched map kills the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from crc32c import crc32c
from pyroaring import BitMap64

from lowmark.errors import Corrupt, LowmarkError
from lowmark.inspect.findings import Finding, Meter, finding_of, left_over, limited
from lowmark.log import files, large_format, segment_format, snapshot_format, snapshots
from lowmark.log.entries import U32, fold_checksums
from lowmark.log.errors import Damaged
from lowmark.log.large_format import Frame
from lowmark.log.segment_format import IN_LARGE, Rows, SegmentHeader
from lowmark.log.snapshots import Snapshot
from lowmark.log.state import GroupState
from lowmark.runtime import Disk, File

_WINDOW_BYTES = 4 << 20
_WINDOW_ROWS = 1 << 16

COPY_NEEDED = (
    "Keep the file for analysis. The group needs a fresh copy from another node, or from a backup."
)


@dataclass(slots=True)
class LargeFile:
    """A large file as it was found; `settle` says what its bad places mean once all is known."""

    number: int
    path: str
    size: int = 0
    frames: dict[int, Frame] = field(default_factory=dict)
    """The whole ones, by where their data begins."""
    bad: list[int] = field(default_factory=list)
    """Where frames begin that are not whole."""
    ends_at: int = 0
    """Up to here it could be walked."""
    error: LowmarkError | None = None
    """Why it could not be walked at all."""
    used_at: int = -1
    """The highest place that anything refers to."""

    def frame_at(self, place: int) -> Frame | None:
        """The whole frame whose data begins there; the place counts as used from now on."""
        self.used_at = max(self.used_at, place)
        return self.frames.get(place)

    def is_known_bad(self, place: int) -> bool:
        """Whether a finding of the file's own explains why nothing whole is there."""
        beyond = bool(self.bad) and place > self.ends_at
        return self.error is not None or beyond or place - large_format.FRAME_BYTES in self.bad

    def settle(self, disk: Disk, group: str) -> Iterator[Finding]:
        """Bad frames below a place that is in use are damage; behind it, an unfinished write."""
        if self.used_at < 0:
            yield left_over(disk, self.path, group, "no entry that counts is in this large file")
            return
        if self.error is not None:
            yield finding_of(disk, self.path, group, self.error)
        for at in self.bad:
            if at <= self.used_at:
                what = "a large entry fails its checksum"
                yield Finding("damage", group, disk.describe(self.path), at, what, COPY_NEEDED)
            else:
                what = f"the bytes from {at} on are an unfinished write that nothing refers to"
                yield left_over(disk, self.path, group, what)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment whose head and index area are sound."""

    number: int
    header: SegmentHeader
    indexes: BitMap64
    size: int


# -- large files --------------------------------------------------------------------------------


def check_large(
    disk: Disk, group: str, large: LargeFile, *, incarnation: bytes, meter: Meter
) -> Iterator[Finding]:
    """Walk a large file: its header and every frame. `settle` says what is wrong: a file that
    nothing refers to may just be one that was not finished.
    """
    try:
        file = disk.open(large.path, "read")
        try:
            yield from _walk_large(disk, group, large, file, incarnation)
        finally:
            file.close()
    except LowmarkError as error:
        large.error = error
    meter.looked_at(large.path, large.size)


def _walk_large(
    disk: Disk, group: str, large: LargeFile, file: File, incarnation: bytes
) -> Iterator[Finding]:
    where = disk.describe(large.path)
    large.size = file.size()
    head = file.read_at(0, large_format.HEADER_BYTES)
    number = large_format.check_header(where, head, incarnation=incarnation)
    if number != large.number:
        what = f"this is large file {number} under another name"
        yield Finding("damage", group, where, 8, what, "Give the file its own name back.")
    at = large_format.HEADER_BYTES
    while at < large.size:
        large.ends_at = at
        frame = large_format.decode_frame(file.read_at(at, large_format.FRAME_BYTES), at)
        if frame is None or frame.data_at + frame.length > large.size:
            large.bad.append(at)  # without a sound head, the next one may begin anywhere
            return
        if _checksum_of(file, frame.data_at, frame.length) == frame.data_checksum:
            large.frames[frame.data_at] = frame
        else:
            large.bad.append(at)
        at += large_format.frame_bytes(frame.length)
    large.ends_at = at


def _checksum_of(file: File, at: int, length: int) -> int:
    checksum, end = 0, at + length
    while at < end:
        window = file.read_at(at, min(_WINDOW_BYTES, end - at))
        if not window:
            return -1
        checksum = crc32c(window, checksum)
        at += len(window)
    return checksum


# -- segments -----------------------------------------------------------------------------------


def check_segment(
    disk: Disk,
    group: str,
    path: str,
    *,
    incarnation: bytes,
    larges: dict[int, LargeFile],
    found: list[SegmentFile],
    meter: Meter,
    may_be_installed: bool,
) -> Iterator[Finding]:
    """Check a segment whole; `found` gets it if it says what it holds."""
    try:
        file = disk.open(path, "read")
        try:
            checks = _check_open_segment(
                disk,
                group,
                path,
                file,
                incarnation,
                larges,
                found,
                meter,
                may_be_installed=may_be_installed,
            )
            yield from limited(checks)
        finally:
            file.close()
    except LowmarkError as error:
        yield finding_of(disk, path, group, error)


def _check_open_segment(
    disk: Disk,
    group: str,
    path: str,
    file: File,
    incarnation: bytes,
    larges: dict[int, LargeFile],
    found: list[SegmentFile],
    meter: Meter,
    *,
    may_be_installed: bool,
) -> Iterator[Finding]:
    where = disk.describe(path)
    number = files.number_of(path.rpartition("/")[2], files.SEGMENT) or 0
    head = file.read_at(0, segment_format.HEADER_BYTES)
    header = segment_format.decode_header(where, head, incarnation=incarnation)
    if header.trailer_at > file.size():
        yield Finding(
            "damage", group, where, file.size(), "the segment ends too early", COPY_NEEDED
        )
    rows = segment_format.read_rows(where, file, header)
    meter.looked_at(path, segment_format.HEADER_BYTES + len(rows) * rows.itemsize)
    for what in _row_mistakes(rows, header):
        yield Finding("damage", group, where, segment_format.HEADER_BYTES, what, COPY_NEEDED)
    try:
        members = segment_format.read_trailer(where, file, header)
        # An installed segment keeps the number under which it came in; a merge names its sources.
        renamed = may_be_installed and len(members) == 1 and members[0] <= number
        if members[0] != number and not renamed:
            what = f"this is segment {members[0]} under another name"
            hint = "Give the file its own name back."
            yield Finding("damage", group, where, header.trailer_at, what, hint)
    except Corrupt as error:
        yield finding_of(disk, path, group, error)
    found.append(SegmentFile(number, header, _bitmap(rows), file.size()))
    inside = (rows["place"] & np.uint64(IN_LARGE)) == 0
    yield from _check_inside(group, where, file, rows[inside], meter, path)
    yield from _check_outside(disk, group, path, header, rows[~inside], larges)


def _row_mistakes(rows: Rows, header: SegmentHeader) -> Iterator[str]:
    """What no sound writer would put into an index area, though its checksum is right."""
    if not len(rows):
        yield "it has no entries"
        return
    indexes, terms = rows["index"], rows["term"]
    if not bool((indexes[1:] > indexes[:-1]).all()):
        yield "its indexes do not rise"
    if not bool((terms[1:] >= terms[:-1]).all()):
        yield "its terms fall"
    if (int(indexes[0]), int(indexes[-1])) != (header.first, header.last):
        yield "its header names another range than its index area"
    placed = rows.copy()
    segment_format.lay_out(placed)
    inside = (rows["place"] & np.uint64(IN_LARGE)) == 0
    if (
        not bool((placed["place"] == rows["place"]).all())
        or int(rows["length"][inside].sum(dtype=np.uint64)) != header.data_bytes
    ):
        yield "its index area does not fit its data"


def _bitmap(rows: Rows) -> BitMap64:
    indexes = rows["index"]
    found = BitMap64()
    if len(indexes) and int(indexes[-1]) - int(indexes[0]) + 1 == len(indexes):
        found.add_range(int(indexes[0]), int(indexes[-1]) + 1)
    else:
        found.update(indexes.tolist())
    return found


def _check_inside(
    group: str, where: str, file: File, rows: Rows, meter: Meter, path: str
) -> Iterator[Finding]:
    for part in _windows(rows):
        start = int(part["place"][0])
        stop = int(part["place"][-1]) + int(part["length"][-1])
        blob = memoryview(file.read_at(start, max(0, stop - start)))
        starts = (part["place"] - np.uint64(start)).tolist()
        ends = [at + n for at, n in zip(starts, part["length"].tolist(), strict=True)]
        datas = [blob[at:end] for at, end in zip(starts, ends, strict=True)]
        sums: U32 = np.fromiter(map(crc32c, datas), np.uint32, len(datas))
        wrong = fold_checksums(sums, part["index"], part["term"]) != part["checksum"]
        wrong |= np.array(ends) > len(blob)
        for at in np.flatnonzero(wrong).tolist():
            what = f"entry {int(part['index'][at])} fails its checksum"
            yield Finding("damage", group, where, int(part["place"][at]), what, COPY_NEEDED)
        meter.looked_at(path, len(blob))


def _windows(rows: Rows) -> Iterator[Rows]:
    ends = np.cumsum(rows["length"], dtype=np.uint64)
    start = 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, np.uint64(before + _WINDOW_BYTES), "right"))
        end = min(max(end, start + 1), start + _WINDOW_ROWS)
        yield rows[start:end]
        start = end


def _check_outside(
    disk: Disk,
    group: str,
    path: str,
    header: SegmentHeader,
    rows: Rows,
    larges: dict[int, LargeFile],
) -> Iterator[Finding]:
    """Entries in the large file: the walk has checked them; here, that they are the right ones."""
    if not len(rows):
        return
    large = larges.get(header.large)
    if large is None:
        what = f"its large file {files.large_name(header.large)} is missing"
        yield Finding("damage", group, disk.describe(path), None, what, COPY_NEEDED)
        return
    places = (rows["place"] & np.uint64(IN_LARGE - 1)).tolist()
    frames = [large.frame_at(place) for place in places]
    sums: U32 = np.array([0 if f is None else f.data_checksum for f in frames], np.uint32)
    right = fold_checksums(sums, rows["index"], rows["term"]) == rows["checksum"]
    for row, place, frame, sound in zip(rows, places, frames, right.tolist(), strict=True):
        index, length = int(row["index"]), int(row["length"])
        if frame is None and large.is_known_bad(place):
            continue  # the large file's own finding says it
        if frame is None or not sound or (frame.index, frame.length) != (index, length):
            what = f"entry {index} is not in its large file at byte {place}"
            yield Finding("damage", group, disk.describe(large.path), place, what, COPY_NEEDED)


# -- snapshots ----------------------------------------------------------------------------------


def check_snapshot(
    disk: Disk, state: GroupState, folder: str, *, found: list[Snapshot], meter: Meter
) -> Iterator[Finding]:
    """Check a snapshot's state and live set; `found` gets it if its state is sound."""
    group, incarnation = state.name, state.incarnation
    path = f"{folder}/{snapshots.STATE}"
    live: BitMap64 | None = None
    try:
        live = _read_live(disk, f"{folder}/{snapshots.LIVE}", incarnation)
    except LowmarkError as error:
        yield replace(
            finding_of(disk, f"{folder}/{snapshots.LIVE}", group, error),
            hint="Nothing is lost: the group's owner can rebuild the live set from the state.",
        )
    try:
        for chunk in snapshots.read_state(disk, folder):
            meter.looked_at(path, len(chunk))
        file = disk.open(path, "read")
        where = disk.describe(path)
        meta, state_at = snapshot_format.decode_meta(where, file, incarnation=incarnation)
        trailer = snapshot_format.read_trailer(where, file, state_at)
        file.close()
    except LowmarkError as error:
        yield finding_of(disk, path, group, error)
        return
    if files.snapshot_of(folder.rpartition("/")[2]) != (meta.index, meta.term):
        what = f"this is the snapshot at {meta.index}, term {meta.term}, under another name"
        yield Finding("damage", group, where, 0, what, "Give the folder its own name back.")
    if live and live.max() > meta.index:
        what = f"live index {live.max()} lies after the snapshot at {meta.index}"
        live_path = disk.describe(f"{folder}/{snapshots.LIVE}")
        yield Finding("damage", group, live_path, 0, what, COPY_NEEDED)
    found.append(Snapshot(folder, meta, live, trailer.floor, trailer.length))


def _read_live(disk: Disk, path: str, incarnation: bytes) -> BitMap64:
    where = disk.describe(path)
    if disk.stat(path) is None:
        raise Damaged(where, offset=0, what="the file is missing")
    file = disk.open(path, "read")
    try:
        data = file.read_at(0, file.size())
        return snapshot_format.decode_live(where, data, incarnation=incarnation)
    finally:
        file.close()
