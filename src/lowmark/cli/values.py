"""Rows as text: a JSON object a line, cells of a table, fields of CSV.

What is printed can be appended again: decimals are text with all their digits, times are ISO 8601,
bytes are hexadecimal digits, UUIDs are as usual. A map is an object if its keys are text, else a
list of pairs. JSON has no NaN and no infinities; they are the texts "NaN", "Infinity" and
"-Infinity".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lowmark.client import time_text
from lowmark.table import TIME

Convert = Callable[[Any], Any]

_encode = msgspec.json.Encoder(decimal_format="string").encode


def json_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows of which every value can become JSON."""
    converts = {
        field.name: convert
        for field in batch.schema
        if (convert := _converting(field.type)) is not None
    }
    rows: list[dict[str, Any]] = batch.to_pylist()
    for name, convert in converts.items():
        for row in rows:
            value = row[name]
            if value is not None:
                row[name] = convert(value)
    return rows


def json_row(schema: pa.Schema, row: Mapping[str, Any]) -> dict[str, Any]:
    """One row, as a look-up gives it."""
    made = dict(row)
    for field in schema:
        convert, value = _converting(field.type), made.get(field.name)
        if convert is not None and value is not None:
            made[field.name] = convert(value)
    return made


def json_lines(batch: pa.RecordBatch) -> str:
    """A line per row, each with its end."""
    return "".join(f"{_encode(row).decode()}\n" for row in json_rows(batch))


def json_text(value: object) -> str:
    """One value in one line."""
    return _encode(value).decode()


def _converting(kind: pa.DataType) -> Convert | None:
    """What turns a Python value of an Arrow type into one that JSON has; None: it is one."""
    if pa.types.is_fixed_size_binary(kind):
        return lambda value: str(value if isinstance(value, UUID) else UUID(bytes=value))
    if pa.types.is_binary(kind):
        return bytes.hex
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_decimal(kind):
        return lambda value: format(value, "f")
    if pa.types.is_timestamp(kind):
        return _moment
    if pa.types.is_date(kind):
        return date.isoformat
    if pa.types.is_map(kind):
        return _map(kind)
    if pa.types.is_list(kind):
        return _list(_converting(kind.value_type))
    if pa.types.is_struct(kind):
        return _struct({field.name: _converting(field.type) for field in kind})
    return None


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _moment(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


def _list(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _struct(converts: Mapping[str, Convert | None]) -> Convert | None:
    wanted = {name: convert for name, convert in converts.items() if convert is not None}
    if not wanted:
        return None

    def one(value: dict[str, Any]) -> dict[str, Any]:
        return {
            name: wanted[name](part) if name in wanted and part is not None else part
            for name, part in value.items()
        }

    return one


def _map(kind: pa.DataType) -> Convert:
    of_key, of_value = _converting(kind.key_type), _converting(kind.item_type)
    is_object = pa.types.is_string(kind.key_type)

    def one(value: Any) -> Any:
        pairs = [
            [
                key if of_key is None else of_key(key),
                item if of_value is None or item is None else of_value(item),
            ]
            for key, item in (value.items() if isinstance(value, Mapping) else value)
        ]
        return dict(pairs) if is_object and len(dict(pairs)) == len(pairs) else pairs

    return one


# -- for people ---------------------------------------------------------------------------------


def cells(batch: pa.RecordBatch) -> list[list[str]]:
    """Rows as texts."""
    names = batch.schema.names
    return [[cell_of(name, row[name]) for name in names] for row in json_rows(batch)]


def cell_of(name: str, value: Any) -> str:
    """A value of a row, in one line."""
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case int() if name == TIME:
            return time_text(value)
        case int() | float() | Decimal():
            return str(value)
        case str():
            return value if value.isprintable() else repr(value)[1:-1]
        case _:
            return json_text(value)


# -- CSV ----------------------------------------------------------------------------------------


def csv_schema(schema: pa.Schema) -> pa.Schema:
    """What `csv_batch` gives."""
    return pa.schema([pa.field(field.name, _csv_type(field.type)) for field in schema])


def csv_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Columns that Arrow's CSV writer writes as our reader reads them."""
    made = [
        _csv_column(column, field.type)
        for column, field in zip(batch.columns, batch.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(made, schema=csv_schema(batch.schema))


def _csv_type(kind: pa.DataType) -> pa.DataType:
    plain = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)
    return kind if plain else pa.string()


def _csv_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if _csv_type(kind) == kind or pa.types.is_string(kind):
        return column
    if pa.types.is_dictionary(kind) or pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return pc.cast(column, pa.string())
    convert = _converting(kind)
    return pa.array([_csv_text(value, convert) for value in column.to_pylist()], pa.string())


def _csv_text(value: Any, convert: Convert | None) -> str | None:
    if value is None:
        return None
    made = value if convert is None else convert(value)
    return made if isinstance(made, str) else json_text(made)
