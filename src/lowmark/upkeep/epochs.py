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
again after a while: a partition without a leader keeps all staged rows of its table. Of epochs, the
other partitions get their rows all the same.

Of a partition one step comes after the other: each waits for the answers to the one before.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

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
"""How long after a look at a partition the next one comes at the earliest."""

Answers: TypeAlias = list[Future[object]]
Steps: TypeAlias = Generator[tuple[int, Sequence[Control]], Answers, None]
"""What is asked of which partition, one after the other. Each is answered before the next one."""


class Epochs:
    """Of partitions that this node leads. All calls are made on the loop."""

    def __init__(self, loop: Loop, clock: HybridClock, catalogs: Catalogs, tables: Tables) -> None:
        self._loop = loop
        self._clock = clock
        self._catalogs = catalogs
        self._tables = tables
        self._next_ms: dict[tuple[TableId, int], int] = {}
        """When a partition that had something to do is looked at again."""
        self._under_way: set[tuple[TableId, int]] = set()
        """Those whose last look has not ended yet."""

    def look(self, partitions: Iterable[Partition]) -> int:
        """Begin with what is to be done; gives in how many partitions."""
        now, now_ms, begun = self._clock.now(), self._loop.elapsed_us() // 1_000, 0
        self._next_ms = {key: at for key, at in self._next_ms.items() if at > now_ms}
        for one in partitions:
            key = (one.table, one.number)
            if not one.group.ready or key in self._next_ms or key in self._under_way:
                continue
            left, gone = one.state.left(now), one.state.abandoned(now)
            table = self._catalogs.latest.table(one.table)
            if table is None or not (left or gone):
                continue
            begun += 1
            self._next_ms[key] = now_ms + AGAIN_MS
            self._under_way.add(key)
            others = [number for number in range(table.partitions) if number != one.number]
            self._begin(one, self._steps(one, left, gone, others))
        return begun

    def _steps(
        self, one: Partition, left: list[Query], gone: list[int], others: list[int]
    ) -> Steps:
        away: dict[int, LowmarkError] = {}
        for query in left:
            yield from self._end(one, query, away)
        for number, error in away.items():
            self._failed(one, f"epochs can't be ended in partition {number}", error)
        for at in range(0, len(gone), ABANDONED_MAX):
            failed = yield from self._abandon(one, gone[at : at + ABANDONED_MAX], others)
            if failed is not None:
                self._failed(one, "staged rows stay for now", failed)
                return

    # -- epochs that lack rows --------------------------------------------------------------------

    def _end(self, one: Partition, query: Query, away: dict[int, LowmarkError]) -> Steps:
        """Bind the last epoch of a query in all partitions but those that give no answers now."""
        last = query.bound[-1]
        now_ms = millis_of(HybridTime(self._clock.now()))
        families = tuple(sorted(set(map(family, last.transactions))))
        whole = True
        for number, rows in enumerate(last.plan):
            if not rows or number == one.number:
                continue
            if number in away:
                whole = False
                continue
            wanted = Bind(
                query.id,
                last.epoch,
                last.transactions,
                rows,
                families=families,
                keep_ms=max(query.ends_ms - now_ms, 1),
            )
            [answer] = yield number, [wanted]
            error = answer.error
            # A query that is over is known here only because its epoch may lack rows: the others
            # have forgotten what they bound.
            forgotten = isinstance(error, StagedRowsMissing) and query.ends_ms <= now_ms
            if error is None or forgotten or isinstance(error, EpochPassed):
                continue
            whole = False
            if isinstance(error, StagedRowsMissing):
                what = f"epoch {last.epoch} can't be bound in partition {number}"
                self._failed(one, what, error)
            else:
                away[number] = error
        if not whole or one.number in away:
            return
        [answer] = yield one.number, [Bind(query.id, last.epoch, (), 0)]
        if answer.error is not None:
            away[one.number] = answer.error
            return
        logger.info(
            "an epoch is bound everywhere that no driver has ended",
            extra={"table": one.table, "partition": one.number, "epoch": last.epoch},
        )

    # -- rows that no epoch will have -------------------------------------------------------------

    def _abandon(
        self, one: Partition, gone: Sequence[int], others: list[int]
    ) -> Generator[tuple[int, Sequence[Control]], Answers, LowmarkError | None]:
        """Ask all other partitions, and drop what none has decided on; gives what failed."""
        left = set(gone)
        for number in others:
            while left:
                [answer] = yield number, [Abandon(tuple(sorted(left)))]
                if answer.error is not None:
                    return answer.error
                decided = answer.result()
                if not isinstance(decided, Bound):
                    break
                left.difference_update(decided.transactions)
        if not left:
            return None
        answers = yield one.number, [Finish(number, commit=False) for number in sorted(left)]
        return next((answer.error for answer in answers if answer.error is not None), None)

    # -- asking -----------------------------------------------------------------------------------

    def _begin(self, one: Partition, steps: Steps) -> None:
        def go_on(answers: Answers | None) -> None:
            try:
                number, commands = next(steps) if answers is None else steps.send(answers)
            except StopIteration:
                self._under_way.discard((one.table, one.number))
                return
            found: Answers = []

            def answered(future: Future[object]) -> None:
                found.append(future)
                if len(found) == len(commands):
                    # On a later turn of the loop: an answer that is there at once must not nest.
                    self._loop.call_soon(partial(go_on, found))

            for command in commands:
                self._ask(one.table, number, command).then(answered)

        go_on(None)

    def _ask(self, table: TableId, number: int, command: Control) -> Future[object]:
        try:
            return self._tables.way(table, number).ask(command)  # type: ignore[return-value]
        except LowmarkError as error:
            return Future.failed(error)

    def _failed(self, one: Partition, what: str, error: LowmarkError) -> None:
        logger.warning(
            what,
            extra={"table": one.table, "partition": one.number, "reason": error.message},
        )
