"""Reads of a table by Spark, against Spark's reads of the same rows from plain Parquet.

One table was compacted, and all its rows are in ledgers; another one had a tenth of its keys
changed after that, and was compacted again, so its first files have dead rows. The peer's files
were written by Spark from the first table. All reads end in Spark's sink that does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lowmark
from benchmarks.compact_session import MASTER, opened_session
from benchmarks.figure import Compared, Figure, Round, Side, Target, rates
from benchmarks.runner import Bench, Plan, measures
from benchmarks.spark_sizes import SparkSizes
from benchmarks.spark_workload import COLUMNS, pieces_of, rows_of
from benchmarks.stopwatch import Stopwatch
from lowmark.client import Database, Table
from lowmark.errors import invariant
from lowmark.spark import release_frames, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCAN = Figure("scan_vs_parquet", Target(1.3, at_least=False), "rows/s")
DEAD = Figure("scan_with_dead_vs_parquet", Target(2.0, at_least=False), "rows/s")
ONE = Figure("scan_one_column_vs_parquet", Target(1.6, at_least=False), "rows/s")
SOURCE = Figure("source_vs_parquet", Target(3.0, at_least=False), "rows/s")
PARTITIONS = 2
DEAD_SHARE = 10
"""One key of this many is changed."""


@measures(SCAN, DEAD, ONE, SOURCE, runs="scan_runs")
def scans(bench: Bench[SparkSizes]) -> Iterator[Plan]:
    """Read all columns, and one of five."""
    rows = bench.sizes.scan_rows
    with bench.fresh_folder() as root, opened_session(rehearsal=bench.rehearsal) as session:
        place, plain = str(root / "db"), str(root / "plain")
        with lowmark.open(place) as database:
            bench.say(f"preparing two tables of {rows:,} rows")
            _made(database, "whole", rows)
            changed = _made(database, "changed", rows)
            for part in pieces_of(range(0, rows, DEAD_SHARE)):
                changed.upsert(rows_of(part, seed=2))
            _compact(database, changed)
            frames = {
                "whole": table(session, "whole", path=place),
                "one": table(session, "whole", path=place, columns=["count"]),
                "dead": table(session, "changed", path=place),
                "source": session.read.format("lowmark")
                .options(path=place, table="whole", columns="count")
                .load(),
            }
            frames["whole"].write.parquet(plain)
            frames["plain"] = session.read.parquet(plain)
            frames["plain one"] = frames["plain"].select("count")
            for side, frame in frames.items():
                invariant(frame.count() == rows, f"{side} has all rows")
            try:
                yield Plan(
                    turns=[partial(_turn, rows, side, frame) for side, frame in frames.items()],
                    compared=_compared(session, rows),
                )
            finally:
                release_frames()


def _compared(session: SparkSession, rows: int) -> dict[str, Compared]:
    shape = (
        f"{rows:,} rows of five columns, {PARTITIONS} partitions, one process; Spark"
        f" {session.version}, {MASTER}; rows end in a sink that does nothing"
    )
    return {
        SCAN.name: Compared(
            rates(SCAN, "whole", "plain"),
            "`lowmark.spark.table` of a compacted table, all columns; peer: Spark's reader of"
            f" Parquet on the same rows, written by Spark; {shape}",
        ),
        DEAD.name: Compared(
            rates(DEAD, "dead", "plain"),
            f"the same where one key of {DEAD_SHARE} was changed later and compacted, so that as"
            f" many rows of the first files are dead; {shape}",
        ),
        ONE.name: Compared(
            rates(ONE, "one", "plain one"),
            f"`lowmark.spark.table`, one column of five; peer: the same from Parquet; {shape}",
        ),
        SOURCE.name: Compared(
            rates(SOURCE, "source", "plain one"),
            '`spark.read.format("lowmark")`, one column of five; peer: the same from Parquet;'
            f" {shape}",
        ),
    }


def _turn(rows: int, side: str, frame: Any, _: Path) -> Round:
    with Stopwatch() as watch:
        frame.write.format("noop").mode("overwrite").save()
    return {side: Side(rows, watch.seconds())}


def _made(database: Database, name: str, rows: int) -> Table:
    made = database.create_table(name, COLUMNS, key="id", partitions=PARTITIONS)
    for part in pieces_of(range(rows)):
        made.append(rows_of(part, seed=1))
    _compact(database, made)
    return made


def _compact(database: Database, made: Table) -> None:
    database.advance_watermark(made.snapshot().time)
    run = made.compact(engine="local")
    invariant(run.state == "done", f"the run is {run.state}")
