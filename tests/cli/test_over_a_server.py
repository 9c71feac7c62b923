"""Every command on tables works over a server as it does on a directory: `--node ADDR`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from cli.shop import ORDERS
from eventually import eventually
from lowmark.cli.app import app
from server.world import Served

_runner = CliRunner()


@pytest.fixture(params=["tcp", "unix"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    address = "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/socket"
    with Served(tmp_path / "data", address) as one:
        yield one


def run(served: Served, *words: str, stdin: str | None = None, code: int = 0) -> str:
    done = _runner.invoke(app, [*words, "--node", served.address], input=stdin)
    assert done.exit_code == code, (words, done.output, done.exception)
    return done.stdout if code == 0 else done.stderr


def told(served: Served, *words: str, stdin: str | None = None) -> Any:
    return json.loads(run(served, *words, "--json", stdin=stdin))


@pytest.mark.slow
def test_commands_work_one_after_another(served: Served) -> None:
    # given a table that was made, filled and changed over a server
    columns = ("--columns", ORDERS, "--key", "id", "--partitions", "2")
    run(served, "table", "create", "orders", *columns)
    rows = "id,status,amount\no-1,new,9.5\no-2,new,1\no-3,new,2\n"
    run(served, "append", "orders", "-", stdin=rows)
    run(served, "append", "orders", "-", stdin="id,status,amount\no-1,paid,9.5\n")
    run(served, "delete", "orders", "o-3")
    # then it is seen by every command
    assert told(served, "get", "orders", "o-1")["status"] == "paid"
    assert (
        "deleted" in _runner.invoke(app, ["get", "orders", "o-3", "--node", served.address]).stdout
    )
    lines = run(served, "read", "orders", "--json").splitlines()
    assert len(lines) == 5
    assert len(run(served, "read", "orders", "--as-of", "now", "--json").splitlines()) == 2
    assert [one["table"] for one in told(served, "table", "list")] == ["orders"]
    assert "status" in run(served, "table", "show", "orders")
    run(served, "cursor", "create", "orders", "billing")
    assert "billing" in run(served, "cursor", "list", "orders")
    assert "billing" in run(served, "explain", "orders")
    run(served, "cursor", "delete", "orders", "billing")
    assert "watermark" in run(served, "watermark")
    run(served, "watermark", "advance", "--to", "now")
    assert told(served, "compact", "orders", "--engine", "local")["state"] == "done"
    assert told(served, "ledger", "show", "orders")
    run(served, "ledger", "verify", "orders")
    assert told(served, "runs", "list")[0]["state"] == "done"
    assert "orders" in run(served, "tide", "orders")
    run(served, "table", "alter", "orders", "--add", "note string")
    run(served, "table", "drop", "orders", "--yes")
    run(served, "zone", "create", "near", "--scale-down", "never")
    run(served, "zone", "alter", "near", "--scale-up", "1min")
    near = told(served, "zone", "show", "near")
    assert (near["scale_up_ms"], near["scale_down_ms"]) == (60_000, None)
    run(served, "zone", "rename", "near", "far")
    run(served, "zone", "default", "far")
    assert [one["zone"] for one in told(served, "zone", "list")] == ["default", "far"]
    run(served, "zone", "drop", "default")
    assert told(served, "table", "list") == []


def test_wrong_use_is_told(served: Served, tmp_path: Path) -> None:
    said = run(served, "table", "list", "--data", str(tmp_path / "data"), code=2)
    assert "--node and --data can't be given together" in said
    done = _runner.invoke(app, ["table", "list", "--node", "nonsense"])
    assert (done.exit_code, "host:port" in done.stderr) == (2, True)


def test_every_command_that_opens_a_database_takes_a_node() -> None:
    def options(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
        yield path, {name for one in command.params for name in getattr(one, "opts", ())}
        for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
            yield from options(command.get_command(None, name), *path, name)

    offered = {path: names for path, names in options(get_command(app)) if "--data" in names}
    alone = {path for path, names in offered.items() if "--node" not in names}
    assert len(offered) > 25
    # a directory's own, the directory of a stopped node, and no directory at all
    assert alone == {("serve",), ("meta", "reset"), ("token", "reset"), ("log", "dump")}


# -- which database is meant ----------------------------------------------------------------------


@pytest.fixture
def on_tcp(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", "127.0.0.1:0") as one:
        yield one


@pytest.mark.slow
def test_the_environment_names_the_server_for_every_command(
    on_tcp: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*words: str, code: int = 0) -> str:
        done = _runner.invoke(app, list(words))
        assert done.exit_code == code, (words, done.output, done.exception)
        return done.stdout if code == 0 else done.stderr

    monkeypatch.delenv("LOWMARK_DATA", raising=False)
    # given a server, and another database in a directory
    other = str(tmp_path / "other")
    said("table", "create", "elsewhere", "--columns", "id int64", "--data", other)
    monkeypatch.setenv("LOWMARK_NODE", on_tcp.address)
    # then a table's commands find it by the variable
    said("table", "create", "orders", "--columns", ORDERS, "--key", "id")
    assert "orders" in said("table", "list")
    for words in (("explain", "orders"), ("tide", "orders"), ("watermark",), ("runs",)):
        said(*words)
    # and an option of either kind comes before it
    assert "elsewhere" in said("table", "list", "--data", other)
    monkeypatch.setenv("LOWMARK_NODE", "127.0.0.1:1")
    assert "orders" in said("table", "list", "--node", on_tcp.address)
    # and of two variables none comes before the other
    monkeypatch.setenv("LOWMARK_DATA", other)
    assert "--node ADDR or --data DIR" in said("table", "list", code=2)
    assert "elsewhere" in said("table", "list", "--data", other)
    # and what is for a directory alone says which variable stands against it
    monkeypatch.delenv("LOWMARK_DATA")
    assert "$LOWMARK_NODE names a server" in said("table", "list", "--read-only", code=2)
    # and with neither, both ways are named
    monkeypatch.delenv("LOWMARK_NODE")
    nowhere = said("table", "list", code=2)
    assert "--node" in nowhere
    assert "LOWMARK_NODE" in nowhere


@pytest.mark.slow
def test_a_directory_that_the_environment_names_is_asked_by_commands_on_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOWMARK_NODE", raising=False)
    monkeypatch.setenv("LOWMARK_DATA", str(tmp_path / "shop"))
    # given commands for the catalog in a file, and a database in a directory
    tables = tmp_path / "tables.json"
    column = {"name": "id", "type": "int64", "required": True}
    created = {"create_table": {"name": "orders", "columns": [column], "key": ["id"]}}
    tables.write_text(json.dumps(created))
    _runner.invoke(app, ["table", "create", "first", "--columns", "id int64"])
    # when they are applied to the directory
    done = _runner.invoke(app, ["catalog", "apply", str(tables), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["applied"]) == (0, [True])
    # then the table is there, and the catalog's log and the status are those of the directory
    assert "orders" in _runner.invoke(app, ["table", "list"]).stdout
    log = _runner.invoke(app, ["catalog", "log", "--json"])
    assert json.loads(log.stdout)[-1]["version"] == json.loads(done.stdout)["version"]
    status = _runner.invoke(app, ["status", "--json"])
    assert {one["name"] for one in json.loads(status.stdout)["tables"]} == {"first", "orders"}

    # and a time after its end is one that it can't tell of, as if it was named by an option
    def refused() -> bool:
        now = datetime.now(UTC).isoformat()
        return "can't tell" in _runner.invoke(app, ["catalog", "show", "--at", now]).stderr

    eventually(refused)
