"""A cluster of nodes with a metastore, in one process and in virtual time, judged as it lives.

Nodes come, go and come back; each has a disk and a clock of its own, which outlive its processes.
The world does what it is told and judges what it sees; who tells it is `metastore_nemesis`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from lowmark.errors import LowmarkError
from lowmark.group import Future, Group, GroupConfig, Groups
from lowmark.log import Log, LogConfig
from lowmark.metastore import (
    Cluster,
    ClusterRefused,
    ClusterSettings,
    Identity,
    Metastore,
    MetastoreConfig,
    NodeInfo,
    Topology,
    identify,
    load_identity,
)
from lowmark.metastore.commands import Renew, Take
from lowmark.metastore.nodes import lease_of, node_key
from lowmark.placement import MetastoreMembers, RebalanceConfig
from lowmark.runtime import Outcome
from lowmark.runtime.sim import (
    SimDisk,
    SimLoop,
    SimNetwork,
    sim_runtime,
)
from lowmark.runtime.sim.node import _NodeLane
from sim.cluster_ledger import Broken, confirm
from sim.cluster_world import WatchedLoop
from sim.metastore_ledger import MetastoreLedger, WatchedMetastore

__all__ = ["MetastoreNode", "MetastoreShape", "MetastoreWorld"]

T = TypeVar("T")

EVENTS_KEPT = 200
VALUE_EVERY = 60
"""One value is read from the log after so many turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetastoreShape:
    """What a world is made of."""

    nodes: int
    members: int
    config: GroupConfig
    metastore: MetastoreConfig
    log_config: LogConfig


class _SlowLane(_NodeLane):
    """Tells late that a step is done, if its node's disk is slow; in order, as ever."""

    def __init__(self, node: SlowLoop, name: str) -> None:
        super().__init__(node, name)
        self._slow_node = node
        self._told_at_us = 0

    def submit(self, step: Callable[[], T], on_done: Callable[[Outcome[T]], None]) -> None:
        node = self._slow_node

        def done(outcome: Outcome[T]) -> None:
            now_us = node.world.elapsed_us()
            self._told_at_us = max(self._told_at_us, now_us + node.slow_us)
            if self._told_at_us == now_us:
                on_done(outcome)
            else:
                node.at(self._told_at_us, lambda: on_done(outcome))

        super().submit(step, done)


class SlowLoop(WatchedLoop):
    """A node's loop whose disk may be slow."""

    slow_us = 0

    def lane(self, name: str) -> _NodeLane:
        if name not in self._lanes:
            self._lanes[name] = _SlowLane(self, name)
        return self._lanes[name]

    def restarted(self) -> SlowLoop:
        again = SlowLoop(
            self.world, self.name, watch=self._watch, skew_ms=self.skew_ms, rate=self.rate
        )
        again.slow_us = self.slow_us
        return again


class MetastoreNode:
    """One machine, from its first start until it has left the cluster."""

    def __init__(self, world: MetastoreWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.address = f"n{number}:1"
        self.disk = SimDisk()
        self.loop = SlowLoop(world.loop, f"n{number}", watch=self._turned)
        self.lives = 0
        self.seed = ""
        """By way of which address it joined; empty for the founder."""
        self.leaving = False
        """Whether its operator wants it out."""
        self.gone = False
        """Whether it has left for good."""
        self.shutting_down = False
        """Whether it is being closed right now: with a slow disk that takes some virtual time."""
        self.cluster: Cluster | None = None
        self.groups: Groups | None = None
        self.log: Log | None = None
        self.needed: set[int] = set()
        """All that its lease may be asked to hold."""
        self.pending: dict[int, Callable[[], None]] = {}
        """Requests that wait for an answer of this process; called when it dies."""

    @property
    def up(self) -> bool:
        return self.cluster is not None

    @property
    def metastore(self) -> Metastore | None:
        """The metastore of a node that has a copy of it, and is not closing."""
        if self.cluster is None or self.cluster.metastore._group is None or self.closing:
            return None
        return self.cluster.metastore

    @property
    def group(self) -> Group | None:
        """Its copy."""
        return self.cluster.metastore._group if self.cluster is not None else None

    @property
    def closing(self) -> bool:
        return self.cluster is not None and self.cluster._closed

    @property
    def belongs(self) -> bool:
        """Whether the cluster knows it."""
        return node_key(self.number) in self.world.ledger.made[-1].rows

    # -- life and death -------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process."""
        world = self.world
        self.lives += 1
        self.shutting_down = False
        if self.loop.crashed:
            self.loop = self.loop.restarted()
        runtime = sim_runtime(
            world.seed * 10_000 + self.number * 100 + self.lives,
            disk=self.disk,
            loop=self.loop,
            network=world.network,
        )
        name = f"n{self.number}"
        identify(self.disk, draw=lambda _: self.number - 1, name=name)
        self.log = Log.open(runtime, world.shape.log_config)
        self.groups = Groups(
            runtime,
            self.log,
            node=self.number,
            address=self.address,
            config=world.shape.config,
        )
        cluster = Cluster(
            runtime,
            self.log,
            self.groups,
            node=NodeInfo(number=self.number, name=name, address=self.address),
            config=world.shape.metastore,
        )
        cluster.metastore._machine = WatchedMetastore(world.ledger, f"node {self.number}")
        self.cluster = cluster
        MetastoreMembers(runtime, cluster, config=RebalanceConfig(retry_delay_ms=100))
        self._watch(cluster)
        world.tell(f"node {self.number} starts, life {self.lives}, by way of {self.seed!r}")
        settings = ClusterSettings(id="", members=world.shape.members)
        try:
            cluster.start(join=self.seed, settings=settings)
        except ClusterRefused:
            confirm(
                self.left and not self.belongs,
                f"node {self.number} takes itself for gone, and the cluster does not",
            )
            self.retire()

    @property
    def left(self) -> bool:
        """Whether it knows that it has left."""
        identity = self._identity()
        return identity is not None and identity.left

    def _identity(self) -> Identity | None:
        # A disk that is to stop its node must not stop those who look.
        return load_identity(self.disk) if self.cluster is None else self.cluster._identity

    def knows(self) -> set[str]:
        """The addresses that it can ask: of its peers, and of the one that it joined by."""
        identity = self._identity()
        return {self.seed, *(identity.peers.values() if identity is not None else ())}

    @property
    def has_left(self) -> bool:
        """Whether its process knows that it has left."""
        if self.cluster is None or self.cluster.refused is None or not self.left:
            return False
        confirm(not self.belongs, f"node {self.number} takes itself for gone, the others do not")
        return True

    def _watch(self, cluster: Cluster) -> None:
        world, metastore, life, told = self.world, cluster.metastore, self.lives, Topology()
        needed_from, terms = metastore.needed_from, set[int]()

        def elected(term: int) -> None:
            confirm(term not in terms, f"node {self.number} was told of term {term} twice")
            terms.add(term)
            world.count("coordinator")
            world.tell(f"node {self.number} coordinates in term {term}")
            world.ledger.elected(term, self.number)

        def topology(new: Topology) -> None:
            nonlocal told
            confirm(new.version >= told.version, f"node {self.number}: the topology went back")
            told = new

        def needed() -> int:
            first = needed_from()
            self.needed.add(first)
            world.on_needed(self, first)
            return first

        def ready(future: Future[ClusterSettings]) -> None:
            if self.lives == life and future.error is not None:
                confirm(self.leaving, f"node {self.number} was not let in: {future.error}")

        metastore.on_elected(elected)
        metastore.needed_from = needed  # type: ignore[method-assign]
        cluster.on_topology(topology)
        cluster.ready.then(ready)

    def crash(self, dice: Random | None) -> None:
        """End the process; with dice the machine loses power, too."""
        self.world.tell(f"node {self.number} {'loses power' if dice else 'is killed'}")
        self.loop.crash()
        self._buried(dice)

    def _buried(self, dice: Random | None) -> None:
        self.disk = self.disk.killed() if dice is None else self.disk.crashed(dice)
        self.log = self.groups = self.cluster = None
        pending, self.pending = self.pending, {}
        for dead in pending.values():
            dead()

    def close(self) -> None:
        """End the process in good order. Call it from outside the loop."""
        assert self.groups is not None
        assert self.log is not None
        assert self.cluster is not None
        self.world.tell(f"node {self.number} shuts down")
        self.shutting_down = True
        self.cluster.close()
        self.groups.close()
        self.log.close()
        self.loop.close()
        self.shutting_down = False
        self._buried(None)

    def say_goodbye(self) -> None:
        """Leave the topology; the node is closed by and by."""
        assert self.cluster is not None
        self.loop.run(self._close_cluster)

    def _close_cluster(self) -> None:
        assert self.cluster is not None
        self.cluster.close(leave_topology=True)

    def retire(self) -> None:
        """It has left: it never comes back. Call it from outside the loop."""
        self.world.tell(f"node {self.number} is gone")
        self.world.count("node gone")
        self.gone = True
        self.loop.crash()
        self._buried(None)

    def ask(self, future: Future[T], answered: Callable[[Future[T]], None]) -> None:
        """Wait for an answer; `answered` gets a future that is not done if the process dies."""
        world = self.world
        world.requests += 1
        number = world.requests

        def done(future: Future[T]) -> None:
            if self.pending.pop(number, None) is not None:
                answered(future)

        self.pending[number] = lambda: answered(future)
        future.then(done)

    # -- watching -------------------------------------------------------------------------------

    def _turned(self) -> None:
        world = self.world
        world.turns += 1
        if self.cluster is None:
            return
        if self.loop.crashed:
            # Its disk stopped it in the middle of a call.
            world.tell(f"node {self.number} loses power at a disk call")
            self._buried(world.dice)
            return
        group = self.group
        if group is not None and not self.closing:
            confirm(group.stopped is None, f"node {self.number} stopped: {group.stopped}")
            if world.turns % VALUE_EVERY == 0:
                self.check_some_value()

    def check_some_value(self) -> None:
        """One value that can be asked for is in this node's log, and is the right one."""
        if self.metastore is None:
            return
        state, dice = self.metastore.state, self.world.dice
        if state.keys:
            key = dice.choice(state.keys)
            self.check_value(key, dice.randint(state.compacted, state.latest))

    def check_value(self, key: bytes, revision: int) -> None:
        """What this node has of a key is what it should be."""
        assert self.metastore is not None
        try:
            entry = self.metastore.get_local(key, at=revision)
        except LowmarkError as error:
            raise Broken(f"node {self.number} can't read {key!r} at {revision}: {error}") from error
        right = self.world.ledger.page([key], revision)
        confirm(
            (entry,) == right if right else entry is None,
            f"node {self.number}: {key!r} is {entry} at {revision}, and should be {right}",
        )


class MetastoreWorld:
    """Nodes, a network, and what is known of their metastore."""

    def __init__(self, seed: int, shape: MetastoreShape) -> None:
        self.seed = seed
        self.shape = shape
        self.dice = Random(f"metastore world {seed}")
        self.loop = SimLoop(seed)
        self.network = SimNetwork(self.loop)
        self.ledger = MetastoreLedger()
        self.ledger.on_lease = self._leased
        self.events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self.counts: Counter[str] = Counter()
        self.turns = 0
        self.requests = 0
        self.on_needed: Callable[[MetastoreNode, int], None] = lambda node, first: None
        """Called when a node says from which revision on it needs any."""
        self.nodes: dict[int, MetastoreNode] = {}
        for _ in range(shape.nodes):
            node = self.join()
            cluster = node.cluster
            assert cluster is not None
            self.loop.run_until(lambda cluster=cluster: cluster.ready.done)  # type: ignore[misc]

    def join(self, by: str = "") -> MetastoreNode:
        """One more node; it asks to be let in by way of an address."""
        number = len(self.nodes) + 1
        node = self.nodes[number] = MetastoreNode(self, number)
        node.seed = by or (self.nodes[1].address if number > 1 else "")
        node.start()
        return node

    def tell(self, what: str) -> None:
        """Add to what people read, and to the trace."""
        self.events.append(f"{self.loop.elapsed_us() / 1_000:10.3f} ms  {what}")
        self.loop.note(what)

    def count(self, what: str, times: int = 1) -> None:
        """Count something that happened to this world."""
        self.counts[what] += times

    def present(self) -> list[MetastoreNode]:
        """All that have not left, up or down."""
        return [node for node in self.nodes.values() if not node.gone]

    def up(self) -> list[MetastoreNode]:
        """Those that have a process."""
        return [node for node in self.nodes.values() if node.up]

    def serving(self) -> list[MetastoreNode]:
        """Those that can be asked."""
        return [node for node in self.nodes.values() if node.metastore is not None]

    def leader(self) -> MetastoreNode | None:
        """Who leads, in the highest term; it may not know that it is over."""
        found = [
            (group.term, node)
            for node in self.nodes.values()
            if (group := node.group) is not None and group.leads and not node.closing
        ]
        return max(found, key=lambda one: one[0])[1] if found else None

    def _leased(self, asked: Take | Renew) -> None:
        """A node's lease holds what the node has said that it needs."""
        for node in self.nodes.values():
            if asked.name == lease_of(node.number):
                # What was cut away can't be held: the first revision left stands in for it.
                first_left = {cut + 1 for cut, _ in self.ledger.cuts}
                confirm(
                    asked.hold in node.needed or asked.hold in first_left,
                    f"the lease of node {node.number} holds {asked.hold}, which it never asked for",
                )
