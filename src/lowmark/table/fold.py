"""The row of each key that wins, over a sequence of batches.

Who wins, `ledger/rule.py` says; it is handed in as a rank of each row. Batches come in the order of
their offsets, each with its keys in canonical form. The greatest rank of a key wins, and of equal
ranks the row that comes last; without ranks, that is the last row. A row survives if it wins,
unless it is a delete: then the key is gone. Rows without a key replace nothing and are replaced by
nothing; all of them survive.

Keys are compared themselves, not by a hash. There is no Python per row: all keys are numbered, and
the number of each row's key is where the row writes its own number down; what stands there in the
end is the last one. With ranks, rows write in the order of their ranks. Integers that lie close
together are numbers already; all other keys are numbered by Arrow's dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lowmark.errors import invariant
from lowmark.table.hashing import I64

Mask: TypeAlias = npt.NDArray[np.bool_]
_INT32_MAX = (1 << 31) - 1
_DENSE = 8
"""Integers are close together if there is room for no more than so many of them for each row."""
_ROW_BYTES = 48
"""For each row: `_DENSE` places of four bytes and some numbers, or a place in a dictionary."""


def fold_bytes(keys: pa.Array) -> int:
    """What folding keys takes in memory, about, beside the keys themselves.

    A dictionary has each key again. While one grows, it takes two or three times as much for a
    moment, if hardly a key comes twice.
    """
    copied = 0 if pa.types.is_int64(keys.type) else int(keys.nbytes)
    return copied + _ROW_BYTES * len(keys)


def of_one_type(arrays: list[pa.Array]) -> list[pa.Array]:
    """Keys of one table, so that they can be compared and joined: bytes may have either type."""
    if len({array.type for array in arrays}) > 1:
        return [array.cast(pa.large_binary()) for array in arrays]
    return arrays


class Fold:
    """Takes batches and says which of their rows win over the others of their keys.

    With `keep_deletes`, a delete that wins survives, too: a caller that folds a part of the rows
    has to say to the rest that the key is gone.
    """

    __slots__ = ("_batches", "_keep_deletes", "_ranks")

    def __init__(self, *, keep_deletes: bool = False) -> None:
        self._keep_deletes = keep_deletes
        self._batches: list[tuple[pa.Array | None, bool | Mask]] = []
        self._ranks: list[I64] = []

    def add(
        self,
        keys: pa.Array | None,
        deletes: bool | Mask | None = None,
        *,
        ranks: I64 | None = None,
    ) -> None:
        """Take the next batch: its keys, or `None` if its table has none; which of its rows are
        deletes: none, all, or those of a mask; and the ranks of its rows, if the last of a key does
        not win anyhow.
        """
        if deletes is None:
            deletes = False
        if keys is None:
            invariant(not np.any(deletes), "without a key, nothing can be deleted")
        elif not isinstance(deletes, bool):
            invariant(len(deletes) == len(keys), "each row is a delete or not")
        if ranks is not None:
            invariant(keys is not None and len(ranks) == len(keys), "each row has a rank")
            self._ranks.append(ranks)
        self._batches.append((keys, deletes))

    def masks(self) -> list[Mask | None]:
        """For each batch which rows survive; `None` stands for all of them."""
        arrays = [keys for keys, _ in self._batches if keys is not None]
        invariant(len(self._ranks) in {0, len(arrays)}, "all rows have ranks, or none has")
        last = _last_of_each(arrays, self._ranks)
        masks: list[Mask | None] = []
        at = 0
        for keys, deletes in self._batches:
            if keys is None:
                masks.append(None)
                continue
            mask = last[at : at + len(keys)]
            at += len(keys)
            if deletes is not False and not self._keep_deletes:
                mask = mask & np.logical_not(deletes)
            masks.append(None if mask.all() else mask)
        return masks


def _last_of_each(arrays: list[pa.Array], ranks: list[I64]) -> Mask:
    """Over the rows of all arrays: whether a row wins over the others of its key, or has none."""
    rows = sum(len(array) for array in arrays)
    if not rows:
        return np.ones(0, np.bool_)
    keys = pa.chunked_array(of_one_type(arrays))
    span = _span_of(keys)
    if span is not None and span[1] - span[0] < _DENSE * rows:
        places, chunks = span[1] - span[0] + 1, keys.chunks
        codes = (_numbers_in(chunk, np.int64) - span[0] for chunk in chunks)
    else:
        chunks = keys.dictionary_encode().chunks
        places = len(chunks[0].dictionary)
        codes = (_numbers_in(chunk.indices, np.int32) for chunk in chunks)
    nulls = [_nulls_of(chunk) for chunk in chunks]
    if ranks:
        return _greatest_at_each(codes, nulls, np.concatenate(ranks), places)
    return _last_at_each(codes, nulls, rows, places)


def _last_at_each(
    codes: Iterable[npt.NDArray[Any]], nulls: Iterable[Mask | None], rows: int, places: int
) -> Mask:
    """Whether a row is the last one with its code, or has none."""
    last = np.zeros(rows, np.bool_)
    # Places are written to in no order, so the fewer bytes they take, the better.
    kind: Any = np.int32 if rows <= _INT32_MAX else np.int64
    latest = np.full(places, -1, kind)
    at = 0
    for some, keyless in zip(codes, nulls, strict=True):
        numbers = np.arange(at, at + len(some), dtype=kind)
        at += len(some)
        if keyless is not None:
            last[numbers[keyless]] = True
            some, numbers = some[~keyless], numbers[~keyless]
        # Of several rows that write to one place, numpy lets the last one win.
        latest[some] = numbers
    last[latest[latest >= 0]] = True
    return last


def _greatest_at_each(
    codes: Iterable[npt.NDArray[Any]], nulls: Iterable[Mask | None], ranks: I64, places: int
) -> Mask:
    """Whether a row is the last of those with the greatest rank and its code, or has none."""
    every, keyless = [], []
    for some, missing in zip(codes, nulls, strict=True):
        every.append(some)
        keyless.append(np.zeros(len(some), np.bool_) if missing is None else missing)
    wins = np.concatenate(keyless)
    # In the order of their ranks, and of equal ones as they came; those without a key do not write.
    order = np.argsort(ranks, kind="stable")
    order = order[~wins[order]]
    latest = np.full(places, -1, np.int64)
    latest[np.concatenate(every)[order]] = order
    wins[latest[latest >= 0]] = True
    return wins


def _span_of(keys: pa.ChunkedArray) -> tuple[int, int] | None:
    """The lowest and the highest key, if they are integers."""
    if not pa.types.is_int64(keys.type) or keys.null_count == len(keys):
        return None
    found = pc.min_max(keys).as_py()
    return found["min"], found["max"]


def _numbers_in(array: pa.Array, kind: Any) -> npt.NDArray[Any]:
    size = np.dtype(kind).itemsize
    return np.frombuffer(array.buffers()[1], kind, len(array), array.offset * size)


def _nulls_of(array: pa.Array) -> Mask | None:
    if not array.null_count:
        return None
    nulls: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return nulls
