"""Counts in what commands say: one row is not "1 rows"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lowmark
from cli.history import settle
from cli.shop import Shop
from lowmark.formatting import counted, verb

MANY_OF_ONE = re.compile(
    r"(?<![\d,.:-])1 (live )?(rows|batches|partitions|columns|changes|values|entries|deletes|keys"
    r"|files|cursors|merges|segments|runs|tables|were|are)\b"
    r"|(?<![\d,.:-])1 (live )?(row|entry|partition|version|node) (are|were|have|wait)\b"
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


@pytest.mark.parametrize("of_many", ["are", "were", "have", "wait"])
def test_a_verb_agrees_with_its_count(of_many: str) -> None:
    of_one = {"are": "is", "were": "was", "have": "has", "wait": "waits"}[of_many]
    assert [verb(number, of_many) for number in (0, 1, 2)] == [of_many, of_one, of_many]


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_became_of_1_row_is_told_of_1_row(shop: Shop) -> None:
    # given a run over one row
    shop.run("append", "t", "-", stdin="id\na\n")
    settle(shop)
    shop.run("compact", "t", "--engine", "local")
    # then its line says that one is left, and one row that waits for a commit waits
    said = shop.run("history", "t")
    assert "read 1 row, 1 row is left" in said
    with lowmark.open(shop.data) as database:
        stage = database.table("t").stage()
        stage.append([{"id": "b"}])
        why = [holder.why for holder in database.table("t").explain().holders]
    [said] = why
    assert said == (
        "1 row waits for a commit, and is dropped after a day without, when all partitions have"
        " answered"
    )


@pytest.mark.slow
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
