"""The guide to TLS: its commands are run, its files are there, its words are what is said."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lowmark.cli.app import app
from lowmark.runtime import certificates
from lowmark.runtime.tls import Tls, TlsFiles

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "tls.md").read_text()


def test_the_commands_of_the_guide_make_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = ""
    for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL):
        for line in block.splitlines():
            _, *words = shlex.split(line)
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, (line, done.output, done.exception)
            said += done.output
    for path in re.findall(r"^\| `(tls/[\w./]*)` \|", GUIDE, re.MULTILINE):
        assert (tmp_path / path).exists(), path
    Tls(TlsFiles.of_folder("tls/n1")).check_ours("10.0.0.1")
    assert "1 certificate of n2 revoked now" in said


def test_times_of_the_guide_are_those_of_the_code() -> None:
    assert certificates.LOOK_MS == 1_000
    assert "once a second" in GUIDE
    assert f"From {certificates.WARN_DAYS} days before" in GUIDE


def test_reasons_in_the_guide_are_what_the_code_says() -> None:
    code = (ROOT / "src" / "lowmark" / "runtime" / "tls.py").read_text()
    reasons = re.findall(r"^\| `(it[s ][a-zA-Z ]*)", GUIDE, re.MULTILINE)
    assert len(reasons) >= 6
    for reason in reasons:
        beginning = " ".join(reason.split()[:3])  # names stand behind it
        assert beginning in code, reason
