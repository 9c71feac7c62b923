"""What the metastore's leader does for the cluster: lets nodes in, and notices which are gone.

Every step is one conditional write on what was read, so two leaders in turn can't undo each other's
work: the later one reads again.

    join    node.<number> and topology change together; a name belongs to one node
    gone    a node leaves the topology when its lease was not renewed for as long as it lasts,
            and is still as it was when that is written
    replace as join, and in the same write a node that is lost goes (`replacing`)
    leave   node.<number> goes; then its place among the members; only then it may be switched off

The metastore's members follow from that: `lowmark.placement` moves them, as it moves partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from lowmark.errors import LowmarkError, Rejected
from lowmark.faces import deferred
from lowmark.group import Future, Groups, Reply, Stage
from lowmark.metastore.commands import (
    Compare,
    Condition,
    LeaseEnds,
    LeaseIsOver,
    Operation,
    Put,
    Remove,
    Revision,
    all_of,
    missing,
)
from lowmark.metastore.errors import ClusterRefused
from lowmark.metastore.nodes import (
    CLUSTER_KEY,
    NODE_PREFIX,
    TOPOLOGY_KEY,
    ClusterSettings,
    NodeInfo,
    Topology,
    check_node,
    decode_cluster,
    decode_node,
    decode_topology,
    encode,
    lease_of,
    node_key,
)
from lowmark.metastore.store import Metastore
from lowmark.metastore.whereabouts import Whereabouts
from lowmark.runtime import Buffer, Runtime
from lowmark.tokens.records import node_key as access_key

if TYPE_CHECKING:
    from lowmark.metastore.replacing import (
        Judge,
        Taken,
        lost_node,
        not_ready,
        successor,
    )
else:
    lost_node, not_ready, successor = deferred(
        "lowmark.metastore.replacing", "lost_node", "not_ready", "successor"
    )

logger = logging.getLogger(__name__)

JOIN_SERVICE = "cluster.join"
_JOIN_ATTEMPTS = 5
_WORD_LEASES = 2
"""A node that has moved says so three times in a lease, until that is written."""


class JoinAsk(msgspec.Struct, frozen=True, array_like=True):
    """A node wants to be in the topology: for the first time, or again."""

    node: NodeInfo
    cluster: str
    """The id of the cluster that it believes to belong to; empty the first time."""


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """It is in."""

    cluster: ClusterSettings
    nodes: tuple[NodeInfo, ...]
    """Where all nodes are that may speak to it."""
    revision: int = 0
    """As of which that is said."""


class Elsewhere(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The leader is at this address."""

    address: str


class NotNow(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The node that was asked can't say at the moment."""

    why: str


class Turned(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """It may not come in as it is."""

    message: str
    detail: str
    hint: str


class Left(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """It has left the cluster, and no majority needs it any more: it may be switched off."""

    by: str = ""
    """Which node took its place, in words."""


JoinReply: TypeAlias = Welcome | Elsewhere | NotNow | Turned | Left
_decode_ask = msgspec.msgpack.Decoder(JoinAsk).decode
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Known:
    """What the metastore says of the cluster, at this node."""

    settings: ClusterSettings | None
    nodes: dict[int, NodeInfo]
    """All that belong to it, in the order in which they came."""
    topology: Topology
    topology_revision: int

    def by_presence(self) -> list[NodeInfo]:
        """Those that are up behind those that are not: of two at one address, the last counts."""
        return sorted(
            self.nodes.values(), key=lambda node: self.topology.find(node.number) is not None
        )


def known(metastore: Metastore) -> Known:
    """As this node knows it."""
    cluster = metastore.get_local(CLUSTER_KEY)
    topology = metastore.get_local(TOPOLOGY_KEY)
    entries = metastore.range_local(NODE_PREFIX).entries
    nodes = {}
    for entry in sorted(entries, key=lambda one: (one.created, one.key)):
        node = decode_node(entry.value)
        nodes[node.number] = node
    return Known(
        decode_cluster(cluster.value) if cluster is not None else None,
        nodes,
        decode_topology(topology.value) if topology is not None else Topology(),
        topology.revision if topology is not None else 0,
    )


def name_of(metastore: Metastore, node: int) -> str:
    """What people call a node; its number, if this node does not know it or can't read its copy."""
    try:
        entry = metastore.get_local(node_key(node))
        return str(node) if entry is None else decode_node(entry.value).name
    except LowmarkError:
        return str(node)


class Coordinator:
    """Does nothing while its node does not lead."""

    def __init__(self, runtime: Runtime, groups: Groups, metastore: Metastore) -> None:
        self._loop = runtime.loop
        self._groups = groups
        self._metastore = metastore
        self._seen: dict[int, tuple[int, int]] = {}
        """Until when the leases of nodes last, and since when (by our time) that is so."""
        self._closed = False
        self._writing = False
        self.words = Whereabouts(
            now_ms=lambda: runtime.loop.elapsed_us() // 1_000,
            keep_ms=_WORD_LEASES * metastore.config.lease_ms,
        )
        self.judge: Callable[[], Judge] | None = None
        """Who knows what a node that is lost leaves behind, when one takes its place."""
        self.on_word: Callable[[str], None] = lambda _: None
        """Told that a member says that it is at an address, which is news to go by."""
        groups.calls.serve(JOIN_SERVICE, self._asked, strangers=True)
        # Nodes get the time to find their new leader.
        metastore.on_elected(lambda _: self._seen.clear())

    def look(self) -> Known | None:
        """What this node knows of the cluster; None if its copy can't be read."""
        try:
            return known(self._metastore)
        except LowmarkError as error:
            logger.warning("the metastore can't be read here", extra={"reason": error.message})
            return None

    def start(self) -> None:
        """Look after the cluster from now on, whenever this node leads."""
        self._every()

    def close(self) -> None:
        """Do nothing more."""
        self._closed = True

    def _every(self) -> None:
        if self._closed:
            return
        self._loop.call_later(self._metastore.config.lease_ms / 3, self._every)
        if self._metastore.coordinates:
            self._drop_gone()

    # -- founding -------------------------------------------------------------------------------

    def found(
        self, settings: ClusterSettings, node: NodeInfo, also: Iterable[Operation] = ()
    ) -> Future[bool]:
        """Settle what is settled once, and write what else is there from the first revision on;
        False if that was done before.
        """
        topology = Topology().with_node(node)
        return self._metastore.invoke_if(
            missing(CLUSTER_KEY),
            [
                Put(CLUSTER_KEY, encode(settings)),
                Put(node_key(node.number), encode(node)),
                Put(TOPOLOGY_KEY, encode(topology)),
                *also,
            ],
        )

    # -- joining --------------------------------------------------------------------------------

    def _asked(self, address: str, sender: int, question: Buffer, reply: Reply) -> None:
        del address
        try:
            asked = _decode_ask(question)
            if asked.node.number != sender:
                raise ClusterRefused(f"node {sender} asked in the name of node {asked.node.number}")
            check_node(asked.node)
        except (msgspec.MsgspecError, LowmarkError) as error:
            reply(_encode(_turned(error)))
            return
        self.let_in(asked).then(lambda future: reply(_encode(reply_of(future))))

    def let_in(self, asked: JoinAsk, attempts: int = _JOIN_ATTEMPTS) -> Future[JoinReply]:
        """Put a node into the topology, or say who can."""
        leader = self._metastore.leadership.node
        self._heard_of(asked)
        if not self._metastore.coordinates:
            where = self._groups.transport.addresses.get(leader)
            if where is not None:
                return Future.of(Elsewhere(where))
            return Future.of(NotNow("no node leads the metastore at the moment"))
        now = self.look()
        if now is None or now.settings is None:
            return Future.of(NotNow("the cluster is being founded, or its leader is damaged"))
        settings, node = now.settings, asked.node
        if asked.cluster == settings.id and node.number not in now.nodes:
            return self._may_go(node.number)
        lost = None
        try:
            if node.replaces and node.number not in now.nodes:
                lost = lost_node(node, now.nodes, now.topology)
                now.nodes.pop(lost.number)  # its name, and its address, are free
            _check_welcome(asked, settings, now, self._is_elsewhere)
        except Rejected as error:
            return Future.failed(error)
        here = now.nodes.get(self._metastore.node)
        if here is not None and here.address != self._groups.transport.address != node.address:
            # A newcomer would learn from its copy where this node was, and answer it there.
            return Future.of(NotNow("its leader has moved, and has not said so yet"))
        nodes = (*self._on_their_way_out(now, but=node.address), *now.by_presence())
        welcome = Welcome(settings, nodes, self._metastore.state.latest)
        if now.nodes.get(node.number) == node == now.topology.find(node.number):
            return Future.of(welcome)
        whole: Future[JoinReply] = Future()

        def done(future: Future[bool]) -> None:
            if isinstance(future.error, Rejected):
                whole.reject(future.error)
            elif future.error is not None:
                whole.resolve(NotNow(future.error.message))
            elif future.result():
                logger.info("a node is in", extra={"node": node.name, "address": node.address})
                whole.resolve(welcome)
            elif attempts > 1:
                self.let_in(asked, attempts - 1).then(lambda again: _pass_on(again, whole))
            else:
                whole.resolve(NotNow("too many nodes come and go"))

        same = Revision(TOPOLOGY_KEY, Compare.EQ, now.topology_revision)
        puts = [
            Put(node_key(node.number), encode(node)),
            Put(TOPOLOGY_KEY, encode(now.topology.with_node(node))),
        ]
        if lost is None:
            self._metastore.invoke_if(same, puts).then(done)
        else:
            self._take_place(lost, node, same, puts).then(done)
        return whole

    def _take_place(
        self, lost: NodeInfo, node: NodeInfo, same: Condition, puts: list[Put]
    ) -> Future[bool]:
        """Let a node in, and take the lost one out whose place it takes, in one write."""
        whole: Future[bool] = Future()

        def may(future: Future[Taken]) -> None:
            if future.error is not None:
                whole.reject(future.error)
                return
            taken = future.result()
            logger.warning("a node is replaced", extra={"node": lost.name, "lost": lost.number})
            removed = [Remove(node_key(lost.number)), Remove(access_key(lost.number))]
            self._metastore.invoke_if(
                all_of(same, LeaseIsOver(lease_of(lost.number)), *taken.conditions),
                [*puts, *removed, *taken.operations],
            ).then(whole.follow)

        if self.judge is None:
            return Future.failed(not_ready(lost))
        self.judge().taking(lost, node).then(may)
        return whole

    def _on_their_way_out(self, now: Known, *, but: str) -> list[NodeInfo]:
        """Members that have left: one of them may lead until the new ones are near enough."""
        transport = self._groups.transport
        addresses = {**transport.addresses, self._metastore.node: transport.address}
        return [
            NodeInfo(number=number, name=f"node-{number}", address=addresses[number])
            for number in sorted(self._metastore.group.members().everybody)
            if number not in now.nodes and addresses.get(number, but) != but
        ]

    def _heard_of(self, asked: JoinAsk) -> None:
        """Take a member's word for where it is: if all have moved, none leads to write it down."""
        now, node = self.look(), asked.node
        if now is None or now.settings is None or asked.cluster != now.settings.id:
            return
        known_as = now.nodes.get(node.number)
        own = self._metastore.node, self._groups.transport.address
        if known_as is None or node.number == own[0] or node.address == own[1]:
            return
        led = self._metastore.leadership.node != 0
        if self.words.said(known_as, node.address, led=led):
            self.on_word(node.address)

    def _is_elsewhere(self, member: NodeInfo) -> bool:
        """Whether a member is not where the metastore has it, as it says itself."""
        if member.number == self._metastore.node:
            return member.address != self._groups.transport.address
        return self.words.is_elsewhere(member)

    def _may_go(self, number: int) -> Future[JoinReply]:
        """What a node is told that has left: a majority may need it until others have its place."""
        whole: Future[JoinReply] = Future()

        def certain(future: Future[None]) -> None:
            members = self._metastore.group.members()
            if future.error is not None:
                whole.resolve(NotNow(future.error.message))
            elif number in known(self._metastore).nodes:
                whole.resolve(NotNow("it has just come in"))
            elif members.joint or number in members.everybody or self.stage is not Stage.NONE:
                whole.resolve(NotNow("the metastore has it as a member still"))
            else:
                by = successor(number, known(self._metastore).nodes)
                if by and (self.judge is None or self.judge().still_has(number)):
                    # It forgets nothing, and may be the one that a majority lacks.
                    whole.resolve(NotNow("partitions have it as a member still"))
                else:
                    whole.resolve(Left(by))

        # It leaves for good by this word: one who led until a moment ago, and does not know yet of
        # a node that came since, must not say it.
        self._metastore.read(lambda _: None).then(certain)
        return whole

    def leave(self, number: int) -> Future[bool]:
        """Take a node out of the cluster, for good; False if another write was faster."""
        try:
            now = known(self._metastore)
        except LowmarkError as error:
            return Future.failed(error)
        if now.nodes.keys() == {number}:
            return Future.failed(
                ClusterRefused(
                    "the last node can't leave the cluster",
                    hint="Stop it, and keep or delete its data directory.",
                )
            )
        up = {node.number for node in now.topology.nodes} - {number}
        left = {other: node for other, node in now.nodes.items() if other != number}
        wanted = 0 if now.settings is None else now.settings.members
        voters = voters_of(self._metastore.group.members().incoming, left, up, wanted)
        if 2 * len(up.intersection(voters)) <= len(voters):
            names = {other: node.name for other, node in now.nodes.items()}
            some = ", ".join(sorted(names[one] for one in voters))
            sound = ", ".join(sorted(names[one] for one in up.intersection(voters))) or "none"
            return Future.failed(
                ClusterRefused(
                    f"node {names.get(number, number)} can't leave now: the others have no majority"
                    " without it",
                    detail=f"Of the nodes {some}, these are up: {sound}.",
                    hint="Start the nodes that are down, or have those leave first.",
                )
            )
        # The topology changes in any case: two that leave at once must see each other.
        operations: list[Operation] = [
            Remove(node_key(number)),
            Remove(access_key(number)),  # what it shows to other nodes lets it in no more
            Put(TOPOLOGY_KEY, encode(now.topology.without(number))),
        ]
        return self._metastore.invoke_if(
            Revision(TOPOLOGY_KEY, Compare.EQ, now.topology_revision), operations
        )

    # -- who is gone ----------------------------------------------------------------------------

    def _drop_gone(self) -> None:
        """Take nodes that do not renew their lease out of the topology, one at a time.

        By this node's own time that only grows, from when it saw the lease as it is now: a clock
        that jumps makes no node gone, and one that stands still keeps none.
        """
        if self._closed or self._writing:
            return
        now = self.look()
        if now is None:
            return
        up = {node.number for node in now.topology.nodes}
        self._seen = {number: seen for number, seen in self._seen.items() if number in up}
        for node in now.topology.nodes:
            if node.number != self._metastore.node and self._is_gone(node.number):
                self._drop(node, now)
                return

    def _is_gone(self, number: int) -> bool:
        lease = self._metastore.state.leases.get(lease_of(number))
        until, now_ms = 0 if lease is None else lease.expires_at, self._metastore.now_ms()
        last, since_ms = self._seen.get(number, (until, now_ms))
        if last and not until:
            return True  # it gave its lease back
        if last != until:
            since_ms = now_ms
        self._seen[number] = until, since_ms
        return now_ms - since_ms >= self._metastore.config.lease_ms

    def _drop(self, node: NodeInfo, now: Known) -> None:
        self._writing = True
        name, (until, _) = lease_of(node.number), self._seen.get(node.number, (0, 0))
        if self._metastore.state.leases.get(name) is None:
            until = 0

        def done(future: Future[bool]) -> None:
            self._writing = False
            if future.error is None and future.result():
                logger.warning("a node is gone", extra={"node": node.name})
                # What it held is not needed any more, whatever the clocks say.
                self._metastore.release_lease(name, holder=node.number)
                self._drop_gone()

        self._metastore.invoke_if(
            all_of(
                Revision(TOPOLOGY_KEY, Compare.EQ, now.topology_revision),
                LeaseEnds(name, until),
            ),
            [Put(TOPOLOGY_KEY, encode(now.topology.without(node.number)))],
        ).then(done)

    @property
    def stage(self) -> Stage:
        """How far the change of members is that is under way, if any."""
        return self._metastore.group.stage


def voters_of(
    voters: Iterable[int], nodes: Mapping[int, NodeInfo], up: AbstractSet[int], wanted: int
) -> list[int]:
    """The nodes that should vote: those that do, and belong; and others that are up, if too few."""
    found = [number for number in sorted(voters) if number in nodes]
    for number in nodes:  # in the order in which they came
        if len(found) < wanted and number in up and number not in found:
            found.append(number)
    return found


def _check_welcome(
    asked: JoinAsk,
    settings: ClusterSettings,
    now: Known,
    is_elsewhere: Callable[[NodeInfo], bool],
) -> None:
    node = asked.node
    if asked.cluster and asked.cluster != settings.id:
        raise ClusterRefused(
            f"node {node.name} belongs to another cluster",
            detail=f"It belongs to {asked.cluster}, this is {settings.id}.",
            hint="Give it an empty data directory, or let it join its own cluster.",
        )
    for other in now.nodes.values():
        if other.number == node.number:
            moved = other.address != node.address and now.topology.find(other.number) is not None
            if not asked.cluster and (other.name != node.name or moved):
                raise ClusterRefused(
                    f"number {node.number} belongs to node {other.name}, at {other.address}",
                    detail="A data directory was copied before its node joined.",
                    hint="Give each node an empty data directory of its own.",
                )
            continue
        if other.name == node.name:
            raise ClusterRefused(
                f"there is a node {node.name} already",
                detail=f"It is node {other.number}, at {other.address}.",
                hint="Choose another name; or, if that node is lost with its disk, have a directory"
                f" take its place: `lowmark node replace {other.name} --data DIR`.",
            )
        is_up = now.topology.find(other.number) is not None
        if other.address == node.address and is_up and not is_elsewhere(other):
            raise ClusterRefused(
                f"address {node.address} belongs to node {other.name}",
                hint="Choose another address, or stop that node.",
            )


def _turned(error: Exception) -> Turned:
    if isinstance(error, LowmarkError):
        return Turned(error.message, error.detail, error.hint)
    return Turned(f"a request to join that can't be read: {error}", "", "")


def reply_of(future: Future[JoinReply]) -> JoinReply:
    """An error as an answer."""
    return future.result() if future.error is None else _turned(future.error)


def _pass_on(answer: Future[JoinReply], to: Future[JoinReply]) -> None:
    if answer.error is not None:
        to.reject(answer.error)
    else:
        to.resolve(answer.result())
