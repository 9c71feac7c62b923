"""The catalog in words: what an entry did, what differs between two versions, and all of it as
plain values that can become JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from lowmark.catalog.catalog import Catalog
from lowmark.catalog.descriptors import (
    SCALE_DOWN_MS,
    SCALE_UP_MS,
    Column,
    Index,
    Schema,
    Table,
    Zone,
)
from lowmark.catalog.durations import duration_text
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
    apply,
)
from lowmark.catalog.schema_commands import NEVER
from lowmark.catalog.types import type_text
from lowmark.catalog.values import value_text
from lowmark.formatting import counted

_Thing = Zone | Schema | Table | Index
_TIMES = {"scale_up_ms": "scale_up", "scale_down_ms": "scale_down"}
"""Settings in milliseconds, which are shown as lengths of time, or as never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One object that is not the same in two versions, and what about it, in a line."""

    object_kind: Literal["zone", "schema", "table", "index", "default zone"]
    object_id: int
    name: str
    change: Literal["created", "dropped", "changed"]
    text: str


# -- entries ------------------------------------------------------------------------------------


def describe(before: Catalog, entries: Iterable[Entry]) -> list[str]:
    """What each entry did, in a line; `before` is the version that they were applied to. Ids that
    were taken are passed over: they show in what took them.
    """
    lines = []
    now = before
    for entry in entries:
        after = apply(
            now, [entry], version=now.version, time=now.time, activates_at=now.activates_at
        )
        if line := _line(now, after, entry):
            lines.append(line)
        now = after
    return lines


def _line(before: Catalog, after: Catalog, entry: Entry) -> str:
    match entry:
        case IdsTaken():
            return ""
        case NewZone(zone):
            return f"created zone {zone.name} ({_zone_text(zone)})"
        case ChangedZone(change, zone):
            old = before.zones[zone.id]
            if change is ZoneChange.RENAMED:
                return f"renamed zone {old.name} to {zone.name}"
            return f"altered zone {zone.name}: {_changes(_zone(old), _zone(zone))}"
        case DroppedZone(zone_id):
            return f"dropped zone {before.zones[zone_id].name}"
        case DefaultZoneSet(zone_id):
            return f"made zone {after.zones[zone_id].name} the default"
        case NewSchema(schema):
            return f"created schema {schema.name}"
        case DroppedSchema(schema_id):
            return f"dropped schema {before.schemas[schema_id].name}"
        case NewTable(table):
            return f"created table {after.name_of(table)} ({_table_text(table)})"
        case ChangedTable(change=change, table=table):
            return _table_line(before, after.tables[table.id], change)
        case DroppedTable(table_id):
            return f"dropped table {before.name_of(before.tables[table_id])}"
        case NewIndex(index):
            return f"created index {after.name_of(index)} ({_index_text(after, index)})"
        case ChangedIndex(change, index):
            name = before.name_of(before.indexes[index.id])
            if change is IndexChange.RENAMED:
                return f"renamed index {name} to {index.name}"
            return f"index {name} is {index.status.name.lower()} now"
        case RemovedIndex(index_id):
            return f"removed index {before.name_of(before.indexes[index_id])}"
        case _:
            assert_never(entry)


def _table_line(before: Catalog, table: Table, change: TableChange) -> str:
    old = before.tables[table.id]
    name = before.name_of(old)
    was, now = ({column.id: column for column in each.columns} for each in (old, table))
    match change:
        case TableChange.RENAMED:
            return f"renamed table {name} to {table.name}"
        case TableChange.OPTIONS_SET:
            return (
                f"set options of table {name}: {_changes(dict(old.options), dict(table.options))}"
            )
        case TableChange.COLUMNS_ADDED:
            added = [column_text(column) for key, column in now.items() if key not in was]
            return f"added to table {name}: {', '.join(added)}"
        case TableChange.COLUMNS_DROPPED:
            gone = [column.name for key, column in was.items() if key not in now]
            return f"dropped from table {name}: {', '.join(gone)}"
        case TableChange.COLUMN_RENAMED:
            return "; ".join(
                f"renamed column {was[key].name} of table {name} to {column.name}"
                for key, column in now.items()
                if key in was and was[key].name != column.name
            )
        case TableChange.COLUMN_ALTERED:
            return "; ".join(
                f"altered column {column.name} of table {name}: {column_text(was[key])} →"
                f" {column_text(column)}"
                for key, column in now.items()
                if key in was and was[key] != column
            )
        case TableChange.SCHEMAS_TRIMMED:
            first, last = old.schemas[0].number, table.schemas[0].number - 1
            return f"trimmed schema versions {first} to {last} of table {name}"
        case _:
            assert_never(change)


# -- versions -----------------------------------------------------------------------------------


def diff(old: Catalog, new: Catalog) -> list[Difference]:
    """What differs between two versions, whatever happened in between, by kind and id."""
    found: list[Difference] = []
    for kind, was, now in (
        ("zone", old.zones, new.zones),
        ("schema", old.schemas, new.schemas),
        ("table", old.tables, new.tables),
        ("index", old.indexes, new.indexes),
    ):
        found += _differences(kind, (old, was), (new, now))
    zone = new.default_zone or old.default_zone
    if old.default_zone_id != new.default_zone_id and zone is not None:
        before, after = (
            one.default_zone.name if one.default_zone else "none" for one in (old, new)
        )
        found.append(
            Difference(
                object_kind="default zone",
                object_id=zone.id,
                name=zone.name,
                change="changed",
                text=f"default zone: {before} → {after}",
            )
        )
    return found


def _differences(
    kind: Any, old: tuple[Catalog, Mapping[Any, Any]], new: tuple[Catalog, Mapping[Any, Any]]
) -> list[Difference]:
    found = []
    for key in sorted({*old[1], *new[1]}):
        was: _Thing | None = old[1].get(key)
        now: _Thing | None = new[1].get(key)
        change: Literal["created", "dropped", "changed"]
        if was is now or was == now:
            continue
        elif now is not None and was is not None:
            change, name = "changed", _name(new[0], now)
            parts = _changes(_builtins(old[0], was), _builtins(new[0], now))
            text = f"{kind} {name}: {parts or 'touched'}"
        elif now is not None:
            change, name = "created", _name(new[0], now)
            text = f"created {kind} {name}{_in_brackets(new[0], now)}"
        else:
            change, name = "dropped", _name(old[0], old[1][key])
            text = f"dropped {kind} {name}"
        found.append(
            Difference(object_kind=kind, object_id=key, name=name, change=change, text=text)
        )
    return found


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """`replicas 3 → 5, name a → b`, in the order of the new one."""
    parts = []
    for key in [*new, *(key for key in old if key not in new)]:
        was, now = old.get(key), new.get(key)
        if was == now or key == "updated_at":
            continue
        if key == "columns" and isinstance(was, list) and isinstance(now, list):
            parts.append(_column_changes(was, now))
        elif key in _TIMES:
            parts.append(f"{_TIMES[key]} {time_or_never(was)} → {time_or_never(now)}")
        else:
            parts.append(f"{key} {_shown(was)} → {_shown(now)}")
    return ", ".join(parts)


def _column_changes(old: Sequence[Any], new: Sequence[Any]) -> str:
    was = {column["id"]: column for column in old}
    now = {column["id"]: column for column in new}
    parts = []
    for key in sorted({*was, *now}):
        if key not in now:
            parts.append(f"-{was[key]['name']}")
        elif key not in was:
            parts.append(f"+{now[key]['name']} {now[key]['type']}")
        elif was[key] != now[key]:
            parts.append(f"{was[key]['name']} ({_changes(was[key], now[key])})")
    return f"columns {', '.join(parts)}" if parts else "order of columns"


def _shown(value: Any) -> str:
    match value:
        case None | "" | []:
            return "none"
        case list():
            return ", ".join(str(item) for item in value)
        case dict():
            return " ".join(f"{key}={item}" for key, item in value.items()) or "none"
        case _:
            return str(value)


# -- one thing ----------------------------------------------------------------------------------


def column_text(column: Column) -> str:
    """A column in a line: `price decimal(10,2) not null default 0.00`."""
    parts = [column.name, type_text(column.type)]
    if column.required:
        parts.append("not null")
    if column.default is not None:
        parts.append(f"default {value_text(column.default)}")
    return " ".join(parts)


def _name(catalog: Catalog, thing: _Thing) -> str:
    return catalog.name_of(thing) if isinstance(thing, Table | Index) else thing.name


def _in_brackets(catalog: Catalog, thing: _Thing) -> str:
    match thing:
        case Zone():
            return f" ({_zone_text(thing)})"
        case Schema():
            return ""
        case Table():
            return f" ({_table_text(thing)})"
        case Index():
            return f" ({_index_text(catalog, thing)})"
        case _:
            assert_never(thing)


def _zone_text(zone: Zone) -> str:
    parts = [counted(zone.replicas, "replica"), counted(zone.partitions, "partition")]
    if zone.node_filter:
        parts.append(f"nodes with {zone.node_filter}")
    if zone.scale_up_ms != SCALE_UP_MS:
        parts.append(f"scale up {time_or_never(zone.scale_up_ms)}")
    if zone.scale_down_ms != SCALE_DOWN_MS:
        parts.append(f"scale down {time_or_never(zone.scale_down_ms)}")
    return ", ".join(parts)


def time_or_never(millis: int | None) -> str:
    """How long a zone waits, for people: `10 minutes`, or `never`."""
    return NEVER if millis is None else duration_text(millis)


def _table_text(table: Table) -> str:
    columns = counted(len(table.columns), "column")
    key = ", ".join(column.name for column in table.key_columns)
    return (
        f"{columns}, {f'key {key}' if key else 'no key'}, {counted(table.partitions, 'partition')}"
    )


def _index_text(catalog: Catalog, index: Index) -> str:
    table = catalog.tables[index.table_id]
    unique = "unique " if index.unique else ""
    return f"{unique}on {table.name}: {', '.join(_column_names(table, index.columns))}"


def _column_names(table: Table, ids: Iterable[int]) -> list[str]:
    names: dict[int, str] = {
        column.id: column.name for schema in table.schemas for column in schema.columns
    }
    return [names.get(column_id, f"column {column_id}") for column_id in ids]


# -- plain values -------------------------------------------------------------------------------


def to_builtins(catalog: Catalog) -> dict[str, Any]:
    """The catalog as dicts, lists, texts and numbers, always in the same order."""
    default = catalog.default_zone
    return {
        "version": catalog.version,
        "time": catalog.time,
        "activates_at": catalog.activates_at,
        "next_id": catalog.next_id,
        "default_zone": default.name if default else None,
        "zones": [_builtins(catalog, zone) for zone in catalog.all_zones()],
        "schemas": [_builtins(catalog, schema) for schema in catalog.all_schemas()],
        "tables": [_builtins(catalog, table) for table in catalog.all_tables()],
        "indexes": [_builtins(catalog, index) for index in catalog.all_indexes()],
    }


def _builtins(catalog: Catalog, thing: _Thing) -> dict[str, Any]:
    match thing:
        case Zone():
            return {"id": thing.id, "name": thing.name, **_zone(thing), **_touched(thing)}
        case Schema():
            return {"id": thing.id, "name": thing.name, **_touched(thing)}
        case Table():
            return {"id": thing.id, **_table(catalog, thing), **_touched(thing)}
        case Index():
            return {"id": thing.id, **_index(catalog, thing), **_touched(thing)}
        case _:
            assert_never(thing)


def _touched(thing: _Thing) -> dict[str, Any]:
    return {"updated_at": thing.updated_at}


def _zone(zone: Zone) -> dict[str, Any]:
    return {
        "replicas": zone.replicas,
        "partitions": zone.partitions,
        "node_filter": zone.node_filter,
        "scale_up_ms": zone.scale_up_ms,
        "scale_down_ms": zone.scale_down_ms,
    }


def _table(catalog: Catalog, table: Table) -> dict[str, Any]:
    return {
        "schema": catalog.schemas[table.schema_id].name,
        "name": table.name,
        "zone": catalog.zones[table.zone_id].name,
        "partitions": table.partitions,
        "key": [column.name for column in table.key_columns],
        "columns": [_column(column) for column in table.columns],
        "options": dict(table.options),
        "schema_version": table.latest.number,
        "oldest_schema_version": table.schemas[0].number,
    }


def _column(column: Column) -> dict[str, Any]:
    return {
        "id": column.id,
        "name": column.name,
        "type": type_text(column.type),
        "required": column.required,
        "default": None if column.default is None else value_text(column.default),
    }


def _index(catalog: Catalog, index: Index) -> dict[str, Any]:
    table = catalog.tables[index.table_id]
    return {
        "schema": catalog.schemas[index.schema_id].name,
        "name": index.name,
        "table": table.name,
        "columns": _column_names(table, index.columns),
        "unique": index.unique,
        "status": index.status.name.lower(),
    }
