"""The port, answered by a node inside this process.

What a call needs of the node it asks on the node's loop, and waits for on the caller's thread. Rows
are read on the caller's thread, too: the loop only says where they are.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal, TypeVar, cast

import msgspec
from pyroaring import BitMap64

from lowmark.backend.changes import Changes
from lowmark.backend.embedded_append import EmbeddedAppender
from lowmark.backend.errors import (
    BatchesMoved,
    HoldUnknown,
    OutcomeUnknown,
    PartitionReset,
    PartlyMade,
    RequestRefused,
    could_not_be_asked,
)
from lowmark.backend.node_thread import NodeThread
from lowmark.backend.uses import FileUses
from lowmark.backend.values import (
    ALL_FILES,
    NOBODY,
    Answer,
    Asker,
    BatchRange,
    DatabaseInfo,
    Held,
    Hold,
    Moment,
    Numbered,
    PartitionStatus,
    ReadRange,
    Staging,
)
from lowmark.catalog import Catalog, Command, Executed, TableId, check_buildable
from lowmark.catalog.errors import VersionCompacted
from lowmark.errors import LowmarkError, Unavailable
from lowmark.group import Future, Lineages, open_command, outdated, when_all
from lowmark.holds import Hold as BacklogHold
from lowmark.holds import Span
from lowmark.ids import group_name
from lowmark.ledger import Tail, tail_of
from lowmark.ledger.claim import LedgersUnseen, check_claim, claim
from lowmark.log import Damaged, EntryGone, ReadPlan, ReferenceExpired, files
from lowmark.metastore import Condition, Do, Entry, Operation, RemoveRange
from lowmark.node import NodeSilent, Settings
from lowmark.node.callers import current_caller
from lowmark.node.messages import only_looks
from lowmark.runtime import Buffer, HybridTime, millis_of, place_of, together
from lowmark.runtime.disk import StoreFailed
from lowmark.runtime.memory import Memory
from lowmark.runtime.store import Store, place_of_location
from lowmark.table import (
    Advanced,
    AsOfHold,
    Control,
    Distant,
    Outcome,
    Partition,
    State,
    Trimmed,
    View,
    WatermarkStanding,
)
from lowmark.tokens.records import ACCESS_PREFIX, check_open, check_open_range
from lowmark.upkeep.dropped import dropped_at

logger = logging.getLogger(__name__)

T = TypeVar("T")

_EXECUTE_S = 60.0
_FLUSH_S = 60.0
_STUCK_S = 3.0
"""How long the segment writer may lack space, handles or memory before a run says so."""
_PLANNED_MAX = 4_096
"""How many batches the loop looks up in one turn."""
_RANGES_MAX = 32
"""Of how many ranges the loop says in one turn where they are."""
_ATTEMPTS = 20

_memory = Memory()


@dataclass(slots=True, eq=False)
class _Kept:
    """What a hold keeps."""

    ends: list[Callable[[], object]] = field(default_factory=list)
    """End it, on the loop."""
    changes: Changes = field(default_factory=Changes)
    followed: list[Partition] = field(default_factory=list)
    """The partitions whose changes `changes` counts."""
    files: dict[int, Hold] = field(default_factory=dict)
    """What keeps the files of ledgers, by partition."""
    held: Held | None = None
    """What its caller was given."""
    starts: dict[tuple[TableId, int], int] = field(default_factory=dict)
    """By partition, the first offset of the backlog that it reads."""
    holder: tuple[str, str, str] = ("", "", "")
    """Who has it, of what kind, and why."""
    since_ms: int = 0
    history: AsOfHold | None = None


class Embedded(NodeThread):
    """A database in a directory of this machine, which belongs to this process while it is open.

    See `Backend` for what each call is for.
    """

    def __init__(
        self, data: str | os.PathLike[str], settings: Settings, *, read_only: bool = False
    ) -> None:
        super().__init__(Path(data), settings, read_only=read_only)
        try:
            self._settle_in()
        except BaseException:
            self.abandon()
            raise

    def _settle_in(self) -> None:
        """Wait until everything that is there can be used."""
        node = self.node
        assert node.catalogs is not None
        assert node.tables is not None
        assert node.watermark is not None
        self.catalogs = node.catalogs
        self.tables = node.tables
        self.mark = node.watermark
        self._metastore = node.cluster.metastore
        self._latest: Catalog | None = None
        self._readers = count()
        self._kept: dict[int, _Kept] = {}
        self._attempting = threading.Lock()
        self._awaited: dict[int, list[object]] = {}
        """By the numbers of holds that are being taken: the attempts that a caller waits for."""
        self._file_holds: dict[int, list[Callable[[], None]]] = {}
        self.uses = FileUses()
        self.distant: set[int] = set()
        """The numbers of holds whose holders outlive this process: clients of a server. No cut
        passes what they read: else a part of it would be gone with this process, which alone knows
        that it is held."""
        self.served_at: list[str] = []
        """The addresses of servers that answer for it."""
        self._known: dict[tuple[TableId, int], weakref.ref[Partition]] = {}
        """Copies that were found, as long as the node has them."""
        self._asking = threading.local()
        """Who asks, by the thread that answers."""
        self.wait_for_catalog()
        self.info = self._info()
        self.store = Store(self.info.ledger_location)
        self._claim_ledgers()
        self.store.owner = self.info.ledger_owner
        self.wait_for_copies()
        self.tables.holding_cuts.append(self._cut_holds)

    def _cut_holds(self, partition: Partition) -> Iterator[BacklogHold]:
        """On the loop: what no cut of a partition may pass."""
        for number in list(self.distant):  # other threads add to it
            kept = self._kept.get(number)
            start = None if kept is None else kept.starts.get((partition.table, partition.number))
            if kept is not None and start is not None and kept.holder[1] == "reader":
                holder, kind, why = kept.holder  # a run has a lease besides, which is durable
                yield BacklogHold(
                    holder=holder, kind=kind, pins=Span(start), since_ms=kept.since_ms, why=why
                )

    def _info(self) -> DatabaseInfo:
        settled, settings = self.node.cluster.settings, self.node.settings
        location, own = settled.ledger_location, settings.ledger.location
        if location and own and place_of_location(own) == place_of_location(location):
            location = own  # the place is settled, and how this node reaches it is not
        return DatabaseInfo(
            name=str(self.data),
            cluster=settled.id,
            ledger_location=location or self._ledger_home(),
            ledgers_elsewhere=bool(settled.ledger_location),
            data_path=str(self.data.absolute()),
            watermark_availability_ms=settled.watermark_availability_ms,
            grace_ms=settings.ledger.grace_ms,
            request_timeout_ms=settings.group.request_timeout_ms,
            ledgers_claimed=bool(settled.ledger_location),
        )

    def _claim_ledgers(self) -> None:
        """Ledgers of another database must not be swept by this one.

        A database that has tables was opened before, so the place is claimed: it may be away now,
        and what needs no ledger is done all the same. A run looks for the claim by itself.
        """
        if not self.info.ledgers_claimed:
            return
        if not self.catalog().tables:
            claim(self.store, self.info.cluster)
        elif self.info.ledger_location != self.node.cluster.settings.ledger_location:
            try:  # another way there, by this process's settings: it must lead to the same place
                check_claim(self.store, self.info.cluster)
            except LedgersUnseen as unseen:
                if not isinstance(unseen.__cause__, StoreFailed):
                    raise

    def _ledger_home(self) -> str:
        """Where ledgers are, if the cluster has settled nothing: in the directory."""
        return str(self.data.absolute() / files.LEDGERS)

    @property
    def lineages(self) -> Lineages:
        """See `Backend`."""
        return self.tables.lineages

    @property
    def caller(self) -> str:
        """See `Backend`."""
        return current_caller().token

    @property
    def open_at(self) -> tuple[str, ...]:
        """See `Backend`."""
        return tuple(self.node.open_at)

    def members(self) -> tuple[str, ...]:
        """Where clients reach the nodes of the cluster, if there are several; for a server."""
        return ()

    def now(
        self, table: TableId | None = None, *, known: int = 0, timeout_s: float | None = None
    ) -> Moment:
        """See `Backend`."""
        self.check_callers_of(table)
        return self.now_here(table, known=known, timeout_s=timeout_s)

    def check_callers_of(self, table: TableId | None) -> None:
        """Refuse who has seen a later lineage of a partition than a copy here is of."""
        asker = self._asker
        if table is not None and (asker.lineages or self.lineages):
            copies = self.ask_now(lambda: self.tables.of(table))
            for one in copies:
                self._check_caller(one)

    def now_here(
        self, table: TableId | None = None, *, known: int = 0, timeout_s: float | None = None
    ) -> Moment:
        """As `now`, of the partitions that have a copy at this node."""
        ends_at = self._ends_at(timeout_s)

        def look(views: Sequence[View] = ()) -> Moment:
            clock = self.node.runtime.clock
            self._follow_time(known)
            closed = max((view.closed for view in views), default=0)
            clock.follow_log(closed)  # by this clock, though it may be behind now
            return Moment(max(int(clock.now()), closed + 1), clock.wall_ms())

        def latest() -> Future[Moment]:
            # Rows have times of their leaders' clocks, which may be ahead of this one.
            # One that has stopped takes no rows any more, and knows of those that it had.
            copies = self.tables.of(table) if table is not None else []
            stopped = [one.view for one in copies if one.group.stopped is not None]
            sound = [one for one in copies if one.group.stopped is None]
            return when_all([one.latest() for one in sound]).map(lambda new: look([*new, *stopped]))

        return self.ask(latest, timeout_s=_left(ends_at))

    def latest_time(self) -> int:
        """No answer of this node has shown a later one. On any thread."""
        return self.node.runtime.clock.latest

    def _follow_time(self, time: int) -> None:
        """On the loop: take note of a time that a caller has, which another clock may have given.
        One that is too far ahead is yet to come, and refused as that where it counts.
        """
        clock = self.node.runtime.clock
        if not clock.alone:  # else no other clock gave it
            clock.follow(time)

    # -- the catalog ----------------------------------------------------------------------------

    def catalog(self, *, fresh: bool = False) -> Catalog:
        """See `Backend`."""
        del fresh  # it always is
        latest = self.catalogs.history.latest
        if latest is self._latest:
            return latest
        # The last one that all listeners here have got, not the one of a time: clocks may jump,
        # and in one process there is no other node that could still be using the one before.
        try:
            found = self.catalogs.version(self.catalogs.ready_version)
        except VersionCompacted:  # listeners are late, and history was cut past what they know
            found = self.catalogs.earliest
        if found is latest:
            self._latest = latest
        return found

    def catalog_at(self, time: int, *, timeout_s: float | None = None) -> Catalog:
        """See `Backend`."""
        return self.ask(lambda: self.catalogs.at(HybridTime(time)), timeout_s=timeout_s)

    def execute(self, commands: Sequence[Command], *, timeout_s: float | None = None) -> Executed:
        """See `Backend`."""
        wait_s = _EXECUTE_S if timeout_s is None else timeout_s
        check_buildable(commands)
        by = current_caller().token
        return self._ask_change(
            lambda: self.catalogs.execute(commands, by=by), of="metastore", timeout_s=wait_s
        )

    def dropped_at(self, table: TableId) -> int | None:
        """See `Backend`."""
        return dropped_at(self.catalogs, table)

    # -- the low watermark ----------------------------------------------------------------------

    def watermark(
        self, *, latest: bool = False, timeout_s: float | None = None
    ) -> WatermarkStanding:
        """See `Backend`."""
        ends_at = self._ends_at(timeout_s)
        if latest:
            self.ask(self.mark.read, timeout_s=_left(ends_at))
        return self.ask_now(self.mark.standing, timeout_s=_left(ends_at))

    def advance_watermark(
        self, to: int | None = None, *, timeout_s: float | None = None
    ) -> Advanced:
        """See `Backend`."""

        def advance() -> Future[Advanced]:
            if to is not None:
                self._follow_time(to)
            return self.mark.advance(to)

        return self.ask(advance, timeout_s=timeout_s)

    def hold_history(
        self,
        time: int,
        why: str,
        *,
        hold: Hold | None = None,
        timeout_s: float | None = None,
    ) -> Hold:
        """See `Backend`."""
        mine = hold or Hold.drawn()
        number = mine.number
        attempt = self._attempt(number)

        def take() -> Future[Hold]:
            if number in self._kept:
                return Future.of(mine)
            future = self.mark.hold(time, why)
            future.then(done)
            return future.map(lambda _: mine)

        def done(future: Future[AsOfHold]) -> None:
            if future.error is not None:
                return
            history = future.result()
            if self._is_awaited(number, attempt) and number not in self._kept:
                self._kept[number] = _Kept([history], history=history)
            else:
                history()

        try:
            return self.ask(take, timeout_s=timeout_s)
        except BaseException:
            if hold is None:
                self.release(mine)  # its caller does not know of it
            raise
        finally:
            self._attempt_over(number, attempt)

    def _attempt(self, number: int) -> object:
        """A caller is about to wait for a hold. It may give up, and may ask again meanwhile: what
        is there when its last attempt is given up, is let go.
        """
        attempt = object()
        with self._attempting:
            self._awaited.setdefault(number, []).append(attempt)
        return attempt

    def _is_awaited(self, number: int, attempt: object) -> bool:
        return attempt in self._awaited.get(number, ())

    def _attempt_over(self, number: int, attempt: object) -> None:
        """On any thread."""
        with self._attempting:
            attempts = self._awaited[number]
            attempts.remove(attempt)
            if not attempts:
                del self._awaited[number]

    def history_lost(self, hold: Hold, *, timeout_s: float | None = None) -> int | None:
        """See `Backend`."""

        def look() -> int | None:
            kept = self._kept.get(hold.number)
            if kept is None or kept.history is None:
                raise HoldUnknown(hold.number)
            return kept.history.passed_by if kept.history.lost else None

        return self.ask_now(look, timeout_s=timeout_s)

    # -- rows in --------------------------------------------------------------------------------

    def appender(self, table: TableId, *, producer: bytes, epoch: int = 0) -> EmbeddedAppender:
        """See `Backend`."""
        return EmbeddedAppender(
            self,
            self.tables,
            table,
            described=lambda: self.catalog().table(table),
            producer=producer,
            epoch=epoch,
        )

    def put(self, numbered: Sequence[Numbered]) -> None:
        """Have batches stored under the numbers that they have: for a server, whose clients number
        them. Each is answered on the loop, which must not wait for anything there.
        """
        self.check()
        asker = self._asker
        self.tell(lambda: self._put(numbered, asker))

    def _put(self, numbered: Sequence[Numbered], asker: Asker) -> None:
        """On the loop."""
        for one in numbered:
            try:
                way = self._way(asker, one.table, one.partition)
                future = way.propose(one.room, in_place=True)
            except LowmarkError as error:
                future = Future.failed(error)
            future.then(partial(_answer, one))

    def epoch_of(
        self,
        table: TableId,
        producer: bytes,
        *,
        partitions: Collection[int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """See `Backend`."""
        ends_at = self._ends_at(timeout_s)
        copies = self._copies(table, partitions, ends_at=ends_at).values()
        epochs = self.ask(
            lambda: when_all(
                [one.read(lambda state: state.producers.epoch_of(producer)) for one in copies]
            ),
            timeout_s=_left(ends_at),
        )
        return max((epoch for epoch in epochs if epoch is not None), default=0)

    # -- rows out -------------------------------------------------------------------------------

    def asked_by(self, asker: Asker) -> None:
        """Who asks what this thread asks next: a client of a server."""
        self._asking.asker = asker

    @property
    def _asker(self) -> Asker:
        return getattr(self._asking, "asker", NOBODY)

    def _answering(self, asker: Asker, table: TableId, number: int) -> Partition:
        """On the loop: a copy that may answer who asks."""
        return self.tables.answering(table, number, asker.at_least(group_name(table, number)))

    def _way(self, asker: Asker, table: TableId, number: int) -> Partition | Distant:
        """On the loop: the way of a command that was asked for."""
        at_least = asker.at_least(group_name(table, number))
        return self.tables.way(table, number, at_least=at_least)

    def _check_caller(self, copy: Partition) -> None:
        """Refuse what a copy must not answer any more. On any thread."""
        asker = self._asker
        if asker.lineages or self.lineages or copy.lineage:
            copy.check_caller(asker.at_least(copy.name))

    def _given(self, copy: Partition, view: View, asker: Asker) -> View:
        """A view as it is given out: with its lineage, to all that know what that is."""
        lineage = copy.lineage
        return replace(view, lineage=lineage) if lineage and asker.lineages is not None else view

    def _copies(
        self, table: TableId, numbers: Collection[int] | None = None, *, ends_at: float
    ) -> dict[int, Partition]:
        """Copies at this node, of all partitions if none is named: found out in one turn of the
        loop at most. May be asked on any thread.
        """
        if numbers is None:
            described = self.catalogs.latest.table(table)
            if described is None:
                there = self.ask_now(lambda: self.tables.of(table), timeout_s=_left(ends_at))
                return {one.number: one for one in there}
            numbers = range(described.partitions)
        found: dict[int, Partition] = {}
        for number in numbers:
            known = self._known.get((table, number))
            copy = known() if known is not None else None
            if copy is None or copy.group.stopped is not None:
                break  # one that was stopped may have been replaced
            self._check_caller(copy)
            found[number] = copy
        else:
            return found
        asker = self._asker
        there = self.ask_now(
            lambda: [self._answering(asker, table, number) for number in numbers],
            timeout_s=_left(ends_at),
        )
        self._known.update({(table, one.number): weakref.ref(one) for one in there})
        for key, known in list(self._known.items()):
            if known() is None:
                self._known.pop(key, None)
        return {one.number: one for one in there}

    def _ends_at(self, timeout_s: float | None) -> float:
        """When a call is over, however many questions it asks."""
        return time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    def view(
        self,
        table: TableId,
        partition: int,
        *,
        latest: bool = False,
        timeout_s: float | None = None,
    ) -> View:
        """See `Backend`."""
        self.check()
        known = self._known.get((table, partition))
        copy = known() if known is not None else None
        if copy is not None and copy.alone:  # of nearly all, and a look-up asks each time
            self._check_caller(copy)
            return self._given(copy, copy.view, self._asker)
        ends_at = self._ends_at(timeout_s)
        copy = self._copies(table, (partition,), ends_at=ends_at)[partition]
        if not latest or copy.alone:
            return self._given(copy, copy.view, self._asker)
        return self._given(copy, self.ask(copy.latest, timeout_s=_left(ends_at)), self._asker)

    def views(
        self,
        table: TableId,
        partitions: Collection[int],
        *,
        closed_at: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[int, View]:
        """See `Backend`."""
        self.check()
        ends_at = self._ends_at(timeout_s)
        asked = list(self._copies(table, partitions, ends_at=ends_at).items())
        if closed_at is not None:
            views = self.ask(
                partial(self._closed_views, asked, closed_at), timeout_s=_left(ends_at)
            )
        elif all(one.alone for _, one in asked):
            views = [one.view for _, one in asked]
        else:
            views = self.ask(
                lambda: when_all([one.latest() for _, one in asked]), timeout_s=_left(ends_at)
            )
        asker = self._asker
        return {
            number: self._given(one, view, asker)
            for (number, one), view in zip(asked, views, strict=True)
        }

    def _closed_views(
        self, copies: Sequence[tuple[int, Partition]], time: int
    ) -> Future[list[View]]:
        """On the loop."""
        self._follow_time(time)
        return when_all([one.closed(time) for _, one in copies])

    def status(
        self,
        table: TableId,
        partitions: Collection[int] | None = None,
        *,
        latest: bool = True,
        timeout_s: float | None = None,
    ) -> dict[int, PartitionStatus]:
        """See `Backend`."""
        wanted, asker = None if partitions is None else set(partitions), self._asker

        def look() -> Future[list[PartitionStatus]]:
            if wanted is None:
                copies = [
                    one
                    for one in self.tables.of(table)
                    if one.serves_caller(asker.at_least(one.name))
                ]
            else:
                copies = [self._answering(asker, table, number) for number in sorted(wanted)]
            if not latest:
                return Future.of([self._status(one, one.state, asker) for one in copies])
            return when_all(
                [one.read(lambda state, one=one: self._status(one, state, asker)) for one in copies]  # type: ignore[misc]
            )

        found = self.ask(look, timeout_s=timeout_s)
        return {one.partition: one for one in found}

    def _status(self, partition: Partition, state: State, asker: Asker) -> PartitionStatus:
        """On the loop."""
        wall_ms = self.node.runtime.clock.wall_ms()
        return PartitionStatus(
            partition.number,
            self._given(partition, state.backlog.view, asker),
            state.expired,
            tuple(state.cursors.values()),
            tuple(state.leases.values()),
            max(wall_ms, millis_of(HybridTime(state.closed))),
            wall_ms,
            partition.group.stopped,
            _staging(state) if state.staged else None,
        )

    def hold(
        self,
        table: TableId,
        ranges: Mapping[int, ReadRange],
        *,
        kind: Literal["reader", "run"] = "reader",
        holder: str,
        why: str,
        hold: Hold | None = None,
        timeout_s: float | None = None,
    ) -> Held:
        """See `Backend`."""
        mine = hold or Hold.drawn()
        name = f"{holder} {next(self._readers)}" if kind == "reader" else holder
        asker = self._asker
        attempt = self._attempt(mine.number)

        def take() -> Held:
            there = self._kept.get(mine.number)
            if there is not None and there.held is not None:
                if there.held.partitions.keys() != ranges.keys():
                    raise RequestRefused(
                        "a hold that is asked for again is of other partitions than before",
                        hint="Draw another number for it.",
                    )
                return there.held
            if not self._is_awaited(mine.number, attempt):
                raise HoldUnknown(mine.number)  # its caller has given up
            kept, found = _Kept(since_ms=self.node.loop.wall_ms(), holder=(name, kind, why)), {}
            try:
                for one, wanted in sorted(ranges.items()):
                    partition = self._answering(asker, table, one)
                    found[one] = self._status(partition, partition.state, asker)
                    self._keep(kept, partition, wanted)
            except BaseException:
                _call_all(kept.ends)
                raise
            self._kept[mine.number] = kept
            kept.held = Held(mine, found, kept.files)
            return kept.held

        def latest() -> Future[Held]:
            copies = [self._answering(asker, table, one) for one in ranges]
            return when_all([one.latest() for one in copies]).map(lambda _: take())

        try:
            return self.ask(latest, timeout_s=timeout_s)
        except BaseException:
            if hold is None:
                self.release(mine)  # its caller does not know of it
            raise
        finally:
            self._attempt_over(mine.number, attempt)

    def _keep(self, kept: _Kept, partition: Partition, wanted: ReadRange) -> None:
        """On the loop: what of one partition is kept by a hold."""
        view = partition.view
        start = wanted.start
        ledger = view.readable if wanted.ledger == "below" else view.ledger
        if wanted.ledger != "none" and ledger is not None:
            files = kept.files[partition.number] = self.hold_files([ledger.manifest])
            kept.ends.append(lambda: self._end_files(files))
            if wanted.ledger == "below":
                start = max(start, ledger.horizon)
        if wanted.end is None:
            kept.ends.append(partition.follow(kept.changes.add))
            kept.followed.append(partition)
            return
        end = min(wanted.end, view.end)
        if start >= end:
            return
        holder, kind, why = kept.holder
        kept.starts[partition.table, partition.number] = start
        pins = BitMap64(view.places[view.batch_at(start) : view.batch_at(end - 1) + 1])
        log = partition.group.log
        log.hold(holder, kind=kind, pins=pins, why=why)
        kept.ends.append(lambda: log.release(holder, kind))

    def follow_here(self, kept: _Kept, table: TableId, numbers: Sequence[int]) -> None:
        """On the loop: have a hold hear of changes of partitions that are here now."""
        for number in numbers:
            partition = self.tables.get(table, number)
            kept.ends.append(partition.follow(kept.changes.add))
            kept.followed.append(partition)

    def wait(self, hold: Hold, timeout_s: float, *, seen: int = 0) -> int:
        """See `Backend`."""
        kept = self._kept.get(hold.number)
        if kept is None:
            self.check()  # closed in between: that says more
            raise HoldUnknown(hold.number)
        for one in kept.followed:
            stopped = one.group.stopped
            if stopped is not None:
                self.check()  # closed in between: that says more
                raise stopped.again()
            self._check_caller(one)
        return kept.changes.wait(seen, timeout_s)

    def release(self, hold: Hold) -> None:
        """See `Backend`."""
        if self._end_files(hold):
            return
        kept = self._kept.get(hold.number)
        if kept is not None:
            kept.changes.add()  # a thread that waits goes on, and finds out
        if not self.closed:
            self.tell(lambda: self._end(hold.number))

    def _end_files(self, hold: Hold) -> bool:
        """On any thread; False if it is no hold of files, or has ended."""
        ends = self._file_holds.pop(hold.number, None)
        _call_all(ends or ())
        return ends is not None

    def _end(self, number: int) -> None:
        """On the loop."""
        self.distant.discard(number)
        kept = self._kept.pop(number, None)
        if kept is not None:
            _call_all(kept.ends)

    def batches(
        self,
        table: TableId,
        partition: int,
        ranges: Sequence[BatchRange],
        *,
        held: bool,
        timeout_s: float | None = None,
    ) -> Iterator[list[Buffer]]:
        """See `Backend`."""
        ends_at = self._ends_at(timeout_s)
        copy = self._copies(table, (partition,), ends_at=ends_at)[partition]
        for at in range(0, len(ranges), _RANGES_MAX):
            some = ranges[at : at + _RANGES_MAX]
            for one in some if self._asker.lineages is not None else ():
                _check_lineage(copy, one)
            plans = self._plans(copy, some, ends_at)[::-1] if held and len(some) > 1 else []
            for one in some:  # a plan may have entries in it: it goes when it was carried out
                plan = plans.pop() if plans else None
                yield self._fetch(copy, one, held=held, plan=plan, ends_at=ends_at)
                ends_at = self._ends_at(timeout_s)  # its caller may have taken long

    def _plans(
        self, copy: Partition, ranges: Sequence[BatchRange], ends_at: float
    ) -> list[ReadPlan]:
        """How to read several ranges that are held, found out in one turn of the loop.

        A turn may take as long as reading much: a busy caller keeps the loop from the interpreter.
        """
        try:
            return self.ask_now(
                lambda: [copy.plan(one.places, held=True) for one in ranges],
                timeout_s=_left(ends_at),
            )
        except EntryGone:
            return []  # each is planned by itself, and says what became of it

    def _fetch(
        self,
        copy: Partition,
        wanted: BatchRange,
        *,
        held: bool,
        plan: ReadPlan | None,
        ends_at: float,
    ) -> list[Buffer]:
        """The commands of batches, every checksum checked.

        Compaction may move entries between planning and reading: then it is planned again.
        Neighbours are read into one piece of memory: a caller that keeps a few of them for long
        takes a copy.
        """
        places: Sequence[int] = wanted.places
        disk = self.node.runtime.disk
        for _ in range(_ATTEMPTS):
            try:
                if plan is None:
                    plan = self.ask_now(
                        lambda places=places: copy.plan(places, held=held),  # type: ignore[misc]
                        timeout_s=_left(ends_at),
                    )
                entries = plan.execute(disk, allocate=_memory.allocate)
                return [open_command(entry.data).data for entry in entries]
            except ReferenceExpired:
                plan = None
            except Damaged as damage:
                # As when the loop reads: nothing more is written behind what can't be read.
                self.tell(partial(self.node.groups.quarantine, copy.group.name, damage))
                raise
            except EntryGone:
                plan, fresh = None, copy.view
                if fresh.start > wanted.first:
                    raise BatchesMoved(copy.number, wanted.first) from None
                if wanted.first >= fresh.end:  # this copy has not heard of them yet
                    fresh = self.ask(copy.latest, timeout_s=_left(ends_at))
                # A copy at another place has taken over: the view of now names it.
                at = fresh.batch_at(wanted.first)
                places = fresh.places[at : at + len(wanted.places)].tolist()
        raise Unavailable(
            f"batches of partition {copy.number} can't be read: they move all the time",
            hint="Read again.",
        )

    # -- partitions -----------------------------------------------------------------------------

    def propose(
        self,
        table: TableId,
        commands: Mapping[int, Control],
        *,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> dict[int, Outcome]:
        """See `Backend`."""
        asker = self._asker

        def send() -> Future[list[Outcome]]:
            # All ways first: if one of them is refused, nothing is proposed by any.
            ways = [(self._way(asker, table, one), wanted) for one, wanted in commands.items()]
            return _all_or_unknown(list(commands), [_proposed(way, wanted) for way, wanted in ways])

        def hand_over() -> None:
            send()

        if not wait:
            if not self.closed:
                self.tell(hand_over)
            return {}
        group = group_name(table, min(commands))
        outcomes = self._ask_change(send, of=group, timeout_s=timeout_s)
        return dict(zip(commands, outcomes, strict=True))

    def _ask_change(
        self, function: Callable[[], Future[T]], *, of: str, timeout_s: float | None
    ) -> T:
        """As `ask`. A change of a group that gets no answer in time may have been made all the
        same, whatever keeps the node from one.
        """
        try:
            return self.ask(function, timeout_s=timeout_s)
        except Unavailable as error:
            if isinstance(error, NodeSilent) or isinstance(error.__cause__, NodeSilent):
                unknown = OutcomeUnknown(of, why=error.message)
                unknown.hint = error.hint  # it may name what is wrong with the node
                raise unknown from error
            raise

    # -- ledgers and runs -----------------------------------------------------------------------

    def hold_files(self, manifests: Collection[str], *, hold: Hold | None = None) -> Hold:
        """See `Backend`."""
        mine = hold or Hold.drawn()
        if mine.number not in self._file_holds:
            ends = [self.uses.take(manifest) for manifest in manifests]
            if self._file_holds.setdefault(mine.number, ends) is not ends:
                _call_all(ends)  # another thread was quicker
        return mine

    def files_in_use(self) -> frozenset[str]:
        """See `Backend`."""
        return self.files_here()

    def files_here(self) -> frozenset[str]:
        """The manifests that holds at this node keep."""
        if self.node.awaited is not None:
            return frozenset({*self.uses.in_use(), ALL_FILES})
        return frozenset(self.uses.in_use())

    def tail(
        self,
        table: TableId,
        partition: int,
        *,
        low: int,
        high: int,
        timeout_s: float | None = None,
    ) -> Tail:
        """See `Backend`."""
        if low >= high:
            return Tail("", "", b"", low, high)
        wait_s = _FLUSH_S if timeout_s is None else timeout_s
        ends_at, rolled, pause_s = time.monotonic() + wait_s, False, 0.002
        copy = self._copies(table, (partition,), ends_at=ends_at)[partition]
        stuck_at: float | None = None
        while True:
            view = copy.view
            if low < view.start:
                raise BatchesMoved(partition, low)
            at, end = view.batch_at(low), view.batch_at(high - 1) + 1
            plan = self._whole_plan(copy, view, at, end)
            tail = tail_of(view, plan, at=at, low=low, high=high)
            if tail is not None:
                root = self.info.data_path
                return msgspec.structs.replace(
                    tail,
                    root=root,
                    place=place_of(f"{root}/{tail.folder}"),
                    lineage=self._given(copy, view, self._asker).lineage,
                    addresses=self.addresses_of(table, partition),
                )
            if not rolled:
                self.ask_now(self.node.log.roll)
                rolled = True
            stuck = self.node.log.flush_trouble
            stuck_at = None if stuck is None else stuck_at or time.monotonic()
            if stuck is not None and stuck_at and time.monotonic() > stuck_at + _STUCK_S:
                raise stuck.again()
            if time.monotonic() > ends_at:
                raise Unavailable(
                    f"partition {partition} was not written into segments within {wait_s:g}"
                    " seconds",
                    detail=f"The database is in {self.data}.",
                    hint="The disk may be busy: try again.",
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.1)

    def addresses_of(self, table: TableId, partition: int) -> tuple[str, ...]:
        """Where servers give the rows of a partition out, the best one first."""
        del table, partition
        # First those that other machines can reach, too.
        return tuple(sorted(self.served_at, key=lambda one: one.startswith("unix:")))

    def _whole_plan(self, copy: Partition, view: View, at: int, end: int) -> ReadPlan:
        """Where these batches are; the loop is asked for a few thousand at a time."""
        whole: ReadPlan | None = None
        for low in range(at, end, _PLANNED_MAX):
            indexes = view.places[low : min(low + _PLANNED_MAX, end)].tolist()
            plan = self.ask_now(lambda indexes=indexes: copy.plan(indexes, held=True))  # type: ignore[misc]
            if whole is None:
                whole = plan
            else:
                whole.pieces += plan.pieces
        assert whole is not None
        return whole

    # -- the metastore --------------------------------------------------------------------------

    def get(self, key: bytes, *, timeout_s: float | None = None) -> Entry | None:
        """See `Backend`."""
        check_open([key])
        return self.ask(lambda: self._metastore.get(key), timeout_s=timeout_s)

    def range(self, prefix: bytes, *, timeout_s: float | None = None) -> tuple[Entry, ...]:
        """See `Backend`. Without the records of tokens."""
        page = self.ask(lambda: self._metastore.range(prefix=prefix), timeout_s=timeout_s)
        return tuple(one for one in page.entries if not one.key.startswith(ACCESS_PREFIX))

    def write(
        self,
        operations: Sequence[Operation],
        *,
        condition: Condition | None = None,
        timeout_s: float | None = None,
    ) -> bool:
        """See `Backend`."""
        for one in operations:
            if isinstance(one, RemoveRange):
                check_open_range(one.start, one.end)
            else:
                check_open([one.key])

        def send() -> Future[bool]:
            if condition is not None:
                return self._metastore.invoke_if(condition, operations)
            return self._metastore.invoke(Do(tuple(operations))).map(lambda _: True)

        return self._ask_change(send, of="metastore", timeout_s=timeout_s)

    # -- the cluster ----------------------------------------------------------------------------

    def operate(self, action: str, body: bytes, *, timeout_s: float | None = None) -> bytes:
        """See `Backend`."""
        operating = self.node.operating
        assert operating is not None
        carry_out = partial(operating.operate, action, body, current_caller())
        if only_looks(action, body):
            return self.ask(carry_out, timeout_s=timeout_s)
        return self._ask_change(carry_out, of="metastore", timeout_s=timeout_s)


def _check_lineage(copy: Partition, wanted: BatchRange) -> None:
    """In another lineage, other batches may stand at these places."""
    own = copy.lineage
    if wanted.lineage > own:
        raise outdated(copy.name, own, wanted.lineage)
    if wanted.lineage < own:
        raise PartitionReset(copy.table, copy.number)


def _staging(state: State) -> Staging:
    batches = [batch for some in state.staged.values() for batch in some]
    since = min(state.staged_since.values(), default=None)
    return Staging(
        len(state.staged),
        len(batches),
        sum(batch.rows for batch in batches),
        sum(batch.size for batch in batches),
        None if since is None else millis_of(HybridTime(since)),
        {number: sum(one.rows for one in some) for number, some in state.staged.items()},
    )


def _answer(one: Numbered, future: Future[object]) -> None:
    # What the machine refuses is its answer; what kept it from being asked is the future's.
    one.done(cast("Answer", future.error or future.result()))


def _proposed(way: Partition | Distant, command: Control) -> Future[Outcome]:
    """On the loop: a cut that freed something is followed by a snapshot, so that the log can go."""
    if isinstance(way, Distant):
        return way.ask(command)
    copy = way

    def done(outcome: Outcome) -> Outcome:
        if isinstance(outcome, Trimmed) and outcome.batches:
            try:
                copy.group.snapshot()
            except LowmarkError as error:
                logger.warning(
                    "the log was not cut after the backlog: there is no snapshot yet",
                    extra={"group": copy.group.name, "reason": error.message},
                )
        return outcome

    return copy.ask(command).map(done)


def _all_or_unknown(
    numbers: Sequence[int], futures: Sequence[Future[Outcome]]
) -> Future[list[Outcome]]:
    """All outcomes; or the first refusal, or what is not known. If partitions could not be asked,
    that is the error only if no other one has done what it was asked.
    """
    whole: Future[list[Outcome]] = Future()

    def settled(answers: Sequence[Future[Outcome]]) -> None:
        at = {number: one.error for number, one in zip(numbers, answers, strict=True)}
        missing = {number: error for number, error in at.items() if error is not None}
        made = [number for number in numbers if number not in missing]
        if not missing:
            whole.resolve([one.result() for one in answers])
            return
        first = next(iter(missing.values()))
        if made:
            first = PartlyMade(made, list(missing), why=first.message)
        whole.reject(first)

    def look(one: Future[Outcome]) -> None:
        if one.error is not None and not could_not_be_asked(one.error):
            whole.reject(one.error)  # there is nothing to wait for

    for one in futures:
        one.then(look)
    together(futures).then(lambda all_of: settled(all_of.result()))
    return whole


def _left(ends_at: float) -> float:
    return max(0.0, ends_at - time.monotonic())


def _call_all(callbacks: Sequence[Callable[[], object]]) -> None:
    for callback in callbacks:
        callback()
