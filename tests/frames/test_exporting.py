"""Exports on Spark: the same files as in one process, by a task for each partition."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from lowmark.client import Database, ExportProgress, Table
from lowmark.client.exporting import ExportWork
from lowmark.errors import DestinationRefused, Rejected
from lowmark.export import DataFile
from lowmark.frames.exporting import export_part
from server.nodes import Nodes, table_of

on_spark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]
COLUMNS = {"id": "int64", "status": "string", "who": "uuid", "at": "timestamp", "n": "int8"}


@pytest.fixture
def orders(db: Database) -> Table:
    """Rows in ledgers, of which some are dead, and rows behind them."""
    table = db.create_table("orders", COLUMNS, key="id", partitions=3)
    row = {"who": "00000000-0000-0000-0000-000000000007", "at": "2026-07-01T12:00:00.000001Z"}
    table.append([{"id": n, "status": "new", "n": n % 100, **row} for n in range(300)])
    db.advance_watermark("now")
    assert table.compact(engine="local").state == "done"
    table.delete(list(range(0, 300, 7)))
    table.append([{"id": n, "status": "paid"} for n in range(0, 300, 10)])
    return table


def files_of(path: Path) -> dict[str, pa.Table]:
    """What is in each file, by its place."""
    return {
        str(file.relative_to(path)): pq.read_table(file).sort_by("id")
        for file in sorted(path.rglob("*.parquet"))
    }


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


class Enough(Exception):
    """Of a progress callback that has seen enough."""


class TestOnSpark:
    pytestmark = on_spark

    @pytest.mark.slow
    @pytest.mark.parametrize("form", ["parquet", "delta", "iceberg"])
    def test_files_are_those_of_an_export_in_one_process(
        self, form: str, spark: Any, orders: Table, tmp_path: Path
    ) -> None:
        # given an export in this process
        here = orders.export(tmp_path / "here", format=form)
        # when the same is done on Spark
        there = orders.export(tmp_path / "there", format=form, as_of=here.time, spark=spark)
        # then it says the same, and file by file the rows and columns are the same
        assert (there.engine, there.where) == ("spark", "your Spark session")
        assert (there.rows, there.files, there.time) == (here.rows, here.files, here.time)
        assert files_of(tmp_path / "there") == files_of(tmp_path / "here")
        assert left_over(tmp_path) == []

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "form",
        [
            "delta",
            # They fail in the same place: a commit comes after all tasks. `tests/client` has each
            # format fail in one process.
            pytest.param("parquet", marks=pytest.mark.release),
            pytest.param("iceberg", marks=pytest.mark.release),
        ],
    )
    def test_an_export_that_fails_ends_its_tasks_and_leaves_nothing(
        self, form: str, spark: Any, orders: Table, tmp_path: Path
    ) -> None:
        def stop(_: ExportProgress) -> None:
            raise Enough

        with pytest.raises(Enough):
            orders.export(tmp_path / "out", format=form, spark=spark, progress=stop)
        assert not (tmp_path / "out").exists()
        assert left_over(tmp_path) == []


class TestReaders:
    pytestmark = on_spark

    @pytest.mark.slow
    def test_spark_reads_what_was_exported(self, spark: Any, orders: Table, tmp_path: Path) -> None:
        # when Spark, which knows nothing of where they come from, reads the files
        orders.export(tmp_path / "out", spark=spark)
        found = spark.read.parquet(str(tmp_path / "out"))
        # then it has the same rows, instants among them
        rows = sorted(
            tuple(row)
            for row in found.selectExpr("id", "status", "unix_micros(at)", "who", "n").collect()
        )
        with orders.read(as_of="now") as reader:
            expected = [
                (
                    row["id"],
                    row["status"],
                    None
                    if row["at"] is None
                    else int(row["at"].timestamp()) * 10**6 + row["at"].microsecond,
                    None if row["who"] is None else row["who"].bytes,
                    row["n"],
                )
                for row in reader.to_pylist()
            ]
        assert rows == sorted(expected)

    @pytest.mark.slow
    def test_an_empty_table_and_a_table_of_a_server_are_exported(
        self, spark: Any, tmp_path: Path
    ) -> None:
        # given a server, and a client of it
        with Nodes(tmp_path, 1) as nodes, nodes.connect(0) as db:
            table = table_of(db, "orders", replicas=1, partitions=2)
            # when an empty table is exported by tasks, and then one with rows
            empty = table.export(tmp_path / "empty", format="iceberg", spark=spark)
            table.append([{"id": number, "status": "new"} for number in range(100)])
            full = table.export(tmp_path / "full", format="delta", spark=spark)
        # then
        assert (empty.rows, full.rows) == (0, 100)
        assert StaticTable.from_metadata(str(tmp_path / "empty")).scan().to_arrow().num_rows == 0
        assert DeltaTable(tmp_path / "full").to_pyarrow_table().num_rows == 100

    @pytest.mark.release  # the same export on a session of the caller is above
    def test_the_command_exports_on_a_spark_of_its_own(
        self, db: Database, orders: Table, tmp_path: Path, place: str
    ) -> None:
        words = ["export", "orders", "--to", str(tmp_path / "out"), "--format", "delta"]
        words += ["--spark-master", "local[1]", "--data", place, "--json"]
        ran = subprocess.run(
            [sys.executable, "-m", "lowmark", *words], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        done = json.loads(ran.stdout)
        assert (done["engine"], done["where"], done["rows"]) == (
            "spark",
            "local[1]",
            orders.count(),
        )
        assert DeltaTable(tmp_path / "out").to_pyarrow_table().num_rows == orders.count()


def work_of(table: Table, place: str, folder: Path) -> ExportWork:
    schema = pa.schema([("id", pa.int64())])
    return ExportWork(
        by="path",
        database=place,
        table=table.name,
        time=table.snapshot().time,
        columns=["id"],
        on_gap="raise",
        partition=1,
        schema=schema.serialize().to_pybytes(),
        path=str(folder),
        folder=str(folder),
    )


def test_a_task_that_runs_twice_writes_under_names_of_its_own(
    orders: Table, place: str, tmp_path: Path
) -> None:
    # given the work of one partition
    (tmp_path / "work").mkdir()
    work = msgspec.msgpack.encode(work_of(orders, place, tmp_path / "work"))
    # when it is done twice
    [one], [two] = (
        msgspec.msgpack.decode(export_part(work), type=list[DataFile]) for _ in range(2)
    )
    # then both have all rows, and neither has touched the other's
    assert one.name != two.name
    tables = [pq.read_table(tmp_path / "work" / file.name) for file in (one, two)]
    assert tables[0] == tables[1]
    assert tables[0].num_rows == one.rows == two.rows > 0


def test_a_task_that_does_not_see_the_directory_says_so(
    orders: Table, place: str, tmp_path: Path
) -> None:
    work = work_of(orders, place, tmp_path / "elsewhere")
    with pytest.raises(DestinationRefused, match="is another directory where tasks run"):
        export_part(msgspec.msgpack.encode(work))


def test_a_place_is_named_once(orders: Table, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="runs without Spark"):
        orders.export(tmp_path / "out", engine="local", master="local[2]")
    with pytest.raises(Rejected, match="engine can't be 'flink'"):
        orders.export(tmp_path / "out", engine="flink")  # type: ignore[arg-type]
    assert left_over(tmp_path) == []
    assert not (tmp_path / "out").exists()
