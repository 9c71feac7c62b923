"""Golden text files: commands, and below each what the code printed when a person last looked.

    # A comment. It stays where it is.
    campaign 1 quiet term=3 voters=(1, 2, 3)
    a line of input, if the command takes some
    ----
    what it printed, up to the first empty line

A test runs the commands of a file and compares; with `REWRITE=1` it writes what was printed into
the file instead, and nothing else of it changes, so that a reviewer reads the difference. A command
without `----` has no output yet: it fails, until the file is rewritten. An error is output, too.

A word or an option that a command does not take is a mistake in the file, and never passed over.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from lowmark.errors import LowmarkError

__all__ = ["Command", "Handler", "ScenarioBroken", "ScenarioDiffers", "played", "run_file"]

_BAR = "----"
_ARG = re.compile(r"(?P<key>[^\s=]+)=(?:\((?P<many>[^)]*)\)|(?P<one>\S*))|(?P<word>\S+)")


class ScenarioDiffers(AssertionError):
    """The code prints something else than the file has."""


class ScenarioBroken(AssertionError):
    """A file that can't be run: its own fault, or its driver's."""


@dataclass(slots=True)
class Command:
    """One command of a file. What its handler takes of it is ticked off."""

    line: int
    name: str
    words: list[str]
    options: dict[str, tuple[str, ...]]
    input: list[str]
    bar: int
    """The number of lines before its output."""
    end: int
    """The number of lines up to the end of its output."""
    expected: list[str] | None
    _left: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._left = {*self.words, *self.options}

    def word(self, at: int = 0) -> str:
        """A bare word, by its place."""
        if at >= len(self.words):
            raise ScenarioBroken(f"`{self.name}` needs {at + 1} words")
        self._left.discard(self.words[at])
        return self.words[at]

    def rest(self, start: int = 0) -> list[str]:
        """All bare words from a place on."""
        return [self.word(at) for at in range(start, len(self.words))]

    def flag(self, name: str) -> bool:
        """Whether a bare word is among them; it is taken out, so that places count without it."""
        self._left.discard(name)
        if name not in self.words:
            return False
        self.words.remove(name)
        return True

    def many(self, name: str) -> tuple[str, ...]:
        """The values of an option; none if it is not given."""
        self._left.discard(name)
        return self.options.get(name, ())

    def text(self, name: str, default: str = "") -> str:
        """The value of an option."""
        return next(iter(self.many(name)), default)

    def number(self, name: str, default: int = 0) -> int:
        """The value of an option that is a number."""
        return int(self.text(name, str(default)))

    def numbers(self, name: str) -> tuple[int, ...]:
        """The values of an option, all numbers."""
        return tuple(map(int, self.many(name)))

    def check_all_taken(self) -> None:
        """Raise if the handler knows nothing of a word or an option."""
        if self._left:
            raise ScenarioBroken(f"`{self.name}` does not take {', '.join(sorted(self._left))}")


Handler: TypeAlias = Callable[[Command], str]


def run_file(path: Path, handle: Handler, *, rewrite: bool) -> None:
    """Run a file; raises where it prints something else, or writes that into it."""
    before = path.read_bytes().decode()  # as it is: a rewrite must not change how lines end
    after, differences = played(before, handle, name=_shown(path))
    if rewrite:
        if after != before:
            path.write_bytes(after.encode())
    elif differences:
        hint = "`make golden` writes what is printed now; read the difference before you commit it."
        raise ScenarioDiffers("\n\n".join([*differences, hint]))
    elif after != before:
        raise ScenarioBroken(f"{_shown(path)}: nothing differs, and a rewrite would change it")


def played(text: str, handle: Handler, *, name: str) -> tuple[str, list[str]]:
    """Run the commands of a text: the text as it is now, and where that differs from what it was.

    Every command is run, whatever those before it printed: one look shows all differences.
    """
    lines = text.split("\n")
    kept: list[str] = []
    differences = []
    at = 0
    for command in _parsed(lines, name):
        printed = _printed(command, handle, name)
        # With no bar, the lines up to it are all that there is of the command.
        kept += [*lines[at : command.bar], *([] if command.expected is not None else [_BAR])]
        kept += printed
        at = command.end
        if printed != command.expected:
            differences.append(_difference(command, printed, name))
    return "\n".join([*kept, *lines[at:]]), differences


def _parsed(lines: list[str], name: str) -> list[Command]:
    found: list[Command] = []
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].startswith("#"):
            at += 1
            continue
        if lines[at] == _BAR:
            raise ScenarioBroken(f"{name}:{at + 1}: an output without a command")
        end = next((n for n in range(at, len(lines)) if not lines[n].strip()), len(lines))
        bar = next((n for n in range(at, end) if lines[n] == _BAR), None)
        word, _, rest = lines[at].partition(" ")
        args = list(_ARG.finditer(rest))
        command = Command(
            line=at + 1,
            name=word,
            words=[arg["word"] for arg in args if arg["word"]],
            options={arg["key"]: _values(arg) for arg in args if arg["key"]},
            input=lines[at + 1 : end if bar is None else bar],
            bar=end if bar is None else bar + 1,
            end=end,
            expected=None if bar is None else lines[bar + 1 : end],
        )
        found.append(command)
        at = end
    return found


def _values(arg: re.Match[str]) -> tuple[str, ...]:
    if arg["many"] is None:
        return (arg["one"],)
    return tuple(re.split(r"[,\s]+", arg["many"].strip())) if arg["many"].strip() else ()


def _printed(command: Command, handle: Handler, name: str) -> list[str]:
    where = f"{name}:{command.line}"
    try:
        try:
            text = handle(command)
            command.check_all_taken()
        except LowmarkError as error:
            text = f"error: {type(error).__name__}: {error.message}"
    except ScenarioBroken as broken:
        raise ScenarioBroken(f"{where}: {broken}") from broken
    except BaseException as error:
        error.add_note(f"{where}: {command.name}")
        raise
    printed = text.rstrip("\n").split("\n") if text.strip() else ["ok"]
    if not all(line.strip() for line in printed):
        raise ScenarioBroken(f"{where}: an output can't have an empty line in it")
    return [line.rstrip() for line in printed]


def _difference(command: Command, printed: list[str], name: str) -> str:
    expected = command.expected
    diff = difflib.unified_diff(
        expected or [], printed, "in the file", "printed now", n=2, lineterm=""
    )
    what = "prints something else" if expected is not None else "has no output yet"
    return "\n".join([f"{name}:{command.line}: `{command.name}` {what}", *diff])


def _shown(path: Path) -> str:
    """A path as a person at the root of the repository writes it."""
    root = Path(__file__).parents[2]
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
