"""Carries what is proposed to a partition from any node to the one that leads it, and the answer
back.

A batch goes to the leader, by a node that says who leads if this one does not know, and is not
tried again: its producer sends it again, in its order and under its number (`producing`).
Anything else is tried again until its time is over, as long as it was surely not applied: no node
leads, the one that was asked does not lead any more, the question did not leave this node. When
it is not known whether it was applied, that is the answer (`OutcomeUnknown`), unless a second time
does no harm. What was asked of a node that does not lead any more, as the copy here knows, is not
waited for.

A question carries the asker's time. The leader's clock follows it, within the skew that the cluster
allows: so what was given as "now" by one node can be closed by another whose clock is behind. If it
is further ahead, the leader first asks that node for the latest time that a log has (`Clocks`):
"now" is above all rows, and rows of another partition may have been stamped by a wrong clock.

A question also says which lineage of the partition its asker has seen, and its answer the one of
the copy that gave it (`group.lineages`): a leader that was left behind by a reset refuses it. A
node of an earlier release has no such service. It is asked by the one that it has, where nothing is
known of a reset; where something is, it is not asked.

    question = lineage (8), time (8), table (8), partition (4), command          little endian
    answer   = lineage (8), kind (1), what it says: an outcome of the machine in MessagePack, or an
               error
    SERVICE_BEFORE has neither lineage
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa

from lowmark.catalog import TableId
from lowmark.errors import Corrupt, LowmarkError
from lowmark.fault import decode_fault, encode_fault
from lowmark.group import (
    COMMAND_BYTES,
    CallLost,
    CopyOutdated,
    Future,
    Group,
    GroupBusy,
    Groups,
    GroupStopped,
    Lineages,
    NoService,
    NotLeader,
    OutcomeUnknown,
    QuarantinedHere,
    Reply,
    Superseded,
    outdated,
)
from lowmark.holds import Hold, SafePoint, Span
from lowmark.ids import group_name
from lowmark.runtime import Buffer
from lowmark.table.adopting import Adopted
from lowmark.table.binding import Bound
from lowmark.table.commands import (
    CONTROL,
    Abandon,
    Bind,
    Drop,
    KeepSchemas,
    ReleaseLease,
    RenewCursor,
    RenewLease,
    Tick,
    Trim,
    decode,
)
from lowmark.table.errors import PartitionNotHere
from lowmark.table.partition import Partition
from lowmark.table.producers import Appended
from lowmark.table.readers import Cursor, Lease
from lowmark.table.state import Begun, Finished, SchemasKept, Ticked, Trimmed

SERVICE: Final = "partition.propose.in"
SERVICE_BEFORE: Final = "partition.propose"
_LINEAGE = struct.Struct("<q")
_HEAD = struct.Struct("<qqI")
_BEFORE_MS: Final = 60_000
"""For so long a node is taken for one of an earlier release."""
_RETRY_MS = 50
_WAITING_BYTES_MAX: Final = 64 << 20
"""Of commands of this node that are on their way."""
_REDIRECTS_MAX: Final = 2
_UNTOUCHED = (
    NotLeader,
    Superseded,
    GroupBusy,
    GroupStopped,
    QuarantinedHere,
    CopyOutdated,
    PartitionNotHere,
)
"""After these, the command was not applied and never will be."""
_REPEATABLE = (Tick, Trim, RenewLease, ReleaseLease, RenewCursor, KeepSchemas, Bind, Drop, Abandon)
_TIMED = (Appended, Finished, Ticked, Bound)
"""Outcomes with a time, which the caller is told: what it asks for here next is later than that."""
_NOTHING, _REFUSED, _FAILED, _FIRST = range(4)
"""Answers: None, what the machine refused, why it was not asked; then the outcomes below."""


class _Held(msgspec.Struct, frozen=True, array_like=True):
    """A hold in a partition's machine: all of them are spans."""

    holder: str
    kind: str
    low: int
    high: int | None
    since_ms: int
    why: str
    expires_at_ms: int | None


class _Cut(msgspec.Struct, frozen=True, array_like=True):
    position: int
    wanted: int
    held_by: tuple[_Held, ...]
    horizon: int
    batches: int


_KINDS: Final[tuple[Any, ...]] = (
    Appended,
    Finished,
    Ticked,
    _Cut,
    Cursor,
    Lease,
    Adopted,
    Begun,
    SchemasKept,
    Bound,
)
"""Their order is what travels: new ones go to the end."""
_encode = msgspec.msgpack.Encoder().encode
_decoders = [msgspec.msgpack.Decoder(kind) for kind in _KINDS]


class Forwarding:
    """Takes commands for partitions that other nodes lead, and those of other nodes for partitions
    that this node leads. All calls are made on the loop.
    """

    def __init__(
        self,
        groups: Groups,
        *,
        copy: Callable[[int, int], Partition | None],
        routes: Callable[[int, int], tuple[int, ...]],
        lineages: Lineages,
    ) -> None:
        self._groups = groups
        self._now_ms = groups.now_ms
        self._calls = groups.calls
        self._clock = groups.clock
        self._copy = copy
        """The copy of a partition at this node."""
        self._routes = routes
        """The nodes that a partition is on."""
        self._lineages = lineages
        self._before: dict[int, int] = {}
        """Nodes of an earlier release, and until when they are taken for that."""
        self._leaders: dict[tuple[int, int], int] = {}
        """Of partitions without a sound copy here: the node that led when it last answered, or that
        another node named as their leader."""
        self._turns: dict[tuple[int, int], int] = {}
        """Of the same: how often the node that was asked did not help."""
        self._waiting_bytes = 0
        self._open: dict[tuple[int, int], set[_Asked]] = {}
        """What other nodes were asked, and have not answered."""
        self._calls.serve(SERVICE, self._asked_in)
        self._calls.serve(SERVICE_BEFORE, self._asked)

    # -- at any node ------------------------------------------------------------------------------

    def propose(
        self, table: int, number: int, command: Buffer, in_place: bool, at_least: int = 0
    ) -> Future[object]:
        """Have a command applied by the node that leads a partition, which is not this one."""
        data = memoryview(command)[COMMAND_BYTES:] if in_place else command
        size = len(data)
        name = group_name(table, number)
        control = size > 0 and data[0] == CONTROL
        full = self._waiting_bytes and self._waiting_bytes + size > _WAITING_BYTES_MAX
        if full and not control:
            why = f"{self._waiting_bytes} bytes are on their way to other nodes"
            return Future.failed(GroupBusy(name, why=why))
        head = _LINEAGE.pack(at_least) + _HEAD.pack(self._clock.now(), table, number)
        asked = _Asked(
            table,
            number,
            b"".join((head, data)),
            deadline_ms=self._now_ms() + self._groups.config.request_timeout_ms,
            patient=control,
            repeatable=control and isinstance(decode(data), _REPEATABLE),
        )
        self._waiting_bytes += size
        asked.future.then(lambda _: self._over(size))
        self._try(asked)
        return asked.future

    def remembered(self) -> set[tuple[int, int]]:
        """The partitions of which is remembered who leads them, or that it was asked in vain."""
        return {*self._leaders, *self._turns}

    def forget(self, table: int) -> None:
        """Remember nothing of a table's partitions."""
        for known in (self._leaders, self._turns):
            for key in [key for key in known if key[0] == table]:
                del known[key]

    def copies(self, table: int, number: int) -> int:
        """How many nodes a partition is on."""
        return len(self._routes(table, number))

    def _over(self, size: int) -> None:
        self._waiting_bytes -= size

    def _try(self, asked: _Asked) -> None:
        copy = self._copy(asked.table, asked.number)
        name, left_ms = asked.name, asked.deadline_ms - self._now_ms()
        leader = self._leader(asked, copy)
        if left_ms <= 0:
            asked.future.reject(asked.error or NotLeader(name, leader=leader or None))
        elif copy is not None and copy.group.leads:
            if copy.serves_caller(asked.at_least):
                copy.group.propose(asked.command).then(partial(self._proposed, asked))
            else:
                self._again(asked, outdated(name, copy.lineage, asked.at_least))
        elif not leader or not self._groups.reaches(leader):
            key = (asked.table, asked.number)
            self._leaders.pop(key, None)
            self._turns[key] = self._turns.get(key, 0) + 1
            self._again(asked, NotLeader(name, leader=None))
        else:
            seen = self._lineages.of(name)
            if copy is not None and copy.group.stopped is None:
                seen = max(seen, copy.lineage)  # who leads that one is of the same
            asked.has_seen(seen)
            self._ask(asked, leader, left_ms)

    def _ask(self, asked: _Asked, leader: int, left_ms: int) -> None:
        before = self._before.get(leader, 0) > self._now_ms()
        asked.node, question = leader, asked.question
        if before and asked.at_least:
            key = (asked.table, asked.number)
            self._leaders.pop(key, None)
            self._turns[key] = self._turns.get(key, 0) + 1
            self._again(asked, outdated(asked.name, 0, asked.at_least))
            return
        if before:
            question = question[_LINEAGE.size :]
        service = SERVICE_BEFORE if before else SERVICE
        self._open.setdefault((asked.table, asked.number), set()).add(asked)
        self._calls.ask(leader, service, question, timeout_ms=left_ms).then(
            partial(self._answered, asked, asked.tries, not before)
        )

    def leader_changed(self, table: int, number: int, leader: int) -> None:
        """Whatever another node was asked, it can't answer any more as a leader."""
        for asked in [*self._open.get((table, number), ())] if leader else ():
            if asked.node != leader:
                self._unknown(
                    asked, f"node {self._calls.name_of(asked.node)} does not lead any more"
                )

    def _leader(self, asked: _Asked, copy: Partition | None) -> int:
        """Who leads, as far as this node knows; 0: it does not know."""
        key = (asked.table, asked.number)
        nodes = self._routes(*key)
        if copy is not None and copy.group.stopped is None:
            # A copy that is being filled, or was left behind, may know of no leader.
            if copy.group.leader or self._groups.node in nodes:
                self._leaders.pop(key, None)
                return copy.group.leader
        known = self._leaders.get(key)
        if known is not None:  # it may be one that the partition is moving to
            return known
        # Each in turn: one of them leads, or knows which does.
        others = [node for node in nodes if node != self._groups.node]
        return others[self._turns.get(key, 0) % len(others)] if others else 0

    def _again(self, asked: _Asked, error: LowmarkError) -> None:
        """The command was surely not applied, or a second time does no harm."""
        self._closed(asked)
        if not isinstance(asked.error, OutcomeUnknown):  # what may have been applied stays so
            asked.error = error
        if asked.patient:
            self._groups.later(_RETRY_MS, lambda: self._try(asked))
        elif isinstance(error, GroupStopped | QuarantinedHere):
            # Of a copy at another node: its producer must not take it for the end of its own.
            asked.future.reject(NotLeader(asked.name, leader=None))
        else:
            asked.future.reject(error)

    def _unknown(self, asked: _Asked, why: str) -> None:
        """It may have been applied."""
        unknown = OutcomeUnknown(asked.name, why=why)
        if asked.repeatable:
            self._again(asked, unknown)
        else:
            self._closed(asked)
            asked.future.reject(unknown)

    def _closed(self, asked: _Asked) -> None:
        """No answer to this question is waited for any more."""
        asked.tries += 1
        key = (asked.table, asked.number)
        open_here = self._open.get(key)
        if open_here is not None:
            open_here.discard(asked)
            if not open_here:
                del self._open[key]

    def _proposed(self, asked: _Asked, done: Future[object]) -> None:
        error = done.error
        if error is None:
            asked.future.resolve(done.result())
        elif isinstance(error, _UNTOUCHED):
            self._again(asked, error)
        else:
            asked.future.reject(error)

    def _answered(self, asked: _Asked, tries: int, told: bool, done: Future[bytes]) -> None:
        """`told`: the answer says of which lineage it is."""
        if tries != asked.tries:
            return  # it was not waited for
        key, node, error = (asked.table, asked.number), asked.node, done.error
        if isinstance(error, NoService) and not error.busy and told:
            self._before[node] = self._now_ms() + _BEFORE_MS
            self._closed(asked)
            self._try(asked)  # at once: what came behind it comes behind it
            return
        self._leaders.pop(key, None)
        turn = self._turns.pop(key, 0)
        if error is not None:
            self._turns[key] = turn + 1
        if isinstance(error, CallLost):
            self._unknown(asked, error.message)
            return
        if error is not None:  # it was not asked
            self._again(asked, error)
            return
        try:
            lineage, answer = _of_lineage(done.result()) if told else (0, done.result())
            outcome, failure = _decoded(answer)
        except (Corrupt, msgspec.MsgspecError) as bad:
            self._unknown(
                asked, f"node {self._calls.name_of(node)} gave an answer that can't be read: {bad}"
            )
            return
        if lineage > self._lineages.of(asked.name):
            self._lineages.learn({asked.name: lineage})
        if isinstance(failure, _UNTOUCHED):
            leader = getattr(failure, "leader", None)
            if isinstance(leader, int) and leader != node:
                self._leaders[key] = leader
                if asked.tries < _REDIRECTS_MAX:  # at once: what came behind it comes behind it
                    self._closed(asked)
                    self._try(asked)
                    return
            else:
                self._turns[key] = turn + 1
            self._again(asked, failure)
            return
        if isinstance(failure, OutcomeUnknown):
            self._unknown(asked, failure.message)
            return
        self._closed(asked)
        if failure is not None:
            asked.future.reject(failure)
        else:
            copy = self._copy(*key)
            if copy is None or copy.group.stopped is not None:
                self._leaders[key] = node
            if isinstance(outcome, _TIMED):
                self._clock.follow_log(outcome.time)
            asked.future.resolve(outcome)

    # -- at the leader ----------------------------------------------------------------------------

    def _asked_in(self, address: str, sender: int, question: Buffer, reply: Reply) -> None:
        if len(question) < _LINEAGE.size + _HEAD.size:
            reply(_LINEAGE.pack(0) + _failed(Corrupt("a question to a partition is too short")))
            return
        (at_least,) = _LINEAGE.unpack_from(question)
        rest = memoryview(question)[_LINEAGE.size :]
        _, table, number = _HEAD.unpack_from(rest)

        def told(answer: bytes) -> None:
            copy = self._copy(table, number)
            reply(_LINEAGE.pack(0 if copy is None else copy.lineage) + answer)

        self._asked(address, sender, rest, told, at_least=at_least)

    def _asked(
        self, address: str, sender: int, question: Buffer, reply: Reply, *, at_least: int = 0
    ) -> None:
        del address
        if len(question) < _HEAD.size:
            reply(_failed(Corrupt("a question to a partition is too short")))
            return
        time, table, number = _HEAD.unpack_from(question)
        room = _with_room(question)
        try:
            decode(room[COMMAND_BYTES:])  # it goes into every member's log
        except Corrupt as error:
            reply(_failed(error))
            return
        copy = self._copy(TableId(table), number)
        if copy is None:
            reply(_failed(PartitionNotHere(table, number)))
        elif not copy.serves_caller(at_least):
            reply(_failed(outdated(copy.name, copy.lineage, at_least)))
        elif not copy.group.leads:
            reply(_failed(_not_here(copy.group)))
        else:
            group = copy.group

            def propose() -> None:
                group.propose(room, in_place=True).then(lambda done: reply(_encoded(done)))

            def looked(_: Future[None]) -> None:
                self._clock.follow(time)  # else its time is not closed here, and it is told
                propose()

            # A batch closes no time, and must not be overtaken by the next one of its producer.
            if self._clock.follow(time) or room[COMMAND_BYTES] != CONTROL:
                propose()
            else:
                self._groups.clocks.look(sender).then(looked)


class _Asked:
    """One command on its way."""

    __slots__ = (
        "deadline_ms",
        "error",
        "future",
        "name",
        "node",
        "number",
        "patient",
        "question",
        "repeatable",
        "table",
        "tries",
    )

    def __init__(
        self,
        table: int,
        number: int,
        question: bytes,
        *,
        deadline_ms: int,
        patient: bool,
        repeatable: bool,
    ) -> None:
        self.table = table
        self.number = number
        self.name = group_name(table, number)
        self.question = question
        self.deadline_ms = deadline_ms
        self.patient = patient
        """Whether it is tried again here."""
        self.repeatable = repeatable
        """Whether it does no harm twice."""
        self.node = 0
        """The node that was asked last."""
        self.future: Future[object] = Future()
        self.error: LowmarkError | None = None
        self.tries = 0

    @property
    def command(self) -> bytes:
        return self.question[_LINEAGE.size + _HEAD.size :]

    @property
    def at_least(self) -> int:
        """The lineage that its asker has seen."""
        lineage: int = _LINEAGE.unpack_from(self.question)[0]
        return lineage

    def has_seen(self, lineage: int) -> None:
        """Its asker has heard of this one by now."""
        if lineage > self.at_least:
            self.question = _LINEAGE.pack(lineage) + self.question[_LINEAGE.size :]


def _with_room(question: Buffer) -> memoryview:
    """The command of a question, with room in front of it: the group copies it no more.

    It is a copy, since the log keeps it, and what came lies in a frame. It is in Arrow's memory:
    the C library's would be given back to the system and come again page by page, which took 75 µs
    for 125 KB with the group's copy, against 11 µs so.
    """
    came = memoryview(question)[_HEAD.size - COMMAND_BYTES :]
    room = memoryview(pa.allocate_buffer(len(came))).cast("B")
    room[:] = came
    return room


def _not_here(group: Group) -> LowmarkError:
    """Why a copy here does not take it."""
    leader = group.leader if group.stopped is None else 0
    return NotLeader(group.name, leader=leader or None)


def _failed(error: LowmarkError) -> bytes:
    return bytes([_FAILED]) + encode_fault(error)


def _encoded(done: Future[object]) -> bytes:
    if done.error is not None:
        return _failed(done.error)
    outcome = done.result()
    if outcome is None:
        return bytes([_NOTHING])
    if isinstance(outcome, LowmarkError):
        return bytes([_REFUSED]) + encode_fault(outcome)
    if isinstance(outcome, Trimmed):
        outcome = _cut_of(outcome)
    return bytes([_FIRST + _KINDS.index(type(outcome))]) + _encode(outcome)


def _of_lineage(answer: bytes) -> tuple[int, bytes]:
    if len(answer) < _LINEAGE.size:
        raise Corrupt("an answer that says no lineage")
    return _LINEAGE.unpack_from(answer)[0], answer[_LINEAGE.size :]


def _decoded(answer: bytes) -> tuple[object, LowmarkError | None]:
    """What the machine answered; or why it was not asked."""
    kind, body = answer[0] if answer else 255, answer[1:]
    if kind == _NOTHING:
        return None, None
    if kind in {_REFUSED, _FAILED}:
        error = decode_fault(body)
        if error is None:
            raise Corrupt("an error that can't be read")
        return (error, None) if kind == _REFUSED else (None, error)
    if kind >= _FIRST + len(_KINDS):
        raise Corrupt(f"there is no answer of kind {kind}")
    outcome = _decoders[kind - _FIRST].decode(body)
    return (_trimmed(outcome) if isinstance(outcome, _Cut) else outcome), None


def _cut_of(trimmed: Trimmed) -> _Cut:
    held = []
    for one in trimmed.safe.held_by:
        pins = one.pins if isinstance(one.pins, Span) else Span(one.pins.min(), one.pins.max())
        held.append(
            _Held(
                one.holder, one.kind, pins.low, pins.high, one.since_ms, one.why, one.expires_at_ms
            )
        )
    safe = trimmed.safe
    return _Cut(safe.position, safe.wanted, tuple(held), trimmed.horizon, trimmed.batches)


def _trimmed(cut: _Cut) -> Trimmed:
    held = tuple(
        Hold(
            holder=one.holder,
            kind=one.kind,
            pins=Span(one.low, one.high),
            since_ms=one.since_ms,
            why=one.why,
            expires_at_ms=one.expires_at_ms,
        )
        for one in cut.held_by
    )
    return Trimmed(SafePoint(cut.position, cut.wanted, held), cut.horizon, cut.batches)
