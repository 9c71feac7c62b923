"""A partition whose majority is lost for good: an operator has one copy go on alone.

Raft can't decide that; a person does, who names every lost node. Steps, and what is true after
each:

    1. it is checked: the copy is on a node that is up; every other member is named as lost, is not
       up, and its lease is over. Members are the nodes of stable; and of pending, if the lock says
       that they may be in force. Nodes of pending without a lock only follow: as soon as lost nodes
       are drained, the partitions that they held have such. The node that goes on looks whether
       any other voter that its copy knows of is up. Nothing has changed
    2. the copy is reset (`Groups.reset`): its group has one member, under a new incarnation and
       lineage. It takes rows. The assignments still name the lost nodes; a crash here is made good
       by asking again: what is reset is found to be
    3. stable is that node; pending, planned, the lock and the trigger's revision are gone; and the
       lost nodes are drained: one write
    4. the coordinator takes the lost nodes out of the baselines, and decides where the partition
       should be. It is moved there as any other

What only the lost nodes had is lost. A lost node that comes back after all has a copy of the
lineage before: it can neither lead nor vote. If the partition is given to it again, its copy is
thrown away and made anew (`Outdated`); else it is destroyed, as every copy that no assignment
names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from lowmark.errors import LowmarkError, Rejected
from lowmark.fault import decode_fault, encode_fault
from lowmark.group import CopyOutdated, Future, Groups, Reply
from lowmark.metastore import Cluster, Put
from lowmark.metastore.nodes import lease_of
from lowmark.placement import decisions
from lowmark.placement.assignments import Assignments, Keys, PartitionId
from lowmark.placement.baseline import Draining, draining_key
from lowmark.placement.decisions import Decision
from lowmark.placement.moves import Moves
from lowmark.placement.writes import carry_out, read_keys
from lowmark.runtime import Buffer, Loop
from lowmark.table import Partition, Tables

logger = logging.getLogger(__name__)

SERVICE = "partition.reset"
ASK_MS = 15_000
_LOOK_MS = 20
_RETRY_MS = 1_000


class ResetDone(msgspec.Struct, frozen=True, array_like=True):
    """What became of a partition that was reset."""

    table: int
    partition: int
    node: int
    """The only member."""
    rows: int
    """Rows below this offset were kept."""
    kept: int
    """The last entry of the copy."""
    committed: int
    """Up to here the copy knew that entries were committed; those behind it are kept, too."""
    lost: tuple[int, ...]
    """The nodes that are members no more."""


class _Ask(msgspec.Struct, frozen=True, array_like=True):
    table: int
    number: int
    lost: tuple[int, ...]


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    done: ResetDone | None = None
    error: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode_ask = msgspec.msgpack.Decoder(_Ask).decode
_decode_answer = msgspec.msgpack.Decoder(_Answer).decode


class Resetting:
    """One node's part: asks for a reset, and carries one out. All calls are made on the loop."""

    def __init__(
        self,
        loop: Loop,
        groups: Groups,
        cluster: Cluster,
        tables: Tables,
        *,
        moves: Moves,
        started: Callable[[PartitionId], None],
    ) -> None:
        self._loop = loop
        self._calls = groups.calls
        self._cluster = cluster
        self._metastore = cluster.metastore
        self._tables = tables
        self._moves = moves
        self._started = started
        """Told that a copy was opened anew."""
        self._node = groups.node
        self._closed = False
        self._calls.serve(SERVICE, self._asked)

    def close(self) -> None:
        """Do nothing more."""
        self._closed = True

    # -- at any node ------------------------------------------------------------------------------

    def reset(
        self, partition: PartitionId, *, node: int, lost: Collection[int], name: str = ""
    ) -> Future[ResetDone]:
        """Have the copy at a node go on alone; all other nodes of the partition are lost.

        `name` is what the partition is called in an error.
        """
        whole: Future[ResetDone] = Future()

        def read(future: Future[Keys]) -> None:
            if future.error is not None:
                whole.reject(future.error)
                return
            keys = future.result()
            refused = self.refusal(partition, keys, node=node, lost=frozenset(lost), name=name)
            if refused is not None:
                whole.reject(refused)
                return
            question = _encode(_Ask(partition.table, partition.number, tuple(sorted(lost))))
            if node == self._node:
                self._carry_out(partition, lost).then(done)
            else:
                self._calls.ask(node, SERVICE, question, timeout_ms=ASK_MS).map(_answer).then(done)

        def done(future: Future[ResetDone]) -> None:
            if future.error is not None:
                whole.reject(future.error)
                return
            survivor = future.result()
            since = Draining(self._loop.wall_ms()).encode()
            drained = tuple(Put(draining_key(one), since) for one in sorted(lost))

            def decide(keys: Keys) -> Decision:
                decision = decisions.reset(partition, keys, _only(keys, node))
                return Decision((*decision.operations, *drained), decision.answer)

            carry_out(self._metastore, partition, decide).then(
                lambda written: self._written(whole, survivor, written)
            )

        read_keys(self._metastore, partition).then(read)
        return whole

    def _written(self, whole: Future[ResetDone], done: ResetDone, written: Future[bool]) -> None:
        if written.error is not None:
            whole.reject(written.error)
        else:
            whole.resolve(done)

    def refusal(
        self,
        partition: PartitionId,
        keys: Keys,
        *,
        node: int,
        lost: frozenset[int],
        name: str = "",
    ) -> LowmarkError | None:
        """Why a partition with these keys can't be reset, if so."""
        name = name or f"partition {partition.number} of table {partition.table}"
        if keys.stable is None:
            return Rejected(f"there is no {name}")
        names = {one.number: one.name for one in self._cluster.nodes()}
        up = {one.number for one in self._cluster.topology.nodes}
        others = keys.voters - {node}
        if node not in keys.nodes:
            words = ", ".join(names.get(one, str(one)) for one in sorted(keys.nodes))
            return Rejected(
                f"node {names.get(node, str(node))} has no copy of {name}",
                hint=f"It is on nodes {words}.",
            )
        if not others and not self._is_in_doubt(partition, node):
            return Rejected(
                f"{name} is on node {names.get(node, str(node))} only: there is nothing to reset",
                hint="If its copy is older than what the node had acknowledged, ask that node"
                " itself: --node.",
            )
        if node not in up:
            return Rejected(
                f"node {names.get(node, str(node))} is down", hint="Start it first, and ask again."
            )
        alive = sorted(one for one in others if one in up or self.has_lease(one))
        if alive:
            words = ", ".join(names.get(one, str(one)) for one in alive)
            return Rejected(
                f"{name} can't be reset: not all of its other nodes are lost",
                detail=f"Up, or not gone for long enough: {words}.",
                hint="A partition whose majority is up needs no reset. Wait until the leases of"
                " nodes that are down are over, and ask again.",
            )
        missing = sorted(others - lost)
        if missing:
            words = " ".join(f"--lost {names.get(one, one)}" for one in missing)
            return Rejected(
                f"{name} can't be reset: its lost nodes must be named",
                detail="Rows that only they had acknowledged are gone for good after a reset.",
                hint=f"If they will never come back with their disks, add {words}.",
            )
        not_lost = sorted(one for one in lost - others if one in up or self.has_lease(one))
        if not_lost:
            words = ", ".join(names.get(one, str(one)) for one in not_lost)
            return Rejected(
                f"{name} can't be reset: nodes were named as lost that are up: {words}",
                detail="Lost nodes are drained.",
                hint="Name only nodes that hold the partition and are lost.",
            )
        return None

    def _is_in_doubt(self, partition: PartitionId, node: int) -> bool:
        """Whether the copy is here, and older than what this node has acknowledged."""
        copy = self._tables.here(*partition)
        return node == self._node and copy is not None and copy.group.in_doubt

    def has_lease(self, node: int) -> bool:
        """Whether a node's lease is not over: it may be running."""
        state = self._metastore.state
        return state.lease(lease_of(node), self._metastore.clock.now()) is not None

    # -- at the node that goes on -----------------------------------------------------------------

    def _asked(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        del address, sender
        try:
            asked = _decode_ask(question)
        except msgspec.MsgspecError as error:
            answer(_encode(_Answer(error=encode_fault(Rejected(f"a bad question: {error}")))))
            return
        partition = PartitionId(asked.table, asked.number)  # type: ignore[arg-type]

        def done(future: Future[ResetDone]) -> None:
            if future.error is not None:
                answer(_encode(_Answer(error=encode_fault(future.error))))
            else:
                answer(_encode(_Answer(future.result())))

        self._carry_out(partition, asked.lost).then(done)

    def _carry_out(self, partition: PartitionId, lost: Collection[int]) -> Future[ResetDone]:
        copy = self._tables.here(*partition)
        settled = copy is not None and copy.group.stopped is None and not copy.group.in_doubt
        if copy is not None and copy.group.alone and settled:
            # It is the only member: it was reset before, and the answer was lost.
            view, members = copy.view, copy.group.members()
            index = copy.group.applied
            return Future.of(
                ResetDone(*partition, self._node, view.end, index, index, tuple(members.outgoing))
            )
        whole: Future[ResetDone] = Future()
        try:
            if copy is not None:
                self._check_voters(copy, lost)
            copy, reset = self._tables.reset(*partition, listener=self._moves.listener(partition))
        except LowmarkError as error:
            return Future.failed(error)
        self._started(partition)
        logger.warning(
            "a partition was reset: its other members are lost",
            extra={
                "table": partition.table,
                "partition": partition.number,
                "lost": list(reset.lost),
                "kept": reset.last_index,
            },
        )

        def look() -> None:
            if self._closed or whole.done:
                return
            if copy.group.stopped is not None:
                whole.reject(copy.group.stopped.again())
            elif copy.group.ready:
                whole.resolve(
                    ResetDone(
                        *partition,
                        self._node,
                        copy.view.end,
                        reset.last_index,
                        reset.committed,
                        reset.lost,
                    )
                )
            else:
                self._loop.call_later(_LOOK_MS, look)

        look()
        return whole

    def _check_voters(self, copy: Partition, lost: Collection[int]) -> None:
        """What the keys say may be behind what the group has: no voter may be up, or unnamed."""
        voters = copy.group.members().voters - {self._node}
        names = {one.number: one.name for one in self._cluster.nodes()}
        up = {one.number for one in self._cluster.topology.nodes}
        unnamed = sorted(names.get(one, str(one)) for one in voters if one not in lost)
        if unnamed:
            raise Rejected(
                f"partition {copy.number} of table {copy.table} can't be reset: its group has other"
                f" voters that are not named as lost: {', '.join(unnamed)}",
                hint="If they will never come back with their disks, name them with --lost.",
            )
        alive = sorted(
            names.get(one, str(one)) for one in voters if one in up or self.has_lease(one)
        )
        if alive:
            raise Rejected(
                f"partition {copy.number} of table {copy.table} can't be reset: other voters of its"
                f" group are up: {', '.join(alive)}",
                hint="Wait until its move to other nodes is over, and look again.",
            )


class Outdated:
    """Makes copies anew whose group was reset without them. All calls are made on the loop."""

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        tables: Tables,
        *,
        moves: Moves,
        started: Callable[[PartitionId], None],
    ) -> None:
        self._loop = loop
        self._metastore = cluster.metastore
        self._tables = tables
        self._moves = moves
        self._started = started
        self._node = cluster.node.number
        self._rebuilding: set[PartitionId] = set()
        self._closed = False

    def close(self) -> None:
        """Make nothing anew any more."""
        self._closed = True

    def look(self, partition: PartitionId) -> None:
        """A copy has stopped, or an assignment names this node: one that was found outdated while
        none did is made anew now.
        """
        copy = self._tables.here(*partition)
        outdated = copy is not None and isinstance(copy.group.stopped, CopyOutdated)
        if outdated and partition not in self._rebuilding:
            self._rebuilding.add(partition)
            self._loop.call_soon(lambda: self._rebuild(partition))

    def _rebuild(self, partition: PartitionId) -> None:
        """Throw the copy away, if the metastore's leader says that this node shall have one."""
        if self._closed:
            return

        def read(future: Future[Keys]) -> None:
            if self._closed:
                return
            if future.error is not None:
                self._loop.call_later(_RETRY_MS, lambda: self._rebuild(partition))
                return
            self._rebuilding.discard(partition)
            keys = future.result()
            others = keys.nodes - {self._node}
            if self._node not in keys.nodes or not others:
                return  # it goes as other copies do that no assignment names, or until one does
            logger.warning(
                "a copy is made anew: its group was reset without it",
                extra={"table": partition.table, "partition": partition.number},
            )
            self._tables.rebuild(
                *partition, ask=others, listener=self._moves.listener(partition)
            ).then(partial(self._rebuilt, partition))

        read_keys(self._metastore, partition).then(read)

    def _rebuilt(self, partition: PartitionId, future: Future[Partition]) -> None:
        if future.error is not None:
            logger.warning("a copy can't be made anew", extra={"reason": future.error.message})
            self._rebuilding.add(partition)
            self._loop.call_later(_RETRY_MS, lambda: self._rebuild(partition))
        else:
            self._started(partition)


def _only(keys: Keys, node: int) -> Assignments:
    version = 0 if keys.stable is None else keys.stable.catalog_version
    return Assignments((node,), version)


def _answer(data: bytes) -> ResetDone:
    said = _decode_answer(data)
    if said.done is not None:
        return said.done
    raise decode_fault(said.error) or Rejected("the node gave no reason")
