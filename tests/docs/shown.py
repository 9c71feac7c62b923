"""What a page shows is run in this process, where Lowmark is imported already: a process of its own
for each command would take twenty times as long as what it does.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from typer.testing import CliRunner

from lowmark.cli.app import app

ROOT = Path(__file__).parents[2]
WAYS = ("here", "sh")
"""How commands are run: in this process, or as they stand, by a shell and its processes."""


def printed(text: str, folder: Path) -> str:
    """What a program prints that is run in a folder."""
    said = io.StringIO()
    with at_home(folder), contextlib.redirect_stdout(said):
        exec(compile(text, "shown", "exec"), {"__name__": "__main__"})  # noqa: S102
    return said.getvalue()


def remarks(text: str) -> list[str]:
    """What the remarks beside a program's `print` say that it prints: there is one beside each."""
    said = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert len(said) == text.count("print(")
    return said


def run_commands(script: str, folder: Path, *, way: str) -> tuple[str, str]:
    """Run a script of commands, all of which are content; gives what they print, and what they say
    beside.
    """
    return _by_shell(script, folder) if way == "sh" else _here(script, folder)


def _here(script: str, folder: Path) -> tuple[str, str]:
    """Each `lowmark` in this process. What else there is on a line, before a `|`, a shell does."""
    out, err = "", ""
    with at_home(folder):
        for line in script.replace("\\\n", " ").splitlines():
            if exported := re.fullmatch(r"export (\w+)=(\S+)", line):
                os.environ[exported[1]] = exported[2]
                continue
            before, found, command = line.rpartition("lowmark ")
            if not found:
                subprocess.run(["sh", "-ec", line], check=True)
                continue
            given = None
            if before:
                source = before.rstrip().removesuffix("|")
                given = subprocess.run(["sh", "-ec", source], check=True, capture_output=True)
            words = shlex.split(command, comments=True)
            done = CliRunner().invoke(app, words, input=given.stdout if given else None)
            assert done.exit_code == 0, (line, done.output, done.exception)
            out, err = out + done.stdout, err + done.stderr
    return out, err


def _by_shell(script: str, folder: Path) -> tuple[str, str]:
    prelude = f'set -e\nlowmark() {{ {sys.executable} -m lowmark "$@"; }}\n'
    ran = subprocess.run(
        ["sh", "-c", prelude + script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout, ran.stderr


def environment() -> Mapping[str, str]:
    """That of a user who has told Lowmark nothing; a test leaves nothing in the user's cache."""
    kept = {name: text for name, text in os.environ.items() if "LOWMARK" not in name}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "LOWMARK_SPARK_ARCHIVE": "off"}


@contextlib.contextmanager
def at_home(folder: Path) -> Iterator[None]:
    """In a folder, and with that environment; it is as it was afterwards."""
    before = dict(os.environ)
    with contextlib.chdir(folder):
        try:
            os.environ.clear()
            os.environ.update(environment())
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
