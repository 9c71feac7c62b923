"""A machine's clock that is put back, or forward, while a database is open and between two times.

An embedded node has one clock, its own: what is in its log was given by that clock. So nothing
waits for the wall to come to a time again, and no time is given twice.
"""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

import lowmark
from inside import backend_of
from lowmark.catalog import AddColumns, NewColumn, NotInForce, parse_type
from lowmark.client import Database, Table
from lowmark.runtime import RealLoop

HOUR_MS = 3_600_000
SOON_S = 10.0
"""Far less than what a caller waits for an answer that does not come."""


class Wall:
    """The machine's clock, which a person may set."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall = Wall()
    monkeypatch.setattr(RealLoop, "wall_ms", lambda _: wall.now_ms())
    return wall


def add_column(db: Database, name: str) -> None:
    column = NewColumn(name=name, type=parse_type("string"))
    began = time.monotonic()
    db.execute([AddColumns(table="t", columns=(column,))])
    assert time.monotonic() - began < SOON_S


def new_table(db: Database) -> Table:
    return db.create_table("t", {"id": "int64", "v": "int64"}, key="id", partitions=2)


def newest_time(table: Table) -> int:
    times = table.read(columns=["_time"]).to_arrow().column("_time")
    newest: int = max(times.to_pylist())
    return newest


def as_of(table: Table, at: int | str) -> list[dict[str, object]]:
    found = table.read(as_of=at).to_arrow()
    assert isinstance(found, pa.Table)
    return sorted(found.to_pylist(), key=lambda row: row["id"])


def see_all(db: Database) -> tuple[dict[str, int], list[list[dict[str, object]]]]:
    """All that is known by time: of every moment at which a row came, the table as it was."""
    table = db["t"]
    rows = table.read(columns=["id", "_time"]).to_arrow().to_pylist()
    moments = sorted({row["_time"] for row in rows})
    return {str(row["id"]): row["_time"] for row in rows}, [as_of(table, at) for at in moments]


BACK, FORWARD = -HOUR_MS, HOUR_MS


@pytest.mark.parametrize(
    "ways",
    [(BACK, 0), (0, BACK), (FORWARD, 0), (FORWARD, BACK)],
    ids=["back while open", "back between", "forward, then back", "forward, then far back"],
)
def test_a_clock_that_is_set_delays_no_change_and_hides_no_row(
    tmp_path: Path, wall: Wall, ways: tuple[int, int]
) -> None:
    while_open, between = ways
    with lowmark.open(tmp_path) as db:
        # given a table with rows, and a clock that is set from now on
        table = new_table(db)
        table.append([{"id": 1, "v": 1}])
        first = newest_time(table)
        wall.ahead_ms += while_open
        # when a column is added, and rows come that have it
        add_column(db, "note")
        table.append([{"id": 2, "v": 2, "note": "two"}])
        second = newest_time(table)
        # then times have gone on, and every moment can be asked for
        assert first < second
        old, new = {"id": 1, "v": 1}, {"id": 2, "v": 2, "note": "two"}
        assert as_of(table, first) == [old]
        assert as_of(table, second) == as_of(table, "now") == [old | {"note": None}, new]
        before = see_all(db)
    # and when it is opened again, with a clock that was set once more
    wall.ahead_ms = between
    with lowmark.open(tmp_path) as db:
        table = db["t"]
        # then all is as it was, at every moment
        assert see_all(db) == before
        # and another column is there at once, and is seen from then on
        add_column(db, "more")
        table.append([{"id": 3, "v": 3, "note": "three", "more": "yes"}])
        third = newest_time(table)
        assert second < third
        assert as_of(table, second) == [old | {"note": None}, new]
        assert as_of(table, third)[2] == {"id": 3, "v": 3, "note": "three", "more": "yes"}
        before = see_all(db)
    wall.ahead_ms = 0
    with lowmark.open(tmp_path) as db:
        assert see_all(db) == before


def test_places_by_time_outlive_a_clock_that_is_put_back(tmp_path: Path, wall: Wall) -> None:
    with lowmark.open(tmp_path, watermark_availability_ms=1_000) as db:
        # given rows, a cursor behind the first of them, and a watermark
        table = new_table(db)
        table.append([{"id": 1, "v": 1}])
        table.cursors.create("reader", start="latest")
        wall.ahead_ms = FORWARD
        table.append([{"id": 2, "v": 2}])
        moved = db.advance_watermark().after
        second = newest_time(table)
        assert moved <= second
    # when the clock is put back, and more rows come
    wall.ahead_ms = BACK
    with lowmark.open(tmp_path) as db:
        table = db["t"]
        table.append([{"id": 3, "v": 3}])
        third = newest_time(table)
        assert second < third
        # then a reader from a time on, and a cursor, have what came after it
        later = table.read(columns=["id"], start=third).to_arrow().column("id").to_pylist()
        assert later == [3]
        since = table.read(columns=["id"], start=second).to_arrow().column("id").to_pylist()
        assert sorted(since) == [2, 3]
        left = table.read(columns=["id"], cursor="reader").to_arrow().column("id").to_pylist()
        assert sorted(left) == [2, 3]
        # and the watermark has not gone back, and can be moved up to the present
        assert db.watermark().value == moved
        assert db.advance_watermark(third).after == third
        assert [row["id"] for row in as_of(table, third)] == [1, 2, 3]
        assert db.watermark().value == third
        assert db.watermark().moved_at > second


def test_no_time_is_given_twice_over_any_number_of_lives(tmp_path: Path, wall: Wall) -> None:
    # given a clock that is an hour further back in every life of a database
    last = 0
    for life in range(4):
        wall.ahead_ms = life * BACK
        with lowmark.open(tmp_path) as db:
            table = db["t"] if life else new_table(db)
            add_column(db, f"c{life}")
            table.append([{"id": life, "v": life}])
            # then each row, and each version of the catalog, is later than all before
            newest = newest_time(table)
            assert newest > last
            assert last < db.catalog.time < db.catalog.activates_at < newest
            last = newest


def test_rows_of_a_version_that_was_not_in_force_yet_are_read_all_the_same(
    tmp_path: Path, wall: Wall
) -> None:
    # given rows of a schema version that is in force only after them: an earlier release wrote
    # such, when the clock was put back, since it waited for the wall to come to the version's time
    with lowmark.open(tmp_path) as db:
        table = new_table(db)
        table.append([{"id": 1, "v": 1}])
        wall.ahead_ms = BACK
        backend_of(db).node.runtime.clock.alone = False
        column = NewColumn(name="note", type=parse_type("string"))
        with pytest.raises(NotInForce, match="version 3 of the catalog was written") as told:
            db.execute([AddColumns(table="t", columns=(column,))])
        assert told.value.wait_ms > HOUR_MS - 60_000
        table.append([{"id": 2, "v": 2, "note": "two"}, {"id": 1, "v": 9, "note": "one"}])
        early = newest_time(table)
        assert early < db.catalog.activates_at
    # when they are read as of then, in that life of the database's directory and in the next
    for _ in range(2):
        with lowmark.open(tmp_path) as db:
            table = db["t"]
            # then they have the columns that the table had then, and are all there
            assert as_of(table, early) == [{"id": 1, "v": 9}, {"id": 2, "v": 2}]
            assert as_of(table, "now") == [
                {"id": 1, "v": 9, "note": "one"},
                {"id": 2, "v": 2, "note": "two"},
            ]
            # also when they were compacted meanwhile
            db.advance_watermark(early)
            table.compact(engine="local")
