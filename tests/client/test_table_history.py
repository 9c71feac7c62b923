"""`table.history()`: schema versions, runs and cuts, with times and who did it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import lowmark
from lowmark.catalog import update_log
from lowmark.client import Database, HistoryLine, Table, datetime_of
from lowmark.table import Trim, View
from server.world import Served


@pytest.fixture(params=["embedded", "remote"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "embedded":
        with lowmark.open(tmp_path / "data") as database:
            yield database
    else:
        with Served(tmp_path / "data") as served, lowmark.connect(served.address) as database:
            yield database


def operations(lines: list[HistoryLine]) -> list[str]:
    return [one.operation for one in lines]


def compacted(db: Database, table: Table) -> str:
    db.advance_watermark(table.snapshot().time)
    return table.compact(engine="local").run


def test_changes_of_a_table_have_their_time_and_their_node_newest_first(db: Database) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    # given a table that was changed, beside another one
    table = db.create_table("orders", {"id": "int64", "note": "string"}, key="id")
    db.create_table("others", {"id": "int64"})
    table.alter(add={"price": "int32"}, options={"compaction": "manual"})
    table.alter(rename={"note": "remark"})
    table.alter(widen={"price": "int64"})
    table.alter(drop="remark")
    # when its history is asked for
    lines = table.history()
    # then each step of it is there, the newest first
    assert operations(lines) == [
        "drop columns",
        "alter column",
        "rename column",
        "set options",
        "add columns",
        "create table",
    ]
    assert [one.schema_version for one in lines] == [5, 4, 3, None, 2, 1]
    assert [one.kind for one in lines] == [*["schema"] * 3, "table", "schema", "schema"]
    assert "price int32" in lines[4].what
    # and says when, and by which node
    times = [one.at for one in lines if one.at is not None]
    assert len(times) == len(lines)
    assert times == sorted(times, reverse=True)
    assert before <= times[-1] <= times[0] <= datetime.now(UTC)
    assert len({one.by for one in lines}) == 1
    assert lines[0].by
    # and what was done at once has one version of the catalog
    versions = [one.catalog_version for one in lines]
    assert versions[3] == versions[4]
    assert len(set(versions)) == 5


def test_a_run_is_listed_with_what_it_has_cut_and_the_process_that_made_it(db: Database) -> None:
    # given a table with deletes and two schema versions, of which no row needs the first
    table = db.create_table("orders", {"id": "int64"}, key="id", partitions=2)
    table.append([{"id": number} for number in range(20)] * 2)
    table.delete([3, 4, 5])
    table.alter(add={"note": "string"})
    size = sum(one.bytes for one in table.explain().partitions)
    # when it is compacted
    run = compacted(db, table)
    # then there is the run, and each of its cuts
    lines = [one for one in table.history() if one.run == run]
    assert sorted(operations(lines)) == ["compact", "drop deletes", "trim"]
    assert {one.by for one in lines} == {table.runs()[0].by}
    assert table.runs()[0].by.endswith(f":{os.getpid()}")
    ended = table.runs()[0].ended_at_ms / 1_000
    assert {one.at for one in lines} == {datetime.fromtimestamp(ended, UTC)}
    found = {one.operation: one for one in lines}
    assert (found["compact"].kind, found["compact"].rows) == ("run", 43)
    assert (found["drop deletes"].kind, found["drop deletes"].rows) == ("cut", 3)
    assert (found["trim"].kind, found["trim"].bytes) == ("cut", size)
    ends = {number: view.end for number, view in views(db, table).items()}
    assert found["trim"].offsets == ends


def views(db: Database, table: Table) -> dict[int, View]:
    return db.backend.views(table.descriptor.id, range(table.partitions))


def test_schema_versions_that_a_run_forgot_are_a_cut(db: Database) -> None:
    table = db.create_table("orders", {"id": "int64"}, key="id")
    table.append([{"id": 1}])
    table.alter(add={"a": "string"})
    table.alter(add={"b": "string"})
    compacted(db, table)
    # its one file is of the latest version by now
    assert table.descriptor.schemas[0].number == 3
    [line] = [one for one in table.history() if one.operation == "forget schema versions"]
    assert (line.kind, line.schema_version) == ("cut", 3)
    assert "1 to 2" in line.what
    assert line.at is not None
    assert line.by


@pytest.mark.slow
@pytest.mark.parametrize("parts", [False, True])
def test_what_the_catalog_has_forgotten_has_no_time_and_no_author(
    db: Database, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parts:  # a snapshot that takes more than one value of the metastore
        monkeypatch.setattr(update_log, "PART_BYTES_MAX", 100)
    # given two schema versions
    table = db.create_table("orders", {"id": "int64"}, key="id")
    table.alter(add={"a": "string"})
    last = db.catalog.time
    db.advance_watermark("now")
    made = db.catalog.compact()
    assert made.version == db.catalog.version
    # when the catalog was cut, and another version came
    table.alter(add={"b": "string"})
    lines = table.history()
    # then the new one is known as before, and of the others their columns
    assert operations(lines) == [
        "add columns",
        "forget catalog versions",
        "last change",
        "schema version",
        "schema version",
    ]
    assert [(one.schema_version, one.at, one.by) for one in lines[3:]] == [
        (2, None, None),
        (1, None, None),
    ]
    assert lines[3].what == "columns: id int64 not null, a string"
    # and when that was cut, and by which node
    assert lines[1].catalog_version == made.version
    assert lines[1].at == datetime.fromtimestamp(made.began_ms / 1_000, UTC)
    assert lines[1].by == lines[0].by
    # and when the last change before was made, but not by which node
    assert lines[2].at == datetime_of(last)
    assert lines[2].by is None


def test_rows_that_went_by_retention_are_a_cut_without_a_time(db: Database) -> None:
    # given a table of which the oldest rows have expired
    options = {"retention_bytes": 1}
    table = db.create_table("events", {"at": "int64"}, options=options, partitions=1)
    for number in range(3):
        table.append([{"at": number}])
    db.backend.propose(table.descriptor.id, {0: Trim(2, expire=True)})
    # then that is known, and neither when nor who
    [line] = [one for one in table.history() if one.operation == "expire"]
    assert (line.kind, line.at, line.by, line.offsets) == ("cut", None, None, {0: 2})
    assert table.history()[-1] == line


def test_a_cut_by_hand_is_known_without_a_time(db: Database) -> None:
    table = db.create_table("orders", {"id": "int64"}, key="id", partitions=1)
    table.append([{"id": number} for number in range(20)])
    db.advance_watermark(table.snapshot().time)
    table.compact(engine="local", trim=False)
    assert "trim" not in operations(table.history())
    # when the backlog is cut by hand
    table.trim({0: 20})
    # then that is the last line, since its time is not known
    line = table.history()[-1]
    assert (line.operation, line.at, line.by, line.offsets) == ("trim", None, None, {0: 20})


def test_a_directory_that_is_only_read_has_its_history(tmp_path: Path) -> None:
    with lowmark.open(tmp_path / "data") as db:
        table = db.create_table("orders", {"id": "int64"}, key="id")
        table.alter(add={"note": "string"})
        lines = table.history()
    with lowmark.open(tmp_path / "data", read_only=True) as db:
        assert db["orders"].history() == lines
    assert operations(lines) == ["add columns", "create table"]
