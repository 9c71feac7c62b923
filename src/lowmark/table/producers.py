"""Who appended what, so that a repeat is not stored twice: per producer its last answers.

A producer numbers its batches to a partition without gaps, from 0 on. A higher epoch replaces a
lower one and begins again at 0. When there are too many, those that were idle longest are
forgotten, and no others.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from lowmark.errors import LowmarkError
from lowmark.table.errors import OutOfSequence, ProducerFenced, ProducerForgotten, RepeatTooOld

ANSWERS_KEPT = 64
PRODUCERS_MAX = 4_096
"""Of one partition."""


class Appended(NamedTuple):
    """Where a batch went."""

    first: int
    """The offset of its first row."""
    rows: int
    time: int


class _Producer(msgspec.Struct, array_like=True):
    epoch: int
    next: int
    """The number that its next batch must have."""
    answers: list[tuple[int, int, int]]
    """Of its last batches, oldest first: first offset, rows, time."""


Known = list[tuple[bytes, _Producer]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Known).decode


class Producers:
    """The producers of one partition, the one that was idle longest first."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Producer] = {}

    def __len__(self) -> int:
        return len(self._known)

    def epoch_of(self, producer: bytes) -> int | None:
        """The epoch that a producer is in; None if it is not known."""
        known = self._known.get(producer)
        return None if known is None else known.epoch

    def seen(self, producer: bytes, epoch: int, sequence: int) -> Appended | LowmarkError | None:
        """What to answer to this batch without storing it; None if it is to be stored."""
        known = self._known.get(producer)
        if known is None:
            return None if sequence == 0 else ProducerForgotten(got=sequence)
        if epoch < known.epoch:
            return ProducerFenced(epoch=epoch, current=known.epoch)
        expected = known.next if epoch == known.epoch else 0
        if sequence == expected:
            return None
        if sequence > expected:
            return OutOfSequence(expected=expected, got=sequence)
        at = sequence - expected  # counted from the end: the last answer is -1
        if -at > len(known.answers):
            return RepeatTooOld(got=sequence, oldest=expected - len(known.answers))
        return Appended(*known.answers[at])

    def fence(self, producer: bytes, epoch: int) -> LowmarkError | None:
        """Begin an epoch, unless it or a newer one has begun: two must not number in the same."""
        known = self._known.pop(producer, None)
        if known is not None and known.epoch >= epoch:
            self._known[producer] = known
            return ProducerFenced(epoch=epoch, current=known.epoch)
        self._known[producer] = _Producer(epoch, 0, [])
        self._forget()
        return None

    def stored(self, producer: bytes, epoch: int, sequence: int, answer: Appended) -> None:
        """A batch has its place."""
        known = self._known.pop(producer, None)
        if known is None or known.epoch != epoch:
            known = _Producer(epoch, 0, [])
        known.next = sequence + 1
        known.answers.append((answer.first, answer.rows, answer.time))
        if len(known.answers) > ANSWERS_KEPT:
            del known.answers[0]
        self._known[producer] = known  # at the end: the last to be forgotten
        self._forget()

    def done(self, producer: bytes, epoch: int, batches: int) -> None:
        """Forget a producer, if these are all that it has ever stored."""
        known = self._known.get(producer)
        if known is not None and (known.epoch, known.next) == (epoch, batches):
            del self._known[producer]

    def _forget(self) -> None:
        if len(self._known) > PRODUCERS_MAX:
            del self._known[next(iter(self._known))]

    def encode(self) -> bytes:
        """For a snapshot."""
        return _encode(list(self._known.items()))

    @classmethod
    def decode(cls, data: bytes) -> Producers:
        """What `encode` gave."""
        producers = cls()
        producers._known = dict(_decode(data))
        return producers
