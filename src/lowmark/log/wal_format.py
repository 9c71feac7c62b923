"""The bytes of a WAL file (docs/formats/wal.md).

    file   = header, batch*
    header = magic, version, flags, number, number and durable length of the file before it,
             checksum
    batch  = head, directory (one fixed-size row per record), bodies, padding to 8 bytes

A batch is what one sync made durable. Its head and directory share one checksum, so that damage in
a body is pinned to one record, hence to one group; each record has a checksum of its own body. The
next file's header says how many bytes of this one were durable: bytes after that never count, and a
file that is shorter has lost acknowledged entries.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

import msgspec
from crc32c import crc32c

from lowmark.log.entries import LargePlace, Run
from lowmark.log.errors import Damaged, check_version
from lowmark.runtime import Buffer

VERSION = 1
FILE_MAGIC = b"LMWL"
BATCH_MAGIC = b"LMwb"
_FILE_HEADER = struct.Struct("<4sHHQQQ")
_BATCH_HEAD = struct.Struct("<4sIQQQ")
_ROW = struct.Struct("<BBHIQQQQII")
_LARGE = struct.Struct("<QQI")
_CHECKSUM = struct.Struct("<I")

FILE_HEADER_BYTES = 40
ROSTERED = 1
"""A flag of a file: its log marks each deletion of a group in the roster (see `roster`). So a group
with records in it is there, marked, or missing. Releases without a roster wrote zero there, and
read past it."""
_HEAD_BYTES = 40
_COPIED_BYTES_MAX = 16 << 10
ROW_BYTES = _ROW.size
INCARNATION_BYTES = 16


class Kind(enum.IntEnum):
    """What a record is."""

    WRITER = 1
    """Names the group behind a writer number of this file: incarnation, then the group's name."""
    RUN = 2
    """A run of entries: lengths, data checksums, payload."""
    LARGE = 3
    """One entry whose bytes are in a large file: file number, offset, data checksum."""
    META = 4
    """The group's own small durable record (its vote); the newest one counts."""


class Record(msgspec.Struct, gc=False):
    """One row of a batch's directory, with its body."""

    kind: Kind
    writer: int
    previous: int = 0
    first: int = 0
    term: int = 0
    count: int = 0
    body: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record whose body fails its checksum; the directory still says whose it was."""

    writer: int
    offset: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as read back."""

    sequence: int
    offset: int
    end: int
    records: list[Record | BadRecord]
    torn: bool
    """Whether one of them is bad."""


@dataclass(frozen=True, slots=True)
class WalHeader:
    """The head of a WAL file."""

    number: int
    previous_number: int
    previous_bytes: int
    flags: int = 0


def encode_header(header: WalHeader) -> bytes:
    """A file's first bytes."""
    before = (header.number, header.previous_number, header.previous_bytes)
    head = _FILE_HEADER.pack(FILE_MAGIC, VERSION, header.flags, *before)
    return (head + _CHECKSUM.pack(crc32c(head))).ljust(FILE_HEADER_BYTES, b"\0")


def decode_header(path: str, data: Buffer) -> WalHeader:
    """Read a file's head, or say what is wrong with it."""
    head = bytes(data[:FILE_HEADER_BYTES])
    if len(head) < FILE_HEADER_BYTES:
        raise Damaged(path, offset=0, what=f"a WAL header is {FILE_HEADER_BYTES} bytes long")
    magic, version, flags, number, previous_number, previous_bytes = _FILE_HEADER.unpack_from(head)
    if magic != FILE_MAGIC:
        raise Damaged(path, offset=0, what="this is not a WAL file of Lowmark")
    stored = _CHECKSUM.unpack_from(head, _FILE_HEADER.size)[0]
    own = head[: _FILE_HEADER.size]
    check_version(path, version, newest=VERSION, head=own, checksum=stored)
    if crc32c(own) != stored:
        raise Damaged(path, offset=0, what="the header fails its checksum")
    return WalHeader(number, previous_number, previous_bytes, flags)


def writer_record(writer: int, *, incarnation: bytes, group: str) -> Record:
    """Say who a writer number is."""
    return Record(Kind.WRITER, writer, body=(incarnation, group.encode()))


def meta_record(writer: int, data: bytes) -> Record:
    """A group's own durable record."""
    return Record(Kind.META, writer, body=(data,))


def run_record(writer: int, run: Run) -> Record:
    """A run, inline or, for a large entry that has a place already, by reference."""
    if run.large is None:
        kind, body = Kind.RUN, (run.head, run.payload)
    else:
        checksum = _CHECKSUM.unpack(run.checksums)[0]
        place = _LARGE.pack(run.large.number, run.large.offset, checksum)
        kind, body = Kind.LARGE, (place, run.lengths)
    return Record(kind, writer, run.first - 1, run.first, run.term, run.count, body)


def encode_batch(number: int, sequence: int, records: list[Record]) -> list[Buffer]:
    """The buffers of a batch, ready for one vectored write."""
    rows: list[bytes] = []
    bodies: list[Buffer] = []
    body_bytes = 0
    for r in records:
        checksum, length = 0, 0
        for part in r.body:
            checksum = crc32c(part, checksum)
            length += len(part)
        rows.append(
            _ROW.pack(
                r.kind, 0, 0, r.writer, r.previous, r.first, r.term, length, r.count, checksum
            )
        )
        bodies += r.body
        body_bytes += length
    head = _BATCH_HEAD.pack(BATCH_MAGIC, len(records), number, sequence, body_bytes)
    directory = b"".join(rows)
    checksum = crc32c(directory, crc32c(head))
    head += _CHECKSUM.pack(checksum)
    padding = bytes(-(_HEAD_BYTES + len(directory) + body_bytes) % 8)
    return [head.ljust(_HEAD_BYTES, b"\0") + directory, *(b for b in bodies if len(b)), padding]


def decode_batch(data: memoryview, offset: int, *, number: int, sequence: int) -> Batch | None:
    """The batch at `offset`, or None if no whole batch with that place in the file stands there.

    A record whose body is damaged is reported as such; it does not spoil its neighbours.
    """
    head = data[offset : offset + _HEAD_BYTES]
    if len(head) < _HEAD_BYTES or head[:4] != BATCH_MAGIC:
        return None
    _, count, its_number, its_sequence, body_bytes = _BATCH_HEAD.unpack_from(head)
    directory_at = offset + _HEAD_BYTES
    body_at = directory_at + count * ROW_BYTES
    end = body_at + body_bytes
    end += -(end - offset) % 8
    if its_number != number or its_sequence != sequence or body_at > len(data):
        return None
    stored = _CHECKSUM.unpack_from(head, _BATCH_HEAD.size)[0]
    if crc32c(data[directory_at:body_at], crc32c(head[: _BATCH_HEAD.size])) != stored:
        return None
    if end > len(data):
        return None
    records, torn = _decode_records(data, directory_at, count, body_at)
    return Batch(sequence, offset, end, records, torn)


def _decode_records(
    data: memoryview, directory_at: int, count: int, body_at: int
) -> tuple[list[Record | BadRecord], bool]:
    """The records, and whether one of them is bad."""
    records: list[Record | BadRecord] = []
    torn = False
    directory = data[directory_at : directory_at + count * ROW_BYTES]
    for row in _ROW.iter_unpack(directory):
        number, _, _, writer, previous, first, term, length, entries, stored = row
        body = data[body_at : body_at + length]
        kind, fixed_bytes, entry_bytes = _BODIES.get(number, _NO_BODY)
        fits = len(body) == length >= fixed_bytes + entry_bytes * entries
        if kind is not None and fits and crc32c(body) == stored:
            records.append(Record(kind, writer, previous, first, term, entries, (body,)))
        else:
            torn = True
            records.append(BadRecord(writer, body_at))
        body_at += length
    return records, torn


# Per kind how many bytes its body has at least: some, and some more for each entry.
_BODIES: dict[int, tuple[Kind | None, int, int]] = {
    Kind.WRITER.value: (Kind.WRITER, INCARNATION_BYTES + 1, 0),
    Kind.RUN.value: (Kind.RUN, 0, 8),
    Kind.LARGE.value: (Kind.LARGE, _LARGE.size + 4, 0),
    Kind.META.value: (Kind.META, 0, 0),
}
_NO_BODY: tuple[Kind | None, int, int] = (None, 0, 0)


def find_batch_after(data: memoryview, offset: int, *, number: int, sequence: int) -> int | None:
    """Where a later batch of this file begins, if there is one: proof that more was synced."""
    find = getattr(data.obj, "find", None) or bytes(data).find
    at = find(BATCH_MAGIC, offset)
    while at >= 0:
        if (at - FILE_HEADER_BYTES) % 8 == 0 and at + _HEAD_BYTES <= len(data):
            _, count, its_number, its_sequence, _ = _BATCH_HEAD.unpack_from(data, at)
            body_at = at + _HEAD_BYTES + count * ROW_BYTES
            if its_number == number and its_sequence > sequence and body_at <= len(data):
                stored = _CHECKSUM.unpack_from(data, at + _BATCH_HEAD.size)[0]
                head = crc32c(data[at : at + _BATCH_HEAD.size])
                if crc32c(data[at + _HEAD_BYTES : body_at], head) == stored:
                    return int(at)
        at = find(BATCH_MAGIC, at + 1)
    return None


def sequence_at(data: memoryview, offset: int) -> int:
    """The sequence number of the batch that begins there."""
    return int(_BATCH_HEAD.unpack_from(data, offset)[3])


def decode_run(record: Record) -> Run:
    """The run behind a RUN or LARGE record; a large one comes without its payload."""
    body, count = record.body[0], record.count
    if record.kind is Kind.LARGE:
        number, offset, checksum = _LARGE.unpack_from(body)
        length = bytes(body[_LARGE.size : _LARGE.size + 4])
        return Run(
            first=record.first,
            term=record.term,
            count=1,
            head=length + _CHECKSUM.pack(checksum),
            payload=b"",
            data_bytes=int.from_bytes(length, "little"),
            kept=1,
            large=LargePlace(number, offset),
        )
    payload = body[8 * count :]
    return Run(
        first=record.first,
        term=record.term,
        count=count,
        head=bytes(body[: 8 * count]),
        # A view of the file costs more than a few bytes do.
        payload=bytes(payload) if len(payload) < _COPIED_BYTES_MAX else payload,
        data_bytes=len(payload),
        kept=count,
    )


def decode_writer(record: Record) -> tuple[bytes, str]:
    """The incarnation and the name behind a WRITER record."""
    body = bytes(record.body[0])
    return body[:INCARNATION_BYTES], body[INCARNATION_BYTES:].decode()
