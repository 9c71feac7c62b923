"""A driver that compacts a table on a Spark of its own: a process has one session at a time.

python -m spark.compacting MASTER FOLDER [READ_RATE]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lowmark
from lowmark.client import Database, Table
from spark.drivers import SMALL

ROWS, KEYS, PARTITIONS = 40_000, 3_000, 4


def value_of(row: int) -> str:
    """What row number `row` of the table has."""
    return f"row {row} ".ljust(200, "x")


def expected() -> dict[int, str]:
    """The state that a plain program comes to."""
    state = {row % KEYS: value_of(row) for row in range(ROWS)}
    for key in range(0, KEYS, 7):
        del state[key]
    return state


def make(folder: Path) -> None:
    """A table with a history, all of it at or below the low watermark."""
    with lowmark.open(folder, watermark_availability_ms=0) as db:
        table = db.create_table(
            "history", {"key": "int64", "value": "string"}, key="key", partitions=PARTITIONS
        )
        for first in range(0, ROWS, 4_000):
            rows = range(first, first + 4_000)
            table.append([{"key": row % KEYS, "value": value_of(row)} for row in rows])
        table.delete(range(0, KEYS, 7))
        while table.compact(dry_run=True).too_young_rows:
            db.advance_watermark()


def state_of(table: Table) -> dict[int, str]:
    """What a compacted reader comes to."""
    state: dict[int, str] = {}
    for batch in table.read(compacted=True):
        for row in batch.to_pylist():
            if row["_change"] == "delete":
                state.pop(row["key"], None)
            else:
                state[row["key"]] = row["value"]
    return state


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Database, Table]]:
    with lowmark.open(folder) as db:
        yield db, db.table("history")


def _drive(master: str, folder: str, read_rate: str = "0") -> None:
    spark = __import__("lowmark.spark", fromlist=["open_session"])
    session = spark.open_session(master, config=SMALL)
    try:
        with opened(Path(folder)) as (_, table):
            done = table.compact(spark=session, read_rate=int(read_rate), verify=True)
            right = state_of(table) == expected()
    finally:
        spark.close_session(session)
    answer = {"state": done.state, "right": right, "rows": done.rows_read, "live": done.rows_live}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    _drive(*sys.argv[1:])
