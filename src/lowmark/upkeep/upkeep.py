"""Looks after the cluster at this node, every now and then or when it is asked to."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np

from lowmark.catalog import Catalogs, Table, TableId
from lowmark.errors import LowmarkError, Rejected
from lowmark.group import Future, Groups, together
from lowmark.holds import Hold, SafePoint
from lowmark.metastore import Cluster, Metastore
from lowmark.placement import Placement
from lowmark.runtime import COUNTER_BITS, HybridClock, Runtime, millis_of
from lowmark.table import Advanced, LowWatermark, Partition, Tables, Tick, Trim, Trimmed, View
from lowmark.upkeep.catalog_compaction import CatalogCompaction
from lowmark.upkeep.dropped import Dropped
from lowmark.upkeep.epochs import Epochs
from lowmark.upkeep.leaders import Leaders, WhoLeads

logger = logging.getLogger(__name__)

# Rows go by the age or the size of their table: of tables without a key, or with compaction=off.
#
# By age, a row goes when it is older than `retention_ms`: of a partition without writers, the
# last one too. By size, the oldest batches go until the rest has no more than `retention_bytes`;
# the newest batch stays, however large it is, so that what was just written can be read.
#
# The leader of a partition computes an offset from what it knows, and has the group cut there. The
# cut itself decides how far it goes: it passes no cursor and no lease that came before it. What
# went leaves an expired gap. As-of reads hold the low watermark, not the backlog of a table with
# retention: one that reads on for longer than rows are kept finds the gap.


@dataclass(frozen=True, slots=True)
class Retained:
    """What retention did to one partition, or would do."""

    table: TableId
    number: int
    start: int
    """Where the backlog began."""
    wanted: int
    """Rows below this offset are too many, or too old."""
    cut: int
    """Where it begins now: lower than wanted if a reader holds it, or a batch straddles it."""
    bytes: int
    """What went, as it was in the log."""
    held_by: tuple[Hold, ...]

    @property
    def rows(self) -> int:
        """This many rows went."""
        return self.cut - self.start


def has_retention(table: Table) -> bool:
    """Whether rows of a table go by age or size."""
    settings = table.settings
    limited = settings.retention_ms is not None or settings.retention_bytes is not None
    return limited and (not table.key or settings.compaction == "off")


def expired_before(view: View, table: Table, *, now_ms: int) -> int:
    """Below this offset rows are too many, or too old."""
    settings, offset = table.settings, view.start
    if not view.count:
        return offset
    if settings.retention_ms is not None:
        since_ms = max(now_ms - settings.retention_ms, 0)
        offset = max(offset, view.offset_from(since_ms << COUNTER_BITS))
    if settings.retention_bytes is not None:
        sizes = np.cumsum(view.size, dtype=np.uint64)
        surplus = int(sizes[-1]) - settings.retention_bytes
        if surplus > 0:
            # The first batches that have the surplus between them; never the newest.
            gone = int(np.searchsorted(sizes, np.uint64(surplus), side="left")) + 1
            offset = max(offset, int(view.first[min(gone, view.count - 1)]))
    return offset


class Retention:
    """Applies it to partitions that this node leads."""

    def __init__(self, clock: HybridClock, catalogs: Catalogs) -> None:
        self._clock = clock
        self._catalogs = catalogs

    def run(
        self, partitions: Iterable[Partition], *, dry_run: bool = False
    ) -> Future[list[Future[Retained]]]:
        """Cut what is too old or too much; resolves when all have their answer."""
        catalog, answers = self._catalogs.latest, []
        for partition in partitions:
            table = catalog.table(partition.table)
            if table is not None and has_retention(table) and partition.group.ready:
                answers.append(self._one(partition, table, dry_run=dry_run))
        return together(answers)

    def _one(self, partition: Partition, table: Table, *, dry_run: bool) -> Future[Retained]:
        now = self._clock.now()
        view = partition.view
        offset = expired_before(view, table, now_ms=millis_of(now))
        trim = Trim(offset, expire=True)

        def retained(safe: SafePoint) -> Retained:
            cut = max(safe.position, view.start)
            went = view.bytes_from(view.start) - view.bytes_from(cut)
            held = safe.held_by if safe.position < offset else ()
            return Retained(table.id, partition.number, view.start, offset, cut, went, held)

        if offset <= view.start:
            return Future.of(retained(SafePoint(view.start, offset, ())))
        if dry_run:
            return Future.of(retained(partition.state.would_trim(trim, now)))
        try:
            asked = partition.ask(trim)
        except LowmarkError as error:
            return Future.failed(error)
        return asked.map(lambda outcome: retained(cast("Trimmed", outcome).safe))


FREED_BYTES_MIN = 64 << 20
"""As much as a segment has by default."""


@dataclass(frozen=True, slots=True)
class _Tally:
    """A backlog as it was at the last look."""

    start: int
    end: int
    bytes: int
    freed: int = 0
    """What went since the last snapshot that was asked for."""


class Freeing:
    """Asks for a snapshot where a cut has left much in the log that is not needed.

    A cut changes what is live; files go when a snapshot says so (phase 1 of the log). Each member
    has its own log, so every node looks at its own copies. A snapshot costs something, too: it is
    asked for when what it would free is a quarter of the backlog, or more than a segment.

    A process that starts anew begins to count anew: a snapshot by age comes in any case.
    """

    def __init__(self) -> None:
        self._tallies: dict[tuple[TableId, int], _Tally] = {}

    def look(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Have a snapshot taken where it is worth it; gives where."""
        worth, tallies = [], {}
        for partition in partitions:
            key = partition.table, partition.number
            tally = _grown(self._tallies.get(key), partition.view)
            if 4 * tally.freed >= tally.freed + tally.bytes > 0 or tally.freed >= FREED_BYTES_MIN:
                worth.append(partition)
                partition.group.snapshot()
                tally = _Tally(tally.start, tally.end, tally.bytes)
            tallies[key] = tally
        self._tallies = tallies
        return worth


def _grown(old: _Tally | None, view: View) -> _Tally:
    """What became of a backlog since the last look; counts only what is new, if nothing went."""
    if old is None:
        return _Tally(view.start, view.end, _bytes_of(view))
    grown = view.bytes_from(old.end) if view.end > old.end else 0
    if view.start <= old.start:
        return _Tally(old.start, view.end, old.bytes + grown, old.freed)
    left = _bytes_of(view)
    freed = max(old.bytes + grown - left, 0)
    return _Tally(view.start, view.end, left, old.freed + freed)


def _bytes_of(view: View) -> int:
    return int(view.size.sum(dtype=np.uint64))


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look:
    """What one look came to at this node."""

    advanced: Advanced | None
    """What became of the low watermark; None: this node does not coordinate, or could not."""
    retained: tuple[Retained, ...]
    """Partitions that were cut by retention, or that a reader holds."""
    snapshots: int
    """This many copies were asked to free what was cut."""
    handed_over: int
    """This many partitions shall be led by another node from now on."""
    destroyed: tuple[tuple[TableId, int], ...]
    """Copies of dropped tables that went."""
    removed: tuple[TableId, ...]
    """Dropped tables whose keys in the metastore went."""
    errors: tuple[LowmarkError, ...]


class Upkeep:
    """One node's part. All calls are made on the loop."""

    def __init__(
        self,
        runtime: Runtime,
        groups: Groups,
        cluster: Cluster,
        catalogs: Catalogs,
        tables: Tables,
        placement: Placement,
        watermark: LowWatermark,
        *,
        interval_ms: int,
    ) -> None:
        self._loop = runtime.loop
        self._metastore = cluster.metastore
        self._catalogs = catalogs
        self._tables = tables
        self._watermark = watermark
        self._interval_ms = interval_ms
        self._clock = runtime.clock
        self._retention = Retention(runtime.clock, catalogs)
        self._freeing = Freeing()
        self._epochs = Epochs(runtime.loop, runtime.clock, catalogs, tables)
        self.should_lead = WhoLeads(placement, catalogs)
        self._leaders = Leaders(
            should_lead=self.should_lead, now_ms=lambda: runtime.loop.elapsed_us() // 1_000
        )
        self._dropped = Dropped(cluster.metastore, catalogs, tables, placement, watermark)
        self.catalog = CatalogCompaction(
            runtime, groups, cluster, catalogs, tables, placement, watermark
        )
        self._forgetting: Future[int] = Future()
        """The last time that old revisions were asked to go."""
        self._looking: Future[Look] | None = None
        self._closed = False
        self.last: Look | None = None
        """What the last look came to."""

    def start(self) -> None:
        """Look every now and then from now on."""
        self.catalog.start()
        self._loop.call_later(self._interval_ms, self._every)

    def close(self) -> None:
        """Look no more."""
        self._closed = True
        self.catalog.close()

    @property
    def problem(self) -> str:
        """What went wrong at the last look, in words; empty if nothing did."""
        errors = self.last.errors if self.last is not None else ()
        words = [*(error.message for error in errors), self.catalog.problem]
        return "; ".join(dict.fromkeys(filter(None, words)))

    def _every(self) -> None:
        if self._closed:
            return
        self._loop.call_later(self._interval_ms, self._every)
        if self._looking is None:
            self.tick()

    # -- one look -------------------------------------------------------------------------------

    def tick(self) -> Future[Look]:
        """Look once, now; if a look is under way, right after it."""
        whole: Future[Look] = Future()
        if self._looking is not None:
            self._looking.then(lambda _: self.tick().then(whole.follow))
            return whole
        self._looking = whole
        whole.then(self._looked)
        self._advance(whole)
        return whole

    def _looked(self, whole: Future[Look]) -> None:
        self._looking = None
        self.last = whole.result()
        for error in self.last.errors:
            logger.warning("upkeep failed", extra={"reason": error.message})

    def _advance(self, whole: Future[Look]) -> None:
        if self._metastore.coordinates:
            self._forgetting = forget_old_revisions(self._metastore)
            # History begins where the catalog does: a watermark below that promises too much.
            floor = self._catalogs.earliest.activates_at
            self._watermark.advance(at_least=floor).then(lambda future: self._retain(whole, future))
        else:
            self._retain(whole, None)

    def _retain(self, whole: Future[Look], advanced: Future[Advanced] | None) -> None:
        self._mark_overdue()
        self._epochs.look(self._open_copies())
        self._retention.run(self._open_copies()).then(
            lambda retained: self._free(whole, advanced, retained.result())
        )

    def _free(
        self,
        whole: Future[Look],
        advanced: Future[Advanced] | None,
        retained: list[Future[Retained]],
    ) -> None:
        snapshots = self._freeing.look(self._open_copies())
        handed_over = self._leaders.look(self._open_copies())
        destroyed: list[tuple[TableId, int]] = []
        errors: list[LowmarkError] = []
        removing: Future[list[Future[TableId]]] = Future.of([])
        try:
            destroyed = self._dropped.destroy_copies()
            if self._metastore.coordinates:
                removing = self._dropped.remove_assignments()
        except LowmarkError as error:  # the watermark can't be read here
            errors.append(error)

        def done(removed: Future[list[Future[TableId]]]) -> None:
            keys = removed.result()
            moved = [] if advanced is None else [advanced]
            whole.resolve(
                Look(
                    next(iter(_values(moved)), None),
                    tuple(one for one in _values(retained) if one.rows or one.held_by),
                    len(snapshots),
                    handed_over,
                    tuple(destroyed),
                    tuple(_values(keys)),
                    (
                        *_errors(moved),
                        *_errors([self._forgetting]),
                        *_errors(retained),
                        *errors,
                        *_errors(keys),
                    ),
                )
            )

        removing.then(done)

    def _mark_overdue(self) -> None:
        """A partition without writers hears of no time: have it look at its cursors."""
        now = self._clock.now()
        for partition in self._open_copies():
            if partition.group.ready and partition.state.overdue_at(now):
                partition.ask(Tick())

    def _open_copies(self) -> list[Partition]:
        return [one for one in self._tables.all() if one.group.stopped is None]

    # -- by hand --------------------------------------------------------------------------------

    def retain(self, table: TableId, *, dry_run: bool = False) -> Future[list[Retained]]:
        """Apply a table's retention now to the partitions that this node leads; by number."""
        found = self._catalogs.latest.table(table)
        if found is None:
            return Future.failed(Rejected(f"there is no table {table}"))
        if not has_retention(found):
            return Future.failed(
                Rejected(
                    f"table {self._catalogs.latest.name_of(found)} has no retention",
                    hint="Set retention_ms or retention_bytes; a table with a key needs"
                    " compaction=off, too.",
                )
            )
        copies = [one for one in self._open_copies() if one.table == table]
        answers = self._retention.run(copies, dry_run=dry_run)
        return answers.map(lambda futures: [future.result() for future in futures])


def _values(futures: Iterable[Future[T]]) -> list[T]:
    return [future.result() for future in futures if future.error is None]


def _errors(futures: Iterable[Future[T]]) -> list[LowmarkError]:
    return [future.error for future in futures if future.error is not None]


REVISIONS_KEPT = 10_000
"""To see what became of a key lately."""


def forget_old_revisions(metastore: Metastore, *, kept: int = REVISIONS_KEPT) -> Future[int]:
    """Compact the metastore if there are many more than are kept; gives the first one left.

    For the coordinator. Twice as many are let pile up, so that this is rare. Watches and readers
    hold what they need by leases; what the catalog and placement need stands in keys of their own,
    whose values in force always stay.
    """
    state = metastore.state
    if state.latest - state.compacted < 2 * kept:
        return Future.of(state.compacted)
    return metastore.compact(state.latest - kept).map(lambda cut: cut.compacted)
