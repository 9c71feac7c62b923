"""A copy in quarantine that is thrown away: its node gets a new one from the others.

A copy that fails a checksum neither votes nor acknowledges, and it may be the last that has a row.
So it goes only where a majority is sound without it: because an operator asks, or because its own
node does (`reseeding`). (Of one that is outdated see `resetting.Outdated`.)

Steps, and what is true after each

    1. it is checked: the copy is in quarantine; it is not the only one; and the node that leads the
       partition has confirmed with a majority that it does, and that this node is a member. The
       copy has no part in that majority. Nothing has changed; a dry run ends here
    2. a note says which incarnation is lost, and the copy is gone (`group.rejoin`). The others have
       every row that was acknowledged
    3. the new copy asks the others to be added again. The leader takes its node out of the group
       and in again: it is a learner, under a new incarnation
    4. it has caught up, and votes

A crash before the copy is gone leaves it as it was, in quarantine: ask again. After that the next
start finds the note, and goes on with 3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.fault import decode_fault, encode_fault
from lowmark.group import CopyOutdated, Future, Groups, Reply
from lowmark.metastore import Cluster
from lowmark.placement.assignments import Keys, PartitionId
from lowmark.placement.leaving import Leaving
from lowmark.placement.moves import Moves
from lowmark.placement.writes import read_keys
from lowmark.runtime import Buffer
from lowmark.table import Partition, Tables

logger = logging.getLogger(__name__)

SERVICE = "partition.rebuild"
ASK_MS = 20_000
"""The node asks all others of the partition before it answers."""


class CopySound(Rejected):
    """A copy that is not in quarantine is not thrown away."""

    def __init__(self, partition: str, node: str) -> None:
        super().__init__(
            f"the copy of {partition} at node {node} is not in quarantine: it stays",
            detail="Only a damaged copy is thrown away.",
            hint="`lowmark status` shows the problems of copies.",
        )


class CopyNeeded(Rejected):
    """A damaged copy that no sound majority could take the place of."""

    def __init__(self, partition: str, node: str, *, why: str, hint: str) -> None:
        super().__init__(
            f"the copy of {partition} at node {node} is not thrown away: {why}",
            detail="It may be the last one that has some rows.",
            hint=hint,
        )


class Rebuild(msgspec.Struct, frozen=True, array_like=True):
    """How far a copy is that is made anew."""

    node: int
    stage: str
    """"planned", "asking", "learner", "voter" or "failed"."""
    cause: str = ""
    """Why the copy was in quarantine."""
    incarnation: int = 0
    """Of the copy that is there."""
    applied: int = 0
    rows: int = 0
    """Rows below this offset are there."""
    leader: int = 0
    others: tuple[int, ...] = ()
    error: bytes = b""
    above: int = 0
    """The incarnation that was thrown away."""


class _Ask(msgspec.Struct, frozen=True, array_like=True):
    table: int
    number: int
    name: str
    begin: bool
    dry_run: bool = False
    others: tuple[int, ...] = ()
    above: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode_ask = msgspec.msgpack.Decoder(_Ask).decode
_decode_rebuild = msgspec.msgpack.Decoder(Rebuild).decode


class Rebuilding:
    """One node's part: asks for a new copy, and makes one. All calls are made on the loop."""

    def __init__(
        self,
        groups: Groups,
        cluster: Cluster,
        tables: Tables,
        *,
        moves: Moves,
        leaving: Leaving,
        started: Callable[[PartitionId], None],
    ) -> None:
        self._calls = groups.calls
        self._node = groups.node
        self._cluster = cluster
        self._tables = tables
        self._moves = moves
        self._leaving = leaving
        self._started = started
        self._making: set[PartitionId] = set()
        """Copies that are being made."""
        self._calls.serve(SERVICE, self._asked)

    # -- at any node ------------------------------------------------------------------------------

    def begin(
        self, partition: PartitionId, *, node: int, name: str = "", dry_run: bool = False
    ) -> Future[Rebuild]:
        """Have the copy at a node thrown away and made anew; `name` is the partition's in errors.

        Resolves when that has begun; `look` says how far it is.
        """
        name = name or f"partition {partition.number} of table {partition.table}"
        whole: Future[Rebuild] = Future()

        def read(future: Future[Keys]) -> None:
            if future.error is not None:
                whole.reject(future.error)
                return
            keys = future.result()
            refused = self._refusal(keys, node=node, name=name)
            if refused is not None:
                whole.reject(refused)
                return
            others = tuple(sorted(keys.nodes - {node}))
            asked = _Ask(*partition, name, True, dry_run, others)
            self._ask(node, asked).then(whole.follow)

        read_keys(self._cluster.metastore, partition).then(read)
        return whole

    def look(self, partition: PartitionId, before: Rebuild, *, name: str = "") -> Future[Rebuild]:
        """How far a copy is that is made anew, of which this was said before."""
        asked = _Ask(*partition, name, False, above=before.above)
        return self._ask(before.node, asked).map(
            lambda found: msgspec.structs.replace(
                found, cause=before.cause, others=before.others, above=before.above
            )
        )

    def _refusal(self, keys: Keys, *, node: int, name: str) -> LowmarkError | None:
        """Why a partition with these keys has no copy there that could be made anew, if so."""
        if keys.stable is None:
            return Rejected(f"there is no {name}")
        if node not in keys.nodes:
            words = ", ".join(map(self._called, sorted(keys.nodes)))
            return Rejected(
                f"node {self._called(node)} has no copy of {name}", hint=f"It is on nodes {words}."
            )
        if self._cluster.topology.find(node) is None:
            return Unavailable(
                f"node {self._called(node)} is down", hint="Start it first, and ask again."
            )
        if keys.nodes == {node}:
            return self._only_copy(name, node)
        return None

    def _only_copy(self, name: str, node: int) -> CopyNeeded:
        return CopyNeeded(
            name,
            self._called(node),
            why="it is the only one",
            hint="`lowmark log verify` lists the damage; restore the directory from a backup.",
        )

    def _called(self, node: int) -> str:
        names = {one.number: one.name for one in self._cluster.nodes()}
        return names.get(node, str(node))

    def _ask(self, node: int, asked: _Ask) -> Future[Rebuild]:
        if node == self._node:
            return self._answer(asked)
        return self._calls.ask(node, SERVICE, _encode(asked), timeout_ms=ASK_MS).map(_read)

    # -- at the node of the copy ------------------------------------------------------------------

    def _asked(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        del address, sender

        def done(future: Future[Rebuild]) -> None:
            if future.error is not None:
                fault = encode_fault(future.error)
                answer(_encode(Rebuild(self._node, "failed", error=fault)))
            else:
                answer(_encode(future.result()))

        try:
            asked = _decode_ask(question)
        except msgspec.MsgspecError as error:
            done(Future.failed(Rejected(f"a bad question: {error}")))
            return
        self._answer(asked).then(done)

    def _answer(self, asked: _Ask) -> Future[Rebuild]:
        partition = PartitionId(asked.table, asked.number)  # type: ignore[arg-type]
        try:
            if not asked.begin:
                return Future.of(self._state(partition, asked))
            copy = self._tables.here(*partition)
            cause = self._check(partition, copy, asked.name)
        except LowmarkError as error:
            return Future.failed(error)
        whole: Future[Rebuild] = Future()
        lineage = 0 if copy is None else copy.group.status().lineage
        self._leaving.confirmed(partition, asked.others, lineage=lineage).then(
            partial(self._confirmed, whole, partition, copy, asked, cause)
        )
        return whole

    def _check(self, partition: PartitionId, copy: Partition | None, name: str) -> str:
        """Why the copy is in quarantine; raises if it is not, or can't be replaced."""
        node = self._called(self._node)
        if copy is None:  # what it was can't be read
            cause = self._tables.damage(*partition)
            if not cause:
                self._tables.get(*partition)
            return cause
        group = copy.group
        if isinstance(group.stopped, CopyOutdated):
            raise Unavailable(
                f"the copy of {name} at node {node} is being rebuilt already",
                detail="The partition was reset without it.",
                hint="`lowmark partition list` shows when it is there.",
            )
        if group.log.quarantined is None:
            raise CopySound(name, node)
        if group.alone:
            raise self._only_copy(name, self._node)
        return group.log.quarantined

    def _confirmed(
        self,
        whole: Future[Rebuild],
        partition: PartitionId,
        copy: Partition | None,
        asked: _Ask,
        cause: str,
        found: Future[tuple[int, ...]],
    ) -> None:
        members = found.result()
        node = self._called(self._node)
        if not members:
            words = ", ".join(map(self._called, asked.others))
            whole.reject(
                CopyNeeded(
                    asked.name,
                    node,
                    why="no other node leads the partition with a majority",
                    hint=f"Start its other nodes ({words}). If they are lost, see `lowmark"
                    " partition reset --help`.",
                )
            )
        elif self._node not in members:
            whole.reject(
                Unavailable(
                    f"node {node} is not a member of {asked.name} any more",
                    hint="Its copy goes by itself; `lowmark partition list` shows the others.",
                )
            )
        elif self._tables.here(*partition) is not copy or partition in self._making:
            whole.reject(Unavailable(f"the copy of {asked.name} is being rebuilt already"))
        else:
            said = Rebuild(self._node, "planned", cause, others=asked.others)
            if copy is not None:
                above = copy.group.incarnation
                said = msgspec.structs.replace(
                    said,
                    incarnation=above,
                    applied=copy.group.applied,
                    rows=copy.view.end,
                    above=above,
                )
            if not asked.dry_run:
                try:
                    self._throw_away(partition, asked, cause)
                except LowmarkError as error:  # the note of it can't be written, say
                    whole.reject(error)
                    return
                said = msgspec.structs.replace(said, stage="asking", applied=0, rows=0)
            whole.resolve(said)

    def _throw_away(self, partition: PartitionId, asked: _Ask, cause: str) -> None:
        logger.warning(
            "a damaged copy is thrown away, and made anew from the others",
            extra={"table": partition.table, "partition": partition.number, "reason": cause},
        )
        listener = self._moves.listener(partition)
        made = self._tables.rebuild(*partition, ask=asked.others, listener=listener)
        self._making.add(partition)
        made.then(partial(self._made, partition))

    def _made(self, partition: PartitionId, future: Future[Partition]) -> None:
        self._making.discard(partition)
        if future.error is not None:  # the next start makes it: the note stays
            logger.error("a copy can't be made anew", extra={"reason": future.error.message})
        else:
            self._started(partition)

    def _state(self, partition: PartitionId, asked: _Ask) -> Rebuild:
        copy = self._tables.here(*partition)
        if copy is None:
            if partition not in self._making:
                raise Unavailable(f"the copy of {asked.name} is not being made")
            return Rebuild(self._node, "asking")  # the old one is not gone yet
        group, members = copy.group, copy.group.members()
        if group.stopped is not None:
            raise group.stopped.again()
        # What it applies first are members of earlier days: it was one of them, as another copy.
        if group.waits or group.incarnation <= asked.above:
            stage = "asking"
        elif members.incarnation(self._node) != group.incarnation or members.joint:
            stage = "learner"
        else:
            stage = "voter" if self._node in members.incoming else "learner"
        return Rebuild(
            self._node,
            stage,
            incarnation=group.incarnation,
            applied=group.applied,
            rows=copy.view.end,
            leader=group.leader,
        )


def _read(data: bytes) -> Rebuild:
    try:
        found = _decode_rebuild(data)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"an answer can't be read: {error}") from error
    if found.error:
        raise decode_fault(found.error) or Unavailable("the node gave no reason")
    return found
