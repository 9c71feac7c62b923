"""`lowmark tls`: init, issue, revoke, show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from lowmark.cli.app import app

_runner = CliRunner()


def run(*words: str, code: int = 0) -> str:
    done = _runner.invoke(app, ["tls", *words])
    assert done.exit_code == code, (words, done.output, done.exception)
    return done.stdout if code == 0 else done.stderr


def found(*words: str) -> Any:
    return json.loads(run(*words, "--json"))


def test_an_authority_issues_shows_renews_and_revokes(tmp_path: Path) -> None:
    folder = str(tmp_path / "tls")
    made = found("init", folder)
    assert (made["authority"], made["key"]) == (f"{folder}/ca.pem", f"{folder}/ca.key")
    issued = found("issue", folder, "n1", "--host", "n1.example", "--host", "::1", "--days", "30")
    assert issued["hosts"] == ["n1.example", "::1"]
    assert issued["folder"] == f"{folder}/n1"
    assert made["ends_at_ms"] > issued["ends_at_ms"]
    again = found("issue", folder, "n1")
    assert again["hosts"] == issued["hosts"]
    shown = found("show", folder)
    assert [(one["kind"], one["state"]) for one in shown] == [
        ("authority", "valid"),
        ("authority", "valid"),
        ("certificate", "valid"),
    ]
    assert shown[2]["serial"] == again["serial"]
    revoked = found("revoke", folder, "n1")
    assert revoked["revoked"] == [issued["serial"], again["serial"]]
    assert revoked["lists"] == [f"{folder}/crl.pem", f"{folder}/n1/crl.pem"]
    assert found("show", f"{folder}/n1")[1]["state"] == "revoked"


def test_people_see_hosts_states_and_ends(tmp_path: Path) -> None:
    folder = str(tmp_path / "tls")
    assert f"{folder}/ca.key" in run("init", folder)
    assert "n1.example, 10.0.0.7" in run(
        "issue", folder, "n1", "--host", "n1.example", "--host", "10.0.0.7"
    )
    said = run("show", folder)
    assert "valid" in said
    assert "364" in said
    assert "1 certificate of n1 revoked now" in run("revoke", folder, "n1")
    assert "n1 was revoked before" in run("revoke", folder, "n1")
    assert "1 certificate revoked" in run("show", folder)


def test_what_is_refused_says_what_to_do(tmp_path: Path) -> None:
    folder = str(tmp_path / "tls")
    assert "lowmark tls init" in run("issue", folder, "n1", "--host", "a", code=1)
    run("init", folder)
    assert "there is ca.pem in" in run("init", folder, code=1)
    assert "--host" in run("issue", folder, "n1", code=1)
    assert "no wildcards" in run("issue", folder, "n1", "--host", "*.example", code=1)


def test_without_cryptography_it_says_how_to_get_it(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "sys.argv = ['lowmark', 'tls', 'init', 'd']\n"
        "from lowmark.cli import main; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "needs the package cryptography" in done.stderr
    assert "pip install cryptography" in done.stderr
