"""Commands on the columns of a table. Each one that changes something makes one schema version."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Literal

from lowmark.catalog.catalog import DEFAULT_SCHEMA, Catalog
from lowmark.catalog.descriptors import Column, ColumnId, Table
from lowmark.catalog.entries import ChangedTable, Entry, TableChange
from lowmark.catalog.errors import CatalogRefused, Reason
from lowmark.catalog.lookups import check_path, find_column, find_table, nothing_given
from lowmark.catalog.names import (
    COLUMNS_MAX,
    SCHEMA_VERSIONS_MAX,
    check_column_name,
    check_distinct,
    check_range,
)
from lowmark.catalog.table_commands import NewColumn, check_columns
from lowmark.catalog.types import ColumnType, type_text, widens
from lowmark.catalog.values import Value, canonical


class Keep(Enum):
    """Says that a default stays as it is; `None` says that there is none any more."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumns:
    """Add columns behind the others; older rows show their defaults. With `if_not_exists`, those
    that are there already are passed over.
    """

    table: str
    columns: tuple[NewColumn, ...]
    schema: str = DEFAULT_SCHEMA
    if_table_exists: bool = False
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        check_path("table", self.schema, self.table)
        object.__setattr__(self, "columns", tuple(self.columns))
        check_columns(self.columns, table=self.table)
        for column in self.columns:
            if column.required and column.default is None:
                raise CatalogRefused(
                    f"column {column.name} can't be added to table {self.table}: it is required"
                    " and has no default, so older rows would have nothing to show",
                    reason=Reason.REQUIRED,
                    about=("column", column.name),
                    hint="Give it a default, or let it be null.",
                )

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What adding them means now."""
        if self.if_table_exists and catalog.table_named(self.schema, self.table) is None:
            return ()
        table = find_table(catalog, self.schema, self.table)
        there = {column.name.casefold(): column.name for column in table.columns}
        new = []
        for column in self.columns:
            other = there.get(column.name.casefold())
            if other is None:
                new.append(column)
            elif other != column.name or not self.if_not_exists:
                raise _taken(catalog.name_of(table), column.name, other)
        if not new:
            return ()
        check_range(
            len(table.columns) + len(new),
            most=COLUMNS_MAX,
            what="columns",
            about=("table", catalog.name_of(table)),
        )
        first = table.next_column_id
        added = tuple(column.with_id(at) for at, column in enumerate(new, start=first))
        grown = replace(table, next_column_id=ColumnId(first + len(added)))
        columns = (*table.columns, *added)
        return _changed(catalog, grown, columns, TableChange.COLUMNS_ADDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumns:
    """Remove columns that are neither in the key nor in a live index. With `if_exists`, those that
    are not there are passed over.
    """

    table: str
    columns: tuple[str, ...]
    schema: str = DEFAULT_SCHEMA
    if_table_exists: bool = False
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_path("table", self.schema, self.table)
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise nothing_given("column", about=("table", self.table))
        check_distinct(self.columns, kind="column", of=self.table)

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What dropping them means now."""
        if self.if_table_exists and catalog.table_named(self.schema, self.table) is None:
            return ()
        table = find_table(catalog, self.schema, self.table)
        gone = {
            find_column(catalog, table, name).id
            for name in self.columns
            if not self.if_exists or table.latest.column_named(name)
        }
        if not gone:
            return ()
        for column in table.columns:
            if column.id in gone:
                _check_droppable(catalog, table, column)
        left = tuple(column for column in table.columns if column.id not in gone)
        if not left:
            raise CatalogRefused(
                f"table {catalog.name_of(table)} would be left without columns",
                reason=Reason.EMPTY,
                about=("table", catalog.name_of(table)),
                hint="Leave at least one, or drop the table.",
            )
        return _changed(catalog, table, left, TableChange.COLUMNS_DROPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumn:
    """Give a column another name; its id, and so its data, stay."""

    table: str
    column: str
    to: str
    schema: str = DEFAULT_SCHEMA
    if_table_exists: bool = False

    def __post_init__(self) -> None:
        check_path("table", self.schema, self.table)
        check_column_name(self.to)

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What renaming it means now."""
        if self.if_table_exists and catalog.table_named(self.schema, self.table) is None:
            return ()
        table = find_table(catalog, self.schema, self.table)
        column = find_column(catalog, table, self.column)
        if self.to == self.column:
            return ()
        for other in table.columns:
            if other.id != column.id and other.name.casefold() == self.to.casefold():
                raise _taken(catalog.name_of(table), self.to, other.name)
        columns = _with(table, replace(column, name=self.to))
        return _changed(catalog, table, columns, TableChange.COLUMN_RENAMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterColumn:
    """Widen a column's type, let it be null, or change the default for rows to come."""

    table: str
    column: str
    schema: str = DEFAULT_SCHEMA
    type: ColumnType | None = None
    required: bool | None = None
    default: Value | Literal[Keep.KEEP] | None = KEEP
    if_table_exists: bool = False

    def __post_init__(self) -> None:
        check_path("table", self.schema, self.table)

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What altering it means now."""
        if self.if_table_exists and catalog.table_named(self.schema, self.table) is None:
            return ()
        table = find_table(catalog, self.schema, self.table)
        old = find_column(catalog, table, self.column)
        new = replace(old, type=self.type or old.type, default=self._default(old))
        if self.required is not None:
            new = replace(new, required=self.required)
        if new == old:
            return ()
        where = catalog.name_of(table)
        if old.id in table.key:
            _check_key_column(where, old, new)
        if new.type != old.type and not widens(old.type, new.type):
            raise CatalogRefused(
                f"column {old.name} of table {where} can't become {type_text(new.type)}: it is"
                f" {type_text(old.type)}, and rows that are there already would not fit",
                reason=Reason.TYPE,
                about=("column", old.name),
                hint="Wider integers, float32 to float64 and more digits of a decimal are"
                " allowed. For all else, add a new column.",
            )
        if new.required and not old.required:
            raise CatalogRefused(
                f"column {old.name} of table {where} can't become required: rows that are there"
                " already may have null in it",
                reason=Reason.REQUIRED,
                about=("column", old.name),
                hint="Add a new required column with a default.",
            )
        return _changed(catalog, table, _with(table, new), TableChange.COLUMN_ALTERED)

    def _default(self, old: Column) -> Value | None:
        value = old.default if self.default is KEEP else self.default
        return None if value is None else canonical(self.type or old.type, value, column=old.name)


ColumnCommand = AddColumns | DropColumns | RenameColumn | AlterColumn


def _changed(
    catalog: Catalog, table: Table, columns: tuple[Column, ...], change: TableChange
) -> tuple[Entry, ...]:
    if len(table.schemas) >= SCHEMA_VERSIONS_MAX:
        raise CatalogRefused(
            f"table {catalog.name_of(table)} has {len(table.schemas)} schema versions already",
            reason=Reason.LIMIT,
            about=("table", catalog.name_of(table)),
            detail="Rows may still refer to each of them.",
            hint="Compact the table, so that old versions can be trimmed; or change several"
            " columns with one command.",
        )
    # Made from the one in force, so that what a newer release put there goes on.
    schema = replace(table.latest, number=table.latest.number + 1, columns=columns)
    return (ChangedTable(change=change, table=replace(table, schemas=(schema,)), keep_from=1),)


def _with(table: Table, column: Column) -> tuple[Column, ...]:
    return tuple(column if old.id == column.id else old for old in table.columns)


def _check_droppable(catalog: Catalog, table: Table, column: Column) -> None:
    where = catalog.name_of(table)
    if column.id in table.key:
        raise CatalogRefused(
            f"column {column.name} of table {where} can't be dropped: it is in the key",
            reason=Reason.KEY,
            about=("column", column.name),
            hint="A key is for good: create another table.",
        )
    users = [
        index.name
        for index in catalog.indexes_of_table(table.id)
        if index.is_live and column.id in index.columns
    ]
    if users:
        raise CatalogRefused(
            f"column {column.name} of table {where} can't be dropped: it is in {', '.join(users)}",
            reason=Reason.IN_USE,
            about=("column", column.name),
            hint=f"Drop {'these indexes' if len(users) > 1 else 'this index'} first.",
        )


def _check_key_column(where: str, old: Column, new: Column) -> None:
    for differs, what, hint in (
        (new.type != old.type, "change its type", "Create another table, with another key."),
        (not new.required, "be null", "Leave it required."),
        (new.default is not None, "have a default", "Give keys with the rows."),
    ):
        if differs:
            raise CatalogRefused(
                f"column {old.name} of table {where} can't {what}: it is in the key",
                reason=Reason.KEY,
                about=("column", old.name),
                hint=hint,
            )


def _taken(table: str, name: str, other: str) -> CatalogRefused:
    return CatalogRefused(
        f"table {table} has a column {other} already",
        reason=Reason.EXISTS,
        about=("column", name),
        detail="" if name == other else f"{name} differs from it in case only.",
        hint="Choose another name.",
    )
