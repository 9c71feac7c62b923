"""Copies in doubt: those of a node whose directory is older than what others know of it (`starts`).

Such a copy may lack entries that its node had acknowledged, and votes that it had given: as the
incarnation that the copy knows, or as a later one that it does not know. So it says nothing and
hears nothing. Its entries are sound all the same, as far as they go, and stay.

    1. the copy is in doubt, durably
    2. the leader of its group says, as of a state that a majority has confirmed, as which
       incarnation and in which lineage the node is a member. The copy's record says that it
       replaces that one: it is silent, and no longer in doubt
    3. it asks to be added again (`rejoin`), and is another incarnation from there on, which has
       promised nothing. It gets what it lacks as any member that was away

The majority that confirms it and adds it again has no voice of this copy in it. So it has all that
was ever committed, or there is none, and the copy waits: for another node, or for an operator
(`reset`). A leader that does not have the node as a member says nothing of it, and the copy stays
in doubt until it is destroyed, or added.

A copy that the directory lacks altogether is as good as lost: one that is made here is in doubt
from the beginning, until it is known which copies that can be (`Groups.settle`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from lowmark.errors import LowmarkError
from lowmark.group.calls import Calls, Reply
from lowmark.group.config import GroupConfig
from lowmark.group.errors import GroupStopped
from lowmark.group.starts import Starts
from lowmark.group.storage import GroupMeta
from lowmark.group.transport import Transport
from lowmark.log import GroupLog, Log
from lowmark.raft import Members
from lowmark.runtime import Buffer, Future

if TYPE_CHECKING:
    from lowmark.group.group import Group

logger = logging.getLogger(__name__)

SERVICE = "group.incarnation"
_NAMES_MAX = 256
"""How many groups are asked for at a time."""


class _Ask(msgspec.Struct, frozen=True, array_like=True):
    groups: tuple[str, ...]


class _Said(msgspec.Struct, frozen=True, array_like=True):
    group: str
    incarnation: int
    lineage: int
    members: tuple[int, ...] = ()
    """Whom to ask to be added again: a copy that its directory lacked knows of none."""


_encode = msgspec.msgpack.Encoder().encode
_decode_ask = msgspec.msgpack.Decoder(_Ask).decode
_decode_said = msgspec.msgpack.Decoder(tuple[_Said, ...]).decode


class Copies(Protocol):
    """What it needs of its node."""

    node: int
    config: GroupConfig
    calls: Calls
    transport: Transport

    def group(self, name: str) -> Group:
        """A group that is open here."""

    def groups(self) -> list[Group]:
        """All groups that are open here, by name."""

    def note_doubtful(self, name: str) -> None:
        """A copy that is made or opened here later is in doubt; durable when it returns."""


class Doubts:
    """One node's copies in doubt, and its answers for those of others. All calls on the loop."""

    def __init__(
        self, groups: Copies, log: Log, starts: Starts, *, begun_anew: Callable[[], None]
    ) -> None:
        self._groups = groups
        self._log = log
        self._starts = starts
        self._begun_anew = begun_anew
        """Told when all copies are in doubt, and this node has another start."""
        self._marking: set[str] = set()
        """Copies whose record is on its way to the disk."""
        self.waits_for = ""
        """Why not all copies could be put in doubt yet, if so."""
        groups.calls.serve(SERVICE, self._asked)

    def begin(self, number: int) -> None:
        """This directory is older than a start of its node."""
        if number > self._starts.lost:
            logger.error(
                "the directory of this node is older than what other nodes have seen of it",
                extra={"start": self._starts.own.number, "known": number},
            )
        self._starts.is_older_than(number)
        self.tick()

    # -- putting in doubt -------------------------------------------------------------------------

    def tick(self) -> None:
        """Go on with what a start has left, or could not be done the last time."""
        if not self._starts.lost or self._marking:
            return
        self.waits_for = ""
        try:
            self._starts.note_lost()
            for log in self._log.groups():
                self._mark(log)
            for name in sorted(self._log.unreadable):
                # A later start may be able to read it: then it is in doubt before it says a word.
                self._groups.note_doubtful(name)
        except LowmarkError as error:
            self._wait(error.message)
        self._go_on()

    def _wait(self, why: str) -> None:
        if not self.waits_for:
            self.waits_for = why

    def _mark(self, log: GroupLog) -> None:
        """Put one copy in doubt. One in quarantine says nothing as it is, and takes no record: a
        note says it of the copy that is made in its place.
        """
        if not log.meta:
            if self._is_open(log.name):  # else it was never finished, and is made anew
                self._wait(f"group {log.name}: its first record is on its way to the disk")
            return
        if GroupMeta.decode(log.meta).in_doubt:
            return
        if log.quarantined is not None:
            self._groups.note_doubtful(log.name)
            return
        name = log.name
        self._marking.add(name)

        def done(error: LowmarkError | None) -> None:
            self._marking.discard(name)
            if error is not None:
                self._wait(f"group {name}: {error.message}")
            self._go_on()

        try:
            self._write(log, in_doubt, done)
        except LowmarkError:
            self._marking.discard(name)
            raise

    def _write(
        self,
        log: GroupLog,
        change: Callable[[GroupMeta, Members | None], GroupMeta],
        done: Callable[[LowmarkError | None], None],
    ) -> None:
        group = self._open(log.name)
        if group is not None and group.stopped is None:
            group.change_record(change, done)
        else:
            log.put_meta(change(GroupMeta.decode(log.meta), None).encode(), done)

    def _is_open(self, name: str) -> bool:
        group = self._open(name)
        return group is not None and group.stopped is None

    def _open(self, name: str) -> Group | None:
        try:
            return self._groups.group(name)
        except GroupStopped:
            return None

    def _go_on(self) -> None:
        if self._marking or self.waits_for or not self._starts.lost:
            return
        try:
            self._starts.begin_anew()
        except LowmarkError as error:
            self._wait(error.message)
            return
        logger.warning("all copies here are in doubt, and ask to be added to their groups again")
        self._begun_anew()

    # -- asking -----------------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask all nodes as which incarnations this one is a member."""
        names = [one.name for one in self._groups.groups() if one.in_doubt and one.stopped is None]
        nodes = sorted(self._groups.transport.addresses.keys() - {self._groups.node})
        for first in range(0, len(names), _NAMES_MAX):
            question = _encode(_Ask(tuple(names[first : first + _NAMES_MAX])))
            for node in nodes:
                asked = self._groups.calls.ask(
                    node, SERVICE, question, timeout_ms=2 * self._groups.config.election_ms
                )
                asked.then(self._answered)

    def _answered(self, future: Future[bytes]) -> None:
        if future.error is not None:
            return
        try:
            found = _decode_said(future.result())
        except msgspec.MsgspecError:
            return
        for said in found:
            group = self._open(said.group)
            if group is None or group.stopped is not None or not group.in_doubt:
                continue
            if said.lineage < group.raft.core.lineage:
                continue  # of a group that this one was

            def replaces(meta: GroupMeta, members: Members | None, said: _Said = said) -> GroupMeta:
                return _replaces(meta, members, said)

            try:
                group.change_record(replaces, lambda _: None)
            except LowmarkError as error:
                logger.info("a copy stays in doubt", extra={"reason": error.message})

    def is_over(self) -> bool:
        """Whether no copy here is in doubt, or waits to be added again."""
        metas = [GroupMeta.decode(one.meta) for one in self._log.groups() if one.meta]
        if any(meta.in_doubt for meta in metas):
            return False
        return not any(one.waits for one in self._groups.groups() if one.stopped is None)

    # -- answering --------------------------------------------------------------------------------

    def _asked(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        del address
        try:
            names = _decode_ask(question).groups
        except msgspec.MsgspecError:
            answer(_encode(()))
            return
        led = [group for group in map(self._open, names) if group is not None and group.ready]
        left = len(led)
        found: list[_Said] = []
        if not led:
            answer(_encode(()))

        def confirmed(group: Group, future: Future[object]) -> None:
            nonlocal left
            left -= 1
            members = group.members()
            if future.error is None and sender in members.everybody:
                incarnation = members.incarnation(sender)
                asked = tuple(sorted(members.everybody))
                found.append(_Said(group.name, incarnation, group.raft.core.lineage, asked))
            if not left:
                answer(_encode(tuple(found)))

        for group in led:
            group.confirm(timeout_ms=self._groups.config.election_ms).then(
                lambda future, group=group: confirmed(group, future)  # type: ignore[misc]
            )


def in_doubt(meta: GroupMeta, members: Members | None) -> GroupMeta:
    """The record of a copy that may lack anything."""
    everybody = members.everybody if members is not None else frozenset()
    ask = {*meta.ask, *meta.founders.voters, *everybody}
    return msgspec.structs.replace(meta, in_doubt=True, ask=tuple(sorted(ask)))


def _replaces(meta: GroupMeta, members: Members | None, said: _Said) -> GroupMeta:
    """The record of a copy that replaces what a leader knows as its node's."""
    meta = in_doubt(meta, members)
    above = max(said.incarnation, meta.hard.incarnation if said.lineage == meta.hard.lineage else 0)
    return msgspec.structs.replace(
        meta,
        in_doubt=False,
        ask=tuple(sorted({*meta.ask, *said.members})),
        rejoin_above=above,
        rejoin_lineage=said.lineage,
    )
