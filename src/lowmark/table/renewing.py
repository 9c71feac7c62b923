"""Rows that were encoded with a schema version which is not taken any more, encoded with the newest
one: as they would have been read, had they been stored before it was forgotten.

Columns are found by their id. One that was added since shows the default that it was added with;
one that was dropped is left out; one that was widened is cast. Where a row belongs does not change:
the types of key columns are for good. Deletes have nothing but their key, so their bytes stay as
they are.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from lowmark.catalog import Table, TableSchema
from lowmark.catalog.arrow import to_arrow
from lowmark.table.batches import CHANGE, decode_message, stored_schema
from lowmark.table.commands import Change
from lowmark.table.errors import SchemaNotInForce
from lowmark.table.producing import Outgoing
from lowmark.table.splitting import encoded_whole


class Renewal:
    """Encodes the batches of one table anew. May be asked on any thread."""

    def __init__(self, described: Callable[[], Table | None]) -> None:
        self._described = described
        """The table as it is known here; None: it is not there any more."""
        self._written: dict[int, TableSchema] = {}
        """The versions that batches were sent with. The catalog may forget one of them while a
        batch of it is under way."""

    def knows(self, version: int) -> None:
        """Remember a schema version, while the catalog still has it."""
        if version in self._written:
            return
        table = self._described()
        schema = None if table is None else table.schema_version(version)
        if schema is not None:
            self._written[version] = schema

    def renewed(self, batch: Outgoing, table: Table | None) -> Outgoing:
        """The same rows with the newest schema version of a table; raises if that can't be."""
        written = self._written.get(batch.schema)
        if table is None or written is None:
            raise SchemaNotInForce(version=batch.schema, why="its columns are not known any more")
        newest = table.latest
        if newest.number == batch.schema:
            return batch
        if batch.change is Change.DELETE:
            return batch._replace(schema=newest.number, room=None)
        stored = stored_schema(written, table.key, batch.change)
        rows = renewed_rows(decode_message(batch.message, stored), written, table)
        whole = encoded_whole(
            rows,
            schema=newest.number,
            change=batch.change,
            compression=table.settings.compression,
        )
        return whole._replace(transaction=batch.transaction)


def renewed_rows(rows: pa.RecordBatch, written: TableSchema, table: Table) -> pa.RecordBatch:
    """Rows as they were to be stored with one schema version, with the newest one of a table.

    With `_change` behind their columns, they are of both kinds.
    """
    deletes: pa.Array | None = None
    if CHANGE in rows.schema.names:
        deletes = pc.equal(rows.column(CHANGE), int(Change.DELETE))
    arrays, names = [], []
    for column in table.columns:
        there, wanted = written.column(column.id), to_arrow(column.type)
        if there is not None:
            array = rows.column(there.name)
            array = array if array.type == wanted else array.cast(wanted)
        elif column.required and column.default is None:
            why = f"column {column.name} was added since, must have a value, and has no default"
            raise SchemaNotInForce(table.name, version=written.number, why=why)
        else:
            array = _filled(table.filling(column.id), wanted, rows.num_rows, deletes)
        arrays.append(array)
        names.append(column.name)
    if deletes is not None:
        arrays.append(rows.column(CHANGE))
        names.append(CHANGE)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _filled(filling: object, wanted: pa.DataType, count: int, deletes: pa.Array | None) -> pa.Array:
    """A column that the rows do not have; a delete shows nothing but its key."""
    if filling is None:
        return pa.nulls(count, wanted)
    filled = pa.repeat(pa.scalar(filling, wanted), count)
    if deletes is None:
        return filled
    return pc.if_else(deletes, pa.scalar(None, wanted), filled)
