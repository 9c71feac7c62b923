"""The first ten minutes are run as they stand: in Python, in a shell, and the parts on Spark."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from docs.shown import environment, printed, remarks, run_commands
from lowmark.catalog.options import OPTIONS
from lowmark.cli.app import app
from lowmark.client.table import Table
from lowmark.node.settings import load_settings

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "start.md").read_text()


SAID = (
    "every row is later than the low watermark",
    "5 rows read → 2 live and 1 delete",
    "the backlog below the horizon is kept for cursor billing",
    "live rows",
    '"_change":"delete"',
    "horizon ╵",
)
"""What the remarks beside the commands promise."""


def equivalents() -> list[list[str]]:
    """The rows of the table for people who know other systems: theirs, ours, what differs."""
    [found] = re.findall(r"^\| you know \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", GUIDE, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found.splitlines()]


def test_the_table_of_equivalents_names_what_is_there() -> None:
    rows = equivalents()
    assert all(len(row) == 3 for row in rows)
    for system in ("Kafka", "Pulsar", "Delta"):
        assert sum(system in theirs for theirs, _, _ in rows) > 5
    ours = " ".join(here + " " + differs for _, here, differs in rows)
    # methods, with their arguments
    named = re.findall(r"`(?:table\.)?(\w+)\((\w*)=?[^`]*\)`", ours)
    assert len(named) > 8
    for method, argument in named:
        taken = getattr(Table, method).__annotations__
        assert not argument or argument in taken, method
    # commands
    root: Any = typer.main.get_command(app)
    for words in re.findall(r"`lowmark ([a-z ]+)`", ours):
        command = root
        for word in words.split():
            command = command.commands[word]
    # options of tables and settings
    options = set(re.findall(r"`([a-z]+_[a-z]+(?:_[a-z]+)?)`", ours))
    assert {"dirty_percent", "retention_ms"} <= options <= set(OPTIONS)
    settings = load_settings(environment={})
    for section, name in re.findall(r"`(watermark|ledger)\.(\w+)`", ours):
        assert hasattr(getattr(settings, section), name)


def test_the_commands_that_are_named_beside_those_of_others_are_there() -> None:
    # given the table of their commands and ours
    [found] = re.findall(r"^\| you would run \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", GUIDE, re.MULTILINE)
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in found.splitlines()]
    assert all(len(row) == 2 for row in rows)
    for system in ("Kafka", "Pulsar", "Delta"):
        assert sum(system in theirs for theirs, _ in rows) > 8
    named = re.findall(r"`lowmark ([^`]+)`", " ".join(ours for _, ours in rows))
    assert len(named) > 20
    root: Any = typer.main.get_command(app)
    for words in named:
        # then each of ours is a command, with options that it has
        command = root
        for word in words.split():
            command = getattr(command, "commands", {}).get(word, command)
        assert command is not root, words
        options = {one for parameter in command.params for one in parameter.opts}
        assert set(re.findall(r" (--[a-z-]+)", words)) <= options, words


def test_the_ten_words_are_defined_on_the_first_screen_with_the_words_of_others() -> None:
    [found] = re.findall(
        r"^\| word \| what it is \| Kafka \| Pulsar \| Delta \|\n\|[-|]+\|\n((?:\|.*\n)+)",
        GUIDE,
        re.MULTILINE,
    )
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in found.splitlines()]
    assert all(len(row) == 5 and all(row) for row in rows)
    words = [row[0].strip("*") for row in rows]
    assert words[:2] == ["table", "partition"]
    assert {"backlog", "ledger", "horizon", "low watermark", "cursor"} <= set(words)
    assert len(rows) == 10
    assert GUIDE.index("## Ten words") < GUIDE.index("```python")


def test_ten_minutes_of_history_are_the_default() -> None:
    assert load_settings(environment={}).watermark.availability_ms == 10 * 60 * 1_000


def script(language: str, *, spark: bool) -> str:
    """All blocks of a language, one behind the other; those on Spark only if they are wanted.

    A cluster has a test of its own.
    """
    found = re.findall(rf"^```{language}(.*)\n((?:.*\n)*?)```$", GUIDE, re.MULTILINE)
    kinds = [info.strip() for info, _ in found]
    assert {"", "spark"} <= set(kinds) <= {"", "spark", "cluster"}
    wanted = {"", "spark"} if spark else {""}
    return "\n".join(text for kind, (_, text) in zip(kinds, found, strict=True) if kind in wanted)


def picture(folder: Path) -> bytes:
    return (folder / "tide.png").read_bytes()


@pytest.mark.slow
def test_the_python_prints_what_it_says_it_prints(tmp_path: Path) -> None:
    text = script("python", spark=False)
    said = remarks(text)
    assert len(said) > 10
    assert printed(text, tmp_path).splitlines() == said
    assert picture(tmp_path).startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_commands_say_what_is_said_of_them(tmp_path: Path) -> None:
    said, _ = run_commands(script("sh", spark=False), tmp_path, way="here")
    for words in SAID:
        assert words in said, words


# The parts without Spark are run above; what is on Spark, by `tests/frames` and `tests/spark`.
@pytest.mark.slow
@pytest.mark.release
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
def test_all_of_it_works_with_what_runs_on_spark(tmp_path: Path) -> None:
    # when all of the Python is run, in a process of its own, and then all commands
    text = script("python", spark=True)
    ran = subprocess.run(
        [sys.executable, "-c", text],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines() == remarks(text)
    assert picture(tmp_path).startswith(b"\x89PNG")
    said, _ = run_commands(script("sh", spark=True), tmp_path, way="sh")
    # then they say what the remarks beside them promise
    for words in (*SAID, "(on Spark, local[2]): 1 row"):
        assert words in said, words
    assert "ledger" in said.rpartition("(on Spark, local[2])")[2]
