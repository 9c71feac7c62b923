"""A column that comes as Arrow, in the type of a table's column.

The same type is handed on as it is. Otherwise a vectorised way is tried; only such ways are taken
as refuse all that `values` refuses, by Arrow's own checks or by one more here. Where there
is none, or where it fails, values are taken one by one: that finds the first one that does not fit,
or gets through with forms that Arrow does not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lowmark.catalog import ColumnType, DecimalOf, ListOf, MapOf, Plain, StructOf
from lowmark.catalog.arrow import to_arrow
from lowmark.catalog.values import NO_TIME, NO_ZONE, Leaf, Unfit
from lowmark.convert.values import Misfit, fit, fit_all
from lowmark.errors import Rejected

# Lists, structs and maps, put together from columns of their parts.
#
# A list column is one column of all elements and where each list ends; a struct column is a column
# per field. So parts are coerced as columns are, however deep, and a value that does not fit is
# traced back from its place among the parts to its row.

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

    That an array's type says so proves nothing: Arrow does not check it.
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
                raise Misfit(at, None, "is not allowed: the field is required", within)
        arrays.append(array)
    return pa.StructArray.from_arrays(arrays, fields=list(arrow_of(kind)), mask=nulls)


def _int32(offsets: Offsets) -> pa.Array:
    # Arrow refuses what does not fit.
    return pa.array(offsets).cast(pa.int32())


def _traced(misfit: Misfit, offsets: Offsets, word: str) -> Misfit:
    index = int(np.searchsorted(offsets, misfit.index, side="right")) - 1
    place = f"{word} {misfit.index - int(offsets[index])}"
    return Misfit(index, misfit.value, misfit.why, (place, *misfit.within))


ARROW_FAILURES = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What Arrow raises for values that it does not take; some are Python's own."""

_SLICE_ROWS = 1_024
_UUID_TEXT = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_NIL_TEXT = "00000000-0000-0000-0000-000000000000"

_DIGITS_128, _DIGITS_256 = 38, 76
_EXPONENT, _LOWER = ord("e"), 0x20

_FIRST_MICROS, _LAST_MICROS = (
    (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    for moment in (datetime.min, datetime.max)  # noqa: DTZ901
)

_Way = Callable[[pa.Array], pa.Array]
WRITTEN_OUT_BYTES_MAX = 1 << 30
"""How large a column may become whose values are written once and meant many times."""


def from_arrow(kind: ColumnType, array: pa.Array) -> pa.Array:
    """The column in its own type; raises `Misfit` for the first value that does not fit."""
    if array.type == arrow_of(kind) and not asks_inside(kind):
        return array
    array = unwrapped(array)
    if array.null_count == len(array):
        return pa.nulls(len(array), arrow_of(kind))
    match kind:
        case ListOf():
            return _list(kind, array)
        case StructOf():
            return _struct(kind, array)
        case MapOf():
            return _map(kind, array)
        case _:
            return _leaf(kind, array)


def unwrapped(array: pa.Array) -> pa.Array:
    """Without what only says how values are kept, or what they mean to a program."""
    while True:
        if pa.types.is_dictionary(array.type):
            values, places = array.dictionary, array.indices
            _check_written_out(len(array), values, partial(pc.take, indices=places))
            array = _without_views(array.dictionary).take(array.indices)
        elif pa.types.is_run_end_encoded(array.type):
            _check_written_out(len(array), array.values, partial(_times, runs=array))
            array = pc.run_end_decode(array)
        elif isinstance(array, pa.ExtensionArray):
            array = array.storage
        else:
            if _is_view(array):
                _check_size(len(array), _viewed_bytes(array))
            return array


def _check_written_out(count: int, values: pa.Array, each: Callable[[pa.Array], pa.Array]) -> None:
    """Refuse values that are written once and meant many times, before they take all memory;
    `each` says of something that there is of each value how often it is meant.
    """
    if count * (values.nbytes + 1) <= WRITTEN_OUT_BYTES_MAX:
        return
    if is_text(values.type) or pa.types.is_binary(values.type):
        size = pc.sum(each(pc.binary_length(values).cast(pa.int64()))).as_py() or 0
    else:
        try:
            size = count * values.type.bit_width // 8
        except ValueError:  # nested: there is a bound, and no more
            size = count * values.nbytes
    _check_size(count, size)


def _check_size(count: int, size: int) -> None:
    if size > WRITTEN_OUT_BYTES_MAX:
        raise Rejected(
            f"a column of {count:,} rows has {size:,} bytes when its values are written out",
            detail=f"At most {WRITTEN_OUT_BYTES_MAX:,} bytes of a column are taken at once.",
            hint="Append it in smaller batches.",
        )


def _is_view(array: pa.Array) -> bool:
    return bool(pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type))


def _viewed_bytes(array: pa.Array) -> int:
    """How long the values of a view are together: any number of them may be one and the same."""
    views = array.buffers()[1]
    if views is None or not len(array):
        return 0
    # Each has 16 bytes, and begins with its length.
    end = array.offset + len(array)
    lengths = np.frombuffer(views, "<i4", count=4 * end)[::4][array.offset :]
    there = array.is_valid().to_numpy(zero_copy_only=False)
    return int(lengths[there].sum(dtype=np.int64))


def _times(lengths: pa.Array, runs: pa.Array) -> pa.Array:
    """Lengths of values, each as often as its run is long."""
    ends = runs.run_ends.cast(pa.int64())
    begins = pa.concat_arrays([pa.array([0], pa.int64()), ends[:-1]])
    return pc.multiply(lengths, pc.subtract(ends, begins))


def _without_views(array: pa.Array) -> pa.Array:
    """Values that can be taken by index; of views, Arrow does not know how."""
    if _is_view(array):
        _check_size(len(array), _viewed_bytes(array))
    if pa.types.is_string_view(array.type):
        return array.cast(pa.string())
    if pa.types.is_binary_view(array.type):
        return array.cast(pa.binary())
    return array


# -- leaves -------------------------------------------------------------------------------------


def _leaf(kind: Leaf, array: pa.Array) -> pa.Array:
    target = arrow_of(kind)
    if array.type == target:
        return array
    if kind is Plain.TIMESTAMP and pa.types.is_timestamp(array.type) and array.type.tz is None:
        raise _first_valid(array, NO_ZONE)
    if kind is Plain.TIMESTAMP and pa.types.is_date(array.type):
        raise _first_valid(array, NO_TIME)
    way = vectorised(kind, array.type)
    if way is not None:
        try:
            return way(array)
        except ARROW_FAILURES:
            pass
    if isinstance(kind, DecimalOf) and pa.types.is_floating(array.type):
        # By the digits of its own width: as a Python float, 0.1 of 32 bits would show more.
        return _as_the_same(array, lambda: _leaf(kind, as_strings(array)))
    try:
        return whole(pa.array(fit_all(kind, _values(array)), target))
    except ARROW_FAILURES:
        # Values that Python can't hold, such as times in the year 100,000.
        if way is None:
            raise Misfit(0, _shown(array, 0), f"is of Arrow's type {array.type}") from None
        index = _first_bad(way, array)
        raise Misfit(index, _shown(array, index), _why(kind, array[index])) from None


def vectorised(kind: Leaf, source: pa.DataType) -> _Way | None:
    """How a whole array gets into a type at once, if there is a way that loses nothing."""
    types, target = pa.types, arrow_of(kind)
    cast: _Way = lambda array: array.cast(target)  # noqa: E731
    text = is_text(source)
    match kind:
        case DecimalOf():
            if types.is_decimal(source):
                return _rescaling(source, kind)
            if types.is_integer(source):
                wide = pa.decimal256(20 + kind.scale, kind.scale)
                return lambda array: array.cast(wide).cast(target)
            if types.is_floating(source) or text:
                return lambda array: decimals_of_text(kind, as_strings(array))
        case Plain.INT8 | Plain.INT16 | Plain.INT32 | Plain.INT64:
            if types.is_integer(source) or types.is_floating(source):
                return cast
            if types.is_decimal(source) and source.scale >= 0:
                return cast
        case Plain.FLOAT32 | Plain.FLOAT64:
            if types.is_integer(source):
                return cast
            if types.is_floating(source):
                return _float_way(target)
        case Plain.STRING:
            if text:
                return cast
        case Plain.BINARY:
            if _is_binary(source):
                return cast
        case Plain.UUID:
            if text:
                return _uuids
            if _is_binary(source):
                return cast
        case Plain.DATE:
            if types.is_date(source):
                return cast
            if types.is_timestamp(source) and source.tz is None:
                return _midnights
            if text:
                return lambda array: as_strings(array).cast(target)
        case Plain.TIMESTAMP:
            if types.is_timestamp(source) and source.tz is not None:
                return cast
            if text:
                return _instants
        case Plain.TIMESTAMP_NTZ:
            if types.is_date(source) or (types.is_timestamp(source) and source.tz is None):
                return cast
            if text:
                return lambda array: as_strings(array).cast(target)
        case Plain.BOOL:
            pass
    return None


def whole(made: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array; Arrow makes several when one can't hold it all."""
    if isinstance(made, pa.ChunkedArray):
        raise Rejected(
            "a column has more than 2 GiB in one batch of rows",
            hint="Append fewer rows at once.",
        )
    return made


def is_text(source: pa.DataType) -> bool:
    """Whether a type is one of Arrow's forms of text."""
    types = pa.types
    return bool(
        types.is_string(source) or types.is_large_string(source) or types.is_string_view(source)
    )


def as_strings(array: pa.Array) -> pa.Array:
    """As plain strings: not all of Arrow's casts know the other forms of text."""
    return array if pa.types.is_string(array.type) else array.cast(pa.string())


def has_overflown(given: pa.Array, made: pa.Array) -> bool:
    """Whether floats became infinite on their way into a narrower type."""
    infinite = pc.is_inf(made)
    return bool(pc.any(infinite).as_py()) and bool(
        pc.any(pc.and_not(infinite, pc.is_inf(given))).as_py()
    )


def decimals_of_text(kind: DecimalOf, array: pa.Array) -> pa.Array:
    """Decimals from strings, as long as Arrow can't overflow: it would not notice.

    To get to the scale, it multiplies in 128 or 256 bits, and what does not fit wraps around.
    """
    signs = array.buffers()[2]
    if signs is not None and ((np.frombuffer(signs, np.uint8) | _LOWER) == _EXPONENT).any():
        raise OverflowError  # maybe
    longest = pc.max(pc.binary_length(array)).as_py() or 0
    if longest + kind.scale <= _DIGITS_128:
        return array.cast(arrow_of(kind))
    if longest + kind.scale <= _DIGITS_256:
        return array.cast(pa.decimal256(_DIGITS_256, kind.scale)).cast(arrow_of(kind))
    raise OverflowError  # maybe


def _rescaling(source: pa.DataType, kind: DecimalOf) -> _Way | None:
    """From one decimal type to another; for the same reason, in as many bits as it takes."""
    target = arrow_of(kind)
    digits = source.precision + max(0, kind.scale - source.scale)
    if source.scale < 0 or digits > _DIGITS_256:
        return None
    if digits <= _DIGITS_128 and source.precision <= _DIGITS_128:
        return lambda array: array.cast(target)
    same, wide = (pa.decimal256(_DIGITS_256, scale) for scale in (source.scale, kind.scale))
    return lambda array: array.cast(same).cast(wide).cast(target)


def _float_way(target: pa.DataType) -> _Way:
    def way(array: pa.Array) -> pa.Array:
        made = array.cast(target)
        if has_overflown(array, made):
            raise OverflowError
        return made

    return way


def in_calendar(instants: pa.Array) -> pa.Array:
    """The same, unless its zone takes one out of the years that Python has."""
    ends = pc.min_max(instants.cast(pa.int64())).as_py()
    if ends["min"] is not None and (ends["min"] < _FIRST_MICROS or ends["max"] > _LAST_MICROS):
        raise OverflowError
    return instants


def _midnights(array: pa.Array) -> pa.Array:
    dates = array.cast(pa.date32())
    if not dates.cast(array.type).equals(array):
        raise ValueError("a time of day")
    return dates


def _instants(array: pa.Array) -> pa.Array:
    array = as_strings(array)
    try:
        return in_calendar(array.cast(pa.timestamp("us", tz="UTC")))
    except pa.ArrowInvalid:
        # Without zones: by the rule, they are UTC. With and without is for one by one.
        return array.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))


def _uuids(array: pa.Array) -> pa.Array:
    """UUIDs from text in the usual form: all digits at once, not one object per value."""
    array = as_strings(array)
    full = array.fill_null(_NIL_TEXT) if array.null_count else array
    if not pc.all(pc.match_substring_regex(full, _UUID_TEXT)).as_py():
        raise ValueError("another form of UUID")
    digits = pc.replace_substring(full, "-", "")
    size = len(digits)
    made = bytes.fromhex(digits.buffers()[2].to_pybytes()[: 32 * size].decode("ascii"))
    uuids = pa.Array.from_buffers(pa.binary(16), size, [None, pa.py_buffer(made)])
    return pc.if_else(array.is_valid(), uuids, None) if array.null_count else uuids


def _is_binary(source: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(source)
        or types.is_large_binary(source)
        or types.is_binary_view(source)
        or types.is_fixed_size_binary(source)
    )


def _values(array: pa.Array) -> Iterator[object]:
    """As Python values; by and by, since the first may be the bad one."""
    slices = (array.slice(at, _SLICE_ROWS) for at in range(0, len(array), _SLICE_ROWS))
    return chain.from_iterable(each.to_pylist() for each in slices)


def _as_the_same(array: pa.Array, make: Callable[[], pa.Array]) -> pa.Array:
    try:
        return make()
    except Misfit as misfit:
        raise Misfit(misfit.index, array[misfit.index].as_py(), misfit.why) from None


def _first_bad(way: _Way, array: pa.Array) -> int:
    """The first value that a way refuses; it refuses at least one."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            way(array.slice(low, middle - low))
            low = middle
        except ARROW_FAILURES:
            high = middle
    return low


def _why(kind: Leaf, scalar: pa.Scalar) -> str:
    try:
        fit(kind, scalar.as_py())
    except Unfit as why:
        return str(why)
    except ARROW_FAILURES:
        pass
    if pa.types.is_timestamp(scalar.type) and scalar.type.unit == "ns":
        return "has more than microseconds"
    return "is out of range"


def _shown(array: pa.Array, index: int) -> object:
    try:
        return array[index].as_py()
    except ARROW_FAILURES:
        return _Bare(str(array[index].cast(pa.string())))


class _Bare(str):
    """Text that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# -- nested -------------------------------------------------------------------------------------


def _list(kind: ListOf, array: pa.Array) -> pa.Array:
    if not _is_list(array.type):
        raise _not_a(array, "a list")
    offsets = _offsets(pc.list_value_length(array))
    return list_of(kind, offsets, array.flatten(), _nulls(array), from_arrow)


def _struct(kind: StructOf, array: pa.Array) -> pa.Array:
    if not pa.types.is_struct(array.type):
        raise _not_a(array, "a struct")
    names = [field.name for field in array.type]
    known = {field.name for field in kind.fields}
    for name in names:
        if name not in known:
            raise _first_valid(array, f"has a field {name}, which the struct does not")
        if names.count(name) > 1:
            raise _first_valid(array, f"has two fields {name}")
    # Flattened, a part is null where its struct is.
    parts = dict(zip(names, array.flatten(), strict=True))
    return struct_of(kind, parts, len(array), _nulls(array), from_arrow)


def _map(kind: MapOf, array: pa.Array) -> pa.Array:
    if pa.types.is_map(array.type):
        if array.null_count:
            # Behind a null there may be entries, which must not be counted.
            entries = pa.list_(pa.struct([array.type.key_field, array.type.item_field]))
            array = array.cast(entries)
        else:
            begins: Offsets = array.offsets.to_numpy().astype(np.int64)
            entries = slice(int(begins[0]), int(begins[-1]))
            keys, items = array.keys[entries], array.items[entries]
            return map_of(kind, begins - begins[0], keys, items, None, from_arrow)
    # Who has no maps, such as polars, has lists of pairs.
    pairs = _is_list(array.type) and array.type.value_type
    if not (pairs and pa.types.is_struct(pairs) and pairs.num_fields == 2):
        raise _not_a(array, "a map")
    keys, items = array.flatten().flatten()
    offsets = _offsets(pc.list_value_length(array))
    return map_of(kind, offsets, keys, items, _nulls(array), from_arrow)


def _is_list(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(arrow)
        or types.is_large_list(arrow)
        or types.is_fixed_size_list(arrow)
        or types.is_list_view(arrow)
        or types.is_large_list_view(arrow)
    )


def _offsets(lengths: pa.Array) -> Offsets:
    ends = np.cumsum(lengths.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    return np.concatenate((np.zeros(1, np.int64), ends))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _not_a(array: pa.Array, word: str) -> Misfit:
    return _first_valid(array, f"is of Arrow's type {array.type}, which is not {word}")


def _first_valid(array: pa.Array, why: str) -> Misfit:
    index = pc.index(array.is_valid(), value=True).as_py()
    return Misfit(index, _shown(array, index), why)
