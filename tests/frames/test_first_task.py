"""What a Python worker of Spark imports, and does, before its first rows are stored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lowmark
from cli.test_starting import assert_few
from lowmark.server import Server

MODULES_MAX = 310
"""Beside those of Python and of PySpark's own worker: see `tests/cli/test_starting.py`."""

TASK = """
import sys
import pyspark.worker
before = set(sys.modules)
import pyarrow as pa
from lowmark.client.staging import attempt_number, drawn_family
from lowmark.frames import sink
from lowmark.frames.opening import opened
from lowmark.frames.options import Options

options = Options.write({"node": sys.argv[1], "table": "orders"})
number = attempt_number(drawn_family(), 1)
with opened(options, writes=True) as database, database["orders"].stage(number=number) as stage:
    ids = pa.Int64Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(bytes(8) + bytes([1] * 8))])
    stage.append(iter([pa.RecordBatch.from_arrays([ids], ["id"])]))
    assert sum(stage.staged().rows) == 2
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.slow
def test_the_first_task_of_a_worker_imports_few_modules(tmp_path: Path) -> None:
    # given a table that is served
    with lowmark.open(tmp_path / "data") as db, Server(db, "127.0.0.1:0") as server:
        db.create_table("orders", {"id": "int64"}, key="id", partitions=2)
        # when a worker that has done nothing yet stages rows
        done = subprocess.run(
            [sys.executable, "-c", TASK, server.address],
            capture_output=True,
            text=True,
            check=False,
        )
    # then neither a node nor a run of compaction is imported for it
    assert done.returncode == 0, done.stderr
    imported = [name for name in done.stdout.split() if not name.startswith("pyspark")]
    assert_few(imported, most=MODULES_MAX)
    assert not [
        name
        for name in imported
        if name.startswith(("lowmark.placement", "lowmark.upkeep", "lowmark.compaction.run"))
    ]
