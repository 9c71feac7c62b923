"""Notes beside WAL files: for whom one still counts, when that is not everybody.

`wal/<number>.kept` says: of WAL file <number>, only the records of these groups count; what it held
of all others is in segments, and perhaps overwritten since. Such a file is out of order: files
after it may be gone. It stays because those groups could not take over what is theirs: their folder
can't be written or read just now, or their quarantine is not durable. A note that names no group
says that the file is spent: if it comes back from an unsynced removal, it is not replayed.
A file that has a note goes only when the note names none; so if a note names groups, and its file
is not there, those groups have lost entries.

A note is written aside, synced, renamed, and `wal/` is synced; so it is there whole or not at all.
Writing it again is a new change of its name: it is durable when the sync after it works, whatever
syncs failed before. The lane `wal` syncs the folder, too, so failed syncs are counted (see
`SharedFolder`).
"""

from __future__ import annotations

import contextlib

import msgspec

from lowmark.errors import LowmarkError
from lowmark.log import files
from lowmark.log.errors import Damaged
from lowmark.log.files import Note, SharedFolder, discard, read_note, write_note
from lowmark.runtime import Disk

Owner = tuple[str, bytes]
"""A group's name and incarnation."""


class _Group(msgspec.Struct, frozen=True):
    name: str
    incarnation: str


class _KeptNote(Note, frozen=True, kw_only=True):
    number: int
    bytes: int
    groups: list[_Group]


class Kept(msgspec.Struct, frozen=True):
    """What a note says."""

    owners: frozenset[Owner]
    """Whose records still count."""
    bytes: int
    """How many bytes of the file count; 0 if the file itself tells."""


def write_kept(disk: Disk, number: int, kept: Kept, folder: SharedFolder) -> None:
    """Make a note durable, in place of the one that is there; `folder` is `wal/`."""
    path, faults = files.kept_path(number), folder.faults
    groups = [_Group(name, incarnation.hex()) for name, incarnation in sorted(kept.owners)]
    discard(disk, path + files.TEMPORARY)
    note = _KeptNote(number=number, bytes=kept.bytes, groups=groups)
    write_note(disk, path + files.TEMPORARY, note)
    disk.rename(path + files.TEMPORARY, path)
    folder.sync(disk, since=faults)


def read_kept(disk: Disk) -> dict[int, Kept]:
    """All notes there are. One that can't be read is raised: it can't be said what its file is for.

    Neither can be done without it: to replay the file for all groups could undo what is newer, and
    to pass over it could lose what is nowhere else.
    """
    found: dict[int, Kept] = {}
    for name in disk.list(files.WAL):
        number = files.number_of(name, files.KEPT)
        if number is None:
            continue
        path = files.kept_path(number)
        note = read_note(disk, path, _KeptNote)
        try:
            owners = frozenset(
                (group.name, bytes.fromhex(group.incarnation)) for group in note.groups
            )
        except ValueError as error:
            what = f"an incarnation can't be read: {error}"
            raise Damaged(disk.describe(path), offset=0, what=what) from error
        if note.number != number:
            what = f"this is the note of WAL file {note.number}"
            raise Damaged(disk.describe(path), offset=0, what=what)
        found[number] = Kept(owners, note.bytes)
    return found


def retire(disk: Disk, number: int, folder: SharedFolder) -> None:
    """Let a spent file and its note go for good, as far as the disk does its part.

    The file may seem to be gone and come back with a crash, if the sync after its removal failed.
    So its name is made again and removed again, with a sync after each: then it is gone. Only then
    does the note go. Until then the note says that the file counts for no group; so what fails here
    costs a file that lies around, and is done again at the next start.
    """
    with contextlib.suppress(LowmarkError):
        path, faults = files.wal_path(number), folder.faults
        if disk.stat(path) is None:
            disk.open(path, "create").close()
        folder.sync(disk, since=faults)
        disk.unlink(path)
        folder.sync(disk, since=faults)
        if disk.stat(path + files.DAMAGED) is None:  # else the note stays: it speaks of that, too
            discard(disk, files.kept_path(number))
