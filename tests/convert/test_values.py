"""Which values fit which column, from Python objects and from Arrow, one by one and all at once."""

from __future__ import annotations

import math
from collections import OrderedDict
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convert.coercing import one_column
from lowmark.catalog import CatalogRefused, DecimalOf, Plain, can_be_key, parse_type
from lowmark.catalog.values import Leaf, canonical
from lowmark.convert.arrow import from_arrow
from lowmark.convert.errors import ValueRefused
from lowmark.convert.objects import from_objects
from lowmark.convert.text import from_text
from lowmark.convert.values import Misfit, fit_all
from lowmark.errors import Rejected
from lowmark.table.keys import KeyForm

D = Decimal
SOME_UUID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
EXACT = Context(prec=200)
BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 7, 1, 12)  # noqa: DTZ001
NOON_UTC = NOON.replace(tzinfo=UTC)


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


TAKEN: list[tuple[str, Any, Any]] = [
    ("bool", True, True),
    ("bool", np.bool_(False), False),
    ("int8", 127, 127),
    ("int8", -128, -128),
    ("int8", np.int64(5), 5),
    ("int8", Size.LARGE, 3),
    ("int64", 2**63 - 1, 2**63 - 1),
    ("int64", 5.0, 5),
    ("int64", D("5.00"), 5),
    ("float64", 0.1, 0.1),
    ("float64", math.inf, math.inf),
    ("float64", 2**53, float(2**53)),
    ("float64", D("0.1"), 0.1),
    ("float64", np.float32(0.5), 0.5),
    ("float32", 2**24, float(2**24)),
    ("float32", 0.1, float(np.float32(0.1))),
    ("decimal(12,2)", "9.50", D("9.50")),
    ("decimal(12,2)", "9.500", D("9.50")),
    ("decimal(12,2)", "-1e3", D("-1000.00")),
    ("decimal(12,2)", "+.5", D("0.50")),
    ("decimal(12,2)", D("9.5"), D("9.50")),
    ("decimal(12,2)", D("9.500000000000000000000000000000000000000000"), D("9.50")),
    ("decimal(12,2)", D("1E+5"), D("100000.00")),
    ("decimal(12,2)", D("0E-50"), D("0.00")),
    ("decimal(12,2)", 9_999_999_999, D("9999999999.00")),
    ("decimal(12,2)", 9.5, D("9.50")),
    ("decimal(12,2)", np.float64(9.5), D("9.50")),
    ("decimal(38,38)", D("0." + "1" * 38), D("0." + "1" * 38)),
    ("string", "é", "é"),
    ("string", "", ""),
    ("string", Colour.RED, "red"),
    ("binary", b"\x00\xff", b"\x00\xff"),
    ("binary", bytearray(b"a"), b"a"),
    ("binary", memoryview(b"a"), b"a"),
    ("binary", SOME_UUID, SOME_UUID.bytes),
    ("uuid", SOME_UUID, SOME_UUID.bytes),
    ("uuid", str(SOME_UUID), SOME_UUID.bytes),
    ("uuid", SOME_UUID.hex.upper(), SOME_UUID.bytes),
    ("uuid", SOME_UUID.bytes, SOME_UUID.bytes),
    ("date", date(2026, 7, 1), date(2026, 7, 1)),
    ("date", "2026-07-01", date(2026, 7, 1)),
    ("date", "20260701", date(2026, 7, 1)),
    ("date", datetime(2026, 7, 1), date(2026, 7, 1)),  # noqa: DTZ001
    ("date", np.datetime64("2026-07-01"), date(2026, 7, 1)),
    ("timestamp", NOON_UTC, NOON_UTC),
    ("timestamp", NOON.replace(tzinfo=BERLIN), NOON_UTC - timedelta(hours=2)),
    ("timestamp", "2026-07-01T12:00:00", NOON_UTC),
    ("timestamp", "2026-07-01 12:00:00Z", NOON_UTC),
    ("timestamp", "2026-07-01T14:00:00.000000000+02:00", NOON_UTC),
    ("timestamp", "2026-07-01", datetime(2026, 7, 1, tzinfo=UTC)),
    ("timestamp", datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)),
    ("timestamp_ntz", NOON, NOON),
    ("timestamp_ntz", "2026-07-01T12:00:00", NOON),
    ("timestamp_ntz", date(2026, 7, 1), datetime(2026, 7, 1)),  # noqa: DTZ001
    ("list<int8>", [1, None], [1, None]),
    ("list<int8>", (1, 2.0), [1, 2]),
    ("list<int8>", np.array([1, 2]), [1, 2]),
    ("list<decimal(4,2)>", ["9.5"], [D("9.50")]),
    ("list<list<string>>", [["a"], None, []], [["a"], None, []]),
    ("struct<a: int8, b: date>", {"b": "2026-07-01"}, {"a": None, "b": date(2026, 7, 1)}),
    ("struct<a: int8 not null>", {"a": 1}, {"a": 1}),
    ("map<string, decimal(4,2)>", {"a": "1.5"}, [("a", D("1.50"))]),
    ("map<string, int8>", [("a", 1), ("b", None)], [("a", 1), ("b", None)]),
    ("map<date, int8>", OrderedDict({"2026-07-01": 1}), [(date(2026, 7, 1), 1)]),
    ("list<struct<a: map<string, int8>>>", [{"a": {"x": 1}}], [{"a": [("x", 1)]}]),
]

REFUSED: list[tuple[str, Any, str]] = [
    ("bool", 1, "is of type int"),
    ("bool", "true", "is of type str"),
    ("int8", 128, "out of the range of int8"),
    ("int64", 2**63, "out of the range of int64"),
    ("int64", 1.5, "not a whole number"),
    ("int64", math.nan, "not a whole number"),
    ("int64", math.inf, "not a whole number"),
    ("int64", D("1.5"), "not a whole number"),
    ("int64", D("1e100"), "out of the range"),
    ("int64", D("NaN"), "out of the range"),
    ("int64", True, "is of type bool"),
    ("int64", "5", "is of type str"),
    ("float64", 2**53 + 1, "can't hold exactly"),
    ("float64", D("0.12345678901234567890"), "can't hold exactly"),
    ("float64", D("NaN"), "can't hold exactly"),
    ("float64", True, "is of type bool"),
    ("float64", "0.5", "is of type str"),
    ("float32", 2**24 + 1, "can't hold exactly"),
    ("float32", 1e39, "out of the range of float32"),
    ("decimal(12,2)", "9.505", "more than 2 digits behind the point"),
    ("decimal(12,2)", D("9.505"), "more than 2 digits behind the point"),
    ("decimal(12,2)", D("1E-1000"), "more than 2 digits behind the point"),
    ("decimal(12,2)", 0.1 + 0.2, "more than 2 digits behind the point"),
    ("decimal(12,2)", 10**10, "more than 10 digits before the point"),
    ("decimal(12,2)", "12345678901.5", "more than 10 digits before the point"),
    ("decimal(12,2)", D("1E+1000"), "more than 10 digits before the point"),
    ("decimal(12,2)", math.nan, "not a finite number"),
    ("decimal(12,2)", D("Infinity"), "not a finite number"),
    ("decimal(12,2)", "NaN", "is not a number"),
    ("decimal(12,2)", "1_000", "is not a number"),
    ("decimal(12,2)", " 9.5", "is not a number"),
    ("decimal(12,2)", "", "is not a number"),
    ("decimal(12,2)", True, "is of type bool"),
    ("string", b"a", "is of type bytes"),
    ("string", 5, "is of type int"),
    ("string", "\ud800", "not valid text"),
    ("binary", "a", "is of type str"),
    ("uuid", "6ba7b810", "is not a UUID"),
    ("uuid", b"short", "not 16 bytes"),
    ("uuid", 5, "is of type int"),
    ("date", NOON, "has a time of day"),
    ("date", datetime(2026, 7, 1, tzinfo=UTC), "has a time zone"),
    ("date", "1.7.2026", "not a date in ISO form"),
    ("date", 5, "is of type int"),
    ("timestamp", 5, "is of type int"),
    ("timestamp", "noon", "not a time in ISO form"),
    ("timestamp", "2026-07-01T12:00:00.0000001Z", "more than microseconds"),
    ("timestamp", np.datetime64(1, "ns"), "more than microseconds"),
    ("timestamp", datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "out of the range"),
    ("timestamp", NOON, "has no time zone"),
    ("timestamp", date(2026, 7, 1), "is a date, so it is no instant"),
    ("timestamp", np.datetime64("2026-07-01T12:00:00", "ns"), "has no time zone"),
    ("timestamp", datetime(1, 1, 1), "has no time zone"),  # noqa: DTZ001
    ("timestamp_ntz", NOON_UTC, "has a time zone"),
    ("timestamp_ntz", "2026-07-01T12:00:00Z", "has a time zone"),
    ("list<int8>", "ab", "is not a list"),
    ("list<int8>", {1}, "is not a list"),
    ("list<int8>", [1, 300], "out of the range"),
    ("list<binary>", ["text"], "is of type str"),
    ("list<date>", [NOON], "has a time of day"),
    ("struct<a: int8>", {"a": 1, "z": 2}, "has a field z"),
    ("struct<a: int8>", [1], "is not a dict"),
    ("struct<a: int8 not null>", {}, "the field is required"),
    ("struct<a: struct<b: int8>>", {"a": {"b": "x"}}, "is of type str"),
    ("map<string, int8>", {"a": "x"}, "is of type str"),
    ("map<string, int8>", [(None, 1)], "key of a map"),
    ("map<string, int8>", [1], "is not a dict"),
]


@pytest.mark.parametrize(("kind", "value", "expected"), TAKEN)
def test_what_fits_is_taken_and_nothing_of_it_is_lost(kind: str, value: Any, expected: Any) -> None:
    # when it is alone, among nulls, and among others of the same
    alone = one_column(kind, [value])
    among_nulls = one_column(kind, [None, value, None])
    among_others = one_column(kind, [value, value])

    # then it comes out whole
    assert alone == [expected]
    assert among_nulls == [None, expected, None]
    assert among_others == [expected, expected]


@pytest.mark.parametrize(("kind", "value", "why"), REFUSED)
def test_what_does_not_fit_is_refused_with_its_row(kind: str, value: Any, why: str) -> None:
    # given values that fit, before it and behind it
    with pytest.raises(ValueRefused) as refused:
        one_column(kind, [None, None, value, None])

    # then the row and the column are named, and why
    assert refused.value.row == 2
    assert refused.value.column == "v"
    assert why in refused.value.message
    assert refused.value.message.startswith("row 2, column v")


RULE = [
    (kind, value)
    for kind, value, _ in [*TAKEN, *REFUSED]
    if isinstance(parse_type(kind), Plain | DecimalOf) and not isinstance(value, np.generic)
]


@pytest.mark.parametrize(("kind", "value"), RULE)
def test_what_a_default_or_a_key_takes_a_row_takes_alike(kind: str, value: Any) -> None:
    # given a column with a value as its default, and a key of it
    column_type = parse_type(kind)
    found: list[Any] = []
    with suppress(CatalogRefused):
        default = canonical(column_type, value, column="v")
        found.append(default.bytes if isinstance(default, UUID) else default)
    if can_be_key(column_type):
        form = KeyForm.of_columns([("v", column_type)])
        with suppress(Rejected):
            key = form.one([value])
            # then a row with that value has the same key
            column = pa.array(one_column(kind, [value]), from_arrow(column_type, pa.nulls(0)).type)
            assert form.array_of([column]).to_pylist() == [key]

    # and a row with that value has what the default would have filled in
    assert found in ([], one_column(kind, [value]) if found else [])


def test_nan_stays_nan() -> None:
    assert math.isnan(one_column("float64", [math.nan])[0])
    assert math.isnan(one_column("float32", [math.nan])[0])


def test_a_refusal_says_row_column_and_value() -> None:
    with pytest.raises(ValueRefused) as refused:
        one_column("decimal(12,2)", ["9.50"] * 17 + ["9.505"])
    assert str(refused.value) == (
        "row 17, column v: '9.505' has more than 2 digits behind the point\n"
        "hint: The column is of type decimal(12,2)."
    )
    assert refused.value.value == "'9.505'"


def test_a_refusal_says_where_in_a_nested_value() -> None:
    kind = "list<struct<price: decimal(4,2)>>"
    with pytest.raises(ValueRefused) as refused:
        one_column(kind, [[], None, [{"price": "1"}, {"price": "1.005"}]])
    assert refused.value.within == ("element 1", "field price")
    assert refused.value.message.startswith("row 2, column v, element 1, field price: '1.005' has")


def test_a_long_value_is_cut_in_the_message() -> None:
    for value in ("x" * 10_000, b"x" * 10_000, 10**10_000, list(range(1_000))):
        with pytest.raises(ValueRefused) as refused:
            one_column("date", [value])
        assert len(refused.value.value) <= 100


# -- fast and slow agree ------------------------------------------------------------------------

KINDS: list[Leaf] = [*Plain, DecimalOf(12, 2), DecimalOf(38, 0), DecimalOf(38, 38), DecimalOf(3, 3)]

zones = st.sampled_from([None, UTC, BERLIN, timezone(timedelta(hours=-9))])
moments = st.datetimes(timezones=zones)
wide = st.builds(  # what overflows 128 and 256 bits, once Arrow has multiplied it
    lambda near, bits, tens: D(near + 2**bits).scaleb(tens, EXACT),
    st.integers(-2, 2),
    st.integers(0, 256),
    st.integers(-80, 40),
)
numbers = st.one_of(
    st.integers(-300, 300),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.integers(-1000, 1000).map(float),
    st.integers(-1000, 1000).map(lambda n: n / 100),
    st.decimals(places=2, min_value=-1000, max_value=1000),
    st.decimals(),
    wide,
    st.booleans(),
)
texts = st.one_of(
    st.text(max_size=5),
    numbers.map(str),
    st.decimals(places=2, allow_nan=False, allow_infinity=False).map(str),
    st.dates().map(str),
    moments.map(str),
    wide.map(lambda number: f"{number:f}"),
    moments.map(lambda moment: moment.isoformat()),
    st.uuids().map(str),
    st.sampled_from(["true", "FALSE", "0x10", "1e400", "inf", "nan", "+5", "005", " 5", "5.0"]),
)
others = st.one_of(st.binary(max_size=17), st.uuids(), st.dates(), moments)
families = [
    numbers,
    texts,
    others,
    st.dates(),
    moments,
    wide,
    st.floats(),
    st.text(),
    st.integers(),
]
columns = st.one_of(
    *(st.lists(st.one_of(family, st.none()), max_size=6) for family in families),
    st.lists(st.one_of(numbers, texts, others, st.none()), max_size=6),
)


def outcome(make: Any) -> Any:
    """What comes out, in a form in which a NaN is equal to itself; or the row that is refused."""
    try:
        made = make()
    except Misfit as misfit:
        return ("refused", misfit.index)
    return [repr(value) for value in made.to_pylist()]


@given(st.sampled_from(KINDS), columns)
def test_all_at_once_and_one_by_one_agree_on_objects(kind: Leaf, values: list[Any]) -> None:
    arrow = pa.array([], from_arrow(kind, pa.nulls(0)).type).type
    slow = outcome(lambda: pa.array(fit_all(kind, values), arrow))
    assert outcome(lambda: from_objects(kind, values)) == slow


@given(st.sampled_from(KINDS), columns)
def test_arrow_and_objects_agree(kind: Leaf, values: list[Any]) -> None:
    # given what Arrow makes of some values by itself
    try:
        array = pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return
    if array.type == from_arrow(kind, pa.nulls(0)).type:
        return

    # then it does not matter whether it comes as Arrow or as what Python makes of that
    assert outcome(lambda: from_arrow(kind, array)) == outcome(
        lambda: from_objects(kind, array.to_pylist())
    )


@pytest.mark.slow
@given(
    st.sampled_from([kind for kind in KINDS if kind is not Plain.STRING]),
    st.lists(st.one_of(texts.filter(lambda text: "\ud800" > max(text, default="")), st.none())),
)
def test_text_is_read_the_same_alone_and_among_others(kind: Leaf, values: list[str | None]) -> None:
    # given each text alone
    singles = [pa.array([value], pa.string()) for value in values]
    alone = [outcome(partial(from_text, kind, single)) for single in singles]
    together = outcome(lambda: from_text(kind, pa.array(values, pa.string())))

    # then together they are the same, or the first that is refused alone is refused
    bad = [index for index, each in enumerate(alone) if each == ("refused", 0)]
    assert together == (("refused", bad[0]) if bad else [each[0] for each in alone])


exact = st.one_of(
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("int8"), st.integers(-(2**7), 2**7 - 1)),
    st.tuples(st.just("int64"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("float64"), st.floats(allow_nan=False)),
    st.tuples(st.just("float32"), st.floats(allow_nan=False, width=32)),
    st.tuples(
        st.just("decimal(12,2)"),
        st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: D(n).scaleb(-2)),
    ),
    st.tuples(st.just("string"), st.text()),
    st.tuples(st.just("binary"), st.binary()),
    st.tuples(st.just("date"), st.dates()),
    st.tuples(st.just("timestamp"), st.datetimes(timezones=st.just(UTC))),
    st.tuples(st.just("timestamp_ntz"), st.datetimes()),
    st.tuples(st.just("list<int32>"), st.lists(st.one_of(st.integers(0, 9), st.none()))),
    st.tuples(
        st.just("struct<a: string, b: list<date>>"),
        st.fixed_dictionaries({"a": st.text(), "b": st.lists(st.dates())}),
    ),
    st.tuples(
        st.just("map<string, int8>"),
        st.dictionaries(st.text(), st.integers(-128, 127)).map(lambda made: list(made.items())),
    ),
)


@given(exact, st.lists(st.booleans(), max_size=5))
def test_values_of_the_columns_own_type_go_round(typed: tuple[str, Any], nulls: list[bool]) -> None:
    kind, value = typed
    values = [None if null else value for null in [*nulls, False]]
    once = one_column(kind, values)
    assert once == values
    assert one_column(kind, once) == values
