"""What compaction is measured against: DuckDB, Polars, plain Spark, and copying.

What is done for the peers
    1. Each has a process of its own, which stays for all rounds: whatever warms up is warm. (Plain
       Spark has the session that ours runs in. It has Java's full compiler and enough memory for
       it, which ours does not need.)
    2. Each has the form that was fastest here. DuckDB builds its join the wrong way round if it is
       all one statement: it then takes half as long again, and six times the memory. So the last
       offsets are a table first. Polars works on as many partitions at a time as there are cores;
       its streaming engine, `unique`, and reading keys first were no faster.
    3. Each writes what ours does (Parquet, sorted by offset within a partition, deletes gone), and
       syncs it. As ours, it is not compressed: these values get a quarter smaller by it, and our
       rule is a third. None keeps a proof, an index of keys, or anything to go on from.
    4. What they read is in the page cache, as it is for ours.

`arg_max` passes over rows without a value, so deleted keys would come back with it, unless what it
gives is never null, as `_change` is.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.compact_inputs import input_path
from benchmarks.figure import PeerMissing
from benchmarks.stopwatch import Stopwatch
from clusters.processes import Child, Children, Parent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_S = 1_800.0
COPIED_AT_ONCE = 1 << 20
COPIES = 2


class Job(msgspec.Struct, frozen=True):
    """Files of some partitions to be compacted into a folder."""

    form: str
    source: str
    out: str
    partitions: list[int]


# -- DuckDB -----------------------------------------------------------------------------------

_DUCKDB_PARQUET = "FORMAT parquet, COMPRESSION uncompressed"


def duckdb_two_statements(job: Job) -> None:
    """The last offset of each key as a table; then what has it, sorted, in one file."""
    rows = _duckdb_rows(job)
    _duckdb(
        f"CREATE TEMP TABLE last AS SELECT k, max(_offset) AS _offset FROM {rows} GROUP BY k",
        f"COPY (SELECT * FROM {rows} SEMI JOIN last USING (k, _offset)"
        f" WHERE _change = 'upsert' ORDER BY _partition, _offset)"
        f" TO {_quoted(Path(job.out, 'all.parquet'))} ({_DUCKDB_PARQUET})",
    )


def duckdb_one_statement(job: Job) -> None:
    """The same, with the last offsets as a part of the query."""
    rows = _duckdb_rows(job)
    _duckdb(
        f"COPY (SELECT * FROM {rows}"
        f" SEMI JOIN (SELECT k, max(_offset) AS _offset FROM {rows} GROUP BY k) USING (k, _offset)"
        f" WHERE _change = 'upsert' ORDER BY _partition, _offset)"
        f" TO {_quoted(Path(job.out, 'all.parquet'))} ({_DUCKDB_PARQUET})"
    )


def duckdb_per_partition(job: Job) -> None:
    """One partition after the other, each in a file of its own."""
    statements = []
    for number in job.partitions:
        rows = f"read_parquet({_quoted(input_path(Path(job.source), number))})"
        statements.append(
            "CREATE OR REPLACE TEMP TABLE last AS SELECT last AS _offset FROM (SELECT"
            f" max(_offset) AS last, arg_max(_change, _offset) AS change FROM {rows} GROUP BY k)"
            " WHERE change = 'upsert'"
        )
        statements.append(
            f"COPY (SELECT * FROM {rows} SEMI JOIN last USING (_offset) ORDER BY _offset)"
            f" TO {_quoted(Path(job.out, f'{number}.parquet'))} ({_DUCKDB_PARQUET})"
        )
    _duckdb(*statements)


def _duckdb_rows(job: Job) -> str:
    paths = [_quoted(input_path(Path(job.source), number)) for number in job.partitions]
    return f"read_parquet([{', '.join(paths)}], hive_partitioning = true)"


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _duckdb(*statements: str) -> None:
    duckdb: Any = importlib.import_module("duckdb")
    with duckdb.connect() as connection:
        for statement in statements:
            connection.execute(statement)


# -- Polars -----------------------------------------------------------------------------------


def polars_per_partition(job: Job) -> None:
    """Some partitions at a time, each in a file of its own."""
    pl: Any = importlib.import_module("polars")
    wanted = pl.col("k").is_last_distinct() & (pl.col("_change") == "upsert")

    def compact(number: int) -> None:
        rows = pl.read_parquet(input_path(Path(job.source), number), hive_partitioning=False)
        rows.filter(wanted).write_parquet(f"{job.out}/{number}.parquet", compression="uncompressed")

    with ThreadPoolExecutor(os.cpu_count()) as helpers:
        list(helpers.map(compact, job.partitions))


FORMS: Mapping[str, Callable[[Job], None]] = {
    "duckdb": duckdb_two_statements,
    "duckdb_one_statement": duckdb_one_statement,
    "duckdb_per_partition": duckdb_per_partition,
    "polars": polars_per_partition,
}


# -- plain Spark ------------------------------------------------------------------------------


def plain_spark(session: SparkSession, job: Job) -> None:
    """`max_by` per key, with all other columns; nothing is asked of Spark but SQL."""
    sources = [str(input_path(Path(job.source), number).parent) for number in job.partitions]
    rows = session.read.option("basePath", job.source).parquet(*sources)
    rows.createOrReplaceTempView("rows")
    left = session.sql(
        f"SELECT /*+ REPARTITION({len(sources)}, _partition) */ k, last.* FROM (SELECT k,"
        " max_by(struct(_partition, _offset, _change, v), _offset) AS last FROM rows GROUP BY k)"
        " WHERE last._change = 'upsert'"
    )
    writer = left.sortWithinPartitions("_partition", "_offset").write.partitionBy("_partition")
    writer.option("compression", "uncompressed").parquet(f"{job.out}/rows")
    sync_tree(Path(job.out))


# -- processes --------------------------------------------------------------------------------


def find_peer(name: str) -> None:
    """Say so if a peer's package is not here."""
    if find_spec(name) is None:
        raise PeerMissing(
            f"{name} is left out: it is not installed; the extra packages that `bench` names"
            " have it"
        )


class Peer:
    """DuckDB or Polars in a process of its own."""

    def __init__(self, children: Children, name: str) -> None:
        find_peer(name)
        self._child = children.start("benchmarks.compact_peers", name, name=name)

    @property
    def pid(self) -> int:
        """The process."""
        return self._child.pid

    def run(self, job: Job) -> float:
        """Do it; gives how many seconds it took until it was on the disk."""
        return self._child.ask(job, float, deadline_s=DEADLINE_S)


class Piece(msgspec.Struct, frozen=True):
    """Files to be read, and how much of that is to be written."""

    sources: list[str]
    out: str
    bytes: int


class Copying:
    """The limit: two processes read what a run reads, and write and sync as much as it writes."""

    def __init__(self, children: Children) -> None:
        self._children: list[Child] = [
            children.start("benchmarks.compact_peers", "copy", name=f"copy {number}")
            for number in range(COPIES)
        ]

    def run(self, files: Sequence[Path], folder: Path, written: int) -> float:
        """Do it; gives how many seconds it took."""
        with Stopwatch() as watch:
            for number, child in enumerate(self._children):
                share = [str(path) for path in files[number::COPIES]]
                out = written * (number + 1) // COPIES - written * number // COPIES
                child.send(Piece(share, str(folder / str(number)), out))
            for child in self._children:
                child.receive(bool, deadline_s=DEADLINE_S)
        return watch.seconds()


def copy(piece: Piece) -> None:
    """Read all of it once, and write some of it."""
    room = memoryview(bytearray(COPIED_AT_ONCE))
    left = piece.bytes
    with Path(piece.out).open("xb", buffering=0) as out:
        for source in piece.sources:
            with Path(source).open("rb", buffering=0) as file:
                while got := file.readinto(room):
                    left -= out.write(room[: min(got, left)]) if left else 0
        while left:
            left -= out.write(room[:left])
        os.fsync(out.fileno())


def sync_tree(folder: Path) -> None:
    """What was written is on the disk, and so are its names."""
    for path in [folder, *folder.rglob("*")]:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def main() -> None:
    """Do what the parent asks for, again and again."""
    parent = Parent()
    name = sys.argv[1]
    if name == "copy":
        for piece in parent.messages(Piece):
            copy(piece)
            parent.send(True)
        return
    importlib.import_module(name)
    for job in parent.messages(Job):
        with Stopwatch() as watch:
            FORMS[job.form](job)
            sync_tree(Path(job.out))
        parent.send(watch.seconds())


if __name__ == "__main__":
    main()
