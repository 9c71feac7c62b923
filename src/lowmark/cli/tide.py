"""`lowmark tide`: where ledger, backlog, low watermark and readers stand, as a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from lowmark.cli.database import DatabaseOption, TableArgument, opened_database
from lowmark.cli.output import Cell, Json, show_json, show_table
from lowmark.client import PartitionTide, Tide
from lowmark.formatting import bytes_text, counted

_WIDTH_MAX = 100
"""Of a bar, in characters."""
_BESIDE = 36
"""What stands at both sides of a bar."""
_LEVELS = " ▁▂▃▄▅▆▇█"
_PARTS = (
    ("cut", "·", "dim", "cut: only the ledger has it"),
    ("kept", "▓", "yellow", "backlog that the ledger has, too: kept for a reader"),
    ("next", "▒", "cyan", "backlog: the next compaction takes it"),
    ("young", "░", "white", "backlog: later than the low watermark, so it stays"),
)
"""Of a backlog, from left to right: name, letter, style, meaning."""


def tide(
    ctx: typer.Context,
    table: TableArgument,
    png: Annotated[
        str | None, typer.Option("--png", metavar="FILE", help="Draw it into a PNG file.")
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Draw a table's tide: ledger, horizon, backlog, low watermark, and readers, by offset.

    A bar is a partition from offset 0 to its end: above, how many rows are left in the ledger;
    below, the backlog, by why it is kept. --png needs matplotlib and no display.

    With --json, one object: table, at, watermark, watermark_held_by, compacts, kept_because,
    changes, backlog_rows, backlog_bytes, kept_bytes, ledger_rows, ledger_bytes, ledger_deletes;
    partitions, each with partition, start, horizon, watermark, end, expired, backlog_bytes,
    kept_rows, kept_bytes, next_rows, next_bytes, young_rows, young_bytes, ledger (manifest, epoch,
    files, bytes, rows, live_rows, deletes) and holders (kind, name, offset, behind_rows,
    behind_bytes, keeps_rows, keeps_bytes, overdue, why); and holders, all partitions together.

    Example: lowmark tide orders --png tide.png --data ./shop
    """
    with opened_database(ctx, data) as database:
        counted = {} if png is not None or not as_json else {"stretches": 0}
        seen = database.table(table).tide(**counted)
    if png is not None:
        seen.save(png)
    if as_json:
        show_json(_facts(seen))
    elif png is not None:
        print(f"the tide of {table} is in {png}")
    else:
        _draw(seen)


def _facts(seen: Tide) -> dict[str, Any]:
    facts = dataclasses.asdict(seen)
    partitions = facts.pop("partitions")
    for name in ("changes", "backlog_rows", "backlog_bytes", "kept_bytes"):
        facts[name] = getattr(seen, name)
    for name in ("ledger_rows", "ledger_bytes", "ledger_deletes"):
        facts[name] = getattr(seen, name)
    for partition, one in zip(partitions, seen.partitions, strict=True):
        rows = {"kept": one.kept_rows, "next": one.next_rows, "young": one.young_rows}
        partition |= {f"{name}_rows": count for name, count in rows.items()}
        if partition["ledger"] is not None:
            del partition["ledger"]["survivors"]  # what the picture is made of
    return facts | {
        "partitions": partitions,
        "holders": [dataclasses.asdict(holder) for holder in seen.holders],
    }


# -- with letters ---------------------------------------------------------------------------------


def _draw(seen: Tide) -> None:
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=_WIDTH_MAX)
    width = max(10, min(console.width - _BESIDE, _WIDTH_MAX - _BESIDE))
    longest = max(1, *(one.end for one in seen.partitions))
    _print(console, f"table {seen.table}: {counted(seen.changes, 'change')} so far")
    if seen.compacts:
        live = f"{counted(seen.ledger_rows, 'live row')}, {counted(seen.ledger_deletes, 'delete')}"
        _print(console, f"ledger: {live}, {bytes_text(seen.ledger_bytes)}")
    also = f", of which {bytes_text(seen.kept_bytes)} are in the ledger, too"
    size = f"{counted(seen.backlog_rows, 'row')}, {bytes_text(seen.backlog_bytes)}"
    _print(console, f"backlog: {size}{also if seen.kept_bytes else ''}")
    _print(console, f"low watermark: {seen.watermark or 'never moved'}")
    for holder in seen.watermark_held_by:
        _print(console, f"  held by {holder}")
    for one in seen.partitions:
        _print(console, "")
        for line in _band(one, longest, width, compacts=seen.compacts):
            console.print(line, soft_wrap=True)
    _print(console, "")
    for line in _legend(seen):
        console.print(line, soft_wrap=True)
    _show_holders(seen)


def _print(console: Console, words: str) -> None:
    console.print(Text(words), soft_wrap=True)


def _band(one: PartitionTide, longest: int, width: int, *, compacts: bool) -> Iterator[Text]:
    """The lines of a partition."""

    def column(offset: int) -> int:
        return offset * width // longest

    head, indent = f"{one.partition:>5} ", " " * 6
    ledger = one.ledger
    if ledger is not None:
        levels = _levels(ledger.shares(one.horizon, column(one.horizon)))
        words = f" ledger {bytes_text(ledger.bytes)}, {one.live_share:.0%} live"
        pad = " " * (width - len(levels))
        yield Text.assemble(head, (levels, "bold blue on grey85"), pad, (words, "dim"))
        head = indent
    bar = Text(head)
    at = 0
    for letter, style, end in _backlog(one, compacts=compacts):
        # However little there is of it, it is seen.
        count = max(column(end) - at, 1)
        bar.append(letter * count, style)
        at += count
    bar.append(" " * max(0, width - at) + f" backlog {bytes_text(one.backlog_bytes)}", "dim")
    yield bar
    marks = [(one.horizon, "╵", "horizon")] if ledger is not None else []
    marks += [(holder.offset, "▲", holder.name) for holder in one.holders]
    for offset, sign, words in marks:
        place = min(column(offset), width - 1)
        if place > width // 2:
            yield Text(f"{indent}{words[: place - 1].rjust(place - 1)} {sign}")
        else:
            yield Text(f"{indent}{' ' * place}{sign} {words}")


def _backlog(one: PartitionTide, *, compacts: bool) -> list[tuple[str, str, int]]:
    """The parts of a partition's lower line that are there: a letter, its style, and their end."""
    begins = {"cut": 0, "kept": one.start, "next": max(one.horizon, one.start)}
    ends = {"cut": one.start, "kept": one.horizon, "next": one.watermark}
    if not compacts:
        begins["next"], ends["kept"], ends["next"] = one.start, 0, one.end
    begins["young"], ends["young"] = ends["next"], one.end
    return [
        (letter, style, ends[name])
        for name, letter, style, _ in _PARTS
        if begins[name] < ends[name]
    ]


def _levels(shares: Sequence[float]) -> str:
    """How many rows are left, in one letter for each column; however few there are, it is seen."""
    most = len(_LEVELS) - 1
    return "".join(_LEVELS[max(round(share * most), share > 0)] for share in shares)


def _legend(seen: Tide) -> Iterator[Text]:
    words = {name: meaning for name, _, _, meaning in _PARTS}
    if not seen.compacts:
        words = {"cut": "gone by retention", "next": f"backlog. {seen.kept_because}"}
    else:
        yield Text.assemble(("▁▄█", "bold blue on grey85"), " ledger: how many rows are left")
    for name, letter, style, _ in _PARTS:
        if name in words:
            yield Text.assemble((letter, style), f" {words[name]}")


def _show_holders(seen: Tide) -> None:
    if not seen.holders:
        print("\nNothing holds any of it.")
        return
    rows: list[dict[str, Cell]] = [
        {
            "kind": holder.kind,
            "name": holder.name,
            "rows_behind": holder.behind_rows,
            "keeps": bytes_text(holder.keeps_bytes),
            "overdue": holder.overdue,
        }
        for holder in seen.holders
    ]
    print()
    show_table(rows, columns=tuple(rows[0]), as_json=False, title="readers and runs in it")
