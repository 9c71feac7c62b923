"""The canonical form of keys: one integer or one run of bytes per key, equal if the keys are.

Partitions, indexes and folds see keys in this form only. A key of one column has the form that
Iceberg hashes it in, so every engine that knows Iceberg's bucket transform finds the same
partition. A key of several columns is written column behind column, without ambiguity. The format
is in docs/formats/keys.md. Partitions of stored rows depend on it: it will never change.

A row whose key columns are all null has no key: it is null in the canonical array and belongs to no
bucket. A key with only some nulls is none at all; `partly_null` finds it, and the caller refuses
its batch.

There are two ways to the same form: arrays, without Python per row, for batches; single values, for
looking up a key. They agree to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lowmark.catalog import (
    ColumnId,
    ColumnType,
    DecimalOf,
    Plain,
    Table,
    TableSchema,
    can_be_key,
    type_text,
)
from lowmark.catalog.arrow import to_arrow
from lowmark.catalog.types import INTEGER_BITS
from lowmark.catalog.values import Unfit, fit, is_missing
from lowmark.errors import InvariantBroken, Rejected, invariant
from lowmark.formatting import counted, shown, verb
from lowmark.table.hashing import (
    U64,
    hash64_bytes,
    hash64_long,
    hash64_longs,
    hash64_one,
    longs_of,
    murmur3_bytes,
    murmur3_long,
    murmur3_longs,
    murmur3_one,
)

Canonical: TypeAlias = int | bytes
"""A key in its one form: an integer of 64 bits with a sign, or bytes."""

_AS_INTEGER: Final = frozenset(
    {*INTEGER_BITS, Plain.DATE, Plain.TIMESTAMP, Plain.TIMESTAMP_NTZ},
)
_POSITIVE = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class KeyForm:
    """The columns of a key in the key's order, and how keys of them are written."""

    names: tuple[str, ...]
    types: tuple[ColumnType, ...]
    ids: tuple[ColumnId, ...] = ()

    def __post_init__(self) -> None:
        invariant(self.names, "a table without a key has no form of keys")
        invariant(len(self.names) == len(self.types), "each column of a key has a type")
        for column_type in self.types:
            invariant(can_be_key(column_type), f"{type_text(column_type)} can't be in a key")

    @classmethod
    def of(cls, table: Table, schema: TableSchema | None = None) -> Self:
        """The form of a table's keys. Types and ids never change, but names do: rows that were
        written with an older schema version are found by the names that it has.
        """
        columns = table.key_columns
        if schema is not None:
            by_id = {column.id: column for column in schema.columns}
            columns = tuple(by_id[column_id] for column_id in table.key)
        return cls(
            tuple(column.name for column in columns),
            tuple(column.type for column in columns),
            tuple(column.id for column in columns),
        )

    @classmethod
    def of_columns(cls, columns: Iterable[tuple[str, ColumnType]]) -> Self:
        """The form of keys of these columns."""
        names, types = zip(*columns, strict=True)
        return cls(names, types)

    @property
    def is_integer(self) -> bool:
        """Whether keys are integers; otherwise they are bytes."""
        return len(self.types) == 1 and self.types[0] in _AS_INTEGER

    # -- arrays ---------------------------------------------------------------------------------

    def partly_null(self, batch: pa.RecordBatch) -> int | None:
        """The first row whose key is null in some columns and not in others."""
        columns = self._columns(batch)
        if len(columns) == 1 or not any(column.null_count for column in columns):
            return None
        nulls = np.array([_nulls(column) for column in columns])
        bad = np.flatnonzero(nulls.any(axis=0) & ~nulls.all(axis=0))
        return int(bad[0]) if len(bad) else None

    def array(self, batch: pa.RecordBatch) -> pa.Array:
        """The keys of a batch: an array of int64 or binary, null where a row has no key.

        The batch's columns are found by name.
        """
        return self.array_of(self._columns(batch))

    def array_of(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The keys of rows of which these are the key columns, in the key's order."""
        parts = [_canonical(*pair) for pair in zip(columns, self.types, strict=True)]
        return parts[0] if len(parts) == 1 else _side_by_side(parts)

    @staticmethod
    def buckets(keys: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
        """The partition of each key: Iceberg's bucket. It is -1 for rows without a key."""
        if pa.types.is_int64(keys.type):
            hashes = murmur3_longs(longs_of(keys))
        else:
            hashes = murmur3_bytes(keys)
        hashes &= _POSITIVE
        hashes %= partitions
        buckets = hashes.view(np.int32)
        if keys.null_count:
            buckets[_nulls(keys)] = -1
        return buckets

    @staticmethod
    def hashes(keys: pa.Array, seed: int) -> U64:
        """The hash of each key for an index in memory; that of a row without a key says nothing."""
        if pa.types.is_int64(keys.type):
            return hash64_longs(longs_of(keys), seed)
        return hash64_bytes(keys, seed)

    # -- single values --------------------------------------------------------------------------

    def one(self, values: Sequence[object]) -> Canonical:
        """The form of one key. A value that its column can't hold is refused: it would be looked
        for in vain, and in the wrong partition.
        """
        if len(values) != len(self.types):
            raise Rejected(
                f"a key of this table has {counted(len(self.types), 'value')},"
                f" and {len(values)} {verb(len(values), 'were')} given",
                hint=f"Give a value for each of {', '.join(self.names)}.",
            )
        parts = [_one(*part) for part in zip(values, self.types, self.names, strict=True)]
        return parts[0] if len(parts) == 1 else b"".join(map(_framed, parts))

    @staticmethod
    def bucket_one(key: Canonical, partitions: int) -> int:
        """The partition of one key."""
        hashed = murmur3_long(key) if isinstance(key, int) else murmur3_one(key)
        return (hashed & _POSITIVE) % partitions

    @staticmethod
    def hash_one(key: Canonical, seed: int) -> int:
        """The hash of one key for an index in memory."""
        return hash64_long(key, seed) if isinstance(key, int) else hash64_one(key, seed)

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(name) for name in self.names]


# -- columns ------------------------------------------------------------------------------------


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _canonical(column: pa.Array, column_type: ColumnType) -> pa.Array:
    """A column of a key: integers as int64, all others as binary. Only decimals are written anew;
    the bytes of the others stay where they are.
    """
    if column_type is Plain.STRING or column_type is Plain.BINARY:
        if pa.types.is_string(column.type):
            return column.view(pa.binary())  # a cast would look at every string
        narrow = pa.types.is_binary(column.type)
        return column if narrow else column.cast(pa.large_binary())
    if column.type != (plain := to_arrow(column_type)):
        column = column.cast(plain)
    if column_type is Plain.UUID:
        return column.cast(pa.binary())
    if column_type is Plain.DATE:
        column = column.cast(pa.int32())
    return _decimals(column) if isinstance(column_type, DecimalOf) else column.cast(pa.int64())


_BYTE_STEPS = np.array([1 << 8 * count - 1 for count in range(1, 9)], np.uint64)
"""From each of these on, a number needs one byte more, since the highest bit is its sign."""


def _decimals(column: pa.Array) -> pa.Array:
    """The unscaled numbers of a decimal column, big-endian, in as few bytes as keep the sign."""
    count = len(column)
    if count == 0:
        return pa.array([], pa.binary())
    words = np.frombuffer(column.buffers()[1], np.uint64, 2 * count, column.offset * 16)
    low, high = words[0::2], words[1::2]
    sign = (high.view(np.int64) >> 63).view(np.uint64)
    low_size = np.searchsorted(_BYTE_STEPS, low ^ sign, side="right")
    high_size = np.searchsorted(_BYTE_STEPS, high ^ sign, side="right") + 8
    sizes = np.where(high == sign, low_size, high_size) + 1
    # The machine has the lowest byte first. Of each row reversed, the last ones are wanted.
    reversed_bytes = words.view(np.uint8).reshape(count, 16)[:, ::-1]
    wanted = np.arange(16, 0, -1) <= sizes[:, np.newaxis]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(reversed_bytes[wanted])]
    return _with_nulls_of([column], pa.Array.from_buffers(pa.binary(), count, buffers))


def _side_by_side(parts: list[pa.Array]) -> pa.Array:
    """One run of bytes per row: integers in eight bytes, others behind their length in four."""
    wide = any(pa.types.is_large_binary(part.type) for part in parts)
    kind = pa.large_binary() if wide else pa.binary()
    framed = []
    for part in parts:
        if pa.types.is_int64(part.type):
            framed.append(_fixed(longs_of(part).astype(">i8")).cast(kind))
        else:
            full = part.fill_null(b"") if part.null_count else part
            lengths = pc.binary_length(full).to_numpy().astype(">u4")
            framed += [_fixed(lengths).cast(kind), full.cast(kind)]
    return _with_nulls_of(parts, pc.binary_join_element_wise(*framed, pa.scalar(b"", kind)))


def _fixed(numbers: npt.NDArray[np.integer]) -> pa.Array:
    """Numbers as bytes of a fixed width, as they are."""
    kind = pa.binary(numbers.itemsize)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _with_nulls_of(columns: list[pa.Array], keys: pa.Array) -> pa.Array:
    """The keys, null where the columns are."""
    if not any(column.null_count for column in columns):
        return keys
    valid = columns[0].is_valid()
    for column in columns[1:]:
        invariant(valid.equals(column.is_valid()), "a key is partly null, and was not refused")
    return pc.if_else(valid, keys, pa.scalar(None, keys.type))


# -- values -------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - times without a zone are counted from here
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def _framed(part: Canonical) -> bytes:
    if isinstance(part, int):
        return part.to_bytes(8, "big", signed=True)
    return len(part).to_bytes(4, "big") + part


_INT64_BOUND = 1 << 63


def _one(value: object, column_type: ColumnType, name: str) -> Canonical:
    if column_type is Plain.INT64 and type(value) is int and -_INT64_BOUND <= value < _INT64_BOUND:
        return value  # as `fit` would say; a look-up is so quick that asking it counts
    if column_type is Plain.STRING and type(value) is str:
        try:
            return value.encode()  # the same
        except UnicodeEncodeError:
            pass  # `fit` says why
    if is_missing(value):
        raise _misfit(value, column_type, name, "a key that is looked for has no nulls")
    assert isinstance(column_type, Plain | DecimalOf)  # nothing else can be in a key
    try:
        found = fit(column_type, value)
    except Unfit as unfit:
        raise _misfit(value, column_type, name, f"it {unfit.brief}") from unfit
    match found:
        case int() | bytes():
            return found
        case str():
            return found.encode()
        case Decimal():
            return _unscaled(found)
        case datetime():
            return _microseconds(found)
        case date():
            return found.toordinal() - _EPOCH_DAY
        case _:
            raise InvariantBroken(f"{type_text(column_type)} can't be in a key")


def _microseconds(value: datetime) -> int:
    since = value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _unscaled(value: Decimal) -> bytes:
    sign, digits, _ = value.as_tuple()  # it has as many digits behind the point as its type
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _misfit(value: object, column_type: ColumnType, name: str, why: str) -> Rejected:
    return Rejected(
        f"{shown(value)} can't be a value of key column {name}: {why}",
        hint=f"Give a value of type {type_text(column_type)}.",
    )
