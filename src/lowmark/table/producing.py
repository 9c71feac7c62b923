"""One producer's batches on their way: each is stored once and in order, whatever fails between.

Batches to a partition are numbered from 0 on. Up to `WINDOW` are under way; what comes back with an
error that may pass is sent again, with its number and in order, until its time is over. So a batch
whose answer was lost is not stored twice: the partition knows its number. When one is given up, its
number may or may not be taken; the producer goes on in a new epoch, which begins at 0 and fences
off whatever of the old one might still arrive.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from lowmark.errors import LowmarkError, Unavailable
from lowmark.group import (
    Future,
    GroupStopped,
    MachineFailed,
    NotLeader,
    OutcomeUnknown,
    QuarantinedHere,
    Superseded,
)
from lowmark.runtime import Buffer, Runtime
from lowmark.table.commands import Change, encode_batch
from lowmark.table.errors import OutOfSequence
from lowmark.table.partition import Partition
from lowmark.table.producers import ANSWERS_KEPT, Appended

__all__ = ["EPOCH_BITS", "WINDOW", "Outgoing", "Producing"]

EPOCH_BITS = 12
"""A producer that is given epoch e may begin so many more by itself, up to the next multiple."""
WINDOW = ANSWERS_KEPT
"""A repeat of any batch that is under way still gets its first answer."""
_RETRY_MS = 50


class Outgoing(NamedTuple):
    """Rows for one partition."""

    message: Buffer
    rows: int
    schema: int
    change: Change


@dataclass(slots=True)
class _Sent:
    """A batch that is under way, or waits for that."""

    batch: Outgoing
    future: Future[Appended]
    deadline_ms: int
    sequence: int = -1
    error: LowmarkError | None = None
    unknown: bool = False
    """Whether an attempt may have been stored without an answer."""


class _Lane:
    """The batches of one producer to one partition."""

    def __init__(self, partition: Partition, producer: bytes, epoch: int, runtime: Runtime) -> None:
        self.partition = partition
        self._producer = producer
        self._loop = runtime.loop
        self._epoch = epoch
        self._next = 0
        self._waiting: deque[_Sent] = deque()
        self._under_way = 0
        self._failed: list[_Sent] = []

    def send(self, sent: _Sent) -> None:
        self._waiting.append(sent)
        self._pump()

    def _pump(self) -> None:
        # Nothing overtakes a batch that failed: its number comes first.
        while self._waiting and self._under_way < WINDOW and not self._failed:
            sent = self._waiting.popleft()
            sent.sequence = self._next
            self._next += 1
            self._propose(sent)

    def _propose(self, sent: _Sent) -> None:
        batch = sent.batch
        command = encode_batch(
            batch.message,
            rows=batch.rows,
            schema=batch.schema,
            change=batch.change,
            producer=self._producer,
            epoch=self._epoch,
            sequence=sent.sequence,
        )
        self._under_way += 1
        try:
            future = self.partition.append(command)
        except LowmarkError as error:
            future = Future.failed(error)
        future.then(lambda done: self._answered(sent, done))

    def _answered(self, sent: _Sent, done: Future[Appended]) -> None:
        self._under_way -= 1
        if done.error is None:
            sent.future.resolve(done.result())
        else:
            sent.error = done.error
            sent.unknown |= isinstance(done.error, OutcomeUnknown)
            self._failed.append(sent)
        if self._under_way == 0 and self._failed:
            self._see_to_failed()
        else:
            self._pump()

    def _see_to_failed(self) -> None:
        """All answers are there, and some are errors: send them again, or give up."""
        failed = sorted(self._failed, key=lambda sent: sent.sequence)
        now_ms = self._loop.elapsed_us() // 1_000
        first = failed[0]
        if _may_pass(first.error) and now_ms < first.deadline_ms:
            self._loop.call_later(_RETRY_MS, self._again)
            return
        # The first one failed for good. What came behind it goes on in a new epoch, unless it may
        # have been stored in this one: then a new number would store it twice.
        self._failed = []
        self._epoch += 1
        self._next = 0
        given_up = [first, *(sent for sent in failed[1:] if sent.unknown)]
        self._waiting.extendleft(
            sent for sent in reversed(failed) if sent is not first and not sent.unknown
        )
        for sent in given_up:
            sent.future.reject(self._why(sent))
        self._pump()

    def _why(self, sent: _Sent) -> LowmarkError:
        """Why a batch was given up: if it may have been stored once, that is what counts."""
        assert sent.error is not None
        if sent.unknown and not isinstance(sent.error, OutcomeUnknown):
            return OutcomeUnknown(self.partition.group.name, why=sent.error.message)
        return sent.error

    def _again(self) -> None:
        failed = sorted(self._failed, key=lambda sent: sent.sequence)
        self._failed = []
        for sent in failed:
            self._propose(sent)


class Producing:
    """A producer: its batches to any number of partitions. All calls are made on the loop."""

    def __init__(
        self, runtime: Runtime, *, producer: bytes, timeout_ms: int, epoch: int = 0
    ) -> None:
        self._runtime = runtime
        self._producer = producer
        self._epoch = epoch
        self._timeout_ms = timeout_ms
        self._lanes: dict[tuple[int, int], _Lane] = {}

    def send(self, partition: Partition, batch: Outgoing) -> Future[Appended]:
        """Have a batch stored, behind all that were sent to this partition before."""
        key = (partition.table, partition.number)
        lane = self._lanes.get(key)
        if lane is None or lane.partition is not partition:
            lane = self._lanes[key] = _Lane(partition, self._producer, self._epoch, self._runtime)
        now_ms = self._runtime.loop.elapsed_us() // 1_000
        sent = _Sent(batch, Future(), now_ms + self._timeout_ms)
        lane.send(sent)
        return sent.future


def _may_pass(error: LowmarkError | None) -> bool:
    passing = isinstance(error, Unavailable | OutOfSequence | NotLeader | Superseded)
    return passing and not isinstance(error, GroupStopped | MachineFailed | QuarantinedHere)
