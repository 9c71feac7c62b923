"""Writes of a DataFrame into a table, against appends of the same rows by a client.

The DataFrame is in Spark's own cache, with a partition for each core here; making its rows is not
measured. Its tasks reach the directory through the process that has it open, which is the driver.
The peer is the fastest way into a table: that process appends the rows itself, from memory.

Both sides get batches of 10,000 rows, in which Spark hands rows to Python, and in which `bench
table` appends. A client that has all rows at hand needs no batches: one call is a variant.

Spark makes Arrow batches of its rows and sends them to another process before we have any of them.
What that takes is the limit for every sink in Python. So a sink that drops its rows is a variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.compact_session import MASTER, opened_session
from benchmarks.figure import Figure, Round, Side, Target, rates
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.spark_sizes import SparkSizes
from benchmarks.stopwatch import Stopwatch
from benchmarks.table_workload import BATCH_ROWS, PARTITIONS, ROW_BYTES, batches_of, opened_table
from lowmark.client import Table
from lowmark.errors import invariant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINK = Figure("sink_vs_append", Target(0.3), "rows/s")
FRAME_PARTITIONS = 2


@measures(SINK, runs="write_runs")
def writes(bench: Bench[SparkSizes]) -> Iterator[Plan]:
    """Write a DataFrame, and append the same rows."""
    rows = bench.sizes.write_rows
    with opened_session(rehearsal=bench.rehearsal) as session:
        bench.say(f"preparing {rows:,} rows")
        batches = batches_of(rows)
        frame = _cached(session, batches)
        turns: list[Turn] = [
            partial(_stored, rows, "write", partial(_write, frame)),
            partial(_stored, rows, "append", partial(_append, batches)),
        ]
        variants = {}
        if bench.sizes.variants:
            whole = pa.Table.from_batches(batches).combine_chunks()
            turns += [
                partial(_stored, rows, "one call", partial(_append, [whole])),
                partial(_dropped, rows, frame),
            ]
            variants = {
                "in_one_call": rates(SINK, "write", "one call"),
                "dropped_rows_vs_append": rates(SINK, "drop", "append"),
            }
        yield bench.plan(turns, rates(SINK, "write", "append"), _words(session, rows), variants)


def _words(session: SparkSession, rows: int) -> str:
    return (
        f'`df.write.format("lowmark")` of {rows:,} rows of {ROW_BYTES} bytes and four columns,'
        f" cached by Spark in {FRAME_PARTITIONS} partitions, into a new table with a key,"
        f" {PARTITIONS} partitions, until they can be read; one process has the directory open,"
        f" and tasks reach it by its socket; Spark {session.version}, {MASTER}, batches of"
        f" {BATCH_ROWS:,} rows; peer: one client, `table.append` of the same rows in the process"
        f" that has the directory open, Arrow batches of {BATCH_ROWS:,}, each durable before the"
        " next; in one call: all rows as one Arrow table; dropped rows: a sink in Python that drops"
        " what Spark gives it, over the same peer"
    )


def _cached(session: SparkSession, batches: Sequence[pa.RecordBatch]) -> DataFrame:
    rows = pa.Table.from_batches(batches)
    frame = session.createDataFrame(rows).repartition(FRAME_PARTITIONS).cache()
    invariant(frame.count() == rows.num_rows, "the frame has all rows")
    return frame


def _stored(rows: int, side: str, store: Callable[[Path, Table], None], folder: Path) -> Round:
    with opened_table(folder / "db") as opened:
        with Stopwatch() as watch:
            store(folder / "db", opened.table)
        stored = sum(opened.table.snapshot().ends.values())
    invariant(stored == rows, f"{side} has stored {stored} rows, not {rows}")
    return {side: Side(rows, watch.seconds())}


def _write(frame: DataFrame, place: Path, table: Table) -> None:
    writer = frame.write.format("lowmark").options(path=str(place), table=table.name)
    writer.mode("append").save()


def _append(pieces: Sequence[pa.RecordBatch | pa.Table], _: Path, table: Table) -> None:
    for piece in pieces:
        table.append(piece)


def _dropped(rows: int, frame: DataFrame, _: Path) -> Round:
    from pyspark.sql.datasource import (  # noqa: PLC0415 (PySpark is optional)
        DataSource,
        DataSourceArrowWriter,
        WriterCommitMessage,
    )
    from pyspark.sql.types import StructType  # noqa: PLC0415

    # Workers know no benchmarks; classes of a function go to them as they are.
    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for _ in iterator:
                continue
            return WriterCommitMessage()

    class Drop(DataSource):
        @classmethod
        def name(cls) -> str:
            return "drop"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            return Writer()

    frame.sparkSession.dataSource.register(Drop)
    with Stopwatch() as watch:
        frame.write.format("drop").mode("append").save()
    return {"drop": Side(rows, watch.seconds())}
