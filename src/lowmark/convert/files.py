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
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lowmark.catalog import ColumnId, ColumnType, DecimalOf, Plain, TableSchema
from lowmark.catalog.types import parts_of
from lowmark.convert.arrow import ARROW_FAILURES
from lowmark.convert.coercion import Coercion
from lowmark.convert.csv_files import read_csv
from lowmark.convert.errors import ColumnRefused, LineRefused, ValueRefused, in_file
from lowmark.convert.source import FileBatch, Source, text_blocks
from lowmark.convert.unpacking import CheckedStream, check_parquet, ipc_file_check
from lowmark.convert.values import WrittenFloat
from lowmark.errors import Rejected
from lowmark.formatting import near, shown

# JSON lines: an object per line, with the columns that it has a value for.
#
# Numbers keep the digits with which they are written, so decimals are exact; those of a float
# column are rounded to the nearest float. Bytes are text in hexadecimal digits. A key that is given
# twice counts as it is given last. Lines that are empty are passed over.

BLOCK_BYTES = 1 << 20
"""Less than for CSV: the more objects there are at once, the longer the collector walks them."""

_BAD_JSON = (msgspec.MsgspecError, ValueError, RecursionError)


def read_json_lines(source: Source, coercion: Coercion, schema: TableSchema) -> Iterator[FileBatch]:
    """All rows of a file of JSON lines, a batch per block."""
    reader = _Reader(source, coercion, schema)
    row = 0
    for block, line, done in text_blocks(source, _whole_until, size=BLOCK_BYTES):
        batch = reader.batch(block, line)
        if batch is not None:
            yield FileBatch(batch, row, done, source.size)
            row += batch.num_rows


def _whole_until(block: bytes) -> int:
    return block.rfind(b"\n") + 1


class _Reader:
    """Turns blocks of lines into batches."""

    def __init__(self, source: Source, coercion: Coercion, schema: TableSchema) -> None:
        self._source = source
        self._coercion = coercion
        self._decoder = msgspec.json.Decoder(float_hook=_float_hook(schema))
        self._binaries = [each.name for each in schema.columns if each.type is Plain.BINARY]

    def batch(self, block: bytes, line: int) -> pa.RecordBatch | None:
        """The rows of a block that begins with a line; nothing if it has none."""
        rows = self._rows(block, line)
        for name in self._binaries:
            self._read_binary(name, rows, block, line)
        try:
            return self._coercion.dicts(rows) if rows else None
        except ValueRefused as refused:
            at = _line_of(refused.row, block, line)
            raise refused.at_line(at, file=self._source.name) from None
        except ColumnRefused as refused:
            if refused.row is None:
                raise in_file(refused, self._source.name) from None
            raise LineRefused(
                refused.what,
                file=self._source.name,
                line=_line_of(refused.row, block, line),
                column=refused.column,
                hint=refused.hint,
            ) from None

    def _rows(self, block: bytes, line: int) -> list[Any]:
        # One by one: given all lines at once, the decoder takes an object over two, or two on one.
        decode = self._decoder.decode
        try:
            rows = [decode(text) for text in block.split(b"\n") if text]
        except _BAD_JSON:
            return self._line_by_line(block, line)
        return rows if set(map(type, rows)) <= {dict} else self._line_by_line(block, line)

    def _line_by_line(self, block: bytes, line: int) -> list[Any]:
        rows = []
        for at, text in _lines(block, line):
            try:
                row = self._decoder.decode(text)
            except _BAD_JSON as error:
                raise self._no_object(at, text, f" ({error})") from None
            if not isinstance(row, dict):
                raise self._no_object(at, text, "")
            rows.append(row)
        return rows

    def _no_object(self, line: int, text: bytes, why: str) -> LineRefused:
        hint = "Write an object per line."
        if text.lstrip().startswith(b"["):
            hint = "Write an object per line: jq -c '.[]' FILE makes lines of a list."
        return LineRefused(
            f"this is not a JSON object{why}: {shown(text.decode(errors='replace').strip())}",
            file=self._source.name,
            line=line,
            hint=hint,
        )

    def _read_binary(self, name: str, rows: list[dict[str, Any]], block: bytes, line: int) -> None:
        for at, row in enumerate(rows):
            value = row.get(name)
            if not isinstance(value, str):
                continue
            try:
                row[name] = bytes.fromhex(value)
            except ValueError:
                raise LineRefused(
                    "is not an even number of hexadecimal digits",
                    file=self._source.name,
                    line=_line_of(at, block, line),
                    column=name,
                    value=shown(value),
                ) from None


def _lines(block: bytes, line: int) -> Iterator[tuple[int, bytes]]:
    """Lines with something in them, each with its number."""
    for at, text in enumerate(block.split(b"\n"), line):
        if text.strip():
            yield at, text


def _line_of(row: int, block: bytes, line: int) -> int:
    for each, (at, _) in enumerate(_lines(block, line)):
        if each == row:
            return at
    return line


def _float_hook(schema: TableSchema) -> Callable[[str], object] | None:
    """What becomes of a number with a point: as exact as the columns, and as fast as can be."""
    leaves = {leaf for column in schema.columns for leaf in _leaves(column.type)}
    if not any(isinstance(leaf, DecimalOf) for leaf in leaves):
        return None
    return WrittenFloat if leaves & {Plain.FLOAT32, Plain.FLOAT64} else Decimal


def _leaves(kind: ColumnType) -> Iterator[ColumnType]:
    parts = parts_of(kind)
    if not parts:
        yield kind
    for part in parts:
        yield from _leaves(part)


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
        for at in range(0, max(batch.num_rows, 1), _BATCH_ROWS):
            part = batch if batch.num_rows <= _BATCH_ROWS else batch.slice(at, _BATCH_ROWS)
            try:
                made = coercion.batch(part, first_row=row)
            except Rejected as refused:
                raise in_file(refused, source.name) from None
            if part.num_rows:  # else its columns are looked at all the same
                yield FileBatch(made, row, done, source.size)
            row += part.num_rows


def _readable(
    source: Source, kind: str, batches: Iterator[tuple[pa.RecordBatch, int]]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The same, with words for a file that is damaged or of another kind."""
    while True:
        try:
            found = next(batches, None)
        except Rejected as refused:
            raise in_file(refused, source.name) from None
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
        check_parquet(file.metadata)
        rows, size, done = file.metadata.num_rows, source.size or 0, 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            done += batch.num_rows
            yield batch, size * done // max(rows, 1)
        if not done:
            yield _no_rows(file.schema_arrow), size


def _ipc(source: Source) -> Iterator[tuple[pa.RecordBatch, int]]:
    if source.peek(6) == b"ARROW1":
        seekable = source.to_seek_in()
        check_batch = ipc_file_check(seekable)
        with pa.ipc.open_file(seekable) as file:
            for at in range(file.num_record_batches):
                size = source.size or 0
                check_batch(at)
                yield file.get_batch(at), size * (at + 1) // file.num_record_batches
            if not file.num_record_batches:
                yield _no_rows(file.schema), source.size or 0
    else:
        with pa.ipc.open_stream(pa.PythonFile(CheckedStream(source), mode="r")) as stream:
            yield _no_rows(stream.schema), source.done
            for batch in stream:
                yield batch, source.done


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A file without rows has columns all the same."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
