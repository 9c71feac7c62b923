"""A column that comes as Python objects, in the type of a table's column.

First, all at once: if the objects are of types of which Arrow takes nothing that `values`
refuses, Arrow makes the array. Then through another Arrow type: text becomes an array of strings,
which is cast. Last, one by one, which also finds the first value that does not fit.

The types of the objects decide, not whether Arrow agrees: left alone, it takes text for bytes, cuts
the time off a datetime, and forgets a dict's keys that a struct does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from lowmark.catalog import ColumnType, DecimalOf, ListOf, MapOf, Plain, StructOf
from lowmark.catalog.values import Leaf, is_missing
from lowmark.convert.arrow import (
    ARROW_FAILURES,
    Offsets,
    arrow_of,
    decimals_of_text,
    has_overflown,
    in_calendar,
    list_of,
    map_of,
    struct_of,
    vectorised,
    whole,
)
from lowmark.convert.values import Misfit, WrittenFloat, fit_all

_FLOATS = frozenset({float, int, WrittenFloat})
_NUMBERS = frozenset({Decimal, int, float, WrittenFloat})
_AS_IS: dict[Plain, frozenset[type]] = {
    Plain.BOOL: frozenset({bool}),
    Plain.INT8: frozenset({int}),
    Plain.INT16: frozenset({int}),
    Plain.INT32: frozenset({int}),
    Plain.INT64: frozenset({int}),
    Plain.FLOAT32: _FLOATS,
    Plain.FLOAT64: _FLOATS,
    Plain.STRING: frozenset({str}),
    Plain.BINARY: frozenset({bytes, bytearray}),
    Plain.UUID: frozenset({UUID, bytes}),
    Plain.DATE: frozenset({date}),
    Plain.TIMESTAMP: frozenset({datetime}),
    Plain.TIMESTAMP_NTZ: frozenset({datetime}),
}
"""The types, exactly, of which Arrow makes an array and loses nothing."""

_THROUGH: dict[type, pa.DataType] = {
    str: pa.string(),
    float: pa.float64(),
    date: pa.date32(),
    datetime: pa.timestamp("us"),
}
"""The Arrow types that objects become first, on their way to a type that is not theirs."""


def from_objects(kind: ColumnType, values: list[Any]) -> pa.Array:
    """The column in its own type; raises `Misfit` for the first value that does not fit."""
    match kind:
        case ListOf():
            return _lists(kind, values)
        case StructOf():
            return _structs(kind, values)
        case MapOf():
            return _maps(kind, values)
        case _:
            return _leaves(kind, values)


def _leaves(kind: Leaf, values: list[Any]) -> pa.Array:
    types = set(map(type, values))
    types.discard(type(None))
    if not types:
        return pa.nulls(len(values), arrow_of(kind))
    try:
        made = _at_once(kind, values, types)
    except ARROW_FAILURES:
        made = None
    return whole(pa.array(fit_all(kind, values), arrow_of(kind)) if made is None else made)


def _at_once(kind: Leaf, values: list[Any], types: set[type]) -> pa.Array | None:
    if isinstance(kind, DecimalOf):
        return _decimals(kind, values, types)
    if types <= _AS_IS[kind]:
        return _as_is(kind, values)
    return _through(kind, values, types)


def _as_is(kind: Plain, values: list[Any]) -> pa.Array | None:
    if kind is Plain.TIMESTAMP_NTZ and _zones(values) != {None}:
        return None
    if kind is Plain.TIMESTAMP and None in _zones(values):
        return None
    made = pa.array(values, arrow_of(kind))
    if kind is Plain.FLOAT32 and has_overflown(pa.array(values, pa.float64()), made):
        return None
    return in_calendar(made) if kind is Plain.TIMESTAMP else made


def _through(kind: Leaf, values: list[Any], types: set[type]) -> pa.Array | None:
    """By way of another Arrow type, if all objects are of one type that has one."""
    if len(types) > 1:
        return None
    (source,) = types
    if source is datetime and _zones(values) != {None}:
        return None
    through = _THROUGH.get(source)
    way = vectorised(kind, through) if through is not None else None
    return way(pa.array(values, through)) if way is not None else None


def _decimals(kind: DecimalOf, values: list[Any], types: set[type]) -> pa.Array | None:
    """By way of their digits: of a Decimal with very many of them, Arrow makes something else."""
    if types == {str}:
        return decimals_of_text(kind, pa.array(values, pa.string()))
    if not types <= _NUMBERS:
        return None
    texts = [None if value is None else str(value) for value in values]
    return decimals_of_text(kind, pa.array(texts, pa.string()))


def _zones(values: list[Any]) -> set[Any]:
    return set(map(attrgetter("tzinfo"), filter(None, values)))


# -- nested -------------------------------------------------------------------------------------


def _lists(kind: ListOf, values: list[Any]) -> pa.Array:
    elements: list[Any] = []
    ends = [0]
    for index, value in enumerate(values):
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, list | tuple):
            elements.extend(value)
        elif not is_missing(value):
            raise Misfit(index, value, f"is of type {type(value).__name__}, which is not a list")
        ends.append(len(elements))
    return list_of(kind, _offsets(ends), elements, _nulls(values), from_objects)


def _structs(kind: StructOf, values: list[Any]) -> pa.Array:
    known = {field.name for field in kind.fields}
    dicts: list[Mapping[Any, Any]] = []
    for index, value in enumerate(values):
        if isinstance(value, Mapping):
            if not known.issuperset(value):
                extra = next(name for name in value if name not in known)
                raise Misfit(index, value, f"has a field {extra}, which the struct does not")
            dicts.append(value)
        elif is_missing(value):
            dicts.append({})
        else:
            raise Misfit(index, value, f"is of type {type(value).__name__}, which is not a dict")
    parts = {name: [each.get(name) for each in dicts] for name in known}
    return struct_of(kind, parts, len(values), _nulls(values), from_objects)


def _maps(kind: MapOf, values: list[Any]) -> pa.Array:
    keys: list[Any] = []
    items: list[Any] = []
    ends = [0]
    for index, value in enumerate(values):
        if isinstance(value, Mapping):
            keys.extend(value.keys())
            items.extend(value.values())
        elif isinstance(value, list | tuple) and all(map(_is_pair, value)):
            keys.extend(key for key, _ in value)
            items.extend(item for _, item in value)
        elif not is_missing(value):
            raise Misfit(index, value, f"is of type {type(value).__name__}, which is not a dict")
        ends.append(len(keys))
    return map_of(kind, _offsets(ends), keys, items, _nulls(values), from_objects)


def _is_pair(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _offsets(ends: list[int]) -> Offsets:
    return np.array(ends, np.int64)


def _nulls(values: list[Any]) -> pa.Array | None:
    nulls = list(map(is_missing, values))
    return pa.array(nulls, pa.bool_()) if any(nulls) else None
