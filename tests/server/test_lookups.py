"""A key is looked up where its rows are: one call, and neither views nor batches travel for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

import lowmark
from lowmark.client import Database
from server.world import COLUMNS, Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served") / "data") as one:
        yield one


@pytest.fixture
def db(served: Served) -> Iterator[Database]:
    with lowmark.connect(served.address) as database:
        yield database


def counted(db: Database) -> list[str]:
    """The calls that are made from now on."""
    connection: Any = db.backend._connection  # type: ignore[attr-defined]
    calls, call, read = list[str](), connection.call, connection.read

    def count_call(name: str, *given: Any, **more: Any) -> Any:
        calls.append(name)
        return call(name, *given, **more)

    def count_read(name: str, *given: Any, **more: Any) -> Any:
        calls.append(name)
        return read(name, *given, **more)

    connection.call, connection.read = count_call, count_read
    return calls


@pytest.mark.slow
def test_a_get_is_one_call(served: Served, db: Database) -> None:
    # given a table with many batches, and a client that has looked up once
    orders = db.create_table("orders", COLUMNS, key="id", partitions=2)
    for number in range(50):
        orders.append([{"id": number, "status": "new"}])
    assert orders.get(7) is not None
    # when it looks up more, of keys that are there and that are not
    calls = counted(db)
    assert orders.get(8) == {"id": 8, "status": "new"}
    assert orders.get((9,)) == {"id": 9, "status": "new"}
    assert orders.get(10_000) is None
    assert [row and row["id"] for row in orders.get_many([3, -1, 4])] == [3, None, 4]
    # then each is one call
    assert set(calls) <= {"look_up", "catalog"}
    assert calls.count("look_up") == 4
    # and what another client has stored is seen at once, by its deletes, too
    served.db["orders"].append([{"id": 8, "status": "paid"}])
    served.db["orders"].delete([9])
    assert orders.get(8) == {"id": 8, "status": "paid"}
    assert orders.get(9) is None
    assert orders.explain(9).state == "deleted"


def test_a_row_comes_as_it_does_in_the_same_process(served: Served, db: Database) -> None:
    columns = {
        "id": "string",
        "flag": "bool",
        "amount": "decimal(12,2)",
        "share": "float64",
        "day": "date",
        "at": "timestamp",
        "local": "timestamp_ntz",
        "body": "binary",
        "tags": "list<string>",
        "more": "struct<a: int64, b: list<int64>>",
        "map": "map<string, int64>",
    }
    every = db.create_table("every", columns, key="id", partitions=2)
    row = {
        "id": "größer",
        "flag": True,
        "amount": Decimal("1.20"),
        "share": 0.1,
        "day": date(2026, 11, 17),
        "at": datetime(2026, 11, 17, 1, 2, 3, 4, tzinfo=UTC),
        "local": datetime(2026, 11, 17, 1, 2, 3, 4),  # noqa: DTZ001
        "body": b"\x00\xff",
        "tags": ["a", None],
        "more": {"a": 1, "b": [1, 2]},
        "map": {"k": 1},
    }
    every.append([row, {"id": "bare"}])
    here = served.db["every"]
    for key in ("größer", "bare"):
        assert every.get(key) == here.get(key)
        assert every.get_many([key]) == here.get_many([key])


@pytest.mark.slow
def test_keys_of_several_columns_and_of_a_ledger_are_found(served: Served, db: Database) -> None:
    lines = db.create_table(
        "lines", {"order": "int64", "line": "string", "n": "int64"}, key=["order", "line"]
    )
    lines.append([{"order": n, "line": "a", "n": n} for n in range(20)])
    db.advance_watermark("now")
    assert lines.compact(engine="local").state == "done"
    lines.append([{"order": 3, "line": "a", "n": 33}])
    assert lines.get((3, "a")) == {"order": 3, "line": "a", "n": 33}
    assert lines.get((4, "a")) == {"order": 4, "line": "a", "n": 4}
    assert lines.get((4, "b")) is None
    found = lines.get_many([(5, "a"), (3, "a"), (3, "x")])
    assert [row and row["n"] for row in found] == [5, 33, None]
