"""Table functions for SQL."""

from __future__ import annotations

from typing import Any

import pytest

import lowmark.spark
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
