"""What the guide says of zones is run, and compared with the commands."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import lowmark
from docs.shown import printed, remarks
from lowmark.catalog import SCALE_DOWN_MS, SCALE_UP_MS, duration_text
from lowmark.catalog.schema_commands import PARTITIONS_DEFAULT, REPLICAS_DEFAULT
from lowmark.cli.app import app
from lowmark.client import Database

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "operate.md").read_text()
[PART] = re.findall(r"^## Zones\n(.*?)^## ", GUIDE, re.MULTILINE | re.DOTALL)


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PART, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.slow
def test_the_commands_work_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lowmark.open("./shop").close()
    commands = [shlex.split(line, comments=True) for line in block("sh").splitlines()]
    for program, *words in commands:
        done = CliRunner().invoke(app, words)
        assert (program, done.exit_code) == ("lowmark", 0), (words, done.output)
        assert done.stdout
    groups: Any = typer.main.get_command(app)
    shown = {words[2] for words in commands}
    assert shown == {"list", "show", "create", "alter", "rename", "default", "drop"}
    assert shown <= set(groups.commands["zone"].commands)


def test_the_python_prints_what_it_says_it_prints(tmp_path: Path) -> None:
    example = f"import lowmark\n{block('python')}"
    said = remarks(example)
    assert len(said) == 2
    assert printed(example, tmp_path).splitlines() == said


def test_the_options_and_their_defaults_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)` \| `(\w+)` \| (.*?) \|", PART, re.MULTILINE)
    groups: Any = typer.main.get_command(app)
    alter = groups.commands["zone"].commands["alter"]
    known = {name for one in alter.params for name in one.opts if name.startswith("--")}
    everywhere = {"--data", "--node", "--ca", "--token-file", "--json"}
    assert {row[0] for row in rows} == known - everywhere
    taken = set(inspect.signature(Database.alter_zone).parameters)
    assert {row[1] for row in rows} == taken - {"self", "name"}
    assert [row[2] for row in rows] == [
        str(REPLICAS_DEFAULT),
        str(PARTITIONS_DEFAULT),
        "all nodes",
        duration_text(SCALE_UP_MS),
        duration_text(SCALE_DOWN_MS),
    ]
