"""What changed, key by key, as a stream.

A batch ends at a closed time, which is its version: no row of that time, or an earlier one, can
come any more. So no version is in two batches, whatever the limit says: a batch has the earliest
versions that fit, and at least one. Its offsets follow from the time; both are in the checkpoint.

What keys were before a batch must be known until the batch is done. While the query runs, its
source holds history from where it is (the low watermark waits, and with it compaction), besides the
cursor that holds the log. When nothing has changed for a while, nothing that came before is needed,
and the hold moves on. While the query does not run, only the cursor holds: how long it may rest is
how long the table keeps its history, and after that it ends with `ChangesGone`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from lowmark.backend.remote import RemoteBackend
from lowmark.backend.values import Hold
from lowmark.frames.carrying import worded
from lowmark.frames.changes import Range, changed_batches, places_of
from lowmark.frames.stream import CURSOR, StreamReader, offsets_in
from lowmark.table import BelowWatermark, View

VERSION = "version"
REST_S: Final = 30.0
"""So often a stream without changes moves its hold on."""
_ATTEMPTS: Final = 9
"""How often it may find that the low watermark was moved before it was held."""


@worded
class ChangeStreamReader(StreamReader):
    """Changes as they come; see `StreamReader` for what it is to be a stream."""

    _history: Hold | None = None
    _kept_at = 0.0
    _until: int | None = None
    """The last version that it takes, if it takes only what there is now."""

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"_history": None}

    # -- where Spark plans ------------------------------------------------------------------------

    def _begin(self, cursor: str) -> dict[int, int]:
        table, start = self._table(), self._options.start
        self._keep(None)  # before the start is known to be one: it must stay one
        if start is None or start == "latest":
            starts = dict(table.snapshot().ends)
        else:
            with table.changes(places_of(self._options)[0]) as reader:
                starts = dict(reader.starts)
        return self._create(cursor, starts)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take what there is now, and no more."""
        self._until = self._table().snapshot().time

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends."""
        self._check(start)
        starts = self._after_resets(start, self._views())
        self._hold(start[CURSOR], starts)
        if self._history is None:
            self._keep(start.get(VERSION))
        views = self._views()
        if all(view.end <= starts[number] for number, view in views.items()):
            self._rest(starts)
            if self._until is not None:
                self._end_run()
            return start  # a table at rest is not asked to close any time
        until = self._until or self._table().snapshot().time
        views = self._open().backend.views(
            self._table().descriptor.id, range(self._table().partitions), closed_at=until
        )
        if isinstance(limit, ReadMaxRows):
            until = fewer_versions(starts, views, until, limit.max_rows, by="rows")
        if self._options.bytes_max is not None:
            until = fewer_versions(starts, views, until, self._options.bytes_max, by="size")
        ends = {
            number: max(view.offset_after(until), starts[number]) for number, view in views.items()
        }
        if ends == starts:
            if self._until is not None:
                self._end_run()
            return start
        return self._offset(start[CURSOR], ends, views, start) | {VERSION: until}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What tasks of a batch read: a partition each."""
        self._check(end)
        if self._history is None:  # a batch is read again: it comes before another
            self._keep(start.get(VERSION))
        starts = self._starts(start, end)
        ends = offsets_in(end)
        parts = [
            Range(number, starts[number], ends[number])
            for number in sorted(ends)
            if ends[number] > starts[number]
        ]
        return self._for_tasks(parts)

    def commit(self, end: dict[str, Any]) -> None:
        """What lies before the end of a batch is needed no more, and how it was then is needed."""
        super().commit(end)
        if self._history is not None:  # else the next batch takes it
            self._keep(end.get(VERSION))

    def stop(self) -> None:
        """The query has ended."""
        self._history = None  # it ends with the database
        super().stop()

    def _end_run(self) -> None:
        """Nothing is to be read again, so no history is held, also where the cursor has a name and
        stays. Spark kills this process, and a server would keep the hold until it misses it.
        """
        self._let_go()
        super()._end_run()
        if isinstance(self._open().backend, RemoteBackend):
            self.stop()  # it sends a release by and by, and waits for that when it is closed

    def _let_go(self) -> None:
        if self._history is not None:
            self._open().backend.release(self._history)
            self._history = None

    def _rest(self, starts: Mapping[int, int]) -> None:
        """Nothing is there for now: the table is as it was, so hold it as it is now."""
        if time.monotonic() - self._kept_at > REST_S:
            seen = self._table().snapshot()
            if dict(seen.ends) == dict(starts):
                self._keep(seen.time)

    def _keep(self, version: int | None) -> None:
        """Hold history from a version on; from the low watermark on, if that is not known, or is
        before it: what keys were then may be known all the same.
        """
        backend, why = self._open().backend, f"a stream of changes of {self._options.table}"
        since = max(version or 0, backend.watermark(latest=True).value)
        for _ in range(_ATTEMPTS):
            try:
                hold = backend.hold_history(since, why)
                break
            except BelowWatermark as below:  # it was moved just now
                since = below.watermark
        else:
            hold = backend.hold_history(since, why)
        self._let_go()
        self._history, self._kept_at = hold, time.monotonic()

    # -- where tasks run --------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one partition."""
        if isinstance(partition, Range):
            yield from changed_batches(self._options, self._wanted, partition)


def fewer_versions(
    starts: Mapping[int, int], views: Mapping[int, View], until: int, most: int, *, by: str
) -> int:
    """The last version of a batch that has at most this many rows or bytes of the log, and at least
    one version.
    """
    every, sizes = [], []
    for number, view in views.items():
        low = view.batch_at(starts[number])
        every.append(view.time[low:])
        sizes.append(getattr(view, by)[low:])
    times, size = np.concatenate(every), np.concatenate(sizes).astype(np.int64)
    order = np.argsort(times, kind="stable")
    times, total = times[order], np.cumsum(size[order])
    fits = int(np.searchsorted(total, most, "right"))
    if fits == len(times):
        return until
    # The first that does not fit comes later with all of its version, unless it is the first.
    past = times[:fits][times[:fits] < times[fits]]
    return min(until, int(past[-1] if len(past) else times[0]))
