"""What callers ask of a copy, up to a limit: commands to be applied, questions to be answered.

Whoever asks is answered once: what can't be taken is refused at once, what waits too long is told
so, and when the copy stops everybody is. When this node can't write (`Log.trouble`) and the copy is
the only one, no other copy could answer: then callers that wait get the disk's own reason at once.
"""

from __future__ import annotations

from typing import Protocol

from lowmark.errors import LowmarkError
from lowmark.group.config import GroupConfig
from lowmark.group.envelope import COMMAND_BYTES
from lowmark.group.errors import (
    CommandTooLarge,
    GroupBusy,
    GroupStopped,
    NotLeader,
    NotWritten,
    OutcomeUnknown,
    ShuttingDown,
)
from lowmark.group.future import Future
from lowmark.group.machine import Machine
from lowmark.group.requests import Proposal, Proposals, Read, Reads
from lowmark.log import GroupLog
from lowmark.runtime import Buffer


class Host(Protocol):
    """What asking asks of its group."""

    name: str
    config: GroupConfig
    stopped: LowmarkError | None

    machine: Machine
    log: GroupLog

    @property
    def leads(self) -> bool: ...
    @property
    def ready(self) -> bool: ...
    @property
    def leader(self) -> int: ...
    @property
    def alone(self) -> bool: ...
    @property
    def trouble(self) -> LowmarkError | None: ...
    def now_ms(self) -> int: ...
    def wake(self) -> None: ...


class Asking:
    """All requests of one copy that are not answered."""

    def __init__(self, host: Host, nonce: bytes) -> None:
        self._host = host
        self.proposals = Proposals(host.name, host.log.promise)
        self.reads = Reads(host.name, nonce)
        self.short_of: int | None = None
        """How many bytes were refused for want of space, since it was last looked at."""

    @property
    def waiting(self) -> int:
        """How many requests are not answered."""
        return len(self.proposals) + len(self.reads)

    def propose(
        self, command: Buffer, timeout_ms: int | None, *, in_place: bool = False
    ) -> Future[object]:
        """Have a command applied."""
        if not isinstance(command, bytes | bytearray | memoryview):
            raise TypeError(f"a command is bytes, not {type(command).__name__}")
        future: Future[object] = Future()
        refusal = self._refusal(len(command)) or self._no_space(command, in_place=in_place)
        if refusal is not None:
            future.reject(refusal)
            return future
        self.queue(command, raw=False, future=future, timeout_ms=timeout_ms, in_place=in_place)
        return future

    def _refusal(self, size: int) -> LowmarkError | None:
        host, config, proposals = self._host, self._host.config, self.proposals
        if host.stopped is not None:
            return host.stopped.again()
        trouble = host.trouble
        if trouble is not None:
            return trouble
        if not host.leads:
            return NotLeader(host.name, leader=host.leader or None)
        if size > config.command_bytes_max:
            return CommandTooLarge(size=size, limit=config.command_bytes_max)
        if len(proposals) + len(self.reads) >= config.waiting_requests_max:
            return self._full()
        waiting = proposals.queued_bytes
        if waiting and waiting + size > config.waiting_bytes_max:
            return GroupBusy(host.name, why=f"{waiting} bytes of commands wait")
        return None

    def _no_space(self, command: Buffer, *, in_place: bool) -> LowmarkError | None:
        """Refuse before it is in the log what would use the reserve: there it can't be refused."""
        host, size = self._host, len(command)
        if host.log.fits(size):
            return None
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

    def queue(
        self,
        data: Buffer,
        *,
        raw: bool,
        future: Future[object],
        timeout_ms: int | None,
        in_place: bool = False,
    ) -> None:
        """Have something enter the log when this member leads and is ready."""
        now = self._host.now_ms()
        wait = self._host.config.request_timeout_ms if timeout_ms is None else timeout_ms
        self.proposals.queue(Proposal(data, raw, future, now, now + wait, in_place))
        self._host.wake()

    def propose_wrapped(self, datas: list[bytes]) -> list[Future[object]]:
        """Propose entries of the group's own; raises if nothing can be proposed here."""
        refusal = self._refusal(0)
        if refusal is not None:
            raise refusal
        self._host.log.check_space(sum(map(len, datas)))  # copies free nothing by themselves
        futures: list[Future[object]] = [Future() for _ in datas]
        for data, future in zip(datas, futures, strict=True):
            self.queue(data, raw=True, future=future, timeout_ms=None)
        return futures

    def read(self, query: object, timeout_ms: int | None) -> Future[object]:
        """Have a question answered, linearizably."""
        host, future = self._host, Future[object]()
        if host.stopped is not None:
            future.reject(host.stopped.again())
            return future
        if self.waiting >= host.config.waiting_requests_max:
            future.reject(self._full())
            return future
        now = host.now_ms()
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
