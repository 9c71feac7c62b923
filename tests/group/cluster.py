"""A cluster in one process and in virtual time, for tests of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, TypeVar

from group.kv import KvMachine
from lowmark.errors import LowmarkError
from lowmark.group import (
    BadFrame,
    ChangeFailed,
    Future,
    Group,
    GroupConfig,
    Groups,
    TransportLimits,
    wire,
)
from lowmark.group.wire import Item, Routed
from lowmark.log import Log, LogConfig
from lowmark.runtime import (
    Buffer,
    NetworkLimits,
    Outcome,
    Runtime,
)
from lowmark.runtime.network import OnCut, OnFrame, OnRoom, ignore_room
from lowmark.runtime.sim import (
    SimDisk,
    SimLoop,
    SimNetwork,
    SimNode,
    sim_runtime,
)
from lowmark.runtime.sim.network import _Connection, _run_at_once, _SimEndpoint

__all__ = [
    "FAST",
    "TINY_LOG",
    "Cluster",
    "Listener",
    "Member",
    "Sent",
    "SpyNetwork",
    "Watcher",
    "node_at",
]

T = TypeVar("T")

FAST = GroupConfig(tick_ms=20, election_ticks=10, request_timeout_ms=2_000)
TINY_LOG = LogConfig(
    wal_bytes_max=64 << 10,
    segment_bytes_max=8 << 10,
    segment_entries_max=64,
    compaction_interval_ms=0,
    disk_reserved_bytes=0,
    disk_low_bytes=0,
)


@dataclass
class Listener:
    """Notes what it is told; lets changes finish unless told otherwise."""

    elected: list[int] = field(default_factory=list)
    committed: list[tuple[int, ...]] = field(default_factory=list)
    errors: list[ChangeFailed] = field(default_factory=list)
    asked: list[tuple[tuple[int, ...], Callable[[bool], None]]] = field(default_factory=list)
    finish: bool = True

    def on_leader_elected(self, term: int) -> None:
        self.elected.append(term)

    def on_change_peers_committed(self, peers: tuple[int, ...]) -> None:
        self.committed.append(peers)

    def on_change_peers_error(self, context: ChangeFailed) -> None:
        self.errors.append(context)

    def try_catch_up_finish(self, peers: tuple[int, ...], answer: Callable[[bool], None]) -> None:
        self.asked.append((peers, answer))
        if self.finish:
            answer(True)


@dataclass
class Watcher:
    """Notes what it hears of a copy."""

    group: Group | None = None
    heard: list[tuple[object, ...]] = field(default_factory=list)
    then: Callable[[str], None] = lambda _: None
    """What to do about it."""

    def on_applied(self) -> None:
        self._note("applied", self.group.applied if self.group is not None else 0)

    def on_restored(self) -> None:
        self._note("restored", self.group.applied if self.group is not None else 0)

    def on_leader_changed(self, leader: int, term: int) -> None:
        self._note("leader", leader, term)

    def on_stopped(self, error: LowmarkError) -> None:
        self._note("stopped", type(error))

    def _note(self, what: str, *more: object) -> None:
        self.heard.append((what, *more))
        self.then(what)

    def of(self, what: str) -> list[tuple[object, ...]]:
        """What was heard of one kind."""
        return [tuple(more) for kind, *more in self.heard if kind == what]


class Sent(NamedTuple):
    """A frame as it was given to the network."""

    at_ms: float
    sender: int
    to: int
    size: int
    items: list[Routed]


def node_at(address: str) -> int:
    """The number of the node that listens at an address of these tests."""
    return int(address.removeprefix("n").partition(":")[0])


class SpyNetwork(SimNetwork):
    """Notes frames as they are sent, and can lose single messages on their way."""

    def __init__(self, loop: SimLoop, *, limits: NetworkLimits | None = None) -> None:
        super().__init__(loop, limits=limits)
        self.watching = False
        self.sent: list[Sent] = []
        self.on_sent: Callable[[Sent], None] | None = None
        self.loses: Callable[[int, int, Item], bool] | None = None

    def watch(self) -> list[Sent]:
        """Note every frame from now on."""
        self.watching, self.sent = True, []
        return self.sent

    def carry(self, connection: _Connection, buffers: object, *, urgent: bool = False) -> None:
        parts: list[Buffer] = list(buffers)  # type: ignore[call-overload]
        if self.watching or self.on_sent is not None:
            frame = b"".join(parts)
            try:
                items = wire.decode(frame)[1]
            except BadFrame:
                items = []
            sender, to = node_at(connection.sender.address), node_at(connection.to)
            seen = Sent(self.now_us() / 1_000, sender, to, len(frame), items)
            if self.watching:
                self.sent.append(seen)
            if self.on_sent is not None:
                self.on_sent(seen)
        super().carry(connection, parts, urgent=urgent)

    def endpoint(
        self,
        address: str,
        on_frame: OnFrame,
        on_cut: OnCut,
        *,
        on_room: OnRoom = ignore_room,
        listen: str | None = None,
        run: Callable[[Callable[[], None]], None] = _run_at_once,
    ) -> _SimEndpoint:
        def sieved(sender: str, frame: Buffer) -> None:
            loses = self.loses
            if loses is not None:
                boot, items = wire.decode(frame)
                one, two = node_at(sender), node_at(address)
                kept = [(group, item) for group, item in items if not loses(one, two, item)]
                if len(kept) < len(items):
                    frame = b"".join(wire.encode(boot, kept))
            on_frame(sender, frame)

        return super().endpoint(address, sieved, on_cut, on_room=on_room, listen=listen, run=run)


class Member:
    """One node of the cluster, up or down; its disk outlives it."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.disk = SimDisk()
        self.life = 0
        self.machine_version = cluster.machine_version
        self.config = cluster.config
        self.sim_node: SimNode | None = None
        self.runtime: Runtime | None = None
        self.log: Log | None = None
        self.groups: Groups | None = None
        self.listeners: dict[str, Listener] = {}
        self.watchers: dict[str, Watcher] = {}
        self.machines: dict[str, KvMachine] = {}

    @property
    def address(self) -> str:
        return f"n{self.number}:1"

    @property
    def up(self) -> bool:
        return self.groups is not None

    def start(self, *, opens: bool = True) -> None:
        self.life += 1
        cluster = self.cluster
        if self.sim_node is None:
            self.sim_node = SimNode(cluster.loop, f"n{self.number}")
        elif self.sim_node.crashed:
            self.sim_node = self.sim_node.restarted()
        self.runtime = sim_runtime(
            cluster.seed * 1_000 + self.number * 100 + self.life,
            disk=self.disk,
            loop=self.sim_node,
            network=cluster.network,
        )
        self.log = Log.open(self.runtime, cluster.log_config)
        self.groups = Groups(
            self.runtime,
            self.log,
            node=self.number,
            address=self.address,
            config=self.config,
            limits=cluster.transport_limits,
        )
        for other in cluster.members.values():
            if other.number != self.number:
                self.groups.transport.learn(other.number, other.address)
        for stored in self.log.groups() if opens else ():
            self.open(stored.name)

    def open(self, name: str = "g") -> Group:
        return self._watched(
            self.here.open(
                name,
                self._machine(name),
                listener=self._listener(name),
                observer=self._watcher(name),
            )
        )

    def create(self, name: str, founders: Iterable[int] = ()) -> Group:
        return self._watched(
            self.here.create(
                name,
                self._machine(name),
                members=founders,
                listener=self._listener(name),
                observer=self._watcher(name),
            )
        )

    def recreate(self, name: str, *, ask: Iterable[int], incarnation: int) -> Group:
        return self.here.recreate(
            name,
            self._machine(name),
            ask=ask,
            incarnation=incarnation,
            listener=self._listener(name),
        )

    def rebuild(self, name: str = "g", *, ask: Iterable[int] = ()) -> Future[Group]:
        future = self.here.rebuild(
            name,
            self._machine(name),
            ask=ask,
            listener=self._listener(name),
            observer=self._watcher(name),
        )
        return future.map(self._watched)

    def slow_down(self, lane: str, ms: float) -> None:
        """Let each step of a lane begin so much later; 0 brings it up to speed again."""
        slowed = self.clock.lane(lane)
        plain = type(slowed).submit

        def submit(step: Callable[[], T], on_done: Callable[[Outcome[T]], None]) -> None:
            self.clock.call_later(ms, lambda: plain(slowed, step, on_done))

        slowed.submit = submit  # type: ignore[method-assign]

    def _machine(self, name: str) -> KvMachine:
        self.machines[name] = machine = self.cluster.new_machine(self.machine_version)
        return machine

    def _listener(self, name: str) -> Listener:
        self.listeners[name] = listener = Listener()
        return listener

    def _watcher(self, name: str) -> Watcher:
        self.watchers[name] = watcher = Watcher()
        return watcher

    def _watched(self, group: Group) -> Group:
        self.watchers[group.name].group = group
        return group

    @property
    def here(self) -> Groups:
        assert self.groups is not None, f"node {self.number} is down"
        return self.groups

    @property
    def clock(self) -> SimNode:
        assert self.sim_node is not None
        return self.sim_node

    @property
    def listener(self) -> Listener:
        return self.listeners["g"]

    @property
    def watcher(self) -> Watcher:
        return self.watchers["g"]

    @property
    def machine(self) -> KvMachine:
        return self.machines["g"]

    def group(self, name: str = "g") -> Group:
        return self.here.group(name)

    def has(self, name: str = "g") -> bool:
        return self.groups is not None and name in {g.name for g in self.groups.groups()}

    def stop(self) -> None:
        """In good order."""
        self.here.close()
        assert self.log is not None
        self.log.close()
        self.clock.crash()
        self.runtime = self.log = self.groups = None

    def crash(self, *, killed: bool = False) -> None:
        """As a power cut: what was not synced may be lost. `killed`: as kill -9, nothing is."""
        self.clock.crash()
        if killed:
            self.disk = self.disk.killed()
        else:
            self.disk = self.disk.crashed(Random(f"{self.cluster.seed} {self.number} {self.life}"))
        self.runtime = self.log = self.groups = None

    def restart(self) -> None:
        """Stop, if it is up, and start again."""
        if self.up:
            self.stop()
        self.start()


class Cluster:
    """Nodes 1 to n; `spare` more that belong to no group yet."""

    def __init__(
        self,
        seed: int = 1,
        *,
        nodes: int = 3,
        spare: int = 0,
        config: GroupConfig = FAST,
        log_config: LogConfig | None = None,
        transport_limits: TransportLimits | None = None,
        network_limits: NetworkLimits | None = None,
        machine_version: int = 1,
        machine: Callable[[int], KvMachine] = KvMachine,
        group: str = "g",
    ) -> None:
        self.seed = seed
        self.config = config
        self.log_config = log_config or LogConfig()
        self.transport_limits = transport_limits
        self.machine_version = machine_version
        self.new_machine = machine
        self.loop = SimLoop(seed)
        self.network = SpyNetwork(self.loop, limits=network_limits)
        self.members: dict[int, Member] = {
            number: Member(self, number) for number in range(1, nodes + spare + 1)
        }
        for member in self.members.values():
            member.start()
        founders = range(1, nodes + 1)
        if group:
            for number in founders:
                self.members[number].create(group, founders)

    def __getitem__(self, number: int) -> Member:
        return self.members[number]

    # -- time -----------------------------------------------------------------------------------

    def run_until(self, condition: Callable[[], bool], *, timeout_ms: float = 60_000) -> None:
        self.loop.run_until(condition, timeout_ms=timeout_ms)

    def run_for(self, ms: float) -> None:
        self.loop.run_for(ms)

    @property
    def now_ms(self) -> float:
        return self.loop.elapsed_us() / 1_000

    # -- who leads ------------------------------------------------------------------------------

    def leader(self, name: str = "g") -> Member | None:
        """Who leads and is ready, in the highest term."""
        leading = [m for m in self.members.values() if m.has(name) and m.group(name).ready]
        return max(leading, key=lambda m: m.group(name).term, default=None)

    def wait_leader(self, name: str = "g", *, other_than: int = 0) -> Member:
        def found() -> bool:
            leader = self.leader(name)
            return leader is not None and leader.number != other_than

        self.run_until(found)
        leader = self.leader(name)
        assert leader is not None
        return leader

    def followers(self, name: str = "g") -> list[Member]:
        """Members that are up and have a copy, but do not lead."""
        leader = self.leader(name)
        return [m for m in self.members.values() if m.has(name) and m is not leader]

    def make_leader(self, number: int, name: str = "g") -> Member:
        """Have a given node lead."""
        leader = self.wait_leader(name)
        if leader.number != number:
            # It takes over only when it has caught up; ask until it does.
            for _ in range(10):
                leader.group(name).transfer(number)
                try:
                    self.run_until(lambda: self.leader(name) is self[number], timeout_ms=2_000)
                    break
                except TimeoutError:
                    leader = self.wait_leader(name)
        assert self.leader(name) is self[number]
        return self[number]

    # -- the network ----------------------------------------------------------------------------

    def isolate(self, *numbers: int) -> None:
        """Let these nodes hear only each other."""
        inside = [self[number].address for number in numbers]
        outside = [m.address for m in self.members.values() if m.number not in numbers]
        self.network.cut(inside, outside)

    def heal(self) -> None:
        self.network.heal()

    # -- asking ---------------------------------------------------------------------------------

    def wait(self, future: Future[T], *, timeout_ms: float = 60_000) -> T:
        self.run_until(lambda: future.done, timeout_ms=timeout_ms)
        return future.result()

    def wait_error(self, future: Future[T], *, timeout_ms: float = 60_000) -> LowmarkError:
        self.run_until(lambda: future.done, timeout_ms=timeout_ms)
        assert future.error is not None, f"answered {future.result()!r}"
        return future.error

    def propose(self, *commands: bytes, name: str = "g") -> list[object]:
        """Have commands applied at the leader, in one go; give the results."""
        group = self.wait_leader(name).group(name)
        futures = [group.propose(command) for command in commands]
        return [self.wait(future) for future in futures]

    def wait_even(self, *numbers: int, name: str = "g") -> None:
        """Until these members have applied all that their leader has committed."""
        asked = numbers or tuple(n for n, m in self.members.items() if m.has(name))

        def even() -> bool:
            leader = self.leader(name)
            if leader is None:
                return False
            core = leader.group(name).raft.core
            return all(
                self[n].has(name) and self[n].group(name).applied == core.log.last_index
                for n in asked
            )

        self.run_until(even)
