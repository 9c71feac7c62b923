"""Digests: equal sets of rows have equal ones, whatever their order; any difference is found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.making import VALUES, array_of
from lowmark.errors import Corrupt
from lowmark.ledger.digest import EMPTY, Digest, row_hashes
from lowmark.table import U64

EVERY_TYPE = pytest.mark.parametrize("kind", VALUES)


def hashes(
    columns: Sequence[pa.Array],
    *,
    ids: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    deletes: Sequence[int] = (),
) -> U64:
    count = len(columns[0])
    mask = np.zeros(count, np.bool_)
    mask[list(deletes)] = True
    return row_hashes(
        columns,
        range(1, len(columns) + 1) if ids is None else ids,
        offsets=np.array(range(count) if offsets is None else offsets, np.int64),
        deletes=mask,
    )


def same_row(kind: str, values: Sequence[Any]) -> U64:
    """The hashes of rows that have the same offset, and differ in nothing but a value."""
    return hashes([array_of(kind, values)], offsets=[7] * len(values))


# -- values -------------------------------------------------------------------------------------


@EVERY_TYPE
def test_values_that_differ_and_null_have_different_hashes(kind: str) -> None:
    values = [None, *VALUES[kind]]
    assert len(set(same_row(kind, values).tolist())) == len(values)


@EVERY_TYPE
def test_a_value_has_one_hash_wherever_it_stands(kind: str) -> None:
    # given values as a column of their own, each with nulls around it and in a slice of much more
    values = [None, *VALUES[kind], None, *reversed(VALUES[kind])]
    expected = same_row(kind, values).tolist()
    apart = [int(same_row(kind, [value])[0]) for value in values]
    long = array_of(kind, [*VALUES[kind], None] * 10 + values + VALUES[kind])
    inside = long.slice(10 * (len(VALUES[kind]) + 1), len(values))
    # then all have the same hashes
    assert apart == expected
    assert hashes([inside], offsets=[7] * len(values)).tolist() == expected


def test_what_lies_below_a_null_says_nothing() -> None:
    # given two structs and two lists that are null, with other values in the children
    child = pa.array([1, 2, 3], pa.int64())
    other = pa.array([1, 9, 3], pa.int64())
    nulls = pa.array([False, True, False])
    structs = [pa.StructArray.from_arrays([one], names=["a"], mask=nulls) for one in (child, other)]
    ends = pa.array([0, 1, 2, 3], pa.int32())
    lists = [pa.ListArray.from_arrays(ends, one, mask=nulls) for one in (child, other)]
    # then they have the same hashes
    for one, two in (structs, lists):
        assert hashes([one]).tolist() == hashes([two]).tolist()


@pytest.mark.parametrize("kind", ["list<int32>", "list<decimal(9,2)>", "map<string, int64>"])
def test_a_column_with_nothing_in_its_lists_is_hashed(kind: str) -> None:
    empty = same_row(kind, [[], None, []]).tolist()
    assert empty[0] == empty[2] != empty[1]
    assert len(hashes([array_of(kind, [])])) == 0


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("int8", "int16"),
        ("int8", "int64"),
        ("int16", "int32"),
        ("int32", "int64"),
        ("float32", "float64"),
        ("decimal(9,2)", "decimal(38,2)"),
    ],
)
def test_a_column_that_was_widened_has_the_same_hashes(narrow: str, wide: str) -> None:
    before = array_of(narrow, [None, *VALUES[narrow]])
    after = before.cast(array_of(wide, []).type)
    assert hashes([before]).tolist() == hashes([after]).tolist()


def test_a_column_that_was_added_and_is_null_changes_nothing() -> None:
    ids, names = array_of("int64", [1, 2]), array_of("string", ["a", "b"])
    for kind in VALUES:
        added = array_of(kind, [None, None])
        assert hashes([ids, names]).tolist() == hashes([ids, names, added]).tolist()
        assert hashes([ids, names]).tolist() == hashes([ids, added, names], ids=[1, 9, 2]).tolist()


def test_a_column_is_known_by_its_id_not_by_its_place() -> None:
    one, two = array_of("int64", [1, 2]), array_of("int64", [3, 4])
    assert hashes([one, two]).tolist() == hashes([two, one], ids=[2, 1]).tolist()
    assert hashes([one, two]).tolist() != hashes([two, one]).tolist()
    # and a value that moved from one column to another is found, also if both rows are in the set
    here = hashes([array_of("int64", [5, None]), array_of("int64", [None, 5])], offsets=[7, 7])
    assert here[0] != here[1]


@EVERY_TYPE
def test_a_changed_value_offset_or_change_is_found(kind: str) -> None:
    # given rows of a type, beside a column that stays
    values = [*VALUES[kind], None]
    stays = array_of("string", [f"row {at}" for at in range(len(values))])
    whole = EMPTY.plus(hashes([array_of(kind, values), stays]))
    # when any one value is another, any row has another offset, or is a delete
    for at in range(len(values)):
        other = [*values[:at], values[at - 1], *values[at + 1 :]]
        assert EMPTY.plus(hashes([array_of(kind, other), stays])) != whole
        offsets = [number + 1_000 * (number == at) for number in range(len(values))]
        moved = hashes([array_of(kind, values), stays], offsets=offsets)
        assert EMPTY.plus(moved) != whole
        assert EMPTY.plus(hashes([array_of(kind, values), stays], deletes=[at])) != whole
    # or two rows have changed places
    crossed = [1, 0, *range(2, len(values))]
    assert EMPTY.plus(hashes([array_of(kind, values), stays], offsets=crossed)) != whole


# -- sets ---------------------------------------------------------------------------------------


@given(
    values=st.lists(st.one_of(st.none(), st.text(max_size=20)), min_size=1, max_size=40),
    chance=st.randoms(use_true_random=False),
)
def test_a_set_has_one_digest_in_whatever_order_and_parts_it_comes(
    values: list[str | None], chance: Any
) -> None:
    # given rows, and the same rows shuffled and in two parts
    order = list(range(len(values)))
    chance.shuffle(order)
    cut = chance.randrange(len(values) + 1)
    whole = EMPTY.plus(hashes([array_of("string", values)]))
    shuffled = hashes([array_of("string", [values[at] for at in order])], offsets=order)
    # then their digests are one, added up or joined
    assert EMPTY.plus(shuffled) == whole
    parts = EMPTY.plus(shuffled[:cut]), EMPTY.plus(shuffled[cut:])
    assert parts[0].joined(parts[1]) == parts[1].joined(parts[0]) == whole
    # and rows can be taken away again
    assert whole.minus(shuffled[cut:]) == parts[0]
    assert whole.minus(shuffled) == EMPTY


def test_the_same_row_twice_is_not_the_same_as_none() -> None:
    twice = hashes([array_of("int64", [5, 5])], offsets=[7, 7])
    assert EMPTY.plus(twice) != EMPTY
    assert EMPTY.plus(twice) != EMPTY.plus(twice[:1])


def test_a_digest_is_kept_in_sixteen_bytes() -> None:
    whole = EMPTY.plus(hashes([array_of("int64", [1, 2, 3])]))
    assert len(whole.form) == 16
    assert Digest.of_form(whole.form) == whole
    with pytest.raises(Corrupt):
        Digest.of_form(whole.form[:15])


def test_numbers_that_compare_equal_and_are_not_the_same_are_told_apart() -> None:
    zeros = same_row("float64", [0.0, -0.0])
    assert zeros[0] != zeros[1]
    assert math.copysign(1, -0.0) == -1
