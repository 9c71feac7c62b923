"""Our turns: a table is compacted on Spark, and read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.compact_inputs import LEFT_COLUMNS
from benchmarks.compact_memory import Peak, python_tasks
from benchmarks.compact_sizes import CompactSizes
from benchmarks.compact_workload import NOTHING, PARTITIONS, Left, left_in
from benchmarks.figure import Side
from benchmarks.runner import Bench
from benchmarks.stopwatch import Stopwatch
from benchmarks.table_workload import Opened
from lowmark.client import Table
from lowmark.errors import invariant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compacted_by(
    bench: Bench[Any], session: SparkSession, opened: Opened, rows: int
) -> tuple[Side, int]:
    """Compact all of a table that is new: so many rows. Gives how many bytes it wrote, too."""
    opened.db.advance_watermark()
    opened.rest()
    bench.settle()
    with Peak(python_tasks) as peak, Stopwatch() as watch:
        record = opened.table.compact(spark=session)
    invariant(record.state == "done", f"the run is {record.state}: {record.error}")
    invariant(record.rows_read == rows, f"{record.rows_read} rows were read, not {rows}")
    invariant(peak.bytes > 0, "Spark's Python tasks are found")
    moved = record.bytes_read + record.bytes_written
    side = Side(rows, watch.seconds(), bytes_moved=moved, held_bytes=peak.bytes)
    return side, record.bytes_written


def read_whole(bench: Bench[CompactSizes], table: Table, *, compacted: bool) -> Side:
    """Read everything, as a new reader does; all columns, and no value is looked at."""
    bench.settle()
    rows = 0
    with Stopwatch() as watch, table.read(compacted=compacted) as reader:
        for batch in reader:
            rows += batch.num_rows
    return Side(rows, watch.seconds())


def left_in_table(table: Table) -> Left:
    """What a compacted read gives."""
    found = NOTHING
    for number in range(PARTITIONS):
        with table.read(columns=LEFT_COLUMNS, partitions=[number], compacted=True) as reader:
            found += left_in(reader, deletes=True)
    return found
