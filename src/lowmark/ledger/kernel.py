"""Which rows of a tail survive: the one of each key that wins by the rule, and every row without a
key. Who wins, `rule` says: it gives ranks, which both algorithms below take from it.

Pass one: keys and changes only. The keys of a partition are folded at once, if they fit into the
budget; else in ranges of their hashes, each of which reads the tail again: slower, but in the
memory that was granted. What survives of a range is handed on before the next one is read.

The budget bounds the keys of a range and what it takes to fold them; the second way takes as much
again, at most, if it looks at all keys, else a part of that. What a library takes beyond that for a
moment, while a table of it grows, is no more than twice the budget. Left for each row of the tail
are three bytes: whether it survives, whether it is looked at twice, and what that came to.

What survives is found a second time by another algorithm, sorting, for a sample of the keys or for
all of them. Both must agree on every row: a mistake that both make is unlikely, since they share
no line. Pure: Arrow in, Arrow out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lowmark.catalog import Table
from lowmark.errors import invariant
from lowmark.ledger.errors import ProofFailed
from lowmark.ledger.key_file import KEY_SEED
from lowmark.ledger.rule import LAST_ROW, Ranks, Rule
from lowmark.ledger.tail import TailReader
from lowmark.table import I64, U64, Fold, KeyForm, KeyReader, Keys, Mask
from lowmark.table.fold import fold_bytes, of_one_type
from lowmark.table.hashing import longs_of

SAMPLE = 16
"""Of the keys, one in this many is looked at by the second algorithm, if not all are."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(60)
_SAMPLE_SHARE = 4
"""One part in this many of the budget is for the second algorithm."""
Pace = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Folded:
    """What is left of a tail. Rows are numbered from its first batch on."""

    keep: Mask
    """Of each row, whether it survives; deletes do, if they win over all rows of their key."""
    checked: int = 0
    """This many rows were looked at by the second algorithm."""
    ranges: int = 1
    """This many times the keys were read."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A part of the keys, by their hashes."""

    number: int
    count: int

    def of(self, hashes: U64) -> Mask:
        """Which keys are in it."""
        if self.count == 1:
            return np.ones(len(hashes), np.bool_)
        mine: Mask = hashes % np.uint64(self.count) == np.uint64(self.number)
        return mine


@dataclass(frozen=True, slots=True)
class Survivors:
    """The rows that win of the keys of one range: no key comes twice."""

    rows: I64
    keys: pa.Array
    deletes: Mask


@dataclass(frozen=True, slots=True)
class Sample:
    """A part of the keys: all, or one in `SAMPLE` of them, by a few bits of a hash."""

    remainder: int | None

    def of(self, keys: pa.Array) -> Mask:
        """Which of these are in it; rows without a key never are."""
        if self.remainder is None:
            mine = np.ones(len(keys), np.bool_)
        elif pa.types.is_int64(keys.type):
            # One multiplication is hash enough for a sample, and every key has to go through it.
            mine = (longs_of(keys).view(np.uint64) * _SPREAD) >> _SHIFT == np.uint64(
                self.remainder % SAMPLE
            )
        else:
            hashes = KeyForm.hashes(keys, KEY_SEED)
            mine = hashes >> _SHIFT == np.uint64(self.remainder % SAMPLE)
        return mine & ~_nulls(keys) if keys.null_count else mine


class _TooMuch(Exception):
    def __init__(self, share: float) -> None:
        self.share = share
        """How much of the tail was read when the budget was spent."""


Each = Callable[[KeyRange, Survivors, "Second"], None]
"""Called with every range; with some of them again, if the tail has to be parted further."""


def fold_tail(
    reader: TailReader,
    table: Table,
    *,
    budget_bytes: int,
    pace: Pace,
    sample: Sample,
    each: Each,
    rule: Rule = LAST_ROW,
) -> Folded:
    """Pass one."""
    starts = np.concatenate([[0], np.cumsum(reader.view.rows, dtype=np.int64)])
    if not table.key:
        keep = np.ones(int(starts[-1]), np.bool_)
        keep[: reader.skip] = False
        return Folded(keep)
    fold = _TailFold(reader, table, starts, budget_bytes, pace, sample, rule)
    ranges = 1
    while True:
        try:
            return fold.whole(ranges, each)
        except _TooMuch as spent:
            ranges = max(ranges + 1, int(np.ceil(ranges / max(spent.share, 0.01) * 1.2)))


@dataclass(frozen=True, slots=True)
class _TailFold:
    reader: TailReader
    table: Table
    starts: I64
    budget_bytes: int
    pace: Pace
    sample: Sample
    rule: Rule

    def whole(self, ranges: int, each: Each) -> Folded:
        keep = np.zeros(int(self.starts[-1]), np.bool_)
        checked = 0
        for number in range(ranges):
            part = KeyRange(number, ranges)
            second = Second(self.sample, len(keep), self.budget_bytes // _SAMPLE_SHARE)
            survivors = self._one_range(part, keep, second)
            keep[survivors.rows] = True
            each(part, survivors, second)
            checked += second.check(keep, partition=self.reader.partition)
        return Folded(keep, checked, ranges)

    def _one_range(self, part: KeyRange, keep: Mask, second: Second) -> Survivors:
        """The survivors of one range that have a key; those without one are kept right away."""
        reader, view, rule = self.reader, self.reader.view, self.rule
        key_reader = KeyReader(self.table, beside=rule.column)
        chunks: list[_Chunk] = []
        held = 0
        for low, _, commands in reader.chunks(self.pace):
            for some in key_reader.read(view, low, commands):
                chunk = _chunk(some, rule.ranks(some.beside), self.starts, reader.skip)
                if chunk.keys.null_count:
                    nulls = _nulls(chunk.keys)
                    keep[chunk.numbers(nulls)] = True
                    chunk = _picked(chunk, ~nulls)
                if part.count > 1:
                    chunk = _picked(chunk, part.of(KeyForm.hashes(chunk.keys, KEY_SEED)))
                if not len(chunk.keys):
                    continue
                second.add(chunk.keys, chunk.numbers, chunk.ranks)
                chunks.append(chunk)
                held += chunk.size
                if held > self.budget_bytes:
                    # Most of it may be a few keys that come again and again: no range parts those.
                    chunks = _winners(chunks)
                    held = sum(one.size for one in chunks)
                    if held > self.budget_bytes // 2 and sum(len(one.keys) for one in chunks) > 1:
                        raise _TooMuch(some.high / view.count)
        chunks = _winners(chunks)  # and those that were read are in memory no more
        return _survivors(chunks)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The keys of some batches that are in a range, and the numbers of their rows."""

    keys: pa.Array
    rows: int | I64
    """The number of the first one, if they follow each other, as all do before some are picked."""
    deletes: bool | Mask
    ranks: Ranks

    @property
    def size(self) -> int:
        """What it takes in memory, about, while it is folded."""
        ranks = 0 if self.ranks is None else 4 * self.ranks.nbytes  # joined, and put in order
        return int(self.keys.nbytes) + 8 * len(self.keys) + fold_bytes(self.keys) + ranks

    def numbers(self, mask: Mask) -> I64:
        """The numbers of some of its rows."""
        if isinstance(self.rows, int):
            return np.flatnonzero(mask) + self.rows
        return self.rows[mask]

    @property
    def all_numbers(self) -> I64:
        """The numbers of all its rows."""
        if isinstance(self.rows, int):
            return np.arange(self.rows, self.rows + len(self.keys))
        return self.rows


def _winners(chunks: list[_Chunk]) -> list[_Chunk]:
    """Without the rows that lose to another row of their key in what was read."""
    fold = Fold(keep_deletes=True)
    for chunk in chunks:
        fold.add(chunk.keys, chunk.deletes, ranks=chunk.ranks)
    return [
        chunk if mask is None else _picked(chunk, mask)
        for chunk, mask in zip(chunks, fold.masks(), strict=True)
        if mask is None or mask.any()
    ]


def _chunk(some: Keys, ranks: Ranks, starts: I64, skip: int) -> _Chunk:
    first, keys, deletes = int(starts[some.low]), some.keys, some.deletes
    if some.low == 0 and skip:
        first, keys = first + skip, keys.slice(skip)
        deletes = deletes[skip:] if isinstance(deletes, np.ndarray) else deletes
        ranks = None if ranks is None else ranks[skip:]
    return _Chunk(keys, first, deletes, ranks)


def _picked(chunk: _Chunk, mine: Mask) -> _Chunk:
    deletes = chunk.deletes[mine] if isinstance(chunk.deletes, np.ndarray) else chunk.deletes
    ranks = None if chunk.ranks is None else chunk.ranks[mine]
    return _Chunk(chunk.keys.filter(pa.array(mine)), chunk.numbers(mine), deletes, ranks)


def _survivors(chunks: list[_Chunk]) -> Survivors:
    if not chunks:
        return Survivors(np.zeros(0, np.int64), pa.array([], pa.int64()), np.zeros(0, np.bool_))
    return Survivors(
        np.concatenate([chunk.all_numbers for chunk in chunks]),
        _joined([chunk.keys for chunk in chunks]),
        np.concatenate([np.broadcast_to(chunk.deletes, len(chunk.keys)) for chunk in chunks]),
    )


def _nulls(keys: pa.Array) -> Mask:
    if not keys.null_count:
        return np.zeros(len(keys), np.bool_)
    nulls: Mask = keys.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _joined(arrays: list[pa.Array]) -> pa.Array:
    """Keys of one table: all integers, or all bytes; none at all may have either type."""
    arrays = [array for array in arrays if len(array)] or arrays[:1]
    if not arrays:
        return pa.array([], pa.int64())
    return pa.concat_arrays(of_one_type(arrays))


class Second:
    """Finds the survivors of a sample of keys by sorting, and compares.

    It holds no more than its share of the budget: when that is full, rows are sorted, and those
    that lose to another row of their key are let go, as rows that must not survive.
    """

    def __init__(self, sample: Sample, rows: int, budget_bytes: int) -> None:
        self._sample = sample
        self._looked = np.zeros(rows, np.bool_)
        self._budget_bytes = budget_bytes
        self._keys: list[pa.Array] = []
        self._rows: list[I64] = []
        self._ranks: list[I64] = []
        """Of the same rows, if they have ranks."""
        self._held = 0
        self._base_rows = 0

    def add(self, keys: pa.Array, numbers: Callable[[Mask], I64], ranks: Ranks = None) -> None:
        """Rows of the tail, later than all before, with their ranks, if the rule gives them any;
        `numbers` are those of some of them.
        """
        wanted = self._sample.of(keys)
        if not wanted.any():
            return
        self._keep(
            keys.filter(pa.array(wanted)),
            numbers(wanted),
            None if ranks is None else ranks[wanted],
        )
        self._looked[self._rows[-1]] = True
        if self._held > self._budget_bytes:
            self._sort()

    def _keep(self, keys: pa.Array, rows: I64, ranks: Ranks) -> None:
        self._keys.append(keys)
        self._rows.append(rows)
        self._held += int(keys.nbytes) + rows.nbytes
        if ranks is not None:
            self._ranks.append(ranks)
            self._held += ranks.nbytes

    def _sort(self) -> None:
        """Let rows go that lose; what is left may double before that is done again."""
        if not self._keys:
            return
        keys, rows = _joined(self._keys), np.concatenate(self._rows)
        ranks = np.concatenate(self._ranks) if self._ranks else None
        wins = _wins_by_sorting(keys, rows, ranks)
        self._keys, self._rows, self._ranks, self._held = [], [], [], 0
        self._keep(keys.filter(pa.array(wins)), rows[wins], None if ranks is None else ranks[wins])
        self._budget_bytes = max(self._budget_bytes, 2 * self._held)

    def check_base(
        self, keys: pa.Array, *, dead: Mask, partition: int, ranks: Ranks = None
    ) -> None:
        """Live rows of the ledger before, of this range, and which of them the run declared dead:
        their offsets are below those of the tail. Those of other keys than the sample's are left
        out.
        """
        self._sort()
        mine = self._sample.of(keys)
        base, said = keys.filter(pa.array(mine)), ~dead[mine]
        if not len(base):
            return
        self._base_rows += len(base)
        rows = np.concatenate([np.full(len(base), -1, np.int64), *self._rows])
        invariant(ranks is not None or not self._ranks, "rows of the ledger have ranks, too")
        every = None if ranks is None else np.concatenate([ranks[mine], *self._ranks])
        survives = _wins_by_sorting(_joined([base, *self._keys]), rows, every)[: len(base)]
        _compare(survives, said, partition)

    def check(self, keep: Mask, *, partition: int) -> int:
        """Compare with what the first algorithm keeps; gives how many rows were looked at."""
        self._sort()
        survives = np.zeros(len(keep), np.bool_)
        for rows in self._rows:
            survives[rows] = True
        _compare(survives[self._looked], keep[self._looked], partition)
        return int(np.count_nonzero(self._looked)) + self._base_rows


def _wins_by_sorting(keys: pa.Array, rows: I64, ranks: Ranks) -> Mask:
    """Of each row, whether it is the one of its key with the greatest rank, if rows have ranks, and
    of those the one with the highest number.
    """
    columns = {"key": keys, "row": pa.array(rows)}
    if ranks is not None:
        columns = {"key": keys, "rank": pa.array(ranks), "row": columns["row"]}
    by = [(name, "ascending") for name in columns]
    order = pc.sort_indices(pa.table(columns), by).to_numpy()
    in_order = keys.take(pa.array(order))
    last = np.ones(len(order), np.bool_)
    last[:-1] = pc.not_equal(in_order[:-1], in_order[1:]).to_numpy(zero_copy_only=False)
    survives = np.zeros(len(order), np.bool_)
    survives[order] = last
    return survives


def _compare(survives: Mask, said: Mask, partition: int) -> None:
    if not np.array_equal(survives, said):
        wrong = int(np.count_nonzero(survives != said))
        raise ProofFailed(partition, f"two ways to find the last row of a key differ in {wrong}")
