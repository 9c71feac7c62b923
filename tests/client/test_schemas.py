"""Columns as people write them: words of SQL and Spark, types of Python and of Arrow, schemas."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import polars as pl
import pyarrow as pa
import pytest

from lowmark.catalog import NewColumn, parse_type, type_text
from lowmark.client import Database
from lowmark.convert.columns import columns_of
from lowmark.errors import CatalogRefused, Rejected

WORDS = {
    "int": "int32",
    "integer": "int32",
    "INT": "int32",
    "tinyint": "int8",
    "smallint": "int16",
    "bigint": "int64",
    "long": "int64",
    "short": "int16",
    "byte": "int8",
    "double": "float64",
    "float": "float32",
    "real": "float32",
    "varchar": "string",
    "text": "string",
    "str": "string",
    "boolean": "bool",
    "bytes": "binary",
    "varbinary": "binary",
    "timestamptz": "timestamp",
    "timestamp_ltz": "timestamp",
    "numeric(10,2)": "decimal(10,2)",
    "array<bigint>": "list<int64>",
    "struct<a: long, b: varchar not null>": "struct<a: int64, b: string not null>",
    "map<varchar, double>": "map<string, float64>",
}


@pytest.mark.parametrize(("word", "type_"), WORDS.items())
def test_words_of_sql_and_spark_are_types(word: str, type_: str) -> None:
    assert type_text(parse_type(word)) == type_


PYTHON: list[tuple[Any, str]] = [
    (int, "int64"),
    (float, "float64"),
    (str, "string"),
    (bytes, "binary"),
    (bool, "bool"),
    (date, "date"),
    (datetime, "timestamp"),
    (UUID, "uuid"),
    (list[int], "list<int64>"),
    (dict[str, float], "map<string, float64>"),
    (int | None, "int64"),
    (pa.int16(), "int16"),
    (pa.timestamp("us", tz="UTC"), "timestamp"),
    (pa.timestamp("us"), "timestamp_ntz"),
    (pa.decimal128(12, 2), "decimal(12,2)"),
    (pa.list_(pa.string()), "list<string>"),
    (parse_type("uuid"), "uuid"),
    ("long", "int64"),
]


@pytest.mark.parametrize(("given", "type_"), PYTHON, ids=str)
def test_a_column_is_given_by_a_type_of_python_or_arrow(given: object, type_: str) -> None:
    (column,) = columns_of({"c": given}, ())
    assert (column.name, type_text(column.type), column.required) == ("c", type_, False)


@pytest.mark.parametrize(
    "columns",
    [
        {"id": int, "name": str},
        {"id": pa.int64(), "name": pa.string()},
        pa.schema([("id", pa.int64()), ("name", pa.string())]),
        [("id", int), ("name", "varchar")],
        [pa.field("id", pa.int64()), pa.field("name", pa.large_string())],
        [
            NewColumn(name="id", type=parse_type("int64")),
            NewColumn(name="name", type=parse_type("string")),
        ],
        pl.Schema({"id": pl.Int64, "name": pl.String}),
    ],
    ids=["python", "arrow types", "arrow schema", "pairs", "arrow fields", "columns", "polars"],
)
def test_a_schema_is_given_in_any_of_these_forms(columns: Any) -> None:
    found = columns_of(columns, ("id",))
    assert [(one.name, type_text(one.type), one.required) for one in found] == [
        ("id", "int64", True),
        ("name", "string", False),
    ]


def test_what_an_arrow_field_and_the_text_say_of_nulls_counts() -> None:
    fields = [pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64())]
    assert [one.required for one in columns_of(fields, ())] == [True, False]
    (column,) = columns_of({"a": "bigint NOT  NULL"}, ())
    assert column.required


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("strnig", "there is no type strnig"),
        ("varchar(20)", "string"),
        ("datetime", "timestamp_ntz"),
        (Decimal, "decimal(12,2)"),
        (list, "list[int]"),
        (dict, "dict[str, int]"),
        (object, "object"),
        (7, "7"),
        (None, "None"),
        (int | str, "int | str"),
        (pa.uint64(), "int64"),
        (pa.timestamp("ns"), "timestamp('us')"),
        (list[object], "object"),
    ],
)
def test_what_can_t_be_a_column_is_refused_with_its_name(given: Any, says: str) -> None:
    for columns in ({"id": "int64", "price": given}, [("id", int), ("price", given)]):
        with pytest.raises(Rejected) as refused:
            columns_of(columns, ())
        assert "column price" in refused.value.message
        assert says in f"{refused.value.message} {refused.value.hint}"


def test_a_field_of_an_arrow_schema_that_can_t_be_a_column_is_named() -> None:
    with pytest.raises(CatalogRefused, match="column size"):
        columns_of(pa.schema([("id", pa.int64()), ("size", pa.uint64())]), ())


@pytest.mark.parametrize("columns", ["id int64", 7, ["id", "name"], {7: "int64"}, [int], None])
def test_what_is_no_list_of_columns_is_refused(columns: Any) -> None:
    with pytest.raises(Rejected) as refused:
        columns_of(columns, ())
    assert refused.value.hint


def test_a_table_of_python_types_takes_rows_and_gives_them_back(db: Database) -> None:
    people = db.create_table("people", {"id": int, "name": str, "tags": list[str]}, key="id")
    people.append([{"id": 1, "name": "Ada", "tags": ["a", "b"]}])
    assert people.get(1) == {"id": 1, "name": "Ada", "tags": ["a", "b"]}
