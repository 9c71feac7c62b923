"""Filters that Spark pushes, as Arrow expressions: those that both judge alike.

Spark trusts a source: a filter that was taken is not looked at again. So only those are taken whose
answer is the same for every value, null included:

* not on floats: for Spark NaN equals itself and is above all others, for Arrow neither
* not on nested columns and fields of structs
* not where the value has another type than the column
* not on days before the calendar of today, which Spark hands over as days of another one

A list with null in it holds for what else is in it, and its negation for nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as sp

from lowmark.frames.columns import named

_CALENDAR_OF_TODAY = 1583
_OF_STRINGS = (sp.StringStartsWith, sp.StringEndsWith, sp.StringContains)


def taken(filters: Sequence[sp.Filter], schema: pa.Schema) -> tuple[list[sp.Filter], Any]:
    """The filters that are left to Spark, and the others as one expression; None: none."""
    left: list[sp.Filter] = []
    expressions: list[Any] = []
    for one in filters:
        made = _expression(one, schema)
        if made is None:
            left.append(one)
        else:
            expressions.append(made)
    return left, reduce(lambda a, b: a & b, expressions) if expressions else None


def _expression(one: sp.Filter, schema: pa.Schema) -> Any | None:
    if isinstance(one, sp.Not):
        child = one.child
        if isinstance(child, sp.In) and any(value is None for value in child.value):
            return None
        made = _expression(child, schema)
        return None if made is None else ~made
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    name = named(attribute[0], schema.names) if len(attribute) == 1 else ""
    if name not in schema.names:
        return None
    kind, field = schema.field(name).type, pc.field(name)
    if isinstance(one, sp.IsNull):
        return field.is_null()
    if isinstance(one, sp.IsNotNull):
        return field.is_valid()
    if isinstance(one, sp.In):
        there = [value for value in one.value if value is not None]
        if any(_scalar(value, kind) is None for value in there):
            return None
        # It is null for null, as in Spark: so its negation does not hold for it, either.
        found = field.isin(pa.array(there, kind))
        return pc.if_else(field.is_valid(), found, pa.scalar(None, pa.bool_()))
    value = _scalar(getattr(one, "value", None), kind)
    if isinstance(one, sp.EqualNullSafe) and one.value is None:
        return field.is_null()
    if value is None:
        return None
    if isinstance(one, _OF_STRINGS):
        return _of_string(one, field, kind)
    return _compared(one, field, value)


def _compared(one: sp.Filter, field: Any, value: pa.Scalar) -> Any | None:
    match one:
        case sp.EqualTo():
            return field == value
        case sp.EqualNullSafe():
            return pc.if_else(field.is_valid(), field == value, pa.scalar(False))
        case sp.GreaterThan():
            return field > value
        case sp.GreaterThanOrEqual():
            return field >= value
        case sp.LessThan():
            return field < value
        case sp.LessThanOrEqual():
            return field <= value
        case _:
            return None


def _of_string(one: sp.Filter, field: Any, kind: pa.DataType) -> Any | None:
    if not pa.types.is_string(kind):
        return None
    match one:
        case sp.StringStartsWith():
            return pc.starts_with(field, pattern=one.value)
        case sp.StringEndsWith():
            return pc.ends_with(field, pattern=one.value)
        case sp.StringContains():
            return pc.match_substring(field, pattern=one.value)
        case _:
            return None


def _scalar(value: object, kind: pa.DataType) -> pa.Scalar | None:
    """A value of a filter in its column's type; None, if it is none of it."""
    types = pa.types
    fits: bool
    match value:
        case bool():
            fits = types.is_boolean(kind)
        case int():
            fits = types.is_integer(kind)
        case str():
            fits = types.is_string(kind)
        case bytes() | bytearray():
            fits = types.is_binary(kind)
        case Decimal():
            fits = types.is_decimal(kind)
        case dt.datetime():
            fits = types.is_timestamp(kind) and (kind.tz is None) == (value.tzinfo is None)
        case dt.date():
            fits = types.is_date32(kind)
        case _:
            fits = False
    if not fits or (isinstance(value, dt.date) and value.year < _CALENDAR_OF_TODAY):
        return None
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return None
