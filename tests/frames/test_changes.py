"""`readChangeFeed`: Spark gets the changes that `table.changes` gives."""

from __future__ import annotations

from typing import Any

import pytest

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


def test_a_stream_of_changes_is_refused_by_name(spark: Any, db: Database, place: str) -> None:
    db.create_table("orders", {"id": "int64"}, key="id")
    frame = (
        spark.readStream.format("lowmark")
        .option("path", place)
        .option("table", "orders")
        .option("readChangeFeed", "true")
        .load()
    )
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(Exception, match="can't be streamed yet"):
        query.awaitTermination()
