"""A group's log, as the core reads it, and the two small records that a group keeps there besides
entries. Everything here is on the loop.

The group's own record (`GroupMeta`) is what must be durable before a vote or an acknowledgement
leaves: term, vote, incarnation; the commit index rides along. A snapshot carries its members and
the last time that was stamped (`SnapshotMembers`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lowmark.errors import Corrupt
from lowmark.group import envelope
from lowmark.group.config import GroupConfig
from lowmark.log import Entry as LogEntry
from lowmark.log import GroupLog
from lowmark.raft import Config, ConfState, Entry, EntryKind, HardState, RaftNode, Snapshot


class GroupMeta(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The group's own record."""

    founders: ConfState = ConfState()
    """The members that the group was created with here."""
    hard: HardState = HardState()
    rejoin_above: int = -1
    """See `raft.Config.rejoin_above`."""
    ask: tuple[int, ...] = ()
    """Whom to ask to be added again."""
    rejoin_lineage: int = 0
    """See `raft.Config.rejoin_lineage`."""
    reset_at: int = 0
    """The index of the entry that makes this copy the only one; 0 when it is committed. The term of
    that entry is `hard.lineage`, and the node is `hard.vote`. See `reset`."""
    in_doubt: bool = False
    """Whether this copy may lack what its node has promised for it, as any incarnation; see
    `doubts`."""

    def encode(self) -> bytes:
        """As it is stored."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> GroupMeta:
        """As it was stored; a group that never wrote one has an empty one."""
        if not data:
            return GroupMeta()
        try:
            return msgspec.msgpack.decode(data, type=GroupMeta)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"a group's own record can't be read: {error}") from error


class SnapshotMembers(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot says besides the machine's state."""

    members: ConfState
    last_time: int

    def encode(self) -> bytes:
        """As it is stored."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> SnapshotMembers:
        """As it was stored."""
        try:
            return msgspec.msgpack.decode(data, type=SnapshotMembers)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"a snapshot's members can't be read: {error}") from error


def raft_entry(stored: LogEntry) -> Entry:
    """An entry of the log as the core knows it."""
    data = stored.data
    kind = envelope.kind_of(data)
    if kind is not EntryKind.NORMAL:
        data = bytes(memoryview(data)[1:])
    return Entry(stored.index, stored.term, kind, data)


class GroupStorage:
    """What the core may read."""

    def __init__(self, log: GroupLog, meta: GroupMeta) -> None:
        self._log = log
        self._meta = meta
        """As the copy was opened: its founders are the members before any entry; what a snapshot
        says takes precedence. The record may be on its way to the disk still."""
        self.members_now: ConfState | None = None
        """The members at what is applied, when a core is made anew within one life."""
        self.commit_floor = 0
        """What is applied is committed."""

    def new_core(
        self,
        node: int,
        config: GroupConfig,
        *,
        members: ConfState,
        applied: int,
        meta: GroupMeta,
        draw: Callable[[int], int],
    ) -> RaftNode:
        """A core that goes on from what is durable, and from what the machine has applied."""
        self.members_now, self.commit_floor = members, applied
        return RaftNode(
            Config(
                node=node,
                storage=self,
                election_ticks=config.election_ticks,
                heartbeat_ticks=config.heartbeat_ticks,
                draw=draw,
                applied=applied,
                message_bytes_max=config.message_bytes_max,
                uncommitted_bytes_max=config.waiting_bytes_max,
                inflight_max=config.inflight_max,
                inflight_bytes_max=config.inflight_bytes_max,
                rejoin_above=meta.rejoin_above,
                rejoin_lineage=meta.rejoin_lineage,
                in_doubt=meta.in_doubt,
            )
        )

    def initial_state(self) -> tuple[HardState, ConfState]:
        """What was durable, and the members at the snapshot."""
        snapshot = self.snapshot()
        members = self._meta.founders if snapshot is None else snapshot.members
        hard = self.record().hard
        # A commit index that a torn tail cut off is learned again from the leader.
        floor = snapshot.index if snapshot is not None else 0
        commit = max(min(hard.commit, self._log.last_index), floor, self.commit_floor)
        if self.members_now is not None:
            members = self.members_now
        return msgspec.structs.replace(hard, commit=commit), members

    def record(self) -> GroupMeta:
        """The group's own record, durable or, of a reset, on its way to the disk.

        A copy must not fall back behind its reset, not even for the moment until it is durable:
        the WAL keeps the order, so nothing that it says meanwhile leaves before.
        """
        durable = GroupMeta.decode(self._log.meta)
        own, known = self._meta.hard.lineage, durable.hard.lineage
        ahead = own > known or (own == known and durable.reset_at > 0)
        return self._meta if ahead else durable

    def first_index(self) -> int:
        """The first index behind the snapshot."""
        return self._log.first_index

    def last_index(self) -> int:
        """The last index, written or about to be."""
        return self._log.last_index

    def term(self, index: int) -> int | None:
        """The term of an entry of the normal section, or of the snapshot."""
        if index == 0:
            return 0
        if index < self._log.row.snapshot_index:
            return None
        return self._log.term_at(index)

    def entries(self, low: int, high: int, bytes_max: int) -> list[Entry] | None:
        """Entries of the normal section."""
        if low < self._log.first_index:
            return None
        found = self._log.read_range(low, high - 1, bytes_max=bytes_max)
        return [raft_entry(entry) for entry in found]

    def snapshot(self) -> Snapshot | None:
        """The snapshot in force."""
        current = self._log.snapshot
        if current is None or not self._log.row.known:
            return None
        meta = current.meta
        return Snapshot(meta.index, meta.term, SnapshotMembers.decode(meta.members).members)
