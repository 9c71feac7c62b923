"""The bytes of a segment (docs/formats/segment.md).

    segment = header, index area (one fixed-size row per entry), data, trailer

The header gives the range without reading further, so a group of many segments opens quickly. The
index area and the header have a checksum each; every entry has its own over data, index and term.
An entry's place is an offset in this file, or, with its highest bit set, in the segment's one large
file. The trailer names the segments that this one stands for (itself, or the sources of a merge): a
file without a valid trailer is unfinished.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from lowmark.log.errors import Damaged, check_version
from lowmark.runtime import Buffer, File

VERSION = 1
MAGIC = b"LMSG"
TRAILER_MAGIC = b"LMSE"
HEADER_BYTES = 104
_HEADER = struct.Struct("<4sHHIIQQQQQQQQ16s")
_TRAILER = struct.Struct("<II4s")
_CHECKSUM = struct.Struct("<I")
_TRAILER_FIXED = _TRAILER.size + _CHECKSUM.size
TRAILER_BYTES_MIN = _TRAILER_FIXED

IN_LARGE = 1 << 63
"""Marks a place in the large file."""

ROW = np.dtype(
    [
        ("index", "<u8"),
        ("term", "<u8"),
        ("place", "<u8"),
        ("length", "<u4"),
        ("checksum", "<u4"),
    ]
)
Rows = npt.NDArray[np.void]


class SegmentHeader(msgspec.Struct, frozen=True, gc=False):
    """What a segment says of itself in its first bytes."""

    count: int
    index_checksum: int
    first: int
    last: int
    first_term: int
    last_term: int
    order: int
    """The highest number that it stands for; 0 for its own. Recovery goes by this, not by name: a
    merge has the lowest name of its sources, but is newer than all of them."""
    data_bytes: int
    large_bytes: int
    large: int
    incarnation: bytes

    @property
    def data_at(self) -> int:
        """Where the data begins."""
        return HEADER_BYTES + self.count * ROW.itemsize

    @property
    def trailer_at(self) -> int:
        """Where the data ends."""
        return self.data_at + self.data_bytes


def encode_segment(
    *,
    rows: Rows,
    payload: Sequence[Buffer],
    large: int,
    members: Sequence[int],
    order: int,
    incarnation: bytes,
    data_bytes: int | None = None,
) -> list[Buffer]:
    """The buffers of a whole segment, ready for one vectored write.

    The rows' places must be filled in already (see `lay_out`). A merge, which writes its data piece
    by piece, asks for head and trailer alone: no payload, but its `data_bytes`.
    """
    index_area = rows.tobytes()
    outside = (rows["place"] & IN_LARGE) != 0
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        0,
        len(rows),
        crc32c(index_area),
        int(rows["index"][0]),
        int(rows["index"][-1]),
        int(rows["term"][0]),
        int(rows["term"][-1]),
        order,
        sum(map(len, payload)) if data_bytes is None else data_bytes,
        int(rows["length"][outside].sum(dtype=np.uint64)),
        large,
        incarnation,
    )
    head += _CHECKSUM.pack(crc32c(head))
    names = np.array(members, "<u8").tobytes()
    tail = names + _TRAILER.pack(len(members), len(rows), TRAILER_MAGIC)
    tail += _CHECKSUM.pack(crc32c(tail))
    return [head.ljust(HEADER_BYTES, b"\0") + index_area, *payload, tail]


def lay_out(rows: Rows) -> None:
    """Give every row that is not in the large file its place, in order, behind the index."""
    inside = (rows["place"] & IN_LARGE) == 0
    lengths = np.where(inside, rows["length"], 0).astype(np.uint64)
    ends = np.cumsum(lengths, dtype=np.uint64)
    data_at = np.uint64(HEADER_BYTES + len(rows) * ROW.itemsize)
    rows["place"][inside] = (ends - lengths + data_at)[inside]


def decode_header(path: str, data: Buffer, *, incarnation: bytes | None) -> SegmentHeader:
    """Read a segment's head, or say what is wrong with it."""
    head = bytes(data[:HEADER_BYTES])
    if len(head) < HEADER_BYTES:
        raise Damaged(path, offset=0, what="it is too short for a segment")
    magic, version, _, count, index_checksum, *numbers, owner = _HEADER.unpack_from(head)
    if magic != MAGIC:
        raise Damaged(path, offset=0, what="this is not a segment of Lowmark")
    own, stored = head[: _HEADER.size], _CHECKSUM.unpack_from(head, _HEADER.size)[0]
    check_version(path, version, newest=VERSION, head=own, checksum=stored)
    if crc32c(own) != stored:
        raise Damaged(path, offset=0, what="the header fails its checksum")
    if incarnation is not None and owner != incarnation:
        raise Damaged(
            path,
            offset=_HEADER.size - 16,
            what="it belongs to another group, or to an earlier one of this name",
            hint="Move the file back to where it came from.",
        )
    first, last, first_term, last_term, order, data_bytes, large_bytes, large = numbers
    return SegmentHeader(
        count, index_checksum, first, last, first_term, last_term, order,
        data_bytes, large_bytes, large, owner,
    )  # fmt: skip


def read_rows(path: str, file: File, header: SegmentHeader) -> Rows:
    """The index area, checked."""
    area = file.read_at(HEADER_BYTES, header.count * ROW.itemsize)
    if len(area) != header.count * ROW.itemsize or crc32c(area) != header.index_checksum:
        raise Damaged(path, offset=HEADER_BYTES, what="the index area fails its checksum")
    return np.frombuffer(area, ROW)


def read_trailer(path: str, file: File, header: SegmentHeader) -> list[int]:
    """The numbers of the segments that this one stands for; unfinished files have no trailer."""
    size = file.size()
    tail = file.read_at(header.trailer_at, max(0, size - header.trailer_at))
    if len(tail) < _TRAILER_FIXED:
        raise Damaged(path, offset=header.trailer_at, what="its trailer is missing")
    count, entries, magic = _TRAILER.unpack_from(tail, len(tail) - _TRAILER_FIXED)
    stored = _CHECKSUM.unpack_from(tail, len(tail) - _CHECKSUM.size)[0]
    if (
        magic != TRAILER_MAGIC
        or count < 1
        or len(tail) != count * 8 + _TRAILER_FIXED
        or entries != header.count
        or crc32c(tail[: -_CHECKSUM.size]) != stored
    ):
        raise Damaged(path, offset=header.trailer_at, what="its trailer is not valid")
    return [int(number) for number in np.frombuffer(tail[: count * 8], "<u8")]
