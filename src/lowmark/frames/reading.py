"""Reads of a table: as it is now or was at a time, or rows of its log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from lowmark.client import Reader, Table
from lowmark.client.changes import FEED_COLUMNS
from lowmark.client.looking_back import AsOfReader
from lowmark.frames.carrying import Carried, worded
from lowmark.frames.columns import arrow_schema, check_columns, fitted, named
from lowmark.frames.errors import OptionRefused
from lowmark.frames.filters import taken
from lowmark.frames.opening import Part, opened, opened_for, planned
from lowmark.frames.options import Options
from lowmark.frames.positions import Stretch, offsets_of, stretches, views_of
from lowmark.table import OFFSET, SYSTEM_COLUMNS

logger = logging.getLogger(__name__)

SPLIT_ROWS: Final = 4_000_000
"""A task reads about this many rows of a table at most."""


def schema_of(options: Options) -> pa.Schema:
    """The columns of a source."""
    with opened(options) as database, empty_reader(database[options.table], options) as reader:
        return reader.schema


def empty_reader(table: Table, options: Options, *, columns: Sequence[str] | None = None) -> Reader:
    """A reader that gives no rows: it knows the columns and, of a table as of a time, that time."""
    if options.feed:
        names = options.columns if columns is None else columns
        own = [name for name in names or ["*"] if name not in FEED_COLUMNS]
        if columns is None:
            own = [named(name, table.schema.names) for name in own]
        whole = "*" in own
        return table.changes("latest", columns=None if whole else own, partitions=[0])
    as_of = "now" if options.as_of is None else options.as_of
    if columns is None and options.columns is not None:
        with empty_reader(table, options, columns=[]) as reader:
            own = reader.schema.names
        known = [*own, *SYSTEM_COLUMNS]
        columns = [
            name
            for given in options.columns
            for name in (own if given == "*" else [named(given, known)])
        ]
        twice = [name for at, name in enumerate(columns) if name in columns[:at]]
        if twice:
            raise OptionRefused(f"columns has {twice[0]} twice", hint="Name each column once.")
    if options.reads_log:
        return table.read(
            columns=columns or table.schema.names, start="latest", partitions=[0], limit=0
        )
    return table.read(columns=columns or None, as_of=as_of, partitions=[0], limit=0)


def checked_reader(
    table: Table, options: Options, schema: StructType, *, running: bool = False
) -> Reader:
    """A reader without rows of the columns that Spark wants; refused, if their types are others."""
    reader = empty_reader(table, options, columns=schema.names)
    try:
        check_columns(schema, reader.schema, table=table.name, running=running)
    except BaseException:
        reader.close()
        raise
    return reader


@dataclass
class Whole(Part):
    """One partition of a table as of a time, or rows of it from an offset on, up to another."""

    number: int
    time: int
    first: int = 0
    end: int | None = None


@worded
class TableReader(Carried, DataSourceReader):
    """The table now, or as of a time."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._wanted = arrow_schema(schema)
        self._schema = schema
        self._where: Any = None

    def partitions(self) -> Sequence[InputPartition]:
        """One time for all tasks."""
        options = self._options
        with opened(options) as database:
            table = database[options.table]
            with checked_reader(table, options, self._schema) as reader:
                assert isinstance(reader, AsOfReader)
                time = reader.time
            if options.as_of is None:
                time = table.snapshot().time
            if options.firsts is not None:
                firsts = options.firsts.items()
                parts = [Whole(number, time, first) for number, first in firsts]
                return planned(parts, options, database)
            ends = {number: view.end for number, view in views_of(database, table).items()}
            if max(ends.values()) <= SPLIT_ROWS and options.tasks_min <= len(ends):
                return planned([Whole(number, time) for number in ends], options, database)
            return planned(_split(table, time, options.tasks_min), options, database)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        if not isinstance(partition, Whole):
            return  # where there is no partition to read, Spark makes one of its own
        options, columns, where = self._options, self._wanted.names, self._where
        for some in _of_offsets(partition):
            where = some if where is None else where & some
        with (
            opened_for(partition, options) as database,
            database[options.table].read(
                columns=columns,
                as_of=partition.time,
                partitions=[partition.number],
                where=where,
            ) as reader,
        ):
            yield from fitted(reader, self._wanted, table=options.table)


def _of_offsets(part: Whole) -> Iterator[pc.Expression]:
    """What the rows of a part have in common. Ledgers are in the order of offsets, so of their
    files each part reads its own.
    """
    if part.first:
        yield pc.field(OFFSET) >= part.first
    if part.end is not None:
        yield pc.field(OFFSET) < part.end


def _split(table: Table, time: int, tasks_min: int) -> list[Whole]:
    """Parts of partitions that are too large for one task, or of which more are wanted."""
    explained = table.explain().partitions
    sizes = {
        one.partition: (
            (one.ledger.rows or 0) if one.ledger is not None else 0,
            one.end - max(one.start, one.horizon),
        )
        for one in explained
    }
    total = sum(map(sum, sizes.values()))
    most = max(1, min(SPLIT_ROWS, total // tasks_min))
    parts = []
    for one in explained:
        compacted, later = sizes[one.partition]
        cuts = {
            *_cuts(0, one.horizon, -(-compacted // most)),
            *_cuts(max(one.start, one.horizon), one.end, -(-later // most)),
        }
        edges = [0, *sorted(cut for cut in cuts if 0 < cut < one.end)]
        ends = [*edges[1:], None]  # the last one has whatever is there
        parts += [
            Whole(one.partition, time, first, end) for first, end in zip(edges, ends, strict=True)
        ]
    return parts


def _cuts(first: int, end: int, count: int) -> list[int]:
    """Where this many parts of about the same length begin and end."""
    return [first + (end - first) * part // count for part in range(count + 1)] if count else []


@worded
class LogReader(Carried, DataSourceReader):
    """Rows of the log between two positions."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._wanted = arrow_schema(schema)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Stretches of the log as it is now."""
        options = self._options
        with opened(options) as database:
            table = database[options.table]
            checked_reader(table, options, self._schema).close()
            views = views_of(database, table)
            start = "earliest" if options.start is None else options.start
            end = "latest" if options.end is None else options.end
            starts = offsets_of(start, table, views, end=False)
            ends = offsets_of(end, table, views, end=True)
            parts = stretches(starts, ends, tasks_min=options.tasks_min)
            return planned(parts, options, database)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one stretch."""
        if isinstance(partition, Stretch):  # without any, Spark makes one of its own
            on_gap: Literal["raise", "skip"] = "raise" if self._options.fail_on_loss else "skip"
            yield from log_rows(self._options, self._wanted, partition, on_gap=on_gap)


def log_rows(
    options: Options,
    wanted: pa.Schema,
    stretch: Stretch,
    *,
    on_gap: Literal["raise", "skip"],
) -> Iterator[pa.RecordBatch]:
    """Rows of the log, by offsets."""
    number = stretch.number
    with (
        opened_for(stretch, options) as database,
        database[options.table].read(
            columns=wanted.names,
            start={number: stretch.first},
            end={number: stretch.end},
            partitions=[number],
            on_gap=on_gap,
        ) as reader,
    ):
        yield from fitted(reader, wanted, table=options.table)
        for gap in reader.gaps:
            logger.warning(
                "rows are gone",
                extra={
                    "table": options.table,
                    "partition": number,
                    "first": gap.first,
                    "last": gap.last,
                    "kind": gap.kind,
                },
            )


@worded
class PushingReader(TableReader):
    """The same with filters. Spark refuses a reader that takes filters where pushing them is
    switched off, so there are two.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take those that are judged alike here and there."""
        left, self._where = taken(filters, self._wanted)
        return left
