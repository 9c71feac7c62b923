"""Rows as commands read and write them: as text, and in files; - is stdin, or stdout.

Rows are written as Parquet, Arrow or CSV, batch by batch. A file is written beside its name and
gets it when it is complete: a file of that name is whole.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.parquet as pq

from lowmark.cli.session import WrongUse
from lowmark.client import Reader, time_text
from lowmark.errors import Unavailable
from lowmark.table import TIME

# Rows as text: a JSON object a line, cells of a table, fields of CSV.
#
# What is printed can be appended again: decimals are text with all their digits, times are ISO
# 8601, bytes are hexadecimal digits, UUIDs are as usual. A map is an object if its keys are text,
# else a list of pairs. JSON has no NaN and no infinities; they are the texts "NaN", "Infinity" and
# "-Infinity".

Convert = Callable[[Any], Any]

_encode = msgspec.json.Encoder(decimal_format="string").encode


def json_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows of which every value can become JSON."""
    converts = {
        field.name: convert
        for field in batch.schema
        if (convert := _converting(field.type)) is not None
    }
    rows: list[dict[str, Any]] = batch.to_pylist()
    for name, convert in converts.items():
        for row in rows:
            value = row[name]
            if value is not None:
                row[name] = convert(value)
    return rows


def json_row(schema: pa.Schema, row: Mapping[str, Any]) -> dict[str, Any]:
    """One row, as a look-up gives it."""
    made = dict(row)
    for field in schema:
        convert, value = _converting(field.type), made.get(field.name)
        if convert is not None and value is not None:
            made[field.name] = convert(value)
    return made


def json_lines(batch: pa.RecordBatch) -> str:
    """A line per row, each with its end."""
    return "".join(f"{_encode(row).decode()}\n" for row in json_rows(batch))


def json_text(value: object) -> str:
    """One value in one line."""
    return _encode(value).decode()


def _converting(kind: pa.DataType) -> Convert | None:
    """What turns a Python value of an Arrow type into one that JSON has; None: it is one."""
    if pa.types.is_fixed_size_binary(kind):
        return lambda value: str(value if isinstance(value, UUID) else UUID(bytes=value))
    if pa.types.is_binary(kind):
        return bytes.hex
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_decimal(kind):
        return lambda value: format(value, "f")
    if pa.types.is_timestamp(kind):
        return _moment
    if pa.types.is_date(kind):
        return date.isoformat
    if pa.types.is_map(kind):
        return _map(kind)
    if pa.types.is_list(kind):
        return _list(_converting(kind.value_type))
    if pa.types.is_struct(kind):
        return _struct({field.name: _converting(field.type) for field in kind})
    return None


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _moment(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


def _list(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _struct(converts: Mapping[str, Convert | None]) -> Convert | None:
    wanted = {name: convert for name, convert in converts.items() if convert is not None}
    if not wanted:
        return None

    def one(value: dict[str, Any]) -> dict[str, Any]:
        return {
            name: wanted[name](part) if name in wanted and part is not None else part
            for name, part in value.items()
        }

    return one


def _map(kind: pa.DataType) -> Convert:
    of_key, of_value = _converting(kind.key_type), _converting(kind.item_type)
    is_object = pa.types.is_string(kind.key_type)

    def one(value: Any) -> Any:
        pairs = [
            [
                key if of_key is None else of_key(key),
                item if of_value is None or item is None else of_value(item),
            ]
            for key, item in (value.items() if isinstance(value, Mapping) else value)
        ]
        return dict(pairs) if is_object and len(dict(pairs)) == len(pairs) else pairs

    return one


# -- for people ---------------------------------------------------------------------------------


def cells(batch: pa.RecordBatch) -> list[list[str]]:
    """Rows as texts."""
    names = batch.schema.names
    return [[cell_of(name, row[name]) for name in names] for row in json_rows(batch)]


def cell_of(name: str, value: Any) -> str:
    """A value of a row, in one line."""
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case int() if name == TIME:
            return time_text(value)
        case int() | float() | Decimal():
            return str(value)
        case str():
            return value if value.isprintable() else repr(value)[1:-1]
        case _:
            return json_text(value)


# -- CSV ----------------------------------------------------------------------------------------


def csv_schema(schema: pa.Schema) -> pa.Schema:
    """What `csv_batch` gives."""
    return pa.schema([pa.field(field.name, _csv_type(field.type)) for field in schema])


def csv_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Columns that Arrow's CSV writer writes as our reader reads them."""
    made = [
        _csv_column(column, field.type)
        for column, field in zip(batch.columns, batch.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(made, schema=csv_schema(batch.schema))


def _csv_type(kind: pa.DataType) -> pa.DataType:
    plain = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)
    return kind if plain else pa.string()


def _csv_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if _csv_type(kind) == kind or pa.types.is_string(kind):
        return column
    if pa.types.is_dictionary(kind) or pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return pc.cast(column, pa.string())
    convert = _converting(kind)
    return pa.array([_csv_text(value, convert) for value in column.to_pylist()], pa.string())


def _csv_text(value: Any, convert: Convert | None) -> str | None:
    if value is None:
        return None
    made = value if convert is None else convert(value)
    return made if isinstance(made, str) else json_text(made)


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
