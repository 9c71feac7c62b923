"""The change feed: which steps it gives, where it may begin and end, and when it is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lowmark
from eventually import eventually
from inside import backend_of, proposed
from lowmark.client import Database, Gap, Table
from lowmark.errors import ChangesGone, Rejected, TimeInFuture
from lowmark.runtime import millis_of
from lowmark.server import Server
from lowmark.table import Trim

INSERT, DELETE, PRE, POST = "insert", "delete", "update_preimage", "update_postimage"


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", {"id": int, "v": str}, key="id", partitions=1)


def put(table: Table, *rows: tuple[int, str | None]) -> None:
    table.append([{"id": key, "v": value} for key, value in rows])


def told(table: Table, *places: Any, **how: Any) -> list[tuple[Any, ...]]:
    """What a feed gives, without versions."""
    rows = table.changes(*places, **how).to_pylist()
    return [(row["_change_type"], row["id"], row["v"]) for row in rows]


def compact(db: Database, table: Table, *, trim: bool = True) -> None:
    db.advance_watermark("now")
    assert table.compact(engine="local", trim=trim).state == "done"


# -- what it gives ------------------------------------------------------------------------------


def test_a_change_is_an_insert_or_an_update_by_what_its_key_was(table: Table) -> None:
    # given a key that was there before, and one that was deleted
    put(table, (1, "a"), (2, "a"))
    table.delete([2])
    before = table.snapshot()
    # when both are written, one of them twice, and one that was never there is deleted
    put(table, (1, "b"), (2, "b"))
    put(table, (1, "c"))
    table.delete([2, 3])
    # then each step is told by the state right before it; what was not there can't be deleted
    assert told(table, before) == [
        (POST, 1, "b"),
        (INSERT, 2, "b"),
        (POST, 1, "c"),
        (DELETE, 2, None),
    ]
    # and with pre-images, by what was there
    assert told(table, before, preimages=True) == [
        (PRE, 1, "a"),
        (POST, 1, "b"),
        (INSERT, 2, "b"),
        (PRE, 1, "b"),
        (POST, 1, "c"),
        (DELETE, 2, "b"),
    ]
    # and net, by what is left of it: 2 came and went
    assert told(table, before, net=True) == [(POST, 1, "c")]
    assert told(table, before, net=True, preimages=True) == [(PRE, 1, "a"), (POST, 1, "c")]


def test_a_commit_is_one_step_for_each_key(table: Table) -> None:
    table.append(
        [
            {"id": 1, "v": "a", "_change": "upsert"},
            {"id": 2, "v": "a", "_change": "upsert"},
            {"id": 1, "v": "b", "_change": "upsert"},
            {"id": 2, "_change": "delete"},
        ]
    )
    # then the last row of a key counts, and what came and went within the batch is no step
    assert told(table, "earliest", preimages=True) == [(INSERT, 1, "b")]


def test_a_row_that_equals_the_one_before_is_an_update(table: Table) -> None:
    put(table, (1, "a"))
    before = table.snapshot()
    put(table, (1, "a"))
    assert told(table, before) == told(table, before, net=True) == [(POST, 1, "a")]


def test_rows_have_the_columns_and_types_that_spark_has(table: Table) -> None:
    put(table, (1, "a"), (2, "b"))
    reader = table.changes("earliest")
    assert reader.schema == pa.schema(
        [
            ("id", pa.int64()),
            ("v", pa.string()),
            ("_change_type", pa.string()),
            ("_commit_version", pa.int64()),
            ("_commit_timestamp", pa.timestamp("us", "UTC")),
        ]
    )
    rows = reader.to_arrow()
    assert rows.schema == reader.schema
    # and the version is the row's time
    times = table.read(columns=["_time"]).to_arrow()["_time"]
    assert rows["_commit_version"] == times
    moment = datetime.fromtimestamp(millis_of(times[0].as_py()) / 1_000, UTC)
    assert rows["_commit_timestamp"].to_pylist() == [moment] * 2


def test_some_columns_and_partitions(db: Database) -> None:
    table = db.create_table("many", {"id": int, "v": str}, key="id", partitions=3)
    table.append([{"id": key, "v": "a"} for key in range(20)])
    before = table.snapshot()
    table.append([{"id": key, "v": "b"} for key in range(10)])
    table.delete([1, 2, 3])
    # when a feed names places of its changes, and not the key
    wanted = ["_offset", "v", "_partition"]
    whole = table.changes(before, columns=wanted, preimages=True).to_pylist()
    # then a pre-image has the place of its change
    places = {(row["_partition"], row["_offset"]): set[str]() for row in whole}
    for row in whole:
        places[row["_partition"], row["_offset"]].add(row["_change_type"])
        assert row["v"] == ("b" if row["_change_type"] in {POST, DELETE} else "a")
    assert sorted(map(sorted, places.values())) == [[DELETE]] * 3 + [[POST, PRE]] * 10
    raw = table.read(start=before.ends, columns=["_partition", "_offset", "_change"]).to_pylist()
    assert set(places) == {(row["_partition"], row["_offset"]) for row in raw}
    # and partitions can be had one by one
    some = [
        row
        for number in range(3)
        for row in table.changes(
            before, columns=wanted, preimages=True, partitions=[number]
        ).to_pylist()
    ]
    assert some == whole
    for name in ("_time", "_change", "_change_type", "nothing"):
        with pytest.raises(Rejected, match=name):
            table.changes(before, columns=["id", name])


def test_without_a_key_all_rows_are_inserts(db: Database) -> None:
    events = db.create_table("events", {"n": int}, partitions=1)
    events.append([{"n": 1}, {"n": 1}])
    middle = events.snapshot()
    events.append([{"n": 1}])
    ways: tuple[dict[str, Any], ...] = ({}, {"preimages": True}, {"net": True})
    for how in ways:
        rows = events.changes("earliest", **how).to_pylist()
        assert [(row["n"], row["_change_type"]) for row in rows] == [(1, INSERT)] * 3
    assert events.changes(middle).to_arrow().num_rows == 1


def test_rows_without_a_key_are_inserts_among_others(db: Database) -> None:
    table = db.create_table(
        "k", {"id": int, "v": str}, key="id", partitions=1, options={"keyless_rows": "keep"}
    )
    table.append([{"id": None, "v": "x"}, {"id": 1, "v": "a"}, {"id": None, "v": "y"}])
    table.append([{"id": None, "v": "x"}, {"id": 1, "v": "b"}])
    assert told(table, "earliest", preimages=True) == [
        (INSERT, None, "x"),
        (INSERT, 1, "a"),
        (INSERT, None, "y"),
        (INSERT, None, "x"),
        (PRE, 1, "a"),
        (POST, 1, "b"),
    ]


def test_columns_are_those_of_now_for_all_rows(table: Table) -> None:
    put(table, (1, "a"))
    table.alter(add={"n": int}, rename={"v": "w"})
    table.append([{"id": 1, "w": "b", "n": 7}])
    rows = table.changes("earliest", preimages=True).to_pylist()
    assert [(row["_change_type"], row["w"], row["n"]) for row in rows] == [
        (INSERT, "a", None),
        (PRE, "a", None),
        (POST, "b", 7),
    ]


# -- where it begins and ends -------------------------------------------------------------------


def test_both_ends_belong_to_it_however_they_are_given(table: Table) -> None:
    # given three commits
    for value in "abc":
        put(table, (1, value))
    versions = table.changes("earliest").to_arrow()["_commit_version"].to_pylist()
    assert len(set(versions)) == 3
    first, middle, last = versions
    # then a version is within a feed that begins or ends with it
    assert told(table, middle, middle) == [(POST, 1, "b")]
    assert told(table, first, middle) == [(INSERT, 1, "a"), (POST, 1, "b")]
    assert told(table, middle) == told(table, middle, last) == [(POST, 1, "b"), (POST, 1, "c")]
    assert told(table, middle, "latest") == told(table, {0: 1}, {0: 3}) == told(table, 1, 3)
    assert told(table, last + 1) == told(table, "latest") == told(table, last, first) == []
    # and by the clock: a millisecond with all that is in it
    moment = datetime.fromtimestamp(millis_of(first) / 1_000, UTC)
    assert told(table, moment)[0] == (INSERT, 1, "a")
    assert told(table, moment.isoformat())[0] == (INSERT, 1, "a")
    # and a snapshot is behind what it has
    assert told(table, "earliest", table.snapshot()) == told(table, "earliest")
    assert told(table, table.snapshot()) == []


def test_what_a_reader_says_of_its_end_is_where_the_next_one_begins(table: Table) -> None:
    put(table, (1, "a"))
    with table.changes("earliest") as reader:
        assert reader.to_arrow().num_rows == 1
    put(table, (1, "b"))
    assert reader.time is not None
    assert told(table, reader.time + 1) == told(table, reader.position) == [(POST, 1, "b")]


def test_an_offset_within_a_commit_is_refused(table: Table) -> None:
    put(table, (1, "a"), (2, "a"), (3, "a"))
    for places in (({0: 1}, None), ({0: 0}, {0: 2})):
        with pytest.raises(Rejected, match="within a commit") as refused:
            table.changes(*places)
        assert refused.value.hint == "Use 0 or 3."


def test_an_end_that_has_not_come_is_refused(table: Table) -> None:
    with pytest.raises(TimeInFuture):
        table.changes("earliest", datetime(2999, 1, 1, tzinfo=UTC))
    with pytest.raises(Rejected, match="on_gap"):
        table.changes("earliest", on_gap="maybe")  # type: ignore[arg-type]


def test_a_feed_that_is_under_way_is_not_touched_by_what_comes(db: Database, table: Table) -> None:
    # given a feed with pre-images from the ledger and the backlog, and a part of it read
    put(table, (1, "a"), (2, "a"))
    compact(db, table)
    put(table, (1, "b"))
    reader = table.changes("earliest", preimages=True)
    # when all of it is written again, compacted and cut
    put(table, (1, "c"), (2, "c"))
    compact(db, table)
    # then it gives what it would have
    rows = reader.to_pylist()
    assert [(row["_change_type"], row["v"]) for row in rows] == [(PRE, "a"), (POST, "b")]


# -- what is kept -------------------------------------------------------------------------------


def test_pre_images_come_from_the_ledger_and_the_backlog(db: Database, table: Table) -> None:
    # given a key whose row is in the ledger, one in the backlog, and a delete in each
    put(table, (1, "a"), (2, "a"), (3, "a"), (4, "a"))
    table.delete([4])
    compact(db, table)
    put(table, (2, "b"))
    table.delete([3])
    before = table.snapshot()
    put(table, (1, "z"), (2, "z"), (3, "z"), (4, "z"))
    # then each is found where it is
    assert told(table, before, preimages=True) == [
        (PRE, 1, "a"),
        (POST, 1, "z"),
        (PRE, 2, "b"),
        (POST, 2, "z"),
        (INSERT, 3, "z"),
        (INSERT, 4, "z"),
    ]
    assert told(table, before) == [
        (POST, 1, "z"),
        (POST, 2, "z"),
        (INSERT, 3, "z"),
        (INSERT, 4, "z"),
    ]


def test_what_was_cut_is_refused_by_name_and_the_earliest_says_what_is_left(
    db: Database, table: Table
) -> None:
    # given changes that were compacted and cut
    put(table, (1, "a"))
    start = table.changes("earliest").to_pylist()[0]["_commit_version"]
    before = table.snapshot()
    put(table, (1, "b"))
    compact(db, table)
    put(table, (1, "c"))
    # then a feed of them is refused, also one that would end before what is left
    for places in ((start,), (start, before), (before,), (before.time + 1,), ({0: 0}, {0: 2})):
        with pytest.raises(ChangesGone) as refused:
            table.changes(*places)
        assert (refused.value.partition, refused.value.kind) == (0, "compacted")
        assert "earliest" in refused.value.hint
        assert "history=7 days" in refused.value.hint
    # and the earliest is the first place from which on all is known
    assert told(table, "earliest", preimages=True) == [(PRE, 1, "b"), (POST, 1, "c")]
    assert told(table, {0: 2}) == [(POST, 1, "c")]


def test_a_reader_that_had_all_goes_on_after_a_compaction(db: Database, table: Table) -> None:
    # given a reader that has come to its end, and nothing that was written after that
    put(table, (1, "a"))
    reader = table.changes("earliest")
    assert reader.to_arrow().num_rows == 1
    # when the low watermark passes, and all is compacted and cut
    compact(db, table)
    put(table, (1, "b"))
    # then it goes on by offset and by time: the last row that was cut is known to be earlier
    assert reader.time is not None
    assert told(table, reader.position) == told(table, reader.time + 1) == [(POST, 1, "b")]


def test_what_was_compacted_and_not_cut_is_told_by_the_backlog(db: Database, table: Table) -> None:
    # given a ledger that goes further than the start, and the whole backlog
    put(table, (1, "a"), (2, "a"))
    middle = table.snapshot()
    put(table, (1, "b"), (3, "b"))
    compact(db, table, trim=False)
    put(table, (2, "c"))
    # then all is known
    wanted = [(PRE, 1, "a"), (POST, 1, "b"), (INSERT, 3, "b"), (PRE, 2, "a"), (POST, 2, "c")]
    assert told(table, middle, preimages=True) == wanted
    assert told(table, "earliest")[0] == (INSERT, 1, "a")
    # when it is cut up to the start
    table.trim({0: 2})
    # then it is not: the ledger has the last row of 1, which is later than the start
    with pytest.raises(ChangesGone, match="compacted"):
        told(table, middle)
    assert told(table, "earliest", preimages=True) == wanted[3:]


def test_a_ledger_ahead_of_the_start_tells_of_keys_that_do_not_occur_below_its_horizon(
    db: Database, table: Table
) -> None:
    # given a key whose last row below the horizon is before the start, and one that comes again
    put(table, (1, "a"))
    put(table, (2, "a"))
    middle = table.snapshot()
    put(table, (2, "b"))
    compact(db, table, trim=False)
    put(table, (1, "c"))
    # when the first row is cut
    table.trim({0: 1})
    # then the first is found in the ledger, and the second in the backlog
    wanted = [(PRE, 2, "a"), (POST, 2, "b"), (PRE, 1, "a"), (POST, 1, "c")]
    assert told(table, middle, preimages=True) == wanted


def test_what_retention_removed_is_refused_or_counts_as_new(db: Database, table: Table) -> None:
    # given a row that went by retention, and one that did not
    put(table, (1, "a"))
    put(table, (2, "a"))
    proposed(table, Trim(1, expire=True))
    put(table, (2, "b"))
    # then what is known without it is told
    assert told(table, {0: 2}, preimages=True) == [(PRE, 2, "a"), (POST, 2, "b")]
    # and a key that is not found may have been there
    put(table, (1, "c"))
    for start in ("earliest", {0: 0}, {0: 2}):
        with pytest.raises(ChangesGone) as refused:
            told(table, start)
        assert refused.value.kind == "expired"
        assert "on_gap" in refused.value.hint
    with table.changes({0: 2}, on_gap="skip") as reader:
        rows = reader.to_pylist()
    assert [(row["_change_type"], row["id"]) for row in rows] == [(POST, 2), (INSERT, 1)]
    assert reader.gaps == [Gap(0, 0, 0, "expired")]
    # and the same holds when the rest is in a ledger
    compact(db, table)
    put(table, (9, "n"), (2, "z"))
    with pytest.raises(ChangesGone, match="before offset 1"):
        told(table, "earliest")
    assert told(table, "earliest", on_gap="skip") == [(INSERT, 9, "n"), (POST, 2, "z")]


def test_a_feed_that_was_closed_refused_or_read_holds_nothing(db: Database, table: Table) -> None:
    kept = backend_of(table)._kept
    put(table, (1, "a"))
    with table.changes("earliest") as reader:
        assert kept
    assert list(reader) == []
    assert table.changes("earliest", preimages=True).to_arrow().num_rows == 1
    compact(db, table)
    with pytest.raises(ChangesGone):
        table.changes({0: 0})
    eventually(lambda: not kept)


def test_rows_without_a_key_that_were_cut_are_refused_and_read_has_them(db: Database) -> None:
    events = db.create_table("events", {"n": int}, partitions=1)
    events.append([{"n": 1}])
    compact(db, events)
    events.append([{"n": 2}])
    with pytest.raises(ChangesGone, match=r"read\(compacted=True\)"):
        events.changes({0: 0})
    assert [row["n"] for row in events.changes("earliest").to_pylist()] == [2]


def test_a_feed_over_a_server_is_the_same(db: Database, tmp_path: Path) -> None:
    # given a served database with a ledger and a backlog
    table = db.create_table("t", {"id": int, "v": str}, key="id", partitions=2)
    table.append([{"id": key, "v": "a"} for key in range(20)])
    compact(db, table)
    table.append([{"id": key, "v": "b"} for key in range(10, 30)])
    table.delete([3, 12])
    with Server(db, f"unix:{tmp_path}/s") as server, lowmark.connect(server.address) as distant:
        for net in (False, True):
            until = table.snapshot()
            here = table.changes("earliest", until, preimages=True, net=net).to_arrow()
            there = distant["t"].changes("earliest", until, preimages=True, net=net).to_arrow()
            assert here.num_rows > 20
            assert there == here
