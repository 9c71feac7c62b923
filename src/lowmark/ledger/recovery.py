"""What a ledger consisted of whose manifest is gone: found again from the files beside it.

All files of a partition lie in one folder, and of each key the row counts that wins by `rule`.
The files alone do not tell which of them the manifest named: older ones may lie there, and
deletes that were passed may be gone. But the partition has noted the digest of the ledger's live
rows when it adopted it. Rows that come to that digest are those of the ledger; if none do, nothing
is recovered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from lowmark.catalog import Table, TableSchema
from lowmark.errors import LowmarkError
from lowmark.ledger.digest import EMPTY, measure
from lowmark.ledger.files import FileWriter, OpenFile, Rows, file_schema, schema_of
from lowmark.ledger.key_file import write_key_file
from lowmark.ledger.manifest import (
    Expected,
    LedgerFile,
    Lost,
    Manifest,
    bitmap_text,
    checksums_text,
    digest_text,
    encode_manifest,
    folder_of,
)
from lowmark.ledger.rule import LAST_ROW, passed_deletes
from lowmark.ledger.verification import CheckedFile, Problem, Verified
from lowmark.runtime.store import Store
from lowmark.table import I64, U64, Fold, KeyForm, Mask
from lowmark.table.fold import of_one_type

Pace = Callable[[int], None]


def recover_ledger(
    store: Store,
    table: Table,
    path: str,
    *,
    partition: int,
    expected: Expected,
    deletes_below: int,
    pace: Pace,
) -> Verified | None:
    """The ledger that the manifest at `path` named, with new indexes to be made; None if the files
    that are there do not come to what was adopted.
    """
    found = []
    for stored in store.files(folder_of(table.id, partition)):
        if stored.path.endswith(".parquet"):
            # What is no file of a ledger, or is damaged, has no part in it.
            with contextlib.suppress(LowmarkError, pa.ArrowException, OSError):
                one = _read(store, stored.path, table)
                if one is not None:
                    found.append(one)
            pace(stored.bytes)
    if not found:
        return None
    rows = _Rows.of(found)
    won = rows.winners(below=expected.horizon)
    passed = passed_deletes(rows.offsets, rows.deletes, below=deletes_below)
    for chosen in (won, won & ~passed):
        if EMPTY.plus(rows.hashes[chosen]).form == expected.digest:
            return _ledger(store, table, path, partition, expected, deletes_below, found, chosen)
    return None


@dataclass(frozen=True, slots=True)
class _Found:
    """A file, and what counts of each of its rows."""

    file: LedgerFile
    offsets: I64
    deletes: Mask
    hashes: U64
    keys: pa.Array | None
    """None: the table has none."""


def _read(store: Store, path: str, table: Table) -> _Found | None:
    with store.reading(path), store.open(path) as stream, pq.ParquetFile(stream) as parquet:
        schema = _schema_of(table, parquet.schema_arrow)
        count = parquet.metadata.num_rows
    if schema is None or not count:
        return None
    measured = measure(store, path)
    file = LedgerFile(
        path=path,
        bytes=measured.bytes,
        rows=count,
        first=0,
        last=0,
        schema=schema.number,
        checksum=measured.checksum,
        footer_bytes=measured.footer_bytes,
        footer_checksum=measured.footer_checksum,
        chunks=checksums_text(measured.chunks),
        digest=digest_text(EMPTY),
    )
    form = KeyForm.of(table, schema) if table.key else None
    with contextlib.closing(OpenFile(store, file, schema)) as opened:
        parts = [
            (
                rows.offsets,
                rows.deletes,
                rows.hashes(schema),
                None if form is None else form.array(rows.columns),
            )
            for rows in opened.rows()
        ]
    offsets, deletes, hashes = (np.concatenate([part[at] for part in parts]) for at in range(3))
    keys = None if form is None else pa.chunked_array([part[3] for part in parts]).combine_chunks()
    file = msgspec.structs.replace(
        file,
        first=int(offsets[0]),
        last=int(offsets[-1]),
        deletes=bitmap_text(BitMap(np.flatnonzero(deletes).astype(np.uint32))),
    )
    return _Found(file, offsets, deletes, hashes, keys)


def _schema_of(table: Table, stored: pa.Schema) -> TableSchema | None:
    """The newest schema version that has these columns, by name and id."""
    shown = [(one.name, (one.metadata or {}).get(b"PARQUET:field_id")) for one in stored]
    for schema in reversed(table.schemas):
        wanted = file_schema(schema)
        if shown == [(one.name, one.metadata[b"PARQUET:field_id"]) for one in wanted]:
            return schema
    return None


@dataclass(frozen=True, slots=True)
class _Rows:
    """All rows of all files, one file after the other."""

    offsets: I64
    deletes: Mask
    hashes: U64
    sizes: I64
    """Of each row, how many its file has."""
    keys: pa.Array | None

    @classmethod
    def of(cls, found: Sequence[_Found]) -> _Rows:
        keys = [one.keys for one in found if one.keys is not None]
        return cls(
            np.concatenate([one.offsets for one in found]),
            np.concatenate([one.deletes for one in found]),
            np.concatenate([one.hashes for one in found]),
            np.concatenate([np.full(len(one.offsets), len(one.offsets)) for one in found]),
            pa.concat_arrays(of_one_type(keys)) if keys else None,
        )

    def winners(self, *, below: int) -> Mask:
        """The row of each key that wins, and each without one; a row that was copied, once."""
        order = np.argsort(self.sizes, kind="stable")
        order = order[LAST_ROW.order(self.offsets[order])]
        order = order[self.offsets[order] < below]
        # Of copies, the one in the larger file: small files are put together, not the other way.
        copied = np.append(np.diff(self.offsets[order]) == 0, False) if len(order) else order == 0
        order = order[~copied]
        if self.keys is not None and len(order):
            fold = Fold(keep_deletes=True)  # rows come from the loser to the winner
            fold.add(self.keys.take(pa.array(order)))
            [mask] = fold.masks()
            order = order if mask is None else order[mask]
        chosen = np.zeros(len(self.offsets), np.bool_)
        chosen[order] = True
        return chosen


def _ledger(
    store: Store,
    table: Table,
    path: str,
    partition: int,
    expected: Expected,
    deletes_below: int,
    found: Sequence[_Found],
    chosen: Mask,
) -> Verified | None:
    """The files that have these rows; None if their rows are not in order, file after file."""
    ends = np.cumsum([len(one.offsets) for one in found])
    parts = [
        (one, chosen[end - len(one.offsets) : end]) for one, end in zip(found, ends, strict=True)
    ]
    parts = sorted(
        (part for part in parts if part[1].any()), key=lambda part: part[0].offsets[part[1]][0]
    )
    for (before, mine), (after, theirs) in pairwise(parts):
        if before.offsets[mine][-1] >= after.offsets[theirs][0]:
            return None
    problem = Problem(store.url(path), "keys", "it is made again from its rows")
    files = tuple(
        CheckedFile(
            one.file.with_dead(
                BitMap(np.flatnonzero(~mine).astype(np.uint32)),
                EMPTY.plus(one.hashes[mine]),
            ),
            (problem,) if table.key else (),
        )
        for one, mine in parts
    )
    manifest = Manifest(
        table=table.id,
        table_name=table.name,
        partition=partition,
        epoch=expected.epoch,
        horizon=expected.horizon,
        deletes_below=deletes_below,
        files=tuple(one.file for one in files),
        made_by="",
        made_at="",
    )
    return Verified(path, manifest.summed_up(), files=files)


# A base for a new ledger, made of what is left of a damaged one.
#
# Files whose rows are sound are kept as they are. An index of keys that is missing or damaged is
# made again from the rows. Of a file with damaged row groups the live rows of the sound ones are
# written into a new file. What lies at or above the offset from which on the backlog is folded
# again is left out: each offset has one source.
#
# The base is a manifest like any other, with a horizon up to which it is folded already, and with
# what it lacks. It is never published: a run's work begins with it, as with any ledger before.


class Salvage:
    """Makes the base of one partition. `token` is in the name of every file that it writes."""

    def __init__(
        self, store: Store, table: Table, *, partition: int, token: str, pace: Pace
    ) -> None:
        self._store = store
        self._table = table
        self._partition = partition
        self._token = token
        self._pace = pace
        self._folder = folder_of(table.id, partition)
        self._numbers = count()

    def base(
        self,
        before: Manifest | None,
        files: Sequence[CheckedFile],
        *,
        horizon: int,
        lost: Sequence[Lost],
        made_by: str,
    ) -> str:
        """Write a manifest of what is sound of these files below a horizon; gives its name."""
        kept = [one for file in files for one in self._kept(file, below=horizon)]
        manifest = Manifest(
            table=self._table.id,
            table_name=self._table.name,
            partition=self._partition,
            epoch=0 if before is None else before.epoch,
            horizon=horizon,
            deletes_below=0 if before is None else min(before.deletes_below, horizon),
            expired=0 if before is None else before.expired,
            files=tuple(kept),
            made_by=made_by,
            made_at="",
            lost=tuple(sorted(lost, key=lambda one: one.first)),
        )
        path = f"{self._folder}/{self._token}-base.json"
        self._store.write(path, encode_manifest(manifest.summed_up()))
        return path

    def _kept(self, one: CheckedFile, *, below: int) -> Iterator[LedgerFile]:
        """What stands for a file in the base."""
        file = one.file
        if file.first >= below:
            return
        if one.rows_sound and file.last < below:
            yield file if one.keys_sound else self._with_keys(file)
            return
        writer: FileWriter | None = None
        try:
            for rows in self._live_rows(one, below):
                if writer is None:
                    writer = self._writer(file)
                writer.add(rows)
        except BaseException:
            if writer is not None:
                writer.give_up()
            raise
        if writer is not None:
            yield writer.finish()

    def _with_keys(self, file: LedgerFile) -> LedgerFile:
        """The file with an index that is made again from its rows."""
        schema = schema_of(self._table, file)
        form = KeyForm.of(self._table, schema)
        keys: list[pa.Array] = []
        hashes: list[U64] = []
        with contextlib.closing(OpenFile(self._store, file, schema)) as opened:
            for rows in opened.rows():
                keys.append(form.array(rows.columns))
                hashes.append(rows.hashes(schema))
                self._pace(file.bytes * len(rows) // file.rows)
        path = f"{self._folder}/{self._token}-{next(self._numbers)}.keys"
        every = pa.chunked_array(keys).combine_chunks()
        made = write_key_file(self._store, path, every, np.concatenate(hashes))
        return msgspec.structs.replace(
            file, keys_path=made[0], keys_bytes=made[1], keys_checksum=made[2]
        )

    def _writer(self, file: LedgerFile) -> FileWriter:
        path = f"{self._folder}/{self._token}-{next(self._numbers)}.parquet"
        schema = schema_of(self._table, file)
        return FileWriter(self._store, path, self._table, schema, pace=self._pace)

    def _live_rows(self, one: CheckedFile, below: int) -> Iterator[Rows]:
        file, mask = one.file, one.file.live_mask()
        if not one.groups:
            return
        with contextlib.closing(
            OpenFile(self._store, file, schema_of(self._table, file))
        ) as opened:
            for number in one.groups:
                rows = opened.rows_of(number)
                keep = rows.offsets < below
                if mask is not None:
                    keep &= mask[opened.starts[number] : opened.starts[number + 1]]
                self._pace(file.bytes * len(rows) // file.rows)
                if keep.any():
                    yield rows.kept(keep)
