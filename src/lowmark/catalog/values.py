"""Defaults of columns: constants, checked against their type and brought to one form.

Which values fit is the table in `fit`; a UUID is given as one, not as its bytes. One form, so that
equal defaults are equal values and equal bytes: a decimal has as many digits behind the point as
its type says, an instant is in UTC, a float32 is rounded to one, minus zero is zero. There
is no NaN and no infinity: a NaN is not equal to itself, so a catalog with one would differ from its
own copy. Lists, structs and maps have no defaults.
"""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import assert_never
from uuid import UUID

from lowmark.catalog.errors import CatalogRefused, Reason
from lowmark.catalog.fit import Unfit, fit, wrong_type
from lowmark.catalog.names import DEFAULT_BYTES_MAX
from lowmark.catalog.types import (
    ColumnType,
    DecimalOf,
    ListOf,
    MapOf,
    Plain,
    StructOf,
    type_text,
)
from lowmark.formatting import shown

Value = bool | int | float | str | bytes | Decimal | date | datetime | UUID
"""A constant; `None` stands for no default."""


def canonical(column_type: ColumnType, value: object, *, column: str) -> Value:
    """The one form of a default, or a refusal that names the column."""
    if not isinstance(column_type, Plain | DecimalOf):
        raise _misfit(column_type, value, column, "lists, structs and maps have no defaults")
    if column_type is Plain.UUID and not isinstance(value, UUID):
        raise _misfit(column_type, value, column, f"it {wrong_type(column_type, value).brief}")
    try:
        found = fit(column_type, value)
    except Unfit as unfit:
        raise _misfit(column_type, value, column, f"it {unfit.brief}") from unfit
    if isinstance(found, float):
        if not math.isfinite(found):
            raise _misfit(column_type, value, column, "it is not a finite number")
        return found + 0.0  # minus zero becomes zero
    if isinstance(found, str | bytes):
        size = len(found.encode() if isinstance(found, str) else found)
        if size > DEFAULT_BYTES_MAX:
            why = f"it is longer than {DEFAULT_BYTES_MAX} bytes"
            raise _misfit(column_type, value, column, why)
    return UUID(bytes=found) if isinstance(found, bytes) and column_type is Plain.UUID else found


def _misfit(kind: ColumnType, value: object, column: str, why: str) -> CatalogRefused:
    return CatalogRefused(
        f"{shown(value)} can't be the default of column {column}: {why}",
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
