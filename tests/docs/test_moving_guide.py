"""What the guide says of moves is run on three nodes, and compared with the code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from docs.shown import printed, remarks
from lowmark.catalog import SCALE_DOWN_MS, SCALE_UP_MS, duration_text
from lowmark.cli.app import app
from lowmark.group import ChangeError
from lowmark.node.settings import load_settings
from lowmark.placement import RebalanceConfig
from lowmark.placement.moves import _SLOW_RETRIES
from lowmark.placement.standing import Obstacle
from server.nodes import Nodes

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "operate.md").read_text()
[PART] = re.findall(r"^## Moving partitions\n(.*?)^## ", GUIDE, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PART, re.MULTILINE | re.DOTALL)


@dataclass
class World:
    address: str
    names: list[str]

    def here(self, text: str) -> str:
        """The guide's nodes, by the names and the address that they have here."""
        for at, name in enumerate(self.names, start=1):
            text = re.sub(rf"\bn{at}\b", name, text)
        return text.replace("127.0.0.1:6570", self.address)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Nodes(tmp_path_factory.mktemp("nodes"), 3) as nodes:
        with nodes.connect(0) as db:
            db.alter_zone("default", replicas=1)
            db.create_table("orders", {"id": "int64"}, key="id", partitions=3)
            names = list(db.cluster.baseline("default").nodes)
        done = CliRunner().invoke(app, ["node", "list", "--node", nodes.address(0), "--json"])
        [address] = re.findall(rf'"{names[0]}",.*?"endpoint": "(.*?)"', done.stdout, re.DOTALL)
        yield World(address, names)


@pytest.mark.slow
@pytest.mark.xdist_group("moving guide")
def test_what_the_guide_shows_works_on_three_nodes(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the Python, which prints what it says it prints
    [example] = blocks("python")
    example = world.here(f"import lowmark\n{example}")
    said = remarks(example)
    assert len(said) == 6
    assert printed(example, tmp_path).splitlines() == said
    # and the commands, one after another
    monkeypatch.setenv("LOWMARK_NODE", world.address)
    commands = [
        shlex.split(world.here(line), comments=True)
        for script in blocks("sh")
        for line in script.splitlines()
    ]
    for program, *words in commands:
        done = CliRunner().invoke(app, words)
        assert (program, done.exit_code) == ("lowmark", 0), (words, done.output)
        assert done.stdout
    # then all that there are were shown, but for what the guide of three machines shows
    root: Any = typer.main.get_command(app)
    shown = {(words[1], words[2]) for words in commands} | {("node", "replace")}
    for group in ("rebalance", "node"):
        assert {(group, name) for name in root.commands[group].commands} <= shown
    assert ("zone", "baseline") in shown


def test_every_option_that_the_guide_names_is_there() -> None:
    root: Any = typer.main.get_command(app)
    named = [
        *re.findall(r"`lowmark ([^`]*)`", PART),
        *re.findall(r"^lowmark ([^#\n]*)", PART, re.MULTILINE),
    ]
    for text in named:
        command = root
        for word in text.split():
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
        known = {option for each in command.params for option in each.opts}
        assert set(re.findall(r"--[a-z-]+", text)) <= known, text


def test_the_settings_of_moves_have_the_defaults_of_the_code() -> None:
    after = GUIDE.split("\n### Settings of moves\n")[1]
    section = re.split(r"^#", after, flags=re.MULTILINE)[0]
    said = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", section, re.MULTILINE))
    assert list(said) == [field.name for field in fields(RebalanceConfig)]
    given = {f"LOWMARK_REBALANCE_{name.upper()}": default for name, default in said.items()}
    assert load_settings(environment=given).rebalance == RebalanceConfig()


def test_reasons_and_times_are_those_of_the_code() -> None:
    said = set(re.findall(r"^\| `([a-z', ]+)` \|", PART, re.MULTILINE))
    lost = ChangeError.LOST_LEADERSHIP  # the next leader goes on
    errors = {error.value for error in ChangeError if error is not lost}
    no_alarm = {Obstacle.TURN, Obstacle.NO_ANSWER}
    assert said == errors | (set(Obstacle) - no_alarm)
    words = " ".join(PART.split())
    assert all(f"`{obstacle}`" in words for obstacle in no_alarm)
    assert f"({duration_text(SCALE_UP_MS)})" in PART
    assert f"({duration_text(SCALE_DOWN_MS)})" in PART
    assert f"after {_SLOW_RETRIES} times as long" in PART
