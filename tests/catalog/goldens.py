"""Golden bytes of every type and format version; `python tests/catalog/goldens.py` writes them.

A file `<type>.v<version>.hex` has the bytes of one value of the update log, in lines of 32. Those
of a serializer that is in a release are for good: the script leaves them alone, and the tests tell
whoever changed the bytes to make one more version instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from catalog.making import TOKEN
from lowmark import __version__
from lowmark.catalog import (
    Catalog,
    ChangedZone,
    Column,
    ColumnId,
    DroppedTable,
    NewTable,
    Snapshot,
    Table,
    TableId,
    TableSchema,
    Value,
    Zone,
    parse_type,
)
from lowmark.catalog.catalog import EMPTY, CatalogVersion
from lowmark.catalog.descriptors import Index, IndexId, IndexStatus, Schema, SchemaId, ZoneId
from lowmark.catalog.entries import (
    ChangedIndex,
    ChangedTable,
    DefaultZoneSet,
    DroppedSchema,
    DroppedZone,
    Entry,
    IdsTaken,
    IndexChange,
    NewIndex,
    NewSchema,
    NewZone,
    RemovedIndex,
    TableChange,
    ZoneChange,
)
from lowmark.catalog.history import PartedSnapshot, Update
from lowmark.catalog.serialization import Serializer
from lowmark.catalog.serializers import REGISTRY, encode_parted, encode_snapshot, encode_update
from lowmark.runtime import HybridTime

__all__ = [
    "FOLDER",
    "encoded",
    "example",
    "golden_name",
    "golden_names",
    "is_released",
    "numbers",
    "read",
    "rewrite",
]

FOLDER = Path(__file__).parent / "golden"
TIME = HybridTime(1_735_689_600_000 << 16 | 3)
_BYTES_PER_LINE = 32

ZONE = Zone(
    id=ZoneId(1),
    name="near",
    replicas=3,
    partitions=8,
    node_filter="rack in (r1, r2) and disk = ssd",
    updated_at=TIME,
)
WAITING_ZONE = replace(ZONE, scale_up_ms=300, scale_down_ms=None)
"""What format version 2 is for."""
SCHEMA = Schema(id=SchemaId(2), name="public", updated_at=TIME)


def _column(number: int, type_of: str, default: Value | None = None) -> Column:
    name = f"c{number}"
    required = number == 1 or default is not None
    return Column(
        id=ColumnId(number), name=name, type=parse_type(type_of), required=required, default=default
    )


COLUMNS = (
    _column(1, "int64"),
    _column(2, "string"),
    _column(3, "bool", default=True),
    _column(4, "int32", -70_000),
    _column(5, "float64", 0.5),
    _column(6, "string", "zürich"),
    _column(7, "binary", b"\0\xff"),
    _column(8, "decimal(10,2)", Decimal("-12.50")),
    _column(9, "date", date(1969, 12, 31)),
    _column(10, "timestamp", datetime(2025, 1, 1, tzinfo=UTC)),
    _column(11, "timestamp_ntz", datetime(2025, 1, 1, tzinfo=UTC).replace(tzinfo=None)),
    _column(12, "uuid", UUID(bytes=TOKEN)),
    _column(13, "struct<a: list<int8>, `b c`: map<string, float32> not null>"),
)
TABLE = Table(
    id=TableId(3),
    schema_id=SCHEMA.id,
    zone_id=ZONE.id,
    name="orders",
    schemas=(
        TableSchema(number=4, columns=COLUMNS[:3]),
        TableSchema(number=5, columns=COLUMNS),
    ),
    next_column_id=ColumnId(20),
    partitions=300,
    key=(ColumnId(1),),
    options=(("compaction", "off"), ("retention_ms", "86400000")),
    updated_at=TIME,
)
INDEX = Index(
    id=IndexId(4),
    table_id=TABLE.id,
    schema_id=SCHEMA.id,
    name="by_c2",
    columns=(ColumnId(2), ColumnId(1)),
    unique=True,
    status=IndexStatus.BUILDING,
    updated_at=TIME,
)
CATALOG = (
    replace(
        EMPTY,
        version=CatalogVersion(300),
        time=TIME,
        activates_at=HybridTime(TIME + (500 << 16)),
        next_id=5,
    )
    .with_zone(ZONE)
    .with_schema(SCHEMA)
    .with_table(TABLE)
    .with_index(INDEX)
    .with_default_zone(ZONE.id)
)
ENTRIES: dict[type, Entry] = {
    type(entry): entry
    for entry in (
        IdsTaken(200),
        NewZone(ZONE),
        ChangedZone(ZoneChange.RENAMED, ZONE),
        DroppedZone(ZONE.id),
        DefaultZoneSet(ZONE.id),
        NewSchema(SCHEMA),
        DroppedSchema(SCHEMA.id),
        NewTable(TABLE),
        ChangedTable(
            change=TableChange.COLUMNS_ADDED,
            table=replace(TABLE, schemas=TABLE.schemas[1:]),
            keep_from=1,
        ),
        DroppedTable(TABLE.id),
        NewIndex(INDEX),
        ChangedIndex(IndexChange.STATUS, INDEX),
        RemovedIndex(INDEX.id),
    )
}
_INSIDE: dict[type, type] = {
    Zone: NewZone,
    Schema: NewSchema,
    Table: NewTable,
    TableSchema: NewTable,
    Column: NewTable,
    Index: NewIndex,
}
_LATER: dict[tuple[type, int], Entry] = {(Zone, 2): NewZone(WAITING_ZONE)}
"""Later format versions: what has no fields of theirs is written in the first."""


PARTED = PartedSnapshot(
    version=CatalogVersion(300), parts=3, length=10_000_000, digest=bytes(range(16))
)


def encoded(thing: Update | Snapshot | PartedSnapshot) -> bytes:
    """A value as the update log has it."""
    match thing:
        case Update():
            return encode_update(thing)
        case Snapshot():
            return encode_snapshot(thing)
        case PartedSnapshot():
            return encode_parted(thing)


def example(kind: type, version: int = 1) -> Update | Snapshot | PartedSnapshot:
    """A value of the update log that has an object of this type and format version in it."""
    if kind is PartedSnapshot:
        return PARTED
    if kind is Catalog:
        return Snapshot(CATALOG)
    entries = [ENTRIES[_INSIDE.get(kind, kind)]] if kind is not Update else []
    if (kind, version) in _LATER:
        entries = [_LATER[kind, version]]
    return Update(
        version=CatalogVersion(300), delay_ms=500, author=7, token=TOKEN, entries=tuple(entries)
    )


def golden_name(serializer: Serializer) -> str:
    """The file that has a serializer's golden bytes."""
    return f"{serializer.kind.__name__.lower()}.v{serializer.version}.hex"


def golden_names() -> set[str]:
    """The files that are there."""
    return {path.name for path in FOLDER.iterdir()}


def read(name: str) -> bytes:
    """The bytes in a file."""
    return bytes.fromhex((FOLDER / name).read_text())


def is_released(serializer: Serializer) -> bool:
    """Whether a release before the one in the making has it; `__version__` is the next release."""
    return numbers(serializer.since) < numbers(__version__)


def numbers(version: str) -> tuple[int, ...]:
    """A version as something that can be compared."""
    return tuple(int(part) for part in version.split(".")[:3])


def _fresh() -> Iterator[tuple[str, bytes]]:
    for serializer in REGISTRY:
        if not is_released(serializer):
            yield golden_name(serializer), encoded(example(serializer.kind, serializer.version))


def rewrite() -> None:
    """Write the golden bytes of all serializers that are in no release yet."""
    for name, data in _fresh():
        lines = [
            data[at : at + _BYTES_PER_LINE].hex(" ") for at in range(0, len(data), _BYTES_PER_LINE)
        ]
        (FOLDER / name).write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    rewrite()
