"""`lowmark get` and `lowmark delete`: rows by their keys."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from lowmark.catalog import Table as TableDescriptor
from lowmark.catalog import TableSchema
from lowmark.cli.database import DatabaseOption, TableArgument, key_of, opened_database
from lowmark.cli.explain import key_facts
from lowmark.cli.files import opened_input, readable
from lowmark.cli.output import Cell, Json, show_facts, show_json
from lowmark.cli.session import FAILED, WrongUse
from lowmark.cli.values import cell_of
from lowmark.client import KeyExplanation, Table
from lowmark.convert.files import read_rows
from lowmark.errors import Rejected
from lowmark.formatting import counted


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

    A key that begins with a dash stands behind --.

    With --json, the row as one object, as `lowmark read --json` has it; null if there is none.

    Example: lowmark get orders o-1 --data ./shop
    """
    with opened_database(ctx, data) as database:
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
    """Delete rows by their keys: all of them, or none if a key can't be one.

    A delete is a change like any other: it has an offset, and readers see it. A key that was
    never there can be deleted, too. A key that begins with a dash stands behind --.

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
