"""Table functions for SQL."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC
from typing import Any

import pytest

import lowmark.spark
from frames.every import EVERY, ROW
from lowmark.client import Database

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_tables_holders_and_runs_are_queried(spark: Any, db: Database, place: str) -> None:
    # given a table with a cursor
    table = db.create_table("orders", {"id": "int64", "status": "string"}, key="id", partitions=2)
    db.create_table("events", {"at": "timestamp"}, partitions=1)
    table.append([{"id": number, "status": "new"} for number in range(20)])
    table.cursors.create("billing")
    lowmark.spark.register(spark, path=place)
    # then they are there
    found = spark.sql("SELECT * FROM lowmark_tables() ORDER BY name").collect()
    assert [(row["name"], row["partitions"], row["key"], row["rows"]) for row in found] == [
        ("events", 1, [], 0),
        ("orders", 2, ["id"], 20),
    ]
    holders = spark.sql("SELECT DISTINCT kind, name FROM lowmark_explain('orders')").collect()
    assert ("cursor", "billing") in {tuple(row) for row in holders}
    assert spark.sql("SELECT * FROM lowmark_runs('orders')").collect() == []


def test_a_run_is_planned_in_sql_and_carried_out_by_a_worker(
    spark: Any, db: Database, place: str
) -> None:
    table = db.create_table("orders", {"id": "int64"}, key="id")
    table.append([{"id": number} for number in range(20)] * 2)
    db.advance_watermark(table.snapshot().time)
    lowmark.spark.register(spark, path=place)
    # when no worker is there, it says so, and what to do
    with pytest.raises(Exception, match="lowmark worker"):
        spark.sql("SELECT * FROM lowmark_compact('orders', wait_s => 0.5)").collect()
    assert {one.state for one in table.runs()} == {"planned"}
    # then one that comes carries out that plan
    worker = db.worker(engine="local")
    worker.start()
    try:
        [row] = spark.sql("SELECT * FROM lowmark_compact('orders')").collect()
    finally:
        worker.finish()
    assert (row["state"], row["rows_read"], row["rows_live"]) == ("done", 40, 20)
    [run] = spark.sql("SELECT run, state FROM lowmark_runs('orders')").collect()
    assert tuple(run) == (row["run"], "done")


def changed(spark: Any, arguments: str, columns: str = "*") -> list[dict[str, Any]]:
    found = spark.sql(f"SELECT {columns} FROM lowmark_changes({arguments})").collect()
    return sorted((row.asDict(recursive=True) for row in found), key=repr)


def test_changes_in_sql_are_those_of_a_change_feed(spark: Any, db: Database, place: str) -> None:
    # given rows that were inserted, updated and deleted
    table = db.create_table("orders", {"id": "int64", "status": "string"}, key="id", partitions=3)
    table.append([{"id": number, "status": "new"} for number in range(10)])
    middle = table.snapshot().time
    table.upsert([{"id": 1, "status": "paid"}, {"id": 50, "status": "new"}])
    table.delete([2])
    last = table.snapshot().time
    table.upsert([{"id": 3, "status": "late"}])
    lowmark.spark.register(spark, path=place)

    def feed(**options: object) -> list[dict[str, Any]]:
        reader = spark.read.format("lowmark").option("path", place).option("table", "orders")
        for name, value in {"readChangeFeed": True, **options}.items():
            reader = reader.option(name, str(value))
        return sorted((row.asDict(recursive=True) for row in reader.load().collect()), key=repr)

    # then a range gives the same rows, by versions, by words and by the clock
    part = feed(startingVersion=middle + 1, endingVersion=last)
    assert "update_preimage" in {row["_change_type"] for row in part}
    assert changed(spark, f"'orders', {middle + 1}, {last}") == part
    assert changed(spark, f"'orders', '{middle + 1}', end => '{last}'") == part
    everything = feed()
    assert changed(spark, "'orders'") == everything
    assert changed(spark, "'orders', 'earliest', 'latest'") == everything
    assert changed(spark, "'orders', '2020-01-01T00:00:00Z', NULL") == everything
    assert changed(spark, "'orders', timestamp'2020-01-01 00:00:00', current_timestamp()") == (
        everything
    )
    assert changed(spark, f"'orders', '{json.dumps(table.offsets('latest'))}'") == []
    # and so do its options
    assert changed(spark, "'orders', preimages => false") == feed(preimages=False)
    net = changed(spark, "'orders', preimages => false, net => true")
    assert net == feed(preimages=False, net=True)
    assert changed(spark, "'orders', columns => 'id'") == feed(columns="id")
    # and columns have the types of the table
    frame = spark.sql("SELECT * FROM lowmark_changes('orders')")
    assert frame.schema.names == [
        *("id", "status", "_change_type", "_commit_version", "_commit_timestamp")
    ]
    # and where they begin may come from a row
    lateral = "LATERAL lowmark_changes('orders', since, preimages => false)"
    marks = f"VALUES ({last + 1}), ({middle + 1}) AS marks (since)"
    counts = spark.sql(f"SELECT since, count(*) FROM {marks}, {lateral} GROUP BY since").collect()
    assert dict(map(tuple, counts)) == {last + 1: 1, middle + 1: 4}


def test_changes_in_sql_have_every_type(spark: Any, db: Database, place: str) -> None:
    table = db.create_table("every", EVERY, key="id")
    table.append([ROW, {"id": 2}])
    lowmark.spark.register(spark, path=place)
    reader = spark.read.format("lowmark").option("path", place).option("table", "every")
    frame = reader.option("readChangeFeed", "true").load()
    found = spark.sql("SELECT * FROM lowmark_changes('every')")
    assert found.schema == frame.schema
    assert found.orderBy("id").collect() == frame.orderBy("id").collect()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'nothing'", "nothing"),
        ("NULL", "no table is named"),
        ("'orders', 17", "can't be 17"),
        ("'orders', 'soon'", "is not a time"),
        ("'orders', preimages => 'maybe'", "can't be 'maybe'"),
        ("'orders', '{\"0\": -1}'", "not at -1 or -2"),
    ],
)
def test_changes_that_can_not_be_meant_are_refused_by_name(
    spark: Any, db: Database, place: str, arguments: str, said: str
) -> None:
    db.create_table("orders", {"id": "int64"}, key="id")
    lowmark.spark.register(spark, path=place)
    with pytest.raises(Exception, match=said) as caught:
        changed(spark, arguments)
    assert "Traceback" not in str(caught.value)


def test_a_table_from_a_row_is_refused_since_its_columns_are_not_known(
    spark: Any, db: Database, place: str
) -> None:
    db.create_table("orders", {"id": "int64"}, key="id")
    lowmark.spark.register(spark, path=place)
    with pytest.raises(Exception, match="table is not a constant"):
        spark.sql("SELECT * FROM VALUES ('orders') AS t (name), LATERAL lowmark_changes(name)")


def test_the_history_of_a_table_is_queried(spark: Any, db: Database, place: str) -> None:
    # given a table that was changed and compacted
    table = db.create_table("orders", {"id": "int64"}, key="id")
    table.append([{"id": 1}, {"id": 1}])
    table.alter(add={"note": "string"})
    db.advance_watermark(table.snapshot().time)
    table.compact(engine="local")
    lowmark.spark.register(spark, path=place)
    # then SQL has what Python has
    found = spark.sql("SELECT * FROM lowmark_history('orders')").collect()
    rows = [row.asDict() for row in found]
    for row in rows:
        row["at"] = None if row["at"] is None else row["at"].astimezone(UTC)
    assert rows == [asdict(line) for line in table.history()]
    assert {"compact", "trim"} <= {row["operation"] for row in rows}
