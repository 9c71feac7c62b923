"""What users call rows, cut into pieces that have columns.

    pyarrow Table, RecordBatch, RecordBatchReader   batch by batch, nothing is copied
    pandas DataFrame                                by columns; NaN is null, the index dropped
    whatever has Arrow's C stream, polars too       batch by batch
    an iterable of dicts                            10,000 at a time
    an iterable of any of these                     one after another

An index that matters is a column: `frame.reset_index()`. Neither pandas nor polars is imported
here: who gives a frame has done so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from lowmark.convert.arrow import ARROW_FAILURES
from lowmark.convert.errors import ColumnRefused
from lowmark.errors import Rejected

CHUNK_ROWS = 10_000
"""How many dicts make one batch."""

_FRAME_ROWS = 65_536
"""How many rows of a pandas frame make one batch."""

_HINT = (
    "Give a pyarrow Table or RecordBatch, a pandas or polars DataFrame, a list of dicts, or an"
    " iterable of these."
)


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns side by side, as Arrow arrays or as lists of Python objects."""

    given: Mapping[str, pa.Array | list[Any]]
    rows: int


Piece: TypeAlias = pa.RecordBatch | Columns | list[Mapping[str, Any]]


def pieces(rows: object) -> Iterator[Piece]:
    """Cut what was given into pieces; rows are in the order in which they came."""
    if isinstance(rows, pa.RecordBatch):
        yield rows
    elif isinstance(rows, pa.Table):
        yield from _with_columns(rows.schema, rows.to_batches())
    elif isinstance(rows, pa.RecordBatchReader):
        yield from _with_columns(rows.schema, rows)
    elif _is_pandas(rows):
        yield from _of_pandas(rows)
    elif _gives_arrow(rows):
        yield from _of_arrow(rows)
    elif isinstance(rows, str | bytes | bytearray | Mapping) or not isinstance(rows, Iterable):
        raise _not_rows(rows)
    elif isinstance(rows, list) and set(map(type, rows)) == {dict}:
        for at in range(0, len(rows), CHUNK_ROWS):
            yield rows if len(rows) <= CHUNK_ROWS else rows[at : at + CHUNK_ROWS]
    else:
        yield from _of_iterable(rows)


def _not_rows(rows: object) -> Rejected:
    hint = "One row is a list of one dict: [row]." if isinstance(rows, Mapping) else _HINT
    return Rejected(f"{type(rows).__name__} is not rows", hint=hint)


def _of_iterable(rows: Iterable[object], before: int = 0) -> Iterator[Piece]:
    """Rows one after another; `before` came before them, for errors."""
    dicts: list[Mapping[str, Any]] = []
    for item in rows:
        if isinstance(item, Mapping):
            dicts.append(item)
            if len(dicts) == CHUNK_ROWS:
                yield dicts
                before += len(dicts)
                dicts = []
            continue
        if dicts:
            yield dicts
            before += len(dicts)
            dicts = []
        if _is_pandas(item) or _gives_arrow(item):
            parts = pieces(item)
        elif isinstance(item, Iterable) and not _is_row_without_names(item):
            parts = _of_iterable(item, before)
        else:
            raise _not_a_row(item, before)
        for part in parts:
            before += _rows_in(part)
            yield part
    if dicts:
        yield dicts


def is_frame(rows: object) -> bool:
    """Whether something has columns with names: a table of Arrow, pandas, Polars or the like."""
    # A single column can be an Arrow stream, too; only what has columns says which.
    named = hasattr(rows, "columns") or hasattr(rows, "schema")
    return _is_pandas(rows) or (_gives_arrow(rows) and named)


def _gives_arrow(rows: object) -> bool:
    return hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__")


def _rows_in(piece: Piece) -> int:
    if isinstance(piece, pa.RecordBatch):
        return int(piece.num_rows)
    return piece.rows if isinstance(piece, Columns) else len(piece)


def _is_row_without_names(item: Iterable[object]) -> bool:
    """Whether it is values side by side, not rows one after another."""
    if isinstance(item, str | bytes | bytearray) or hasattr(item, "_fields"):
        return True
    if not isinstance(item, list | tuple) and not hasattr(item, "__array__"):
        return False
    for first in item:
        return not (isinstance(first, Mapping | list | tuple) or is_frame(first))
    return False


def _not_a_row(item: object, row: int) -> Rejected:
    kind = type(item).__name__
    article = "an" if kind[0].lower() in "aeiou" else "a"
    how = ""
    if hasattr(item, "_asdict"):
        how = " Write row._asdict() for each row."
    elif isinstance(item, list | tuple):
        how = " For values without names: [dict(zip(table.schema.names, row)) for row in rows]."
    return Rejected(
        f"row {row} is {article} {kind}: {item!r:.100}",
        detail="A row is a dict of values by column.",
        hint=f"{_HINT}{how}",
    )


def _of_arrow(rows: Any) -> Iterator[pa.RecordBatch]:
    try:
        if hasattr(rows, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(rows)
            yield from _with_columns(reader.schema, reader)
        else:
            yield pa.record_batch(rows)
    except ARROW_FAILURES as error:
        raise Rejected(
            f"{type(rows).__name__} can't be read as a table",
            detail=f"Arrow says: {error}.",
            hint=_HINT,
        ) from error


def _with_columns(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches; if there is none, one without rows: its columns are looked at all the same."""
    empty = True
    for batch in batches:
        empty = False
        yield batch
    if empty:
        yield pa.RecordBatch.from_arrays(
            [pa.nulls(0, field.type) for field in schema], schema=schema
        )


def _is_pandas(rows: object) -> bool:
    pandas = sys.modules.get("pandas")
    # While it is being imported, it is there without its classes.
    frame = getattr(pandas, "DataFrame", None)
    return frame is not None and isinstance(rows, frame)


def _of_pandas(frame: Any) -> Iterator[Columns]:
    names = [str(name) for name in frame.columns]
    for name in names:
        if names.count(name) > 1:
            raise ColumnRefused(
                f"column {name} is there twice", column=name, hint="Rename or drop one of them."
            )
    for at in range(0, max(len(frame), 1), _FRAME_ROWS):  # without rows it has columns all the same
        part = frame if len(frame) <= _FRAME_ROWS else frame.iloc[at : at + _FRAME_ROWS]
        given = {name: _of_series(part.iloc[:, place]) for place, name in enumerate(names)}
        yield Columns(given, len(part))


def _of_series(series: Any) -> pa.Array | list[Any]:
    if series.dtype == object:
        gone = series.isna()
        values = series.tolist()
        if not gone.any():
            return list(values)
        return [None if null else value for value, null in zip(values, gone, strict=True)]
    made = pa.array(series, from_pandas=True)
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
