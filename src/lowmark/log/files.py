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
    rejoin/<group>                           a copy that this node gave up; not the log's own
    node                                     who this node is; not the log's own
    ledgers/                                 what compaction has made of tables; not the log's own

Numbers have sixteen digits, so name order is number order. `.tmp` marks what is being written,
`.compacting` a merge, `.link` and `.new` its temporaries.
"""

from __future__ import annotations

import re
import sys

from lowmark.errors import invariant
from lowmark.runtime import Disk

# All formats are little-endian and are read and written as flat arrays.
invariant(sys.byteorder == "little", "Lowmark needs a little-endian machine")

LOCK = "LOCK"
WAL = "wal"
GROUPS = "groups"
ROSTER = "roster"
REJOIN = "rejoin"
NODE = "node"
LEDGERS = "ledgers"
"""Of the rooms above; the log leaves them alone."""
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
    return any(
        (stat := disk.stat(folder)) is not None and stat.kind == "folder"
        for folder in (WAL, GROUPS)
    )
