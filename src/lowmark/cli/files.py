"""Files that commands read rows from and write rows to; - is stdin, or stdout.

Rows are written as Parquet, Arrow or CSV, batch by batch. A file is written beside its name and
gets it when it is complete: a file of that name is whole.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq

from lowmark.cli.session import WrongUse
from lowmark.cli.values import csv_batch, csv_schema
from lowmark.client import Reader
from lowmark.errors import Unavailable

FileKind = Literal["parquet", "arrow", "csv"]
Write = Callable[[pa.RecordBatch], None]
T = TypeVar("T")


@contextlib.contextmanager
def opened_input(file: str) -> Iterator[tuple[Path | BinaryIO, str]]:
    """What can be read from, and what errors call it."""
    if file == "-":
        yield sys.stdin.buffer, "stdin"
        return
    path = Path(file)
    # It is not opened to find out: what comes through a pipe can be read only once.
    if not path.exists():
        raise WrongUse(f"there is no file {file}")
    if path.is_dir():
        raise WrongUse(f"{file} is a directory", hint="Append its files one by one.")
    if not os.access(path, os.R_OK):
        raise WrongUse(f"{file} can't be read: permission denied")
    yield path, file


def readable(batches: Iterator[T], name: str) -> Iterator[T]:
    """The same; tells a disk that fails from an output that does."""
    while True:
        try:
            found = next(batches, None)
        except OSError as error:
            raise Unavailable(f"{name} can't be read: {error.strerror or error}") from error
        if found is None:
            return
        yield found


_GROUP_ROWS = 65_536
"""This many rows make one row group, or one batch: what is read may come in far smaller pieces."""


def write_file(reader: Reader, kind: FileKind, path: str) -> int:
    """Write all rows to a file, or to stdout; gives how many there were."""
    rows = 0
    with _opened(path) as sink, contextlib.ExitStack() as ending:
        write = _writer(kind, sink, reader.schema, ending, stream=path == "-")
        for batch in _gathered(reader):
            write(batch)
            rows += batch.num_rows
    return rows


def _gathered(reader: Reader) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in reader:
        waiting.append(batch)
        count += batch.num_rows
        if count >= _GROUP_ROWS:
            yield _joined(waiting)
            waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _writer(
    kind: FileKind, sink: BinaryIO, schema: pa.Schema, ending: contextlib.ExitStack, *, stream: bool
) -> Write:
    match kind:
        case "parquet":
            parquet = ending.enter_context(pq.ParquetWriter(sink, schema))
            write_parquet: Write = parquet.write_batch
            return write_parquet
        case "arrow":
            new = pa.ipc.new_stream if stream else pa.ipc.new_file
            # A dictionary that comes anew with each batch is replaced by the next one.
            options = pa.ipc.IpcWriteOptions(unify_dictionaries=False)
            arrow = ending.enter_context(new(sink, schema, options=options))
            write_arrow: Write = arrow.write_batch
            return write_arrow
        case "csv":
            csv = ending.enter_context(pv.CSVWriter(sink, csv_schema(schema)))
            return lambda batch: csv.write_batch(csv_batch(batch))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    if target.is_dir():
        raise WrongUse(f"{path} is a directory")
    try:
        file = beside.open("wb")
    except OSError as error:
        raise WrongUse(f"{path} can't be written: {(error.strerror or '').lower()}") from error
    try:
        with file:
            yield file
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
