"""Which single values fit which column: the rule that everything else here only makes fast.

A value fits if the column can give back all of it. What is turned into what:

    column         takes                                        refuses
    bool           bool                                         0 and 1, text
    int8 … int64   int in range; float and Decimal without a    bool, text, NaN, 1.5
                   fraction
    float64        float, NaN and infinities too; int up to     bool, text, larger int; Decimal
                   2^53 either way; Decimal whose float shows   with more digits than a float has
                   the same digits
    float32        the same, int up to 2^24; a float is         a float beyond its range
                   rounded to the nearest float32
    decimal(p,s)   Decimal, int, text such as "9.50" or "1e3";  digits behind the point beyond s,
                   float by its shortest digits: 9.5 is 9.50    unless zeros; too many before it;
                                                                0.1 + 0.2 for s = 2; NaN; bool
    string         str                                          bytes, numbers, lone surrogates
    binary         bytes, bytearray, memoryview; the bytes of   str
                   a UUID
    uuid           UUID, its text, its 16 bytes                 other lengths
    date           date; datetime without a zone at midnight;   a time of day, a zone, int
                   text such as "2026-07-01"
    timestamp      datetime with a zone; text in ISO form:      a datetime without a zone; a date
                   without a zone it is UTC                     (midnight where?); int (in which
                                                                unit?); nanoseconds other than zero
    timestamp_ntz  datetime without a zone; date; text          a time with a zone
    list<t>        list, tuple, numpy array                     text, set
    struct<…>      dict; a missing field is null                fields that it does not have
    map<k, v>      dict, or list of pairs                       a null key

Rounding to float32 is the one loss: Python has no such type, so there is no other way to write one,
and defaults are rounded alike. A datetime without a zone is most often local time, as that of
`datetime.now()`, and sometimes UTC; a column of instants does not guess, as pandas and Iceberg do
not; and a date begins at another instant in each zone. Text without a zone is UTC, as it is in
files. Everywhere, numpy's scalars count as the values that they hold, and pandas' NaT and NA as
null.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Self, assert_never
from uuid import UUID

import numpy as np

from lowmark.catalog import DecimalOf, Plain
from lowmark.catalog.types import INTEGER_BITS

__all__ = [
    "NO_TIME",
    "NO_ZONE",
    "Leaf",
    "Misfit",
    "Unfit",
    "WrittenFloat",
    "fit",
    "fit_all",
    "is_missing",
]

Leaf = Plain | DecimalOf
"""A type whose values are not made of others."""

_EXACT_INT = {Plain.FLOAT32: 1 << 24, Plain.FLOAT64: 1 << 53}
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_BEYOND_MICROS = re.compile(r"[.,][0-9]{6}([0-9]+)")
_INT64_DIGITS = 19
NO_ZONE = "has no time zone, so it is no instant"
"""Why a column of type timestamp refuses a datetime."""
NO_TIME = "is a date, so it is no instant: it has no time of day and no time zone"
"""Why it refuses a date."""


class Unfit(Exception):
    """Why a value does not fit; the text follows the value, as in `'x' is not a number`."""


class Misfit(Exception):
    """Where in a column a value is that does not fit, and why.

    `within` says where in a nested value: `("element 3", "field price")`.
    """

    def __init__(self, index: int, value: object, why: str, within: tuple[str, ...] = ()) -> None:
        super().__init__(index, value, why, within)
        self.index = index
        self.value = value
        self.why = why
        self.within = within


class WrittenFloat(float):
    """A float that still knows how it was written, for columns that are more exact than floats."""

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        if math.isinf(made):
            raise ValueError(f"{text} is beyond the range of floats")
        made.text = text
        return made

    def __repr__(self) -> str:
        return self.text


def fit_all(kind: Leaf, values: Iterable[object]) -> list[object]:
    """All values in the form that Arrow takes, or the first that does not fit."""
    fitted: list[object] = []
    for index, value in enumerate(values):
        try:
            fitted.append(fit(kind, value))
        except Unfit as why:
            raise Misfit(index, value, str(why)) from None
    return fitted


def is_missing(value: object) -> bool:
    """Whether a value is one of those that stand for null."""
    # By name, so that pandas need not be there.
    return value is None or type(value).__name__ in {"NaTType", "NAType"}


def fit(kind: Leaf, value: object) -> object:
    """The value in the form that Arrow takes, losing nothing."""
    if is_missing(value):
        return None
    if isinstance(value, np.generic):
        value = _from_numpy(value)
    if isinstance(kind, DecimalOf):
        return _decimal(kind, value)
    match kind:
        case Plain.BOOL:
            if isinstance(value, bool):
                return value
        case Plain.INT8 | Plain.INT16 | Plain.INT32 | Plain.INT64:
            return _integer(kind, value)
        case Plain.FLOAT32 | Plain.FLOAT64:
            return _float(kind, value)
        case Plain.STRING:
            if isinstance(value, str):
                return _text(value)
        case Plain.BINARY:
            if isinstance(value, bytes | bytearray | memoryview):
                return bytes(value)
            if isinstance(value, UUID):
                return value.bytes
        case Plain.UUID:
            return _uuid(value)
        case Plain.DATE:
            return _date(value)
        case Plain.TIMESTAMP:
            return _instant(value)
        case Plain.TIMESTAMP_NTZ:
            return _local(value)
        case _:
            assert_never(kind)
    raise _wrong_type(kind, value)


def _wrong_type(kind: Leaf, value: object) -> Unfit:
    name = f"decimal({kind.precision},{kind.scale})" if isinstance(kind, DecimalOf) else kind.value
    return Unfit(f"is of type {type(value).__name__}, which does not go into {name}")


def _from_numpy(value: np.generic) -> object:
    if isinstance(value, np.datetime64):
        micros = value.astype("datetime64[us]")
        if micros != value and not np.isnat(value):
            raise Unfit("has more than microseconds")
        value = micros
    return value.item()


# -- numbers ------------------------------------------------------------------------------------


def _integer(kind: Plain, value: object) -> int:
    if isinstance(value, float):
        if not value.is_integer():
            raise Unfit(f"is not a whole number, so it does not go into {kind.value}")
        value = int(value)
    elif isinstance(value, Decimal):
        if not value.is_finite() or value.adjusted() > _INT64_DIGITS:
            raise Unfit(f"is out of the range of {kind.value}")
        if value != value.to_integral_value():
            raise Unfit(f"is not a whole number, so it does not go into {kind.value}")
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(kind, value)
    bound = 1 << INTEGER_BITS[kind] - 1
    if not -bound <= value < bound:
        raise Unfit(f"is out of the range of {kind.value}")
    return int(value)


def _float(kind: Plain, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _wrong_type(kind, value)
    if isinstance(value, int):
        if abs(value) > _EXACT_INT[kind]:
            raise Unfit(f"is an integer that {kind.value} can't hold exactly")
        return float(value)
    if isinstance(value, Decimal):
        number = float(value) if value.is_finite() else math.nan
        if not math.isfinite(number) or Decimal(repr(number)) != value:
            raise Unfit(f"is a decimal that {kind.value} can't hold exactly")
        value = number
    if kind is Plain.FLOAT32 and math.isfinite(value):
        try:
            struct.pack("<f", value)
        except OverflowError:
            raise Unfit("is out of the range of float32") from None
    return float(value)


def _decimal(kind: DecimalOf, value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise _wrong_type(kind, value)
    if isinstance(value, int):
        if abs(value) >= 10 ** (kind.precision - kind.scale):
            raise Unfit(_too_large(kind))
        return Decimal(value)
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            raise Unfit("is not a number")
        value = Decimal(value)
    elif isinstance(value, float):
        value = Decimal(value.text if isinstance(value, WrittenFloat) else float.__repr__(value))
    if not value.is_finite():
        raise Unfit("is not a finite number")
    if not value:
        return Decimal(0)
    if value.adjusted() >= kind.precision - kind.scale:
        raise Unfit(_too_large(kind))
    sign, digits, exponent = value.as_tuple()
    beyond = -int(exponent) - kind.scale
    if beyond > 0:
        if beyond >= len(digits) or any(digits[-beyond:]):
            raise Unfit(f"has more than {kind.scale} digits behind the point")
        return Decimal((sign, digits[:-beyond], -kind.scale))
    return value


def _too_large(kind: DecimalOf) -> str:
    return f"has more than {kind.precision - kind.scale} digits before the point"


# -- text and bytes -----------------------------------------------------------------------------


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit("is not valid text: it has half of a surrogate pair") from None
    return str.__str__(value)


def _uuid(value: object) -> bytes:
    match value:
        case UUID():
            return value.bytes
        case str():
            try:
                return UUID(value).bytes
            except ValueError:
                raise Unfit("is not a UUID") from None
        case bytes() | bytearray() | memoryview() if len(bytes(value)) == 16:
            return bytes(value)
        case bytes() | bytearray() | memoryview():
            raise Unfit("is not a UUID: it is not 16 bytes long")
        case _:
            raise _wrong_type(Plain.UUID, value)


# -- times --------------------------------------------------------------------------------------


def _date(value: object) -> date:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise Unfit("is not a date in ISO form, such as 2026-07-01") from None
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            raise Unfit("has a time zone, which a date can't hold")
        if value.time() != time() or _nanoseconds(value):
            raise Unfit("has a time of day, which a date can't hold")
        return value.date()
    if isinstance(value, date):
        return value
    raise _wrong_type(Plain.DATE, value)


def _instant(value: object) -> datetime:
    if isinstance(value, date) and not isinstance(value, datetime):
        raise Unfit(NO_TIME)
    moment = _datetime(Plain.TIMESTAMP, value)
    if moment.tzinfo is None:
        if isinstance(value, datetime):
            raise Unfit(NO_ZONE)
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError):
        raise Unfit("is out of the range of times") from None


def _local(value: object) -> datetime:
    moment = _datetime(Plain.TIMESTAMP_NTZ, value)
    if moment.tzinfo is not None:
        raise Unfit("has a time zone, which timestamp_ntz can't hold")
    return moment


def _datetime(kind: Plain, value: object) -> datetime:
    if isinstance(value, str):
        beyond = _BEYOND_MICROS.search(value)
        if beyond and beyond[1].strip("0"):  # Python would cut them off
            raise Unfit("has more than microseconds")
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            raise Unfit("is not a time in ISO form, such as 2026-07-01T12:00:00Z") from None
    if isinstance(value, datetime):
        if _nanoseconds(value):
            raise Unfit("has more than microseconds")
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    raise _wrong_type(kind, value)


def _nanoseconds(value: datetime) -> int:
    """What pandas' Timestamp has beyond microseconds."""
    return int(getattr(value, "nanosecond", 0))
