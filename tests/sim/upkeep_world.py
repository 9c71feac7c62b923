"""Nodes with transactions, whose snapshots may be slow, judged as they live (`upkeep_ledger`)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from lowmark.catalog import TableId
from lowmark.catalog.errors import VersionCompacted
from lowmark.group import Future, Group
from lowmark.metastore import ClusterSettings
from lowmark.placement import PartitionId
from lowmark.runtime import Buffer, Outcome
from lowmark.runtime.sim.node import _NodeLane
from lowmark.table.commands import APPEND, HEADER_BYTES
from lowmark.table.machine import PartitionMachine
from lowmark.table.partition import parse_group_name
from lowmark.upkeep import catalog_compaction
from lowmark.upkeep.catalog_decision import Decision, Seen
from lowmark.upkeep.catalog_minimums import Active
from metastore.world import Node
from sim.cluster_ledger import confirm
from sim.cluster_world import WatchedLoop
from sim.mutants import replaced
from sim.upkeep_ledger import Transaction, UpkeepLedger
from table.world import TableNode, TableWorld

__all__ = ["UpkeepNode", "UpkeepWorld", "watched"]

T = TypeVar("T")
EVENTS_KEPT = 200
SNAPSHOT_LANE = "compaction"


class _LateLane(_NodeLane):
    """Tells late that a step is done; in order, as ever."""

    def __init__(self, node: _Loop, name: str) -> None:
        super().__init__(node, name)
        self._late_node = node
        self._told_at_us = 0

    def submit(self, step: Callable[[], T], on_done: Callable[[Outcome[T]], None]) -> None:
        node = self._late_node

        def done(outcome: Outcome[T]) -> None:
            now_us = node.world.elapsed_us()
            self._told_at_us = max(self._told_at_us, now_us + node.snapshot_us)
            node.at(self._told_at_us, lambda: on_done(outcome))

        super().submit(step, done)


class _Loop(WatchedLoop):
    """A node's loop whose snapshots may be slow."""

    snapshot_us = 0

    def lane(self, name: str) -> _NodeLane:
        if name == SNAPSHOT_LANE and name not in self._lanes:
            self._lanes[name] = _LateLane(self, name)
        return super().lane(name)

    def restarted(self) -> _Loop:
        again = _Loop(
            self.world, self.name, watch=self._watch, skew_ms=self.skew_ms, rate=self.rate
        )
        again.snapshot_us = self.snapshot_us
        return again


class UpkeepNode(TableNode):
    """A node with transactions."""

    world: UpkeepWorld

    def __init__(self, world: UpkeepWorld, number: int) -> None:
        super().__init__(world, number)
        self.sim_node = _Loop(world.loop, f"n{number}", watch=self._turned)
        self.transactions: dict[int, Transaction] = {}
        """Those that are active here, the oldest first."""
        self._known = 0
        """The latest version that the ledger has heard of from here."""
        self._earliest = 0

    def start(self, *, join: str = "") -> None:
        Node.start(self, join=join)
        life = self.life

        def ready(future: Future[ClusterSettings]) -> None:
            if future.error is None and self.life == life and self.up:
                self._start_rooms()

        self.here.ready.then(ready)

    @property
    def loop(self) -> _Loop:
        assert isinstance(self.sim_node, _Loop)
        return self.sim_node

    def _start_rooms(self) -> None:
        self._known = self._earliest = 0
        self._watch_groups()
        super()._start_rooms()
        self._watch_copies()
        self.upkeep.catalog.set_active(self._oldest)

    def _oldest(self) -> Active | None:
        oldest = next(iter(self.transactions.values()), None)
        return None if oldest is None else Active(f"transaction {oldest.number}", oldest.begin)

    def _watch_groups(self) -> None:
        groups, ledger = self.groups, self.world.ledger
        assert groups is not None
        add = groups._add

        def added(log: Any, machine: Any, *given: Any) -> Group:
            parsed = parse_group_name(log.name)
            if parsed is not None:
                partition = PartitionId(*parsed)
                self.world.machines[id(machine)] = (machine, self.number, partition)
                if log.last_index:
                    ledger.opened(self.number, partition, log.row.snapshot_index)
            return add(log, machine, *given)

        groups._add = added  # type: ignore[assignment,method-assign]

    def _watch_copies(self) -> None:
        tables, ledger = self.tables, self.world.ledger
        leave, destroy = tables.leave, tables.destroy

        def leaves(table: TableId, number: int) -> None:
            leave(table, number)
            ledger.gone(self.number, PartitionId(table, number))

        def destroys(table: TableId, number: int) -> None:
            destroy(table, number)
            ledger.gone(self.number, PartitionId(table, number))

        tables.leave = leaves  # type: ignore[method-assign]
        tables.destroy = destroys  # type: ignore[method-assign]

    def _down(self) -> None:
        self.world.lose(self, "its node is down")
        super()._down()

    # -- transactions -----------------------------------------------------------------------------

    def begin(self) -> Transaction | None:
        """Begin a transaction; None: the catalog that it needs is gone, by this node's clock."""
        begin = self.run.clock.now()
        try:
            self.catalog.at_local(begin)
        except VersionCompacted:
            self.world.count("transaction refused")
            return None
        self.world.begun += 1
        one = Transaction(self.world.begun, self.number, begin)
        self.transactions[one.number] = self.world.ledger.transactions[one.number] = one
        return one

    # -- watching ---------------------------------------------------------------------------------

    def _turned(self) -> None:
        world, ledger = self.world, self.world.ledger
        cluster = self.cluster
        if cluster is None or cluster.metastore._group is None:
            return
        if self.tables_ is not None:
            for one in self.tables.all():
                log = one.group.log
                if log.last_index:
                    key = self.number, PartitionId(one.table, one.number)
                    ledger.snapshots[key] = log.row.snapshot_index
        if self.catalogs is not None:
            history = self.catalogs.history
            if history.latest.version != self._known:
                ledger.learned(history, after=self._known, who=f"node {self.number}")
                self._known = history.latest.version
            fell = f"the history of node {self.number} begins before {self._earliest} again"
            confirm(history.earliest.version >= self._earliest, fell)
            self._earliest = history.earliest.version
        if cluster.metastore.state.latest > ledger.latest:
            up = {one.number for one in cluster.topology.nodes}
            for number in world.nodes:
                if number not in up and world[number].transactions:
                    world.lose(world[number], "it is not in the topology")
            ledger.read(cluster.metastore)


class UpkeepWorld(TableWorld):
    """As `TableWorld`, with a ledger."""

    def __init__(self, seed: int, **more: object) -> None:
        self.ledger = UpkeepLedger()
        self.machines: dict[int, tuple[PartitionMachine, int, PartitionId]] = {}
        """Whose machine it is; it is kept, so that its id is not given out again."""
        self.begun = 0
        self.counts: Counter[str] = Counter()
        self.events: deque[str] = deque(maxlen=EVENTS_KEPT)
        super().__init__(seed, **more)  # type: ignore[arg-type]

    def new_node(self, number: int) -> UpkeepNode:
        return UpkeepNode(self, number)

    def __getitem__(self, number: int) -> UpkeepNode:
        node = self.nodes[number]
        assert isinstance(node, UpkeepNode)
        return node

    @property
    def serving(self) -> list[UpkeepNode]:
        """Those that are up and have their rooms."""
        return [self[number] for number in self.nodes if self[number].tables_ is not None]

    def lose(self, node: UpkeepNode, why: str) -> None:
        """The transactions of a node are over, whatever they have done."""
        for number in list(node.transactions):
            self.tell(f"transaction {number} of node {node.number} is lost: {why}")
            self.end(node.transactions[number])

    def end(self, one: Transaction) -> None:
        """A transaction is over."""
        self[one.node].transactions.pop(one.number, None)
        self.ledger.transactions.pop(one.number, None)

    def applied(self, machine: PartitionMachine, index: int, command: Buffer) -> None:
        """A copy is about to apply a command."""
        found = self.machines.get(id(machine))
        if found is not None and command[0] == APPEND:
            batch = int.from_bytes(bytes(command[HEADER_BYTES : HEADER_BYTES + 8]), "little")
            self.ledger.applied(found[1], found[2], index=index, batch=batch)

    def decided(self, seen: Seen, decision: Decision) -> None:
        """The coordinator has made up its mind."""
        for node in self.serving:
            if node.catalog.history is seen.history:
                self.ledger.check_decision(decision.version, seen.history, node.metastore)

    def tell(self, what: str) -> None:
        """Note what happens: it is printed when a life breaks."""
        self.events.append(f"{self.loop.elapsed_us() / 1_000:9.1f} {what}")

    def count(self, what: str) -> None:
        self.counts[what] += 1


@contextmanager
def watched(world_of: Callable[[], UpkeepWorld | None]) -> Iterator[None]:
    """Show a world what its copies apply, and what its coordinators decide."""
    apply = PartitionMachine.apply
    decide: Callable[[Seen], Decision] = vars(catalog_compaction)["decide"]  # of a mutant, perhaps

    def applies(self: PartitionMachine, index: int, time: int, command: Buffer) -> object:
        world = world_of()
        if world is not None:
            world.applied(self, index, command)
        return apply(self, index, time, command)

    def decides(seen: Seen) -> Decision:
        decision, world = decide(seen), world_of()
        if world is not None:
            world.decided(seen, decision)
        return decision

    with (
        replaced(PartitionMachine, "apply", applies),
        replaced(catalog_compaction, "decide", decides),
    ):
        yield
