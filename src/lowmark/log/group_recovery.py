"""What a group's folder holds at start-up, and the mending of what a crash left in it.

Mending only finishes or undoes steps that are known to be safe to repeat: a whole `installed/` is
moved in, an unfinished `installing/` goes; a finished merge is rolled forward, an unfinished one
goes; temporaries go; dangling links go. Damage is never mended: it is told, and the caller puts
the group into quarantine. What the disk refuses to read or write just now is no damage: it is
raised, and the group stays as it is until a start finds the disk well.
"""

from __future__ import annotations

import contextlib
import logging

import msgspec
from pyroaring import BitMap64

from lowmark.errors import Corrupt, LowmarkError
from lowmark.log import files, identity, segment_format, segments
from lowmark.log.errors import Damaged, NewerFormat
from lowmark.log.files import read_whole, remove_folder
from lowmark.log.install import move_in
from lowmark.log.merge import finish_merge, merge_is_finished
from lowmark.log.roster import Roster
from lowmark.log.segments import SegmentReader, SegmentRef
from lowmark.log.snapshots import (
    Snapshot,
    load_snapshot,
    name_anew,
    remove_others,
    snapshot_folders,
)
from lowmark.log.state import CompactionRun, GroupState, LiveRow
from lowmark.runtime import Disk

logger = logging.getLogger(__name__)


def recover_group(
    disk: Disk, name: str, *, roster: Roster, read_only: bool
) -> tuple[GroupState, LowmarkError | None]:
    """The group as its folder has it, without the WAL; and the damage that was found, if any.

    Raises what keeps anybody from telling: an identity that is damaged, or another one than the
    roster says; a call that the disk fails.
    """
    state = GroupState(name, identity.read_identity(disk, name))
    mistaken = roster.mistaken(name, state.incarnation)
    if mistaken is not None:
        raise mistaken
    state.quarantine = identity.read_quarantine(disk, name, state.incarnation)
    damage: LowmarkError | None = None
    for step in (_mend, _load_snapshot, _load_segments, _load_runs):
        try:
            step(disk, state, read_only=read_only)
        except Corrupt as found:
            damage = damage or found
    state.last_index = max(state.last_index, state.row.snapshot_index)
    if state.last_index == state.row.snapshot_index:
        state.last_term = state.row.snapshot_term
    if state.quarantine is not None:
        state.quarantine_saved = read_only or _save_again(disk, state, state.quarantine)
    return state, damage


def _save_again(disk: Disk, state: GroupState, cause: str) -> bool:
    """Write a quarantine that was found down again; whether that worked.

    The sync after its rename may have failed, in a process that was killed then.
    """
    try:
        folder = state.shared_folder
        identity.write_quarantine(disk, state.name, state.incarnation, cause, folder=folder)
    except LowmarkError as error:
        extra = {"group": state.name, "reason": error.message}
        logger.error("a quarantine could not be written down again", extra=extra)
        return False
    return True


def _mend(disk: Disk, state: GroupState, *, read_only: bool) -> None:
    if read_only:
        return
    folder = state.folder
    names = disk.list(folder)
    remove_folder(disk, f"{folder}/{files.INSTALLING}")
    if files.INSTALLED in names:
        move_in(disk, state.shared_folder, incarnation=state.incarnation)
    for name in names:
        numbers = files.members_of(name)
        if numbers is None:
            continue
        if merge_is_finished(disk, folder, numbers):
            for act in finish_merge(disk, folder, numbers):
                act()
                disk.sync_dir(folder)
        else:
            disk.unlink(f"{folder}/{name}")
    for name in disk.list(folder):
        if name.endswith((files.TEMPORARY, files.NEW, files.LINK)):
            disk.unlink(f"{folder}/{name}")
    # What a killed process renamed may not be durable yet; from here on we rely on it.
    disk.sync_dir(folder)


def _load_snapshot(disk: Disk, state: GroupState, *, read_only: bool) -> None:
    found: Snapshot | None = None
    damage: Corrupt | None = None
    for _, _, folder in snapshot_folders(disk, state.folder):
        try:
            found = load_snapshot(disk, folder, incarnation=state.incarnation)
            break
        except NewerFormat:
            raise
        except Corrupt as error:
            damage = damage or error
    if found is None and damage is not None:
        raise damage
    if damage is not None:
        # Nothing was compacted by the newer one's live set yet, so the older one is whole.
        extra = {"group": state.name, "reason": damage.message}
        logger.warning("an older snapshot stands in for a damaged one", extra=extra)
    root = f"{state.folder}/{files.SNAPSHOTS}"
    if not read_only:
        if found is not None and damage is None and _has_older(disk, state, found.folder):
            name_anew(disk, found.folder)
        if disk.list(root):  # else it has no name to rely on: thousands of groups start sooner
            disk.sync_dir(root)
        keep = found.folder.removeprefix(f"{root}/") if found is not None else ""
        remove_others(disk, state.folder, keep, only_older=False)
    if found is not None:
        state.snapshot = found
        state.row = LiveRow(
            found.meta.index,
            found.meta.term,
            found.live if found.live is not None else BitMap64(),
            known=found.live is not None,
        )


def _has_older(disk: Disk, state: GroupState, newest: str) -> bool:
    """Whether a sound snapshot lies behind the newest one."""
    for _, _, folder in snapshot_folders(disk, state.folder):
        if folder != newest:
            with contextlib.suppress(Corrupt):
                load_snapshot(disk, folder, incarnation=state.incarnation)
                return True
    return False


def _load_segments(disk: Disk, state: GroupState, *, read_only: bool) -> None:
    damage: Corrupt | None = None
    found: list[SegmentRef] = []
    for name in disk.list(state.folder):
        large = files.number_of(name, files.LARGE)
        if large is not None:
            state.next_large = max(state.next_large, large + 1)
            state.large_garbage.add(large)
        number = files.number_of(name, files.SEGMENT)
        if number is None:
            continue
        state.next_number = max(state.next_number, number + 1)
        stat = disk.stat(f"{state.folder}/{name}")
        if stat is not None and stat.kind == "symlink":
            _load_link(disk, state, number, read_only=read_only)
            continue
        try:
            found.append(_load_ref(disk, state, number, stat.size if stat is not None else 0))
        except Corrupt as error:
            damage = damage or error
    settle_segments(state, found)
    if damage is not None:
        raise damage
    if state.segments:
        newest = state.segments[-1]
        state.last_index, state.last_term = newest.last, newest.last_term
        if newest.last < newest.file_last:
            reader = SegmentReader(disk, state.folder, newest.number, incarnation=state.incarnation)
            state.last_term = reader.term_at(newest.last) or 0
            reader.close()


def settle_segments(state: GroupState, found: list[SegmentRef]) -> None:
    """Put segments into write order, and let newer ones and the floor cut older ones.

    By name alone, a segment that was cancelled and should be gone could come back in front of a
    merge that has a lower name.
    """
    for ref in sorted(found, key=lambda ref: ref.order):
        state.garbage += segments.add_newer(state.segments, ref)
        state.next_number = max(state.next_number, ref.order + 1)
    if state.snapshot is not None:
        state.garbage += segments.void_above(state.segments, state.snapshot.floor)
        # The installation may have brought no segment; a new one must still be newer than it.
        state.next_number = max(state.next_number, state.snapshot.floor.segment)


def _load_ref(disk: Disk, state: GroupState, number: int, size: int) -> SegmentRef:
    path = f"{state.folder}/{files.segment_name(number)}"
    file = disk.open(path, "read")
    try:
        where = disk.describe(path)
        head = file.read_at(0, segment_format.HEADER_BYTES)
        header = segment_format.decode_header(where, head, incarnation=state.incarnation)
        if size < header.trailer_at + segment_format.TRAILER_BYTES_MIN:
            raise Damaged(where, offset=size, what="the segment ends too early")
        return segments.ref_of(number, header, size)
    finally:
        file.close()


def _load_link(disk: Disk, state: GroupState, number: int, *, read_only: bool) -> None:
    path = f"{state.folder}/{files.segment_name(number)}"
    target = disk.read_link(path)
    to = files.number_of(target, files.SEGMENT)
    if to is None or disk.stat(f"{state.folder}/{target}") is None:
        if not read_only:
            disk.unlink(path)
        return
    state.links[number] = to


def _load_runs(disk: Disk, state: GroupState, *, read_only: bool) -> None:
    del read_only
    path = f"{state.folder}/{files.RUNS}"
    if disk.stat(path) is None:
        return
    try:
        lines = read_whole(disk, path).splitlines()
        state.runs.extend(msgspec.json.decode(line, type=CompactionRun) for line in lines)
    except (msgspec.MsgspecError, UnicodeDecodeError, LowmarkError):
        state.runs.clear()  # it is for people only, and never synced


def covered(state: GroupState) -> BitMap64:
    """Every index that some piece has in its range."""
    have = BitMap64()
    for ref in state.segments:
        have.add_range(ref.first, ref.last + 1)
    # Most runs follow one another: the map is told of a stretch, not of each of them.
    begin = end = 0
    for run in state.memtable.view:
        if run.first != end:
            have.add_range(begin, end)
            begin = run.first
        end = run.first + run.kept
    have.add_range(begin, end)
    return have


def missing_text(missing: BitMap64) -> str:
    """What is wrong when entries that count are in no file."""
    if len(missing) == 1:
        return f"entry {missing.min()}, which counts, is in no file"
    return f"{len(missing)} entries that count are in no file, the first is {missing.min()}"


def check_coverage(state: GroupState, *, where: str) -> None:
    """Raise if an entry that counts is in no piece: a file went missing behind our back."""
    have = covered(state)
    need = state.row.live.copy()
    if state.last_index > state.row.snapshot_index:
        need.add_range(state.row.snapshot_index + 1, state.last_index + 1)
    missing = need - have
    if missing:
        raise Damaged(
            where,
            offset=0,
            what=missing_text(missing),
        )
