"""New copies in place of damaged ones, for operators: `lowmark partition rebuild`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lowmark.catalog import Catalogs
from lowmark.errors import LowmarkError
from lowmark.group import Future, QuarantinedHere
from lowmark.metastore import Cluster
from lowmark.node.action import Action, Call, stream
from lowmark.node.bridge import Bridge
from lowmark.node.homes import find_table, name_of
from lowmark.node.log_compaction import LOOK_MS
from lowmark.node.messages import RebuildAsk, RebuildRow
from lowmark.placement import Placement
from lowmark.placement.assignments import PartitionId
from lowmark.placement.rebuilding import Rebuild
from lowmark.runtime import Loop

TIMEOUT_S = 45.0
"""The node of the copy asks the others before it answers."""


class Rebuilds:
    """Asks for them, and says how far they are. All but the action on the loop."""

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        catalogs: Catalogs,
        placement: Placement,
        bridge: Bridge,
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._catalogs = catalogs
        self._placement = placement
        self._bridge = bridge

    def actions(self) -> dict[str, Action]:
        """By name."""
        return {"partition.rebuild": stream(RebuildAsk, self._rebuild)}

    def _rebuild(self, asked: RebuildAsk, call: Call) -> Iterator[RebuildRow]:
        one = self._bridge.ask_now(lambda: _One(self, asked), timeout_s=TIMEOUT_S)
        row = self._bridge.ask(one.begin, timeout_s=TIMEOUT_S)
        yield row
        while not row.done and not call.gone():
            row = self._bridge.ask(one.look, timeout_s=TIMEOUT_S)
            yield row

    def chosen(self, asked: RebuildAsk) -> tuple[str, PartitionId, int]:
        """The table's name, the partition, and the node of the copy."""
        catalog = self._catalogs.latest
        table = find_table(catalog, asked.table, asked.partition)
        node = self._cluster.node.number
        if asked.node is not None:
            node = self._placement.operations.node_named(asked.node)
        return name_of(catalog, table), PartitionId(table.id, asked.partition), node

    def begin(
        self, partition: PartitionId, *, node: int, name: str, dry_run: bool
    ) -> Future[Rebuild]:
        """See `Rebuilding.begin`."""
        rebuilding = self._placement.rebuilding
        return rebuilding.begin(partition, node=node, name=name, dry_run=dry_run)

    def look(self, partition: PartitionId, before: Rebuild, *, name: str) -> Future[Rebuild]:
        """How far it is, after a while."""
        whole: Future[Rebuild] = Future()

        def ask() -> None:
            self._placement.rebuilding.look(partition, before, name=name).then(whole.follow)

        self._loop.call_later(LOOK_MS, ask)
        return whole

    def named(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """Nodes as people call them."""
        names = {node.number: node.name for node in self._cluster.nodes()}
        return tuple(names.get(number, str(number)) for number in numbers)

    def is_up(self, node: int) -> bool:
        """Whether a node is in the topology."""
        return self._cluster.topology.find(node) is not None


class _One:
    """One copy, at the node that was asked."""

    def __init__(self, host: Rebuilds, asked: RebuildAsk) -> None:
        self._host = host
        self._asked = asked
        self._table, self._partition, self._node = host.chosen(asked)
        self._name = f"partition {asked.partition} of {self._table}"
        self._last = Rebuild(self._node, "asking")

    def begin(self) -> Future[RebuildRow]:
        """What it begins with; what is refused is raised."""
        asked = self._host.begin(
            self._partition, node=self._node, name=self._name, dry_run=self._asked.dry_run
        )
        return asked.map(self._row)

    def look(self) -> Future[RebuildRow]:
        """How far it is. A node that does not answer is asked again while it may be up."""
        row: Future[RebuildRow] = Future()

        def looked(future: Future[Rebuild]) -> None:
            error = future.error
            if error is None:
                row.resolve(self._row(future.result()))
            else:
                row.resolve(self._trouble(error))

        self._host.look(self._partition, self._last, name=self._name).then(looked)
        return row

    def _trouble(self, error: LowmarkError) -> RebuildRow:
        words, failed = error.message, isinstance(error, QuarantinedHere)
        if not self._host.is_up(self._node):
            words, failed = f"{words}; the node makes the copy when it is back", True
        stage = "failed" if failed else self._last.stage
        return self._made(self._last, stage=stage, problem=words)

    def _row(self, found: Rebuild) -> RebuildRow:
        self._last = found
        return self._made(found, stage=found.stage)

    def _made(self, found: Rebuild, *, stage: str, problem: str = "") -> RebuildRow:
        [node] = self._host.named([self._node])
        return RebuildRow(
            table=self._table,
            partition=self._partition.number,
            node=node,
            done=stage in {"voter", "planned", "failed"},
            stage=stage,
            cause=found.cause,
            incarnation=found.incarnation,
            applied=found.applied,
            rows=found.rows,
            leader=self._host.named([found.leader])[0] if found.leader else "",
            others=self._host.named(found.others),
            problem=problem,
        )
