"""Rows on their way from a caller to the log: numbered, handed to the loop, waited for.

Every table that is open has a hidden producer, so a batch whose answer was lost on the way is sent
again without being stored twice. Several threads may append at a time; each one's rows go into a
partition in the order in which it handed them over.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import AppendFailed, Ended
from lowmark.catalog import TableId
from lowmark.errors import InvariantBroken, LowmarkError
from lowmark.group import Future, OutcomeUnknown
from lowmark.table import Appended, Outgoing, Producing

__all__ = ["Appender", "Part", "Pending", "Result"]

_LOOK_S = 1.0
IN_FLIGHT_BYTES_MAX = 4 << 20
"""Of one append of many rows: more waits until some of it is stored."""

Parts = Sequence[tuple[int, Outgoing]]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that went into one partition together."""

    partition: int
    first: int
    """The offset of the first one."""
    rows: int
    time: int


@dataclass(frozen=True, slots=True)
class Result:
    """Where rows went."""

    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(part.rows for part in self.parts)


class Pending:
    """Rows that were handed over, and whose answers are not all there."""

    __slots__ = ("_answers", "_latch", "bytes", "parts")

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.bytes = sum(len(batch.message) for _, batch in parts)
        self._answers: list[Appended | LowmarkError] | None = None
        # A bare lock that the loop opens: waking by a future costs ten times as much.
        self._latch = threading.Lock()
        self._latch.acquire()

    def settle(self, answers: list[Appended | LowmarkError]) -> None:
        """The answers are there; on the loop, once."""
        self._answers = answers
        self._latch.release()

    @property
    def done(self) -> bool:
        """Whether the answers are there."""
        return self._answers is not None

    def answers(self, timeout_s: float) -> list[Appended | LowmarkError] | None:
        """The answers; None if they are not there in time."""
        if self._answers is None and self._latch.acquire(timeout=timeout_s):
            self._latch.release()  # for whoever else waits
        return self._answers

    def let_go(self) -> None:
        """The rows are not needed any more, only where they went."""
        self.parts = [
            (number, batch._replace(message=b"", room=None)) for number, batch in self.parts
        ]


class Appender:
    """Appends to one table."""

    def __init__(
        self,
        backend: Embedded,
        table: TableId,
        name: str,
        *,
        producer: bytes | None = None,
        epoch: int = 0,
    ) -> None:
        self._backend = backend
        self._table = table
        self._name = name
        node = backend.node
        assert node.tables is not None
        self._tables = node.tables
        self._groups = node.groups
        self._producing = Producing(
            node.runtime,
            producer=producer or os.urandom(16),
            epoch=epoch,
            timeout_ms=node.settings.group.request_timeout_ms,
        )

    def submit(self, parts: Parts) -> Pending:
        """Hand rows over; `wait` for the answer."""
        self._backend.check()
        pending = Pending(parts)
        self._backend.tell(lambda: self._send(pending))
        return pending

    def _send(self, pending: Pending) -> None:
        """On the loop."""
        answers: list[Appended | LowmarkError | None] = [None] * len(pending.parts)
        left = len(answers)

        def answered(at: int, future: Future[Appended]) -> None:
            nonlocal left
            left -= 1
            answers[at] = future.error if future.error is not None else future.result()
            if not left:
                _settle(pending, answers)

        for at, (number, batch) in enumerate(pending.parts):
            try:
                future = self._producing.send(self._tables.get(self._table, number), batch)
            except LowmarkError as error:
                future = Future.failed(error)
            future.then(lambda done, at=at: answered(at, done))  # type: ignore[misc]
        self._groups.turn()  # what was proposed goes to the log in this turn, not in the next

    def wait(self, pending: Pending) -> list[Part]:
        """Where the rows went; raises if not all of them were stored."""
        return self._parts([(pending, self._answers(pending))])

    def _answers(self, pending: Pending) -> list[Appended | LowmarkError]:
        while True:
            answers = pending.answers(_LOOK_S)
            if answers is not None:
                return answers
            # What waits when the loop ends is never answered.
            if not self._backend.running:
                last = pending.answers(0)  # they may have come in between
                return last or [self._backend.ended()] * len(pending.parts)

    def _parts(self, all_of: list[tuple[Pending, list[Appended | LowmarkError]]]) -> list[Part]:
        stored: list[Part] = []
        failed: list[tuple[int, LowmarkError]] = []
        for pending, answers in all_of:
            for (number, _), answer in zip(pending.parts, answers, strict=True):
                if isinstance(answer, LowmarkError):
                    failed.append((number, answer))
                else:
                    stored.append(Part(number, *answer))
        if not failed:
            return stored
        unknown = sorted({number for number, error in failed if _is_unknown(error)})
        refused = sorted({number for number, error in failed if not _is_unknown(error)})
        cause = failed[0][1]
        if not stored and not unknown:
            raise cause.again()  # nothing happened: the reason says it all
        raise AppendFailed(
            self._name,
            stored=sorted({part.partition for part in stored}),
            refused=refused,
            unknown=unknown,
            cause=cause,
        ) from cause

    def append(self, many: Iterable[Parts]) -> Result:
        """Have all of it stored; a bounded amount is under way at a time."""
        under_way: deque[Pending] = deque()
        size = 0
        answered: list[tuple[Pending, list[Appended | LowmarkError]]] = []

        def take_first() -> bool:
            nonlocal size
            first = under_way.popleft()
            answers = self._answers(first)
            size -= first.bytes
            first.let_go()
            answered.append((first, answers))
            return not any(isinstance(answer, LowmarkError) for answer in answers)

        well = True
        try:
            for parts in many:
                pending = self.submit(parts)
                under_way.append(pending)
                size += pending.bytes
                while well and size > IN_FLIGHT_BYTES_MAX and len(under_way) > 1:
                    well = take_first()
                if not well:
                    break  # nothing more is sent; what is under way is waited for
        except Exception:
            # The caller's rows can't be read on. What was sent has its answer before it hears that.
            while under_way:
                take_first()
            raise
        while under_way:
            take_first()
        return Result(tuple(self._parts(answered)))


def _settle(pending: Pending, answers: list[Appended | LowmarkError | None]) -> None:
    whole = [answer for answer in answers if answer is not None]
    if len(whole) != len(answers):
        raise InvariantBroken("every part has its answer")
    pending.settle(whole)


def _is_unknown(error: LowmarkError) -> bool:
    return isinstance(error, OutcomeUnknown | Ended)
