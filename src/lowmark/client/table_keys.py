"""Keys as callers give them: one value, a tuple, or a dict by column; coerced as in an append."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from lowmark.catalog import Table, TableSchema
from lowmark.client.checking import many
from lowmark.convert.coercion import Coercion
from lowmark.convert.errors import ColumnRefused
from lowmark.convert.rows import Columns, is_frame, pieces
from lowmark.errors import Rejected
from lowmark.formatting import counted


def check_key(
    table: Table, *, hint: str = "Read it with `read`; rows without a key go by retention only."
) -> None:
    """Refuse a table without a key."""
    if not table.key:
        raise Rejected(f"table {table.name} has no key", hint=hint)


def key_values(table: Table, key: object) -> tuple[object, ...]:
    """A key as a caller gives it: one value, a tuple, or a dict by column."""
    names = [column.name for column in table.key_columns]
    if isinstance(key, Mapping):
        if set(key) != set(names):
            raise Rejected(
                f"the key of table {table.name} is ({', '.join(names)}), not ({', '.join(key)})"
            )
        return tuple(key[name] for name in names)
    if len(names) == 1 and not isinstance(key, tuple):
        return (key,)
    if not isinstance(key, tuple | list) or len(key) != len(names):
        raise Rejected(
            f"the key of table {table.name} has {counted(len(names), 'column')}",
            hint=f"Give a tuple of ({', '.join(names)}).",
        )
    return tuple(key)


def key_schema(table: Table) -> TableSchema:
    """The columns of the key alone, as they are now, in the table's order."""
    columns = tuple(column for column in table.columns if column.id in table.key)
    return TableSchema(number=table.latest.number, columns=columns)


def key_coercion(table: Table) -> Coercion:
    """For rows that have nothing but their key."""
    return Coercion(key_schema(table), keyless_ok=False, key=frozenset(table.key))


def key_batches(table: Table, keys: object, what: str) -> Iterator[pa.RecordBatch]:
    """Several keys, each alone or in a frame, whose other columns do not count."""
    coercion = key_coercion(table)
    names = [column.name for column in table.key_columns]
    if not is_frame(keys):
        keys = many(keys, what)
        rows = [dict(zip(names, key_values(table, key), strict=True)) for key in keys]
        yield from coercion.batches(rows)
        return
    first_row = 0
    for piece in pieces(keys):
        assert not isinstance(piece, list)  # those are dicts, and no frame has any
        if isinstance(piece, pa.RecordBatch):
            piece = Columns(dict(zip(piece.schema.names, piece.columns, strict=True)), len(piece))
        missing = [name for name in names if name not in piece.given]
        if missing:
            raise ColumnRefused(
                f"the frame has no column {missing[0]}, which is in the key of table {table.name}",
                column=missing[0],
                hint=f"The key is ({', '.join(names)}); the frame needs all of these columns.",
            )
        given = {name: piece.given[name] for name in names}
        if piece.rows:
            yield coercion.columns(given, piece.rows, first_row=first_row)
        first_row += piece.rows


def coerced_key(table: Table, values: tuple[object, ...]) -> tuple[object, ...]:
    """A key that was given as it could be appended: text for a date, say."""
    names = [column.name for column in table.key_columns]
    row = dict(zip(names, values, strict=True))
    (batch,) = key_coercion(table).batches([row])
    return tuple(batch.column(name)[0].as_py() for name in names)
