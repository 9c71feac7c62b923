"""Proposals and reads that somebody waits for. Each is answered exactly once.

A proposal is first queued, then in the log at a known index and term. When that index is applied,
its term says whether it was this proposal or another leader's entry. Deadlines are looked at with
every tick; they are all of the same length unless a caller says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from lowmark.errors import LowmarkError
from lowmark.group.envelope import COMMAND_BYTES
from lowmark.group.errors import (
    GroupBusy,
    NoQuorum,
    NotWritten,
    OutcomeUnknown,
    ReadTimedOut,
    Superseded,
)
from lowmark.group.future import Future
from lowmark.runtime import Buffer

_ADDED_BYTES = COMMAND_BYTES + 8
"""About what the log adds to each proposal."""


class Proposal(NamedTuple):
    """Something that wants to be in the log."""

    data: Buffer
    raw: bool
    """Wrapped already; else it is a command that gets its time when it enters the log."""
    future: Future[object]
    since_ms: int
    deadline_ms: int
    in_place: bool = False
    """Whether the command has room in front of it for what wrapping adds."""


class Proposals:
    """What was proposed here and is not answered.

    `promise` is told how much more, or less, was taken that the log does not have yet: all groups
    of a node share its space.
    """

    def __init__(self, group: str, promise: Callable[[int], None]) -> None:
        self._group = group
        self._promise = promise
        self.promised = 0
        """How much of the promise is this group's: 0 only if nothing is queued either."""
        self.queued: list[Proposal] = []
        self.queued_bytes = 0
        self._pending: dict[int, tuple[int, Proposal]] = {}

    def __len__(self) -> int:
        return len(self.queued) + len(self._pending)

    def queue(self, proposal: Proposal) -> None:
        """Wait for a leader that is ready."""
        self.queued.append(proposal)
        size = len(proposal.data)
        self.queued_bytes += size
        self.promised += size + _ADDED_BYTES
        self._promise(size + _ADDED_BYTES)

    def appended(self) -> None:
        """The log has all that entered it, or never will: only the queue is promised."""
        promised = self.queued_bytes + _ADDED_BYTES * len(self.queued)
        if promised != self.promised:
            self._promise(promised - self.promised)
            self.promised = promised

    def take(self, count: int) -> list[Proposal]:
        """The first proposals of the queue."""
        taken = self.queued[:count]
        del self.queued[:count]
        self.queued_bytes -= sum(len(proposal.data) for proposal in taken)
        return taken

    def entered(self, first: int, term: int, proposals: list[Proposal]) -> None:
        """They are in the log from an index on."""
        for index, proposal in enumerate(proposals, start=first):
            old = self._pending.get(index)
            if old is not None:
                # This node led before, lost its entry here, and leads again.
                old[1].future.reject(Superseded(self._group, index=index, leader=None))
            self._pending[index] = (term, proposal)

    def applied(self, index: int, term: int, result: object, leader: int) -> None:
        """An entry was applied."""
        found = self._pending.pop(index, None)
        if found is None:
            return
        if found[0] == term:
            found[1].future.resolve(result)
        else:
            error = Superseded(self._group, index=index, leader=leader or None)
            found[1].future.reject(error)

    def skipped(self, index: int) -> None:
        """A snapshot was installed: what became of entries up to its index is not known here."""
        # Out first, told second: whoever is told may close the group.
        skipped = [self._pending.pop(at)[1] for at in list(self._pending) if at <= index]
        for proposal in skipped:
            proposal.future.reject(
                OutcomeUnknown(self._group, why="a snapshot replaced the log around it")
            )

    def refuse_queued(self, error: Callable[[], LowmarkError]) -> None:
        """Nothing of these was done."""
        refused = self.take(len(self.queued))
        self.appended()
        for proposal in refused:
            proposal.future.reject(error())

    def refuse_pending(self, error: Callable[[], LowmarkError]) -> None:
        """What becomes of these will not be known here."""
        pending, self._pending = self._pending, {}
        for _, proposal in pending.values():
            proposal.future.reject(error())

    def expire(self, now_ms: int, *, trouble: LowmarkError | None, alone: bool) -> None:
        """Answer those that waited long enough; `trouble` is what keeps this node from writing."""
        unheard = [p for p in self.queued if p.deadline_ms <= now_ms]
        if unheard:
            self.queued = [p for p in self.queued if p.deadline_ms > now_ms]
            size = sum(len(p.data) for p in unheard)
            self.queued_bytes -= size
            self.promised -= size + _ADDED_BYTES * len(unheard)
            self._promise(-size - _ADDED_BYTES * len(unheard))
        expired = [at for at, (_, p) in self._pending.items() if p.deadline_ms <= now_ms]
        late = [self._pending.pop(at)[1] for at in expired]
        for proposal in unheard:
            why = f"its leader was not ready within {now_ms - proposal.since_ms} ms"
            busy = GroupBusy(self._group, why=why)
            proposal.future.reject(busy if trouble is None else trouble.again())
        for proposal in late:
            waited = now_ms - proposal.since_ms
            proposal.future.reject(self._too_late(waited, trouble, alone=alone))

    def _too_late(
        self, waited_ms: int, trouble: LowmarkError | None, *, alone: bool
    ) -> OutcomeUnknown:
        if trouble is not None:
            return NotWritten(self._group, why=trouble.message)
        if alone:
            # No other copy was asked.
            return NotWritten(self._group, why=f"the disk did not answer within {waited_ms} ms")
        return NoQuorum(self._group, waited_ms=waited_ms)


class Read(NamedTuple):
    """A question that wants an answer that is up to date."""

    query: object
    future: Future[object]
    since_ms: int
    deadline_ms: int


class Reads:
    """Questions, from being asked to being answered."""

    def __init__(self, group: str, nonce: bytes) -> None:
        self._group = group
        self._nonce = nonce
        """Of this process: an answer to a question of an earlier life is nobody's."""
        self._round = 0
        self.new: list[Read] = []
        self._asked: dict[bytes, tuple[int, list[Read]]] = {}
        self._confirmed: list[tuple[int, list[Read]]] = []

    def __len__(self) -> int:
        if not self._asked and not self._confirmed:
            return len(self.new)
        waiting = sum(len(reads) for _, reads in self._asked.values())
        return len(self.new) + waiting + sum(len(reads) for _, reads in self._confirmed)

    def ask(self, now_ms: int) -> bytes:
        """All new questions share one round; give its context. It is never used again."""
        self._round += 1
        context = self._nonce + self._round.to_bytes(8, "big")
        self._asked[context] = (now_ms, self.new)
        self.new = []
        return context

    def confirmed(self, context: bytes, index: int) -> None:
        """They may be answered once an index is applied."""
        found = self._asked.pop(context, None)
        if found is not None:
            self._confirmed.append((index, found[1]))

    def answerable(self, applied: int) -> Iterator[Read]:
        """Questions whose index is applied."""
        if not self._confirmed:
            return
        ready = [reads for index, reads in self._confirmed if index <= applied]
        self._confirmed = [known for known in self._confirmed if known[0] > applied]
        for reads in ready:
            yield from reads

    def ask_again(self, now_ms: int, after_ms: int) -> None:
        """What was asked long ago was probably lost: ask anew."""
        for context in [c for c, (at, _) in self._asked.items() if now_ms - at >= after_ms]:
            self.new += self._asked.pop(context)[1]

    def expire(self, now_ms: int, *, trouble: LowmarkError | None) -> None:
        """Answer those that waited long enough."""
        batches = [self.new, *(reads for _, reads in self._asked.values())]
        batches += [reads for _, reads in self._confirmed]
        for reads in batches:
            if any(read.deadline_ms <= now_ms for read in reads):
                late = [read for read in reads if read.deadline_ms <= now_ms]
                reads[:] = [read for read in reads if read.deadline_ms > now_ms]
                for read in late:
                    waited = now_ms - read.since_ms
                    late_by = ReadTimedOut(self._group, waited_ms=waited)
                    read.future.reject(late_by if trouble is None else trouble.again())
        self._asked = {c: known for c, known in self._asked.items() if known[1]}
        self._confirmed = [known for known in self._confirmed if known[1]]

    def refuse(self, error: Callable[[], LowmarkError]) -> None:
        """There will be no answers."""
        batches = [self.new, *(reads for _, reads in self._asked.values())]
        batches += [reads for _, reads in self._confirmed]
        self.new, self._asked, self._confirmed = [], {}, []
        for reads in batches:
            for read in reads:
                read.future.reject(error())
