"""Spark writes tables: each row once, whatever is tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

import lowmark
import lowmark.spark
from eventually import eventually
from lowmark.client import Database, Table
from lowmark.errors import Rejected

COLUMNS = {"id": "int64", "v": "string"}

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", COLUMNS, key="id", partitions=3)


def write(frame: Any, place: str, **options: object) -> None:
    given = {"path": place, "table": "t", **options}
    frame.write.format("lowmark").options(**given).mode("append").save()


def rows(spark: Any, first: int, count: int, value: str = "x", tasks: int = 3) -> Any:
    frame = spark.range(first, first + count, numPartitions=tasks)
    return frame.selectExpr("id", f"'{value}' AS v")


def values(table: Table) -> dict[int, str]:
    return {row["id"]: row["v"] for row in table.read(as_of="now").to_pylist()}


def changes(table: Table) -> int:
    """How many rows its log has: a row that is stored twice counts twice."""
    return len(table.read(start="earliest", columns=["_offset", "_change"]).to_pylist())


def waiting(table: Table) -> int:
    found = table._backend.status(table.descriptor.id).values()
    return sum(one.staging.rows for one in found if one.staging is not None)


# -- writes ---------------------------------------------------------------------------------------


def test_a_frame_is_written(spark: Any, place: str, table: Table) -> None:
    # given a row that is to be replaced
    table.append([{"id": 5, "v": "old"}])
    # when a frame of several tasks is written, with columns in another order
    write(rows(spark, 0, 1_000).select("v", "id"), place)
    # then each row is there once, and nothing waits
    assert values(table) == dict.fromkeys(range(1_000), "x")
    assert (changes(table), waiting(table)) == (1_001, 0)
    # and one that has no rows changes nothing
    write(rows(spark, 0, 0), place)
    assert changes(table) == 1_001


def test_a_column_says_what_is_deleted(spark: Any, place: str, table: Table) -> None:
    table.append([{"id": key, "v": "old"} for key in range(4)])
    frame = spark.createDataFrame(
        [(0, None, "delete"), (1, "new", "upsert"), (9, "new", "upsert")],
        "id long, v string, _change string",
    )
    write(frame, place)
    assert values(table) == {1: "new", 2: "old", 3: "old", 9: "new"}


def test_a_bad_row_fails_the_write_and_nothing_of_it_is_seen(
    spark: Any, place: str, table: Table
) -> None:
    # given a frame whose last task has a row without a key
    frame = spark.sql("SELECT IF(id = 250, NULL, id) AS id, 'x' AS v FROM range(0, 300, 1, 3)")
    # when it is written
    with pytest.raises(Exception, match=r"column id.*(null|None)") as caught:
        write(frame, place)
    # then the error says which row, and nothing is there or waits
    assert "lowmark.errors.ValueRefused: row 50" in "".join(str(caught.value).splitlines()[:2])
    assert "Traceback" not in str(caught.value)
    assert table.count() == 0
    eventually(lambda: waiting(table) == 0)


def test_what_can_not_be_written_is_refused_before_any_task_runs(
    spark: Any, place: str, table: Table
) -> None:
    frame = rows(spark, 0, 10)
    for wrong, why in (
        (lambda: write(frame.withColumnRenamed("v", "w"), place), "column w"),
        (lambda: write(frame.drop("id"), place), "id"),
        (lambda: write(frame, place, startingOffsets="earliest"), "startingOffsets is not for"),
        (lambda: write(frame, place, txnAppId="a"), "txnAppId and txnVersion go together"),
        (lambda: write(frame, place, txnAppId="a", txnVersion="-1"), "a number from 0 on"),
        (
            lambda: (
                frame.write.format("lowmark")
                .options(path=place, table="t")
                .mode("overwrite")
                .save()
            ),
            "can't be overwritten",
        ),
    ):
        with pytest.raises(Exception, match=why):
            wrong()
    assert changes(table) == 0


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_a_task_that_fails_or_runs_twice_stores_its_rows_once(
    spark: Any, place: str, table: Table
) -> None:
    # given tasks that fail when they have given all rows, at their first attempt
    def fails_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise ValueError("not yet")

    frame = rows(spark, 0, 150_000, tasks=2).mapInArrow(fails_first, "id long, v string")
    # when they are written
    write(frame, place)
    # then the second attempts count
    assert (table.count(), changes(table)) == (150_000, 150_000)
    eventually(lambda: waiting(table) == 0)


def test_a_write_with_a_name_and_a_number_is_stored_once(
    spark: Any, place: str, table: Table
) -> None:
    for value in ("x", "again"):
        write(rows(spark, 0, 20, value), place, txnAppId="job", txnVersion="3")
    assert values(table) == dict.fromkeys(range(20), "x")
    lowmark.spark.upsert(rows(spark, 0, 20, "next"), "t", path=place, query="job", epoch=4)
    assert values(table) == dict.fromkeys(range(20), "next")
    assert (changes(table), waiting(table)) == (40, 0)


def test_a_table_without_a_key_takes_rows_but_no_upserts(
    spark: Any, db: Database, place: str
) -> None:
    table = db.create_table("t", COLUMNS, partitions=3)
    write(rows(spark, 0, 100), place)
    assert sorted(row["id"] for row in table.read().to_pylist()) == list(range(100))
    with pytest.raises(Rejected, match="has no key"):
        lowmark.spark.upsert(rows(spark, 0, 1), "t", path=place)


def test_every_type_comes_back_as_it_was_written(spark: Any, db: Database, place: str) -> None:
    columns = {
        "id": "int64", "b": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "f": "float32",
        "d": "float64", "s": "string", "y": "binary", "day": "date", "at": "timestamp",
        "local": "timestamp_ntz", "amount": "decimal(9,2)", "l": "list<int32>",
        "m": "map<string, int32>", "r": "struct<a: int64, b: string>",
    }  # fmt: skip
    db.create_table("source", columns, key="id", partitions=2)
    db.create_table("t", columns, key="id", partitions=3)
    frame = spark.sql(
        "SELECT id, id % 2 = 0 AS b, CAST(id AS byte) AS i8, CAST(id AS short) AS i16,"
        " CAST(id AS int) AS i32, CAST(id AS float) AS f, CAST(id AS double) AS d,"
        " CAST(id AS string) AS s, CAST(CAST(id AS string) AS binary) AS y,"
        " date_add(DATE'1960-02-28', CAST(id AS int)) AS day,"
        " TIMESTAMP'1965-01-01 00:00:00.123456 UTC' + make_interval(0, 0, 0, id) AS at,"
        " TIMESTAMP_NTZ'1965-01-01 00:00:00.123456' AS local, CAST(id / 3 AS decimal(9,2)) AS"
        " amount, array(CAST(id AS int), NULL) AS l, map('k', CAST(id AS int)) AS m,"
        " named_struct('a', id, 'b', 'x') AS r FROM range(40)"
    )
    write(frame, place)
    back = spark.read.format("lowmark").options(path=place, table="t").load()
    names = [name for name in columns if name != "m"]  # Spark compares no maps
    assert back.select(names).exceptAll(frame.select(names)).count() == 0
    assert back.count() == 40
    assert {row["m"]["k"] for row in back.collect()} == set(range(40))


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_a_directory_that_no_process_has_open_is_refused_before_any_task_runs(
    spark: Any, tmp_path: Path
) -> None:
    # given a table whose database is closed
    path = str(tmp_path / "closed")
    with lowmark.open(path) as database:
        for name in ("t", "source"):
            database.create_table(name, COLUMNS, key="id", partitions=3)
        database["source"].append([{"id": key, "v": "x"} for key in range(100)])
    ran = tmp_path / "ran"

    def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ran.touch()
        yield from batches

    # when a frame and a stream are written, then both say why not, and no task has run
    with pytest.raises(Exception, match=r"no process has .* open"):
        write(rows(spark, 0, 10).mapInArrow(noted, "id long, v string"), path)
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    writer = rate.selectExpr("value AS id", "'x' AS v").mapInArrow(noted, "id long, v string")
    writer = writer.writeStream.format("lowmark").options(path=path, table="t")
    query = writer.option("checkpointLocation", str(tmp_path / "rate")).start()
    with pytest.raises(Exception, match=r"no process has .* open"):
        query.awaitTermination()
    assert not ran.exists()
    # and a stream that reads the same database has it open itself, for its tasks
    stream(spark, path, tmp_path / "checkpoint", maxRowsPerTrigger="30")
    with lowmark.open(path) as database:
        assert values(database["t"]) == dict.fromkeys(range(100), "x")
        assert (changes(database["t"]), waiting(database["t"])) == (100, 0)


# -- streams --------------------------------------------------------------------------------------


def stream(spark: Any, place: str, checkpoint: Path, **options: str) -> None:
    """From table `source` to table `t`, what there is."""
    query = (
        spark.readStream.format("lowmark")
        .options(path=place, table="source", startingOffsets="earliest", **options)
        .load()
        .writeStream.format("lowmark")
        .options(path=place, table="t", checkpointLocation=str(checkpoint))
        .queryName("orders_in")  # Spark hands that on to the sink as an option
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@pytest.fixture
def source(db: Database) -> Table:
    made = db.create_table("source", COLUMNS, key="id", partitions=2)
    made.append([{"id": key, "v": "x"} for key in range(100)])
    return made


def test_a_stream_goes_on_from_its_checkpoint_and_stores_each_row_once(
    spark: Any, db: Database, place: str, tmp_path: Path, table: Table, source: Table
) -> None:
    # given a stream of several batches, deletes among them
    source.delete([7])
    options = {"maxRowsPerTrigger": "30", "columns": "id,v,_change"}
    stream(spark, place, tmp_path / "checkpoint", **options)
    assert values(table) == {key: "x" for key in range(100) if key != 7}
    assert changes(table) == 101
    # when its driver was lost after its last batch was stored, before Spark had noted that
    commits = sorted(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda one: int(one.name)
    )
    assert len(commits) > 2
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
    source.append([{"id": 200, "v": "y"}])
    stream(spark, place, tmp_path / "checkpoint", **options)
    # then that batch is not stored again, and the next one is
    assert table.get(200) == {"id": 200, "v": "y"}
    assert (changes(table), waiting(table)) == (102, 0)
    # and another query is another one
    stream(spark, place, tmp_path / "another", **options)
    assert changes(table) == 102 + 102


def test_results_that_change_are_upserted_and_never_replace_the_table(
    spark: Any,
    place: str,
    tmp_path: Path,
    table: Table,
    source: Table,
    request: pytest.FixtureRequest,
) -> None:
    # given counts by key, over two batches
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.shuffle.partitions"))
    frame = spark.readStream.format("lowmark").options(
        path=place, table="source", startingOffsets="earliest"
    )
    counts = frame.load().groupBy("id").count().selectExpr("id", "string(count) AS v")

    def store(batch: Any, number: int) -> None:
        for _ in range(2):  # as if it was tried again
            lowmark.spark.upsert(batch, "t", path=place, query="counts", epoch=number)

    def run(mode: str) -> None:
        writer = counts.writeStream.option("checkpointLocation", str(tmp_path / mode))
        if mode == "complete":
            writer = writer.format("lowmark").options(path=place, table="t")
        else:
            writer = writer.foreachBatch(store)
        writer.outputMode(mode).trigger(availableNow=True).start().awaitTermination()

    # then the whole of it does not take the place of the table
    with pytest.raises(Exception, match="can't be overwritten"):
        run("complete")
    # and what has changed is upserted, each batch once
    run("update")
    source.append([{"id": 3, "v": "again"}])
    run("update")
    assert values(table) == dict.fromkeys(range(100), "1") | {3: "2"}
    assert (changes(table), waiting(table)) == (101, 0)
