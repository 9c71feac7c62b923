"""The rows that tables and their peers are fed, and a table to feed them to.

A row is 100 bytes as Arrow has it: `id`, a text of 16 (and 4 for where it ends), two integers of 8,
and `note`, a text of 60 (and 4). Every id is there once. Notes are drawn from 64 letters, so there
is nothing to compress and nothing to escape.

Ids come in ascending order, which is the best case of a peer that keeps rows sorted by key; where
that matters, `scattered` ones are measured as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lowmark.access import open_database
from lowmark.backend.embedded import Embedded
from lowmark.client import Database, Table
from lowmark.errors import invariant
from lowmark.log import LogConfig
from lowmark.node import Settings

BATCH_ROWS = 10_000
PARTITIONS = 8
ROW_BYTES = 100
COLUMNS = {"id": "string", "customer": "int64", "amount": "int64", "note": "string"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("customer", pa.int64()),
        pa.field("amount", pa.int64()),
        pa.field("note", pa.string()),
    ]
)
NOTE_BYTES, ID_BYTES = 60, 16
NOTES = 8
"""So many batches' notes are drawn, and used in turn."""
IDLE_DEADLINE_S = 120.0
LETTERS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8
)
SCATTER = 0x9E3779B97F4A7C15
"""Odd, so multiplying by it modulo 2**64 gives every number another one."""

Row = tuple[str, int, int, str]


# -- rows -------------------------------------------------------------------------------------


def batch_of(first: int, rows: int = BATCH_ROWS, *, scattered: bool = False) -> pa.RecordBatch:
    """Rows number `first` and on."""
    numbers = np.arange(first, first + rows, dtype=np.uint64)
    return pa.RecordBatch.from_arrays(
        [
            _texts(_ids(numbers, scattered=scattered)),
            pa.array((numbers % 10_007).astype(np.int64)),
            pa.array((numbers * 31 % 1_000_003).astype(np.int64)),
            _notes(first // BATCH_ROWS % NOTES, rows),
        ],
        schema=SCHEMA,
    )


def batches_of(rows: int, *, scattered: bool = False) -> list[pa.RecordBatch]:
    """So many rows, in batches of 10,000; the last may be smaller."""
    return [
        batch_of(first, min(BATCH_ROWS, rows - first), scattered=scattered)
        for first in range(0, rows, BATCH_ROWS)
    ]


def id_of(number: int) -> str:
    """The id of a row."""
    return bytes(_ids(np.array([number], np.uint64), scattered=False)[0]).decode()


def dicts_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The same rows as dicts."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def tuples_of(batch: pa.RecordBatch) -> list[Row]:
    """The same rows as tuples."""
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _ids(numbers: npt.NDArray[np.uint64], *, scattered: bool) -> npt.NDArray[np.uint8]:
    """A line of 16 hexadecimal digits each."""
    if scattered:
        numbers = numbers * np.uint64(SCATTER)
    shifts = np.arange(60, -1, -4, dtype=np.uint64)
    digits = (numbers[:, None] >> shifts & np.uint64(15)).astype(np.intp)
    return np.frombuffer(b"0123456789abcdef", np.uint8)[digits]


@cache
def _notes(number: int, rows: int) -> pa.Array:
    dice = np.random.default_rng(number)
    return _texts(LETTERS[dice.integers(0, len(LETTERS), (rows, NOTE_BYTES))])


def _texts(letters: npt.NDArray[np.uint8]) -> pa.Array:
    """A text per line."""
    rows, width = letters.shape
    ends = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(letters.tobytes()))


# -- a table ----------------------------------------------------------------------------------


class Opened:
    """A database with one table, and a look behind it: whether anything is left to do."""

    def __init__(self, db: Database, table: Table) -> None:
        self.db = db
        self.table = table
        assert isinstance(db._backend, Embedded)
        self._backend = db._backend
        log = self._backend.node.log
        self._log = log
        self._first_wal = log.wal.number

    @property
    def rolled(self) -> int:
        """How often the WAL has begun a new file."""
        return self._log.wal.number - self._first_wal

    def rest(self) -> None:
        """Wait until nothing is left to do: the segment writer is idle, not only the WAL."""
        ends_at = time.monotonic() + IDLE_DEADLINE_S
        while not self._backend.ask_now(lambda: self._log.idle):
            invariant(time.monotonic() < ends_at, "the log comes to rest")
            time.sleep(0.001)


@contextmanager
def opened_table(
    folder: Path, log: LogConfig | None = None, *, partitions: int = PARTITIONS
) -> Iterator[Opened]:
    """A table for those rows in a database of its own, made if it is not there; closed after."""
    # Not `load_settings`: what stands in somebody's file must not change a figure.
    with open_database(folder, settings=Settings(log=log or LogConfig())) as db:
        table = db.create_table(
            "rows", COLUMNS, key="id", partitions=partitions, if_not_exists=True
        )
        yield Opened(db, table)
