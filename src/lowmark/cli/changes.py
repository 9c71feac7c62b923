"""`lowmark changes`: what changed in a table between two places, for people or as JSON lines."""

from __future__ import annotations

import sys
from typing import Annotated, Literal, cast

import typer

from lowmark.cli.database import (
    DatabaseOption,
    TableArgument,
    check_place,
    listed,
    opened_database,
    parse_place,
)
from lowmark.cli.files import cells, json_lines
from lowmark.cli.output import Cell, check_taken, show_table, write_whole
from lowmark.cli.read import SHOWN_ROWS, position_text
from lowmark.cli.session import WrongUse
from lowmark.client import ChangesReader


def changes(
    ctx: typer.Context,
    table: TableArgument,
    start: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="Where to begin: earliest, latest, a time, or offsets by partition: 0:17,1:4.",
        ),
    ] = "earliest",
    end: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", help="Where to end, in the same forms.", show_default="latest"
        ),
    ] = None,
    preimages: Annotated[
        bool, typer.Option("--preimages", help="Also show the rows before updates and deletes.")
    ] = False,
    net: Annotated[bool, typer.Option("--net", help="Show one change for each key.")] = False,
    columns: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these columns: id,status.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="N", help="Only this partition; repeatable."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Show more than {SHOWN_ROWS} rows.")
    ] = False,
    on_gap: Annotated[
        str, typer.Option(metavar="HOW", help="Where retention removed rows: raise or skip.")
    ] = "raise",
    data: DatabaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Show what changed from one place to another: inserts, updates and deletes, key by key.

    After the table's columns come _change_type (insert, update_postimage, delete; with --preimages
    update_preimage, too), _commit_version and _commit_timestamp. A time is ISO 8601, or a
    _commit_version; both ends belong to the range. By offsets, the end does not.

    With --net, each key has one change: from what it was at the start to what it is at the end.

    At the end the command prints its position on stderr. Give it to --start to go on from there.

    Without --all, the command shows the first 100 rows; with --json it prints all rows.

    Example: lowmark changes orders --start 2026-07-01T12:00:00Z --data ./shop
    """
    if on_gap not in {"raise", "skip"}:
        raise WrongUse(f"--on-gap is raise or skip, not {on_gap!r}")
    if columns is not None and not listed(columns):
        raise WrongUse("--columns names no column", hint="Leave it out for all of them.")
    with opened_database(ctx, data) as database:
        found = database.table(table)
        first = check_place(parse_place(start, option="--start"), found, option="--start")
        last = "latest" if end is None else parse_place(end, option="--end")
        with found.changes(
            first,
            check_place(last, found, option="--end"),
            preimages=preimages,
            net=net,
            columns=listed(columns) or None,
            partitions=None if partition is None else list(dict.fromkeys(partition)),
            on_gap=cast("Literal['raise', 'skip']", on_gap),
        ) as reader:
            whole = True
            if as_json:
                for batch in reader:
                    write_whole(json_lines(batch))
            else:
                whole = _show(reader, None if everything else SHOWN_ROWS)
            sys.stdout.flush()
            check_taken()
        for gap in reader.gaps:
            place = f"offsets {gap.first} to {gap.last} of partition {gap.partition}"
            print(f"note: {place} are {gap.kind}", file=sys.stderr)
        if whole:
            print(f"position: {position_text(reader.position)}", file=sys.stderr)
        else:
            print(f"these are the first {SHOWN_ROWS} rows; for more: --all", file=sys.stderr)


def _show(reader: ChangesReader, most: int | None) -> bool:
    """Show rows; says whether these were all."""
    names = reader.schema.names
    rows: list[list[str]] = []
    for batch in reader:
        rows += cells(batch)
        if most is not None and len(rows) > most:
            break
    shown: list[dict[str, Cell]] = [dict(zip(names, row, strict=True)) for row in rows[:most]]
    show_table(shown, columns=names, as_json=False, names_as_they_are=True)
    return most is None or len(rows) <= most
