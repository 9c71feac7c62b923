"""The bytes of a large file (docs/formats/large.md).

    large file = header, (frame head, data, padding to 8 bytes)*

Large entries are written here once, by the WAL, and stay: the WAL and later the segment only name
the place. The frame heads repeat index, term, length and checksum, so that the file can be walked
and checked by itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

from lowmark.log.entries import Run
from lowmark.log.errors import Damaged, check_version
from lowmark.runtime import Buffer

VERSION = 1
MAGIC = b"LMLG"
_HEADER = struct.Struct("<4sHHQ16s")
_FRAME = struct.Struct("<QQII")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = 40
FRAME_BYTES = 32


@dataclass(frozen=True, slots=True)
class Frame:
    """One entry's head in a large file."""

    index: int
    term: int
    length: int
    data_checksum: int
    data_at: int


def encode_header(number: int, incarnation: bytes) -> bytes:
    """A file's first bytes."""
    head = _HEADER.pack(MAGIC, VERSION, 0, number, incarnation)
    return (head + _CHECKSUM.pack(crc32c(head))).ljust(HEADER_BYTES, b"\0")


def check_header(path: str, data: Buffer, *, incarnation: bytes | None) -> int:
    """Raise unless this is a large file of that group; give its number."""
    head = bytes(data[:HEADER_BYTES])
    if len(head) < HEADER_BYTES or head[:4] != MAGIC:
        raise Damaged(path, offset=0, what="this is not a large file of Lowmark")
    _, version, _, number, owner = _HEADER.unpack_from(head)
    own, stored = head[: _HEADER.size], _CHECKSUM.unpack_from(head, _HEADER.size)[0]
    check_version(path, version, newest=VERSION, head=own, checksum=stored)
    if crc32c(own) != stored:
        raise Damaged(path, offset=0, what="the header fails its checksum")
    if incarnation is not None and owner != incarnation:
        raise Damaged(path, offset=16, what="it belongs to another group")
    return int(number)


def encode_frame(run: Run) -> list[Buffer]:
    """The buffers of one large entry."""
    length = len(run.payload)
    head = _FRAME.pack(run.first, run.term, length, _CHECKSUM.unpack(run.checksums)[0])
    head += _CHECKSUM.pack(crc32c(head))
    return [head.ljust(FRAME_BYTES, b"\0"), run.payload, bytes(-length % 8)]


def frame_bytes(length: int) -> int:
    """How much room an entry takes."""
    return FRAME_BYTES + length + -length % 8


def decode_frame(head: Buffer, at: int) -> Frame | None:
    """The frame whose head these bytes are, read from offset `at`; None if they are none."""
    if len(head) < FRAME_BYTES:
        return None
    index, term, length, data_checksum = _FRAME.unpack_from(head)
    if crc32c(head[: _FRAME.size]) != _CHECKSUM.unpack_from(head, _FRAME.size)[0]:
        return None
    return Frame(index, term, length, data_checksum, at + FRAME_BYTES)
