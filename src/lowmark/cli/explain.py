"""`lowmark explain`: what is kept of a table and for whom; what became of a key."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lowmark.cli.database import (
    DatabaseOption,
    TableArgument,
    bytes_text,
    key_of,
    opened_database,
    times_text,
)
from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.cli.values import cell_of, json_row
from lowmark.client import KeyExplanation, Table, TableExplanation

__all__ = ["explain"]


def explain(
    ctx: typer.Context,
    table: TableArgument,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="K", help="What became of this key; once for each of its columns."),
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Say what is kept of a table, who still needs it, and why; or what became of a key.

    With --json, one object: table, rows, bytes, kept_because, partitions, holders; of a key: key,
    state (live, deleted or unknown), partition, offset, time, row.

    Example: lowmark explain orders --key o-1 --data ./shop
    """
    with opened_database(ctx, data) as database:
        one = database.table(table)
        found = one.explain(key_of(one.descriptor, key)) if key else one.explain()
        if isinstance(found, KeyExplanation):
            _show_key(one, found, as_json=as_json)
        else:
            _show_table(found, as_json=as_json)


def _show_key(table: Table, found: KeyExplanation, *, as_json: bool) -> None:
    facts = key_facts(table, found)
    if as_json:
        show_json(facts)
        return
    shown: dict[str, Cell] = {
        "key": ", ".join(cell_of("", value) for value in facts["key"].values()),
        "state": facts["state"],
        "partition": facts["partition"],
        "offset": facts["offset"],
        "time": facts["time"],
    }
    for name, value in (facts["row"] or {}).items():
        shown[name] = cell_of(name, value)
    show_facts(shown, as_json=False)
    if found.state == "unknown":
        print("\nThe backlog has no row of it: it was never written, or went by retention.")


def key_facts(table: Table, found: KeyExplanation) -> dict[str, Any]:
    """What became of a key, in values that JSON has."""
    schema = table.schema
    return {
        "key": json_row(schema, dict(zip(table.key, found.key, strict=True))),
        "state": found.state,
        "partition": found.partition,
        "offset": found.offset,
        "time": found.time or None,
        "row": None if found.row is None else json_row(schema, found.row),
    }


def _show_table(found: TableExplanation, *, as_json: bool) -> None:
    partitions: list[dict[str, Cell]] = [
        {
            "partition": part.partition,
            "start": part.start,
            "end": part.end,
            "rows": part.end - part.start,
            "batches": part.batches,
            "bytes": part.bytes,
            "horizon": part.horizon,
            "closed": None if part.closed.startswith("1970-01-01T00:00:00.000") else part.closed,
        }
        for part in found.partitions
    ]
    holders: list[dict[str, Cell]] = [
        {
            "kind": holder.kind,
            "name": holder.name,
            "partition": holder.partition,
            "offset": holder.offset,
            "keeps_bytes": holder.keeps_bytes,
            "age_ms": holder.age_ms,
            "why": holder.why,
        }
        for holder in found.holders
    ]
    if as_json:
        show_json(
            {
                "table": found.table,
                "rows": found.rows,
                "bytes": found.bytes,
                "kept_because": found.kept_because,
                "partitions": partitions,
                "holders": holders,
            }
        )
        return
    print(f"table {found.table}: {found.rows:,} rows, {bytes_text(found.bytes)}")
    print(found.kept_because)
    print()
    show_table(partitions, columns=list(partitions[0]), as_json=False, title="partitions")
    print()
    if not holders:
        print("Nobody holds any of it.")
        return
    for row in holders:
        row["keeps"] = bytes_text(int(row.pop("keeps_bytes") or 0))
        row["for"] = times_text(int(row.pop("age_ms") or 0))
    columns = ("kind", "name", "partition", "offset", "keeps", "for", "why")
    show_table(holders, columns=columns, as_json=False, title="holders")
