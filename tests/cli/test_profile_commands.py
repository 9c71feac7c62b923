"""`lowmark --profile NAME …`, and `lowmark profile`: list, show."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lowmark
from lowmark.cli.app import app
from lowmark.tokens import drawn
from server.world import COLUMNS, Served

_runner = CliRunner()


def run(*words: str, code: int = 0) -> str:
    done = _runner.invoke(app, words)
    assert done.exit_code == code, (words, done.output, done.exception)
    return done.stdout if code == 0 else done.stderr


def found(*words: str) -> Any:
    return json.loads(run(*words, "--json"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("profiles"), tokens=True) as served:
        served.db.create_table("far", COLUMNS)
        yield served


@pytest.fixture
def file(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Profiles of a server that asks for a token, and of a directory."""
    for name in ("NODE", "DATA", "CA", "TOKEN", "TOKEN_FILE", "PROFILE"):
        monkeypatch.delenv(f"LOWMARK_{name}", raising=False)
    token = served.db.tokens.create(tmp_path.name[:60]).token
    (tmp_path / "far.token").touch(0o600)
    (tmp_path / "far.token").write_text(token)
    with lowmark.open(tmp_path / "near") as db:
        db.create_table("near", COLUMNS)
    path = tmp_path / "config.toml"
    path.write_text(
        f"""
        [profile.far]
        node = "{served.address}"
        token_file = "far.token"
        [profile.near]
        data = "near"
        [profile.away]
        node = ["127.0.0.1:1", "127.0.0.1:2"]
        ca = "nowhere.pem"
        token = "{drawn().reveal()}"
        """
    )
    path.chmod(0o600)
    monkeypatch.setenv("LOWMARK_CONFIG", str(path))
    return path


def tables(*words: str) -> list[str]:
    return [one["table"] for one in found(*words, "table", "list")]


@pytest.mark.slow
def test_a_command_works_on_the_database_of_its_profile(
    file: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a server, a directory, whichever command asks
    assert tables("--profile", "far") == ["far"]
    assert tables("--profile", "near") == ["near"]
    assert found("--profile", "far", "status")["nodes"]
    assert found("--profile", "far", "node", "list")
    # the option comes before the variable, and counts for that one command
    monkeypatch.setenv("LOWMARK_PROFILE", "near")
    assert tables("--profile", "far") == ["far"]
    assert tables() == ["near"]
    assert os.environ["LOWMARK_PROFILE"] == "near"
    # what an option names comes before the profile, and so does what a variable names
    token = str(file.parent / "far.token")
    assert [
        one["table"]
        for one in found("table", "list", "--node", served.address, "--token-file", token)
    ] == ["far"]
    assert [
        one["table"]
        for one in found("--profile", "far", "table", "list", "--data", str(file.parent / "near"))
    ] == ["near"]
    monkeypatch.setenv("LOWMARK_DATA", str(file.parent / "near"))
    done = _runner.invoke(app, ["--profile", "far", "table", "list", "--json"])
    assert [one["table"] for one in json.loads(done.stdout)] == ["near"]
    # (which is said, since this command has named it)
    assert "variables of the environment count before the profile" in done.stderr
    assert "variables=LOWMARK_DATA" in done.stderr


def test_what_is_wrong_with_a_profile_is_wrong_use(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run("--profile", "fra", "table", "list", code=2)
    assert "there is no profile fra in" in said
    assert "far, near, away" in said
    said = run("--profile", "away", "table", "list", "--read-only", code=2)
    assert "--read-only is for a directory, and the profile names a server" in said
    monkeypatch.setenv("LOWMARK_PROFILE", "fra")
    assert "Did you mean far?" in run("table", "list", code=2)
    assert "Did you mean far?" in run("status", code=2)
    file.chmod(0o644)
    assert "chmod 600" in run("--profile", "far", "table", "list", code=2)


def test_profiles_are_listed_and_shown_without_secrets(
    file: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # also where one is named that there is not
    monkeypatch.setenv("LOWMARK_PROFILE", "fra")
    listed = found("profile", "list")
    assert [one["name"] for one in listed] == ["far", "near", "away"]
    assert not any(one["in_use"] for one in listed)
    assert listed[0] == {
        "name": "far",
        "in_use": False,
        "node": served.address,
        "data": None,
        "ca": None,
        "token_file": str(file.parent / "far.token"),
        "token": False,
        "settings": None,
    }
    monkeypatch.setenv("LOWMARK_PROFILE", "away")
    shown = found("profile", "show", "away")
    assert shown["node"] == "127.0.0.1:1,127.0.0.1:2"
    assert (shown["in_use"], shown["token"], shown["file"]) == (True, True, str(file))
    assert shown["ca"] == str(file.parent / "nowhere.pem")
    for words in (("list",), ("show", "away"), ("list", "--json"), ("show", "away", "--json")):
        assert "lm1_" not in run("profile", *words)
    assert "there is no profile fra" in run("profile", "show", "fra", code=2)
    file.unlink()
    assert found("profile", "list") == []
