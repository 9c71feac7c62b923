"""`lowmark explain`: what is kept of a table and for whom; what became of a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from lowmark.cli.database import DatabaseOption, TableArgument, key_of, opened_database
from lowmark.cli.formatting import facts_of
from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.cli.values import cell_of, json_row
from lowmark.client import (
    Holder,
    KeyExplanation,
    PartitionExplanation,
    Table,
    TableExplanation,
)
from lowmark.formatting import bytes_text, counted, times_text


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

    With --json, one object: table, rows, bytes, kept_because, ledger_rows, ledger_deletes,
    ledger_bytes, partitions (partition, start, end, rows, batches, bytes, horizon, closed, and
    ledger: epoch, horizon, deletes_below, rows, deletes, bytes, problem), holders (of the backlog:
    kind, name, partition, offset, age_ms, why, keeps_bytes), delete_holders (the same without
    keeps_bytes); of a key: key, state (live, deleted or unknown), source (ledger or backlog),
    partition, offset, time, row.

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
        "found_in": facts["source"],
        "partition": facts["partition"],
        "offset": facts["offset"],
        "time": facts["time"],
    }
    for name, value in (facts["row"] or {}).items():
        shown[name] = cell_of(name, value)
    show_facts(shown, as_json=False)
    if found.state == "unknown":
        print(
            "\nNeither the ledger nor the backlog has a row of it: it was never written, went by"
            "\nretention, or was deleted, and all cursors and readers have passed the delete."
        )


def key_facts(table: Table, found: KeyExplanation) -> dict[str, Any]:
    """What became of a key, in values that JSON has."""
    schema = table.schema
    return {
        "key": json_row(schema, dict(zip(table.key, found.key, strict=True))),
        "state": found.state,
        "source": found.source or None,
        "partition": found.partition,
        "offset": found.offset,
        "time": found.time or None,
        "row": None if found.row is None else json_row(schema, found.row),
    }


def _show_table(found: TableExplanation, *, as_json: bool) -> None:
    partitions = [_partition_facts(part) for part in found.partitions]
    holders = [
        _holder_facts(holder) | {"keeps_bytes": holder.keeps_bytes} for holder in found.holders
    ]
    on_deletes = [_holder_facts(holder) for holder in found.delete_holders]
    if as_json:
        show_json(
            facts_of(found, "table rows bytes kept_because ledger_rows ledger_deletes ledger_bytes")
            | {"partitions": partitions, "holders": holders, "delete_holders": on_deletes}
        )
        return
    size = f"{counted(found.rows, 'row')}, {bytes_text(found.bytes)}"
    print(f"table {found.table}: {size} in the backlog")
    print(found.kept_because)
    print()
    ledgers = [part.pop("ledger") for part in partitions]
    show_table(partitions, columns=list(partitions[0]), as_json=False, title="partitions")
    _show_ledgers(found, partitions, ledgers)
    print()
    _show_holders(holders, "holders")
    if any(ledgers) and on_deletes:
        print()
        _show_holders(on_deletes, "holders of deletes")


def _partition_facts(part: PartitionExplanation) -> dict[str, Any]:
    return {
        **facts_of(part, "partition start end"),
        "rows": part.end - part.start,
        **facts_of(part, "batches bytes horizon"),
        "closed": None if part.closed.startswith("1970-01-01T00:00:00.000") else part.closed,
        "ledger": None if part.ledger is None else asdict(part.ledger),
    }


def _holder_facts(holder: Holder) -> dict[str, Any]:
    return facts_of(holder, "kind name partition offset age_ms why")


def _show_ledgers(
    found: TableExplanation,
    partitions: Sequence[dict[str, Any]],
    ledgers: Sequence[dict[str, Any] | None],
) -> None:
    rows = [
        {"partition": part["partition"]} | ledger
        for part, ledger in zip(partitions, ledgers, strict=True)
        if ledger is not None
    ]
    print()
    if not rows:
        print("There is no ledger: nothing was compacted yet.")
        return
    words = f"ledgers: {counted(found.ledger_rows, 'row')}, {bytes_text(found.ledger_bytes)}"
    columns = ("partition", "horizon", "rows", "deletes", "bytes", "epoch", "deletes_below")
    show_table(rows, columns=columns, as_json=False, title=words)
    for row in rows:
        if row["problem"]:
            print(f"warning: partition {row['partition']}: {row['problem']}")


def _show_holders(holders: Sequence[dict[str, Any]], title: str) -> None:
    """Who holds the backlog, or its deletes: then there are no bytes."""
    if not holders:
        print("Nothing holds any of it.")
        return
    columns = ["kind", "name", "partition", "offset", "keeps", "for", "why"]
    rows = [
        row | {"for": times_text(row["age_ms"]), "keeps": bytes_text(row.get("keeps_bytes", 0))}
        for row in holders
    ]
    if "keeps_bytes" not in holders[0]:
        columns.remove("keeps")
    show_table(rows, columns=columns, as_json=False, title=title)
