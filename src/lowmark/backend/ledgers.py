"""Ledgers that are open in this process: which rows they have, and which readers still read them.

A ledger is opened by what its partition has adopted, which a view has; view and ledger are
one pair, so a reader never sees the horizon of one with the rows of another. A reader takes
a ledger first and gives it back in the end: its files stay until then, whatever is published
meanwhile.

Row groups in which single rows were looked up stay decoded, up to a limit over all ledgers. They
are decoded without any lock, each time from a file that only that thread has: a look-up
of a cold row keeps no other waiting. Files are closed when the last reader lets their ledger go.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from lowmark.backend.filtering import Where
from lowmark.catalog import Table
from lowmark.errors import Corrupt
from lowmark.ledger import (
    KEY_SEED,
    LAST_ROW,
    KeyFile,
    LedgerFile,
    Manifest,
    OpenFile,
    open_key_file,
    read_adopted,
)
from lowmark.runtime.store import Store
from lowmark.table import I64, OFFSET, TIME, U64, Adopted, KeyForm, Mask, Shape

_OPEN_MAX = 256
"""This many ledgers are kept open; each has a file or two, and its index in memory."""
_GROUPS_BYTES_MAX = 256 << 20
"""Of row groups that are kept decoded for looking up single rows, of all ledgers together."""

_GroupKey: TypeAlias = "tuple[OpenLedger, int, int, tuple[str, ...]]"
"""A ledger, the number of a file of it, the number of a row group in there, and its columns."""


class _Groups:
    """Decoded row groups of all ledgers of a process, the least recently used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: OrderedDict[_GroupKey, pa.RecordBatch] = OrderedDict()
        self.bytes = 0

    def get(self, key: _GroupKey) -> pa.RecordBatch | None:
        with self._lock:
            rows = self._rows.get(key)
            if rows is not None:
                self._rows.move_to_end(key)
            return rows

    def put(self, key: _GroupKey, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Keep a row group, unless its ledger was forgotten; gives the one that was first."""
        with self._lock:
            known = self._rows.get(key)
            if known is not None or key[0].forgotten:
                return rows if known is None else known
            self._rows[key] = rows
            self.bytes += _size_of(rows)
            while self.bytes > _GROUPS_BYTES_MAX:
                _, gone = self._rows.popitem(last=False)
                self.bytes -= _size_of(gone)
            return rows

    def drop(self, ledgers: Iterable[OpenLedger]) -> None:
        """Keep nothing of these any more, nor take anything of them from now on."""
        with self._lock:
            for ledger in ledgers:
                ledger.forgotten = True
            for key in [key for key in self._rows if key[0].forgotten]:
                self.bytes -= _size_of(self._rows.pop(key))


class OpenLedger:
    """One ledger of one partition. May be used on any thread."""

    def __init__(
        self, store: Store, manifest: Manifest, newest: Callable[[], Table], groups: _Groups
    ) -> None:
        self.manifest = manifest
        self.horizon = manifest.horizon
        self.forgotten = False
        """Whether it can't be found any more: readers that have it go on; no row group is kept."""
        self._store = store
        self._newest = newest
        self._groups = groups
        self._idle: dict[int, OpenFile] = {}
        """Of each file one that is open and that no thread uses at the moment."""
        self._group_starts: dict[int, I64] = {}
        self._keys_lock = threading.Lock()
        self._keys: dict[int, KeyFile] = {}
        self._masks: dict[int, Mask | None] = {}
        self._deletes: dict[int, Mask] = {}

    @property
    def files(self) -> tuple[LedgerFile, ...]:
        """Its files, in the order of offsets."""
        return self.manifest.files

    def _opened(self, at: int) -> OpenFile:
        """One of its files, open for one reader: two threads must not share one."""
        file, table = self.files[at], self._newest()
        schema = table.schema_version(file.schema)
        if schema is None:
            raise Corrupt(
                f"a ledger of table {table.name} has rows of schema version"
                f" {file.schema}, which the catalog does not have"
            )
        return OpenFile(self._store, file, schema)

    @contextlib.contextmanager
    def _lent(self, at: int) -> Iterator[OpenFile]:
        """One of its files for this thread alone: the one that is idle, or else one more."""
        opened = self._idle.pop(at, None) or self._opened(at)
        yield opened
        self._idle[at] = opened  # of several, the last one stays

    def _starts(self, at: int) -> I64:
        """Where the row groups of a file begin."""
        starts = self._group_starts.get(at)
        if starts is None:
            with self._lent(at) as opened:
                starts = self._group_starts[at] = opened.starts
        return starts

    def keys(self, at: int) -> KeyFile | None:
        """The index of a file's keys; None if no row of it has one."""
        file = self.files[at]
        if not file.keys_path:
            return None
        opened = self._keys.get(at)
        if opened is not None:
            return opened
        with self._keys_lock:  # all of it is read and checked, and once is enough
            opened = self._keys.get(at)
            if opened is None:
                opened = open_key_file(self._store, file.keys_path, checksum=file.keys_checksum)
                self._keys[at] = opened
            return opened

    def live(self, at: int) -> Mask | None:
        """Which rows of a file count; None: all of them."""
        if at not in self._masks:
            self._masks[at] = self.files[at].live_mask()
        return self._masks[at]

    def deletes(self, at: int) -> Mask:
        """Which rows of a file are deletes."""
        if at not in self._deletes:
            mask = np.zeros(self.files[at].rows, np.bool_)
            mask[np.frombuffer(self.files[at].delete_set().to_array(), np.uint32)] = True
            self._deletes[at] = mask
        return self._deletes[at]

    # -- reading forward ------------------------------------------------------------------------

    def batches(
        self,
        shape: Shape,
        *,
        start: int,
        end: int,
        without: Sequence[Mask | None] | None = None,
        where: Where | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, I64]]:
        """Live rows with offsets from `start` to before `end`, and those offsets, in order.

        Deletes come only where the shape has `_change`. `without` says of each file which rows are
        left out besides those that are dead. With `where`, which has the shape, only rows that
        pass are given.
        """
        for at, file in enumerate(self.files):
            if file.last < start or file.first >= end or not file.kept_rows:
                continue
            opened = self._opened(at)
            names = _needed(shape if where is None else where.probe, file.schema)
            wanted = {}
            possible: Sequence[int] = opened.groups(start, end)
            if where is not None and possible:
                passing = where.filter.groups(opened)
                possible = [group for group in possible if group in passing]
            for group in possible:
                low, high = int(opened.starts[group]), int(opened.starts[group + 1])
                keep = self._wanted(at, low, high, shape, without)
                if keep.any():
                    wanted[group] = low, high, keep
            for group, rows in self._in_pairs(at, opened, list(wanted), names):
                low, high, keep = wanted.pop(group)
                offsets = rows.column(OFFSET).to_numpy()
                keep &= (offsets >= start) & (offsets < end)
                if not keep.any():
                    continue
                if where is not None:
                    keep = self._passing(where, at, low, rows, keep)
                    if not keep.any():
                        continue
                    others = [name for name in _needed(shape, file.schema) if name not in names]
                    rows = _beside(rows, opened.group(group, others)) if others else rows
                if not keep.all():
                    rows, offsets = rows.filter(pa.array(keep)), offsets[keep]
                yield self._materialized(shape, at, rows, offsets, self.deletes(at)[low:high][keep])

    def _passing(self, where: Where, at: int, low: int, rows: pa.RecordBatch, keep: Mask) -> Mask:
        """Which rows of a row group are kept, of those that would be without a filter."""
        some = rows if keep.all() else rows.filter(pa.array(keep))
        offsets = some.column(OFFSET).to_numpy()
        deletes = self.deletes(at)[low : low + len(keep)][keep]
        judged, _ = self._materialized(where.probe, at, some, offsets, deletes)
        passing = np.zeros(len(keep), np.bool_)
        passing[np.flatnonzero(keep)[where.filter.mask(judged)]] = True
        return passing

    def _in_pairs(
        self, at: int, opened: OpenFile, groups: Sequence[int], names: Sequence[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Row groups of a file, two at a time: while one is unpacked here, the one after it is
        unpacked on another thread. A new reader reads everything, and this is most of it.
        """
        if len(groups) < 2:
            for group in groups:
                yield group, opened.group(group, names)
            return
        other = self._opened(at)
        with ThreadPoolExecutor(1, "lowmark ledger") as helper:
            for here, there in zip_longest(groups[::2], groups[1::2]):
                coming = None if there is None else _begun(helper, other, there, names)
                yield here, opened.group(here, names)
                if coming is not None:
                    yield there, coming()

    def _wanted(
        self,
        at: int,
        low: int,
        high: int,
        shape: Shape,
        without: Sequence[Mask | None] | None,
    ) -> Mask:
        live = self.live(at)
        keep = np.ones(high - low, np.bool_) if live is None else live[low:high].copy()
        if not shape.with_deletes:
            keep &= ~self.deletes(at)[low:high]
        left_out = without[at] if without is not None else None
        if left_out is not None:
            keep &= ~left_out[low:high]
        return keep

    def _materialized(
        self, shape: Shape, at: int, rows: pa.RecordBatch, offsets: I64, deletes: Mask
    ) -> tuple[pa.RecordBatch, I64]:
        times = rows.column(TIME).to_numpy() if TIME in shape.names else offsets
        materialized = shape.materialize(
            rows,
            version=self.files[at].schema,
            partition=self.manifest.partition,
            offsets=offsets,
            times=times,
            deletes=deletes,
        )
        return materialized, offsets

    def offset_of_time(self, time: int, *, after: bool) -> int:
        """The first live offset whose time is a time or later, or lies after it; else the
        horizon.
        """
        for at in range(len(self.files)):
            opened = self._opened(at)
            group = opened.group_of_time(time, after=after)
            if group < len(opened.starts) - 1:
                rows = opened.group(group, [OFFSET, TIME])
                side: Literal["left", "right"] = "right" if after else "left"
                place = int(np.searchsorted(rows.column(TIME).to_numpy(), time, side))
                return int(rows.column(OFFSET)[place].as_py())
        return self.horizon

    def behind_earlier(self, time: int) -> int:
        """The offset behind its last row, live or dead, that is earlier than a time; 0: none is."""
        behind = 0
        for at, file in enumerate(self.files):
            opened = self._opened(at)
            group = opened.group_of_time(time, after=False)
            if group == len(opened.starts) - 1:
                behind = file.last + 1
                continue
            rows = opened.group(group, [OFFSET, TIME])
            place = int(np.searchsorted(rows.column(TIME).to_numpy(), time, "left"))
            if not place and group:
                rows = opened.group(group - 1, [OFFSET])
                place = rows.num_rows
            return int(rows.column(OFFSET)[place - 1].as_py()) + 1 if place else behind
        return behind

    # -- keys -----------------------------------------------------------------------------------

    def find(self, keys: pa.Array, hashes: U64) -> list[I64]:
        """Of each file, the row of each key, or -1, dead rows among them."""
        found = []
        for at in range(len(self.files)):
            index = self.keys(at)
            if index is None:
                found.append(np.full(len(keys), -1, np.int64))
                continue
            places = index.find(keys, hashes)
            there = places >= 0
            places[there] = index.rows[places[there]]
            found.append(places)
        return found

    def superseded_by(self, keys: pa.Array, hashes: U64) -> list[Mask | None]:
        """Of each file, the rows of these keys: they lose, if the keys are of a later source."""
        masks: list[Mask | None] = []
        for at, rows in enumerate(self.find(keys, hashes)):
            there = rows[rows >= 0]
            mask = None
            if len(there):
                mask = np.zeros(self.files[at].rows, np.bool_)
                mask[there] = True
            masks.append(mask)
        return masks

    def find_one(self, hashed: int, key: int | bytes) -> tuple[int, int] | None:
        """The file and the row of a key that is live, or a delete that is; None: of neither."""
        for at in LAST_ROW.sources(len(self.files)):
            index = self.keys(at)
            row = -1 if index is None else index.find_one(hashed, key)
            if row >= 0:
                live = self.live(at)
                return (at, row) if live is None or live[row] else None
        return None

    def rows_of(self, keys: pa.Array, shape: Shape) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """The rows of keys that are live, by the place of the key; None where it was deleted."""
        left = np.arange(len(keys))
        for at in LAST_ROW.sources(len(self.files)):
            index = self.keys(at)
            if index is None or not len(left):
                continue
            wanted = keys.take(pa.array(left))
            places = index.find(wanted, KeyForm.hashes(wanted, KEY_SEED))
            hits = np.flatnonzero(places >= 0)
            rows = index.rows[places[hits]].astype(np.int64)
            live = self.live(at)
            counts = np.ones(len(rows), np.bool_) if live is None else live[rows]
            asked, rows = left[hits][counts], rows[counts]
            starts = self._starts(at)
            groups = np.searchsorted(starts, rows, "right") - 1
            names = tuple(dict.fromkeys([*shape.needs(self.files[at].schema), OFFSET, TIME]))
            for group in np.unique(groups).tolist():
                some = groups == group
                batch = self._group(at, group, names)
                found = batch.take(pa.array(rows[some] - int(starts[group])))
                deletes = self.deletes(at)[rows[some]]
                offsets = found.column(OFFSET).to_numpy()
                materialized, _ = self._materialized(shape, at, found, offsets, deletes)
                for place, deleted, row in zip(
                    asked[some].tolist(), deletes.tolist(), materialized.to_pylist(), strict=True
                ):
                    yield place, None if deleted else row
            left = np.delete(left, hits)

    def row(self, shape: Shape, at: int, row: int) -> tuple[pa.RecordBatch, int, int, bool]:
        """One row: as the shape has it, its offset, its time, and whether it is a delete."""
        starts = self._starts(at)
        group = int(np.searchsorted(starts, row, "right")) - 1
        names = tuple(dict.fromkeys([*shape.needs(self.files[at].schema), OFFSET, TIME]))
        rows = self._group(at, group, names)
        place = row - int(starts[group])
        one = rows.slice(place, 1)
        offset, time = one.column(OFFSET)[0].as_py(), one.column(TIME)[0].as_py()
        deleted = bool(self.deletes(at)[row])
        materialized, _ = self._materialized(
            shape, at, one, np.array([offset], np.int64), np.array([deleted])
        )
        return materialized, offset, time, deleted

    def _group(self, at: int, group: int, names: tuple[str, ...]) -> pa.RecordBatch:
        key = (self, at, group, names)
        rows = self._groups.get(key)
        if rows is None:
            with self._lent(at) as opened:
                rows = opened.group(group, names)
            rows = self._groups.put(key, rows)
        return rows


def _needed(shape: Shape, version: int) -> list[str]:
    """The columns of a file that a shape needs, and those by which rows are known."""
    return [*shape.needs(version), OFFSET, *([TIME] if TIME in shape.names else [])]


def _beside(rows: pa.RecordBatch, others: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, with columns of both."""
    names = [*rows.schema.names, *others.schema.names]
    return pa.RecordBatch.from_arrays([*rows.columns, *others.columns], names=names)


def _begun(
    helper: ThreadPoolExecutor, file: OpenFile, group: int, names: Sequence[str]
) -> Callable[[], pa.RecordBatch]:
    """Have a row group unpacked on another thread; the caller fetches it when it needs it."""
    try:
        return helper.submit(file.group, group, names).result
    except RuntimeError:
        # No thread can be had; above all, no pool takes work when the main thread has ended, though
        # other threads may still read. So the caller unpacks the row group itself.
        return lambda: file.group(group, names)


def _size_of(rows: pa.RecordBatch) -> int:
    """What decoded rows take in memory."""
    size: int = rows.get_total_buffer_size()
    return size


class Ledgers:
    """All of a process, by the name of their manifests."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._open: OrderedDict[str, OpenLedger] = OrderedDict()
        self._groups = _Groups()

    @property
    def cached_bytes(self) -> int:
        """What decoded row groups take, of all ledgers."""
        return self._groups.bytes

    def open(self, adopted: Adopted, newest: Callable[[], Table]) -> OpenLedger:
        """The ledger that a partition has adopted; one that can't be read, or another one in its
        place, is an error, never a part of it.
        """
        manifest = adopted.manifest
        with self._lock:
            known = self._open.get(manifest)
            if known is not None:
                self._open.move_to_end(manifest)
                return known
        described = read_adopted(self.store, adopted)
        ledger = OpenLedger(self.store, described, newest, self._groups)
        with self._lock:
            known = self._open.setdefault(manifest, ledger)
            over = [self._open.popitem(last=False)[1] for _ in range(len(self._open) - _OPEN_MAX)]
        if over:
            self._groups.drop(over)
        return known

    def forget(self, manifest: str) -> None:
        """Its files are about to go, or to be looked at anew. Who reads it now has it still."""
        with self._lock:
            known = self._open.pop(manifest, None)
        if known is not None:
            self._groups.drop([known])

    def forget_all(self, folder: str = "") -> None:
        """The same for all ledgers, or for those below a folder."""
        with self._lock:
            names = [name for name in self._open if name.startswith(folder)]
            gone = [self._open.pop(name) for name in names]
        self._groups.drop(gone)
