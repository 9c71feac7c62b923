"""Who a group is on this node, and whether it is in quarantine: two small files in its folder.

The incarnation is drawn when the group is created. Every file and every WAL record of the group
carries it, so that a group created anew under an old name never takes over old data.
"""

from __future__ import annotations

from lowmark.log import files
from lowmark.log.errors import Damaged
from lowmark.log.folders import discard, remove_folder
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

# A group's name can't begin with this: it marks folders that are being made or removed.
ASIDE = "~"


class _Identity(Note, frozen=True, kw_only=True):
    name: str
    incarnation: str


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
    remove_folder(disk, aside)


def sweep_folders(disk: Disk) -> None:
    """Remove what an interrupted creation or deletion left."""
    for name in disk.list(files.GROUPS):
        if name.startswith(ASIDE):
            remove_folder(disk, f"{files.GROUPS}/{name}")


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


def read_quarantine(disk: Disk, name: str) -> str | None:
    """Why the group is in quarantine, if it is."""
    path = f"{files.group_dir(name)}/{files.QUARANTINE}"
    if disk.stat(path) is None:
        return None
    return read_whole(disk, path).decode(errors="replace").strip() or "unknown"


def write_quarantine(disk: Disk, name: str, cause: str) -> None:
    """Remember the quarantine over a restart."""
    folder = files.group_dir(name)
    path = f"{folder}/{files.QUARANTINE}"
    if disk.stat(path) is not None:
        return
    discard(disk, path + files.TEMPORARY)
    write_whole(disk, path + files.TEMPORARY, cause.encode())
    disk.rename(path + files.TEMPORARY, path)
    disk.sync_dir(folder)
