"""What the guide to tables shows is run; the commands and options that it names are there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer.main

from docs.shown import printed, remarks, run_commands
from lowmark.cli.app import app
from lowmark.node.status import HELD_MS_MAX, PINNED_BYTES_MAX, WAITING_MS_MAX

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "tables.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the guide's Python has run, and what it printed."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "printed").write_text(printed("\n".join(blocks("python")), folder))
    return folder


@pytest.mark.slow
def test_the_python_prints_what_it_says_it_prints(folder: Path) -> None:
    said = remarks("\n".join(blocks("python")))
    assert (folder / "printed").read_text().splitlines() == said


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["here", pytest.param("sh", marks=pytest.mark.release)])
def test_the_commands_work_one_after_another(folder: Path, tmp_path: Path, way: str) -> None:
    # given the guide's commands as they stand, and the directory that the Python left
    [script] = blocks("sh")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    # when they are run
    said, _ = run_commands(script, tmp_path, way=way)
    # then all are content, and tell of what was done
    words = (
        "appended 2 rows to lines",
        "plum",
        "update_preimage",
        "deleted",
        "shipping",
        "compacted lines",
        "off backlogs",
        "orders",
    )
    for word in words:
        assert word in said, word
    assert (tmp_path / "lines.parquet").stat().st_size > 0


def test_every_command_and_option_that_the_guide_names_is_there() -> None:
    root: Any = typer.main.get_command(app)
    named = re.findall(r"`lowmark ([^`]*)`", GUIDE)
    assert len(named) > 10
    for text in named:
        words = re.findall(r"^[a-z]+(?: [a-z]+)?", text)[0].split()
        command = root.commands[words[0]]
        if len(words) > 1 and hasattr(command, "commands"):
            command = command.commands[words[1]]
        known = {option for each in command.params for option in each.opts}
        assert set(re.findall(r"--[a-z-]+", text)) <= known, text
    # and all commands on tables are named
    for name in ("append", "read", "changes", "get", "delete", "explain", "watermark"):
        assert any(text.startswith(name) for text in named), name
    for name in ("compact", "runs", "history", "tide", "ledger show"):
        assert any(text.startswith(name) for text in named), name
    for group in ("table", "cursor"):
        for name in root.commands[group].commands:
            assert f"lowmark {group} {name}" in GUIDE


def test_every_option_of_read_is_listed() -> None:
    root: Any = typer.main.get_command(app)
    rows = re.findall(r"^\| (`--.*?) \|", GUIDE, re.MULTILINE)
    listed = {option for row in rows for option in re.findall(r"--[a-z-]+", row)}
    known = {option for each in root.commands["read"].params for option in each.opts}
    everywhere = {"--data", "--node", "--ca", "--token-file"}
    assert {option for option in known if option.startswith("--")} == listed | everywhere


def test_the_limits_of_warnings_are_those_of_the_code() -> None:
    assert (PINNED_BYTES_MAX, WAITING_MS_MAX, HELD_MS_MAX) == (1 << 30, 3_600_000, 600_000)
    for words in ("more than 1 GiB", "more than an hour", "more than 10 minutes"):
        assert words in " ".join(GUIDE.split())
