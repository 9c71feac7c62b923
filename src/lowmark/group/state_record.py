"""The two small records that a group keeps in its log besides entries.

The group's own record (`GroupMeta`) is what must be durable before a vote or an acknowledgement
leaves: term, vote, incarnation; the commit index rides along. A snapshot carries its members and
the last time that was stamped (`SnapshotMembers`).
"""

from __future__ import annotations

import msgspec

from lowmark.errors import Corrupt
from lowmark.raft import ConfState, HardState


class GroupMeta(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The group's own record."""

    founders: ConfState = ConfState()
    """The members that the group was created with here."""
    hard: HardState = HardState()
    rejoin_above: int = -1
    """See `raft.Config.rejoin_above`."""
    ask: tuple[int, ...] = ()
    """Whom to ask to be added again."""

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
