"""Keys have one form: arrays and single values agree on it, and with Iceberg on its buckets."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from types import FrameType
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.making import fresh, orders, table_of
from docs.pages import blocks, tables
from lowmark.catalog import (
    ColumnType,
    NewColumn,
    Plain,
    RenameColumn,
    parse_type,
    type_text,
)
from lowmark.catalog.arrow import to_arrow
from lowmark.errors import InvariantBroken, Rejected
from lowmark.table.hashing import murmur3_long, murmur3_one
from lowmark.table.keys import Canonical, KeyForm

FEWER = settings(max_examples=settings().max_examples // 5)
"""For what is tried with many types, and with many values at a time."""

SEED = 0x1234_5678_9ABC_DEF0


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    bound = 10**precision - 1
    return st.integers(-bound, bound).map(
        lambda number: Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))
    )


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int8": integers(8),
    "int16": integers(16),
    "int32": integers(32),
    "int64": integers(64),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "string": st.text(max_size=40),
    "binary": st.binary(max_size=40),
    "uuid": st.uuids(),
    "decimal(9,2)": decimals(9, 2),
    "decimal(18,0)": decimals(18, 0),
    "decimal(38,10)": decimals(38, 10),
    "decimal(38,38)": decimals(38, 38),
}


def form_of(*types: str) -> KeyForm:
    return KeyForm.of_columns([(f"k{at}", parse_type(text)) for at, text in enumerate(types)])


def column_of(values: list[Any], column_type: ColumnType) -> pa.Array:
    if column_type is Plain.UUID:
        values = [value.bytes if isinstance(value, UUID) else value for value in values]
    return pa.array(values, to_arrow(column_type))


def batch_of(form: KeyForm, keys: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [
        column_of([key[at] for key in keys], column_type)
        for at, column_type in enumerate(form.types)
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(form.names))


def test_every_type_that_can_be_a_key_is_tried_here() -> None:
    keys = {Plain(text) for text in VALUES if not text.startswith("decimal")}
    assert keys | {Plain.BOOL, Plain.FLOAT32, Plain.FLOAT64} == set(Plain)


# -- arrays and single values -------------------------------------------------------------------


def check_that_both_ways_agree(form: KeyForm, keys: list[tuple[Any, ...]]) -> None:
    # given the keys in the middle of a batch
    batch = batch_of(form, [keys[-1], *keys, keys[0]]).slice(1, len(keys))
    # when they are brought to their form as an array, and one by one
    array = form.array(batch)
    ones = [form.one(key) for key in keys]
    # then form, partition and hash are the same
    assert pa.types.is_int64(array.type) is form.is_integer
    assert array.to_pylist() == ones
    assert form.buckets(array, 7).tolist() == [form.bucket_one(one, 7) for one in ones]
    assert form.hashes(array, SEED).tolist() == [form.hash_one(one, SEED) for one in ones]


@pytest.mark.parametrize("text", VALUES)
def test_an_array_and_single_values_have_the_same_form(text: str) -> None:
    @FEWER
    @given(st.lists(VALUES[text], min_size=1, max_size=30))
    def check(values: list[Any]) -> None:
        check_that_both_ways_agree(form_of(text), [(value,) for value in values])

    check()


@pytest.mark.slow
@given(st.data())
def test_keys_of_several_columns_have_one_form_too(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=2, max_size=4))
    keys = data.draw(
        st.lists(st.tuples(*(VALUES[text] for text in types)), min_size=1, max_size=12)
    )
    check_that_both_ways_agree(form_of(*types), keys)


@given(st.data())
def test_different_keys_have_different_forms(data: st.DataObject) -> None:
    texts = st.text("ab\0", max_size=3)
    form = form_of("string", "int16", "binary")
    key = st.tuples(texts, st.integers(0, 2), texts.map(str.encode))
    one, other = data.draw(key), data.draw(key)
    assert (form.one(one) == form.one(other)) is (one == other)


@pytest.mark.parametrize("text", VALUES)
def test_an_empty_batch_has_no_keys(text: str) -> None:
    for form in (form_of(text), form_of(text, "int8")):
        array = form.array(batch_of(form, []))
        assert len(array) == len(form.buckets(array, 4)) == len(form.hashes(array, SEED)) == 0
        assert form.partly_null(batch_of(form, [])) is None


@pytest.mark.parametrize(
    ("text", "arrow"),
    [
        ("string", pa.large_string()),
        ("string", pa.string_view()),
        ("binary", pa.large_binary()),
        ("binary", pa.binary_view()),
        ("timestamp_ntz", pa.timestamp("ms")),
        ("uuid", pa.uuid()),
    ],
)
def test_other_arrow_types_of_the_same_values_give_the_same_keys(
    text: str, arrow: pa.DataType
) -> None:
    # given the same values as a plain column and as another type
    values = {
        "string": ["", "ä" * 20, None],
        "binary": [b"", b"x" * 20, None],
        "timestamp_ntz": [datetime(2020, 1, 1), None],  # noqa: DTZ001 - it has no zone
        "uuid": [bytes(range(16)), None],
    }[text]
    plain, other = pa.array(values, to_arrow(parse_type(text))), pa.array(values, arrow)
    # when both are brought to their form
    for form, more in ((form_of(text), []), (form_of(text, text), [plain])):
        keys, others = form.array_of([plain, *more]), form.array_of([other, *more])
        # then the keys are equal
        assert keys.to_pylist() == others.to_pylist()
        assert form.buckets(keys, 9).tolist() == form.buckets(others, 9).tolist()
        assert form.hashes(keys, 1)[:-1].tolist() == form.hashes(others, 1)[:-1].tolist()


# -- rows without a key -------------------------------------------------------------------------


@pytest.mark.parametrize("text", VALUES)
def test_a_null_key_belongs_to_no_partition(text: str) -> None:
    # given rows of which some have no key, in the middle of a batch
    value = {"int": 7, "date": date(2020, 1, 1), "string": "x", "binary": b"", "uuid": bytes(16)}
    some = value.get(text.rstrip("12346 8"), Decimal(0) if text.startswith("decimal") else None)
    if some is None:
        some = datetime(2020, 1, 1, tzinfo=UTC if text == "timestamp" else None)
    for form in (form_of(text), form_of(text, text)):
        wide = len(form.names)
        key, none = (some,) * wide, (None,) * wide
        batch = batch_of(form, [key, none, key, none]).slice(1)
        # when their partitions are computed
        assert form.partly_null(batch) is None
        array = form.array(batch)
        buckets = form.buckets(array, 5).tolist()
        # then the others have theirs
        one = form.one(key)
        assert array.to_pylist() == [None, one, None]
        assert buckets == [-1, form.bucket_one(one, 5), -1]
        assert form.hashes(array, SEED)[1] == form.hash_one(one, SEED)


def test_a_key_that_is_partly_null_is_found_and_never_taken_for_one() -> None:
    # given a row with half a key
    form = form_of("int32", "string")
    batch = batch_of(form, [(1, "a"), (None, None), (2, None), (None, "b")])
    # when somebody looks
    # then it is found, and without having looked there are no keys
    assert form.partly_null(batch) == 2
    assert form.partly_null(batch.slice(3)) == 0
    assert form.partly_null(batch.slice(0, 2)) is None
    with pytest.raises(InvariantBroken):
        form.array(batch)


# -- Iceberg ------------------------------------------------------------------------------------

PUBLISHED: list[tuple[str, Any, int]] = [
    ("int32", 34, 2017239379),
    ("int64", 34, 2017239379),
    ("string", "iceberg", 1210000089),
    ("decimal(9,2)", Decimal("14.20"), -500754589),
    ("date", date(2017, 11, 16), -653330422),
    ("timestamp_ntz", datetime(2017, 11, 16, 22, 31, 8), -2047944441),  # noqa: DTZ001
    ("timestamp", datetime(2017, 11, 16, 22, 31, 8, tzinfo=UTC), -2047944441),
    ("uuid", UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"), 1488055340),
    ("binary", bytes([0, 1, 2, 3]), -188683207),
]
ALL = (1 << 31) - 1


@pytest.mark.parametrize(("text", "value", "hashed"), PUBLISHED)
def test_hashes_are_those_that_iceberg_publishes(text: str, value: Any, hashed: int) -> None:
    form = form_of(text)
    array = form.array(batch_of(form, [(value,)] * 20))
    expected = (hashed & 0x7FFFFFFF) % ALL
    assert form.buckets(array, ALL).tolist() == [expected] * 20
    assert form.bucket_one(form.one((value,)), ALL) == expected


@pytest.mark.parametrize("text", VALUES)
def test_buckets_are_those_of_iceberg_s_own_code(text: str) -> None:
    transform = pytest.importorskip("pyiceberg_core").transform
    form = form_of(text)

    @FEWER
    @given(st.lists(VALUES[text], min_size=1, max_size=30), st.integers(1, 1000))
    def check(values: list[Any], partitions: int) -> None:
        # given values as Iceberg has them
        column = column_of(values, form.types[0])
        same = column.cast(pa.int32()) if text in {"int8", "int16"} else column
        # when both compute buckets, then they agree
        buckets = form.buckets(form.array_of([column]), partitions)
        assert buckets.dtype == np.int32
        assert buckets.tolist() == transform.bucket(same, partitions).to_pylist()

    check()


def test_a_decimal_is_as_short_as_its_sign_allows() -> None:
    # given all numbers that are near a change of their length
    near = [sign * (1 << bits) + by for bits in range(127) for sign in (1, -1) for by in (-1, 0, 1)]
    numbers = [number for number in near if abs(number) < 10**38]
    form = form_of("decimal(38,0)")
    # when they are brought to their form
    keys = form.array(batch_of(form, [(Decimal(number),) for number in numbers])).to_pylist()
    # then it is the number, and one byte less could not hold it
    assert keys == [form.one((number,)) for number in numbers]
    for key, number in zip(keys, numbers, strict=True):
        assert int.from_bytes(key, "big", signed=True) == number
        bound = 1 << 8 * (len(key) - 1) >> 1
        assert len(key) == 1 or not -bound <= number < bound


# -- what is refused ----------------------------------------------------------------------------

REFUSED: list[tuple[str, Any, str]] = [
    ("int8", 128, "out of range"),
    ("int8", -129, "out of range"),
    ("int64", 1 << 63, "out of range"),
    ("int64", 10**5000, "huge"),
    ("int32", True, "bool"),
    ("int32", 1.0, "float"),
    ("int32", "1", "str"),
    ("int32", None, "no nulls"),
    ("string", b"x", "bytes"),
    ("string", "\ud800", "not valid text"),
    ("binary", "x", "str"),
    ("uuid", "f79c3e09-677c-4bbd-a479-3f349cb785e7", "str"),
    ("uuid", bytes(15), "15 bytes"),
    ("date", datetime(2020, 1, 1, tzinfo=UTC), "datetime"),
    ("timestamp", datetime(2020, 1, 1), "no time zone"),  # noqa: DTZ001
    ("timestamp_ntz", datetime(2020, 1, 1, tzinfo=UTC), "has a time zone"),
    ("timestamp", date(2020, 1, 1), "date"),
    ("timestamp", datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "out of range"),
    ("timestamp", pd.Timestamp(1, tz="UTC"), "more than microseconds"),
    ("timestamp", pd.NaT, "no nulls"),
    ("decimal(9,2)", Decimal("0.001"), "behind the point"),
    ("decimal(9,2)", Decimal("1.234"), "behind the point"),
    ("decimal(9,2)", Decimal("1E-999999"), "behind the point"),
    ("decimal(9,2)", Decimal("10000000.00"), "before the point"),
    ("decimal(9,2)", Decimal("1E+999999"), "before the point"),
    ("decimal(9,2)", 10**50_000, "before the point"),
    ("decimal(9,2)", Decimal("NaN"), "finite"),
    ("decimal(9,2)", 1.5, "float"),
    ("decimal(9,2)", True, "bool"),
]


@pytest.mark.parametrize(
    ("text", "value", "why"), REFUSED, ids=[f"{text}-{why}" for text, _, why in REFUSED]
)
def test_a_value_that_the_column_can_t_hold_is_refused(text: str, value: Any, why: str) -> None:
    with pytest.raises(Rejected) as refused:
        form_of("int8", text).one((1, value))
    assert why in refused.value.message
    assert "k1" in refused.value.message
    assert text in refused.value.hint


@pytest.mark.parametrize(("text", "value"), [("int64", 7), ("string", "seven")])
def test_the_form_of_the_usual_keys_is_made_without_asking_the_rules(text: str, value: Any) -> None:
    # given a key of one column, as most have it
    form = form_of(text)
    calls = list[str]()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<listcomp>":  # none from 3.12 on
            calls.append(frame.f_code.co_name)

    # when its form is made, as each look-up does
    sys.setprofile(look)
    try:
        form.one((value,))
    finally:
        sys.setprofile(None)
    # then little is asked: a look-up takes about 20 microseconds in all
    assert calls == ["one", "_one"]


def test_a_key_has_as_many_values_as_columns() -> None:
    for values in ((), (1,), (1, 2, 3)):
        with pytest.raises(Rejected, match="k0, k1"):
            form_of("int8", "int8").one(values)


EQUAL: list[tuple[str, Any, Any]] = [
    ("decimal(9,2)", 3, Decimal("3.00")),
    ("decimal(9,2)", Decimal("3E+1"), Decimal("30.00")),
    ("decimal(9,2)", Decimal("3.000"), Decimal(3)),
    ("decimal(9,2)", Decimal("-0"), Decimal(0)),
    ("decimal(9,2)", Decimal("0E-50"), Decimal(0)),
    ("uuid", UUID(int=77), UUID(int=77).bytes),
    ("binary", bytearray(b"x"), memoryview(b"x")),
    (
        "timestamp",
        datetime(2020, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
        datetime(2020, 1, 1, tzinfo=UTC),
    ),
]


@pytest.mark.parametrize(("text", "one", "other"), EQUAL)
def test_equal_values_have_one_form_however_they_are_given(text: str, one: Any, other: Any) -> None:
    form = form_of(text)
    assert form.one((one,)) == form.one((other,))


# -- tables -------------------------------------------------------------------------------------


def test_the_form_of_a_table_takes_the_key_s_order_and_a_version_s_names() -> None:
    # given a table whose key is not in the order of its columns, one of which gets another name
    columns = (
        NewColumn.of("id", "int64", required=True),
        NewColumn.of("city", "string", required=True),
        NewColumn.of("small", "int64"),
    )
    create = orders(columns=columns, key=("city", "id"))
    table = table_of(fresh(create, RenameColumn(table="orders", column="city", to="town")))
    first, latest = table.schemas[0], table.latest
    # when its form is asked for
    now, then = KeyForm.of(table), KeyForm.of(table, first)
    # then order, types and ids are those of the key, and names those of the version
    assert now == KeyForm.of(table, latest)
    assert now.names == ("town", "id")
    assert then.names == ("city", "id")
    assert now.ids == then.ids == table.key
    assert now.types == then.types == (Plain.STRING, Plain.INT64)
    # and a batch with more columns in another order has its keys found by name
    batch = pa.record_batch({"id": [1], "small": [2], "town": ["x"]})
    assert now.array(batch).to_pylist() == [now.one(("x", 1))]


@pytest.mark.parametrize("types", [(), (Plain.FLOAT64,), (parse_type("list<int8>"),)])
def test_there_is_no_form_of_what_is_no_key(types: tuple[ColumnType, ...]) -> None:
    with pytest.raises(InvariantBroken):
        KeyForm(tuple(type_text(column_type) for column_type in types), types)


# -- the page -----------------------------------------------------------------------------------

EXAMPLES: list[tuple[tuple[str, ...], tuple[Any, ...]]] = [
    (("int64",), (34,)),
    (("string",), ("iceberg",)),
    (("decimal(9,2)",), (Decimal("14.20"),)),
    (("decimal(9,2)",), (Decimal("-0.01"),)),
    (("date",), (date(2017, 11, 16),)),
    (("timestamp",), (datetime(2017, 11, 16, 22, 31, 8, tzinfo=UTC),)),
    (("uuid",), (UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"),)),
    (("binary",), (bytes([0, 1, 2, 3]),)),
    (("string", "int32"), ("ice", -1)),
    (("int64", "string"), (34, "")),
]


def example_rows() -> list[tuple[str, ...]]:
    """What the page shows of the examples."""
    rows: list[tuple[str, ...]] = []
    for types, key in EXAMPLES:
        one = form_of(*types).one(key)
        shown = [value.hex(" ") if isinstance(value, bytes) else str(value) for value in key]
        rows.append(
            (
                ", ".join(f"`{text}`" for text in types),
                ", ".join(shown) if shown[-1] else f"{shown[0]}, nothing",
                str(one) if isinstance(one, int) else f"`{one.hex(' ')}`",
                f"`{_hashed(one):#010x}`",
                str(KeyForm.bucket_one(one, 16)),
            )
        )
    return rows


def _hashed(key: Canonical) -> int:
    return murmur3_long(key) if isinstance(key, int) else murmur3_one(key)


def test_the_page_has_every_type_with_its_form() -> None:
    [table] = [table for table in tables("keys.md") if table.heading == "One column"]
    said = {row[0].strip("`"): row[1] for row in table.rows}
    assert said == {
        text.partition("(")[0]: "integer" if form_of(text).is_integer else "bytes"
        for text in VALUES
    }


def test_the_examples_on_the_page_are_real() -> None:
    [table] = [table for table in tables("keys.md") if table.heading == "Examples"]
    assert list(table.rows) == example_rows()


def test_the_page_s_own_hash_is_ours() -> None:
    # given the Python on the page
    [block] = [block for block in blocks("keys.md") if block.language == "python"]
    data = [bytes(range(size)) for size in range(20)]
    asked = f"{block.text}\nprint(*map(murmur3, {data}))"
    # when it is run
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    # then it gives what we compute
    assert ran.stdout.split() == [str(murmur3_one(one)) for one in data]
