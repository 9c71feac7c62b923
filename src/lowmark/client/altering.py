"""What `Table.alter` asks of the catalog: one list of commands, carried out in one version or not
at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from lowmark.catalog import (
    AddColumns,
    AlterColumn,
    AlterTable,
    Catalog,
    Command,
    DropColumns,
    RenameColumn,
    SetTableOptions,
    Table,
)
from lowmark.client.checking import many
from lowmark.convert.columns import ColumnsLike, columns_of
from lowmark.errors import Rejected

V = TypeVar("V")


def alterations(
    catalog: Catalog,
    table: Table,
    *,
    add: ColumnsLike | None,
    drop: str | Sequence[str] | None,
    rename: Mapping[str, str] | None,
    widen: ColumnsLike | None,
    options: Mapping[str, str | int | None] | None,
    partitions: int | None = None,
) -> list[Command]:
    """The commands, in an order in which columns are named as they are called before."""
    schema, _, name = catalog.name_of(table).rpartition(".")
    commands: list[Command] = []
    if partitions is not None:
        commands.append(AlterTable(name=name, schema=schema, partitions=partitions))
    commands += [
        AlterColumn(table=name, schema=schema, column=column.name, type=column.type)
        for column in (columns_of(widen, ()) if widen is not None else ())
    ]
    names = (drop,) if isinstance(drop, str) else tuple(many(drop or (), "drop"))
    if names:
        commands.append(DropColumns(table=name, schema=schema, columns=tuple(map(_name, names))))
    renames = {_name(column): _name(to) for column, to in _mapping(rename, "rename").items()}
    commands += RenameColumn.several(renames, table=name, schema=schema)
    if add is not None and (columns := columns_of(add, ())):
        commands.append(AddColumns(table=name, schema=schema, columns=columns))
    if wanted := _mapping(options, "options"):
        commands.append(SetTableOptions(table=name, schema=schema, options=wanted))
    if not commands:
        raise Rejected(
            f"no change to table {table.name} is given",
            hint='Give one: alter(add={"note": str}), drop=, rename=, widen= or options=.',
        )
    return commands


def _mapping(given: Mapping[str, V] | None, what: str) -> Mapping[str, V]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise Rejected(
            f"{what} can't be given as {type(given).__name__}",
            hint=f'Use a dict: {what}={{"name": "value"}}.',
        )
    return given


def _name(given: object) -> str:
    if not isinstance(given, str):
        raise Rejected(f"{given!r:.100} can't name a column: it is not text")
    return given
