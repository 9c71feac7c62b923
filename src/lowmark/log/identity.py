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

import contextlib
import logging

from lowmark.errors import LowmarkError
from lowmark.log import files
from lowmark.log.errors import Damaged
from lowmark.log.files import (
    Note,
    SharedFolder,
    discard,
    read_note,
    read_whole,
    remove_folder,
    write_note,
    write_whole,
)
from lowmark.runtime import Disk, FileMissing

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


def create_folder(disk: Disk, name: str, incarnation: bytes, *, groups: SharedFolder) -> None:
    """Make a group's folder aside, whole and synced, then give it its name (see `roster`)."""
    aside = f"{files.GROUPS}/{ASIDE}{name}"
    remove_folder(disk, aside)
    disk.make_dir(aside)
    disk.make_dir(f"{aside}/{files.SNAPSHOTS}")
    identity = _Identity(name=name, incarnation=incarnation.hex())
    write_note(disk, f"{aside}/{files.IDENTITY}", identity)
    disk.sync_dir(aside)
    faults = groups.faults
    disk.rename(aside, files.group_dir(name))
    groups.sync(disk, since=faults)


def move_aside(disk: Disk, name: str, *, groups: SharedFolder, again: bool) -> None:
    """Take a group's folder out of the way, if it is there: the first step of removing it.

    `again`: an earlier try may have moved it, and the sync after that failed. A crash would bring
    its name back, so it gets the name again, and loses it again, before anything in it goes.
    """
    aside, folder, faults = f"{files.GROUPS}/{ASIDE}{name}", files.group_dir(name), groups.faults
    if again and disk.stat(folder) is None and disk.stat(aside) is not None:
        disk.rename(aside, folder)
    remove_folder(disk, aside)
    with contextlib.suppress(FileMissing):
        disk.rename(folder, aside)
    groups.sync(disk, since=faults)


def remove_aside(disk: Disk, name: str) -> None:
    """Remove what was moved out of the way; what stays of it, the next start removes."""
    remove_folder(disk, f"{files.GROUPS}/{ASIDE}{name}")
    discard(disk, f"{files.QUARANTINE}/{name}")


def sweep_folders(disk: Disk) -> None:
    """Remove what an interrupted creation or deletion left."""
    for name in disk.list(files.GROUPS):
        if name.startswith(ASIDE):
            remove_folder(disk, f"{files.GROUPS}/{name}")


def sweep_quarantines(disk: Disk, *, known: set[str]) -> None:
    """Remove quarantines of groups that there are no more; `known` groups may be away only."""
    for name in disk.list(files.QUARANTINE):
        gone = name not in known and disk.stat(files.group_dir(name)) is None
        if name.startswith(ASIDE) or gone:
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


def owner_of(disk: Disk, name: str) -> tuple[str, bytes] | None:
    """Whose folder lies under that name: a group, and its incarnation. None: it can't be told."""
    try:
        found = read_note(disk, f"{files.group_dir(name)}/{files.IDENTITY}", _Identity)
        return found.name, bytes.fromhex(found.incarnation)
    except (LowmarkError, ValueError):
        return None


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
