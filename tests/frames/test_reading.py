"""`spark.read.format("lowmark")`: the table now, as of a time, and rows of its log."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import lowmark
from frames.every import EVERY, ROW
from lowmark.client import Database, Table

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]

COLUMNS = {"id": "int64", "status": "string"}


def loaded(spark: Any, place: str, **options: object) -> Any:
    reader = spark.read.format("lowmark").option("path", place)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def pairs(frame: Any) -> list[tuple[int, str]]:
    return sorted((row["id"], row["status"]) for row in frame.collect())


def test_a_table_is_read_as_of_one_moment(spark: Any, db: Database, place: str) -> None:
    # given a table with a row that was changed and one that was deleted
    table = db.create_table("orders", COLUMNS, key="id", partitions=3)
    table.append([{"id": number, "status": "new"} for number in range(10)])
    table.upsert([{"id": 1, "status": "paid"}])
    table.delete([2])
    frame = loaded(spark, place, table="orders")
    assert frame.rdd.getNumPartitions() == 3
    # then each key has its last row
    there = dict.fromkeys(range(10), "new") | {1: "paid"}
    del there[2]
    assert pairs(frame) == sorted(there.items())
    # and the same frame gives the same rows again, and a new one what has come since
    table.upsert([{"id": 2, "status": "again"}])
    assert pairs(frame) == sorted(there.items())
    assert pairs(loaded(spark, place, table="orders")) == sorted((there | {2: "again"}).items())


def test_ledger_and_tail_are_one_table(spark: Any, tmp_path: Path) -> None:
    with lowmark.open(tmp_path / "db", watermark_availability_ms=0) as db:
        # given rows of which some are in a ledger, and some of these are superseded
        table = db.create_table("orders", COLUMNS, key="id", partitions=2)
        table.append([{"id": number, "status": "old"} for number in range(50)])
        db.advance_watermark()
        table.compact(engine="local")
        db.set_history("1h")
        table.upsert([{"id": number, "status": "new"} for number in range(40, 60)])
        table.delete([0])
        # then a query sees what a reader sees
        rows = table.read(as_of="now").to_pylist()
        assert len(rows) == 59
        assert pairs(loaded(spark, str(tmp_path / "db"), table="orders")) == sorted(
            (row["id"], row["status"]) for row in rows
        )


def test_a_table_is_read_as_of_a_time(spark: Any, db: Database, place: str) -> None:
    table = db.create_table("orders", COLUMNS, key="id")
    table.append([{"id": 1, "status": "new"}])
    then = table.snapshot()
    table.upsert([{"id": 1, "status": "paid"}])
    table.alter(add={"note": "string"})
    # then the rows and the columns of then are given, by a row's time and by the clock
    old = loaded(spark, place, table="orders", versionAsOf=then.time)
    assert old.columns == ["id", "status"]
    assert pairs(old) == [(1, "new")]
    now = dt.datetime.now(dt.UTC).isoformat()
    assert pairs(loaded(spark, place, table="orders", timestampAsOf=now)) == [(1, "paid")]
    # and a time that is yet to come is refused
    future = (dt.datetime.now(dt.UTC) + dt.timedelta(days=1)).isoformat()
    with pytest.raises(Exception, match="TimeInFuture"):
        loaded(spark, place, table="orders", timestampAsOf=future).collect()


def test_columns_are_chosen_by_option_and_by_schema(spark: Any, db: Database, place: str) -> None:
    table = db.create_table("orders", COLUMNS, key="id")
    table.append([{"id": 1, "status": "new"}])
    frame = loaded(spark, place, table="orders", columns="status, _offset")
    assert [tuple(row) for row in frame.collect()] == [("new", 0)]
    assert loaded(spark, place, table="orders", columns="*,_time").columns == [
        "id",
        "status",
        "_time",
    ]
    reader = spark.read.format("lowmark").option("path", place).option("table", "orders")
    assert [tuple(row) for row in reader.schema("status string").load().collect()] == [("new",)]
    # and a type that the table does not have, or a column, is refused by name
    with pytest.raises(Exception, match="column id of table orders is bigint, not int"):
        reader.schema("id int").load().collect()
    with pytest.raises(Exception, match="nothing"):
        loaded(spark, place, table="orders", columns="nothing").collect()


def test_every_type_comes_as_spark_has_it(spark: Any, db: Database, place: str) -> None:
    table = db.create_table("every", EVERY, key="id")
    table.append([ROW, {"id": 2}])
    frame = loaded(spark, place, table="every")
    one, none = frame.orderBy("id").collect()
    found = one.asDict(recursive=True)
    found["moment"] = found["moment"].astimezone(dt.UTC)  # PySpark gives local time
    found["data"], found["uid"] = bytes(found["data"]), bytes(found["uid"])
    assert found == ROW | {"uid": uuid.UUID(int=7).bytes}
    assert none.asDict() == dict.fromkeys(EVERY) | {"id": 2}
    # and an empty table has its columns
    db.create_table("empty", EVERY, key="id")
    assert loaded(spark, place, table="empty").schema == frame.schema
    assert loaded(spark, place, table="empty").collect() == []


CONDITIONS = [
    "id = 3",
    "id <> 3",
    "id <=> 3",
    "id > 3",
    "id >= 3 and id < 6",
    "id in (1, 5, null)",
    "id not in (1, 5)",
    "id not in (1, null)",
    "status = 'new'",
    "status <=> null",
    "not (status = 'new')",
    "status in ('new', 'paid')",
    "status not in ('new')",
    "status is null",
    "status is not null",
    "status like 'n%'",
    "status like '%w'",
    "status like '%ai%'",
    "not (status like 'n%')",
    "number > 0.5",
    "number = 1.0",
    "ratio = double('NaN')",
    "ratio > 1.0",
    "not (ratio > 1.0)",
    "ratio <=> double('NaN')",
    "day = date'2026-01-02'",
    "day < date'2026-01-02'",
    "day > date'1582-10-10'",
    "moment >= timestamp'1582-10-10 00:00:00Z'",
    "moment >= timestamp'2026-01-01 00:00:02Z'",
    "local = timestamp_ntz'2026-01-01 00:00:03'",
    "flag",
    "not flag",
    "tiny = 3",
    "tiny = 300",
    "data = X'03'",
    "id = 3 or status = 'new'",
    "place.number = 3",
]


@pytest.fixture
def judged(db: Database) -> Table:
    """A table with every kind of value that a condition could judge, null and NaN among them."""
    columns = {
        "id": "int64",
        "status": "string",
        "ratio": "float64",
        "number": "decimal(10,2)",
        "day": "date",
        "moment": "timestamp",
        "local": "timestamp_ntz",
        "flag": "bool",
        "tiny": "int8",
        "data": "binary",
        "place": "struct<number:int32>",
    }
    table = db.create_table("judged", columns, key="id", partitions=2)
    table.append(
        [
            {
                "id": number,
                "status": ["new", "paid", "shipped", ""][number % 4],
                "ratio": [float("nan"), 1.0, 2.5, -0.0][number % 4],
                "number": Decimal(number) / 2,
                "day": dt.date(2026, 1, 1 + number),
                "moment": dt.datetime(2026, 1, 1, 0, 0, number, tzinfo=dt.UTC),
                "local": dt.datetime.fromisoformat(f"2026-01-01T00:00:0{number}"),
                "flag": number % 2 == 0,
                "tiny": number,
                "data": bytes([number]),
                "place": {"number": number},
            }
            for number in range(8)
        ]
        + [{"id": 8}]
    )
    return table


def test_a_filter_that_is_pushed_gives_what_spark_would_have_left(
    spark: Any, judged: Table, place: str
) -> None:
    # given what Spark finds of each condition, for each row
    frame = loaded(spark, place, table=judged.name)
    columns = [f"{condition} AS c{at}" for at, condition in enumerate(CONDITIONS)]
    judged_here = frame.selectExpr("id", *columns).collect()
    expected = {
        condition: sorted(row["id"] for row in judged_here if row[f"c{at}"])
        for at, condition in enumerate(CONDITIONS)
    }
    # when each of them is pushed to the source, in a scan of its own
    switch = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(switch, "true")
    try:
        scans = [
            loaded(spark, place, table=judged.name)
            .filter(condition)
            .selectExpr(f"{at} AS at", "id")
            for at, condition in enumerate(CONDITIONS)
        ]
        rows = reduce(type(frame).unionAll, scans).collect()
    finally:
        spark.conf.unset(switch)
    # then the same rows are left
    found = {
        condition: sorted(row["id"] for row in rows if row["at"] == at)
        for at, condition in enumerate(CONDITIONS)
    }
    assert found == expected
    # and they are conditions that some rows meet and some do not, most of them
    assert sum(0 < len(some) < 9 for some in found.values()) > 25


def test_filters_are_judged_where_the_rows_are(spark: Any, judged: Table, place: str) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = loaded(spark, place, table=judged.name).filter("id = 3 and ratio > 0")
        plan = frame._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    # then Spark looks only at what it judges in its own way
    kept = [line for line in plan.splitlines() if "Filter" in line]
    assert any("ratio" in line for line in kept)
    assert not any("(id#" in line and "= 3" in line for line in kept)


def test_rows_of_the_log_are_read_between_positions(spark: Any, db: Database, place: str) -> None:
    table = db.create_table("orders", COLUMNS, key="id", partitions=2)
    table.append([{"id": number, "status": "new"} for number in range(20)])
    middle = table.snapshot()
    table.upsert([{"id": 1, "status": "paid"}])
    table.delete([2])
    # then all changes are given, and deletes where a change can be told from a row
    log = loaded(spark, place, table="orders", columns="*,_change", startingOffsets="earliest")
    changes = [(row["id"], row["status"], row["_change"]) for row in log.collect()]
    assert len(changes) == 22
    assert {(1, "paid", "upsert"), (2, None, "delete")} < set(changes)
    plain = loaded(spark, place, table="orders", startingOffsets="earliest")
    assert plain.count() == 21
    # and some of them, by offsets and by times
    tail = json.dumps({str(number): at for number, at in middle.ends.items()})
    assert pairs(loaded(spark, place, table="orders", startingOffsets=tail)) == [(1, "paid")]
    head = loaded(spark, place, table="orders", endingOffsets=tail)
    assert pairs(head) == [(number, "new") for number in range(20)]
    millis = int(middle.datetime.timestamp() * 1_000) + 1
    early = loaded(spark, place, table="orders", endingTimestamp=millis - 60_000)
    assert early.collect() == []
    late = loaded(spark, place, table="orders", startingTimestamp=middle.time + 1)
    assert pairs(late) == [(1, "paid")]
    none = loaded(spark, place, table="orders", startingOffsets="latest")
    assert none.collect() == []
    # and by times of partitions, of which the end does not belong to the range
    times = json.dumps(dict.fromkeys(range(2), middle.time + 1))
    head = loaded(spark, place, table="orders", endingOffsetsByTimestamp=times)
    assert pairs(head) == [(number, "new") for number in range(20)]
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    late = loaded(spark, place, table="orders", startingOffsetsByTimestamp=times, **latest)
    assert pairs(late) == [(1, "paid")]
    # and by more tasks than there are partitions
    many = loaded(spark, place, table="orders", startingOffsets="earliest", minPartitions=8)
    assert many.rdd.getNumPartitions() >= 8
    assert sorted(pairs(many)) == sorted(pairs(plain))


@pytest.mark.parametrize("keyed", [True, False])
def test_a_partition_is_split_over_tasks(spark: Any, db: Database, place: str, keyed: bool) -> None:
    # given partitions of which a ledger has most, with later rows and deletes in the backlog
    table = db.create_table("orders", COLUMNS, partitions=2, key="id" if keyed else None)
    for turn in range(6):
        table.append([{"id": number, "status": f"{turn}"} for number in range(0, 300, turn + 1)])
    if keyed:
        db.advance_watermark("now")
        assert table.compact(engine="local").state == "done"
        table.delete(list(range(0, 300, 7)))
    table.append([{"id": number, "status": "late"} for number in range(250, 320)])
    # when it is read by more tasks than it has partitions
    split = loaded(spark, place, table="orders", minPartitions=9)
    # then each row comes once
    assert split.rdd.getNumPartitions() >= 9
    expected = table.read(as_of="now").to_pylist()
    assert sorted(pairs(split)) == sorted((row["id"], row["status"]) for row in expected)
    # and so it does from files on the disk, and with a filter
    assert split.where("id >= 250").count() == sum(row["id"] >= 250 for row in expected)
    db.close()
    closed = loaded(spark, place, table="orders", minPartitions=9)
    assert sorted(pairs(closed)) == sorted((row["id"], row["status"]) for row in expected)


def test_a_directory_that_no_process_has_open_is_read_as_it_is_on_disk(
    spark: Any, tmp_path: Path
) -> None:
    with lowmark.open(tmp_path / "db") as db:
        db.create_table("orders", COLUMNS, key="id").append([{"id": 1, "status": "new"}])
    assert pairs(loaded(spark, str(tmp_path / "db"), table="orders")) == [(1, "new")]


def test_views_are_made_in_sql_and_tables_are_told_how(
    spark: Any, db: Database, place: str
) -> None:
    db.create_table("orders", COLUMNS, key="id").append([{"id": 1, "status": "new"}])
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW shop_orders USING lowmark"
        f" OPTIONS (path '{place}', table 'orders')"
    )
    try:
        assert pairs(spark.sql("SELECT * FROM shop_orders")) == [(1, "new")]
    finally:
        spark.catalog.dropTempView("shop_orders")
    # and a table of Spark's is refused, with what to do instead
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE t USING lowmark OPTIONS (path '{place}', table 'orders')")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tabel": "orders"}, "there is no option 'tabel'"),
        ({"table": "customers"}, "customers"),
        ({"table": "orders", "maxRowsPerTrigger": 1}, "is for streams"),
        ({"table": "orders", "columns": "*,id"}, "columns has id twice"),
        ({"table": "orders", "startingOffsets": '{"0": 99}'}, "of partition 0 is not written yet"),
        ({"table": "orders", "startingOffsetsByTimestamp": '{"0": 99}'}, "Strategy.*latest"),
    ],
)
def test_what_can_not_be_read_is_refused_by_name(
    spark: Any, db: Database, place: str, options: dict[str, object], said: str
) -> None:
    db.create_table("orders", COLUMNS, key="id")
    with pytest.raises(Exception, match=said) as caught:
        loaded(spark, place, **options).collect()
    # and the error begins with that
    assert "lowmark.errors." in "".join(str(caught.value).splitlines()[:2])
    assert "Traceback" not in str(caught.value)
