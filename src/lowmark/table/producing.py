"""One producer's batches on their way: each is stored once and in order, whatever fails between.

Batches to a partition are numbered from 0 on. Up to `WINDOW` are under way; what comes back with an
error that may pass is sent again, with its number and in order, until its time is over. So a batch
whose answer was lost is not stored twice: the partition knows its number. When one is given up
whose number may be taken, the producer goes on in a new epoch, which begins at
0 and fences off whatever of the old one might still arrive. It has so many epochs (`EPOCH_BITS`);
behind its last one begins that of a producer which replaces it, and there it ends.

A batch whose schema version is not taken any more is encoded anew (`Renew`), and sent again under
its number. If an earlier attempt was stored all the same, the partition knows the number, and
answers with where those rows went: they are the same ones. So it is stored once, and what
waits behind it stays behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, TypedDict, cast

from lowmark.errors import LowmarkError, NoMemory, Unavailable
from lowmark.group import (
    Future,
    GroupStopped,
    MachineFailed,
    NotLeader,
    NotWritten,
    OutcomeUnknown,
    QuarantinedHere,
    Superseded,
)
from lowmark.runtime import Buffer, DiskFailed, DiskFull
from lowmark.table.commands import Change, encode_batch, encode_header_in_place
from lowmark.table.errors import (
    OutOfSequence,
    ProducerFenced,
    ProducerForgotten,
    SchemaNotInForce,
    StagingFull,
)
from lowmark.table.producers import ANSWERS_KEPT, Appended

EPOCH_BITS = 12
"""A producer begins epochs by itself below the next multiple of 1 << EPOCH_BITS."""
WINDOW = ANSWERS_KEPT
"""A repeat of any batch that is under way still gets its first answer."""
_RETRY_MS = 50
_FOR_LONG = (
    GroupStopped,
    MachineFailed,
    QuarantinedHere,
    NotWritten,
    DiskFull,
    DiskFailed,
    NoMemory,
    StagingFull,
)
"""These do not pass by themselves while a caller waits: it gets the error at once."""
_OF_ONE_NODE = (DiskFull, DiskFailed, NotWritten)
_OF_ONE_NODE_MS = 5_000
"""What is wrong with the disk of the node that leads: it hands leadership over, to one that may
have none of it, so for a while it may pass.
"""


class Named(Protocol):
    """Has a name, for errors."""

    @property
    def name(self) -> str:
        """What it is called."""


class Destination(Protocol):
    """Where a producer's batches go: a copy of a partition, or the way to one."""

    @property
    def table(self) -> int:
        """The table it belongs to."""

    @property
    def number(self) -> int:
        """Its number in the table."""

    @property
    def group(self) -> Named:
        """Its group."""

    @property
    def replicated(self) -> bool:
        """Whether another node may lead it."""

    def propose(self, command: Buffer, *, in_place: bool = False) -> Future[object]:
        """Have a command stored; gives what the machine answers, or an error that it refuses it
        with. `in_place`: it has room in front of it.
        """


class Timers(Protocol):
    """Calls back later, one thing at a time: a loop is one."""

    def elapsed_us(self) -> int:
        """A clock that never goes back."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> object:
        """Call this after a while."""


class Timed(Protocol):
    """Has a loop: a runtime does."""

    @property
    def loop(self) -> Timers:
        """It."""


class Outgoing(NamedTuple):
    """Rows for one partition."""

    message: Buffer
    rows: int
    schema: int
    change: Change
    room: memoryview | None = None
    """The message with `ROOM_BYTES` in front of it, if it is to go into the log without a copy."""
    transaction: int = 0
    """The rows wait for this one; 0: they do not."""


Renew: TypeAlias = Callable[[Outgoing], Future[Outgoing]]
"""Encodes the same rows with the newest schema version, as one batch."""


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
    tried: bool = False
    stale: bool = False
    """Whether it can't be encoded anew."""
    passes_until_ms: int = 0
    """Until when an error of the leader's disk is taken for one that passes; 0: it had none."""


class _Header(TypedDict):
    rows: int
    schema: int
    change: Change
    producer: bytes
    epoch: int
    sequence: int
    transaction: int


class _Lane:
    """The batches of one producer to one partition."""

    def __init__(
        self,
        partition: Destination,
        producer: bytes,
        runtime: Timed,
        *,
        epoch: int,
        renew: Renew | None,
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self._renew = renew
        self._producer = producer
        self._loop = runtime.loop
        self._next = 0
        self.waiting: deque[_Sent] = deque()
        self._under_way = 0
        self._failed: list[_Sent] = []
        self._pauses = False
        """Whether what failed is sent again in a moment, or when it was encoded anew."""
        self._at_work = False
        self.spent = False
        """Whether its epochs are used up: nothing is stored any more."""

    def work(self) -> None:
        """Do all there is to do before another answer comes. An answer may come at once: it must
        not begin this again.
        """
        if self._at_work:
            return
        self._at_work = True
        try:
            while True:
                if self._failed and not self.spent:
                    # Nothing overtakes a batch that failed: its number comes first.
                    if self._under_way or self._pauses or not self._see_to_failed():
                        return
                elif not self.waiting or (self._under_way >= WINDOW and not self.spent):
                    return
                elif self.spent:
                    error = ProducerFenced(epoch=self.epoch, current=self.epoch + 1)
                    self.waiting.popleft().future.reject(error)
                else:
                    self.propose(self.waiting.popleft())
        finally:
            self._at_work = False

    @property
    def free(self) -> bool:
        """Whether a batch need not wait."""
        waits = self.waiting or self._failed or self._under_way >= WINDOW
        return not (waits or self._at_work or self.spent)

    def propose(self, sent: _Sent, *, again: bool = False) -> None:
        """Have the group store a batch, under the next number, or `again` under the one it has.

        It goes there without a copy, unless an earlier attempt's bytes may be in the log, where
        nothing may change them.
        """
        if not again:
            sent.sequence = self._next
            self._next += 1
        self._under_way += 1
        batch, tried, sent.tried = sent.batch, sent.tried, True
        try:
            header: _Header = {
                "rows": batch.rows,
                "schema": batch.schema,
                "change": batch.change,
                "producer": self._producer,
                "epoch": self.epoch,
                "sequence": sent.sequence,
                "transaction": batch.transaction,
            }
            if batch.room is None or tried:
                future = self.partition.propose(encode_batch(batch.message, **header))
            else:
                encode_header_in_place(batch.room, **header)
                future = self.partition.propose(batch.room, in_place=True)
        except LowmarkError as error:
            future = Future.failed(error)
        except BaseException as error:
            # The caller gets it. How far it came is unknown, so it is tried again.
            self._under_way -= 1
            sent.error = OutcomeUnknown(self.partition.group.name, why=repr(error))
            sent.unknown = True
            self._failed.append(sent)
            self._loop.call_later(_RETRY_MS, self.work)
            raise
        future.then(partial(self._answered, sent))

    def _answered(self, sent: _Sent, done: Future[object]) -> None:
        self._under_way -= 1
        # What the machine refuses is its answer; what kept it from being asked is the future's.
        answer = done.error or done.result()
        if isinstance(answer, LowmarkError):
            sent.error = answer
            sent.unknown |= isinstance(answer, OutcomeUnknown)
            self._failed.append(sent)
        else:
            sent.future.resolve(cast("Appended", answer))
        if self.waiting or self._failed:
            self.work()

    def _see_to_failed(self) -> bool:
        """All answers are there, and some are errors: send them again, or give up."""
        failed = sorted(self._failed, key=lambda sent: sent.sequence)
        now_ms = self._loop.elapsed_us() // 1_000
        first = failed[0]
        if now_ms < first.deadline_ms and isinstance(first.error, SchemaNotInForce):
            if self._renew is not None and not first.stale:
                self._pauses = True
                self._renew(first.batch).then(partial(self._renewed, first))
                return False
        if now_ms < first.deadline_ms and self._may_pass(first, now_ms):
            self._pauses = True
            self._loop.call_later(_RETRY_MS, self._again)
            return False
        # The first one failed for good. What came behind it takes its number, and those after: if
        # it was not stored, neither were they. But if anything of it may have been stored, all
        # goes on in a new epoch; and what may have been stored in this one does not go on at all,
        # for a new number would store it twice.
        self._failed = []
        if any(sent.unknown for sent in failed) or isinstance(first.error, ProducerForgotten):
            self._next = 0
            if _is_last(self.epoch):
                self.spent = True
            else:
                self.epoch += 1
        else:
            self._next = first.sequence
        given_up = [first, *(sent for sent in failed[1:] if sent.unknown)]
        self.waiting.extendleft(
            sent for sent in reversed(failed) if sent is not first and not sent.unknown
        )
        for sent in given_up:
            sent.future.reject(self._why(sent))
        return True

    def _renewed(self, sent: _Sent, done: Future[Outgoing]) -> None:
        """A batch was encoded anew, or could not be. That may be known at once, while this is still
        at work; so it is seen to later.
        """
        self._loop.call_later(0, partial(self._send_renewed, sent, done))

    def _send_renewed(self, sent: _Sent, done: Future[Outgoing]) -> None:
        """Send it again; one that can't be encoded anew is given up for what it was refused.

        If the newest version that is known here is the one that was refused, another one has to be
        heard of first.
        """
        if done.error is not None and not _may_pass(done.error):
            sent.stale, self._pauses = True, False
            self.work()
        elif done.error is not None or done.result().schema == sent.batch.schema:
            self._loop.call_later(_RETRY_MS, self._again)
        else:
            sent.batch, sent.tried = done.result(), False
            self._again()

    def _may_pass(self, sent: _Sent, now_ms: int) -> bool:
        if not isinstance(sent.error, _OF_ONE_NODE) or not self.partition.replicated:
            return _may_pass(sent.error)
        sent.passes_until_ms = sent.passes_until_ms or now_ms + _OF_ONE_NODE_MS
        return now_ms < sent.passes_until_ms

    def _why(self, sent: _Sent) -> LowmarkError:
        """Why a batch was given up: if it may have been stored once, that is what counts."""
        assert sent.error is not None
        if sent.unknown and not isinstance(sent.error, OutcomeUnknown):
            return OutcomeUnknown(self.partition.group.name, why=sent.error.message)
        return sent.error

    def _again(self) -> None:
        failed = sorted(self._failed, key=lambda sent: sent.sequence)
        self._failed, self._pauses = [], False
        left = deque(failed)
        self._at_work = True  # no answer is seen to before all of them are sent
        try:
            while left and not self._failed:
                self.propose(left.popleft(), again=True)
        finally:
            self._failed.extend(left)  # their numbers can't be taken before that of one that failed
            self._at_work = False
        self.work()


class Producing:
    """A producer: its batches to any number of partitions. All calls are made on the loop."""

    def __init__(
        self,
        runtime: Timed,
        *,
        producer: bytes,
        timeout_ms: int,
        epoch: int = 0,
        renew: Renew | None = None,
    ) -> None:
        self._runtime = runtime
        self._renew = renew
        self._elapsed_us = runtime.loop.elapsed_us
        self._producer = producer
        self._epoch = epoch
        self._timeout_ms = timeout_ms
        self._lanes: dict[tuple[int, int], _Lane] = {}

    def send(self, partition: Destination, batch: Outgoing) -> Future[Appended]:
        """Have a batch stored, behind all that were sent to this partition before."""
        key = (partition.table, partition.number)
        lane = self._lanes.get(key)
        if lane is None:
            lane = _Lane(
                partition, self._producer, self._runtime, epoch=self._epoch, renew=self._renew
            )
            self._lanes[key] = lane
        # The way may be another one, for the partition was moved. Its numbers go on: a second lane
        # beside one with batches under way would begin the same epochs, and one of two batches with
        # the same number would get the answer of the other.
        lane.partition = partition
        now_ms = self._elapsed_us() // 1_000
        sent = _Sent(batch, Future(), now_ms + self._timeout_ms)
        if lane.free:
            lane.propose(sent)
        else:
            lane.waiting.append(sent)
            lane.work()
        return sent.future


def _is_last(epoch: int) -> bool:
    """Whether the next epoch is that of a producer which replaces this one."""
    return (epoch + 1) % (1 << EPOCH_BITS) == 0


def _may_pass(error: LowmarkError | None) -> bool:
    passing = isinstance(error, Unavailable | OutOfSequence | NotLeader | Superseded)
    return passing and not isinstance(error, _FOR_LONG)
