"""Reads of a table: as it is now or was at a time, or rows of its log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from lowmark.client import GapFound, Reader, Table
from lowmark.client.changes import FEED_COLUMNS
from lowmark.client.looking_back import AsOfReader
from lowmark.frames.columns import arrow_schema, check_columns, fitted
from lowmark.frames.errors import OptionRefused
from lowmark.frames.filters import taken
from lowmark.frames.opening import opened
from lowmark.frames.options import Options
from lowmark.frames.positions import Stretch, offsets_of, stretches, views_of
from lowmark.table import OFFSET

logger = logging.getLogger(__name__)


def schema_of(options: Options) -> pa.Schema:
    """The columns of a source."""
    with opened(options) as database, empty_reader(database[options.table], options) as reader:
        return reader.schema


def empty_reader(table: Table, options: Options, *, columns: Sequence[str] | None = None) -> Reader:
    """A reader that gives no rows: it knows the columns and, of a table as of a time, that time."""
    if options.feed:
        names = options.columns if columns is None else columns
        own = [name for name in names or ["*"] if name not in FEED_COLUMNS]
        whole = "*" in own
        return table.changes("latest", columns=None if whole else own, partitions=[0])
    as_of = "now" if options.as_of is None else options.as_of
    if columns is None and options.columns is not None:
        with empty_reader(table, options, columns=[]) as reader:
            own = reader.schema.names
        columns = [name for given in options.columns for name in (own if given == "*" else [given])]
        twice = [name for at, name in enumerate(columns) if name in columns[:at]]
        if twice:
            raise OptionRefused(f"columns has {twice[0]} twice", hint="Name each column once.")
    if options.reads_log:
        return table.read(
            columns=columns or table.schema.names, start="latest", partitions=[0], limit=0
        )
    return table.read(columns=columns or None, as_of=as_of, partitions=[0], limit=0)


def checked_reader(table: Table, options: Options, schema: StructType) -> Reader:
    """A reader without rows of the columns that Spark wants; refused, if their types are others."""
    reader = empty_reader(table, options, columns=schema.names)
    try:
        check_columns(schema, reader.schema, table=table.name)
    except BaseException:
        reader.close()
        raise
    return reader


@dataclass
class Whole(InputPartition):
    """One partition of a table as of a time: rows from an offset on."""

    number: int
    time: int
    first: int = 0


class TableReader(DataSourceReader):
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
            firsts = options.firsts or {}
            wanted = firsts if options.firsts is not None else range(table.partitions)
            return [Whole(number, time, firsts.get(number, 0)) for number in wanted]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        if not isinstance(partition, Whole):
            return  # where there is no partition to read, Spark makes one of its own
        options, columns, where = self._options, self._wanted.names, self._where
        if partition.first:
            later = pc.field(OFFSET) >= partition.first
            where = later if where is None else where & later
        with (
            opened(options) as database,
            database[options.table].read(
                columns=columns,
                as_of=partition.time,
                partitions=[partition.number],
                where=where,
            ) as reader,
        ):
            yield from fitted(reader, self._wanted)


class LogReader(DataSourceReader):
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
            return stretches(starts, ends, tasks_min=options.tasks_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one stretch."""
        if isinstance(partition, Stretch):  # without any, Spark makes one of its own
            yield from log_rows(self._options, self._wanted, partition)


def log_rows(options: Options, wanted: pa.Schema, stretch: Stretch) -> Iterator[pa.RecordBatch]:
    """Rows of the log, by offsets."""
    number = stretch.number
    with (
        opened(options) as database,
        database[options.table].read(
            columns=wanted.names,
            start={number: stretch.first},
            end={number: stretch.end},
            partitions=[number],
            on_gap="skip",
        ) as reader,
    ):
        yield from fitted(reader, wanted)
        for gap in reader.gaps:
            if gap.kind == "lost" and options.fail_on_loss:
                raise GapFound(gap)
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


class PushingReader(TableReader):
    """The same with filters. Spark refuses a reader that takes filters where pushing them is
    switched off, so there are two.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take those that are judged alike here and there."""
        left, self._where = taken(filters, self._wanted)
        return left
