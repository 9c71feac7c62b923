"""The keys that say where partitions are and where they go, and what stands in them. Pure.

    partition.assignments.stable.<table>.<n>       {"nodes":[1,2,3],"catalog_version":7}
    partition.assignments.pending.<table>.<n>      the same: where the partition is moving to
    partition.assignments.planned.<table>.<n>      the same: where it moves next
    partition.assignments.change.trigger.revision.<table>.<n>     41, a revision as text
    partition.assignments.pending.lock.<table>.<n>                5, a term as text
    metastore.lineage                                             the same, of the last reset of the
                                                                  metastore that its keys know of

Ids and numbers are decimal and not padded, so the order of keys is not that of numbers. Two sets
are equal if their nodes are: the version of the catalog stands beside them, for those that look
who still needs a version, and takes no part in any comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from lowmark.catalog import TableId
from lowmark.errors import Corrupt
from lowmark.metastore import Entry, RemoveRange
from lowmark.runtime import Buffer

ASSIGNMENTS_PREFIX: Final = b"partition.assignments."
STABLE: Final = "stable"
PENDING: Final = "pending"
PLANNED: Final = "planned"
TRIGGER: Final = "change.trigger.revision"
LOCK: Final = "pending.lock"
KINDS: Final = (STABLE, PENDING, PLANNED, TRIGGER, LOCK)
"""What stands behind the prefix, before the table."""
STABLE_PREFIX: Final = ASSIGNMENTS_PREFIX + b"stable."


class PartitionId(NamedTuple):
    """Which partition."""

    table: TableId
    number: int

    def key(self, kind: str) -> bytes:
        """Where one kind of its assignments stands."""
        return b"%s%s.%d.%d" % (ASSIGNMENTS_PREFIX, kind.encode(), self.table, self.number)


METASTORE: Final = PartitionId(TableId(0), 0)
"""The metastore's group moves by the same keys; no table has this id."""
LINEAGE_KEY: Final = b"metastore.lineage"


class Assignments(msgspec.Struct, frozen=True, omit_defaults=True):
    """The nodes of a partition, by number, in order; and the catalog they were computed against."""

    nodes: tuple[int, ...]
    catalog_version: int
    learners: tuple[int, ...] = ()
    """Nodes that follow without a vote, for good; only the metastore has such."""

    def encode(self) -> bytes:
        """As it stands in the metastore."""
        return msgspec.json.encode(self)


def decode_assignments(value: Buffer) -> Assignments:
    """As it stands in the metastore."""
    try:
        return msgspec.json.decode(value, type=Assignments)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"assignments in the metastore can't be read: {error}") from error


def decode_number(value: Buffer) -> int:
    """As it stands in the metastore."""
    text = bytes(value).decode("ascii", "replace")
    if not (text.isascii() and text.isdigit()):
        raise Corrupt(f"assignments in the metastore can't be read: {text!r} is no number")
    return int(text)


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """What the five keys of a partition hold, and the revisions that wrote them.

    A revision is 0 where the key has no value.
    """

    stable: Assignments | None = None
    pending: Assignments | None = None
    planned: Assignments | None = None
    trigger: int | None = None
    """The revision of the last event that was decided on."""
    lock: int | None = None
    """The term of the leader that puts `pending` in force; none: `pending` may be replaced."""
    revisions: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    """In the order of `KINDS`."""
    as_of: int = 0
    """The revision of the metastore that they were read at; 0: they were heard of one by one."""

    @property
    def pending_revision(self) -> int:
        """The token of the change to `pending`."""
        return self.revisions[1]

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes that should have a copy: stable and pending."""
        sets = (self.stable, self.pending)
        return frozenset(node for one in sets if one is not None for node in one.nodes)

    @property
    def voters(self) -> frozenset[int]:
        """The nodes that may vote in the partition's group, and lead it.

        Those of pending do from some moment on after the lock; before it they only follow.
        """
        if self.lock is None and self.stable is not None:
            return frozenset(self.stable.nodes)
        return self.nodes

    @property
    def heading(self) -> Assignments | None:
        """Where the partition will be when all that is decided is done."""
        return self.planned or self.pending or self.stable

    @property
    def moving(self) -> bool:
        """Whether it is on its way to other nodes."""
        return self.pending is not None

    def with_entry(self, kind: str, entry: Entry | None) -> Keys:
        """With another value of one key; None: the key has none any more."""
        at = KINDS.index(kind)
        value: Assignments | int | None = None
        if entry is not None:
            decode = decode_number if kind in (TRIGGER, LOCK) else decode_assignments
            value = decode(entry.value)
        revisions = list(self.revisions)
        revisions[at] = 0 if entry is None else entry.revision
        name = ("stable", "pending", "planned", "trigger", "lock")[at]
        return msgspec.structs.replace(self, **{name: value}, revisions=tuple(revisions))


NO_KEYS: Final = Keys()


def keys_from(partition: PartitionId, entries: Mapping[bytes, Entry]) -> Keys:
    """The keys of a partition, of those that were read."""
    found = NO_KEYS
    for kind in KINDS:
        entry = entries.get(partition.key(kind))
        if entry is not None:
            found = found.with_entry(kind, entry)
    return found


def stable_key(table: int, number: int) -> bytes:
    """Where the stable nodes of a partition stand."""
    return PartitionId(TableId(table), number).key(STABLE)


def removal_of(table: int) -> tuple[RemoveRange, ...]:
    """Removes all that stands anywhere about a table's partitions."""
    starts = [b"%s%s.%d." % (ASSIGNMENTS_PREFIX, kind.encode(), table) for kind in KINDS]
    return tuple(RemoveRange(start, start[:-1] + b"/") for start in starts)  # `/` follows `.`


def parse_key(key: bytes) -> tuple[str, TableId, int] | None:
    """What a key is of, whose and of which partition; None: it is no key of assignments."""
    if not key.startswith(ASSIGNMENTS_PREFIX):
        return None
    rest = key.removeprefix(ASSIGNMENTS_PREFIX).decode("ascii", "replace")
    kind, _, partition = rest.rpartition(".")
    kind, _, table = kind.rpartition(".")
    if kind not in KINDS or not (_is_number(table) and _is_number(partition)):
        return None
    return kind, TableId(int(table)), int(partition)


def _is_number(text: str) -> bool:
    """Whether a number is written as `PartitionId.key` writes it."""
    return text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")
