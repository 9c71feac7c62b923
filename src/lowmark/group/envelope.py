"""How a group wraps what goes into its log.

The first byte of an entry says what it is; an empty entry is the first of a leader's term.

    1  command   time (8 bytes, little endian), then the command
    2  change    of one member      }  as `raft` encodes it
    3  change    of several         }
    4  copy      of a live entry: its old index (8 bytes), then the old entry as it was
    5  version   of the machine (4 bytes): every member knows it
    6  founding  the first members, whole, so that who joins later need not be told
    7  reset     the only member from here on, whatever the members were (`reset`)
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from lowmark.errors import Corrupt
from lowmark.raft import ConfState, EntryKind, MembershipRefused, membership
from lowmark.runtime import Buffer

COMMAND, CHANGE, JOINT_CHANGE, COPY, VERSION, FOUNDING, RESET = 1, 2, 3, 4, 5, 6, 7

_COMMAND = struct.Struct("<BQ")
COMMAND_BYTES = _COMMAND.size
"""What wrapping adds to a command."""
_COPY = struct.Struct("<BQ")
_VERSION = struct.Struct("<BI")

_CHANGE_BYTES = {EntryKind.CHANGE: b"\x02", EntryKind.JOINT_CHANGE: b"\x03"}


class Command(NamedTuple):
    """A command as it was proposed."""

    time: int
    data: Buffer


def wrap_command(time: int, command: Buffer) -> bytes:
    """A command, stamped."""
    return _COMMAND.pack(COMMAND, time) + command


def stamp_in_place(time: int, room: memoryview) -> memoryview:
    """A command that has `COMMAND_BYTES` of room in front of it, stamped there; not a byte moves.

    Nobody changes it from then on.
    """
    _COMMAND.pack_into(room, 0, COMMAND, time)
    return room.toreadonly()


def wrap_change(kind: EntryKind, data: Buffer) -> bytes:
    """A change of members."""
    return _CHANGE_BYTES[kind] + data


def copy_of(index: int, data: Buffer) -> bytes:
    """A copy of a live entry; a copy of a copy is a copy of the first, with the newer old index."""
    if data[0] == COPY:
        data = memoryview(data)[_COPY.size :]
    return _COPY.pack(COPY, index) + data


def seal_version(version: int) -> bytes:
    """A new version of the machine."""
    return _VERSION.pack(VERSION, version)


def seal_founders(members: ConfState) -> bytes:
    """The first members."""
    return bytes([FOUNDING]) + msgspec.msgpack.encode(members)


def founders_of(data: Buffer) -> ConfState:
    """The first members."""
    return _members_of(data, "founding")


def seal_reset(members: ConfState) -> bytes:
    """The only member from here on."""
    return bytes([RESET]) + msgspec.msgpack.encode(members)


def reset_of(data: Buffer) -> ConfState:
    """The only member from here on."""
    return _members_of(data, "reset")


def _members_of(data: Buffer, what: str) -> ConfState:
    try:
        members = msgspec.msgpack.decode(memoryview(data)[1:], type=ConfState)
        membership.restore(members)
    except (msgspec.MsgspecError, MembershipRefused) as error:
        raise Corrupt(f"the {what} of a group can't be read: {error}") from error
    return members


def kind_of(data: Buffer) -> EntryKind:
    """What an entry is to consensus."""
    if not data or data[0] not in {CHANGE, JOINT_CHANGE}:
        return EntryKind.NORMAL
    return EntryKind.CHANGE if data[0] == CHANGE else EntryKind.JOINT_CHANGE


def open_command(data: Buffer) -> Command:
    """The command in an entry, or in a copy of one."""
    view = memoryview(data)
    if view and view[0] == COPY:
        view = view[_COPY.size :]
    if len(view) < _COMMAND.size or view[0] != COMMAND:
        raise Corrupt("an entry holds no command")
    return Command(_COMMAND.unpack_from(view)[1], view[_COMMAND.size :])


def command_in(data: Buffer) -> memoryview | None:
    """The command that an entry brings; None if it is the group's own, and small.

    Of a copy it is the old command, which takes its space once more.
    """
    view = memoryview(data)
    if view and view[0] == COPY:
        view = view[_COPY.size :]
    return view[_COMMAND.size :] if view and view[0] == COMMAND else None


def old_index_of(data: Buffer) -> int:
    """Which entry a copy is of."""
    if len(data) <= _COPY.size:
        raise Corrupt("an entry holds a copy of nothing")
    return int(_COPY.unpack_from(data)[1])


def version_of(data: Buffer) -> int:
    """Which version of the machine an entry asks for."""
    if len(data) != _VERSION.size:
        raise Corrupt("an entry asks for no version of the machine")
    return int(_VERSION.unpack_from(data)[1])
