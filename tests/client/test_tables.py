"""Tables in this process: append, read, follow, look up, look back."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lowmark
from eventually import eventually
from inside import backend_of, on_loop, partition_of, proposed
from lowmark.catalog import AddColumns, DropColumns, NewColumn, RenameColumn, parse_type
from lowmark.client import (
    AppendFailed,
    Database,
    GapFound,
    KeyExplanation,
    Table,
    TableExplanation,
    TableUnknown,
    ValueRefused,
)
from lowmark.errors import Corrupt, Rejected, Unavailable
from lowmark.table import (
    BelowWatermark,
    CursorMovesBack,
    CursorUnknown,
    KeyForm,
    ProducerFenced,
    TimeInFuture,
    Trim,
)


def row(number: int, **more: object) -> dict[str, object]:
    return {"id": f"o-{number}", "status": "new", "amount": Decimal(number), **more}


def ids(table: Table, **how: Any) -> list[str]:
    return sorted(one["id"] for one in table.read(columns=["id"], **how).to_pylist())


# -- appending ------------------------------------------------------------------------------------


def test_the_example_of_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    db = lowmark.open(tmp_path)
    orders = db.create_table(
        "orders",
        {"id": "string", "status": "string", "amount": "decimal(12,2)"},
        key="id",
        partitions=8,
    )
    orders.append([{"id": "o-1", "status": "new", "amount": 9}])
    with orders.producer(linger_ms=5) as p:
        p.send({"id": "o-1", "status": "paid", "amount": "9.50"})
    assert orders.get("o-1") == {"id": "o-1", "status": "paid", "amount": Decimal("9.50")}
    assert orders.read(columns=["id"]).to_pandas()["id"].tolist() == ["o-1", "o-1"]
    orders.delete(["o-1"])
    assert orders.get("o-1") is None
    assert isinstance(orders.explain(), TableExplanation)
    db.close()


def test_rows_of_every_kind_are_taken(orders: Table) -> None:
    rows = [row(number) for number in range(3)]
    table = pa.Table.from_pylist(rows, schema=orders.schema)
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for given in (
        rows,
        table,
        table.to_batches()[0],
        pandas.DataFrame(rows),
        polars.DataFrame(rows),
    ):
        assert orders.append(given).rows == 3
    assert orders.append(dict(one) for one in rows).rows == 3
    assert orders.append([]).rows == 0
    assert orders.read().to_arrow().num_rows == 18


def test_a_refused_batch_leaves_nothing_behind(orders: Table) -> None:
    rows = [row(1), row(2), row(3, amount="9.505")]
    with pytest.raises(ValueRefused) as refused:
        orders.append(rows)
    assert (refused.value.row, refused.value.column) == (2, "amount")
    assert orders.read().to_arrow().num_rows == 0
    assert orders.append(rows[:2]).rows == 2


def test_the_answer_says_where_rows_went(orders: Table) -> None:
    result = orders.append([row(number) for number in range(100)])
    assert sum(part.rows for part in result.parts) == 100
    rows = orders.read(columns=["id", "_partition", "_offset", "_time"]).to_pylist()
    for part in result.parts:
        mine = [one for one in rows if one["_partition"] == part.partition]
        assert [one["_offset"] for one in mine] == list(range(part.first, part.first + part.rows))
        assert {one["_time"] for one in mine} == {part.time}


def test_a_large_append_is_cut_into_entries_and_loses_nothing(db: Database) -> None:
    table = db.create_table("t", {"id": "int64", "note": "string"}, key="id", partitions=2)
    count = 200_000
    batch = pa.record_batch({"id": np.arange(count), "note": ["x" * 60] * count})
    assert table.append(batch).rows == count
    read = table.read(columns=["id"]).to_arrow()["id"].to_numpy()
    assert sorted(read.tolist()) == list(range(count))


def test_a_row_that_is_too_large_is_refused(db: Database) -> None:
    table = db.create_table("t", {"id": "int64", "note": "string"}, key="id")
    with pytest.raises(Rejected, match="too large"):
        table.append([{"id": 1, "note": "x" * (8 << 20)}])
    table.append([{"id": 1, "note": "x" * (6 << 20)}])
    found = table.get(1)
    assert found is not None
    assert len(found["note"]) == 6 << 20


def test_keyless_rows_are_refused_or_kept_by_option(db: Database) -> None:
    strict = db.create_table("strict", {"id": "string", "n": "int64"}, key="id")
    with pytest.raises(Rejected, match="id"):
        strict.append([{"n": 1}])
    with pytest.raises(Rejected, match="row 1"):
        strict.append([{"id": "a", "n": 1}, {"id": None, "n": 1}])
    keeping = db.create_table(
        "keeping", {"id": "string", "n": "int64"}, key="id", options={"keyless_rows": "keep"}
    )
    keeping.append([{"n": 1}, {"n": 2}, {"id": "a", "n": 3}, {"id": "a", "n": 4}])
    assert sorted(one["n"] for one in keeping.read(as_of="now").to_pylist()) == [1, 2, 4]


def test_a_table_without_a_key_takes_rows_and_is_read(db: Database) -> None:
    events = db.create_table("events", {"what": "string"}, partitions=3)
    for number in range(6):
        events.append([{"what": f"{number}"}])
    assert sorted(one["what"] for one in events.read().to_pylist()) == list("012345")
    # batches take turns
    assert {one["_partition"] for one in events.read(columns=["_partition"]).to_pylist()} == {
        0,
        1,
        2,
    }
    with pytest.raises(Rejected, match="no key"):
        events.get("x")
    with pytest.raises(Rejected, match="no key"):
        events.delete(["x"])


def test_changes_of_both_kinds_in_one_batch_keep_their_order(orders: Table) -> None:
    orders.append(
        [
            row(1) | {"_change": "upsert"},
            {"id": "o-1", "_change": "delete"},
            row(2) | {"_change": "upsert"},
            {"id": "o-3", "_change": "delete"},
            row(3) | {"_change": "upsert"},
        ]
    )
    assert orders.get("o-1") is None
    assert ids(orders, as_of="now") == ["o-2", "o-3"]
    assert ids(orders) == ["o-1", "o-2", "o-3"]
    changes = [(one["id"], one["_change"]) for one in orders.read(partitions=None).to_pylist()]
    assert sorted(changes) == [
        ("o-1", "delete"),
        ("o-1", "upsert"),
        ("o-2", "upsert"),
        ("o-3", "delete"),
        ("o-3", "upsert"),
    ]


def test_many_threads_append_and_nothing_is_lost_or_doubled(orders: Table) -> None:
    def work(worker: int) -> None:
        for number in range(20):
            orders.append([row(worker * 1_000 + number)])

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids(orders)) == 120
    assert len(set(ids(orders))) == 120


# -- reading --------------------------------------------------------------------------------------


def test_a_reader_goes_on_where_another_stopped_also_after_a_restart(tmp_path: Path) -> None:
    with lowmark.open(tmp_path) as db:
        orders = db.create_table("orders", {"id": "int64"}, key="id", partitions=2)
        orders.append([{"id": number} for number in range(100)])
        with orders.read(columns=["id"], limit=30) as reader:
            first = reader.to_arrow()["id"].to_pylist()
        # a limit cuts a batch; so go on by batches instead
        whole = orders.read(columns=["id"], batch_bytes=1)
        half = next(whole)["id"].to_pylist()
        position = whole.position
        whole.close()
    assert len(first) == 30
    with lowmark.open(tmp_path) as db:
        orders = db["orders"]
        orders.append([{"id": number} for number in range(100, 120)])
        rest = orders.read(columns=["id"], start=position).to_arrow()["id"].to_pylist()
    assert sorted(half + rest) == list(range(120))


def test_a_reader_with_a_limit_stands_behind_the_last_row_it_gave(db: Database) -> None:
    table = db.create_table("t", {"id": "int64"}, key="id", partitions=1)
    table.append([{"id": number} for number in range(5)])
    table.append(
        [
            {"id": number, "_change": "delete" if number % 3 == 0 else "upsert"}
            for number in range(5, 15)
        ]
    )
    table.delete([1, 2])
    table.append([{"id": 20}])
    for columns in (["id"], None):
        whole = table.read(columns=columns).to_arrow()["id"].to_pylist()
        for size in (1, 2, 3, 7):
            seen: list[int] = []
            position: Any = "earliest"
            while True:
                reader = table.read(columns=columns, start=position, limit=size)
                some = reader.to_arrow()["id"].to_pylist()
                position = reader.position
                if not some:
                    break
                seen += some
            assert seen == whole


def test_deletes_that_are_not_given_do_not_end_a_read(db: Database) -> None:
    table = db.create_table("t", {"id": "int64"}, key="id", partitions=2)
    table.append([{"id": number} for number in range(10)])
    for number in range(10):
        table.delete([number])
    table.append([{"id": number} for number in range(10, 20)])
    read = table.read(columns=["id"], batch_bytes=1).to_arrow()["id"].to_pylist()
    assert sorted(read) == list(range(20))


def test_a_delete_has_nothing_but_its_key(orders: Table) -> None:
    orders.append([row(1) | {"_change": "delete"}, row(2) | {"_change": "upsert"}])
    deleted, upserted = sorted(orders.read().to_pylist(), key=lambda one: one["id"])
    assert deleted == {"id": "o-1", "status": None, "amount": None, "_change": "delete"}
    assert upserted["status"] == "new"


def test_reading_from_a_time_begins_with_it(orders: Table) -> None:
    orders.append([row(1)])
    second = orders.append([row(2)])
    orders.append([row(3)])
    (part,) = second.parts
    assert ids(orders, start=part.time) == ["o-2", "o-3"]
    later = datetime.now(UTC) + timedelta(hours=1)
    assert ids(orders, start=later) == []
    assert ids(orders, start="latest") == []
    assert ids(orders, start="1999-01-01") == ["o-1", "o-2", "o-3"]


def test_a_bounded_reader_ends_with_what_was_there(orders: Table) -> None:
    orders.append([row(1)])
    reader = orders.read(columns=["id"])
    orders.append([row(2)])
    assert [one["id"] for one in reader.to_pylist()] == ["o-1"]


def test_a_snapshot_is_the_end_of_a_read(orders: Table) -> None:
    orders.append([row(number) for number in range(10)])
    snapshot = orders.snapshot()
    orders.append([row(number) for number in range(10, 20)])
    assert len(ids(orders, end=snapshot)) == 10
    assert len(ids(orders)) == 20


def test_a_follower_sees_every_row_once(orders: Table) -> None:
    orders.append([row(0)])
    seen: list[str] = []
    reader = orders.read(columns=["id"], follow=True)

    def follow() -> None:
        for batch in reader:
            seen.extend(batch["id"].to_pylist())

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(1, 50):
        orders.append([row(number)])
    eventually(lambda: len(seen) >= 50)
    reader.close()
    thread.join(10)
    assert sorted(seen) == sorted(f"o-{number}" for number in range(50))


def test_columns_and_bad_wishes(orders: Table) -> None:
    orders.append([row(1)])
    assert orders.read(columns=["amount", "id"]).to_arrow().column_names == ["amount", "id"]
    assert orders.read(columns=[]).to_arrow().num_rows == 1
    for wish in (
        {"columns": ["nope"]},
        {"limit": -1},
        {"batch_bytes": 0},
        {"start": 3},
        {"start": {0: -1}},
        {"start": "yesterday"},
        {"partitions": [9]},
        {"follow": True, "end": "latest"},
        {"as_of": "now", "follow": True},
    ):
        with pytest.raises(Rejected):
            orders.read(**wish)


def test_rows_that_retention_removed_are_a_gap_with_a_type(db: Database) -> None:
    events = db.create_table("events", {"n": "int64"}, partitions=1)
    for number in range(10):
        events.append([{"n": number}])
    expire(events, 4)
    assert [one["n"] for one in events.read().to_pylist()] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(GapFound) as found:
        events.read(start=1).to_arrow()
    assert found.value.gap.kind == "expired"
    assert [gap.last for gap in events.read(as_of="now", on_gap="skip").gaps] == [3]
    reader = events.read(start=1, on_gap="skip")
    assert [one["n"] for one in reader.to_pylist()] == [4, 5, 6, 7, 8, 9]
    (gap,) = reader.gaps
    assert (gap.partition, gap.first, gap.last, gap.kind) == (0, 1, 3, "expired")


def expire(table: Table, offset: int) -> None:
    """Cut as retention does."""
    proposed(table, Trim(offset, expire=True))
    on_loop(table, partition_of(table).group.snapshot)


def test_a_bounded_reader_keeps_what_it_is_reading(db: Database) -> None:
    events = db.create_table("events", {"n": "int64"}, partitions=1)
    for number in range(10):
        events.append([{"n": number}])
    reader = events.read(batch_bytes=1)
    first = next(reader)
    expire(events, 10)
    rest = [one for batch in reader for one in batch["n"].to_pylist()]
    assert first["n"].to_pylist() + rest == list(range(10))


def test_a_lease_keeps_rows_for_a_follower(db: Database) -> None:
    events = db.create_table("events", {"n": "int64"}, partitions=1)
    events.append([{"n": 0}])
    reader = events.read(follow=True, batch_bytes=1, lease_ms=60_000)
    events.append([{"n": 1}])
    expire(events, 2)
    assert [next(reader)["n"].to_pylist(), next(reader)["n"].to_pylist()] == [[0], [1]]
    explained = events.explain()
    assert isinstance(explained, TableExplanation)
    assert [holder.kind for holder in explained.holders] == ["lease"]
    reader.close()
    eventually(lambda: not events.explain().holders)


def test_rows_that_rot_are_never_served_and_stop_their_partition(tmp_path: Path) -> None:
    # given rows in a segment, of which a byte rots
    with lowmark.open(tmp_path) as db:
        events = db.create_table("events", {"n": "int64", "s": "string"}, partitions=1)
        events.append([{"n": number, "s": "x" * 50} for number in range(1_000)])
        on_loop(events, backend_of(events).node.log.roll)
        log = partition_of(events).group.log
        eventually(lambda: log.state.memtable.first is None)
        segment = max(tmp_path.rglob("*.segment"), key=lambda path: path.stat().st_size)
        with segment.open("r+b") as file:
            file.seek(-5_000, 2)
            file.write(b"rotten")
        # then they are not read, and nothing is written behind them
        with pytest.raises(Corrupt):
            events.read().to_arrow()
        with pytest.raises((Unavailable, AppendFailed)):
            events.append([{"n": 1}])


# -- looking up, looking back ---------------------------------------------------------------------


def test_get_tells_the_latest_and_explain_tells_deleted_from_unknown(orders: Table) -> None:
    orders.append([row(number) for number in range(100)])
    orders.append([row(7, status="paid")])
    orders.delete(["o-8"])
    found = orders.get("o-7")
    assert found is not None
    assert found["status"] == "paid"
    assert orders.get("o-8") is None
    assert orders.get("o-1000") is None
    states = [orders.explain(key) for key in ("o-7", "o-8", "o-1000")]
    assert all(isinstance(state, KeyExplanation) for state in states)
    assert [state.state for state in states] == ["live", "deleted", "unknown"]
    many = orders.get_many(["o-1", "o-8", "o-2"])
    assert [one and one["id"] for one in many] == ["o-1", None, "o-2"]
    orders.append([row(8)])
    assert orders.get("o-8") is not None


def test_keys_of_several_columns(db: Database) -> None:
    table = db.create_table(
        "t", {"day": "date", "n": "int32", "v": "string"}, key=["day", "n"], partitions=3
    )
    day = datetime(2026, 1, 2, tzinfo=UTC).date()
    table.append([{"day": day, "n": 1, "v": "a"}, {"day": "2026-01-02", "n": 2, "v": "b"}])
    assert table.get((day, 2)) == {"day": day, "n": 2, "v": "b"}
    assert table.get({"n": 1, "day": day}) == {"day": day, "n": 1, "v": "a"}
    table.delete([(day, 1)])
    assert table.get((day, 1)) is None
    with pytest.raises(Rejected):
        table.get(day)


def test_the_table_as_it_was(orders: Table) -> None:
    first = orders.append([row(1), row(2)])
    second = orders.append([row(1, status="paid")])
    third = orders.delete(["o-2"])

    def at(time: int) -> dict[str, str]:
        rows = orders.read(as_of=time).to_pylist()
        return {one["id"]: one["status"] for one in rows}

    times = [max(part.time for part in result.parts) for result in (first, second, third)]
    assert at(times[0]) == {"o-1": "new", "o-2": "new"}
    assert at(times[1]) == {"o-1": "paid", "o-2": "new"}
    assert at(times[2]) == {"o-1": "paid"}
    # it never changes, whatever comes
    orders.append([row(1, status="sent"), row(2)])
    assert at(times[1]) == {"o-1": "paid", "o-2": "new"}


def test_looking_back_has_its_limits(db: Database, orders: Table) -> None:
    (first,) = orders.append([row(1)]).parts
    (second,) = orders.append([row(1)]).parts
    with pytest.raises(TimeInFuture):
        orders.read(as_of=datetime.now(UTC) + timedelta(minutes=1))
    with pytest.raises(Rejected, match="was not there"):
        orders.read(as_of=datetime.now(UTC) - timedelta(minutes=1))
    with orders.read(as_of=first.time):
        # a reader holds its time
        assert db.advance_watermark(second.time).held_by
    moved = db.advance_watermark(second.time)
    assert moved.after == second.time
    with pytest.raises(BelowWatermark):
        orders.read(as_of=first.time)
    assert ids(orders, as_of=second.time) == ["o-1"]


def test_many_keys_at_once_are_what_each_alone_is(db: Database) -> None:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, key="k", partitions=4)
    for start in range(0, 400, 50):
        table.append([{"k": number % 300, "v": number} for number in range(start, start + 50)])
    table.delete(range(0, 300, 7))
    keys = [*range(-5, 310), 3, 3, 7]
    assert table.get_many(keys) == [table.get(key) for key in keys]
    assert table.get_many([]) == []


def test_keys_that_share_a_hash_are_told_apart(
    orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an index in which every key has the same hash
    def same(keys: pa.Array, seed: int) -> object:
        del seed
        return np.zeros(len(keys), np.uint64)

    monkeypatch.setattr(KeyForm, "hashes", staticmethod(same))
    monkeypatch.setattr(KeyForm, "hash_one", staticmethod(lambda key, seed: 0))
    orders.append([row(number) for number in range(20)])
    orders.delete(["o-3"])
    # then each key still has its own row
    for number in (0, 5, 19):
        found = orders.get(f"o-{number}")
        assert found is not None
        assert found["id"] == f"o-{number}"
    assert orders.get("o-3") is None
    assert orders.get("o-99") is None
    many = orders.get_many(["o-5", "o-3", "o-99", "o-7"])
    assert [one and one["id"] for one in many] == ["o-5", None, None, "o-7"]


def test_a_newer_producer_of_a_name_fences_the_older_one(orders: Table) -> None:
    old = orders.producer(name="etl", linger_ms=0)
    old.send(row(1))
    old.flush()
    with orders.producer(name="etl", linger_ms=0) as new:
        old.send(row(2))
        with pytest.raises(ProducerFenced):
            old.flush()
        assert old.unsent == [row(2)]
        new.send(row(3))
    assert ids(orders) == ["o-1", "o-3"]
    with pytest.raises(ProducerFenced):
        old.close()


def test_the_index_reports_what_it_costs(orders: Table) -> None:
    orders.append([row(number) for number in range(1_000)])
    orders.get("o-1")
    for number in range(40):
        orders.get(f"o-{number}")
    size = orders.index_size
    assert size is not None
    assert size.keys == 1_000
    assert size.bytes_per_key < 40


# -- schema versions ------------------------------------------------------------------------------


def test_rows_of_older_schema_versions_are_read_with_defaults(db: Database, orders: Table) -> None:
    orders.append([row(1)])
    db.execute(
        [
            AddColumns(
                table="orders",
                columns=(NewColumn(name="note", type=parse_type("string"), default="none"),),
            ),
            RenameColumn(table="orders", column="status", to="state"),
        ]
    )
    orders.append([{"id": "o-2", "state": "paid", "note": "x"}])
    assert orders.get("o-1") == {"id": "o-1", "state": "new", "amount": Decimal(1), "note": "none"}
    assert orders.get("o-2") == {"id": "o-2", "state": "paid", "amount": None, "note": "x"}
    # whoever still writes with the first version may
    orders.append([row(3)], schema_version=1)
    assert orders.get("o-3") == {"id": "o-3", "state": "new", "amount": Decimal(3), "note": "none"}
    with pytest.raises(Rejected, match="status"):
        orders.append([row(4)])
    db.execute([DropColumns(table="orders", columns=("note",))])
    assert orders.get("o-2") == {"id": "o-2", "state": "paid", "amount": None}


# -- cursors --------------------------------------------------------------------------------------


def test_a_cursor_remembers_where_a_reader_was(tmp_path: Path) -> None:
    with lowmark.open(tmp_path) as db:
        events = db.create_table("events", {"n": "int64"}, partitions=1)
        events.append([{"n": number} for number in range(10)])
        events.cursors.create("copy")
        events.cursors.commit("copy", {0: 4})
        with pytest.raises(CursorMovesBack):
            events.cursors.commit("copy", {0: 2})
    with lowmark.open(tmp_path) as db:
        events = db["events"]
        (cursor,) = events.cursors.list()
        assert (cursor.name, cursor.kind, cursor.lag_rows) == ("copy", "raw", 6)
        assert cursor.pinned_bytes > 0
        expire(events, 10)
        read = events.read(start=cursor.position).to_pylist()
        assert [one["n"] for one in read] == [4, 5, 6, 7, 8, 9]
        events.cursors.delete("copy")
        with pytest.raises(CursorUnknown):
            events.cursors.delete("copy")
        expire(events, 10)
        assert events.read().to_pylist() == []


@pytest.mark.parametrize(
    ("name", "wish"),
    [
        ("", {}),
        ("x" * 200, {}),
        ("\udcff", {}),
        ("a\nb", {}),
        ("c", {"max_lag_rows": 10**30}),
        ("c", {"max_lag_ms": -1}),
        ("c", {"kind": "cooked"}),
        ("c", {"start": {0: 5}}),
        ("c", {"start": dict.fromkeys(range(4), 10**30)}),
        ("c", {"start": dict.fromkeys(range(4), 3)}),
        ("c", {"start": "middle"}),
    ],
)
def test_a_cursor_that_can_t_be_is_refused_everywhere(
    orders: Table, name: str, wish: dict[str, Any]
) -> None:
    with pytest.raises(Rejected):
        orders.cursors.create(name, **wish)
    assert orders.cursors.list() == []


def test_a_key_can_be_given_as_it_could_be_appended(db: Database) -> None:
    table = db.create_table("t", {"d": "decimal(9,2)", "day": "date"}, key=["d", "day"])
    table.append([{"d": "1.50", "day": "2026-01-01"}])
    assert table.get(("1.5", "2026-01-01")) is not None
    assert table.explain((1.5, "2026-01-01")).state == "live"
    with pytest.raises(Rejected):
        table.get(("much", "2026-01-01"))
    events = db.create_table("events", {"n": "int64"})
    with pytest.raises(Rejected, match="no key"):
        events.explain(key=1)


# -- tables ---------------------------------------------------------------------------------------


def test_the_availability_of_history_is_settled_once(tmp_path: Path) -> None:
    with lowmark.open(tmp_path, watermark_availability_ms=5_000):
        pass
    with lowmark.open(tmp_path, watermark_availability_ms=5_000):
        pass
    with pytest.raises(Rejected, match="5000 ms, not 6000"):
        lowmark.open(tmp_path, watermark_availability_ms=6_000)
    with lowmark.open(tmp_path):
        pass


def test_a_dropped_table_is_gone_but_can_be_looked_back_to(db: Database, orders: Table) -> None:
    (part,) = orders.append([row(1)]).parts
    db.drop_table("orders")
    for use in (lambda: orders.append([row(2)]), orders.read, lambda: orders.get("o-1")):
        with pytest.raises(TableUnknown):
            use()
    with pytest.raises(TableUnknown, match="there is no table"):
        db.table("orders")
    then = db.table("orders", as_of=part.time)
    assert [one["id"] for one in then.read(as_of=part.time).to_pylist()] == ["o-1"]


def test_a_table_that_was_not_there_yet_is_not_taken_for_a_misspelling(
    db: Database, orders: Table
) -> None:
    before = orders.append([row(1)]).parts[0].time
    db.create_table("later", {"id": "int64"})
    with pytest.raises(TableUnknown, match="no table later as of that time") as unknown:
        db.table("later", as_of=before)
    assert unknown.value.hint == "There is one now: it was made, or renamed, after that time."


@pytest.mark.parametrize("first", [0, 1])
def test_a_dropped_table_has_the_columns_of_the_time_by_which_it_is_asked_for(
    db: Database, first: int
) -> None:
    # given a table that had other columns later, and was dropped
    table = db.create_table("t", {"id": "int64"}, key="id", partitions=1)
    table.append([{"id": 1}])
    times = [table.snapshot().time]
    table.alter(add={"v": "int64"}, rename={"id": "key"})
    table.append([{"key": 2, "v": 2}])
    times.append(table.snapshot().time)
    table.alter(add={"w": "int64"})
    db.drop_table("t")
    # then a process has those of each time, whichever it asks for first
    columns = [["id"], ["key", "v"]]
    for number in (first, 1 - first):
        then = db.table("t", as_of=times[number])
        assert then.schema.names == columns[number]
        assert list(then.key) == columns[number][:1]
        # and by any of them the rows of every time
        for time, names in zip(times, columns, strict=True):
            assert then.read(as_of=time).schema.names == names
        row = then.get(1, as_of=times[number])
        assert row is not None
        assert row[columns[number][0]] == 1
    # and a handle of before has the last ones
    assert table.schema.names == ["key", "v", "w"]


def test_a_misspelt_table_is_a_question(db: Database, orders: Table) -> None:
    assert db.tables() == ["orders"]
    with pytest.raises(TableUnknown, match="Did you mean orders"):
        db.table("order")


def test_tables_are_there_as_soon_as_they_are_created(db: Database) -> None:
    # no other node could still use the version before: nothing has to be waited for
    for number in range(3):
        db.create_table(f"t{number}", {"id": "int64"}, key="id", partitions=1)
    assert db.tables() == ["t0", "t1", "t2"]
