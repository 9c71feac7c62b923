"""Looking at a group's folder: who it is, every piece, every link, everything left over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.inspect.findings import Finding, Meter, finding_of, left_over
from lowmark.inspect.pieces import (
    COPY_NEEDED,
    LargeFile,
    SegmentFile,
    check_large,
    check_segment,
    check_snapshot,
)
from lowmark.log import files, identity, large_format, segments, snapshots
from lowmark.log.entries import Run
from lowmark.log.group_recovery import missing_text, settle_segments
from lowmark.log.merge import merge_is_finished
from lowmark.log.snapshot_format import Floor
from lowmark.log.snapshots import Snapshot
from lowmark.log.state import CompactionRun, GroupState, LiveRow
from lowmark.runtime import Disk

_LINKS_FOLLOWED_MAX = 64


@dataclass(slots=True)
class GroupPieces:
    """What a group's files hold, as far as they are sound; the WAL is replayed on top of it."""

    state: GroupState
    larges: dict[int, LargeFile] = field(default_factory=dict)
    segments: dict[int, SegmentFile] = field(default_factory=dict)
    gap: Finding | None = None
    """A gap in the WAL that no later run has covered."""
    half_installed: bool = False
    """A received snapshot is only half moved in: only a start decides what counts."""

    @property
    def name(self) -> str:
        """The group's name."""
        return self.state.name

    @property
    def floor(self) -> Floor:
        """Up to where an installed snapshot voids what the WAL has."""
        return self.state.snapshot.floor if self.state.snapshot is not None else Floor()

    def held(self) -> BitMap64:
        """Every index that can be read, in segments or from the WAL."""
        found = BitMap64()
        for ref in self.state.segments:
            within = BitMap64()
            within.add_range(ref.first, ref.last + 1)
            found |= self.segments[ref.number].indexes & within
        for run in self.state.memtable.view:
            found.add_range(run.first, run.kept_last + 1)
        return found

    def settle(self, disk: Disk) -> Iterator[Finding]:
        """After the WAL: large entries that only it names, then what is missing."""
        for run in self.state.memtable.view:
            if run.large is not None and self.state.row.counts(run.first):
                yield from self._check_named(disk, run, run.large.number, run.large.offset)
        for number in sorted(self.larges):
            yield from self.larges[number].settle(disk, self.name)
        yield from self._missing(disk)

    def _check_named(self, disk: Disk, run: Run, number: int, place: int) -> Iterator[Finding]:
        large = self.larges.get(number)
        path = f"{self.state.folder}/{files.large_name(number)}"
        if large is None:
            what = f"the file is missing, and entry {run.first} is in it"
            yield Finding("damage", self.name, disk.describe(path), 0, what, COPY_NEEDED)
            return
        frame = large.frame_at(place)
        if frame is None and large.is_known_bad(place):
            return
        named = int.from_bytes(run.checksums, "little")
        if frame is None or (frame.index, frame.data_checksum) != (run.first, named):
            what = f"entry {run.first} is not in its large file at byte {place}"
            at = place - large_format.FRAME_BYTES
            yield Finding("damage", self.name, disk.describe(path), at, what, COPY_NEEDED)

    def _missing(self, disk: Disk) -> Iterator[Finding]:
        state = self.state
        if self.half_installed:
            return
        if self.gap is not None:
            yield self.gap
        need = state.row.live.copy()
        if state.last_index > state.row.snapshot_index:
            need.add_range(state.row.snapshot_index + 1, state.last_index + 1)
        need -= self.held()
        if need:
            what = missing_text(need)
            where = disk.describe(state.folder)
            yield Finding("missing", self.name, where, None, what, COPY_NEEDED)


def check_group(
    disk: Disk, name: str, *, found: list[GroupPieces], meter: Meter
) -> Iterator[Finding]:
    """Check one group's folder; `found` gets what its files hold, if it is known whose."""
    folder = files.group_dir(name)
    try:
        state = GroupState(name, identity.read_identity(disk, name))
        cause = identity.read_quarantine(disk, name, state.incarnation)
    except LowmarkError as error:
        yield finding_of(disk, f"{folder}/{files.IDENTITY}", name, error)
        return
    if cause is not None:
        inside = f"{folder}/{files.QUARANTINE}"
        outside = f"{files.QUARANTINE}/{name}"
        where = disk.describe(inside if disk.stat(inside) is not None else outside)
        hint = "What is intact can be read. Give the group a fresh copy, or delete it here."
        yield Finding("quarantine", name, where, None, cause, hint)
    pieces = GroupPieces(state)
    found.append(pieces)
    yield from _check_snapshots(disk, pieces, meter)
    yield from _check_larges(disk, pieces, meter)
    yield from _check_segments(disk, pieces, meter)
    yield from _check_installed(disk, pieces, meter)
    yield from _check_names(disk, pieces)
    if state.last_index <= state.row.snapshot_index:
        state.last_index, state.last_term = state.row.snapshot_index, state.row.snapshot_term


def _check_snapshots(disk: Disk, pieces: GroupPieces, meter: Meter) -> Iterator[Finding]:
    root = f"{pieces.state.folder}/{files.SNAPSHOTS}"
    whole: list[Snapshot] = []
    for _, _, folder in snapshots.snapshot_folders(disk, pieces.state.folder):
        if whole:
            what = "an older snapshot; the newer one is in force"
            yield left_over(disk, folder, pieces.name, what)
            continue
        yield from check_snapshot(disk, pieces.state, folder, found=whole, meter=meter)
        yield from _unknown(disk, pieces.name, folder, {snapshots.STATE, snapshots.LIVE})
    for name in disk.list(root):
        if name.endswith(files.TEMPORARY):
            what = "a snapshot that was not finished"
            yield left_over(disk, f"{root}/{name}", pieces.name, what)
        elif files.snapshot_of(name) is None:
            yield _not_ours(disk, f"{root}/{name}", pieces.name)
    if whole:
        meta, live = whole[0].meta, whole[0].live
        known = live is not None
        pieces.state.row = LiveRow(
            meta.index, meta.term, live if live is not None else BitMap64(), known
        )
        pieces.state.snapshot = whole[0]


def _check_larges(disk: Disk, pieces: GroupPieces, meter: Meter) -> Iterator[Finding]:
    for name in disk.list(pieces.state.folder):
        number = files.number_of(name, files.LARGE)
        if number is not None:
            large = LargeFile(number, f"{pieces.state.folder}/{name}")
            pieces.larges[number] = large
            yield from check_large(
                disk, pieces.name, large, incarnation=pieces.state.incarnation, meter=meter
            )


def _check_segments(disk: Disk, pieces: GroupPieces, meter: Meter) -> Iterator[Finding]:
    state, sound = pieces.state, list[SegmentFile]()
    for name in disk.list(state.folder):
        path = f"{state.folder}/{name}"
        if files.number_of(name, files.SEGMENT) is None:
            continue
        stat = disk.stat(path)
        if stat is not None and stat.kind == "symlink":
            yield from _check_link(disk, pieces, name)
            continue
        yield from check_segment(
            disk,
            pieces.name,
            path,
            incarnation=state.incarnation,
            larges=pieces.larges,
            found=sound,
            meter=meter,
            may_be_installed=pieces.floor != Floor(),
        )
    for one in sound:
        pieces.segments[one.number] = one
    settle_segments(state, [segments.ref_of(one.number, one.header, one.size) for one in sound])
    if state.segments:
        newest = state.segments[-1]
        state.last_index, state.last_term = newest.last, newest.last_term
        if newest.last < newest.file_last:
            with contextlib.suppress(LowmarkError):  # what is wrong with it was found above
                reader = segments.SegmentReader(
                    disk, state.folder, newest.number, incarnation=state.incarnation
                )
                state.last_term = reader.term_at(newest.last) or 0
                reader.close()


def _check_link(disk: Disk, pieces: GroupPieces, name: str) -> Iterator[Finding]:
    """The name of a merged segment must lead to a segment, perhaps over names merged later."""
    folder = pieces.state.folder
    path, at = f"{folder}/{name}", name
    for _ in range(_LINKS_FOLLOWED_MAX):
        target = disk.read_link(f"{folder}/{at}")
        if files.number_of(target, files.SEGMENT) is None:
            what = f"a link to {target!r}, which is no segment of this group"
            yield Finding("unknown file", pieces.name, disk.describe(path), None, what, _REMOVE)
            return
        stat, at = disk.stat(f"{folder}/{target}"), target
        if stat is None:
            yield left_over(disk, path, pieces.name, f"a link to {target}, which is gone")
            return
        if stat.kind == "file":
            return
    what = "a link that leads in a circle"
    yield Finding("unknown file", pieces.name, disk.describe(path), None, what, _REMOVE)


def _check_installed(disk: Disk, pieces: GroupPieces, meter: Meter) -> Iterator[Finding]:
    """A received snapshot counts, though it still waits to be moved in: its files are checked."""
    folder = f"{pieces.state.folder}/{files.INSTALLED}"
    if disk.stat(folder) is None:
        return
    pieces.half_installed = True
    yield left_over(disk, folder, pieces.name, "a received snapshot that was not yet moved in")
    for name in disk.list(folder):
        if files.number_of(name, files.SEGMENT) is not None:
            yield from check_segment(
                disk,
                pieces.name,
                f"{folder}/{name}",
                incarnation=pieces.state.incarnation,
                larges={},
                found=[],
                meter=meter,
                may_be_installed=True,
            )


_KNOWN = {
    files.IDENTITY,
    files.QUARANTINE,
    files.RUNS,
    files.SNAPSHOTS,
    files.INSTALLED,
}
_REMOVE = "Lowmark does not look at it. Move it away if you do not need it here."


def _check_names(disk: Disk, pieces: GroupPieces) -> Iterator[Finding]:
    folder = pieces.state.folder
    for name in disk.list(folder):
        path, members = f"{folder}/{name}", files.members_of(name)
        segment = files.number_of(name, files.SEGMENT)
        if name in _KNOWN or segment is not None or files.number_of(name, files.LARGE) is not None:
            continue
        if members is not None:
            done = merge_is_finished(disk, folder, members)
            what = "a merge that is written but not in place" if done else "an unfinished merge"
            yield left_over(disk, path, pieces.name, what)
        elif name.endswith((files.TEMPORARY, files.NEW, files.LINK)):
            yield left_over(disk, path, pieces.name, "a file that was not finished")
        elif name == files.INSTALLING:
            yield left_over(disk, path, pieces.name, "a snapshot that was not received whole")
        else:
            yield _not_ours(disk, path, pieces.name)
    yield from _check_runs(disk, pieces.name, f"{folder}/{files.RUNS}")


def _check_runs(disk: Disk, group: str, path: str) -> Iterator[Finding]:
    if disk.stat(path) is None:
        return
    try:
        file = disk.open(path, "read")
        lines = file.read_at(0, file.size()).splitlines()
        file.close()
        for line in lines:
            msgspec.json.decode(line, type=CompactionRun)
    except (LowmarkError, msgspec.MsgspecError, UnicodeDecodeError):
        what = "the record of past compactions can't be read; it is for people only"
        yield left_over(disk, path, group, what)


def _unknown(disk: Disk, group: str, folder: str, known: set[str]) -> Iterator[Finding]:
    for name in disk.list(folder):
        if name not in known:
            yield _not_ours(disk, f"{folder}/{name}", group)


def _not_ours(disk: Disk, path: str, group: str | None) -> Finding:
    return Finding("unknown file", group, disk.describe(path), None, "not a file of ours", _REMOVE)
