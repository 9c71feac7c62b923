"""Which rows of a tail survive: found at once, in ranges of keys, and by a plain dict."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from ledger.making import made_table
from lowmark.catalog import Table
from lowmark.ledger import KEY_SEED, ProofFailed, TailReader
from lowmark.ledger.kernel import SAMPLE, Folded, Sample, check_survivors, fold_tail
from lowmark.runtime import Buffer
from lowmark.table import (
    CHANGE,
    Change,
    Columns,
    KeyForm,
    View,
    encode_batch,
    encode_rows,
    stored_schema,
)

INTEGERS = made_table({"k": "int64", "v": "string"}, key=["k"], options={"keyless_rows": "keep"})
WORDS = made_table({"v": "int8", "k": "string"}, key=["k"], options={"keyless_rows": "keep"})
PAIRS = made_table({"k": "string", "n": "int32"}, key=["n", "k"])
KEYLESS = made_table({"k": "int64"})
EVERYTHING = Sample(None)
PLENTY = 1 << 30
Row = tuple[Any, bool]
"""A key, or None; and whether it is deleted."""


class Tail:
    """Batches in memory, as a `TailReader` gives those of segments."""

    def __init__(self, table: Table, batches: Sequence[Sequence[Row]], *, skip: int = 0) -> None:
        self.table = table
        self.skip = skip
        self.reads = 0
        self._commands = []
        changes, counts = [], []
        for rows in batches:
            kinds = {deleted for _, deleted in rows}
            change = Change.MIXED if len(kinds) > 1 else Change(int(kinds.pop()))
            self._commands.append(self._encoded(rows, change))
            changes.append(int(change))
            counts.append(len(rows))
        firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
        count = len(batches)
        columns = Columns(
            np.arange(count, dtype=np.uint64),
            firsts[:-1],
            np.arange(count, dtype=np.uint64),
            np.array(counts, np.uint32),
            np.ones(count, np.uint32),
            np.full(count, 100, np.uint32),
            np.array(changes, np.uint8),
        )
        self.view = View(columns, count, skip, int(firsts[-1]), 0)

    def _encoded(self, rows: Sequence[Row], change: Change) -> bytes:
        table = self.table
        schema = stored_schema(table.latest, table.key, change)
        names = [column.name for column in table.key_columns]
        arrays = []
        for field in schema:
            if field.name == CHANGE:
                values: list[Any] = [int(deleted) for _, deleted in rows]
            elif field.name in names and len(names) > 1:
                place = names.index(field.name)
                values = [None if key is None else key[place] for key, _ in rows]
            elif field.name in names or not names:
                values = [key for key, _ in rows]
            else:
                values = [None] * len(rows)
            arrays.append(pa.array(values, field.type))
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return encode_batch(encode_rows(batch), rows=len(rows), schema=1, change=change)

    def chunks(
        self, pace: Callable[[int], None], *, wanted: object = None
    ) -> Iterator[tuple[int, int, Sequence[Buffer]]]:
        del wanted
        self.reads += 1
        for low in range(0, self.view.count, 3):
            high = min(low + 3, self.view.count)
            pace(100 * (high - low))
            yield low, high, self._commands[low:high]

    def fold(self, *, budget: int = PLENTY, sample: Sample = EVERYTHING) -> tuple[Folded, pa.Table]:
        reader = cast("TailReader", self)
        return fold_tail(
            reader, self.table, budget_bytes=budget, pace=lambda count: None, sample=sample
        )


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
    last = {key: at for at, (key, _) in enumerate(rows) if at >= skip and key is not None}
    keep = [at >= skip and (key is None or last[key] == at) for at, (key, _) in enumerate(rows)]
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
    folded, sampled = tail.fold()
    # then those survive that a dict says
    assert folded.keep.tolist() == keep
    form = KeyForm.of(table)
    by_form = {
        form.one(key if isinstance(key, tuple) else (key,)): one for key, one in last.items()
    }
    assert (
        dict(
            zip(
                folded.keys.to_pylist(),
                zip(folded.rows.tolist(), folded.deletes.tolist(), strict=True),
                strict=True,
            )
        )
        == by_form
    )
    # and the second algorithm comes to the same
    nothing = pa.array([], folded.keys.type)
    count = check_survivors(
        0, sampled, folded.keep, base_keys=nothing, base_dead=np.zeros(0, np.bool_)
    )
    assert count == sum(key is not None for batch in batches for key, _ in batch) - sum(
        key is not None for key, _ in batches[0][:skip]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [100, 300, 700])
def test_a_fold_in_ranges_of_keys_is_a_fold_at_once(kind: str, budget: int) -> None:
    # given a tail whose keys do not fit into the budget
    chance = random.Random(budget)
    table, keys, keyless = KINDS[kind]
    batches = [batch for _ in range(8) for batch in batches_of(chance, keys, keyless=keyless)]
    at_once, all_sampled = Tail(table, batches).fold()
    tail = Tail(table, batches)
    # when it is folded in ranges, each of which reads it again
    folded, sampled = tail.fold(budget=budget)
    # then what survives is the same
    assert tail.reads >= folded.ranges > at_once.ranges == 1
    assert folded.keep.tolist() == at_once.keep.tolist()
    assert sorted(
        zip(folded.rows.tolist(), folded.keys.to_pylist(), folded.deletes, strict=True)
    ) == (
        sorted(zip(at_once.rows.tolist(), at_once.keys.to_pylist(), at_once.deletes, strict=True))
    )
    # and every row was sampled once
    assert sorted(sampled["row"].to_pylist()) == sorted(all_sampled["row"].to_pylist())


def test_a_tail_that_fits_is_read_once_for_its_keys() -> None:
    tail = Tail(INTEGERS, [[(1, False)], [(2, False)]])
    tail.fold()
    assert tail.reads == 1


def test_of_a_table_without_a_key_everything_survives_and_no_row_is_read() -> None:
    tail = Tail(KEYLESS, [[(1, False), (1, False)], [(1, False)]], skip=1)
    folded, _ = tail.fold()
    assert folded.keep.tolist() == [False, True, True]
    assert (len(folded.keys), tail.reads) == (0, 0)


# -- the second algorithm -----------------------------------------------------------------------


def test_a_sample_is_one_in_sixteen_of_the_keys_with_all_their_rows() -> None:
    chance = random.Random(1)
    batches = [[(chance.randrange(2_000), False) for _ in range(500)] for _ in range(20)]
    every = [key for batch in batches for key, _ in batch]
    seen: list[int] = []
    for remainder in range(SAMPLE):
        _, sampled = Tail(INTEGERS, batches).fold(sample=Sample(remainder))
        mine = sampled["key"].to_pylist()
        assert sorted(mine) == sorted(key for key in every if key in set(mine))
        assert 0 < len(mine) < len(every) / 4
        seen += mine
    # and together they are everything, once
    assert sorted(seen) == sorted(every)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_any_one_mistake_in_what_survives_is_found(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    table, keys, keyless = KINDS[kind]
    batches = batches_of(chance, keys, keyless=keyless)
    folded, sampled = Tail(table, batches).fold()
    # given a ledger before with a row of the first key, and one of a key that did not come again
    last = folded.keys[0].as_py()
    stranger = 12_345 if isinstance(last, int) else b"a stranger"
    base = pa.array([last, stranger], folded.keys.type)
    dead = np.array([True, False])
    check = check_survivors(3, sampled, folded.keep, base_keys=base, base_dead=dead)
    assert check == len(sampled) + 2
    # when a row survives that should not, or does not, of the tail or of the ledger before
    for at in sampled["row"].to_pylist():
        wrong = folded.keep.copy()
        wrong[at] = not wrong[at]
        with pytest.raises(ProofFailed, match="partition 3 is not proven"):
            check_survivors(3, sampled, wrong, base_keys=base, base_dead=dead)
    for at in range(2):
        wrong = dead.copy()
        wrong[at] = not wrong[at]
        with pytest.raises(ProofFailed, match="differ in 1"):
            check_survivors(3, sampled, folded.keep, base_keys=base, base_dead=wrong)


def test_with_nothing_sampled_there_is_nothing_to_check() -> None:
    nothing = pa.table({"key": pa.array([], pa.int64()), "row": pa.array([], pa.int64())})
    none = np.zeros(0, np.bool_)
    keys = pa.array([], pa.int64())
    assert check_survivors(0, nothing, none, base_keys=keys, base_dead=none) == 0


def test_ranges_and_samples_go_by_different_bits_of_a_hash() -> None:
    """Else a sample would lie in one range, and be no check of the others."""
    keys = pa.array(range(4_000), pa.int64())
    hashes = KeyForm.hashes(keys, KEY_SEED)
    sampled = Sample(3).of(hashes)
    ranges = (hashes >> np.uint64(32)) % np.uint64(4)
    counts = np.bincount(ranges[sampled].astype(np.int64), minlength=4)
    assert (counts > 30).all()
