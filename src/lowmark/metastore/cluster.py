"""This node's place in the cluster: it founds one, joins one, or comes back to its own.

found   1. who this node is, and that it founds a cluster, is written and synced
2. the metastore's group is made with this node as its only member
3. its first command settles the cluster, this node and the topology; a crash before
that is made good at the next start
join    1. a node of the cluster is asked; its leader puts this node into the topology
2. the cluster's id and everybody's address are written and synced
3. a copy of the metastore is made that waits for the leader, who makes it a member
return  the copy is opened; if this node is at another address, or was taken for gone, it asks
to be let in again
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from lowmark.errors import Corrupt, LowmarkError, Rejected
from lowmark.group import Future, Groups
from lowmark.log import Log
from lowmark.metastore.config import MetastoreConfig
from lowmark.metastore.coordinating import (
    JOIN_SERVICE,
    Coordinating,
    Elsewhere,
    JoinAsk,
    JoinReply,
    NotNow,
    Turned,
    Welcome,
    known,
)
from lowmark.metastore.errors import ClusterRefused, NotInCluster
from lowmark.metastore.identity import Identity, load_identity, save_identity
from lowmark.metastore.nodes import (
    CLUSTER_KEY,
    NODE_PREFIX,
    TOPOLOGY_KEY,
    ClusterSettings,
    NodeInfo,
    Topology,
    check_node,
)
from lowmark.metastore.presence import Presence
from lowmark.metastore.store import GROUP, Metastore
from lowmark.metastore.watches import Event
from lowmark.runtime import Disk, Runtime

__all__ = ["Cluster", "identify"]

logger = logging.getLogger(__name__)

_RETRY_MS = 300
_ASK_MS = 3_000
_decode_reply = msgspec.msgpack.Decoder(JoinReply).decode


def identify(disk: Disk, *, draw: Callable[[int], int], name: str = "") -> Identity:
    """Who the node of a data directory is; a new one draws its number."""
    identity = load_identity(disk)
    if identity is None:
        number = draw((1 << 53) - 1) + 1
        identity = Identity(number=number, name=name or f"node-{number:014x}")
        save_identity(disk, identity)
    elif name and name != identity.name:
        raise Rejected(
            f"the node of this data directory is called {identity.name}",
            hint=f"Leave the name out, or use {identity.name}.",
        )
    return identity


class Cluster:
    """One node among others. `start` it once; all calls are made on the loop."""

    def __init__(
        self,
        runtime: Runtime,
        log: Log,
        groups: Groups,
        *,
        node: NodeInfo,
        config: MetastoreConfig | None = None,
    ) -> None:
        check_node(node)
        self.node = node
        self.config = config or MetastoreConfig()
        self.metastore = Metastore(runtime, groups, config=self.config)
        self.ready: Future[ClusterSettings] = Future()
        """When this node belongs to a cluster and knows its settings."""
        self._loop = runtime.loop
        self._disk = runtime.disk
        self._random = runtime.random
        self._log = log
        self._groups = groups
        self._presence = Presence(runtime, self.metastore)
        self._coordinating = Coordinating(runtime, groups, self.metastore)
        found = load_identity(runtime.disk)
        if found is None or found.number != node.number:
            raise Rejected("a node is identified before it joins a cluster")
        self._identity = found
        self._on_topology: list[Callable[[Topology], None]] = []
        self._told = Topology()
        self._joining = False
        self._closed = False

    # -- starting -------------------------------------------------------------------------------

    def start(self, *, join: str = "", settings: ClusterSettings | None = None) -> None:
        """Come back to a cluster, join one by way of an address, or found one."""
        identity = self._identity
        if identity.left:
            raise ClusterRefused(
                f"node {self.node.name} has left its cluster",
                hint="Give it an empty data directory to have it join as a new node.",
            )
        for number, address in identity.peers.items():
            self._groups.transport.learn(int(number), address)
        if identity.cluster:
            self._come_back()
        elif join:
            self._join(join, join)
        else:
            chosen = settings or ClusterSettings(id="", members=self.config.members)
            chosen = msgspec.structs.replace(chosen, id=f"{self._random.getrandbits(64):016x}")
            self._save(cluster=chosen.id, founding=chosen)
            self._come_back()

    def close(self, *, leave_topology: bool = False) -> Future[None]:
        """Say goodbye if there is time for it; then do nothing more."""
        self._closed = True
        done = self._presence.stop(release=leave_topology)
        done.then(lambda _: self._close())
        return done

    def _close(self) -> None:
        self._coordinating.close()
        self.metastore.close()

    def _come_back(self) -> None:
        founding = self._identity.founding
        if GROUP in {log.name for log in self._log.groups() if log.meta}:
            self.metastore.open()
        elif founding is not None:
            self.metastore.found()
        else:
            self.metastore.follow()
        if founding is not None:
            self._settle(founding)
        self._go()

    def _settle(self, settings: ClusterSettings) -> None:
        """Have the first command written, if it is not yet."""

        def elected(_: int) -> None:
            if self.metastore.state.find(CLUSTER_KEY) is None and not self._closed:
                self._coordinating.found(settings, self.node)

        self.metastore.on_elected(elected)

    # -- joining --------------------------------------------------------------------------------

    def _join(self, address: str, seed: str) -> None:
        question = msgspec.msgpack.encode(JoinAsk(self.node, self._identity.cluster))

        def answered(future: Future[bytes]) -> None:
            if not self._closed:
                self._joined(future, seed)

        self._groups.calls.ask_at(address, JOIN_SERVICE, question, timeout_ms=_ASK_MS).then(
            answered
        )

    def _joined(self, future: Future[bytes], seed: str) -> None:
        match _read_reply(future):
            case Welcome(cluster=cluster, nodes=nodes):
                for node in nodes:
                    if node.number != self.node.number:
                        self._groups.transport.learn(node.number, node.address)
                peers = {str(n.number): n.address for n in nodes if n.number != self.node.number}
                self._save(cluster=cluster.id, peers=peers)
                self.metastore.follow()
                self._go()
            case Elsewhere(address=address):
                self._join(address, seed)
            case NotNow(why=why):
                logger.info("not let in yet", extra={"seed": seed, "reason": why})
                self._loop.call_later(_RETRY_MS, lambda: self._again(seed))
            case Turned(message=message, detail=detail, hint=hint):
                self.ready.reject(ClusterRefused(message, detail=detail, hint=hint))

    def _again(self, seed: str) -> None:
        if not self._closed:
            self._join(seed, seed)

    # -- being there ----------------------------------------------------------------------------

    def _go(self) -> None:
        self._watch()
        self._presence.start()
        self._coordinating.start()
        self._every()

    def _watch(self) -> None:
        """Follow who belongs to the cluster and who is up, from what is there now."""
        if self._closed or self.metastore.group.stopped is not None:
            return
        self.metastore.watch(
            prefix=NODE_PREFIX,
            keys=[CLUSTER_KEY, TOPOLOGY_KEY],
            on_event=self._changed,
            on_end=lambda _: self._loop.call_soon(self._watch),
            name="nodes and topology",
        )
        self._learn()

    def _changed(self, event: Event) -> None:
        del event
        self._learn()
        self._coordinating.see_to_members()

    def _learn(self) -> None:
        """Take note of who is where and who is up, from what this node knows."""
        now = known(self.metastore)
        peers = {
            str(node.number): node.address
            for node in now.nodes.values()
            if node.number != self.node.number
        }
        for number, address in peers.items():
            self._groups.transport.learn(int(number), address)
        if peers and peers != self._identity.peers:
            self._save(peers=peers)
        if now.settings is not None:
            self.ready.resolve(now.settings)
        if now.topology.version > self._told.version:
            self._told = now.topology
            for callback in self._on_topology:
                callback(now.topology)

    def _every(self) -> None:
        """If this node was taken for gone, or has moved, say so until that is known."""
        if self._closed:
            return
        self._loop.call_later(self.config.lease_ms / 3, self._every)
        leader = self.metastore.leadership.node
        if not leader or self._joining or not self.ready.done:
            return
        if known(self.metastore).topology.find(self.node.number) == self.node:
            return
        self._joining = True
        ask = JoinAsk(self.node, self._identity.cluster)

        def done(error: LowmarkError | None) -> None:
            self._joining = False
            if error is not None:
                logger.info("not let in again yet", extra={"reason": error.message})

        if leader == self.node.number:
            self._coordinating.let_in(ask).then(lambda future: done(future.error))
        else:
            question = msgspec.msgpack.encode(ask)
            asked = self._groups.calls.ask(leader, JOIN_SERVICE, question, timeout_ms=_ASK_MS)
            asked.then(lambda future: done(future.error))

    def _save(self, **changes: object) -> None:
        self._identity = msgspec.structs.replace(self._identity, **changes)
        save_identity(self._disk, self._identity)

    # -- asking ---------------------------------------------------------------------------------

    @property
    def settings(self) -> ClusterSettings:
        """What was settled when the cluster was founded."""
        if not self.ready.done:
            raise NotInCluster
        return self.ready.result()

    @property
    def topology(self) -> Topology:
        """The nodes that are up, as far as this node knows."""
        return self._told

    def nodes(self) -> list[NodeInfo]:
        """All that belong to the cluster, as far as this node knows, in the order they came."""
        return list(known(self.metastore).nodes.values())

    def on_topology(self, callback: Callable[[Topology], None]) -> None:
        """Be told who is up; now, and whenever that changes."""
        self._on_topology.append(callback)
        callback(self._told)

    def leave(self) -> Future[None]:
        """Take this node out of the cluster, for good. Stop it when the future resolves."""
        whole: Future[None] = Future()

        def done(future: Future[bool]) -> None:
            if future.error is not None:
                whole.reject(future.error)
            elif not future.result():
                self._loop.call_later(_RETRY_MS, attempt)
            else:
                self._save(left=True)
                self._presence.stop(release=True).then(lambda _: whole.resolve(None))

        def attempt() -> None:
            if self.metastore.state.find(TOPOLOGY_KEY) is None:
                whole.reject(NotInCluster())
            else:
                self._coordinating.leave(self.node.number).then(done)

        attempt()
        return whole


def _read_reply(future: Future[bytes]) -> JoinReply:
    if future.error is not None:
        return NotNow(future.error.message)
    try:
        reply: JoinReply = _decode_reply(future.result())
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the answer to a request to join can't be read: {error}") from error
    return reply
