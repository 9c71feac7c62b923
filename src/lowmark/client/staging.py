"""Rows that many writers stage, and one commits: once, whatever is tried again.

A writer stages rows under a number that it draws; no reader sees them. What it has staged is plain
data (`Staged`), which goes to the process that knows which writers count. That one commits them as
an epoch of a query: see `lowmark.table.binding` for what holds. An epoch becomes visible partition
by partition.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, cast

from lowmark.backend.errors import NotLeader
from lowmark.backend.port import Backend
from lowmark.catalog import Table
from lowmark.client.appending import Part, Parts, Result, TableAppender
from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.table import QUERY_BYTES, Bind, Bound, Finish, StagedRowsMissing
from lowmark.table.binding import ATTEMPT_BITS, deciding, family

STREAM_MS: Final = 90 * 24 * 3_600 * 1_000
"""A query is known for so long after its last epoch: one that rests for longer may be started again
with its checkpoint, but an epoch that was half bound before would be bound again."""
ONCE_MS: Final = 3_600 * 1_000
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
    """Whether it was decided before, by another attempt or an earlier call."""

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
        number: int | None = None,
    ) -> None:
        self._backend = backend
        self._table = table
        self._parts = parts
        self._transaction = secrets.randbits(63) | 1 if number is None else number
        self._appender = TableAppender(backend, table.id, table.name)
        self._rows = [0] * table.partitions

    def append(self, rows: object) -> Result:
        """Stage rows, as `Table.append` takes them; done when they are durable. They have no
        offsets yet.
        """
        result = self._appender.append(
            [(number, out._replace(transaction=self._transaction)) for number, out in parts]
            for parts in self._parts(rows)
        )
        for part in result.parts:
            self._rows[part.partition] += part.rows
        return result

    def staged(self) -> Staged:
        """All that was staged so far, for the process that commits it."""
        return Staged(self._table.id, self._transaction, tuple(self._rows))

    def abort(self) -> None:
        """Drop what was staged. What can't be dropped soon goes after a day."""
        finish = Finish(self._transaction, commit=False)
        wanted = dict.fromkeys(range(self._table.partitions), finish)
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


def attempt_number(family: int, attempt: int) -> int:
    """The number of a writer that is an attempt of a write: see `lowmark.table.binding`."""
    return family << ATTEMPT_BITS | attempt % (1 << ATTEMPT_BITS)


def drawn_family() -> int:
    """What the attempts of one write have in common."""
    return secrets.randbits(63 - ATTEMPT_BITS) | 1


def query_id(query: str) -> bytes:
    """The id of a query, by its name."""
    if not query:
        raise Rejected("a query has no name", hint="Give it one that no other query has.")
    return hashlib.blake2b(query.encode(), digest_size=QUERY_BYTES, person=b"query").digest()


class Commit:
    """Binds an epoch, step by step."""

    def __init__(
        self, backend: Backend, table: Table, staged: Sequence[Staged], *, query: bytes, epoch: int
    ) -> None:
        for one in staged:
            if one.table != table.id:
                raise Rejected(
                    f"rows were staged for another table than {table.name}",
                    hint="If it was dropped and made again meanwhile, stage them again.",
                )
        if epoch < 0:
            raise Rejected(f"an epoch can't be {epoch}", hint="Use 0 or more.")
        self._backend = backend
        self._table = table
        self._query = query
        self._epoch = epoch
        self._transactions = tuple(one.transaction for one in staged)
        self._families = set(map(family, self._transactions))
        nothing = (0,) * table.partitions
        self._plan = tuple(map(sum, zip(nothing, *(one.rows for one in staged), strict=True)))

    def run(self, keep_ms: int) -> Committed:
        """Have it decided, then have the rows read everywhere."""
        at = deciding(self._query, self._table.partitions)
        first = self._bound({at: self._bind(self._transactions, self._plan, at, keep_ms)})[at]
        repeated = set(first.transactions) != set(self._transactions)
        # Attempts that have lost are dropped, also those of the driver that was first.
        self._families.update(map(family, first.transactions))
        wanted = {
            number: self._bind(first.transactions, first.plan, number, keep_ms)
            for number, rows in enumerate(first.plan)
            if number != at and (rows or (repeated and self._plan[number]))
        }
        try:
            bound = self._bound(wanted)
        except StagedRowsMissing:
            # What the first attempt has staged was dropped before it was bound everywhere. The
            # same rows are here once more, if the query gives the same ones each time.
            if not repeated or self._plan != first.plan:
                raise
            bound = {number: self._late(number, one, keep_ms) for number, one in wanted.items()}
        parts = tuple(
            Part(number, one.first, one.rows, one.time)
            for number, one in sorted({**bound, at: first}.items())
            if one.rows
        )
        return Committed(parts, repeated)

    def _late(self, number: int, wanted: Bind, keep_ms: int) -> Bound:
        try:
            return self._bound({number: wanted})[number]
        except StagedRowsMissing:
            own = self._bind(self._transactions, self._plan, number, keep_ms)
            return self._bound({number: own})[number]

    def _bind(
        self,
        transactions: tuple[int, ...],
        plan: tuple[int, ...],
        number: int,
        keep_ms: int,
    ) -> Bind:
        decides = number == deciding(self._query, self._table.partitions)
        return Bind(
            self._query,
            self._epoch,
            transactions,
            plan[number],
            families=tuple(sorted(self._families)),
            plan=plan if decides else (),
            keep_ms=keep_ms,
        )

    def _bound(self, wanted: Mapping[int, Bind]) -> dict[int, Bound]:
        """Their answers; asked again for as long as partitions may have no leader."""
        if not wanted:
            return {}
        ends_at = time.monotonic() + _PATIENCE_S
        while True:
            try:
                found = self._backend.propose(self._table.id, wanted)
                return {number: cast("Bound", one) for number, one in found.items()}
            except (Unavailable, NotLeader):
                if self._backend.closed or time.monotonic() > ends_at:
                    raise
                time.sleep(_RETRY_S)
