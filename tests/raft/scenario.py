"""Scripts with expected output: a command line, perhaps input lines, `----`, what it should print.

The printed text ends with the first empty line; `#` begins a comment between commands. Arguments
are a bare word, `key=value` or `key=(a, b)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Arg", "Stanza", "parse", "parse_command"]

_ARG = re.compile(r"(?P<key>[^\s=]+)(?:=(?:\((?P<many>[^)]*)\)|(?P<one>\S*)))?")


@dataclass(frozen=True, slots=True)
class Arg:
    key: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stanza:
    line: int
    command: str
    args: tuple[Arg, ...]
    input: tuple[str, ...]
    expected: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.command}"


def parse(path: Path) -> list[Stanza]:
    lines = path.read_text(encoding="utf-8").split("\n")
    stanzas: list[Stanza] = []
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].startswith("#"):
            at += 1
            continue
        bar = lines.index("----", at)
        end = next((n for n in range(bar, len(lines)) if not lines[n].strip()), len(lines))
        command, args = parse_command(lines[at])
        given, expected = lines[at + 1 : bar], lines[bar + 1 : end]
        stanzas.append(Stanza(at + 1, command, args, tuple(given), "\n".join(expected)))
        at = end
    return stanzas


def parse_command(line: str) -> tuple[str, tuple[Arg, ...]]:
    command, _, rest = line.strip().partition(" ")
    return command, tuple(_arg(found) for found in _ARG.finditer(rest))


def _arg(found: re.Match[str]) -> Arg:
    many, one = found["many"], found["one"]
    if many is not None:
        return Arg(found["key"], tuple(re.split(r"[,\s]+", many.strip())) if many.strip() else ())
    return Arg(found["key"], (one,) if one is not None else ())
