"""The page on partitions has every field, tag and limit, and its examples are real."""

from __future__ import annotations

from typing import get_args

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from docs.example_table import (
    APPEND,
    CONTROL,
    KEY,
    PRODUCER,
    ROWS,
    SCHEMA,
    machine,
    rows_of,
)
from docs.pages import FORMATS, blocks, hex_lines, layouts, tables
from lowmark.catalog import Plain, parse_type
from lowmark.catalog.arrow import to_arrow
from lowmark.errors import Corrupt
from lowmark.group import GroupConfig, envelope
from lowmark.table import (
    DIGEST_BYTES,
    Adopted,
    Appended,
    Change,
    CursorUnknown,
    PartitionMachine,
    adopting,
    binding,
    commands,
    decode_rows,
    encode_rows,
    group_name,
    parse_group_name,
    producers,
    producing,
    readers,
    splitting,
    state,
    stored_schema,
)
from lowmark.table import machine as machine_module
from lowmark.table.backlog import _FIELDS
from lowmark.table.binding import Query
from lowmark.table.machine import FORMAT, _Header
from lowmark.table.producers import _Producer
from lowmark.table.readers import Cursor, Lease
from lowmark.table.state import Staged

PAGE = "table.md"
TEXT = (FORMATS / PAGE).read_text()
ARRAYS: dict[str, type[msgspec.Struct]] = {
    "Header": _Header,
    "Adopted": Adopted,
    "Cursor": Cursor,
    "Lease": Lease,
    "Staged": Staged,
    "Query": Query,
    "Producer": _Producer,
}
LIMITED = (adopting, binding, commands, producers, producing, readers, splitting, state)


def shown(name: str) -> bytes:
    [block] = [block for block in blocks(PAGE) if block.info == name]
    return b"".join(data for _, data, _ in hex_lines(block.text))


def rows_under(heading: str, *columns: str) -> list[tuple[str, ...]]:
    [table] = [
        table
        for table in tables(PAGE)
        if table.heading == heading and table.columns[: len(columns)] == columns
    ]
    return list(table.rows)


# -- what the tables say ------------------------------------------------------------------------


def test_the_kinds_of_commands_are_those_of_the_code() -> None:
    said = {row[1]: int(row[0]) for row in rows_under("Commands", "kind", "name")}
    assert said == {name: getattr(commands, name) for name in ("APPEND", "STAGE", "CONTROL")}


def test_the_header_has_the_fields_of_the_code_in_their_order() -> None:
    assert [field.name for field in layouts(PAGE)["Batch"]] == list(commands.Batch._fields)
    # and with what the group puts before it, the message begins at a multiple of 8
    behind = envelope.COMMAND_BYTES + commands.HEADER_BYTES
    assert behind % 8 == 0
    assert f"it has {behind} bytes" in TEXT


def test_the_changes_are_those_of_the_code_and_have_the_columns_that_the_page_says() -> None:
    said = [(int(row[0]), row[1]) for row in rows_under("Rows", "change", "name")]
    assert said == [(change.value, change.name) for change in Change]
    names = {change: stored_schema(SCHEMA, KEY, change).names for change in Change}
    assert names == {
        Change.UPSERT: ["id", "amount"],
        Change.DELETE: ["id"],
        Change.MIXED: ["id", "amount", "_change"],
    }
    assert stored_schema(SCHEMA, KEY, Change.MIXED).field("_change").type == pa.int8()
    assert (int(Change.UPSERT), int(Change.DELETE)) == (0, 1)


def test_every_type_of_a_column_has_the_arrow_type_that_the_page_says() -> None:
    said = {
        row[0].strip("`"): row[1].split(";")[0].strip("`") for row in rows_under("Rows", "type")
    }
    plain = {one.value: str(to_arrow(one)) for one in Plain}
    assert plain.items() <= said.items()
    nested = {name: arrow for name, arrow in said.items() if name not in plain}
    assert set(nested) == {"decimal(p,s)", "list<t>", "map<k, v>", "struct<…>"}
    assert str(to_arrow(parse_type("decimal(9,2)"))) == "decimal128(9, 2)"
    assert str(to_arrow(parse_type("list<int32>"))) == "list<item: int32>"
    assert str(to_arrow(parse_type("map<string, int32>"))) == "map<string, int32>"
    struct = to_arrow(parse_type("struct<a: int64, b: string not null>"))
    assert [struct.field(at).nullable for at in range(2)] == [True, False]


def test_the_page_has_every_control_command_with_its_fields_in_order() -> None:
    kinds = get_args(commands.Control)
    assert [tuple(row[:3]) for row in rows_under("Control commands", "tag", "name", "fields")] == [
        (
            str(of.__struct_config__.tag),
            of.__name__,
            ", ".join(f"`{name}`" for name in of.__struct_fields__),
        )
        for of in kinds
    ]
    assert all(of.__struct_config__.array_like for of in kinds)


def test_the_arrays_on_the_page_are_those_of_the_code() -> None:
    said = {
        table.heading: [(int(row[0]), row[1].strip("`")) for row in table.rows]
        for table in tables(PAGE)
        if table.columns[:3] == ("at", "field", "type")
    }
    assert said == {
        heading: list(enumerate(of.__struct_fields__)) for heading, of in ARRAYS.items()
    }


def test_the_columns_of_the_backlog_are_those_of_the_code() -> None:
    said = [(row[0].strip("`"), int(row[1])) for row in rows_under("Backlog", "column", "size")]
    assert said == [(name, np.dtype(kind).itemsize) for name, kind in _FIELDS]


def test_every_limit_of_the_room_is_on_the_page_with_its_value() -> None:
    said = {row[0].strip("`"): int(row[1]) for row in rows_under("Limits", "limit", "value")}
    assert said == {
        name.removeprefix("_"): value
        for module in LIMITED
        for name, value in vars(module).items()
        if name.endswith(("_MAX", "_KEPT", "WINDOW"))
    }
    assert f"{GroupConfig().command_bytes_max >> 20} MiB by default" in TEXT
    assert f"`digest` has {DIGEST_BYTES} bytes" in TEXT
    assert said["ROW_BYTES_MAX"] + commands.HEADER_BYTES < GroupConfig().command_bytes_max


def test_a_group_is_named_as_the_page_says() -> None:
    assert group_name(3, 0) == "table.3.0"
    assert "`table.3.0`" in TEXT
    assert parse_group_name("table.3.0") == (3, 0)
    assert parse_group_name("metastore") is None


def test_the_versions_and_the_step_of_epochs_are_those_of_the_code() -> None:
    assert (FORMAT, PartitionMachine.newest_version) == (6, 6)
    assert "kind 5) is 6." in TEXT
    assert f"multiple\nof {1 << producing.EPOCH_BITS} above" in TEXT


# -- the examples -------------------------------------------------------------------------------


def test_the_shown_append_is_read_and_written_again_byte_for_byte() -> None:
    # given the bytes on the page
    data = shown("an append")
    # when they are read
    header = commands.decode(data)
    assert isinstance(header, commands.Batch)
    rows = decode_rows(data, stored_schema(SCHEMA, KEY, Change(header.change)))
    # then they are the rows that the page says, and are written again
    assert rows.to_pydict() == ROWS
    assert header.producer == PRODUCER
    again = commands.encode_batch(
        encode_rows(rows), rows=rows.num_rows, schema=1, producer=PRODUCER, epoch=1
    )
    assert again == data == APPEND
    # and every field is where the table has it
    for field in layouts(PAGE)["Batch"]:
        taken = data[field.offset : field.offset + field.size]
        value = getattr(header, field.name)
        assert taken == (
            value if isinstance(value, bytes) else value.to_bytes(field.size, "little")
        )


@pytest.mark.parametrize("change", Change)
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_message_says_itself_how_it_is_compressed(change: Change, compression: str) -> None:
    rows = rows_of(change)
    message = encode_rows(rows, compression)  # type: ignore[arg-type]
    assert message.to_pybytes()[:4] == bytes.fromhex("ffffffff")
    command = commands.encode_batch(message, rows=2, schema=1, change=change)
    assert decode_rows(command, stored_schema(SCHEMA, KEY, change)).equals(rows)


def test_the_shown_control_command_is_read_and_written_again_byte_for_byte() -> None:
    data = shown("a control command")
    assert commands.decode(data) == CONTROL
    assert commands.encode_control(CONTROL) == data


def test_the_shown_snapshot_is_restored_and_written_again_byte_for_byte() -> None:
    # given the bytes on the page
    data = shown("a snapshot of a partition")
    # when a machine is made of them
    made = PartitionMachine()
    made.restore([data], 6)
    # then it is the one that the example is of, and it writes the same again
    assert b"".join(map(bytes, made.snapshot())) == data
    same, live = machine(), made.live_indexes()
    assert live == same.live_indexes() == BitMap64([3, 4, 6, 13])
    assert (made.state.cursors, made.state.leases) == (same.state.cursors, same.state.leases)
    assert (made.state.staged, made.state.finished) == (same.state.staged, same.state.finished)
    assert made.state.ledger == same.state.ledger == made.state.backlog.view.ledger
    assert made.state.horizon == 4
    assert made.state.begins == same.state.begins != ()
    assert made.state.schemas_from == same.state.schemas_from == 1
    assert made.state.staged_since == same.state.staged_since != {}
    assert [*made.state.queries] == [*same.state.queries] != []
    assert made.state.given_up == same.state.given_up != {}
    # and it still knows the answer to a batch that is long gone
    assert made.apply(99, 1, APPEND) == Appended(0, 2, made.state.closed - 14)


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "byte"),
    [(0, 4), (0, 2), (1, 3), (2, 1), (3, 0), (6, 2), (39, 1)],
    ids=["kind", "stage without one", "change", "flags", "no rows", "too many", "append with one"],
)
def test_what_the_page_calls_no_command_changes_nothing_at_all(at: int, byte: int) -> None:
    # given the append on the page, with one byte of its header that says nothing
    data = bytearray(shown("an append"))
    data[at] = byte
    # when it is applied
    made = PartitionMachine()
    outcome = made.apply(1, 1, bytes(data))
    # then it is refused, nothing is live, and the closed time is what it was
    assert isinstance(outcome, Corrupt)
    assert (made.state.backlog.end, len(made.live_indexes())) == (0, 0)
    assert isinstance(made.apply(2, 2, bytes(data[:46])), Corrupt)
    assert made.state.closed == 0


def test_a_command_that_is_refused_changes_the_closed_time() -> None:
    # given a partition without cursors
    made = PartitionMachine()
    # when one of them is to go
    outcome = made.apply(1, 5, commands.encode_control(commands.DeleteCursor("billing")))
    # then that is refused, at its time
    assert isinstance(outcome, CursorUnknown)
    assert made.state.closed == 5


@pytest.mark.parametrize("what", ["cut", "format", "columns", "blocks"])
def test_a_snapshot_that_fails_a_check_of_the_page_is_damage(what: str) -> None:
    data = shown("a snapshot of a partition")
    length = machine_module._LENGTH
    (head,) = length.unpack_from(data)
    bad = {
        "cut": data[:-1],
        "format": data[:7] + b"\x07" + data[8:],
        "columns": data[:8] + b"\x09" + data[9:],
        "blocks": data[: length.size + head],
    }
    with pytest.raises(Corrupt):
        PartitionMachine().restore([bad[what]], 6)


def test_a_field_that_is_not_known_is_passed_over_in_a_snapshot() -> None:
    # given the snapshot on the page, with a field more in its header
    data = shown("a snapshot of a partition")
    length = machine_module._LENGTH
    (head,) = length.unpack_from(data)
    behind = length.size + head
    more = msgspec.msgpack.encode(
        [*msgspec.msgpack.decode(data[length.size : behind]), "from a newer release"]
    )
    # when it is restored
    made = PartitionMachine()
    made.restore([length.pack(len(more)), more, data[behind:]], 6)
    # then all else is there
    assert b"".join(map(bytes, made.snapshot())) == data


def test_a_field_that_is_not_known_is_refused_in_a_command() -> None:
    """Who passes over it would do something else than who knows it."""
    kinds = get_args(commands.Control)
    assert all(of.__struct_config__.forbid_unknown_fields for of in kinds)
    more = msgspec.msgpack.decode(commands.encode_control(CONTROL)[1:])
    data = bytes([commands.CONTROL]) + msgspec.msgpack.encode([*more, "from a newer release"])
    with pytest.raises(Corrupt):
        commands.decode(data)


def test_a_command_from_before_it_had_a_field_is_read() -> None:
    """A delete of a cursor had no token at first."""
    data = bytes([commands.CONTROL]) + msgspec.msgpack.encode([4, "billing"])
    assert commands.decode(data) == commands.DeleteCursor("billing", token=0)
