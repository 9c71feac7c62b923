"""Rows on their way from a caller to the backend: handed over, waited for, accounted for.

Every table that is open has a hidden producer, so a batch whose answer was lost on the way is sent
again without being stored twice. Several threads may append at a time; each one's rows go into a
partition in the order in which it handed them over.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lowmark.backend.errors import AppendFailed, OutcomeUnknown
from lowmark.backend.port import Backend, Sent
from lowmark.backend.values import Answer
from lowmark.catalog import TableId
from lowmark.errors import LowmarkError
from lowmark.table import Outgoing

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


class Pending(NamedTuple):
    """Rows that were handed over, and whose answers may not all be there."""

    partitions: list[int]
    """Where each part goes."""
    sent: Sent

    @property
    def done(self) -> bool:
        """Whether the answers are there."""
        return self.sent.done

    def answers(self) -> list[Answer]:
        """Wait for the answers."""
        answers = self.sent.answers()
        assert answers is not None  # there is no time limit
        return answers


class TableAppender:
    """Appends to one table, as one producer."""

    def __init__(
        self,
        backend: Backend,
        table: TableId,
        name: str,
        *,
        producer: bytes | None = None,
        epoch: int = 0,
    ) -> None:
        self._name = name
        self._appender = backend.appender(table, producer=producer or os.urandom(16), epoch=epoch)

    def submit(self, parts: Parts) -> Pending:
        """Hand rows over; `wait` for the answer."""
        return Pending([number for number, _ in parts], self._appender.send(parts))

    def wait(self, pending: Pending) -> list[Part]:
        """Where the rows went; raises if not all of them were stored."""
        return self._parts([(pending.partitions, pending.answers())])

    def _parts(self, all_of: Iterable[tuple[list[int], list[Answer]]]) -> list[Part]:
        stored: list[Part] = []
        failed: list[tuple[int, LowmarkError]] = []
        for partitions, answers in all_of:
            for number, answer in zip(partitions, answers, strict=True):
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
        size, well = 0, True
        answered: list[tuple[list[int], list[Answer]]] = []
        try:
            for parts in many:
                pending = Pending([number for number, _ in parts], self._appender.send(parts))
                under_way.append(pending)
                size += pending.sent.bytes
                while well and size > IN_FLIGHT_BYTES_MAX and len(under_way) > 1:
                    first = under_way.popleft()
                    answers = first.answers()
                    size -= first.sent.bytes
                    answered.append((first.partitions, answers))
                    well = not any(isinstance(answer, LowmarkError) for answer in answers)
                if not well:
                    break  # nothing more is sent; what is under way is waited for
        except Exception:
            # The caller's rows can't be read on. What was sent has its answer before it hears that.
            for pending in under_way:
                pending.answers()
            raise
        answered += [(pending.partitions, pending.answers()) for pending in under_way]
        return Result(tuple(self._parts(answered)))


def _is_unknown(error: LowmarkError) -> bool:
    return isinstance(error, OutcomeUnknown)
