"""Rows as dicts, columns that are missing or unknown, keys, changes, and whole inputs."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from convert.coercing import KEY, ORDERS, coerced, schema_of
from lowmark.catalog import ColumnId
from lowmark.convert.coercion import Coercion
from lowmark.convert.errors import ColumnRefused, ValueRefused
from lowmark.convert.rows import CHUNK_ROWS
from lowmark.errors import Rejected

PAIR = schema_of(a="int64!", b="string!", note="string!")
PAIR_KEY = frozenset({ColumnId(1), ColumnId(2)})


# -- dicts --------------------------------------------------------------------------------------


def test_dicts_become_a_batch() -> None:
    rows = [{"id": "a", "status": "paid", "amount": "9.50", "qty": 1}]
    (batch,) = Coercion(ORDERS, key=KEY).batches(rows)
    assert batch.to_pylist() == [rows[0] | {"amount": Decimal("9.50")}]


def test_what_a_dict_lacks_is_its_default_or_null() -> None:
    # given a default for status, and none for the others
    rows = [{"id": "a", "qty": 1}, {"id": "b", "status": None}, {"id": "c", "status": "paid"}]

    # then what is not there is the default, and what is None is null
    assert [row["status"] for row in coerced(rows)] == ["new", None, "paid"]
    assert [row["qty"] for row in coerced(rows)] == [1, None, None]
    assert [row["status"] for row in coerced([{"id": "a"}, {"id": "b"}])] == ["new", "new"]


def test_defaults_of_every_type() -> None:
    schema = schema_of(
        v="int8",
        u="uuid = 6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        t="timestamp = 2026-07-01T12:00:00+02:00",
        d="decimal(4,2) = 1.5",
        b="binary = 00ff",
    )
    whole = coerced([{"v": 1}], schema)
    by_row = coerced([{"v": 1}, whole[0]], schema)
    assert by_row == [whole[0], whole[0]]
    assert whole[0]["b"] == b"\x00\xff"
    assert whole[0]["d"] == Decimal("1.50")


@pytest.mark.parametrize("rows", [[{"qty": 1}, {"qty": 2}], pa.table({"qty": [1, 2]})])
def test_a_required_column_that_nobody_gives_is_named(rows: object) -> None:
    with pytest.raises(ColumnRefused, match="column id is required") as refused:
        coerced(rows)
    assert refused.value.column == "id"


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize(
    "form",
    [
        lambda table: table,
        lambda table: table.to_reader(),
        lambda table: table.to_pandas(),
        lambda table: [table],
        lambda table: iter([table]),
    ],
    ids=["table", "reader", "pandas", "list", "iterator"],
)
def test_columns_are_looked_at_whether_there_are_rows_or_not(
    form: Callable[[pa.Table], object], count: int
) -> None:
    for columns, why in (
        ({"id": ["a"], "zip": [1]}, "the table has no column zip"),
        ({"qty": [1]}, "column id is required"),
    ):
        with pytest.raises(ColumnRefused, match=why):
            coerced(form(pa.table(columns).slice(0, count)))
    # and of rows that may all be deletes, a key is enough; what has no columns has no wrong ones
    assert (
        coerced(form(pa.table({"id": ["a"]}).slice(0, count)))
        == [{"id": "a", "status": "new", "amount": None, "qty": None}][:count]
    )
    deletes = pa.table({"a": [1], "b": ["x"], "_change": ["delete"]}).slice(0, count)
    assert len(coerced(form(deletes), PAIR, key=PAIR_KEY, changes=True)) == count
    assert coerced(form(pa.table({}))) == []


def test_a_required_column_that_one_row_lacks_is_named_with_the_row() -> None:
    with pytest.raises(ValueRefused) as refused:
        coerced([{"id": "a"}, {"qty": 1}])
    assert (refused.value.row, refused.value.column, refused.value.value) == (1, "id", "None")


def test_a_key_too_many_is_named_with_its_row_and_what_was_meant() -> None:
    rows = [{"id": "a"}] * 3 + [{"id": "b", "Amuont": 1}]
    with pytest.raises(ColumnRefused) as refused:
        coerced(rows)
    assert refused.value.message == "row 3: the table has no column Amuont"
    assert refused.value.hint == "Did you mean amount?"


def test_as_many_keys_as_columns_but_not_the_same() -> None:
    # given rows whose number of keys gives nothing away
    short = {"id": "a", "status": "new", "amount": 1}
    with pytest.raises(ColumnRefused, match="row 1: the table has no column zip"):
        coerced([short | {"qty": 1}, short | {"zip": 1}])
    with pytest.raises(ColumnRefused, match="row 0: the table has no column zip"):
        coerced([short | {"qty": 1, "zip": 1}, {"id": "b", "status": "x", "amount": 1}])


def test_an_unknown_column_of_a_table_is_named() -> None:
    with pytest.raises(ColumnRefused) as refused:
        coerced(pa.table({"ID": ["a"]}))
    assert refused.value.message == "the table has no column ID"
    assert refused.value.hint == "Did you mean id?"


def test_other_mappings_are_rows_too() -> None:
    assert coerced([UserDict({"id": "a"})])[0]["id"] == "a"


@pytest.mark.parametrize("rows", [{"id": "a"}, "id", b"id", 5, None])
def test_what_is_not_rows_is_refused(rows: object) -> None:
    with pytest.raises(Rejected, match="is not rows"):
        coerced(rows)


def test_no_rows_give_no_batch() -> None:
    nothing: list[object] = [[], (), iter([]), pa.table({"id": pa.array([], pa.string())})]
    for rows in nothing:
        assert coerced(rows) == []


def test_a_generator_is_taken_in_chunks_and_no_further_than_needed() -> None:
    # given a generator that says how far it was asked
    asked = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal asked
        for asked in range(1, 2 * CHUNK_ROWS + 2):
            yield {"id": str(asked)}

    # when the first batch is taken
    batches = Coercion(ORDERS).batches(rows())
    first = next(batches)

    # then no more than its rows were asked for
    assert first.num_rows == CHUNK_ROWS
    assert asked == CHUNK_ROWS
    assert [each.num_rows for each in batches] == [CHUNK_ROWS, 1]


def test_rows_of_a_long_list_are_counted_over_its_chunks() -> None:
    rows: list[dict[str, Any]] = [{"id": "a", "qty": 1}] * (CHUNK_ROWS + 5)
    rows.append({"id": "a", "qty": "x"})
    with pytest.raises(ValueRefused) as refused:
        coerced(rows)
    assert refused.value.row == CHUNK_ROWS + 5


# -- system columns -----------------------------------------------------------------------------


def test_what_was_read_can_be_appended_again() -> None:
    # given rows with what reading adds to them
    rows = [{"id": "a", "_partition": 1, "_offset": 7, "_time": 9, "_change": "upsert"}]

    # then it is passed over, in dicts and in Arrow
    assert coerced(rows) == coerced([{"id": "a"}])
    assert coerced(pa.Table.from_pylist(rows)) == coerced([{"id": "a"}])


@pytest.mark.parametrize("column", ["_change_type", "_commit_version"])
def test_other_system_columns_are_not_passed_over(column: str) -> None:
    # they could say that a row is a delete
    with pytest.raises(ColumnRefused):
        coerced([{"id": "a", column: "delete"}])


# -- changes ------------------------------------------------------------------------------------

CHANGES: list[Any] = [
    [{"_change": "upsert"}, {"_change": "delete"}],
    [{"_change": 0}, {"_change": 1}],
    [{}, {"_change": "delete"}],
    pa.array(["upsert", "delete"]),
    pa.array(["upsert", "delete"], pa.large_string()),
    pa.array(["upsert", "delete"]).dictionary_encode(),
    pa.array([0, 1], pa.int8()),
    pa.array([0, 1]),
]


@pytest.mark.parametrize("given", CHANGES)
def test_changes_come_last_as_int8(given: Any) -> None:
    ids = ["a", "b"]
    rows = (
        [{"id": name} | each for name, each in zip(ids, given, strict=True)]
        if isinstance(given, list)
        else pa.table({"_change": given, "id": ids})
    )
    (batch,) = Coercion(ORDERS, key=KEY, changes=True).batches(rows)
    assert batch.schema.names[-1] == "_change"
    assert batch.column("_change").type == pa.int8()
    assert batch.column("_change").to_pylist() == [0, 1]


@pytest.mark.parametrize("wrong", ["DELETE", 2, None, True, 1.0, [1], b"delete"])
def test_another_change_is_refused(wrong: object) -> None:
    with pytest.raises(ValueRefused) as refused:
        coerced(
            [{"id": "a", "_change": "upsert"}, {"id": "b", "_change": wrong}], key=KEY, changes=True
        )
    assert (refused.value.row, refused.value.column) == (1, "_change")
    with pytest.raises(ValueRefused):
        coerced(pa.table({"id": ["b"], "_change": pa.array([wrong])}), key=KEY, changes=True)


def test_a_delete_needs_only_its_key() -> None:
    schema = schema_of(id="int64!", name="string!", status="string = new")
    rows = [{"id": 1, "name": "x"}, {"id": 2, "_change": "delete"}]

    # then what it does not give stays null, defaults or not
    assert coerced(rows, schema, key=KEY, changes=True) == [
        {"id": 1, "name": "x", "status": "new", "_change": 0},
        {"id": 2, "name": None, "status": None, "_change": 1},
    ]
    table = pa.table({"id": [1, 2], "_change": ["delete", "delete"]})
    assert coerced(table, schema, key=KEY, changes=True) == [
        {"id": row, "name": None, "status": None, "_change": 1} for row in (1, 2)
    ]


def test_an_upsert_among_deletes_needs_all_that_is_required() -> None:
    schema = schema_of(id="int64!", name="string!")
    table = pa.table({"id": [1, 2], "name": [None, None], "_change": ["delete", "upsert"]})
    with pytest.raises(ValueRefused) as refused:
        coerced(table, schema, key=KEY, changes=True)
    assert (refused.value.row, refused.value.column) == (1, "name")
    with pytest.raises(ColumnRefused):
        coerced(table.drop_columns("name"), schema, key=KEY, changes=True)


def test_a_delete_without_a_key_is_refused() -> None:
    rows = [{"id": None, "_change": "delete"}]
    for keyless_ok in (False, True):
        with pytest.raises(ValueRefused) as refused:
            coerced(rows, key=KEY, changes=True, keyless_ok=keyless_ok)
        assert (refused.value.row, refused.value.column) == (0, "id")


def test_deletes_are_refused_where_they_mean_nothing() -> None:
    rows = [{"id": "a"}, {"id": "b", "_change": "delete"}]
    with pytest.raises(ValueRefused, match="only upserts"):
        coerced(rows, key=KEY)
    with pytest.raises(ValueRefused, match="no key to delete by"):
        coerced(rows, changes=True)


# -- keys ---------------------------------------------------------------------------------------


def pair(a: list[int | None], b: list[str | None]) -> pa.Table:
    return pa.table(
        {"a": pa.array(a, pa.int64()), "b": pa.array(b, pa.string()), "note": ["x"] * len(a)}
    )


def test_a_row_without_a_key_is_taken_only_where_it_may() -> None:
    rows = pair([1, None], ["x", None])
    assert len(coerced(rows, PAIR, key=PAIR_KEY, keyless_ok=True)) == 2
    with pytest.raises(ValueRefused) as refused:
        coerced(rows, PAIR, key=PAIR_KEY)
    assert (refused.value.row, refused.value.column) == (1, "a")


def test_a_row_without_the_columns_of_its_key() -> None:
    rows = [{"note": "x"}]
    assert coerced(rows, PAIR, key=PAIR_KEY, keyless_ok=True) == [
        {"a": None, "b": None, "note": "x"}
    ]
    with pytest.raises(ColumnRefused):
        coerced(rows, PAIR, key=PAIR_KEY)


@pytest.mark.parametrize(
    ("a", "b", "row", "column"),
    [
        ([1, None], ["x", "y"], 1, "a"),
        ([1, 2], ["x", None], 1, "b"),
        ([None, None, 3], [None, "y", None], 1, "a"),
    ],
)
def test_a_part_of_a_key_is_refused(
    a: list[int | None], b: list[str | None], row: int, column: str
) -> None:
    with pytest.raises(ValueRefused, match="either all columns of the key have a value") as refused:
        coerced(pair(a, b), PAIR, key=PAIR_KEY, keyless_ok=True)
    assert (refused.value.row, refused.value.column) == (row, column)


def test_a_null_in_a_required_column_is_named_with_its_row() -> None:
    table = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"], "note": ["n", None, None]})
    with pytest.raises(ValueRefused) as refused:
        coerced(table, PAIR, key=PAIR_KEY)
    assert (refused.value.row, refused.value.column) == (1, "note")
    assert refused.value.message == (
        "row 1, column note: None is not allowed: the column is required"
    )


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([(1, "x")], "row 0 is a tuple: (1, 'x')"),
        ([["a", 2.5]], "row 0 is a list: ['a', 2.5]"),
        ([["id"]], "row 0 is a list: ['id']"),
        ([5], "row 0 is an int: 5"),
        ([{"id": "a"}, 5], "row 1 is an int: 5"),
        ([{"id": "a"}, ("b", "new")], "row 1 is a tuple: ('b', 'new')"),
        (iter([{"id": "a"}, {"id": "b"}, 7]), "row 2 is an int: 7"),
        (["a", "b"], "row 0 is a str: 'a'"),
        ([None], "row 0 is a NoneType: None"),
        ([{"id": "a"}, [{"id": "b"}, 7]], "row 2 is an int: 7"),
        ("a,b", "str is not rows"),
        (7, "int is not rows"),
    ],
)
def test_what_is_no_row_is_told_what_rows_may_be(rows: Any, says: str) -> None:
    with pytest.raises(Rejected) as refused:
        coerced(rows)
    assert says in refused.value.message
    assert "dict" in refused.value.hint
    assert "DataFrame" in refused.value.hint


def test_a_row_without_names_is_told_how_it_gets_them() -> None:
    with pytest.raises(Rejected, match=r"dict\(zip\(table\.schema\.names, row\)\)"):
        coerced([("a", "new", "1.00", 1)])


def test_rows_may_still_come_in_lists_of_lists_of_dicts() -> None:
    assert [row["id"] for row in coerced([[{"id": "a"}], [], ({"id": "b"},)])] == ["a", "b"]
