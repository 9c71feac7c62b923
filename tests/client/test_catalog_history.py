"""`db.catalog`: a version of the catalog, and how its history is cut, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import lowmark
from lowmark.client import Database, Table
from lowmark.errors import BelowWatermark, ReadOnly, VersionCompacted


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Five versions of a table with a row each; nothing is kept for reads as of a time."""
    with lowmark.open(tmp_path / "shop", watermark_availability_ms=0) as opened:
        table = opened.create_table("orders", {"id": "int64", "note": "string"}, key="id")
        for number in range(5):
            table.append([{"id": number, "note": f"n{number}"}])
            table.alter(add={f"c{number}": "string"})
        yield opened


def _newest_time(table: Table) -> int:
    """Of the rows that are there."""
    newest: int = max(table.read(columns=["_time"]).to_arrow().column("_time").to_pylist())
    return newest


def test_history_goes_with_one_call_and_rows_keep_their_schemas(db: Database) -> None:
    db.advance_watermark()
    made = db.catalog.compact()
    assert (made.version, made.latest, made.holders) == (7, 7, ())
    assert made.cut == 7 - made.earliest
    assert db.catalog.explain().earliest == 7
    # and rows of all schema versions are read as they were written
    rows = db["orders"].read().to_arrow().sort_by("id").to_pylist()
    assert [row["note"] for row in rows] == [f"n{number}" for number in range(5)]
    assert all(row[f"c{number}"] is None for row in rows for number in range(5))


def test_a_dry_run_cuts_nothing(db: Database) -> None:
    db.advance_watermark()
    made = db.catalog.compact(dry_run=True)
    assert made.dry_run
    again = db.catalog.compact(dry_run=True)
    assert (again.earliest, again.latest) == (made.earliest, 7)
    assert db.catalog.rounds() == [] or all(not one.dry_run for one in db.catalog.rounds())


def test_an_explanation_has_every_version_once_and_says_what_needs_it(db: Database) -> None:
    # given a reader as of an earlier time, which holds the low watermark
    before = _newest_time(db["orders"])
    held = db["orders"].read(as_of=before)
    db["orders"].alter(add={"more": "string"})
    db.advance_watermark()
    found = db.catalog.explain()
    # then the versions are dense, and those since its time have a holder that is named
    assert found.would_cut == db.catalog.compact(dry_run=True).cut
    ranges = [(one.first, one.last) for one in found.versions]
    assert ranges[0][0] == found.earliest
    assert ranges[-1][1] == found.latest == 8
    assert all(after[0] == last + 1 for (_, last), after in pairwise(ranges))
    [needed] = [one for one in found.versions if one.first <= 7 <= one.last]
    assert any(one.kind == "history" for one in needed.needed_by)
    assert all(one.hint and one.why for one in found.holders)
    held.close()


def test_a_table_that_keeps_its_own_past_can_be_read_as_of_times_before_the_cut(
    db: Database,
) -> None:
    # given a table with its own history, whose columns have changed since
    table = db.create_table("kept", {"id": "int64"}, key="id", options={"history": "7 days"})
    table.append([{"id": 1}])
    before = _newest_time(table)
    table.alter(add={"more": "string"})
    db.advance_watermark()
    # when the catalog is compacted
    made = db.catalog.compact()
    # then the version of that time is there, and so is the answer
    assert "table history" in {one.kind for one in made.holders}
    assert table.read(as_of=before).to_arrow().to_pylist() == [{"id": 1}]


def test_a_time_whose_version_was_cut_is_refused_by_name(db: Database) -> None:
    before = db.catalog.activates_at
    db["orders"].alter(add={"more": "string"})
    db.advance_watermark()
    db.catalog.compact()
    with pytest.raises(VersionCompacted):
        db.backend.catalog_at(before)
    # and a reader of rows hears of the watermark, as before the cut
    with pytest.raises(BelowWatermark):
        db["orders"].read(as_of=before)
    with pytest.raises(BelowWatermark):
        db.table("orders", as_of=before)


@pytest.mark.slow
def test_rounds_are_listed_and_the_catalog_is_cut_the_same_after_a_restart(
    db: Database, tmp_path: Path
) -> None:
    db.advance_watermark()
    made = db.catalog.compact()
    rounds = db.catalog.rounds()
    assert rounds[-1].version == made.version
    assert rounds[-1].cut
    db.close()
    with lowmark.open(tmp_path / "shop") as again:
        assert again.catalog.explain().earliest == made.version
        assert again.catalog.rounds() == rounds
        assert again["orders"].count() == 5
    # and who may only read it can look, and no more
    with lowmark.open(tmp_path / "shop", read_only=True) as looking:
        assert looking.catalog.rounds() == rounds
        with pytest.raises(ReadOnly):
            looking.catalog.compact()


@pytest.mark.parametrize("partitions", [8, pytest.param(24, marks=pytest.mark.slow)])
def test_versions_that_the_log_of_a_copy_may_need_stay_beside_any_number_of_copies(
    tmp_path: Path, partitions: int
) -> None:
    with lowmark.open(tmp_path / "shop", watermark_availability_ms=0) as db:
        # given a table whose copy has published the time of version 3, and rows behind that
        table = db.create_table("t", {"id": "int64"}, key="id", partitions=1)
        table.append([{"id": 0}])
        table.alter(add={"c0": "string"})
        db.advance_watermark()
        assert db.catalog.compact().version == 3
        for number in range(1, 4):
            table.append([{"id": number}])
            table.alter(add={f"c{number}": "string"})
        # when many copies come that have published nothing, and need newer versions alone
        db.create_table("many", {"id": "int64"}, key="id", partitions=partitions)
        table.alter(add={"c4": "string"})
        table.append([{"id": 4}])
        db.advance_watermark()
        made = db.catalog.compact(dry_run=True)
        # then the versions that the first one's log may need stay, and it is named
        assert made.version == 3
        [held] = [one for one in made.holders if one.version == 3]
        assert held.kind == "log replay"
        assert held.holder.startswith("partition 0 of public.t at node ")
