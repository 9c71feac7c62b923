"""`lowmark token`: against a node in this process, and directories."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lowmark.cli.app import app
from lowmark.server.on_node import attach
from lowmark.tokens import Secret
from node.running import Running

runner = CliRunner()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("tokens") / "n1"
    with Running(data, name="n1") as running:
        running.node.loop.call_from_thread(lambda: attach(running.node, str(data)))
        yield running.endpoint


def run(*words: str, code: int = 0) -> Any:
    result = runner.invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result


def test_a_token_is_made_listed_and_revoked(address: str) -> None:
    made = json.loads(
        run("token", "create", "job", "--expires", "30d", "--json", "--node", address).stdout
    )
    assert made["name"] == "job"
    Secret(made["token"])
    listed = json.loads(run("token", "list", "--json", "--node", address).stdout)
    assert [one["name"] for one in listed] == ["admin", "job"]
    assert listed[1]["state"] == "in force"
    assert listed[1]["expires"] == made["expires"]
    shown = run("token", "list", "--node", address).stdout
    assert made["token"] not in shown + json.dumps(listed)
    assert "job" in shown
    refused = run("token", "create", "job", "--node", address, code=1)
    assert "hint: Choose another name, or revoke it first" in refused.output
    assert run("token", "revoke", "job", "--node", address).stdout == "token job is revoked\n"
    revoked = json.loads(run("token", "revoke", "job", "--json", "--node", address).stdout)
    assert revoked["state"] == "revoked"
    assert (
        "there is no token nobody"
        in run("token", "revoke", "nobody", "--node", address, code=1).output
    )


def test_what_is_printed_is_the_token_alone(address: str, caplog: pytest.LogCaptureFixture) -> None:
    # so that a script can put it into a file; and no log has it
    with caplog.at_level(logging.DEBUG):
        result = run("token", "create", "script", "--node", address)
    token = result.stdout.strip()
    Secret(token)
    assert result.stdout == f"{token}\n"
    assert token not in caplog.text + result.stderr


def test_another_token_of_an_administrator_is_made_in_a_directory(tmp_path: Path) -> None:
    data = tmp_path / "n1"
    with Running(data, name="n1"):
        refused = run("token", "reset", "--data", str(data), code=1)
        assert "is open in" in refused.output
    told = run("token", "reset", "--data", str(data)).stdout
    assert told == f"start the node: its new token is then in {data / 'admin.token'}\n"
    said = json.loads(run("token", "reset", "--data", str(data), "--json").stdout)
    assert said == {"data": str(data), "file": str(data / "admin.token")}
    assert Secret((data / "admin.token.new").read_text().strip()).reveal() not in told
    assert run("token", "reset", "--data", str(tmp_path / "none"), code=1)
