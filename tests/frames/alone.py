"""A stream without a JVM: what Spark asks of a source in micro-batches, in the order in which it
asks, and the two logs of a checkpoint. A task gets the reader as Spark sends it, pickled.

Each batch has three steps, and a query that is started again goes on with what its last one lacks:

    1. offsets/N     where batch N ends; before that is written, the source says where
    2. the source is told that the batch before is done, and the tasks of this one read
    3. commits/N     batch N is done
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lowmark.frames import LowmarkSource
from lowmark.frames.columns import arrow_schema


def run(
    options: Mapping[str, str],
    *,
    checkpoint: Path,
    into: Path,
    function: Callable[[Any, int], None] | None = None,
) -> list[int]:
    """Take what there is, as `availableNow` does, into Parquet files or a function; gives the rows
    of each batch.
    """
    source = LowmarkSource(dict(options))
    schema = source.schema()
    reader: Any = source.streamReader(schema)
    for folder in (checkpoint / "offsets", checkpoint / "commits", into):
        folder.mkdir(parents=True, exist_ok=True)
    counts: list[int] = []
    try:
        reader.prepareForTriggerAvailableNow()
        number, done = _last(checkpoint / "offsets"), _last(checkpoint / "commits")
        start = _offset(checkpoint, done) if done >= 0 else reader.initialOffset()
        if number == done:
            number += 1
        while True:
            planned = checkpoint / "offsets" / str(number)
            if not planned.exists():
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end == start and number:  # a first batch is noted though it has nothing
                    return [count for count in counts if count]
                planned.write_text(json.dumps(end))
            end = _offset(checkpoint, number)
            if number:
                reader.commit(_offset(checkpoint, number - 1))
            task = sent(reader)
            batches = [
                batch for part in reader.partitions(start, end) for batch in task.read(sent(part))
            ]
            rows = pa.Table.from_batches(batches, arrow_schema(schema))
            if function is None:
                pq.write_table(rows, into / f"{number}.parquet")
            else:
                function(rows, number)
            counts.append(rows.num_rows)
            (checkpoint / "commits" / str(number)).touch()
            start, number = end, number + 1
    finally:
        reader.stop()


def sent(thing: Any) -> Any:
    """As a task gets it."""
    return pickle.loads(CloudPickleSerializer().dumps(thing))  # type: ignore[no-untyped-call]  # noqa: S301


def written(
    reader: Any,
    schema: Any,
    into: Mapping[str, str],
    number: int,
    start: dict[str, Any],
    *,
    when_planned: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """A batch of a stream from one table into another, as Spark has it: planned, staged by tasks,
    committed by a process of its own. Gives where it ends.
    """
    end: dict[str, Any] = reader.latestOffset(start, ReadAllAvailable())
    parts, task = reader.partitions(start, end), sent(reader)
    sink = LowmarkSource(dict(into))
    writer = sent(sink.streamWriter(schema, False))
    when_planned()
    messages = []
    for attempt, part in enumerate(parts):
        with in_task(attempt=attempt, query="q"):
            messages.append(writer.write(task.read(sent(part))))
    sink.streamWriter(schema, False).commit(messages, number)
    reader.commit(end)
    return end


@contextmanager
def in_task(
    *, attempt: int = 0, partition: int = 0, query: str = "", call: str = "start"
) -> Iterator[None]:
    """As in a task of Spark's: what a sink asks of the task that it writes for."""
    context = TaskContext()  # from here on the process is in one
    context._taskAttemptId, context._partitionId = attempt, partition
    of_query = {"sql.streaming.queryId": query, "callSite.short": f"{call} at X.java:0"}
    context._localProperties = of_query if query else {}
    try:
        yield
    finally:
        TaskContext._taskContext = None


def _last(log: Path) -> int:
    return max((int(one.name) for one in log.iterdir()), default=-1)


def _offset(checkpoint: Path, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkpoint / "offsets" / str(number)).read_text())
    return found
