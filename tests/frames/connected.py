"""A table by way of Spark Connect: read, written, streamed, asked by SQL; prints what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import lowmark
import lowmark.spark


def connected(folder: Path) -> dict[str, Any]:
    """What each way gives."""
    place = str(folder / "db")
    found: dict[str, Any] = {}
    with lowmark.open(place) as db:
        table = db.create_table("t", {"id": "int64", "v": "string"}, key="id", partitions=2)
        other = db.create_table("u", {"id": "int64", "v": "string"}, key="id", partitions=2)
        table.append([{"id": number, "v": "a"} for number in range(100)])
        db.advance_watermark("now")
        found["compacted"] = table.compact(engine="local").state
        spark = SparkSession.builder.remote("local[2]").getOrCreate()
        found["connect"] = "connect" in type(spark).__module__
        options = {"path": place, "table": "t"}
        found["read"] = spark.read.format("lowmark").options(**options).load().count()
        rows = spark.range(50, 150).selectExpr("id", "'b' AS v")
        rows.write.format("lowmark").options(**options).mode("append").save()
        found["written"] = table.count()
        for value in ("c", "again"):
            one = spark.range(1).selectExpr("id", f"'{value}' AS v")
            lowmark.spark.upsert(one, "t", path=place, query="q", epoch=1)
        found["upserted"] = table.get(0)
        found["fast"] = lowmark.spark.table(spark, "t", path=place).count()
        lowmark.spark.register(spark, path=place)
        found["tables"] = spark.sql("SELECT name FROM lowmark_tables()").count()
        query = (
            spark.readStream.format("lowmark")
            .options(**options, startingOffsets="earliest", columns="*,_change")
            .load()
            .writeStream.format("lowmark")
            .options(path=place, table="u", checkpointLocation=str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found["streamed"] = other.count()
        lowmark.spark.release_frames()
        spark.stop()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(connected(Path(sys.argv[1]))))
