"""A process with a Spark session as anybody makes one, that is told nothing of Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark.own_session import ROWS, fill, opened, settle

if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = session.getOrCreate()
    before = spark.sparkContext.pythonExec
    with opened(Path(sys.argv[1])) as db:
        table = db.create_table("t", {"id": "int64", "v": "int64"}, key="id", partitions=2)
        fill(table)
        settle(db, table)
        state = table.compact(spark=spark).state
        right = sorted(row["v"] for row in table.read(as_of="now").to_pylist())
    facts = {
        "state": state,
        "right": right == list(range(ROWS - 100, ROWS)),
        "untouched": spark.sparkContext.pythonExec == before,
    }
    spark.stop()
    sys.stdout.write(json.dumps(facts))
