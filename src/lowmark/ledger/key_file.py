"""The index of a ledger file's keys: where a key's row is, and what its row's hash was.

An Arrow IPC file with one batch, sorted by `hash`:

    hash    uint64   of the key in its canonical form (seed 0; docs/formats/keys.md)
    row     uint32   the number of the key's row in the ledger file
    key     int64 or binary, in canonical form: equal hashes are no proof
    digest  uint64   of the row: a run that declares it dead takes that out of the ledger's digest

A key has at most one row in a file. Rows without a key are not here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from pyarrow import ipc

from lowmark.ledger.claim import missing
from lowmark.ledger.digest import checksum_of
from lowmark.ledger.errors import LedgerDamaged
from lowmark.runtime import FileMissing
from lowmark.runtime.store import Store
from lowmark.table import I64, U64, KeyForm

KEY_SEED = 0
"""Indexes are read by other processes, so the hash has no secret of one."""


def index_bytes(keys: pa.Array) -> int:
    """What these keys take in an index, about: each has a hash, a row and a digest."""
    valid = len(keys) - keys.null_count
    return int(keys.nbytes * valid // max(len(keys), 1) + 20 * valid)


def key_file_batch(keys: pa.Array, rows: I64, digests: U64) -> pa.RecordBatch:
    """The index of these keys, none of them null, which stand in these rows."""
    hashes = KeyForm.hashes(keys, KEY_SEED)
    order = np.argsort(hashes)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(hashes[order]),
            pa.array(rows[order].astype(np.uint32)),
            keys.take(pa.array(order)),
            pa.array(digests[order]),
        ],
        names=["hash", "row", "key", "digest"],
    )


def write_key_file(store: Store, path: str, keys: pa.Array, digests: U64) -> tuple[str, int, int]:
    """Write the index of all rows of a file, whose keys these are, null where a row has none.

    Gives its path, its size and its checksum; no path, if no row has a key.
    """
    rows = np.arange(len(digests), dtype=np.int64)
    if keys.null_count:
        valid = keys.is_valid()
        rows = rows[valid.to_numpy(zero_copy_only=False)]
        digests, keys = digests[rows], keys.filter(valid)
    if not len(keys):
        return "", 0, 0
    batch = key_file_batch(keys, rows, digests)
    with (
        store.create(path, settled=False) as stream,
        ipc.new_file(stream, batch.schema) as writer,
    ):
        writer.write_batch(batch)
    return path, *checksum_of(store, path)


@dataclass(frozen=True, slots=True)
class KeyFile:
    """An index that was opened. Its columns stay in the file, if that is on this machine."""

    hashes: U64
    rows: npt.NDArray[np.uint32]
    keys: pa.Array
    digests: U64
    size: int

    def find(self, keys: pa.Array, hashes: U64) -> I64:
        """Where each key stands in this index, or -1. `hashes` are those of the keys."""
        count = len(self.hashes)
        found = np.full(len(hashes), -1, np.int64)
        if not count or not len(hashes):
            return found
        at = np.searchsorted(self.hashes, hashes)
        asked = np.arange(len(hashes))
        # Of keys with one hash, each is looked at in turn: there is hardly ever more than one.
        while len(asked):
            inside = at < count
            asked, at = asked[inside], at[inside]
            same = self.hashes[at] == hashes[asked]
            asked, at = asked[same], at[same]
            if not len(asked):
                break
            mine = self.keys.take(pa.array(at))
            wanted = keys.take(pa.array(asked))
            if mine.type != wanted.type:
                wanted = wanted.cast(mine.type)
            hits = pc.equal(mine, wanted).to_numpy(zero_copy_only=False)
            found[asked[hits]] = at[hits]
            asked, at = asked[~hits], at[~hits] + 1
        return found

    def find_one(self, hashed: int, key: int | bytes) -> int:
        """The row of one key in the ledger file, or -1."""
        at = int(np.searchsorted(self.hashes, np.uint64(hashed)))
        while at < len(self.hashes) and int(self.hashes[at]) == hashed:
            if self.keys[at].as_py() == key:
                return int(self.rows[at])
            at += 1
        return -1


def open_key_file(store: Store, path: str, *, checksum: int) -> KeyFile:
    """Open an index. All of it is checked: one wrong bit would make a key unknown."""
    where = store.url(path)
    try:
        with store.reading(path), store.open(path) as file:
            data = file.read_buffer()
    except FileMissing as gone:
        raise missing(store, path) from gone
    if crc32c(data) != checksum:
        raise LedgerDamaged(where, "its checksum is wrong")
    try:
        with ipc.open_file(data) as reader:
            if reader.num_record_batches != 1:
                raise LedgerDamaged(where, f"it has {reader.num_record_batches} batches, not one")
            batch = reader.get_batch(0)
    except (pa.ArrowInvalid, OSError) as error:
        raise LedgerDamaged(where, str(error)) from error
    if batch.schema.names != ["hash", "row", "key", "digest"]:
        raise LedgerDamaged(where, f"it has columns {', '.join(batch.schema.names)}")
    return KeyFile(
        batch.column(0).to_numpy(),
        batch.column(1).to_numpy(),
        batch.column(2),
        batch.column(3).to_numpy(),
        data.size,
    )
