"""Rows as they stand in the log: one Arrow IPC message a batch, its schema known by its number.

What was stored with an older schema version is given out as a newer one says: columns are found by
their id, widened by a cast, and filled with the default they were added with. Dropped columns are
not given out, and a column that was dropped and added again is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from lowmark.catalog import Column, ColumnId, Table, TableSchema
from lowmark.catalog.arrow import to_arrow
from lowmark.errors import Corrupt, Rejected
from lowmark.runtime import Buffer
from lowmark.table.backlog import View
from lowmark.table.commands import HEADER_BYTES, Change

PARTITION, OFFSET, TIME, CHANGE = "_partition", "_offset", "_time", "_change"
CHANGE_TYPE = pa.dictionary(pa.int8(), pa.string())
SYSTEM_COLUMNS = {
    PARTITION: pa.int32(),
    OFFSET: pa.int64(),
    TIME: pa.int64(),
    CHANGE: CHANGE_TYPE,
}
"""What every row has besides its columns; `_time` is the hybrid time as one integer."""
# From buffers: `pa.array` would import pandas first, where there is one, to ask what a list is.
_WORDS = pa.StringArray.from_buffers(
    2, pa.py_buffer(np.array([0, 6, 12], np.int32)), pa.py_buffer(b"upsertdelete")
)

_MIXED = int(Change.MIXED)
Compression = Literal["none", "lz4", "zstd"]
Mask = npt.NDArray[np.bool_]


@lru_cache(maxsize=1_024)
def stored_schema(schema: TableSchema, key: tuple[ColumnId, ...], change: Change) -> pa.Schema:
    """The Arrow schema of a message: nothing is ever asked of it but types and order.

    Deletes have the key's columns only, in the table's order; batches of both have `_change` last,
    and null where a delete has no value.
    """
    columns = schema.columns
    if change is Change.DELETE:
        columns = tuple(column for column in columns if column.id in key)
    fields = [pa.field(column.name, to_arrow(column.type)) for column in columns]
    if change is Change.MIXED:
        fields.append(pa.field(CHANGE, pa.int8()))
    return pa.schema(fields)


def encode_rows(batch: pa.RecordBatch, compression: Compression = "none") -> pa.Buffer:
    """A batch as an IPC message: only the slice that it is, not what it is a slice of."""
    if compression == "none":
        return batch.serialize()
    # There is no other way to say how: a stream of two messages, of which the second is the batch.
    sink = pa.BufferOutputStream()
    options = ipc.IpcWriteOptions(compression=compression)
    with ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()
    return messages.read_next_message().serialize()


def decode_rows(command: Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a batch as it stands in the log; they stay where they are, if that will do."""
    return decode_message(memoryview(command)[HEADER_BYTES:], schema)


def decode_message(message: Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a message; they stay where they are, if that will do.

    Arrow's kernels may take numbers for aligned, and crash if they are not.
    """
    buffer = pa.py_buffer(message)
    if buffer.address % 8:
        buffer = pa.py_buffer(buffer.to_pybytes())
    try:
        return ipc.read_record_batch(buffer, schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"a batch can't be read: {error}") from error


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a column of the result comes from."""

    field: pa.Field
    at: int | None
    """Its place in the message; None: it is not stored."""
    name: str
    """Its name in that version."""
    cast: bool
    filling: pa.Scalar


@dataclass(frozen=True, slots=True)
class _Reading:
    """How to read messages of one schema version and one kind of change."""

    stored: pa.Schema
    sources: tuple[_Source | None, ...]
    as_stored: bool
    """Whether the result is the message as it is."""
    fills: bool
    """Whether a column shows the default that it was added with."""


def written_with(
    table: Table, version: int, newest: Callable[[], Table] | None = None
) -> TableSchema:
    """The schema version that rows name, as a reader's table has it, or else the `newest` one."""
    written = table.schema_version(version)
    if written is not None:
        return written
    now = table if newest is None else newest()
    written = now.schema_version(version)
    if written is not None:
        return written
    if table.latest.number < version < now.schemas[0].number:
        raise Rejected(
            f"rows of table {table.name} name schema version {version}, which was forgotten"
            " meanwhile",
            detail="No row that can be read needs it any more; this reader has stood for long.",
            hint="Make another reader, from where this one stands.",
        )
    raise Corrupt(
        f"rows of table {table.name} name schema version {version}, which the catalog does not have"
    )


class Shape:
    """The columns that rows are given out with. May be used on any thread.

    `columns` are names of the table's columns and of system columns, in any order; None stands for
    all columns, and with a key for `_change`, too. Where `_change` is not among them, deletes are
    left out: they would look like rows; `with_deletes` says otherwise.

    The columns stay those of `table`, also for rows that are written with a later schema version;
    `newest` gives the table that knows it. What was dropped meanwhile is null.
    """

    def __init__(
        self,
        table: Table,
        columns: Sequence[str] | None = None,
        *,
        newest: Callable[[], Table] | None = None,
        with_deletes: bool | None = None,
    ) -> None:
        self.table = table
        self._newest = newest
        if columns is None:
            columns = [column.name for column in table.columns]
            columns += [CHANGE] if table.key else []
        self.names = tuple(columns)
        self._columns = [_find(table, name) for name in self.names]
        self.schema = pa.schema(
            [
                pa.field(name, SYSTEM_COLUMNS[name])
                if column is None
                else pa.field(name, to_arrow(column.type))
                for name, column in zip(self.names, self._columns, strict=True)
            ]
        )
        self.with_deletes = CHANGE in self.names if with_deletes is None else with_deletes
        self._readings: dict[tuple[int, int], _Reading] = {}
        self._later: Table | None = None
        """The table as it was when rows were found that are newer than `table`."""

    def learn(self, view: View, low: int, high: int) -> None:
        """Find out which columns batches of a view have that are newer than the table. When they
        are read, perhaps much later, the catalog may have forgotten their version.
        """
        high = min(high, view.count)
        if low >= high or self._newest is None:
            return
        known = (self._later or self.table).latest.number
        if int(view.columns.schema[low:high].max()) > known:
            self._later = self._newest()

    def with_more(self, names: tuple[str, ...]) -> Shape:
        """The same rows, with more columns behind these."""
        return self.only((*self.names, *names))

    def only(self, names: tuple[str, ...]) -> Shape:
        """The same rows with other columns: whether deletes are among them stays as it is."""
        return Shape(self.table, names, newest=self._newest, with_deletes=self.with_deletes)

    def read(
        self,
        command: Buffer,
        *,
        version: int,
        change: int,
        partition: int,
        first: int,
        time: int,
        low: int = 0,
        high: int | None = None,
        keep: Mask | None = None,
    ) -> pa.RecordBatch:
        """Rows `low` to `high` of a batch whose first row has offset `first`; or those to keep."""
        reading = self._reading(version, change)
        rows = decode_rows(command, reading.stored)
        if low or (high is not None and high < rows.num_rows):
            high = rows.num_rows if high is None else high
            rows = rows.slice(low, high - low)
        if change == _MIXED and not self.with_deletes and keep is None:
            keep = rows.column(CHANGE).to_numpy() == Change.UPSERT
        offsets = None
        if keep is not None:
            offsets = np.flatnonzero(keep) + (first + low)
            rows = rows.filter(pa.array(keep))
        if reading.as_stored:
            return rows
        count = rows.num_rows
        deletes = None
        if reading.fills and change == _MIXED:  # a delete shows nothing but its key
            deletes = rows.column(CHANGE).to_numpy() == Change.DELETE
        arrays = [
            self._system(name, rows, change, partition, first + low, time, offsets)
            if source is None
            else _column(rows, source, deletes)
            for name, source in zip(self.names, reading.sources, strict=True)
        ]
        if not arrays:
            return pa.record_batch([pa.nulls(count)], names=["_"]).select([])
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def read_at(
        self,
        view: View,
        at: int,
        command: Buffer,
        *,
        partition: int,
        low: int = 0,
        high: int | None = None,
        keep: Mask | None = None,
    ) -> pa.RecordBatch:
        """Rows `low` to `high` of the batch at a position of a view; or those to keep."""
        columns = view.columns
        return self.read(
            command,
            version=int(columns.schema[at]),
            change=int(columns.change[at]),
            partition=partition,
            first=int(columns.first[at]),
            time=int(columns.time[at]),
            low=low,
            high=high,
            keep=keep,
        )

    def stored(self, version: int) -> list[pa.Field | pa.Scalar]:
        """Of each column, what it is in rows of a schema version; or, if it is not there, what they
        show instead. Not for system columns.
        """
        reading = self._reading(version, int(Change.UPSERT))
        return [
            one.filling if one.at is None else reading.stored.field(one.at)
            for one in reading.sources
            if one is not None
        ]

    def needs(self, version: int) -> list[str]:
        """The names, in a schema version, of the columns that `materialize` asks for."""
        reading = self._reading(version, int(Change.UPSERT))
        places = [one.at for one in reading.sources if one is not None and one.at is not None]
        return [reading.stored.field(at).name for at in sorted(set(places))]

    def materialize(
        self,
        rows: pa.RecordBatch,
        *,
        version: int,
        partition: int,
        offsets: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
        deletes: Mask,
    ) -> pa.RecordBatch:
        """Rows that stand elsewhere than in the log, with columns named as a version has them."""
        arrays = []
        sources = self._reading(version, int(Change.UPSERT)).sources
        for name, source in zip(self.names, sources, strict=True):
            if source is not None:
                arrays.append(_column(rows, source, deletes))
            elif name == OFFSET:
                arrays.append(pa.array(offsets))
            elif name == TIME:
                arrays.append(pa.array(times))
            elif name == PARTITION:
                arrays.append(pa.array(np.full(len(offsets), partition, np.int32)))
            else:
                codes = pa.array(deletes.astype(np.int8))
                arrays.append(pa.DictionaryArray.from_arrays(codes, _WORDS))
        if not arrays:
            return pa.record_batch([pa.nulls(len(offsets))], names=["_"]).select([])
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _system(
        self,
        name: str,
        rows: pa.RecordBatch,
        change: int,
        partition: int,
        first: int,
        time: int,
        offsets: npt.NDArray[np.int64] | None,
    ) -> pa.Array:
        count = rows.num_rows
        if name == OFFSET:
            if offsets is None:
                offsets = np.arange(first, first + count, dtype=np.int64)
            return pa.array(offsets)
        if name == TIME:
            return pa.array(np.full(count, time, np.int64))
        if name == PARTITION:
            return pa.array(np.full(count, partition, np.int32))
        codes = (
            rows.column(CHANGE)
            if change == Change.MIXED
            else pa.array(np.full(count, change, np.int8))
        )
        return pa.DictionaryArray.from_arrays(codes, _WORDS)

    def _reading(self, version: int, change: int) -> _Reading:
        reading = self._readings.get((version, change))
        if reading is None:
            reading = self._readings[version, change] = self._new_reading(version, Change(change))
        return reading

    def _new_reading(self, version: int, change: Change) -> _Reading:
        table, newest = self.table, self._newest
        later = self._later
        if later is not None and later.schema_version(version) is not None:
            newest = partial(_itself, later)
        written = written_with(table, version, newest)
        stored = stored_schema(written, table.key, change)
        sources: list[_Source | None] = []
        for column, field in zip(self._columns, self.schema, strict=True):
            sources.append(
                None if column is None else _source(table, written, stored, column, field)
            )
        if change is Change.DELETE:  # it shows nothing but its key, as one in a mixed batch does
            sources = [None if one is None else _without_filling(one) for one in sources]
        as_stored = (
            change is Change.UPSERT
            and len(stored) == len(sources)
            and all(
                source is not None
                and source.at == at
                and not source.cast
                and source.field.name == stored.field(at).name
                for at, source in enumerate(sources)
            )
        )
        fills = any(one is not None and one.filling.is_valid for one in sources)
        return _Reading(stored, tuple(sources), as_stored, fills)


def _itself(table: Table) -> Table:
    return table


def _find(table: Table, name: str) -> Column | None:
    if name in SYSTEM_COLUMNS:
        return None
    column = table.latest.column_named(name)
    if column is None:
        known = ", ".join([*(column.name for column in table.columns), *SYSTEM_COLUMNS])
        raise Rejected(f"table {table.name} has no column {name!r}", hint=f"It has {known}.")
    return column


def _source(
    table: Table, written: TableSchema, stored: pa.Schema, column: Column, field: pa.Field
) -> _Source:
    there = written.column(column.id)
    if there is None:
        was_dropped = written.number > table.latest.number
        filling = None if was_dropped else table.filling(column.id)
        return _Source(field, None, "", cast=False, filling=pa.scalar(filling, field.type))
    at = stored.get_field_index(there.name)
    if at < 0:  # a delete has nothing but its key
        return _Source(field, None, "", cast=False, filling=pa.scalar(None, field.type))
    cast = stored.field(at).type != field.type
    return _Source(field, at, there.name, cast, pa.scalar(None, field.type))


def _without_filling(source: _Source) -> _Source:
    return replace(source, filling=pa.scalar(None, source.field.type))


def _column(rows: pa.RecordBatch, source: _Source, deletes: Mask | None) -> pa.Array:
    """A column as it is given out; with `deletes`, rows have their columns by name."""
    if source.at is None:
        count = rows.num_rows if deletes is None else len(deletes)
        if not source.filling.is_valid:
            return pa.nulls(count, source.field.type)
        filled = pa.repeat(source.filling, count)
        if deletes is None or not deletes.any():
            return filled
        return pc.if_else(pa.array(deletes), pa.scalar(None, filled.type), filled)
    array = rows.column(source.at if deletes is None else source.name)
    if not source.cast:
        return array
    try:
        return array.cast(source.field.type)
    except pa.ArrowInvalid as error:
        raise Rejected(
            f"column {source.field.name} has values that {source.field.type} can't hold: {error}",
            detail="The column was widened after this reader was made.",
            hint="Make another reader, from where this one stands.",
        ) from error
