"""Tasks of Spark use a directory through the process that has it open, and never own it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lowmark
from lowmark.spark import SparkRunner

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_tasks_append_and_read_beside_the_driver(tmp_path: Path, shared: SparkRunner) -> None:
    path = str(tmp_path / "db")

    def work(number: int) -> int:
        with lowmark.open(path) as db:
            db["t"].append([{"id": number}])
            row = db["t"].get(number)
        return -1 if row is None else int(row["id"])

    context: Any = shared._session.sparkContext
    with lowmark.open(path) as db:
        table = db.create_table("t", {"id": "int64"}, key="id", partitions=2)
        # when tasks open the directory that their driver has open
        assert sorted(context.parallelize(range(8), 4).map(work).collect()) == list(range(8))
        # then their rows are there
        assert sorted(row["id"] for row in table.read().to_pylist()) == list(range(8))

    # and without an owner they are refused by name, and do not become it
    def refused(number: int) -> str:
        try:
            lowmark.open(path)
        except lowmark.LowmarkError as error:
            return type(error).__name__
        return "opened"

    assert context.parallelize(range(2), 2).map(refused).collect() == ["NoOwner", "NoOwner"]
