"""The pages on messages and entries say what groups send and store, and their examples are real."""

from __future__ import annotations

import re
from dataclasses import fields

import msgspec
import pytest

from docs.example_group import (
    ADD_LEARNER,
    ALONE,
    BOOT,
    COMMAND,
    FOUNDERS,
    ITEMS,
    MESSAGES,
    META,
    NAME,
    RECORDS,
    TIME,
)
from docs.pages import blocks, hex_lines, tables
from lowmark.errors import Corrupt
from lowmark.group import BadFrame, TransportLimits, envelope, rejoin, wire
from lowmark.group.storage import GroupMeta, SnapshotMembers
from lowmark.ids import GROUP_ID_BYTES_MAX
from lowmark.log.files import write_whole
from lowmark.raft import ConfChange, ConfState, EntryKind, HardState, Message, Snapshot
from lowmark.raft.membership import Change, ChangeKind, Transition
from lowmark.runtime.sim import SimDisk


def shown(page: str, name: str) -> bytes:
    """The bytes of an example, read from its page."""
    [block] = [block for block in blocks(page) if block.info == name]
    if block.language == "hex":
        return b"".join(data for _, data, _ in hex_lines(block.text))
    return block.text.encode()


# -- messages -----------------------------------------------------------------------------------

_FIELD = re.compile(r"`(\w+)`(?: (bool|bin|str|array of int|array))?(?: = (\S+))?")
_TYPES: dict[object, str] = {
    int: "",
    bool: "bool",
    bytes: "bin",
    str: "str",
    list[int]: "array of int",
    Snapshot: "array",
}
_DEFAULTS = {"": msgspec.NODEFAULT, "0": 0, "false": False, '""': ""}


def _messages_on_the_page() -> dict[str, tuple[int, list[tuple[str, str, object]]]]:
    found = {}
    for table in tables("messages.md"):
        if table.columns[:3] == ("tag", "message", "fields of its own"):
            for tag, name, own, _ in table.rows:
                parts = [_FIELD.fullmatch(part) for part in own.split(", ")] if own else []
                said = [(p[1], p[2] or "", _DEFAULTS[p[3] or ""]) for p in parts if p]
                assert len(said) == len(parts), own
                found[name] = (int(tag), said)
    return found


def test_the_page_has_every_message_with_its_tag_and_its_fields_in_order() -> None:
    expected = {}
    for name, of in MESSAGES.items():
        common = 4 if issubclass(of, Message) else 2
        own = msgspec.structs.fields(of)[common:]
        said = [(f.encode_name, _TYPES[f.type], f.default) for f in own]
        expected[name] = (of.__struct_config__.tag, said)
    assert _messages_on_the_page() == expected


def test_messages_begin_as_the_page_says() -> None:
    [common] = [
        [row[0].strip("`") for row in table.rows]
        for table in tables("messages.md")
        if table.heading == "Messages of consensus" and table.columns[0] == "field"
    ]
    for of in MESSAGES.values():
        count = 4 if issubclass(of, Message) else 2
        assert list(of.__struct_fields__[:count]) == common[:count]
        assert of.__struct_config__.forbid_unknown_fields is not issubclass(of, Message)


def test_the_limits_of_the_link_are_all_there() -> None:
    [table] = [t for t in tables("messages.md") if t.columns[:2] == ("limit", "default")]
    said = {row[0].strip("`").removeprefix("transport."): int(row[1]) for row in table.rows}
    limits = TransportLimits()
    assert said == {field.name: getattr(limits, field.name) for field in fields(limits)}
    assert GROUP_ID_BYTES_MAX == 64


def test_the_shown_frame_is_read_and_written_again_byte_for_byte() -> None:
    # given the frame on the page
    frame = shown("messages.md", "a frame of messages")
    # when it is read
    boot, items = wire.decode(frame)
    # then it says what the page says, and is written again byte for byte
    assert (boot, items) == (BOOT, ITEMS)
    assert b"".join(wire.encode(boot, items)) == frame


def test_a_frame_with_too_little_or_too_much_in_it_is_refused_whole() -> None:
    frame = shown("messages.md", "a frame of messages")
    for wrong in [*(frame[:size] for size in range(len(frame))), frame + b"\0"]:
        with pytest.raises(BadFrame):
            wire.decode(wrong)


@pytest.mark.parametrize("tag", [7, 12, 99])
def test_a_tag_that_the_page_does_not_have_is_refused(tag: int) -> None:
    head = msgspec.msgpack.encode([wire.FORMAT, BOOT, [[NAME, [tag, 2, 1, 2, 0, []]]]])
    with pytest.raises(BadFrame):
        wire.decode(len(head).to_bytes(4, "little") + head)


def test_another_format_is_refused_by_name() -> None:
    head = msgspec.msgpack.encode([2, BOOT, []])
    with pytest.raises(BadFrame, match="a frame of format 2; this is format 1"):
        wire.decode(len(head).to_bytes(4, "little") + head)


# -- entries and records ------------------------------------------------------------------------

ARRAYS: dict[str, type[msgspec.Struct]] = {
    "Change": ConfChange,
    "Members": ConfState,
    "The group's own record": GroupMeta,
    "A snapshot's members": SnapshotMembers,
}
_ARRAY_TYPES: dict[object, str] = {
    int: "int",
    bool: "bool",
    bytes: "bin",
    Transition: "int",
    tuple[int, ...]: "array of int",
    tuple[Change, ...]: "array",
    tuple[tuple[int, int], ...]: "array",
    ConfState: "array",
    HardState: "array",
}


def test_the_arrays_on_the_page_are_those_of_the_code() -> None:
    said = {
        table.heading: [(int(row[0]), row[1].strip("`"), row[2]) for row in table.rows]
        for table in tables("entries.md")
        if table.columns[:3] == ("at", "field", "type")
    }
    assert said == {
        heading: [
            (at, field.encode_name, _ARRAY_TYPES[field.type])
            for at, field in enumerate(msgspec.structs.fields(of))
        ]
        for heading, of in ARRAYS.items()
    }
    [hard] = [row[3] for t in tables("entries.md") for row in t.rows if row[1] == "`hard`"]
    assert hard.startswith(f"`[{', '.join(HardState.__struct_fields__)}]`")


def test_the_kinds_of_entries_and_changes_are_those_of_the_code() -> None:
    [table] = [t for t in tables("entries.md") if t.columns[:2] == ("kind", "name")]
    said = {row[1]: int(row[0]) for row in table.rows}
    assert said == {name: getattr(envelope, name) for name in said}
    assert sorted(said.values()) == list(range(1, 8))
    assert list(Transition) == [0, 1, 2]
    assert [kind.name for kind in ChangeKind] == [
        "ADD_VOTER",
        "REMOVE",
        "UPDATE",
        "ADD_LEARNER",
        "REPLACE",
    ]


def test_the_shown_entries_are_read_and_written_again_byte_for_byte() -> None:
    kinds = (1, 3, 4, 5, 6, 7)
    entries = [shown("entries.md", f"an entry of kind {kind}") for kind in kinds]
    assert tuple(data[0] for data in entries) == kinds
    command, change, copy, version, founding, reset = entries
    assert envelope.open_command(command) == (TIME, COMMAND)
    assert envelope.wrap_command(TIME, COMMAND) == command
    assert envelope.kind_of(change) is EntryKind.JOINT_CHANGE
    assert ConfChange.decode(change[1:]) == ADD_LEARNER
    assert (envelope.open_command(copy), envelope.old_index_of(copy)) == ((TIME, COMMAND), 7)
    assert envelope.copy_of(30, copy) == envelope.copy_of(30, command)
    assert envelope.version_of(version) == 2
    assert envelope.founders_of(founding) == FOUNDERS
    assert envelope.reset_of(reset) == ALONE
    assert envelope.seal_reset(ALONE) == reset


def test_leaving_a_joint_configuration_is_an_entry_of_one_byte() -> None:
    assert envelope.wrap_change(EntryKind.JOINT_CHANGE, ConfChange().encode()) == b"\x03"


@pytest.mark.parametrize("name", RECORDS)
def test_a_shown_record_is_read_and_written_again_byte_for_byte(name: str) -> None:
    record, data = RECORDS[name], shown("entries.md", name)
    assert type(record).decode(data) == record
    assert record.encode() == data
    # and a value more at its end is passed over
    longer = bytes([data[0] + 1]) + data[1:] + b"\x00"
    assert type(record).decode(longer) == record


def test_a_record_that_can_not_be_read_is_damage() -> None:
    for read in (GroupMeta.decode, SnapshotMembers.decode):
        with pytest.raises(Corrupt):
            read(META.encode()[:-1])


def test_the_shown_note_is_read_and_a_damaged_one_refused() -> None:
    # given a disk with the note on the page
    disk, path = SimDisk(), f"{rejoin.FOLDER}/{NAME}"
    disk.make_dir(rejoin.FOLDER)
    write_whole(disk, path, shown("entries.md", "a note of a lost copy"))
    # then it says which incarnation is lost, and whom to ask
    assert rejoin.lost_copy(disk, NAME) == rejoin.Lost(incarnation=8, ask=(1, 2, 3))
    # and a lower one that is lost later does not take its place
    rejoin.note_lost(disk, NAME, incarnation=3, ask=(2,))
    assert rejoin.lost_copy(disk, NAME) == rejoin.Lost(incarnation=8, ask=(2,))
    # but one of a later lineage does, and none of an earlier one
    later = rejoin.Lost(incarnation=4, ask=(2,), lineage=2_000_003)
    rejoin.note_lost(disk, NAME, incarnation=4, ask=(2,), lineage=2_000_003)
    assert rejoin.lost_copy(disk, NAME) == later
    rejoin.note_lost(disk, NAME, incarnation=9, ask=(2,))
    assert rejoin.lost_copy(disk, NAME) == later
    # but with one bit wrong it is not believed
    disk.flip_bit(path, 100)
    with pytest.raises(Corrupt):
        rejoin.lost_copy(disk, NAME)
