"""Checksums of a ledger file: nothing of it is looked at that is not as it was written.

A library that is given damaged bytes may come to other rows, or end the process. So what it is
given is checked before: the footer when a file is opened, and of the columns that are asked for,
the chunks, with all that stands between their pages, each time they are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from lowmark.runtime.store import Store

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
    with store.open(path) as file:
        size, checksum = 0, 0
        while data := file.read_buffer(_PIECE_BYTES):
            size, checksum = size + data.size, crc32c(data, checksum)
        return size, checksum


def measure(store: Store, path: str) -> Measured:
    """All checksums of a Parquet file that was just written."""
    size, checksum = checksum_of(store, path)
    with store.open(path) as file:
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
