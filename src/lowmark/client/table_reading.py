"""Where a reader begins and ends: offsets of a place, a time or a cursor, and the reader for it.

A bounded reader ends with what was acknowledged before it was made. A table as of a time is read
with the columns that it had then; history is held from that time on before anything is looked at,
so nothing of the answer goes meanwhile. Times in the future are refused: more may come below them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard

from lowmark.backend.filtering import Where
from lowmark.backend.ledgers import Ledgers, OpenLedger
from lowmark.backend.port import Backend
from lowmark.backend.values import Hold, ReadRange
from lowmark.catalog import Table, TableId
from lowmark.client.changes import ChangesReader, Feed, check_commit, feed_shape
from lowmark.client.checking import check_offsets, whole
from lowmark.client.looking_back import AsOfReader
from lowmark.client.past import catalog_then
from lowmark.client.reading import Reader, Reading, horizon_of
from lowmark.client.session import Session
from lowmark.client.starting import first_from, may_follow, needs_ledger
from lowmark.convert.times import TimeLike, datetime_of, is_hybrid, known_in, parse_time, time_text
from lowmark.errors import Rejected
from lowmark.runtime import COUNTER_BITS
from lowmark.table import (
    BelowWatermark,
    CursorExpired,
    CursorOverdue,
    OffsetToCome,
    Shape,
    TimeInFuture,
    View,
    table_mark,
)

if TYPE_CHECKING:
    from lowmark.client.cursors import Cursors

Start: TypeAlias = str | int | Mapping[int, int] | dt.datetime
"""`earliest`, `latest`, a time, or offsets by partition."""

_NOW_ATTEMPTS = 10
"""How often a read as of now draws another now, if the low watermark was moved beyond it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent set of end offsets: of every partition all rows up to one time, and no other."""

    time: int
    ends: Mapping[int, int]

    @property
    def datetime(self) -> dt.datetime:
        """Its time by the clock, in UTC; `time` is exact, this is without what lies below a
        millisecond.
        """
        return datetime_of(self.time)


class TableReaders:
    """Makes the readers of one table."""

    def __init__(
        self,
        session: Session,
        ledgers: Ledgers,
        table: TableId,
        *,
        described: Callable[[], Table],
        current: Callable[[], Table],
        cursors: Callable[[], Cursors],
    ) -> None:
        self._session = session
        self._ledgers = ledgers
        self._id = table
        self._described = described
        """The table as it is now, or was when it was dropped."""
        self._current = current
        """The table as it is now; refused if it was dropped."""
        self._cursors = cursors

    @property
    def _backend(self) -> Backend:
        return self._session.backend

    def forward(
        self,
        wanted: Sequence[int],
        *,
        columns: Sequence[str] | None,
        start: Start | None,
        end: Start | Snapshot | None,
        follow: bool,
        limit: int | None,
        batch_bytes: int,
        on_gap: Literal["raise", "skip"],
        lease_ms: int | None,
        compacted: bool,
        cursor: str | None,
        where: object = None,
    ) -> Reader:
        """Every change in the order of its offset; see `Table.read`."""
        if follow and end is not None:
            raise Rejected("follow and end exclude each other", hint="Leave one of them out.")
        shape = Shape(self._current(), columns, newest=self._current)
        chosen = None if where is None else Where(where, shape)
        whole_table = start is None and cursor is None and not compacted
        start = "earliest" if start is None else start
        if cursor is not None:
            if start != "earliest":
                raise Rejected("start and cursor exclude each other", hint="Leave one of them out.")
            stands = self._cursors().get(cursor)
            if stands.expired:
                raise CursorExpired(cursor, idle_ms=stands.idle_expiry_ms)
            if stands.overdue:
                raise CursorOverdue(cursor)
            start = {number: stands.position[number] for number in wanted}
        views = self._backend.views(self._id, wanted)
        midway: frozenset[int] = frozenset()
        if self._is_time(start):
            since = self._time(start, what="start")
            starts, midway = self._starts(dict.fromkeys(views, since), views)
        else:
            starts = self._offsets(start, views, what="start", compacted=compacted)
        ends = None
        if not follow:
            last = "latest" if end is None else end
            ends = self._offsets(last, views, what="end", compacted=compacted)
        reading = Reading(
            shape if chosen is None else chosen.shape,
            starts,
            ends,
            limit,
            batch_bytes,
            on_gap,
            name=f"a reader of {self._described().name}",
            lease_ms=lease_ms,
            earliest=isinstance(start, str) and start == "earliest",
            whole=whole_table,
            newest=self._current,
            ledgers=self._ledgers,
            described=self._described,
            compacted=compacted,
            trusted=cursor is not None,
            midway=midway,
            where=chosen,
        )
        return Reader(self._backend, reading)

    def as_of(
        self,
        as_of: TimeLike,
        columns: Sequence[str] | None,
        wanted: Sequence[int],
        *,
        limit: int | None = None,
        on_gap: Literal["raise", "skip"],
        where: object = None,
    ) -> AsOfReader:
        """The table as it was at a time; see `Table.read`."""

        def reader(time: int) -> AsOfReader:
            return self._as_of(time, columns, wanted, limit=limit, on_gap=on_gap, where=where)

        if not isinstance(as_of, str) or as_of.strip() != "now":
            return reader(self._past(as_of))
        known = 0
        for _ in range(_NOW_ATTEMPTS):
            try:
                return reader(self._now(known=known))
            except BelowWatermark as below:
                # It was moved to a later now just now, by another clock perhaps: that one is ahead.
                known = below.watermark
        return reader(self._now(known=known))

    def _as_of(
        self,
        time: int,
        columns: Sequence[str] | None,
        wanted: Sequence[int],
        *,
        limit: int | None,
        on_gap: Literal["raise", "skip"],
        where: object,
    ) -> AsOfReader:
        # The catalog of then says which columns there were.
        then = catalog_then(self._backend, time).table(self._id)
        if then is None:
            raise Rejected(
                f"table {self._described().name} was not there at {time_text(time)}",
                hint="Look back to a time between its creation and its drop.",
            )
        if columns is None:
            columns = [column.name for column in then.columns]
        # Of the catalog of then are the columns. What rows are stored as, they say themselves,
        # by a number: one may be of a version that came into force only later.
        shape = Shape(then, columns, newest=self._described)
        chosen = None if where is None else Where(where, shape)
        why = f"table {self._described().name} is read as of then"
        backend = self._backend  # the one that has the hold reads, too
        # Drawn before it is taken: Ctrl-C at any moment from here on releases it.
        history = Hold.drawn()
        held: Hold | None = history
        try:
            try:
                backend.hold_history(time, why, hold=history)
            except BelowWatermark as below:
                self._check_own_history(backend, time, below)
                held = None  # what it reads, it holds itself; see `lowmark.table.history`
            views = backend.views(self._id, wanted, closed_at=time)
            ends = {number: view.offset_after(time) for number, view in views.items()}
            starts = {number: horizon_of(view) for number, view in views.items()}
            reading = Reading(
                shape if chosen is None else chosen.shape,
                starts,
                ends,
                limit,
                on_gap=on_gap,
                name="an as-of reader",
                newest=self._described,
                ledgers=self._ledgers,
                described=self._described,
                where=chosen,
            )
            return AsOfReader(backend, reading, time=time, history=held)
        except BaseException:
            backend.release(history)
            raise

    def _check_own_history(self, backend: Backend, time: int, below: BelowWatermark) -> None:
        """Raise if the table does not keep its own past as far back as that."""
        table = self._described()
        if table.settings.history_ms is None or backend.dropped_at(self._id) is not None:
            raise below
        wall_ms = backend.now().wall_ms
        mark = table_mark(table, watermark=below.watermark, wall_ms=wall_ms)
        if time < mark:
            raise BelowWatermark(time=time, watermark=mark, table=table.name)

    def changes(
        self,
        wanted: Sequence[int],
        *,
        start: Start | Snapshot,
        end: Start | Snapshot | None,
        columns: Sequence[str] | None,
        preimages: bool,
        net: bool,
        on_gap: Literal["raise", "skip"],
    ) -> ChangesReader:
        """What changed between two places, key by key; see `Table.changes`."""
        shape = feed_shape(self._current(), columns, self._described)
        until = self._closed_at(end)
        views = self._backend.views(self._id, wanted, closed_at=until)
        if until is not None and not isinstance(end, Snapshot):
            ends = {number: view.offset_after(until) for number, view in views.items()}
        else:
            assert end is not None
            ends = {
                number: check_commit(views[number], number, min(offset, views[number].end))
                for number, offset in self._offsets(end, views, what="end").items()
            }
        since = starts = None
        if self._is_time(start):
            since = self._time(start, what="start")
        elif start != "earliest":
            starts = self._offsets(start, views, what="start")
        # Held from where the backlog begins: what keys were before the start may be anywhere there.
        held = {
            number: view.start
            for number, view in views.items()
            if starts is None or number in starts
        }
        reading = Reading(
            shape,
            held,
            ends,
            on_gap=on_gap,
            name=f"a change feed of {self._described().name}",
            newest=self._described,
            ledgers=self._ledgers,
            described=self._described,
        )
        feed = Feed(starts, since, until, preimages=preimages, net=net)
        return ChangesReader(self._backend, reading, feed)

    def _closed_at(self, end: Start | Snapshot | None) -> int | None:
        """The time up to which a feed goes; None: its end is by offsets."""
        if isinstance(end, Snapshot):
            return end.time
        if end is None or end == "latest":
            return self._now()
        return self._past(end) if self._is_time(end) else None

    def snapshot(self, wanted: Sequence[int]) -> Snapshot:
        """Where partitions end at one moment."""
        time = self._now()
        views = self._backend.views(self._id, wanted, closed_at=time)
        ends = {number: view.offset_after(time) for number, view in views.items()}
        return Snapshot(time, ends)

    def offsets(
        self, where: Start, wanted: Sequence[int], *, what: Literal["start", "end"]
    ) -> dict[int, int]:
        """The offsets that a position stands for now."""
        views = self._backend.views(self._id, wanted)
        if what == "start" and self._is_time(where):
            return self._starts(dict.fromkeys(views, self._time(where, what=what)), views)[0]
        return self._offsets(where, views, what=what)

    def offsets_from(self, times: Mapping[int, int]) -> dict[int, int]:
        """Where readers begin that start at a time of its own in each of these partitions."""
        return self._starts(times, self._backend.views(self._id, list(times)))[0]

    def _now(self, *, known: int = 0) -> int:
        """A time above all that any partition has."""
        return self._backend.now(self._id, known=known).time

    def _past(self, given: TimeLike) -> int:
        now = self._now(known=known_in(given))
        time = parse_time(given, now=now)
        if time > now:
            raise TimeInFuture(time=time, now=now)
        return time

    def _offsets(
        self, where: Start | Snapshot, views: dict[int, View], *, what: str, compacted: bool = False
    ) -> dict[int, int]:
        if isinstance(where, Snapshot):
            where = where.ends
        if where == "earliest":
            return {number: 0 if compacted else view.start for number, view in views.items()}
        if where == "latest":
            return {number: view.end for number, view in views.items()}
        if isinstance(where, Mapping):
            offsets = check_offsets(where, what, partitions=self._described().partitions)
            found = {number: offsets[number] for number in views if number in offsets}
            return _check_starts(found, views) if what == "start" else found
        if isinstance(where, int) and not isinstance(where, bool):
            if not is_hybrid(where):
                table = self._described()
                if table.partitions > 1:
                    raise Rejected(
                        f"{what} is one offset, but table {table.name} has {table.partitions}"
                        " partitions",
                        hint="Give offsets by partition: {0: 17, 1: 4, ...}.",
                    )
                found = {number: whole(where, what) for number in views}
                return _check_starts(found, views) if what == "start" else found
        time = self._time(where, what=what)
        if what == "start":
            return self._starts(dict.fromkeys(views, time), views)[0]
        return {
            number: self._end_of(view, time, compacted=compacted) for number, view in views.items()
        }

    def _starts(
        self, times: Mapping[int, int], views: Mapping[int, View]
    ) -> tuple[dict[int, int], frozenset[int]]:
        """Where readers begin that start at a time, with all that has it; and the partitions in
        which they may know keys, though they begin at 0.
        """
        found = {
            number: self._start_of(view, None, times[number])
            for number, view in views.items()
            if not needs_ledger(view, times[number])
        }
        asked = [number for number in views if number not in found]
        if asked:
            # Held, so that no sweep comes between the view and its ledger.
            ranges = {number: ReadRange(0, 0, "beside") for number in asked}
            held = self._backend.hold(
                self._id, ranges, holder="a start at a time", why="it looks for its first row"
            )
            try:
                for number, status in held.partitions.items():
                    view, ledger = status.view, None
                    if view.ledger is not None:
                        ledger = self._ledgers.open(view.ledger, self._described)
                    found[number] = self._start_of(view, ledger, times[number])
            finally:
                self._backend.release(held.hold)
        midway = frozenset(number for number, (first, knows) in found.items() if knows)
        return {number: found[number][0] for number in views}, midway

    @staticmethod
    def _start_of(view: View, ledger: OpenLedger | None, time: int) -> tuple[int, bool]:
        first = first_from(view, ledger, time)
        return first, may_follow(view, ledger, first)

    @staticmethod
    def _is_time(where: Start | Snapshot) -> TypeGuard[TimeLike]:
        """Whether it is no place of partitions, each of its own."""
        if isinstance(where, Snapshot | Mapping) or where in ("earliest", "latest"):
            return False
        return not isinstance(where, int) or is_hybrid(where)

    def _time(self, where: TimeLike, *, what: str) -> int:
        """The time that a start or an end is at: of a millisecond its first, or its last one."""
        if isinstance(where, int) and is_hybrid(where):
            return where
        last = parse_time(where, now=self._now())
        return last if what == "end" else last >> COUNTER_BITS << COUNTER_BITS

    def _end_of(self, view: View, time: int, *, compacted: bool) -> int:
        """The first offset behind a time: in the ledger, where it counts."""
        in_backlog = view.offset_after(time)
        if not compacted or view.readable is None or in_backlog > horizon_of(view):
            return in_backlog
        ledger = self._ledgers.open(view.readable, self._described)
        offset = ledger.offset_of_time(time, after=True)
        return offset if offset < ledger.horizon else max(in_backlog, ledger.horizon)


def _check_starts(starts: dict[int, int], views: Mapping[int, View]) -> dict[int, int]:
    """Refuse to begin behind the end: no row has been there, so an offset is wrong, or rows that
    a reader knows are gone.
    """
    for number, offset in starts.items():
        if offset > views[number].end:
            raise OffsetToCome(wanted=offset, end=views[number].end, partition=number)
    return starts
