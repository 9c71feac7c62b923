"""A cluster of nodes with a metastore, in one process and in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

import msgspec

from group.cluster import FAST, TINY_LOG
from lowmark.errors import LowmarkError
from lowmark.group import Future, GroupConfig, Groups
from lowmark.log import Log, LogConfig
from lowmark.metastore import (
    Cluster,
    ClusterSettings,
    Event,
    Metastore,
    MetastoreConfig,
    NodeInfo,
    Operation,
    identify,
)
from lowmark.metastore.replacing import prepare
from lowmark.placement import MetastoreMembers, RebalanceConfig
from lowmark.placement.assignments import METASTORE
from lowmark.placement.writes import local_keys
from lowmark.runtime import Runtime
from lowmark.runtime.sim import (
    SimDisk,
    SimLoop,
    SimNetwork,
    SimNode,
    sim_runtime,
)

__all__ = ["FAST", "QUICK", "TINY_LOG", "Node", "Watcher", "World"]

T = TypeVar("T")

QUICK = MetastoreConfig(lease_ms=1_500, request_timeout_ms=3_000, watch_patience_ms=5_000)


class Watcher:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended: LowmarkError | None = None
        self.waits: Future[None] | None = None

    def on_event(self, event: Event) -> Future[None] | None:
        self.events.append(event)
        return self.waits

    def on_end(self, error: LowmarkError) -> None:
        self.ended = error

    @property
    def revisions(self) -> list[int]:
        return [event.revision for event in self.events]


class Node:
    """One node, up or down; its disk outlives it."""

    alone = False
    """Whether its clock is the only one, as an embedded node's is."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.disk = SimDisk()
        self.life = 0
        self.sim_node: SimNode | None = None
        self.runtime: Runtime | None = None
        self.log: Log | None = None
        self.groups: Groups | None = None
        self.cluster: Cluster | None = None
        self.members: MetastoreMembers | None = None
        self.address = f"n{number}:1"
        self.rack = ""
        self.replaces: NodeInfo | None = None
        """The lost node whose place it takes."""
        self.founding_writes: tuple[Operation, ...] = ()

    @property
    def up(self) -> bool:
        return self.cluster is not None

    @property
    def here(self) -> Cluster:
        assert self.cluster is not None, f"node {self.number} is down"
        return self.cluster

    @property
    def metastore(self) -> Metastore:
        return self.here.metastore

    @property
    def clock(self) -> SimNode:
        assert self.sim_node is not None
        return self.sim_node

    @property
    def info(self) -> NodeInfo:
        lost, (address, rack) = self.replaces, (self.address, self.rack)
        if lost is None:
            name = f"n{self.number}"
            return NodeInfo(number=self.number, name=name, address=address, rack=rack)
        changes = {"number": self.number, "address": address, "replaces": lost.number}
        return msgspec.structs.replace(lost, **changes)

    def start(self, *, join: str = "") -> None:
        self.life += 1
        world = self.world
        if self.sim_node is None:
            self.sim_node = SimNode(world.loop, f"n{self.number}")
        elif self.sim_node.crashed:
            self.sim_node = self.sim_node.restarted()
        self.runtime = sim_runtime(
            world.seed * 1_000 + self.number * 100 + self.life,
            disk=self.disk,
            loop=self.sim_node,
            network=world.network,
            alone=self.alone,
        )
        if self.replaces is not None:
            prepare(self.disk, self.replaces, draw=lambda _: self.number - 1)
        identify(self.disk, draw=lambda _: self.number - 1, name=self.info.name)
        self.log = Log.open(self.runtime, world.log_config)
        self.groups = Groups(
            self.runtime, self.log, node=self.number, address=self.address, config=world.config
        )
        self.cluster = Cluster(
            self.runtime, self.log, self.groups, node=self.info, config=world.metastore_config
        )
        self.members = MetastoreMembers(
            self.runtime, self.cluster, config=RebalanceConfig(retry_delay_ms=200)
        )
        self.cluster.founding_writes = self.founding_writes
        self.cluster.start(join=join, settings=world.settings)

    def stop(self) -> None:
        """In good order, but without a word to the others."""
        self.here.close()
        assert self.members is not None
        self.members.close()
        assert self.groups is not None
        assert self.log is not None
        self.groups.close()
        self.log.close()
        self.clock.crash()
        self._down()

    def crash(self, *, killed: bool = False) -> None:
        """As a power cut; `killed`: as kill -9."""
        self.clock.crash()
        if killed:
            self.disk = self.disk.killed()
        else:
            self.disk = self.disk.crashed(Random(f"{self.world.seed} {self.number} {self.life}"))
        self._down()

    def _down(self) -> None:
        self.runtime = self.log = self.groups = self.cluster = self.members = None

    def restart(self) -> None:
        if self.up:
            self.stop()
        self.start()


class World:
    """Node 1 founds the cluster, the others join it."""

    def __init__(
        self,
        seed: int = 1,
        *,
        nodes: int = 3,
        config: GroupConfig = FAST,
        metastore_config: MetastoreConfig = QUICK,
        log_config: LogConfig | None = None,
        settings: ClusterSettings | None = None,
    ) -> None:
        self.seed = seed
        self.config = config
        self.metastore_config = metastore_config
        self.log_config = log_config or LogConfig()
        self.settings = settings
        self.loop = SimLoop(seed)
        self.network = SimNetwork(self.loop)
        self.nodes: dict[int, Node] = {}
        for number in range(1, nodes + 1):
            self.add(number)
        if nodes:
            self.run_until(self.members_settled)

    def members_settled(self) -> bool:
        """Whether the metastore has the members that it should have, and that is written."""
        leader = self.leader()
        if leader is None:
            return False
        keys = local_keys(leader.metastore, METASTORE)
        if keys.stable is None or keys.pending is not None:
            return False
        return {*keys.stable.nodes, *keys.stable.learners} == self.nodes.keys()

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def add(self, number: int) -> Node:
        """One more node; it is in when this returns."""
        node = self.nodes[number] = self.new_node(number)
        node.start(join="" if number == 1 else self.nodes[1].address)
        self.run_until(lambda: node.here.ready.done)
        node.here.ready.result()
        return node

    def new_node(self, number: int) -> Node:
        return Node(self, number)

    def run_until(self, condition: Callable[[], bool], *, timeout_ms: float = 60_000) -> None:
        self.loop.run_until(condition, timeout_ms=timeout_ms)

    def run_for(self, ms: float) -> None:
        self.loop.run_for(ms)

    def wait(self, future: Future[T], *, timeout_ms: float = 60_000) -> T:
        self.run_until(lambda: future.done, timeout_ms=timeout_ms)
        return future.result()

    def wait_error(self, future: Future[T], *, timeout_ms: float = 60_000) -> LowmarkError:
        self.run_until(lambda: future.done, timeout_ms=timeout_ms)
        assert future.error is not None, f"answered {future.result()!r}"
        return future.error

    def leader(self) -> Node | None:
        leading = [n for n in self.nodes.values() if n.up and n.metastore.coordinates]
        return max(leading, key=lambda n: n.metastore.group.term, default=None)

    def wait_leader(self, *, other_than: int = 0) -> Node:
        def found() -> bool:
            leader = self.leader()
            return leader is not None and leader.number != other_than

        self.run_until(found)
        leader = self.leader()
        assert leader is not None
        return leader

    def isolate(self, *numbers: int) -> None:
        inside = [self[number].address for number in numbers]
        outside = [n.address for n in self.nodes.values() if n.number not in numbers]
        self.network.cut(inside, outside)

    def heal(self) -> None:
        self.network.heal()
