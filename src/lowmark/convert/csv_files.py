"""CSV: a header that names columns, then a row per record.

A field that is empty and not quoted is null; a quoted empty one is the empty string. Quotes are
doubled inside quotes; a quoted field may hold delimiters and line ends; a quote within a field that
does not begin with one is only a character. Lines that are empty are passed over.

Arrow parses block by block. Its own types are used where it reads nothing that `text` refuses;
other columns, and all of them in a block where something is odd, are parsed as text and read by
`text`. Arrow does not say in which line a row begins, nor what it did not take; Python's reader of
CSV goes through the block then.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Container, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from lowmark.catalog import Plain, TableSchema
from lowmark.catalog.types import INTEGER_BITS
from lowmark.convert.arrow import arrow_of
from lowmark.convert.coercion import CHANGE, PASSED_OVER, Coercion, Text
from lowmark.convert.errors import ColumnRefused, LineRefused, ValueRefused, in_file
from lowmark.convert.source import RECORD_BYTES_MAX, FileBatch, Source, lines_in, text_blocks
from lowmark.errors import Rejected
from lowmark.formatting import near, shown

BLOCK_BYTES = 4 << 20
"""How much is read and parsed at once."""

_FLOATS = (Plain.FLOAT32, Plain.FLOAT64)
_READ_BY_ARROW = {*INTEGER_BITS, *_FLOATS, Plain.BOOL, Plain.DATE, Plain.TIMESTAMP_NTZ}
"""Not decimals: Arrow lets too many digits pass. Not timestamps: it wants all to have a zone."""


def read_csv(
    source: Source, coercion: Coercion, schema: TableSchema, *, delimiter: str
) -> Iterator[FileBatch]:
    """All rows of a CSV file, a batch per block."""
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise Rejected(f"{delimiter!r} can't be a delimiter", hint="Use one ASCII character.")
    reader: _Reader | None = None
    row = 0
    whole_until = partial(_whole_until, delimiter=delimiter)
    for block, line, done in text_blocks(source, whole_until, size=BLOCK_BYTES):
        if not block.strip(b"\r\n"):
            continue
        if reader is None:
            first = next(_records(block, delimiter, line))
            header = _header(source, schema, first)
            reader = _Reader(source, coercion, schema, delimiter, header)
            line += lines_in(block[: first.end])
            block = block[first.end :]
        batch = reader.batch(block, line)
        if batch is not None:
            yield FileBatch(batch, row, done, source.size)
            row += batch.num_rows
    if reader is None:
        raise Rejected(
            f"{source.name} has no header",
            hint="Its first line names the columns, as in id,status,amount.",
        )


class _Record(NamedTuple):
    line: int
    begin: int
    end: int
    fields: list[str]
    """Of characters that are bytes: what is no UTF-8 is found here, too."""


def _records(block: bytes, delimiter: str, line: int = 1) -> Iterator[_Record]:
    """The records of a block that begins with a line, but for empty ones; slow."""
    text = io.StringIO(block.decode("latin-1"), newline="")
    begin, size = 0, csv.field_size_limit(2 * RECORD_BYTES_MAX)
    try:
        reader = csv.reader(text, delimiter=delimiter)
        at = line
        for fields in reader:
            end = text.tell()
            if fields:
                yield _Record(at, begin, end, fields)
            at, begin = line + reader.line_num, end
    finally:
        csv.field_size_limit(size)


def _whole_until(block: bytes, delimiter: str) -> int:
    """Where the last record that is whole ends; 0 if there is none."""
    end = block.rfind(b"\n") + 1
    if block.find(b'"', 0, end) < 0:
        return end
    signs = np.frombuffer(block, np.uint8, end)
    quotes = np.flatnonzero(signs == ord('"'))
    # If every other quote opens a field or is the second of a pair, then, by induction, an even
    # number of them means outside of quotes.
    before = signs[quotes[::2] - 1]  # before the first byte is, as it were, the last: a line end
    if not np.isin(before, np.frombuffer(delimiter.encode() + b'\r\n"', np.uint8)).all():
        # There are others, such as the inch in `5" pipe`. One more record begins where all end.
        return max((each.begin for each in _records(block[:end] + b"x", delimiter)), default=0)
    count = len(quotes)
    while count % 2:
        end = block.rfind(b"\n", 0, int(quotes[count - 1])) + 1
        count = int(np.searchsorted(quotes, end))
    return end


def _header(source: Source, schema: TableSchema, record: _Record) -> list[str]:
    known = [column.name for column in schema.columns]
    header: list[str] = []
    for field in record.fields:
        name = field.encode("latin-1").decode(errors="replace").strip()
        if name in header:
            what, hint = f"column {name} is there twice", "Drop one of them."
        elif name in known or name in PASSED_OVER or name == CHANGE:
            header.append(name)
            continue
        else:
            what, hint = f"the table has no column {name or repr(name)}", near(name, known)
        refused = ColumnRefused(f"line {record.line}: {what}", column=name, hint=hint)
        raise in_file(refused, source.name)
    return header


class _Reader:
    """Turns blocks of records into batches."""

    def __init__(
        self,
        source: Source,
        coercion: Coercion,
        schema: TableSchema,
        delimiter: str,
        header: list[str],
    ) -> None:
        self._file = source.name
        self._coercion = coercion
        self._delimiter = delimiter
        self._header = header
        kinds = {column.name: column.type for column in schema.columns}
        text = {name: pa.string() for name in header if name not in PASSED_OVER}
        self._typed = {
            name: arrow_of(kinds[name]) for name in text if kinds.get(name) in _READ_BY_ARROW
        }
        self._floats = [name for name in text if kinds.get(name) in _FLOATS]
        self._has_integers = any(kinds.get(name) in INTEGER_BITS for name in text)
        self._as_text = _converting(text)
        self._as_typed = _converting(text | self._typed)

    def batch(self, block: bytes, line: int) -> pa.RecordBatch | None:
        """The rows of a block that begins with a line; nothing if it has none."""
        if not block.strip(b"\r\n"):
            return None
        try:
            batch = self._at_once(block)
            if batch is None:
                batch = self._coerced(self._parsed(block, self._as_text), typed=())
            return batch
        except pa.ArrowInvalid as error:
            raise self._misshapen(block, line, error) from None
        except ValueRefused as refused:
            records = enumerate(_records(block, self._delimiter, line))
            at = next(each.line for row, each in records if row == refused.row)
            raise refused.at_line(at, file=self._file) from None
        except ColumnRefused as refused:
            raise in_file(refused, self._file) from None

    def _at_once(self, block: bytes) -> pa.RecordBatch | None:
        """Read by Arrow's types, if it takes all values, and none that `text` does not."""
        if self._has_integers and _may_have_hexadecimal(block):
            return None
        try:
            rows = self._parsed(block, self._as_typed)
        except pa.ArrowInvalid:
            return None
        if any(pc.any(pc.is_inf(rows.column(name))).as_py() for name in self._floats):
            return None  # one may have been too large; Arrow does not say so
        return self._coerced(rows, typed=self._typed)

    def _parsed(self, block: bytes, converting: pv.ConvertOptions) -> pa.Table:
        return pv.read_csv(
            pa.BufferReader(block),
            read_options=pv.ReadOptions(column_names=self._header, block_size=len(block) + 1),
            parse_options=pv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=b'"' in block
            ),
            convert_options=converting,
        )

    def _coerced(self, rows: pa.Table, *, typed: Container[str]) -> pa.RecordBatch:
        given: dict[str, pa.Array | Text] = {}
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            array = column.chunk(0)  # one block is one chunk
            given[name] = array if name in typed else Text(array)
        return self._coercion.columns(given, rows.num_rows)

    def _misshapen(self, block: bytes, line: int, error: pa.ArrowInvalid) -> LineRefused:
        """What is wrong with a block that is not of this header, or not UTF-8."""
        for record in _records(block, self._delimiter, line):
            if len(record.fields) != len(self._header):
                return LineRefused(
                    f"there are {len(record.fields)} fields, and the header has"
                    f" {len(self._header)}",
                    file=self._file,
                    line=record.line,
                    hint="A field with a delimiter or a line end in it stands in quotes.",
                )
            for column, field in zip(self._header, record.fields, strict=True):
                try:
                    field.encode("latin-1").decode()
                except UnicodeDecodeError:
                    return LineRefused(
                        "is not UTF-8",
                        file=self._file,
                        line=record.line,
                        column=column,
                        value=shown(field.encode("latin-1")),
                    )
        return LineRefused(f"no CSV begins here ({error})", file=self._file, line=line)


def _converting(types: dict[str, pa.DataType]) -> pv.ConvertOptions:
    return pv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["true", "True", "TRUE"],
        false_values=["false", "False", "FALSE"],
    )


def _may_have_hexadecimal(block: bytes) -> bool:
    """Whether an integer may be written as 0x10; Arrow would read it, and we do not."""
    if b"x" not in block and b"X" not in block:
        return False
    signs = np.frombuffer(block, np.uint8)  # a search for two bytes stops at every 0
    places = np.flatnonzero((signs | 0x20) == ord("x"))
    return bool(np.any(signs[places[places > 0] - 1] == ord("0")))
