"""What a version changes, entry by entry, and how a catalog takes it.

A command is a wish and is checked; an entry is what became of it and is only carried out. Every
node carries out the same entries on the same catalog, so there is nothing to decide here.

Entries hold whole descriptors, so that what a newer release put into one reaches the catalog of an
older node too. Only a changed table leaves out the schema versions that stay as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from lowmark.catalog.catalog import Catalog, CatalogVersion
from lowmark.catalog.descriptors import (
    Index,
    IndexId,
    Schema,
    SchemaId,
    Table,
    TableId,
    TableSchema,
    Zone,
    ZoneId,
)
from lowmark.catalog.errors import CatalogUnreadable
from lowmark.runtime import HybridTime


@dataclass(frozen=True, slots=True)
class IdsTaken:
    """This many ids were given out, from the catalog's next one on."""

    count: int


@dataclass(frozen=True, slots=True)
class NewZone:
    """A zone was created."""

    zone: Zone


class ZoneChange(Enum):
    """What was done to a zone."""

    ALTERED = 1
    RENAMED = 2


@dataclass(frozen=True, slots=True)
class ChangedZone:
    """A zone was altered or renamed."""

    change: ZoneChange
    zone: Zone


@dataclass(frozen=True, slots=True)
class DroppedZone:
    """A zone is gone."""

    zone_id: ZoneId


@dataclass(frozen=True, slots=True)
class DefaultZoneSet:
    """Tables that name no zone go here from now on."""

    zone_id: ZoneId


@dataclass(frozen=True, slots=True)
class NewSchema:
    """A schema was created."""

    schema: Schema


@dataclass(frozen=True, slots=True)
class DroppedSchema:
    """A schema is gone; its tables went before it."""

    schema_id: SchemaId


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table was created."""

    table: Table


class TableChange(Enum):
    """What was done to a table."""

    RENAMED = 1
    OPTIONS_SET = 2
    COLUMNS_ADDED = 3
    COLUMNS_DROPPED = 4
    COLUMN_RENAMED = 5
    COLUMN_ALTERED = 6
    SCHEMAS_TRIMMED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTable:
    """A table is different now.

    `table` is the table as it is, but for its schema versions: there are only the new ones. The old
    ones stay from number `keep_from` on. A long history is not written again with each change.
    """

    change: TableChange
    table: Table
    keep_from: int


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table is gone; its indexes went before it."""

    table_id: TableId


@dataclass(frozen=True, slots=True)
class NewIndex:
    """An index was created."""

    index: Index


class IndexChange(Enum):
    """What was done to an index."""

    STATUS = 1
    RENAMED = 2


@dataclass(frozen=True, slots=True)
class ChangedIndex:
    """An index went a step on in its life, or was renamed."""

    change: IndexChange
    index: Index


@dataclass(frozen=True, slots=True)
class RemovedIndex:
    """An index is gone."""

    index_id: IndexId


Entry = (
    IdsTaken
    | NewZone
    | ChangedZone
    | DroppedZone
    | DefaultZoneSet
    | NewSchema
    | DroppedSchema
    | NewTable
    | ChangedTable
    | DroppedTable
    | NewIndex
    | ChangedIndex
    | RemovedIndex
)

_IDS_END = 1 << 62


def apply(
    catalog: Catalog,
    entries: Iterable[Entry],
    *,
    version: CatalogVersion,
    time: HybridTime,
    activates_at: HybridTime,
) -> Catalog:
    """The next catalog. Entries that do not fit it are not what was written, and say so."""
    catalog = replace(catalog, version=version, time=time, activates_at=activates_at)
    for entry in entries:
        catalog = _apply(catalog, entry, time)
    return catalog


def _apply(catalog: Catalog, entry: Entry, time: HybridTime) -> Catalog:
    match entry:
        case IdsTaken(count):
            if not 0 < count < _IDS_END - catalog.next_id:
                raise CatalogUnreadable(f"{count} ids are taken at once")
            return replace(catalog, next_id=catalog.next_id + count)
        case NewZone(zone):
            _check_new(catalog, zone.id)
            return catalog.with_zone(replace(zone, updated_at=time))
        case ChangedZone(_, zone):
            _check_there(zone.id in catalog.zones, "zone", zone.id)
            return catalog.with_zone(replace(zone, updated_at=time))
        case DroppedZone(zone_id):
            return catalog.without_zone(zone_id)
        case DefaultZoneSet(zone_id):
            return catalog.with_default_zone(zone_id)
        case NewSchema(schema):
            _check_new(catalog, schema.id)
            return catalog.with_schema(replace(schema, updated_at=time))
        case DroppedSchema(schema_id):
            return catalog.without_schema(schema_id)
        case NewTable(table):
            _check_new(catalog, table.id)
            return catalog.with_table(replace(table, updated_at=time))
        case ChangedTable():
            return catalog.with_table(_changed(catalog, entry, time))
        case DroppedTable(table_id):
            return catalog.without_table(table_id)
        case NewIndex(index):
            _check_new(catalog, index.id)
            return catalog.with_index(replace(index, updated_at=time))
        case ChangedIndex(_, index):
            _check_there(index.id in catalog.indexes, "index", index.id)
            return catalog.with_index(replace(index, updated_at=time))
        case RemovedIndex(index_id):
            return catalog.without_index(index_id)
        case _:
            assert_never(entry)


def _changed(catalog: Catalog, entry: ChangedTable, time: HybridTime) -> Table:
    old = catalog.table(entry.table.id)
    if old is None:
        raise CatalogUnreadable(f"table {entry.table.id} changes, but is not there")
    if old.partitions != entry.table.partitions or old.key != entry.table.key:
        raise CatalogUnreadable(f"table {old.id} changes its partitions or its key")
    kept: tuple[TableSchema, ...] = old.schemas
    if entry.keep_from > kept[0].number:
        kept = tuple(schema for schema in kept if schema.number >= entry.keep_from)
    return replace(entry.table, schemas=(*kept, *entry.table.schemas), updated_at=time)


def _check_new(catalog: Catalog, new_id: int) -> None:
    # Ids are taken before they are used, so every sound id is below the next one.
    taken = (catalog.zones, catalog.schemas, catalog.tables, catalog.indexes)
    if not 0 < new_id < catalog.next_id or any(new_id in things for things in taken):
        raise CatalogUnreadable(f"id {new_id} is used twice or was never given")


def _check_there(there: bool, kind: str, object_id: int) -> None:
    if not there:
        raise CatalogUnreadable(f"{kind} {object_id} changes, but is not there")
