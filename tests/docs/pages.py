"""The pages in docs/formats/ as data: tables, layouts, code blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FORMATS", "Block", "Field", "Table", "blocks", "hex_lines", "layouts", "tables"]

FORMATS = Path(__file__).parents[2] / "docs" / "formats"
LAYOUT = ("offset", "size", "field", "meaning")
_HEX_LINE = re.compile(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2}) +(\S.*)")


@dataclass(frozen=True)
class Table:
    """A table and the heading above it."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Field:
    """A row of a layout."""

    offset: int
    size: int
    name: str


@dataclass(frozen=True)
class Block:
    """A fenced block; `info` is what stands behind the language."""

    language: str
    info: str
    text: str


def tables(page: str) -> list[Table]:
    """All tables of a page."""
    found: list[Table] = []
    heading, lines = "", list[str]()
    for line in [*_outside_blocks((FORMATS / page).read_text()), ""]:
        if line.startswith("|"):
            lines.append(line)
            continue
        if lines:
            head, _, *rows = [_cells(row) for row in lines]
            found.append(Table(heading, head, tuple(rows)))
            lines = []
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
    return found


def layouts(page: str) -> dict[str, list[Field]]:
    """All layout tables of a page by the heading above them."""
    return {
        table.heading: [Field(int(row[0]), int(row[1]), row[2]) for row in table.rows]
        for table in tables(page)
        if table.columns == LAYOUT
    }


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page."""
    text = (FORMATS / page).read_text()
    found = re.findall(r"^```(\w+)(?: (.*))?\n((?:.*\n)*?)```$", text, re.MULTILINE)
    return [Block(*parts) for parts in found]


def hex_lines(text: str) -> list[tuple[int, bytes, str]]:
    """The lines of a dump as offset, bytes and what is said of them; remarks are left out."""
    found = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _HEX_LINE.fullmatch(line)
        assert match, f"not a line of a dump: {line!r}"
        found.append((int(match[1], 16), bytes.fromhex(match[2]), match[3]))
    return found


def _outside_blocks(text: str) -> list[str]:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
