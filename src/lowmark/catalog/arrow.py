"""Column types as Arrow's, and back. The only file here that imports pyarrow: it is large, and a
catalog can do without it.

Going in, a type is taken if every value of it fits into ours unchanged: views, dictionaries and
large forms become plain, seconds and milliseconds become microseconds. What would lose something,
such as nanoseconds or unsigned integers, is refused with what to cast it to.
"""

from __future__ import annotations

from typing import assert_never

import pyarrow as pa

from lowmark.catalog.descriptors import TableSchema
from lowmark.catalog.errors import CatalogRefused, Reason
from lowmark.catalog.types import (
    DECIMAL_DIGITS_MAX,
    ColumnType,
    DecimalOf,
    ListOf,
    MapOf,
    Plain,
    StructField,
    StructOf,
)

_PLAIN = {
    Plain.BOOL: pa.bool_(),
    Plain.INT8: pa.int8(),
    Plain.INT16: pa.int16(),
    Plain.INT32: pa.int32(),
    Plain.INT64: pa.int64(),
    Plain.FLOAT32: pa.float32(),
    Plain.FLOAT64: pa.float64(),
    Plain.STRING: pa.string(),
    Plain.BINARY: pa.binary(),
    Plain.UUID: pa.binary(16),
    Plain.DATE: pa.date32(),
    Plain.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Plain.TIMESTAMP_NTZ: pa.timestamp("us"),
}

_SAME = {
    **{arrow: plain for plain, arrow in _PLAIN.items()},
    pa.large_string(): Plain.STRING,
    pa.string_view(): Plain.STRING,
    pa.large_binary(): Plain.BINARY,
    pa.binary_view(): Plain.BINARY,
    pa.uuid(): Plain.UUID,
}

_CAST = {
    pa.uint8(): "Cast it to int16.",
    pa.uint16(): "Cast it to int32.",
    pa.uint32(): "Cast it to int64.",
    pa.uint64(): "Cast it to decimal(20,0), or to int64 if the values fit.",
    pa.float16(): "Cast it to float32.",
    pa.date64(): "Cast it to date32.",
    pa.null(): "Cast it to the type that values will have.",
}


def to_arrow(column_type: ColumnType) -> pa.DataType:
    """The Arrow type in which values travel."""
    match column_type:
        case Plain():
            return _PLAIN[column_type]
        case DecimalOf(precision, scale):
            return pa.decimal128(precision, scale)
        case ListOf(element):
            return pa.list_(to_arrow(element))
        case StructOf(fields):
            return pa.struct(
                [
                    pa.field(field.name, to_arrow(field.type), nullable=not field.required)
                    for field in fields
                ]
            )
        case MapOf(key, value):
            return pa.map_(to_arrow(key), to_arrow(value))
        case _:
            assert_never(column_type)


def from_arrow(arrow: pa.DataType) -> ColumnType:
    """The column type that holds every value of an Arrow type unchanged."""
    if arrow in _SAME:
        return _SAME[arrow]
    if pa.types.is_dictionary(arrow):
        return from_arrow(arrow.value_type)
    if pa.types.is_timestamp(arrow):
        if arrow.unit == "ns":
            raise _refused(arrow, "Times are in microseconds: cast it to timestamp('us').")
        return Plain.TIMESTAMP if arrow.tz else Plain.TIMESTAMP_NTZ
    if pa.types.is_decimal(arrow):
        if arrow.precision > DECIMAL_DIGITS_MAX or not 0 <= arrow.scale <= arrow.precision:
            raise _refused(arrow, f"Cast it to one of at most {DECIMAL_DIGITS_MAX} digits.")
        return DecimalOf(arrow.precision, arrow.scale)
    if pa.types.is_map(arrow):
        return MapOf(from_arrow(arrow.key_type), from_arrow(arrow.item_type))
    if _is_list(arrow):
        return ListOf(from_arrow(arrow.value_type))
    if pa.types.is_struct(arrow):
        return StructOf(
            tuple(
                StructField(field.name, from_arrow(field.type), required=not field.nullable)
                for field in arrow
            )
        )
    raise _refused(
        arrow, _CAST.get(arrow, "Spark and Parquet do not both have it: use another type.")
    )


def schema_to_arrow(schema: TableSchema) -> pa.Schema:
    """The Arrow schema of batches that are written with a schema version."""
    return pa.schema(
        [
            pa.field(column.name, to_arrow(column.type), nullable=not column.required)
            for column in schema.columns
        ]
    )


def _is_list(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(arrow)
        or pa.types.is_large_list(arrow)
        or pa.types.is_list_view(arrow)
        or pa.types.is_large_list_view(arrow)
    )


def _refused(arrow: pa.DataType, hint: str) -> CatalogRefused:
    return CatalogRefused(
        f"a column can't be of Arrow's type {arrow}",
        reason=Reason.TYPE,
        about=("type", str(arrow)),
        hint=hint,
    )
