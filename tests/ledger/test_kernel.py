"""Which rows of a tail survive: found at once, in ranges of keys, and by a plain dict."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ledger.making import made_table
from ledger.tails import EVERYTHING, PLENTY, Row, Tail
from lowmark.catalog import Table
from lowmark.ledger import KEY_SEED
from lowmark.ledger.errors import ProofFailed
from lowmark.ledger.kernel import SAMPLE, KeyRange, Sample, Second
from lowmark.table import KeyForm

INTEGERS = made_table({"k": "int64", "v": "string"}, key=["k"], options={"keyless_rows": "keep"})
WORDS = made_table({"v": "int8", "k": "string"}, key=["k"], options={"keyless_rows": "keep"})
PAIRS = made_table({"k": "string", "n": "int32"}, key=["n", "k"])
KEYLESS = made_table({"k": "int64"})


def batches_of(
    chance: random.Random, keys: Sequence[Any], *, keyless: bool
) -> list[list[tuple[Any, bool]]]:
    made = []
    for _ in range(chance.randrange(1, 12)):
        kind = chance.randrange(3)
        rows = []
        for _ in range(chance.randrange(1, 9)):
            deleted = kind == 1 or (kind == 2 and chance.random() < 0.5)
            key = chance.choice(keys)
            if keyless and not deleted and chance.random() < 0.2:
                key = None
            rows.append((key, deleted))
        made.append(rows)
    return made


def expected(batches: Sequence[Sequence[Row]], skip: int) -> tuple[list[bool], dict[Any, Row]]:
    """Whether each row survives, and the last row of each key."""
    rows = [row for batch in batches for row in batch]
    last = {key: at for at, (key, *_) in enumerate(rows) if at >= skip and key is not None}
    keep = [at >= skip and (key is None or last[key] == at) for at, (key, *_) in enumerate(rows)]
    return keep, {key: (at, rows[at][1]) for key, at in last.items()}


KINDS: dict[str, tuple[Table, list[Any], bool]] = {
    "integers": (INTEGERS, [0, 1, -1, 5, 1 << 60, 77], True),
    "words": (WORDS, ["", "a", "b", "größe", "x" * 50], True),
    "pairs": (PAIRS, [(1, "a"), (2, "a"), (1, "b"), (-1, "")], False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_the_last_row_of_each_key_survives_and_every_row_without_one(kind: str, seed: int) -> None:
    # given batches of upserts, deletes and both, of which the first rows may not count
    chance = random.Random(seed)
    table, keys, keyless = KINDS[kind]
    batches = batches_of(chance, keys, keyless=keyless)
    skip = chance.randrange(len(batches[0]))
    keep, last = expected(batches, skip)
    tail = Tail(table, batches, skip=skip)
    # when they are folded
    folded = tail.fold()
    # then those survive that a dict says
    assert folded.keep.tolist() == keep
    form = KeyForm.of(table)
    assert tail.survivors == {
        form.one(key if isinstance(key, tuple) else (key,)): one for key, one in last.items()
    }
    # and the second algorithm has looked at every row that has a key
    assert folded.checked == len(tail.keys())


MANY: dict[str, tuple[Table, list[Any], bool]] = {
    "integers": (INTEGERS, list(range(-60, 60)), True),
    "words": (WORDS, [f"{number:x}" * 3 for number in range(120)], True),
    "pairs": (PAIRS, [(number % 7, f"{number}") for number in range(120)], False),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize("budget", [600, 1_000, 1_500])
def test_a_fold_in_ranges_of_keys_is_a_fold_at_once(kind: str, budget: int) -> None:
    # given a tail whose keys do not fit into the budget
    chance = random.Random(budget)
    table, keys, keyless = MANY[kind]
    batches = [batch for _ in range(8) for batch in batches_of(chance, keys, keyless=keyless)]
    whole, tail = Tail(table, batches), Tail(table, batches)
    at_once = whole.fold()
    # when it is folded in ranges, each of which reads it again
    folded = tail.fold(budget=budget)
    # then what survives is the same
    assert tail.reads >= folded.ranges > at_once.ranges == 1
    assert folded.keep.tolist() == at_once.keep.tolist()
    assert tail.survivors == whole.survivors
    # and every row was looked at once by the second algorithm
    assert folded.checked == at_once.checked == len(tail.keys())


@pytest.mark.parametrize("kind", KINDS)
def test_few_keys_that_come_again_and_again_need_no_ranges(kind: str) -> None:
    # given many rows of a few keys, which no range would part
    chance = random.Random(5)
    table, keys, keyless = KINDS[kind]
    batches = [batch for _ in range(40) for batch in batches_of(chance, keys, keyless=keyless)]
    tail = Tail(table, batches)
    # when the budget is far below what all of them take, and above what their last rows take
    folded = tail.fold(budget=4_000)
    # then they are read once, and right
    assert (folded.ranges, tail.reads) == (1, 1)
    assert folded.keep.tolist() == expected(batches, 0)[0]


def test_what_a_fold_takes_counts_as_well_as_the_keys_do() -> None:
    tail = Tail(INTEGERS, [[(8 * number, False)] for number in range(500)])
    assert tail.fold(budget=500 * 80).ranges == 1
    assert tail.fold(budget=500 * 40).ranges > 1


def test_a_tail_that_fits_is_read_once_for_its_keys() -> None:
    tail = Tail(INTEGERS, [[(1, False)], [(2, False)]])
    tail.fold()
    assert tail.reads == 1


def test_of_a_table_without_a_key_everything_survives_and_no_row_is_read() -> None:
    tail = Tail(KEYLESS, [[(1, False), (1, False)], [(1, False)]], skip=1)
    assert tail.fold().keep.tolist() == [False, True, True]
    assert (tail.survivors, tail.reads) == ({}, 0)


# -- the second algorithm -----------------------------------------------------------------------


def test_a_sample_is_one_in_sixteen_of_the_keys_with_all_their_rows() -> None:
    chance = random.Random(1)
    batches = [[(chance.randrange(2_000), False) for _ in range(500)] for _ in range(20)]
    tail = Tail(INTEGERS, batches)
    keys = tail.keys()
    seen = np.zeros(len(keys), np.int64)
    for remainder in range(SAMPLE):
        mine = Sample(remainder).of(keys)
        # all rows of a key, or none
        inside = set(keys.filter(pa.array(mine)).to_pylist())
        assert inside.isdisjoint(keys.filter(pa.array(~mine)).to_pylist())
        assert 0 < mine.sum() < len(keys) / 4
        assert tail.fold(sample=Sample(remainder)).checked == mine.sum()
        seen += mine
    # and together they are everything, once
    assert (seen == 1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [1, 200, PLENTY])
def test_any_one_mistake_in_what_survives_is_found(kind: str, seed: int, budget: int) -> None:
    chance = random.Random(seed)
    table, keys, keyless = KINDS[kind]
    tail = Tail(table, batches_of(chance, keys, keyless=keyless))
    keep = tail.fold().keep
    # given the second algorithm, which may have to let rows go on its way
    assert tail.second(budget=budget).check(keep, partition=3) == len(tail.keys())
    # when a row survives that should not, or the other way round, then it says so
    for at in tail.keys_and_rows()[1].tolist():
        wrong = keep.copy()
        wrong[at] = not wrong[at]
        with pytest.raises(ProofFailed, match="partition 3 is not proven"):
            tail.second(budget=budget).check(wrong, partition=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [1, PLENTY])
def test_any_one_mistake_in_what_died_is_found(kind: str, budget: int) -> None:
    table, keys, keyless = KINDS[kind]
    tail = Tail(table, batches_of(random.Random(2), keys, keyless=keyless))
    # given a ledger before with a row of a key that came again, and one of a key that did not
    keep = tail.fold().keep
    last = next(iter(tail.survivors))
    stranger = 12_345 if isinstance(last, int) else b"a stranger"
    base = pa.array([last, stranger], tail.keys().type)
    dead = np.array([True, False])
    second = tail.second(budget=budget)
    second.check_base(base, dead=dead, partition=3)
    assert second.check(keep, partition=3) == len(tail.keys()) + 2
    # when the run says of either of them what is not so, then that is found
    for at in range(2):
        wrong = dead.copy()
        wrong[at] = not wrong[at]
        with pytest.raises(ProofFailed, match="differ in 1"):
            tail.second(budget=budget).check_base(base, dead=wrong, partition=3)


def test_with_nothing_sampled_there_is_nothing_to_check() -> None:
    second = Second(EVERYTHING, 0, PLENTY)
    second.check_base(pa.array([], pa.int64()), dead=np.zeros(0, np.bool_), partition=0)
    assert second.check(np.zeros(0, np.bool_), partition=0) == 0


@pytest.mark.parametrize(
    "keys",
    [pa.array(range(4_000), pa.int64()), pa.array([b"%d" % n for n in range(4_000)])],
    ids=["integers", "bytes"],
)
def test_ranges_and_samples_go_by_different_bits_of_a_hash(keys: pa.Array) -> None:
    """Else a sample would lie in one range, and be no check of the others."""
    sampled = Sample(3).of(keys)
    hashes = KeyForm.hashes(keys, KEY_SEED)
    for number in range(4):
        assert (sampled & KeyRange(number, 4).of(hashes)).sum() > 30
