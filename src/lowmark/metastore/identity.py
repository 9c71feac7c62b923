"""Who this node is, kept in its data directory: its number, its rack, its cluster, whom it knows.

The addresses are those of other nodes when they were last heard of: a node that starts must reach
one of them before it can ask where the others are.

    1. the note is written aside and synced
    2. it is renamed over the old one     a crash before leaves the old one, whole
    3. its folder is synced
"""

from __future__ import annotations

import msgspec

from lowmark.errors import Corrupt, LowmarkError, Unavailable
from lowmark.ids import METASTORE
from lowmark.log import Log, files
from lowmark.log.errors import FolderMissing, NewerFormat
from lowmark.log.files import Note, read_note, write_note
from lowmark.log.identity import ASIDE
from lowmark.log.roster import read_entries
from lowmark.metastore.nodes import ClusterSettings
from lowmark.runtime import Disk

PATH = files.NODE
DUE = "due"
"""The copy belongs to the metastore before its reset: the next start throws it away."""
CATCHING_UP = "catching up"
"""There is a new copy, which does not have all yet: nothing may be built on it."""


class Identity(Note, frozen=True, kw_only=True):
    """What a node knows about itself without asking another one."""

    number: int
    name: str
    cluster: str = ""
    """The id of its cluster; empty until it belongs to one."""
    founding: ClusterSettings | None = None
    """What it settles as the founder of its cluster: it may have crashed before it did."""
    left: bool = False
    """Whether it has left: then it belongs to no cluster any more."""
    peers: dict[str, str] = msgspec.field(default_factory=dict)
    """Addresses by number."""
    renewing: str = ""
    """How far this node is with a new copy of the metastore, since its own was damaged, or the
    metastore was reset without it: `DUE` or `CATCHING_UP`; empty if its copy is right."""
    rack: str = ""
    """What it was given the last time: a start that says nothing of it has the same."""
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    """The same of these."""
    replaces: int = 0
    """The number of the lost node whose place it takes, or took, when it joins (`replacing`)."""
    replaced_by: str = ""
    """Which node has its place, in words, if another one took it: then it has `left`."""
    renewals: int = 0
    """How often in a row its copy was damaged, and given up."""
    renewed_ms: int = 0
    """When that was the last time, by this machine's clock."""


def load_identity(disk: Disk) -> Identity | None:
    """Who this node is; None in a new data directory."""
    return read_note(disk, PATH, Identity) if disk.stat(PATH) is not None else None


def save_identity(disk: Disk, identity: Identity) -> None:
    """Replace what is kept."""
    aside = f"{PATH}~"
    if disk.stat(aside) is not None:
        disk.unlink(aside)
    write_note(disk, aside, identity)
    disk.rename(aside, PATH)
    disk.sync_dir("")


# What is wrong with a data directory whose node can't start from it, told before it tries.
#
# A node needs its note (`node`: which node and which cluster this is) and its copy of the metastore
# (names, columns and settings of all tables, and where their rows are). If one of them is lost or
# damaged, and no other node has a copy, nothing that could be waited for brings it back: the start
# fails at once, by name. Nothing is ever put in its place: a new note would make a stranger of the
# node, and a new metastore would make strangers of all rows that are there, to be swept away.
#
# A copy that can't be read just now (the disk fails, or no file handle is left) is not damaged:
# it may be whole, and the next start finds out.
#
# A node that knows of others starts with a copy in quarantine: they serve, and it says what it
# knows.
#
# The note, and whether there is a copy at all, are looked at before the log is opened: in a
# directory of a release without a roster, a log whose group is gone takes it for deleted, and drops
# what its WAL files have of it.

GROUP = METASTORE
_NAMED_MAX = 5
_LOST = "The metastore has the names, columns and settings of all tables: none can be opened."


class NodeFileMissing(Corrupt):
    """A data directory without the note that says whose it is."""

    def __init__(self, disk: Disk) -> None:
        root = disk.describe("")
        super().__init__(
            f"{disk.describe(PATH)} is missing, but {root} is not empty: {_found(disk)}",
            detail="The file says which node and which cluster the directory belongs to. Without it"
            " the metastore can't be opened, and no table can. No new file was made.",
            hint=_put_back(disk),
        )


class NodeFileDamaged(Corrupt):
    """The note that says whose a data directory is can't be read."""

    def __init__(self, disk: Disk, cause: LowmarkError) -> None:
        super().__init__(
            cause.message,
            detail="The file says which node and which cluster the directory belongs to. Without it"
            " the metastore can't be opened, and no table can. Nothing else is damaged by that.",
            hint=_put_back(disk),
        )


class MetastoreMissing(Corrupt):
    """A node that had a copy of the metastore, and has none."""

    def __init__(self, disk: Disk, *, alone: bool, empty: bool = False) -> None:
        folder, how = disk.describe(files.group_dir(GROUP)), "empty" if empty else "missing"
        super().__init__(
            f"{folder} is {how}: the metastore of this node",
            detail=f"{_LOST} No new metastore was made.",
            hint="Put the folder back, or mount its disk, then start again. If it is lost: "
            + _advice(disk, alone=alone),
        )


class MetastoreDamaged(Corrupt):
    """This node's copy of the metastore is damaged, and there may be no other."""

    def __init__(self, disk: Disk, cause: str, *, alone: bool, newer: bool = False) -> None:
        super().__init__(
            f"the metastore in {disk.describe('')} can't be read: {cause}",
            detail=f"{_LOST} No new metastore was made.",
            hint="Use the release that wrote it, or a later one."
            if newer
            else _advice(disk, alone=alone),
        )
        self.cause = cause


class MetastoreUnreadable(Unavailable):
    """This node's copy of the metastore can't be read just now; it may be whole."""

    def __init__(self, disk: Disk, cause: str) -> None:
        super().__init__(
            f"the metastore in {disk.describe('')} can't be read just now: {cause}",
            detail=f"{_LOST} Nothing shows that it is damaged, and nothing was changed.",
            hint="See to the disk and to the limit of open files (`ulimit -n`), then start again;"
            " the system's log may say more. Put nothing back before that.",
        )
        self.cause = cause


def find_identity(disk: Disk) -> Identity | None:
    """Who the node of a directory is; None in a new one, and only there.

    Raise if that can't be told, or if it had a copy of the metastore and there is none. Call it
    before the log is opened.
    """
    try:
        identity = load_identity(disk)
    except NewerFormat:
        raise
    except Corrupt as damage:
        raise NodeFileDamaged(disk, damage) from damage
    if identity is None and (group_names(disk) or read_entries(disk) or disk.list(files.LEDGERS)):
        raise NodeFileMissing(disk)
    if identity is not None and lost_its_copy(disk, identity):
        raise MetastoreMissing(disk, alone=not identity.peers)
    return identity


def lost_its_copy(disk: Disk, identity: Identity) -> bool:
    groups = group_names(disk)
    if GROUP in read_entries(disk):
        return GROUP not in groups
    if identity.left or disk.stat(f"{files.REJOIN}/{GROUP}") is not None:
        return False  # it was given up on purpose, or is about to be made anew from the others
    return GROUP not in groups and had_a_copy(identity, others=bool(groups))


def had_a_copy(identity: Identity, *, others: bool) -> bool:
    """A founder, or a node that has just joined, may have crashed before its copy was made. One
    that has copies of tables had the metastore before; and a founder had, once it was settled.
    """
    settled = not identity.peers and identity.founding is None
    return bool(identity.cluster) and (others or settled)


def check_metastore(disk: Disk, log: Log, identity: Identity) -> None:
    """Raise if this node can't have its metastore: its copy is lost or damaged, and is the only one
    as far as it knows; or its copy can't even say whose it is, or not just now.
    """
    alone = not identity.peers
    if GROUP in log.unreadable:
        error = log.unreadable[GROUP]
        if isinstance(error, Unavailable):
            raise MetastoreUnreadable(disk, error.message) from error
        if isinstance(error, FolderMissing):
            empty = disk.stat(files.group_dir(GROUP)) is not None
            raise MetastoreMissing(disk, alone=alone, empty=empty) from error
        newer = isinstance(error, NewerFormat)
        raise MetastoreDamaged(disk, error.message, alone=alone, newer=newer) from error
    others = any(one.name != GROUP for one in log.groups()) or bool(log.unreadable)
    copy = next((one for one in log.groups() if one.name == GROUP), None)
    if copy is not None and copy.quarantined is not None:
        if alone:
            # What a start writes down is for good; a file of a newer release is not damage.
            newer = disk.stat(f"{files.group_dir(GROUP)}/{files.QUARANTINE}") is None
            newer = newer and "this release reads" in copy.quarantined
            if not (copy.state.quarantine_lasts or newer):
                raise MetastoreUnreadable(disk, copy.quarantined)
            raise MetastoreDamaged(disk, copy.quarantined, alone=alone, newer=newer)
        return
    if had_a_copy(identity, others=others):
        if copy is None:
            raise MetastoreMissing(disk, alone=alone)
        if not copy.meta:
            raise MetastoreDamaged(disk, no_record(disk), alone=alone)


def no_record(disk: Disk) -> str:
    return f"the record of {disk.describe(files.group_dir(GROUP))} is in no WAL file"


def group_names(disk: Disk) -> list[str]:
    return [name for name in disk.list(files.GROUPS) if not name.startswith(ASIDE)]


def _found(disk: Disk) -> str:
    names = [files.group_dir(name) for name in group_names(disk)]
    if not names and read_entries(disk):
        names.append(files.ROSTER)
    if disk.list(files.LEDGERS):
        names.append(files.LEDGERS)
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"it has {', '.join(names[:_NAMED_MAX])}{more}"


def _what_is_left(disk: Disk) -> str:
    """Where rows are all the same, and how to look at them."""
    root = disk.describe("")
    words = []
    if any(name != GROUP for name in group_names(disk)):
        words.append(
            f"Rows are still in {root}/{files.GROUPS} and {root}/{files.WAL}:"
            f" `lowmark log dump {root}` lists their entries."
        )
    if disk.list(files.LEDGERS):
        words.append(f"Compacted rows are Parquet files below {root}/{files.LEDGERS}.")
    return " ".join(words)


def _put_back(disk: Disk) -> str:
    cure = f"Put `{PATH}` back from any copy of this directory: it hardly ever changes."
    return " ".join(filter(None, (cure, _what_is_left(disk))))


def _advice(disk: Disk, *, alone: bool) -> str:
    root = disk.describe("")
    if alone:
        cure = (
            "Put the whole directory back from a copy that was made while it was closed: its files"
            " belong together."
        )
    else:
        cure = (
            "Other nodes have the metastore, too: have an empty directory take this one's place,"
            " `lowmark node replace NODE --data DIR`."
        )
    keep = f"Keep this one: `lowmark log verify {root}` lists all damage."
    return " ".join(filter(None, (cure, keep, _what_is_left(disk))))
