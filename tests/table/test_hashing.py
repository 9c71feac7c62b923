"""Hashes of columns are those of their rows, and they are even."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowmark.table import hashing
from lowmark.table.hashing import (
    hash64_bytes,
    hash64_long,
    hash64_longs,
    hash64_one,
    longs_of,
    murmur3_bytes,
    murmur3_long,
    murmur3_longs,
    murmur3_one,
)

SEED = 0x1234_5678_9ABC_DEF0
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
ROWS = st.lists(st.one_of(st.binary(max_size=12), st.binary(min_size=12, max_size=50)), max_size=40)


def check(array: pa.Array, rows: list[bytes]) -> None:
    assert murmur3_bytes(array).tolist() == [murmur3_one(row) for row in rows]
    assert hash64_bytes(array, SEED).tolist() == [hash64_one(row, SEED) for row in rows]


# Published with the algorithm and its ports; Iceberg's own are in test_keys.py.
@pytest.mark.parametrize(
    ("data", "hashed"),
    [
        (b"", 0),
        (b"a", 0x3C2569B2),
        (b"abc", 0xB3DD93FA),
        (b"test", 0xBA6BD213),
        (b"aaaa", 0x7EEED987),
        (b"Hello, world!", 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_murmur3_is_the_published_one(data: bytes, hashed: int) -> None:
    assert murmur3_one(data) == hashed


@pytest.mark.slow
@given(ROWS)
@example([])
@example([b""] * 20)
@example([b"x" * size for size in range(70)])
@example([b"x" * 8] * 20)
def test_a_column_has_the_hashes_of_its_rows(rows: list[bytes]) -> None:
    check(pa.array(rows, pa.binary()), rows)


@pytest.mark.slow
@given(ROWS, st.integers(0, 10), st.integers(0, 10))
def test_a_slice_has_the_hashes_of_its_rows(rows: list[bytes], before: int, after: int) -> None:
    array = pa.array([b"before"] * before + rows + [b"behind"] * after, pa.binary())
    check(array.slice(before, len(rows)), rows)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
    ],
    ids=str,
)
def test_all_kinds_of_texts_and_bytes_are_hashed_alike(kind: pa.DataType) -> None:
    texts = [f"{'é' * (number % 7)} {number}" for number in range(50)]
    rows = [text.encode() for text in texts]
    array = pa.array(rows if "binary" in str(kind) else texts, kind)
    check(array, rows)
    check(array.slice(30), rows[30:])


@pytest.mark.parametrize("width", [1, 3, 8, 16, 20])
def test_rows_of_a_fixed_width_are_hashed_alike(width: int) -> None:
    random = Random(width)
    rows = [random.randbytes(width) for _ in range(30)]
    array = pa.array(rows, pa.binary(width))
    check(array, rows)
    check(array.slice(5, 20), rows[5:25])
    check(array.slice(5, 0), [])


def test_nulls_do_not_disturb_the_rows_around_them() -> None:
    rows = [b"a", None, b"bc", *[b"d" * size for size in range(20)], None]
    array = pa.array(rows, pa.binary())
    for at, row in enumerate(rows):
        if row is not None:
            assert murmur3_bytes(array)[at] == murmur3_one(row)
            assert hash64_bytes(array, SEED)[at] == hash64_one(row, SEED)


@pytest.mark.slow
@pytest.mark.parametrize("long", [0, 1, 8, 9, 30])
def test_a_few_long_rows_next_to_short_ones_are_hashed_alike(long: int) -> None:
    # given many short rows and some that are longer than a 16-bit number tells
    rows = [b"%d" % number for number in range(1000)]
    rows[100 : 100 + long] = [bytes([at]) * (1 << 16) for at in range(long)]
    # then each has its hash
    check(pa.array(rows, pa.binary()), rows)


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_a_column_of_more_than_a_block_is_hashed_alike(by: int) -> None:
    rows = [b"%x" % number for number in range(2 * hashing._BLOCK + by)]
    check(pa.array(rows, pa.binary()), rows)


@pytest.mark.slow
@given(st.lists(LONGS, max_size=30), st.integers(0, 5))
def test_a_column_of_integers_has_the_hashes_of_their_bytes(values: list[int], skip: int) -> None:
    longs = longs_of(pa.array([0] * skip + values, pa.int64()).slice(skip))
    assert longs.tolist() == values
    data = [value.to_bytes(8, "little", signed=True) for value in values]
    ones = [murmur3_one(one) for one in data]
    assert murmur3_longs(longs).tolist() == ones == [murmur3_long(value) for value in values]
    ones = [hash64_one(one, SEED) for one in data]
    assert hash64_longs(longs, SEED).tolist() == ones
    assert ones == [hash64_long(value, SEED) for value in values]


def test_integers_that_lie_apart_are_hashed_alike() -> None:
    every_other = np.arange(40_000)[::2]
    assert murmur3_longs(every_other).tolist() == murmur3_longs(every_other.copy()).tolist()
    hashes = hash64_longs(every_other, SEED)
    assert hashes.tolist() == [hash64_long(value, SEED) for value in every_other.tolist()]


# -- how good hash64 is -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 8, 9, 14, 16, 30])
def test_each_bit_of_a_key_changes_each_bit_of_its_hash_half_the_time(size: int) -> None:
    # given many keys, and for each bit the same keys with that bit turned
    random = np.random.default_rng(size)
    keys = random.integers(0, 256, (2_000, size), np.uint8)
    hashes = hash64_bytes(_array(keys), SEED)
    for bit in range(8 * size):
        turned = keys.copy()
        turned[:, bit >> 3] ^= 1 << (bit & 7)
        # when both are hashed
        changed = hashes ^ hash64_bytes(_array(turned), SEED)
        # then each bit of the hash has changed for about half of them
        bits = np.unpackbits(changed.view(np.uint8)).reshape(-1, 64).mean(axis=0)
        assert 0.4 < bits.min()
        assert bits.max() < 0.6


def _array(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> pa.Array:
    kind = pa.binary(rows.shape[1])
    return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(rows)])


@pytest.mark.parametrize(
    "form", ["{:d}", "order-{:08d}", "{:d}/europe/west", "{0:d}:{0:d}", "\0\0\0\0\0\0\0\0{:d}"]
)
def test_counted_keys_are_spread_evenly(form: str) -> None:
    # given keys as people make them
    hashes = hash64_bytes(pa.array([form.format(number) for number in range(100_000)]), SEED)
    # then no two hashes are equal
    assert len(np.unique(hashes)) == 100_000
    # and all ranges of them, by their highest and by their lowest bits, are about equally full
    for part in (hashes >> np.uint64(58), hashes & np.uint64(63)):
        counts = np.bincount(part.astype(np.int64), minlength=64)
        assert 1_300 < counts.min()
        assert counts.max() < 1_850


def test_another_seed_is_another_hash() -> None:
    array = pa.array([f"{number}" for number in range(1_000)])
    one, other = hash64_bytes(array, 1), hash64_bytes(array, 2)
    assert not np.isin(one, other).any()
    assert hash64_one(b"", -1) == hash64_one(b"", (1 << 64) - 1)


def test_keys_that_differ_in_zeros_at_the_end_differ_in_their_hash() -> None:
    hashes = hash64_bytes(pa.array([bytes(size) for size in range(100)]), 0)
    assert len(np.unique(hashes)) == 100
