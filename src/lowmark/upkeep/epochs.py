"""Ends epochs that a driver has left half bound, and drops staged rows that no epoch will have.

Both are for what a driver that died has left (`lowmark.table.binding` has the theory), and both are
seen to by the leader of the partition where it stands.

An epoch that was decided here a while ago, and may lack rows elsewhere:

    1. each other partition that has rows of it binds them: once, whether a driver does, too
    2. it is noted here that it is bound everywhere

Rows that were staged here a day ago:

    1. each other partition of the table is asked, one after the other. From its answer on it
       decides no epoch with them; or it has decided on some of them, and these stay
    2. the others are dropped

A crash between the steps takes nothing back, and the next leader begins anew. What fails is tried
again after a while: a partition without a leader keeps all staged rows of its table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from lowmark.catalog import Catalogs, TableId
from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.runtime import HybridClock, HybridTime, Loop, millis_of
from lowmark.table import (
    Abandon,
    Bind,
    Bound,
    EpochPassed,
    Finish,
    Partition,
    StagedRowsMissing,
    Tables,
)
from lowmark.table.binding import ABANDONED_MAX, Query, family
from lowmark.table.commands import Control

logger = logging.getLogger(__name__)

AGAIN_MS: Final = 60_000
"""How long after a look at a partition the next one comes, whatever became of it."""


class Epochs:
    """Of partitions that this node leads. All calls are made on the loop."""

    def __init__(self, loop: Loop, clock: HybridClock, catalogs: Catalogs, tables: Tables) -> None:
        self._loop = loop
        self._clock = clock
        self._catalogs = catalogs
        self._tables = tables
        self._next_ms: dict[tuple[TableId, int], int] = {}
        """When a partition that had something to do is looked at again."""

    def look(self, partitions: Iterable[Partition]) -> int:
        """Begin with what is to be done; gives in how many partitions."""
        now, now_ms, begun = self._clock.now(), self._loop.elapsed_us() // 1_000, 0
        self._next_ms = {key: at for key, at in self._next_ms.items() if at > now_ms}
        for one in partitions:
            if not one.group.ready or (one.table, one.number) in self._next_ms:
                continue
            left, gone = one.state.left(now), one.state.abandoned(now)
            table = self._catalogs.latest.table(one.table)
            if table is None or not (left or gone):
                continue
            begun += 1
            self._next_ms[one.table, one.number] = now_ms + AGAIN_MS
            for query in left:
                self._end(one, query)
            others = [number for number in range(table.partitions) if number != one.number]
            self._abandon(one, gone, others)
        return begun

    # -- epochs that lack rows --------------------------------------------------------------------

    def _end(self, one: Partition, query: Query) -> None:
        """Bind the last epoch of a query in the first partition that is left, and so on."""
        last = query.bound[-1]
        now_ms = millis_of(HybridTime(self._clock.now()))
        left = [at for at, rows in enumerate(last.plan) if rows and at != one.number]
        families = tuple(sorted(set(map(family, last.transactions))))

        def bind() -> None:
            if not left:
                whole = Bind(query.id, last.epoch, (), 0)
                self._ask(one.table, one.number, whole, done)
                return
            number = left[-1]
            wanted = Bind(
                query.id,
                last.epoch,
                last.transactions,
                last.plan[number],
                families=families,
                keep_ms=max(query.ends_ms - now_ms, 1),
            )
            self._ask(one.table, number, wanted, bound)

        def bound(future: Future[object]) -> None:
            error = future.error
            # A query that is over is known here only because its epoch may lack rows: the others
            # have forgotten what they bound.
            forgotten = isinstance(error, StagedRowsMissing) and query.ends_ms <= now_ms
            if error is not None and not forgotten and not isinstance(error, EpochPassed):
                self._failed(one, f"epoch {last.epoch} can't be bound everywhere", error)
                return
            left.pop()
            bind()

        def done(future: Future[object]) -> None:
            if future.error is not None:
                self._failed(one, f"epoch {last.epoch} can't be noted as bound", future.error)
                return
            logger.info(
                "an epoch is bound everywhere that no driver has ended",
                extra={"table": one.table, "partition": one.number, "epoch": last.epoch},
            )

        bind()

    # -- rows that no epoch will have -------------------------------------------------------------

    def _abandon(self, one: Partition, gone: list[int], others: list[int]) -> None:
        """Ask all other partitions of some, and drop what none of them has decided on; then go on
        with the next ones. What was asked for is remembered for a day: a few at a time.
        """
        some, rest, left = set(gone[:ABANDONED_MAX]), gone[ABANDONED_MAX:], list(others)

        def ask() -> None:
            if left and some:
                self._ask(one.table, left[-1], Abandon(tuple(sorted(some))), answered)
            elif some:
                self._ask(one.table, one.number, Finish(min(some), commit=False), dropped)
            elif rest:
                self._abandon(one, rest, others)

        def answered(future: Future[object]) -> None:
            if future.error is not None:
                self._failed(one, "staged rows stay for now", future.error)
                return
            decided = future.result()
            if isinstance(decided, Bound):
                some.difference_update(decided.transactions)
            else:
                left.pop()
            ask()

        def dropped(future: Future[object]) -> None:
            if future.error is not None:
                self._failed(one, "staged rows stay for now", future.error)
                return
            some.remove(min(some))
            ask()

        ask()

    # -- asking -----------------------------------------------------------------------------------

    def _ask(
        self,
        table: TableId,
        number: int,
        command: Control,
        then: Callable[[Future[object]], None],
    ) -> None:
        """On a later turn of the loop: an answer that is there at once must not nest."""

        def answered(future: Future[object]) -> None:
            self._loop.call_soon(partial(then, future))

        try:
            self._tables.way(table, number).ask(command).then(answered)  # type: ignore[arg-type]
        except LowmarkError as error:
            answered(Future.failed(error))

    def _failed(self, one: Partition, what: str, error: LowmarkError) -> None:
        logger.warning(
            what,
            extra={"table": one.table, "partition": one.number, "reason": error.message},
        )
