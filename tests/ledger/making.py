"""Tables of the catalog, values of every type, and rows to make ledger files of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from catalog.making import execute, fresh, table_of
from lowmark.catalog import Command, CreateTable, NewColumn, Table, TableSchema, parse_type
from lowmark.catalog.arrow import to_arrow
from lowmark.ledger.files import Rows

__all__ = ["VALUES", "altered", "array_of", "made_table", "rows_of"]

VALUES: dict[str, list[Any]] = {
    "bool": [True, False],
    "int8": [0, 1, -128, 127],
    "int16": [0, -1, 1 << 14],
    "int32": [0, -1, (1 << 31) - 1],
    "int64": [0, -1, 1 << 62, -(1 << 63)],
    "float32": [0.0, -0.0, 1.5, float("inf"), float("nan")],
    "float64": [0.0, -2.25, 1e300, float("-inf")],
    "decimal(9,2)": [Decimal("0.00"), Decimal("-0.01"), Decimal("9999999.99")],
    "decimal(38,3)": [Decimal("1.000"), Decimal(10) ** 34, -(Decimal(10) ** 34)],
    "string": ["", "a", "eight by", "more than eight", "größe"],
    "binary": [b"", b"\x00", b"\x00\x00", bytes(40)],
    "uuid": [bytes(16), bytes(range(16))],
    "date": [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29)],
    "timestamp": [datetime(1970, 1, 1, tzinfo=UTC), datetime(2024, 2, 29, 1, 2, 3, 4, UTC)],
    "timestamp_ntz": [datetime(1970, 1, 1), datetime(1, 1, 1, 0, 0, 0, 1)],  # noqa: DTZ001
    "list<int32>": [[], [0], [None], [1, 2], [2, 1], [None, 1], [1, None]],
    "list<list<string>>": [[], [[]], [["a"], []], [[], ["a"]], [None, ["a", None]]],
    "list<decimal(9,2)>": [[], [Decimal("1.00"), None]],
    "map<string, int64>": [[], [("a", 1)], [("b", 1)], [("a", None)], [("a", 1), ("b", 2)]],
    "struct<a: int64, b: string not null>": [
        {"a": 1, "b": "x"},
        {"a": None, "b": "x"},
        {"a": None, "b": ""},
    ],
    "struct<at: list<struct<n: int8>>, m: map<date, bool>>": [
        {"at": None, "m": None},
        {"at": [], "m": []},
        {"at": [None, {"n": None}, {"n": 1}], "m": [(date(2024, 1, 1), False)]},
    ],
}
"""All distinct, of each type."""


def array_of(kind: str, values: Sequence[Any]) -> pa.Array:
    """Values of a column type."""
    return pa.array(values, to_arrow(parse_type(kind)))


def made_table(
    columns: Mapping[str, str], *, key: Sequence[str] = (), options: Mapping[str, str] | None = None
) -> Table:
    """A table `t` as a catalog has it."""
    made = tuple(NewColumn.of(name, kind, required=name in key) for name, kind in columns.items())
    create = CreateTable(name="t", columns=made, key=tuple(key), options=dict(options or {}))
    return table_of(fresh(create), "t")


def altered(table: Table, *commands: Command) -> Table:
    """The same table after commands; it must have been made by `made_table`."""
    made = tuple(
        NewColumn(name=one.name, type=one.type, required=one.required, default=one.default)
        for one in table.columns
    )
    key = tuple(column.name for column in table.key_columns)
    catalog = fresh(CreateTable(name="t", columns=made, key=key))
    return table_of(execute(catalog, *commands), "t")


def rows_of(
    schema: TableSchema,
    values: Mapping[str, Sequence[Any]],
    *,
    first: int = 0,
    step: int = 1,
    deletes: Sequence[int] = (),
) -> Rows:
    """Rows with growing offsets, those at the places of `deletes` being deletes."""
    arrays = [pa.array(values[one.name], to_arrow(one.type)) for one in schema.columns]
    count = len(arrays[0])
    mask = np.zeros(count, np.bool_)
    mask[list(deletes)] = True
    offsets = first + step * np.arange(count, dtype=np.int64)
    batch = pa.RecordBatch.from_arrays(arrays, names=[one.name for one in schema.columns])
    return Rows(batch, offsets, 1_000 + offsets, mask)
