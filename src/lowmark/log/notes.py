"""Small files for single facts: one line of JSON, one line with its checksum in hex.

Their JSON carries a version, so that a later release can change it and an older one says so.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from crc32c import crc32c

from lowmark.log.errors import Damaged, check_version
from lowmark.runtime import Disk, FileMissing

VERSION = 1


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What every note has."""

    version: int = VERSION


N = TypeVar("N", bound=Note)


def write_note(disk: Disk, path: str, note: Note) -> None:
    """Write a new note and sync it; its folder is the caller's to sync."""
    body = msgspec.json.encode(note)
    write_whole(disk, path, body + b"\n%08x\n" % crc32c(body))


def read_note(disk: Disk, path: str, kind: type[N]) -> N:
    """Read a note, checked."""
    where = disk.describe(path)
    body, _, rest = read_whole(disk, path).partition(b"\n")
    if rest != b"%08x\n" % crc32c(body):
        raise Damaged(where, offset=0, what="the file fails its checksum")
    try:
        check_version(where, msgspec.json.decode(body, type=Note).version, newest=VERSION)
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(where, offset=0, what=f"the file can't be read: {error}") from error


def write_whole(disk: Disk, path: str, data: bytes) -> None:
    """Write a new file and sync it."""
    file = disk.open(path, "create")
    file.append([data])
    file.datasync()
    file.close()


def read_whole(disk: Disk, path: str) -> bytes:
    """Read a file; a missing one is damage."""
    try:
        file = disk.open(path, "read")
    except FileMissing as missing:
        raise Damaged(disk.describe(path), offset=0, what="the file is missing") from missing
    data = file.read_at(0, file.size())
    file.close()
    return data
