"""What a partition knows, and what each command does to it. Pure: no clock, no log, no rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple, TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from lowmark.errors import LowmarkError
from lowmark.holds import SafePoint, safe_point
from lowmark.runtime import HybridTime, millis_of
from lowmark.table.adopting import Adopted, adopt, deletes_gone
from lowmark.table.backlog import Backlog
from lowmark.table.binding import (
    ABANDONED_MAX,
    GIVEN_UP_MAX,
    KEEP_MS_MAX,
    LEFT_MS,
    QUERIES_KEPT,
    QUERY_BYTES,
    STAGED_MS,
    STAGED_SHORT_MS,
    Bound,
    Queries,
    Query,
    family,
)
from lowmark.table.commands import (
    NO_PRODUCER,
    Abandon,
    Adopt,
    Batch,
    Begin,
    Bind,
    Command,
    CreateCursor,
    DeleteCursor,
    Drop,
    Fence,
    Finish,
    KeepSchemas,
    MoveCursor,
    ReleaseLease,
    RenewCursor,
    RenewLease,
    TakeLease,
    Tick,
    Trim,
    is_text,
)
from lowmark.table.errors import (
    BatchRefused,
    CommandRefused,
    CursorExists,
    CursorExpired,
    CursorMovesBack,
    CursorOverdue,
    CursorUnknown,
    EpochPassed,
    EpochsUnfinished,
    EpochUnfinished,
    LeaseExists,
    LeaseExpired,
    OffsetExpired,
    OffsetToCome,
    SchemaNotInForce,
    StagedRowsMissing,
    StagingFull,
    TooMany,
    TransactionUnknown,
)
from lowmark.table.producers import Appended, Producers
from lowmark.table.readers import (
    CURSORS_MAX,
    IDLE_MS_MAX,
    LEASE_MS_MAX,
    LEASES_MAX,
    NAME_CHARACTERS_MAX,
    Cursor,
    Lease,
    deletes_held,
    holds_of,
)

STAGED_MAX = 65_536
"""Batches of open transactions in one partition."""
EPOCH_MAX = (1 << 32) - (1 << 13)
"""A header has 32 bits for an epoch, and a producer begins some by itself."""
WHY_CHARACTERS_MAX = 200
FINISHED_KEPT = 1_024
"""Of this many transactions a repeated finish gets its first answer."""
BEGINS_KEPT = 64
"""A copy that takes snapshots seldom still finds one of them that its snapshot covers."""


class Ticked(NamedTuple):
    """Nothing happened up to this time but what is known."""

    time: int


class Trimmed(NamedTuple):
    """How far a cut went, and who held it back."""

    safe: SafePoint
    """As far as holds allow; `position` is where the backlog begins now."""
    horizon: int
    batches: int
    """How many died."""


class Finished(NamedTuple):
    """What became of a transaction here."""

    commit: bool
    first: int
    rows: int
    time: int


class Begun(NamedTuple):
    """No entry behind a place in the log belongs to a transaction that began before this time."""

    place: int
    time: int


class SchemasKept(NamedTuple):
    """Which schema versions a partition takes, and which ones its rows need."""

    keep_from: int
    """No batch of a lower version will ever be added."""
    least: int
    """The lowest version that a batch here has, staged ones among them; 0: there is none."""


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """A batch that waits for its transaction."""

    index: int
    rows: int
    schema: int
    size: int
    change: int
    producer: bytes
    epoch: int
    sequence: int


Outcome: TypeAlias = (
    Appended
    | Finished
    | Ticked
    | Trimmed
    | Cursor
    | Lease
    | Adopted
    | Begun
    | SchemasKept
    | Bound
    | LowmarkError
    | None
)


class State:
    """See the package's docstring for what always holds."""

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.producers = Producers()
        self.cursors: dict[str, Cursor] = {}
        self.leases: dict[str, Lease] = {}
        self.staged: dict[int, list[Staged]] = {}
        """By transaction."""
        self.staged_batches = 0
        """How many these have together."""
        self.staged_since: dict[int, int] = {}
        """When each of them began, the earliest first; nothing, while not all members know
        version 4.
        """
        self.expires = False
        """Whether staged rows are dropped after a time: all members know version 4."""
        self.asks = False
        """Whether they are dropped only after all partitions were asked whether they count: all
        members know version 6.
        """
        self.queries = Queries()
        self.finished: dict[int, Finished] = {}
        """The last transactions, oldest first."""
        self.given_up: dict[int, int] = {}
        """Transactions whose rows another partition is about to drop, and when it has asked, the
        earliest first. No epoch is decided with them.
        """
        self.closed = 0
        """No row at or below this time will ever be added."""
        self.ledger: Adopted | None = None
        """What it is read from together with the backlog."""
        self.expired = 0
        """Retention cut up to here: of the rows below it, there is what a ledger has."""
        self.begins: tuple[Begun, ...] = ()
        """The last begin minimums, oldest first: from when on the rest of the log needs the
        catalog."""
        self.schemas_from = 0
        """Batches of a lower schema version are refused: the catalog may have forgotten it."""
        self._limited = False
        """Whether a cursor has a maximum lag, or may expire."""

    @property
    def horizon(self) -> int:
        """Rows below it are in the ledger."""
        return 0 if self.ledger is None else self.ledger.horizon

    def publish(self) -> None:
        """Let readers see the backlog and its ledger, as one value."""
        self.backlog.publish(self.closed, self.ledger)

    # -- commands -------------------------------------------------------------------------------

    def apply(self, command: Command, *, index: int, time: int, size: int) -> Outcome:
        """Carry a command out."""
        time = self.closed = max(self.closed, time)
        if self._limited:
            self._mark_overdue(time)  # a cut must not wait for a cursor that is too late by now
        if self.staged_since and not self.asks:
            self._drop_abandoned(time)
        outcome = self._apply(command, index, time, size)
        if self._limited:
            self._mark_overdue(time)
        self.publish()
        return outcome

    def _apply(self, command: Command, index: int, time: int, size: int) -> Outcome:
        match command:
            case Batch():
                return self._batch(command, index, time, size)
            case Tick():
                return Ticked(time)
            case Finish():
                return self._finish(command, time)
            case CreateCursor():
                return self._create_cursor(command, time)
            case MoveCursor():
                return self._move_cursor(command, time)
            case DeleteCursor():
                return self._delete_cursor(command)
            case RenewCursor():
                return self._renew_cursor(command, time)
            case TakeLease():
                return self._take_lease(command, time)
            case RenewLease():
                return self._renew_lease(command, time)
            case ReleaseLease():
                return self._release_lease(command)
            case Trim():
                return self._trim(command, time)
            case Fence():
                return self._fence(command)
            case Adopt():
                return self._adopt(command, time)
            case Begin():
                return self._begin(command, index)
            case KeepSchemas():
                return self._keep_schemas(command)
            case Bind():
                return self._bind(command, time)
            case Drop():
                return self._drop_unless_bound(command, time)
            case Abandon():
                return self._abandon(command, time)
            case _:
                assert_never(command)

    # -- rows -----------------------------------------------------------------------------------

    def _batch(self, batch: Batch, index: int, time: int, size: int) -> Outcome:
        numbered = batch.producer != NO_PRODUCER
        if numbered:
            known = self.producers.seen(batch.producer, batch.epoch, batch.sequence)
            if known is not None:
                return known
        if batch.schema < self.schemas_from:  # after its number: a repeat gets its first answer
            why = f"it was replaced long ago, and only {self.schemas_from} and later ones are taken"
            return SchemaNotInForce(version=batch.schema, why=why)
        if batch.transaction:
            return self._stage(batch, index, time, size)
        first = self.backlog.add(
            index,
            rows=batch.rows,
            time=time,
            schema=batch.schema,
            size=size,
            change=batch.change,
        )
        answer = Appended(first, batch.rows, time)
        if numbered:
            self.producers.stored(batch.producer, batch.epoch, batch.sequence, answer)
        return answer

    def _stage(self, batch: Batch, index: int, time: int, size: int) -> Outcome:
        if batch.transaction in self.finished or batch.transaction in self.given_up:
            return BatchRefused(f"transaction {batch.transaction} is finished")
        if self.staged_batches >= STAGED_MAX and self.expires and not self.asks:
            self._drop_abandoned(time, STAGED_SHORT_MS)  # of drivers that die again and again
        if self.staged_batches >= STAGED_MAX:
            # Before version 6 there is nothing that a writer could wait for.
            return StagingFull(STAGED_MAX) if self.asks else TooMany("staged batches", STAGED_MAX)
        self.staged_batches += 1
        if self.expires:
            self.staged_since.setdefault(batch.transaction, time)
        self.staged.setdefault(batch.transaction, []).append(
            Staged(
                index,
                batch.rows,
                batch.schema,
                size,
                batch.change,
                batch.producer,
                batch.epoch,
                batch.sequence,
            )
        )
        answer = Appended(-1, batch.rows, time)  # it has no offset yet
        if batch.producer != NO_PRODUCER:
            self.producers.stored(batch.producer, batch.epoch, batch.sequence, answer)
        return answer

    def _finish(self, finish: Finish, time: int) -> Outcome:
        known = self.finished.get(finish.transaction)
        if known is not None:
            return known
        if finish.commit and finish.transaction not in self.staged:
            return TransactionUnknown(finish.transaction)
        commit = finish.commit and finish.transaction not in self.given_up
        staged = self._unstaged(finish.transaction)
        first = self.backlog.end
        rows = self._add(staged, time) if commit else 0
        if finish.transaction in self.given_up:
            self._forget_producers(staged)
        answer = Finished(commit, first, rows, time)
        self._remember(finish.transaction, answer)
        return answer

    def _unstaged(self, transaction: int) -> list[Staged]:
        """Its batches, which wait no more."""
        self.staged_since.pop(transaction, None)
        staged = self.staged.pop(transaction, [])
        self.staged_batches -= len(staged)
        return staged

    def _add(self, staged: Iterable[Staged], time: int) -> int:
        """Give staged batches offsets and a time; gives how many rows they have."""
        rows = 0
        for batch in staged:
            self.backlog.add(
                batch.index,
                rows=batch.rows,
                time=time,
                schema=batch.schema,
                size=batch.size,
                change=batch.change,
            )
            rows += batch.rows
        return rows

    def _remember(self, transaction: int, answer: Finished) -> None:
        self.finished[transaction] = answer
        if len(self.finished) > FINISHED_KEPT:
            del self.finished[next(iter(self.finished))]

    def _drop(self, transactions: Iterable[int], time: int) -> None:
        """Nothing of these is read, ever."""
        for transaction in transactions:
            if transaction in self.staged:
                self._forget_producers(self._unstaged(transaction))
                self._remember(transaction, Finished(False, self.backlog.end, 0, time))

    def _forget_producers(self, staged: Iterable[Staged]) -> None:
        """Each task of a query is a producer: they must not take the place of others."""
        batches = Counter((one.producer, one.epoch) for one in staged)
        for (producer, epoch), count in batches.items():
            self.producers.done(producer, epoch, count)

    def _bind(self, bind: Bind, time: int) -> Outcome:
        if len(bind.query) != QUERY_BYTES or bind.epoch < 0:
            return CommandRefused(f"epoch {bind.epoch} can't be bound")
        now_ms = _millis(time)
        query = self.queries.get(bind.query, now_ms)
        known = None if query is None else query.known(bind.epoch)
        if query is not None and known is not None:
            self._drop(bind.transactions, time)  # another attempt was first
            self._drop_families(bind.families, time)
            if self.asks and known.plan and not bind.plan and not bind.transactions:
                self.queries.whole(query)
            return known
        if query is not None and bind.epoch < query.newest:
            self._drop(bind.transactions, time)  # it will never be bound
            self._drop_families(bind.families, time)
            return EpochPassed(bind.epoch, newest=query.newest)
        if self.asks and query is not None and query.lacks:
            over = query.ends_ms <= now_ms
            return EpochUnfinished(bind.epoch, newest=query.newest, over=over)
        if self.asks and bind.plan:
            refusal = self._undecidable(bind, known=query is not None)
            if refusal is not None:
                return refusal
        found = sum(batch.rows for one in bind.transactions for batch in self.staged.get(one, ()))
        if found != bind.rows:
            return StagedRowsMissing(wanted=bind.rows, found=found)
        first = self.backlog.end
        for transaction in bind.transactions:
            if transaction in self.staged:
                staged, at = self._unstaged(transaction), self.backlog.end
                rows = self._add(staged, time)
                self._forget_producers(staged)
                self._remember(transaction, Finished(True, at, rows, time))
        self._drop_families(bind.families, time)
        decided = bind.transactions if bind.plan else ()
        bound = Bound(bind.epoch, first, found, time, decided, bind.plan)
        ends_ms = now_ms + max(0, min(bind.keep_ms, KEEP_MS_MAX))
        self.queries.put(bind.query, bound, ends_ms=ends_ms, now_ms=now_ms)
        return bound

    def _undecidable(self, bind: Bind, *, known: bool) -> LowmarkError | None:
        """Why an epoch can't be decided here: rows of it were dropped elsewhere, or are about to
        be; or too many epochs are not bound everywhere.
        """
        ends = (self.finished.get(one) for one in bind.transactions)
        dropped = any(end is not None and not end.commit for end in ends)
        if dropped or not self.given_up.keys().isdisjoint(bind.transactions):
            return StagedRowsMissing(wanted=sum(bind.plan), found=0)
        # One less: an epoch that another partition has decided has room, too. A query that is known
        # needs none.
        most = QUERIES_KEPT - 1
        if not known and len(self.queries) >= most and len(self.queries.lacking()) >= most:
            return EpochsUnfinished(most)
        return None

    def _abandon(self, abandon: Abandon, time: int) -> Outcome:
        if len(abandon.transactions) > ABANDONED_MAX:
            return CommandRefused(
                f"{len(abandon.transactions)} transactions can't be abandoned at a time",
                hint=f"Name up to {ABANDONED_MAX}.",
            )
        decided = self.queries.deciding_on(abandon.transactions)
        if decided is not None:
            return decided
        before_ms = _millis(time) - STAGED_MS
        since = self.given_up  # the earliest first
        for one in list(takewhile(lambda one: _millis(since[one]) <= before_ms, since)):
            del since[one]
        if len(since.keys() | set(abandon.transactions)) > GIVEN_UP_MAX:
            return CommandRefused(
                f"a partition gives up at most {GIVEN_UP_MAX} transactions in a day",
                hint="Ask again later.",
            )
        for one in abandon.transactions:
            since.pop(one, None)  # it goes to the end
            since[one] = time
        return None

    def _drop_unless_bound(self, drop: Drop, time: int) -> Outcome:
        query = self.queries.get(drop.query, _millis(time))
        known = None if query is None else query.known(drop.epoch)
        if known is None:
            self._drop_families(drop.families, time)
        return known

    def _drop_families(self, families: Iterable[int], time: int) -> None:
        """Attempts of the same writes that do not count, also those that their driver does not
        know of.
        """
        gone = set(families)
        if gone:
            self._drop([one for one in self.staged if family(one) in gone], time)

    def let_staged_expire(self) -> None:
        """All members drop what is never finished, from here on: it counts as staged now."""
        if not self.expires:
            self.expires = True
            self.staged_since = dict.fromkeys(self.staged, self.closed)

    def ask_before_dropping(self) -> None:
        """All members drop no staged rows by their age any more, from here on."""
        self.asks = self.queries.keeps_lacking = True

    def abandoned(self, time: int) -> list[int]:
        """The transactions that were staged so long ago that they go, unless they were decided on:
        a day ago; where there is no room for more, an hour ago.
        """
        if not self.asks:
            return []
        full = self.staged_batches >= STAGED_MAX
        before_ms = _millis(time) - (STAGED_SHORT_MS if full else STAGED_MS)
        since = self.staged_since  # the earliest first
        return list(takewhile(lambda one: _millis(since[one]) <= before_ms, since))

    def left(self, time: int) -> list[Query]:
        """Those whose last epoch was decided here long ago, and may lack rows elsewhere."""
        if not self.asks:
            return []
        before_ms = _millis(time) - LEFT_MS
        return [one for one in self.queries.lacking() if _millis(one.bound[-1].time) <= before_ms]

    def _drop_abandoned(self, time: int, after_ms: int = STAGED_MS) -> None:
        while self._is_abandoned(time, after_ms):
            self._drop([next(iter(self.staged_since))], time)

    def _is_abandoned(self, time: int, after_ms: int) -> bool:
        """Whether the first that was staged is too old: those behind it are younger."""
        first = next(iter(self.staged_since.values()), None)
        return first is not None and _millis(first) <= _millis(time) - after_ms

    def _fence(self, fence: Fence) -> Outcome:
        if len(fence.producer) != len(NO_PRODUCER) or not 0 <= fence.epoch <= EPOCH_MAX:
            return CommandRefused(
                f"epoch {fence.epoch} can't be begun",
                hint="A producer of this name was begun too often: choose another name.",
            )
        return self.producers.fence(fence.producer, fence.epoch)

    def _begin(self, begin: Begin, index: int) -> Outcome:
        last = self.begins[-1] if self.begins else Begun(0, 0)
        if begin.time <= last.time:
            return last
        begun = Begun(index, begin.time)
        self.begins = (*self.begins, begun)[-BEGINS_KEPT:]
        return begun

    def _keep_schemas(self, keep: KeepSchemas) -> Outcome:
        self.schemas_from = max(self.schemas_from, keep.keep_from)
        staged = [batch.schema for batches in self.staged.values() for batch in batches]
        least = min(filter(None, (self.backlog.least_schema, *staged)), default=0)
        return SchemasKept(self.schemas_from, least)

    # -- cursors --------------------------------------------------------------------------------

    def _create_cursor(self, wanted: CreateCursor, time: int) -> Outcome:
        there = self.cursors.get(wanted.name)
        if there is not None:
            return there if there.token == wanted.token else CursorExists(wanted.name)
        if len(self.cursors) >= CURSORS_MAX:
            return TooMany("cursors", CURSORS_MAX)
        if not is_text(wanted.name, NAME_CHARACTERS_MAX):
            return _bad_name(wanted.name)
        offset = self.backlog.end if wanted.offset is None else wanted.offset
        if wanted.earliest:
            offset = 0 if wanted.kind == "compacted" else self.backlog.start
        refusal = self._no_start(offset, wanted.kind)
        if refusal is not None:
            return refusal
        cursor = Cursor(
            wanted.name,
            wanted.token,
            wanted.kind,
            offset,
            time,
            time,
            wanted.max_lag_rows,
            wanted.max_lag_ms,
        )
        self._put_cursor(cursor)
        return cursor

    def _move_cursor(self, move: MoveCursor, time: int) -> Outcome:
        cursor = self.cursors.get(move.name)
        if cursor is None:
            return CursorUnknown(move.name)
        if cursor.overdue and not move.reset:
            return _ended(cursor)
        if move.offset < cursor.offset and not move.reset:
            return CursorMovesBack(move.name, at=cursor.offset, to=move.offset)
        if cursor.kind == "compacted" and not move.reset:
            refusal = self._to_come(move.offset)  # what lies between, it has from the ledger
        else:
            refusal = self._no_start(move.offset, cursor.kind)
        if refusal is not None:
            return refusal
        moved = replace(cursor, offset=move.offset, moved=time, overdue=False, expired=False)
        self._put_cursor(moved)
        return moved

    def _renew_cursor(self, renew: RenewCursor, time: int) -> Outcome:
        cursor = self.cursors.get(renew.name)
        if cursor is None:
            return CursorUnknown(renew.name)
        if cursor.overdue:
            return _ended(cursor)
        if not 0 <= renew.idle_ms <= IDLE_MS_MAX:
            return CommandRefused(
                f"a cursor can't expire after {renew.idle_ms} ms",
                hint=f"Use 1 to {IDLE_MS_MAX} ms, or 0: it never expires.",
            )
        renewed = replace(cursor, idle_ms=renew.idle_ms, renewed=time)
        self._put_cursor(renewed)
        return renewed

    def _delete_cursor(self, delete: DeleteCursor) -> Outcome:
        cursor = self.cursors.get(delete.name)
        if delete.token and (cursor is None or cursor.token != delete.token):
            return None  # a creation that never came here has nothing to undo
        if cursor is None:
            return CursorUnknown(delete.name)
        del self.cursors[delete.name]
        self._look_for_limits()
        return cursor

    def _put_cursor(self, cursor: Cursor) -> None:
        self.cursors[cursor.name] = cursor
        self._look_for_limits()

    def put_cursors(self, cursors: Iterable[Cursor]) -> None:
        """Have these, as a snapshot says."""
        self.cursors = {cursor.name: cursor for cursor in cursors}
        self._look_for_limits()

    def _look_for_limits(self) -> None:
        self._limited = any(
            (cursor.max_lag_rows or cursor.max_lag_ms or cursor.idle_ms) and not cursor.overdue
            for cursor in self.cursors.values()
        )

    def _no_start(self, offset: int, kind: str) -> LowmarkError | None:
        """Why no reader of that kind can begin at an offset."""
        start = 0 if kind == "compacted" else self.backlog.start
        if offset < start:
            return OffsetExpired(wanted=offset, start=start)
        if kind == "compacted":
            return self._to_come(offset) or deletes_gone(offset, self.ledger)
        return self._to_come(offset)

    def _to_come(self, offset: int) -> LowmarkError | None:
        if offset > self.backlog.end:
            return OffsetToCome(wanted=offset, end=self.backlog.end)
        return None

    def overdue_at(self, time: int) -> bool:
        """Whether by that time a cursor would be overdue, or would have expired, that is not marked
        yet, or staged rows are to go.
        """
        if not self.asks and self._is_abandoned(time, STAGED_MS):
            return True
        return self._limited and any(
            not cursor.overdue and (_has_expired(cursor, time) or self._is_overdue(cursor, time))
            for cursor in self.cursors.values()
        )

    def _mark_overdue(self, time: int) -> None:
        late = []
        for cursor in self.cursors.values():
            if not cursor.overdue:
                expired = _has_expired(cursor, time)
                if expired or self._is_overdue(cursor, time):
                    late.append(replace(cursor, overdue=True, expired=expired))
        for cursor in late:
            self.cursors[cursor.name] = cursor
        if late:
            self._look_for_limits()

    def _is_overdue(self, cursor: Cursor, time: int) -> bool:
        backlog = self.backlog
        if cursor.max_lag_rows and backlog.end - cursor.offset > cursor.max_lag_rows:
            return True
        # How long the first row that it has not seen, of those that are left, has been there.
        first = max(cursor.offset, backlog.start)
        if not cursor.max_lag_ms or first >= backlog.end:
            return False
        return _millis(time) - _millis(backlog.time_of(first)) > cursor.max_lag_ms

    # -- leases ---------------------------------------------------------------------------------

    def _take_lease(self, take: TakeLease, time: int) -> Outcome:
        now_ms = _millis(time)
        there = self.leases.get(take.name)
        if there is not None and there.ends_ms > now_ms and there.holder != take.holder:
            return LeaseExists(take.name)
        if there is None and len(self.leases) >= LEASES_MAX:
            self._forget_ended(now_ms)
            if len(self.leases) >= LEASES_MAX:
                return TooMany("leases", LEASES_MAX)
        if not is_text(take.name, NAME_CHARACTERS_MAX):
            return _bad_name(take.name)
        if not 0 < take.ttl_ms <= LEASE_MS_MAX:
            return CommandRefused(
                f"a lease can't be of {take.ttl_ms} ms", hint=f"Use 1 to {LEASE_MS_MAX} ms."
            )
        refusal = self._no_start(take.offset, take.kind)
        if refusal is not None:
            return refusal
        why = take.why[:WHY_CHARACTERS_MAX]
        lease = Lease(
            take.name,
            take.holder,
            take.offset,
            take.ttl_ms,
            time,
            now_ms + take.ttl_ms,
            why,
            take.kind,
        )
        self.leases[take.name] = lease
        return lease

    def _renew_lease(self, renew: RenewLease, time: int) -> Outcome:
        now_ms = _millis(time)
        lease = self.leases.get(renew.name)
        if lease is None or lease.holder != renew.holder or lease.ends_ms <= now_ms:
            return LeaseExpired(renew.name)
        offset = max(lease.offset, min(renew.offset, self.backlog.end))
        renewed = replace(lease, offset=offset, ends_ms=now_ms + lease.ttl_ms)
        self.leases[renew.name] = renewed
        return renewed

    def _release_lease(self, release: ReleaseLease) -> Outcome:
        lease = self.leases.get(release.name)
        if lease is not None and lease.holder == release.holder:
            del self.leases[release.name]
        return None

    def _forget_ended(self, now_ms: int) -> None:
        self.leases = {name: one for name, one in self.leases.items() if one.ends_ms > now_ms}

    # -- ledgers, and cutting -------------------------------------------------------------------

    def _adopt(self, wanted: Adopt, time: int) -> Outcome:
        outcome = adopt(
            wanted,
            there=self.ledger,
            end=self.backlog.end,
            held=deletes_held(self.cursors, self.leases, now_ms=_millis(time)),
            time=time,
        )
        if isinstance(outcome, Adopted):
            self.ledger = outcome
        return outcome

    def _trim(self, trim: Trim, time: int) -> Outcome:
        self._forget_ended(_millis(time))
        safe = self.would_trim(trim, time)
        backlog = self.backlog
        if safe.position <= backlog.start:
            return Trimmed(safe, self.horizon, 0)
        if trim.expire:
            self.expired = max(self.expired, safe.position)
        return Trimmed(safe, self.horizon, backlog.cut(safe.position))

    def would_trim(self, trim: Trim, time: int) -> SafePoint:
        """How far it would go, and who holds it back."""
        goal = min(trim.offset, self.backlog.end)
        if not trim.expire:
            goal = min(goal, self.horizon)
        goal = max(goal, self.backlog.start)
        safe = safe_point(goal, holds_of(self.cursors, self.leases, now_ms=_millis(time)))
        return SafePoint(safe.position, trim.offset, safe.held_by)


def _has_expired(cursor: Cursor, time: int) -> bool:
    """Whether nothing was heard of its reader for longer than it may be idle."""
    return cursor.expires_ms is not None and _millis(time) > cursor.expires_ms


def _ended(cursor: Cursor) -> LowmarkError:
    """What the reader of a cursor hears that holds nothing any more."""
    if cursor.expired:
        return CursorExpired(cursor.name, idle_ms=cursor.idle_ms)
    return CursorOverdue(cursor.name)


def _bad_name(name: str) -> LowmarkError:
    return CommandRefused(
        f"{name[:40]!r} can't name a cursor or a lease",
        hint=f"Use 1 to {NAME_CHARACTERS_MAX} printable characters.",
    )


def _millis(time: int) -> int:
    return millis_of(HybridTime(time))
