"""The bytes of every type of the catalog: its tags, and how an object is made of its fields.

A serializer whose `since` is a release that is out never changes: a change is one more version.
Until then it may change in place, and its golden bytes with it.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, assert_never, get_args
from uuid import UUID

from lowmark.catalog.catalog import Catalog, CatalogVersion, rebuilt
from lowmark.catalog.descriptors import (
    NOTHING_UNKNOWN,
    Column,
    Index,
    IndexStatus,
    Schema,
    Table,
    TableSchema,
    Zone,
)
from lowmark.catalog.durations import DURATION_MS_MAX
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
from lowmark.catalog.errors import CatalogTooNew, CatalogUnreadable
from lowmark.catalog.history import (
    PARTS_MAX,
    SNAPSHOT_DIGEST_BYTES,
    TOKEN_BYTES,
    PartedSnapshot,
    Snapshot,
    Update,
)
from lowmark.catalog.node_filter import parse_filter
from lowmark.catalog.options import OPTIONS, option_text
from lowmark.catalog.serialization import (
    BOOL,
    BYTES,
    PROTOCOL,
    TEXT,
    TIME,
    UINT,
    UINTS,
    Codec,
    Cursor,
    Field,
    Registry,
    enum_codec,
    object_codec,
    objects_codec,
    text_of,
    varint,
    zigzag,
)
from lowmark.catalog.types import parse_type, type_text
from lowmark.catalog.values import Value, canonical
from lowmark.runtime import Buffer, HybridTime

REGISTRY = Registry()
_Values = dict[str, Any]


def _serializer(type_id: int, kind: type[Any], *fields: Field, **options: Any) -> None:
    """The first format version of a type, in the release that had it first."""
    REGISTRY.serializer(type_id, kind, version=1, since="0.1.0", fields=fields, **options)


# -- contents of fields -------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_0 = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_BOOL, _INT, _FLOAT, _STR, _BYTES, _DECIMAL, _DATE, _INSTANT, _LOCAL, _UUID = range(1, 11)


def _encode_value(value: Value) -> bytes:
    match value:
        case bool():
            return bytes([_BOOL, value])
        case int():
            return bytes([_INT]) + varint(zigzag(value))
        case float():
            return bytes([_FLOAT]) + struct.pack("<d", value)
        case str():
            return bytes([_STR]) + value.encode()
        case bytes():
            return bytes([_BYTES]) + value
        case Decimal():
            sign, digits, exponent = value.as_tuple()
            text = ("-" if sign else "") + "".join(map(str, digits))
            return bytes([_DECIMAL]) + varint(-int(exponent)) + text.encode()
        case datetime():
            kind = _LOCAL if value.tzinfo is None else _INSTANT
            since = (value.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
            return bytes([kind]) + varint(zigzag(since))
        case date():
            return bytes([_DATE]) + varint(zigzag(value.toordinal() - _DAY_0))
        case UUID():
            return bytes([_UUID]) + value.bytes
        case _:
            assert_never(value)


def _decode_value(cursor: Cursor) -> Value:
    kind = cursor.take(1)[0]
    try:
        match kind:
            case 1:
                return bool(cursor.take(1)[0])
            case 2:
                return cursor.signed()
            case 3:
                return float(struct.unpack("<d", cursor.take(8))[0])
            case 4:
                return text_of(cursor.rest())
            case 5:
                return cursor.rest()
            case 6:
                return _decimal(cursor.varint(), text_of(cursor.rest()))
            case 7:
                return date.fromordinal(cursor.signed() + _DAY_0)
            case 8:
                return _EPOCH + cursor.signed() * _MICROSECOND
            case 9:
                return (_EPOCH + cursor.signed() * _MICROSECOND).replace(tzinfo=None)
            case 10:
                return UUID(bytes=bytes(cursor.take(16)))
            case _:
                raise CatalogTooNew("a default of kind", found=kind, known=_UUID)
    except (ValueError, OverflowError) as error:
        raise CatalogUnreadable("a default is out of range") from error


def _decimal(scale: int, text: str) -> Decimal:
    digits = text.removeprefix("-")
    if scale > 38 or not 0 < len(digits) <= 38 or not (digits.isascii() and digits.isdigit()):
        raise CatalogUnreadable("a decimal has more digits than there are")
    return Decimal((int(text != digits), tuple(map(int, digits)), -scale))


def _encode_pairs(pairs: tuple[tuple[str, str], ...]) -> bytes:
    texts = [text.encode() for pair in pairs for text in pair]
    return b"".join([varint(len(text)) + text for text in texts])


def _decode_pairs(cursor: Cursor) -> tuple[tuple[str, str], ...]:
    pairs = []
    while not cursor.at_end:
        name = text_of(bytes(cursor.take(cursor.varint())))
        pairs.append((name, text_of(bytes(cursor.take(cursor.varint())))))
    if pairs != sorted(dict(pairs).items()):
        raise CatalogUnreadable("options are out of order")
    return tuple(pairs)


MILLIS = Codec(
    "millis",
    lambda millis: varint(0 if millis is None else millis + 1),
    lambda cursor: None if (number := cursor.varint()) == 0 else number - 1,
)
"""A time that may never come."""
TYPE = Codec(
    "type",
    lambda column_type: type_text(column_type).encode(),
    lambda cursor: parse_type(text_of(cursor.rest())),
)
VALUE = Codec("value", _encode_value, _decode_value)
PAIRS = Codec("pairs", _encode_pairs, _decode_pairs)


def _one(kind: type[Any]) -> Codec:
    return object_codec(REGISTRY, kind)


def _many(*kinds: type[Any]) -> Codec:
    return objects_codec(REGISTRY, *kinds)


# -- the update log -----------------------------------------------------------------------------


def _update_1(values: _Values) -> Update:
    if len(values["token"]) != TOKEN_BYTES:
        raise CatalogUnreadable("a token has the wrong length")
    return Update(**values)


_serializer(
    1,
    Update,
    Field(1, "version", UINT),
    Field(2, "delay_ms", UINT),
    Field(3, "author", UINT),
    Field(4, "token", BYTES),
    Field(5, "entries", _many(*get_args(Entry)), ()),
    build=_update_1,
)


def _catalog_1(values: _Values) -> Catalog:
    head = Catalog(
        version=CatalogVersion(values["version"]),
        time=HybridTime(values["time"]),
        activates_at=HybridTime(values["activates_at"]),
        next_id=values["next_id"],
        unknown=values.get("unknown", NOTHING_UNKNOWN),
    )
    return rebuilt(
        head,
        zones=values["zones"],
        schemas=values["schemas"],
        tables=values["tables"],
        indexes=values["indexes"],
        default_zone_id=values["default_zone_id"],
    )


_serializer(
    2,
    Catalog,
    Field(1, "version", UINT),
    Field(2, "time", TIME),
    Field(3, "activates_at", TIME),
    Field(4, "next_id", UINT),
    Field(5, "default_zone_id", UINT, None),
    Field(6, "zones", _many(Zone), ()),
    Field(7, "schemas", _many(Schema), ()),
    Field(8, "tables", _many(Table), ()),
    Field(9, "indexes", _many(Index), ()),
    build=_catalog_1,
)


def _parted_snapshot_1(values: _Values) -> PartedSnapshot:
    if not 1 <= values["parts"] <= PARTS_MAX or len(values["digest"]) != SNAPSHOT_DIGEST_BYTES:
        raise CatalogUnreadable("a snapshot's parts are not what they can be")
    return PartedSnapshot(**values)


_serializer(
    3,
    PartedSnapshot,
    Field(1, "version", UINT),
    Field(2, "parts", UINT),
    Field(3, "length", UINT),
    Field(4, "digest", BYTES),
    build=_parted_snapshot_1,
)


# -- descriptors --------------------------------------------------------------------------------


def _zone_1(values: _Values) -> Zone:
    parse_filter(values["node_filter"])
    _check_positive(values, "id", "replicas", "partitions")
    return Zone(**values)


def _zone_2(values: _Values) -> Zone:
    for name in ("scale_up_ms", "scale_down_ms"):
        if (values[name] or 0) > DURATION_MS_MAX:
            raise CatalogUnreadable(f"a zone has {values[name]} as its {name}")
    return _zone_1(values)


_ZONE_1 = (
    Field(1, "id", UINT),
    Field(2, "name", TEXT),
    Field(3, "replicas", UINT),
    Field(4, "partitions", UINT),
    Field(5, "node_filter", TEXT, ""),
    Field(6, "updated_at", TIME, 0),
)
_serializer(16, Zone, *_ZONE_1, build=_zone_1)
REGISTRY.serializer(
    16,
    Zone,
    version=2,
    since="0.2.0",
    fields=(
        *_ZONE_1,
        Field(7, "scale_up_ms", UINT, 5_000),
        Field(8, "scale_down_ms", MILLIS, 600_000),
    ),
    build=_zone_2,
)
_serializer(
    17, Schema, Field(1, "id", UINT), Field(2, "name", TEXT), Field(3, "updated_at", TIME, 0)
)


def _table_1(values: _Values) -> Table:
    _check_positive(values, "id", "next_column_id", "partitions")
    for name, text in values["options"]:
        # An option that is not known here is one of a newer release.
        if name in OPTIONS and option_text(name, text, table=values["name"]) != text:
            raise CatalogUnreadable(f"option {name} is not in its one form")
    return Table(**values)


_serializer(
    18,
    Table,
    Field(1, "id", UINT),
    Field(2, "schema_id", UINT),
    Field(3, "zone_id", UINT),
    Field(4, "name", TEXT),
    Field(5, "schemas", _many(TableSchema), ()),
    Field(6, "next_column_id", UINT),
    Field(7, "partitions", UINT),
    Field(8, "key", UINTS, ()),
    Field(9, "options", PAIRS, ()),
    Field(10, "updated_at", TIME, 0),
    build=_table_1,
)
_serializer(19, TableSchema, Field(1, "number", UINT), Field(2, "columns", _many(Column), ()))


def _column_1(values: _Values) -> Column:
    if values["default"] is not None:
        values["default"] = canonical(values["type"], values["default"], column=values["name"])
    return Column(**values)


_serializer(
    20,
    Column,
    Field(1, "id", UINT),
    Field(2, "name", TEXT),
    Field(3, "type", TYPE),
    Field(4, "required", BOOL, default=False),
    Field(5, "default", VALUE, None),
    build=_column_1,
    shared=True,
)
_serializer(
    21,
    Index,
    Field(1, "id", UINT),
    Field(2, "table_id", UINT),
    Field(3, "schema_id", UINT),
    Field(4, "name", TEXT),
    Field(5, "columns", UINTS),
    Field(6, "unique", BOOL, default=False),
    Field(7, "status", enum_codec(IndexStatus)),
    Field(8, "updated_at", TIME, 0),
)


def _check_positive(values: _Values, *names: str) -> None:
    for name in names:
        if values[name] < 1:
            raise CatalogUnreadable(f"a descriptor has {values[name]} as its {name}")


# -- entries ------------------------------------------------------------------------------------


_serializer(32, IdsTaken, Field(1, "count", UINT))
_serializer(33, NewZone, Field(1, "zone", _one(Zone)))


_serializer(
    34, ChangedZone, Field(1, "change", enum_codec(ZoneChange)), Field(2, "zone", _one(Zone))
)
_serializer(35, DroppedZone, Field(1, "zone_id", UINT))


_serializer(36, DefaultZoneSet, Field(1, "zone_id", UINT))
_serializer(37, NewSchema, Field(1, "schema", _one(Schema)))


_serializer(38, DroppedSchema, Field(1, "schema_id", UINT))
_serializer(39, NewTable, Field(1, "table", _one(Table)))


_serializer(
    40,
    ChangedTable,
    Field(1, "change", enum_codec(TableChange)),
    Field(2, "table", _one(Table)),
    Field(3, "keep_from", UINT),
)
_serializer(41, DroppedTable, Field(1, "table_id", UINT))


_serializer(42, NewIndex, Field(1, "index", _one(Index)))
_serializer(
    43, ChangedIndex, Field(1, "change", enum_codec(IndexChange)), Field(2, "index", _one(Index))
)
_serializer(44, RemovedIndex, Field(1, "index_id", UINT))


REGISTRY.check(
    [
        *(Update, Catalog, PartedSnapshot, Zone, Schema, Table, TableSchema, Column, Index),
        *get_args(Entry),
    ]
)


# -- whole values -------------------------------------------------------------------------------


def encode_update(update: Update) -> bytes:
    """An update as the update log has it."""
    return _framed(update)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """A whole version as the update log has it."""
    return _framed(snapshot.catalog)


def encode_parted(parted: PartedSnapshot) -> bytes:
    """What stands in the update log for a whole version that is kept in parts."""
    return _framed(parted)


def encode_table(table: Table) -> bytes:
    """A table by itself, for a process that has no catalog."""
    return _framed(table)


def decode_table(value: Buffer) -> Table:
    """What `encode_table` gave."""
    table: Table = _unframed(value, Table)
    return table


def decode(value: Buffer) -> Update | Snapshot | PartedSnapshot:
    """What a value of the update log is."""
    thing: Update | Catalog | PartedSnapshot = _unframed(value, Update, Catalog, PartedSnapshot)
    return Snapshot(thing) if isinstance(thing, Catalog) else thing


def decode_update(value: Buffer) -> Update:
    """An update; a snapshot in its place is an error."""
    thing = decode(value)
    if not isinstance(thing, Update):
        raise CatalogUnreadable("a snapshot stands where an update should")
    return thing


def decode_snapshot(value: Buffer) -> Snapshot:
    """A snapshot in one piece; anything else in its place is an error."""
    thing = decode(value)
    if not isinstance(thing, Snapshot):
        raise CatalogUnreadable(f"{type(thing).__name__} stands where a snapshot should")
    return thing


def _framed(thing: Update | Catalog | PartedSnapshot | Table) -> bytes:
    return PROTOCOL.to_bytes(2, "little") + REGISTRY.encode(thing)


def _unframed(value: Buffer, *kinds: type[Any]) -> Any:
    cursor = Cursor(value)
    protocol = cursor.uint16()
    if protocol > PROTOCOL:
        raise CatalogTooNew("protocol version", found=protocol, known=PROTOCOL)
    if protocol < 1:
        raise CatalogUnreadable("it has protocol version 0")
    thing = REGISTRY.decode(cursor, *kinds)
    cursor.end()
    return thing
