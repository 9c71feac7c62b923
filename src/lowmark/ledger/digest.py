"""One number for a set of rows, in whatever order they come: equal sets, equal digests.

Each row has a hash: of its offset, its change, and every value that is not null together with its
column's id. The values go in by a canonical form, so that a column that was widened, or one that
was added and is null, changes nothing: integers as 64 bits, floats as doubles, text as its bytes.
A set of rows has the sum and the exclusive or of its rows' hashes. Rows can be taken away as they
were added, so the digest of a ledger is known without reading what did not change.

It finds mistakes, not forgers: the hash is quick, and no secret is in it (docs/formats/ledger.md).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lowmark.errors import Corrupt
from lowmark.table.hashing import I64, U64, hash64_bytes, hash64_longs, longs_of

_OFFSET_SEED, _DELETE_SEED, _ROW_SEED = 0x0FF5E7, 0xDE1E7E, 0x0DD5
_LENGTH_SEED, _PLACE_SEED, _NULL_SEED = 0x1E46, 0x91ACE, 0x4011
_FORM = struct.Struct("<QQ")
_MASK = (1 << 64) - 1


class Digest(NamedTuple):
    """Of a set of rows."""

    total: int = 0
    mixed: int = 0

    def plus(self, hashes: U64) -> Digest:
        """With more rows."""
        total = int(hashes.sum(dtype=np.uint64))
        mixed = int(np.bitwise_xor.reduce(hashes)) if len(hashes) else 0
        return Digest((self.total + total) & _MASK, self.mixed ^ mixed)

    def minus(self, hashes: U64) -> Digest:
        """Without rows that are in it."""
        total = int(hashes.sum(dtype=np.uint64))
        mixed = int(np.bitwise_xor.reduce(hashes)) if len(hashes) else 0
        return Digest((self.total - total) & _MASK, self.mixed ^ mixed)

    def joined(self, other: Digest) -> Digest:
        """With the rows of another one."""
        return Digest((self.total + other.total) & _MASK, self.mixed ^ other.mixed)

    @property
    def form(self) -> bytes:
        """As it is kept."""
        return _FORM.pack(self.total, self.mixed)

    @classmethod
    def of_form(cls, form: bytes) -> Digest:
        """What `form` gave."""
        if len(form) != _FORM.size:
            raise Corrupt(f"a digest has {len(form)} bytes, not {_FORM.size}")
        return cls(*_FORM.unpack(form))


EMPTY = Digest()


def row_hashes(
    columns: Sequence[pa.Array],
    ids: Sequence[int],
    *,
    offsets: I64,
    deletes: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> U64:
    """The hash of each row; `ids` are those of the columns."""
    state = hash64_longs(offsets, _OFFSET_SEED)
    if deletes.any():
        state[deletes] ^= np.uint64(_DELETE_SEED)
    for column, column_id in zip(columns, ids, strict=True):
        if column.null_count < len(column):
            state += _values(column, column_id)
    return hash64_longs(state.view(np.int64), _ROW_SEED)


def _values(array: pa.Array, seed: int) -> U64:
    """A hash of each value; 0 where it is null."""
    hashes = _bare(array, seed)
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def _bare(array: pa.Array, seed: int) -> U64:
    """A hash of each value; that of a null may be anything."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or _is_large(kind):
        return hash64_bytes(array.view(pa.binary()) if pa.types.is_string(kind) else array, seed)
    if pa.types.is_fixed_size_binary(kind):
        return hash64_bytes(array.cast(pa.binary()), seed)
    if pa.types.is_decimal(kind):
        words = np.frombuffer(array.buffers()[1], np.int64, 2 * len(array), array.offset * 16)
        low = hash64_longs(words[0::2], seed)
        low ^= words[1::2].view(np.uint64)
        return hash64_longs(low.view(np.int64), seed)
    if pa.types.is_floating(kind):
        doubles = _full(array.cast(pa.float64()), 0.0).to_numpy()
        return hash64_longs(doubles.view(np.int64), seed)
    if pa.types.is_struct(kind):
        return _struct(array, seed)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _list(array, seed)
    if pa.types.is_date32(kind):
        array = array.cast(pa.int32())
    return hash64_longs(longs_of(_full(array.cast(pa.int64()), 0)), seed)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _full(array: pa.Array, filling: object) -> pa.Array:
    return array.fill_null(filling) if array.null_count else array


def _struct(array: pa.StructArray, seed: int) -> U64:
    state = hash64_longs(np.full(len(array), seed, np.int64), _LENGTH_SEED)
    for at in range(array.type.num_fields):
        child = array.field(at)  # with the offset of its parent, and without its parent's nulls
        field = hash64_longs(_values(child, at).view(np.int64), _PLACE_SEED + at)
        state += field
    return hash64_longs(state.view(np.int64), seed)


def _list(array: pa.Array, seed: int) -> U64:
    """Elements with their places in the list, summed up for each list."""
    bounds = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    bounds = bounds.astype(np.int64)
    if pa.types.is_map(array.type):
        entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
    else:
        entries = array.values  # all of them, also those that other slices of it have
    inner = entries.slice(bounds[0], bounds[-1] - bounds[0])
    bounds -= bounds[0]
    lengths = np.diff(bounds)
    hashes = _values(inner, _PLACE_SEED)
    hashes[_nulls(inner)] = _NULL_SEED
    places = np.arange(len(hashes), dtype=np.int64) - np.repeat(bounds[:-1], lengths)
    hashes ^= hash64_longs(places, _PLACE_SEED)
    hashes = hash64_longs(hashes.view(np.int64), seed)
    sums = np.zeros(len(hashes) + 1, np.uint64)  # concatenated with a list, they would be floats
    np.cumsum(hashes, out=sums[1:])
    state = sums[bounds[1:]] - sums[bounds[:-1]]
    state += hash64_longs(lengths, _LENGTH_SEED)
    return hash64_longs(state.view(np.int64), seed)


def _nulls(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    nulls: np.ndarray[tuple[int], np.dtype[np.bool_]] = array.is_null().to_numpy(
        zero_copy_only=False
    )
    return nulls
