"""Two hashes over whole columns, and the same two over one value.

*Murmur3* (x86, 32 bits, seed 0) is what Iceberg's bucket transform is made of. It decides which
partition a key belongs to, and every engine must come to the same one, so it is exact, and it will
never change.

*hash64* is ours, for indexes of keys and for the digests of ledgers. It is fast and even, and takes
a seed. It is no defence against an attacker that looks for collisions, so code that uses it for
keys compares them, too. Ledgers have it in their files (docs/formats/ledger.md), so it does not
change without a new format of manifests.

Columns are hashed without Python per row: rows are ordered by length, and a step takes the next
eight bytes of all rows that still have some. So the work is that of the bytes there are, however
unequal the rows. Eight bytes at any offset come from two aligned words, because numpy gathers
aligned words seven times as fast as others. Where only a few rows are left, they are hashed one by
one: a step costs more than they do.

What is hashed for a null row says nothing. The words are read as a little-endian machine has them,
and others are not supported.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lowmark.errors import invariant

U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]
_Word = TypeVar("_Word", np.uint32, np.uint64)

invariant(sys.byteorder == "little", "words are read as a little-endian machine has them")

_BLOCK = 1 << 14
"""This many rows are hashed at a time: what is worked on stays in the processor's cache."""

_FEW = 8
"""So few rows are hashed one by one: that is quicker than a step over all of them."""

_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_ADD = 0xE6546B64
_END1, _END2 = 0x85EBCA6B, 0xC2B2AE35

# The multipliers of hash64: odd, with bits set all over, from splitmix64 and its relatives.
_LENGTH, _SEED = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
_K1, _K2 = 0x3C79AC492BA7B653, 0x1C69B3F74AC4AE35
_K3, _K4 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


# -- Murmur3 ------------------------------------------------------------------------------------


def murmur3_one(data: bytes) -> int:
    """The hash of some bytes."""
    length = len(data)
    words = length >> 2
    state = 0
    for word in struct.unpack_from(f"<{words}I", data):
        word = word * _C1 & _MASK32
        state ^= (word << 15 | word >> 17) * _C2 & _MASK32
        state = ((state << 13 | state >> 19) * 5 + _ADD) & _MASK32
    if length & 3:
        tail = int.from_bytes(data[words << 2 :], "little") * _C1 & _MASK32
        state ^= (tail << 15 | tail >> 17) * _C2 & _MASK32
    state ^= length
    state = (state ^ state >> 16) * _END1 & _MASK32
    state = (state ^ state >> 13) * _END2 & _MASK32
    return state ^ state >> 16


def murmur3_long(value: int) -> int:
    """The hash of a 64-bit integer: that of its eight bytes, the lowest first."""
    return murmur3_one(value.to_bytes(8, "little", signed=True))


def murmur3_bytes(array: pa.Array) -> U32:
    """The hash of each row of a binary or string array, of any width and offset."""
    return _in_blocks(array, np.uint32, _murmur_block)


def _murmur_block(array: pa.Array) -> U32:
    rows = _Rows(array)
    if rows.count <= _FEW:
        return rows.one_by_one(np.uint32, murmur3_one)
    state = np.zeros(rows.count, np.uint32)
    tail = np.zeros(rows.count, np.uint32)
    for at, first, words in rows.words():
        for part, word in enumerate(words.view(np.uint32).reshape(-1, 2).T):
            begin = at + 4 * part
            some, full = rows.first_longer(begin), rows.first_longer(begin + 3)
            tail[some:full] = word[some - first : full - first]
            _murmur_round(state[full:], word[full - first :])
    tail *= _C1
    _rotate(tail, 15)
    tail *= _C2
    state ^= tail
    state ^= rows.lengths.astype(np.uint32)
    _murmur_end(state)
    return rows.in_order(state, murmur3_one)


def murmur3_longs(values: I64) -> U32:
    """The hash of each 64-bit integer."""
    return _in_blocks(values, np.uint32, _murmur_longs_block)


def _murmur_longs_block(values: I64) -> U32:
    words = np.ascontiguousarray(values, np.int64).view(np.uint32)
    state = np.zeros(len(values), np.uint32)
    _murmur_round(state, words[0::2])
    _murmur_round(state, words[1::2])
    state ^= 8
    _murmur_end(state)
    return state


def _murmur_round(state: U32, word: U32) -> None:
    word = word * _C1
    _rotate(word, 15)
    word *= _C2
    state ^= word
    _rotate(state, 13)
    state *= 5
    state += _ADD


def _murmur_end(state: U32) -> None:
    state ^= state >> 16
    state *= _END1
    state ^= state >> 13
    state *= _END2
    state ^= state >> 16


def _rotate(words: U32, bits: int) -> None:
    low = words >> 32 - bits
    words <<= bits
    words |= low


# -- hash64 -------------------------------------------------------------------------------------


def hash64_one(data: bytes, seed: int) -> int:
    """The hash of some bytes.

    Seed and length make the first state; each eight bytes, the last ones filled up with zeros, are
    xored into it and stirred. Stirring is one-to-one, so values of up to eight bytes and of equal
    length never collide.
    """
    length = len(data)
    state = (seed * _SEED ^ (length + 1) * _LENGTH) & _MASK64
    if length & 7:
        data += bytes(-length & 7)
    for word in struct.unpack(f"<{length + 7 >> 3}Q", data):
        state = (state ^ word) * _K1 & _MASK64
        state = (state ^ state >> 32) * _K2 & _MASK64
        state ^= state >> 29
    state = (state ^ state >> 30) * _K3 & _MASK64
    state = (state ^ state >> 27) * _K4 & _MASK64
    return state ^ state >> 31


def hash64_long(value: int, seed: int) -> int:
    """The hash of a 64-bit integer: that of its eight bytes, the lowest first."""
    return hash64_one(value.to_bytes(8, "little", signed=True), seed)


def hash64_bytes(array: pa.Array, seed: int) -> U64:
    """The hash of each row of a binary or string array, of any width and offset."""
    return _in_blocks(array, np.uint64, lambda block: _hash64_block(block, seed))


def _hash64_block(array: pa.Array, seed: int) -> U64:
    rows = _Rows(array)
    if rows.count <= _FEW:
        return rows.one_by_one(np.uint64, lambda data: hash64_one(data, seed))
    state = rows.lengths.astype(np.uint64)
    state += 1
    state *= _LENGTH
    state ^= seed * _SEED & _MASK64
    for _, first, words in rows.words():
        _stir(state[first:], words)
    _stir_end(state)
    return rows.in_order(state, lambda data: hash64_one(data, seed))


def hash64_longs(values: I64, seed: int) -> U64:
    """The hash of each 64-bit integer."""
    return _in_blocks(values, np.uint64, lambda block: _hash64_longs_block(block, seed))


def _hash64_longs_block(values: I64, seed: int) -> U64:
    words = np.ascontiguousarray(values, np.int64).view(np.uint64)
    state = np.full(len(words), (seed * _SEED ^ 9 * _LENGTH) & _MASK64, np.uint64)
    _stir(state, words)
    _stir_end(state)
    return state


def _stir(state: U64, words: U64) -> None:
    state ^= words
    state *= _K1
    state ^= state >> 32
    state *= _K2
    state ^= state >> 29


def _stir_end(state: U64) -> None:
    state ^= state >> 30
    state *= _K3
    state ^= state >> 27
    state *= _K4
    state ^= state >> 31


# -- rows ---------------------------------------------------------------------------------------

_KEEP = np.array([(1 << 8 * count) - 1 for count in range(8)], np.uint64)
"""By how many bytes of a word belong to a row: the mask that keeps them."""


def _in_blocks(
    rows: pa.Array, kind: type[_Word], hashes: Callable[[pa.Array], npt.NDArray[_Word]]
) -> npt.NDArray[_Word]:
    if len(rows) <= _BLOCK:
        return hashes(rows)
    found = np.empty(len(rows), kind)
    for at in range(0, len(rows), _BLOCK):
        found[at : at + _BLOCK] = hashes(rows[at : at + _BLOCK])
    return found


class _Rows:
    """The rows of an array from the shortest to the longest, for reading word by word."""

    __slots__ = ("_bytes", "_long_from", "_order", "_starts", "count", "lengths")

    def __init__(self, array: pa.Array) -> None:
        self._starts, self.lengths, self._bytes = _parts_of(array)
        self.count = self._long_from = len(self.lengths)
        self._order: npt.NDArray[np.intp] | None = None
        if self.count <= _FEW:
            return
        longest = int(self.lengths.max())
        if int(self.lengths.min()) != longest:
            # Small integers are sorted by radix, which is ten times as fast.
            small = np.uint8 if longest < 1 << 8 else np.uint16
            keys = self.lengths.astype(small) if longest < 1 << 16 else self.lengths
            self._order = np.argsort(keys, kind="stable")
            self._starts = self._starts[self._order]
            self.lengths = self.lengths[self._order]

    def words(self) -> Iterator[tuple[int, int, U64]]:
        """For the offsets 0, 8, 16, …: the offset, the first row with bytes there, and a word of it
        and of each row behind it, with zeros for the bytes that are not its own.

        It stops where only few rows go on; `in_order` sees to them.
        """
        # A copy, so that it is aligned, and the word behind its end may be read.
        buffer = np.zeros(len(self._bytes) // 8 + 2, np.uint64)
        buffer.view(np.uint8)[: len(self._bytes)] = self._bytes
        keep = _KEEP[self.lengths & 7]
        if self._order is None:
            yield from self._words_in_step(buffer, keep)
            return
        place = self._starts >> 3
        down = (self._starts & 7).astype(np.uint64) << 3
        up = 63 - down
        before, low = 0, buffer[place]
        for at in range(0, int(self.lengths[-1]), 8):
            first = self.first_longer(at)
            if self.count - first <= _FEW:
                self._long_from = first
                return
            high = buffer[(at >> 3) + 1 :][place[first:]]
            words = low[first - before :] >> down[first:]
            high_part = high << up[first:]
            high_part <<= 1  # on its own: a shift by 64 is not defined
            words |= high_part
            ending = self.first_longer(at + 7)
            words[: ending - first] &= keep[first:ending]
            yield at, first, words
            before, low = first, high

    def _words_in_step(self, buffer: U64, keep: U64) -> Iterator[tuple[int, int, U64]]:
        # Rows of one length, such as UUIDs, lie one behind the other.
        length = int(self.lengths[0])
        for at in range(0, length, 8):
            words = np.ndarray(self.count, np.uint64, buffer, at, (length,)).copy()
            if at + 8 > length:
                words &= keep
            yield at, 0, words

    def first_longer(self, length: int) -> int:
        """The first row of more than so many bytes; all behind it have them, too."""
        return int(self.lengths.searchsorted(length, side="right"))

    def in_order(
        self, hashes: npt.NDArray[_Word], one: Callable[[bytes], int]
    ) -> npt.NDArray[_Word]:
        """The hashes as the array has its rows, with those that `words` did not come to."""
        if self._long_from < self.count:
            hashes[self._long_from :] = self._hashed(self._long_from, one)
        if self._order is None:
            return hashes
        ordered = np.empty_like(hashes)
        ordered[self._order] = hashes
        return ordered

    def one_by_one(self, kind: type[_Word], one: Callable[[bytes], int]) -> npt.NDArray[_Word]:
        """The hashes of few rows."""
        return np.array(self._hashed(0, one), kind)

    def _hashed(self, first: int, one: Callable[[bytes], int]) -> list[int]:
        rows = zip(self._starts[first:].tolist(), self.lengths[first:].tolist(), strict=True)
        return [one(self._bytes[start : start + length].tobytes()) for start, length in rows]


def longs_of(array: pa.Array) -> I64:
    """The values of an int64 array without a copy; those of null rows say nothing."""
    values = array.buffers()[1]
    if values is None:
        return np.zeros(len(array), np.int64)
    return np.frombuffer(values, np.int64, len(array), array.offset * 8)


def _parts_of(array: pa.Array) -> tuple[I64, I64, npt.NDArray[np.uint8]]:
    """Where each row starts and how long it is, and the bytes that this is about."""
    count, kind = len(array), array.type
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        lengths = np.full(count, width, np.int64)
        return (
            np.arange(count) * width,
            lengths,
            _bytes_of(array, array.offset * width, count * width),
        )
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not wide and not pa.types.is_binary(kind) and not pa.types.is_string(kind):
        return _parts_of(array.cast(pa.large_binary()))  # a view
    if count == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint8)
    width, item = (8, np.int64) if wide else (4, np.int32)
    offsets = np.frombuffer(array.buffers()[1], item, count + 1, array.offset * width)
    bounds = offsets.astype(np.int64)
    begin, end = int(bounds[0]), int(bounds[-1])
    bounds -= begin
    return bounds[:-1], bounds[1:] - bounds[:-1], _bytes_of(array, begin, end - begin)


def _bytes_of(array: pa.Array, begin: int, size: int) -> npt.NDArray[np.uint8]:
    if size == 0:  # then there may be no buffer
        return np.zeros(0, np.uint8)
    return np.frombuffer(array.buffers()[-1], np.uint8, size, begin)
