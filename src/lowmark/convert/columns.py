"""The columns of a new table, as people write them.

    {"id": "int64", "name": "string not null"}     text: our words, and those of SQL and Spark
    {"id": int, "name": str, "tags": list[str]}    Python's types
    {"id": pa.int64(), "name": pa.string()}        Arrow's types
    pa.schema(...), polars.Schema(...)             a schema: whatever gives one to Arrow
    [("id", int), ("name", "varchar")]             pairs of a name and any of these
    [pa.field(...), ...], [NewColumn(...), ...]    fields, or columns of the catalog

Python's `int` is int64 and its `float` is float64; a `datetime` is a `timestamp`, an instant. What
can't be a column is refused with its name.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa

from lowmark.catalog import (
    CatalogRefused,
    ColumnType,
    DecimalOf,
    ListOf,
    MapOf,
    NewColumn,
    Plain,
    StructOf,
    parse_type,
)
from lowmark.catalog.arrow import from_arrow
from lowmark.catalog.errors import Reason
from lowmark.errors import Rejected

ColumnsLike: TypeAlias = Mapping[str, Any] | Sequence[Any] | pa.Schema
"""Text or a type by name, an Arrow schema, pairs, Arrow fields, or `NewColumn`s."""

_PYTHON: dict[object, ColumnType] = {
    bool: Plain.BOOL,
    int: Plain.INT64,
    float: Plain.FLOAT64,
    str: Plain.STRING,
    bytes: Plain.BINARY,
    UUID: Plain.UUID,
    date: Plain.DATE,
    datetime: Plain.TIMESTAMP,
}
_HINTS: dict[object, str] = {
    Decimal: "Write how many digits it has, and how many behind the point: 'decimal(12,2)'.",
    list: "Write what is in it: list[int], or 'list<int64>'.",
    dict: "Write what is in it: dict[str, int], or 'map<string, int64>'.",
}
_HINT = (
    "Use a word such as 'int64' or 'string', a Python type such as int or str, or an Arrow type"
    " such as pa.int64()."
)
_FORMS = 'Use {"id": "int64", "name": "string"}, a pyarrow.Schema, or a list of (name, type) pairs.'
_NOT_NULL = re.compile(r"\s+not\s+null\s*$", re.IGNORECASE)


def columns_of(columns: ColumnsLike, key: tuple[str, ...]) -> tuple[NewColumn, ...]:
    """The columns that were given; those of the key are required."""
    return tuple(
        NewColumn(name=one.name, type=one.type, required=True, default=one.default)
        if one.name in key
        else one
        for one in _columns(columns)
    )


def _columns(columns: object) -> Iterator[NewColumn]:
    if isinstance(columns, Mapping) and not hasattr(columns, "__arrow_c_schema__"):
        for name, given in columns.items():
            yield _column(name, given)
    elif isinstance(columns, pa.Schema) or hasattr(columns, "__arrow_c_schema__"):
        for field in pa.schema(columns):
            yield _of_field(field)
    elif isinstance(columns, Sequence) and not isinstance(columns, str | bytes):
        for one in columns:
            yield _of_item(one)
    else:
        raise Rejected(f"columns can't be given as {type(columns).__name__}", hint=_FORMS)


def _of_item(one: object) -> NewColumn:
    if isinstance(one, NewColumn):
        return one
    if isinstance(one, pa.Field):
        return _of_field(one)
    if isinstance(one, tuple | list) and len(one) == 2:
        return _column(*one)
    raise Rejected(f"{one!r:.100} is not a column with its type", hint=_FORMS)


def _of_field(field: pa.Field) -> NewColumn:
    column = _column(field.name, field.type)
    return NewColumn(name=column.name, type=column.type, required=not field.nullable)


def _column(name: object, given: object) -> NewColumn:
    if not isinstance(name, str):
        raise Rejected(f"{name!r:.100} can't name a column: it is not text", hint=_FORMS)
    required = False
    if isinstance(given, str):
        given, required = _NOT_NULL.sub("", given), _NOT_NULL.search(given) is not None
    try:
        kind = _type(given)
    except CatalogRefused as error:
        raise of_column(error, name) from error
    return NewColumn(name=name, type=kind, required=required)


def of_column(error: CatalogRefused, name: str) -> CatalogRefused:
    """The same error, which says of which column."""
    fresh = error.again()
    fresh.message = f"column {name}: {error.message}"
    fresh.args = (fresh.message,)
    return fresh


def _type(given: object) -> ColumnType:
    if isinstance(given, str):
        return parse_type(given.strip())
    if isinstance(given, pa.DataType):
        return from_arrow(given)
    if isinstance(given, Plain | DecimalOf | ListOf | MapOf | StructOf):
        return given
    if isinstance(given, type) and given in _PYTHON:
        return _PYTHON[given]
    origin, parts = typing.get_origin(given), typing.get_args(given)
    if origin is list and len(parts) == 1:
        return ListOf(_type(parts[0]))
    if origin is dict and len(parts) == 2:
        return MapOf(_type(parts[0]), _type(parts[1]))
    if origin in {types.UnionType, typing.Union}:
        others = [part for part in parts if part is not types.NoneType]
        if len(others) == 1:  # any column may be null that is not said to be required
            return _type(others[0])
    shown = given.__name__ if isinstance(given, type) and not parts else f"{given!r:.100}"
    raise CatalogRefused(
        f"{shown} can't be a type",
        reason=Reason.TYPE,
        about=("type", shown),
        hint=_HINTS.get(given, _HINT) if isinstance(given, type) else _HINT,
    )
