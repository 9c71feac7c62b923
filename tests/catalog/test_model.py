"""Random commands against a model of plain dicts: the catalog does what the model does, refuses
what it refuses, and never changes the past.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from catalog.making import STEP, fresh
from lowmark.catalog import (
    AddColumns,
    Catalog,
    CatalogRefused,
    Command,
    CreateIndex,
    CreateSchema,
    CreateTable,
    CreateZone,
    DropColumns,
    DropIndex,
    DropSchema,
    DropTable,
    DropZone,
    NewColumn,
    Reason,
    RenameColumn,
    RenameIndex,
    RenameTable,
    RenameZone,
    SetDefaultZone,
    Snapshot,
    to_builtins,
)
from lowmark.catalog.catalog import CatalogVersion
from lowmark.catalog.commands import evaluate
from lowmark.catalog.descriptors import IndexId, IndexStatus
from lowmark.catalog.history import Update, apply_update
from lowmark.catalog.index_commands import MakeIndexAvailable, RemoveIndex, StartBuildingIndex
from lowmark.catalog.serializers import (
    decode_snapshot,
    decode_update,
    encode_snapshot,
    encode_update,
)
from lowmark.runtime import HybridTime

NAMES = st.sampled_from(["a", "b", "c"])
COLUMNS = st.sampled_from(["k", "x", "y", "z"])
SCHEMAS = st.sampled_from(["public", "s1", "s2"])
ZONES = st.sampled_from(["default", "z1", "z2"])


@dataclass
class ModelTable:
    """A table as the model knows it."""

    id: int
    zone: int
    columns: dict[str, int]
    next_column: int
    versions: int = 1


@dataclass
class Model:
    """The catalog in plain dicts; names of tables and indexes are (schema id, name)."""

    next_id: int = 3
    version: int = 1
    default: int = 2
    schemas: dict[str, int] = field(default_factory=lambda: {"public": 1})
    zones: dict[str, int] = field(default_factory=lambda: {"default": 2})
    tables: dict[tuple[int, str], ModelTable] = field(default_factory=dict)
    indexes: dict[int, list[Any]] = field(default_factory=dict)
    """By id: schema, name, table, columns, status."""

    def take_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def live(self, schema: int, name: str) -> int | None:
        for key, (its_schema, its_name, _, _, status) in self.indexes.items():
            if (its_schema, its_name) == (schema, name) and status is not IndexStatus.STOPPING:
                return key
        return None

    def is_taken(self, schema: int, name: str) -> bool:
        return (schema, name) in self.tables or self.live(schema, name) is not None

    def drop_table(self, schema: int, name: str) -> None:
        gone = self.tables.pop((schema, name))
        self.indexes = {k: v for k, v in self.indexes.items() if v[2] != gone.id}

    def table_with_id(self, table_id: int) -> tuple[tuple[int, str], ModelTable]:
        return next((key, table) for key, table in self.tables.items() if table.id == table_id)


class CatalogMachine(RuleBasedStateMachine):
    """Runs each command on both, one version at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.catalog = fresh()
        self.model = Model()
        self.log: list[bytes] = []
        self.past: list[tuple[Catalog, bytes]] = []
        self.first = self.catalog
        self.ids: set[int] = {1, 2}

    def run(self, command: Command, refused: Reason | None, *, changes: bool = True) -> bool:
        """Execute; true if the model is to follow."""
        before = encode_snapshot(Snapshot(self.catalog))
        if refused is not None:
            with pytest.raises(CatalogRefused) as caught:
                evaluate(self.catalog, [command])
            assert caught.value.reason is refused
            assert encode_snapshot(Snapshot(self.catalog)) == before
            return False
        evaluation = evaluate(self.catalog, [command])
        assert evaluation.applied == (changes,)
        if not changes:
            assert evaluation.entries == ()
            return False
        update = Update(
            version=CatalogVersion(self.catalog.version + 1),
            delay_ms=500,
            author=1,
            token=bytes(16),
            entries=evaluation.entries,
        )
        data = encode_update(update)
        self.past.append((self.catalog, before))
        self.log.append(data)
        time = HybridTime(self.catalog.time + STEP)
        self.catalog = apply_update(self.catalog, decode_update(data), time=time)
        self.model.version += 1
        return True

    # -- schemas and zones ----------------------------------------------------------------------

    @rule(name=SCHEMAS, lenient=st.booleans())
    def create_schema(self, name: str, lenient: bool) -> None:
        there = name in self.model.schemas
        refused = Reason.EXISTS if there and not lenient else None
        if self.run(CreateSchema(name=name, if_not_exists=lenient), refused, changes=not there):
            self.model.schemas[name] = self.model.take_id()

    @rule(name=SCHEMAS, cascade=st.booleans(), lenient=st.booleans())
    def drop_schema(self, name: str, cascade: bool, lenient: bool) -> None:
        schema = self.model.schemas.get(name)
        inside = [key for key in self.model.tables if key[0] == schema]
        refused = None
        if schema is None:
            refused = None if lenient else Reason.UNKNOWN
        elif inside and not cascade:
            refused = Reason.IN_USE
        command = DropSchema(name=name, cascade=cascade, if_exists=lenient)
        if self.run(command, refused, changes=schema is not None):
            for key in inside:
                self.model.drop_table(*key)
            del self.model.schemas[name]

    @rule(name=ZONES)
    def create_zone(self, name: str) -> None:
        refused = Reason.EXISTS if name in self.model.zones else None
        if self.run(CreateZone(name=name), refused):
            self.model.zones[name] = self.model.take_id()

    @rule(name=ZONES, to=ZONES)
    def rename_zone(self, name: str, to: str) -> None:
        refused = None
        if name not in self.model.zones:
            refused = Reason.UNKNOWN
        elif to in self.model.zones and to != name:
            refused = Reason.EXISTS
        if self.run(RenameZone(name=name, to=to), refused, changes=name != to):
            self.model.zones[to] = self.model.zones.pop(name)

    @rule(name=ZONES)
    def set_default_zone(self, name: str) -> None:
        zone = self.model.zones.get(name)
        refused = Reason.UNKNOWN if zone is None else None
        if self.run(SetDefaultZone(name=name), refused, changes=zone != self.model.default):
            assert zone is not None
            self.model.default = zone

    @rule(name=ZONES)
    def drop_zone(self, name: str) -> None:
        zone = self.model.zones.get(name)
        used = {table.zone for table in self.model.tables.values()} | {self.model.default}
        refused = Reason.UNKNOWN if zone is None else Reason.IN_USE if zone in used else None
        if self.run(DropZone(name=name), refused):
            del self.model.zones[name]

    # -- tables ---------------------------------------------------------------------------------

    @rule(schema=SCHEMAS, name=NAMES, zone=st.none() | ZONES, lenient=st.booleans())
    def create_table(self, schema: str, name: str, zone: str | None, lenient: bool) -> None:
        schema_id = self.model.schemas.get(schema)
        refused, changes = None, True
        if schema_id is None:
            refused = Reason.UNKNOWN
        elif lenient and (schema_id, name) in self.model.tables:
            changes = False
        elif self.model.is_taken(schema_id, name):
            refused = Reason.EXISTS
        elif zone is not None and zone not in self.model.zones:
            refused = Reason.UNKNOWN
        columns = (NewColumn.of("k", "int64", required=True), NewColumn.of("x", "string"))
        command = CreateTable(
            name=name, schema=schema, zone=zone, columns=columns, key=("k",), if_not_exists=lenient
        )
        if self.run(command, refused, changes=changes):
            assert schema_id is not None
            zone_id = self.model.default if zone is None else self.model.zones[zone]
            self.model.tables[schema_id, name] = ModelTable(
                self.model.take_id(), zone_id, {"k": 1, "x": 2}, 3
            )

    def find(self, schema: str, name: str) -> tuple[ModelTable | None, Any]:
        schema_id = self.model.schemas.get(schema)
        table = None if schema_id is None else self.model.tables.get((schema_id, name))
        return table, schema_id

    @rule(schema=SCHEMAS, name=NAMES)
    def drop_table(self, schema: str, name: str) -> None:
        table, schema_id = self.find(schema, name)
        refused = Reason.UNKNOWN if table is None else None
        if self.run(DropTable(name=name, schema=schema), refused):
            self.model.drop_table(schema_id, name)

    @rule(schema=SCHEMAS, name=NAMES, to=NAMES)
    def rename_table(self, schema: str, name: str, to: str) -> None:
        table, schema_id = self.find(schema, name)
        refused = None
        if table is None:
            refused = Reason.UNKNOWN
        elif to != name and self.model.is_taken(schema_id, to):
            refused = Reason.EXISTS
        command = RenameTable(name=name, to=to, schema=schema)
        if self.run(command, refused, changes=name != to):
            self.model.tables[schema_id, to] = self.model.tables.pop((schema_id, name))

    @rule(schema=SCHEMAS, name=NAMES, column=COLUMNS, lenient=st.booleans())
    def add_column(self, schema: str, name: str, column: str, lenient: bool) -> None:
        table, _ = self.find(schema, name)
        there = table is not None and column in table.columns
        refused = Reason.UNKNOWN if table is None else None
        if there and not lenient:
            refused = Reason.EXISTS
        command = AddColumns(
            table=name,
            schema=schema,
            columns=(NewColumn.of(column, "int32"),),
            if_not_exists=lenient,
        )
        if self.run(command, refused, changes=not there):
            assert table is not None
            table.columns[column] = table.next_column
            table.next_column += 1
            table.versions += 1

    @rule(schema=SCHEMAS, name=NAMES, column=COLUMNS)
    def drop_column(self, schema: str, name: str, column: str) -> None:
        table, _ = self.find(schema, name)
        refused = None
        if table is None or column not in table.columns:
            refused = Reason.UNKNOWN
        elif table.columns[column] == 1:
            refused = Reason.KEY
        elif any(
            table.columns[column] in columns and status is not IndexStatus.STOPPING
            for _, _, owner, columns, status in self.model.indexes.values()
            if owner == table.id
        ):
            refused = Reason.IN_USE
        command = DropColumns(table=name, schema=schema, columns=(column,))
        if self.run(command, refused):
            assert table is not None
            del table.columns[column]
            table.versions += 1

    @rule(schema=SCHEMAS, name=NAMES, column=COLUMNS, to=COLUMNS)
    def rename_column(self, schema: str, name: str, column: str, to: str) -> None:
        table, _ = self.find(schema, name)
        refused = None
        if table is None or column not in table.columns:
            refused = Reason.UNKNOWN
        elif to != column and to in table.columns:
            refused = Reason.EXISTS
        command = RenameColumn(table=name, schema=schema, column=column, to=to)
        if self.run(command, refused, changes=column != to):
            assert table is not None
            table.columns[to] = table.columns.pop(column)
            table.versions += 1

    # -- indexes --------------------------------------------------------------------------------

    @rule(schema=SCHEMAS, name=NAMES, table_name=NAMES, column=COLUMNS)
    def create_index(self, schema: str, name: str, table_name: str, column: str) -> None:
        table, schema_id = self.find(schema, table_name)
        refused = None
        if table is None:
            refused = Reason.UNKNOWN
        elif self.model.is_taken(schema_id, name):
            refused = Reason.EXISTS
        elif column not in table.columns:
            refused = Reason.UNKNOWN
        command = CreateIndex(name=name, table=table_name, schema=schema, columns=(column,))
        if self.run(command, refused):
            assert table is not None
            columns = (table.columns[column],)
            row = [schema_id, name, table.id, columns, IndexStatus.REGISTERED]
            self.model.indexes[self.model.take_id()] = row

    @rule(schema=SCHEMAS, name=NAMES)
    def drop_index(self, schema: str, name: str) -> None:
        schema_id = self.model.schemas.get(schema)
        found = None if schema_id is None else self.model.live(schema_id, name)
        refused = Reason.UNKNOWN if found is None else None
        if self.run(DropIndex(name=name, schema=schema), refused):
            assert found is not None
            if self.model.indexes[found][4] is IndexStatus.AVAILABLE:
                self.model.indexes[found][4] = IndexStatus.STOPPING
            else:
                del self.model.indexes[found]

    @rule(schema=SCHEMAS, name=NAMES, to=NAMES)
    def rename_index(self, schema: str, name: str, to: str) -> None:
        schema_id = self.model.schemas.get(schema)
        found = None if schema_id is None else self.model.live(schema_id, name)
        refused = None
        if found is None:
            refused = Reason.UNKNOWN
        elif to != name and self.model.is_taken(schema_id or 0, to):
            refused = Reason.EXISTS
        command = RenameIndex(name=name, to=to, schema=schema)
        if self.run(command, refused, changes=name != to):
            assert found is not None
            self.model.indexes[found][1] = to

    @rule(at=st.integers(0, 5), step=st.sampled_from(["build", "finish", "remove"]))
    def step_index(self, at: int, step: str) -> None:
        known = sorted(self.model.indexes)
        index_id = IndexId(known[at % len(known)] if known else 999)
        row = self.model.indexes.get(index_id)
        kinds: dict[str, tuple[Any, IndexStatus]] = {
            "build": (StartBuildingIndex, IndexStatus.REGISTERED),
            "finish": (MakeIndexAvailable, IndexStatus.BUILDING),
            "remove": (RemoveIndex, IndexStatus.STOPPING),
        }
        kind, needed = kinds[step]
        refused = Reason.UNKNOWN if row is None else None
        if row is not None and row[4] is not needed:
            refused = Reason.STATUS
        if self.run(kind(index_id=index_id), refused):
            assert row is not None
            if step == "remove":
                del self.model.indexes[index_id]
            else:
                row[4] = IndexStatus(needed.value + 1)

    # -- what always holds ----------------------------------------------------------------------

    @invariant()
    def the_catalog_is_what_the_model_says(self) -> None:
        catalog, model = self.catalog, self.model
        assert (catalog.version, catalog.next_id) == (model.version, model.next_id)
        assert catalog.default_zone_id == model.default
        assert {schema.name: schema.id for schema in catalog.all_schemas()} == model.schemas
        assert {zone.name: zone.id for zone in catalog.all_zones()} == model.zones
        tables = {
            (table.schema_id, table.name): ModelTable(
                table.id,
                table.zone_id,
                {column.name: column.id for column in table.columns},
                table.next_column_id,
                table.latest.number,
            )
            for table in catalog.all_tables()
        }
        assert tables == model.tables
        indexes = {
            index.id: [index.schema_id, index.name, index.table_id, index.columns, index.status]
            for index in catalog.all_indexes()
        }
        assert indexes == model.indexes

    @invariant()
    def look_ups_agree_with_what_is_there(self) -> None:
        catalog = self.catalog
        names = {schema.id: schema.name for schema in catalog.all_schemas()}
        for table in catalog.all_tables():
            assert catalog.table_named(names[table.schema_id], table.name) is table
            assert table in catalog.tables_of_zone(table.zone_id)
            assert table in catalog.tables_of_schema(table.schema_id)
        for index in catalog.all_indexes():
            if index.is_live:
                assert catalog.index_named(names[index.schema_id], index.name) is index
            assert index in catalog.indexes_of_table(index.table_id)
        for zone in catalog.all_zones():
            assert catalog.tables_in_zone(zone.id) == len(catalog.tables_of_zone(zone.id))

    @invariant()
    def a_snapshot_is_the_same_catalog(self) -> None:
        data = encode_snapshot(Snapshot(self.catalog))
        assert decode_snapshot(data).catalog == self.catalog

    def teardown(self) -> None:
        # The past is as it was, and replaying the log from any version gives the present.
        catalog = self.first
        for data in self.log:
            time = HybridTime(catalog.time + STEP)
            catalog = apply_update(catalog, decode_update(data), time=time)
        assert catalog == self.catalog
        assert encode_snapshot(Snapshot(catalog)) == encode_snapshot(Snapshot(self.catalog))
        for version, (old, was) in enumerate(self.past, start=1):
            assert old.version == version
            assert encode_snapshot(Snapshot(old)) == was
        json.dumps(to_builtins(self.catalog))


TestCatalogModel = pytest.mark.slow(CatalogMachine.TestCase)


# -- two processes ------------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path[:0] = [{tests!r}]
from catalog.making import execute, fresh, orders, update_of
from lowmark.catalog import *
from lowmark.catalog.serializers import encode_snapshot, encode_update
catalog = fresh(*(orders(f"t{{n}}") for n in range(40)))
catalog = execute(catalog, *(CreateZone(name=f"z{{n}}") for n in range(20)))
for n in range(0, 40, 3):
    catalog = execute(catalog, CreateIndex(name=f"i{{n}}", table=f"t{{n}}", columns=("city",)))
options = {{"compression": "zstd", "compaction": "off", "min_lag_ms": 5, "retention_ms": 7}}
update = update_of(
    catalog,
    SetTableOptions(table="t1", options=options),
    DropSchema(name="public", cascade=True),
)
print(encode_update(update).hex())
print(encode_snapshot(Snapshot(catalog)).hex())
print(describe(catalog, update.entries))
print(repr(to_builtins(catalog)), repr(update), repr(catalog))
"""


@pytest.mark.slow
def test_two_processes_with_other_hashes_agree_to_the_byte() -> None:
    tests = str(Path(__file__).parents[1])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT.format(tests=tests)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "77")
    }
    assert len(outputs) == 1
