"""What is refused, command by command: one class, a word for programs, the object's name, a hint.

Some things that other catalogs refuse can't be said here at all: there are no storage profiles, no
colocation columns beside the key, no collations, no defaults that are functions, no system views,
no sizes of quorums in zones, no indexes that belong to a key. A table without a key is fine.
Strings and binary have no lengths. A schema can't be renamed: there is no command for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest

from catalog.making import execute, fresh, orders, table_of
from lowmark.catalog import (
    AddColumns,
    AlterColumn,
    AlterTable,
    AlterZone,
    Catalog,
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
    Plain,
    Reason,
    RenameColumn,
    RenameIndex,
    RenameTable,
    RenameZone,
    SetDefaultZone,
    SetTableOptions,
    TableId,
    parse_type,
)
from lowmark.catalog.catalog import EMPTY
from lowmark.catalog.commands import evaluate
from lowmark.catalog.descriptors import IndexId
from lowmark.catalog.durations import DURATION_MS_MAX
from lowmark.catalog.errors import CatalogRefused
from lowmark.catalog.index_commands import MakeIndexAvailable, RemoveIndex, StartBuildingIndex
from lowmark.catalog.names import (
    COLUMNS_MAX,
    COMMANDS_PER_BATCH_MAX,
    INDEX_COLUMNS_MAX,
    INDEXES_PER_TABLE_MAX,
    KEY_COLUMNS_MAX,
    NAME_BYTES_MAX,
    PARTITIONS_MAX,
    REPLICAS_MAX,
    SCHEMA_VERSIONS_MAX,
)
from lowmark.catalog.table_commands import TrimTableSchemas
from lowmark.errors import Rejected

ID = NewColumn.of("id", "int64", required=True)
NAME = NewColumn.of("name", "string")


@dataclass(frozen=True)
class Case:
    """A command that is refused, why, and what its message must name."""

    of: str
    make: Callable[[], Command]
    reason: Reason
    names: str


def case(of: str, make: Callable[[], Command], reason: Reason, names: str) -> Any:
    return pytest.param(Case(of, make, reason, names), id=of.replace(" ", "-"))


def table(columns: tuple[NewColumn, ...] = (ID, NAME), **more: Any) -> CreateTable:
    return CreateTable(**{"name": "new", "columns": columns, **more})


def columns(count: int) -> tuple[NewColumn, ...]:
    return tuple(NewColumn.of(f"c{at}", "int64", required=True) for at in range(count))


LONG = "x" * (NAME_BYTES_MAX + 1)

NAMES = [
    case("a blank table name", lambda: table(name=" "), Reason.NAME, "' '"),
    case("an empty table name", lambda: table(name=""), Reason.NAME, "''"),
    case("a table name with a dot", lambda: table(name="a.b"), Reason.NAME, "'a.b'"),
    case("a table name with a digit first", lambda: table(name="1a"), Reason.NAME, "'1a'"),
    case("a table name that is too long", lambda: table(name=LONG), Reason.NAME, "129 characters"),
    case("a blank index name", lambda: index(name=" "), Reason.NAME, "' '"),
    case("a blank zone name", lambda: CreateZone(name=""), Reason.NAME, "''"),
    case("a blank schema name", lambda: CreateSchema(name=""), Reason.NAME, "''"),
    case("a blank new name of a table", lambda: rename(to=""), Reason.NAME, "''"),
    case("a blank new name of a zone", lambda: RenameZone(name="z", to=""), Reason.NAME, "''"),
    case("a blank new name of an index", lambda: RenameIndex(name="i", to=""), Reason.NAME, "''"),
    case("a blank column name", lambda: table((NewColumn.of(" ", "int8"),)), Reason.NAME, "' '"),
    case("a column name with a tab", lambda: add(NewColumn.of("a\tb", "int8")), Reason.NAME, "a"),
    case("half a character", lambda: add(NewColumn.of("\ud800", "int8")), Reason.NAME, "ud800"),
    case("a column name too long", lambda: add(NewColumn.of(LONG, "int8")), Reason.NAME, "129"),
    case("a blank new column name", lambda: rename_column(to=" "), Reason.NAME, "' '"),
    case("a system column", lambda: add(NewColumn.of("_offset", "int8")), Reason.RESERVED, "_offs"),
    case("a rename to one", lambda: rename_column(to="_Time"), Reason.RESERVED, "_Time"),
]


def index(**more: Any) -> CreateIndex:
    return CreateIndex(**{"name": "new", "table": "orders", "columns": ("city",), **more})


def rename(**more: Any) -> RenameTable:
    return RenameTable(**{"name": "orders", "to": "new", **more})


def add(*new: NewColumn, **more: Any) -> AddColumns:
    return AddColumns(table="orders", columns=new, **more)


def rename_column(**more: Any) -> RenameColumn:
    return RenameColumn(**{"table": "orders", "column": "city", "to": "town", **more})


def alter(**more: Any) -> AlterColumn:
    return AlterColumn(**{"table": "orders", "column": "small", **more})


def default(type_text: str, value: Any) -> NewColumn:
    return NewColumn.of("d", type_text, default=value)


CREATE_TABLE = [
    case("no columns", lambda: table(()), Reason.EMPTY, "new"),
    case("a column twice", lambda: table((ID, NAME, NAME)), Reason.REPEATED, "name"),
    case(
        "columns that differ in case only",
        lambda: table((ID, NAME, NewColumn.of("Name", "int8"))),
        Reason.REPEATED,
        "Name",
    ),
    case("a key column that may be null", lambda: table(key=("name",)), Reason.KEY, "name"),
    case("an unknown key column", lambda: table(key=("no",)), Reason.KEY, "no"),
    case("a key column twice", lambda: table(key=("id", "id")), Reason.REPEATED, "id"),
    case(
        "a key of a type that can't be one",
        lambda: table((NewColumn.of("f", "float64", required=True),), key=("f",)),
        Reason.KEY,
        "float64",
    ),
    case(
        "a key column with a default",
        lambda: table((NewColumn.of("f", "int8", required=True, default=1),), key=("f",)),
        Reason.KEY,
        "default",
    ),
    case(
        "too many key columns",
        lambda: table(
            columns(KEY_COLUMNS_MAX + 1), key=tuple(f"c{n}" for n in range(KEY_COLUMNS_MAX + 1))
        ),
        Reason.LIMIT,
        "key columns",
    ),
    case("too many columns", lambda: table(columns(COLUMNS_MAX + 1)), Reason.LIMIT, "1001"),
    case("no partitions", lambda: table(partitions=0), Reason.LIMIT, "0 partitions"),
    case(
        "too many partitions",
        lambda: table(partitions=PARTITIONS_MAX + 1),
        Reason.LIMIT,
        "65001 partitions",
    ),
    case("half a partition", lambda: table(partitions=1.5), Reason.LIMIT, "1.5"),
    case("an unknown schema", lambda: table(schema="no"), Reason.UNKNOWN, "schema no"),
    case("a system schema", lambda: table(schema="system"), Reason.RESERVED, "system"),
    case("an unknown zone", lambda: table(zone="no"), Reason.UNKNOWN, "zone no"),
    case("the name of a table", lambda: table(name="orders"), Reason.EXISTS, "public.orders"),
    case("the name of an index", lambda: table(name="by_city"), Reason.EXISTS, "an index"),
    case(
        "the name of an index, if not exists",
        lambda: table(name="by_city", if_not_exists=True),
        Reason.EXISTS,
        "an index",
    ),
    case("an unknown option", lambda: table(options={"no": 1}), Reason.OPTION, "compression"),
    case(
        "another number of partitions",
        lambda: AlterTable(name="orders", partitions=16),
        Reason.FIXED,
        "orders can't get 16 partitions: it was created with 8",
    ),
    case(
        "another number of partitions as an option",
        lambda: SetTableOptions(table="orders", options={"partitions": 16}),
        Reason.FIXED,
        "orders can't get 16 partitions",
    ),
    case(
        "altering to no partitions",
        lambda: AlterTable(name="orders", partitions=0),
        Reason.LIMIT,
        "0 partitions",
    ),
    case("altering no table", lambda: AlterTable(name="no", partitions=8), Reason.UNKNOWN, "table"),
    case(
        "a bad word for an option",
        lambda: table(options={"compaction": "maybe"}),
        Reason.OPTION,
        "off | manual | auto",
    ),
    case("a bad number", lambda: table(options={"min_lag_ms": -1}), Reason.OPTION, "min_lag_ms"),
    case("yes as a number", lambda: table(options={"min_lag_ms": True}), Reason.OPTION, "True"),
    case(
        "retention of a table with a key",
        lambda: table(key=("id",), options={"retention_ms": 5}),
        Reason.OPTION,
        "compaction=off",
    ),
    case(
        "lags that contradict",
        lambda: table(options={"min_lag_ms": 5, "max_lag_ms": 4}),
        Reason.OPTION,
        "max_lag_ms=4",
    ),
]

COLUMN_TYPES = [
    case(f"type {text!r}", lambda text=text: add(NewColumn.of("c", text)), Reason.TYPE, names)  # type: ignore[misc]
    for text, names in [
        ("", "''"),
        ("number", "no type number"),
        ("uint8", "uint8"),
        ("time", "time"),
        ("interval", "interval"),
        ("null", "null"),
        ("decimal", "decimal"),
        ("decimal(10)", "decimal(10)"),
        ("decimal(0,0)", "decimal(0,0)"),
        ("decimal(39,2)", "precision from 1 to 38"),
        ("decimal(5,6)", "decimal(5,6)"),
        ("decimal(99999,1)", "decimal"),
        ("string(10)", "string(10)"),
        ("list<>", "list<>"),
        ("list<int8", "list<int8"),
        ("struct<>", "struct<>"),
        ("struct<a int8>", "':' is missing"),
        ("struct<a: int8 not>", "not"),
        ("map<list<int8>, int8>", "can't be one"),
        ("map<float32, int8>", "can't be one"),
        ("int8 int8", "unexpected text after"),
        ("list<" * 16 + "int8" + ">" * 16, "16 deep"),
        ("int8 %", "int8 %"),
    ]
]

DEFAULTS = [
    case(
        f"{value!r} for {of}",
        lambda of=of, value=value: add(default(of, value)),  # type: ignore[misc]
        Reason.DEFAULT,
        "d",
    )
    for of, value in [
        ("bool", 1),
        ("int8", 128),
        ("int8", True),
        ("int64", 2**63),
        ("int64", 1.0),
        ("float64", float("nan")),
        ("float64", float("inf")),
        ("float32", 1e300),
        ("float64", 10**400),
        ("float64", 2**53 + 1),
        ("float32", 2**24 + 1),
        ("decimal(4,2)", Decimal("1.234")),
        ("decimal(4,2)", Decimal(100)),
        ("decimal(4,2)", Decimal("NaN")),
        ("decimal(4,2)", Decimal("1E+999999")),
        ("decimal(4,2)", Decimal("1E-999999")),
        ("decimal(4,2)", 1.5),
        ("string", b"x"),
        ("string", "\ud800"),
        ("string", "x" * 4097),
        ("binary", "x"),
        ("uuid", "00000000-0000-0000-0000-000000000000"),
        ("date", "2024-01-01"),
        ("timestamp", "2024-01-01"),
        ("timestamp", pd.Timestamp(1, tz="UTC")),
        ("timestamp_ntz", pd.NaT),
        ("list<int8>", [1]),
        ("struct<a: int8>", {"a": 1}),
        ("map<int8, int8>", {1: 1}),
    ]
]

TABLES = [
    case("drop of an unknown table", lambda: DropTable(name="no"), Reason.UNKNOWN, "public.no"),
    case(
        "drop in an unknown schema",
        lambda: DropTable(name="orders", schema="no"),
        Reason.UNKNOWN,
        "schema no",
    ),
    case(
        "drop in a system schema, if exists",
        lambda: DropTable(name="a", schema="information_schema", if_exists=True),
        Reason.RESERVED,
        "information_schema",
    ),
    case("rename of an unknown table", lambda: rename(name="no"), Reason.UNKNOWN, "public.no"),
    case("rename to a table", lambda: rename(to="plain"), Reason.EXISTS, "public.plain"),
    case("rename to an index", lambda: rename(to="by_city"), Reason.EXISTS, "an index"),
    case(
        "options of an unknown table",
        lambda: SetTableOptions(table="no", options={}),
        Reason.UNKNOWN,
        "public.no",
    ),
    case(
        "an unknown option taken back",
        lambda: SetTableOptions(table="orders", options={"no": None}),
        Reason.OPTION,
        "compression",
    ),
    case(
        "retention while compaction is on",
        lambda: SetTableOptions(table="orders", options={"retention_bytes": 1}),
        Reason.OPTION,
        "orders",
    ),
    case(
        "compaction while there is retention",
        lambda: SetTableOptions(table="kept", options={"compaction": None}),
        Reason.OPTION,
        "kept",
    ),
    case(
        "trimming an unknown table",
        lambda: TrimTableSchemas(table_id=TableId(999), keep_from=1),
        Reason.UNKNOWN,
        "999",
    ),
    case(
        "trimming the version in force",
        lambda: TrimTableSchemas(table_id=TableId(3), keep_from=2),
        Reason.LIMIT,
        "public.orders",
    ),
    case(
        "trimming below the first",
        lambda: TrimTableSchemas(table_id=TableId(3), keep_from=0),
        Reason.LIMIT,
        "public.orders",
    ),
]

COLUMNS = [
    case(
        "adding to no table", lambda: AddColumns(table="no", columns=(NAME,)), Reason.UNKNOWN, "no"
    ),
    case("adding nothing", add, Reason.EMPTY, "orders"),
    case("adding one twice", lambda: add(NAME, NAME), Reason.REPEATED, "name"),
    case(
        "adding a required one without a default",
        lambda: add(NewColumn.of("n", "int8", required=True)),
        Reason.REQUIRED,
        "default",
    ),
    case(
        "adding one that is there", lambda: add(NewColumn.of("city", "int8")), Reason.EXISTS, "city"
    ),
    case(
        "adding one that differs in case, if not exists",
        lambda: add(NewColumn.of("CITY", "int8"), if_not_exists=True),
        Reason.EXISTS,
        "in case only",
    ),
    case("adding too many", lambda: add(*columns_for_limit()), Reason.LIMIT, "1001 columns"),
    case(
        "dropping nothing", lambda: DropColumns(table="orders", columns=()), Reason.EMPTY, "orders"
    ),
    case(
        "dropping an unknown one",
        lambda: DropColumns(table="orders", columns=("no",)),
        Reason.UNKNOWN,
        "no",
    ),
    case(
        "dropping one twice",
        lambda: DropColumns(table="orders", columns=("small", "small")),
        Reason.REPEATED,
        "small",
    ),
    case(
        "dropping a key column",
        lambda: DropColumns(table="orders", columns=("id",)),
        Reason.KEY,
        "id",
    ),
    case(
        "dropping one that an index uses",
        lambda: DropColumns(table="orders", columns=("city",)),
        Reason.IN_USE,
        "by_city",
    ),
    case(
        "dropping all",
        lambda: DropColumns(table="plain", columns=("id", "name")),
        Reason.EMPTY,
        "public.plain",
    ),
    case("renaming an unknown one", lambda: rename_column(column="no"), Reason.UNKNOWN, "no"),
    case("renaming to another", lambda: rename_column(to="amount"), Reason.EXISTS, "amount"),
    case(
        "renaming to another in case", lambda: rename_column(to="AMOUNT"), Reason.EXISTS, "amount"
    ),
    case("altering an unknown one", lambda: alter(column="no"), Reason.UNKNOWN, "no"),
    case(
        "altering a key column's type",
        lambda: alter(column="id", type=parse_type("decimal(20,0)")),
        Reason.KEY,
        "id",
    ),
    case("a key that may be null", lambda: alter(column="id", required=False), Reason.KEY, "id"),
    case("a default for a key", lambda: alter(column="id", default=1), Reason.KEY, "id"),
    case("a narrower integer", lambda: alter(type=Plain.INT8), Reason.TYPE, "int8"),
    case("an integer as text", lambda: alter(type=Plain.STRING), Reason.TYPE, "string"),
    case("an integer as a float", lambda: alter(type=Plain.FLOAT64), Reason.TYPE, "float64"),
    case(
        "fewer digits",
        lambda: alter(column="amount", type=parse_type("decimal(9,2)")),
        Reason.TYPE,
        "decimal(9,2)",
    ),
    case(
        "another scale",
        lambda: alter(column="amount", type=parse_type("decimal(12,3)")),
        Reason.TYPE,
        "decimal(12,3)",
    ),
    case("required from now on", lambda: alter(required=True), Reason.REQUIRED, "small"),
    case("a default that does not fit", lambda: alter(default="x"), Reason.DEFAULT, "small"),
]


def columns_for_limit() -> tuple[NewColumn, ...]:
    there = 4
    return tuple(NewColumn.of(f"c{at}", "int8") for at in range(COLUMNS_MAX + 1 - there))


INDEXES = [
    case("no columns in an index", lambda: index(columns=()), Reason.EMPTY, "new"),
    case("a column twice", lambda: index(columns=("city", "city")), Reason.REPEATED, "city"),
    case("an unknown column", lambda: index(columns=("no",)), Reason.UNKNOWN, "no"),
    case(
        "too many columns in an index",
        lambda: index(columns=tuple(f"c{at}" for at in range(INDEX_COLUMNS_MAX + 1))),
        Reason.LIMIT,
        "17 columns",
    ),
    case(
        "a column that can't be compared",
        lambda: index(table="kept", columns=("f",)),
        Reason.TYPE,
        "float64",
    ),
    case("an index of an unknown table", lambda: index(table="no"), Reason.UNKNOWN, "public.no"),
    case("the name of an index", lambda: index(name="by_city"), Reason.EXISTS, "public.by_city"),
    case("the name of a table", lambda: index(name="plain"), Reason.EXISTS, "a table"),
    case(
        "the name of a table, if not exists",
        lambda: index(name="plain", if_not_exists=True),
        Reason.EXISTS,
        "a table",
    ),
    case("dropping an unknown index", lambda: DropIndex(name="no"), Reason.UNKNOWN, "public.no"),
    case(
        "dropping a table as an index", lambda: DropIndex(name="orders"), Reason.UNKNOWN, "orders"
    ),
    case("renaming no index", lambda: RenameIndex(name="no", to="a"), Reason.UNKNOWN, "no"),
    case(
        "renaming an index to a table",
        lambda: RenameIndex(name="by_city", to="plain"),
        Reason.EXISTS,
        "plain",
    ),
    case(
        "building no index", lambda: StartBuildingIndex(index_id=IndexId(99)), Reason.UNKNOWN, "99"
    ),
    case(
        "finishing no index", lambda: MakeIndexAvailable(index_id=IndexId(99)), Reason.UNKNOWN, "9"
    ),
    case("removing no index", lambda: RemoveIndex(index_id=IndexId(99)), Reason.UNKNOWN, "99"),
    case(
        "finishing before building",
        lambda: MakeIndexAvailable(index_id=IndexId(6)),
        Reason.STATUS,
        "registered",
    ),
    case(
        "removing before stopping",
        lambda: RemoveIndex(index_id=IndexId(6)),
        Reason.STATUS,
        "public.by_city",
    ),
]

ZONES = [
    case("no replicas", lambda: CreateZone(name="z", replicas=0), Reason.LIMIT, "0 replicas"),
    case(
        "too many replicas",
        lambda: CreateZone(name="z", replicas=REPLICAS_MAX + 1),
        Reason.LIMIT,
        "26 replicas",
    ),
    case("no partitions in a zone", lambda: CreateZone(name="z", partitions=0), Reason.LIMIT, "0"),
    case(
        "too many partitions in a zone",
        lambda: CreateZone(name="z", partitions=PARTITIONS_MAX + 1),
        Reason.LIMIT,
        "65001",
    ),
    case("a zone that is there", lambda: CreateZone(name="default"), Reason.EXISTS, "default"),
    case(
        "less than no time",
        lambda: CreateZone(name="z", scale_up_ms=-1),
        Reason.LIMIT,
        "-1 as scale_up_ms",
    ),
    case(
        "more than a hundred years",
        lambda: CreateZone(name="z", scale_down_ms=DURATION_MS_MAX + 1),
        Reason.LIMIT,
        "or never",
    ),
    case(
        "a zone without a time",
        lambda: CreateZone(name="z", scale_down_ms=None),  # type: ignore[arg-type]
        Reason.LIMIT,
        "None as scale_down_ms",
    ),
    case(
        "nodes that never get partitions",
        lambda: CreateZone(name="z", scale_up_ms="never"),  # type: ignore[arg-type]
        Reason.LIMIT,
        "'never' as scale_up_ms",
    ),
    case(
        "altering to a time in words",
        lambda: AlterZone(name="default", scale_down_ms="5s"),  # type: ignore[arg-type]
        Reason.LIMIT,
        "'5s' as scale_down_ms",
    ),
    case(
        "altering to less than no time",
        lambda: AlterZone(name="default", scale_up_ms=-1),
        Reason.LIMIT,
        "-1",
    ),
    case("altering no zone", lambda: AlterZone(name="no", replicas=1), Reason.UNKNOWN, "zone no"),
    case(
        "altering to no replicas", lambda: AlterZone(name="default", replicas=0), Reason.LIMIT, "0"
    ),
    case(
        "altering to no partitions",
        lambda: AlterZone(name="default", partitions=0),
        Reason.LIMIT,
        "0",
    ),
    case(
        "altering to a bad filter",
        lambda: AlterZone(name="default", node_filter="x"),
        Reason.FILTER,
        "'x'",
    ),
    case("renaming no zone", lambda: RenameZone(name="no", to="z"), Reason.UNKNOWN, "zone no"),
    case(
        "renaming to a zone",
        lambda: RenameZone(name="default", to="used"),
        Reason.EXISTS,
        "zone used",
    ),
    case("no zone as the default", lambda: SetDefaultZone(name="no"), Reason.UNKNOWN, "zone no"),
    case("dropping no zone", lambda: DropZone(name="no"), Reason.UNKNOWN, "zone no"),
    case("dropping the default zone", lambda: DropZone(name="default"), Reason.IN_USE, "default"),
    case(
        "dropping a zone with tables", lambda: DropZone(name="used"), Reason.IN_USE, "public.plain"
    ),
    *(
        case(
            f"filter {text!r}",
            lambda text=text: CreateZone(name="z", node_filter=text),  # type: ignore[misc]
            Reason.FILTER,
            "node filter",
        )
        for text in [
            "rack",
            "rack =",
            "= r1",
            "rack == r1",
            "rack in r1",
            "rack in ()",
            "rack in (a,",
            "rack in (a b)",
            "rack = a or rack = b",
            "rack = a and",
            "and rack = a",
            "rack = a rack = b",
            "rack = 'a",
            "rack = '\x00'",
            "exists",
            "1a = b",
            "a ~ b",
            "x" * 1001,
        ]
    ),
]

SCHEMAS = [
    case("a schema that is there", lambda: CreateSchema(name="public"), Reason.EXISTS, "public"),
    case("a system schema made", lambda: CreateSchema(name="system"), Reason.RESERVED, "system"),
    case(
        "a system schema in capitals", lambda: CreateSchema(name="System"), Reason.RESERVED, "Sys"
    ),
    case("a system schema dropped", lambda: DropSchema(name="system"), Reason.RESERVED, "system"),
    case("dropping no schema", lambda: DropSchema(name="no"), Reason.UNKNOWN, "schema no"),
    case("dropping one with tables", lambda: DropSchema(name="public"), Reason.IN_USE, "cascade"),
]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """Tables orders (3), plain (5) and kept (7), index by_city (6), zone used (4)."""
    made = fresh(
        orders(),
        CreateZone(name="used"),
        CreateTable(name="plain", columns=(ID, NAME), zone="used"),
        CreateIndex(name="by_city", table="orders", columns=("city",)),
        CreateTable(
            name="kept",
            columns=(ID, NewColumn.of("f", "float64")),
            key=("id",),
            options={"retention_ms": 5, "compaction": "off"},
        ),
    )
    assert [table.id for table in made.all_tables()] == [3, 5, 7]
    return made


@pytest.mark.parametrize(
    "refused",
    [
        *NAMES,
        *CREATE_TABLE,
        *COLUMN_TYPES,
        *DEFAULTS,
        *TABLES,
        *COLUMNS,
        *INDEXES,
        *ZONES,
        *SCHEMAS,
    ],
)
def test_a_wrong_command_is_refused_by_name_and_changes_nothing(
    catalog: Catalog, refused: Case
) -> None:
    # given a catalog, and a good command before the wrong one
    before = catalog
    # when the wrong one is made and evaluated
    with pytest.raises(CatalogRefused) as caught:
        evaluate(catalog, [CreateSchema(name="first"), refused.make()])
    # then it says what is wrong, of what, and what to change
    error = caught.value
    assert isinstance(error, Rejected)
    assert error.reason is refused.reason
    assert refused.names in str(error)
    assert error.hint
    assert error.object_kind
    # and nothing of the batch is left
    assert catalog == before
    assert catalog.schema_named("first") is None


def test_every_reason_is_given_by_some_case() -> None:
    given = {
        param.values[0].reason
        for cases in (
            NAMES,
            CREATE_TABLE,
            COLUMN_TYPES,
            DEFAULTS,
            TABLES,
            COLUMNS,
            INDEXES,
            ZONES,
            SCHEMAS,
        )
        for param in cases
    }
    assert given == set(Reason)


# -- at the edge ---------------------------------------------------------------------------------


def test_what_is_just_within_the_limits_is_taken() -> None:
    most = "x" * NAME_BYTES_MAX
    catalog = fresh(
        CreateZone(name=most, replicas=REPLICAS_MAX, partitions=PARTITIONS_MAX),
        CreateTable(
            name=most,
            columns=columns(COLUMNS_MAX),
            key=tuple(f"c{n}" for n in range(KEY_COLUMNS_MAX)),
            partitions=PARTITIONS_MAX,
        ),
        CreateIndex(
            name="wide", table=most, columns=tuple(f"c{n}" for n in range(INDEX_COLUMNS_MAX))
        ),
        CreateTable(name="one", columns=(NewColumn.of("ü" * 64, "int8"),), partitions=1),
    )
    assert catalog.version == 5
    deep = parse_type("list<" * 15 + "int8" + ">" * 15)
    add_deep = AddColumns(table="one", columns=(NewColumn(name="d", type=deep),))
    assert table_of(execute(catalog, add_deep), "one").columns[-1].type == deep


def test_a_table_has_so_many_indexes_and_no_more() -> None:
    made = [
        CreateIndex(name=f"i{at}", table="orders", columns=("city",))
        for at in range(INDEXES_PER_TABLE_MAX)
    ]
    catalog = execute(fresh(orders()), *made)
    with pytest.raises(CatalogRefused) as caught:
        evaluate(catalog, [CreateIndex(name="more", table="orders", columns=("city",))])
    assert caught.value.reason is Reason.LIMIT


@pytest.mark.slow
def test_a_table_keeps_so_many_schema_versions_and_trimming_makes_room() -> None:
    # given a table with as many schema versions as there may be
    catalog = fresh(orders())
    for at in range(SCHEMA_VERSIONS_MAX - 1):
        catalog = execute(catalog, alter(default=at))
    more = alter(default=-1)
    with pytest.raises(CatalogRefused) as caught:
        evaluate(catalog, [more])
    assert caught.value.reason is Reason.LIMIT
    # when one is trimmed
    trim = TrimTableSchemas(table_id=table_of(catalog).id, keep_from=2)
    catalog = execute(catalog, trim)
    # then there is room for one
    assert table_of(execute(catalog, more)).latest.number == SCHEMA_VERSIONS_MAX + 1


def test_a_batch_has_so_many_commands_and_no_more() -> None:
    catalog = fresh()
    made = [CreateSchema(name=f"s{at}") for at in range(COMMANDS_PER_BATCH_MAX)]
    assert len(execute(catalog, *made).schemas) == COMMANDS_PER_BATCH_MAX + 1
    with pytest.raises(CatalogRefused) as caught:
        evaluate(catalog, [*made, CreateSchema(name="more")])
    assert caught.value.reason is Reason.LIMIT


def test_a_catalog_without_a_default_zone_asks_for_one() -> None:
    with pytest.raises(CatalogRefused) as caught:
        evaluate(EMPTY, [CreateSchema(name="public"), orders()])
    assert caught.value.reason is Reason.UNKNOWN
