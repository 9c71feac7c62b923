"""Looks after the cluster at this node, every now and then or when it is asked to."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from lowmark.catalog import Catalogs, TableId
from lowmark.errors import LowmarkError, Rejected
from lowmark.group import Future
from lowmark.metastore import Cluster, Metastore
from lowmark.placement import Placement
from lowmark.runtime import Runtime
from lowmark.table import Advanced, LowWatermark, Partition, Tables, Tick
from lowmark.upkeep.dropped import Dropped
from lowmark.upkeep.retention import Freeing, Retained, Retention, has_retention

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look:
    """What one look came to at this node."""

    advanced: Advanced | None
    """What became of the low watermark; None: this node does not coordinate, or could not."""
    retained: tuple[Retained, ...]
    """Partitions that were cut by retention, or that somebody holds."""
    snapshots: int
    """So many copies were asked to free what was cut."""
    destroyed: tuple[tuple[TableId, int], ...]
    """Copies of dropped tables that went."""
    removed: tuple[TableId, ...]
    """Dropped tables whose assignments went."""
    errors: tuple[LowmarkError, ...]


class Upkeep:
    """One node's part. All calls are made on the loop."""

    def __init__(
        self,
        runtime: Runtime,
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
        self._dropped = Dropped(catalogs, tables, placement, watermark)
        self._forgetting: Future[int] = Future()
        """The last time that old revisions were asked to go."""
        self._looking: Future[Look] | None = None
        self._closed = False
        self.last: Look | None = None
        """What the last look came to."""

    def start(self) -> None:
        """Look every now and then from now on."""
        self._loop.call_later(self._interval_ms, self._every)

    def close(self) -> None:
        """Look no more."""
        self._closed = True

    @property
    def problem(self) -> str:
        """What went wrong at the last look, in words; empty if nothing did."""
        errors = self.last.errors if self.last is not None else ()
        return "; ".join(dict.fromkeys(error.message for error in errors))

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
            self._watermark.advance().then(lambda future: self._retain(whole, future))
        else:
            self._retain(whole, None)

    def _retain(self, whole: Future[Look], advanced: Future[Advanced] | None) -> None:
        self._mark_overdue()
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
        """A partition that nobody writes to hears of no time: have it look at its cursors."""
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
