"""Whether a ledger is as it was written: all of it is read, and every sum is made again.

Of each file: the checksums of its bytes, of its footer and of its column chunks; its rows in the
order of their offsets, its deletes where the manifest has them, and the digest of its live rows;
the checksum of the index of its keys, and in it every key with its row and that row's hash. What
is wrong is collected, not raised: the caller wants all of it, and wants to know what is left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from lowmark.catalog import Table, TableSchema
from lowmark.ledger.digest import EMPTY, Digest, checksum_of
from lowmark.ledger.errors import LedgerDamaged, LedgerLost
from lowmark.ledger.files import OpenFile, Rows
from lowmark.ledger.key_file import KEY_SEED, KeyFile, open_key_file
from lowmark.ledger.manifest import Expected, LedgerFile, Lost, Manifest, read_manifest
from lowmark.runtime import FileMissing
from lowmark.runtime.store import Store
from lowmark.table import U64, KeyForm, Mask
from lowmark.table.fold import of_one_type

Pace = Callable[[int], None]
"""Called with how many bytes were read; may raise to end it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something of a ledger that is not as it was written."""

    path: str
    """As other programs open it."""
    what: Literal["manifest", "rows", "keys"]
    why: str
    missing: bool = False
    """Whether there is no such file at all."""

    def __str__(self) -> str:
        return f"{self.path} is missing" if self.missing else f"{self.path} is damaged: {self.why}"


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """One file of a ledger, and what of it can be relied on."""

    file: LedgerFile
    problems: tuple[Problem, ...] = ()
    groups: tuple[int, ...] = ()
    """The row groups whose rows are sound."""
    bad: tuple[Lost, ...] = ()
    """Live rows that it does not give any more."""

    @property
    def rows_sound(self) -> bool:
        """Whether it can be kept as it is, apart from the index of its keys."""
        return not any(one.what == "rows" for one in self.problems)

    @property
    def keys_sound(self) -> bool:
        """Whether the index of its keys can be kept."""
        return not any(one.what == "keys" for one in self.problems)


@dataclass(frozen=True, slots=True)
class Verified:
    """One ledger."""

    path: str
    manifest: Manifest | None
    """None: it can't be read, or is not the one that was adopted."""
    problems: tuple[Problem, ...] = ()
    files: tuple[CheckedFile, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether all of it is as it was written."""
        return not self.problems

    @property
    def rows_sound(self) -> bool:
        """Whether all rows are; indexes of keys may be not."""
        return all(one.what == "keys" for one in self.problems)


def verify_ledger(
    store: Store, path: str, table: Table, *, expected: Expected | None, pace: Pace
) -> Verified:
    """Read all of a ledger. `expected` is what was noted of it elsewhere, if anything was."""
    where = store.url(path)
    try:
        manifest = read_manifest(store, path, expected)
    except (LedgerLost, LedgerDamaged) as error:
        return Verified(path, None, (_problem(where, "manifest", error),))
    files = tuple(_Check(store, table, file, pace).run() for file in manifest.files)
    return Verified(path, manifest, tuple(one for file in files for one in file.problems), files)


def _problem(
    where: str, what: Literal["manifest", "rows", "keys"], error: LedgerLost | LedgerDamaged
) -> Problem:
    if isinstance(error, LedgerLost):
        return Problem(where, what, "it is missing", missing=True)
    return Problem(where, what, error.why)


@dataclass(slots=True)
class _Seen:
    """What the sound row groups of a file came to."""

    groups: list[int] = field(default_factory=list)
    bad: list[Lost] = field(default_factory=list)
    digest: Digest = EMPTY
    hashes: list[U64] = field(default_factory=list)
    keys: list[pa.Array] = field(default_factory=list)
    deletes: list[Mask] = field(default_factory=list)
    first: int = -1
    last: int = -1
    ordered: bool = True

    def add(self, number: int, rows: Rows, hashes: U64, live: Mask) -> None:
        self.groups.append(number)
        self.digest = self.digest.plus(hashes[live])
        self.hashes.append(hashes)
        self.deletes.append(rows.deletes)
        offsets = rows.offsets
        self.ordered &= bool(offsets[0] > self.last and (np.diff(offsets) > 0).all())
        self.first = int(offsets[0]) if self.first < 0 else self.first
        self.last = int(offsets[-1])


class _Check:
    """One file on its way through all checks."""

    def __init__(self, store: Store, table: Table, file: LedgerFile, pace: Pace) -> None:
        self._store = store
        self._table = table
        self._file = file
        self._pace = pace
        self._where = store.url(file.path)
        self._problems: list[Problem] = []

    def run(self) -> CheckedFile:
        file = self._file
        schema = self._table.schema_version(file.schema)
        if schema is None:
            self._say(f"the catalog has no schema version {file.schema}")
            return self._nothing()
        try:
            whole = checksum_of(self._store, file.path) == (file.bytes, file.checksum)
            with contextlib.closing(OpenFile(self._store, file, schema)) as opened:
                seen = self._walk(opened, schema)
        except FileMissing:
            self._problems.append(Problem(self._where, "rows", "it is missing", missing=True))
            return self._nothing()
        except (LedgerLost, LedgerDamaged) as error:
            self._problems.append(_problem(self._where, "rows", error))
            return self._nothing()
        if not whole and not self._problems:
            self._say("its checksum is wrong")  # though all that is read of it is right
        if len(seen.groups) == len(opened.starts) - 1:
            wrong = self._contradiction(seen)
            if wrong:
                self._say(wrong)
                return self._nothing()
            self._check_keys(seen)
        else:
            self._open_keys()
        self._pace(file.keys_bytes)
        return CheckedFile(file, tuple(self._problems), tuple(seen.groups), tuple(seen.bad))

    def _say(self, why: str) -> None:
        self._problems.append(Problem(self._where, "rows", why))

    def _nothing(self) -> CheckedFile:
        """Nothing of its rows can be relied on."""
        file = self._file
        self._open_keys()
        lost = Lost(first=file.first, last=file.last, rows=file.kept_rows)
        return CheckedFile(file, tuple(self._problems), (), (lost,) if file.kept_rows else ())

    def _walk(self, opened: OpenFile, schema: TableSchema) -> _Seen:
        file, seen = self._file, _Seen()
        form = KeyForm.of(self._table, schema) if self._table.key else None
        mask = file.live_mask()
        for number in range(len(opened.starts) - 1):
            low, high = int(opened.starts[number]), int(opened.starts[number + 1])
            live = np.ones(high - low, np.bool_) if mask is None else mask[low:high]
            try:
                rows = opened.rows_of(number)
            except LedgerDamaged as error:
                self._say(error.why)
                first, last = opened.offsets_of(number)
                if live.any():
                    seen.bad.append(Lost(first=first, last=last, rows=int(live.sum())))
                continue
            seen.add(number, rows, rows.hashes(schema), live)
            if form is not None:
                seen.keys.append(form.array(rows.columns))
            self._pace(file.bytes * (high - low) // file.rows)
        return seen

    def _contradiction(self, seen: _Seen) -> str:
        """What its rows, all of them read, say otherwise than the manifest."""
        file = self._file
        if not seen.ordered or (seen.first, seen.last) != (file.first, file.last):
            return "its offsets are not those that the manifest has"
        deletes = np.flatnonzero(np.concatenate(seen.deletes)).astype(np.uint32)
        if not np.array_equal(deletes, np.frombuffer(file.delete_set().to_array(), np.uint32)):
            return "its deletes are not those that the manifest has"
        if seen.digest != file.digest_value():
            return "its live rows have another digest than the manifest has"
        return ""

    def _open_keys(self) -> KeyFile | None:
        file = self._file
        if not file.keys_path:
            return None
        try:
            return open_key_file(self._store, file.keys_path, checksum=file.keys_checksum)
        except (LedgerLost, LedgerDamaged) as error:
            where = self._store.url(file.keys_path)
            self._problems.append(_problem(where, "keys", error))
            return None

    def _check_keys(self, seen: _Seen) -> None:
        """The index must have every key of the file, with its row, and nothing else."""
        file = self._file
        index = self._open_keys()
        if not seen.keys or (file.keys_path and index is None):
            return
        keys = pa.chunked_array(seen.keys).combine_chunks()
        rows = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        hashes = np.concatenate(seen.hashes)[rows]
        if index is None:
            if len(rows):
                self._problems.append(Problem(self._where, "keys", "it has no index of its keys"))
            return
        if not _same_keys(index, keys.drop_null(), rows.astype(np.uint32), hashes):
            where = self._store.url(file.keys_path)
            self._problems.append(Problem(where, "keys", "it has other keys than the file"))


def _same_keys(
    index: KeyFile, keys: pa.Array, rows: np.ndarray[tuple[int], np.dtype[np.uint32]], hashes: U64
) -> bool:
    order = np.argsort(index.rows)
    found, keys = of_one_type([index.keys.take(pa.array(order)), keys])
    in_order = bool((index.hashes[:-1] <= index.hashes[1:]).all())
    return (
        in_order
        and np.array_equal(index.rows[order], rows)
        and np.array_equal(index.digests[order], hashes)
        and bool(found.equals(keys))
        and np.array_equal(index.hashes, KeyForm.hashes(index.keys, KEY_SEED))
    )
