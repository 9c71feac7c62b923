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

from lowmark.catalog.catalog import DEFAULT_SCHEMA, EMPTY, Catalog, CatalogVersion
from lowmark.catalog.catalogs import Catalogs, Executed
from lowmark.catalog.column_commands import (
    KEEP,
    AddColumns,
    AlterColumn,
    DropColumns,
    Keep,
    RenameColumn,
)
from lowmark.catalog.commands import (
    COMMAND_NAMES,
    INITIAL_COMMANDS,
    Command,
    evaluate,
    read_command,
    read_commands,
)
from lowmark.catalog.describe import Difference, column_text, describe, diff, to_builtins
from lowmark.catalog.descriptors import (
    Column,
    ColumnId,
    Index,
    IndexId,
    IndexStatus,
    Schema,
    SchemaId,
    Table,
    TableId,
    TableSchema,
    Unknown,
    Zone,
    ZoneId,
)
from lowmark.catalog.entries import (
    ChangedIndex,
    ChangedTable,
    ChangedZone,
    DefaultZoneSet,
    DroppedSchema,
    DroppedTable,
    DroppedZone,
    Entry,
    IdsTaken,
    IndexChange,
    NewIndex,
    NewSchema,
    NewTable,
    NewZone,
    RemovedIndex,
    TableChange,
    ZoneChange,
)
from lowmark.catalog.errors import (
    CatalogBusy,
    CatalogRefused,
    CatalogToCome,
    CatalogTooNew,
    CatalogUnreadable,
    CutRefused,
    CutTooEarly,
    NotInForce,
    Reason,
    VersionCompacted,
    VersionUnknown,
)
from lowmark.catalog.history import (
    TOKEN_BYTES,
    History,
    PartedSnapshot,
    Snapshot,
    Update,
    apply_update,
    replay,
)
from lowmark.catalog.index_commands import (
    CreateIndex,
    DropIndex,
    MakeIndexAvailable,
    RemoveIndex,
    RenameIndex,
    StartBuildingIndex,
)
from lowmark.catalog.node_filter import parse_filter
from lowmark.catalog.options import OPTIONS, OptionValue
from lowmark.catalog.schema_commands import (
    AlterZone,
    CreateSchema,
    CreateZone,
    DropSchema,
    DropZone,
    RenameZone,
    SetDefaultZone,
)
from lowmark.catalog.serializers import (
    decode,
    decode_snapshot,
    decode_update,
    encode_parted,
    encode_snapshot,
    encode_update,
)
from lowmark.catalog.table_commands import (
    CreateTable,
    DropTable,
    NewColumn,
    RenameTable,
    SetTableOptions,
    TrimTableSchemas,
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
    widens,
)
from lowmark.catalog.update_log import (
    PART_PREFIX,
    SNAPSHOT_KEY,
    UPDATE_PREFIX,
    VERSION_KEY,
    number_in,
    read_log,
)
from lowmark.catalog.values import Value, parse_value, value_text

__all__ = [
    "COMMAND_NAMES",
    "DEFAULT_SCHEMA",
    "EMPTY",
    "INITIAL_COMMANDS",
    "KEEP",
    "OPTIONS",
    "PART_PREFIX",
    "SNAPSHOT_KEY",
    "TOKEN_BYTES",
    "UPDATE_PREFIX",
    "VERSION_KEY",
    "AddColumns",
    "AlterColumn",
    "AlterZone",
    "Catalog",
    "CatalogBusy",
    "CatalogEvent",
    "CatalogRefused",
    "CatalogToCome",
    "CatalogTooNew",
    "CatalogUnreadable",
    "CatalogVersion",
    "Catalogs",
    "ChangedIndex",
    "ChangedTable",
    "ChangedZone",
    "Column",
    "ColumnId",
    "ColumnType",
    "Command",
    "CreateIndex",
    "CreateSchema",
    "CreateTable",
    "CreateZone",
    "CutRefused",
    "CutTooEarly",
    "DecimalOf",
    "DefaultZoneSet",
    "Difference",
    "DropColumns",
    "DropIndex",
    "DropSchema",
    "DropTable",
    "DropZone",
    "DroppedSchema",
    "DroppedTable",
    "DroppedZone",
    "Entry",
    "Executed",
    "History",
    "IdsTaken",
    "Index",
    "IndexChange",
    "IndexId",
    "IndexStatus",
    "Keep",
    "ListOf",
    "MakeIndexAvailable",
    "MapOf",
    "NewColumn",
    "NewIndex",
    "NewSchema",
    "NewTable",
    "NewZone",
    "NotInForce",
    "OptionValue",
    "PartedSnapshot",
    "Plain",
    "Reason",
    "RemoveIndex",
    "RemovedIndex",
    "RenameColumn",
    "RenameIndex",
    "RenameTable",
    "RenameZone",
    "Schema",
    "SchemaId",
    "SetDefaultZone",
    "SetTableOptions",
    "Snapshot",
    "StartBuildingIndex",
    "StructField",
    "StructOf",
    "Table",
    "TableChange",
    "TableId",
    "TableSchema",
    "TrimTableSchemas",
    "Unknown",
    "Update",
    "Value",
    "VersionCompacted",
    "VersionUnknown",
    "Zone",
    "ZoneChange",
    "ZoneId",
    "apply_update",
    "can_be_key",
    "column_text",
    "decode",
    "decode_snapshot",
    "decode_update",
    "describe",
    "diff",
    "encode_parted",
    "encode_snapshot",
    "encode_update",
    "evaluate",
    "number_in",
    "parse_filter",
    "parse_type",
    "parse_value",
    "read_command",
    "read_commands",
    "read_log",
    "replay",
    "to_builtins",
    "type_text",
    "value_text",
    "widens",
]
