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
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from lowmark.errors import Corrupt
from lowmark.runtime.store import Store
from lowmark.table.hashing import I64, U64, hash64_bytes, hash64_longs, longs_of

# Checksums of a ledger file: nothing of it is looked at that is not as it was written.
#
# A library that is given damaged bytes may come to other rows, or end the process. So what it is
# given is checked before: the footer when a file is opened, and of the columns that are asked for,
# the chunks, with all that stands between their pages, each time they are read.

U32 = npt.NDArray[np.uint32]
_PIECE_BYTES = 8 << 20
_TAIL_BYTES = 8
"""Behind a footer: its length in four bytes, and the magic."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A Parquet file as it can be read back."""

    bytes: int
    checksum: int
    footer_bytes: int
    footer_checksum: int
    chunks: U32
    """Of the column chunks, row group by row group."""


def checksum_of(store: Store, path: str) -> tuple[int, int]:
    """The size and the checksum of all of a file."""
    with store.reading(path), store.open(path) as file:
        size, checksum = 0, 0
        while data := file.read_buffer(_PIECE_BYTES):
            size, checksum = size + data.size, crc32c(data, checksum)
        return size, checksum


def measure(store: Store, path: str) -> Measured:
    """All checksums of a Parquet file that was just written."""
    size, checksum = checksum_of(store, path)
    with store.reading(path), store.open(path) as file:
        length = int.from_bytes(file.read_at(4, size - _TAIL_BYTES), "little") + _TAIL_BYTES
        footer = crc32c(_part(file, size - length, length))
        ranges = chunk_ranges(pq.read_metadata(file))
        chunks = [crc32c(_part(file, at, count)) for group in ranges for at, count in group]
    return Measured(size, checksum, length, footer, np.array(chunks, np.uint32))


def _part(file: pa.NativeFile, at: int, count: int) -> pa.Buffer:
    """Some bytes of a file; of this machine, they are not copied."""
    file.seek(at)
    return file.read_buffer(count)


def chunk_ranges(meta: pq.FileMetaData) -> list[list[tuple[int, int]]]:
    """Where the column chunks of each row group begin, and how long they are."""
    found = []
    for number in range(meta.num_row_groups):
        group = meta.row_group(number)
        chunks = [group.column(at) for at in range(group.num_columns)]
        found.append([(_start_of(chunk), chunk.total_compressed_size) for chunk in chunks])
    return found


def _start_of(chunk: pq.ColumnChunkMetaData) -> int:
    first = chunk.data_page_offset
    return min(first, chunk.dictionary_page_offset) if chunk.has_dictionary_page else int(first)


def leaves_of(schema: pa.Schema) -> dict[str, range]:
    """Which chunks of a row group belong to each column: nested ones have several."""
    found, at = {}, 0
    for field in schema:
        count = _leaves(field.type)
        found[field.name] = range(at, at + count)
        at += count
    return found


def _leaves(kind: pa.DataType) -> int:
    if kind.num_fields == 0 or pa.types.is_dictionary(kind):
        return 1
    return sum(_leaves(kind.field(at).type) for at in range(kind.num_fields))


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
