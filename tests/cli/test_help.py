"""Every command's help, as a terminal of 80 columns shows it."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from lowmark.cli.app import app

WIDTH = 80
PROSE_WIDTH = WIDTH - 2


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command and all that are below it."""
    yield path, command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from commands(command.get_command(None, name), *path, name)


ROOT = get_command(app)
COMMANDS = dict(commands(ROOT))


@functools.cache
def helped(path: tuple[str, ...], *, width: int = WIDTH) -> str:
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(shown):
        patched.setattr("typer.rich_utils.MAX_WIDTH", width)
        ROOT.main([*path, "--help"], prog_name="lowmark", standalone_mode=False)
    return shown.getvalue()


def prose(text: str) -> list[str]:
    """The lines between usage and the first box."""
    lines = [line.strip() for line in text.splitlines()]
    first_box = next(at for at, line in enumerate(lines) if line.startswith("╭"))
    return lines[3:first_box]


@pytest.mark.slow
def test_no_sentence_is_broken_before_its_line_is_full() -> None:
    for path in COMMANDS:
        lines = prose(helped(path))
        for line, following in itertools.pairwise(lines):
            if line and following:
                whole = f"{line} {following.split()[0]}"
                assert len(whole) > PROSE_WIDTH, (path, line, following)


def test_nothing_is_cut_off() -> None:
    for path in COMMANDS:
        shown = helped(path)
        assert "…" not in shown, path
        assert max(map(len, shown.splitlines())) <= WIDTH, path


def test_every_text_is_shown_as_it_was_written() -> None:
    """Text in square brackets was taken for markup, and vanished."""
    bracketed = [
        (path, text.replace("\\[", "["))
        for path, command in COMMANDS.items()
        for text in (command.help, *(one.help for one in command.params if not one.hidden))
        if text and "[" in text
    ]
    assert bracketed
    for path, text in bracketed:
        shown = helped(path, width=2_000)
        assert all(paragraph in shown for paragraph in text.split("\n\n")), (path, text)


def test_the_first_sentence_of_a_command_ends() -> None:
    for path, command in COMMANDS.items():
        first = command.help.split("\n\n")[0]
        assert first.endswith("."), path


@pytest.mark.slow
def test_an_example_is_one_line_that_can_be_copied() -> None:
    for path in COMMANDS:
        for line, following in itertools.pairwise(prose(helped(path))):
            if line.startswith("Example:"):
                assert line.startswith(" ".join(("Example: lowmark", *path))), path
                assert not following, (path, line, following)


@pytest.mark.slow
def test_only_the_options_of_a_command_are_offered() -> None:
    for path in COMMANDS:
        assert "-completion" not in helped(path), path
