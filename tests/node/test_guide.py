"""What the guide says of running a node is compared with the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer.main

from lowmark.cli.app import app
from lowmark.metastore import MetastoreConfig
from lowmark.node import Settings, load_settings

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "operate.md").read_text()


def section(heading: str) -> str:
    [text] = re.findall(rf"^#+ {heading}\n(.*?)(?=^#+ |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    return str(text)


def test_the_guide_lists_every_setting_of_the_metastore_with_its_default() -> None:
    text = section("Settings of the metastore")
    said = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", text, re.MULTILINE))
    assert list(said) == [field.name for field in fields(MetastoreConfig)]
    given = {f"LOWMARK_METASTORE_{name.upper()}": default for name, default in said.items()}
    assert load_settings(environment=given) == Settings()
    assert "`delay_ms` in `[schema_sync]` (500" in text
    assert "`max_skew_ms` in `[clock]` (500" in text


def test_the_guide_lists_every_option_of_serve() -> None:
    rows = re.findall(r"^\| `(--[\w-]+)", section("Running a node"), re.MULTILINE)
    command: Any = typer.main.get_command(app)
    known = [option for each in command.commands["serve"].params for option in each.opts]
    assert rows == [option for option in known if option != "--json"]


def test_every_command_that_the_guide_names_is_there() -> None:
    command: Any = typer.main.get_command(app)
    named = re.findall(r"`?lowmark (meta|log|catalog|partition) (\w+)", GUIDE)
    assert named
    for group, name in named:
        assert name in command.commands[group].commands, f"{group} {name}"
