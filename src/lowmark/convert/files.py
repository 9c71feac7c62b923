"""Files of rows, read in batches of a table's schema: what `lowmark append TABLE FILE` does.

    parquet, arrow   Arrow IPC as a file or as a stream; values are coerced as those of a program
    csv              a header, then a line per row; values are text, read as `text` says
    jsonl            an object per line; numbers keep all their digits, bytes are in hexadecimal

Without a format, the first bytes tell: Parquet and Arrow have a magic; of text, a known ending of
the file's name decides, and else `{` begins JSON lines, and anything else CSV.

Never is more than a few blocks in memory, whatever the file's size; what must be sought in, such as
Parquet, is first written to a temporary file if it comes from a pipe. A batch is checked as a
whole before it is handed out. What can't be taken is refused with its line, counted from 1, and its
column, or for files without lines with its row, counted from 0. Batches before it have been handed
out by then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from lowmark.catalog import ColumnId, TableSchema
from lowmark.convert.arrow import ARROW_FAILURES
from lowmark.convert.coercion import Coercion
from lowmark.convert.csv_files import read_csv
from lowmark.convert.errors import in_file, near
from lowmark.convert.json_files import read_json_lines
from lowmark.convert.source import FileBatch, Source
from lowmark.errors import Rejected

FORMATS = ("parquet", "arrow", "csv", "jsonl")

_BATCH_ROWS = 65_536
_ENDINGS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_MAGIC = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",  # how an IPC stream begins
}
_PACKED = {b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "zstd -d", b"BZh": "bunzip2"}


def read_rows(
    file: str | os.PathLike[str] | BinaryIO,
    *,
    schema: TableSchema,
    format: str | None = None,  # noqa: A002 - it is what people call it
    key: frozenset[ColumnId] = frozenset(),
    keyless_ok: bool = False,
    changes: bool = False,
    delimiter: str | None = None,
    name: str | None = None,
) -> Iterator[FileBatch]:
    """Read a file, or a stream of bytes such as stdin, batch by batch.

    `delimiter` is for CSV, and a comma if it is not given (a tab for `.tsv`); `name` is what errors
    call a stream.
    """
    if format is not None and format not in FORMATS:
        raise Rejected(f"{format} is not a format", hint=near(format, FORMATS, of="Known are"))
    coercion = Coercion(schema, key=key, keyless_ok=keyless_ok, changes=changes)
    with Source.opened(file, name) as source:
        kind = format or _sniffed(source)
        if delimiter is None:
            delimiter = "\t" if source.ending == ".tsv" else ","
        match kind:
            case "csv":
                yield from read_csv(source, coercion, schema, delimiter=delimiter)
            case "jsonl":
                yield from read_json_lines(source, coercion, schema)
            case _:
                yield from _read_arrow(source, coercion, kind)


def _sniffed(source: Source) -> str:
    head = source.peek(64)
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    for magic, tool in _PACKED.items():
        if head.startswith(magic):
            raise Rejected(
                f"{source.name} is compressed",
                hint=f"Unpack it on the way: {tool} -c FILE | lowmark append TABLE -",
            )
    if source.ending in _ENDINGS:
        return _ENDINGS[source.ending]
    return "jsonl" if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") else "csv"


# -- Parquet and Arrow --------------------------------------------------------------------------


def _read_arrow(source: Source, coercion: Coercion, kind: str) -> Iterator[FileBatch]:
    batches = _parquet(source) if kind == "parquet" else _ipc(source)
    row = 0
    for batch, done in _readable(source, kind, batches):
        for at in range(0, batch.num_rows, _BATCH_ROWS):
            part = batch if batch.num_rows <= _BATCH_ROWS else batch.slice(at, _BATCH_ROWS)
            try:
                made = coercion.batch(part, first_row=row)
            except Rejected as refused:
                raise in_file(refused, source.name) from None
            yield FileBatch(made, row, done, source.size)
            row += part.num_rows


def _readable(
    source: Source, kind: str, batches: Iterator[tuple[pa.RecordBatch, int]]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The same, with words for a file that is damaged or of another kind."""
    while True:
        try:
            found = next(batches, None)
        except ARROW_FAILURES as error:
            raise _unreadable(source, kind, error) from error
        except OSError as error:
            if error.errno is not None:  # the disk's, not Arrow's
                raise
            raise _unreadable(source, kind, error) from error
        if found is None:
            return
        yield found


def _unreadable(source: Source, kind: str, error: Exception) -> Rejected:
    return Rejected(
        f"{source.name} can't be read as {kind}",
        detail=f"Arrow says: {str(error).splitlines()[0]}.",
        hint="Is it complete, and is the format right?",
    )


def _parquet(source: Source) -> Iterator[tuple[pa.RecordBatch, int]]:
    with pq.ParquetFile(source.to_seek_in()) as file:
        rows, size, done = file.metadata.num_rows, source.size or 0, 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            done += batch.num_rows
            yield batch, size * done // max(rows, 1)


def _ipc(source: Source) -> Iterator[tuple[pa.RecordBatch, int]]:
    if source.peek(6) == b"ARROW1":
        with pa.ipc.open_file(source.to_seek_in()) as file:
            for at in range(file.num_record_batches):
                size = source.size or 0
                yield file.get_batch(at), size * (at + 1) // file.num_record_batches
    else:
        with pa.ipc.open_stream(pa.PythonFile(source, mode="r")) as stream:
            for batch in stream:
                yield batch, source.done
