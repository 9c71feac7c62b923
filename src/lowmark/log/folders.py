"""Folders that more than one lane syncs, and removing things that may not be there."""

from __future__ import annotations

import contextlib

from lowmark.errors import LowmarkError
from lowmark.runtime import Disk, DiskFailed, FileMissing


class SharedFolder:
    """A folder in which more than one lane changes names, each with a sync of its own.

    A failed sync may have dropped the changes of every lane; a later one works, and proves nothing.
    So failed syncs are counted (`faults`): a lane reads the count before it changes a name, and
    gives it to the sync after it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.faults = 0

    def sync(self, disk: Disk, *, since: int | None = None) -> None:
        """Sync the folder; raises also if another lane's sync has failed since `faults` was so."""
        try:
            disk.sync_dir(self.path)
        except LowmarkError:
            self.faults += 1
            raise
        if since is not None and self.faults != since:
            where = disk.describe(self.path)
            raise DiskFailed(where, call="fsync", reason="another lane's failed")


def discard(disk: Disk, path: str) -> None:
    """Remove a name, if it is there."""
    with contextlib.suppress(FileMissing):
        disk.unlink(path)


def remove_folder(disk: Disk, folder: str) -> None:
    """Remove a folder and all in it, if it is there."""
    if disk.stat(folder) is None:
        return
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        stat = disk.stat(path)
        if stat is not None and stat.kind == "folder":
            remove_folder(disk, path)
        else:
            disk.unlink(path)
    disk.remove_dir(folder)


def same_file(disk: Disk, one: str, other: str) -> bool:
    """Whether two names are of one file."""
    a, b = disk.stat(one), disk.stat(other)
    return a is not None and b is not None and (a.device, a.inode) == (b.device, b.inode)
