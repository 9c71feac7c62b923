"""What is wrong with batches that a client has encoded: nothing of them is believed.

The header of each, its table and schema version, its bytes as Arrow, every value of it, and of
every row that it belongs into the partition it was sent to. All of that is done in columns; what it
takes is worked out once for each schema version. The keys of several batches are hashed together: a
message has a batch for each partition, and hashing takes as many steps for a short column as for a
long one. In each step a thread may lose its turn to another client's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from lowmark.backend.errors import RequestRefused, RowMisplaced, TableUnknown
from lowmark.catalog import Catalog, Table, TableId
from lowmark.client.checking import check_values
from lowmark.client.table_writing import written_with
from lowmark.errors import Corrupt, LowmarkError, Rejected
from lowmark.group import COMMAND_BYTES
from lowmark.table import (
    CHANGE,
    BatchRefused,
    Change,
    KeyForm,
    SchemaNotInForce,
    stored_schema,
)
from lowmark.table.commands import HEADER_BYTES, Batch
from lowmark.table.commands import decode as decode_command
from lowmark.table.unpacking import UNPACKED_BYTES_MAX, unpacked_bytes

ROOM_BYTES = COMMAND_BYTES + HEADER_BYTES
_TOGETHER_ROWS: Final = 1 << 14
_TOGETHER_BYTES: Final = 8 << 20
"""Keys are hashed together for this many rows, and of batches of this many bytes."""

Received: TypeAlias = tuple[TableId, int, memoryview]
"""Where a batch is to go, and the command with room in front of it."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How batches of one schema version and kind of change are looked at."""

    table: Table
    stored: pa.Schema
    form: KeyForm | None
    keyless_ok: bool
    required: tuple[str, ...]
    """Columns that must have a value, but for deletes."""
    key: tuple[str, ...]


class Checker:
    """Looks at batches for one database. May be used on any thread."""

    def __init__(self) -> None:
        self._ways: dict[tuple[TableId, int, int], _Way] = {}

    def check(self, catalog: Catalog, batches: Sequence[Received]) -> list[LowmarkError | None]:
        """Why each of a message's batches must not be stored; None: it may be."""
        wrong: list[LowmarkError | None] = [None] * len(batches)
        # Group by group: a batch that is compressed takes far more memory unpacked, and not all of
        # a message are kept so at a time.
        for together in _of_one_way(self._keyed(catalog, batches, wrong)):
            for at, misplaced in _misplaced(together):
                wrong[at] = misplaced
        return wrong

    def _keyed(
        self, catalog: Catalog, batches: Sequence[Received], wrong: list[LowmarkError | None]
    ) -> Iterator[_Keyed]:
        """Those whose places are to be looked at; `wrong` gets why others must not be stored."""
        for at, (table, partition, room) in enumerate(batches):
            try:
                way, rows = self._looked_at(catalog, table, partition, room)
            except LowmarkError as error:
                wrong[at] = error
                continue
            if way.form is not None and way.table.partitions > 1:
                keys = rows.select(way.form.names)
                yield _Keyed(at, way, partition, keys, max(len(room), keys.nbytes))

    def _looked_at(
        self, catalog: Catalog, table: TableId, partition: int, room: memoryview
    ) -> tuple[_Way, pa.RecordBatch]:
        """The rows of a batch, of which only the places may be wrong; else it is refused."""
        described = catalog.table(table)
        if described is None:
            raise TableUnknown(f"with the id {table}", known=())
        if not 0 <= partition < described.partitions:
            raise RequestRefused(
                f"table {described.name} has no partition {partition}",
                hint=f"It has 0 to {described.partitions - 1}.",
            )
        header = _header(described, room)
        way = self._way(described, header)
        rows = _rows(described, way.stored, header, room)
        check_values(rows)
        _check_required(way, Change(header.change), rows)
        _check_nulls(way, rows)
        return way, rows

    def _way(self, table: Table, header: Batch) -> _Way:
        key = (table.id, header.schema, header.change)
        known = self._ways.get(key)
        if known is None or known.table is not table:
            known = self._ways[key] = _new_way(table, header)
        return known


def _header(table: Table, room: memoryview) -> Batch:
    if len(room) <= ROOM_BYTES:
        raise BatchRefused(f"a batch for table {table.name} has no rows in it")
    try:
        header = decode_command(room[COMMAND_BYTES:])
    except Corrupt as error:
        raise BatchRefused(f"a batch for table {table.name} can't be read: {error}") from error
    if not isinstance(header, Batch):
        raise BatchRefused(f"what was sent for table {table.name} is not a batch of rows")
    if not any(header.producer):
        raise BatchRefused(f"a batch for table {table.name} has no producer: it has no number")
    return header


def _new_way(table: Table, header: Batch) -> _Way:
    try:
        schema = written_with(table, header.schema)
    except Rejected as error:
        why = error.detail or error.message
        raise SchemaNotInForce(table.name, version=header.schema, why=why) from error
    change = Change(header.change)
    if change is not Change.UPSERT and not table.key:
        raise BatchRefused(f"table {table.name} has no key: nothing can be deleted from it")
    key_ids = frozenset(table.key)
    return _Way(
        table,
        stored_schema(schema, table.key, change),
        KeyForm.of(table, schema) if table.key else None,
        keyless_ok=change is not Change.DELETE and table.settings.keyless_rows == "keep",
        required=tuple(
            column.name
            for column in schema.columns
            if column.required and column.id not in key_ids and change is not Change.DELETE
        ),
        key=tuple(column.name for column in schema.columns if column.id in key_ids),
    )


def _rows(table: Table, stored: pa.Schema, header: Batch, room: memoryview) -> pa.RecordBatch:
    message = pa.py_buffer(room[ROOM_BYTES:])
    if message.address % 8:
        message = pa.py_buffer(message.to_pybytes())
    try:
        unpacked = unpacked_bytes(memoryview(message))
        if unpacked > UNPACKED_BYTES_MAX:
            raise BatchRefused(
                f"a batch for table {table.name} unpacks to {unpacked:,} bytes",
                detail=f"A batch has at most {UNPACKED_BYTES_MAX:,}. Nothing of it was stored.",
                hint="Send fewer rows in a batch.",
            )
        rows = ipc.read_record_batch(message, stored)
    except (pa.ArrowException, OSError, EOFError, ValueError, MemoryError) as error:
        raise BatchRefused(
            f"a batch for table {table.name} is no Arrow message of its schema: {error}",
            detail="Nothing of it was stored.",
        ) from error
    if rows.num_rows != header.rows:
        raise BatchRefused(
            f"a batch for table {table.name} has {rows.num_rows} rows, and says {header.rows}"
        )
    return rows


def _check_required(way: _Way, change: Change, rows: pa.RecordBatch) -> None:
    upserts: pa.Array | None = None
    if change is Change.MIXED:
        kinds = rows.column(CHANGE)
        known = [int(Change.UPSERT), int(Change.DELETE)]
        if kinds.null_count or not np.isin(kinds.to_numpy(), known).all():
            raise BatchRefused(f"rows for table {way.table.name} are neither upserts nor deletes")
        upserts = pc.equal(kinds, int(Change.UPSERT))
    for name in way.required:
        missing = rows.column(name)
        if not missing.null_count:
            continue
        nulls = pc.is_null(missing)
        if upserts is not None:
            nulls = pc.and_(nulls, upserts)
        if pc.any(nulls).as_py():
            row = pc.index(nulls, True).as_py()
            raise BatchRefused(
                f"column {name} of table {way.table.name} can't be null (row {row})",
                detail="Nothing of the batch was stored.",
            )


def _check_nulls(way: _Way, rows: pa.RecordBatch) -> None:
    """A key is whole; or there is none, where the table keeps such rows."""
    columns = [rows.column(one) for one in way.key]
    if not any(column.null_count for column in columns):
        return
    nulls = [column.is_null().to_numpy(zero_copy_only=False) for column in columns]
    some, whole = np.logical_or.reduce(nulls), np.logical_and.reduce(nulls)
    bad = some & ~whole if way.keyless_ok else some
    if way.keyless_ok and CHANGE in rows.schema.names:
        bad |= whole & (rows.column(CHANGE).to_numpy() == Change.DELETE)
    if bad.any():
        raise BatchRefused(
            f"the key of table {way.table.name} can't be null (row {int(bad.argmax())})",
            detail="Nothing of the batch was stored.",
        )


@dataclass(frozen=True, slots=True)
class _Keyed:
    """A batch whose rows must be of its partition."""

    at: int
    """Its place in the message."""
    way: _Way
    partition: int
    rows: pa.RecordBatch
    bytes: int


def _of_one_way(keyed: Iterable[_Keyed]) -> Iterator[list[_Keyed]]:
    """Those whose keys are hashed together: neighbours of one schema version, not too many."""
    some: list[_Keyed] = []
    rows = size = 0
    for one in keyed:
        rows, size = rows + one.rows.num_rows, size + one.bytes
        full = rows > _TOGETHER_ROWS or size > _TOGETHER_BYTES
        if some and (full or one.way is not some[0].way):
            yield some
            some, rows, size = [], one.rows.num_rows, one.bytes
        some.append(one)
    if some:
        yield some


def _misplaced(together: Sequence[_Keyed]) -> Iterator[tuple[int, RowMisplaced]]:
    """Batches with a row of another partition, by their place in the message."""
    way = together[0].way
    assert way.form is not None
    columns = [
        pa.concat_arrays([one.rows.column(name) for one in together]) for name in way.form.names
    ]
    buckets = way.form.buckets(way.form.array_of(columns), way.table.partitions)
    counts = [one.rows.num_rows for one in together]
    wrong = buckets != np.repeat([one.partition for one in together], counts)
    wrong &= buckets >= 0
    if not wrong.any():
        return
    low = 0
    for one, count in zip(together, counts, strict=True):
        here = wrong[low : low + count]
        if here.any():
            row = int(here.argmax())
            belongs = int(buckets[low + row])
            yield (
                one.at,
                RowMisplaced(way.table.name, partition=one.partition, row=row, belongs=belongs),
            )
        low += count
