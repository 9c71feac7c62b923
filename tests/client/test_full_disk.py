"""A disk with less free space than is reserved: rows are refused at once, and everything else goes
on in the reserve, in the process that filled the disk and in the next one.

Reserving more than any disk has makes every disk a full one.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import lowmark
from lowmark.client import Database, DiskFull, Table
from lowmark.group import GroupConfig
from lowmark.log import LogConfig
from lowmark.node import Settings

EVERYTHING = 1 << 50
PATIENCE_MS = 3_600_000
"""An hour: a test that waited for a request's deadline would not end."""


def settings(reserved: int) -> Settings:
    return Settings(
        log=LogConfig(disk_reserved_bytes=reserved),
        group=GroupConfig(request_timeout_ms=PATIENCE_MS),
    )


def full(data: Path) -> Database:
    return lowmark.open(data, settings=settings(EVERYTHING))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A database with ten rows of five keys, and a table that is about to be dropped."""
    data = tmp_path / "data"
    with lowmark.open(data, settings=settings(0)) as db:
        table = db.create_table("t", {"id": "int64", "note": "string"}, key="id", partitions=2)
        for turn in range(2):
            table.append([{"id": n, "note": f"{turn}"} for n in range(5)])
        db.create_table("old", {"id": "int64"})
    return data


def ids(table: Table) -> list[int]:
    rows = table.read(compacted=True, columns=["id", "_change"]).to_arrow().to_pylist()
    last = {row["id"]: row["_change"] for row in rows}
    return sorted(key for key, change in last.items() if change == "upsert")


@pytest.mark.slow
def test_rows_are_refused_at_once_by_name_and_nothing_else_is(data: Path) -> None:
    with full(data) as db:
        table = db.table("t")
        # when rows are appended, they are refused with the directory and the figures
        for size in (1, 1_000_000):
            with pytest.raises(DiskFull) as caught:
                table.append([{"id": 9, "note": "x" * size}])
            said = str(caught.value)
            assert str(data) in said
            assert "free" in said
            assert "disk_reserved_bytes" in said
            assert caught.value.reserved == EVERYTHING
            assert caught.value.free is not None
            assert 0 < caught.value.free < EVERYTHING
        producer = table.producer(linger_ms=1)
        producer.send({"id": 9, "note": "x"})
        with pytest.raises(DiskFull):
            producer.flush()
        # and everything that frees space, or needs almost none, goes on
        assert ids(table) == [0, 1, 2, 3, 4]
        assert table.get(3) == {"id": 3, "note": "1"}
        before = table.snapshot()
        assert table.delete([3]).rows == 1
        assert table.get(3) is None
        assert len(table.read(as_of=before.time).to_arrow()) == 5
        table.cursors.create("c", start="latest")
        db.advance_watermark("now")
        assert table.compact(engine="local").state == "done"
        db.drop_table("old")
        assert ids(table) == [0, 1, 2, 4]
    # and the next process can do the same
    with full(data) as db:
        table = db.table("t")
        assert ids(table) == [0, 1, 2, 4]
        table.delete([4])
        db.advance_watermark("now")
        assert table.compact(engine="local").state == "done"
        with pytest.raises(DiskFull):
            table.append([{"id": 9, "note": "x"}])
        assert ids(table) == [0, 1, 2]
    # and when there is space, rows are taken again
    with lowmark.open(data, settings=settings(0)) as db:
        db.table("t").append([{"id": 9, "note": "x"}])
        assert ids(db.table("t")) == [0, 1, 2, 9]


def test_the_warning_comes_once_and_not_with_every_append(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with full(data) as db, caplog.at_level(logging.WARNING, logger="lowmark"):
        table = db.table("t")
        for n in range(20):
            with pytest.raises(DiskFull):
                table.append([{"id": n, "note": "x"}])
    said = [record.message for record in caplog.records if "space" in record.message]
    assert len(said) == 1
