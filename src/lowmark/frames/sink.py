"""Rows of a DataFrame, or of a stream, on their way into a table: each once.

    1. each task stages its rows          no reader sees them; what it has staged is its message
    2. the driver commits the messages    of the attempts that count, as an epoch of the query
What an attempt that fails, or loses, has staged is dropped with the commit; of a write that is
never committed, its partition's leader drops it a day later, when all partitions of the table have
answered that it does not count. A driver that dies between 1 and 2, or within 2, is followed by one
with the same epoch: a stream has it in its checkpoint. What the first has decided stays, and what
it has begun is ended (`lowmark.table.binding`). So a task may run any number of times, at once or
again.

A write that is no stream is committed once by its driver, and is a new one if the user runs it
again; unless it has a name and a number (`txnAppId`, `txnVersion`), which is what `foreachBatch`
has.

An epoch becomes visible partition by partition.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from lowmark.client import Staged
from lowmark.client.staging import ONCE_MS, STREAM_MS, attempt_number, drawn_family
from lowmark.client.table_writing import SLICE_ROWS
from lowmark.convert.errors import ValueRefused
from lowmark.errors import LowmarkError, Rejected
from lowmark.faces import deferred
from lowmark.formatting import shown
from lowmark.frames.carrying import Carried, worded
from lowmark.frames.columns import arrow_schema
from lowmark.frames.errors import CatalogTable, ColumnsMissing, ModeRefused
from lowmark.frames.opening import check_writable, knowing, opened
from lowmark.frames.options import Options, placed_at
from lowmark.group import Lineages
from lowmark.tokens import Right

if TYPE_CHECKING:
    from lowmark.frames.showing import end_shown, shown_by_tasks
else:  # a task makes no pass
    end_shown, shown_by_tasks = deferred("lowmark.frames.showing", "end_shown", "shown_by_tasks")

logger = logging.getLogger(__name__)

_QUERY: Final = "sql.streaming.queryId"
_CALL: Final = "callSite.short"
_TO_TABLE: Final = "toTable at "
"""By which of its methods a stream was started. Nothing else tells a source of that; of a write
that is no stream, and over Spark Connect, nothing does."""
_COMMITS: Final = "pyspark.sql.worker.python_streaming_sink_runner"
_TOGETHER_BYTES: Final = 16 << 20


class _Message(WriterCommitMessage):
    """What a task has staged, and for which query."""

    def __init__(
        self, query: str, node: str, staged: Staged | None, resets: Mapping[str, int]
    ) -> None:
        self.query = query
        self.resets = resets
        """What the task has heard of resets: its rows are staged where these are."""
        self.node = node
        """All nodes that are known: where the commit may be made, if the one named is away."""
        self.staged = staged
        """None: it had no rows."""


@worded
class BatchWriter(Carried, DataSourceArrowWriter):
    """A write of a DataFrame."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ModeRefused
        self._family = drawn_family()
        check_writable(options)
        self._options, self._shows = _checked(options, schema, f"write {self._family}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        """In a task."""
        return _staged(self._options, self._family, iterator, self._shows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver, when all tasks are through."""
        number, shows = self._options.write_number, self._shows
        _commit(self._options, messages, query=self._query, epoch=number, shows=shows)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver, when a task or the commit has failed for good."""
        number, shows = self._options.write_number, self._shows
        _discard(self._options, messages, query=self._query, epoch=number, shows=shows)

    @property
    def _query(self) -> str:
        """Its own, unless it has a name."""
        name = self._options.write_name
        return f"write:{name}" if name else f"once:{self._family}"


@worded
class StreamWriter(Carried, DataSourceStreamArrowWriter):
    """A sink of a stream: a batch is an epoch of its query."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ModeRefused
        self._options, self._shows = options, ""
        self._family = drawn_family()
        check_writable(options)
        if not _commits():  # what tasks have staged is stored, whatever becomes of columns since
            self._options, self._shows = _checked(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        """In a task."""
        return _staged(self._options, self._family, iterator, self._shows)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """In the driver, when all tasks are through."""
        query = _query_of(messages)
        if query is None:
            return
        if not query:
            raise Rejected(
                "Spark does not say which query this is",
                detail="Without that, a batch that is tried again would be stored twice.",
                hint="Write in foreachBatch, by `lowmark.spark.upsert(df, table, query=NAME,"
                " epoch=batch_id)`.",
            )
        _commit(self._options, messages, query=f"stream:{query}", epoch=batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """In the driver, when a task or the commit has failed for good."""
        query = _query_of(messages)
        if query:
            _discard(self._options, messages, query=f"stream:{query}", epoch=batchId)


def _query_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    """The query whose tasks have sent these; None: there are no tasks."""
    queries = {one.query for one in messages if isinstance(one, _Message)}
    return min(queries, default=None)


def upsert(
    df: Any,
    table: str,
    *,
    path: str = "",
    node: str | Sequence[str] = "",
    query: str = "",
    epoch: int | None = None,
    fail_on_missing_columns: bool = False,
) -> None:
    """Write a DataFrame into a table with a key: each row takes the place of the last one with its
    key; with a column `_change`, `delete` deletes it.

    In `foreachBatch`, give a `query` (any name that no other query has) and the batch's number as
    its `epoch`: then a batch that Spark repeats is stored once. A column of the table that the
    DataFrame does not have gets its default, or null, unless you have that refused by
    `fail_on_missing_columns`.
    """
    number = "" if epoch is None else str(epoch)
    given = placed_at(path, node, table=table, txnAppId=query, txnVersion=number)
    if fail_on_missing_columns:
        given["failOnMissingColumns"] = "true"
    options = Options.write(given)
    with opened(options) as database:
        if not database[table].key:
            hint = 'Append to it: df.write.format("lowmark").mode("append").'
            raise Rejected(f"table {table} has no key", hint=hint)
        if node:
            given["node"] = knowing(options, database).node
    df.write.format("lowmark").options(**given).mode("append").save()


def _checked(options: Options, schema: StructType, what: str = "") -> tuple[Options, str]:
    """Refuse columns that the table does not have, before any task runs; and rows that do not have
    all columns of the table, if they must. Gives the options as tasks should have them, and their
    pass: for `what` they do, if that has an end.
    """
    with opened(options, writes=True) as database:
        table = database[options.table]
        table.append(arrow_schema(schema).empty_table())
        missing = [name for name in table.schema.names if name not in schema.names]
        if missing and options.whole_rows:
            raise ColumnsMissing(table.name, missing)
        shows = shown_by_tasks(database, options.table, Right.STAGE, what=what)
        return knowing(options, database), shows


def _commits() -> bool:
    """Whether Spark ends a batch, and plans none: it does so in a process that runs this module."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _COMMITS in sys.modules or (main is not None and main.name == _COMMITS)


def _staged(
    options: Options, family: int, batches: Iterator[pa.RecordBatch], shows: str
) -> _Message:
    context = TaskContext.get()
    assert context is not None
    query = context.getLocalProperty(_QUERY) or ""
    if (context.getLocalProperty(_CALL) or "").startswith(_TO_TABLE):
        raise CatalogTable
    number = attempt_number(family, context.taskAttemptId())
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return _Message(query, options.node, None, {})
    with (
        opened(options, writes=True, shows=shows) as database,
        (table := database[options.table]).stage(number=number) as stage,
    ):
        together = _Together(chain([first], batches))
        try:
            stage.append(together)
        except ValueRefused as error:
            row = together.row(error.row, table.key or table.schema.names)
            error.detail = f"It is of partition {context.partitionId()} of the frame: {row}."
            raise
        staged = stage.staged()
        return _Message(query, options.node, staged, database.backend.lineages.known())


class _Together(Iterator[pa.RecordBatch]):
    """Batches that are worth splitting over partitions: Spark gives 10,000 rows at a time."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._given: pa.RecordBatch | None = None
        self._first = 0
        """The number of the first row of what was given last."""

    def __next__(self) -> pa.RecordBatch:
        some: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in self._batches:
            some.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= SLICE_ROWS or size >= _TOGETHER_BYTES:
                break
        if not some:
            raise StopIteration
        self._first += 0 if self._given is None else self._given.num_rows
        self._given = pa.concat_batches(some)
        return self._given

    def row(self, number: int, names: Sequence[str]) -> str:
        """Those of its values that tell one of the rows that were given last from others."""
        assert self._given is not None
        [row] = self._given.slice(number - self._first, 1).to_pylist()
        return ", ".join(f"{name} = {shown(row[name])}" for name in names if name in row)


def _commit(
    options: Options,
    messages: Sequence[WriterCommitMessage | None],
    *,
    query: str,
    epoch: int,
    shows: str = "",
) -> None:
    """`shows`: the pass of the tasks, which have ended."""
    staged = _of(messages)
    keep_ms = ONCE_MS if query.startswith("once:") else STREAM_MS
    with opened(_known(options, messages), writes=True) as database:
        end_shown(database, shows)
        table = database[options.table]
        committed = table.commit(staged, query=query, epoch=epoch, keep_ms=keep_ms)
    if committed.repeated:
        rows = sum(sum(one.rows) for one in staged)
        logger.warning(
            "an epoch was stored before: its rows are not stored again",
            extra={"table": options.table, "epoch": epoch, "rows": rows},
        )


def _discard(
    options: Options,
    messages: Sequence[WriterCommitMessage | None],
    *,
    query: str,
    epoch: int,
    shows: str = "",
) -> None:
    """Drop what tasks have staged, unless a commit has begun to bind it: a driver that comes later
    ends that. What can't be dropped now, its partition's leader drops a day later, when all
    partitions have answered.
    """
    try:
        with opened(_known(options, messages), writes=True) as database:
            end_shown(database, shows)
            database[options.table].discard(_of(messages), query=query, epoch=epoch)
    except LowmarkError as error:
        logger.warning("staged rows were not dropped", extra={"reason": error.message})


def _known(options: Options, messages: Sequence[WriterCommitMessage | None]) -> Options:
    """With all nodes that tasks knew of, and all resets."""
    found = {one.node for one in messages if isinstance(one, _Message) and one.node}
    lineages = Lineages(options.resets)
    for one in messages:
        if isinstance(one, _Message):
            lineages.learn(one.resets)
    return replace(options, node=min(found, default=options.node), resets=lineages.known())


def _of(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    staged = [one.staged for one in messages if isinstance(one, _Message)]
    return [one for one in staged if one is not None]
