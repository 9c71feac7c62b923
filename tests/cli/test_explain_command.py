"""`lowmark explain`: what is kept of a table and for whom; what became of a key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lowmark
from cli.history import KEYS, ROWS, copied, fill, settle, settled
from cli.shop import Shop
from lowmark.cli.get import explain

TABLE = {
    "table",
    "rows",
    "bytes",
    "kept_because",
    "ledger_rows",
    "ledger_deletes",
    "ledger_bytes",
    "partitions",
    "holders",
    "delete_holders",
}
PARTITION = {
    "partition",
    "start",
    "end",
    "rows",
    "batches",
    "bytes",
    "horizon",
    "closed",
    "ledger",
}
LEDGER = {"epoch", "horizon", "deletes_below", "rows", "deletes", "bytes", "problem"}
DELETE_HOLDER = {"kind", "name", "partition", "offset", "age_ms", "why"}
KEY = {"key", "state", "source", "in_ledger", "partition", "offset", "time", "row"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Compacted; one reader wants every change, another one every delete."""
    shop = settled(tmp_path_factory.mktemp("made") / "shop")
    shop.run("delete", "orders", "o-3")
    shop.run("cursor", "create", "orders", "billing", "--start", "0:100,1:0")
    shop.run("cursor", "create", "orders", "search", "--kind", "compacted")
    settle(shop)
    shop.run("compact", "orders", "--engine", "local")
    return shop


@pytest.fixture
def shop(made: Shop, tmp_path: Path) -> Shop:
    return copied(made, tmp_path / "shop")


@pytest.mark.slow
def test_programs_get_every_documented_field_and_no_other(made: Shop) -> None:
    found = made.json("explain", "orders")
    assert set(found) == TABLE
    for one in found["partitions"]:
        assert set(one) == PARTITION
        assert set(one["ledger"]) == LEDGER
    assert {frozenset(one) for one in found["holders"]} == {
        frozenset(DELETE_HOLDER | {"keeps_bytes"})
    }
    assert {frozenset(one) for one in found["delete_holders"]} == {frozenset(DELETE_HOLDER)}
    assert set(made.json("explain", "orders", "--key", "o-1")) == KEY
    words = set(re.findall(r"\w+", explain.__doc__ or ""))
    assert TABLE | PARTITION | LEDGER | DELETE_HOLDER | KEY | {"keeps_bytes"} <= words


@pytest.mark.slow
def test_whoever_holds_the_backlog_or_deletes_is_named(made: Shop) -> None:
    found = made.json("explain", "orders")
    # then the reader of every change holds the backlog, those who keep most first
    holders = [(one["name"], one["partition"], one["offset"]) for one in found["holders"]]
    assert sorted(holders) == [("billing", 0, 100), ("billing", 1, 0)]
    kept = [one["keeps_bytes"] for one in found["holders"]]
    assert kept == sorted(kept, reverse=True)
    # and both hold deletes
    assert {one["name"] for one in found["delete_holders"]} == {"billing", "search"}
    # and what nobody holds is gone from the backlog
    assert (found["ledger_rows"], found["ledger_deletes"]) == (KEYS - 1, 1)
    assert found["rows"] == ROWS + 1 - 100
    # and people are told the same
    said = made.run("explain", "orders")
    assert f"ledgers: {KEYS - 1:,} rows" in said
    backlog, _, deletes = said.partition("holders of deletes")
    assert "billing" in backlog
    assert "search" not in backlog
    assert "search" in deletes


@pytest.mark.slow
def test_a_table_is_shown_with_the_rows_of_its_ledgers(shop: Shop) -> None:
    # given a ledger with a delete in it, most of the backlog behind it, and one change after it
    fill(shop, 1, 1)
    found = shop.json("table", "show", "orders")
    # then rows are those of the ledger, without the delete, and the change
    assert (found["ledger_rows"], found["ledger_deletes"]) == (KEYS - 1, 1)
    assert (found["rows"], found["backlog_rows"]) == (KEYS, ROWS + 2 - 100)
    assert found["bytes"] == found["backlog_bytes"] + found["ledger_bytes"]
    assert sum(one["ledger_rows"] for one in found["partitions"]) == KEYS - 1
    # and the same is listed, and told to people
    [row] = shop.json("table", "list")
    assert (row["rows"], row["bytes"]) == (found["rows"], found["bytes"])
    assert f"{KEYS:,}: {KEYS - 1:,} in ledgers" in shop.run("table", "show", "orders")
    # and no count of live rows has the delete in it
    ledgers = shop.json("ledger", "show", "orders")
    assert sum(one["live_rows"] for one in ledgers) == KEYS - 1
    assert sum(one["deletes"] for one in ledgers) == 1
    assert shop.json("tide", "orders")["ledger_rows"] == KEYS - 1
    last = shop.json("runs", "orders")[0]
    assert (last["rows_live"], last["deletes"]) == (KEYS - 1, 1)


@pytest.mark.slow
def test_before_a_compaction_there_is_no_ledger(tmp_path: Path) -> None:
    shop = settled(tmp_path / "shop", rows=10, keys=5)
    assert "There is no ledger: nothing was compacted yet." in shop.run("explain", "orders")
    assert "Nothing holds any of it." in shop.run("explain", "orders")
    assert [one["ledger"] for one in shop.json("explain", "orders")["partitions"]] == [None, None]


@pytest.mark.slow
def test_a_row_that_the_backlog_keeps_for_a_reader_is_found_in_the_ledger_too(made: Shop) -> None:
    # given rows that are compacted, and one reader that keeps the backlog from offset 100 on
    found = {key: made.json("explain", "orders", "--key", key) for key in ("o-1", "o-3", "o-100")}
    # then the ledger has them, also where they were found in the backlog
    places = {key: (one["source"], one["in_ledger"]) for key, one in found.items()}
    assert places == dict.fromkeys(found, ("backlog", True))
    assert "ledger and backlog" in made.run("explain", "orders", "--key", "o-1")
    with lowmark.open(made.data) as db:
        said = str(db.table("orders").explain("o-1"))
    assert "in the ledger and the backlog" in said


@pytest.mark.slow
def test_a_key_is_found_where_its_last_change_is(shop: Shop) -> None:
    # given a backlog that nobody holds any more, and that is cut; and one change after that
    shop.run("cursor", "delete", "orders", "billing")
    shop.run("compact", "orders", "--engine", "local")
    fill(shop, 1, status="later")
    # then each key is where its last change is
    states = {}
    for key in ("o-0", "o-1", "o-3", "o-nobody"):
        found = shop.json("explain", "orders", "--key", key)
        states[key] = (found["state"], found["source"])
    assert states == {
        "o-0": ("live", "backlog"),
        "o-1": ("live", "ledger"),
        "o-3": ("deleted", "ledger"),
        "o-nobody": ("unknown", None),
    }
    assert "ledger" in shop.run("explain", "orders", "--key", "o-1")
    assert "all cursors and readers have passed the delete" in shop.run(
        "explain", "orders", "--key", "o-nobody"
    )
    # and once nobody has to be told of the delete, it goes
    shop.run("cursor", "delete", "orders", "search")
    settle(shop)
    assert shop.json("compact", "orders", "--engine", "local", "--rewrite")["deletes_dropped"] == 1
    assert shop.json("explain", "orders", "--key", "o-3")["state"] == "unknown"


@pytest.mark.slow
def test_a_ledger_that_can_not_be_read_is_told_of(shop: Shop) -> None:
    for path in (shop.data / "ledgers").glob("*/1/*.json"):
        path.unlink()
    found = shop.json("explain", "orders")
    problems = [one["ledger"]["problem"] for one in found["partitions"]]
    assert problems[0] == ""
    assert problems[1] != ""
    assert f"warning: partition 1: {problems[1]}" in shop.run("explain", "orders")
