"""Defaults of columns: constants, checked against their type and brought to one form.

One form, so that equal defaults are equal values and equal bytes: a decimal has as many digits
behind the point as its type says, an instant is in UTC, a float32 is rounded to one, minus zero is
zero. There is no NaN and no infinity: a NaN is not equal to itself, so a catalog with one would
differ from its own copy. Lists, structs and maps have no defaults.
"""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import assert_never
from uuid import UUID

from lowmark.catalog.errors import CatalogRefused, Reason
from lowmark.catalog.names import DEFAULT_BYTES_MAX
from lowmark.catalog.types import (
    INTEGER_BITS,
    ColumnType,
    DecimalOf,
    ListOf,
    MapOf,
    Plain,
    StructOf,
    type_text,
)

__all__ = ["Value", "canonical", "parse_value", "value_text"]

Value = bool | int | float | str | bytes | Decimal | date | datetime | UUID
"""A constant; `None` stands for no default."""


def canonical(column_type: ColumnType, value: object, *, column: str) -> Value:
    """The one form of a default, or a refusal that names the column."""
    match column_type:
        case DecimalOf():
            return _decimal(column_type, value, column)
        case ListOf() | StructOf() | MapOf():
            raise _misfit(column_type, value, column, "lists, structs and maps have no defaults")
        case Plain():
            return _plain(column_type, value, column)
        case _:
            assert_never(column_type)


def _plain(kind: Plain, value: object, column: str) -> Value:
    match kind:
        case Plain.BOOL:
            if isinstance(value, bool):
                return value
        case Plain.INT8 | Plain.INT16 | Plain.INT32 | Plain.INT64:
            return _integer(kind, value, column)
        case Plain.FLOAT32 | Plain.FLOAT64:
            return _float(kind, value, column)
        case Plain.STRING:
            if isinstance(value, str):
                return _text(kind, value, column)
        case Plain.BINARY:
            if isinstance(value, bytes | bytearray | memoryview):
                return _small(kind, bytes(value), column)
        case Plain.UUID:
            if isinstance(value, UUID):
                return UUID(int=value.int)
        case Plain.DATE:
            if isinstance(value, date) and not isinstance(value, datetime):
                return value
        case Plain.TIMESTAMP:
            return _instant(kind, value, column)
        case Plain.TIMESTAMP_NTZ:
            if isinstance(value, datetime):
                if value.tzinfo is not None:
                    raise _misfit(kind, value, column, "it has a time zone")
                return value.replace(fold=0)
        case _:
            assert_never(kind)
    raise _misfit(kind, value, column, f"it is of type {type(value).__name__}")


def _integer(kind: Plain, value: object, column: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _misfit(kind, value, column, f"it is of type {type(value).__name__}")
    bound = 1 << INTEGER_BITS[kind] - 1
    if not -bound <= value < bound:
        raise _misfit(kind, value, column, "it is out of range")
    return int(value)


def _float(kind: Plain, value: object, column: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _misfit(kind, value, column, f"it is of type {type(value).__name__}")
    try:
        number = float(value)
        if kind is Plain.FLOAT32 and math.isfinite(number):
            number = float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError as error:
        raise _misfit(kind, value, column, "it is out of range") from error
    if not math.isfinite(number):
        raise _misfit(kind, value, column, "it is not a finite number")
    return number + 0.0  # minus zero becomes zero


def _decimal(kind: DecimalOf, value: object, column: str) -> Decimal:
    if isinstance(value, int) and not isinstance(value, bool):
        # Digits beyond the limit are refused below; this only keeps the conversion small.
        if abs(value) >= 10**kind.precision:
            raise _misfit(kind, value, column, "it has too many digits")
        value = Decimal(value)
    if not isinstance(value, Decimal):
        raise _misfit(kind, value, column, f"it is of type {type(value).__name__}")
    if not value.is_finite():
        raise _misfit(kind, value, column, "it is not a finite number")
    if not value:
        return Decimal((0, (0,), -kind.scale))
    # Integers only: decimal arithmetic would round to its context's precision.
    sign, digits, exponent = value.as_tuple()
    shift = int(exponent) + kind.scale
    if value.adjusted() >= kind.precision - kind.scale:
        raise _misfit(kind, value, column, "it has too many digits before the point")
    number = int("".join(map(str, digits)))
    if shift >= 0:
        number *= 10**shift
    else:
        number, rest = (0, 1) if -shift > len(digits) else divmod(number, 10**-shift)
        if rest:
            raise _misfit(kind, value, column, "it has too many digits behind the point")
    return Decimal((sign, tuple(int(digit) for digit in str(number)), -kind.scale))


def _text(kind: Plain, value: str, column: str) -> str:
    try:
        _small(kind, value.encode(), column)
    except UnicodeEncodeError as error:
        raise _misfit(kind, value, column, "it is not valid text") from error
    return str(value)


def _small(kind: Plain, value: bytes, column: str) -> bytes:
    if len(value) > DEFAULT_BYTES_MAX:
        raise _misfit(kind, value, column, f"it is longer than {DEFAULT_BYTES_MAX} bytes")
    return value


def _instant(kind: Plain, value: object, column: str) -> datetime:
    if not isinstance(value, datetime):
        raise _misfit(kind, value, column, f"it is of type {type(value).__name__}")
    if value.tzinfo is None:
        raise _misfit(kind, value, column, "it has no time zone")
    try:
        return value.astimezone(UTC).replace(fold=0)
    except (OverflowError, ValueError) as error:
        raise _misfit(kind, value, column, "it is out of range") from error


def _misfit(kind: ColumnType, value: object, column: str, why: str) -> CatalogRefused:
    shown = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a huge number"
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return CatalogRefused(
        f"{shown} can't be the default of column {column}: {why}",
        reason=Reason.DEFAULT,
        object_kind="column",
        object_name=column,
        hint=f"Give a value of type {type_text(kind)}, or none.",
    )


# -- text ---------------------------------------------------------------------------------------


def value_text(value: Value) -> str:
    """A default as people write it; `parse_value` reads it back."""
    match value:
        case bool():
            return "true" if value else "false"
        case bytes():
            return value.hex()
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case float():
            return repr(value)
        case int() | str() | UUID():
            return str(value)
        case _:
            assert_never(value)


def parse_value(column_type: ColumnType, text: str, *, column: str) -> Value:
    """Read a default as people write it: ISO dates and times, bytes as hexadecimal digits."""
    try:
        return canonical(column_type, _read(column_type, text), column=column)
    except (ValueError, InvalidOperation) as error:
        raise _misfit(column_type, text, column, "it can't be read") from error


def _read(column_type: ColumnType, text: str) -> object:
    match column_type:
        case DecimalOf():
            return Decimal(text)
        case Plain.BOOL:
            return {"true": True, "false": False}.get(text.lower(), text)
        case Plain.INT8 | Plain.INT16 | Plain.INT32 | Plain.INT64:
            return int(text)
        case Plain.FLOAT32 | Plain.FLOAT64:
            return float(text)
        case Plain.BINARY:
            return bytes.fromhex(text)
        case Plain.UUID:
            return UUID(text)
        case Plain.DATE:
            return date.fromisoformat(text)
        case Plain.TIMESTAMP | Plain.TIMESTAMP_NTZ:
            return datetime.fromisoformat(text)
        case Plain.STRING | ListOf() | StructOf() | MapOf():
            return text
        case _:
            assert_never(column_type)
