"""JSON lines: an object per line, with the columns that it has a value for.

Numbers keep the digits with which they are written, so decimals are exact; those of a float column
are rounded to the nearest float. Bytes are text in hexadecimal digits. A key that is given twice
counts as it is given last. Lines that are empty are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from lowmark.catalog import ColumnType, DecimalOf, Plain, TableSchema
from lowmark.catalog.types import parts_of
from lowmark.convert.coercion import Coercion
from lowmark.convert.errors import ColumnRefused, LineRefused, ValueRefused, in_file
from lowmark.convert.source import FileBatch, Source, text_blocks
from lowmark.convert.values import WrittenFloat
from lowmark.formatting import shown

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
            raise LineRefused(
                refused.why,
                file=self._source.name,
                line=_line_of(refused.row, block, line),
                column=refused.column,
                value="null" if refused.value == "None" else refused.value,
                within=refused.within,
                hint=refused.hint,
            ) from None
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
