"""Databases to be compacted, each made once: a round gets a copy that costs nothing.

A run changes its table, so that the next one would find little to do. The log never edits a sealed
piece; so a copy has links to those, and real copies of the few small files that may be written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.compact_workload import COLUMNS, PARTITIONS, Chunk, Truth, changes_of
from benchmarks.table_workload import Opened
from lowmark.access import open_database
from lowmark.backend.embedded import Embedded
from lowmark.errors import invariant
from lowmark.node import Settings
from lowmark.node.settings import WatermarkSettings

SEALED = {".segment", ".large"}


@dataclass(frozen=True, slots=True)
class Base:
    """A closed database with one table, and what must be left of it."""

    folder: Path
    rows: int
    keys: int
    truth: Truth

    @property
    def files(self) -> list[Path]:
        """Where the rows are."""
        return sorted(path for path in self.folder.rglob("*") if path.suffix in SEALED)

    def copy(self, folder: Path) -> None:
        """Another one like it."""
        shutil.copytree(self.folder, folder, copy_function=_linker(self.folder))


def make_base(folder: Path, rows: int, keys: int, *, seed: int) -> Base:
    """A table with so many changes, all of them in sealed pieces."""
    truth = Truth(keys)
    with _opened(folder) as opened:
        # The next chunk is drawn while this one is written.
        with ThreadPoolExecutor(1) as helper:
            chunks = changes_of(rows, keys, seed=seed)
            coming = helper.submit(_drawn, chunks, truth)
            while (batch := coming.result()) is not None:
                coming = helper.submit(_drawn, chunks, truth)
                opened.table.append(batch)
        embedded = opened.db._backend
        assert isinstance(embedded, Embedded)
        embedded.ask_now(embedded.node.log.roll)
        opened.rest()
        stored = sum(opened.table.snapshot().ends.values())
        invariant(stored == rows, f"{stored} rows are stored, not {rows}")
    return Base(folder, rows, keys, truth)


def _drawn(chunks: Iterator[Chunk], truth: Truth) -> pa.RecordBatch | None:
    chunk = next(chunks, None)
    if chunk is None:
        return None
    truth.take(chunk)
    return chunk.as_arrow()


@contextmanager
def opened_copy(base: Base, folder: Path) -> Iterator[Opened]:
    """A copy of a database, open and at rest; it goes afterwards."""
    data = folder / "data"
    base.copy(data)
    try:
        with _opened(data) as opened:
            opened.rest()
            yield opened
    finally:
        shutil.rmtree(data, ignore_errors=True)


@contextmanager
def _opened(folder: Path) -> Iterator[Opened]:
    # Not `load_settings`: what stands in somebody's file must not change a figure.
    settings = Settings(watermark=WatermarkSettings(availability_ms=0))
    with open_database(folder, settings=settings) as db:
        table = db.create_table("t", COLUMNS, key="k", partitions=PARTITIONS, if_not_exists=True)
        yield Opened(db, table)


def _linker(root: Path) -> Callable[[str, str], None]:
    open_wal = max((int(path.stem, 16) for path in (root / "wal").iterdir()), default=0)

    def link(source: str, to: str) -> None:
        path = Path(source)
        # What belongs to the WAL file that is open is not sealed yet.
        if path.suffix in SEALED and not path.is_symlink() and int(path.stem, 16) < open_wal:
            os.link(source, to)
        else:
            shutil.copy2(source, to)

    return link
