"""This node's place in the cluster: it founds one, joins one, or comes back to its own.

Each way has steps, and may be interrupted after any of them:

    found   1. who this node is, and that it founds a cluster, is written and synced
            2. the metastore's group is made with this node as its only member
            3. its first command settles the cluster, this node and the topology; a crash before
               that is made good at the next start
    join    1. a node of the cluster is asked; its leader puts this node into the topology
            2. the cluster's id and the addresses of all nodes are written and synced
            3. a copy of the metastore is made that waits for the leader, who makes it a member
    return  the copy is opened; if this node is at another address, or was taken for gone, it asks
            to be let in again: the leader, or all nodes that it knows (see `whereabouts`)
    renew   1. the metastore was reset on another node, whose leader calls this copy: it stops; or
               this copy is damaged, and the others do without it (`reseeding`). That it is to be
               thrown away is written and synced; the process ends
            2. the next start throws it away and makes one that waits for the leader; what is built
               on the metastore waits until that copy has all that the leader had. A crash at any
               time is made good at the next start: the note says which of both was under way
    replace as join, by a directory that was prepared for it; the join takes the lost node out of
            the cluster whose place it is for: see `replacing`
    leave   1. a conditional write takes this node out of the cluster; its lease is given back
            2. the leader is asked until no majority needs this node any more
            3. that it has left is written; a crash before is made good at the next start
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, assert_never

import msgspec

from lowmark.errors import LowmarkError, Rejected, Unavailable
from lowmark.faces import deferred
from lowmark.group import CopyOutdated, Future, Groups
from lowmark.group.rejoin import lost_copy
from lowmark.log import Log
from lowmark.metastore.commands import Operation
from lowmark.metastore.coordinator import (
    JOIN_SERVICE,
    Coordinator,
    Elsewhere,
    JoinAsk,
    JoinReply,
    Left,
    NotNow,
    Turned,
    Welcome,
    known,
    name_of,
    reply_of,
)
from lowmark.metastore.errors import (
    ClusterRefused,
    LeaseOver,
    MetastoreDamagedHere,
    MetastoreOutdated,
    MetastoreRenewed,
    NotInCluster,
    RevisionCompacted,
)
from lowmark.metastore.identity import (
    CATCHING_UP,
    DUE,
    GROUP,
    Identity,
    MetastoreDamaged,
    check_metastore,
    load_identity,
    save_identity,
)
from lowmark.metastore.nodes import (
    CLUSTER_KEY,
    NODE_PREFIX,
    TOPOLOGY_KEY,
    ClusterSettings,
    NodeInfo,
    Topology,
    check_attributes,
    check_name,
    check_node,
    lease_of,
)
from lowmark.metastore.state import LeaseAnswer
from lowmark.metastore.store import Metastore, MetastoreConfig
from lowmark.metastore.watches import Event
from lowmark.runtime import Disk, PeerRefused, Runtime

if TYPE_CHECKING:
    from lowmark.metastore.replacing import Judge, has_left, joins_nothing
    from lowmark.metastore.reseeding import Reseeding
else:
    (Reseeding,) = deferred("lowmark.metastore.reseeding", "Reseeding")
    has_left, joins_nothing = deferred("lowmark.metastore.replacing", "has_left", "joins_nothing")

logger = logging.getLogger(__name__)

# A node's own lease: it says that the node is up, and which revisions are still needed here.
#
# It is renewed three times before it would run out. One that has run out can't be renewed: the node
# takes a new one, and whatever it held meanwhile may be gone (watches are told so by themselves).


class Presence:
    """Keeps this node's lease."""

    def __init__(self, runtime: Runtime, metastore: Metastore) -> None:
        self._loop = runtime.loop
        self._metastore = metastore
        self._name = lease_of(metastore.node)
        self._holder = 0
        self._ttl_ms = metastore.config.lease_ms
        self._asking = False
        self._asked_last: Future[LeaseAnswer] | None = None
        self._waiting: list[Future[LeaseAnswer]] = []
        self._first_left = 0
        """Revisions before this one are gone, also for watchers at this node that wait for them."""
        self._closed = True
        self.expires_at = 0
        """Until when this node may count on its lease."""
        self.error: LowmarkError | None = None
        """Why it could not be taken or renewed the last time."""

    def start(self) -> None:
        """Be there from now on."""
        self._closed = False
        self._metastore.renew_holds = self.renew
        self._every()

    def stop(self, *, release: bool) -> Future[None]:
        """Renew it no more; give it back, if there is time for that."""
        self._closed = True
        done: Future[None] = Future()
        if not release or not self._holder:
            done.resolve(None)
            return done

        def give_back(_: object) -> None:
            released = self._metastore.release_lease(self._name, holder=self._holder)
            released.then(lambda _: done.resolve(None))

        if self._asked_last is None or self._asked_last.done:
            give_back(None)
        else:  # else it could be taken after it was given back
            self._asked_last.then(give_back)
        return done

    def renew(self) -> Future[LeaseAnswer]:
        """Renew it now, with what is needed now."""
        future: Future[LeaseAnswer] = Future()
        self._waiting.append(future)
        if not self._asking:
            self._ask()
        return future

    def _every(self) -> None:
        if self._closed:
            return
        self._loop.call_later(self._ttl_ms / 3, self._every)
        if not self._asking:
            self._ask()

    def _ask(self) -> None:
        if self._closed:
            self._answer(LeaseOver(self._name))
            return
        self._asking = True
        waiting, self._waiting = self._waiting, []
        hold = max(self._metastore.needed_from(), self._first_left)
        if self._holder:
            asked = self._metastore.renew_lease(self._name, holder=self._holder, hold=hold)
        else:
            # The same for every process of this node: there is never more than one, and what the
            # one before it held is not needed any more.
            self._holder = self._metastore.node
            asked = self._metastore.take_lease(
                self._name,
                holder=self._holder,
                ttl_ms=self._ttl_ms,
                hold=hold,
                why="this node is up, and some of its watchers and readers are there",
            )
        self._asked_last = asked
        asked.then(lambda future: self._asked(waiting, future))

    def _asked(self, waiting: list[Future[LeaseAnswer]], future: Future[LeaseAnswer]) -> None:
        self._asking = False
        self.error = error = future.error
        if isinstance(error, LeaseOver) and not self._closed:
            self._holder = 0
        if isinstance(error, RevisionCompacted):
            # This node was away, or is behind. It is up all the same; who waits here for what is
            # gone is told by itself.
            self._first_left = error.first_left
        if isinstance(error, LeaseOver | RevisionCompacted):
            self._waiting = waiting + self._waiting
            self._ask()
            return
        if error is None:
            self.expires_at = future.result().expires_at
        for one in waiting:
            if error is None:
                one.resolve(future.result())
            else:
                one.reject(error.again())
        if self._waiting and not self._asking:
            self._ask()

    def _answer(self, error: LowmarkError) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.reject(error.again())


MEMBERS_SERVICE = "metastore.members"
_RETRY_MS = 300
_AGAIN_MS_MAX = 6 * 3_600_000
_ASK_MS = 3_000
_HOPS_MAX = 3
"""How often one question is sent on to where the leader is said to be."""
_decode_reply = msgspec.msgpack.Decoder(JoinReply).decode


def identify(
    disk: Disk,
    *,
    draw: Callable[[int], int],
    name: str = "",
    rack: str | None = None,
    attributes: Mapping[str, str] | None = None,
) -> Identity:
    """Who the node of a data directory is; a new one draws its number.

    Rack and attributes are kept: without them, those of the last start count. A node that was
    started without its rack by mistake would count as one elsewhere, and its replicas would move.
    """
    identity = load_identity(disk)
    if name:
        check_name(name)
    if identity is not None and name and name != identity.name:
        raise Rejected(
            f"the node of this data directory is called {identity.name}",
            hint=f"Leave the name out, or use {identity.name}.",
        )
    found = identity
    if found is None:
        number = draw((1 << 53) - 1) + 1
        found = Identity(number=number, name=name or f"node-{number:014x}")
    if rack is not None:
        found = msgspec.structs.replace(found, rack=rack)
    if attributes is not None:
        found = msgspec.structs.replace(found, attributes=dict(attributes))
    if found != identity:
        check_attributes(found.name, rack=found.rack, attributes=found.attributes)
        save_identity(disk, found)
    return found


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
        self.metastore.when_stopped = self._stopped
        self.ready: Future[ClusterSettings] = Future()
        """When this node belongs to a cluster and knows its settings."""
        self._loop = runtime.loop
        self._disk = runtime.disk
        self._random = runtime.random
        self._log = log
        self._groups = groups
        self._presence = Presence(runtime, self.metastore)
        self._coordinator = Coordinator(runtime, groups, self.metastore)
        self._reseeding: Reseeding | None = None
        """Made when it is needed, here or by another node."""
        groups.calls.serve(MEMBERS_SERVICE, lambda *asked: self._reseeds().asked(*asked))
        found = load_identity(runtime.disk)
        if found is None or found.number != node.number:
            raise Rejected("a node is identified before it joins a cluster")
        self._identity = found
        groups.calls.name_of = self._name_of
        groups.clocks.start()
        self._on_topology: list[Callable[[Topology], None]] = []
        self._on_changed: list[Callable[[], None]] = []
        self._told = Topology()
        self._seeds: list[str] = []
        self._asked: set[str] = set()
        """The addresses at which this node has asked to be let in, and has no answer yet: one that
        does not answer must not keep the others from being asked."""
        self._turn = 0
        self._leaving: Future[None] | None = None
        self._closed = False
        self.founding_writes: tuple[Operation, ...] = ()
        """What a founder writes in the cluster's first revision besides its settings."""
        self._welcomed: Welcome | None = None
        """Where the leader said that nodes are, until this node's copy is as new as that."""
        self._reading = False
        """Whether the leader is asked how far a new copy has to come."""
        self.refused: ClusterRefused | None = None
        """Why this node was not let in again, the last time it asked."""
        self.renewed: MetastoreRenewed | None = None
        """Why this node must be started again: its copy of the metastore will be thrown away."""
        self._renewals = self._identity.renewals, self._identity.renewed_ms
        self.look_for_others: Callable[[], None] = lambda: None
        """Called again and again while no leader is known: for nodes by way of which this one may
        come back (`may_come_by`)."""
        self.stays: Callable[[int], None] = lambda _: None
        """Told that a node that `holding_back` let go stays all the same."""
        self.holding_back: Callable[[int], Future[LowmarkError | None]] = lambda _: Future.of(None)
        """Why a node can't leave now, if so: it has the only copy of something, say."""

    # -- starting -------------------------------------------------------------------------------

    def start(self, *, join: str = "", settings: ClusterSettings | None = None) -> None:
        """Come back to a cluster, join one by way of an address, or found one."""
        identity = self._identity
        if identity.left:
            raise has_left(self.node, by=identity.replaced_by)
        self._seeds += [join] if join else []
        self._coordinator.on_word = self._heard_at
        self._go_by(identity.peers)
        if identity.cluster:
            self._come_back()
        elif join:
            self._groups.transport.on_refused = self._refused_at
            self._join()
        elif identity.replaces:
            raise joins_nothing(self.node.name)
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
        self._coordinator.close()
        if self._reseeding is not None:
            self._reseeding.close()
        self.metastore.close()
        if self._leaving is not None and not self._leaving.done:
            self._leaving.reject(
                Unavailable(
                    f"node {self.node.name} is closing, and may not have left its cluster yet",
                    hint="Start it again and have it leave: leaving twice does no harm.",
                )
            )

    def _come_back(self) -> None:
        founding = self._identity.founding
        damage = self._log.damage(GROUP)
        has_copy = bool(damage) or GROUP in {log.name for log in self._log.groups() if log.meta}
        if self._identity.renewing and not (has_copy and self._identity.renewing == CATCHING_UP):
            self._renew(has_copy=has_copy)
            return
        if damage and self._identity.peers and not self._has_record():
            # What this copy was can't be read, so it can't be opened, only given up.
            self._reseeds().begin()
            return
        # Before anything is made: a copy that is lost or damaged must not be replaced by a new one.
        check_metastore(self._disk, self._log, self._identity)
        if has_copy:
            self.metastore.open()
        elif founding is not None:
            self.metastore.found()
        else:
            self.metastore.follow()
        if founding is not None:
            self._settle(founding)
        self._go()

    def _has_record(self) -> bool:
        """Whether this node's copy can be opened, damaged or not."""
        return any(log.name == GROUP and log.meta for log in self._log.groups())

    def _renew(self, *, has_copy: bool) -> None:
        """Get a copy of the metastore in place of one that was given up."""
        if not has_copy:
            # A crash came after that copy was thrown away; a note of the group says which it was.
            if lost_copy(self._disk, GROUP) is None:
                check_metastore(self._disk, self._log, self._identity)
            self.metastore.follow()
            self._renewed()
            return
        logger.warning("the copy of the metastore is made anew")
        ask = [int(number) for number in self._identity.peers]

        def made(future: Future[None]) -> None:
            if self._closed:
                return
            if future.error is not None:
                self.ready.reject(future.error)
            else:
                self._renewed()

        self.metastore.rebuild(ask=ask).then(made)

    def _renewed(self) -> None:
        self._save(renewing=CATCHING_UP)
        self._go()

    def _is_whole(self) -> bool:
        """Whether this copy has all that it must have before anything is built on it.

        A copy in place of one that was given up begins with nothing, or with what was long ago. To
        the layers above, which have copies of partitions here, that would look as if they were
        given up. So they wait until it has all that the leader had when it was asked.
        """
        if not self._identity.renewing:
            return True
        if not self._reading and self.metastore.leadership.node:
            self._reading = True
            self.metastore.read(lambda _: None).then(self._caught_up)
        return False

    def _caught_up(self, future: Future[None]) -> None:
        self._reading = False
        if future.error is None and not self._closed and self.renewed is None:
            with contextlib.suppress(LowmarkError):  # it is tried again by and by
                self._save(renewing="")
                self._learn()

    def _settle(self, settings: ClusterSettings) -> None:
        """Have the first command written, if it is not yet."""

        def settle() -> None:
            if self._closed or not self.metastore.coordinates:
                return
            if self.metastore.state.find(CLUSTER_KEY) is None:
                self._coordinator.found(settings, self.node, self.founding_writes).then(settled)

        def settled(future: Future[bool]) -> None:
            if future.error is not None:
                self._loop.call_later(_RETRY_MS, settle)

        self.metastore.on_elected(lambda _: settle())

    def _stopped(self, error: LowmarkError) -> None:
        """Damage was found only when it was read. Without other copies, waiting is in vain."""
        if self._closed:
            return
        if isinstance(error, CopyOutdated):
            self._give_up(MetastoreOutdated(self.node.name, why=error))
        elif not self._identity.peers:
            told = self.damage or error.again()
            self._loop.call_soon(lambda: self.ready.reject(told))
        elif self._log.group(GROUP).damaged:
            self._reseeds().begin()

    def _reseeds(self) -> Reseeding:
        if self._reseeding is None:
            self._reseeding = Reseeding(
                self._loop,
                self._groups,
                self.metastore,
                nodes=lambda: map(int, self._identity.peers),
                can_go=self._can_do_without,
                service=MEMBERS_SERVICE,
            )
        return self._reseeding

    def _can_do_without(self) -> None:
        """The others have all that this damaged copy of the metastore ever had a part in.

        One that is damaged again and again waits longer each time: its disk is sick.
        """
        now_ms, known = self._loop.wall_ms(), self._identity
        since_ms = abs(now_ms - known.renewed_ms)
        times = known.renewals if since_ms < _AGAIN_MS_MAX else 0
        wait_ms = (
            min(self.config.renew_again_ms << min(times - 1, 20), _AGAIN_MS_MAX) if times else 0
        )
        if since_ms < wait_ms:
            self._loop.call_later(wait_ms - since_ms, self._reseeds().ask_again)
            return
        self._renewals = times + 1, now_ms
        self._give_up(MetastoreDamagedHere(self.node.name, why=self._log.damage(GROUP)))

    def _give_up(self, why: MetastoreRenewed) -> None:
        self._loop.call_soon(lambda: self._note_renewal(why))

    def _note_renewal(self, why: MetastoreRenewed) -> None:
        """This copy must never be used again, also not after a crash."""
        if self._closed:
            return
        try:
            times, at_ms = self._renewals
            self._save(renewing=DUE, renewals=times, renewed_ms=at_ms)
        except LowmarkError as failed:
            logger.warning("a renewal was not noted", extra={"reason": failed.message})
            self._loop.call_later(_RETRY_MS, lambda: self._note_renewal(why))
            return
        self.renewed = why
        logger.warning("this node must be started again", extra={"reason": self.renewed.message})
        self.ready.reject(self.renewed)

    # -- joining --------------------------------------------------------------------------------

    def _refused_at(self, address: str, why: PeerRefused) -> None:
        """The node to join by and this one don't believe each other; that does not pass."""
        if address in self._seeds and not self._identity.cluster and not self.ready.done:
            self.ready.reject(
                ClusterRefused(
                    f"this node and the one at {address} don't believe each other: {why.reason}",
                    hint=why.hint,
                )
            )

    def _join(self) -> None:
        self._ask(self._seeds[0], self._joined)

    def _joined(self, reply: JoinReply) -> None:
        match reply:
            case Welcome(cluster=cluster):
                self._save(cluster=cluster.id, peers=self._welcomed_by(reply))
                self.metastore.follow()
                self._go()
            case Elsewhere() | NotNow():
                logger.info("not let in yet", extra={"seed": self._seeds[0], "reason": repr(reply)})
                self._loop.call_later(_RETRY_MS, lambda: None if self._closed else self._join())
            case Turned(message=message, detail=detail, hint=hint):
                self.ready.reject(ClusterRefused(message, detail=detail, hint=hint))
            case Left(by=by):
                self.ready.reject(has_left(self.node, by=by))
            case _:
                assert_never(reply)

    def _welcomed_by(self, welcome: Welcome) -> dict[str, str]:
        """Take the leader's word for where others are; gives that."""
        self._welcomed = welcome
        peers = self._others(welcome)
        self._go_by(peers)
        return peers

    def _newer_than_here(self) -> dict[str, str]:
        """Where the leader said that others are, if this node's copy is older than that.

        A copy that is new begins with what was long ago, when nodes were elsewhere. Its node would
        answer the leader there, and hear nothing more.
        """
        said = self._welcomed
        if said is None or self.metastore.state.latest >= said.revision:
            self._welcomed = None
            return {}
        return self._others(said)

    def _others(self, welcome: Welcome) -> dict[str, str]:
        nodes = welcome.nodes
        return {str(n.number): n.address for n in nodes if n.number != self.node.number}

    def _ask(self, address: str, answered: Callable[[JoinReply], None], hops: int = 0) -> None:
        """Ask to be let in, at an address and where it says the leader is."""
        question = msgspec.msgpack.encode(JoinAsk(self.node, self._identity.cluster))

        def done(future: Future[bytes]) -> None:
            if self._closed:
                return
            reply = _read_reply(future)
            if isinstance(reply, Elsewhere) and hops < _HOPS_MAX:
                self._ask(reply.address, answered, hops + 1)
            else:
                answered(reply)

        asked = self._groups.calls.ask_at(address, JOIN_SERVICE, question, timeout_ms=_ASK_MS)
        asked.then(done)

    # -- being there ----------------------------------------------------------------------------

    def _go(self) -> None:
        self.metastore.keep_watching(
            prefix=NODE_PREFIX,
            keys=[CLUSTER_KEY, TOPOLOGY_KEY],
            start=self._learn,
            on_event=self._changed,
            name="nodes and topology",
        )
        self._presence.start()
        self._coordinator.start()
        # A leader that has moved says so first: it lets no other node in before.
        self.metastore.on_elected(lambda _: None if self._closed else self._say_where())
        self._every()

    def _changed(self, event: Event) -> None:
        del event
        self._learn()
        self._tell_changed()

    def _tell_changed(self) -> None:
        for callback in self._on_changed:
            callback()

    def _learn(self) -> None:
        """Take note of who is where and who is up, from what this node knows."""
        now = self._coordinator.look()
        if now is None:
            return
        peers = {
            str(node.number): node.address
            for node in now.by_presence()
            if node.number != self.node.number
        } | self._newer_than_here()
        words = self._coordinator.words
        words.settle(now.nodes, led=self.metastore.leadership.node != 0)
        peers |= {str(number): address for number, address in words.to_go_by().items()}
        self._go_by(peers)
        # A node that has left is a member until its place is taken, and a majority may need it.
        addresses = self._groups.transport.addresses
        for member in sorted(self.metastore.group.members().everybody - {self.node.number}):
            if member in addresses:
                peers.setdefault(str(member), addresses[member])
        self._groups.transport.forget_refused(but=set(peers.values()))
        changes: dict[str, object] = {}
        if peers and list(peers.items()) != list(self._identity.peers.items()):
            changes["peers"] = peers
        if now.settings is not None and self._identity.founding is not None:
            # Done. If the copy were ever lost, the cluster must not be founded once more.
            changes["founding"] = None
        if changes:
            try:
                self._save(**changes)
            except LowmarkError as error:  # it is tried again by and by
                logger.warning("addresses were not noted", extra={"reason": error.message})
        if now.settings is not None and self._is_whole():
            self.metastore.clock.allow_skew(now.settings.clock_max_skew_ms)
            self.ready.resolve(now.settings)
        if now.topology.version > self._told.version:
            self._told = now.topology
            for callback in self._on_topology:
                callback(now.topology)

    def _go_by(self, peers: Mapping[str, str]) -> None:
        """Send to others at these addresses; of two at one address, to the last."""
        own = self._groups.transport.address
        for number, address in peers.items():
            if address != own:  # that node has moved, too: it was there before this one
                self._groups.transport.learn(int(number), address)

    def _every(self) -> None:
        """If this node was taken for gone, or has moved, say so until that is known."""
        if self._closed:
            return
        self._loop.call_later(self.config.lease_ms / 3, self._every)
        self._learn()
        self._tell_changed()
        self._say_where()

    def _say_where(self) -> None:
        # Also one that is leaving: it may be out already, and have crashed before it knew.
        if not self._identity.left and not self._is_in():
            self._ask_again()

    def _is_in(self) -> bool:
        """Whether the leader can be heard and asked, and all nodes know where this node is.

        A leader that does not know where this node is can't be heard here; and one that has moved
        is not where this node asks it.
        """
        if not self.metastore.leadership.node or self._presence.error is not None:
            return False
        now = self._coordinator.look()
        return now is not None and now.topology.find(self.node.number) == self.node

    def _ask_again(self) -> None:
        """Ask the leader; without one, all that this node knows, so that they know where it is."""
        self.refused = None
        own = self._groups.transport.address
        if self.metastore.coordinates:
            if own not in self._asked:
                self._asked.add(own)
                asked = self._coordinator.let_in(JoinAsk(self.node, self._identity.cluster))
                asked.then(lambda future: self._let_in(own, reply_of(future)))
            return
        leader = self._groups.transport.addresses.get(self.metastore.leadership.node)
        known_at = [] if leader is None else [leader]
        if leader is None or self._turn % 2:  # who was the leader may be so no more
            known_at += [*self._identity.peers.values(), *self._seeds]
            self.look_for_others()
        self._turn += 1
        self._tell(known_at)

    def _tell(self, addresses: Iterable[str]) -> None:
        """Say to the nodes at these addresses where this one is, and ask to be let in."""
        own = self._groups.transport.address
        for address in dict.fromkeys(addresses):
            if address != own and address not in self._asked:
                self._asked.add(address)
                self._ask(address, partial(self._let_in, address))

    def _heard_at(self, address: str) -> None:
        """A member says that it has moved there, and no leader is known: it may have lost sight of
        this node as well.
        """
        if not self._closed:
            self._learn()
            self._tell([address])

    def may_come_by(self, addresses: Iterable[str]) -> None:
        """There may be nodes of this cluster at these addresses."""
        new = [one for one in addresses if one not in self._seeds]
        self._seeds += new
        if new and not self._closed and not self._is_in():
            self._tell(new)

    def _let_in(self, asked: str, reply: JoinReply) -> None:
        self._asked.discard(asked)
        match reply:
            case Welcome():
                self._welcomed_by(reply)
            case Elsewhere() | NotNow():
                logger.info("not let in again yet", extra={"reason": repr(reply)})
            case Turned(message=message, detail=detail, hint=hint):
                self.refused = ClusterRefused(message, detail=detail, hint=hint)
                logger.warning("not let in again", extra={"reason": message})
            case Left(by=by):
                self._has_left(by)
            case _:
                assert_never(reply)

    def _save(self, **changes: object) -> None:
        changed = msgspec.structs.replace(self._identity, **changes)
        save_identity(self._disk, changed)
        self._identity = changed

    # -- asking ---------------------------------------------------------------------------------

    @property
    def settings(self) -> ClusterSettings:
        """What was settled when the cluster was founded."""
        if not self.ready.done:
            raise NotInCluster
        return self.ready.result()

    @property
    def damage(self) -> MetastoreDamaged | None:
        """Why the metastore is gone for good: this copy is damaged, and is the only one."""
        stopped = self._log.group(GROUP).quarantined
        if stopped is None or self._identity.peers:
            return None
        return MetastoreDamaged(self._disk, stopped, alone=True)

    @property
    def topology(self) -> Topology:
        """The nodes that are up, as far as this node knows."""
        return self._told

    @property
    def problem(self) -> str:
        """What is wrong with this node's place among the others, in words; empty if nothing is."""
        if self.renewed is not None:
            return self.renewed.message
        if self.refused is not None:
            return f"it was not let in again: {self.refused.message}"
        if self._reseeding is not None and self._reseeding.asking:
            return (
                f"the copy of the metastore here is damaged: {self._log.damage(GROUP)}; it is made"
                " anew when another node leads the metastore with a majority"
            )
        older = [
            f"the directory of node {self._name_of(node)} is older than what this node has seen of"
            f" it (start {start}): it has no vote until its copies are made good"
            for node, start in self._groups.hellos.older_peers.items()
        ]
        here = [self._groups.older_words] if self._groups.older_words else []
        return "; ".join([*here, *older, *self.metastore.problems])

    def _name_of(self, number: int) -> str:
        """As `name_of`, without a look into the log for nodes that are up."""
        up = self._told.find(number)
        return name_of(self.metastore, number) if up is None else up.name

    def nodes(self) -> list[NodeInfo]:
        """All that belong to the cluster, as far as this node knows, in the order they came."""
        return list(known(self.metastore).nodes.values())

    def judge_replacing(self, judge: Callable[[], Judge]) -> None:
        """Have this say whether a node may take the place of a lost one: until it is set, none
        may.
        """
        self._coordinator.judge = judge

    def on_changed(self, callback: Callable[[], None]) -> None:
        """Be told, every now and then and at once if nodes come or go, to look at them."""
        self._on_changed.append(callback)

    def on_topology(self, callback: Callable[[Topology], None]) -> None:
        """Be told who is up; now, and whenever that changes."""
        self._on_topology.append(callback)
        callback(self._told)

    def leave(self) -> Future[None]:
        """Take this node out of the cluster, for good. Stop it when the future resolves.

        Not before: until the metastore has other members, a majority may need this one.
        """
        if self._leaving is not None:
            return self._leaving
        whole = self._leaving = Future()

        def done(future: Future[bool]) -> None:
            if future.error is not None:
                self.stays(self.node.number)
                self._leaving = None
                whole.reject(future.error)
            elif not future.result():
                # What this node knows may be old: it may be out since an earlier attempt, and then
                # it hears nothing new.
                self._ask_again()
                self._loop.call_later(_RETRY_MS, attempt)
            else:
                self._presence.stop(release=True).then(lambda _: wait())

        def wait() -> None:
            if not whole.done and not self._closed:
                self._loop.call_later(_RETRY_MS, wait)
                self._ask_again()

        def attempt() -> None:
            if whole.done or self._closed:
                return
            if self.metastore.state.find(TOPOLOGY_KEY) is None:
                refuse(NotInCluster())
            elif not self.ready.done:  # what may hold it back is not there yet
                self._loop.call_later(_RETRY_MS, attempt)
            else:
                self.holding_back(self.node.number).then(asked)

        def asked(future: Future[LowmarkError | None]) -> None:
            refused = future.error or future.result()
            if refused is not None:
                refuse(refused)
            elif not self._closed:
                self._coordinator.leave(self.node.number).then(done)

        def refuse(error: LowmarkError) -> None:
            self._leaving = None
            whole.reject(error)

        attempt()
        return whole

    def remove(self, number: int) -> Future[None]:
        """Take another node out of the cluster, for good, whether it is up or not.

        Done when that is written. A node that is up learns of it by itself, and may be stopped.
        """
        whole: Future[None] = Future()

        def done(future: Future[bool]) -> None:
            if future.error is not None:
                self.stays(number)
                whole.reject(future.error)
            elif future.result():
                whole.resolve(None)
            elif not self._closed:
                self._loop.call_later(_RETRY_MS, attempt)

        def attempt() -> None:
            if number not in known(self.metastore).nodes:
                whole.resolve(None)
            else:
                self.holding_back(number).then(asked)

        def asked(future: Future[LowmarkError | None]) -> None:
            refused = future.error or future.result()
            if refused is not None:
                whole.reject(refused)
            elif not self._closed:
                self._coordinator.leave(number).then(done)

        attempt()
        return whole

    def _has_left(self, by: str = "") -> None:
        """The cluster needs this node no more; `by`: which node has its place."""
        if self._identity.left:
            return
        self._save(left=True, replaced_by=by)
        self.refused = has_left(self.node, by=by)
        said = {"node": self.node.name, "reason": self.refused.message}
        logger.warning("this node has left its cluster", extra=said)
        self._presence.stop(release=False)
        if self._leaving is not None:
            self._leaving.resolve(None)


def _read_reply(future: Future[bytes]) -> JoinReply:
    if future.error is not None:
        return NotNow(future.error.message)
    try:
        reply: JoinReply = _decode_reply(future.result())
    except msgspec.MsgspecError as error:
        return NotNow(f"the answer can't be read: {error}")
    return reply
