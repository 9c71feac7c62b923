"""Finds what a command names, or refuses it by name."""

from __future__ import annotations

from collections.abc import Iterable

from lowmark.catalog.catalog import Catalog
from lowmark.catalog.descriptors import Column, Index, IndexId, Schema, Table, TableId, Zone
from lowmark.catalog.errors import CatalogRefused, Reason
from lowmark.catalog.names import check_name, check_schema_name


def check_path(kind: str, schema: str, name: str) -> None:
    """Refuse what can't be `schema.name`."""
    check_schema_name(schema)
    check_name(kind, name)


def find_schema(catalog: Catalog, name: str) -> Schema:
    """The schema that a command works in."""
    schema = catalog.schema_named(name)
    if schema is None:
        known = (schema.name for schema in catalog.all_schemas())
        raise _unknown("schema", name, hint=f"Create it first. {_there_are('schemas', known)}")
    return schema


def find_table(catalog: Catalog, schema: str, name: str) -> Table:
    """The table that a command is about."""
    table = catalog.table_named(schema, name)
    if table is None:
        find_schema(catalog, schema)
        raise _unknown("table", f"{schema}.{name}", hint="Check its name and its schema.")
    return table


def find_index(catalog: Catalog, schema: str, name: str) -> Index:
    """The live index that a command is about."""
    index = catalog.index_named(schema, name)
    if index is None:
        find_schema(catalog, schema)
        raise _unknown("index", f"{schema}.{name}", hint="Check its name and its schema.")
    return index


def find_zone(catalog: Catalog, name: str) -> Zone:
    """The zone that a command is about."""
    zone = catalog.zone_named(name)
    if zone is None:
        known = (zone.name for zone in catalog.all_zones())
        raise _unknown("zone", name, hint=f"Create it first. {_there_are('zones', known)}")
    return zone


def find_column(catalog: Catalog, table: Table, name: str) -> Column:
    """The column that a command is about."""
    column = table.latest.column_named(name)
    if column is None:
        known = ", ".join(column.name for column in table.columns[:20])
        raise CatalogRefused(
            f"table {catalog.name_of(table)} has no column {name}",
            reason=Reason.UNKNOWN,
            about=("column", name),
            hint=f"It has {known}{', …' if len(table.columns) > 20 else ''}.",
        )
    return column


def index_with_id(catalog: Catalog, index_id: IndexId) -> Index:
    """The index with this id."""
    index = catalog.index(index_id)
    if index is None:
        raise _unknown("index", f"with id {index_id}", hint="It may have been dropped.")
    return index


def table_with_id(catalog: Catalog, table_id: TableId) -> Table:
    """The table with this id."""
    table = catalog.table(table_id)
    if table is None:
        raise _unknown("table", f"with id {table_id}", hint="It may have been dropped.")
    return table


def check_free(catalog: Catalog, kind: str, *, schema: Schema, name: str) -> None:
    """Refuse a name that a table or a live index of the schema has."""
    for other, taken in (
        ("a table", catalog.table_named(schema.name, name)),
        ("an index", catalog.index_named(schema.name, name)),
    ):
        if taken is not None:
            raise CatalogRefused(
                f"{kind} {schema.name}.{name} can't be made: {other} has this name already",
                reason=Reason.EXISTS,
                about=(kind, f"{schema.name}.{name}"),
                hint="Choose another name, or drop or rename the other one first.",
            )


def nothing_given(what: str, *, about: tuple[str, str]) -> CatalogRefused:
    """The refusal of a list without anything in it."""
    return CatalogRefused(
        f"no {what} given for {about[0]} {about[1]}",
        reason=Reason.EMPTY,
        about=about,
        hint="Give at least one.",
    )


def _unknown(kind: str, name: str, *, hint: str) -> CatalogRefused:
    return CatalogRefused(
        f"there is no {kind} {name}",
        reason=Reason.UNKNOWN,
        about=(kind, name),
        hint=hint,
    )


def _there_are(kinds: str, names: Iterable[str]) -> str:
    listed = sorted(names)[:20]
    return f"There are {kinds} {', '.join(listed)}." if listed else f"There are no {kinds}."
