"""How many bytes an Arrow IPC message has when it is unpacked, without unpacking it.

A few kilobytes that are compressed well can fill all memory: so what comes from outside is looked
at first. A compressed buffer begins with its length when it is unpacked (8 bytes, little endian;
-1: it is not compressed after all). Where the buffers are stands in the message's metadata, a
flatbuffer (Message.fbs of Arrow's format), of which only what is needed is read here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

UNPACKED_BYTES_MAX: Final = 256 << 20
"""More is not unpacked at once, of a message that comes from a client or a file."""
CONTINUES: Final = 0xFFFF_FFFF
"""What a message begins with."""
_HEAD_BYTES = 8
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
_NOT_COMPRESSED = -1

BodyAt = Callable[[int, int], bytes | memoryview]
"""Bytes of a message's body, by place and count."""


class Block(NamedTuple):
    """Where a message is in an IPC file."""

    offset: int
    metadata_bytes: int
    """With the head in front of it."""


class _Table:
    """A table of a flatbuffer: its fields by their number."""

    def __init__(self, data: bytes | memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - struct.unpack_from("<i", data, at)[0]

    @staticmethod
    def root(data: bytes | memoryview) -> _Table:
        return _Table(data, struct.unpack_from("<I", data, 0)[0])

    def _place(self, field: int) -> int:
        """Where a field is; 0: it is not there."""
        at = 4 + 2 * field
        if at >= struct.unpack_from("<H", self._data, self._fields)[0]:
            return 0
        offset: int = struct.unpack_from("<H", self._data, self._fields + at)[0]
        return self._at + offset if offset else 0

    def number(self, field: int, kind: str) -> int:
        place = self._place(field)
        return struct.unpack_from(kind, self._data, place)[0] if place else 0

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return _Table(self._data, self._target(place)) if place else None

    def structs(self, field: int, kind: str) -> Iterator[tuple[int, ...]]:
        place = self._place(field)
        if not place:
            return iter(())
        at = self._target(place)
        (count,) = struct.unpack_from("<I", self._data, at)
        size = struct.calcsize(kind)
        return struct.iter_unpack(kind, self._data[at + 4 : at + 4 + count * size])

    def _target(self, place: int) -> int:
        target: int = place + struct.unpack_from("<I", self._data, place)[0]
        return target


def unpacked_bytes(message: memoryview) -> int:
    """Of a whole message; 0, if nothing of it is compressed; `ArrowInvalid` if it is none."""
    first, length = _numbers("<Ii", message)
    head = _HEAD_BYTES if first == CONTINUES else _HEAD_BYTES // 2
    metadata = message[head : head + (length if first == CONTINUES else first)]
    body = message[head + len(metadata) :]
    return body_unpacked(metadata, lambda at, count: body[at : at + count])


def body_unpacked(metadata: bytes | memoryview, body_at: BodyAt) -> int:
    """Of a message's body, by its metadata; 0, if nothing of it is compressed."""
    try:
        message = _Table.root(metadata)
        batch = message.table(2)
        kind = message.number(1, "<B")
        if kind == _DICTIONARY_BATCH and batch is not None:
            batch = batch.table(1)
        elif kind != _RECORD_BATCH:
            return 0
        if batch is None or batch.table(3) is None:
            return 0
        total = 0
        for offset, length in batch.structs(2, "<qq"):
            if length > 0:
                (unpacked,) = struct.unpack("<q", body_at(offset, 8))
                if unpacked < _NOT_COMPRESSED:
                    raise pa.ArrowInvalid(f"a buffer of {unpacked} bytes in a message")
                total += length - 8 if unpacked == _NOT_COMPRESSED else unpacked
        return total
    except struct.error as error:
        raise pa.ArrowInvalid(f"the metadata of a message can't be read: {error}") from error


def body_bytes(metadata: bytes | memoryview) -> int:
    """How long the body is that follows a message's metadata."""
    try:
        return _Table.root(metadata).number(3, "<q")
    except struct.error as error:
        raise pa.ArrowInvalid(f"the metadata of a message can't be read: {error}") from error


def blocks_of(footer: bytes | memoryview) -> tuple[list[Block], list[Block]]:
    """The dictionaries and the batches of an IPC file, by its footer."""
    try:
        table = _Table.root(footer)
        found = [
            [Block(offset, length) for offset, length, _ in table.structs(field, "<qi4xq")]
            for field in (2, 3)
        ]
    except struct.error as error:
        raise pa.ArrowInvalid(f"the footer of an IPC file can't be read: {error}") from error
    return found[0], found[1]


def _numbers(kind: str, data: memoryview) -> tuple[int, ...]:
    try:
        return struct.unpack_from(kind, data)
    except struct.error as error:
        raise pa.ArrowInvalid(f"a message of {len(data)} bytes") from error
