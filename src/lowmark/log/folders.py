"""Removing things that may not be there."""

from __future__ import annotations

import contextlib

from lowmark.runtime import Disk, FileMissing

__all__ = ["discard", "remove_folder"]


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
