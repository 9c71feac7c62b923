"""`memory_bytes` is a bound: however long keys are, and however many of them are deleted at once.

What a run takes is measured in a process of its own that does nothing else: memory that belongs to
no file, above what there was before the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="nobody tells what it took"),
]
MIB = 1 << 20
COMMON = """
import json, sys, threading, time
import pyarrow as pa
import lowmark
from lowmark.node import load_settings

settings = load_settings(arguments={"watermark": {"availability_ms": 0}, "ledger": {"grace_ms": 0}})
path, width, count, budget = sys.argv[1], *map(int, sys.argv[2:])

def settle(db, table):
    while True:
        db.advance_watermark()
        if not table.compact(engine="local", dry_run=True).too_young_rows:
            return

def batches():
    for low in range(0, count, 20_000):
        numbers = range(low, min(low + 20_000, count))
        yield [f"{number:0{width}}" for number in numbers] if width else pa.array(numbers)

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))
"""
UPSERT = """
with lowmark.open(path, settings=settings) as db:
    kind = "string" if width else "int64"
    table = db.create_table("t", {"id": kind, "v": "int64"}, key="id", partitions=1)
    for keys in batches():
        table.append(pa.table({"id": keys, "v": pa.array(range(len(keys)))}))
    settle(db, table)
"""
DELETE = """
with lowmark.open(path, settings=settings) as db:
    table = db.table("t")
    for keys in batches():
        table.append(pa.table({"id": keys, "_change": ["delete"] * len(keys)}))
    settle(db, table)
"""
COMPACT = """
with lowmark.open(path, settings=settings) as db:
    table = db.table("t")
    before, over = anonymous(), threading.Event()
    seen = [before]

    def look():
        while not over.wait(0.002):
            seen.append(anonymous())

    looking = threading.Thread(target=look)
    looking.start()
    run = table.compact(engine="local", memory_bytes=budget)
    over.set()
    looking.join()
    (one,) = run.partitions
    print(json.dumps({
        "state": run.state,
        "taken": max(seen) - before,
        "files": one.files_written,
        "live": one.rows_live,
        "dropped": one.deletes_dropped,
    }))
"""


class Kept:
    """A table whose keys are that wide, or integers, and so many; and processes that change it."""

    def __init__(self, path: Path, *, width: int, count: int, budget: int) -> None:
        self._given = [str(path), str(width), str(count), str(budget)]

    def do(self, script: str) -> str:
        command = [sys.executable, "-c", COMMON + script, *self._given]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def compact(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.do(COMPACT))
        assert found["state"] == "done"
        return found


def test_long_keys_take_no_more_than_was_granted(tmp_path: Path) -> None:
    # given 150 MB of keys; all of them at once, and sorted, would be 500
    kept = Kept(tmp_path / "data", width=500, count=300_000, budget=16 * MIB)
    kept.do(UPSERT)
    found = kept.compact()
    assert (found["live"], found["dropped"]) == (300_000, 0)
    assert found["files"] > 5
    assert found["taken"] < 150 * MIB


@pytest.mark.parametrize(
    ("width", "count", "most"),
    [
        pytest.param(0, 1_000_000, 150, id="short"),
        pytest.param(500, 100_000, 100, id="long", marks=pytest.mark.release),
    ],
)
def test_a_purge_takes_no_more_than_was_granted(
    tmp_path: Path, width: int, count: int, most: int
) -> None:
    # given a table of which every key is deleted after it was compacted
    kept = Kept(tmp_path / "data", width=width, count=count, budget=8 * MIB)
    kept.do(UPSERT)
    assert kept.compact()["live"] == count
    kept.do(DELETE)
    found = kept.compact()
    assert (found["live"], found["dropped"]) == (0, count)
    assert found["taken"] < most * MIB
