"""Lists, structs and maps, put together from columns of their parts.

A list column is one column of all elements and where each list ends; a struct column is a column
per field. So parts are coerced as columns are, however deep, and a value that does not fit is
traced back from its place among the parts to its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lowmark.catalog import ColumnType, ListOf, MapOf, StructOf
from lowmark.catalog.arrow import to_arrow
from lowmark.convert.values import Misfit

Convert = Callable[[ColumnType, Any], pa.Array]
"""Turns a column of parts, of whatever form, into an array of the type."""

Offsets = npt.NDArray[np.int64]
"""Where each list begins among all elements, and where the last one ends."""


@lru_cache(maxsize=4096)
def arrow_of(kind: ColumnType) -> pa.DataType:
    """The Arrow type of a column type; made once."""
    return to_arrow(kind)


@lru_cache(maxsize=4096)
def asks_inside(kind: ColumnType) -> bool:
    """Whether values have parts that must not be null, so that they must be looked into.

    That an array's type says so proves nothing: Arrow holds nobody to it.
    """
    match kind:
        case StructOf(fields):
            return any(field.required or asks_inside(field.type) for field in fields)
        case ListOf(element):
            return asks_inside(element)
        case MapOf(_, value):
            return asks_inside(value)
        case _:
            return False


def list_of(
    kind: ListOf, offsets: Offsets, elements: Any, nulls: pa.Array | None, convert: Convert
) -> pa.Array:
    """A list column of the elements of all lists."""
    try:
        values = convert(kind.element, elements)
    except Misfit as misfit:
        raise _traced(misfit, offsets, "element") from None
    # The type is given, so that the name of its element is the same everywhere.
    return pa.ListArray.from_arrays(_int32(offsets), values, type=arrow_of(kind), mask=nulls)


def map_of(
    kind: MapOf,
    offsets: Offsets,
    keys: Any,
    items: Any,
    nulls: pa.Array | None,
    convert: Convert,
) -> pa.Array:
    """A map column of the keys and values of all maps."""
    try:
        key_values = convert(kind.key, keys)
        if key_values.null_count:
            at = pc.index(key_values.is_null(), value=True).as_py()
            raise Misfit(at, None, "can't be the key of a map")
        item_values = convert(kind.value, items)
    except Misfit as misfit:
        raise _traced(misfit, offsets, "entry") from None
    return pa.MapArray.from_arrays(
        _int32(offsets), key_values, item_values, type=arrow_of(kind), mask=nulls
    )


def struct_of(
    kind: StructOf,
    parts: Mapping[str, Any],
    rows: int,
    nulls: pa.Array | None,
    convert: Convert,
) -> pa.Array:
    """A struct column of a column per field; a part is null where its struct is."""
    arrays = []
    for field in kind.fields:
        within = (f"field {field.name}",)
        try:
            if field.name in parts:
                array = convert(field.type, parts[field.name])
            else:
                array = pa.nulls(rows, arrow_of(field.type))
        except Misfit as misfit:
            raise Misfit(misfit.index, misfit.value, misfit.why, within + misfit.within) from None
        if field.required and array.null_count:
            bare = array.is_null() if nulls is None else pc.and_not(array.is_null(), nulls)
            at = pc.index(bare, value=True).as_py()
            if at >= 0:
                raise Misfit(at, None, "can't stand here: the field is required", within)
        arrays.append(array)
    return pa.StructArray.from_arrays(arrays, fields=list(arrow_of(kind)), mask=nulls)


def _int32(offsets: Offsets) -> pa.Array:
    # Arrow refuses what does not fit.
    return pa.array(offsets).cast(pa.int32())


def _traced(misfit: Misfit, offsets: Offsets, word: str) -> Misfit:
    index = int(np.searchsorted(offsets, misfit.index, side="right")) - 1
    place = f"{word} {misfit.index - int(offsets[index])}"
    return Misfit(index, misfit.value, misfit.why, (place, *misfit.within))
