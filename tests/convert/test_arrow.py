"""Columns that come as Arrow: the same is not touched, what fits is cast, the rest refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from convert.coercing import KEY, ORDERS, coerced, one_column, schema_of
from lowmark.convert.coercion import Coercion
from lowmark.convert.errors import ColumnRefused, ValueRefused

D = Decimal
MINUTE = datetime(2026, 7, 1, 12, 30)  # noqa: DTZ001
SOME_UUID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


def orders(rows: int = 3, **columns: pa.Array) -> pa.RecordBatch:
    made = {
        "id": pa.array([f"o{row}" for row in range(rows)]),
        "status": pa.array(["paid"] * rows),
        "amount": pa.array([D("9.50")] * rows, pa.decimal128(12, 2)),
        "qty": pa.array(range(rows), pa.int32()),
    }
    return pa.record_batch(made | columns)


# -- the same types -----------------------------------------------------------------------------


def test_a_batch_of_the_very_schema_is_handed_on_as_it_is() -> None:
    # given batches that differ in what their schema says of nulls, and in nothing else
    batch = orders()
    coercion = Coercion(ORDERS, key=KEY)
    declared = pa.RecordBatch.from_arrays(batch.columns, schema=coercion.arrow)

    # then they are not even made anew
    assert coercion.batch(batch) is batch
    assert coercion.batch(declared) is declared


def test_metadata_is_dropped_and_no_value_is_copied() -> None:
    batch = orders().replace_schema_metadata({"pandas": "{}"})
    made = Coercion(ORDERS).batch(batch)
    assert made.schema.metadata is None
    assert addresses(made) == addresses(batch)


def test_another_order_of_columns_copies_nothing() -> None:
    batch = orders()
    made = Coercion(ORDERS).batch(batch.select(["qty", "amount", "id", "status"]))
    assert made.schema.names == ["id", "status", "amount", "qty"]
    assert addresses(made) == addresses(batch)


def test_a_table_becomes_a_batch_per_chunk() -> None:
    # given a table of chunks, and a slice of it
    table = pa.Table.from_batches([orders(3), orders(2), orders(4)])

    # then chunks are not combined, and a slice is only what it is
    assert [each.num_rows for each in Coercion(ORDERS).batches(table)] == [3, 2, 4]
    assert [each.num_rows for each in Coercion(ORDERS).batches(table.slice(2, 4))] == [1, 2, 1]


def test_an_empty_batch_gives_none_but_is_looked_at() -> None:
    assert coerced(orders(0)) == []
    with pytest.raises(ColumnRefused):
        coerced(pa.record_batch({"id": pa.array([], pa.string()), "zip": pa.array([], pa.int8())}))


def addresses(batch: pa.RecordBatch) -> list[int]:
    return [each.address for column in batch.columns for each in column.buffers() if each]


# -- other types --------------------------------------------------------------------------------

TAKEN: list[tuple[str, pa.Array, list[Any]]] = [
    ("int8", pa.array([1, -128, None]), [1, -128, None]),
    ("int64", pa.array([255], pa.uint8()), [255]),
    ("int64", pa.array([1.0, None]), [1, None]),
    ("int64", pa.array([D("5.00")]), [5]),
    ("int64", pa.array([D("5.00")], pa.decimal256(50, 2)), [5]),
    ("float64", pa.array([2**53]), [float(2**53)]),
    ("float64", pa.array([0.5], pa.float16()), [0.5]),
    ("float32", pa.array([0.1]), [float(np.float32(0.1))]),
    ("float64", pa.array([D("0.1")]), [0.1]),
    ("decimal(12,2)", pa.array([D("9.500")]), [D("9.50")]),
    ("decimal(12,2)", pa.array([D("9.5")], pa.decimal256(76, 40)), [D("9.50")]),
    ("decimal(12,2)", pa.array([D("9.5")], pa.decimal64(9, 1)), [D("9.50")]),
    ("decimal(12,2)", pa.array([5, None]), [D("5.00"), None]),
    ("decimal(38,2)", pa.array([2**64 - 1], pa.uint64()), [D(2**64 - 1)]),
    ("decimal(38,38)", pa.array([0]), [D(0).scaleb(-38)]),
    ("decimal(12,2)", pa.array([9.5, 0.1]), [D("9.50"), D("0.10")]),
    ("decimal(12,2)", pa.array([0.1], pa.float32()), [D("0.10")]),
    ("decimal(25,2)", pa.array([1e20]), [D("1e20").quantize(D("0.01"))]),
    ("decimal(12,2)", pa.array(["9.50", "1e3"], pa.string_view()), [D("9.50"), D("1000.00")]),
    ("string", pa.array(["a", None], pa.large_string()), ["a", None]),
    ("string", pa.array(["a"], pa.string_view()), ["a"]),
    ("string", pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
    ("string", pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]), ["a", "a", "b"]),
    ("binary", pa.array([b"a"], pa.large_binary()), [b"a"]),
    ("binary", pa.array([b"a"], pa.binary_view()), [b"a"]),
    ("binary", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
    ("uuid", pa.array([SOME_UUID.bytes], pa.uuid()), [SOME_UUID.bytes]),
    ("uuid", pa.array([SOME_UUID.bytes, None], pa.binary()), [SOME_UUID.bytes, None]),
    ("uuid", pa.array([None, str(SOME_UUID)]), [None, SOME_UUID.bytes]),
    ("uuid", pa.array(["x", None, str(SOME_UUID)]).slice(1), [None, SOME_UUID.bytes]),
    ("uuid", pa.array([str(SOME_UUID), f"{{{SOME_UUID}}}"]), [SOME_UUID.bytes] * 2),
    ("date", pa.array([date(2026, 7, 1)], pa.date64()), [date(2026, 7, 1)]),
    ("date", pa.array([datetime(2026, 7, 1)]), [date(2026, 7, 1)]),  # noqa: DTZ001
    ("date", pa.array(["2026-07-01"], pa.string_view()), [date(2026, 7, 1)]),
    ("timestamp", pa.array([MINUTE], pa.timestamp("s", "UTC")), [MINUTE.replace(tzinfo=UTC)]),
    ("timestamp", pa.array([MINUTE], pa.timestamp("ns", "UTC")), [MINUTE.replace(tzinfo=UTC)]),
    ("timestamp", pa.array([None, None], pa.timestamp("us")), [None, None]),
    (
        "timestamp",
        pa.array([0], pa.timestamp("ms", "Asia/Tokyo")),
        [datetime(1970, 1, 1, tzinfo=UTC)],
    ),
    (
        "timestamp",
        pa.array(["2026-07-01T12:30:00", "2026-07-01T12:30:00Z"]),
        [MINUTE.replace(tzinfo=UTC)] * 2,
    ),
    ("timestamp_ntz", pa.array([MINUTE], pa.timestamp("ms")), [MINUTE]),
    ("timestamp_ntz", pa.array(["2026-07-01 12:30"]), [MINUTE]),
    ("bool", pa.array([None, None], pa.int64()), [None, None]),
    (
        "list<string>",
        pa.array([["a"], None, []], pa.large_list(pa.string_view())),
        [["a"], None, []],
    ),
    ("list<int8>", pa.array([[9], [1, 2], None, [3]]).slice(1), [[1, 2], None, [3]]),
    ("list<int8>", pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), [[1, 2], None]),
    ("list<int8>", pa.array([[1], [2, 3]], pa.list_view(pa.int64())), [[1], [2, 3]]),
    (
        "struct<a: int8, b: string>",
        pa.array([{"b": "x"}, None, {"b": "y"}]).slice(1),
        [None, {"a": None, "b": "y"}],
    ),
    ("struct<a: int8 not null>", pa.array([{"a": 1}, None]), [{"a": 1}, None]),
    (
        "map<string, int8>",
        pa.array([[("z", 9)], [("a", 1)], None, []], pa.map_(pa.large_string(), pa.int64())).slice(
            1
        ),
        [[("a", 1)], None, []],
    ),
    ("map<string, int8>", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), [[("a", 1)]]),
    ("map<string, int8>", pa.array([[{"key": "a", "value": 1}]]), [[("a", 1)]]),
    (
        "map<int64, list<date>>",
        pa.array([[{"k": 1, "v": ["2026-07-01"]}]]),
        [[(1, [date(2026, 7, 1)])]],
    ),
]

REFUSED: list[tuple[str, pa.Array, int, str]] = [
    ("int8", pa.array([1, 300]), 1, "out of the range of int8"),
    ("int64", pa.array([0, 2**63], pa.uint64()), 1, "out of the range of int64"),
    ("int64", pa.array([1.0, 1.5]), 1, "not a whole number"),
    ("int64", pa.array([True]), 0, "is of type bool"),
    ("int64", pa.array(["5"]), 0, "is of type str"),
    ("float64", pa.array([1, 2**53 + 1]), 1, "can't hold exactly"),
    ("float32", pa.array([1.0, 1e39]), 1, "out of the range of float32"),
    ("decimal(12,2)", pa.array([D("1.00"), D("9.505")]), 1, "2 digits behind the point"),
    ("decimal(12,2)", pa.array([0, 10**10]), 1, "10 digits before the point"),
    ("decimal(12,2)", pa.array([9.5, 9.505]), 1, "2 digits behind the point"),
    ("decimal(12,2)", pa.array([float("nan")]), 0, "is not a number"),
    ("decimal(38,38)", pa.array([D(0), D(11)]), 1, "0 digits before the point"),
    ("decimal(38,38)", pa.array(["0", "11"]), 1, "0 digits before the point"),
    ("decimal(12,2)", pa.array([str(2**126)]), 0, "10 digits before the point"),
    ("string", pa.array([b"a"]), 0, "is of type bytes"),
    ("string", pa.array([1]), 0, "is of type int"),
    ("binary", pa.array(["a"]), 0, "is of type str"),
    ("bool", pa.array([1]), 0, "is of type int"),
    ("uuid", pa.array([SOME_UUID.bytes, b"x"]), 1, "not 16 bytes"),
    ("uuid", pa.array([None, "x"]), 1, "not a UUID"),
    ("date", pa.array([MINUTE]), 0, "time of day"),
    ("date", pa.array([MINUTE], pa.timestamp("us", "UTC")), 0, "time zone"),
    ("date", pa.array([5]), 0, "is of type int"),
    ("timestamp", pa.array([5]), 0, "is of type int"),
    ("timestamp", pa.array([5_000, 1], pa.timestamp("ns", "UTC")), 1, "more than microseconds"),
    ("timestamp", pa.array([2**60]).view(pa.timestamp("s", "UTC")), 0, "out of range"),
    ("timestamp", pa.array([None, MINUTE], pa.timestamp("us")), 1, "has no time zone"),
    ("timestamp", pa.array([2**60]).view(pa.timestamp("s")), 0, "has no time zone"),
    ("timestamp", pa.array([None, date(2026, 7, 1)]), 1, "is a date, so it is no instant"),
    ("timestamp", pa.array([date(2026, 7, 1)], pa.date64()), 0, "is a date, so it is no instant"),
    ("timestamp_ntz", pa.array([None, MINUTE], pa.timestamp("us", "UTC")), 1, "time zone"),
    ("list<int8>", pa.array([1]), 0, "not a list"),
    ("list<int8>", pa.array([[1], None, [2, 300]]), 2, "element 1"),
    ("struct<a: int8>", pa.array([None, {"b": 1}]), 1, "has a field b"),
    ("struct<a: int8>", pa.array([[1]]), 0, "not a struct"),
    ("struct<a: int8 not null>", pa.array([None, {"a": None}]), 1, "field is required"),
    (
        "list<struct<a: int8 not null>>",
        pa.array([[{"a": 1}], [{"a": None}]]),
        1,
        "element 0, field a",
    ),
    ("map<string, int8>", pa.array([["a"]]), 0, "not a map"),
    ("map<string, int8>", pa.array([[{"k": None, "v": 1}]]), 0, "key of a map"),
]


@pytest.mark.parametrize(("kind", "array", "expected"), TAKEN)
def test_what_fits_is_cast(kind: str, array: pa.Array, expected: list[Any]) -> None:
    assert one_column(kind, array) == expected


@pytest.mark.parametrize(("kind", "array", "row", "why"), REFUSED)
def test_what_does_not_fit_is_refused(kind: str, array: pa.Array, row: int, why: str) -> None:
    with pytest.raises(ValueRefused) as refused:
        one_column(kind, array)
    assert refused.value.row == row
    assert why in refused.value.message


def test_a_type_that_lies_about_nulls_is_not_believed() -> None:
    # given a struct whose type says that its part is never null, and a part that is
    kind = pa.struct([pa.field("a", pa.int8(), nullable=False)])
    lying = pa.StructArray.from_arrays([pa.array([1, None], pa.int8())], fields=list(kind))

    # then it is looked at
    with pytest.raises(ValueRefused) as refused:
        one_column("struct<a: int8 not null>", lying)
    assert refused.value.row == 1


def test_the_first_bad_row_is_named_whatever_its_column() -> None:
    # given a bad value in the first column, and an earlier one in the last
    batch = orders(
        3,
        status=pa.array([b"paid"] * 3),
        id=pa.array(["o1", "o2", None]),
        qty=pa.array([1, 2**40, 2**40]),
    ).set_column(1, "status", pa.array(["paid"] * 3))
    with pytest.raises(ValueRefused) as refused:
        coerced(batch)
    assert (refused.value.row, refused.value.column) == (1, "qty")


# -- other sources ------------------------------------------------------------------------------


class Capsules:
    """Something with Arrow's C stream and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_whatever_streams_arrow_is_read_batch_by_batch() -> None:
    batches = [orders(2), orders(1)]
    table = pa.Table.from_batches(batches)
    expected = table.to_pylist()
    assert coerced(Capsules(table)) == expected
    assert coerced(table.to_reader()) == expected
    assert coerced(iter(batches)) == expected
    assert coerced(pa.table({"v": [1]}).to_reader(), schema_of(v="int8")) == [{"v": 1}]


def test_a_stream_of_something_else_is_refused() -> None:
    with pytest.raises(Exception, match="can't be read as a table"):
        coerced(pa.chunked_array([[1, 2]]))


def test_rows_are_counted_over_all_batches() -> None:
    def batches() -> Iterator[object]:
        yield orders(3)
        yield [{"id": "a"}]
        yield pa.Table.from_batches([orders(2), orders(1, id=pa.array([None], pa.string()))])

    with pytest.raises(ValueRefused) as refused:
        coerced(batches())
    assert (refused.value.row, refused.value.column) == (6, "id")


def test_a_pandas_frame() -> None:
    pandas = pytest.importorskip("pandas")

    # given a frame as pandas makes them: an index, NaN for what is missing, floats for integers
    frame = pandas.DataFrame(
        {
            "id": ["a", "b", "c"],
            "status": pandas.Series(["paid", None, float("nan")], dtype=object),
            "amount": [9.5, float("nan"), 0.1],
            "qty": [1, None, 3],
        }
    ).set_index(pandas.Index([7, 8, 9], name="nr"))

    # then the index is dropped, and what is missing is null
    assert coerced(frame) == [
        {"id": "a", "status": "paid", "amount": D("9.50"), "qty": 1},
        {"id": "b", "status": None, "amount": None, "qty": None},
        {"id": "c", "status": None, "amount": D("0.10"), "qty": 3},
    ]


def test_a_pandas_frame_of_mixed_objects() -> None:
    pandas = pytest.importorskip("pandas")
    amounts = pandas.Series([D("9.5"), "1.25", pandas.NA, 3], dtype=object)
    frame = pandas.DataFrame({"id": list("abcd"), "amount": amounts})
    taken = [row["amount"] for row in coerced(frame)]
    assert taken == [D("9.50"), D("1.25"), None, D("3.00")]

    # and one that does not fit is named
    frame["amount"] = pandas.Series([D("9.5"), "1.255", None, 3], dtype=object)
    with pytest.raises(ValueRefused) as refused:
        coerced(frame)
    assert (refused.value.row, refused.value.value) == (1, "'1.255'")


def test_times_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    times = pandas.to_datetime(["2026-07-01T12:30:00", None])
    frame = pandas.DataFrame({"v": times})
    assert [row["v"] for row in coerced(frame, schema_of(v="timestamp_ntz"))] == [MINUTE, None]
    in_tokyo = pandas.DataFrame({"v": times.tz_localize("Asia/Tokyo")})
    expected = [datetime(2026, 7, 1, 3, 30, tzinfo=UTC), None]
    assert [row["v"] for row in coerced(in_tokyo, schema_of(v="timestamp"))] == expected

    # and without a zone they are no instants
    with pytest.raises(ValueRefused, match="has no time zone") as refused:
        coerced(frame, schema_of(v="timestamp"))
    assert (refused.value.row, refused.value.column) == (0, "v")
    assert "timestamp_ntz" in refused.value.hint

    # and its scalars in dicts
    stamp = pandas.Timestamp("2026-07-01T12:30:00")
    assert one_column("timestamp_ntz", [stamp, pandas.NaT, pandas.NA]) == [MINUTE, None, None]
    with pytest.raises(ValueRefused):
        one_column("timestamp_ntz", [stamp + pandas.Timedelta(1, "ns")])


def test_a_pandas_frame_that_is_large_keeps_its_order_and_its_row_numbers() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"v": range(150_000)})
    batches = list(Coercion(schema_of(v="int32")).batches(frame))
    assert pa.Table.from_batches(batches)["v"].to_pylist() == list(range(150_000))
    with pytest.raises(ValueRefused) as refused:
        list(Coercion(schema_of(v="int16")).batches(frame))
    assert refused.value.row == 2**15


def test_a_pandas_frame_with_a_column_twice_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([["a", "b"]], columns=["id", "id"])
    with pytest.raises(ColumnRefused, match="id is there twice"):
        coerced(frame)


def test_a_polars_frame() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {"id": ["a", "b"], "status": ["paid", None], "amount": [9.5, None], "qty": [1, 2]},
        schema_overrides={"status": polars.Categorical, "qty": polars.UInt8},
    )
    assert coerced(frame) == [
        {"id": "a", "status": "paid", "amount": D("9.50"), "qty": 1},
        {"id": "b", "status": None, "amount": None, "qty": 2},
    ]
    nested = polars.DataFrame({"v": [[{"a": 1}], None]})
    assert [row["v"] for row in coerced(nested, schema_of(v="list<struct<a: int8>>"))] == [
        [{"a": 1}],
        None,
    ]
