"""A client that has an older view gets what is new of it, and has the same as with all of it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from lowmark.backend.codec import decode, encode
from lowmark.backend.view_parts import Known, joined, since
from lowmark.table import Columns, View

KINDS = (np.uint64, np.uint64, np.uint64, np.uint32, np.uint32, np.uint32, np.uint8)


def view_of(low: int, high: int) -> View:
    """Batches of ten rows each, from one to another; the columns are longer than they count."""
    numbers = np.arange(low, high + 3)
    columns = [
        numbers + 7,
        numbers * 10,
        numbers + 100,
        numbers * 0 + 10,
        numbers,
        numbers,
        numbers,
    ]
    arrays = [column.astype(kind) for column, kind in zip(columns, KINDS, strict=True)]
    return View(Columns(*arrays), high - low, low * 10 + 3, high * 10, high + 99, None, low + 99)


def same(left: View, right: View) -> bool:
    def plain(view: View) -> tuple[Any, ...]:
        return (view.count, view.start, view.end, view.closed, view.ledger, view.cut_time)

    pairs: list[Any] = list(zip(left.columns, right.columns, strict=True))
    return plain(left) == plain(right) and all(
        np.array_equal(a[: left.count], b[: right.count]) for a, b in pairs
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_view_that_is_brought_up_to_date_is_the_one_of_now(seed: int) -> None:
    dice, low, high, mine = Random(seed), 0, 0, None
    for _ in range(30):
        high += dice.randrange(3)
        low = min(high, low + dice.randrange(0, 4) // 2)
        now = view_of(low, high)
        first, new = decode(encode(since(now, Known.of(mine))))
        if mine is not None and mine.count and low * 10 <= int(mine.first[-1]):
            assert new.count == high - low - (mine.count - (low - int(mine.first[0]) // 10))
        mine = new if first is None or mine is None else joined(mine, first, new)
        assert same(mine, now)


def test_a_view_whose_last_batch_is_gone_or_has_moved_is_sent_whole() -> None:
    now = view_of(5, 9)
    assert since(now, Known(40, 11)) == (None, now)
    moved = Known(80, 99)
    assert since(now, moved) == (None, now)
    assert since(now, Known(900, 97)) == (None, now)
    empty = replace(now, count=0)
    assert since(empty, Known.of(now)) == (None, empty)
