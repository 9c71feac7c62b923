"""Commands on indexes. People create, rename and drop them; the steps in between are internal."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowmark.catalog.catalog import DEFAULT_SCHEMA, Catalog
from lowmark.catalog.descriptors import Index, IndexId, IndexStatus
from lowmark.catalog.entries import (
    ChangedIndex,
    Entry,
    IdsTaken,
    IndexChange,
    NewIndex,
    RemovedIndex,
)
from lowmark.catalog.errors import CatalogRefused, Reason
from lowmark.catalog.lookups import (
    check_free,
    check_path,
    find_column,
    find_index,
    find_table,
    index_with_id,
    nothing_given,
)
from lowmark.catalog.names import (
    INDEX_COLUMNS_MAX,
    INDEXES_PER_TABLE_MAX,
    check_distinct,
    check_name,
    check_range,
)
from lowmark.catalog.types import can_be_key, type_text


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateIndex:
    """Create an index. It begins as registered, or as available if its table is created in the
    same batch: there is nothing to build then. Of users it is refused (`check_buildable`).
    """

    name: str
    table: str
    columns: tuple[str, ...]
    unique: bool = False
    schema: str = DEFAULT_SCHEMA
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        check_path("index", self.schema, self.name)
        check_name("table", self.table)
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise nothing_given("column", about=("index", self.name))
        check_range(
            len(self.columns), most=INDEX_COLUMNS_MAX, what="columns", about=("index", self.name)
        )
        check_distinct(self.columns, kind="column", of=self.name, of_kind="index")

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What creating it means now."""
        if self.if_not_exists and catalog.index_named(self.schema, self.name):
            return ()
        table = find_table(catalog, self.schema, self.table)
        check_free(catalog, "index", schema=catalog.schemas[table.schema_id], name=self.name)
        columns = [find_column(catalog, table, name) for name in self.columns]
        for column in columns:
            if not can_be_key(column.type):
                raise CatalogRefused(
                    f"column {column.name} can't be in index {self.name}: it is of type"
                    f" {type_text(column.type)}",
                    reason=Reason.TYPE,
                    about=("index", self.name),
                    hint="Indexes are over columns whose types a key could have.",
                )
        check_range(
            len(catalog.indexes_of_table(table.id)) + 1,
            most=INDEXES_PER_TABLE_MAX,
            what="indexes",
            about=("table", catalog.name_of(table)),
        )
        index = Index(
            id=IndexId(catalog.next_id),
            table_id=table.id,
            schema_id=table.schema_id,
            name=self.name,
            columns=tuple(column.id for column in columns),
            unique=self.unique,
        )
        return (IdsTaken(1), NewIndex(index))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropIndex:
    """Drop an index. One that readers may use stops first; any other is removed at once."""

    name: str
    schema: str = DEFAULT_SCHEMA
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_path("index", self.schema, self.name)

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What dropping it means now."""
        if self.if_exists and catalog.index_named(self.schema, self.name) is None:
            return ()
        index = find_index(catalog, self.schema, self.name)
        if index.status is IndexStatus.AVAILABLE:
            return _stepped(index, IndexStatus.STOPPING)
        return (RemovedIndex(index.id),)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameIndex:
    """Give an index another name in its schema."""

    name: str
    to: str
    schema: str = DEFAULT_SCHEMA
    if_exists: bool = False

    def __post_init__(self) -> None:
        check_path("index", self.schema, self.name)
        check_name("index", self.to)

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What renaming it means now."""
        if self.if_exists and catalog.index_named(self.schema, self.name) is None:
            return ()
        index = find_index(catalog, self.schema, self.name)
        if self.to == self.name:
            return ()
        check_free(catalog, "index", schema=catalog.schemas[index.schema_id], name=self.to)
        return (ChangedIndex(IndexChange.RENAMED, replace(index, name=self.to)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBuildingIndex:
    """The writers that did not know of the index are done. Internal."""

    index_id: IndexId

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What this means now."""
        index = _in_status(catalog, self.index_id, IndexStatus.REGISTERED, "be built")
        return _stepped(index, IndexStatus.BUILDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeIndexAvailable:
    """Every partition's part is built. Internal."""

    index_id: IndexId

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What this means now."""
        index = _in_status(catalog, self.index_id, IndexStatus.BUILDING, "become available")
        return _stepped(index, IndexStatus.AVAILABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveIndex:
    """The readers that used a stopping index are done. Internal."""

    index_id: IndexId

    def entries(self, catalog: Catalog) -> tuple[Entry, ...]:
        """What this means now."""
        index = _in_status(catalog, self.index_id, IndexStatus.STOPPING, "be removed")
        return (RemovedIndex(index.id),)


IndexCommand = (
    CreateIndex | DropIndex | RenameIndex | StartBuildingIndex | MakeIndexAvailable | RemoveIndex
)


def _stepped(index: Index, status: IndexStatus) -> tuple[Entry, ...]:
    return (ChangedIndex(IndexChange.STATUS, replace(index, status=status)),)


def _in_status(catalog: Catalog, index_id: IndexId, needed: IndexStatus, to: str) -> Index:
    index = index_with_id(catalog, index_id)
    if index.status is not needed:
        raise CatalogRefused(
            f"index {catalog.name_of(index)} can't {to}: it is {index.status.name.lower()}",
            reason=Reason.STATUS,
            about=("index", catalog.name_of(index)),
            hint=f"Only an index that is {needed.name.lower()} can.",
        )
    return index
