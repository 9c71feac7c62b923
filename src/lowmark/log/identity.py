"""Who a group is on this node, and whether it is in quarantine: two small files in its folder.

The incarnation is drawn when the group is created. Every file and every WAL record of the group
carries it, so that a group created anew under an old name never takes over old data.

A quarantine must outlive the process, because the WAL file that shows the damage goes. Damage and a
folder that can't be written often come together; so what can't be written there is written into the
node's own folder `quarantine/`, with the incarnation that it speaks of. If that fails, too, the
quarantine is not durable, the caller knows, and the WAL file stays. One that a start finds may not
be durable either, because the sync after it failed in a process that was killed then: so each start
writes it again.
"""

from __future__ import annotations

import logging

from lowmark.errors import LowmarkError
from lowmark.log import files
from lowmark.log.errors import Damaged
from lowmark.log.folders import SharedFolder, discard, remove_folder
from lowmark.log.notes import Note, read_note, read_whole, write_note, write_whole
from lowmark.runtime import Disk

__all__ = [
    "create_folder",
    "delete_folder",
    "read_identity",
    "read_quarantine",
    "sweep_folders",
    "write_quarantine",
]

logger = logging.getLogger(__name__)

# A group's name can't begin with this: it marks folders that are being made or removed.
ASIDE = "~"


class _Identity(Note, frozen=True, kw_only=True):
    name: str
    incarnation: str


class _Quarantine(Note, frozen=True, kw_only=True):
    name: str
    incarnation: str
    cause: str


def create_folder(disk: Disk, name: str, incarnation: bytes) -> None:
    """Make a group's folder aside, whole and synced, then give it its name."""
    aside = f"{files.GROUPS}/{ASIDE}{name}"
    remove_folder(disk, aside)
    disk.make_dir(aside)
    disk.make_dir(f"{aside}/{files.SNAPSHOTS}")
    identity = _Identity(name=name, incarnation=incarnation.hex())
    write_note(disk, f"{aside}/{files.IDENTITY}", identity)
    disk.sync_dir(aside)
    disk.rename(aside, files.group_dir(name))
    disk.sync_dir(files.GROUPS)


def delete_folder(disk: Disk, name: str) -> None:
    """Take a group's folder out of the way in one step, then remove it."""
    aside = f"{files.GROUPS}/{ASIDE}{name}"
    remove_folder(disk, aside)
    disk.rename(files.group_dir(name), aside)
    disk.sync_dir(files.GROUPS)
    # What stays of the rest does no harm: it has the incarnation, and the next start removes it.
    remove_folder(disk, aside)
    discard(disk, f"{files.QUARANTINE}/{name}")


def sweep_folders(disk: Disk) -> None:
    """Remove what an interrupted creation or deletion left."""
    for name in disk.list(files.GROUPS):
        if name.startswith(ASIDE):
            remove_folder(disk, f"{files.GROUPS}/{name}")
    for name in disk.list(files.QUARANTINE):
        if name.startswith(ASIDE) or disk.stat(files.group_dir(name)) is None:
            discard(disk, f"{files.QUARANTINE}/{name}")


def read_identity(disk: Disk, name: str) -> bytes:
    """The incarnation of the group in that folder."""
    path = f"{files.group_dir(name)}/{files.IDENTITY}"
    where = disk.describe(path)
    identity = read_note(disk, path, _Identity)
    try:
        incarnation = bytes.fromhex(identity.incarnation)
    except ValueError as error:
        raise Damaged(where, offset=0, what=f"the incarnation can't be read: {error}") from error
    if identity.name != name:
        raise Damaged(
            where,
            offset=0,
            what=f"this is the folder of group {identity.name}",
            hint="Give the folder its own name back.",
        )
    return incarnation


def read_quarantine(disk: Disk, name: str, incarnation: bytes | None = None) -> str | None:
    """Why the group is in quarantine, if it is, wherever that is written down.

    Without an incarnation, what the node's own folder says of the name counts for any.
    """
    path = f"{files.group_dir(name)}/{files.QUARANTINE}"
    if disk.stat(path) is not None:
        return read_whole(disk, path).decode(errors="replace").strip() or "unknown"
    path = f"{files.QUARANTINE}/{name}"
    if disk.stat(path) is None:
        return None
    try:
        note = read_note(disk, path, _Quarantine)
    except Damaged as damage:
        return damage.message  # nobody can tell any more whether it is over: so it is not
    ours = incarnation is None or note.incarnation == incarnation.hex()
    return note.cause if ours else None


def write_quarantine(
    disk: Disk, name: str, incarnation: bytes, cause: str, *, folder: SharedFolder
) -> None:
    """Remember the quarantine over a restart: in the group's folder, or else in the node's own."""
    try:
        _write_in_folder(disk, folder, cause)
    except LowmarkError as error:
        extra = {"group": name, "reason": error.message}
        logger.warning("a quarantine is written down outside of its group's folder", extra=extra)
        _write_in_node(disk, name, incarnation, cause)


def _write_in_folder(disk: Disk, folder: SharedFolder, cause: str) -> None:
    path, faults = f"{folder.path}/{files.QUARANTINE}", folder.faults
    discard(disk, path + files.TEMPORARY)
    write_whole(disk, path + files.TEMPORARY, cause.encode())
    disk.rename(path + files.TEMPORARY, path)
    folder.sync(disk, since=faults)


def _write_in_node(disk: Disk, name: str, incarnation: bytes, cause: str) -> None:
    folder, path = files.QUARANTINE, f"{files.QUARANTINE}/{name}"
    if disk.stat(folder) is None:
        disk.make_dir(folder)
    disk.sync_dir("")
    aside = f"{folder}/{ASIDE}{name}"
    discard(disk, aside)
    write_note(disk, aside, _Quarantine(name=name, incarnation=incarnation.hex(), cause=cause))
    disk.rename(aside, path)
    disk.sync_dir(folder)
