"""Frames on their way in and out: keys to delete, Arrow streams, Polars and DuckDB."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lowmark.client import (
    ColumnRefused,
    Database,
    GapFound,
    PackageMissing,
    ReaderEnded,
    Table,
    ValueRefused,
)
from lowmark.errors import Rejected

IDS = ["o-1", "o-2", "o-3"]
NAIVE = datetime(2026, 7, 1, 12)  # noqa: DTZ001 - that is what is refused


@pytest.fixture
def stocked(orders: Table) -> Table:
    orders.append([{"id": name, "status": "new"} for name in IDS])
    return orders


def left(table: Table) -> list[str]:
    return sorted(row["id"] for row in table.read(as_of="now").to_pylist())


# -- deleting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.table, pa.RecordBatch.from_pydict, pd.DataFrame, pl.DataFrame])
def test_a_frame_deletes_by_its_key_columns(stocked: Table, kind: Any) -> None:
    # given keys in a frame, among other columns that the table may not even have
    frame = kind({"status": ["x", "y"], "id": ["o-1", "o-3"], "note": [1, 2]})
    # when they are deleted
    assert stocked.delete(frame).rows == 2
    # then the rows with those keys are gone, and no other
    assert left(stocked) == ["o-2"]


def test_a_reader_is_a_frame_too(stocked: Table) -> None:
    stocked.delete(stocked.read(columns=["id", "status"], limit=2))
    assert len(left(stocked)) == 1


def test_a_frame_deletes_by_a_key_of_several_columns(db: Database) -> None:
    table = db.create_table("lines", {"order": str, "line": int, "n": int}, key=["order", "line"])
    table.append([{"order": "a", "line": line, "n": 1} for line in range(3)])
    table.delete(pd.DataFrame({"line": [0, 2], "n": [7, 7], "order": ["a", "a"]}))
    assert [row["line"] for row in table.read(as_of="now").to_pylist()] == [1]


def test_keys_still_come_as_columns_of_their_own(stocked: Table) -> None:
    stocked.delete(pl.Series("id", ["o-1"]))
    stocked.delete(pd.Series(["o-2"]))
    stocked.delete(pa.array(["o-3"]))
    assert left(stocked) == []


def test_a_frame_without_the_key_or_with_a_null_in_it_deletes_nothing(stocked: Table) -> None:
    with pytest.raises(ColumnRefused, match="id") as refused:
        stocked.delete(pd.DataFrame({"key": ["o-1"]}))
    assert refused.value.column == "id"
    with pytest.raises(ValueRefused) as null:
        stocked.delete(pl.DataFrame({"id": ["o-1", None]}))
    assert (null.value.row, null.value.column) == (1, "id")
    assert left(stocked) == IDS


def test_many_keys_are_looked_up_by_a_frame(stocked: Table) -> None:
    found = stocked.get_many(pd.DataFrame({"id": ["o-2", "o-9"], "note": [1, 2]}))
    assert [row and row["id"] for row in found] == ["o-2", None]


# -- reading ------------------------------------------------------------------------------------


def test_a_reader_is_an_arrow_stream(stocked: Table) -> None:
    read = stocked.read(columns=["id", "status"])
    assert sorted(pa.table(read)["id"].to_pylist()) == IDS
    frame = pl.DataFrame(stocked.read(columns=["id"]))
    assert sorted(frame["id"].to_list()) == IDS
    stream = pa.RecordBatchReader.from_stream(stocked.read(as_of="now", columns=["id"]))
    assert stream.read_all().num_rows == 3


def test_an_arrow_stream_of_nothing_has_its_columns(orders: Table) -> None:
    made = pa.table(orders.read(columns=["id", "amount"]))
    assert made.schema == orders.read(columns=["id", "amount"]).schema
    assert made.num_rows == 0


def test_duckdb_takes_a_reader(stocked: Table) -> None:
    reader = stocked.read(columns=["id"])  # noqa: F841 - DuckDB finds it by its name
    counted = duckdb.sql("select count(*) from reader")
    assert counted is not None
    assert counted.fetchall() == [(3,)]
    relation = stocked.read(columns=["id"]).to_duckdb()
    # It can be asked more than once, unlike a stream.
    assert relation.aggregate("count(*)").fetchall() == [(3,)]
    assert relation.aggregate("max(id)").fetchall() == [("o-3",)]
    with duckdb.connect() as connection:
        mine = stocked.read(columns=["id"]).to_duckdb(connection)
        assert mine.filter("id > 'o-1'").aggregate("count(*)").fetchall() == [(2,)]


def test_a_gap_at_the_start_of_a_stream_is_told_as_what_it_is(db: Database, stocked: Table) -> None:
    db.advance_watermark("now")
    stocked.compact(engine="local")
    with pytest.raises(GapFound):
        pa.table(stocked.read(start=dict.fromkeys(range(4), 0)))


@pytest.fixture
def batches(db: Database) -> Table:
    """A table with five batches of two rows."""
    table = db.create_table("batches", {"id": int}, key="id", partitions=1)
    for first in range(0, 10, 2):
        table.append([{"id": first}, {"id": first + 1}])
    return table


def test_a_stream_of_a_reader_that_was_closed_is_an_error_and_no_part_of_the_rows(
    batches: Table,
) -> None:
    # given streams of readers that were closed before they were read
    with batches.read() as reader:
        exported = pa.RecordBatchReader.from_stream(reader)
    with batches.read() as reader:
        plain = reader.to_batches()
    with batches.read(as_of="now") as reader:
        state = reader.to_batches()
    with batches.read() as reader:
        relation = duckdb.sql("select * from reader")
        assert relation is not None
    # when they are read, then that is said
    for take in (exported.read_all, plain.read_all, state.read_all, relation.fetchall):
        # Arrow and DuckDB raise errors of their own, with ours in them.
        with pytest.raises(Exception, match="before all of its rows were read"):
            take()
    # and the reader itself says so, too
    for ask in (reader.to_arrow, reader.to_pylist, reader.to_batches, reader.__arrow_c_stream__):
        with pytest.raises(ReaderEnded, match="before all of its rows were read"):
            ask()


def test_a_stream_that_was_read_before_its_reader_was_closed_has_all_rows(batches: Table) -> None:
    with batches.read() as reader:
        next(reader)
        # The rest of a reader is what it has not given.
        assert reader.to_batches().read_all().num_rows == 8
    with batches.read(limit=4) as reader:
        assert reader.to_arrow().num_rows == 4


def test_a_stream_that_is_not_read_takes_no_rows_away(batches: Table, orders: Table) -> None:
    for table, rows in ((batches, 10), (orders, 0)):
        reader = table.read()
        for _ in range(3):
            reader.__arrow_c_stream__()  # for the names of the columns alone
        assert pa.table(reader).num_rows == rows


@pytest.mark.parametrize("more", [{}, {"as_of": "now"}, {"limit": 3}])
def test_a_reader_that_was_read_to_its_end_says_so_when_it_is_used_again(
    batches: Table, more: dict[str, Any]
) -> None:
    for use in (lambda one: one.to_arrow(), list, pa.table):
        reader = batches.read(**more)
        use(reader)
        for take in (reader.to_arrow, reader.to_batches, reader.__arrow_c_stream__):
            with pytest.raises(ReaderEnded, match="read to its end already"):
                take()


def test_polars_and_duckdb_are_asked_for_by_name(
    stocked: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sorted(stocked.read().to_polars()["id"].to_list()) == IDS
    # given an environment without them
    for name in ("polars", "duckdb", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    # when they are needed, then the error says what to install
    with pytest.raises(PackageMissing, match="pip install polars"):
        stocked.read().to_polars()
    with pytest.raises(PackageMissing, match="pip install duckdb"):
        stocked.read().to_duckdb()
    with pytest.raises(PackageMissing, match="pip install pandas"):
        stocked.read().to_pandas()


# -- times --------------------------------------------------------------------------------------


def test_a_time_without_a_zone_is_refused_where_a_time_is_meant(
    db: Database, stocked: Table
) -> None:
    for use in (
        lambda: stocked.read(as_of=NAIVE),
        lambda: stocked.read(start=NAIVE),
        lambda: stocked.read(end=NAIVE),
        lambda: db.advance_watermark(NAIVE),
        lambda: db.table("orders", as_of=NAIVE),
        lambda: stocked.read(as_of=pd.Timestamp("2026-07-01")),
    ):
        with pytest.raises(Rejected, match="has no time zone") as refused:
            use()
        assert "UTC" in refused.value.hint
    assert stocked.read(start=NAIVE.replace(tzinfo=UTC)).to_arrow().num_rows in {0, 3}


def test_rows_and_keys_without_a_zone_are_no_instants(db: Database) -> None:
    seen = db.create_table("seen", {"at": datetime, "n": int}, key="at")
    with pytest.raises(ValueRefused, match="has no time zone"):
        seen.append([{"at": NAIVE, "n": 1}])
    seen.append([{"at": NAIVE.replace(tzinfo=UTC), "n": 1}])
    with pytest.raises(Rejected, match="has no time zone"):
        seen.get(NAIVE)
    assert seen.get(NAIVE.replace(tzinfo=UTC)) is not None
    local = db.create_table("local", {"at": "timestamp_ntz", "n": int}, key="at")
    local.append([{"at": NAIVE, "n": 1}])
    assert local.get(NAIVE) == {"at": NAIVE, "n": 1}
