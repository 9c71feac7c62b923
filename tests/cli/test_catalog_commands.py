"""`lowmark catalog`: replayed here from what a node, or a directory, has of the update log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lowmark.catalog import (
    AddColumns,
    CreateTable,
    DropTable,
    NewColumn,
    Plain,
)
from lowmark.cli.app import app
from lowmark.cli.catalog import parse_time
from lowmark.cli.session import WrongUse
from node.running import Running

runner = CliRunner()


def make(running: Running) -> None:
    """Version 1 is the first one there is; 2, 3 and 4 make, change and drop tables."""
    node = running.node

    assert node.catalogs is not None
    catalogs = node.catalogs
    orders = CreateTable(
        name="orders", columns=(NewColumn(name="id", type=Plain.INT64, required=True),), key=("id",)
    )
    extra = CreateTable(name="extra", columns=(NewColumn(name="id", type=Plain.INT64),))
    column = AddColumns(table="orders", columns=(NewColumn(name="note", type=Plain.STRING),))
    for commands in ([orders, extra], [column], [DropTable(name="extra")]):
        node.bridge.ask(lambda: catalogs.execute(commands), timeout_s=10)  # noqa: B023


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    with Running(folder, name="n1") as running:
        make(running)
    return folder


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Running(tmp_path_factory.mktemp("running"), name="n1") as running:
        make(running)
        yield running.endpoint


@pytest.fixture(params=["--node", "--data"])
def where(request: pytest.FixtureRequest, endpoint: str, stopped: Path) -> list[str]:
    return [request.param, endpoint if request.param == "--node" else str(stopped)]


def run(*words: str, code: int = 0) -> str:
    result = runner.invoke(app, ["catalog", *words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.slow
def test_the_log_says_when_who_and_what(where: list[str]) -> None:
    rows = json.loads(run("log", *where, "--json"))
    assert [row["version"] for row in rows] == [1, 2, 3, 4]
    assert {row["author"] for row in rows} == {"n1"}
    assert "created table public.orders" in rows[1]["changes"][0]
    assert len(rows[1]["changes"]) == 2
    assert all(row["active_from"] >= row["written"] for row in rows)
    shown = run("log", "--limit", "1", *where)
    assert "dropped table public.extra" in shown
    assert "created" not in shown


def test_a_version_is_shown_by_number_or_by_time(where: list[str]) -> None:
    rows = json.loads(run("log", *where, "--json"))

    def tables(*words: str) -> list[Any]:
        shown = json.loads(run("show", *words, *where, "--json"))
        return [(table["name"], len(table["columns"])) for table in shown["tables"]]

    assert tables() == [("orders", 2)]
    assert tables("--version", "2") == [("orders", 1), ("extra", 1)]
    assert tables("--at", rows[3]["active_from"]) == [("orders", 2)]
    assert tables("--at", "1999-12-31") == []
    shown = run("show", "--version", "3", *where)
    assert "note" in shown
    assert "default zone" in shown


@pytest.mark.slow
def test_two_versions_are_compared(where: list[str]) -> None:
    found = json.loads(run("diff", "2", "4", *where, "--json"))
    assert [(each["name"], each["change"]) for each in found] == [
        ("public.orders", "changed"),
        ("public.extra", "dropped"),
    ]
    assert "dropped table public.extra" in run("diff", "2", "4", *where)
    assert "created table public.extra" in run("diff", "4", "2", *where)
    assert "are the same" in run("diff", "4", "4", *where)


def test_what_is_not_there_is_refused(where: list[str]) -> None:
    assert "9" in run("show", "--version", "9", *where, code=1)
    assert "9" in run("diff", "1", "9", *where, code=1)
    run("show", "--version", "1", "--at", "2026-01-01", *where, code=2)
    run("show", "--at", "yesterday", *where, code=2)


def test_a_time_is_read_as_utc_and_to_the_end_of_its_millisecond() -> None:
    assert parse_time("1970-01-01") == (1 << 16) - 1
    assert parse_time("1970-01-01T00:00:01.5Z") == (1_501 << 16) - 1
    assert parse_time("1970-01-01T01:00:00+01:00") == (1 << 16) - 1
    for wrong in ("", "now", "1969-12-31"):
        with pytest.raises(WrongUse):
            parse_time(wrong)


@pytest.fixture
def own_endpoint(tmp_path: Path) -> Iterator[str]:
    """Of a node whose catalog a test may change."""
    with Running(tmp_path / "data", name="n1") as running:
        yield running.endpoint


@pytest.mark.slow
def test_commands_in_a_file_are_carried_out_together_or_not_at_all(
    own_endpoint: str, tmp_path: Path
) -> None:
    # given two commands in a file
    file = tmp_path / "tables.json"
    file.write_text(
        json.dumps(
            [
                {"create_schema": {"name": "shop"}},
                {
                    "create_table": {
                        "schema": "shop",
                        "name": "carts",
                        "columns": [{"name": "id", "type": "uuid", "required": True}],
                        "key": ["id"],
                        "if_not_exists": True,
                    }
                },
            ]
        )
    )
    before = json.loads(run("log", "--node", own_endpoint, "--json"))[-1]["version"]
    # when they are applied
    done = json.loads(run("apply", str(file), "--node", own_endpoint, "--json"))
    # then they made one version
    assert (done["version"], done["applied"]) == (before + 1, [True, True])
    # and a list in which one can't be done changes nothing, and says which and why
    refused = runner.invoke(app, ["catalog", "apply", str(file), "--node", own_endpoint])
    assert refused.exit_code == 1
    assert json.loads(run("log", "--node", own_endpoint, "--json"))[-1]["version"] == before + 1
    # and what is there already need not be made
    file.write_text('{"create_schema": {"name": "shop", "if_not_exists": true}}')
    assert "nothing to do" in run("apply", str(file), "--node", own_endpoint)
    file.write_text('{"drop_schema": {"name": "shop", "cascade": true}}')
    assert "is in force" in run("apply", str(file), "--node", own_endpoint)


@pytest.mark.parametrize(
    ("text", "code"), [("{", 2), ('{"make": {}}', 1), ('{"drop_table": {}}', 1), ("[3]", 1)]
)
def test_a_file_that_holds_no_commands_is_refused_without_asking_a_node(
    text: str, code: int, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(text)
    run("apply", str(file), "--node", "127.0.0.1:1", code=code)


def test_a_time_that_is_yet_to_come_has_no_version(where: list[str]) -> None:
    run("show", "--at", "2999-01-01", *where, code=2)
