"""A script of a user in an environment that was not activated: Spark finds the source all the same.

A process has one session, and what it may find is decided when it starts: so each case is a script.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]

SCRIPT = """
    import sys
    import lowmark
    from pyspark.sql import SparkSession

    BEFORE
    db = lowmark.open(sys.argv[1])
    table = db.create_table("orders", {"id": "int64"}, key="id", partitions=1)
    table.append([{"id": 1}, {"id": 2}])
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    AFTER
    orders = {"path": sys.argv[1], "table": "orders"}
    assert spark.read.format("lowmark").options(**orders).load().count() == 2
    spark.range(2, 4).write.format("lowmark").options(**orders).mode("append").save()
    assert table.count() == 3
    spark.stop()
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("import lowmark.spark", "", id="imported before the session"),
        pytest.param(
            "",
            "import lowmark.spark; lowmark.spark.register(spark); lowmark.spark.register(spark)",
            id="registered in the session",
            marks=pytest.mark.release,  # the same script as above, which is found another way
        ),
    ],
)
def test_a_script_reads_and_writes_though_python3_has_no_lowmark(
    tmp_path: Path, before: str, after: str
) -> None:
    # given a `python3` without PySpark and Lowmark
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec "{sys._base_executable}" -I "$@"\n')  # type: ignore[attr-defined]
    other.chmod(0o755)
    lacking = subprocess.run([other, "-c", "import pyspark"], capture_output=True, check=False)
    assert b"No module named" in lacking.stderr
    # when a script runs with this Python, which no variable names
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).replace("BEFORE", before).replace("AFTER", after))
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("PYSPARK")},
        "PATH": f"{other.parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "db")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    # then it finds the source
    assert done.returncode == 0, done.stderr[-3_000:]
