"""Rows that many writers stage, and one commits: once, whatever is tried again.

A writer stages rows under a number that it draws; no reader sees them. What it has staged is plain
data (`Staged`), which goes to the process that knows which writers count. That one commits them as
an epoch of a query: see `lowmark.table.binding` for what holds. An epoch becomes visible partition
by partition.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar, cast

from lowmark.backend.errors import Ended, EpochUnread, NotLeader, OutcomeUnknown, Superseded
from lowmark.backend.port import Backend
from lowmark.catalog import Table
from lowmark.client.agreeing import agreed
from lowmark.client.appending import Part, Parts, Result, TableAppender
from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.table import (
    QUERY_BYTES,
    Bind,
    Bound,
    Drop,
    EpochHalfBound,
    EpochUnfinished,
    Finish,
    StagedRowsMissing,
)
from lowmark.table.binding import ATTEMPT_BITS, deciding, family

T = TypeVar("T")
STREAM_MS: Final = 90 * 24 * 3_600 * 1_000
"""A query is known for so long after its last epoch: if one that rests for longer is started again,
an epoch that it had not noted as done is stored again."""
ONCE_MS: Final = 3_600 * 1_000
EPOCH_MAX: Final = (1 << 63) - 1
_ABORT_S: Final = 5.0
_RETRY_S: Final = 0.2
_PATIENCE_S: Final = 60.0
"""So long a commit is tried again while partitions have no leader: it changes nothing twice."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What one writer has staged."""

    table: int
    """The id of the table."""
    transaction: int
    rows: tuple[int, ...]
    """How many, by partition."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Where the rows of an epoch are."""

    parts: tuple[Part, ...]
    repeated: bool
    """Whether other rows are read than these, of an attempt that was decided before. Of an epoch
    that all partitions have it is not known any more whose they are; then it is True as well.
    """

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(part.rows for part in self.parts)


class Stage:
    """One writer of rows that wait. With an error, what it has staged goes."""

    def __init__(
        self,
        backend: Backend,
        table: Table,
        parts: Callable[[object], Iterator[Parts]],
        *,
        number: int,
    ) -> None:
        self._backend = backend
        self._table = table
        self._parts = parts
        self._transaction = number
        self._appender = TableAppender(backend, table.id, table.name)
        self._rows = [0] * table.partitions
        self._sent: set[int] = set()
        self._done = False

    def append(self, rows: object) -> Result:
        """Stage rows, as `Table.append` takes them; done when they are durable. They have no
        offsets yet.
        """
        if self._done:
            raise Rejected(
                "this writer takes no more rows: staged() was called",
                hint="Use another one for other rows: table.stage().",
            )
        if not self._sent:
            self._check()
        result = self._appender.append(map(self._numbered, self._parts(rows)))
        for part in result.parts:
            self._rows[part.partition] += part.rows
        return result

    def _check(self) -> None:
        """Refuse to stage what could not be committed: if not all nodes know how, this fails."""
        number = self._transaction % self._table.partitions
        asked = {number: Drop(bytes(QUERY_BYTES), 0, ())}
        agreed(lambda: self._backend.propose(self._table.id, asked))

    def _numbered(self, parts: Parts) -> Parts:
        self._sent.update(number for number, _ in parts)
        return [(number, out._replace(transaction=self._transaction)) for number, out in parts]

    def staged(self) -> Staged:
        """All that was staged, for the process that commits it; no more is taken after it."""
        self._done = True
        return Staged(self._table.id, self._transaction, tuple(self._rows))

    def abort(self) -> None:
        """Drop what was staged. Of what can't be dropped soon, its partition's leader sees to it a
        day later, when all partitions have answered.
        """
        wanted = dict.fromkeys(sorted(self._sent), Finish(self._transaction, commit=False))
        with contextlib.suppress(LowmarkError):
            self._backend.propose(self._table.id, wanted, timeout_s=_ABORT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abort()


def drawn_number() -> int:
    """The number of a writer that has nothing in common with others."""
    return secrets.randbits(63) | 1


def attempt_number(family: int, attempt: int) -> int:
    """The number of a writer that is an attempt of a write: see `lowmark.table.binding`."""
    return family << ATTEMPT_BITS | attempt % (1 << ATTEMPT_BITS)


def drawn_family() -> int:
    """What the attempts of one write have in common."""
    return secrets.randbits(63 - ATTEMPT_BITS) | 1


def query_id(query: str | None, staged: Sequence[Staged]) -> bytes:
    """The id of a query by its name; without one, it is a query of its own by what was staged: to
    commit the same again is a repeat.
    """
    if query == "":
        raise Rejected("a query has no name", hint="Give it one that no other query has.")
    numbers = sorted(one.transaction for one in staged)
    text = f"query:{query}" if query is not None else f"staged:{numbers or os.urandom(16).hex()}"
    return hashlib.blake2b(text.encode(), digest_size=QUERY_BYTES, person=b"query").digest()


class Commit:
    """An epoch of a query: bound step by step, or given up."""

    def __init__(
        self,
        backend: Backend,
        table: Table,
        staged: Sequence[Staged],
        *,
        query: str | None,
        epoch: int,
    ) -> None:
        if query is not None and not isinstance(query, str):
            raise Rejected(f"a query can't be named {query!r}", hint="Give a text.")
        for one in staged:
            if not isinstance(one, Staged):
                raise Rejected(
                    f"{one!r} is not what a writer has staged", hint="Give what staged() gives."
                )
            if one.table != table.id:
                raise Rejected(
                    f"rows were staged for another table than {table.name}",
                    hint="If it was dropped and made again meanwhile, stage them again.",
                )
            if len(one.rows) != table.partitions:
                raise Rejected("what was staged does not say how many rows each partition has")
        if len({one.transaction for one in staged}) < len(staged):
            raise Rejected("what one writer has staged is given twice", hint="Give it once.")
        if type(epoch) is not int or not 0 <= epoch <= EPOCH_MAX:
            raise Rejected(f"an epoch can't be {epoch!r}", hint="Use a whole number from 0 on.")
        self._backend = backend
        self._table = table
        self._query = query_id(query, staged)
        self._at = deciding(self._query, table.partitions)
        self._epoch = epoch
        self._transactions = tuple(one.transaction for one in staged)
        self._families = set(map(family, self._transactions))
        nothing = (0,) * table.partitions
        self._plan = tuple(map(sum, zip(nothing, *(one.rows for one in staged), strict=True)))

    def run(self, keep_ms: int) -> Committed:
        """Have it decided, then have the rows read everywhere."""
        at = self._at
        self._check_there()
        first = self._decided(keep_ms)
        if not first.plan:  # all partitions have it: that was noted, or a later epoch is bound
            with contextlib.suppress(LowmarkError):  # what stays, its leader drops a day later
                self.give_up(timeout_s=_ABORT_S)
            return Committed(tuple(self._known()), repeated=True)
        repeated = set(first.transactions) != set(self._transactions)
        # Attempts that have lost are dropped, also those of the driver that was first.
        self._families.update(map(family, first.transactions))
        wanted = {
            number: self._bind(first.transactions, first.plan, number, keep_ms)
            for number, rows in enumerate(first.plan)
            if number != at and (rows or (repeated and self._plan[number]))
        }
        try:
            bound = self._bound_elsewhere(first, wanted, keep_ms)
        except Ended:
            raise
        except (Unavailable, NotLeader, Superseded) as error:
            # Its rows are read in some partitions, and will be in all when it is committed again.
            raise EpochUnread(self._epoch, why=error.message) from error
        if sum(first.plan) > first.rows:
            # If that is lost, the next epoch ends this one, or the partition's leader does.
            note = {at: self._whole(self._epoch)}
            with contextlib.suppress(LowmarkError):
                self._backend.propose(self._table.id, note, timeout_s=_ABORT_S)
        parts = [
            Part(number, one.first, one.rows, one.time)
            for number, one in sorted({**bound, at: first}.items())
            if one.rows
        ]
        return Committed(tuple(parts), repeated)

    def _decided(self, keep_ms: int) -> Bound:
        """What the partition answers that decides. If it does not know yet that the query's last
        epoch is bound everywhere, that one is ended first.
        """
        wanted = {self._at: self._bind(self._transactions, self._plan, self._at, keep_ms)}
        while True:
            try:
                return self._bound(wanted)[self._at]
            except EpochUnfinished as error:
                self._end_last(error, keep_ms)

    def _end_last(self, error: EpochUnfinished, keep_ms: int) -> None:
        """Have the last epoch read everywhere, by what is known where it was decided."""
        at, asked = self._at, Drop(self._query, error.newest, ())
        ask = partial(self._backend.propose, self._table.id, {at: asked})
        last = self._patiently(ask)[at]
        if not isinstance(last, Bound) or not last.plan:
            return  # it was ended meanwhile
        families = tuple(sorted(set(map(family, last.transactions))))
        bound, missing = [at], []
        for number, rows in enumerate(last.plan):
            if not rows or number == at:
                continue
            wanted = Bind(
                self._query, last.epoch, last.transactions, rows, families=families, keep_ms=keep_ms
            )
            try:
                self._bound({number: wanted})
                bound.append(number)
            except StagedRowsMissing:
                if not error.over:  # else they have forgotten what they bound
                    missing.append(number)
        if missing:
            raise EpochHalfBound(last.epoch, bound=sorted(bound), missing=missing)
        self._bound({at: self._whole(last.epoch)})

    def _whole(self, epoch: int) -> Bind:
        """A note that an epoch is bound everywhere."""
        return Bind(self._query, epoch, (), 0)

    def _known(self) -> Iterator[Part]:
        """Where the rows of an epoch are that is bound everywhere, as far as that is known: of the
        partitions that this attempt has rows in, those that answer now.
        """
        drop, propose = Drop(self._query, self._epoch, ()), self._backend.propose
        for number, rows in enumerate(self._plan):
            if not rows:
                continue
            with contextlib.suppress(LowmarkError):
                one = propose(self._table.id, {number: drop}, timeout_s=_ABORT_S)[number]
                if isinstance(one, Bound) and one.rows:
                    yield Part(number, one.first, one.rows, one.time)

    def _check_there(self) -> None:
        """Refuse an epoch of which rows were dropped before it is decided: nothing is seen then."""
        there = [number for number, rows in enumerate(self._plan) if rows]
        if not there:
            return
        found = self._patiently(lambda: self._backend.status(self._table.id, there))
        staged = {
            number: 0 if one.staging is None else one.staging.rows_in(self._transactions)
            for number, one in found.items()
        }
        if all(staged[number] == self._plan[number] for number in there):
            return
        asked = Drop(self._query, self._epoch, ())
        ask = partial(self._backend.propose, self._table.id, {self._at: asked})
        if self._patiently(ask)[self._at] is None:
            raise StagedRowsMissing(wanted=sum(self._plan), found=sum(staged.values()))

    def _bound_elsewhere(
        self, first: Bound, wanted: Mapping[int, Bind], keep_ms: int
    ) -> dict[int, Bound]:
        try:
            return self._bound(wanted)
        except StagedRowsMissing:
            return self._what_is_left(first, wanted, keep_ms)

    def _what_is_left(
        self, first: Bound, wanted: Mapping[int, Bind], keep_ms: int
    ) -> dict[int, Bound]:
        """What the first attempt has staged was dropped before it was bound everywhere. Where a
        repeat has the same rows, they take its place: by their keys each is in the partition where
        it was, and there are as many. Without keys, rows may have gone anywhere.
        """
        table = self._table
        same = self._plan == first.plan and self._transactions != first.transactions
        same &= bool(table.key) and table.settings.keyless_rows != "keep"
        bound: dict[int, Bound] = {}
        missing: list[int] = []
        for number, one in wanted.items():
            try:
                bound.update(self._bound({number: one}))
            except StagedRowsMissing:
                if not same:
                    missing.append(number)
                    continue
                own = self._bind(self._transactions, self._plan, number, keep_ms)
                bound.update(self._bound({number: own}))
        if missing:
            raise EpochHalfBound(self._epoch, bound=sorted([self._at, *bound]), missing=missing)
        return bound

    def give_up(self, *, timeout_s: float | None = None) -> bool:
        """Drop what was staged, unless the epoch is decided with it: then a driver that comes later
        ends it, and nothing changes. Says whether it was dropped.
        """
        drop = Drop(self._query, self._epoch, tuple(sorted(self._families)))
        propose, table = self._backend.propose, self._table.id
        known = propose(table, {self._at: drop}, timeout_s=timeout_s)[self._at]
        if isinstance(known, Bound) and set(known.transactions) & set(self._transactions):
            return False
        # Of this attempt nothing is bound, whatever else is.
        anyway = Drop(bytes(QUERY_BYTES), 0, drop.families)
        there = [number for number, rows in enumerate(self._plan) if rows]
        propose(table, dict.fromkeys(there, anyway), timeout_s=timeout_s)
        return True

    def _bind(
        self, transactions: tuple[int, ...], plan: tuple[int, ...], number: int, keep_ms: int
    ) -> Bind:
        return Bind(
            self._query,
            self._epoch,
            transactions,
            plan[number],
            families=tuple(sorted(self._families)),
            plan=plan if number == self._at else (),
            keep_ms=keep_ms,
        )

    def _bound(self, wanted: Mapping[int, Bind]) -> dict[int, Bound]:
        """Their answers."""
        if not wanted:
            return {}
        found = self._patiently(lambda: self._backend.propose(self._table.id, wanted))
        return {number: cast("Bound", one) for number, one in found.items()}

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again for as long as partitions may have no leader: nothing is done twice."""
        ends_at = time.monotonic() + _PATIENCE_S
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                return ask()
            except (Ended, EpochUnfinished):
                raise
            except (Unavailable, NotLeader, Superseded) as error:
                if isinstance(error, OutcomeUnknown):
                    unknown = error  # whatever comes of a repeat, the first may have been done
                if self._backend.closed or time.monotonic() > ends_at:
                    raise (unknown or error) from error
                time.sleep(_RETRY_S)
