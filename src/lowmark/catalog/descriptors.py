"""What the catalog is made of: zones, schemas, tables with their columns, indexes.

All are frozen values. Ids come from one counter of the catalog and are never used again; names are
only for people, and may change hands. `updated_at` is the time of the update that last touched a
descriptor. Inside an entry it says nothing yet: applying the entry sets it.

`unknown` holds what a newer release wrote and this one does not understand. It is carried along
verbatim, so that an older node that changes or snapshots a descriptor deletes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from lowmark.catalog.node_filter import parse_filter
from lowmark.catalog.options import TableOptions
from lowmark.catalog.types import ColumnType
from lowmark.catalog.values import Value
from lowmark.errors import invariant
from lowmark.runtime import HybridTime

ZoneId = NewType("ZoneId", int)
SchemaId = NewType("SchemaId", int)
TableId = NewType("TableId", int)
IndexId = NewType("IndexId", int)
ColumnId = NewType("ColumnId", int)

SCALE_UP_MS = 5_000
SCALE_DOWN_MS = 600_000
"""What a zone has that says nothing else. It is not written then, so these never change."""

_UNTOUCHED = HybridTime(0)


@dataclass(frozen=True, slots=True)
class Unknown:
    """What a newer release wrote into a descriptor: its format version, and fields by tag."""

    version: int = 0
    fields: tuple[tuple[int, bytes], ...] = ()


NOTHING_UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """Where partitions live: how many replicas, on which nodes, and how soon they move.

    `partitions` is only what a new table gets when it does not say: a table's own number is fixed.
    """

    id: ZoneId
    name: str
    replicas: int
    partitions: int
    node_filter: str = ""
    scale_up_ms: int = SCALE_UP_MS
    """How long the cluster waits before it gives partitions to a node that has joined."""
    scale_down_ms: int | None = SCALE_DOWN_MS
    """How long a node may be down before the cluster gives its partitions to others; None: it
    never does.
    """
    updated_at: HybridTime = _UNTOUCHED
    unknown: Unknown = NOTHING_UNKNOWN

    def matches(self, attributes: Mapping[str, str]) -> bool:
        """Whether a node with these attributes may hold partitions of this zone."""
        return parse_filter(self.node_filter).matches(attributes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but worth a second thought."""
        if self.replicas == 1:
            return (f"zone {self.name} has one replica: a lost disk is lost data",)
        if self.replicas == 2:
            return (f"zone {self.name} has two replicas: they survive no loss; use three",)
        if self.replicas % 2 == 0:
            fewer = self.replicas - 1
            return (f"zone {self.name} has {self.replicas} replicas: {fewer} survive as much",)
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A name space for tables and indexes."""

    id: SchemaId
    name: str
    updated_at: HybridTime = _UNTOUCHED
    unknown: Unknown = NOTHING_UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table. Its id is what data refers to: a column that is dropped and created
    again is another one, and never shows the old one's values.
    """

    id: ColumnId
    name: str
    type: ColumnType
    required: bool = False
    default: Value | None = None
    unknown: Unknown = NOTHING_UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """The columns of a table from one change of them to the next.

    A batch of rows names the schema version that it was written with. A rename makes one too: rows
    find their columns by id, but a writer's batch comes with names, and the names that were right
    for it are those of its version.
    """

    number: int
    columns: tuple[Column, ...]
    unknown: Unknown = NOTHING_UNKNOWN

    def column(self, column_id: ColumnId) -> Column | None:
        """The column with this id."""
        return next((column for column in self.columns if column.id == column_id), None)

    def column_named(self, name: str) -> Column | None:
        """The column with this name, as it is spelled."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table. Partitions, zone and key are fixed at creation; so are the types of key columns.

    `schemas` are the schema versions that rows may still refer to, oldest first, numbered without
    gaps; the last is in force. `options` are those that were set, sorted by name.
    """

    id: TableId
    schema_id: SchemaId
    zone_id: ZoneId
    name: str
    schemas: tuple[TableSchema, ...]
    next_column_id: ColumnId
    partitions: int
    key: tuple[ColumnId, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    updated_at: HybridTime = _UNTOUCHED
    unknown: Unknown = NOTHING_UNKNOWN

    @property
    def latest(self) -> TableSchema:
        """The schema version in force."""
        return self.schemas[-1]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in force."""
        return self.schemas[-1].columns

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the key, in the key's order."""
        by_id = {column.id: column for column in self.columns}
        return tuple(by_id[column_id] for column_id in self.key)

    @property
    def settings(self) -> TableOptions:
        """The options in force."""
        return TableOptions.of(self.options)

    def schema_version(self, number: int) -> TableSchema | None:
        """The schema version with this number, unless it was trimmed or is not there yet."""
        at = number - self.schemas[0].number
        return self.schemas[at] if 0 <= at < len(self.schemas) else None

    def filling(self, column_id: ColumnId) -> Value | None:
        """What rows show in a column that was added after they were written.

        It is the default that the column was added with. A later default is for later writers: if
        it filled old rows too, changing it would change what was read before.
        """
        for schema in self.schemas:
            column = schema.column(column_id)
            if column is not None:
                return column.default
        invariant(ok=False, message=f"table {self.id} has no column {column_id}")
        return None


class IndexStatus(Enum):
    """Where an index is in its life.

    registered → building → available → stopping → removed. Until it is available it is written but
    not read; when it stops, readers that began before may still use it.
    """

    REGISTERED = 1
    BUILDING = 2
    AVAILABLE = 3
    STOPPING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An index over columns of one table; it lives in the table's schema."""

    id: IndexId
    table_id: TableId
    schema_id: SchemaId
    name: str
    columns: tuple[ColumnId, ...]
    unique: bool = False
    status: IndexStatus = IndexStatus.REGISTERED
    updated_at: HybridTime = _UNTOUCHED
    unknown: Unknown = NOTHING_UNKNOWN

    @property
    def is_live(self) -> bool:
        """Whether it has its name and holds its columns; a stopping index has let go of both."""
        return self.status is not IndexStatus.STOPPING
