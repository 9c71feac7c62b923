"""Carries a command from any node to the leader, and its outcome back.

A command that was surely not applied is tried again until its time is up: no node leads, the node
that was asked does not lead any more, the question did not leave this node. When it is not known
whether it was applied (`OutcomeUnknown`), that is the answer: only the caller knows whether it does
harm twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, assert_never

import msgspec

from lowmark.errors import Corrupt, LowmarkError, Rejected
from lowmark.group import (
    CallLost,
    Calls,
    CommandTooLarge,
    Future,
    Group,
    GroupBusy,
    GroupStopped,
    NoService,
    NotAsked,
    NotLeader,
    OutcomeUnknown,
    QuarantinedHere,
    Reply,
    Superseded,
)
from lowmark.metastore import commands
from lowmark.metastore.errors import InvokeRefused, MetastoreUnreachable, NotInCluster
from lowmark.metastore.machine import Outcome, Refused
from lowmark.runtime import Buffer, Loop

SERVICE = "metastore.propose"
_RETRY_MS = 50
_WAITING_MAX = 16_384
_WAITING_BYTES_MAX = 64 << 20
"""Of commands of this node that are on their way."""
_UNTOUCHED = (NotLeader, Superseded, GroupBusy, NotAsked, NoService)
"""After these, the command was not applied and never will be."""
_REPEATABLE = (commands.Tick, commands.Renew, commands.Release, commands.Compact)
"""Twice does no harm: the caller need not hear that the outcome is unknown."""


class _Done(msgspec.Struct, frozen=True, array_like=True, tag=1):
    outcome: Outcome


class _Again(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Not applied: ask again, perhaps elsewhere."""

    why: str


class _Unknown(msgspec.Struct, frozen=True, array_like=True, tag=3):
    why: str


class _Refused(msgspec.Struct, frozen=True, array_like=True, tag=4):
    message: str
    detail: str
    hint: str


_Reply: TypeAlias = _Done | _Again | _Unknown | _Refused
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Reply).decode


class _Request:
    """One command on its way."""

    __slots__ = ("data", "deadline_ms", "future", "repeatable", "since_ms", "why")

    def __init__(self, data: bytes, since_ms: int, deadline_ms: int, *, repeatable: bool) -> None:
        self.data = data
        self.repeatable = repeatable
        self.since_ms = since_ms
        self.deadline_ms = deadline_ms
        self.future: Future[Outcome] = Future()
        self.why = "no node leads it, as far as this node knows"


class Forwarding:
    """Submits commands of this node, and those that other nodes send here if it leads."""

    def __init__(self, loop: Loop, calls: Calls, *, group: Callable[[], Group | None]) -> None:
        self._loop = loop
        self._calls = calls
        self._group = group
        self._closed = False
        self._waiting = 0
        self._waiting_bytes = 0
        calls.serve(SERVICE, self._asked)

    def submit(self, command: commands.Command, *, timeout_ms: int) -> Future[Outcome]:
        """Have a command applied, wherever the leader is."""
        try:
            data = commands.encode(command)
        except LowmarkError as error:
            return Future.failed(error)
        group = self._group()
        if group is not None and len(data) > group.config.command_bytes_max:
            limit = group.config.command_bytes_max
            return Future.failed(CommandTooLarge(size=len(data), limit=limit))
        full = self._waiting_bytes and self._waiting_bytes + len(data) > _WAITING_BYTES_MAX
        if self._waiting == _WAITING_MAX or full:
            why = f"{self._waiting} commands of {self._waiting_bytes} bytes wait at this node"
            return Future.failed(GroupBusy("metastore", why=why))
        now = self._now_ms()
        repeatable = isinstance(command, _REPEATABLE)
        request = _Request(data, now, now + timeout_ms, repeatable=repeatable)
        self._waiting += 1
        self._waiting_bytes += len(data)
        request.future.then(lambda _: self._over(request))
        self._try(request)
        return request.future

    def _over(self, request: _Request) -> None:
        self._waiting -= 1
        self._waiting_bytes -= len(request.data)

    def leader_changed(self, leader: int) -> None:
        """Whatever another node was asked, it can't answer any more as a leader."""
        if leader:
            self._calls.abandon(SERVICE, but=leader)

    def close(self) -> None:
        """Try nothing again."""
        self._closed = True

    def _try(self, request: _Request) -> None:
        group, left = self._group(), request.deadline_ms - self._now_ms()
        if group is None:
            request.future.reject(NotInCluster())
        elif self._closed or left <= 0:
            waited = self._now_ms() - request.since_ms
            request.future.reject(MetastoreUnreachable(waited_ms=waited, why=request.why))
        elif group.leads:
            group.propose(request.data, timeout_ms=left).then(
                lambda future: self._proposed(request, future)
            )
        elif (trouble := group.trouble) is not None:
            request.future.reject(trouble)  # its only voter is here, and can't: none will lead
        elif group.leader:
            self._calls.ask(group.leader, SERVICE, request.data, timeout_ms=left).then(
                lambda future: self._answered(request, future)
            )
        else:
            self._again(request)

    def _again(self, request: _Request, why: str = "") -> None:
        request.why = why or request.why
        self._loop.call_later(_RETRY_MS, lambda: self._try(request))

    def _proposed(self, request: _Request, future: Future[object]) -> None:
        if future.error is None:
            self._finish(request, future.result())
        elif isinstance(future.error, _UNTOUCHED):
            self._again(request, future.error.message)
        elif isinstance(future.error, OutcomeUnknown):
            self._unknown(request, future.error)
        else:
            request.future.reject(future.error)

    def _unknown(self, request: _Request, error: OutcomeUnknown) -> None:
        if request.repeatable:
            self._again(request, error.message)
        else:
            request.future.reject(error)

    def _answered(self, request: _Request, future: Future[bytes]) -> None:
        error = future.error
        if isinstance(error, CallLost):
            self._unknown(request, OutcomeUnknown("metastore", why=error.message))
            return
        if error is not None:
            self._again(request, error.message)
            return
        try:
            reply: _Reply = _decode(future.result())
        except msgspec.MsgspecError as bad:
            self._unknown(request, OutcomeUnknown("metastore", why=f"a bad answer: {bad}"))
            return
        match reply:
            case _Done(outcome=outcome):
                self._finish(request, outcome)
            case _Again(why=why):
                self._again(request, why)
            case _Unknown(why=why):
                self._unknown(request, OutcomeUnknown("metastore", why=why))
            case _Refused(message=message, detail=detail, hint=hint):
                request.future.reject(Rejected(message, detail=detail, hint=hint))
            case _:
                assert_never(reply)

    def _finish(self, request: _Request, outcome: object) -> None:
        if isinstance(outcome, Refused):
            request.future.reject(InvokeRefused(outcome.why))
        else:
            request.future.resolve(outcome)  # type: ignore[arg-type]

    # -- at the leader --------------------------------------------------------------------------

    def _asked(self, address: str, sender: int, question: Buffer, reply: Reply) -> None:
        del address, sender
        group = self._group()
        if group is None or not group.leads:
            reply(_encode(_Again("the node that was asked does not lead it")))
            return
        try:
            # What a peer sends goes into every member's log: it is checked before.
            commands.check(question)
        except (Rejected, Corrupt) as error:
            reply(_encode(_Refused(error.message, error.detail, error.hint)))
            return
        group.propose(bytes(question)).then(lambda future: reply(_encode(_reply_of(future))))

    def _now_ms(self) -> int:
        return self._loop.elapsed_us() // 1_000


def _reply_of(future: Future[object]) -> _Reply:
    error = future.error
    if error is None:
        return _Done(future.result())  # type: ignore[arg-type]
    if isinstance(error, (*_UNTOUCHED, GroupStopped, QuarantinedHere)):
        return _Again(error.message)
    if isinstance(error, Rejected):
        return _Refused(error.message, error.detail, error.hint)
    return _Unknown(error.message)  # also what this code does not know of
