"""Parquet files of rows that come in batches.

Batches are as they were appended, maybe of one row each; so they are gathered into row groups. A
file ends with the row group that makes it large enough.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

FILE_BYTES = 256 << 20
"""How large a file grows before the next one is begun."""
GROUP_ROWS = 1 << 18
GROUP_BYTES = 64 << 20
"""A row group is as many rows, or as many bytes in memory."""


class DataFile(msgspec.Struct, frozen=True):
    """A file that was written."""

    name: str
    rows: int
    bytes: int


def write_files(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    folder: str,
    prefix: str,
    *,
    file_bytes: int = FILE_BYTES,
    wrote: Callable[[int, int], None] = lambda _rows, _bytes: None,
) -> list[DataFile]:
    """Write rows as files with these columns; no file, if there are none. `wrote` is called after
    each row group, with its rows and bytes.
    """
    files: list[DataFile] = []
    groups = _row_groups(batches)
    group = next(groups, None)
    while group is not None:
        name, rows = f"{prefix}-{len(files):05}.parquet", 0
        path = os.path.join(folder, name)
        with open(path, "wb") as sink, _writer(sink, schema) as writer:
            while group is not None and (before := sink.tell()) < file_bytes:
                writer.write_table(group.cast(schema), row_group_size=group.num_rows)
                rows += group.num_rows
                wrote(group.num_rows, sink.tell() - before)
                group = next(groups, None)
        files.append(DataFile(name, rows, os.path.getsize(path)))
    return files


def write_empty(schema: pa.Schema, folder: str, name: str) -> DataFile:
    """A file without rows, which says what the columns are."""
    path = os.path.join(folder, name)
    with open(path, "wb") as sink, _writer(sink, schema):
        pass
    return DataFile(name, 0, os.path.getsize(path))


def _writer(sink: object, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        store_decimal_as_integer=True,  # Iceberg wants it, and all readers take it
    )


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)
