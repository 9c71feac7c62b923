"""The index finds the last row of each hash, however its rows came, and never changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lowmark.errors import InvariantBroken
from lowmark.table.hashing import U64
from lowmark.table.key_index import KeyIndex, Place

TOP = (1 << 64) - 1
HASHES = st.sampled_from([0, 1, 2, 3, 1 << 63, (1 << 63) + 1, TOP - 1, TOP])
"""Few, so that they come again; and those at both ends."""

ROWS = st.tuples(HASHES, st.booleans(), st.booleans(), st.integers(1, 3))
"""A hash, whether it is a delete and whether it is valid, and how far it is from the row before."""


def hashes_of(*hashes: int) -> U64:
    return np.array(hashes, np.uint64)


def spread(first: int, count: int) -> U64:
    """Different hashes in no order."""
    return np.arange(first, first + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


class IndexAndModel(RuleBasedStateMachine):
    """An index beside a dict, and all indexes that there were beside the dicts of their time."""

    def __init__(self) -> None:
        super().__init__()
        self.index = KeyIndex()
        self.last: dict[int, Place] = {}
        self.earlier: list[tuple[KeyIndex, dict[int, Place]]] = []

    @rule(
        rows=st.lists(ROWS, max_size=9),
        deletes=st.sampled_from(["none", "all", "mask"]),
        gap=st.integers(0, 3),
        apart=st.booleans(),
        masked=st.booleans(),
    )
    def append(
        self,
        rows: list[tuple[int, bool, bool, int]],
        deletes: str,
        gap: int,
        apart: bool,
        masked: bool,
    ) -> None:
        first = self.index.end + gap
        steps = [step if apart else 1 for _, _, _, step in rows]
        offsets = [first + sum(steps[: at + 1]) - 1 for at in range(len(rows))]
        flags = [flag if deletes == "mask" else deletes == "all" for _, flag, _, _ in rows]
        self.earlier.append((self.index, dict(self.last)))
        self.index = self.index.with_rows(
            hashes_of(*(row[0] for row in rows)),
            first,
            np.array(flags, np.bool_)
            if deletes == "mask"
            else {"none": None, "all": True}[deletes],
            offsets=np.array(offsets, np.int64) if apart else None,
            valid=np.array([row[2] for row in rows], np.bool_) if masked else None,
        )
        for (hashed, _, valid, _), offset, flag in zip(rows, offsets, flags, strict=True):
            if valid or not masked:
                self.last[hashed] = Place(offset, flag)
        assert self.index.end == (offsets[-1] + 1 if rows else first)

    @rule(count=st.sampled_from([600, 3_000, 9_000]))
    def crowd(self, count: int) -> None:
        """Other keys, so many that the index has several runs."""
        self.index = self.index.with_rows(spread(1, count), self.index.end)

    @rule(back=st.integers(-2, 20))
    def cut(self, back: int) -> None:
        offset = max(0, self.index.end - back)
        self.earlier.append((self.index, dict(self.last)))
        self.index = self.index.without_below(offset)
        self.last = {key: place for key, place in self.last.items() if place.offset >= offset}
        assert self.index.end >= offset

    @rule()
    def compact(self) -> None:
        self.index = self.index.compact()
        assert len(self.index.runs) <= 1

    @invariant()
    def agrees(self) -> None:
        check(self.index, self.last)

    def teardown(self) -> None:
        for index, last in self.earlier[-10:]:
            check(index, last)


def check(index: KeyIndex, last: dict[int, Place]) -> None:
    wanted = [0, 1, 2, 3, 4, 1 << 63, (1 << 63) + 1, TOP - 1, TOP]
    expected = [last.get(hashed) for hashed in wanted]
    assert [index.find(hashed) for hashed in wanted] == expected
    offsets, deleted = index.find_many(hashes_of(*wanted))
    assert offsets.tolist() == [-1 if place is None else place.offset for place in expected]
    assert deleted.tolist() == [place is not None and place.deleted for place in expected]
    assert index.keys >= len(last)


TestIndexAndModel = IndexAndModel.TestCase
TestIndexAndModel.settings = settings(
    max_examples=settings().max_examples // 3, stateful_step_count=25
)


@pytest.mark.parametrize("batch", [1, 7, 1_000])
def test_there_are_few_runs_however_rows_come(batch: int) -> None:
    # given an index that grows batch by batch
    index, most = KeyIndex(), 0
    rows = 300 * batch
    for at in range(0, rows, batch):
        index = index.with_rows(spread(at, batch), at)
        most = max(most, len(index.runs))
    # then it always had few runs, and each key has its row
    assert most <= 5
    assert index.keys == rows
    assert index.bytes == 16 * rows
    offsets, deleted = index.find_many(spread(0, rows))
    assert offsets.tolist() == list(range(rows))
    assert not deleted.any()
    # and a compact one finds the same
    compact = index.compact()
    assert len(compact.runs) == 1
    assert compact.compact() is compact
    assert np.array_equal(compact.find_many(spread(0, rows))[0], offsets)


def test_keys_that_come_again_and_again_take_no_more_room() -> None:
    index = KeyIndex()
    for at in range(0, 200_000, 2_000):
        index = index.with_rows(spread(0, 2_000), at)
    assert index.keys < 5 * 2_000
    assert index.find(int(spread(0, 1)[0])) == Place(198_000, False)


def test_a_run_that_a_cut_does_not_reach_is_shared() -> None:
    # given a large old run and a small new one
    index = KeyIndex().with_rows(spread(0, 10_000), 0).with_rows(spread(20_000, 10), 10_000)
    assert len(index.runs) == 2
    # when the old one is cut away, or nothing is
    # then what is left is not copied
    assert index.without_below(10_000).runs == index.runs[1:]
    assert index.without_below(0).runs == index.runs


def test_a_cut_takes_what_is_below_it_and_not_one_row_more() -> None:
    index = KeyIndex().with_rows(hashes_of(1, 2, 3), 10)
    left = index.without_below(11)
    assert [left.find(hashed) for hashed in (1, 2, 3)] == [None, Place(11, False), Place(12, False)]
    assert left.end == index.end
    # and one beyond the end takes all, and is the new end
    assert index.without_below(20).runs == ()
    assert index.without_below(20).end == 20


def test_rows_that_are_there_already_are_not_taken_again() -> None:
    index = KeyIndex().with_rows(hashes_of(1, 2), 5)
    with pytest.raises(InvariantBroken):
        index.with_rows(hashes_of(3), 6)


def test_offsets_lie_within_their_batch() -> None:
    for offset, end in ((4, None), (9, 9)):
        with pytest.raises(InvariantBroken):
            KeyIndex().with_rows(hashes_of(1), 5, offsets=np.array([offset]), end=end)


def test_a_batch_may_end_behind_its_last_key() -> None:
    index = KeyIndex().with_rows(hashes_of(1), 5, offsets=np.array([6]), end=10)
    assert index.end == 10
    assert index.find(1) == Place(6, False)
    # and may have no keys at all
    assert index.with_rows(hashes_of(), 10, end=12).end == 12


def test_what_is_in_an_index_can_t_be_changed() -> None:
    [run] = KeyIndex().with_rows(hashes_of(1), 0).runs
    for array in (run.hashes, run.places):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@given(st.integers(0, 2**40))
def test_offsets_may_be_large(first: int) -> None:
    index = KeyIndex().with_rows(hashes_of(8, 9), first << 20, deletes=np.array([True, False]))
    assert index.find(8) == Place(first << 20, True)
    assert index.find(9) == Place((first << 20) + 1, False)
