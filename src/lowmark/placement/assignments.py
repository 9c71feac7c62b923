"""Where a partition should be, and how that is written down. Pure.

Rendezvous hashing: every node has a score for every partition, and the highest scores have it. A
node that comes takes only what it now scores highest for, and one that goes leaves only what it
had; no other partitions move.

    partition.assignments.stable.<table id>.<number>     {"nodes":[1,2,3],"catalog_version":7}

Ids and numbers are decimal and not padded, so the order of keys is not that of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import msgspec

from lowmark.catalog import TableId
from lowmark.errors import Corrupt
from lowmark.metastore import NodeInfo, RemoveRange
from lowmark.runtime import Buffer

ASSIGNMENTS_PREFIX: Final = b"partition.assignments."
KINDS: Final = ("stable", "pending", "planned", "change.trigger.revision", "pending.lock")
"""What may stand behind the prefix, before the table; today only the first is written."""
STABLE_PREFIX: Final = ASSIGNMENTS_PREFIX + b"stable."


class Assignments(msgspec.Struct, frozen=True):
    """The nodes of a partition, by number, in order; and the catalog they were computed against."""

    nodes: tuple[int, ...]
    catalog_version: int

    def encode(self) -> bytes:
        """As it stands in the metastore."""
        return msgspec.json.encode(self)


def decode_assignments(value: Buffer) -> Assignments:
    """As it stands in the metastore."""
    try:
        return msgspec.json.decode(value, type=Assignments)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"assignments in the metastore can't be read: {error}") from error


def stable_key(table: int, number: int) -> bytes:
    """Where the stable nodes of a partition stand."""
    return b"%s%d.%d" % (STABLE_PREFIX, table, number)


def keys_of(table: int) -> tuple[RemoveRange, ...]:
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
    """Whether a number is written as `stable_key` writes it."""
    return text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")


def target(table: int, number: int, nodes: Iterable[NodeInfo], *, replicas: int) -> tuple[int, ...]:
    """The nodes that should have a partition: at most this many of these, fewer if there are fewer.

    The same in every process and in whatever order the nodes are given.
    """
    numbers = {node.number for node in nodes}
    best = sorted(numbers, key=lambda node: (_score(node, table, number), node), reverse=True)
    return tuple(sorted(best[:replicas]))


def _score(node: int, table: int, number: int) -> bytes:
    return blake2b(b"%d.%d.%d" % (node, table, number), digest_size=8).digest()
