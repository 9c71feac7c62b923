"""Which rows of a tail survive: the last of each key, and every row without one.

Pass one: keys and changes only. The keys of a partition are folded at once, if they fit into the
budget; else in ranges of their hashes, each of which reads the tail again: slower, but never more
memory than was granted.

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
from lowmark.ledger.errors import ProofFailed
from lowmark.ledger.key_file import KEY_SEED
from lowmark.ledger.tail import TailReader
from lowmark.table import I64, Fold, KeyForm, KeyReader, Keys, Mask
from lowmark.table.hashing import longs_of

__all__ = ["SAMPLE", "Folded", "Sample", "check_survivors", "fold_tail"]

SAMPLE = 16
"""Of the keys, one in so many is looked at by the second algorithm, if not all are."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(60)
Pace = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Folded:
    """What is left of a tail. Rows are numbered from its first batch on."""

    keep: Mask
    """Of each row, whether it survives; deletes do, as long as they are the last of their key."""
    rows: I64
    """Those that survive and have a key."""
    keys: pa.Array
    """Their keys."""
    deletes: Mask
    """Which of those are deletes."""
    ranges: int = 1
    """So many times the keys were read."""


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


def fold_tail(
    reader: TailReader, table: Table, *, budget_bytes: int, pace: Pace, sample: Sample
) -> tuple[Folded, pa.Table]:
    """Pass one, and the sampled keys with their rows for the second algorithm."""
    view = reader.view
    starts = np.concatenate([[0], np.cumsum(view.rows, dtype=np.int64)])
    if not table.key:
        keep = np.ones(int(starts[-1]), np.bool_)
        keep[: reader.skip] = False
        nothing = pa.array([], pa.int64())
        folded = Folded(keep, np.zeros(0, np.int64), nothing, np.zeros(0, np.bool_))
        return folded, _sampled([], [])
    ranges = 1
    while True:
        try:
            return _fold(reader, table, starts, ranges, budget_bytes, pace, sample)
        except _TooMuch as spent:
            ranges = max(ranges + 1, int(np.ceil(ranges / max(spent.share, 0.01) * 1.2)))


def _fold(
    reader: TailReader,
    table: Table,
    starts: I64,
    ranges: int,
    budget_bytes: int,
    pace: Pace,
    sample: Sample,
) -> tuple[Folded, pa.Table]:
    keep = np.zeros(int(starts[-1]), np.bool_)
    rows: list[I64] = []
    keys: list[pa.Array] = []
    deletes: list[Mask] = []
    samples: tuple[list[pa.Array], list[I64]] = ([], [])
    for number in range(ranges):
        for part in _one_range(
            reader, table, starts, number, ranges, budget_bytes, pace, sample, samples, keep
        ):
            keep[part.rows] = True
            rows.append(part.rows)
            keys.append(part.keys)
            deletes.append(part.deletes)
    folded = Folded(
        keep,
        np.concatenate(rows) if rows else np.zeros(0, np.int64),
        _joined(keys),
        np.concatenate(deletes) if deletes else np.zeros(0, np.bool_),
        ranges,
    )
    return folded, _sampled(*samples)


@dataclass(frozen=True, slots=True)
class _Survivors:
    rows: I64
    keys: pa.Array
    deletes: Mask


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The keys of some batches that are in a range, and the numbers of their rows."""

    keys: pa.Array
    rows: I64
    deletes: bool | Mask

    @property
    def size(self) -> int:
        """What it takes in memory, about."""
        return int(self.keys.nbytes) + 8 * len(self.rows)


def _one_range(
    reader: TailReader,
    table: Table,
    starts: I64,
    number: int,
    ranges: int,
    budget_bytes: int,
    pace: Pace,
    sample: Sample,
    samples: tuple[list[pa.Array], list[I64]],
    keep: Mask,
) -> list[_Survivors]:
    """The survivors of one range that have a key; those without one are kept right away."""
    key_reader = KeyReader(table)
    chunks: list[_Chunk] = []
    held, view = 0, reader.view
    for low, _, commands in reader.chunks(pace):
        for some in key_reader.read(view, low, commands):
            chunk = _chunk(some, starts, reader.skip)
            if chunk.keys.null_count:
                nulls = _nulls(chunk.keys)
                keep[chunk.rows[nulls]] = True
                chunk = _picked(chunk, ~nulls)
            if ranges > 1:
                hashes = KeyForm.hashes(chunk.keys, KEY_SEED)
                chunk = _picked(chunk, hashes % np.uint64(ranges) == np.uint64(number))
            wanted = sample.of(chunk.keys)
            samples[0].append(chunk.keys.filter(pa.array(wanted)))
            samples[1].append(chunk.rows[wanted])
            chunks.append(chunk)
            held += chunk.size
            if held > budget_bytes:
                # Most of it may be a few keys that come again and again: no range parts those.
                chunks = _last_ones(chunks)
                held = sum(one.size for one in chunks)
                if held > budget_bytes // 2 and sum(len(one.rows) for one in chunks) > 1:
                    raise _TooMuch(some.high / view.count)
    return [_survivors(chunk) for chunk in _last_ones(chunks)]


def _last_ones(chunks: list[_Chunk]) -> list[_Chunk]:
    """Without the rows whose key comes again in what was read."""
    fold = Fold(keep_deletes=True)
    for chunk in chunks:
        fold.add(chunk.keys, chunk.deletes)
    return [
        chunk if mask is None else _picked(chunk, mask)
        for chunk, mask in zip(chunks, fold.masks(), strict=True)
    ]


def _chunk(some: Keys, starts: I64, skip: int) -> _Chunk:
    rows = np.arange(starts[some.low], starts[some.high])
    keys, deletes = some.keys, some.deletes
    if some.low == 0 and skip:
        keys, rows = keys.slice(skip), rows[skip:]
        deletes = deletes[skip:] if isinstance(deletes, np.ndarray) else deletes
    return _Chunk(keys, rows, deletes)


def _picked(chunk: _Chunk, mine: Mask) -> _Chunk:
    deletes = chunk.deletes[mine] if isinstance(chunk.deletes, np.ndarray) else chunk.deletes
    return _Chunk(chunk.keys.filter(pa.array(mine)), chunk.rows[mine], deletes)


def _survivors(chunk: _Chunk) -> _Survivors:
    deletes = chunk.deletes
    if isinstance(deletes, bool):
        deletes = np.full(len(chunk.rows), deletes)
    return _Survivors(chunk.rows, chunk.keys, deletes)


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
    if len({array.type for array in arrays}) > 1:
        arrays = [array.cast(pa.large_binary()) for array in arrays]
    return pa.concat_arrays(arrays)


def _sampled(keys: list[pa.Array], rows: list[I64]) -> pa.Table:
    number = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    return pa.table({"key": _joined(keys), "row": pa.array(number)})


def check_survivors(
    partition: int, sampled: pa.Table, keep: Mask, *, base_keys: pa.Array, base_dead: Mask
) -> int:
    """Find the survivors of a sample by sorting, and compare; gives how many rows were looked at.

    `base_keys` are live rows of the ledger before, whose keys are in the sample, and `base_dead`
    says which of them the run declared dead. They come before all rows of the tail.
    """
    number = np.concatenate([np.full(len(base_keys), -1, np.int64), sampled["row"].to_numpy()])
    keys = _joined([base_keys, *sampled["key"].chunks])
    if not len(keys):
        return 0
    rows = pa.table({"key": keys, "row": pa.array(number)})
    order = pc.sort_indices(rows, [("key", "ascending"), ("row", "ascending")]).to_numpy()
    in_order = keys.take(pa.array(order))
    last = np.ones(len(order), np.bool_)
    last[:-1] = pc.not_equal(in_order[:-1], in_order[1:]).to_numpy(zero_copy_only=False)
    survives = np.zeros(len(order), np.bool_)
    survives[order] = last
    said = np.concatenate([~base_dead, keep[number[len(base_keys) :]]])
    if not np.array_equal(survives, said):
        wrong = int(np.count_nonzero(survives != said))
        raise ProofFailed(partition, f"two ways to find the last row of a key differ in {wrong}")
    return len(order)
