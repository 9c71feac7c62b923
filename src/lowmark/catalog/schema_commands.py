"""Commands on schemas."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.catalog.catalog import Catalog
from lowmark.catalog.descriptors import Schema, SchemaId, Table
from lowmark.catalog.entries import (
    DroppedSchema,
    DroppedTable,
    Entry,
    IdsTaken,
    NewSchema,
    RemovedIndex,
)
from lowmark.catalog.errors import CatalogRefused, Reason
from lowmark.catalog.lookups import find_schema
from lowmark.catalog.names import check_schema_name


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSchema:
    """Create a schema."""

    name: str
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        check_schema_name(self.name)

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What creating it means now."""
        if catalog.schema_named(self.name):
            if self.if_not_exists:
                return ()
            raise CatalogRefused(
                f"there is a schema {self.name} already",
                reason=Reason.EXISTS,
                object_kind="schema",
                object_name=self.name,
                hint="Choose another name.",
            )
        return (IdsTaken(1), NewSchema(Schema(id=SchemaId(catalog.next_id), name=self.name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSchema:
    """Remove a schema; with `cascade`, its tables and their indexes go too."""

    name: str
    cascade: bool = False
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_schema_name(self.name)

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What dropping it means now."""
        if self.if_exists and catalog.schema_named(self.name) is None:
            return ()
        schema = find_schema(catalog, self.name)
        count = catalog.tables_in_schema(schema.id)
        if count and not self.cascade:
            raise CatalogRefused(
                f"schema {self.name} can't be dropped: it has tables ({count})",
                reason=Reason.IN_USE,
                object_kind="schema",
                object_name=self.name,
                hint="Drop them first, or drop the schema with cascade.",
            )
        tables = catalog.tables_of_schema(schema.id)
        gone = [entry for table in tables for entry in dropping(catalog, table)]
        return (*gone, DroppedSchema(schema.id))


SchemaCommand = CreateSchema | DropSchema


def dropping(catalog: Catalog, table: Table) -> tuple[Entry, ...]:
    """A table goes, its indexes before it, whatever their status."""
    indexes = catalog.indexes_of_table(table.id)
    return (*(RemovedIndex(index.id) for index in indexes), DroppedTable(table.id))
