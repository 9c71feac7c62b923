"""Tables over Spark Connect, where the session is a client of a server with the JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]


# The same calls on a session of one's own are in `test_reading`, `test_sink` and `test_stream`.
@pytest.mark.release
def test_spark_connect_reads_writes_and_streams_tables(tmp_path: Path) -> None:
    # given a session that is a client: a process has one kind of sessions only
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "frames.connected", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(TESTS), "PYSPARK_PYTHON": sys.executable},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    # then all that works with a session of one's own works there
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "compacted": "done",
        "connect": True,
        "read": 100,
        "written": 150,
        "upserted": {"id": 0, "v": "c"},
        "fast": 150,
        "tables": 2,
        "streamed": 101,
    }
