"""A cluster whose partitions move, in one process and in virtual time, judged as it lives.

The nodes are those of the other tests of tables (`table.world`), with disks that may be slow. What
they do to keys, groups and copies is told to the ledger at the moment that they do it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from lowmark.catalog import TableId
from lowmark.errors import LowmarkError
from lowmark.group import Future, Group, GroupConfig
from lowmark.group.envelope import open_command
from lowmark.log import LogConfig
from lowmark.metastore import ClusterSettings, MetastoreConfig, load_identity
from lowmark.placement import RebalanceConfig
from lowmark.placement.assignments import PartitionId
from lowmark.table import Partition, View
from lowmark.table.commands import HEADER_BYTES
from lowmark.table.partition import parse_group_name
from metastore.world import Node
from sim.metastore_world import SlowLoop
from sim.placement_ledger import PlacementLedger
from table.world import TableNode, TableWorld

__all__ = ["MovingNode", "MovingShape", "MovingWorld"]

T = TypeVar("T")

EVENTS_KEPT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingShape:
    """What a world is made of."""

    nodes: int
    racks: tuple[str, ...]
    """Nodes are put into these in turn."""
    rebalance: RebalanceConfig
    config: GroupConfig
    metastore: MetastoreConfig
    log_config: LogConfig
    settings: ClusterSettings


class MovingNode(TableNode):
    """One machine, from its first start until it has left the cluster."""

    world: MovingWorld

    def __init__(self, world: MovingWorld, number: int) -> None:
        super().__init__(world, number)
        self.rebalance = world.shape.rebalance
        self.rack = world.shape.racks[number % len(world.shape.racks)]
        self.seed = ""
        """By way of which address it joined."""
        self.leaving = False
        """Whether its operator wants it out."""
        self.loop = SlowLoop(world.loop, f"n{number}", watch=self._turned)
        self.sim_node = self.loop

    # -- life and death ---------------------------------------------------------------------------

    def start(self, *, join: str = "") -> None:
        self.seed = join or self.seed
        Node.start(self, join=self.seed)
        assert isinstance(self.sim_node, SlowLoop)
        self.loop = self.sim_node
        life = self.life

        def ready(future: Future[ClusterSettings]) -> None:
            if future.error is None and self.life == life and self.up:
                self._start_rooms()

        self.here.ready.then(ready)

    def _start_rooms(self) -> None:
        self._watch_groups()
        super()._start_rooms()
        self._watch_copies()

    def _watch_groups(self) -> None:
        groups, ledger = self.groups, self.world.ledger
        assert groups is not None
        add = groups._add

        def added(log: Any, *given: Any) -> Group:
            group = add(log, *given)
            parsed = parse_group_name(log.name)
            if parsed is not None:
                ledger.opened(PartitionId(*parsed), self.number, group)
            return group

        groups._add = added  # type: ignore[assignment,method-assign]

    def _watch_copies(self) -> None:
        tables, ledger = self.tables, self.world.ledger
        leave, destroy = tables.leave, tables.destroy

        def leaves(table: TableId, number: int) -> None:
            ledger.leaves(PartitionId(table, number), self.number)
            self.world.count("copy moved away")
            leave(table, number)

        def destroys(table: TableId, number: int) -> None:
            ledger.gone(PartitionId(table, number), self.number)
            destroy(table, number)

        tables.leave = leaves  # type: ignore[method-assign]
        tables.destroy = destroys  # type: ignore[method-assign]

    def _down(self) -> None:
        super()._down()
        self.world.ledger.closed(self.number)

    @property
    def has_left(self) -> bool:
        """Whether it knows that it is out."""
        identity = load_identity(self.disk)
        return identity is not None and identity.left

    @property
    def serves(self) -> bool:
        """Whether it is up and has all of its parts."""
        return self.tables_ is not None

    # -- asking -----------------------------------------------------------------------------------

    def ask(
        self,
        make: Callable[[], Future[T]],
        answered: Callable[[Future[T]], None] = lambda _: None,
    ) -> None:
        """Ask something as this node; what can't even be asked is an answer, too."""
        life = self.life

        def told(future: Future[T]) -> None:
            if self.life == life and self.up:
                answered(future)

        def run() -> None:
            try:
                future = make()
            except LowmarkError as error:
                future = Future.failed(error)
            future.then(told)

        self.loop.run(run)

    def batches(self, copy: Partition, view: View) -> list[tuple[int, int, bytes]]:
        """All that a view of a copy here has: offset, rows and content."""
        places = [int(place) for place in view.places]
        entries = copy.plan(sorted(places)).execute(self.disk)
        by_place = {entry.index: entry for entry in entries}
        found = []
        for at, place in enumerate(places):
            command = bytes(open_command(by_place[place].data).data)
            found.append((int(view.first[at]), int(view.rows[at]), command[HEADER_BYTES:]))
        return found

    # -- watching ---------------------------------------------------------------------------------

    def _turned(self) -> None:
        world = self.world
        world.turns += 1
        cluster = self.cluster
        if cluster is not None and cluster.metastore._group is not None:
            if cluster.metastore.state.latest > world.ledger.latest:
                world.ledger.read(cluster.metastore)
        if world.on_turn is not None:
            world.on_turn()


class MovingWorld(TableWorld):
    """Nodes that come and go, and partitions that follow."""

    def __init__(self, seed: int, shape: MovingShape) -> None:
        self.shape = shape
        self.ledger = PlacementLedger()
        self.counts: Counter[str] = Counter()
        self.events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self.turns = 0
        self.on_turn: Callable[[], None] | None = None
        """Called after every turn of any node."""
        super().__init__(
            seed,
            nodes=shape.nodes,
            settings=shape.settings,
            config=shape.config,
            metastore_config=shape.metastore,
            log_config=shape.log_config,
        )

    def new_node(self, number: int) -> MovingNode:
        return MovingNode(self, number)

    def __getitem__(self, number: int) -> MovingNode:
        node = self.nodes[number]
        assert isinstance(node, MovingNode)
        return node

    @property
    def present(self) -> list[MovingNode]:
        """All that have not left."""
        return [self[number] for number in self.nodes]

    @property
    def serving(self) -> list[MovingNode]:
        return [node for node in self.present if node.serves]

    def coordinator(self) -> MovingNode | None:
        leader = self.leader()
        return leader if isinstance(leader, MovingNode) else None

    def leader_of(self, partition: PartitionId) -> MovingNode | None:
        """The node that leads a partition and is ready, in the highest term."""
        leading = [
            (group.term, node)
            for (one, node), group in self.ledger.groups.items()
            if one == partition and group.ready
        ]
        return self[max(leading)[1]] if leading else None

    @property
    def now_ms(self) -> float:  # type: ignore[override]
        return self.loop.elapsed_us() / 1_000

    def tell(self, what: str) -> None:
        """Note what happens, for whoever wants to know why a life broke."""
        self.events.append(f"{self.now_ms:9.1f} {what}")

    def count(self, what: str, times: int = 1) -> None:
        self.counts[what] += times
