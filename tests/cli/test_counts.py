"""Counts in what commands say: one row is not "1 rows"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lowmark
from cli.history import settle
from cli.shop import Shop
from lowmark.formatting import counted

MANY_OF_ONE = re.compile(
    r"(?<![\d,.:-])1 (live )?(rows|batches|partitions|columns|changes|values|entries|deletes|keys"
    r"|files|cursors|merges|segments|runs|tables|were|are)\b"
)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A table with one of everything."""
    shop = Shop(tmp_path / "shop")
    shop.run("table", "create", "t", "--columns", "id string", "--key", "id", "--partitions", "1")
    return shop


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (12_345, "12,345 rows")]
)
def test_a_count_agrees_with_its_noun(number: int, words: str) -> None:
    assert counted(number, "row") == words


def test_no_command_speaks_of_1_rows(shop: Shop, tmp_path: Path) -> None:
    # given one row, in one partition, with one cursor that has not read it
    said = [
        shop.invoke("append", "t", "-", stdin="id\na\n"),
        shop.invoke("cursor", "create", "t", "c", "--max-lag-rows", "1"),
    ]
    # when each command speaks of it
    said += [
        shop.invoke("table", "list"),
        shop.invoke("table", "show", "t"),
        shop.invoke("read", "t", "--csv", str(tmp_path / "t.csv")),
        shop.invoke("explain", "t"),
        shop.invoke("tide", "t"),
        shop.invoke("cursor", "list", "t"),
        shop.invoke("get", "t", "a", "b"),
        shop.invoke("append", "t", "-", stdin='{"id": "b"}\n{"id": 7}\n'),
        shop.invoke("table", "drop", "t"),
        shop.invoke("status"),
        shop.invoke("delete", "t", "a"),
    ]
    assert all(isinstance(one.exception, SystemExit | None) for one in said)
    # then none of them takes it for several
    found = [one.output for one in said if MANY_OF_ONE.search(one.output)]
    assert found == []
    # and those that count rows were among them
    assert sum("1 row" in one.output for one in said) >= 6


def test_what_is_explained_in_python_does_not_speak_of_1_rows(shop: Shop) -> None:
    shop.run("append", "t", "-", stdin="id\na\n")
    with lowmark.open(shop.data) as database:
        table = database.table("t")
        assert "table t: 1 row," in str(table.explain())
        assert repr(table) == "<lowmark.Table t, 1 partition>"


def test_status_says_that_it_counts_the_backlog_alone(shop: Shop) -> None:
    # given two rows in a ledger, and one in the backlog
    shop.run("append", "t", "-", stdin="id\na\nb\n")
    settle(shop)
    shop.run("compact", "t", "--engine", "local")
    shop.run("append", "t", "-", stdin="id\nc\n")
    said = shop.run("status")
    head, row = [line.split() for line in said.splitlines() if line.startswith(("table ", "t "))]
    assert " ".join(head) == "table partitions state here backlog rows backlog bytes cursors"
    assert row[:5] == ["t", "1", "-", "1", "1"]  # of a directory no state is known
