"""Commands on tables as a whole; those on columns are in `column_commands`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

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
from lowmark.catalog.errors import CatalogRefused, Reason
from lowmark.catalog.lookups import (
    check_free,
    check_path,
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
    check_column_name,
    check_distinct,
    check_name,
    check_range,
)
from lowmark.catalog.options import OptionValue, check_option, check_together, option_text
from lowmark.catalog.schema_commands import dropping
from lowmark.catalog.types import ColumnType, can_be_key, parse_type, type_text
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
class SetTableOptions:
    """Set options; `None` takes one back to its default."""

    table: str
    options: Mapping[str, OptionValue | None]
    schema: str = DEFAULT_SCHEMA
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_path("table", self.schema, self.table)
        texts: dict[str, str | None] = {}
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


TableCommand = CreateTable | DropTable | RenameTable | SetTableOptions | TrimTableSchemas


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
