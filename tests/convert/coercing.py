"""Schemas for tests of coercion, written as `id="int64!"`: `!` says required."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lowmark.catalog import Column, ColumnId, TableSchema, parse_type, parse_value
from lowmark.convert.coercion import Coercion

KEY = frozenset({ColumnId(1)})


def schema_of(**columns: str) -> TableSchema:
    """A schema of columns; `"string!"` is required, `"string = new"` has a default."""
    made = []
    for number, (name, text) in enumerate(columns.items(), 1):
        words, _, default = text.partition(" = ")
        kind = parse_type(words.rstrip("!"))
        made.append(
            Column(
                id=ColumnId(number),
                name=name,
                type=kind,
                required=words.endswith("!"),
                default=parse_value(kind, default, column=name) if default else None,
            )
        )
    return TableSchema(number=1, columns=tuple(made))


ORDERS = schema_of(id="string!", status="string = new", amount="decimal(12,2)", qty="int32")


def coerced(rows: object, schema: TableSchema = ORDERS, **options: Any) -> list[dict[str, Any]]:
    """What rows become, as dicts; every batch is of the schema and sound."""
    coercion = Coercion(schema, **options)
    batches = list(coercion.batches(rows))
    for batch in batches:
        batch.validate(full=True)
        fields = [field for field in batch.schema if field.name != "_change"]
        assert [(each.name, each.type) for each in fields] == [
            (each.name, each.type) for each in coercion.arrow
        ]
    return [row for batch in batches for row in batch.to_pylist()]


def one_column(kind: str, values: list[Any] | pa.Array) -> list[Any]:
    """What the values of one column become."""
    rows = (
        [{"v": value} for value in values]
        if isinstance(values, list)
        else pa.record_batch({"v": values})
    )
    return [row["v"] for row in coerced(rows, schema_of(v=kind))]
