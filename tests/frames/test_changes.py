"""`readChangeFeed`: Spark gets the changes that `table.changes` gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from lowmark.client import Database

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_changes_are_read_with_sparks_names(spark: Any, db: Database, place: str) -> None:
    # given rows that were inserted, updated and deleted
    table = db.create_table("orders", {"id": "int64", "status": "string"}, key="id", partitions=3)
    table.append([{"id": number, "status": "new"} for number in range(10)])
    middle = table.snapshot().time
    table.upsert([{"id": 1, "status": "paid"}, {"id": 50, "status": "new"}])
    table.delete([2])
    last = table.snapshot().time
    table.upsert([{"id": 3, "status": "late"}])

    def read(**options: object) -> list[dict[str, Any]]:
        reader = spark.read.format("lowmark").option("path", place).option("table", "orders")
        reader = reader.option("readChangeFeed", "true")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return sorted((row.asDict() for row in reader.load().collect()), key=repr)

    def expected(*place: Any, **options: Any) -> list[dict[str, Any]]:
        rows = table.changes(*place, **options).to_pylist()
        for row in rows:  # Spark gives local times without a zone
            row["_commit_timestamp"] = row["_commit_timestamp"].astimezone().replace(tzinfo=None)
        return sorted(rows, key=repr)

    # then a range gives the same here and there
    found = read(startingVersion=middle + 1, endingVersion=last)
    assert found == expected(middle + 1, last, preimages=True)
    assert [row["_change_type"] for row in found].count("update_preimage") == 1
    # and so do all changes, without pre-images, and one for each key
    assert read(preimages="false") == expected("earliest")
    assert read(net="true", preimages="false") == expected("earliest", net=True)
    # and some of the table's columns, with those that say what changed
    [one] = read(startingVersion=last + 1, columns="id", preimages="false")
    assert (one["id"], one["_change_type"], "status" in one) == (3, "update_postimage", False)


def test_a_stream_of_changes_gives_each_once_and_splits_no_version(
    spark: Any, db: Database, place: str, tmp_path: Path
) -> None:
    # given changes in several versions, some of many rows
    table = db.create_table("orders", {"id": "int64", "status": "string"}, key="id", partitions=3)
    start = table.snapshot().time
    for turn in range(6):
        table.upsert([{"id": number, "status": f"{turn}"} for number in range(5 + 20 * turn)])
    table.delete([1, 2])

    def stream(**options: object) -> list[dict[str, Any]]:
        query = (
            spark.readStream.format("lowmark")
            .options(path=place, table="orders", readChangeFeed="true", **options)
            .load()
            .writeStream.format("parquet")
            .options(path=str(tmp_path / "rows"), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [json.loads(one["sources"][0]["endOffset"]) for one in query.recentProgress]

    def streamed() -> list[dict[str, Any]]:
        rows = spark.read.parquet(str(tmp_path / "rows")).collect()
        return sorted((row.asDict() for row in rows), key=repr)

    def expected() -> list[dict[str, Any]]:
        rows = table.changes(start + 1, preimages=True).to_pylist()
        for row in rows:
            row["_commit_timestamp"] = row["_commit_timestamp"].astimezone().replace(tzinfo=None)
        return sorted(rows, key=repr)

    # when they are streamed, a few rows at a time
    places = stream(startingVersion=start + 1, maxRowsPerTrigger=30)
    # then each comes once, and each batch ends with a version
    assert streamed() == expected()
    versions = [one["version"] for one in places]
    assert len(set(versions)) > 3
    files = spark.read.parquet(str(tmp_path / "rows")).selectExpr("_commit_version AS v", "id")
    assert files.count() == len(expected())
    assert versions == sorted(versions)
    # and it goes on from its checkpoint, after changes and a compaction meanwhile
    table.upsert([{"id": 3, "status": "late"}, {"id": 1, "status": "back"}])
    before = table.snapshot().time
    table._backend.advance_watermark(start)
    table.compact(engine="local")
    stream(startingVersion=start + 1, maxRowsPerTrigger=30)
    assert streamed() == expected()
    assert {row["_change_type"] for row in streamed() if row["_commit_version"] > versions[-1]} == {
        "insert",
        "update_preimage",
        "update_postimage",
    }
    assert before > versions[-1]


def test_a_new_stream_of_changes_begins_with_what_comes(
    spark: Any, db: Database, place: str, tmp_path: Path
) -> None:
    table = db.create_table("orders", {"id": "int64"}, key="id", partitions=2)
    table.append([{"id": 1}])
    seen: list[tuple[int, str]] = []

    def note(batch: Any, number: int) -> None:
        seen.extend((row["id"], row["_change_type"]) for row in batch.collect())

    query = (
        spark.readStream.format("lowmark")
        .options(path=place, table="orders", readChangeFeed="true", preimages="false")
        .load()
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        # given a stream that has begun: its cursor is there, and history is held
        eventually(lambda: bool(table.cursors.list()))
        table.upsert([{"id": 1}, {"id": 2}])
        eventually(lambda: len(seen) == 2)
        table.delete([1])
        eventually(lambda: len(seen) == 3)
    finally:
        query.stop()
    assert sorted(seen[:2]) == [(1, "update_postimage"), (2, "insert")]
    assert seen[2] == (1, "delete")
