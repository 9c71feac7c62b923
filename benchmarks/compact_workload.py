"""The changes that are compacted, and what must be left of them.

A row is 100 bytes as Arrow has it: `k`, an integer of 8, and `v`, a text of 88 (and 4 for where it
ends). Keys are drawn evenly, about ten changes each; one change in a hundred is a delete. Values
are drawn from 64 letters, no two alike: nothing repeats, and a compressor saves a quarter.

What must be left (`Truth`) is found by nobody's algorithm who is measured: there is a place for
each key, and chunk by chunk every change is put down at its key's place, the last one on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lowmark.errors import invariant

PARTITIONS = 8
ROW_BYTES = 100
CHUNK_ROWS = 1 << 18
"""Rows in one append."""
COLUMNS = {"k": "int64", "v": "string"}
VALUE_BYTES, VALUE_WORDS = 88, 11
DELETED_IN = 100
LOW_BITS, FIRST_LETTER = np.uint64(0x3F3F3F3F3F3F3F3F), np.uint64(0x2020202020202020)
WRAP = (1 << 64) - 1

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


# -- changes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some changes, in order."""

    keys: Integers
    deleted: Mask
    values: Words
    """A line of 11 words each, every byte of them a letter."""

    def as_arrow(self) -> pa.RecordBatch:
        """As a table takes them."""
        rows = len(self.keys)
        ends = np.arange(0, (rows + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32)
        texts = pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(self.values))
        changes = pa.DictionaryArray.from_arrays(
            pa.array(self.deleted.astype(np.int8)), pa.array(["upsert", "delete"])
        )
        return pa.record_batch({"k": pa.array(self.keys), "v": texts, "_change": changes})


def changes_of(rows: int, keys: int, *, seed: int) -> Iterator[Chunk]:
    """So many changes of so many keys; the same ones for the same seed."""
    dice = np.random.Generator(np.random.SFC64(seed))
    for first in range(0, rows, CHUNK_ROWS):
        count = min(CHUNK_ROWS, rows - first)
        drawn = dice.integers(0, keys, count)
        yield Chunk(drawn, dice.integers(0, DELETED_IN, count) == 0, _values(dice, count))


def rewrites_of(keys: int, count: int, *, seed: int) -> Chunk:
    """One more change of some keys, none of them a delete."""
    dice = np.random.Generator(np.random.SFC64(seed))
    drawn = dice.permutation(keys)[:count].astype(np.int64)
    return Chunk(drawn, np.zeros(count, np.bool_), _values(dice, count))


def _values(dice: np.random.Generator, rows: int) -> Words:
    words = dice.integers(0, 1 << 64, (rows, VALUE_WORDS), dtype=np.uint64)
    words &= LOW_BITS
    words += FIRST_LETTER
    return words


# -- what must be left ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Left:
    """What a result comes to, whatever its order: how many rows, and sums modulo 2**64."""

    rows: int
    keys: int
    values: int
    """Of the first eight letters: they say which of a key's changes it is."""
    offsets: int

    @property
    def anywhere(self) -> tuple[int, int, int]:
        """The same, wherever rows stand."""
        return self.rows, self.keys, self.values

    def __add__(self, other: Self) -> Left:
        return Left(
            self.rows + other.rows,
            self.keys + other.keys & WRAP,
            self.values + other.values & WRAP,
            self.offsets + other.offsets & WRAP,
        )


NOTHING = Left(0, 0, 0, 0)


class Truth:
    """The last change of every key."""

    def __init__(self, keys: int) -> None:
        self._live = np.zeros(keys, np.bool_)
        self._values = np.zeros(keys, np.uint64)
        self._partitions = np.zeros(keys, np.int8)
        self._offsets = np.zeros(keys, np.int64)
        self._rows = [0] * PARTITIONS

    def take(self, chunk: Chunk) -> None:
        """What was appended. Of several changes of a key numpy keeps the last, as documented."""
        self._live[chunk.keys] = ~chunk.deleted
        self._values[chunk.keys] = chunk.values[:, 0]

    def place(self, partition: int, offsets: Integers, keys: Integers) -> None:
        """Where the table has put rows; in the order of their offsets."""
        self._partitions[keys] = partition
        self._offsets[keys] = offsets
        self._rows[partition] += len(keys)

    def rows_of(self, partitions: Sequence[int]) -> int:
        """How many changes were placed there."""
        return sum(self._rows[number] for number in partitions)

    def left(self, partitions: Sequence[int] = range(PARTITIONS)) -> Left:
        """What must be left of some partitions."""
        (keys,) = np.nonzero(self._live & np.isin(self._partitions, partitions))
        return Left(
            len(keys),
            _sum(keys.astype(np.int64)),
            _sum(self._values[keys]),
            _sum(self._offsets[keys]),
        )

    def copy(self) -> Truth:
        """One to go on with."""
        made = Truth(0)
        made._live, made._values = self._live.copy(), self._values.copy()
        made._partitions, made._offsets = self._partitions.copy(), self._offsets.copy()
        return made


def left_in(batches: Iterable[pa.RecordBatch], *, deletes: bool = False) -> Left:
    """What is in the rows of one partition: they must be sorted by offset.

    Deletes among them do not count if they may be there, and are an error otherwise.
    """
    found, last = NOTHING, -1
    for batch in batches:
        if not batch.num_rows:
            continue
        offsets = _numbers(batch.column("_offset"))
        invariant(
            bool(last < offsets[0] and np.all(offsets[1:] > offsets[:-1])),
            "what is left of a partition is sorted by offset",
        )
        last = int(offsets[-1])
        upserts = pc.equal(batch.column("_change").cast(pa.string()), "upsert")
        invariant(deletes or bool(pc.all(upserts).as_py()), "no delete is left")
        rows = batch.filter(upserts)
        found += Left(
            rows.num_rows,
            _sum(_numbers(rows.column("k"))),
            _sum(_first_words(rows.column("v"))),
            _sum(_numbers(rows.column("_offset"))),
        )
    return found


def _numbers(column: pa.Array) -> Integers:
    numbers: Integers = column.to_numpy(zero_copy_only=False)
    return numbers


def _first_words(column: pa.Array) -> Words:
    texts = column.cast(pa.large_binary())
    invariant(texts.null_count == 0, "every row that is left has a value")
    _, ends, letters = texts.buffers()
    at = np.frombuffer(ends, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    lines = np.frombuffer(letters, np.uint8)[at[0] : at[-1]]
    invariant(len(lines) == len(texts) * VALUE_BYTES, "every value that is left is whole")
    return np.ascontiguousarray(lines.reshape(-1, VALUE_BYTES)[:, :8]).view(np.uint64).ravel()


def _sum(numbers: Integers | Words) -> int:
    return int(numbers.astype(np.uint64).sum(dtype=np.uint64))
