"""What a group puts into its log, its records and its frames, for the pages in docs/formats/."""

from __future__ import annotations

from typing import TypeAlias, get_args

import msgspec

from lowmark.group import envelope, rejoin, wire
from lowmark.group.storage import GroupMeta, SnapshotMembers
from lowmark.log.files import read_whole
from lowmark.raft import (
    Append,
    Change,
    ChangeKind,
    ConfChange,
    ConfState,
    Entry,
    EntryKind,
    HardState,
)
from lowmark.runtime import HybridTime
from lowmark.runtime.sim import SimDisk

__all__ = [
    "ADD_LEARNER",
    "ALONE",
    "BOOT",
    "COMMAND",
    "FOUNDERS",
    "ITEMS",
    "MEMBERS",
    "MESSAGES",
    "META",
    "NAME",
    "RECORDS",
    "SHAPES",
    "TIME",
    "Shape",
    "group_examples",
    "shape_of_head",
]

NAME = "orders"
BOOT = 0x1F2E3D4C5B6A7988
TIME = HybridTime(1_735_689_600_000 << 16 | 3)
COMMAND = b"o-4 new"
FOUNDERS = ConfState(voters=(1, 2, 3))
ADD_LEARNER = ConfChange(changes=(Change(ChangeKind.ADD_LEARNER, 4),))
MEMBERS = ConfState(voters=(1, 2, 3), learners=(4,), incarnations=((4, 8),))
ALONE = ConfState(voters=(2,), incarnations=((2, 9),))
META = GroupMeta(founders=FOUNDERS, hard=HardState(term=2, vote=1, commit=6))
RECORDS: dict[str, GroupMeta | SnapshotMembers] = {
    "a group's own record": META,
    "a snapshot's members": SnapshotMembers(MEMBERS, TIME),
}
ITEMS: list[wire.Routed] = [
    (
        NAME,
        Append(
            to=2,
            sender=1,
            term=2,
            incarnation=0,
            index=6,
            log_term=2,
            commit=6,
            entries=[
                Entry(7, 2, EntryKind.NORMAL, envelope.wrap_command(TIME, COMMAND)),
                Entry(8, 2, EntryKind.JOINT_CHANGE, ADD_LEARNER.encode()),
            ],
        ),
    ),
    ("stock", wire.Rest(to=2, sender=1, term=5, commit=40)),
]

Shape: TypeAlias = "str | tuple[str, list[Shape]]"
"""The name of a value; of an array, also the names of what is in it, unless all have the same."""


def _names(of: type[msgspec.Struct], *nested: tuple[str, list[Shape]]) -> list[Shape]:
    inner = dict(nested)
    return [(name, inner[name]) if name in inner else name for name in of.__struct_fields__]


_CONF = _names(ConfState)
SHAPES: dict[str, Shape] = {
    "an entry of kind 3": ("change", _names(ConfChange, ("changes", [("change", _names(Change))]))),
    "an entry of kind 6": ("founders", _CONF),
    "an entry of kind 7": ("members", _CONF),
    "a group's own record": (
        "record",
        _names(GroupMeta, ("founders", _CONF), ("hard", _names(HardState))),
    ),
    "a snapshot's members": ("record", _names(SnapshotMembers, ("members", _CONF))),
}


_SENT_AS = {
    "_WireAppend": "Append",
    "_WirePiece": "InstallPiece",
    "_WireAsk": "Ask",
    "_WireAnswer": "Answer",
}
MESSAGES: dict[str, type[msgspec.Struct]] = {
    _SENT_AS.get(of.__name__, of.__name__): of for of in get_args(wire._WireItem)
}
"""Every message that is sent, as it is sent."""


def shape_of_head() -> Shape:
    """The head of the frame that is shown."""
    items: list[Shape] = []
    for _, item in ITEMS:
        name = type(item).__name__
        items.append(("item", ["group", (name, ["tag", *_names(MESSAGES[name])])]))
    return "head", ["format", "boot", ("items", items)]


def group_examples() -> dict[str, bytes]:
    """What the pages show, by the name in its block."""
    command = envelope.wrap_command(TIME, COMMAND)
    disk = SimDisk()
    rejoin.note_lost(disk, NAME, incarnation=8, ask=(1, 2, 3))
    return {
        "a frame of messages": b"".join(wire.encode(BOOT, ITEMS)),
        "an entry of kind 1": command,
        "an entry of kind 3": envelope.wrap_change(EntryKind.JOINT_CHANGE, ADD_LEARNER.encode()),
        "an entry of kind 4": envelope.copy_of(7, command),
        "an entry of kind 5": envelope.seal_version(2),
        "an entry of kind 6": envelope.seal_founders(FOUNDERS),
        "an entry of kind 7": envelope.seal_reset(ALONE),
        "a note of a lost copy": read_whole(disk, f"{rejoin.FOLDER}/{NAME}"),
        **{name: record.encode() for name, record in RECORDS.items()},
    }
