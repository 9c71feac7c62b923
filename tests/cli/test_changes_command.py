"""`lowmark changes`: inserts, updates and deletes between two places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path / "shop").with_orders(partitions=2)
    for rows in ("o-1,new\no-2,new\n", "o-1,paid\n"):
        shop.run("append", "orders", "-", stdin=f"id,status\n{rows}")
    shop.run("delete", "orders", "o-2")
    return shop


def changes(shop: Shop, *words: str) -> list[Any]:
    return [json.loads(line) for line in shop.run("changes", *words, "--json").splitlines()]


@pytest.mark.slow
def test_changes_are_lines_for_programs_and_a_table_for_people(shop: Shop) -> None:
    # when a program asks
    rows = changes(shop, "orders", "--preimages", "--columns", "id,status")
    # then it gets each step, with what was there
    found = sorted((row["id"], row["_commit_version"], row["_change_type"]) for row in rows)
    kinds = {key: [kind for id_, _, kind in found if id_ == key] for key in ("o-1", "o-2")}
    assert kinds == {
        "o-1": ["insert", "update_postimage", "update_preimage"],
        "o-2": ["insert", "delete"],
    }
    assert {row["status"] for row in rows if row["_change_type"] == "delete"} == {"new"}
    # and people get a table
    text = shop.run("changes", "orders", "--net")
    assert "insert" in text
    assert "o-2" not in text


@pytest.mark.slow
def test_a_version_and_the_position_are_places_to_begin(shop: Shop) -> None:
    # given the last version that there is, and where a feed ended
    last = max(row["_commit_version"] for row in changes(shop, "orders"))
    done = shop.invoke("changes", "orders")
    [position] = [line for line in done.stderr.splitlines() if line.startswith("position: ")]
    # then a feed that begins there has what came with it or after it
    assert [row["id"] for row in changes(shop, "orders", "--start", str(last))] == ["o-2"]
    shop.run("append", "orders", "-", stdin="id,status\no-3,new\n")
    place = position.removeprefix("position: ")
    assert [row["id"] for row in changes(shop, "orders", "--start", place)] == ["o-3"]
    assert [row["id"] for row in changes(shop, "orders", "--start", str(last + 1))] == ["o-3"]


@pytest.mark.slow
def test_people_see_the_first_hundred(shop: Shop) -> None:
    rows = "".join(f"p-{number},new\n" for number in range(150))
    shop.run("append", "orders", "-", stdin=f"id,status\n{rows}")
    done = shop.invoke("changes", "orders")
    assert "these are the first 100 rows; for more: --all" in done.stderr
    assert done.stdout.count("p-") < 101
    assert shop.run("changes", "orders", "--all").count("p-") == 150


@pytest.mark.slow
def test_what_is_gone_or_wrong_is_refused(shop: Shop) -> None:
    shop.run("watermark", "advance", "--to", "now")
    shop.run("compact", "orders", "--engine", "local")
    assert "are no longer known" in shop.refused("changes", "orders", "--start", "0:0,1:0")
    assert changes(shop, "orders") == []
    assert "--on-gap" in shop.refused("changes", "orders", "--on-gap", "maybe", code=2)
    assert "no partition 7" in shop.refused("changes", "orders", "--partition", "7")
    assert "no column" in shop.refused("changes", "orders", "--columns", ",", code=2)
