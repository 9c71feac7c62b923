"""The log of a table as a stream, in micro-batches.

Where a stream is, its checkpoint says: offsets by partition, and the name of its cursor, which was
drawn when the stream was at its beginning. So a query that goes on from its checkpoint finds its
cursor, on any machine, and Spark need not tell a source the name of its query, which it does not.

    1. the cursor stands at the start      what is to come is held; no checkpoint names it yet
    2. the checkpoint has the first end    with the cursor's name; where it began, the cursor says
    3. a batch is planned, and read        it can be read again, as long as the cursor stands before
                                           and holds: a task whose rows were cut raises
    4. Spark commits a batch               the cursor moves to its end
    5. `availableNow` has taken all        the cursor goes, unless the user has named it
A crash between 1 and 2 leaves a cursor that no query moves, and so does a query that is never
started again. So a cursor expires when no query has said for `cursor.idle_expiry` that it is there
(docs/design/0047): a running one says so now and then, whether rows come or not. It is made first
and given its expiry next: a crash between these two, or while a member of an earlier release can't
give it one, leaves a cursor that stays until it is deleted. `lowmark explain` names it.

A query that goes on from its checkpoint may find no cursor, or one that holds nothing: its own
was removed (5), has expired, or was deleted. Then one holds the log from here on. What was cut in
between ends the query by name (`StreamBehind`), unless the user has said that it goes on all the
same (`failOnDataLoss`).

Spark says that a batch is done when it plans the next one, so the cursor is a batch behind.

A checkpoint also has, for each partition, the time of the batch before its offset (`marks`), and
which reset of the partition that is of (`resets`). After another reset, offsets may be of other
rows: the query goes on if the batch before is the same one, and else ends by name
(`PartitionReset`), unless `failOnDataLoss` is false.

A cursor is of one query. If two have named the same one, it holds only what the faster one needs;
the other finds, when a batch is done, that its cursor is not where it has left it, and ends
(`CursorShared`). No row is passed over by that: each query goes by its own checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lowmark.backend.errors import PartitionReset, PartlyMade
from lowmark.client import Database, GapFound, Table, TableCursor
from lowmark.errors import LowmarkError, Unavailable
from lowmark.faces import deferred
from lowmark.frames.carrying import Carried, worded
from lowmark.frames.columns import arrow_schema
from lowmark.frames.errors import CursorShared, OtherTable, StreamBehind
from lowmark.frames.opening import P, opened, planned
from lowmark.frames.options import IDLE_EXPIRY_MS, Options
from lowmark.frames.positions import Stretch, offsets_of, stretches, views_of
from lowmark.frames.reading import checked_reader, log_rows
from lowmark.ids import group_name
from lowmark.table import CursorExpired, CursorMovesBack, CursorUnknown, MembersBehind, View
from lowmark.tokens import Right

if TYPE_CHECKING:
    from lowmark.backend.passing import Given
else:  # a task makes no pass
    (Given,) = deferred("lowmark.backend.passing", "Given")

logger = logging.getLogger(__name__)

CURSOR, TABLE, OFFSETS = "cursor", "table", "offsets"
MARKS, RESETS = "marks", "resets"
RENEWS_S: Final = 600.0
"""So often a stream says that it is there; more often, if its cursor expires soon."""
RETRIES_S: Final = 5.0
"""After this it says so again, if that could not be done."""


@worded
class StreamReader(Carried, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Rows of the log as they come."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = arrow_schema(schema)
        self._database: Database | None = None
        self._given: Given | None = None
        """The pass of the tasks, from the first batch on as long as this process follows."""
        self._initial: dict[str, Any] | None = None
        self._drawn = ""
        """The cursor that was made here for a new query."""
        self._ends: dict[int, int] | None = None
        """Where it stops, if it takes only what there is now."""
        self._made = ""
        """The cursor that was made here, whatever its name."""
        self._held = ""
        """The cursor that holds for it."""
        self._renews_at = -math.inf
        """When it is renewed again."""
        self._idle_ms = 0
        """How long that one may be idle; 0: for ever."""
        self._stands: Mapping[int, int] | None = None
        """Where this process has seen its cursor last; None: it has not looked."""
        self._planned = False
        """Whether a batch was planned here."""
        self._compared = False
        """Whether a place of the checkpoint was compared with what partitions have."""

    def __getstate__(self) -> dict[str, object]:
        # A task opens it by itself, and gets its pass with what it reads.
        return self.__dict__ | {"_database": None, "_given": None}

    # -- where Spark plans ------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the query begins: Spark asks while its checkpoint has no batch that is done, and
        may ask more than once. A cursor that is there already says where.
        """
        if self._initial is None:
            cursor = self._options.cursor or drawn_name()
            self._stands = self._cursor_at(cursor) or self._begin(cursor)
            self._initial = self._offset(cursor, self._stands)
            self._drawn = "" if self._options.cursor else cursor
        return self._initial

    def _begin(self, cursor: str) -> dict[int, int]:
        """Have a cursor where the stream begins."""
        start, table = self._options.start, self._table()
        views = self._views()
        starts = offsets_of("latest" if start is None else start, table, views, end=False)
        if not self._options.fail_on_loss:  # else a cursor is refused that begins at a gap
            firsts = {number: view.start for number, view in views.items()}
            self._check_there(cursor, starts, firsts)
            starts = {number: max(at, firsts[number]) for number, at in starts.items()}
        return self._create(cursor, starts)

    def _create(self, cursor: str, starts: Mapping[int, int]) -> dict[int, int]:
        cursors = self._table().cursors
        rest = self._found(cursor)
        if rest is not None and len(rest.places) < self._table().partitions:
            # A node stopped while somebody made or deleted it. It holds nothing of the others.
            cursors.delete(cursor)
        position = cursors.create(cursor, start=starts).position
        self._made = cursor
        self._renew(cursor)
        return position

    def _renew(self, cursor: str) -> None:
        """Say that a query goes on from there: the cursor's time begins anew."""
        self._idle_ms = self._idle_of(cursor)
        idle = timedelta(milliseconds=self._idle_ms)
        self._held, self._renews_at = cursor, -math.inf
        every_s = min(RENEWS_S, self._idle_ms / 5_000 or RENEWS_S)
        try:
            # Without patience: a later batch asks again.
            self._table().cursors.renew(cursor, idle_expiry=idle, patience_s=0)
        except MembersBehind:  # of a new table, or an earlier release: it does not expire yet
            logger.info("a cursor does not expire yet", extra={"cursor": cursor})
            every_s = min(every_s, RETRIES_S)
        self._renews_at = time.monotonic() + every_s

    def _idle_of(self, cursor: str) -> int:
        """How long it may be idle. One that somebody else has made keeps what they have said,
        unless the user of this query says another time.
        """
        given = self._options.idle_expiry_ms
        if given is not None:
            return given
        if cursor == self._made or is_drawn(cursor):
            return IDLE_EXPIRY_MS
        return self._table().cursors.get(cursor).idle_expiry_ms

    def _hold(self, cursor: str, offsets: Mapping[int, int]) -> None:
        """Have a cursor hold what comes behind a place of the stream, now and for as long as the
        query runs; refused, if some of that was cut.
        """
        held_so_far = self._held == cursor
        if held_so_far and time.monotonic() < self._renews_at:
            return
        holds = True
        try:
            self._renew(cursor)
        except (CursorUnknown, CursorExpired):
            holds = False
        except Unavailable as error:
            if not held_so_far:
                raise
            # Four fifths of its time are left. The query need not end for this.
            why = {"cursor": cursor, "reason": error.message}
            logger.warning("a cursor was not renewed", extra=why)
            self._renews_at = time.monotonic() + min(RETRIES_S, self._idle_ms / 5_000 or RETRIES_S)
            return
        starts = {number: view.start for number, view in self._views().items()}
        self._check_there(cursor, offsets, starts)
        if not holds:
            self._hold_again(cursor, {at: max(offsets[at], starts[at]) for at in offsets})

    def _hold_again(self, cursor: str, starts: Mapping[int, int]) -> None:
        """Have a cursor that holds nothing, or not everywhere, hold what comes. What its user has
        said of it stays: it is made anew only if a partition does not know it.
        """
        try:
            self._stands = self._table().cursors.commit(cursor, starts, reset=True).position
        except (CursorUnknown, PartlyMade) as error:
            # Where others know it, they have moved: it is made anew in all of them.
            refusal = error.__cause__ if isinstance(error, PartlyMade) else error
            if not isinstance(refusal, CursorUnknown):
                raise
            self._stands = self._create(cursor, starts)
            return
        # Were it to expire just now, the next batch would put it right.
        with contextlib.suppress(CursorExpired):
            self._renew(cursor)

    def _check_there(
        self, cursor: str, offsets: Mapping[int, int], starts: Mapping[int, int]
    ) -> None:
        name = self._options.table
        cut = {at: (offsets[at], starts[at]) for at in offsets if offsets[at] < starts[at]}
        if cut and self._options.fail_on_loss:
            raise StreamBehind(name, cursor, cut)
        for number, (first, end) in cut.items():
            logger.warning(
                "rows went while no cursor held them",
                extra={"table": name, "partition": number, "first": first, "last": end - 1},
            )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What a batch has at most; bytes are looked at beside."""
        rows_max = self._options.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take what there is now, and no more."""
        self._ends = {number: view.end for number, view in self._views().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends."""
        self._check(start)
        views = self._views()
        starts = self._after_resets(start, views)
        self._hold(start[CURSOR], starts)
        # A partition that its copies lead from elsewhere by now has all that was acknowledged. And
        # whatever it has: a batch never ends before it begins.
        ends = {number: max(view.end, starts.get(number, 0)) for number, view in views.items()}
        if self._ends is not None:
            ends = {
                number: max(min(end, self._ends.get(number, end)), starts.get(number, 0))
                for number, end in ends.items()
            }
            if all(starts.get(number, 0) >= end for number, end in ends.items()):
                self._end_run()
        if isinstance(limit, ReadMaxRows):
            ends = fewer_rows(starts, ends, limit.max_rows)
        if self._options.bytes_max is not None:
            ends = fewer_bytes(starts, ends, views, self._options.bytes_max)
        return self._offset(start[CURSOR], ends, views, start)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the log ends, for the lag in the query's progress."""
        views = self._views()
        return self._offset("", {number: view.end for number, view in views.items()}, views)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What tasks of a batch read."""
        self._check(end)
        starts = self._starts(start, end)
        ends, tasks_min = offsets_in(end), self._options.tasks_min
        parts = stretches(starts, ends, tasks_min=tasks_min, cursor=end[CURSOR])
        return self._for_tasks(parts)

    def _for_tasks(self, parts: Sequence[P]) -> list[P]:
        if self._given is None:
            self._given = Given(self._open().backend, Right.READ, self._table().descriptor.id)
        return planned(parts, self._options, self._open(), shows=self._given.shown)

    def _starts(self, start: dict[str, Any], end: Mapping[str, Any]) -> dict[int, int]:
        """Where a batch begins, whose rows are held, and whose columns are there."""
        self._planned = True
        if not self._compared or self._open().backend.lineages:
            views = self._views()
            self._after_resets(end, views)
            start = start | {OFFSETS: self._after_resets(start, views)}
        checked_reader(self._table(), self._options, self._schema, running=True).close()
        again = end[CURSOR] != start[CURSOR]
        starts = self._starts_again(end[CURSOR]) if again else offsets_in(start)
        self._hold(end[CURSOR], starts)
        return starts

    def _starts_again(self, cursor: str) -> dict[int, int]:
        """Where the first batch of a query begins, which is read again: its process was ended
        before Spark had noted that the batch is done, so a new one asked where to begin, and got
        another place. The cursor of the batch has not moved since.
        """
        if self._drawn:
            self._table().cursors.delete(self._drawn)
            self._drawn = ""
        starts = self._cursor_at(cursor)
        if starts is None:
            raise CursorUnknown(cursor)
        self._initial = self._offset(cursor, starts)
        return starts

    def commit(self, end: dict[str, Any]) -> None:
        """What lies before the end of a batch is needed no more."""
        table, cursor, offsets = self._table(), end[CURSOR], offsets_in(end)
        if self._open().backend.lineages:
            offsets = self._after_resets(end, self._views())
        try:
            table.cursors.commit(cursor, offsets)
            self._stands = offsets
        except (CursorUnknown, CursorExpired, CursorMovesBack, PartlyMade) as error:
            # Of some partitions perhaps: then the others have moved.
            refusal = error.__cause__ if isinstance(error, PartlyMade) else error
            if isinstance(refusal, CursorUnknown | CursorExpired):
                self._held = ""
                self._hold(cursor, offsets)
            elif isinstance(refusal, CursorMovesBack):
                now, stood = table.cursors.get(cursor).position, self._stands
                if stood is not None:
                    # What this query has moved, and the rest as it was.
                    moved = {
                        number: max(at, offsets.get(number, at)) for number, at in stood.items()
                    }
                    if now not in (stood, moved):
                        raise CursorShared(table.name, cursor) from error
                # The checkpoint is older than the cursor: it was put back.
                self._stands = now
                logger.warning("a cursor is ahead of its stream", extra={"cursor": cursor})
            else:
                raise

    def stop(self) -> None:
        """The query has ended, or its cursor goes on elsewhere."""
        if self._given is not None:
            self._given.close()
            self._given = None
        if self._database is not None:
            self._database.close()
            self._database = None

    def _end_run(self) -> None:
        """All that `availableNow` takes is done: nothing is to be read again, and the next run
        begins where the checkpoint is. Spark looks for rows once more before it ends a query, and
        kills this process then.
        """
        begins = self._initial is not None and not self._planned  # a first batch is always planned
        if begins or self._options.cursor or not is_drawn(self._held):
            return
        try:
            self._table().cursors.delete(self._held)
        except LowmarkError as error:  # it expires
            why = {"cursor": self._held, "reason": error.message}
            logger.warning("a cursor was not removed", extra=why)
        self._held = ""  # if another source goes on, a cursor is there for the next batch

    # -- where tasks run --------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one stretch. All of them were there when it was planned, or the user has
        said that the query goes on without them.
        """
        if not isinstance(partition, Stretch):
            return
        options = self._options
        on_gap: Literal["raise", "skip"] = "raise" if options.fail_on_loss else "skip"
        try:
            yield from log_rows(options, self._wanted, partition, on_gap=on_gap)
        except GapFound as error:
            gap = error.gap
            if gap.kind == "lost":
                raise
            cut = {gap.partition: (gap.first, gap.last + 1)}
            raise StreamBehind(options.table, partition.cursor, cut) from None

    # -- the table --------------------------------------------------------------------------------

    def _open(self) -> Database:
        if self._database is None:
            self._database = opened(self._options, writes=True)
        return self._database

    def _table(self) -> Table:
        return self._open()[self._options.table]

    def _views(self) -> dict[int, View]:
        return views_of(self._open(), self._table())

    def _offset(
        self,
        cursor: str,
        offsets: Mapping[int, int],
        views: Mapping[int, View] | None = None,
        before: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A place, as the checkpoint has it. Where it is the one before, it is said as before:
        Spark takes another text for rows that have come.
        """
        views = self._views() if views is None else views
        known, marks = before or {}, dict[str, int]()
        places = {str(number): at for number, at in sorted(offsets.items())}
        for number, at in places.items():
            mark = mark_of(views[int(number)], at)
            if known.get(OFFSETS, {}).get(number) == at:
                mark = known.get(MARKS, {}).get(number)
            if mark is not None:
                marks[number] = mark
        resets = {str(number): view.lineage for number, view in views.items() if view.lineage}
        place = {CURSOR: cursor, TABLE: self._table().descriptor.id, OFFSETS: places, MARKS: marks}
        return place | ({RESETS: resets} if resets else {})

    def _check(self, offset: Mapping[str, Any]) -> None:
        """Refuse a place in a table that was dropped: the new one of that name has other rows. Hear
        what the checkpoint knows of resets.
        """
        table = self._table()
        if offset[TABLE] != table.descriptor.id:
            raise OtherTable(table.name)
        resets = offset.get(RESETS, {}).items()
        known = {group_name(table.descriptor.id, int(number)): at for number, at in resets}
        self._open().backend.lineages.learn(known)

    def _after_resets(self, offset: Mapping[str, Any], views: Mapping[int, View]) -> dict[int, int]:
        """The offsets of a place; refused, if it may be behind rows that only lost copies had."""
        self._compared = True
        table, resets = self._table().descriptor.id, offset.get(RESETS, {})
        offsets = offsets_in(offset)
        for number, at in offsets.items():
            view = views[number]
            mark = offset.get(MARKS, {}).get(str(number))
            same = mark is not None and mark_of(view, at) == mark
            if not at or same or view.lineage == resets.get(str(number), 0):
                continue
            if self._options.fail_on_loss:
                raise PartitionReset(table, number, at=at)
            logger.warning(
                "a partition was reset, and its rows may not be those that the stream has read",
                extra={"table": self._options.table, "partition": number, "offset": at},
            )
            offsets[number] = min(at, view.end)
        return offsets

    def _cursor_at(self, name: str) -> dict[int, int] | None:
        """Where a cursor stands, if all partitions have it."""
        found = self._found(name)
        if found is None or len(found.places) < self._table().partitions:
            return None
        return found.position

    def _found(self, name: str) -> TableCursor | None:
        try:
            return self._table().cursors.get(name)
        except CursorUnknown:
            return None


def mark_of(view: View, at: int) -> int | None:
    """The time of the batch with the row before an offset; None: the backlog does not have it."""
    batch = view.batch_at(at - 1) if at else view.count
    there = batch < view.count and int(view.first[batch]) < at
    return int(view.time[batch]) if there else None


def drawn_name() -> str:
    """A name for the cursor of a query whose user has not named one."""
    return f"spark-{os.urandom(6).hex()}"


def is_drawn(name: str) -> bool:
    """Whether `drawn_name` gave it: what a user names is the user's."""
    return re.fullmatch("spark-[0-9a-f]{12}", name) is not None


def offsets_in(offset: Mapping[str, Any]) -> dict[int, int]:
    """The offsets of a place."""
    return {int(number): at for number, at in offset[OFFSETS].items()}


# -- limits ---------------------------------------------------------------------------------------


def fewer_rows(starts: Mapping[int, int], ends: Mapping[int, int], rows_max: int) -> dict[int, int]:
    """Where a batch of `rows_max` rows ends: a partition gives in proportion to what it has."""
    numbers = list(ends)
    first = np.array([starts.get(number, 0) for number in numbers], np.int64)
    rows = np.array([ends[number] for number in numbers], np.int64) - first
    total = int(rows.sum())
    if total <= rows_max:
        return dict(ends)
    exact = rows * (rows_max / total)
    share = np.floor(exact).astype(np.int64)
    # What rounding has left goes to those that lost most by it.
    left = rows_max - int(share.sum())
    share[np.argsort(share - exact, kind="stable")[:left]] += 1
    return dict(zip(numbers, (first + np.minimum(share, rows)).tolist(), strict=True))


def fewer_bytes(
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    views: Mapping[int, View],
    bytes_max: int,
) -> dict[int, int]:
    """Where a batch ends that has `bytes_max` bytes of the log at most: behind the earliest appends
    of all partitions, and behind one at least, however large.
    """
    times, sizes, owners, places = [], [], [], []
    for number, end in ends.items():
        view, first = views[number], starts.get(number, 0)
        if end <= first:
            continue
        low, high = view.batch_at(first), view.batch_at(end - 1) + 1
        times.append(view.columns.time[low:high])
        sizes.append(view.size[low:high])
        owners.append(np.full(high - low, number))
        places.append(view.columns.first[low:high].astype(np.int64) + view.rows[low:high])
    if not times:
        return dict(ends)
    time, size = np.concatenate(times), np.concatenate(sizes).astype(np.int64)
    owner, place = np.concatenate(owners), np.concatenate(places)
    order = np.argsort(time, kind="stable")
    count = max(1, int(np.searchsorted(np.cumsum(size[order]), bytes_max, "right")))
    if count == len(order):
        return dict(ends)
    kept = order[:count]
    given = {number: starts.get(number, 0) for number in ends}
    for number in ends:
        mine = place[kept][owner[kept] == number]
        if len(mine):
            given[number] = min(ends[number], int(mine[-1]))
    return given
