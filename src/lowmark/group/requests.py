"""What callers ask of a copy, up to a limit: commands to be applied, questions to be answered.

Each caller is answered exactly once: what can't be taken is refused at once, what waits too long is
told so, and when the copy stops all are. When this node can't write (`Log.trouble`) and the copy is
the only one, no other copy could answer: then callers that wait get the disk's own reason at once.

A proposal is first queued, then in the log at a known index and term. When that index is applied,
its term says whether it was this proposal or another leader's entry. Deadlines are looked at with
every tick; they are all of the same length unless a caller says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from lowmark.errors import LowmarkError
from lowmark.group.envelope import COMMAND_BYTES
from lowmark.group.errors import (
    CommandTooLarge,
    GroupBusy,
    GroupStopped,
    MachineFailed,
    NoQuorum,
    NotLeader,
    NotWritten,
    OutcomeUnknown,
    QuarantinedHere,
    ReadTimedOut,
    ShuttingDown,
    Superseded,
)
from lowmark.raft import Role
from lowmark.runtime import Buffer, Future

if TYPE_CHECKING:
    from lowmark.group.group import Group

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
        self.promise = promise
        self.promised = 0
        """How much of the promise is this group's: 0 only if nothing is queued either."""
        self.queued: list[Proposal] = []
        self.queued_bytes = 0
        self.pending: dict[int, tuple[int, Proposal]] = {}

    def appended(self) -> None:
        """The log has all that entered it, or never will: only the queue is promised."""
        promised = self.queued_bytes + _ADDED_BYTES * len(self.queued)
        if promised != self.promised:
            self.promise(promised - self.promised)
            self.promised = promised

    def take(self, count: int) -> list[Proposal]:
        """The first proposals of the queue."""
        taken = self.queued[:count]
        del self.queued[:count]
        for proposal in taken:
            self.queued_bytes -= len(proposal.data)
        return taken

    def entered(self, first: int, term: int, proposals: list[Proposal]) -> None:
        """They are in the log from an index on."""
        for index, proposal in enumerate(proposals, start=first):
            old = self.pending.get(index)
            if old is not None:
                # This node led before, lost its entry here, and leads again. Another node may
                # still have the old entry, lead after this one, and commit it.
                why = f"another entry took its place at {index}, and is not committed yet"
                old[1].future.reject(OutcomeUnknown(self._group, why=why))
            self.pending[index] = (term, proposal)

    def applied(self, index: int, term: int, result: object, leader: int) -> None:
        """An entry was applied."""
        found = self.pending.pop(index, None)
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
        skipped = [self.pending.pop(at)[1] for at in list(self.pending) if at <= index]
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
        pending, self.pending = self.pending, {}
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
            self.promise(-size - _ADDED_BYTES * len(unheard))
        expired = [at for at, (_, p) in self.pending.items() if p.deadline_ms <= now_ms]
        late = [self.pending.pop(at)[1] for at in expired]
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


CONFIRM = object()
"""A question that the machine is not asked: only whether this copy leads, and has all applied that
was committed."""


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
        self.asked: dict[bytes, tuple[int, list[Read]]] = {}
        self.agreed: list[tuple[int, list[Read]]] = []

    def __len__(self) -> int:
        if not self.asked and not self.agreed:
            return len(self.new)
        waiting = sum(len(reads) for _, reads in self.asked.values())
        return len(self.new) + waiting + sum(len(reads) for _, reads in self.agreed)

    def ask(self, now_ms: int) -> bytes:
        """All new questions share one round; give its context. It is never used again."""
        self._round += 1
        context = self._nonce + self._round.to_bytes(8, "big")
        self.asked[context] = (now_ms, self.new)
        self.new = []
        return context

    def confirmed(self, context: bytes, index: int) -> None:
        """They may be answered once an index is applied."""
        found = self.asked.pop(context, None)
        if found is not None:
            self.agreed.append((index, found[1]))

    def answerable(self, applied: int) -> Iterator[Read]:
        """Questions whose index is applied."""
        if not self.agreed:
            return
        ready = [reads for index, reads in self.agreed if index <= applied]
        self.agreed = [known for known in self.agreed if known[0] > applied]
        for reads in ready:
            yield from reads

    def ask_again(self, now_ms: int, after_ms: int) -> None:
        """What was asked long ago was probably lost: ask anew."""
        for context in [c for c, (at, _) in self.asked.items() if now_ms - at >= after_ms]:
            self.new += self.asked.pop(context)[1]

    def expire(self, now_ms: int, *, trouble: LowmarkError | None) -> None:
        """Answer those that waited long enough."""
        batches = [self.new, *(reads for _, reads in self.asked.values())]
        batches += [reads for _, reads in self.agreed]
        for reads in batches:
            if any(read.deadline_ms <= now_ms for read in reads):
                late = [read for read in reads if read.deadline_ms <= now_ms]
                reads[:] = [read for read in reads if read.deadline_ms > now_ms]
                for read in late:
                    waited = now_ms - read.since_ms
                    late_by = ReadTimedOut(self._group, waited_ms=waited)
                    read.future.reject(late_by if trouble is None else trouble.again())
        self.asked = {c: known for c, known in self.asked.items() if known[1]}
        self.agreed = [known for known in self.agreed if known[1]]

    def refuse(self, error: Callable[[], LowmarkError]) -> None:
        """There will be no answers."""
        batches = [self.new, *(reads for _, reads in self.asked.values())]
        batches += [reads for _, reads in self.agreed]
        self.new, self.asked, self.agreed = [], {}, []
        for reads in batches:
            for read in reads:
                read.future.reject(error())


class Requests:
    """All requests of one copy that are not answered."""

    def __init__(self, host: Group, nonce: bytes) -> None:
        self._host = host
        self._log = host.log
        self._config = host.config
        self._elapsed_us = host.elapsed_us
        self.proposals = Proposals(host.name, host.log.promise)
        self.reads = Reads(host.name, nonce)
        self.short_of: int | None = None
        """How many bytes were refused for want of space, since it was last looked at."""

    @property
    def waiting(self) -> int:
        """How many requests are not answered."""
        proposals, reads = self.proposals, self.reads
        count = len(proposals.queued) + len(proposals.pending)
        return count + len(reads) if reads.new or reads.asked or reads.agreed else count

    def propose(
        self,
        command: Buffer,
        *,
        timeout_ms: int | None = None,
        in_place: bool = False,
        raw: bool = False,
    ) -> Future[object]:
        """Have a command applied by all members; the future gives the machine's result.

        It always resolves: with the result, or with the reason (see `errors`). `in_place`, for a
        large command: it is a writable `memoryview` whose first `COMMAND_BYTES` are room for the
        group. The buffer is the group's from here on: it goes into the log as it is, without a
        copy. `raw`, for entries of the group's own: they are neither checked nor stamped.
        """
        if not isinstance(command, bytes | bytearray | memoryview):
            raise TypeError(f"a command is bytes, not {type(command).__name__}")
        size, proposals = len(command), self.proposals
        if not raw:
            refusal = self._refusal(size)
            if refusal is None and not self._log.fits(size):
                refusal = self._no_space(command, in_place=in_place)
            if refusal is not None:
                if self._host.elsewhere is not None and self._others_may(refusal):
                    return self._host.elsewhere(command, in_place)
                return Future.failed(refusal)
        # From here on it waits for a leader that is ready, and space is kept for it.
        future: Future[object] = Future()
        now = self._elapsed_us() // 1_000
        wait = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        proposals.queued.append(Proposal(command, raw, future, now, now + wait, in_place))
        proposals.queued_bytes += size
        proposals.promised += size + _ADDED_BYTES
        proposals.promise(size + _ADDED_BYTES)
        self._host.wake()
        return future

    def _others_may(self, refusal: LowmarkError) -> bool:
        """Whether another copy may do what this one refuses: it leads, or is sound."""
        if isinstance(refusal, NotLeader):
            return True
        return isinstance(refusal, QuarantinedHere | MachineFailed) and not self._host.alone

    def _refusal(self, size: int) -> LowmarkError | None:
        host, config, proposals = self._host, self._config, self.proposals
        if host.stopped is not None:
            return host.stopped.again()
        if self._log.trouble is not None:
            trouble = host.trouble
            if trouble is not None:
                return trouble
        if host.raft.core.role is not Role.LEADER:
            return NotLeader(host.name, leader=host.leader or None)
        if size > config.command_bytes_max:
            return CommandTooLarge(size=size, limit=config.command_bytes_max)
        if self.waiting >= config.waiting_requests_max:
            return self._full()
        waiting = proposals.queued_bytes
        if waiting and waiting + size > config.waiting_bytes_max:
            return GroupBusy(host.name, why=f"{waiting} bytes of commands wait")
        return None

    def _no_space(self, command: Buffer, *, in_place: bool) -> LowmarkError | None:
        """Refuse before it is in the log what would use the reserve: there it can't be refused."""
        host, size = self._host, len(command)
        if host.machine.may_use_reserve(memoryview(command)[COMMAND_BYTES if in_place else 0 :]):
            return None
        try:
            host.log.check_space(size)
        except LowmarkError as error:
            if self.short_of is None and not host.alone:
                self.short_of = size
                host.wake()  # another voter may have space
            return error
        return None

    def _full(self) -> GroupBusy:
        limit = self._host.config.waiting_requests_max
        return GroupBusy(self._host.name, why=f"{limit} requests wait")

    def propose_wrapped(self, datas: list[bytes]) -> list[Future[object]]:
        """Propose entries of the group's own; raises if nothing can be proposed here."""
        refusal = self._refusal(0)
        if refusal is not None:
            raise refusal
        self._host.log.check_space(sum(map(len, datas)))  # copies free nothing by themselves
        return [self.propose(data, raw=True) for data in datas]

    def read(self, query: object, *, timeout_ms: int | None = None) -> Future[object]:
        """Ask the machine, linearizably: the answer reflects all that was answered before."""
        host, future = self._host, Future[object]()
        if host.stopped is not None:
            future.reject(host.stopped.again())
            return future
        if self.waiting >= host.config.waiting_requests_max:
            future.reject(self._full())
            return future
        now = self._elapsed_us() // 1_000
        wait = host.config.request_timeout_ms if timeout_ms is None else timeout_ms
        self.reads.new.append(Read(query, future, now, now + wait))
        host.wake()
        return future

    def tick(self, now_ms: int) -> None:
        """Tell those that waited too long; ask again what was probably lost."""
        host = self._host
        trouble = host.trouble
        if trouble is not None:
            self._give_up(trouble)
        local = host.log.trouble if self.waiting else None
        self.proposals.expire(now_ms, trouble=local, alone=host.alone)
        self.reads.expire(now_ms, trouble=local)
        self.reads.ask_again(now_ms, self._host.config.election_ms)

    def _give_up(self, trouble: LowmarkError) -> None:
        """Only this node could carry out what waits, and it can't write."""
        name, message = self._host.name, trouble.message
        self.proposals.refuse_pending(lambda: NotWritten(name, why=message))
        self.proposals.refuse_queued(trouble.again)
        if not self._host.ready:  # else they need no write, and are about to be answered
            self.reads.refuse(trouble.again)

    def refuse_all(self, error: LowmarkError) -> None:
        """This copy has stopped."""
        self.proposals.refuse_queued(error.again)
        # Others may have these by now, and apply them.
        name, closing = self._host.name, isinstance(error, GroupStopped)
        self.proposals.refuse_pending(
            lambda: ShuttingDown(name) if closing else OutcomeUnknown(name, why=error.message)
        )
        self.reads.refuse(error.again)
