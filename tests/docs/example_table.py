"""What a partition puts into its log and its snapshots, for its page in docs/formats/."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from docs.example_group import Shape
from lowmark.catalog import Column, ColumnId, Plain, TableSchema
from lowmark.table import (
    CHANGE,
    Adopt,
    Adopted,
    Change,
    CreateCursor,
    Finish,
    PartitionMachine,
    TakeLease,
    Trim,
    encode_batch,
    encode_control,
    encode_rows,
    stored_schema,
)
from lowmark.table.backlog import _FIELDS
from lowmark.table.binding import Bound, Query
from lowmark.table.commands import HEADER_BYTES, Abandon, Begin, Bind, KeepSchemas, RenewCursor
from lowmark.table.machine import _Header
from lowmark.table.producers import _Producer
from lowmark.table.readers import Cursor, Lease
from lowmark.table.state import Staged

if TYPE_CHECKING:
    from docs.annotate import _Dump

__all__ = ["APPEND", "CONTROL", "KEY", "PRODUCER", "ROWS", "SCHEMA", "machine", "rows_of"]
__all__ += ["show_table", "table_examples"]

PRODUCER = bytes(range(0xB0, 0xC0))
QUERY = bytes(range(0xA0, 0xB0))
KEY = (ColumnId(1),)
SCHEMA = TableSchema(
    number=1,
    columns=(
        Column(id=ColumnId(1), name="id", type=Plain.STRING, required=True),
        Column(id=ColumnId(2), name="amount", type=Plain.INT32),
    ),
)
ROWS = {"id": ["o-1", "o-2"], "amount": [9, None]}
CONTROL = CreateCursor("billing", 7, "raw", None, earliest=True, max_lag_rows=1_000)
_TIME = 1_735_689_600_000 << 16


def rows_of(change: Change) -> pa.RecordBatch:
    """The rows as a message of that change has them."""
    schema = stored_schema(SCHEMA, KEY, change)
    values = {**ROWS, CHANGE: [Change.UPSERT, Change.DELETE]}
    arrays = [pa.array(values[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


APPEND = encode_batch(
    encode_rows(rows_of(Change.UPSERT)), rows=2, schema=1, producer=PRODUCER, epoch=1, sequence=0
)


def machine() -> PartitionMachine:
    """A state with a cut, a cursor that may expire, a lease, a transaction under way, one
    that is finished, one that was given up, a ledger, a begin minimum, a least schema version, and
    an epoch of a query.
    """
    deletes = encode_rows(rows_of(Change.DELETE))
    commands = [
        APPEND,
        encode_batch(deletes, rows=2, schema=1, change=Change.DELETE),
        encode_batch(deletes, rows=2, schema=1, change=Change.DELETE, transaction=5),
        encode_control(Finish(5, True)),
        encode_batch(deletes, rows=2, schema=1, change=Change.DELETE, transaction=6),
        encode_control(Trim(2, expire=True)),
        encode_control(CONTROL),
        encode_control(TakeLease("reader-1", 9, 4, 60_000, "a test", "compacted")),
        encode_control(Adopt(1, "1.manifest", 4, bytes(range(0xD0, 0xE0)), 2)),
        encode_control(Begin(_TIME)),
        encode_control(KeepSchemas(1)),
        encode_batch(deletes, rows=2, schema=1, change=Change.DELETE, transaction=7),
        encode_control(Bind(QUERY, 3, (7,), 2, plan=(2, 0), keep_ms=3_600_000)),
        encode_control(RenewCursor("billing", 604_800_000)),
        encode_control(Abandon((8,))),
    ]
    made = PartitionMachine()
    made.upgrade(6)
    for index, command in enumerate(commands, start=2):
        made.apply(index, _TIME + index, command)
    return made


def table_examples() -> dict[str, bytes]:
    """What the page shows, by the name in its block."""
    return {
        "an append": APPEND,
        "a control command": encode_control(CONTROL),
        "a snapshot of a partition": b"".join(map(bytes, machine().snapshot())),
    }


def _fields(of: type[msgspec.Struct], **inner: Shape) -> list[Shape]:
    return [inner.get(name, name) for name in of.__struct_fields__]


def show_table(dump: _Dump, name: str) -> None:
    """The lines of an example."""
    match name:
        case "an append":
            dump.fields("Batch")
            assert dump.at == HEADER_BYTES
            _message(dump)
        case "a control command":
            dump.number(1, "kind")
            dump.msgpack(("CreateCursor", ["tag", *_fields(CreateCursor)]))
        case _:
            _snapshot(dump)


def _message(dump: _Dump) -> None:
    dump.remark("Arrow IPC message")
    dump.show(4, "continuation")
    metadata = dump.number(4, "metadata_bytes")
    dump.rest(metadata, "metadata")
    dump.remark("its body")
    dump.rest(dump.left, "buffers")


def _snapshot(dump: _Dump) -> None:
    state = machine().state
    dump.remark("header")
    dump.fields("Block head")
    answer: Shape = ("answer", ["commit", "first", "rows", "time"])
    batches: Shape = ("batches", [("Staged", _fields(Staged))])
    bound: Shape = ("bound", [("Bound", list(Bound._fields))])
    header = _fields(
        _Header,
        ledger=("Adopted", _fields(Adopted)),
        cursors=("cursors", [("Cursor", _fields(Cursor))]),
        leases=("leases", [("Lease", _fields(Lease))]),
        staged=("staged", [("transaction", ["transaction", batches])]),
        finished=("finished", [("transaction", ["transaction", answer])] * 2),
        begins=("begins", [("begun", ["place", "time"])]),
        staged_since=("staged_since", [("transaction", ["transaction", "time"])]),
        queries=("queries", [("Query", _fields(Query, bound=bound))]),
        given_up=("given_up", [("transaction", ["transaction", "time"])]),
    )
    dump.msgpack(("header", header))
    dump.remark("backlog")
    dump.fields("Block head")
    for column, kind in _FIELDS:
        for _ in range(len(state.backlog)):
            dump.number(kind().itemsize, column)
    dump.remark("producers")
    dump.fields("Block head")
    answers: Shape = ("answers", [("answer", ["first", "rows", "time"])])
    producer: Shape = ("Producer", _fields(_Producer, answers=answers))
    dump.msgpack(("producers", [("producer", ["producer", producer])]))
