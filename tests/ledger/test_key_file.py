"""The index of a ledger file's keys: finds rows, also where keys share a hash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from pyarrow import ipc

from lowmark.ledger import KEY_SEED, KeyFile, LedgerDamaged, LedgerLost, open_key_file
from lowmark.ledger.claim import claim
from lowmark.ledger.key_file import key_file_batch
from lowmark.runtime.store import Store
from lowmark.table import U64, KeyForm

INTEGERS = pa.array([5, -3, 0, 1 << 62, 7], pa.int64())
WORDS = pa.array([b"five", b"", b"\x00", b"sixty-two" * 9, b"seven"], pa.binary())
KINDS = pytest.mark.parametrize("keys", [INTEGERS, WORDS], ids=["integers", "bytes"])
ROWS = np.array([10, 3, 40, 20, 30], np.int64)
DIGESTS = np.arange(5, dtype=np.uint64) + 900


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def write(store: Store, batch: pa.RecordBatch, *, times: int = 1) -> int:
    """Gives its checksum."""
    with store.create("one.keys") as stream, ipc.new_file(stream, batch.schema) as writer:
        for _ in range(times):
            writer.write_batch(batch)
    return crc32c(store.read("one.keys"))


def made(store: Store, keys: pa.Array) -> KeyFile:
    checksum = write(store, key_file_batch(keys, ROWS, DIGESTS))
    return open_key_file(store, "one.keys", checksum=checksum)


def hash_all(monkeypatch: pytest.MonkeyPatch, *, to: list[int]) -> None:
    """Let the first key have the first of these hashes, and so on, over and over."""

    def hashes(keys: pa.Array, seed: int) -> U64:
        del seed
        order = {key: at for at, key in enumerate(INTEGERS.to_pylist() + WORDS.to_pylist())}
        numbers = [order.get(key, 0) % 5 for key in keys.to_pylist()]
        return np.array([to[number % len(to)] for number in numbers], np.uint64)

    monkeypatch.setattr(KeyForm, "hashes", staticmethod(hashes))


# -- finding ------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("to", [None, [7], [7, (1 << 64) - 1], [3, 1, 3]])
def test_each_key_is_found_and_no_other_whatever_hashes_they_share(
    store: Store, monkeypatch: pytest.MonkeyPatch, keys: pa.Array, to: list[int] | None
) -> None:
    # given an index, of keys that may have the same hash
    if to is not None:
        hash_all(monkeypatch, to=to)
    index = made(store, keys)
    # when all keys are looked for, in another order, and one that is not there
    stranger = pa.array([99] if keys.type == pa.int64() else [b"nobody"], keys.type)
    wanted = pa.concat_arrays([stranger, keys.take(pa.array([3, 1, 4, 0, 2, 3])), stranger])
    hashes = KeyForm.hashes(wanted, KEY_SEED)
    found = index.find(wanted, hashes)
    # then each is where it was put, and the stranger is nowhere
    assert found[[0, -1]].tolist() == [-1, -1]
    there = found[1:-1]
    assert index.rows[there].tolist() == [20, 3, 30, 10, 40, 20]
    assert index.digests[there].tolist() == [903, 901, 904, 900, 902, 903]
    assert index.keys.take(pa.array(there)).equals(wanted.slice(1, 6))
    # and one by one it is the same
    one_by_one = [
        index.find_one(int(hashed), key.as_py()) for hashed, key in zip(hashes, wanted, strict=True)
    ]
    assert one_by_one == [-1, 20, 3, 30, 10, 40, 20, -1]


def test_bytes_are_found_by_wider_bytes(store: Store) -> None:
    index = made(store, WORDS)
    wide = WORDS.cast(pa.large_binary())
    assert index.rows[index.find(wide, KeyForm.hashes(wide, KEY_SEED))].tolist() == ROWS.tolist()


def test_nothing_is_found_in_nothing_and_nothing_is_looked_for(store: Store) -> None:
    index, nothing = made(store, INTEGERS), pa.array([], pa.int64())
    assert index.find(nothing, KeyForm.hashes(nothing, KEY_SEED)).tolist() == []
    empty = KeyFile(np.zeros(0, np.uint64), np.zeros(0, np.uint32), nothing, DIGESTS[:0], 0)
    assert empty.find(INTEGERS, KeyForm.hashes(INTEGERS, KEY_SEED)).tolist() == [-1] * 5
    assert empty.find_one(5, 5) == -1


def test_hashes_are_those_that_one_key_has_by_itself(store: Store) -> None:
    index = made(store, WORDS)
    assert [index.find_one(KeyForm.hash_one(key, KEY_SEED), key) for key in (b"five", b"x")] == [
        10,
        -1,
    ]


# -- damage -------------------------------------------------------------------------------------


def test_an_index_that_is_missing_is_lost(store: Store) -> None:
    claim(store, "a database")
    with pytest.raises(LedgerLost, match=r"one\.keys is missing"):
        open_key_file(store, "one.keys", checksum=0)


def test_no_flipped_bit_of_an_index_is_overlooked(store: Store, tmp_path: Path) -> None:
    checksum = write(store, key_file_batch(WORDS, ROWS, DIGESTS))
    path = tmp_path / "one.keys"
    data = path.read_bytes()
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 1 << at % 8
        path.write_bytes(bad)
        with pytest.raises(LedgerDamaged, match="checksum"):
            open_key_file(store, "one.keys", checksum=checksum)


@pytest.mark.parametrize("size", [0, 1, -1])
def test_an_index_that_was_cut_is_damaged(store: Store, tmp_path: Path, size: int) -> None:
    checksum = write(store, key_file_batch(WORDS, ROWS, DIGESTS))
    path = tmp_path / "one.keys"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(LedgerDamaged):
        open_key_file(store, "one.keys", checksum=checksum)


@pytest.mark.parametrize("what", ["other columns", "two batches", "no Arrow file"])
def test_a_file_that_is_no_index_is_damaged_though_its_checksum_is_right(
    store: Store, what: str
) -> None:
    batch = key_file_batch(WORDS, ROWS, DIGESTS)
    if what == "other columns":
        checksum = write(store, batch.rename_columns(["hash", "row", "key", "hash of row"]))
    elif what == "two batches":
        checksum = write(store, batch, times=2)
    else:
        store.write("one.keys", b"something else")
        checksum = crc32c(b"something else")
    with pytest.raises(LedgerDamaged):
        open_key_file(store, "one.keys", checksum=checksum)
