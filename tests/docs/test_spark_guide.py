"""The guide to Spark: its examples run, in their order, and its table of options is whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lowmark.frames import options
from lowmark.spark import SparkRunner, release_frames

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "spark.md").read_text()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_examples_of_the_guide_run(tmp_path: Path, shared: SparkRunner) -> None:
    given: dict[str, Any] = {"spark": shared._session, "path": str(tmp_path / "db")}
    try:
        for found in re.finditer(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL):
            above = "\n" * GUIDE.count("\n", 0, found.start(1))  # so that errors name its lines
            exec(compile(above + found.group(1), "spark.md", "exec"), given)  # noqa: S102
    finally:
        release_frames()
        shared._session.catalog.dropTempView("shop")
        shared._session.conf.unset("spark.sql.python.filterPushdown.enabled")
        shared._session.conf.unset("spark.sql.shuffle.partitions")
        if "db" in given:
            given["db"].close()


def test_every_option_is_in_the_guide() -> None:
    listed = {
        name
        for row in re.findall(r"^\| (`.*?) \|", GUIDE, re.MULTILINE)
        for name in re.findall(r"`([\w.]+)`", row)
    }
    assert listed == set(options._KNOWN.values())
