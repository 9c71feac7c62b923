"""CSV: a header that names columns, then a row per record.

A field that is empty and not quoted is null; a quoted empty one is the empty string. Quotes are
doubled inside quotes; a quoted field may hold delimiters and line ends. Lines that are empty are
passed over.

Arrow parses block by block. Its own types are used where it reads nothing that `text`
refuses; other columns, and all of them in a block where something is odd, are parsed as text and
read by `text`. Rows are found again by their own record in the block only when one is
refused, to say in which line it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from lowmark.catalog import Plain, TableSchema
from lowmark.catalog.types import INTEGER_BITS
from lowmark.convert.coercion import CHANGE, PASSED_OVER, Coercion, Text
from lowmark.convert.errors import ColumnRefused, LineRefused, ValueRefused, in_file, near
from lowmark.convert.nested import arrow_of
from lowmark.convert.source import FileBatch, Source, lines_in, text_blocks
from lowmark.errors import Rejected
from lowmark.formatting import shown

BLOCK_BYTES = 4 << 20
"""How much is read and parsed at once."""

_QUOTE, _X, _ZERO, _NEWLINE = (ord(sign) for sign in '"x0\n')
_QUOTED = re.compile(rb'"([^"]*(?:""[^"]*)*)"(?!")(.*)', re.DOTALL)
_FLOATS = (Plain.FLOAT32, Plain.FLOAT64)
_READ_BY_ARROW = {*INTEGER_BITS, *_FLOATS, Plain.BOOL, Plain.DATE, Plain.TIMESTAMP_NTZ}
"""Not decimals: Arrow lets too many digits pass. Not timestamps: it wants all to have a zone."""


def read_csv(
    source: Source, coercion: Coercion, schema: TableSchema, *, delimiter: str
) -> Iterator[FileBatch]:
    """All rows of a CSV file, a batch per block."""
    dialect = _Dialect(delimiter)
    reader: _Reader | None = None
    row = 0
    for block, line, done in text_blocks(source, dialect.whole_until, size=BLOCK_BYTES):
        if not block.strip(b"\r\n"):
            continue
        if reader is None:
            begin, end = _header_place(source, dialect, block, line)
            line += lines_in(block[:begin])
            header = _header(source, schema, dialect.fields(block[begin:end]), line)
            reader = _Reader(source, coercion, schema, dialect, header)
            line += lines_in(block[begin:end])
            block = block[end:]
        batch = reader.batch(block, line)
        if batch is not None:
            yield FileBatch(batch, row, done, source.size)
            row += batch.num_rows
    if reader is None:
        raise Rejected(
            f"{source.name} has no header",
            hint="Its first line names the columns, as in id,status,amount.",
        )


class _Dialect:
    """Where records and fields end."""

    def __init__(self, delimiter: str) -> None:
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise Rejected(f"{delimiter!r} can't be a delimiter", hint="Use one ASCII character.")
        self.delimiter = delimiter
        sign = re.escape(delimiter.encode())
        field = rb'(?:"[^"]*(?:""[^"]*)*"(?!")|(?!"))[^' + sign + rb"\r\n]*"
        self._field = re.compile(field)
        self._record = re.compile(field + rb"(?:" + sign + field + rb")*(?:\r\n|\n|\r|\Z)")
        self._before_quote = np.zeros(256, np.bool_)
        self._before_quote[list(delimiter.encode() + b'\r\n"')] = True

    def whole_until(self, block: bytes) -> int:
        """Where the last record that is whole ends; 0 if there is none."""
        if b'"' not in block:
            return block.rfind(b"\n") + 1
        quotes = self._quotes(block)
        if quotes is None:
            ends = [end for _, end in self.records(block) if block[end - 1] == _NEWLINE]
            return ends[-1] if ends else 0
        at = block.rfind(b"\n")
        while at >= 0:
            before = int(np.searchsorted(quotes, at))
            if before % 2 == 0:
                return at + 1
            at = block.rfind(b"\n", 0, int(quotes[before - 1]))  # it is inside quotes
        return 0

    def is_closed(self, block: bytes) -> bool:
        """Whether no quote is left open at the end."""
        if b'"' not in block:
            return True
        quotes = self._quotes(block)
        if quotes is not None:
            return len(quotes) % 2 == 0
        return max((end for _, end in self.records(block)), default=0) == len(block)

    def _quotes(self, block: bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
        """The places of quotes, if every other one opens a field or is the second of a pair.

        Then, by induction, an even number of quotes means outside of quotes. There may be others,
        such as the inch in `5" pipe`, which are only characters.
        """
        signs = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(signs == _QUOTE)
        opening = quotes[::2]
        if opening[0] == 0:
            opening = opening[1:]
        return quotes if bool(np.all(self._before_quote[signs[opening - 1]])) else None

    def records(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Where each record begins and ends; it stops before one whose quote is not closed."""
        at = 0
        while at < len(block) and (found := self._record.match(block, at)):
            yield at, found.end()
            at = found.end()

    def fields(self, record: bytes) -> list[bytes]:
        """The fields of a record, without their quotes."""
        record = record.rstrip(b"\r\n")
        fields: list[bytes] = []
        at = 0
        while True:
            found = self._field.match(record, at)
            if found is None:
                return fields
            fields.append(_unquoted(found[0]))
            at = found.end() + 1
            if at > len(record):
                return fields


def _unquoted(field: bytes) -> bytes:
    found = _QUOTED.fullmatch(field)
    return field if found is None else found[1].replace(b'""', b'"') + found[2]


class _Reader:
    """Turns blocks of records into batches."""

    def __init__(
        self,
        source: Source,
        coercion: Coercion,
        schema: TableSchema,
        dialect: _Dialect,
        header: list[str],
    ) -> None:
        self._source = source
        self._coercion = coercion
        self._dialect = dialect
        self._header = header
        self._kinds = {column.name: column.type for column in schema.columns}
        self._wanted = [name for name in header if name not in PASSED_OVER]
        self._has_integers = any(self._kinds.get(name) in INTEGER_BITS for name in header)
        as_text = dict.fromkeys(self._wanted, pa.string())
        typed = {
            name: arrow_of(kind)
            for name, kind in self._kinds.items()
            if name in as_text and kind in _READ_BY_ARROW
        }
        self._as_text = _converting(as_text)
        self._typed = _converting(as_text | typed)

    def batch(self, block: bytes, line: int) -> pa.RecordBatch | None:
        """The rows of a block that begins with a line; nothing if it has none."""
        if not block.strip(b"\r\n"):
            return None
        if not self._dialect.is_closed(block):
            raise self._misshapen(block, line)
        try:
            return self._read(block, line)
        except ValueRefused as refused:
            raise self._in_line(refused, block, line) from None
        except ColumnRefused as refused:
            raise in_file(refused, self._source.name) from None

    def _read(self, block: bytes, line: int) -> pa.RecordBatch:
        if not (self._has_integers and _may_have_hexadecimal(block)):
            try:
                rows = self._parsed(block, self._typed)
            except pa.ArrowInvalid:
                rows = None
            if rows is not None and not self._has_infinities(rows):
                return self._coerced(rows, typed=True)
        try:
            rows = self._parsed(block, self._as_text)
        except pa.ArrowInvalid:
            raise self._misshapen(block, line) from None
        return self._coerced(rows, typed=False)

    def _parsed(self, block: bytes, converting: pv.ConvertOptions) -> pa.Table:
        return pv.read_csv(
            pa.BufferReader(block),
            read_options=pv.ReadOptions(column_names=self._header, block_size=len(block) + 1),
            parse_options=pv.ParseOptions(
                delimiter=self._dialect.delimiter, newlines_in_values=b'"' in block
            ),
            convert_options=converting,
        )

    def _coerced(self, rows: pa.Table, *, typed: bool) -> pa.RecordBatch:
        given: dict[str, pa.Array | Text] = {}
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            is_read = typed and self._kinds.get(name) in _READ_BY_ARROW
            given[name] = array if is_read else Text(array)
        return self._coercion.columns(given, rows.num_rows)

    def _has_infinities(self, rows: pa.Table) -> bool:
        """Whether a float may have been too large; Arrow does not say so."""
        return any(
            pc.any(pc.is_inf(rows.column(name))).as_py()
            for name in self._wanted
            if self._kinds.get(name) in _FLOATS
        )

    # -- refusing -------------------------------------------------------------------------------

    def _records(self, block: bytes, line: int) -> Iterator[tuple[int, bytes]]:
        """Records with something in them, each with its line."""
        for begin, end in self._dialect.records(block):
            record = block[begin:end]
            if record.strip(b"\r\n"):
                yield line, record
            line += lines_in(record)

    def _in_line(self, refused: ValueRefused, block: bytes, line: int) -> LineRefused:
        for row, (at, _) in enumerate(self._records(block, line)):
            if row == refused.row:
                line = at
                break
        return LineRefused(
            refused.why,
            file=self._source.name,
            line=line,
            column=refused.column,
            value="null" if refused.value == "None" else refused.value,
            within=refused.within,
            hint=refused.hint,
        )

    def _misshapen(self, block: bytes, line: int) -> Rejected:
        """What is wrong with a block that is not CSV, or not of this header, or not UTF-8."""
        name = self._source.name
        whole = 0
        for begin, whole in self._dialect.records(block):
            record = block[begin:whole]
            fields = self._dialect.fields(record) if record.strip(b"\r\n") else []
            if fields and len(fields) != len(self._header):
                return LineRefused(
                    f"there are {len(fields)} fields, and the header has {len(self._header)}",
                    file=name,
                    line=line + lines_in(block[:begin]),
                    hint="A field with a delimiter or a line end in it stands in quotes.",
                )
            for column, field in zip(self._header, fields, strict=False):
                try:
                    field.decode()
                except UnicodeDecodeError:
                    return LineRefused(
                        "is not UTF-8",
                        file=name,
                        line=line + lines_in(block[:begin]),
                        column=column,
                        value=shown(field),
                    )
        return LineRefused(
            "a quote is not closed",
            file=name,
            line=line + lines_in(block[:whole]),
            hint="Inside quotes, a quote is written twice.",
        )


def _header_place(source: Source, dialect: _Dialect, block: bytes, line: int) -> tuple[int, int]:
    """Where the first record with something in it begins and ends."""
    for begin, end in dialect.records(block):
        if block[begin:end].strip(b"\r\n"):
            return begin, end
    raise LineRefused("a quote of the header is not closed", file=source.name, line=line)


def _header(source: Source, schema: TableSchema, fields: list[bytes], line: int) -> list[str]:
    known = [column.name for column in schema.columns]
    header: list[str] = []
    for field in fields:
        name = field.decode(errors="replace").strip()
        if name in header:
            what, hint = f"column {name} is there twice", "Drop one of them."
        elif name in known or name in PASSED_OVER or name == CHANGE:
            header.append(name)
            continue
        else:
            what, hint = f"the table has no column {name or repr(name)}", near(name, known)
        refused = ColumnRefused(f"line {line}: {what}", column=name, hint=hint)
        raise in_file(refused, source.name)
    return header


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
    signs = np.frombuffer(block, np.uint8)
    places = np.flatnonzero((signs | 0x20) == _X)
    return bool(np.any(signs[places[places > 0] - 1] == _ZERO))
