"""The command as a person or a script meets it: output, errors, exit codes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import lowmark
from lowmark.cli.app import app, root
from lowmark.cli.output import Json, show_facts
from lowmark.cli.session import CommandGroup, settings_of, wrong_use
from lowmark.errors import Corrupt, Rejected

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


@pytest.fixture
def failing() -> typer.Typer:
    """An app whose commands end in every way a command can end."""
    broken = typer.Typer(cls=CommandGroup, add_completion=False, pretty_exceptions_enable=False)

    @broken.command()
    def ok(as_json: Json = False) -> None:
        show_facts({"rows": 3}, as_json=as_json)

    @broken.command()
    def corrupt(as_json: Json = False) -> None:
        raise Corrupt("segment 7 is damaged", detail="Entry 3 fails its checksum.", hint="Stop.")

    @broken.command()
    def refused() -> None:
        raise Rejected("no such group")

    @broken.command()
    def misused() -> None:
        with wrong_use():
            raise Rejected("there is no folder at ./nowhere")

    @broken.command()
    def interrupted(as_json: Json = False) -> None:
        raise KeyboardInterrupt

    @broken.command()
    def bug() -> None:
        raise ZeroDivisionError

    return broken


def test_no_command_prints_help() -> None:
    result = runner.invoke(app, [])
    assert result.exit_code == 0
    assert "Usage: lowmark" in result.stdout
    assert all(command in result.stdout for command in ("log", "bench", "--settings"))


@pytest.mark.parametrize("group", ["log", "bench"])
def test_a_group_without_a_command_prints_its_help(group: str) -> None:
    result = runner.invoke(app, [group])
    assert result.exit_code == 0
    assert f"lowmark {group}" in result.stdout


def test_the_version_is_printed_even_if_the_settings_are_broken(here: Path) -> None:
    (here / "lowmark.toml").write_text("[nonsense]\n")
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"lowmark {lowmark.__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["--nonsense"], ["lag"], ["--log-level", "loud"], ["log", "nonsense"]]
)
def test_wrong_use_exits_with_2(arguments: list[str]) -> None:
    result = runner.invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (2, "")


def test_wrong_use_under_json_is_an_object_on_stderr() -> None:
    result = runner.invoke(app, ["lag", "--json"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert json.loads(result.stderr)["error"].startswith("No such command 'lag'")


def test_a_settings_file_that_is_not_there_is_wrong_use() -> None:
    result = runner.invoke(app, ["--settings", "nowhere.toml", "log"])
    assert result.exit_code == 2
    assert "error: the settings file nowhere.toml can't be read" in result.stderr


def test_a_wrong_setting_is_wrong_use_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWMARK_LOGGING_LEVEL", "loud")
    result = runner.invoke(app, ["log"])
    assert result.exit_code == 2
    assert "LOWMARK_LOGGING_LEVEL in the environment: 'loud' is not a choice" in result.stderr
    assert "hint: Use one of: debug, info, warning, error." in result.stderr


def test_options_before_the_command_reach_the_settings_and_the_logs() -> None:
    # given a command that says what it was given
    probe = typer.Typer(cls=CommandGroup)
    probe.callback()(root)

    @probe.command()
    def show(ctx: typer.Context) -> None:
        show_facts({"level": settings_of(ctx).logging.level}, as_json=True)

    # when a level is asked for
    result = runner.invoke(probe, ["--log-level", "debug", "show"])
    # then both hold it
    assert json.loads(result.stdout) == {"level": "debug"}
    assert logging.getLogger("lowmark").level == logging.DEBUG


def test_a_command_that_works_exits_with_0(failing: typer.Typer) -> None:
    assert runner.invoke(failing, ["ok"]).stdout.split() == ["rows", "3"]
    result = runner.invoke(failing, ["ok", "--json"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"rows": 3})


def test_an_error_says_what_happened_why_and_what_to_do(failing: typer.Typer) -> None:
    result = runner.invoke(failing, ["corrupt"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "error: segment 7 is damaged",
        "  Entry 3 fails its checksum.",
        "  hint: Stop.",
    ]


def test_an_error_under_json_is_an_object_on_stderr(failing: typer.Typer) -> None:
    result = runner.invoke(failing, ["corrupt", "--json"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert json.loads(result.stderr) == {
        "error": "segment 7 is damaged",
        "kind": "Corrupt",
        "detail": "Entry 3 fails its checksum.",
        "hint": "Stop.",
    }


def test_a_refusal_by_the_system_is_failure_and_a_bad_argument_is_wrong_use(
    failing: typer.Typer,
) -> None:
    assert runner.invoke(failing, ["refused"]).exit_code == 1
    assert runner.invoke(failing, ["misused"]).exit_code == 2


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_interrupt_is_one_line_and_130(failing: typer.Typer, options: list[str]) -> None:
    result = runner.invoke(failing, ["interrupted", *options])
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_a_bug_is_not_hidden(failing: typer.Typer) -> None:
    assert isinstance(runner.invoke(failing, ["bug"]).exception, ZeroDivisionError)


@pytest.mark.slow
def test_the_module_runs_as_a_real_process(here: Path) -> None:
    # given a settings file with a mistake in it
    (here / "lowmark.toml").write_text('[log]\nwal_bytes_max = "much"\n')
    # when the command runs
    result = subprocess.run(
        [sys.executable, "-m", "lowmark", "log"], capture_output=True, text=True, check=False
    )
    # then the mistake is named, without a traceback
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: log.wal_bytes_max in lowmark.toml: 'much' is not")
    assert "Traceback" not in result.stderr


def test_output_that_cannot_be_written_is_one_line_and_a_failure() -> None:
    # given a disk that is full for our output
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "lowmark", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    # then there is one line, and no traceback
    assert ran.returncode == 1
    assert ran.stderr == "lowmark: the output could not be written: No space left on device\n"
