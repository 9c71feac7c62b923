"""`spark.readStream.format("lowmark")`: micro-batches, restarts, and what holds the log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import lowmark
from frames import alone
from lowmark.client import Database, Table

COLUMNS = {"id": "int64", "status": "string"}
MARKS = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture(params=["alone", pytest.param("spark", marks=[*MARKS, pytest.mark.release])])
def spark(request: pytest.FixtureRequest) -> Any:
    """A session; or none: then a stream is asked what Spark asks, in the same order. Spark takes
    three seconds of processor time to start a stream, so `make test` has few of them on Spark.
    """
    return request.getfixturevalue("shared")._session if request.param == "spark" else None


on_spark = pytest.mark.parametrize("spark", [pytest.param("spark", marks=MARKS)], indirect=True)
"""On Spark in `make test`, too."""


class Query:
    """A stream of a table into Parquet, which takes what there is and ends."""

    def __init__(
        self, spark: Any, place: str, folder: Path, *, into: str = "rows", **options: Any
    ) -> None:
        self._spark = spark
        self._into = str(folder / into)
        self.checkpoint = folder / "checkpoint"
        given = {"path": place, "table": "orders", "columns": "*,_change"} | options
        self._options = {name: str(value) for name, value in given.items()}

    def run(self, function: Callable[[Any, int], None] | None = None) -> list[int]:
        """Take what there is, and give it to a function, if there is one; gives the rows of each
        batch.
        """
        if self._spark is None:
            into = Path(self._into)
            return alone.run(
                self._options, checkpoint=self.checkpoint, into=into, function=function
            )
        reader = self._spark.readStream.format("lowmark").options(**self._options)
        writer = reader.load().writeStream
        writer = writer.foreachBatch(function) if function else writer.format("parquet")
        query = (
            writer.option("checkpointLocation", str(self.checkpoint))
            .option("path", self._into)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self.progress = query.recentProgress
        return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]

    def rows(self) -> list[tuple[int, str | None, str]]:
        """All that has come, in order of keys."""
        if self._spark is None:
            found = pq.read_table(self._into).to_pylist()
        else:
            found = self._spark.read.parquet(self._into).collect()
        return sorted(((row["id"], row["status"], row["_change"]) for row in found), key=repr)


@pytest.fixture
def orders(db: Database) -> Table:
    return db.create_table("orders", COLUMNS, key="id", partitions=3)


def appended(table: Table, numbers: range) -> list[tuple[int, str | None, str]]:
    table.append([{"id": number, "status": "new"} for number in numbers])
    return [(number, "new", "upsert") for number in numbers]


@pytest.mark.slow
@on_spark
def test_a_stream_goes_on_from_its_checkpoint_without_a_gap_or_a_repeat(
    spark: Any, orders: Table, place: str, tmp_path: Path
) -> None:
    # given a query that has taken all there was, in batches of a limit
    query = Query(spark, place, tmp_path, startingOffsets="earliest", maxRowsPerTrigger=30)
    expected = appended(orders, range(100))
    assert query.run() == [30, 30, 30, 10]
    assert query.rows() == sorted(expected, key=repr)
    # when more comes, a delete among it, and the query is started again
    expected += appended(orders, range(100, 110))
    orders.delete([5])
    expected.append((5, None, "delete"))
    assert query.run() == [11]
    # then it has each change once
    assert query.rows() == sorted(expected, key=repr)
    # and its progress says where it began, where it is and where the log ends
    [source] = query.progress[-1]["sources"]
    ends = {str(number): at for number, at in orders.snapshot().ends.items()}
    assert json.loads(source["endOffset"])["offsets"] == ends
    assert json.loads(source["latestOffset"])["offsets"] == ends


def test_a_new_stream_begins_with_what_comes_then(
    spark: Any, orders: Table, place: str, tmp_path: Path
) -> None:
    appended(orders, range(10))
    query = Query(spark, place, tmp_path)
    assert query.run() == []
    expected = appended(orders, range(10, 13))
    query.run()
    assert query.rows() == expected


def test_a_new_stream_begins_at_times_by_partition(
    spark: Any, orders: Table, place: str, tmp_path: Path
) -> None:
    appended(orders, range(10))
    middle = orders.snapshot().time + 1
    expected = appended(orders, range(10, 40))
    later = orders.snapshot().time + 1
    # when a query begins in one partition with the later rows, and in another one with what comes
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    times = json.dumps({0: middle, 1: later, 2: middle})
    query = Query(spark, place, tmp_path, startingOffsetsByTimestamp=times, **strategy)
    query.run()
    # then it has these, and no more
    there = orders.read(columns=["id", "_partition"], start=middle).to_pylist()
    second = {row["id"] for row in there if row["_partition"] == 1}
    assert second
    assert query.rows() == [one for one in expected if one[0] not in second]
    # and goes on from its checkpoint, whatever the option says
    expected += appended(orders, range(40, 70))
    query.run()
    assert query.rows() == [one for one in expected if one[0] not in second]


def test_a_stream_that_would_begin_behind_all_rows_is_refused_by_name(
    spark: Any, orders: Table, place: str, tmp_path: Path
) -> None:
    appended(orders, range(10))
    times = json.dumps({0: orders.snapshot().time + 1})
    query = Query(spark, place, tmp_path, startingOffsetsByTimestamp=times)
    with pytest.raises(Exception, match="partition 0 of table orders has no row of"):
        query.run()
    # and it leaves no cursor
    assert orders.cursors.list() == []


@pytest.mark.slow
def test_a_stream_has_one_cursor_that_holds_what_it_has_not_done(
    spark: Any, orders: Table, place: str, tmp_path: Path
) -> None:
    query = Query(
        spark, place, tmp_path, startingOffsets="earliest", maxRowsPerTrigger=10, cursor="shop"
    )
    appended(orders, range(30))
    query.run()
    # then there is one cursor, at the start of the last batch: Spark commits one with the next
    [cursor] = orders.cursors.list()
    assert cursor.lag_rows == 10
    assert "cursor shop holds" in str(orders.explain())
    assert "cursor.idle_expiry is 7 days" in str(orders.explain())
    # and the next run moves it
    appended(orders, range(30, 35))
    query.run()
    [cursor] = orders.cursors.list()
    assert cursor.lag_rows == 5
    # and a run that has not named its cursor leaves none
    Query(spark, place, tmp_path / "b", startingOffsets="earliest").run()
    assert [one.name for one in orders.cursors.list()] == ["shop"]


@pytest.mark.slow
@on_spark
def test_a_first_batch_that_was_not_done_is_read_again_from_where_it_began(
    spark: Any, orders: Table, place: str, tmp_path: Path
) -> None:
    def fail(batch: Any, number: int) -> None:
        raise ValueError(number)

    # given a query whose first batch was planned, and was not done
    expected = appended(orders, range(10))
    with pytest.raises(Exception, match="ValueError"):
        Query(spark, place, tmp_path, startingOffsets="earliest").run(fail)
    expected += appended(orders, range(10, 15))
    # when it is started again, in a process that would begin elsewhere
    query = Query(spark, place, tmp_path, into="again", startingOffsets="latest")
    assert query.run() == [10, 5]
    # then nothing of that batch is missing, and no cursor is left when it has all
    assert query.rows() == sorted(expected, key=repr)
    assert orders.cursors.list() == []


@pytest.mark.slow
def test_compaction_takes_nothing_from_a_stream_until_its_cursor_is_gone(
    spark: Any, db: Database, orders: Table, place: str, tmp_path: Path
) -> None:
    def compact() -> None:
        db.advance_watermark(orders.snapshot().time)
        orders.compact(engine="local")

    # given a stream with a cursor of its own, and runs that go further than it
    given = {"startingOffsets": "earliest", "maxRowsPerTrigger": "25", "cursor": "copy"}
    query = Query(spark, place, tmp_path, **given)
    expected = appended(orders, range(50))
    query.run()
    expected += appended(orders, range(40, 90))
    compact()
    expected += appended(orders, range(10))
    compact()
    query.run()
    # then it has every change, also those that were superseded before it came
    assert query.rows() == sorted(expected, key=repr)
    # when its cursor is deleted, and what it has not read is cut
    [cursor] = orders.cursors.list()
    orders.cursors.delete(cursor.name)
    appended(orders, range(20))
    compact()
    # then it says so, and goes on with what is left, and holds it again, if it is to
    expected += appended(orders, range(100, 105))
    with pytest.raises(Exception, match="of table orders went while no cursor held them"):
        query.run()
    query = Query(spark, place, tmp_path, **given, failOnDataLoss="false")
    query.run()
    assert set(query.rows()) >= set(expected)
    assert [one.name for one in orders.cursors.list()] == [cursor.name]


def test_a_cursor_with_a_name_says_where_a_new_query_goes_on(
    spark: Any, orders: Table, place: str, tmp_path: Path
) -> None:
    appended(orders, range(10))
    orders.cursors.create("billing", start="latest")
    expected = appended(orders, range(10, 15))
    query = Query(spark, place, tmp_path, cursor="billing", startingOffsets="earliest")
    query.run()
    assert query.rows() == sorted(expected, key=repr)
    assert [cursor.name for cursor in orders.cursors.list()] == ["billing"]


@pytest.mark.slow
@on_spark
def test_columns_may_be_added_while_a_stream_runs_and_a_lost_one_ends_it_by_name(
    spark: Any, orders: Table, place: str, tmp_path: Path
) -> None:
    query = Query(spark, place, tmp_path, startingOffsets="earliest", columns="id,status,_change")
    expected = appended(orders, range(5))
    query.run()
    orders.alter(add={"note": "string"})
    orders.upsert([{"id": 7, "status": "new", "note": "x"}])
    query.run()
    assert query.rows() == sorted([*expected, (7, "new", "upsert")], key=repr)
    # when a column that it reads is dropped
    orders.alter(drop=["status"])
    orders.upsert([{"id": 8, "note": "x"}])
    with pytest.raises(Exception, match="status"):
        query.run()


def test_a_table_that_was_dropped_and_made_again_is_another_one(
    spark: Any, db: Database, orders: Table, place: str, tmp_path: Path
) -> None:
    query = Query(spark, place, tmp_path, startingOffsets="earliest")
    appended(orders, range(5))
    query.run()
    db.drop_table("orders")
    appended(db.create_table("orders", COLUMNS, key="id", partitions=3), range(50))
    with pytest.raises(Exception, match="another table orders"):
        query.run()


@pytest.mark.slow
def test_a_stream_of_bytes_ends_batches_with_appends(
    spark: Any, orders: Table, place: str, tmp_path: Path
) -> None:
    expected = [
        one for first in range(0, 40, 10) for one in appended(orders, range(first, first + 10))
    ]
    query = Query(spark, place, tmp_path, startingOffsets="earliest", maxBytesPerTrigger=1)
    batches = query.run()
    # then every batch is one append to a partition, however small the limit
    assert len(batches) == 4 * orders.partitions
    assert query.rows() == sorted(expected, key=repr)


def test_a_stream_reads_a_directory_that_no_other_process_has_open(
    spark: Any, tmp_path: Path
) -> None:
    place = tmp_path / "db"
    with lowmark.open(place) as db:
        expected = appended(db.create_table("orders", COLUMNS, key="id"), range(5))
    query = Query(spark, str(place), tmp_path, startingOffsets="earliest")
    query.run()
    assert query.rows() == expected
