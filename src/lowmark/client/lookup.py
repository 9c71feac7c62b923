"""The latest row of a key, found by an index of the backlog that is built when first asked for.

Which row that is, `ledger.rule` says: rows are indexed in the order of their offsets, and sources
are asked in the order that it gives, the backlog before the ledger, whose rows are all older.

The index is a value that never changes; a caller that finds it behind brings it up to date on its
own thread and puts the newer one in its place. It knows keys by a hash, with a seed of the process:
the row that is found says whether it has the key, and if not, keys are compared one by one.
Rows are decoded a batch at a time and the last ones used are kept, up to a limit.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import eq
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lowmark.backend.errors import BatchesMoved, PartitionReset, RowsLost
from lowmark.backend.ledgers import Ledgers, OpenLedger
from lowmark.backend.port import Backend
from lowmark.backend.values import BatchRange, Found
from lowmark.catalog import Table
from lowmark.convert.pythonic import convert_rows, converts_of
from lowmark.errors import Rejected
from lowmark.ledger import KEY_SEED, LAST_ROW, LedgerLost, Lost
from lowmark.runtime import Buffer
from lowmark.table import (
    I64,
    U64,
    Change,
    KeyForm,
    KeyIndex,
    KeyReader,
    Mask,
    Shape,
    View,
)

CACHE_BYTES = 256 << 20
"""Of decoded batches, for one table."""
_BUILD_BYTES = 8 << 20
_COLUMN_BYTES = 1_024
"""What a column of a batch takes besides its values, about: of one row, that is nearly all."""
_SEED = int.from_bytes(os.urandom(8), "little")


@dataclass(frozen=True, slots=True)
class IndexSize:
    """What the index of a table costs."""

    keys: int
    bytes: int
    cached_bytes: int

    @property
    def bytes_per_key(self) -> float:
        """On average; 0 if there is no key."""
        return self.bytes / self.keys if self.keys else 0.0


class _Indexed:
    """One partition, and how far it is indexed."""

    __slots__ = ("index", "lock", "partition")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.index = KeyIndex()
        self.lock = threading.Lock()


_Place: TypeAlias = tuple[int, int, int]
"""Of a batch: its partition, its first offset, and the lineage of the view that names it."""


class _Cache:
    """Decoded batches, the least recently used first. Those that are wholly below their partition's
    cut are let go of, for no look-up asks for them again.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._batches: OrderedDict[_Place, list[pa.Array]] = OrderedDict()
        self._sizes: dict[_Place, int] = {}
        self._starts: dict[int, int] = {}
        """The cut of each partition up to which batches were let go."""
        self.bytes = 0

    def get(self, key: _Place) -> list[pa.Array] | None:
        columns = self._batches.get(key)
        if columns is not None:
            try:  # noqa: SIM105 - a look-up is so quick that `suppress` counts
                self._batches.move_to_end(key)
            except KeyError:
                pass  # another thread has let it go just now
        return columns

    def put(self, key: _Place, columns: list[pa.Array], size: int, *, start: int) -> None:
        """Keep a batch; `start`: where the backlog of its partition begins by now."""
        with self._lock:
            if start > self._starts.get(key[0], 0):
                self._let_go_below(key[0], start)
            if key in self._batches:
                return
            self._batches[key], self._sizes[key] = columns, size
            self.bytes += size
            while self.bytes > self._bytes_max and len(self._batches) > 1:
                gone, _ = self._batches.popitem(last=False)
                self.bytes -= self._sizes.pop(gone)

    def _let_go_below(self, partition: int, start: int) -> None:
        self._starts[partition] = start
        for key in list(self._sizes):
            number, first, _ = key
            if number == partition and first + len(self._batches[key][0]) <= start:
                del self._batches[key]
                self.bytes -= self._sizes.pop(key)


class Lookup:
    """Finds keys of one table, as one version of the catalog describes it.

    Its index does not depend on the version: one that is made for a newer one takes it over from
    the older one (`known`), and both may be used at once. `newest` gives the table as it is now:
    rows of a later version may come while one is in use.
    """

    def __init__(
        self,
        backend: Backend,
        table: Table,
        *,
        known: Lookup | None = None,
        newest: Callable[[], Table] | None = None,
        ledgers: Ledgers | None = None,
    ) -> None:
        if not table.key:
            raise Rejected(
                f"table {table.name} has no key",
                hint="Read it with `read`; only a table with a key can be looked up.",
            )
        self.table = table
        self.backend = backend
        self._form = KeyForm.of(table)
        self._indexed: dict[int, _Indexed] = {}
        if known is not None and known._indexes_for(backend, table, self._form):
            # The same ones, with their locks: what either brings up to date is so for both.
            self._indexed = known._indexed
        self._keys = KeyReader(table, newest=newest)
        self._newest = newest
        self._ledgers = ledgers
        self._cache = _Cache(CACHE_BYTES)
        self.shape = Shape(table, [column.name for column in table.columns], newest=newest)
        self._names = self.shape.names
        self.converts = converts_of(self.shape.schema)
        """What makes Python's values of Arrow's, where these differ."""

    def _indexes_for(self, backend: Backend, table: Table, form: KeyForm) -> bool:
        """Whether its index is that of another version of its table, too."""
        mine = self._form
        return (
            self.backend is backend
            and (self.table.id, self.table.partitions) == (table.id, table.partitions)
            and (mine.ids, mine.types) == (form.ids, form.types)
        )

    def size(self) -> IndexSize:
        """What it costs now."""
        indexes = [one.index for one in list(self._indexed.values())]
        return IndexSize(
            sum(index.keys for index in indexes),
            sum(index.bytes for index in indexes),
            self._cache.bytes,
        )

    # -- one key --------------------------------------------------------------------------------

    def get(self, values: Sequence[object]) -> dict[str, Any] | None:
        """The latest row of a key; None if it was deleted, or never there.

        The short way of `find`, for what nearly always is so: the index is up to date, the batch is
        at hand, and the row has the key as it was given.
        """
        form = self._form
        key = form.one(values)
        number = form.bucket_one(key, self.table.partitions)
        indexed = self._indexed.get(number)
        if indexed is not None:
            index = indexed.index  # before the view: then it names nothing that the view has not
            view = self.backend.view(self.table.id, number, latest=True)
            if index.end >= view.end and index.lineage == view.lineage:
                place = index.find(form.hash_one(key, _SEED))
                if place is None or place.offset < view.start:
                    return self._row_in_ledger(number, view, key, values)
                at = view.batch_at(place.offset)
                first = int(view.columns.first[at])
                columns = self._cache.get((number, first, view.lineage))
                if columns is not None and not place.deleted:
                    at = place.offset - first
                    row = {
                        name: column[at].as_py()
                        for name, column in zip(self._names, columns, strict=True)
                    }
                    if all(map(eq, values, [row[name] for name in form.names])):
                        if self.converts:
                            convert_rows((row,), self.converts)
                        return row
        found = self.find(values)
        return None if found is None else found.row

    def _row_in_ledger(
        self, number: int, view: View, key: int | bytes, values: Sequence[object]
    ) -> dict[str, Any] | None:
        if view.readable is None:
            return None
        try:
            found = self._in_ledger(number, view, key)
        except (BatchesMoved, PartitionReset):
            found = self.find(values)
        return None if found is None else found.row

    def find(self, values: Sequence[object]) -> Found | None:
        """The last change of a key, if there is one."""
        return self.find_key(self._form.one(values))

    def find_key(self, key: int | bytes) -> Found | None:
        """The last change of a key that is in its form already."""
        number = self._form.bucket_one(key, self.table.partitions)
        indexed = self._at(number)
        while True:
            try:
                index, view = self._up_to_date(indexed)
                place = index.find(self._form.hash_one(key, _SEED))
                if place is None or place.offset < view.start:
                    return self._in_ledger(number, view, key)
                found = self._row(indexed.partition, view, place.offset, deleted=place.deleted)
                if not self._has(found, key):
                    other = self._scan(indexed.partition, view, key)
                    return self._in_ledger(number, view, key) if other is None else other
            except (BatchesMoved, PartitionReset):
                continue
            return found[0]

    @property
    def key_names(self) -> tuple[str, ...]:
        """The key's columns, in the key's order."""
        return self._form.names

    def partition_of(self, values: Sequence[object]) -> int:
        """Where a key belongs."""
        return self.partition_of_key(self._form.one(values))

    def partition_of_key(self, key: int | bytes) -> int:
        """Where a key belongs that is in its form already."""
        return self._form.bucket_one(key, self.table.partitions)

    def _at(self, number: int) -> _Indexed:
        indexed = self._indexed.get(number)
        if indexed is None:
            indexed = self._indexed.setdefault(number, _Indexed(number))
        return indexed

    def _view(self, partition: int) -> View:
        """All that was acknowledged before this moment."""
        return self.backend.view(self.table.id, partition, latest=True)

    def _fetch(self, partition: int, view: View, low: int, high: int) -> list[Buffer]:
        wanted = [BatchRange.of(view, low, high)]
        return next(self.backend.batches(self.table.id, partition, wanted, held=False))

    def _row(
        self, partition: int, view: View, offset: int, *, deleted: bool
    ) -> tuple[Found, tuple[object, ...]]:
        """The change at an offset, and its key."""
        at = view.batch_at(offset)
        first = int(view.columns.first[at])
        columns = self._batch(partition, view, at, first)
        row = offset - first
        values = {
            name: column[row].as_py() for name, column in zip(self._names, columns, strict=True)
        }
        key = tuple(values[name] for name in self._form.names)
        convert_rows((values,), self.converts)
        time = int(view.columns.time[at])
        return Found(partition, offset, time, deleted, None if deleted else values), key

    def _in_ledger(self, number: int, view: View, key: int | bytes) -> Found | None:
        """The row of a key that the backlog does not have, in the ledger of that view."""
        if view.readable is None or self._ledgers is None or self._newest is None:
            return None
        with self._ledger(number, view) as ledger:
            place = ledger.find_one(self._form.hash_one(key, KEY_SEED), key)
            if place is None:
                check_lost(number, ledger.manifest.lost, None)
                return None
            row, offset, time, deleted = ledger.row(self.shape, *place)
            check_lost(number, ledger.manifest.lost, offset)
        values = None if deleted else row.to_pylist()[0]
        convert_rows((values,), self.converts)
        return Found(number, offset, time, deleted, values, in_ledger=True)

    @contextlib.contextmanager
    def _ledger(self, number: int, view: View) -> Iterator[OpenLedger]:
        """The ledger of a view. If it went because a newer one is adopted: take a newer view."""
        assert view.readable is not None
        assert self._ledgers is not None
        assert self._newest is not None
        hold = self.backend.hold_files([view.readable.manifest])
        try:
            yield self._ledgers.open(view.readable, self._newest)
        except LedgerLost:
            if self.backend.view(self.table.id, number).readable == view.readable:
                raise
            raise BatchesMoved(number, view.start) from None
        finally:
            self.backend.release(hold)

    def _has(self, found: tuple[Found, tuple[object, ...]], key: object) -> bool:
        return self._form.one(found[1]) == key

    def _batch(self, partition: int, view: View, at: int, first: int) -> list[pa.Array]:
        """A batch as the table's columns are now: deletes with their key, and null elsewhere."""
        key = (partition, first, view.lineage)
        found = self._cache.get(key)
        if found is None:
            (command,) = self._fetch(partition, view, at, at + 1)
            command = bytes(command)  # else it may be a part of much more
            mixed = view.columns.change[at] == Change.MIXED
            keep = np.ones(int(view.columns.rows[at]), bool) if mixed else None
            batch = self.shape.read_at(view, at, command, partition=partition, keep=keep)
            found = batch.columns
            self._cache.put(key, found, _size_of(found, command), start=view.start)
        return found

    # -- many keys ------------------------------------------------------------------------------

    def get_many(self, wanted: pa.RecordBatch) -> list[dict[str, Any] | None]:
        """The latest rows of keys, whose columns these are: no Python per key but the rows' own."""
        keys = self._form.array(wanted)
        buckets = self._form.buckets(keys, self.table.partitions)
        hashes = self._form.hashes(keys, _SEED)
        rows: list[dict[str, Any] | None] = [None] * len(keys)
        for number in np.unique(buckets).tolist():
            indexed, mine = self._at(number), np.flatnonzero(buckets == number)
            while True:
                try:
                    self._fill(indexed, keys, hashes, mine, rows)
                except (BatchesMoved, PartitionReset):
                    continue
                break
        return rows

    def _fill(
        self,
        indexed: _Indexed,
        keys: pa.Array,
        hashes: U64,
        mine: I64,
        rows: list[dict[str, Any] | None],
    ) -> None:
        """Fill in the rows of those keys that belong to one partition."""
        index, view = self._up_to_date(indexed)
        offsets, deleted = index.find_many(hashes[mine])
        there = np.flatnonzero((offsets >= view.start) & (offsets >= 0))
        if view.readable is not None and len(there) < len(mine):
            elsewhere = np.setdiff1d(np.arange(len(mine)), there)
            self._fill_from_ledger(indexed.partition, view, keys, mine[elsewhere], rows)
        batches = np.searchsorted(view.first, offsets[there].astype(np.uint64), "right") - 1
        for at in np.unique(batches).tolist():
            some = there[batches == at]
            first = int(view.columns.first[at])
            columns = self._batch(indexed.partition, view, at, first)
            batch = pa.RecordBatch.from_arrays(columns, names=list(self._names))
            found = batch.take(pa.array(offsets[some] - first))
            same = pc.equal(self._form.array(found), keys.take(pa.array(mine[some])))
            well = same.fill_null(False).to_numpy(zero_copy_only=False)
            values = found.to_pylist()
            convert_rows(values, self.converts)
            for nth, place in enumerate(mine[some].tolist()):
                if well[nth]:
                    rows[place] = None if deleted[some[nth]] else values[nth]
                else:
                    key = keys[place].as_py()
                    other = self._scan(indexed.partition, view, key)
                    if other is None:
                        other = self._in_ledger(indexed.partition, view, key)
                    rows[place] = None if other is None else other.row

    def _fill_from_ledger(
        self,
        number: int,
        view: View,
        keys: pa.Array,
        mine: I64,
        rows: list[dict[str, Any] | None],
    ) -> None:
        """Fill in the rows of keys that the backlog does not have."""
        assert view.readable is not None
        if self._ledgers is None or self._newest is None:
            return
        with self._ledger(number, view) as ledger:
            if ledger.manifest.lost:
                # Each key is looked up by itself, since its row may be lost: slow, and seldom.
                for place in mine.tolist():
                    found = self._in_ledger(number, view, keys[place].as_py())
                    rows[place] = None if found is None else found.row
                return
            for at, row in ledger.rows_of(keys.take(pa.array(mine)), self.shape):
                convert_rows((row,), self.converts)
                rows[int(mine[at])] = row

    # -- the index ------------------------------------------------------------------------------

    def _up_to_date(self, indexed: _Indexed) -> tuple[KeyIndex, View]:
        """The index of all that was acknowledged before this moment, and the view that it is of.

        Both are of one moment: an index that another thread has taken further would name rows that
        an older view does not have.
        """
        index = indexed.index
        view = self._view(indexed.partition)
        if index.end >= view.end and index.lineage == view.lineage:
            return index, view
        with indexed.lock:
            index = indexed.index
            view = self._view(indexed.partition)
            if index.lineage != view.lineage:  # what is indexed may not be in this one
                index = KeyIndex(lineage=view.lineage)
            if index.end < view.end:
                index = self._caught_up(indexed, index, view)
            indexed.index = index
            return index, view

    def _caught_up(self, indexed: _Indexed, index: KeyIndex, view: View) -> KeyIndex:
        """The index with what was appended since."""
        at = view.batch_at(max(index.end, view.start))
        while at < view.count:
            high = view.fitting(at, view.count, _BUILD_BYTES)
            commands = self._fetch(indexed.partition, view, at, high)
            found = list(self._keys.read(view, at, commands))
            keyless = any(some.keys.null_count for some in found)
            # One run for all of them: their offsets follow each other. The first batch may begin
            # before the cut; a look-up that finds such a row looks at its offset.
            index = index.with_rows(
                np.concatenate([self._form.hashes(some.keys, _SEED) for some in found]),
                int(view.columns.first[at]),
                np.concatenate([some.deletes_mask for some in found]),
                valid=np.concatenate([_valid(some.keys) for some in found]) if keyless else None,
            )
            at = high
        return index.without_below(view.start)

    def _scan(self, partition: int, view: View, key: object) -> Found | None:
        """Compare keys one by one, batch by batch: two keys of the index share a hash."""
        wanted = pa.scalar(key, pa.int64() if isinstance(key, int) else pa.binary())
        for at in LAST_ROW.sources(view.count):
            commands = self._fetch(partition, view, at, at + 1)
            (some,) = self._keys.read(view, at, commands)
            hits = np.flatnonzero(
                pc.equal(some.keys, wanted).fill_null(False).to_numpy(zero_copy_only=False)
            )
            if len(hits):
                row = int(hits[LAST_ROW.order(hits)[-1]])
                deleted = bool(some.deletes_mask[row])
                offset = int(view.columns.first[at]) + row
                if offset < view.start:
                    return None
                return self._row(partition, view, offset, deleted=deleted)[0]
        return None


def check_lost(number: int, lost: Sequence[Lost], offset: int | None) -> None:
    """Raise if the last row of a key may be among those that a ledger has lost. `offset` is where
    it was found, None if it was not.
    """
    for one in lost:
        if offset is None or (one.stale and offset < one.first):
            known = "is not found" if offset is None else f"was last seen at offset {offset}"
            raise RowsLost(
                f"the last row of this key is unknown: it {known}, and rows at offsets"
                f" {one.first} to {one.last} of partition {number} are lost",
                detail="The ledger was damaged, and rebuilt without them.",
                hint="Write the key again, or delete it: from then on it is known.",
            )


def _size_of(columns: list[pa.Array], command: bytes) -> int:
    """What a decoded batch takes: columns that lie in the command keep all of it."""
    data: int = sum(column.nbytes for column in columns)
    return max(data, len(command)) + len(columns) * _COLUMN_BYTES


def _valid(keys: pa.Array) -> Mask:
    valid: Mask = keys.is_valid().to_numpy(zero_copy_only=False)
    return valid
