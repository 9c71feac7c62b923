"""Our turns: a table is compacted on Spark, and read."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.compact_inputs import LEFT_COLUMNS
from benchmarks.compact_memory import Peak, python_tasks
from benchmarks.compact_workload import NOTHING, PARTITIONS, Left, left_in
from benchmarks.stopwatch import Stopwatch
from benchmarks.table_workload import Opened
from lowmark.client import Table
from lowmark.errors import invariant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Run", "compacted_by", "left_in_table", "read_whole", "settle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one turn came to, of anybody."""

    seconds: float
    rows: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    anonymous_bytes: int = 0
    """The most that its processes held at a time."""

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def bytes_moved(self) -> int:
        """Read and written."""
        return self.bytes_read + self.bytes_written


def settle() -> None:
    """Bring disk and memory to rest, before a clock starts."""
    gc.collect()
    os.sync()


def compacted_by(session: SparkSession, opened: Opened, rows: int) -> Run:
    """Compact all of a table that is new: so many rows."""
    opened.db.advance_watermark()
    opened.rest()
    settle()
    with Peak(python_tasks) as peak, Stopwatch() as watch:
        record = opened.table.compact(spark=session)
    invariant(record.state == "done", f"the run is {record.state}: {record.error}")
    invariant(record.rows_read == rows, f"{record.rows_read} rows were read, not {rows}")
    invariant(peak.bytes > 0, "Spark's Python tasks are found")
    return Run(
        seconds=watch.seconds(),
        rows=rows,
        bytes_read=record.bytes_read,
        bytes_written=record.bytes_written,
        anonymous_bytes=peak.bytes,
    )


def read_whole(table: Table, *, compacted: bool) -> Run:
    """Read everything, as someone does who comes new; all columns, and no value is looked at."""
    settle()
    rows = 0
    with Stopwatch() as watch, table.read(compacted=compacted) as reader:
        for batch in reader:
            rows += batch.num_rows
    return Run(seconds=watch.seconds(), rows=rows)


def left_in_table(table: Table) -> Left:
    """What a compacted read gives."""
    found = NOTHING
    for number in range(PARTITIONS):
        with table.read(columns=LEFT_COLUMNS, partitions=[number], compacted=True) as reader:
            found += left_in(reader, deletes=True)
    return found
