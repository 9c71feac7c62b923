"""Commands on schemas and on zones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from lowmark.catalog.catalog import Catalog
from lowmark.catalog.descriptors import (
    SCALE_DOWN_MS,
    SCALE_UP_MS,
    Schema,
    SchemaId,
    Table,
    Zone,
    ZoneId,
)
from lowmark.catalog.durations import DURATION_MS_MAX
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

Never: TypeAlias = Literal["never"]
NEVER: Final[Never] = "never"
"""What stands for a time that does not come: in a command, `None` leaves a setting as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateZone:
    """Create a zone. Partitions are what a new table gets that does not say how many."""

    name: str
    replicas: int = REPLICAS_DEFAULT
    partitions: int = PARTITIONS_DEFAULT
    node_filter: str = ""
    scale_up_ms: int = SCALE_UP_MS
    scale_down_ms: int | Never = SCALE_DOWN_MS
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        check_name("zone", self.name)
        _check_numbers(self.name, self.replicas, self.partitions)
        _check_times(self.name, self.scale_up_ms, self.scale_down_ms)
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
            scale_up_ms=self.scale_up_ms,
            scale_down_ms=None if self.scale_down_ms == NEVER else self.scale_down_ms,
        )
        return (IdsTaken(1), NewZone(zone))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterZone:
    """Change what is given. Partitions are what new tables get; a table's own never change."""

    name: str
    replicas: int | None = None
    partitions: int | None = None
    node_filter: str | None = None
    scale_up_ms: int | None = None
    scale_down_ms: int | Never | None = None
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_name("zone", self.name)
        _check_numbers(
            self.name,
            1 if self.replicas is None else self.replicas,
            1 if self.partitions is None else self.partitions,
        )
        _check_times(
            self.name,
            0 if self.scale_up_ms is None else self.scale_up_ms,
            0 if self.scale_down_ms is None else self.scale_down_ms,
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
            scale_up_ms=old.scale_up_ms if self.scale_up_ms is None else self.scale_up_ms,
            scale_down_ms=self._scale_down_ms(old),
        )
        return () if zone == old else (ChangedZone(ZoneChange.ALTERED, zone),)

    def _scale_down_ms(self, old: Zone) -> int | None:
        match self.scale_down_ms:
            case None:
                return old.scale_down_ms
            case "never":
                return None
            case millis:
                return millis


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


def _check_times(name: str, scale_up_ms: int, scale_down_ms: int | Never) -> None:
    _check_time(name, scale_up_ms, "scale_up_ms")
    if scale_down_ms != NEVER:
        _check_time(name, scale_down_ms, "scale_down_ms", more=f", or {NEVER}")


def _check_time(name: str, millis: object, what: str, *, more: str = "") -> None:
    if type(millis) is not int or not 0 <= millis <= DURATION_MS_MAX:
        raise CatalogRefused(
            f"zone {name} can't have {millis!r} as {what}",
            reason=Reason.LIMIT,
            about=("zone", name),
            hint=f"Give milliseconds, from 0 to {DURATION_MS_MAX}{more}.",
        )


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
