"""Snapshots of one group: written aside, synced, renamed; then the older one goes.

After each step this is true:
    1. `<name>.tmp/` is being written      the old snapshot is in force; the folder is garbage
    2. its files and it are synced         as before
    3. it is renamed, `snapshots/` synced  the new snapshot is in force; both are valid
    4. the older folder is removed         only the new one is left
Compaction by the new live set starts after 4, so wherever a crash leaves two snapshots, both can
still be read, and the older one may stand in for a newer one that is damaged.

If the sync of 3 fails, the new name may go with a crash, and a later sync proves nothing about it.
So the name is taken back at once, and the snapshot is given up. A process that is killed right
between leaves both snapshots: the next start gives the newer one its name anew, and syncs, before
the older one goes. (Of a first snapshot there is no older one, and a start can't tell.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from pyroaring import BitMap64

from lowmark.errors import Corrupt, LowmarkError
from lowmark.log import files, snapshot_format
from lowmark.log.entries import Entry, own
from lowmark.log.errors import Damaged
from lowmark.log.files import remove_folder
from lowmark.log.snapshot_format import Floor, SnapshotMeta, StateTrailer
from lowmark.runtime import Buffer, Disk, File, FileMissing

_CHUNK_BYTES = 1 << 20
STATE = "state"
LIVE = "live"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that is in force. `live` is None when its file is lost."""

    folder: str
    meta: SnapshotMeta
    live: BitMap64 | None
    floor: Floor = field(default_factory=Floor)
    state_bytes: int = 0


class SnapshotWriter:
    """Writes a snapshot into a folder, in chunks; nothing counts before the folder is renamed."""

    def __init__(self, disk: Disk, folder: str, meta: SnapshotMeta, *, incarnation: bytes) -> None:
        self._disk = disk
        self._incarnation = incarnation
        self.folder = folder
        self._checksum = 0
        self.state_bytes = 0
        disk.make_dir(folder)
        self._file: File = disk.open(f"{folder}/{STATE}", "create")
        self._file.append([snapshot_format.encode_meta(meta, incarnation=incarnation)])

    def write(self, chunk: Buffer) -> None:
        """Add to the state."""
        chunk = own(chunk)
        self._file.append([chunk])
        self._checksum = crc32c(chunk, self._checksum)
        self.state_bytes += len(chunk)

    def finish(self, live: BitMap64, floor: Floor) -> None:
        """Write the end and the live set; make all of it durable."""
        trailer = StateTrailer(self.state_bytes, self._checksum, floor)
        self._file.append([snapshot_format.encode_trailer(trailer)])
        self._file.datasync()
        self._file.close()
        write_live(self._disk, self.folder, live, incarnation=self._incarnation)
        self._disk.sync_dir(self.folder)


def write_live(disk: Disk, folder: str, live: BitMap64, *, incarnation: bytes) -> None:
    """Write a live file and sync it."""
    file = disk.open(f"{folder}/{LIVE}", "create")
    file.append([snapshot_format.encode_live(live, incarnation=incarnation)])
    file.datasync()
    file.close()


def load_snapshot(disk: Disk, folder: str, *, incarnation: bytes | None) -> Snapshot:
    """Check a snapshot whole and read its meta and live set."""
    for _ in read_state(disk, folder):
        pass
    path = f"{folder}/{STATE}"
    file = _open(disk, path)
    where = disk.describe(path)
    meta, state_at = snapshot_format.decode_meta(where, file, incarnation=incarnation)
    trailer = snapshot_format.read_trailer(where, file, state_at)
    file.close()
    if files.snapshot_of(folder.rpartition("/")[2]) != (meta.index, meta.term):
        what = f"this is the snapshot at {meta.index}, term {meta.term}, under another name"
        raise Damaged(where, offset=0, what=what)
    live = load_live(disk, folder, incarnation=incarnation)
    if live and live.max() > meta.index:
        live = None  # it belongs to another snapshot
    return Snapshot(folder, meta, live, trailer.floor, trailer.length)


def load_live(disk: Disk, folder: str, *, incarnation: bytes | None) -> BitMap64 | None:
    """The live set beside a state, or None when it is damaged or missing: it can be rebuilt."""
    path = f"{folder}/{LIVE}"
    try:
        file = _open(disk, path)
        data = file.map()
        file.close()
        return snapshot_format.decode_live(disk.describe(path), data, incarnation=incarnation)
    except Corrupt:
        return None


def read_state(disk: Disk, folder: str, *, offset: int = 0) -> Iterator[bytes]:
    """The state in chunks from `offset` on. Read from the start, it is checked to the end."""
    path = f"{folder}/{STATE}"
    where = disk.describe(path)
    file = _open(disk, path)
    _, state_at = snapshot_format.decode_meta(where, file)
    trailer = snapshot_format.read_trailer(where, file, state_at)
    checksum, at = 0, offset
    while at < trailer.length:
        chunk = file.read_at(state_at + at, min(_CHUNK_BYTES, trailer.length - at))
        if not chunk:
            raise Damaged(where, offset=state_at + at, what="the state ends too early")
        checksum = crc32c(chunk, checksum)
        at += len(chunk)
        yield chunk
    file.close()
    if offset == 0 and checksum != trailer.checksum:
        raise Damaged(where, offset=state_at, what="the state fails its checksum")


def _open(disk: Disk, path: str) -> File:
    try:
        return disk.open(path, "read")
    except FileMissing as missing:
        raise Damaged(disk.describe(path), offset=0, what="the file is missing") from missing


def aside(group_folder: str, meta: SnapshotMeta) -> str:
    """Where a snapshot is written before it is in force."""
    name = files.snapshot_name(meta.index, meta.term)
    return f"{group_folder}/{files.SNAPSHOTS}/{name}{files.TEMPORARY}"


def publish_snapshot(disk: Disk, group_folder: str, meta: SnapshotMeta) -> None:
    """Give a finished `.tmp` folder its name; from here on it is in force. Then older ones go."""
    root = f"{group_folder}/{files.SNAPSHOTS}"
    name = files.snapshot_name(meta.index, meta.term)
    # An earlier try may have been renamed but not synced; nobody relies on it.
    remove_folder(disk, f"{root}/{name}")
    disk.rename(f"{root}/{name}{files.TEMPORARY}", f"{root}/{name}")
    try:
        disk.sync_dir(root)
    except LowmarkError:
        with contextlib.suppress(LowmarkError):
            disk.rename(f"{root}/{name}", f"{root}/{name}{files.TEMPORARY}")
        raise
    remove_others(disk, group_folder, name, only_older=True)


def name_anew(disk: Disk, folder: str) -> None:
    """Make a snapshot's name a new one, which a sync makes durable whatever failed before.

    A crash in between leaves it without its name, so an older one has to be there.
    """
    remove_folder(disk, folder + files.TEMPORARY)
    disk.rename(folder, folder + files.TEMPORARY)
    disk.rename(folder + files.TEMPORARY, folder)


def remove_others(disk: Disk, group_folder: str, name: str, *, only_older: bool) -> None:
    """Remove every snapshot but this one; or only older ones, because a newer one is in force."""
    root = f"{group_folder}/{files.SNAPSHOTS}"
    others = [other for other in disk.list(root) if other != name and _is_ours(disk, root, other)]
    if only_older:
        others = [other for other in others if other < name]  # names sort as (index, term) do
    for other in others:
        remove_folder(disk, f"{root}/{other}")
    if others:
        disk.sync_dir(root)


def _is_ours(disk: Disk, root: str, name: str) -> bool:
    """Whether this is a snapshot, finished or not; anything else is left alone."""
    stat = disk.stat(f"{root}/{name}")
    named = files.snapshot_of(name.removesuffix(files.TEMPORARY)) is not None
    return named and stat is not None and stat.kind == "folder"


def snapshot_folders(disk: Disk, group_folder: str) -> list[tuple[int, int, str]]:
    """The snapshots of a group as (index, term, folder), newest first."""
    root = f"{group_folder}/{files.SNAPSHOTS}"
    found = [(files.snapshot_of(name), f"{root}/{name}") for name in disk.list(root)]
    return sorted(((of[0], of[1], path) for of, path in found if of is not None), reverse=True)


# -- sending ---------------------------------------------------------------------------------------


def needed_by(live: BitMap64, last_applied: int) -> BitMap64:
    """The live indexes that a receiver lacks.

    Up to what it has applied, its own entries are the same as ours; above that they may be stale,
    so it gets all of them.
    """
    needed = live.copy()
    needed.remove_range(0, last_applied + 1)
    return needed


class StateSum(NamedTuple):
    """What the receiver must have got of the state."""

    length: int
    checksum: int


class SnapshotSender:
    """Reads one snapshot out, in order, in pieces of any size: first live entries that the receiver
    lacks, then the state.

    While it lives, the sender holds the entries it still has to send: a newer snapshot may make
    them dead, but compaction leaves them where they are until the sender is closed. The state file
    stays open, so it can be read to its end even when a newer snapshot has replaced it.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        snapshot: Snapshot,
        needed: BitMap64,
        last_applied: int,
        read: Callable[[list[int], int], list[Entry]],
        on_close: Callable[[], None],
    ) -> None:
        path = f"{snapshot.folder}/{STATE}"
        self._file = disk.open(path, "read")
        self.meta: SnapshotMeta = snapshot.meta
        _, self._state_at = snapshot_format.decode_meta(disk.describe(path), self._file)
        trailer = snapshot_format.read_trailer(disk.describe(path), self._file, self._state_at)
        self.state_sum = StateSum(trailer.length, trailer.checksum)
        self.state_bytes = trailer.length
        self.needed = needed
        self._order = np.frombuffer(needed.to_array(), np.uint64)
        self._sent = 0
        self._likely = 16
        self._previous = last_applied
        self._read = read
        self._on_close = on_close

    def entries(self, count_max: int = 256, bytes_max: int = 1 << 20) -> tuple[int, list[Entry]]:
        """The next live entries, and the index before them in the sequence; empty at the end.

        At least one comes, however large; after it no more than what `bytes_max` has room for.
        """
        # Only some more than fitted the last time: those that don't fit are looked up in vain.
        count = min(count_max, self._likely)
        indexes = self._order[self._sent : self._sent + count].tolist()
        previous, found = self._previous, self._read(indexes, bytes_max) if indexes else []
        self._sent += len(found)
        self._likely = 2 * len(found) + 1
        if found:
            self._previous = found[-1].index
        return previous, found

    def go_on_after(self, previous: int) -> None:
        """Go on after an index that the receiver has got already (its installer's `previous`)."""
        self._sent = int(np.searchsorted(self._order, np.uint64(previous), "right"))
        self._previous = previous

    def state(self, offset: int, length: int) -> bytes:
        """A piece of the state; empty at its end."""
        return self._file.read_at(self._state_at + offset, min(length, self.state_bytes - offset))

    def close(self) -> None:
        """Let go of everything that was held."""
        self._file.close()
        self._on_close()
