"""`lowmark get`, `lowmark delete` and `lowmark explain`: rows by their keys, and what is kept."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from lowmark.catalog import Table as TableDescriptor
from lowmark.catalog import TableSchema
from lowmark.cli.catalog_history import show_explanation
from lowmark.cli.database import DatabaseOption, TableArgument, key_of, opened_database
from lowmark.cli.files import cell_of, json_row, opened_input, readable
from lowmark.cli.formatting import facts_of
from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.cli.session import FAILED, WrongUse
from lowmark.client import (
    Holder,
    KeyExplanation,
    PartitionExplanation,
    Table,
    TableExplanation,
)
from lowmark.convert.files import read_rows
from lowmark.errors import Rejected
from lowmark.formatting import bytes_text, counted, times_text

# `lowmark explain`: what is kept of a table and for whom; what became of a key.


def explain(
    ctx: typer.Context,
    table: TableArgument,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="K", help="Explain this key; once for each column of the key."),
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Show what is kept of a table, which readers need it, and why; or how a key stands.

    `lowmark explain catalog` says it of the catalog's versions (`lowmark catalog explain`), unless
    there is a table of that name.

    With --json, one object: table, rows, bytes, kept_because, ledger_rows, ledger_deletes,
    ledger_bytes, partitions (partition, start, end, rows, batches, bytes, horizon, closed, and
    ledger: epoch, horizon, deletes_below, rows, deletes, bytes, problem), holders (of the backlog:
    kind, name, partition, offset, age_ms, why, keeps_bytes), delete_holders (the same without
    keeps_bytes); of a key: key, state (live, deleted or unknown), source (backlog, or ledger if
    the backlog does not have it any more), in_ledger (whether the ledger has it), partition,
    offset, time, row.

    Example: lowmark explain orders --key o-1 --data ./shop
    """
    with opened_database(ctx, data) as database:
        if table == "catalog" and not key and table not in database.tables():
            show_explanation(database, as_json=as_json)
            return
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
        "found_in": " and ".join(found.places) or None,
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
        "in_ledger": found.in_ledger,
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


def get(
    ctx: typer.Context,
    table: TableArgument,
    key: Annotated[
        list[str],
        typer.Argument(metavar="KEY...", help="One argument for each column of the key."),
    ],
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Show the latest row of a key. Exit code 1 if there is none; a line says why.

    Put -- before a key that begins with a dash.

    With --json, the row as one object, as `lowmark read --json` has it; null if there is none.

    Example: lowmark get orders o-1 --data ./shop
    """
    with opened_database(ctx, data) as database:
        if table == "catalog" and not key and table not in database.tables():
            show_explanation(database, as_json=as_json)
            return
        one = database.table(table)
        found = one.explain(key_of(one.descriptor, key))
        assert isinstance(found, KeyExplanation)
        facts = key_facts(one, found)
    if as_json:
        show_json(facts["row"])
    elif facts["row"] is not None:
        shown: dict[str, Cell] = {
            name: cell_of(name, value) for name, value in facts["row"].items()
        }
        show_facts(shown, as_json=False)
    if facts["row"] is None:
        print(_missing(table, key, facts), file=sys.stderr if as_json else sys.stdout)
        raise typer.Exit(FAILED)


def _missing(table: str, key: Sequence[str], facts: dict[str, Any]) -> str:
    words = ", ".join(key)
    if facts["state"] == "deleted":
        where = f"partition {facts['partition']}, offset {facts['offset']}"
        return f"{words} was deleted from {table} at {facts['time']} ({where})"
    return f"{words} is unknown in {table}: partition {facts['partition']} has no row of it"


def delete(
    ctx: typer.Context,
    table: TableArgument,
    key: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY...]", help="One argument for each column of the key, key after key."
        ),
    ] = None,
    keys_from: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A file with the key's columns: CSV, JSON lines, Parquet, Arrow; - is stdin.",
        ),
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Delete rows by their keys: all of them, or none if a key is not valid.

    A delete is a change like any other: it has an offset, and readers see it. A key that was
    never there can be deleted, too. Put -- before a key that begins with a dash.

    With --json, one object: table, deletes.

    Example: lowmark delete orders o-1 o-2 --data ./shop
    """
    if not key and keys_from is None:
        raise WrongUse("no key is given", hint="Give keys, or --keys-from FILE.")
    with opened_database(ctx, data) as database:
        one = database.table(table)
        _check_key(one)
        keys = _from_words(one.descriptor, key or [])
        if keys_from is not None:
            keys += _from_file(one, keys_from)
        deletes = one.delete(keys).rows if keys else 0
    if as_json:
        show_json({"table": table, "deletes": deletes})
    else:
        print(f"deleted {counted(deletes, 'key')} from {table}")


def _check_key(table: Table) -> None:
    if not table.key:
        raise Rejected(
            f"table {table.name} has no key",
            hint="Only rows with a key can be deleted; others go by retention.",
        )


def _from_words(table: TableDescriptor, words: list[str]) -> list[tuple[object, ...]]:
    size = len(table.key)
    if len(words) % size:
        return [key_of(table, words)]  # which says what is wrong
    return [key_of(table, words[at : at + size]) for at in range(0, len(words), size)]


def _from_file(table: Table, file: str) -> list[tuple[object, ...]]:
    descriptor = table.descriptor
    columns = tuple(column for column in descriptor.columns if column.id in descriptor.key)
    schema = TableSchema(number=descriptor.latest.number, columns=columns)
    keys: list[tuple[object, ...]] = []
    with opened_input(file) as (source, name):
        batches = read_rows(source, schema=schema, key=frozenset(descriptor.key), name=name)
        for each in readable(batches, name):
            rows = each.batch.to_pylist()
            keys += [tuple(row[column] for column in table.key) for row in rows]
    return keys
