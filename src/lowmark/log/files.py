"""Where everything lies in a data directory, by name.

    LOCK                                     held while the directory is open
    wal/<number>.wal                         shared by all groups
    wal/<number>.kept                        for which groups that file still counts
    wal/<number>.wal.damaged                 kept for analysis; what was intact is in segments
    groups/<group>/group                     identity: incarnation and name
    groups/<group>/<number>.segment          segments; name order is write order
    groups/<group>/<number>.large            large entries, one file per WAL file at least
    groups/<group>/snapshots/<index>-<term>/ state, live
    groups/<group>/installing/               a snapshot on its way in; deleted at start
    groups/<group>/installed/                a whole one, not yet moved in; moved in at start
    groups/<group>/quarantine                why this group takes no writes here
    groups/<group>/runs                      the last compactions, for people
    quarantine/<group>                       the same, of a group whose folder can't be written
    roster/<group>@<incarnation>             empty: this node has that group
    roster/~<group>@<incarnation>            empty: this node had it, and deleted it
    rejoin/<group>                           a copy that this node gave up; not the log's own
    node                                     who this node is; not the log's own
    ledgers/                                 what compaction has made of tables; not the log's own
    admin.token                              the first token of the cluster; not the log's own
    admin.token.new                          one that is proposed at the next start; neither

Numbers have sixteen digits, so name order is number order. `.tmp` marks what is being written,
`.compacting` a merge, `.link` and `.new` its temporaries.
"""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TypeVar

import msgspec
from crc32c import crc32c

from lowmark.errors import LowmarkError, invariant
from lowmark.log.errors import Damaged, check_version
from lowmark.runtime import Disk, DiskFailed, FileMissing

# All formats are little-endian and are read and written as flat arrays.
invariant(sys.byteorder == "little", "Lowmark needs a little-endian machine")

LOCK = "LOCK"
WAL = "wal"
GROUPS = "groups"
ROSTER = "roster"
REJOIN = "rejoin"
NODE = "node"
STARTS = "starts"
LEDGERS = "ledgers"
ENDPOINT = "endpoint"
ADMIN_TOKEN = "admin.token"
"""Of the packages above; the log leaves them alone."""
SEGMENT = ".segment"
LARGE = ".large"
COMPACTING = ".compacting"
TEMPORARY = ".tmp"
LINK = ".link"
NEW = ".new"
DAMAGED = ".damaged"
KEPT = ".kept"
INSTALLING = "installing"
INSTALLED = "installed"
RUNS = "runs"
IDENTITY = "group"
QUARANTINE = "quarantine"
SNAPSHOTS = "snapshots"
DIGITS = 16
MARK = "~"
_ENTRY = re.compile(r"([a-z0-9][a-z0-9._-]*)@([0-9a-f]{32})")
_SNAPSHOT = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})")


def wal_path(number: int) -> str:
    """The path of a WAL file."""
    return f"{WAL}/{number:0{DIGITS}d}.wal"


def kept_path(number: int) -> str:
    """The path of the note beside a WAL file."""
    return f"{WAL}/{number:0{DIGITS}d}{KEPT}"


def group_dir(group: str) -> str:
    """The folder of a group."""
    return f"{GROUPS}/{group}"


def entry_path(group: str, incarnation: bytes) -> str:
    """The file that says that this node has a group."""
    return f"{ROSTER}/{group}@{incarnation.hex()}"


def entry_of(name: str) -> tuple[str, bytes] | None:
    """The group and the incarnation that a name in the roster stands for."""
    match = _ENTRY.fullmatch(name)
    return (match[1], bytes.fromhex(match[2])) if match else None


def mark_path(group: str, incarnation: bytes) -> str:
    """The file that says that this node has deleted a group."""
    return f"{ROSTER}/{MARK}{group}@{incarnation.hex()}"


def mark_of(name: str) -> tuple[str, bytes] | None:
    """The group and the incarnation that a name in the roster says were deleted."""
    return entry_of(name.removeprefix(MARK)) if name.startswith(MARK) else None


def segment_name(number: int) -> str:
    """The name of a segment."""
    return f"{number:0{DIGITS}d}{SEGMENT}"


def large_name(number: int) -> str:
    """The name of a large file."""
    return f"{number:0{DIGITS}d}{LARGE}"


def compacting_name(members: list[int]) -> str:
    """The name of a merge while it is being written: all its sources."""
    return "-".join(f"{number:0{DIGITS}d}" for number in members) + COMPACTING


def members_of(name: str) -> list[int] | None:
    """The sources that a `.compacting` name lists."""
    if not name.endswith(COMPACTING):
        return None
    parts = name.removesuffix(COMPACTING).split("-")
    numbers = [number_of(part, "") for part in parts]
    return [n for n in numbers if n is not None] if None not in numbers else None


def number_of(name: str, suffix: str) -> int | None:
    """The number in a name with that suffix, if it is one of ours."""
    stem = name.removesuffix(suffix)
    ours = name.endswith(suffix) and len(stem) == DIGITS and stem.isascii() and stem.isdigit()
    return int(stem) if ours else None


def snapshot_name(index: int, term: int) -> str:
    """The folder name of a snapshot."""
    return f"{index:016x}-{term:016x}"


def snapshot_of(name: str) -> tuple[int, int] | None:
    """Index and term from a snapshot's folder name."""
    match = _SNAPSHOT.fullmatch(name)
    return (int(match[1], 16), int(match[2], 16)) if match else None


def is_log(disk: Disk) -> bool:
    """Whether this looks like a data directory at all."""
    return any(is_folder(disk, folder) for folder in (WAL, GROUPS))


# -- folders, and things that may not be there -----------------------------------------------------


def is_folder(disk: Disk, path: str) -> bool:
    """Whether a name is that of a folder, or of a symlink that leads to one."""
    stat = disk.stat(path)
    if stat is not None and stat.kind == "symlink":
        with contextlib.suppress(LowmarkError):
            stat = disk.stat(f"{path}/.")
    return stat is not None and stat.kind == "folder"


def no_folder_text(disk: Disk, path: str) -> str:
    """What lies where a folder with something in it should: for a sentence, after `is`."""
    stat = disk.stat(path)
    if stat is None:
        return "missing"
    if is_folder(disk, path):
        return "empty"
    if stat.kind == "symlink":
        return f"a symlink that leads to no folder: {disk.read_link(path)}"
    return "a file, and no folder"


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


# -- notes -----------------------------------------------------------------------------------------
#
# Small files for single facts: one line of JSON, one line with its checksum in hex. Their JSON
# carries a version, so that a later release can change it and an older one says so.

NOTE_VERSION = 1


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What every note has."""

    version: int = NOTE_VERSION


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
        check_version(where, msgspec.json.decode(body, type=Note).version, newest=NOTE_VERSION)
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
