"""A batch of rows on its way to the partitions: each row goes to the bucket of its key.

Rows keep their order within a partition. Rows without a key go together to one partition, which
the producer chooses.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lowmark.formatting import counted
from lowmark.table.batches import Compression, encode_rows
from lowmark.table.commands import ROOM_BYTES, ROWS_MAX, Change
from lowmark.table.errors import BatchRefused
from lowmark.table.keys import KeyForm
from lowmark.table.producing import Outgoing
from lowmark.table.unpacking import UNPACKED_BYTES_MAX

MESSAGE_BYTES_MAX = 4 << 20
"""Rows are sent in messages of at most this; or of one row."""
ROW_BYTES_MAX = 7 << 20
_UNPACKED_BYTES = UNPACKED_BYTES_MAX // 2
"""This many bytes of rows are in a message however small they compress: a reader unpacks it whole.
It is well below what servers refuse, which count a little differently.
"""
_MESSAGE_BYTES_LIMIT = ROW_BYTES_MAX + (512 << 10)
"""A message of one row has some more."""


def split(
    rows: pa.RecordBatch, form: KeyForm | None, *, partitions: int, keyless: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each partition, by number; `keyless` is where rows without a key go."""
    if not rows.num_rows:
        return
    if form is None or partitions == 1:
        yield (keyless if form is None else 0), rows
        return
    keys = form.array(rows)
    if rows.num_rows == 1:
        # Many appends are of one row, and one value is found faster than an array of it.
        key = keys[0].as_py()
        yield (keyless if key is None else form.bucket_one(key, partitions)), rows
        return
    buckets = form.buckets(keys, partitions)
    if int(buckets.min()) < 0:
        buckets = np.where(buckets < 0, np.int32(keyless), buckets)
    # Stable, and a sort of small numbers by radix: ten times as fast as one of wide ones.
    narrow = buckets.astype(np.uint8 if partitions <= 1 << 8 else np.uint16)
    order = np.argsort(narrow, kind="stable")
    counts = np.bincount(buckets, minlength=partitions)
    if int(counts.max()) == rows.num_rows:
        yield int(counts.argmax()), rows
        return
    sorted_rows = rows.take(pa.array(order))
    at = 0
    for number, count in enumerate(counts.tolist()):
        if count:
            yield number, sorted_rows.slice(at, count)
            at += count


def outgoing(
    rows: pa.RecordBatch, *, schema: int, change: Change, compression: Compression
) -> Iterator[Outgoing]:
    """The rows as messages, each small enough for one entry of the log."""
    packed = compression != "none" and rows.nbytes > _UNPACKED_BYTES and rows.num_rows > 1
    message = None if packed else encode_rows(rows, compression)
    if message is not None and message.size <= MESSAGE_BYTES_MAX and rows.num_rows <= ROWS_MAX:
        yield _with_room(message, rows.num_rows, schema, change)
        return
    if message is not None and rows.num_rows == 1:
        if message.size > _MESSAGE_BYTES_LIMIT:
            raise _too_large("a row", message.size)
        yield _with_room(message, 1, schema, change)
        return
    half = rows.num_rows // 2
    for part in (rows.slice(0, half), rows.slice(half)):
        yield from outgoing(part, schema=schema, change=change, compression=compression)


def encoded_whole(
    rows: pa.RecordBatch, *, schema: int, change: Change, compression: Compression
) -> Outgoing:
    """The rows as one message, which is compressed if it is too large otherwise."""
    message = encode_rows(rows, compression)
    if message.size > MESSAGE_BYTES_MAX:
        message = encode_rows(rows, "zstd")
    if message.size > _MESSAGE_BYTES_LIMIT:
        raise _too_large(f"a batch of {counted(rows.num_rows, 'row')}", message.size)
    return _with_room(message, rows.num_rows, schema, change)


def check_row_sizes(rows: pa.RecordBatch, before: int = 0) -> None:
    """Refuse a row that no entry has room for; `before` rows came before these.

    Only where there is more than one row may have is looked at closer, half by half.
    """
    if rows.nbytes <= ROW_BYTES_MAX:
        return
    if rows.num_rows == 1:
        raise _too_large(f"row {before}", rows.nbytes)
    half = rows.num_rows // 2
    check_row_sizes(rows.slice(0, half), before)
    check_row_sizes(rows.slice(half), before + half)


def _too_large(row: str, size: int) -> BatchRefused:
    return BatchRefused(
        f"{row} is too large: it has {size} bytes",
        detail=f"A row has at most {ROW_BYTES_MAX} bytes.",
        hint="Store large values elsewhere, and their address here.",
    )


_ROOM = bytes(ROOM_BYTES)


def _with_room(message: pa.Buffer, rows: int, schema: int, change: Change) -> Outgoing:
    """A message in memory of Arrow's, with room in front of it for what the log adds.

    The log keeps it in memory until it is in a segment, and gives back much at a time. The C
    library would hand all of that to the operating system, and get it back page by page: a copy
    into such memory took 65 µs for 125 KB, and 14 µs into Arrow's.
    """
    sink = pa.BufferOutputStream()
    sink.write(_ROOM)
    sink.write(message)
    room = memoryview(sink.getvalue()).cast("B")
    return Outgoing(room[ROOM_BYTES:], rows, schema, change, room)
