"""`lowmark catalog compact`, `lowmark catalog explain`, and rounds in `lowmark catalog log`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.shop import Shop

ROUND = {
    "number",
    "trigger",
    "node",
    "began_ms",
    "took_us",
    "nodes",
    "groups",
    "earliest",
    "version",
    "present",
    "latest",
    "dry_run",
    "holders",
    "held",
    "error",
    "cut",
}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A table that was altered, in a database that keeps nothing for reads as of a time."""
    shop = Shop(tmp_path / "shop")
    shop.run("table", "create", "orders", "--columns", "id int64", "--key", "id")
    shop.run("watermark", "history", "0 s")
    shop.run("table", "alter", "orders", "--add", "note string")
    return shop


@pytest.mark.slow
def test_history_is_explained_then_cut_then_listed(shop: Shop) -> None:
    # given what a dry run says
    shop.run("watermark", "advance")
    would = shop.json("catalog", "compact", "--dry-run")
    assert would.keys() == ROUND
    assert would["dry_run"]
    # when it is cut
    made = shop.json("catalog", "compact")
    assert (made["version"], made["latest"], made["held"]) == (3, 3, 0)
    # then the explanation says so, in both ways to ask for it
    found = shop.json("catalog", "explain")
    assert found.keys() == {"earliest", "latest", "would_cut", "versions", "holders", "held"}
    assert found == shop.json("explain", "catalog")
    assert found["versions"] == [{"first": 3, "last": 3, "present": True, "needed_by": []}]
    # and the round is in the log
    assert shop.json("catalog", "log", "--rounds")[-1]["version"] == 3
    assert " cut, from " in shop.run("catalog", "log")
    assert "the present" in shop.run("catalog", "explain")
    assert "nothing was cut" in shop.run("catalog", "compact")


@pytest.mark.slow
def test_what_holds_history_is_said_with_what_to_do(shop: Shop) -> None:
    shop.run("watermark", "history", "1 day")
    text = shop.run("catalog", "compact")
    assert "nothing was cut" in text
    assert "the low watermark" in text
    assert "lowmark watermark" in text


@pytest.mark.slow
def test_a_table_of_that_name_is_explained_in_place_of_the_catalog(shop: Shop) -> None:
    shop.run("table", "create", "catalog", "--columns", "id int64", "--key", "id")
    assert shop.json("explain", "catalog")["table"] == "catalog"
    assert "versions" in shop.json("catalog", "explain")
