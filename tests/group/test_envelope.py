"""What a group puts into its log, and what it makes of entries that no sound leader writes."""

from __future__ import annotations

import msgspec
import pytest

from lowmark.errors import Corrupt
from lowmark.group import envelope
from lowmark.raft import ConfState, EntryKind


def test_a_command_and_a_copy_of_it_say_the_same() -> None:
    entry = envelope.wrap_command(123, b"a command")
    copy = envelope.copy_of(7, entry)
    again = envelope.copy_of(9, copy)
    for data in (entry, copy, again):
        assert envelope.open_command(data) == (123, b"a command")
        assert envelope.kind_of(data) is EntryKind.NORMAL
    assert envelope.old_index_of(copy) == 7
    assert envelope.old_index_of(again) == 9
    assert len(again) == len(copy)
    assert len(entry) == len(b"a command") + envelope.COMMAND_BYTES


def test_founders_and_versions_come_back() -> None:
    members = ConfState(voters=(1, 2), learners=(3,))
    assert envelope.founders_of(envelope.seal_founders(members)) == members
    assert envelope.version_of(envelope.seal_version(70_000)) == 70_000


@pytest.mark.parametrize("kind", [EntryKind.CHANGE, EntryKind.JOINT_CHANGE])
def test_a_change_of_members_is_known_by_its_first_byte(kind: EntryKind) -> None:
    assert envelope.kind_of(envelope.wrap_change(kind, b"")) is kind


def test_the_first_entry_of_a_term_is_empty() -> None:
    assert envelope.kind_of(b"") is EntryKind.NORMAL


TWICE = msgspec.msgpack.encode(ConfState(voters=(1,), learners=(1,)))


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (envelope.open_command, b""),
        (envelope.open_command, b"\x01"),
        (envelope.open_command, b"\x05" + bytes(20)),
        (envelope.open_command, b"\x04" + bytes(8) + b"\x05" + bytes(20)),
        (envelope.old_index_of, b"\x04"),
        (envelope.old_index_of, b"\x04" + bytes(8)),
        (envelope.version_of, b"\x05"),
        (envelope.version_of, b"\x05" + bytes(20)),
        (envelope.founders_of, b"\x06"),
        (envelope.founders_of, b"\x06rubbish"),
        (envelope.founders_of, b"\x06" + TWICE),
    ],
)
def test_an_entry_that_no_sound_leader_writes_is_corrupt_by_name(read: object, data: bytes) -> None:
    with pytest.raises(Corrupt):
        read(data)  # type: ignore[operator]
