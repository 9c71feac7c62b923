"""Commands on tables, and on their columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal, Self

from immutables import Map

from lowmark.catalog.catalog import DEFAULT_SCHEMA, Catalog
from lowmark.catalog.descriptors import (
    Column,
    ColumnId,
    Table,
    TableId,
    TableSchema,
    Zone,
)
from lowmark.catalog.entries import ChangedTable, Entry, IdsTaken, NewTable, TableChange
from lowmark.catalog.errors import CatalogRefused, PartitionsFixed, Reason
from lowmark.catalog.lookups import (
    check_free,
    check_path,
    find_column,
    find_schema,
    find_table,
    find_zone,
    nothing_given,
    table_with_id,
)
from lowmark.catalog.names import (
    COLUMNS_MAX,
    KEY_COLUMNS_MAX,
    PARTITIONS_MAX,
    SCHEMA_VERSIONS_MAX,
    check_column_name,
    check_distinct,
    check_name,
    check_range,
)
from lowmark.catalog.options import OptionValue, check_option, check_together, option_text
from lowmark.catalog.schema_commands import dropping
from lowmark.catalog.types import ColumnType, can_be_key, parse_type, type_text, widens
from lowmark.catalog.values import Value, canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class NewColumn:
    """A column that does not have its id yet."""

    name: str
    type: ColumnType
    required: bool = False
    default: Value | None = None

    def __post_init__(self) -> None:
        check_column_name(self.name)
        if self.default is not None:
            value = canonical(self.type, self.default, column=self.name)
            object.__setattr__(self, "default", value)

    @classmethod
    def of(
        cls, name: str, type_of: str, *, required: bool = False, default: Value | None = None
    ) -> NewColumn:
        """A column whose type is given as text."""
        return cls(name=name, type=parse_type(type_of), required=required, default=default)

    def with_id(self, column_id: int) -> Column:
        """The column as a table has it."""
        return Column(
            id=ColumnId(column_id),
            name=self.name,
            type=self.type,
            required=self.required,
            default=self.default,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """Create a table. The key may be empty; partitions and zone come from the default zone if not
    given. Key, partitions and zone never change.
    """

    name: str
    columns: tuple[NewColumn, ...]
    key: tuple[str, ...] = ()
    schema: str = DEFAULT_SCHEMA
    zone: str | None = None
    partitions: int | None = None
    options: Mapping[str, OptionValue] = field(default=Map())
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        check_path("table", self.schema, self.name)
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "key", tuple(self.key))
        check_columns(self.columns, table=self.name)
        _check_key(self)
        if self.zone is not None:
            check_name("zone", self.zone)
        if self.partitions is not None:
            check_range(
                self.partitions, most=PARTITIONS_MAX, what="partitions", about=("table", self.name)
            )
        options = {n: option_text(n, v, table=self.name) for n, v in self.options.items()}
        check_together(options.items(), table=self.name, has_key=bool(self.key))
        object.__setattr__(self, "options", MappingProxyType(dict(sorted(options.items()))))

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What creating it means now."""
        schema = find_schema(catalog, self.schema)
        if self.if_not_exists and catalog.table_named(self.schema, self.name):
            return ()
        check_free(catalog, "table", schema=schema, name=self.name)
        zone = self._zone(catalog)
        columns = tuple(column.with_id(at) for at, column in enumerate(self.columns, start=1))
        ids = {column.name: column.id for column in columns}
        table = Table(
            id=TableId(catalog.next_id),
            schema_id=schema.id,
            zone_id=zone.id,
            name=self.name,
            schemas=(TableSchema(number=1, columns=columns),),
            next_column_id=ColumnId(len(columns) + 1),
            partitions=zone.partitions if self.partitions is None else self.partitions,
            key=tuple(ids[name] for name in self.key),
            options=tuple((name, str(text)) for name, text in self.options.items()),
        )
        return (IdsTaken(1), NewTable(table))

    def _zone(self, catalog: Catalog) -> Zone:
        if self.zone is not None:
            return find_zone(catalog, self.zone)
        if catalog.default_zone is None:
            raise CatalogRefused(
                f"table {self.schema}.{self.name} names no zone, and there is no default zone",
                reason=Reason.UNKNOWN,
                about=("table", f"{self.schema}.{self.name}"),
                hint="Name a zone, or make one the default.",
            )
        return catalog.default_zone


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable:
    """Remove a table and its indexes; reads as of earlier times go on until the watermark."""

    name: str
    schema: str = DEFAULT_SCHEMA
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_path("table", self.schema, self.name)

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What dropping it means now."""
        if self.if_exists and catalog.table_named(self.schema, self.name) is None:
            return ()
        return dropping(catalog, find_table(catalog, self.schema, self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameTable:
    """Give a table another name in its schema."""

    name: str
    to: str
    schema: str = DEFAULT_SCHEMA
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_path("table", self.schema, self.name)
        check_name("table", self.to)

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What renaming it means now."""
        if self.if_exists and catalog.table_named(self.schema, self.name) is None:
            return ()
        table = find_table(catalog, self.schema, self.name)
        if self.to == self.name:
            return ()
        check_free(catalog, "table", schema=catalog.schemas[table.schema_id], name=self.to)
        renamed = replace(table, name=self.to, schemas=())
        return (ChangedTable(change=TableChange.RENAMED, table=renamed, keep_from=1),)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTable:
    """Give a table another number of partitions: refused by name, with what to do instead. The
    number that it has is fine.
    """

    name: str
    partitions: int
    schema: str = DEFAULT_SCHEMA
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_path("table", self.schema, self.name)
        check_range(
            self.partitions, most=PARTITIONS_MAX, what="partitions", about=("table", self.name)
        )

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """Nothing, or a refusal."""
        if self.if_exists and catalog.table_named(self.schema, self.name) is None:
            return ()
        table = find_table(catalog, self.schema, self.name)
        if self.partitions != table.partitions:
            raise PartitionsFixed(
                _shown_name(self.schema, self.name),
                wanted=self.partitions,
                partitions=table.partitions,
            )
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTableOptions:
    """Set options; `None` takes one back to its default."""

    table: str
    options: Mapping[str, OptionValue | None]
    schema: str = DEFAULT_SCHEMA
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_path("table", self.schema, self.table)
        texts: dict[str, str | None] = {}
        if "partitions" in self.options:
            name = _shown_name(self.schema, self.table)
            raise PartitionsFixed(name, wanted=self.options["partitions"])
        for name, value in self.options.items():
            check_option(name, table=self.table)  # also when it is taken back
            texts[name] = None if value is None else option_text(name, value, table=self.table)
        object.__setattr__(self, "options", MappingProxyType(dict(sorted(texts.items()))))

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What this means now; options that are not named stay."""
        if self.if_exists and catalog.table_named(self.schema, self.table) is None:
            return ()
        table = find_table(catalog, self.schema, self.table)
        texts: dict[str, str] = dict(table.options)
        for name, text in self.options.items():
            if text is None:
                texts.pop(name, None)
            else:
                texts[name] = str(text)
        options = tuple(sorted(texts.items()))
        if options == table.options:
            return ()
        check_together(options, table=self.table, has_key=bool(table.key))
        changed = replace(table, options=options, schemas=())
        return (ChangedTable(change=TableChange.OPTIONS_SET, table=changed, keep_from=1),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTableSchemas:
    """Forget the schema versions below `keep_from`, which no row refers to any more. Internal."""

    table_id: TableId
    keep_from: int

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What trimming means now."""
        table = table_with_id(catalog, self.table_id)
        check_range(
            self.keep_from,
            most=table.latest.number,
            what="as its first schema version",
            about=("table", catalog.name_of(table)),
        )
        if self.keep_from <= table.schemas[0].number:
            return ()
        trimmed = replace(table, schemas=())
        return (
            ChangedTable(
                change=TableChange.SCHEMAS_TRIMMED, table=trimmed, keep_from=self.keep_from
            ),
        )


TableCommand = (
    CreateTable | DropTable | RenameTable | AlterTable | SetTableOptions | TrimTableSchemas
)


def _shown_name(schema: str, table: str) -> str:
    """As people write it."""
    return table if schema == DEFAULT_SCHEMA else f"{schema}.{table}"


def check_columns(columns: Iterable[NewColumn], *, table: str) -> None:
    """Refuse a list of columns that no table could have."""
    columns = tuple(columns)
    if not columns:
        raise nothing_given("column", about=("table", table))
    check_range(len(columns), most=COLUMNS_MAX, what="columns", about=("table", table))
    check_distinct((column.name for column in columns), kind="column", of=table, fold=True)


def _check_key(command: CreateTable) -> None:
    check_distinct(command.key, kind="key column", of=command.name)
    check_range(
        len(command.key),
        least=0,
        most=KEY_COLUMNS_MAX,
        what="key columns",
        about=("table", command.name),
    )
    columns = {column.name: column for column in command.columns}
    for name in command.key:
        column = columns.get(name)
        if column is None:
            raise _bad_key(
                command.name, name, "there is no such column", "Name columns of the table."
            )
        if not can_be_key(column.type):
            raise _bad_key(
                command.name,
                name,
                f"it is of type {type_text(column.type)}",
                "Keys are integers, strings, binary, decimals, dates, timestamps or UUIDs.",
            )
        if not column.required:
            raise _bad_key(command.name, name, "it may be null", "Make it required (not null).")
        if column.default is not None:
            raise _bad_key(command.name, name, "it has a default", "Take the default away.")


def _bad_key(table: str, column: str, why: str, hint: str) -> CatalogRefused:
    return CatalogRefused(
        f"column {column} can't be in the key of table {table}: {why}",
        reason=Reason.KEY,
        about=("column", column),
        hint=hint,
    )


# Commands on the columns of a table. Each one that changes something makes one schema version.


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

    @classmethod
    def several(cls, names: Mapping[str, str], *, table: str, schema: str) -> list[Self]:
        """Commands that rename columns as one change: `names` maps the names of before to those of
        after. A column is renamed after the one whose name it takes; where columns take each
        other's names, one of them has another name in between.
        """
        left, commands = dict(names), list[Self]()
        while left:
            name = next((one for one in left if not _waits(one, left)), None)
            if name is not None:
                to = left.pop(name)
            else:  # a circle: with one of them aside, the others can go one after another
                name = next(iter(left))
                to = _aside(names)
                left[to] = left.pop(name)
            commands.append(cls(table=table, column=name, to=to, schema=schema))
        return commands


def _waits(name: str, left: Mapping[str, str]) -> bool:
    """Whether another column that is still to be renamed has the name that this one gets."""
    to = left[name].casefold()
    return any(other.casefold() == to for other in left if other != name)


def _aside(names: Mapping[str, str]) -> str:
    """A name that is none of these, nor what people call a column."""
    known, aside = {one.casefold() for one in (*names, *names.values())}, "(renamed)"
    while aside in known:
        aside += "_"
    return aside


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
