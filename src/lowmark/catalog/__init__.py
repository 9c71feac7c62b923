"""What there is in a cluster, version by version: zones, schemas, tables and columns, indexes.

Words
    descriptor  a frozen value that describes one zone, schema, table, column or index
    catalog     all descriptors as of one version: an immutable value
    command     what a user wants: `CreateTable(...)`; checked, and refused by name
    entry       what a command came to: `NewTable(...)`; only carried out
    update      the entries that make one version, as the update log has them
    snapshot    a whole version, in place of the updates up to it
    schema      a name space for tables and indexes
    schema version  of a table: its columns from one change of them to the next; rows name theirs

A command's way: it checks its own shape when it is made. `evaluate` holds a batch of commands
against a catalog, each seeing what those before it did, and gives the entries, or the first
refusal. An `Update` takes the entries to the update log; `apply_update` makes the next catalog of
them on every node. All of this is pure: no clock, no chance, no disk. Times come in with what is
applied.

Invariants
    1. Versions are dense: each accepted batch makes exactly one, a batch that changes nothing makes
       none, and a refused one leaves no trace.
    2. The same entries on the same catalog give the same catalog, to the byte, in every process.
    3. An older catalog is never changed by a newer one; they share what they have in common.
    4. Ids are never used again: of objects in a catalog, of columns in a table. Whatever refers to
       something by id never finds something else.
    5. A name has one owner. Tables and live indexes of a schema share one name space; a stopping
       index has no name any more. Columns of a table differ in more than case.
    6. A table's key, zone and number of partitions never change, nor do the types of key columns.
       Other columns only widen, so every row that was ever written can be read.
    7. What a newer release wrote into a descriptor goes through an older one verbatim.
    8. Bytes that are not what was written give `CatalogUnreadable`; those of a newer protocol give
       `CatalogTooNew`. Nothing else comes out of decoding and applying.

`catalog.arrow` turns column types into Arrow's and back. It is apart, since it imports pyarrow
and the rest of the package does not.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.catalog.catalog import DEFAULT_SCHEMA, Catalog
    from lowmark.catalog.catalogs import Catalogs
    from lowmark.catalog.commands import Command, Executed, check_buildable, read_commands
    from lowmark.catalog.describing import Difference, describe, diff, time_or_never, to_builtins
    from lowmark.catalog.descriptors import (
        SCALE_DOWN_MS,
        SCALE_UP_MS,
        Column,
        ColumnId,
        Table,
        TableId,
        TableSchema,
        Zone,
    )
    from lowmark.catalog.durations import TAKES as DURATION_TAKES
    from lowmark.catalog.durations import duration_text, parse_duration
    from lowmark.catalog.entries import ChangedZone, DroppedTable, NewTable
    from lowmark.catalog.errors import (
        CatalogRefused,
        IndexNotBuildable,
        NotInForce,
        PartitionsFixed,
        Reason,
    )
    from lowmark.catalog.history import History, Snapshot, replay
    from lowmark.catalog.index_commands import CreateIndex, DropIndex, RenameIndex
    from lowmark.catalog.lookups import find_zone
    from lowmark.catalog.options import OPTIONS
    from lowmark.catalog.schema_commands import (
        NEVER,
        PARTITIONS_DEFAULT,
        REPLICAS_DEFAULT,
        AlterZone,
        CreateSchema,
        CreateZone,
        DropSchema,
        DropZone,
        Never,
        RenameZone,
        SetDefaultZone,
    )
    from lowmark.catalog.table_commands import (
        KEEP,
        AddColumns,
        AlterColumn,
        AlterTable,
        CreateTable,
        DropColumns,
        DropTable,
        Keep,
        NewColumn,
        RenameColumn,
        RenameTable,
        SetTableOptions,
    )
    from lowmark.catalog.telling import CatalogEvent
    from lowmark.catalog.types import (
        ColumnType,
        DecimalOf,
        ListOf,
        MapOf,
        Plain,
        StructField,
        StructOf,
        can_be_key,
        parse_type,
        type_text,
    )
    from lowmark.catalog.update_log import (
        BY_PREFIX,
        SNAPSHOT_KEY,
        UPDATE_PREFIX,
        VERSION_KEY,
        number_in,
        read_log,
        version_of,
    )
    from lowmark.catalog.values import Value, parse_value, value_text

__all__ = [
    "BY_PREFIX",
    "DEFAULT_SCHEMA",
    "DURATION_TAKES",
    "KEEP",
    "NEVER",
    "OPTIONS",
    "PARTITIONS_DEFAULT",
    "REPLICAS_DEFAULT",
    "SCALE_DOWN_MS",
    "SCALE_UP_MS",
    "SNAPSHOT_KEY",
    "UPDATE_PREFIX",
    "VERSION_KEY",
    "AddColumns",
    "AlterColumn",
    "AlterTable",
    "AlterZone",
    "Catalog",
    "CatalogEvent",
    "CatalogRefused",
    "Catalogs",
    "ChangedZone",
    "Column",
    "ColumnId",
    "ColumnType",
    "Command",
    "CreateIndex",
    "CreateSchema",
    "CreateTable",
    "CreateZone",
    "DecimalOf",
    "Difference",
    "DropColumns",
    "DropIndex",
    "DropSchema",
    "DropTable",
    "DropZone",
    "DroppedTable",
    "Executed",
    "History",
    "IndexNotBuildable",
    "Keep",
    "ListOf",
    "MapOf",
    "Never",
    "NewColumn",
    "NewTable",
    "NotInForce",
    "PartitionsFixed",
    "Plain",
    "Reason",
    "RenameColumn",
    "RenameIndex",
    "RenameTable",
    "RenameZone",
    "SetDefaultZone",
    "SetTableOptions",
    "Snapshot",
    "StructField",
    "StructOf",
    "Table",
    "TableId",
    "TableSchema",
    "Value",
    "Zone",
    "can_be_key",
    "check_buildable",
    "describe",
    "diff",
    "duration_text",
    "find_zone",
    "number_in",
    "parse_duration",
    "parse_type",
    "parse_value",
    "read_commands",
    "read_log",
    "replay",
    "time_or_never",
    "to_builtins",
    "type_text",
    "value_text",
    "version_of",
]

__getattr__, __dir__ = face(__name__)
