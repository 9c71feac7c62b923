"""A table into a directory of files, as of one time.

A reader of all partitions is made first and kept open: it says which time and which columns, and
holds everything that the export is going to read. Then partitions are read one by one, as of that
time, each into files of its own. They are read here; or by tasks on Spark, of which each opens the
database by itself and answers with what it has written. Both write by the same code, so that the
files are the same either way.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import msgspec
import pyarrow as pa

from lowmark.backend.port import Backend
from lowmark.catalog import DEFAULT_SCHEMA, Table
from lowmark.client.looking_back import AsOfReader
from lowmark.client.reading import Gap, Reader
from lowmark.compaction.runner import Runner, Runners
from lowmark.convert.times import datetime_of, time_text
from lowmark.errors import Rejected
from lowmark.export import (
    DataFile,
    DestinationRefused,
    Format,
    Stage,
    Target,
    check_format,
    destination_of,
    staged,
    target_for,
    write_files,
)

_LOOKS_EVERY_S = 0.5
_DONE = ".done"


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export has written."""

    table: str
    format: Format
    path: str
    """The directory, from the root on."""
    time: int
    """All rows are as of this time."""
    rows: int
    files: int
    bytes: int
    """Of the files with rows."""
    engine: Literal["spark", "local"]
    where: str
    gaps: tuple[Gap, ...] = ()
    """What retention had removed before, with `on_gap="skip"`."""

    @property
    def datetime(self) -> dt.datetime:
        """Its time by the clock, in UTC; `time` is exact, this is without what lies below a
        millisecond.
        """
        return datetime_of(self.time)


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """How far an export is."""

    bytes_done: int
    partitions_done: int
    partitions: int


Tell = Callable[[ExportProgress], None]
OnGap: TypeAlias = Literal["raise", "skip"]
Read = Callable[[Sequence[int], Sequence[str] | None, int | None], Reader]
"""A reader of partitions, with these columns, as of a time; without one, of that which was asked
for."""


class ExportWork(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of an export, for a task."""

    by: Literal["path", "node"]
    """Whether the database is named by its directory, or by the address of a server."""
    database: str
    table: str
    """By the name that it had at the time."""
    time: int
    columns: list[str]
    on_gap: OnGap
    partition: int
    schema: bytes
    """What files have as columns, as an Arrow message."""
    path: str
    """Where the export goes."""
    folder: str
    """Where the task writes."""


def done_path(folder: str, partition: int) -> str:
    """The file by which a task says that it is done."""
    return os.path.join(folder, f"{partition:05}{_DONE}")


def export_table(
    backend: Backend,
    read: Read,
    *,
    columns: Sequence[str] | None,
    partitions: Sequence[int],
    to: str | os.PathLike[str],
    wanted: str,
    on_gap: OnGap,
    runners: Runners,
    progress: Tell | None,
) -> Exported:
    """Export what `read` gives."""
    kind = check_format(wanted)
    if columns is not None and (not columns or len(set(columns)) < len(columns)):
        raise Rejected(
            "an export has at least one column, and each once", hint="Give other columns, or none."
        )
    path = destination_of(to, apart_from=backend.info.data_path)
    if kind == "delta" and re.search("%[0-9A-Fa-f]{2}", path):
        raise DestinationRefused(
            f"a Delta table can't be in {path}: its path has a '%' with two digits",
            detail="Its library takes that for a part of a URL, and looks elsewhere.",
            hint="Name another directory.",
        )
    with read(partitions, columns, None) as reader:
        assert isinstance(reader, AsOfReader)
        time, table = reader.time, reader.shape.table
        name = backend.catalog_at(time).name_of(table).removeprefix(f"{DEFAULT_SCHEMA}.")
        target = target_for(
            kind,
            _with_required(reader.schema, table),
            path=path,
            name=name,
            notes={"lowmark.table": name, "lowmark.asOf": time_text(time)},
        )
        with staged(path) as stage:
            names = reader.schema.names
            told = _Told(progress or (lambda _: None), len(partitions))
            if runners.engine == "local":
                parts = _here(
                    lambda number: read([number], names, time), target, stage, partitions, told
                )
            else:
                database = backend.info.name
                is_directory = os.path.isdir(database)
                work = ExportWork(
                    by="path" if is_directory else "node",
                    database=os.path.abspath(database) if is_directory else database,
                    table=name,
                    time=time,
                    columns=names,
                    on_gap=on_gap,
                    partition=0,
                    schema=target.schema.serialize().to_pybytes(),
                    path=path,
                    folder=stage.work,
                )
                parts = _on_spark(runners.get(), work, partitions, told)
            files = [
                stage.take(file, os.path.join(target.folder, f"part-{number:05}-{at:05}.parquet"))
                for number, part in zip(partitions, parts, strict=True)
                for at, file in enumerate(part)
            ]
            committed = target.commit(stage.folder, files)
            stage.publish()
        return Exported(
            table=name,
            format=kind,
            path=path,
            time=time,
            rows=sum(file.rows for file in committed),
            files=len(committed),
            bytes=sum(file.bytes for file in committed),
            engine=runners.engine,
            where=runners.where,
            gaps=tuple(reader.gaps),
        )


def _with_required(schema: pa.Schema, table: Table) -> pa.Schema:
    """Columns that are never null, marked as such: readers give all of them as if they could be."""
    required = {column.name for column in table.columns if column.required}
    return pa.schema([field.with_nullable(field.name not in required) for field in schema])


class _Told:
    """Counts what is done, and says it."""

    def __init__(self, tell: Tell, partitions: int) -> None:
        self._tell = tell
        self._now = ExportProgress(0, 0, partitions)

    def wrote(self, rows: int, size: int) -> None:
        del rows
        self.says(self._now.bytes_done + size, self._now.partitions_done)

    def did_one(self) -> None:
        self.says(self._now.bytes_done, self._now.partitions_done + 1)

    def says(self, size: int, partitions: int) -> None:
        self._now = replace(self._now, bytes_done=size, partitions_done=partitions)
        self._tell(self._now)


def _here(
    read: Callable[[int], Reader],
    target: Target,
    stage: Stage,
    partitions: Sequence[int],
    told: _Told,
) -> list[list[DataFile]]:
    """Partition after partition, in this process."""
    parts = []
    for number in partitions:
        with read(number) as reader:
            prefix = f"part-{number:05}"
            parts.append(write_files(reader, target.schema, stage.work, prefix, wrote=told.wrote))
        told.did_one()
    return parts


def _on_spark(
    runner: Runner, work: ExportWork, partitions: Sequence[int], told: _Told
) -> list[list[DataFile]]:
    """A task for each partition."""
    from lowmark import spark  # noqa: PLC0415 - it names a Python for Spark's sessions

    pieces = [
        msgspec.msgpack.encode(msgspec.structs.replace(work, partition=number))
        for number in partitions
    ]
    with _Watch(work.folder, told, cancel=runner.cancel):
        # What opens databases for Spark is above this package.
        answers = runner.run(
            spark.export_part, [[piece] for piece in pieces], label=f"export of {work.table}"
        )
    return [msgspec.msgpack.decode(answer, type=list[DataFile]) for answer in answers]


class _Watch:
    """Says how far tasks are, by what they have written, while this process waits for them."""

    def __init__(self, folder: str, told: _Told, *, cancel: Callable[[], None]) -> None:
        self._folder = folder
        self._told = told
        self._cancel = cancel
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name="lowmark export", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure  # instead of `Cancelled`, which came of it

    def _watch(self) -> None:
        try:
            while not self._ended.wait(_LOOKS_EVERY_S):
                self._look()
            self._look()
        except BaseException as error:
            self._failure = error
            self._cancel()

    def _look(self) -> None:
        size = partitions = 0
        with os.scandir(self._folder) as found:
            for file in found:
                partitions += file.name.endswith(_DONE)
                size += file.stat().st_size
        self._told.says(size, partitions)
