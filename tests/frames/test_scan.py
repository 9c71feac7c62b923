"""`lowmark.spark.table`: what Spark reads of ledgers and what the source gives are one table."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import lowmark
import lowmark.spark
from lowmark.catalog import NewColumn, Plain
from lowmark.client import Database, Table
from lowmark.frames.scan import FRAMES_HELD

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]

COLUMNS = {"id": "int64", "status": "string", "amount": "int32"}


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return sorted((row.asDict(recursive=True) for row in frame.collect()), key=repr)


def compacted(db: Database, table: Table) -> None:
    db.advance_watermark(table.snapshot().time)
    assert table.compact(engine="local").state == "done"


def appended(table: Table, numbers: range, status: str) -> None:
    table.append([{"id": one, "status": status, "amount": one} for one in numbers])


@pytest.fixture
def orders(db: Database) -> Table:
    """Rows in two ledger files of each partition, of which the first has dead ones and deletes;
    and rows after them, of which some supersede those.
    """
    table = db.create_table("orders", COLUMNS, key="id", partitions=2)
    appended(table, range(200), "first")
    compacted(db, table)
    appended(table, range(20), "second")
    table.delete([30, 31])
    compacted(db, table)
    appended(table, range(5), "third")
    appended(table, range(300, 310), "third")
    table.delete([40])
    return table


@pytest.fixture(autouse=True)
def released() -> Any:
    yield
    lowmark.spark.release_frames()


def source_of(spark: Any, place: str, **options: object) -> Any:
    reader = spark.read.format("lowmark").option("path", place).option("table", "orders")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def test_the_fast_form_gives_what_the_source_gives(spark: Any, orders: Table, place: str) -> None:
    frame = lowmark.spark.table(spark, "orders", path=place)
    expected = sorted(orders.read(as_of="now").to_pylist(), key=repr)
    assert len(expected) == 200 - 3 + 10
    assert rows_of(frame) == expected == rows_of(source_of(spark, place))
    # and of some columns, and with a filter of Spark's
    some = lowmark.spark.table(spark, "orders", path=place, columns=["status"])
    assert some.columns == ["status"]
    assert {row["status"]: row["count"] for row in some.groupBy("status").count().collect()} == {
        "first": 177,
        "second": 15,
        "third": 15,
    }
    assert frame.filter("id < 10").count() == 10


def test_files_are_read_by_sparks_own_reader(spark: Any, orders: Table, place: str) -> None:
    plan = lowmark.spark.table(spark, "orders", path=place)._jdf.queryExecution().toString()
    assert "FileScan parquet" in plan
    assert "BatchScan lowmark" in plan


def test_a_frame_stays_as_it_was_whatever_is_compacted_meanwhile(
    spark: Any, db: Database, orders: Table, place: str
) -> None:
    then = orders.snapshot().time
    frame = lowmark.spark.table(spark, "orders", path=place)
    expected = sorted(orders.read(as_of="now").to_pylist(), key=repr)
    files = {file for one in orders.ledgers() for file in one.files}
    manifests = {one.adopted.manifest for one in orders.ledgers() if one.adopted is not None}
    # when what the frame has to read of the backlog goes into another ledger, and rows come
    db.advance_watermark(then)
    orders.compact(engine="local", rewrite=True)
    appended(orders, range(50), "fourth")
    orders.sweep()
    # then it gives the same rows, and its files are there
    assert rows_of(frame) == expected
    assert all(Path(file).exists() for file in files)
    assert manifests <= db.backend.files_in_use()
    # and they are kept no longer than for the frame
    lowmark.spark.release_frames()
    assert not manifests & db.backend.files_in_use()


def test_an_earlier_time_has_its_rows_and_its_columns(spark: Any, db: Database, place: str) -> None:
    table = db.create_table("orders", COLUMNS, key="id")
    appended(table, range(20), "old")
    compacted(db, table)
    then = table.snapshot().time
    table.alter(add=[NewColumn(name="note", type=Plain.STRING, default="none")])
    appended(table, range(10, 30), "new")
    old = lowmark.spark.table(spark, "orders", path=place, as_of=then)
    assert old.columns == list(COLUMNS)
    assert {row["status"] for row in old.collect()} == {"old"}
    # and what was written before a column was added shows its default
    new = lowmark.spark.table(spark, "orders", path=place)
    assert rows_of(new) == sorted(table.read(as_of="now").to_pylist(), key=repr)
    assert {row["note"] for row in new.collect()} >= {"none"}


@pytest.mark.release
def test_columns_that_were_renamed_and_widened_are_read_as_they_are_now(
    spark: Any, db: Database, place: str
) -> None:
    table = db.create_table("orders", COLUMNS, key="id")
    appended(table, range(10), "old")
    compacted(db, table)
    table.alter(rename={"status": "state"}, widen={"amount": "int64"})
    table.append([{"id": 99, "state": "new", "amount": 1 << 40}])
    frame = lowmark.spark.table(spark, "orders", path=place)
    assert dict(frame.dtypes)["amount"] == "bigint"
    assert rows_of(frame) == sorted(table.read(as_of="now").to_pylist(), key=repr)


@pytest.mark.parametrize("folder", ["a b", "a [b] {c}"])
def test_names_and_settings_of_any_kind_change_nothing(
    spark: Any, tmp_path: Path, folder: str
) -> None:
    # given a directory and columns with names that mean something to Spark, and early days
    place = str(tmp_path / folder)
    columns = {"id": "int64", "a`b": "string", "a.b": "string", "day": "date"}
    columns |= {"local": "timestamp_ntz", "moment": "timestamp"}
    early = dt.datetime.fromisoformat("1500-03-10T02:30:00")
    row = {"a`b": "x", "a.b": "y", "day": early.date(), "local": early}
    row["moment"] = early.replace(tzinfo=dt.UTC)
    settings = {
        "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.session.timeZone": "America/New_York",
    }
    with lowmark.open(place) as db:
        table = db.create_table("orders", columns, key="id")
        table.append([{"id": number, **row} for number in range(4)])
        compacted(db, table)
        table.upsert([{"id": 1, **row, "a`b": "z"}])
        compacted(db, table)
        other = db.create_table("other", {"id": "int64", "_lowmark_file": "string"}, key="id")
        other.append([{"id": number, "_lowmark_file": "mine"} for number in range(3)] * 2)
        compacted(db, other)
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            fast = lowmark.spark.table(spark, "orders", path=place)
            found = fast.selectExpr("*", "cast(moment as string) text").collect()
            reader = spark.read.format("lowmark").option("path", place).option("table", "orders")
            same = reader.load().selectExpr("*", "cast(moment as string) text").collect()
            mine = lowmark.spark.table(spark, "other", path=place).collect()
        finally:
            for name in settings:
                spark.conf.unset(name)
        lowmark.spark.release_frames()
    # then both ways give the same
    assert sorted(found, key=repr) == sorted(same, key=repr)
    assert {(row["day"], row["local"]) for row in found} == {(early.date(), early)}
    assert {row["_lowmark_file"] for row in mine} == {"mine"}


def test_a_table_without_rows_and_one_without_a_ledger(
    spark: Any, db: Database, place: str
) -> None:
    table = db.create_table("orders", COLUMNS, key="id", partitions=2)
    assert lowmark.spark.table(spark, "orders", path=place).collect() == []
    appended(table, range(5), "new")
    assert lowmark.spark.table(spark, "orders", path=place).count() == 5


@pytest.mark.release
def test_frames_of_long_ago_hold_nothing(spark: Any, orders: Table, place: str) -> None:
    for _ in range(FRAMES_HELD + 1):
        lowmark.spark.table(spark, "orders", path=place, columns=["id"])
    assert lowmark.spark.table(spark, "orders", path=place).count() == 207
