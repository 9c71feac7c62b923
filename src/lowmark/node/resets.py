"""Partitions for operators: where each is, and the reset of one whose majority is lost.

A reset is decided by a person, who has to know what may be lost. So the node that is asked first
asks every node that should hold the partition and is up how far its copy is; a dry run ends there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from lowmark.catalog import Catalogs, TableId
from lowmark.errors import Corrupt, LowmarkError, Unavailable
from lowmark.group import Future, Groups, Reply, envelope
from lowmark.group.storage import raft_entry
from lowmark.metastore import Cluster
from lowmark.node.action import Action, reply
from lowmark.node.asking import ask_each
from lowmark.node.bridge import Bridge
from lowmark.node.homes import find_table, name_of
from lowmark.node.messages import (
    GroupRow,
    PartitionRow,
    PartitionsAsk,
    PartitionsReply,
    ReplicaRow,
    ResetAsk,
    ResetReply,
    Status,
)
from lowmark.node.status import StatusService
from lowmark.placement import Placement
from lowmark.placement.assignments import Keys, PartitionId
from lowmark.placement.resetting import ResetDone
from lowmark.placement.writes import read_keys
from lowmark.raft import EntryKind
from lowmark.runtime import Buffer
from lowmark.table import Partition, Tables, group_name
from lowmark.table.commands import Batch, decode

T = TypeVar("T", bound=msgspec.Struct)

SERVICE = "node.copy"
_LOOK_BYTES_MAX = 8 << 20
"""At most this much of a log is read to count rows."""
TIMEOUT_S = 45.0
"""A reset reads and writes in the metastore, and waits for the node that goes on."""


class _Ask(msgspec.Struct, frozen=True, array_like=True):
    table: int
    number: int


class _Said(msgspec.Struct, frozen=True, array_like=True):
    """How far a node's copy of a partition is."""

    rows: int | None = None
    more_rows: int | None = None
    last_term: int | None = None
    last_index: int | None = None
    committed: int | None = None
    problem: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode_ask = msgspec.msgpack.Decoder(_Ask).decode
_decode_said = msgspec.msgpack.Decoder(_Said).decode


class Resets:
    """Says where partitions are, and resets them. All but the actions on the loop."""

    def __init__(
        self,
        groups: Groups,
        cluster: Cluster,
        catalogs: Catalogs,
        tables: Tables,
        placement: Placement,
        status: StatusService,
        bridge: Bridge,
    ) -> None:
        self._groups = groups
        self._cluster = cluster
        self._catalogs = catalogs
        self._tables = tables
        self._placement = placement
        self._status = status
        self._bridge = bridge
        groups.calls.serve(SERVICE, self._asked)

    def actions(self) -> dict[str, Action]:
        """By name."""
        return {
            "partition.list": reply(
                PartitionsAsk, lambda asked: self._ask(lambda: self.partitions(asked))
            ),
            "partition.reset": reply(ResetAsk, lambda asked: self._ask(lambda: self.reset(asked))),
        }

    def _ask(self, ask: Callable[[], Future[T]]) -> T:
        return self._bridge.ask(ask, timeout_s=TIMEOUT_S)

    # -- where partitions are ---------------------------------------------------------------------

    def partitions(self, asked: PartitionsAsk) -> Future[PartitionsReply]:
        """Where the partitions of tables are, and how they are."""
        catalog = self._catalogs.latest
        chosen = None if asked.table is None else find_table(catalog, asked.table).id

        def listed(status: Status) -> PartitionsReply:
            groups = {one.group: one for one in status.groups}
            rows = [
                self._row(name_of(catalog, table), PartitionId(table.id, number), groups)
                for table in sorted(catalog.all_tables(), key=lambda one: name_of(catalog, one))
                if chosen in (None, table.id)
                for number in range(table.partitions)
            ]
            return PartitionsReply(partitions=tuple(rows))

        return self._status.status().map(listed)

    def _row(self, table: str, partition: PartitionId, groups: dict[str, GroupRow]) -> PartitionRow:
        keys, group = self._placement.keys(partition), groups.get(group_name(*partition))
        sets = [() if one is None else one.nodes for one in (keys.stable, keys.pending)]
        planned = () if keys.planned is None else keys.planned.nodes
        return PartitionRow(
            table=table,
            partition=partition.number,
            leader="" if group is None else group.leader_name,
            stable=self._named(sets[0]),
            pending=self._named(sets[1]),
            planned=self._named(planned),
            down=self._named(sorted(node for node in keys.nodes if not self._is_up(node))),
            state="" if group is None else group.state,
        )

    # -- resetting one ----------------------------------------------------------------------------

    def reset(self, asked: ResetAsk) -> Future[ResetReply]:
        """Have one copy go on alone, or say what would become of it."""
        table = find_table(self._catalogs.latest, asked.table)
        partition = PartitionId(table.id, asked.partition)
        name = f"partition {asked.partition} of {asked.table}"
        operations = self._placement.operations
        node = operations.node_named(asked.node)
        lost = frozenset(operations.member_named(partition, one) for one in asked.lost)
        whole: Future[ResetReply] = Future()

        def read(future: Future[Keys]) -> None:
            if future.error is not None:
                whole.reject(self._in_words(future.error))
                return
            keys = future.result()
            refused = self._placement.resetting.refusal(
                partition, keys, node=node, lost=lost, name=name
            )
            if refused is not None and not asked.dry_run:
                whole.reject(refused)
                return
            self._replicas(partition, keys).then(lambda found: known(found.result(), refused))

        def known(replicas: tuple[ReplicaRow, ...], refused: LowmarkError | None) -> None:
            before = ResetReply(
                table=asked.table,
                partition=asked.partition,
                node=self._named([node])[0],
                replicas=replicas,
                done=False,
                refused="" if refused is None else refused.message,
                hint="" if refused is None else " ".join((refused.detail, refused.hint)).strip(),
            )
            if asked.dry_run:
                whole.resolve(before)
                return
            done = self._placement.resetting.reset(partition, node=node, lost=lost, name=name)
            done.map(lambda came_to: self._done(before, came_to, lost)).then(whole.follow)

        read_keys(self._cluster.metastore, partition).then(read)
        return whole

    def _in_words(self, error: LowmarkError) -> LowmarkError:
        """Why the metastore could not be asked."""
        if self._cluster.metastore.leadership.node:
            return error
        return Unavailable(
            "no node leads the metastore: without it no partition can be reset",
            detail=error.message,
            hint="Start its voters. If a majority of them is lost for good, reset the metastore"
            " first: `lowmark meta reset --help`.",
        )

    def _done(self, before: ResetReply, done: ResetDone, lost: Iterable[int]) -> ResetReply:
        return msgspec.structs.replace(
            before,
            done=True,
            rows=done.rows,
            kept=done.kept,
            committed=done.committed,
            lost=self._named(done.lost),
            drained=self._named(sorted(lost)),
        )

    # -- how far copies are -----------------------------------------------------------------------

    def _asked(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        del address, sender
        try:
            asked = _decode_ask(question)
        except msgspec.MsgspecError as error:
            answer(_encode(_Said(problem=f"a bad question: {error}")))
            return
        answer(_encode(self._said(PartitionId(TableId(asked.table), asked.number))))

    def _said(self, partition: PartitionId) -> _Said:
        try:
            copy = self._tables.get(*partition)
            status = copy.group.status()
            return _Said(
                copy.view.end,
                _rows_behind(copy),
                copy.group.log.last_term,
                status.last_index,
                status.committed,
                status.stopped,
            )
        except LowmarkError as error:
            return _Said(problem=error.message)

    def _replicas(self, partition: PartitionId, keys: Keys) -> Future[tuple[ReplicaRow, ...]]:
        """Every node that should have a copy, with what those that are up say of theirs."""
        own, nodes = self._groups.node, sorted(keys.nodes)

        def rows(said: dict[int, _Said | LowmarkError]) -> tuple[ReplicaRow, ...]:
            if own in nodes:
                said[own] = self._said(partition)
            return tuple(self._replica(node, said.get(node, _Said())) for node in nodes)

        others = [node for node in nodes if self._is_up(node) and node != own]
        question = _encode(_Ask(partition.table, partition.number))
        return ask_each(self._groups, others, SERVICE, _decode_said, question).map(rows)

    def _replica(self, node: int, answer: _Said | LowmarkError) -> ReplicaRow:
        said = answer if isinstance(answer, _Said) else _Said(problem=answer.message)
        return ReplicaRow(
            node=self._named([node])[0],
            up=self._is_up(node),
            lease=self._placement.resetting.has_lease(node),
            rows=said.rows,
            more_rows=said.more_rows,
            last_term=said.last_term,
            last_index=said.last_index,
            committed=said.committed,
            problem=said.problem,
        )

    # -- names ------------------------------------------------------------------------------------

    def _is_up(self, node: int) -> bool:
        return self._cluster.topology.find(node) is not None

    def _named(self, numbers: Iterable[int]) -> tuple[str, ...]:
        names = {node.number: node.name for node in self._cluster.nodes()}
        return tuple(names.get(number, str(number)) for number in numbers)


def _rows_behind(copy: Partition) -> int | None:
    """The rows of entries that a copy has and did not apply; None if that is too much to read.

    A member that was started again knows that its entries are committed only from a leader.
    """
    log, rows, read = copy.group.log, 0, 0
    at = max(copy.group.applied + 1, log.first_index)
    while at <= log.last_index:
        for entry in log.read_range(at, log.last_index, bytes_max=1 << 20):
            found, at = raft_entry(entry), entry.index + 1
            read += len(found.data)
            if found.kind is EntryKind.NORMAL and found.data[:1] == bytes([envelope.COMMAND]):
                with contextlib.suppress(Corrupt):
                    wanted = decode(envelope.open_command(found.data).data)
                    if isinstance(wanted, Batch):
                        rows += wanted.rows
        if read > _LOOK_BYTES_MAX:
            return None
    return rows
