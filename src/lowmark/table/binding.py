"""Rows that were staged by tasks of a query, and what binds them to its epochs.

Many tasks write the rows of an epoch, some of them twice, and any may die. Each stages its rows in
all partitions under a number that it draws (a transaction); in the end the writer's driver knows
which of them count, and what their numbers have in common (a family): all others of it have lost.
It binds those that count to the epoch, partition by partition:

    1. where the epoch is decided      a partition that follows from the query's id. Its answer, the
       first that it gave, says which transactions count, and how many rows they have in each
       partition; a driver that comes later goes on with these, whatever its own tasks have staged
    2. everywhere else                 the rows of those are read from there on
    3. where it was decided            it is noted that it is bound everywhere

After 1 the epoch's rows are given, for good. A crash between 1 and 3, or within 2, leaves
partitions whose rows may not be read yet. Until 3 the deciding partition knows what counts, and
decides no later epoch of the query: otherwise it would know of the last one only, and what the one
before lacks would be dropped in the end. So one of these has the rows read, and notes it:

    - the driver that repeats the epoch
    - the driver that comes with the next one: it is refused, and ends the last one first. So a note
      that was lost costs the next epoch a moment
    - if none comes for `LEFT_MS`, the leader of the deciding partition (`lowmark.upkeep.epochs`)

A partition knows the last epochs of a query (`EPOCHS_KEPT`), and forgets a query that has bound
nothing for as long as it said; but not while an epoch that it has decided may lack rows elsewhere.

Rows that no command binds or drops are dropped after `STAGED_MS` by their partition's leader, which
does not know whether they count for an epoch: that is decided in another partition. So it asks all
of them first (`Abandon`). One that has decided on these rows says so, and they stay, whatever their
age. Each that has not gives them up: it decides on none of them for as long (`STAGED_MS`), which is
far longer than the question takes, or a driver after it has looked whether its rows are there. So
what is dropped then is in no epoch. While a partition gives no answer, nothing is dropped. Before
version 6 of the machine, rows were dropped by their age alone; a driver that comes later than that
binds what its own tasks have staged there: that is why the number of rows is part of the command.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

QUERY_BYTES: Final = 16
EPOCHS_KEPT: Final = 4
"""Of a query: Spark repeats the last one only."""
STAGED_SHORT_MS: Final = 3_600 * 1_000
"""Where there is no room for more batches, this takes the place of `STAGED_MS`."""
QUERIES_KEPT: Final = 4_096
"""Beyond, the one goes that would be forgotten next: writes that are no streams go soon."""
STAGED_MS: Final = 24 * 3_600 * 1_000
"""Of rows that were staged so long ago, their partition's leader asks all others whether they
count, and drops them when all have answered that they don't: no task takes longer.
"""
LEFT_MS: Final = 600 * 1_000
"""An epoch that was decided so long ago, and may lack rows elsewhere, has no driver any more, or
the driver's note that it is bound everywhere was lost."""
ABANDONED_MAX: Final = 512
"""Transactions of one `Abandon`."""
GIVEN_UP_MAX: Final = 1 << 18
"""Transactions that a partition has given up for others within a day."""
ATTEMPT_BITS: Final = 20
"""Of a transaction's number: they tell the attempts of one write apart."""
KEEP_MS_MAX: Final = 366 * 24 * 3_600 * 1_000


def family(transaction: int) -> int:
    """What the attempts of one write have in common."""
    return transaction >> ATTEMPT_BITS


def deciding(query: bytes, partitions: int) -> int:
    """The partition where the epochs of a query are decided."""
    return int.from_bytes(query[:8], "little") % partitions


class Bound(NamedTuple):
    """What an epoch of a query has added to a partition."""

    epoch: int
    first: int
    rows: int
    time: int
    transactions: tuple[int, ...]
    """Which ones count, and how many rows they have by partition: where it was decided."""
    plan: tuple[int, ...]


class Query(msgspec.Struct, frozen=True, array_like=True):
    """The last epochs of a query, oldest first."""

    id: bytes
    ends_ms: int
    """When it is forgotten."""
    bound: tuple[Bound, ...]

    @property
    def newest(self) -> int:
        """The number of its last epoch."""
        return self.bound[-1].epoch

    @property
    def lacks(self) -> bool:
        """Whether its last epoch was decided here, and may not be bound everywhere yet."""
        last = self.bound[-1]
        return sum(last.plan) > last.rows

    def known(self, epoch: int) -> Bound | None:
        """What an epoch has added, if that is still known."""
        return next((one for one in self.bound if one.epoch == epoch), None)


class Queries:
    """The queries that a partition knows."""

    def __init__(self, queries: Iterable[Query] = (), *, keeps_lacking: bool = False) -> None:
        self._queries = {one.id: one for one in queries}
        self.keeps_lacking = keeps_lacking
        """Whether one is never forgotten while its last epoch may lack rows elsewhere."""

    def __iter__(self) -> Iterator[Query]:
        return iter(self._queries.values())

    def __len__(self) -> int:
        return len(self._queries)

    def get(self, query: bytes, now_ms: int) -> Query | None:
        """A query, if it was not forgotten by now."""
        there = self._queries.get(query)
        return None if there is None or self._is_over(there, now_ms) else there

    def lacking(self) -> list[Query]:
        """Those whose last epoch was decided here, and may lack rows elsewhere."""
        return [one for one in self._queries.values() if one.lacks]

    def deciding_on(self, transactions: Iterable[int]) -> Bound | None:
        """The epoch that was decided here with one of these, and may lack rows elsewhere."""
        asked = set(transactions)
        found = (one.bound[-1] for one in self.lacking())
        return next((one for one in found if asked.intersection(one.transactions)), None)

    def whole(self, query: Query) -> None:
        """Its last epoch is bound everywhere."""
        last = query.bound[-1]._replace(plan=())
        self._queries[query.id] = msgspec.structs.replace(query, bound=(*query.bound[:-1], last))

    def _is_over(self, query: Query, now_ms: int) -> bool:
        return query.ends_ms <= now_ms and not (self.keeps_lacking and query.lacks)

    def put(self, query: bytes, bound: Bound, *, ends_ms: int, now_ms: int) -> None:
        """One more epoch of a query. Which attempts count is known of the last one only: a driver
        goes on with no other.
        """
        there = self.get(query, now_ms)
        before = () if there is None else there.bound
        older = [one._replace(transactions=(), plan=()) for one in before]
        # A query is as long there as any of its epochs has said.
        ends_ms = ends_ms if there is None else max(ends_ms, there.ends_ms)
        for gone in [one.id for one in self._queries.values() if self._is_over(one, now_ms)]:
            del self._queries[gone]
        self._queries[query] = Query(query, ends_ms, (*older, bound)[-EPOCHS_KEPT:])
        while len(self._queries) > QUERIES_KEPT:
            others = (
                one
                for one in self._queries.values()
                if one.id != query and not (self.keeps_lacking and one.lacks)
            )
            over = min(others, key=lambda one: (one.ends_ms, one.id), default=None)
            if over is None:  # before version 6, any number of them could lack rows elsewhere
                return
            del self._queries[over.id]
