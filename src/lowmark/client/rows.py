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

from lowmark.client.coerce_arrow import ARROW_FAILURES
from lowmark.client.errors import ColumnRefused
from lowmark.errors import Rejected

__all__ = ["CHUNK_ROWS", "Columns", "Piece", "pieces"]

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
        yield from rows.to_batches()
    elif isinstance(rows, pa.RecordBatchReader):
        yield from rows
    elif _is_pandas(rows):
        yield from _of_pandas(rows)
    elif hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
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


def _of_iterable(rows: Iterable[object]) -> Iterator[Piece]:
    dicts: list[Mapping[str, Any]] = []
    for item in rows:
        if isinstance(item, Mapping):
            dicts.append(item)
            if len(dicts) == CHUNK_ROWS:
                yield dicts
                dicts = []
            continue
        if dicts:
            yield dicts
            dicts = []
        yield from pieces(item)
    if dicts:
        yield dicts


def _of_arrow(rows: Any) -> Iterator[pa.RecordBatch]:
    try:
        if hasattr(rows, "__arrow_c_stream__"):
            yield from pa.RecordBatchReader.from_stream(rows)
        else:
            yield pa.record_batch(rows)
    except ARROW_FAILURES as error:
        raise Rejected(
            f"{type(rows).__name__} can't be read as a table",
            detail=f"Arrow says: {error}.",
            hint=_HINT,
        ) from error


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
    for at in range(0, len(frame), _FRAME_ROWS):
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
