"""What changed in a table between two versions, key by key: Spark's change data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lowmark.client.changes import FEED_COLUMNS
from lowmark.convert.pythonic import convert_rows, converts_of
from lowmark.frames.carrying import Carried, worded
from lowmark.frames.columns import arrow_schema, fitted
from lowmark.frames.errors import OptionRefused
from lowmark.frames.opening import Part, opened, opened_for, planned
from lowmark.frames.options import Options
from lowmark.frames.reading import checked_reader


@dataclass
class Range(Part):
    """Changes of one partition, by offsets: the same ones, the same changes."""

    number: int
    first: int
    end: int


@worded
class ChangesReader(Carried, DataSourceReader):
    """Changes between two places; the end is closed, so no more can come."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Where the range begins and ends in each partition."""
        options = self._options
        with opened(options) as database:
            table = database[options.table]
            checked_reader(table, options, self._schema).close()
            with table.changes(
                *places_of(options), on_gap="raise" if options.fail_on_loss else "skip"
            ) as reader:
                starts, ends = reader.starts, reader.position
            parts = [
                Range(number, starts[number], ends[number])
                for number in sorted(ends)
                if ends[number] > starts[number]
            ]
            return planned(parts, options, database)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one partition."""
        if isinstance(partition, Range):
            yield from changed_batches(self._options, self._wanted, partition)


def changed_batches(options: Options, wanted: pa.Schema, some: Range) -> Iterator[pa.RecordBatch]:
    """The changes of a range of one partition."""
    number = some.number
    with (
        opened_for(some, options) as database,
        database[options.table].changes(
            {number: some.first},
            {number: some.end},
            preimages=options.preimages,
            net=options.net,
            columns=_own_columns(wanted),
            partitions=[number],
            on_gap="raise" if options.fail_on_loss else "skip",
        ) as reader,
    ):
        yield from fitted(reader, wanted, table=options.table)


def changed_rows(options: Options, schema: StructType) -> Iterator[tuple[Any, ...]]:
    """All changes of a range, one after the other, in values that Spark pickles."""
    wanted = arrow_schema(schema)
    converts = converts_of(wanted)
    with opened(options) as database:
        table = database[options.table]
        checked_reader(table, options, schema).close()
        with table.changes(
            *places_of(options),
            preimages=options.preimages,
            net=options.net,
            columns=_own_columns(wanted),
        ) as reader:
            for batch in fitted(reader, wanted, table=options.table):
                rows = batch.to_pylist()
                convert_rows(rows, converts)
                yield from (tuple(row.values()) for row in rows)


def _own_columns(wanted: pa.Schema) -> list[str]:
    """Without those that say what changed: every feed has these."""
    return [name for name in wanted.names if name not in FEED_COLUMNS]


def places_of(options: Options) -> tuple[Any, Any]:
    """Where changes begin and end, as `Table.changes` takes it."""
    for where in (options.start, options.end):
        if isinstance(where, Mapping) and any(at < 0 for at in where.values()):
            raise OptionRefused(
                "changes begin and end at offsets from 0 on, not at -1 or -2",
                hint="Use startingVersion and endingVersion: earliest, latest, a version.",
            )
    start = "earliest" if options.start is None else options.start
    return start, None if options.end == "latest" else options.end
