"""`lowmark history`: what became of a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path / "shop").with_orders()
    shop.run("append", "orders", "-", stdin="id,status\no-1,new\no-1,paid\n")
    shop.run("table", "alter", "orders", "--add", "note string")
    return shop


@pytest.mark.slow
def test_changes_are_a_table_for_people_and_a_list_for_programs(shop: Shop) -> None:
    # when a program asks
    lines = shop.json("history", "orders")
    # then it has all fields of each line, the newest first
    assert [line["operation"] for line in lines] == ["add columns", "create table"]
    assert [line["schema_version"] for line in lines] == [2, 1]
    assert set(lines[0]) == {
        *("at", "kind", "operation", "by", "what", "schema_version", "catalog_version", "run"),
        *("rows", "bytes", "offsets"),
    }
    # and people get the same in words
    text = shop.run("history", "orders")
    for line in lines:
        assert all(line[name] in text for name in ("at", "operation", "by", "what"))


@pytest.mark.slow
def test_a_run_comes_with_its_process_and_what_it_has_cut(shop: Shop) -> None:
    shop.run("watermark", "advance", "--to", "now")
    shop.run("compact", "orders", "--engine", "local")
    [run] = shop.json("runs", "orders")
    found = {line["operation"]: line for line in shop.json("history", "orders") if line["run"]}
    assert set(found) == {"compact", "trim"}
    assert {(line["run"], line["at"], line["by"]) for line in found.values()} == {
        (run["run"], run["ended"], run["by"])
    }
    assert found["trim"]["offsets"] == {"0": 2}


def test_a_table_that_is_not_there_is_refused(shop: Shop) -> None:
    assert "order" in shop.refused("history", "order")
