"""A base for a new ledger, made of what is left of a damaged one.

Files whose rows are sound are kept as they are. An index of keys that is missing or damaged is made
again from the rows. Of a file with damaged row groups the live rows of the sound ones are written
into a new file. What lies at or above the offset from which on the backlog is folded again is left
out: each offset has one source.

The base is a manifest like any other, with a horizon up to which it is folded already, and with
what it lacks. Nobody publishes it: a run's work begins with it, as with any ledger before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import msgspec
import numpy as np
import pyarrow as pa

from lowmark.catalog import Table
from lowmark.ledger.files import FileWriter, OpenFile, Rows, schema_of
from lowmark.ledger.key_file import write_key_file
from lowmark.ledger.manifest import LedgerFile, Lost, Manifest, encode_manifest, folder_of
from lowmark.ledger.verifying import CheckedFile
from lowmark.runtime.store import Store
from lowmark.table import U64, KeyForm

Pace = Callable[[int], None]


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
