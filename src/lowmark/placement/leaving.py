"""Destroys this node's copies that no assignment names any more.

A copy that is destroyed too early may be the one that a majority needs. So a node takes no word
but the group's: it asks the nodes that hold the partition, and the one that leads it reads the
members from a state that a majority has confirmed.

Steps, and what is true after each

    1. stable and pending are without this node, as it has heard. Its copy may still be a member
    2. the group's leader says that this node is no member. A majority of the members in force knows
       that, and has every row; no message of this copy counts any more
    3. the metastore's leader says that stable and pending are without this node, and its copy is of
       the incarnation that it was. If it was added again meanwhile, its copy stays
    4. the copy is gone, and a note says which incarnation it was (`Groups.leave`). If this node is
       added again later, its next copy is another one

A group without a leader gives no word, and nothing is destroyed. So the last copy of anything
stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from lowmark.errors import LowmarkError
from lowmark.group import Future, Groups, Reply
from lowmark.metastore import Metastore
from lowmark.placement.assignments import Keys, PartitionId
from lowmark.placement.writes import read_keys
from lowmark.runtime import Buffer, Loop
from lowmark.table import Tables

logger = logging.getLogger(__name__)

SERVICE = "partition.members"
ASK_MS = 3_000
RETRY_MS = 1_000
RETRY_MS_MAX = 30_000


class _Ask(msgspec.Struct, frozen=True, array_like=True):
    """Who belongs to the group of a partition?"""

    table: int
    number: int


class _Members(msgspec.Struct, frozen=True, array_like=True):
    """The leader's answer; without a leader, which node may be."""

    certain: bool
    nodes: tuple[int, ...] = ()
    leader: int = 0
    lineage: int = 0
    """Of the group that this leads; an earlier release says 0."""


_encode = msgspec.msgpack.Encoder().encode
_decode_ask = msgspec.msgpack.Decoder(_Ask).decode
_decode_members = msgspec.msgpack.Decoder(_Members).decode


class Leaving:
    """One node's part: destroys its copies, and answers for the groups that it leads."""

    def __init__(
        self,
        loop: Loop,
        groups: Groups,
        metastore: Metastore,
        tables: Tables,
        *,
        keys: Callable[[PartitionId], Keys],
        on_gone: Callable[[PartitionId], None],
    ) -> None:
        self._loop = loop
        self._calls = groups.calls
        self._metastore = metastore
        self._tables = tables
        self._keys = keys
        self._on_gone = on_gone
        self._node = groups.node
        self._leaving: dict[PartitionId, int] = {}
        """Copies that shall go, with how often that was tried."""
        self._closed = False
        self._calls.serve(SERVICE, self._asked)

    def close(self) -> None:
        """Destroy nothing more."""
        self._closed = True

    @property
    def left(self) -> list[PartitionId]:
        """The copies that shall go, and are still here."""
        return sorted(self._leaving)

    def look(self, partition: PartitionId) -> None:
        """Destroy a copy that is on this node's disk, if it is not assigned to this node."""
        if self._is_out(partition) and partition not in self._leaving:
            self._leaving[partition] = 0
            self._loop.call_soon(lambda: self._try(partition))

    def _is_out(self, partition: PartitionId) -> bool:
        keys = self._keys(partition)
        return keys.stable is not None and self._node not in keys.nodes

    # -- asking -----------------------------------------------------------------------------------

    def _try(self, partition: PartitionId, asked: tuple[int, ...] = (), next_: int = 0) -> None:
        if self._closed or partition not in self._leaving:
            return
        if not self._is_out(partition):
            del self._leaving[partition]  # it was added again
            return
        keys = self._keys(partition)
        others = [node for node in sorted(keys.nodes) if node not in asked]
        node = next_ if next_ in others else next(iter(others), 0)
        if not node:
            self._later(partition, "no node says that it leads the partition")
            return
        question = _encode(_Ask(partition.table, partition.number))
        incarnation = self._incarnation(partition)

        def answered(future: Future[bytes]) -> None:
            try:
                said = _decode_members(future.result())
            except (LowmarkError, msgspec.MsgspecError):
                said = _Members(certain=False)
            if not said.certain:
                self._try(partition, (*asked, node), said.leader)
            elif self._node in said.nodes:
                self._later(partition, "it is a member still")
            else:
                read_keys(self._metastore, partition).then(certain)

        def certain(future: Future[Keys]) -> None:
            if future.error is not None:
                self._later(partition, future.error.message)
            elif self._node in future.result().nodes or not self._is_out(partition):
                self._leaving.pop(partition, None)
            elif self._incarnation(partition) != incarnation:
                self._later(partition, "it was added again since the leader was asked")
            elif not self._closed:
                self._destroy(partition)

        self._calls.ask(node, SERVICE, question, timeout_ms=ASK_MS).then(answered)

    def _incarnation(self, partition: PartitionId) -> int:
        """Of this node's copy; a copy that is added again is another one."""
        copy = self._tables.here(*partition)
        return 0 if copy is None else copy.group.incarnation

    def _later(self, partition: PartitionId, why: str) -> None:
        tries = self._leaving[partition] = self._leaving.get(partition, 0) + 1
        logger.info(
            "a copy stays for the moment",
            extra={"table": partition.table, "partition": partition.number, "reason": why},
        )
        wait_ms = min(RETRY_MS << min(tries, 10), RETRY_MS_MAX)
        self._loop.call_later(wait_ms, lambda: self._try(partition))

    def _destroy(self, partition: PartitionId) -> None:
        try:
            self._tables.leave(*partition)
        except LowmarkError as error:
            self._later(partition, error.message)
            return
        self._leaving.pop(partition, None)
        logger.info(
            "a copy was moved away", extra={"table": partition.table, "partition": partition.number}
        )
        self._on_gone(partition)

    def confirmed(
        self, partition: PartitionId, nodes: Iterable[int], *, lineage: int = 0
    ) -> Future[tuple[int, ...]]:
        """The members of a partition's group, as its leader says and a majority has confirmed; none
        if none of these nodes can say that.

        What leads an earlier lineage than this is another group, which a reset has left behind: it
        has not all that this one's members acknowledged.
        """
        whole: Future[tuple[int, ...]] = Future()
        left = sorted(set(nodes) - {self._node})
        question = _encode(_Ask(partition.table, partition.number))

        def ask(node: int) -> None:
            left.remove(node)
            asked = self._calls.ask(node, SERVICE, question, timeout_ms=ASK_MS)
            asked.then(answered)

        def answered(future: Future[bytes]) -> None:
            try:
                said = _decode_members(future.result())
            except (LowmarkError, msgspec.MsgspecError):
                said = _Members(certain=False)
            if said.certain and said.lineage >= lineage:
                whole.resolve(said.nodes)
            elif left:
                ask(said.leader if said.leader in left else left[0])
            else:
                whole.resolve(())

        if left:
            ask(left[0])
        else:
            whole.resolve(())
        return whole

    # -- answering --------------------------------------------------------------------------------

    def _asked(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        del address, sender
        try:
            asked = _decode_ask(question)
        except msgspec.MsgspecError:
            answer(_encode(_Members(certain=False)))
            return
        copy = self._tables.here(asked.table, asked.number)
        if copy is None or copy.group.stopped is not None:
            answer(_encode(_Members(certain=False)))
            return
        group = copy.group
        if not group.ready:
            answer(_encode(_Members(certain=False, leader=group.leader)))
            return

        def confirmed(future: Future[object]) -> None:
            members = group.members()
            if future.error is not None or members.joint or not group.ready:
                answer(_encode(_Members(certain=False)))
                return
            nodes = tuple(sorted(members.everybody | members.returning))
            own = group.status().lineage
            answer(_encode(_Members(certain=True, nodes=nodes, lineage=own)))

        copy.group.read(lambda _: None).then(confirmed)
