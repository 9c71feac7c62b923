"""Whether a value fits a type, and its one form then: the rule of defaults, keys and rows.

A value fits if a column of the type can give back all of it. What fits, of Python's own types:

    type           takes                                        refuses
    bool           bool                                         0 and 1
    int8 … int64   int in range                                 bool, float
    float64        float, NaN and infinities too; int up to     bool, larger int
                   2^53 either way
    float32        the same, int up to 2^24; a float is         a float beyond its range
                   rounded to the nearest float32
    decimal(p,s)   Decimal, int                                 digits behind the point beyond s,
                                                                unless zeros; too many before it;
                                                                NaN; bool; float
    string         str                                          bytes, lone surrogates
    binary         bytes, bytearray, memoryview                 str
    uuid           UUID, its 16 bytes                           text, other lengths
    date           date                                         datetime
    timestamp      datetime with a zone                         a datetime without one; a date
    timestamp_ntz  datetime without a zone                      a datetime with one; a date

Rounding to float32 is the one loss: Python has no such type, so there is no other way to write one.
A datetime without a zone is most often local time, as that of `datetime.now()`, and sometimes UTC;
a column of instants does not guess, as pandas and Iceberg do not; and a date begins at another
instant in each zone.

Rows come in more forms than these (`lowmark.convert` reads text as a date, and 5.0 as 5), and
defaults and keys in fewer; each says so where it asks.
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
from lowmark.formatting import shown

Leaf = Plain | DecimalOf
"""A type whose values are not made of others."""

Fitted = bool | int | float | Decimal | str | bytes | date | datetime
"""A value in its form: a UUID is its bytes, and a decimal has all digits of its type."""

NO_ZONE = "has no time zone, so it is no instant"
"""Why a column of type timestamp refuses a datetime."""
NO_TIME = "is a date, so it is no instant: it has no time of day and no time zone"
"""Why it refuses a date."""

_EXACT_INT = {Plain.FLOAT32: 1 << 24, Plain.FLOAT64: 1 << 53}


class Unfit(Exception):
    """Why a value does not fit; the text follows the value, as in `'x' is not a number`.

    `brief` says the same in a message that names the type elsewhere.
    """

    def __init__(self, why: str, brief: str | None = None) -> None:
        super().__init__(why)
        self.brief = brief or why


def fit(kind: Leaf, value: object) -> Fitted:
    """The value in its one form, losing nothing; raises `Unfit`."""
    if isinstance(kind, DecimalOf):
        return _decimal(kind, value)
    match kind:
        case Plain.BOOL:
            if isinstance(value, bool):
                return value
        case Plain.INT8 | Plain.INT16 | Plain.INT32 | Plain.INT64:
            if isinstance(value, int) and not isinstance(value, bool):
                return _integer(kind, value)
        case Plain.FLOAT32 | Plain.FLOAT64:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return _float(kind, value)
        case Plain.STRING:
            if isinstance(value, str):
                return _text(value)
        case Plain.BINARY:
            if isinstance(value, bytes | bytearray | memoryview):
                return bytes(value)
        case Plain.UUID:
            if isinstance(value, UUID):
                return value.bytes
            if isinstance(value, bytes):
                return _uuid(value)
        case Plain.DATE:
            if isinstance(value, date) and not isinstance(value, datetime):
                return value
        case Plain.TIMESTAMP | Plain.TIMESTAMP_NTZ:
            if isinstance(value, datetime) and not is_missing(value):
                return _instant(value) if kind is Plain.TIMESTAMP else _local(value)
            if isinstance(value, date) and not is_missing(value) and kind is Plain.TIMESTAMP:
                raise Unfit(NO_TIME, "is of type date")
        case _:
            assert_never(kind)
    raise wrong_type(kind, value)


def wrong_type(kind: Leaf, value: object) -> Unfit:
    """That no value of this Python type fits."""
    brief = f"is of type {type(value).__name__}"
    return Unfit(f"{brief}, which does not go into {type_text(kind)}", brief)


def out_of_range(of: str) -> Unfit:
    """That a value is too large or too small."""
    return Unfit(f"is out of the range of {of}", "is out of range")


def is_missing(value: object) -> bool:
    """Whether a value is one of those that stand for null."""
    # By name, so that pandas need not be there. Its NaT says that it is a datetime.
    return value is None or type(value).__name__ in {"NaTType", "NAType"}


def _integer(kind: Plain, value: int) -> int:
    bound = 1 << INTEGER_BITS[kind] - 1
    if not -bound <= value < bound:
        raise out_of_range(kind.value)
    return int(value)


def _float(kind: Plain, value: float) -> float:
    if isinstance(value, int) and abs(value) > _EXACT_INT[kind]:
        raise Unfit(f"is an integer that {kind.value} can't hold exactly")
    if kind is Plain.FLOAT64 or not math.isfinite(value):
        return float(value)
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        raise out_of_range(kind.value) from None
    return float(rounded)


def _decimal(kind: DecimalOf, value: object) -> Decimal:
    before = kind.precision - kind.scale
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 10**before:  # Decimal would take its time over a huge one
            raise _too_large(before)
        value = Decimal(value)
    if not isinstance(value, Decimal):
        raise wrong_type(kind, value)
    if not value.is_finite():
        raise Unfit("is not a finite number")
    if not value:
        return Decimal((0, (0,), -kind.scale))
    if value.adjusted() >= before:
        raise _too_large(before)
    # Digits only: decimal arithmetic would round to its context's precision.
    sign, digits, exponent = value.as_tuple()
    beyond = -int(exponent) - kind.scale
    if beyond <= 0:
        return Decimal((sign, digits + (0,) * -beyond, -kind.scale))
    if beyond >= len(digits) or any(digits[-beyond:]):
        raise Unfit(
            f"has more than {kind.scale} digits behind the point",
            "has too many digits behind the point",
        )
    return Decimal((sign, digits[:-beyond], -kind.scale))


def _too_large(before: int) -> Unfit:
    return Unfit(
        f"has more than {before} digits before the point", "has too many digits before the point"
    )


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        brief = "is not valid text"
        raise Unfit(f"{brief}: it has half of a surrogate pair", brief) from None
    return str.__str__(value)


def _uuid(value: bytes) -> bytes:
    if len(value) != 16:
        raise Unfit("is not a UUID: it is not 16 bytes long", f"has {len(value)} bytes, not 16")
    return value


def _instant(value: datetime) -> datetime:
    if value.utcoffset() is None:
        raise Unfit(NO_ZONE, "has no time zone")
    if nanoseconds(value):
        raise Unfit("has more than microseconds")
    try:
        return value.astimezone(UTC).replace(fold=0)
    except (OverflowError, ValueError):
        raise out_of_range("times") from None


def _local(value: datetime) -> datetime:
    if nanoseconds(value):
        raise Unfit("has more than microseconds")
    if value.tzinfo is not None:
        raise Unfit("has a time zone, which timestamp_ntz can't hold", "has a time zone")
    return value.replace(fold=0)


def nanoseconds(value: datetime) -> int:
    """What pandas' Timestamp has beyond microseconds."""
    return int(getattr(value, "nanosecond", 0))


# Defaults of columns: constants, checked against their type and brought to one form.
#
# Which values fit is the table above; a UUID is given as one, not as its bytes. One form, so
# that equal defaults are equal values and equal bytes: a decimal has as many digits behind the
# point as its type says, an instant is in UTC, a float32 is rounded to one, minus zero is zero.
# There is no NaN and no infinity: a NaN is not equal to itself, so a catalog with one would differ
# from its own copy. Lists, structs and maps have no defaults.

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
        about=("column", column),
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
