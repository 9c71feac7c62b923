"""A cluster whose nodes have a catalog, and whose network can lose single messages.

Nodes note what their listeners are told, and can be made slow to answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from catalog.world import CatalogNode, CatalogWorld
from group.cluster import SpyNetwork
from lowmark.catalog import (
    SNAPSHOT_KEY,
    UPDATE_PREFIX,
    VERSION_KEY,
    Catalog,
    CatalogEvent,
    Catalogs,
    History,
    Snapshot,
    read_log,
    replay,
)
from lowmark.catalog.entries import Entry
from lowmark.catalog.history import Update
from lowmark.catalog.serializers import encode_snapshot
from lowmark.catalog.update_log import number_in
from lowmark.group import Future
from lowmark.runtime import COUNTER_BITS, HybridTime, Runtime
from lowmark.runtime.sim import SimNetwork

__all__ = [
    "DAY_MS",
    "DrivenNode",
    "DrivenWorld",
    "Told",
    "bytes_of",
    "check_told",
    "late",
    "log_of",
    "ms",
    "replayed",
]

DAY_MS = 24 * 3600 * 1_000


def ms(duration: int) -> int:
    """Milliseconds as a part of a hybrid time."""
    return duration << COUNTER_BITS


def bytes_of(catalog: Catalog) -> bytes:
    """All of a version, its times too."""
    return encode_snapshot(Snapshot(catalog))


def log_of(node: CatalogNode) -> list[tuple[Update | Snapshot, int]]:
    """The update log as a node's copy of the metastore has it, each value with its time."""

    def part(key: bytes) -> bytes | None:
        entry = node.metastore.get_local(key)
        return entry.value if entry is not None else None

    return list(read_log(node.metastore.range_local(UPDATE_PREFIX).entries, parts=part))


def replayed(node: CatalogNode) -> History:
    """What a start from a node's copy of the update log would give."""
    history = History()
    for _ in replay(log_of(node), history):
        pass
    return history


def stored_number(node: CatalogNode, key: bytes) -> int:
    """A version that stands under a key of its own."""
    entry = node.metastore.get_local(key)
    return number_in(entry.value if entry is not None else None)


def check_log(node: CatalogNode) -> None:
    """The log is dense from the earliest version to the latest, and begins as it says."""
    values = [value for value, _ in log_of(node)]
    versions = [v.version if isinstance(v, Update) else v.catalog.version for v in values]
    cut, latest = stored_number(node, SNAPSHOT_KEY), stored_number(node, VERSION_KEY)
    first = cut or 1
    assert versions == list(range(first, latest + 1)), f"the log has {versions}, from {first}"
    kinds = [isinstance(value, Snapshot) for value in values]
    assert kinds == [bool(cut)] * len(kinds[:1]) + [False] * len(kinds[1:]), kinds


@dataclass
class Told:
    """What the listener of one life of a node was told."""

    catalogs: Catalogs
    began_at: int
    events: list[CatalogEvent] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    """What was told before it could be read."""

    def note(self, event: CatalogEvent) -> None:
        self.events.append(event)
        history = self.catalogs.history
        version = event.catalog.version
        if history.latest.version < version:
            self.behind.append(f"version {version} was told, {history.latest.version} is known")
        elif version >= history.earliest.version and history.version(version) != event.catalog:
            self.behind.append(f"version {version} was told, and reads otherwise")
        if self.catalogs.ready_version >= version:
            self.behind.append(f"version {version} was ready before it was told")

    @property
    def versions(self) -> list[int]:
        return [event.catalog.version for event in self.events]

    @property
    def entries(self) -> list[Entry | None]:
        return [event.entry for event in self.events]


def check_told(told: Told, entries_of: Callable[[int], tuple[Entry, ...]], *, done: bool) -> None:
    """Each entry of each version was told once, in order, or a jump; `done`: up to the latest."""
    assert not told.behind, told.behind
    at, left = told.began_at, list[Entry]()
    for event in told.events:
        version = event.catalog.version
        if event.entry is None:
            assert not left, f"a jump within version {at}"
            assert event.before.version == at, f"a jump from {event.before.version}, after {at}"
            assert version > at, f"a jump from {at} to {version}"
            at = version
            continue
        if not left:
            assert version == at + 1, f"version {version} was told after {at}"
            assert event.before.version == at
            at, left = version, list(entries_of(version))
        assert version == at, f"version {version} was told before all of {at}"
        assert event.entry == left.pop(0), f"not the next entry of version {version}"
    assert not left or not done, f"{len(left)} entries of version {at} were never told"
    assert at == told.catalogs.latest.version or not done, f"told up to {at}"


class DrivenNode(CatalogNode):
    """A node that notes what its catalog tells."""

    told: Told | None = None

    def start(self, *, join: str = "") -> None:
        super().start(join=join)
        self.here.ready.then(lambda _: self._listen())

    def _listen(self) -> None:
        catalogs = self.catalog
        told = self.told = Told(catalogs, catalogs.latest.version)

        def listener(event: CatalogEvent) -> Future[None] | None:
            told.note(event)
            world = self.world
            assert isinstance(world, DrivenWorld)
            return world.answer(self)

        catalogs.on_event(listener)

    @property
    def heard(self) -> Told:
        assert self.told is not None
        return self.told

    @property
    def here_runtime(self) -> Runtime:
        assert self.runtime is not None
        return self.runtime

    def now(self) -> HybridTime:
        return self.here_runtime.clock.now()

    def next_token(self) -> bytes:
        """The token that the next command here will have."""
        twin = Random()
        twin.setstate(self.here_runtime.random.getstate())
        return twin.randbytes(16)

    def stop(self) -> None:
        self.catalog.close()
        super().stop()


def late(node: DrivenNode, delay_ms: float) -> Future[None]:
    """The answer of a slow listener."""
    answer: Future[None] = Future()
    node.clock.call_later(delay_ms, lambda: answer.resolve(None))
    return answer


class DrivenWorld(CatalogWorld):
    """As `CatalogWorld`, with a network that can be told what to lose."""

    answer: Callable[[DrivenNode], Future[None] | None] = staticmethod(lambda _: None)
    """What listeners answer with."""

    def __init__(self, seed: int = 1, *, nodes: int = 3, **more: object) -> None:
        super().__init__(seed, nodes=nodes, **more)
        self.run_until(self.all_vote)
        self.run_until(lambda: all(node.catalog.ready_version >= 1 for node in self.all()))

    def all_vote(self) -> bool:
        """Whether as many nodes vote in the metastore as are to, by everybody's account."""
        wanted = min(len(self.nodes), 3)
        members = [node.metastore.group.raft.core.members for node in self.all()]
        return all(len(one.incoming) == wanted and not one.outgoing for one in members)

    @property
    def network(self) -> SpyNetwork:
        return self._network

    @network.setter
    def network(self, _: SimNetwork) -> None:
        self._network = SpyNetwork(self.loop)

    def new_node(self, number: int) -> DrivenNode:
        return DrivenNode(self, number)

    def __getitem__(self, number: int) -> DrivenNode:
        node = self.nodes[number]
        assert isinstance(node, DrivenNode)
        return node

    def all(self) -> list[DrivenNode]:
        """Those that are up."""
        return [self[number] for number in self.nodes if self[number].up]

    def wait_even(self, version: int = 0) -> None:
        """Until all nodes know the same versions, at least up to this one."""

        def even() -> bool:
            known = [
                -1 if node.catalogs is None else node.catalog.latest.version for node in self.all()
            ]
            return min(known) == max(known) >= version

        self.run_until(even)

    def make_leader(self, number: int) -> None:
        """Have a given node lead."""

        def leads() -> bool:
            leader = self.leader()
            return leader is not None and leader.number == number

        for _ in range(10):
            leader = self.wait_leader()
            if leader.number == number:
                return
            leader.metastore.group.transfer(number)
            try:
                self.run_until(leads, timeout_ms=2_000)
            except TimeoutError:
                continue
        assert leads()

    def follower(self) -> DrivenNode:
        """Some node that does not lead."""
        leader = self.wait_leader()
        return next(node for node in self.all() if node is not leader)

    def compact_metastore(self, number: int) -> int:
        """Cut the metastore's history as far as it lets; gives the cut."""
        metastore = self[number].metastore
        return self.wait(metastore.compact(metastore.state.latest)).compacted

    def check_even(self) -> None:
        """All nodes know the same versions, to the byte, and a replay gives them again."""
        first = self.all()[0]
        wanted = [bytes_of(catalog) for catalog in first.catalog.history]
        for node in self.all():
            check_log(node)
            history = node.catalog.history
            assert [bytes_of(catalog) for catalog in history] == wanted, f"node {node.number}"
            again = [bytes_of(catalog) for catalog in replayed(node)]
            assert again == wanted, f"a replay at node {node.number}"
