"""A partition on several nodes, in one process and in virtual time, judged as it lives.

Nodes have a log, groups and a copy of the partition, and nothing above. The world does what it is
told and judges what it sees; who tells it is `table_nemesis`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from lowmark.catalog import TableId
from lowmark.errors import LowmarkError
from lowmark.group import Future, Group, GroupConfig, Groups, ShuttingDown, open_command
from lowmark.log import Log, LogConfig
from lowmark.runtime import Runtime
from lowmark.runtime.sim import (
    SimDisk,
    SimLoop,
    SimNetwork,
    sim_runtime,
)
from lowmark.table import Partition, group_name
from sim.cluster_ledger import confirm
from sim.cluster_world import WatchedLoop
from sim.table_ledger import TableLedger, WatchedPartition

__all__ = ["PartitionNode", "PartitionWorld", "TableShape"]

T = TypeVar("T")

TABLE = TableId(7)
EVENTS_KEPT = 200
ROW_EVERY = 25
"""One batch is read from the log after so many turns of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """What a world is made of."""

    nodes: int
    founders: tuple[int, ...]
    config: GroupConfig
    log_config: LogConfig


class PartitionNode:
    """One machine: its disk and its clock outlive its processes."""

    def __init__(self, world: PartitionWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.address = f"n{number}:1"
        self.disk = SimDisk()
        self.loop = WatchedLoop(world.loop, f"n{number}", watch=self._turned)
        self.lives = 0
        self.runtime: Runtime | None = None
        self.log: Log | None = None
        self.groups: Groups | None = None
        self.partition: Partition | None = None
        self._pending: dict[int, Callable[[], None]] = {}
        self._asked = 0
        self._turns = 0
        self._dice = Random(f"{world.seed} turns of {number}")

    @property
    def up(self) -> bool:
        return self.groups is not None

    @property
    def here(self) -> Partition:
        assert self.partition is not None, f"node {self.number} has no copy"
        return self.partition

    @property
    def run(self) -> Runtime:
        assert self.runtime is not None, f"node {self.number} is down"
        return self.runtime

    @property
    def group(self) -> Group | None:
        """Its copy, if it serves."""
        group = None if self.partition is None else self.partition.group
        return group if group is not None and group.stopped is None else None

    @property
    def pending(self) -> int:
        """How many requests wait for this process."""
        return len(self._pending)

    # -- life and death -------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process, and its copy, if there is one."""
        world = self.world
        self.lives += 1
        if self.loop.crashed:
            self.loop = self.loop.restarted()
        self.runtime = sim_runtime(
            world.seed * 10_000 + self.number * 1_000 + self.lives,
            disk=self.disk,
            loop=self.loop,
            network=world.network,
        )
        self.log = Log.open(self.runtime, world.shape.log_config)
        self.groups = Groups(
            self.runtime,
            self.log,
            node=self.number,
            address=self.address,
            config=world.shape.config,
        )
        for other in world.nodes.values():
            if other is not self:
                self.groups.transport.learn(other.number, other.address)
        world.tell(f"node {self.number} starts, life {self.lives}")
        if any(stored.name == world.group_name and stored.meta for stored in self.log.groups()):
            self.have_copy()

    def have_copy(self) -> None:
        """Open the copy that is here, or make one; founders make the first ones."""
        if self.partition is None:
            self.loop.run(self._have_copy)

    def _have_copy(self) -> None:
        # As `Tables.start` does, but with a machine that is watched.
        assert self.groups is not None
        assert self.log is not None
        name = self.world.group_name
        partition = Partition(TABLE, 0)
        partition.machine = WatchedPartition(self.world.ledger, f"node {self.number}")
        if any(stored.name == name and stored.meta for stored in self.log.groups()):
            group = self.groups.open(name, partition.machine, observer=partition)
        else:
            group = self.groups.create(
                name, partition.machine, members=self.world.shape.founders, observer=partition
            )
        partition.opened(group)
        self.partition = partition

    def crash(self, dice: Random | None = None) -> None:
        """End the process; with dice the machine loses power, too."""
        self.world.tell(f"node {self.number} {'loses power' if dice else 'is killed'}")
        self.loop.crash()
        self.disk = self.disk.killed() if dice is None else self.disk.crashed(dice)
        self.runtime = self.log = self.groups = self.partition = None
        pending, self._pending = self._pending, {}
        for died in pending.values():
            died()

    def stop(self) -> None:
        """In good order."""
        assert self.groups is not None
        assert self.log is not None
        self.groups.close()
        self.log.close()
        self.crash()

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, future: Future[T], answered: Callable[[Future[T]], None]) -> None:
        """Be told the answer, once; if the process dies first, that nobody knows it."""
        self._asked += 1
        number = self._asked

        def died() -> None:
            answered(Future.failed(ShuttingDown(self.world.group_name)))

        def done(_: Future[T]) -> None:
            if self._pending.pop(number, None) is not None:
                answered(future)

        self._pending[number] = died
        future.then(done)

    # -- watching -------------------------------------------------------------------------------

    def _turned(self) -> None:
        self.world.turns += 1
        self._turns += 1
        if self._turns % ROW_EVERY == 0 and self.group is not None:
            self.check_a_batch()

    def check_a_batch(self) -> None:
        """A batch that a view names reads as it came in."""
        view = self.here.view
        if view.count:
            self.check_batch(self._dice.randrange(view.count))

    def check_batch(self, at: int) -> None:
        """One batch of the view of now."""
        view, ledger = self.here.view, self.world.ledger
        place, first = int(view.places[at]), int(view.first[at])
        where = f"the batch at {first}, in place {place} on node {self.number}"
        try:
            (entry,) = self.here.plan([place]).execute(self.disk)
        except LowmarkError as error:
            confirm(False, f"{where} can't be read: {error}")
            return
        came_in = ledger.commands[ledger.model.rows[first].entry]
        confirm(bytes(open_command(entry.data).data) == came_in, f"{where} holds other rows")

    def check_all(self) -> None:
        """Every batch reads as it came in."""
        for at in range(self.here.view.count):
            self.check_batch(at)


class PartitionWorld:
    """Nodes, the network between them, and the ledger of one partition."""

    def __init__(self, seed: int, shape: TableShape) -> None:
        self.seed = seed
        self.shape = shape
        self.loop = SimLoop(seed)
        self.network = SimNetwork(self.loop)
        self.ledger = TableLedger()
        self.group_name = group_name(TABLE, 0)
        self.counts: Counter[str] = Counter()
        self.events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self.turns = 0
        self.nodes: dict[int, PartitionNode] = {}
        for number in range(1, shape.nodes + 1):
            self.nodes[number] = PartitionNode(self, number)
        for node in self.nodes.values():
            node.start()
        for number in shape.founders:
            self.nodes[number].have_copy()

    def __getitem__(self, number: int) -> PartitionNode:
        return self.nodes[number]

    @property
    def now_ms(self) -> float:
        return self.loop.elapsed_us() / 1_000

    def tell(self, what: str) -> None:
        """Note what happens, for whoever wants to know why a life broke."""
        self.events.append(f"{self.now_ms:9.1f} {what}")

    def count(self, what: str, times: int = 1) -> None:
        self.counts[what] += times

    # -- who is there ---------------------------------------------------------------------------

    @property
    def up(self) -> list[PartitionNode]:
        return [node for node in self.nodes.values() if node.up]

    @property
    def serving(self) -> list[PartitionNode]:
        """Nodes with a copy that serves."""
        return [node for node in self.nodes.values() if node.group is not None]

    def leader(self) -> PartitionNode | None:
        """Who leads and is ready, in the highest term."""
        leading = [
            (node.group.term, node.number)
            for node in self.serving
            if node.group and node.group.ready
        ]
        return self.nodes[max(leading)[1]] if leading else None

    # -- waiting --------------------------------------------------------------------------------

    def run_until(self, condition: Callable[[], bool], *, timeout_ms: float = 60_000) -> None:
        self.loop.run_until(condition, timeout_ms=timeout_ms)

    def run_for(self, ms: float) -> None:
        self.loop.run_for(ms)

    def wait(self, future: Future[T], *, timeout_ms: float = 60_000) -> T:
        self.run_until(lambda: future.done, timeout_ms=timeout_ms)
        return future.result()

    def wait_leader(self, *, other_than: int = 0) -> PartitionNode:
        def found() -> bool:
            leader = self.leader()
            return leader is not None and leader.number != other_than

        self.run_until(found)
        leader = self.leader()
        assert leader is not None
        return leader

    def make_leader(self, number: int) -> PartitionNode:
        """Have a given node lead."""
        for _ in range(10):
            leader = self.wait_leader()
            if leader.number == number:
                return leader
            assert leader.group is not None
            leader.group.transfer(number)
            try:
                self.run_until(lambda: self.leader() is self[number], timeout_ms=2_000)
            except TimeoutError:
                continue
        raise AssertionError(f"node {number} does not lead")

    def wait_even(self) -> None:
        """Until all copies have applied what the leader has."""

        def even() -> bool:
            leader = self.leader()
            return leader is not None and len({one.group.applied for one in self.serving}) == 1  # type: ignore[union-attr]

        self.run_until(even)

    def isolate(self, number: int) -> None:
        """Let a node hear nobody."""
        others = [node.address for node in self.nodes.values() if node.number != number]
        self.network.cut([self[number].address], others)
