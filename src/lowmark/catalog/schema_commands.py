"""Commands on schemas and on zones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowmark.catalog.catalog import Catalog
from lowmark.catalog.descriptors import Schema, SchemaId, Table, Zone, ZoneId
from lowmark.catalog.entries import (
    ChangedZone,
    DefaultZoneSet,
    DroppedSchema,
    DroppedTable,
    DroppedZone,
    Entry,
    IdsTaken,
    NewSchema,
    NewZone,
    RemovedIndex,
    ZoneChange,
)
from lowmark.catalog.errors import CatalogRefused, Reason
from lowmark.catalog.lookups import find_schema, find_zone
from lowmark.catalog.names import (
    PARTITIONS_MAX,
    REPLICAS_MAX,
    check_name,
    check_range,
    check_schema_name,
)
from lowmark.catalog.node_filter import parse_filter


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
                about=("schema", self.name),
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
                about=("schema", self.name),
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


# Commands on zones.

REPLICAS_DEFAULT = 3
PARTITIONS_DEFAULT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateZone:
    """Create a zone."""

    name: str
    replicas: int = REPLICAS_DEFAULT
    partitions: int = PARTITIONS_DEFAULT
    node_filter: str = ""
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        check_name("zone", self.name)
        _check_numbers(self.name, self.replicas, self.partitions)
        object.__setattr__(self, "node_filter", str(parse_filter(self.node_filter)))

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What creating it means now."""
        if self.if_not_exists and catalog.zone_named(self.name):
            return ()
        _check_free(catalog, self.name)
        zone = Zone(
            id=ZoneId(catalog.next_id),
            name=self.name,
            replicas=self.replicas,
            partitions=self.partitions,
            node_filter=self.node_filter,
        )
        return (IdsTaken(1), NewZone(zone))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterZone:
    """Change what is given. Partitions are what new tables get; a table's own never change."""

    name: str
    replicas: int | None = None
    partitions: int | None = None
    node_filter: str | None = None
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_name("zone", self.name)
        _check_numbers(
            self.name,
            1 if self.replicas is None else self.replicas,
            1 if self.partitions is None else self.partitions,
        )
        if self.node_filter is not None:
            object.__setattr__(self, "node_filter", str(parse_filter(self.node_filter)))

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What altering it means now."""
        if self.if_exists and catalog.zone_named(self.name) is None:
            return ()
        old = find_zone(catalog, self.name)
        zone = replace(
            old,
            replicas=old.replicas if self.replicas is None else self.replicas,
            partitions=old.partitions if self.partitions is None else self.partitions,
            node_filter=old.node_filter if self.node_filter is None else self.node_filter,
        )
        return () if zone == old else (ChangedZone(ZoneChange.ALTERED, zone),)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameZone:
    """Give a zone another name; tables refer to it by id and stay."""

    name: str
    to: str
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_name("zone", self.name)
        check_name("zone", self.to)

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What renaming it means now."""
        if self.if_exists and catalog.zone_named(self.name) is None:
            return ()
        zone = find_zone(catalog, self.name)
        if self.to == self.name:
            return ()
        _check_free(catalog, self.to)
        return (ChangedZone(ZoneChange.RENAMED, replace(zone, name=self.to)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDefaultZone:
    """Let tables that name no zone go here."""

    name: str

    def __post_init__(self) -> None:
        check_name("zone", self.name)

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What this means now."""
        zone = find_zone(catalog, self.name)
        return () if zone.id == catalog.default_zone_id else (DefaultZoneSet(zone.id),)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropZone:
    """Remove a zone that no table uses."""

    name: str
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_name("zone", self.name)

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What dropping it means now."""
        if self.if_exists and catalog.zone_named(self.name) is None:
            return ()
        zone = find_zone(catalog, self.name)
        if zone.id == catalog.default_zone_id:
            raise _in_use(self.name, "it is the default zone", "Make another one the default.")
        if count := catalog.tables_in_zone(zone.id):
            names = [catalog.name_of(table) for table in catalog.tables_of_zone(zone.id)[:3]]
            listed = ", ".join(names) + (", …" if count > len(names) else "")
            raise _in_use(self.name, f"it has tables ({listed})", "Drop them first.")
        return (DroppedZone(zone.id),)


ZoneCommand = CreateZone | AlterZone | RenameZone | SetDefaultZone | DropZone


def _check_numbers(name: str, replicas: int, partitions: int) -> None:
    check_range(replicas, most=REPLICAS_MAX, what="replicas", about=("zone", name))
    check_range(partitions, most=PARTITIONS_MAX, what="partitions", about=("zone", name))


def _check_free(catalog: Catalog, name: str) -> None:
    if catalog.zone_named(name):
        raise CatalogRefused(
            f"there is a zone {name} already",
            reason=Reason.EXISTS,
            about=("zone", name),
            hint="Choose another name.",
        )


def _in_use(name: str, why: str, hint: str) -> CatalogRefused:
    return CatalogRefused(
        f"zone {name} can't be dropped: {why}",
        reason=Reason.IN_USE,
        about=("zone", name),
        hint=hint,
    )
