"""One version of the catalog: an immutable value.

It is made of persistent maps: a version shares with the one before it all that did not change, so
thousands of versions can be kept, and one more costs about the same however many tables there are.

The order in which such a map is walked depends on hashes. So nothing here walks one without sorting
by id, and maps by name are for look-ups only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NewType, TypeVar, assert_never

from immutables import Map

from lowmark.catalog.descriptors import (
    NOTHING_UNKNOWN,
    Index,
    IndexId,
    Schema,
    SchemaId,
    Table,
    TableId,
    Unknown,
    Zone,
    ZoneId,
)
from lowmark.catalog.errors import CatalogUnreadable
from lowmark.runtime import HybridTime

CatalogVersion = NewType("CatalogVersion", int)

DEFAULT_SCHEMA = "public"
DEFAULT_ZONE = "default"

_K = TypeVar("_K")
_Id = TypeVar("_Id", bound=int)
_D = TypeVar("_D", Zone, Schema, Table, Index)
_Ids = Map[_Id, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All descriptors as of one version.

    `time` is when the version was written, `activates_at` from when on it is in force. The maps
    that begin with an underscore follow from the others.
    """

    version: CatalogVersion
    time: HybridTime
    activates_at: HybridTime
    next_id: int = 1
    default_zone_id: ZoneId | None = None
    zones: Map[ZoneId, Zone] = field(default=Map())
    schemas: Map[SchemaId, Schema] = field(default=Map())
    tables: Map[TableId, Table] = field(default=Map())
    indexes: Map[IndexId, Index] = field(default=Map())
    unknown: Unknown = NOTHING_UNKNOWN
    _zone_names: Map[str, ZoneId] = field(default=Map(), repr=False)
    _schema_names: Map[str, SchemaId] = field(default=Map(), repr=False)
    # Tables and live indexes share the names of a schema, so that `schema.name` is one thing.
    _table_names: Map[tuple[SchemaId, str], TableId] = field(default=Map(), repr=False)
    _index_names: Map[tuple[SchemaId, str], IndexId] = field(default=Map(), repr=False)
    _tables_of_zone: Map[ZoneId, _Ids[TableId]] = field(default=Map(), repr=False)
    _tables_of_schema: Map[SchemaId, _Ids[TableId]] = field(default=Map(), repr=False)
    _indexes_of_table: Map[TableId, _Ids[IndexId]] = field(default=Map(), repr=False)

    # -- look-ups -------------------------------------------------------------------------------

    def zone(self, zone_id: ZoneId) -> Zone | None:
        """The zone with this id."""
        return self.zones.get(zone_id)

    def schema(self, schema_id: SchemaId) -> Schema | None:
        """The schema with this id."""
        return self.schemas.get(schema_id)

    def table(self, table_id: TableId) -> Table | None:
        """The table with this id."""
        return self.tables.get(table_id)

    def index(self, index_id: IndexId) -> Index | None:
        """The index with this id."""
        return self.indexes.get(index_id)

    def zone_named(self, name: str) -> Zone | None:
        """The zone with this name."""
        zone_id = self._zone_names.get(name)
        return None if zone_id is None else self.zones[zone_id]

    def schema_named(self, name: str) -> Schema | None:
        """The schema with this name."""
        schema_id = self._schema_names.get(name)
        return None if schema_id is None else self.schemas[schema_id]

    def table_named(self, schema: str, name: str) -> Table | None:
        """The table with this name in a schema."""
        schema_id = self._schema_names.get(schema)
        table_id = None if schema_id is None else self._table_names.get((schema_id, name))
        return None if table_id is None else self.tables[table_id]

    def index_named(self, schema: str, name: str) -> Index | None:
        """The live index with this name in a schema; a stopping one has no name any more."""
        schema_id = self._schema_names.get(schema)
        index_id = None if schema_id is None else self._index_names.get((schema_id, name))
        return None if index_id is None else self.indexes[index_id]

    @property
    def default_zone(self) -> Zone | None:
        """Where a table goes that names no zone."""
        return None if self.default_zone_id is None else self.zones.get(self.default_zone_id)

    def all_zones(self) -> list[Zone]:
        """All zones by id."""
        return [self.zones[key] for key in sorted(self.zones)]

    def all_schemas(self) -> list[Schema]:
        """All schemas by id."""
        return [self.schemas[key] for key in sorted(self.schemas)]

    def all_tables(self) -> list[Table]:
        """All tables by id."""
        return [self.tables[key] for key in sorted(self.tables)]

    def all_indexes(self) -> list[Index]:
        """All indexes by id, stopping ones too."""
        return [self.indexes[key] for key in sorted(self.indexes)]

    def tables_of_zone(self, zone_id: ZoneId) -> list[Table]:
        """The tables of a zone by id."""
        return [self.tables[key] for key in _sorted(self._tables_of_zone.get(zone_id))]

    def tables_of_schema(self, schema_id: SchemaId) -> list[Table]:
        """The tables of a schema by id."""
        return [self.tables[key] for key in _sorted(self._tables_of_schema.get(schema_id))]

    def indexes_of_table(self, table_id: TableId) -> list[Index]:
        """The indexes of a table by id, stopping ones too."""
        return [self.indexes[key] for key in _sorted(self._indexes_of_table.get(table_id))]

    def tables_in_zone(self, zone_id: ZoneId) -> int:
        """How many tables a zone has."""
        return len(self._tables_of_zone.get(zone_id) or ())

    def tables_in_schema(self, schema_id: SchemaId) -> int:
        """How many tables a schema has."""
        return len(self._tables_of_schema.get(schema_id) or ())

    def name_of(self, thing: Table | Index) -> str:
        """The name with its schema: `public.orders`."""
        schema = self.schemas.get(thing.schema_id)
        return f"{schema.name if schema else thing.schema_id}.{thing.name}"

    # -- the next version: only `entries` calls these ---------------------------------------------
    #
    # They keep the maps in step, and check what an update says against what is there. A sound
    # update always fits, so one that does not is not what was written.

    def with_zone(self, zone: Zone) -> Catalog:
        """Add a zone, or put it in the place of the one with its id."""
        old = self.zones.get(zone.id)
        names = self._zone_names if old is None else self._zone_names.delete(old.name)
        return replace(
            self,
            zones=self.zones.set(zone.id, zone),
            _zone_names=_named(names, zone.name, zone.id, f"zone {zone.name}"),
        )

    def without_zone(self, zone_id: ZoneId) -> Catalog:
        """Remove a zone that has no tables and is not the default."""
        zone = _present(self.zones, zone_id, "zone")
        if self.tables_in_zone(zone_id) or self.default_zone_id == zone_id:
            raise CatalogUnreadable(f"zone {zone_id} is dropped while it is in use")
        return replace(
            self,
            zones=self.zones.delete(zone_id),
            _zone_names=self._zone_names.delete(zone.name),
        )

    def with_schema(self, schema: Schema) -> Catalog:
        """Add a schema, or put it in the place of the one with its id."""
        old = self.schemas.get(schema.id)
        names = self._schema_names if old is None else self._schema_names.delete(old.name)
        return replace(
            self,
            schemas=self.schemas.set(schema.id, schema),
            _schema_names=_named(names, schema.name, schema.id, f"schema {schema.name}"),
        )

    def without_schema(self, schema_id: SchemaId) -> Catalog:
        """Remove a schema that has no tables."""
        schema = _present(self.schemas, schema_id, "schema")
        if self.tables_in_schema(schema_id):
            raise CatalogUnreadable(f"schema {schema_id} is dropped while it has tables")
        return replace(
            self,
            schemas=self.schemas.delete(schema_id),
            _schema_names=self._schema_names.delete(schema.name),
        )

    def with_table(self, table: Table) -> Catalog:
        """Add a table, or put it in the place of the one with its id."""
        _present(self.schemas, table.schema_id, "schema")
        _present(self.zones, table.zone_id, "zone")
        _check_table(table)
        old = self.tables.get(table.id)
        names, zones, schemas = self._table_names, self._tables_of_zone, self._tables_of_schema
        if old is not None:
            if (old.schema_id, old.zone_id) != (table.schema_id, table.zone_id):
                raise CatalogUnreadable(f"table {table.id} changes its schema or its zone")
            names = names.delete((old.schema_id, old.name))
        else:
            zones = _joined(zones, table.zone_id, table.id)
            schemas = _joined(schemas, table.schema_id, table.id)
        full_name = (table.schema_id, table.name)
        if full_name in self._index_names:
            raise CatalogUnreadable(f"table {table.name} has the name of an index")
        return replace(
            self,
            tables=self.tables.set(table.id, table),
            _table_names=_named(names, full_name, table.id, f"table {table.name}"),
            _tables_of_zone=zones,
            _tables_of_schema=schemas,
        )

    def without_table(self, table_id: TableId) -> Catalog:
        """Remove a table that has no indexes any more."""
        table = _present(self.tables, table_id, "table")
        if self._indexes_of_table.get(table_id):
            raise CatalogUnreadable(f"table {table_id} is dropped while it has indexes")
        return replace(
            self,
            tables=self.tables.delete(table_id),
            _table_names=self._table_names.delete((table.schema_id, table.name)),
            _tables_of_zone=_parted(self._tables_of_zone, table.zone_id, table_id),
            _tables_of_schema=_parted(self._tables_of_schema, table.schema_id, table_id),
        )

    def with_index(self, index: Index) -> Catalog:
        """Add an index, or put it in the place of the one with its id."""
        table = _present(self.tables, index.table_id, "table")
        # The columns of a stopping index may be gone.
        columns = {column.id for column in table.columns}
        if table.schema_id != index.schema_id or (
            index.is_live and not columns.issuperset(index.columns)
        ):
            raise CatalogUnreadable(f"index {index.id} does not fit table {table.id}")
        old = self.indexes.get(index.id)
        names, tables = self._index_names, self._indexes_of_table
        if old is None:
            tables = _joined(tables, index.table_id, index.id)
        elif old.table_id != index.table_id:
            raise CatalogUnreadable(f"index {index.id} changes its table")
        elif old.is_live:
            names = names.delete((old.schema_id, old.name))
        if index.is_live:
            full_name = (index.schema_id, index.name)
            if full_name in self._table_names:
                raise CatalogUnreadable(f"index {index.name} has the name of a table")
            names = _named(names, full_name, index.id, f"index {index.name}")
        return replace(
            self,
            indexes=self.indexes.set(index.id, index),
            _index_names=names,
            _indexes_of_table=tables,
        )

    def without_index(self, index_id: IndexId) -> Catalog:
        """Remove an index."""
        index = _present(self.indexes, index_id, "index")
        names = self._index_names
        if index.is_live:
            names = names.delete((index.schema_id, index.name))
        return replace(
            self,
            indexes=self.indexes.delete(index_id),
            _index_names=names,
            _indexes_of_table=_parted(self._indexes_of_table, index.table_id, index_id),
        )

    def with_default_zone(self, zone_id: ZoneId) -> Catalog:
        """Make a zone the default."""
        _present(self.zones, zone_id, "zone")
        return replace(self, default_zone_id=zone_id)


EMPTY = Catalog(version=CatalogVersion(0), time=HybridTime(1), activates_at=HybridTime(1))
"""Version 0: nothing at all, in force since the beginning of time."""


def rebuilt(
    head: Catalog,
    *,
    zones: Iterable[Zone],
    schemas: Iterable[Schema],
    tables: Iterable[Table],
    indexes: Iterable[Index],
    default_zone_id: ZoneId | None,
) -> Catalog:
    """A catalog from its parts, as a snapshot has them."""
    catalog, ids = head, set[int]()
    things: list[Zone | Schema | Table | Index] = [*zones, *schemas, *tables, *indexes]
    for thing in things:
        if thing.id in ids or not 0 < thing.id < head.next_id:
            raise CatalogUnreadable(f"id {thing.id} is used twice or was never given")
        ids.add(thing.id)
        match thing:
            case Zone():
                catalog = catalog.with_zone(thing)
            case Schema():
                catalog = catalog.with_schema(thing)
            case Table():
                catalog = catalog.with_table(thing)
            case Index():
                catalog = catalog.with_index(thing)
            case _:
                assert_never(thing)
    return catalog if default_zone_id is None else catalog.with_default_zone(default_zone_id)


def _check_table(table: Table) -> None:
    if not table.schemas:
        raise CatalogUnreadable(f"table {table.id} has no schema version")
    first = table.schemas[0].number
    numbers = [schema.number for schema in table.schemas]
    if first < 1 or numbers != list(range(first, first + len(numbers))):
        raise CatalogUnreadable(f"the schema versions of table {table.id} have gaps: {numbers}")
    ids = [column.id for column in table.columns]
    if not set(table.key) <= set(ids) or len(set(ids)) < len(ids):
        raise CatalogUnreadable(f"table {table.id} lacks key columns or has columns twice")
    if any(not 0 < column_id < table.next_column_id for column_id in ids):
        raise CatalogUnreadable(f"table {table.id} has a column whose id was never given")


def _present(things: Map[_K, _D], key: _K, kind: str) -> _D:
    thing = things.get(key)
    if thing is None:
        raise CatalogUnreadable(f"{kind} {key} is not there")
    return thing


def _named(names: Map[_K, _Id], name: _K, owner: _Id, what: str) -> Map[_K, _Id]:
    if name in names:
        raise CatalogUnreadable(f"{what} is there twice")
    return names.set(name, owner)


def _sorted(ids: _Ids[_Id] | None) -> list[_Id]:
    return sorted(ids) if ids else []


def _joined(sets: Map[_K, _Ids[_Id]], key: _K, member: _Id) -> Map[_K, _Ids[_Id]]:
    members: _Ids[_Id] = sets.get(key, Map())
    return sets.set(key, members.set(member, None))


def _parted(sets: Map[_K, _Ids[_Id]], key: _K, member: _Id) -> Map[_K, _Ids[_Id]]:
    members = sets[key].delete(member)
    return sets.set(key, members) if members else sets.delete(key)
