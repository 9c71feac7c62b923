"""What people try first: upsert, alter, count, a key as of a time, times and UUIDs as Python's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID, uuid4

import pytest

from lowmark.catalog import CreateSchema, NewColumn, Plain
from lowmark.client import Database, GapFound, Table
from lowmark.errors import BelowWatermark, CatalogRefused, Rejected
from lowmark.table import Trim


def test_an_upsert_takes_the_place_of_the_last_row_of_its_key(orders: Table) -> None:
    # given a row
    orders.upsert([{"id": "o-1", "status": "new"}])
    # when another one of its key comes
    result = orders.upsert([{"id": "o-1", "status": "paid"}])
    # then that is the row of the key
    assert result.rows == 1
    row = orders.get("o-1")
    assert row is not None
    assert row["status"] == "paid"


def test_a_table_without_a_key_refuses_upserts_by_name(db: Database) -> None:
    log = db.create_table("log", {"line": str})
    with pytest.raises(Rejected, match="table log has no key") as refused:
        log.upsert([{"line": "x"}])
    assert "append" in refused.value.hint
    assert log.count() == 0


def test_a_table_is_altered_in_one_version(db: Database, orders: Table) -> None:
    # given a table with a row
    orders.append([{"id": "o-1", "status": "new", "amount": 1}])
    before = db.catalog.version
    # when everything is altered at once
    orders.alter(
        add=[NewColumn(name="note", type=Plain.STRING, default="-"), ("n", int)],
        drop="amount",
        rename={"status": "state"},
        options={"compression": "zstd"},
    )
    # then it is one version, in force, and the row shows it
    assert db.catalog.version == before + 1
    assert orders.schema.names == ["id", "state", "note", "n"]
    assert dict(orders.descriptor.options)["compression"] == "zstd"
    assert orders.get("o-1") == {"id": "o-1", "state": "new", "note": "-", "n": None}
    # and an option goes back to its default
    orders.alter(options={"compression": None}, widen={})
    assert "compression" not in dict(orders.descriptor.options)


@pytest.mark.parametrize(
    ("rename", "names"),
    [
        ({"status": "amount", "amount": "status"}, ["id", "amount", "status"]),
        ({"id": "status", "status": "amount", "amount": "id"}, ["status", "amount", "id"]),
        ({"status": "amount", "amount": "price"}, ["id", "amount", "price"]),
        ({"status": "Amount", "amount": "Status"}, ["id", "Amount", "Status"]),
        ({"status": "Status", "id": "id"}, ["id", "Status", "amount"]),
    ],
)
def test_columns_take_the_names_of_each_other(
    db: Database, orders: Table, rename: dict[str, str], names: list[str]
) -> None:
    # given a table with a row
    orders.append([{"id": "o-1", "status": "new", "amount": 1}])
    before = db.catalog.version
    # when columns get names that others have until then
    orders.alter(rename=rename)
    # then it is one change, and each has its values
    assert db.catalog.version == before + 1
    assert orders.schema.names == names
    assert orders.get("o-1") == dict(zip(names, ["o-1", "new", 1], strict=True))


def test_columns_are_widened(db: Database) -> None:
    numbers = db.create_table("numbers", {"id": "int32", "n": "int32"}, key="id")
    numbers.alter(widen={"n": "bigint"})
    numbers.append([{"id": 1, "n": 1 << 40}])
    assert numbers.get(1) == {"id": 1, "n": 1 << 40}


@pytest.mark.parametrize(
    "wrong",
    [
        {"drop": ["nope"]},
        {"drop": ["id"]},
        {"rename": {"status": "amount"}},
        {"rename": {"status": "x", "amount": "x"}},
        {"widen": {"status": "int64"}},
        {"options": {"colour": "red"}},
        {"rename": ["status"]},
        {"drop": [7]},
        {},
    ],
)
def test_an_alteration_that_is_refused_changes_nothing(
    db: Database, orders: Table, wrong: dict[str, object]
) -> None:
    # given a table
    version, names = db.catalog.version, orders.schema.names
    # when one of several changes can't be made
    good = {"add": {"note": str}} if wrong else {}
    with pytest.raises((CatalogRefused, Rejected)):
        orders.alter(**good, **wrong)  # type: ignore[arg-type]
    # then none of them is
    assert (db.catalog.version, orders.schema.names) == (version, names)


def test_a_table_in_another_schema_is_altered_too(db: Database) -> None:
    db.execute([CreateSchema(name="shop")])
    table = db.create_table("shop.orders", {"id": int}, key="id")
    table.alter(add={"note": str})
    assert table.schema.names == ["id", "note"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_count_and_get_agree_with_reading_the_table(db: Database, seed: int) -> None:
    # given a table that is written to, deleted from and compacted now and then
    dice = Random(seed)
    table = db.create_table("t", {"id": int, "n": int}, key="id", partitions=2)
    times: list[int] = []
    for turn in range(12):
        ids = [dice.randrange(30) for _ in range(dice.randrange(1, 15))]
        table.append([{"id": one, "n": turn} for one in ids])
        if dice.random() < 0.6:
            table.delete([dice.randrange(30) for _ in range(4)])
        if dice.random() < 0.4:
            mixed = [
                {"id": dice.randrange(30), "n": -turn, "_change": dice.choice(["upsert", "delete"])}
                for _ in range(5)
            ]
            table.append(mixed)
        if dice.random() < 0.2:
            db.advance_watermark("now")
            table.compact(engine="local")
            times.clear()
        times.append(table.snapshot().time)
    # then, now and at each time that is left, there are as many rows as reading gives
    assert table.count() == table.read(as_of="now").to_arrow().num_rows
    for time in times:
        rows = {row["id"]: row for row in table.read(as_of=time).to_pylist()}
        assert table.count(as_of=time) == len(rows)
        # and each key has the row that reading gives
        assert {one: table.get(one, as_of=time) for one in range(30)} == {
            one: rows.get(one) for one in range(30)
        }


def test_a_table_without_a_key_counts_all_its_rows(db: Database) -> None:
    log = db.create_table("log", {"n": int}, partitions=2)
    for turn in range(5):
        log.append([{"n": turn}] * 10)
    assert log.count() == 50
    db.advance_watermark("now")
    log.compact(engine="local")
    log.append([{"n": 7}])
    assert log.count() == 51


def test_rows_without_a_key_that_are_kept_count_one_by_one(db: Database) -> None:
    table = db.create_table(
        "t", {"id": int, "n": int}, key="id", options={"keyless_rows": "keep"}, partitions=2
    )
    table.append([{"id": None, "n": 1}, {"id": None, "n": 1}, {"id": 1, "n": 1}, {"id": 1, "n": 2}])
    assert table.count() == 3


def test_a_key_as_of_a_time_that_was_given_up_is_refused(db: Database, orders: Table) -> None:
    orders.append([{"id": "o-1", "status": "new"}])
    time = orders.snapshot().time
    orders.append([{"id": "o-1", "status": "paid"}])
    row = orders.get("o-1", as_of=time)
    assert row is not None
    assert row["status"] == "new"
    db.advance_watermark("now")
    with pytest.raises(BelowWatermark):
        orders.get("o-1", as_of=time)


def test_a_key_as_of_a_time_has_the_columns_of_then(orders: Table) -> None:
    orders.append([{"id": "o-1", "status": "new"}])
    time = orders.snapshot().time
    orders.alter(rename={"status": "state"}, drop="amount")
    assert orders.get("o-1", as_of=time) == {"id": "o-1", "status": "new", "amount": None}
    assert orders.get({"id": "o-1"}) == {"id": "o-1", "state": "new"}


def test_a_key_that_may_be_among_expired_rows_is_a_gap(db: Database) -> None:
    # given a table whose oldest rows went by retention
    options: dict[str, str | int] = {"compaction": "off", "retention_bytes": 1}
    table = db.create_table("t", {"id": int}, key="id", partitions=1, options=options)
    for one in range(3):
        table.append([{"id": one}])
    db._backend.propose(table.descriptor.id, {0: Trim(2, expire=True)})
    # then a key that is left is found, and one that is not may have gone
    time = table.snapshot().time
    assert table.get(2, as_of=time) == {"id": 2}
    with pytest.raises(GapFound):
        table.get(0, as_of=time)
    assert table.count() == 1


def test_a_snapshot_has_its_time_by_the_clock(orders: Table) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    snapshot = orders.snapshot()
    assert snapshot.datetime.tzinfo is UTC
    assert before <= snapshot.datetime <= datetime.now(UTC) + timedelta(seconds=5)
    orders.append([{"id": "o-1"}])
    assert orders.count(as_of=snapshot.datetime) in {0, 1}  # the whole of a millisecond counts
    assert orders.count(as_of=snapshot.time) == 0


def test_uuids_and_maps_come_back_as_pythons(db: Database) -> None:
    # given a table with them, at some depth
    columns = {
        "id": UUID,
        "sizes": dict[str, int],
        "others": list[UUID],
        "deep": "map<string, map<uuid, uuid>>",
        "inside": "struct<u: uuid, m: map<string, int>, n: int>",
    }
    table = db.create_table("t", columns, key="id", partitions=1)
    one, two = uuid4(), uuid4()
    row = {
        "id": one,
        "sizes": {"a": 1, "b": None},
        "others": [one, None, two],
        "deep": {"x": {one: two}, "y": None},
        "inside": {"u": two, "m": {"k": 1}, "n": 3},
    }
    empty: dict[str, object] = {
        "id": two,
        "sizes": None,
        "others": None,
        "deep": {},
        "inside": None,
    }
    table.append([row, empty])

    def check() -> None:
        for _ in range(2):  # the second time, its batch is at hand
            assert table.get(one) == row
        assert table.get(two) == empty
        assert table.get(one.bytes) == table.get(str(one)) == row
        assert table.get_many([two, one]) == [empty, row]
        assert table.get(one, as_of="now") == row
        assert table.read(compacted=True, columns=list(columns)).to_pylist() == [row, empty]
        explained = table.explain(one)
        assert (explained.key, explained.row) == ((one,), row)

    # then they are UUIDs and dicts, from the backlog and from the ledger
    check()
    db.advance_watermark("now")
    table.compact(engine="local")
    check()
    # and Arrow stays Arrow
    assert table.read(compacted=True).to_arrow()["id"][0].as_py() == one.bytes
