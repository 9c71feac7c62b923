"""A table as one DataFrame, of which Spark itself reads the ledger's files.

Spark's reader of Parquet is vectorised and knows which columns are needed; a source in Python gives
rows through a pipe. So what is in ledgers is read by Spark, and the source gives what came after
them. Rows of files that do not count are left out by their number: `_metadata.row_index`, looked up
in a bitmap of their file.

What holds
    1. It is the table as of one time, the time of the call if none is given: the same rows as
       `format("lowmark")` gives as of then.
    2. The files that it reads stay. Frames are lazy, and Spark does not say when one is used no
       more; so the last `FRAMES_HELD` of a process have theirs held. An older one may end with
       Spark's error that a file is gone. History is not held: what came after the ledger can be
       read until the low watermark has passed the frame's time (`BelowWatermark`).
    3. A compaction after the call changes nothing of it: what is read of the backlog is all rows as
       of then from the horizon on, wherever they are by the time it is read.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from lowmark.backend.port import Backend
from lowmark.backend.values import Hold
from lowmark.client import Database
from lowmark.client.looking_back import AsOfReader, LedgerRows
from lowmark.convert.times import TimeLike
from lowmark.frames.columns import named, spark_schema
from lowmark.frames.errors import NoRecordsMax
from lowmark.frames.opening import knowing, opened
from lowmark.frames.options import Options, placed_at
from lowmark.ledger import LedgerFile
from lowmark.table import SYSTEM_COLUMNS, Mask, Shape

FRAMES_HELD: Final = 32
RECORDS_MAX: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""For the rest of Spark 0 is no limit. The workers that plan a source in Python refuse that, before
they ask the source for anything."""
_FILE, _WORDS, _WORD_BITS = "_lowmark_file", "_lowmark_left_out", 64


@dataclass(slots=True)
class _Held:
    """What a frame needs: files, which are held, by a database that is open for it."""

    database: Database
    files: Hold

    def close(self) -> None:
        self.database.backend.release(self.files)
        self.database.close()


_held: deque[_Held] = deque()


def table(
    spark: Any,
    name: str,
    *,
    path: str = "",
    node: str | Sequence[str] = "",
    columns: str | Sequence[str] | None = None,
    as_of: TimeLike | None = None,
) -> Any:
    """A table as a DataFrame: as it is now, or as of a time.

    It gives what `spark.read.format("lowmark")` gives with `path` or `node`, and is several times
    as fast where the table was compacted. Executors must be able to read the ledger's files.
    """
    options = Options.read(placed_at(path, node, table=name))
    database = opened(options)
    options = knowing(options, database)
    try:
        with database[name].read(
            columns=_own(columns, database[name].schema.names),
            as_of="now" if as_of is None else as_of,
        ) as reader:
            assert isinstance(reader, AsOfReader)
            frame, held = _frame(spark, options, database, reader)
    except BaseException:
        database.close()
        raise
    _held.append(held)
    while len(_held) > FRAMES_HELD:
        _held.popleft().close()
    return frame


def _own(columns: str | Sequence[str] | None, names: Sequence[str]) -> list[str] | None:
    """Columns by the names that they have in the table."""
    if columns is None:
        return None
    given = [columns] if isinstance(columns, str) else columns
    return [named(one, [*names, *SYSTEM_COLUMNS]) for one in given]


def release_frames() -> None:
    """Hold nothing any more for frames of this process: use none of them after that."""
    while _held:
        _held.popleft().close()


def _frame(
    spark: Any, options: Options, database: Database, reader: AsOfReader
) -> tuple[Any, _Held]:
    schema, backend = spark_schema(reader.schema), database.backend
    names = reader.schema.names
    # Spark takes some characters of a path for a pattern.
    readable = backend.store.local and not set(backend.store.full_path("")) & set("[]{}*?\\")
    parts = list(reader.ledger_files()) if readable else []
    versions = {file.schema for part in parts for file, _ in part.files}
    if (
        not readable
        or any(name in SYSTEM_COLUMNS for name in names)
        or any(_is_ours(one.name) for each in versions for one in _fields(reader, each))
    ):
        held = _Held(database, backend.hold_files([]))
        return _source(spark, options, schema, reader.time, None), held
    held = _Held(database, backend.hold_files([one.manifest for one in parts if one.manifest]))
    frames = [
        *_of_files(spark, schema, backend, reader.shape, parts),
        *_of_backlog(spark, options, schema, reader.time, parts),
    ]
    if not frames:
        return _source(spark, options, schema, reader.time, {}), held
    return reduce(lambda a, b: a.unionByName(b), frames), held


def _fields(reader: AsOfReader, version: int) -> list[pa.Field]:
    return [one for one in reader.shape.stored(version) if isinstance(one, pa.Field)]


def _source(
    spark: Any,
    options: Options,
    schema: StructType,
    time: int,
    firsts: dict[int, int] | None,
) -> Any:
    """What the source gives, of all partitions or of rows from these offsets on."""
    if int(spark.conf.get(RECORDS_MAX, "10000")) < 1:
        raise NoRecordsMax(RECORDS_MAX)
    made = spark.read.format("lowmark").schema(schema).option("table", options.table)
    made = made.option("node", options.node) if options.node else made.option("path", options.path)
    made = made.option("versionAsOf", str(time))
    if firsts is not None:
        made = made.option("fromOffsets", json.dumps(firsts))
    if options.resets:
        made = made.option("knownResets", json.dumps(dict(options.resets)))
    return made.load()


def _of_backlog(
    spark: Any, options: Options, schema: StructType, time: int, parts: Sequence[LedgerRows]
) -> list[Any]:
    firsts = {part.partition: part.horizon for part in parts if part.has_more}
    return [_source(spark, options, schema, time, firsts)] if firsts else []


def _of_files(
    spark: Any, schema: StructType, backend: Backend, shape: Shape, parts: Sequence[LedgerRows]
) -> list[Any]:
    """Files with the same columns at a time; those of which all rows count by themselves."""
    groups: dict[tuple[int, bool], list[tuple[LedgerFile, Mask]]] = {}
    for part in parts:
        for file, out in part.files:
            if not out.all():
                groups.setdefault((file.schema, bool(out.any())), []).append((file, out))
    frames = []
    for (version, partly), files in sorted(groups.items(), key=lambda one: one[0]):
        paths = [backend.store.full_path(file.path) for file, _ in files]
        stored = shape.stored(version)
        read = _read(spark, paths, stored)
        if partly:
            read = _without(spark, read, files)
        frames.append(read.select(*_columns(schema, stored)))
    return frames


def _read(spark: Any, paths: Sequence[str], stored: Sequence[pa.Field | pa.Scalar]) -> Any:
    """Files as they are, whatever the session is set to: their types, days and names are ours."""
    fields = [one for one in stored if isinstance(one, pa.Field)]
    reader = spark.read.schema(spark_schema(pa.schema(fields)))
    for mode in ("datetimeRebaseMode", "int96RebaseMode"):
        reader = reader.option(mode, "CORRECTED")
    return reader.parquet(*paths)


def _columns(schema: StructType, stored: Sequence[pa.Field | pa.Scalar]) -> list[Any]:
    """The columns of rows that were written with a schema version, as they are now."""
    columns = []
    for field, one in zip(schema, stored, strict=True):
        column = _named(one.name) if isinstance(one, pa.Field) else F.lit(one.as_py())
        columns.append(column.cast(field.dataType).alias(field.name))
    return columns


def _named(name: str) -> Any:
    return F.col("`" + name.replace("`", "``") + "`")


def _is_ours(name: str) -> bool:
    """Whether a column has a name that we, or Spark, have another use for."""
    return name.lower().startswith(("_metadata", "_lowmark_"))


def _without(spark: Any, read: Any, files: Sequence[tuple[LedgerFile, Mask]]) -> Any:
    """Only the rows that count: of each file, a bitmap says which do not."""
    rows = pa.table(
        {
            _FILE: [file.path.rpartition("/")[2] for file, _ in files],
            _WORDS: [_words(out) for _, out in files],
        },
        schema=pa.schema([(_FILE, pa.string()), (_WORDS, pa.list_(pa.int64()))]),
    )
    bitmaps = F.broadcast(spark.createDataFrame(rows))
    row = F.col("_metadata.row_index")
    place = (F.floor(row / _WORD_BITS) + 1).cast("int")
    bit = F.expr(f"shiftleft(1L, cast(_metadata.row_index % {_WORD_BITS} as int))")
    named = read.withColumn(_FILE, F.col("_metadata.file_name"))
    return named.join(bitmaps, _FILE).where(
        F.element_at(F.col(_WORDS), place).bitwiseAND(bit) == F.lit(0)
    )


def _words(out: Mask) -> Any:
    """A mask as whole numbers of 64 bits, the first row in the lowest bit."""
    bits = np.zeros(-(-len(out) // _WORD_BITS) * _WORD_BITS, np.bool_)
    bits[: len(out)] = out
    return np.packbits(bits, bitorder="little").view(np.int64)
