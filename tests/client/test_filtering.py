"""`read(where=…)` gives what filtering afterwards gives, in every way of reading."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lowmark.catalog import NewColumn, Plain
from lowmark.client import Database, Table
from lowmark.errors import Rejected
from lowmark.ledger import OpenFile, files, tail

SYSTEM = ["_partition", "_offset", "_time", "_change"]
COLUMNS = {"id": int, "status": str, "n": "int32", "x": float, "at": "timestamp"}
EXPRESSIONS = [
    pc.field("status") == "new",
    pc.field("n") > 40,
    pc.field("id") < 10,
    (pc.field("n") >= 20) & (pc.field("status") != "paid"),
    pc.is_null(pc.field("n")),
    ~(pc.field("x") == 1.0),
    pc.is_nan(pc.field("x")),
    pc.field("_offset") >= 25,
    pc.field("_change") == "delete",
    (pc.field("_partition") == 1) | (pc.field("_change") == "delete"),
    pc.field("later") == 7,
    pc.is_null(pc.field("bare")),
    pc.field("status").isin(["paid", "gone"]),
    pc.scalar(True),
    pc.scalar(False),
    pc.field("id") == -1,
]


def changed(db: Database, dice: Random, *, compact: bool) -> Table:
    """A table with deletes, mixed batches, columns that were added, widened and renamed."""
    table = db.create_table("t", {**COLUMNS, "old": str}, key="id", partitions=2)
    for turn in range(10):
        rows = [
            {
                "id": dice.randrange(40),
                "status": dice.choice(["new", "paid", "gone", None]),
                "n": dice.choice([None, turn * 10]),
                "x": dice.choice([1.0, float("nan"), None]),
            }
            for _ in range(dice.randrange(1, 20))
        ]
        table.append(rows)
        if dice.random() < 0.5:
            table.delete([dice.randrange(40) for _ in range(3)])
        if turn == 3:
            added = [NewColumn(name="later", type=Plain.INT64, default=7), ("bare", str)]
            table.alter(add=added, widen={"n": "int64"})
        if turn == 6:
            table.alter(rename={"old": "older"})
            words = ["upsert", "delete"]
            table.append(
                [
                    {"id": dice.randrange(40), "n": 5, "_change": dice.choice(words)}
                    for _ in range(8)
                ]
            )
        if compact and turn in {4, 7}:
            db.advance_watermark("now")
            table.compact(engine="local")
    return table


def rows_of(found: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(repr(value) for value in row.values()) for row in found.to_pylist()]


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 7)
    monkeypatch.setattr(tail, "_CHUNK_BYTES", 500)


@pytest.mark.slow
@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_filter_gives_what_filtering_afterwards_gives(
    db: Database, seed: int, *, compact: bool
) -> None:
    # given a table
    dice = Random(seed)
    table = changed(db, dice, compact=compact)
    every = [*table.schema.names, *SYSTEM]
    ways: list[dict[str, Any]] = [
        {"start": "earliest"},
        {"compacted": True},
        {"as_of": "now"},
        {"compacted": True, "start": {0: 9, 1: 11}, "on_gap": "skip"},
    ]
    passed = 0
    for way in ways:
        whole = table.read(columns=every, **way).to_arrow()
        for where in EXPRESSIONS:
            # when it is read with a filter, with columns that the filter has or has not
            columns = dice.choice([every, ["n", "_change"], ["older"], ["status"], []])
            reader = table.read(columns=columns, where=where, **way)
            found = reader.to_arrow()
            # then it is what is left of all rows; deletes are there where they always are
            left = whole.filter(where)
            if "_change" not in columns:
                left = left.filter(pc.field("_change") == "upsert")
            assert reader.schema == found.schema
            assert found.num_rows == left.num_rows, (way, str(where), columns)
            assert rows_of(found) == rows_of(left.select(columns))
            passed += found.num_rows
    assert passed > 100


@pytest.mark.slow
@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 8])
def test_a_limit_counts_rows_that_pass_and_the_position_goes_on_behind_them(
    db: Database, limit: int, *, compacted: bool
) -> None:
    # given a table, and all rows that pass
    table = changed(db, Random(5), compact=compacted)
    where = pc.field("status") == "new"
    way: dict[str, Any] = {"compacted": True} if compacted else {"start": "earliest"}
    names = ["_partition", "_offset", "id"]
    whole = table.read(columns=names, where=where, **way).to_pylist()
    assert len(whole) > 10
    # when they are read a few at a time, each time from where the last one ended
    found: list[dict[str, Any]] = []
    while True:
        reader = table.read(columns=names, where=where, limit=limit, on_gap="skip", **way)
        some = reader.to_pylist()
        assert len(some) <= limit
        found += some
        way["start"] = reader.position
        if len(some) < limit:
            break
    # then each comes once, in the order of its partition
    by_place = [(row["_partition"], row["_offset"], row["id"]) for row in found]
    assert sorted(by_place) == sorted(tuple(row.values()) for row in whole)
    for number in (0, 1):
        mine = [offset for partition, offset, _ in by_place if partition == number]
        assert mine == sorted(mine)


def test_a_filtered_tail_passes_over_the_rest(orders: Table) -> None:
    # given a reader that follows
    where = pc.field("status") == "new"
    reader = orders.read(start="latest", follow=True, limit=3, where=where, columns=["id"])
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(one["id"] for one in reader.to_pylist()))
    thread.start()
    # when rows come of which some pass
    for number in range(9):
        status = "new" if number % 3 == 0 else "paid"
        orders.append([{"id": f"o-{number}", "status": status}])
    # then it ends with those
    thread.join(20)
    assert sorted(found) == ["o-0", "o-3", "o-6"]
    left = orders.read(start=reader.position, where=where, columns=["id"]).to_pylist()
    assert left == []


def test_as_of_a_time_the_last_row_of_a_key_has_to_pass(orders: Table) -> None:
    # given a key whose last row does not pass, though an earlier one does
    orders.append([{"id": "o-1", "status": "new"}, {"id": "o-2", "status": "new"}])
    time = orders.snapshot().time
    orders.append([{"id": "o-1", "status": "paid"}])
    # then it is not among the rows of now, and is among those of then
    where = pc.field("status") == "new"
    assert orders.read(as_of="now", where=where, columns=["id"]).to_pylist() == [{"id": "o-2"}]
    assert orders.read(as_of=time, where=where, columns=["id"]).to_arrow().num_rows == 2
    assert orders.read(as_of=time, where=where, limit=1).to_arrow().num_rows == 1
    # and they are counted so, too
    assert (orders.count(where=where), orders.count(where=where, as_of=time)) == (1, 2)


def test_row_groups_that_can_have_no_such_row_are_not_read(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a ledger of many row groups, whose numbers grow
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(tail, "_CHUNK_BYTES", 1)
    table = db.create_table("t", {"id": int, "n": int, "text": str}, key="id", partitions=1)
    for low in range(0, 1_000, 100):
        table.append([{"id": one, "n": one, "text": str(one % 7)} for one in range(low, low + 100)])
    db.advance_watermark("now")
    table.compact(engine="local")
    read: list[tuple[int, tuple[str, ...]]] = []
    group = OpenFile.group

    def told(self: OpenFile, number: int, names: Any) -> pa.RecordBatch:
        read.append((number, tuple(names)))
        return group(self, number, names)

    monkeypatch.setattr(OpenFile, "group", told)
    # when rows of one of them are asked for
    where = (pc.field("n") >= 420) & (pc.field("n") < 425)
    rows = table.read(compacted=True, where=where, columns=["text"]).to_arrow()
    # then only that one is read
    assert rows["text"].to_pylist() == [str(one % 7) for one in range(420, 425)]
    assert {number for number, _ in read} == {4}
    # and of a column without statistics, the others are read only where a row passes
    read.clear()
    where = (pc.field("text") == "0") & (pc.field("_offset") < 100)
    assert table.read(compacted=True, where=where).to_arrow().num_rows == 15
    assert {number for number, _ in read} == {0}
    read.clear()
    assert table.read(compacted=True, where=pc.field("text") == "none").to_arrow().num_rows == 0
    assert {names for _, names in read} == {("text", "_offset")}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (pc.field("colour") == "red", "colour"),
        (pc.field("status"), "string"),
        (pc.field("status") == 3, "status"),
        (pc.field(0) == "o-1", "place"),
        ("status =", "expected a value"),
        ("colour = 'red'", "colour"),
        (True, "bool"),
        (pc.scalar(None), "null"),
    ],
)
def test_a_filter_that_is_none_is_refused_by_name(orders: Table, where: Any, said: str) -> None:
    for way in ({}, {"as_of": "now"}):
        with pytest.raises(Rejected, match="where") as refused:
            orders.read(where=where, **way)  # type: ignore[arg-type]
        assert said in f"{refused.value.message} {refused.value.detail}"


def test_a_condition_may_be_text_as_on_the_command_line(orders: Table) -> None:
    # given rows of which two are wanted
    orders.append([{"id": f"o-{n}", "status": s} for n, s in enumerate(["new", "paid", "it's"])])
    expression = (pc.field("status") == "it's") | (pc.field("id") == "o-0")
    # then text gives what the expression gives, in every way of reading
    text = "status = 'it''s' or id = 'o-0'"
    for way in ({}, {"as_of": "now"}, {"compacted": True}):
        found = orders.read(where=text, columns="id", **way).to_pylist()
        assert found == orders.read(where=expression, columns="id", **way).to_pylist()
        assert {row["id"] for row in found} == {"o-0", "o-2"}
    assert orders.count(where=text) == 2
    assert orders.read(where="_offset < 0").to_pylist() == []


def test_a_filter_that_fails_for_a_row_says_so(orders: Table) -> None:
    orders.append([{"id": "o-1", "status": "new"}])
    where = pc.field("status").cast("int64") == 3
    with pytest.raises(Rejected, match="where can't be applied to a row of table orders"):
        orders.read(where=where).to_arrow()
