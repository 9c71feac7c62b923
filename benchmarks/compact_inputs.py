"""What the peers are given: the same rows, with the same offsets, as Parquet.

There is a file per partition, and they lie as Hive has them, so that a file's path says which
partition it is. They are compressed as ledgers are (zstd, level 1); where that matters, the same
files without compression are measured as well: our log is not compressed, either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.compact_base import Base, opened_copy
from benchmarks.compact_workload import COLUMNS, NOTHING, PARTITIONS, Left, Truth, left_in
from lowmark.client import Table
from lowmark.errors import invariant

ROW_GROUP_ROWS = 122_880
"""DuckDB's own, and near to what others do."""
LEFT_COLUMNS = ["_offset", "_change", *COLUMNS]


def input_path(folder: Path, partition: int) -> Path:
    """Where the rows of a partition are."""
    return folder / f"_partition={partition}" / "rows.parquet"


def write_inputs(base: Base, folders: Mapping[str, Path]) -> None:
    """Write all rows of a table, once for each compression; the truth hears where they stood."""
    parent = next(iter(folders.values())).parent
    with opened_copy(base, parent) as opened, ThreadPoolExecutor(os.cpu_count()) as helpers:
        table, truth = opened.table, base.truth

        def write(partition: int) -> int:
            return _write(table, truth, partition, folders)

        rows = sum(helpers.map(write, range(PARTITIONS)))
    invariant(rows == base.rows, f"{rows} rows were read, not {base.rows}")


def _write(table: Table, truth: Truth, partition: int, folders: Mapping[str, Path]) -> int:
    rows = 0
    with table.read(columns=LEFT_COLUMNS, partitions=[partition]) as reader:
        writers = [
            _writer(input_path(folder, partition), reader.schema, compression)
            for compression, folder in folders.items()
        ]
        for group in _groups(reader):
            rows += group.num_rows
            offsets, keys = (group.column(name).to_numpy() for name in ("_offset", "k"))
            truth.place(partition, offsets, keys)
            for writer in writers:
                writer.write_table(group)
    for writer in writers:
        writer.close()
    return rows


def _writer(path: Path, schema: pa.Schema, compression: str) -> pq.ParquetWriter:
    path.parent.mkdir(parents=True)
    level = {"compression_level": 1} if compression == "zstd" else {}
    return pq.ParquetWriter(
        path, schema, compression=compression, use_dictionary=["_change"], **level
    )


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Stored batches are smaller than a row group should be."""
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        waiting.append(batch)
        held += batch.num_rows
        if held >= ROW_GROUP_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting, held = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def write_sample(source: Path, to: Path) -> None:
    """The first rows of the first partition, to warm somebody up."""
    path = input_path(to, 0)
    path.parent.mkdir(parents=True)
    with pq.ParquetFile(input_path(source, 0)) as file:
        pq.write_table(file.read_row_group(0), path, compression="zstd")


def left_in_files(folder: Path) -> Left:
    """What a peer has left: a file per partition, or one with a column that says which it is."""
    found = NOTHING
    for path in folder.rglob("*.parquet"):
        with pq.ParquetFile(path) as file:
            if "_partition" not in file.schema_arrow.names:
                found += left_in(file.iter_batches(columns=LEFT_COLUMNS))
                continue
            rows = file.read(columns=["_partition", *LEFT_COLUMNS])
        numbers = rows.column("_partition").to_numpy()
        invariant(bool(np.all(numbers[1:] >= numbers[:-1])), "partitions follow each other")
        for number in range(PARTITIONS):
            first, end = np.searchsorted(numbers, [number, number + 1])
            found += left_in(rows.slice(first, end - first).to_batches())
    return found
