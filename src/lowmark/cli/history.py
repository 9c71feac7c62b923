"""`lowmark history`: what became of a table, line by line."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from lowmark.cli.database import DatabaseOption, TableArgument, opened_database
from lowmark.cli.output import Cell, Json, show_json, show_table
from lowmark.client import HistoryLine
from lowmark.formatting import time_text


def history(
    ctx: typer.Context, table: TableArgument, data: DatabaseOption = None, as_json: Json = False
) -> None:
    """Show the history of a table, newest first: schema versions, runs of compaction, and cuts,
    each with its time and author.

    The author of a change is the node that carried it out, that of a run its process (machine:pid);
    before it stands the token by which it was asked for, if by one (job@n1). A dash means that the
    author is unknown: for retention, cuts by hand, and changes that are older than the catalog's
    versions (`lowmark catalog log`). Lines without a time come last.

    With --json, a list: at, kind (schema, table, run, cut), operation, by, what, schema_version,
    catalog_version, run, rows, bytes, offsets (by partition, where a backlog begins since).

    Example: lowmark history orders --data ./shop
    """
    with opened_database(ctx, data) as database:
        found = database.table(table).history()
    if as_json:
        show_json([_facts(one) for one in found])
        return
    rows: list[dict[str, Cell]] = [
        {"at": _at(one), "operation": one.operation, "by": one.by, "what": one.what}
        for one in found
    ]
    show_table(rows, columns=("at", "operation", "by", "what"), as_json=False)


def _at(line: HistoryLine) -> str | None:
    return None if line.at is None else time_text(round(line.at.timestamp() * 1_000))


def _facts(line: HistoryLine) -> dict[str, Any]:
    return asdict(line) | {"at": _at(line)}
