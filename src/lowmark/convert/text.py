"""A column that comes as text, such as one of a CSV file, in the type of a table's column.

What people and programs write into files is read more freely than values of a program are taken:
in a file, everything is text.

    bool            true or false, in any case
    int8 … int64    digits, with a sign; 5.0 is 5, since many tools write it so
    float32, 64     digits with a point or an exponent, rounded to the nearest; nan, inf
    decimal, date, timestamp, timestamp_ntz, uuid    as text in `values`
    binary          hexadecimal digits, as defaults of columns are written
    string          as it stands
    list, struct, map    JSON

Blanks around a value do not count, but for strings.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lowmark.catalog import ColumnType, DecimalOf, ListOf, MapOf, Plain, StructOf
from lowmark.catalog.values import Leaf, Unfit
from lowmark.convert.arrow import ARROW_FAILURES, arrow_of, vectorised, whole
from lowmark.convert.objects import from_objects
from lowmark.convert.values import NUMBER, Misfit, WrittenFloat, fit

_BLANKS = " \t"
_NO_NUMBER = re.compile(r"[+-]?(?:inf|infinity|nan)", re.IGNORECASE)
_JSON = msgspec.json.Decoder(float_hook=WrittenFloat)


def from_text(kind: ColumnType, array: pa.Array) -> pa.Array:
    """The column in its own type; raises `Misfit` for the first text that can't be read."""
    match kind:
        case ListOf() | StructOf() | MapOf():
            return from_objects(kind, _each(array, _JSON.decode, "is not JSON"))
        case Plain.STRING:
            return array
        case _:
            return _leaf(kind, array)


def _leaf(kind: Leaf, array: pa.Array) -> pa.Array:
    try:
        return _at_once(kind, array)
    except ARROW_FAILURES:
        pass
    try:
        return _at_once(kind, pc.ascii_trim(array, _BLANKS))
    except ARROW_FAILURES:
        pass
    values: list[object] = []
    for index, text in enumerate(array.to_pylist()):
        try:
            values.append(None if text is None else _read(kind, text.strip(_BLANKS)))
        except Unfit as why:
            raise Misfit(index, text, str(why)) from None
    return whole(pa.array(values, arrow_of(kind)))


def _at_once(kind: Leaf, array: pa.Array) -> pa.Array:
    match kind:
        case Plain.BOOL:
            lower = pc.ascii_lower(array)
            is_true = pc.equal(lower, "true")
            if not pc.all(pc.or_(is_true, pc.equal(lower, "false")), min_count=0).as_py():
                raise ValueError("neither true nor false")
            return is_true
        case Plain.INT8 | Plain.INT16 | Plain.INT32 | Plain.INT64:
            # Arrow would also read hexadecimal digits; two signs it refuses by itself.
            if not pc.all(pc.ascii_is_decimal(pc.ascii_ltrim(array, "-")), min_count=0).as_py():
                raise ValueError("not plain digits")
            return array.cast(arrow_of(kind))
        case Plain.FLOAT32 | Plain.FLOAT64:
            made = array.cast(arrow_of(kind))
            if pc.any(pc.is_inf(made)).as_py():
                raise ValueError("infinite, or beyond the range")
            return made
        case _:
            way = vectorised(kind, array.type)
            if way is None:
                raise ValueError("no way at once")
            return way(array)


def _read(kind: Leaf, text: str) -> object:
    match kind:
        case Plain.BOOL:
            found = {"true": True, "false": False}.get(text.lower())
            if found is None:
                raise Unfit("is neither true nor false")
            return found
        case Plain.INT8 | Plain.INT16 | Plain.INT32 | Plain.INT64:
            return fit(kind, Decimal(_number(text)))
        case Plain.FLOAT32 | Plain.FLOAT64:
            number = float(text if _NO_NUMBER.fullmatch(text) else _number(text))
            if math.isinf(number) and not _NO_NUMBER.fullmatch(text):
                raise Unfit("is beyond the range of floats")
            return fit(kind, number)
        case Plain.BINARY:
            try:
                return bytes.fromhex(text)
            except ValueError:
                raise Unfit("is not an even number of hexadecimal digits") from None
        case DecimalOf() | Plain():
            return fit(kind, text)


def _number(text: str) -> str:
    if not NUMBER.fullmatch(text):
        raise Unfit("is not a number")
    return text


def _each(array: pa.Array, read: Any, why: str) -> list[Any]:
    values: list[Any] = []
    for index, text in enumerate(array.to_pylist()):
        try:
            values.append(None if text is None else read(text))
        except (msgspec.MsgspecError, ValueError):
            raise Misfit(index, text, why) from None
    return values
