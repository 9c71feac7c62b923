"""A fold keeps the last row of each key, as a plain dict would."""

from __future__ import annotations

import tracemalloc
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowmark.errors import InvariantBroken
from lowmark.table.fold import Fold, Mask, fold_bytes

Key: TypeAlias = int | bytes | None
Batch: TypeAlias = tuple[list[Key], bool | list[bool] | None]


def batches_of(keys: st.SearchStrategy[Key]) -> st.SearchStrategy[list[Batch]]:
    def batch(of: list[Key]) -> st.SearchStrategy[Batch]:
        masks = st.lists(st.booleans(), min_size=len(of), max_size=len(of))
        return st.tuples(st.just(of), st.one_of(st.none(), st.booleans(), masks))

    return st.lists(st.lists(keys, max_size=9).flatmap(batch), max_size=6)


def model(batches: list[Batch], *, keep_deletes: bool) -> list[list[bool]]:
    """Row by row: which survive."""
    last: dict[Key, tuple[int, int]] = {}
    for number, (keys, _) in enumerate(batches):
        for row, key in enumerate(keys):
            last[key] = (number, row)
    survivors = []
    for number, (keys, deletes) in enumerate(batches):
        flags = deletes if isinstance(deletes, list) else [bool(deletes)] * len(keys)
        survivors.append(
            [
                (key is None or last[key] == (number, row)) and (keep_deletes or not flags[row])
                for row, key in enumerate(keys)
            ]
        )
    return survivors


def folded(batches: list[Batch], kind: pa.DataType, *, keep_deletes: bool) -> list[Mask | None]:
    fold = Fold(keep_deletes=keep_deletes)
    for keys, deletes in batches:
        # each one is a slice of something larger
        array = pa.array([None, *keys, None], kind).slice(1, len(keys))
        fold.add(array, np.array(deletes, np.bool_) if isinstance(deletes, list) else deletes)
    return fold.masks()


def check(batches: list[Batch], kind: pa.DataType, *, keep_deletes: bool) -> None:
    masks = folded(batches, kind, keep_deletes=keep_deletes)
    expected = model(batches, keep_deletes=keep_deletes)
    for mask, survive in zip(masks, expected, strict=True):
        assert mask is None if all(survive) else mask is not None and mask.tolist() == survive


@pytest.mark.slow
@given(batches_of(st.one_of(st.none(), st.integers(-3, 3))), st.booleans())
def test_of_integers_the_last_row_of_each_survives(batches: list[Batch], keep: bool) -> None:
    check(batches, pa.int64(), keep_deletes=keep)


WIDE = st.sampled_from([-(1 << 63), (1 << 63) - 1, 0, 1, 1 << 40])


@pytest.mark.slow
@given(batches_of(st.one_of(st.none(), WIDE)), st.booleans())
def test_of_integers_far_apart_the_last_row_of_each_survives(
    batches: list[Batch], keep: bool
) -> None:
    check(batches, pa.int64(), keep_deletes=keep)


@pytest.mark.slow
@given(batches_of(st.one_of(st.none(), st.binary(max_size=1))), st.booleans())
def test_of_bytes_the_last_row_of_each_survives(batches: list[Batch], keep: bool) -> None:
    check(batches, pa.binary(), keep_deletes=keep)


def test_a_delete_takes_its_key_away_and_itself_too() -> None:
    # given a key that is written, deleted, and written again; and one that stays deleted
    def fold(*, keep_deletes: bool) -> list[list[bool] | None]:
        fold = Fold(keep_deletes=keep_deletes)
        fold.add(pa.array([b"a", b"b"]))
        fold.add(pa.array([b"a", b"b"]), deletes=True)
        fold.add(pa.array([b"a", b"c"]), np.array([False, False]))
        return [None if mask is None else mask.tolist() for mask in fold.masks()]

    # then only what was written last is there; the last delete is, if it is asked for
    assert fold(keep_deletes=False) == [[False, False], [False, False], None]
    assert fold(keep_deletes=True) == [[False, False], [False, True], None]


def test_rows_without_a_key_survive_each_other() -> None:
    fold = Fold()
    fold.add(pa.array([None, None], pa.int64()))
    fold.add(pa.array([None, 1, 1], pa.int64()))
    first, second = fold.masks()
    assert first is None
    assert second is not None
    assert second.tolist() == [True, False, True]


def test_batches_of_a_table_without_a_key_survive_whole() -> None:
    fold = Fold()
    fold.add(None)
    fold.add(None, deletes=False)
    assert fold.masks() == [None, None]


def test_nothing_can_be_deleted_without_a_key() -> None:
    for deletes in (True, np.array([False, True])):
        with pytest.raises(InvariantBroken):
            Fold().add(None, deletes=deletes)


def test_a_mask_of_deletes_has_a_flag_for_each_row() -> None:
    with pytest.raises(InvariantBroken):
        Fold().add(pa.array([1, 2]), deletes=np.array([True]))


def test_keys_in_small_and_in_large_arrays_are_the_same_keys() -> None:
    fold = Fold()
    fold.add(pa.array([b"a", b"b"], pa.binary()))
    fold.add(pa.array([b"b", b"c"], pa.large_binary()))
    first, second = fold.masks()
    assert first is not None
    assert first.tolist() == [True, False]
    assert second is None


def test_a_fold_may_be_asked_more_than_once_and_goes_on() -> None:
    fold = Fold()
    assert fold.masks() == []
    fold.add(pa.array([], pa.int64()))
    fold.add(pa.array([1, 2]))
    assert fold.masks() == [None, None]
    fold.add(pa.array([2]))
    empty, first, second = fold.masks()
    assert empty is second is None
    assert first is not None
    assert first.tolist() == [True, False]


def test_the_last_of_very_many_rows_of_a_key_wins() -> None:
    # given so many rows that a kernel works on them in pieces
    rows, keys = 300_000, 1_000
    numbers = np.random.default_rng(7).integers(0, keys, rows)
    fold = Fold()
    for at in range(0, rows, 30_000):
        fold.add(pa.array(numbers[at : at + 30_000]))
    # when they are folded
    survive = np.concatenate([mask for mask in fold.masks() if mask is not None])
    # then the survivors are the last of each
    last = {int(number): row for row, number in enumerate(numbers)}
    assert np.flatnonzero(survive).tolist() == sorted(last.values())


def test_what_integers_that_lie_close_together_take_is_known_before() -> None:
    count = 200_000
    batches = [pa.array(part * 7) for part in np.array_split(np.arange(count), 20)]
    fold = Fold()
    for keys in batches:
        fold.add(keys)
    tracemalloc.start()
    try:
        fold.masks()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= sum(fold_bytes(keys) for keys in batches)


def test_keys_of_bytes_are_counted_again_since_a_dictionary_has_them() -> None:
    keys = pa.array([b"x" * 1_000] * 10)
    assert 10_000 < fold_bytes(keys) < 20_000


# -- ranks --------------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.one_of(st.none(), st.integers(0, 3), st.just(1 << 50)), st.integers(-2, 2)
            ),
            max_size=9,
        ),
        max_size=6,
    )
)
def test_the_greatest_rank_wins_and_of_equal_ones_the_last(
    batches: list[list[tuple[int | None, int]]],
) -> None:
    fold = Fold()
    for rows in batches:
        keys = pa.array([key for key, _ in rows], pa.int64())
        fold.add(keys, ranks=np.array([rank for _, rank in rows], np.int64))
    # given what a dict of the best row of each key says
    best: dict[int, tuple[int, int, int]] = {}
    for number, rows in enumerate(batches):
        for at, (key, rank) in enumerate(rows):
            if key is not None:
                best[key] = max(best.get(key, (rank, number, at)), (rank, number, at))
    wanted = [
        [key is None or best[key][1:] == (number, at) for at, (key, _) in enumerate(rows)]
        for number, rows in enumerate(batches)
    ]
    # then a fold says the same
    found = fold.masks()
    assert [
        [True] * len(rows) if mask is None else mask.tolist()
        for rows, mask in zip(batches, found, strict=True)
    ] == wanted


def test_all_rows_have_ranks_or_none_has() -> None:
    fold = Fold()
    fold.add(pa.array([1]), ranks=np.array([5]))
    fold.add(pa.array([1]))
    with pytest.raises(InvariantBroken, match="all rows have ranks, or none has"):
        fold.masks()
    for keys in (None, pa.array([1, 2])):
        with pytest.raises(InvariantBroken, match="each row has a rank"):
            Fold().add(keys, ranks=np.array([5]))
