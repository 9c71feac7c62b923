"""Files that are unpacked: each part is looked at before, for a small one may fill all memory."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from lowmark.convert.source import Source
from lowmark.errors import Rejected
from lowmark.table.unpacking import (
    CONTINUES,
    UNPACKED_BYTES_MAX,
    Block,
    blocks_of,
    body_bytes,
    body_unpacked,
)

_MAGIC: Final = b"ARROW1"
_TAIL = struct.Struct(f"<i{len(_MAGIC)}s")
_HEAD = struct.Struct("<II")
_PIECE_BYTES: Final = 1 << 20
_PARQUET_RATIO_MAX: Final = 1_000
"""Pages of a column are unpacked one at a time, but only they say how many there are: so a large
column is refused only if it is smaller by far than rows are when they are packed.
"""


def _check(size: int) -> None:
    if size > UNPACKED_BYTES_MAX:
        raise _refused(f"a batch unpacks to {size:,} bytes")


def _refused(what: str) -> Rejected:
    return Rejected(
        f"a part of it is too large: {what}",
        detail=f"At most {UNPACKED_BYTES_MAX:,} bytes are unpacked at once.",
        hint="Write the file in smaller batches or row groups, or without compression.",
    )


class CheckedStream:
    """The bytes of an Arrow IPC stream; each message is looked at before Arrow gets it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._ready = memoryview(b"")
        self._over = False
        self.closed = False

    def read(self, count: int) -> bytes:
        """The next bytes; fewer only at the end."""
        parts = []
        while count:
            if not self._ready and (self._over or not self._next()):
                break
            parts.append(self._ready[:count])
            self._ready = self._ready[len(parts[-1]) :]
            count -= len(parts[-1])
        return b"".join(parts)

    def close(self) -> None:
        """Take no more; what is open is closed by its opener."""
        self.closed = True

    def _next(self) -> bool:
        """Take the next message; False if there is none. Arrow refuses half of one."""
        head = self._taken(4)
        if head == CONTINUES.to_bytes(4, "little"):
            head += self._taken(4)
        length = int.from_bytes(head[-4:], "little") if len(head) in {4, 8} else 0
        metadata = self._taken(length)
        self._over = not length or len(metadata) < length
        body = b""
        if not self._over:
            body = self._taken(body_bytes(metadata))
            _check(body_unpacked(metadata, lambda at, count: body[at : at + count]))
        self._ready = memoryview(b"".join((head, metadata, body)))
        return bool(self._ready)

    def _taken(self, count: int) -> bytes:
        """This many bytes, if they are there: a length that is made up takes no memory."""
        parts = []
        while count > 0 and (part := self._source.read(min(count, _PIECE_BYTES))):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def ipc_file_check(file: pa.NativeFile) -> Callable[[int], None]:
    """What looks at a batch of an IPC file, by its number; dictionaries are looked at now."""
    size = file.size()
    if size < _TAIL.size:
        return lambda _: None  # Arrow says what is wrong with it
    file.seek(size - _TAIL.size)
    length, magic = _TAIL.unpack(file.read(_TAIL.size))
    if magic != _MAGIC or not 0 < length <= size - _TAIL.size:
        return lambda _: None
    file.seek(size - _TAIL.size - length)
    dictionaries, batches = blocks_of(file.read(length))
    file.seek(0)

    def at(place: int, count: int) -> bytes:
        file.seek(place)
        found: bytes = file.read(count)
        return found

    def check(block: Block) -> None:
        if not 0 < block.metadata_bytes <= size:
            raise pa.ArrowInvalid(f"a block with {block.metadata_bytes} bytes of metadata")
        metadata = at(block.offset, block.metadata_bytes)
        (first,) = struct.unpack_from("<I", metadata)
        metadata = metadata[_HEAD.size if first == CONTINUES else 4 :]
        body_at = block.offset + block.metadata_bytes
        _check(body_unpacked(metadata, lambda place, count: at(body_at + place, count)))

    for one in dictionaries:
        check(one)
    file.seek(0)
    return lambda number: check(batches[number])


def check_parquet(metadata: pq.FileMetaData) -> None:
    """Refuse a file with a column that is small, and large unpacked."""
    for group in range(metadata.num_row_groups):
        found = metadata.row_group(group)
        for number in range(found.num_columns):
            column = found.column(number)
            size, packed = column.total_uncompressed_size, column.total_compressed_size
            if size > max(UNPACKED_BYTES_MAX, _PARQUET_RATIO_MAX * packed):
                raise _refused(
                    f"column {column.path_in_schema} of row group {group} has {packed:,} bytes,"
                    f" which unpack to {size:,}"
                )
