"""Types, defaults and node filters: their text, their rules, and their Arrow form."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.making import fresh, table_of
from lowmark.catalog import (
    CatalogRefused,
    ColumnType,
    CreateTable,
    DecimalOf,
    ListOf,
    MapOf,
    NewColumn,
    Plain,
    StructField,
    StructOf,
    can_be_key,
    parse_type,
    parse_value,
    type_text,
    value_text,
)
from lowmark.catalog.arrow import from_arrow, schema_to_arrow, to_arrow
from lowmark.catalog.names import TYPE_PARTS_MAX
from lowmark.catalog.node_filter import parse_filter
from lowmark.catalog.types import widens

DECIMALS = st.integers(1, 38).flatmap(
    lambda precision: st.builds(DecimalOf, st.just(precision), st.integers(0, precision))
)
KEYS = st.one_of(st.sampled_from([plain for plain in Plain if can_be_key(plain)]), DECIMALS)
FIELD_NAMES = st.one_of(
    st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True),
    st.text(min_size=1, max_size=5).filter(lambda s: s.isprintable() and s == s.strip()),
)


def _structs(inner: st.SearchStrategy[ColumnType]) -> st.SearchStrategy[ColumnType]:
    fields = st.builds(StructField, FIELD_NAMES, inner, st.booleans())
    return st.lists(
        fields, min_size=1, max_size=3, unique_by=lambda field: field.name.casefold()
    ).map(lambda found: StructOf(tuple(found)))


TYPES: st.SearchStrategy[ColumnType] = st.recursive(
    st.one_of(st.sampled_from(Plain), DECIMALS),
    lambda inner: st.one_of(
        st.builds(ListOf, inner), st.builds(MapOf, KEYS, inner), _structs(inner)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(TYPES)
def test_a_type_is_read_back_from_its_text_and_from_its_arrow_form(column_type: ColumnType) -> None:
    assert parse_type(type_text(column_type)) == column_type
    assert from_arrow(to_arrow(column_type)) == column_type


@pytest.mark.slow
@given(st.text(alphabet="<>(),: `abint8lstrucmpde0 not null", max_size=40))
def test_any_text_is_a_type_or_is_refused_by_name(text: str) -> None:
    try:
        found = parse_type(text)
    except CatalogRefused:
        return
    assert parse_type(type_text(found)) == found


def test_texts_are_as_people_write_them() -> None:
    column_type = StructOf(
        (
            StructField("a", Plain.INT64),
            StructField("b c", ListOf(DecimalOf(10, 2)), required=True),
            StructField("m", MapOf(Plain.UUID, Plain.TIMESTAMP_NTZ)),
        )
    )
    text = "struct<a: int64, `b c`: list<decimal(10,2)> not null, m: map<uuid, timestamp_ntz>>"
    assert type_text(column_type) == text
    assert parse_type("  LIST < Decimal ( 10 , 2 ) > ") == ListOf(DecimalOf(10, 2))


def test_a_type_is_made_of_so_many_and_no_more() -> None:
    fields = [StructField(f"f{at}", Plain.INT8) for at in range(TYPE_PARTS_MAX)]
    StructOf(tuple(fields[:-1]))
    with pytest.raises(CatalogRefused):
        StructOf(tuple(fields))


def test_keys_are_of_types_whose_equal_values_have_one_form() -> None:
    keys = {type_text(plain) for plain in Plain if can_be_key(plain)}
    assert keys == {
        *("int8", "int16", "int32", "int64", "string", "binary", "uuid"),
        *("date", "timestamp", "timestamp_ntz"),
    }
    assert can_be_key(DecimalOf(38, 38))
    assert not can_be_key(ListOf(Plain.INT8))


@pytest.mark.slow
@given(TYPES, TYPES)
def test_widening_has_a_direction(one: ColumnType, other: ColumnType) -> None:
    assert not (widens(one, other) and widens(other, one))
    assert not widens(one, one)


@pytest.mark.parametrize(
    ("arrow", "column_type"),
    [
        (pa.large_string(), Plain.STRING),
        (pa.string_view(), Plain.STRING),
        (pa.large_binary(), Plain.BINARY),
        (pa.dictionary(pa.int8(), pa.string()), Plain.STRING),
        (pa.uuid(), Plain.UUID),
        (pa.binary(16), Plain.UUID),
        (pa.timestamp("s"), Plain.TIMESTAMP_NTZ),
        (pa.timestamp("ms", tz="Europe/Berlin"), Plain.TIMESTAMP),
        (pa.decimal256(38, 3), DecimalOf(38, 3)),
        (pa.large_list(pa.int8()), ListOf(Plain.INT8)),
        (pa.list_(pa.field("x", pa.int8(), nullable=False)), ListOf(Plain.INT8)),
    ],
)
def test_arrow_types_that_lose_nothing_are_taken(
    arrow: pa.DataType, column_type: ColumnType
) -> None:
    assert from_arrow(arrow) == column_type


@pytest.mark.parametrize(
    ("arrow", "hint"),
    [
        (pa.uint8(), "int16"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float32"),
        (pa.timestamp("ns"), "timestamp('us')"),
        (pa.date64(), "date32"),
        (pa.time64("us"), "another type"),
        (pa.duration("us"), "another type"),
        (pa.month_day_nano_interval(), "another type"),
        (pa.null(), "values"),
        (pa.decimal256(39, 0), "38"),
        (pa.decimal128(3, -2), "38"),
        (pa.binary(8), "another type"),
        (pa.map_(pa.float32(), pa.int8()), "Keys"),
        (pa.struct([]), "at least one"),
    ],
)
def test_arrow_types_that_would_lose_something_are_refused(arrow: pa.DataType, hint: str) -> None:
    with pytest.raises(CatalogRefused) as caught:
        from_arrow(arrow)
    assert hint in caught.value.hint


def test_a_table_takes_the_columns_of_an_arrow_schema_and_gives_them_back() -> None:
    arrow = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("at", pa.timestamp("us", tz="UTC")),
        ]
    )
    columns = [
        NewColumn(name=field.name, type=from_arrow(field.type), required=not field.nullable)
        for field in arrow
    ]
    table = CreateTable(name="t", columns=tuple(columns), key=("id",))
    found = table_of(fresh(table), "t")
    assert schema_to_arrow(found.latest) == arrow


# -- defaults -----------------------------------------------------------------------------------

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("type_of", "given_value", "kept"),
    [
        ("bool", True, True),
        ("int64", -(2**63), -(2**63)),
        ("float32", 0.1, 0.10000000149011612),
        ("float64", -0.0, 0.0),
        ("float64", 3, 3.0),
        ("decimal(4,2)", 5, Decimal("5.00")),
        ("decimal(4,2)", Decimal("-1.5"), Decimal("-1.50")),
        ("decimal(4,2)", Decimal("9.9900"), Decimal("9.99")),
        ("decimal(4,2)", Decimal("-0E+5"), Decimal("0.00")),
        ("decimal(38,0)", Decimal("9" * 38), Decimal("9" * 38)),
        ("decimal(38,38)", Decimal("0." + "9" * 38), Decimal("0." + "9" * 38)),
        ("string", "ü", "ü"),
        ("binary", bytearray(b"x"), b"x"),
        ("uuid", UUID(int=5), UUID(int=5)),
        ("date", date(1, 1, 1), date(1, 1, 1)),
        ("timestamp", NOON.astimezone(timezone(timedelta(hours=2))), NOON),
        ("timestamp_ntz", NOON.replace(tzinfo=None), NOON.replace(tzinfo=None)),
    ],
)
def test_a_default_has_one_form_and_one_text(type_of: str, given_value: Any, kept: Any) -> None:
    column = NewColumn.of("c", type_of, default=given_value)
    assert column.default == kept
    assert (type(column.default), repr(column.default)) == (type(kept), repr(kept))
    assert parse_value(column.type, value_text(kept), column="c") == kept


@pytest.mark.parametrize(
    ("type_of", "value"),
    [
        ("timestamp", NOON.replace(tzinfo=None)),
        ("timestamp_ntz", NOON),
        ("date", NOON),
        ("timestamp", datetime.max.replace(tzinfo=timezone(timedelta(hours=-2)))),
    ],
)
def test_a_time_with_the_wrong_idea_of_zones_is_refused(type_of: str, value: Any) -> None:
    with pytest.raises(CatalogRefused):
        NewColumn.of("c", type_of, default=value)


@pytest.mark.parametrize(
    ("type_of", "text"),
    [("int8", "x"), ("decimal(4,2)", "x"), ("bool", "1"), ("uuid", "5"), ("list<int8>", "[]")],
)
def test_a_default_that_can_not_be_read_is_refused(type_of: str, text: str) -> None:
    with pytest.raises(CatalogRefused):
        parse_value(parse_type(type_of), text, column="c")


# -- node filters -------------------------------------------------------------------------------

NODE = {"rack": "r1", "disk": "ssd", "note": "it's here"}


@pytest.mark.parametrize(
    ("text", "kept", "matches"),
    [
        ("", "", True),
        ("  ", "", True),
        ("rack = r1", "rack = r1", True),
        ("rack='r1'", "rack = r1", True),
        ("rack = r2", "rack = r2", False),
        ("rack != r2 AND gpu != yes", "rack != r2 and gpu != yes", True),
        ("disk in (ssd,nvme, ssd)", "disk in (ssd, nvme)", True),
        ("disk in (hdd)", "disk in (hdd)", False),
        ("gpu exists", "gpu exists", False),
        ("rack Exists and disk = ssd", "rack exists and disk = ssd", True),
        ("note = 'it''s here'", "note = 'it''s here'", True),
        ("rack = 'and'", "rack = 'and'", False),
        ("gpu = ''", "gpu = ''", False),
    ],
)
def test_a_filter_says_which_nodes_it_takes(text: str, kept: str, matches: bool) -> None:
    found = parse_filter(text)
    assert str(found) == kept
    assert parse_filter(kept) == found
    assert found.matches(NODE) is matches


@given(st.text(alphabet="ab=!()', in exstdo\t", max_size=30))
def test_any_text_is_a_filter_or_is_refused_by_name(text: str) -> None:
    try:
        found = parse_filter(text)
    except CatalogRefused:
        return
    assert parse_filter(str(found)) == found
