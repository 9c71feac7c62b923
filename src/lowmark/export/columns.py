"""What a table's columns are in a format: the same values, in a type that holds all of them.

Every type of a table has its place in each format; a type that a later release may add has none
until it is listed here, and is refused by name.

    type            Parquet                  Delta        Iceberg
    int8, int16     INT_8, INT_16            byte, short  int
    uuid            16 bytes                 binary       uuid
    timestamp       microseconds, UTC        timestamp    timestamptz
    timestamp_ntz   microseconds, no zone    timestamp_ntz  timestamp
    `_change`       string                   string       string

All others have the same name and meaning everywhere. A field of a struct may be null in files, also
one that is required: where the struct is null, so are its fields, and Arrow takes such a field for
one that breaks its promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from lowmark.export.errors import ColumnUnfit

Leaf = Callable[[pa.DataType], pa.DataType]
"""What a type without parts becomes."""

_KNOWN = frozenset(
    {
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.binary(16),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("us", tz="UTC"),
    }
)
UUID = pa.binary(16)
"""How rows have a UUID. There are no other bytes of a fixed length."""


def columns_in(schema: pa.Schema, leaf: Leaf, *, format_name: str) -> pa.Schema:
    """The columns of files; refuses those whose type has no place in the format."""
    fields = []
    for field in schema:
        try:
            kind = _type(field.type, leaf)
            fields.append(pa.field(field.name, kind, nullable=field.nullable))
        except _NoSuchType as error:
            raise ColumnUnfit(
                field.name,
                why=f"{format_name} has no type for {error.kind}",
                hint="Leave it out: name the other columns.",
            ) from None
    return pa.schema(fields)


def names_in(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """The name of every column, and of every field within it, each with its column's."""
    for field in schema:
        yield field.name, field.name
        for name in _names(field.type):
            yield field.name, name


class _NoSuchType(Exception):
    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(str(kind))
        self.kind = kind


def _field(field: pa.Field, leaf: Leaf) -> pa.Field:
    return pa.field(field.name, _type(field.type, leaf))


def _type(kind: pa.DataType, leaf: Leaf) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field, leaf))
    if pa.types.is_struct(kind):
        return pa.struct([_field(field, leaf) for field in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(_type(kind.key_type, leaf), _field(kind.item_field, leaf))
    if kind not in _KNOWN and not pa.types.is_decimal128(kind):
        raise _NoSuchType(kind)
    return leaf(kind)


def _names(kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_struct(kind):
        for field in kind.fields:
            yield field.name
            yield from _names(field.type)
    elif pa.types.is_nested(kind):
        for at in range(kind.num_fields):
            yield from _names(kind.field(at).type)
