"""Columns that change while a query runs, and names as Spark's sessions compare them: without a
JVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as sp
from pyspark.sql.streaming.datasource import ReadAllAvailable

from frames import alone
from frames.alone import sent
from lowmark.client import Database, Table
from lowmark.errors import ColumnChanged
from lowmark.frames import LowmarkSource
from lowmark.frames.filters import taken

NARROW = {"id": "int64", "n": "int32", "f": "float", "d": "decimal(5,2)"}
WIDE = {"n": "int64", "f": "double", "d": "decimal(12,2)"}
FEED = {"readChangeFeed": "true", "startingVersion": "earliest"}
ROWS = {"startingOffsets": "earliest"}


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", NARROW, key="id", partitions=2)


class Running:
    """A query that is not started again."""

    def __init__(self, place: str, options: dict[str, str]) -> None:
        source = LowmarkSource({"path": place, "table": "t", **options})
        self.reader: Any = source.streamReader(source.schema())
        self._at = self.reader.initialOffset()

    def batch(self) -> list[dict[str, Any]]:
        end = self.reader.latestOffset(self._at, ReadAllAvailable())
        rows = self.rows(self._at, end)
        self.reader.commit(end)
        self._at = end
        return rows

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        parts, task = self.reader.partitions(start, end), sent(self.reader)
        return [row for part in parts for one in task.read(part) for row in one.to_pylist()]


@pytest.fixture(params=[ROWS, FEED], ids=["rows", "changes"])
def options(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def running(place: str, table: Table, options: dict[str, str]) -> Iterator[Running]:
    query = Running(place, options)
    yield query
    query.reader.stop()


def test_a_running_query_keeps_its_types_while_values_fit(table: Table, running: Running) -> None:
    # given a running query, whose columns are made wider
    table.append([{"id": 1, "n": 1, "f": 0.5, "d": "1.25"}])
    assert [row["id"] for row in running.batch()] == [1]
    table.alter(widen=WIDE)
    # when rows come whose values fit what the columns were
    table.append(
        [{"id": 2, "n": -(1 << 31), "f": -0.25, "d": "-999.99"}, {"id": 3, "f": float("nan")}]
    )
    # then it has them, in the types that it began with
    found = {row["id"]: row for row in running.batch()}
    assert (found[2]["n"], found[2]["f"], str(found[2]["d"])) == (-(1 << 31), -0.25, "-999.99")
    assert (found[3]["n"], found[3]["f"] != found[3]["f"]) == (None, True)


@pytest.mark.parametrize(
    "row", [{"n": 1 << 31}, {"f": 0.1}, {"f": 1e300}, {"d": "1000.00"}], ids=str
)
def test_a_value_that_does_not_fit_ends_a_query_by_name(
    table: Table, running: Running, row: dict[str, Any]
) -> None:
    table.append([{"id": 1}])
    running.batch()
    table.alter(widen=WIDE)
    table.append([{"id": 2, **row}])
    [name] = row
    with pytest.raises(ColumnChanged, match=f"column {name} of table t was made .* while the"):
        running.batch()


@pytest.mark.slow
def test_a_query_that_is_started_again_goes_on_from_its_checkpoint_without_a_gap(
    place: str, table: Table, options: dict[str, str], tmp_path: Path
) -> None:
    # given a query whose second batch can't be read: a value of a wider column does not fit
    found: list[dict[str, Any]] = []
    given = {"path": place, "table": "t", "cursor": "c", **options}

    def run() -> None:
        def take(rows: pa.Table, _: int) -> None:
            found.extend(rows.to_pylist())

        alone.run(given, checkpoint=tmp_path / "c", into=tmp_path / "into", function=take)

    table.append([{"id": 1, "n": 1}])
    running = Running(place, {"cursor": "c", **options})
    run()
    table.alter(widen=WIDE)
    table.append([{"id": 2, "n": 1 << 40}, {"id": 3, "n": 3}])
    begun = json.loads((tmp_path / "c" / "offsets" / "0").read_text())
    end = running.reader.latestOffset(begun, ReadAllAvailable())
    (tmp_path / "c" / "offsets" / "1").write_text(json.dumps(end))
    with pytest.raises(ColumnChanged, match="does not fit") as refused:
        list(running.rows(begun, end))
    assert "Start the query again" in refused.value.hint
    running.reader.stop()
    # when it is started again, and more comes
    table.append([{"id": 4, "n": 1 << 50}])
    run()
    # then it has every row once
    assert sorted((row["id"], row["n"]) for row in found) == [
        (1, 1), (2, 1 << 40), (3, 3), (4, 1 << 50),
    ]  # fmt: skip


def test_names_are_taken_in_any_case(place: str, table: Table) -> None:
    for more, columns in (({}, "ID,N,_Time"), (ROWS, "ID,N,_Time"), (FEED, "ID,N")):
        source = LowmarkSource({"path": place, "table": "t", "columns": columns, **more})
        assert source.schema().names[:2] == ["id", "n"]
    # and a filter is pushed whatever case it is written in
    left, expression = taken([sp.EqualTo(("ID",), 7)], pa.schema({"id": pa.int64()}))
    assert (left, str(expression)) == ([], "(id == 7)")
