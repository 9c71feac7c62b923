"""Ledger files: Parquet, sorted by offset, one schema version each (docs/formats/ledger.md).

A file has the columns of its schema version, each with its column's id as Parquet's `field_id`,
and three of its own: `_offset`, `_time` and `_change`. The manifest has the checksums of its footer
and of its column chunks, and nothing is parsed before its checksum was found right; pages have
checksums, too, for other programs. The writer of a file reads it again before any
other part hears of it: every row must come back with the hash that it went in with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c
from pyroaring import BitMap

from lowmark.catalog import Table, TableSchema
from lowmark.catalog.arrow import to_arrow
from lowmark.errors import Corrupt, invariant
from lowmark.ledger.claim import missing
from lowmark.ledger.digest import EMPTY, chunk_ranges, leaves_of, measure, row_hashes
from lowmark.ledger.errors import LedgerDamaged
from lowmark.ledger.key_file import index_bytes, write_key_file
from lowmark.ledger.manifest import LedgerFile, bitmap_text, checksums_text, digest_text
from lowmark.runtime import FileMissing
from lowmark.runtime.store import Store
from lowmark.table import CHANGE, I64, OFFSET, TIME, U64, KeyForm, Mask

# Which columns of a ledger file are compressed: those that get a third smaller, by a sample.
#
# A ledger is written once, and every new reader reads all of it. Unpacking costs a reader
# more than anything else that it does; for what hardly gets smaller, such as keys that were drawn,
# hashes or encrypted values, it costs four times as much as it saves on the disk. Pure.

LEVEL: Final = 1
_SAMPLES: Final = 3
_SAMPLE_ROWS: Final = 1_024
_SAMPLE_BYTES: Final = 64 << 10
_CODEC = pa.Codec("zstd", compression_level=LEVEL)


def codecs_of(rows: pa.Table) -> Mapping[str, str]:
    """The codec of each leaf, by its path as Parquet has it; judged by these rows."""
    found: dict[str, str] = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        codec = "zstd" if _pays(column) else "none"
        found |= dict.fromkeys(_paths(field), codec)
    return found


def _pays(column: pa.ChunkedArray) -> bool:
    """Whether a third is saved. Of nested values that is taken for granted."""
    if column.type.num_fields:
        return True
    before = after = 0
    for part in _samples(column):
        # Its values, as they lie in memory: that is nearly how Parquet has them.
        data = part.buffers()[-1]
        if data is not None and data.size:
            data = data.slice(0, min(data.size, _SAMPLE_BYTES))
            before += data.size
            after += len(_CODEC.compress(data, asbytes=True))
    return 3 * after <= 2 * before


def _samples(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Some rows from the beginning, the middle and the end."""
    if pa.types.is_dictionary(column.type):
        return
    last = max(0, len(column) - _SAMPLE_ROWS)
    for at in sorted({last * place // (_SAMPLES - 1) for place in range(_SAMPLES)}):
        # Put together anew: a slice has all bytes of what it was cut from.
        yield pa.concat_arrays(column.slice(at, _SAMPLE_ROWS).chunks)


def _paths(field: pa.Field) -> Iterator[str]:
    kind = field.type
    if pa.types.is_map(kind):
        names, inner = ["key_value.key", "key_value.value"], [kind.key_field, kind.item_field]
    elif pa.types.is_list(kind):
        names, inner = ["list.element"], [kind.value_field]
    elif pa.types.is_struct(kind):
        names, inner = [one.name for one in kind.fields], kind.fields
    else:
        yield field.name
        return
    for name, one in zip(names, inner, strict=True):
        for path in _paths(one.with_name(name)):
            yield f"{field.name}.{path}"


SYSTEM_IDS: Final = {OFFSET: 2_147_480_001, TIME: 2_147_480_002, CHANGE: 2_147_480_003}
"""Far above any column's id."""
ROW_GROUP_ROWS: Final = 1 << 17
ROW_GROUP_BYTES: Final = 16 << 20
"""A row group has no more than either: it is written, and read, as a whole."""
# From buffers: `pa.array` would import pandas first, where there is one, to ask what a list is.
_WORDS = pa.StringArray.from_buffers(
    2, pa.py_buffer(np.array([0, 6, 12], np.int32)), pa.py_buffer(b"upsertdelete")
)
_CHANGE_STORED = pa.dictionary(pa.int32(), pa.string())
Pace = Callable[[int], None]
"""Told how many bytes were read or written; may wait, or raise to end the work."""


@lru_cache(maxsize=256)
def file_schema(schema: TableSchema) -> pa.Schema:
    """The Arrow schema of a file of a schema version."""
    fields = [
        pa.field(column.name, to_arrow(column.type), metadata=_field_id(column.id))
        for column in schema.columns
    ]
    fields += [
        pa.field(OFFSET, pa.int64(), nullable=False, metadata=_field_id(SYSTEM_IDS[OFFSET])),
        pa.field(TIME, pa.int64(), nullable=False, metadata=_field_id(SYSTEM_IDS[TIME])),
        pa.field(CHANGE, _CHANGE_STORED, nullable=False, metadata=_field_id(SYSTEM_IDS[CHANGE])),
    ]
    return pa.schema(fields)


def _field_id(number: int) -> dict[bytes, bytes]:
    return {b"PARQUET:field_id": b"%d" % number}


def schema_of(table: Table, file: LedgerFile) -> TableSchema:
    """The schema version that a file of a table has."""
    schema = table.schema_version(file.schema)
    if schema is None:
        raise Corrupt(
            f"a ledger file of table {table.name} has schema version {file.schema},"
            " which the catalog does not have"
        )
    return schema


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows on their way into a ledger, or out of one: all columns of one schema version."""

    columns: pa.RecordBatch
    offsets: I64
    times: I64
    deletes: Mask

    def __len__(self) -> int:
        return len(self.offsets)

    def kept(self, mask: Mask) -> Rows:
        """Those of a mask."""
        return Rows(
            self.columns.filter(pa.array(mask)),
            self.offsets[mask],
            self.times[mask],
            self.deletes[mask],
        )

    def hashes(self, schema: TableSchema) -> U64:
        """The hash of each row; `schema` is the version that they have."""
        ids = [column.id for column in schema.columns]
        return row_hashes(self.columns.columns, ids, offsets=self.offsets, deletes=self.deletes)


class FileWriter:
    """Writes one file and the index of its keys. Rows come in the order of their offsets.

    What it keeps in memory until the end is `keys_bytes`, about, and for a row without a key 17
    bytes; at the end twice as much for a moment, since the index is sorted. Beside that there is a
    row group.
    """

    def __init__(
        self, store: Store, path: str, table: Table, schema: TableSchema, *, pace: Pace
    ) -> None:
        self._store = store
        self._path = path
        self._schema = schema
        self._form = KeyForm.of(table, schema) if table.key else None
        self._pace = pace
        self._open = contextlib.ExitStack()
        # Its name is durable when that of the manifest is, which stands in the same folder.
        self._stream = self._open.enter_context(store.create(path, settled=False))
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[Rows] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._hashes: list[U64] = []
        self._keys: list[pa.Array] = []
        self._deletes: list[Mask] = []
        self._first = self._last = -1
        self.rows = 0
        self.keys_bytes = 0
        """What the index has so far, about."""

    def add(self, rows: Rows) -> None:
        """Add rows whose offsets are above all before."""
        if not len(rows):
            return
        in_order = rows.offsets[0] > self._last and (np.diff(rows.offsets) > 0).all()
        invariant(in_order, "rows come in the order of their offsets")
        if self._first < 0:
            self._first = int(rows.offsets[0])
        self._last = int(rows.offsets[-1])
        self._hashes.append(rows.hashes(self._schema))
        self._deletes.append(rows.deletes)
        if self._form is not None:
            keys = self._form.array(rows.columns)
            self._keys.append(keys)
            self.keys_bytes += index_bytes(keys)
        self.rows += len(rows)
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        self._waiting_bytes += rows.columns.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._waiting_rows = self._waiting_bytes = 0
        if not waiting:
            return
        codes = np.concatenate([rows.deletes for rows in waiting]).astype(np.int32)
        columns = pa.Table.from_batches([rows.columns for rows in waiting]).columns
        columns += [
            pa.array(np.concatenate([rows.offsets for rows in waiting])),
            pa.array(np.concatenate([rows.times for rows in waiting])),
            pa.DictionaryArray.from_arrays(pa.array(codes), _WORDS),
        ]
        group = pa.Table.from_arrays(columns, schema=file_schema(self._schema))
        with self._store.told(self._path, "write"):
            if self._writer is None:
                self._writer = self._open.enter_context(_parquet_writer(self._stream, group))
            self._writer.write_table(group, row_group_size=len(codes))

    def give_up(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(BaseException):
            self._open.__exit__(_GivenUp, _GivenUp(), None)

    def finish(self) -> LedgerFile:
        """Make it durable, write its index, and see that every row comes back as it went in."""
        invariant(self.rows > 0, "a ledger file has rows")
        try:
            self._write_group()
        except BaseException:
            self.give_up()
            raise
        self._open.close()
        self._writer = None
        pa.default_memory_pool().release_unused()  # before as much is needed to read it back
        hashes = np.concatenate(self._hashes)
        self._hashes = []
        measured = measure(self._store, self._path)
        self._pace(measured.bytes)
        keys_path, keys_size, keys_checksum = self._write_keys(hashes)
        deletes = np.flatnonzero(np.concatenate(self._deletes)).astype(np.uint32)
        file = LedgerFile(
            path=self._path,
            bytes=measured.bytes,
            rows=self.rows,
            first=self._first,
            last=self._last,
            schema=self._schema.number,
            keys_path=keys_path,
            keys_bytes=keys_size,
            checksum=measured.checksum,
            footer_bytes=measured.footer_bytes,
            footer_checksum=measured.footer_checksum,
            chunks=checksums_text(measured.chunks),
            keys_checksum=keys_checksum,
            deletes=bitmap_text(BitMap(deletes)),
            digest=digest_text(EMPTY.plus(hashes)),
        )
        self._prove(file, hashes)
        return file

    def _write_keys(self, hashes: U64) -> tuple[str, int, int]:
        if self._form is None:
            return "", 0, 0
        path = self._path.removesuffix(".parquet") + ".keys"
        keys = pa.chunked_array(self._keys).combine_chunks()
        self._keys = []
        path, size, checksum = write_key_file(self._store, path, keys, hashes)
        self._pace(size)
        return path, size, checksum

    def _prove(self, file: LedgerFile, hashes: U64) -> None:
        at = 0
        with contextlib.closing(OpenFile(self._store, file, self._schema)) as opened:
            for rows in opened.rows():
                if not np.array_equal(rows.hashes(self._schema), hashes[at : at + len(rows)]):
                    raise LedgerDamaged(file.path, "rows came back other than they were written")
                at += len(rows)
        if at != len(hashes):
            raise LedgerDamaged(file.path, f"it has {at} rows, and {len(hashes)} were written")


def check_there(store: Store, files: Iterable[LedgerFile]) -> None:
    """Raise if a file of a ledger is missing, has another size, or is another one with rows, which
    its footer tells: that costs next to nothing.
    """
    for file in files:
        for path, size in ((file.path, file.bytes), (file.keys_path, file.keys_bytes)):
            if not path:
                continue
            there = store.stat(path)
            if there is None:
                raise missing(store, path)
            if there.bytes != size:
                raise LedgerDamaged(store.url(path), f"it has {there.bytes} bytes, not {size}")
        _check_footer(store, file)


def _check_footer(store: Store, file: LedgerFile) -> None:
    try:
        with store.reading(file.path), store.open(file.path) as stream:
            footer = stream.read_at(file.footer_bytes, file.bytes - file.footer_bytes)
    except FileMissing as gone:
        raise missing(store, file.path) from gone
    except (pa.ArrowException, OSError) as error:
        raise LedgerDamaged(store.url(file.path), str(error)) from error
    if crc32c(footer) != file.footer_checksum:
        raise LedgerDamaged(store.url(file.path), "its footer's checksum is wrong")


class _GivenUp(Exception):
    """The work ended before the file did."""


def _parquet_writer(stream: pa.NativeFile, first: pa.Table) -> pq.ParquetWriter:
    """For rows like the first ones."""
    codecs = codecs_of(first)
    return pq.ParquetWriter(
        stream,
        first.schema,
        compression=codecs,
        compression_level={path: LEVEL for path, codec in codecs.items() if codec == "zstd"},
        use_dictionary=[CHANGE],
        column_encoding={OFFSET: "DELTA_BINARY_PACKED", TIME: "DELTA_BINARY_PACKED"},
        write_statistics=[field.name for field in first.schema if _has_statistics(field.type)],
        write_page_checksum=True,
        store_schema=False,
    )


class OpenFile:
    """A ledger file to read from. May be used on any thread, by one at a time."""

    def __init__(self, store: Store, file: LedgerFile, schema: TableSchema) -> None:
        self.file = file
        self.schema = schema
        self._where = store.url(file.path)
        self._store = store
        with self._named():
            self._stream = store.open(file.path)
            size = self._stream.size()
            if size != file.bytes:
                raise LedgerDamaged(self._where, f"it has {size} bytes, not {file.bytes}")
            # Of this machine, the file as it lies in memory: taking a part of it copies nothing.
            self._mapped = self._stream.read_buffer() if store.local else None
            footer = self._part(size - file.footer_bytes, file.footer_bytes)
            if crc32c(footer) != file.footer_checksum:
                raise LedgerDamaged(self._where, "its footer's checksum is wrong")
            self._parquet = pq.ParquetFile(self._stream, read_dictionary=[CHANGE])
        meta = self._parquet.metadata
        self._ranges = chunk_ranges(meta)
        self._checksums = file.chunk_checksums().reshape(meta.num_row_groups, meta.num_columns)
        self._leaves = leaves_of(self._parquet.schema_arrow)
        counts = [meta.row_group(at).num_rows for at in range(meta.num_row_groups)]
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        """The number of the first row of each row group, and of the row behind the last."""
        if int(self.starts[-1]) != file.rows:
            raise LedgerDamaged(self._where, f"it has {self.starts[-1]} rows, not {file.rows}")
        self._last_offsets = _lasts(meta, self._leaves[OFFSET].start)
        self._last_times = _lasts(meta, self._leaves[TIME].start)

    def _part(self, at: int, count: int) -> pa.Buffer:
        if self._mapped is not None:
            return self._mapped.slice(at, count)
        return pa.py_buffer(self._stream.read_at(count, at))

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            with self._store.reading(self.file.path):
                yield
        except FileMissing as gone:
            raise missing(self._store, self.file.path) from gone
        except (pa.ArrowException, OSError) as error:
            raise LedgerDamaged(self._where, str(error)) from error

    def footer(self) -> pa.Buffer:
        """What its end says of it, as Parquet has it."""
        with self._named():
            return self._part(self.file.bytes - self.file.footer_bytes, self.file.footer_bytes)

    def close(self) -> None:
        """Let go of the file."""
        self._parquet.close(force=True)
        self._mapped = None

    def group_of(self, offset: int) -> int:
        """The first row group with rows at or above an offset: by binary search."""
        return int(np.searchsorted(self._last_offsets, offset))

    def groups(self, start: int, end: int) -> range:
        """The row groups that may have rows from an offset on, and before another one."""
        first = self.group_of(start)
        behind = int(np.searchsorted(self._last_offsets, end - 1)) + 1 if end > start else first
        return range(first, min(behind, len(self._last_offsets)))

    def group_of_time(self, time: int, *, after: bool) -> int:
        """The first row group with rows of a time or later, or after it: by binary search."""
        return int(np.searchsorted(self._last_times, time, "right" if after else "left"))

    def group(self, number: int, names: Sequence[str]) -> pa.RecordBatch:
        """Columns of a row group; every byte of them is checked before it is looked at."""
        with self._named():
            leaves = self._checked(number, names)
            # By their numbers: a column's name may have a dot in it, and would select others, too.
            reader = self._parquet.reader
            table = reader.read_row_group(number, column_indices=leaves, use_threads=False)
            table = table.select(list(names)).combine_chunks()
            batches = table.to_batches()
        if not batches:  # no column was asked for
            count = int(self.starts[number + 1] - self.starts[number])
            return pa.record_batch([pa.nulls(count)], names=["_"]).select([])
        batch: pa.RecordBatch = batches[0]
        return batch

    def _checked(self, number: int, names: Sequence[str]) -> list[int]:
        """The numbers of the chunks that columns have in a row group, none of them damaged."""
        leaves = []
        for name in names:
            for leaf in self._leaves[name]:
                data = self._part(*self._ranges[number][leaf])
                if crc32c(data) != int(self._checksums[number, leaf]):
                    what = f"column {name} of row group {number} has a wrong checksum"
                    raise LedgerDamaged(self._where, what)
                leaves.append(leaf)
        return leaves

    def offsets_of(self, number: int) -> tuple[int, int]:
        """The first and the last offset of a row group, as the footer has them."""
        column = self._parquet.metadata.row_group(number).column(self._leaves[OFFSET].start)
        return int(column.statistics.min), int(column.statistics.max)

    def rows_of(self, number: int) -> Rows:
        """All rows of a row group, dead ones too; what is stored, not what is said."""
        names = [column.name for column in self.schema.columns]
        stored = file_schema(self.schema)
        batch = self.group(number, [*names, OFFSET, TIME, CHANGE])
        columns = [_as(batch.column(at), stored.field(at).type) for at in range(len(names))]
        return Rows(
            pa.RecordBatch.from_arrays(columns, names=names)
            if names
            else pa.record_batch([pa.nulls(batch.num_rows)], names=["_"]).select([]),
            batch.column(OFFSET).to_numpy(),
            batch.column(TIME).to_numpy(),
            _deletes_of(batch.column(CHANGE)),
        )

    def rows(self) -> Iterator[Rows]:
        """All rows, a row group at a time."""
        for number in range(len(self.starts) - 1):
            yield self.rows_of(number)


def _has_statistics(kind: pa.DataType) -> bool:
    """Whether row groups say between which values a column lies: where that costs nothing. Text
    and bytes would take a seventh more to write; floats are left out because of NaN.
    """
    cheap = (pa.types.is_integer, pa.types.is_temporal, pa.types.is_boolean)
    return any(is_one(kind) for is_one in cheap)


def _lasts(meta: pq.FileMetaData, column: int) -> I64:
    """The highest value of a column in each row group."""
    found = []
    for group in range(meta.num_row_groups):
        statistics = meta.row_group(group).column(column).statistics
        invariant(statistics is not None and statistics.has_min_max, "offsets have statistics")
        found.append(int(statistics.max))
    return np.array(found, np.int64)


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _deletes_of(changes: pa.Array) -> npt.NDArray[np.bool_]:
    words = changes.dictionary.to_pylist()
    if "delete" not in words:
        return np.zeros(len(changes), np.bool_)
    deletes: npt.NDArray[np.bool_] = changes.indices.to_numpy() == words.index("delete")
    return deletes
