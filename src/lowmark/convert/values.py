"""Values of rows: what else is taken for a value that fits.

Which of Python's own values fit a column is the table in `lowmark.catalog.values`. Rows come from
everywhere, so more is taken here, if nothing of it is lost:

    column         takes, too
    int8 … int64   float and Decimal without a fraction
    float32, 64    Decimal whose float shows the same digits
    decimal(p,s)   text such as "9.50" or "1e3"; float by its shortest digits: 9.5 is 9.50, and
                   0.1 + 0.2 is refused for s = 2
    binary         the bytes of a UUID
    uuid           its text
    date           datetime without a zone at midnight; text such as "2026-07-01"
    timestamp      text in ISO form: without a zone it is UTC, as it is in files
    timestamp_ntz  date; text
    list<t>        list, tuple, numpy array; neither text nor set
    struct<…>      dict; a missing field is null; a field that the struct does not have is refused
    map<k, v>      dict, or list of pairs; a null key is refused

Everywhere, numpy's scalars count as the values that they hold, and pandas' NaT and NA as null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Self
from uuid import UUID

import numpy as np

from lowmark.catalog import DecimalOf, Plain
from lowmark.catalog import values as rule
from lowmark.catalog.types import INTEGER_BITS
from lowmark.catalog.values import Leaf, Unfit, is_missing, nanoseconds, out_of_range

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
"""How numbers are written as text."""

_BEYOND_MICROS = re.compile(r"[.,][0-9]{6}([0-9]+)")
_INT64_DIGITS = 19


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


def fit(kind: Leaf, value: object) -> rule.Fitted | None:
    """The value in the form that Arrow takes, losing nothing."""
    if is_missing(value):
        return None
    if isinstance(value, np.generic):
        value = _from_numpy(value)
    return rule.fit(kind, _meant(kind, value))


def _from_numpy(value: np.generic) -> object:
    if isinstance(value, np.datetime64):
        micros = value.astype("datetime64[us]")
        if micros != value and not np.isnat(value):
            raise Unfit("has more than microseconds")
        value = micros
    return value.item()


def _meant(kind: Leaf, value: object) -> object:
    """The value of the column's own type that is meant; others as they are, to be refused."""
    match kind, value:
        case DecimalOf(), float():
            written = value.text if isinstance(value, WrittenFloat) else float.__repr__(value)
            return Decimal(written)
        case DecimalOf(), str():
            if not NUMBER.fullmatch(value):
                raise Unfit("is not a number")
            return Decimal(value)
        case Plain(), float() | Decimal() if kind in INTEGER_BITS:
            return _integer(kind, value)
        case Plain.FLOAT32 | Plain.FLOAT64, Decimal():
            number = float(value) if value.is_finite() else math.nan
            if not math.isfinite(number) or Decimal(repr(number)) != value:
                raise Unfit(f"is a decimal that {kind.value} can't hold exactly")
            return number
        case Plain.BINARY, UUID():
            return value.bytes
        case Plain.UUID, bytearray() | memoryview():
            return bytes(value)
        case Plain.UUID, str():
            try:
                return UUID(value)
            except ValueError:
                raise Unfit("is not a UUID") from None
        case Plain.DATE, str() | datetime():
            return _date(value)
        case Plain.TIMESTAMP | Plain.TIMESTAMP_NTZ, str():
            moment = _moment(value)
            if kind is Plain.TIMESTAMP and moment.tzinfo is None:
                return moment.replace(tzinfo=UTC)
            return moment
        case Plain.TIMESTAMP_NTZ, date() if not isinstance(value, datetime):
            return datetime.combine(value, time())
        case _:
            return value


def _integer(kind: Plain, value: float | Decimal) -> int:
    if isinstance(value, Decimal):
        if not value.is_finite() or value.adjusted() > _INT64_DIGITS:
            raise out_of_range(kind.value)
        is_whole = value == value.to_integral_value()
    else:
        is_whole = value.is_integer()
    if not is_whole:
        raise Unfit(f"is not a whole number, so it does not go into {kind.value}")
    return int(value)


def _date(value: str | datetime) -> date:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise Unfit("is not a date in ISO form, such as 2026-07-01") from None
    if value.tzinfo is not None:
        raise Unfit("has a time zone, which a date can't hold")
    if value.time() != time() or nanoseconds(value):
        raise Unfit("has a time of day, which a date can't hold")
    return value.date()


def _moment(text: str) -> datetime:
    beyond = _BEYOND_MICROS.search(text)
    if beyond and beyond[1].strip("0"):  # Python would cut them off
        raise Unfit("has more than microseconds")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Unfit("is not a time in ISO form, such as 2026-07-01T12:00:00Z") from None
