"""`lowmark bench log`, with amounts too small to mean anything."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.suites import FIELDS
from lowmark.cli.app import app
from lowmark.log import LogConfig

runner = CliRunner()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory without settings; afterwards logging is as it was."""
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith("LOWMARK_")]:
        monkeypatch.delenv(name)
    root, ours = logging.getLogger(), logging.getLogger("lowmark")
    handlers, level = root.handlers[:], ours.level
    yield tmp_path
    root.handlers[:] = handlers
    ours.setLevel(level)


def test_json_has_a_number_per_field_and_the_story_behind_it(here: Path) -> None:
    chosen = ["append_1m_vs_raw", "recover_vs_read", "live_set_bytes"]
    only = [word for name in chosen for word in ("--only", name)]
    result = runner.invoke(app, ["bench", "log", "--json", "--tiny", "--dir", str(here), *only])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [name for name in report if name in FIELDS] == chosen
    assert all(isinstance(report[name], float) for name in chosen)
    for name in chosen:
        details = report["details"][name]
        keys = {"value", "target", "met", "ours", "peer", "unit", "spread", "runs", "notes"}
        assert keys <= set(details)
        assert details["value"] == report[name]
    assert {"cores", "python", "versions"} <= set(report["machine"])
    assert report["settings"]["mode"] == "tiny"
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_every_figure_can_be_measured(here: Path) -> None:
    result = runner.invoke(app, ["bench", "log", "--tiny", "--dir", str(here)])
    # a miss is a result, not a failure
    assert result.exit_code == 0, result.output
    assert all(name in result.stdout for name in FIELDS)
    assert list(here.iterdir()) == []


def test_an_unknown_figure_is_wrong_use() -> None:
    result = runner.invoke(app, ["bench", "log", "--only", "append_2m"])
    assert result.exit_code == 2
    assert "append_1m_vs_raw" in result.stderr


def test_a_folder_that_is_not_there_is_wrong_use() -> None:
    result = runner.invoke(app, ["bench", "log", "--dir", "nowhere"])
    assert result.exit_code == 2
    assert "nowhere" in result.stderr


def test_a_disk_without_room_is_refused_before_anything_is_written(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1_000_000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage())
    result = runner.invoke(app, ["bench", "log", "--quick", "--dir", str(here)])
    assert result.exit_code == 1
    assert "GB" in result.stderr
    assert list(here.iterdir()) == []


def test_the_large_entries_of_the_bench_are_large_to_the_log() -> None:
    # given that the point of 1 MiB entries is not to copy them at roll-over
    assert LogConfig().large_entry_bytes_min <= 1 << 20
