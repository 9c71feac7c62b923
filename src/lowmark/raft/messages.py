"""What goes into the core and what comes out of it: entries, snapshots, messages.

Messages are structs of their own kind, small and fast to make; `term` 0 means that a message has
none (the leader of the moment judges reads and forwarded proposals when they arrive).

Each message carries one `incarnation`: in a request, the one that the sender's configuration has
for the receiver; in a response, the receiver's own (see `membership`). And each carries its
sender's `lineage`, last: a group that was reset by hand is another one to those it left behind.
"""

from __future__ import annotations

from enum import IntEnum
from operator import attrgetter
from typing import TypeAlias

import msgspec

NOBODY = 0
"""No node has this id."""

Buffer: TypeAlias = bytes | bytearray | memoryview

_ENTRY_BYTES = 16
"""What an entry costs on the wire besides its data, about."""


class EntryKind(IntEnum):
    """What an entry is to the core: the application's, or a change of members."""

    NORMAL = 0
    CHANGE = 1
    """One member is added, removed or demoted."""
    JOINT_CHANGE = 2
    """Any number of them, by way of a joint configuration if need be; empty: leave it."""


class Entry(msgspec.Struct, gc=False, array_like=True):
    """One entry of the log. It never changes once it is in the log."""

    index: int
    term: int
    kind: EntryKind
    data: Buffer


_data_of = attrgetter("data")


def payload_bytes(entries: list[Entry]) -> int:
    """How much data the application put into them."""
    return sum(map(len, map(_data_of, entries)))


def entries_bytes(entries: list[Entry]) -> int:
    """How much they take in a message or in memory, about."""
    return sum(map(len, map(_data_of, entries))) + _ENTRY_BYTES * len(entries)


class ConfState(msgspec.Struct, frozen=True, array_like=True):
    """A configuration as it is stored: all lists are sorted."""

    voters: tuple[int, ...] = ()
    voters_outgoing: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    learners_next: tuple[int, ...] = ()
    auto_leave: bool = False
    incarnations: tuple[tuple[int, int], ...] = ()
    """(node, index of the entry that added it), for nodes that an entry added."""
    returning: tuple[int, ...] = ()
    """Voters that lost their copies, were taken out, and shall be voters again."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot covers, and the members at its index; the state itself is not here."""

    index: int
    term: int
    members: ConfState


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """What must be durable before anything that depends on it leaves the node."""

    term: int = 0
    vote: int = NOBODY
    commit: int = 0
    incarnation: int = 0
    lineage: int = 0
    """The term of the reset that this copy's log stems from; 0: the group was never reset."""


class Message(msgspec.Struct, gc=False, array_like=True):
    """What all messages between nodes have."""

    to: int
    sender: int
    term: int
    incarnation: int


def lineage_of(message: Message) -> int:
    """The sender's lineage; every kind of message ends with it, so that a reader may lack it."""
    return message.lineage  # type: ignore[attr-defined, no-any-return]


def set_lineage(message: Message, lineage: int) -> None:
    """Say whose message it is."""
    message.lineage = lineage  # type: ignore[attr-defined]


class Append(Message, tag=1):
    """Entries that follow (index, log_term), and how far the leader has committed."""

    index: int
    log_term: int
    commit: int
    entries: list[Entry]
    lineage: int = 0


class AppendResponse(Message, tag=2):
    """Everything up to `index` is durable here; or refused, with a guess where logs agree."""

    index: int
    reject: bool = False
    hint: int = 0
    hint_term: int = 0
    lineage: int = 0


class Vote(Message, tag=3):
    """Asks for a vote, or (`pre`) whether one would be given."""

    index: int
    log_term: int
    pre: bool
    transfer: bool = False
    """The leader itself asked for this election, so no member need protect it."""
    lineage: int = 0


class VoteResponse(Message, tag=4):
    """A vote, durable; or none, and how far the log is committed that was found to be better."""

    pre: bool
    reject: bool = False
    commit: int = 0
    commit_term: int = 0
    lineage: int = 0


class Heartbeat(Message, tag=5):
    """The leader is there. `context` numbers its rounds of reads."""

    commit: int
    context: int = 0
    lineage: int = 0


class HeartbeatResponse(Message, tag=6):
    """The leader was heard."""

    context: int = 0
    disk_full: bool = False
    """The sender can't write what it is sent, for want of space."""
    lineage: int = 0


class Install(Message, tag=7):
    """The log does not reach back far enough: take this snapshot."""

    snapshot: Snapshot
    lineage: int = 0


class TimeoutNow(Message, tag=8):
    """Start an election at once: leadership is handed over."""

    lineage: int = 0


class TransferLeader(Message, tag=9):
    """A member asks the leader to hand over."""

    transferee: int
    lineage: int = 0


class ReadIndex(Message, tag=10):
    """Asks for an index that covers everything committed by now."""

    context: bytes
    lineage: int = 0


class ReadIndexResponse(Message, tag=11):
    """The index that a read must wait for."""

    index: int
    context: bytes
    lineage: int = 0


class Forward(Message, tag=12):
    """Proposals that a follower passes on."""

    entries: list[Entry]
    lineage: int = 0


class StorageAppended(msgspec.Struct, gc=False):
    """A write is durable; `index` and `log_term` name the end of the log when it was ordered."""

    term: int
    index: int
    log_term: int
    snapshot: Snapshot | None = None


Response: TypeAlias = AppendResponse | VoteResponse | StorageAppended


class StorageAppend(msgspec.Struct, gc=False):
    """An order to make something durable, and what to deliver when it is."""

    entries: list[Entry]
    hard: HardState | None
    snapshot: Snapshot | None
    responses: list[Response]


class StorageApply(msgspec.Struct, gc=False):
    """An order to apply entries."""

    entries: list[Entry]


class StorageApplied(msgspec.Struct, gc=False):
    """Entries were applied."""

    entries: list[Entry]
