"""How results and errors look: tables for people, JSON for programs."""

from __future__ import annotations

import errno
import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowmark.errors import LowmarkError

Cell = str | int | float | bool | None

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def show_table(
    rows: Sequence[Mapping[str, Cell]],
    *,
    columns: Sequence[str],
    as_json: bool,
    title: str = "",
    names_as_they_are: bool = False,
) -> None:
    """Show rows of the same kind; `columns` gives their order, also when there is no row."""
    if as_json:
        show_json([{column: row[column] for column in columns} for row in rows])
        return
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        numeric = any(_is_number(row[column]) for row in rows)
        head = Text(column if names_as_they_are else column.replace("_", " "))
        table.add_column(head, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(Text(_cell(row[column])) for column in columns))
    _stdout().print(table)


def show_facts(facts: Mapping[str, Cell], *, as_json: bool) -> None:
    """Show what is known about one thing, one fact per line."""
    if as_json:
        show_json(dict(facts))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in facts.items():
        table.add_row(Text(name.replace("_", " ")), Text(_cell(value)))
    _stdout().print(table)


def show_json(value: object) -> None:
    """Print one JSON value on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=2))


def write_whole(text: str) -> None:
    """Write text on stdout, all of it or an error. Where Python's output is not buffered
    (PYTHONUNBUFFERED), its own `write` forgets what did not fit in one piece.
    """
    out = getattr(sys.stdout, "buffer", None)
    if out is None:
        sys.stdout.write(text)
        return
    sys.stdout.flush()
    left = memoryview(text.encode(sys.stdout.encoding, sys.stdout.errors or "strict"))
    while left:
        left = left[out.write(left) or 0 :]


def check_taken() -> None:
    """Raise if stdout is a pipe that is closed at its other end: what is in it goes nowhere."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # a test's, or none
    pipe = select.poll()
    pipe.register(number, 0)
    if any(event & select.POLLERR for _, event in pipe.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def show_error(error: LowmarkError, *, as_json: bool) -> None:
    """Say on stderr what happened, why, and what to do."""
    if as_json:
        parts = {"detail": error.detail, "hint": error.hint}
        shown = {"error": error.message, "kind": type(error).__name__} | parts
        print(json.dumps(shown, ensure_ascii=False), file=sys.stderr)
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("error: ", "bold red"), error.message))
    if error.detail:
        console.print(Text(f"  {error.detail}"))
    if error.hint:
        console.print(Text.assemble(("  hint: ", "bold"), error.hint))


def _stdout() -> Console:
    # A terminal has a width to fit into; a pipe or a file has none, so nothing is cut there.
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=100_000)


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _cell(cell: Cell) -> str:
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:,.2f}"
        case str():
            return cell
