"""One running node: the packages below, built and started in order, closed in the reverse one.

    1. the data directory is locked, and the log recovered
    2. the node's identity is read or drawn
    3. groups, with the address for other nodes; the server, with the one for clients
    4. the cluster: founded, joined, or come back to
    5. catalog, tables, placement and upkeep, when the cluster is ready (`on_ready`)

Embedded, it is a node in the caller's process: it has no address and no server, so no node can join
it, and it can join none. A version of the catalog is then in force as soon as it is written: there
is no other node that could still be using the one before.

Read-only, it is embedded, takes no lock, and its disk keeps in memory whatever is written: it
replays the log as any start does, nothing of that stays, and it is ended without ceremony.

To stop: the server takes nothing new; leadership is handed over; the node gives its lease back, so
that no other node waits for it; watches are ended, with a word; the metastore takes a snapshot, so
that the directory says by itself all that the node knew; then everything is closed. A step that
takes too long is left out: what was acknowledged is safe without any of them.

A node whose copy of the metastore is damaged, or outdated, because an operator reset the metastore
on another node, hands leadership over and ends with `MetastoreRenewed`; `lowmark serve` starts it
again.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from lowmark.catalog import Catalogs
from lowmark.errors import LowmarkError, Rejected, invariant
from lowmark.faces import deferred
from lowmark.group import Future, Group, Groups
from lowmark.holds import Hold, Span
from lowmark.ledger.claim import prove
from lowmark.log import Log
from lowmark.metastore import (
    Cluster,
    ClusterRefused,
    Identity,
    NodeInfo,
    find_identity,
    identify,
    load_identity,
)
from lowmark.node.action import Action, reply
from lowmark.node.actions import CatalogActions, MetaActions
from lowmark.node.addresses import (
    DEFAULT_ENDPOINT,
    Guard,
    Place,
    addresses_of,
    is_loopback,
    peers_place,
    place_of,
)
from lowmark.node.bridge import Bridge
from lowmark.node.callers import NoCaller
from lowmark.node.catalog_rounds import CatalogRounds
from lowmark.node.client import JOIN_PATIENCE_S, Way, ask_peer
from lowmark.node.errors import ServerStuck
from lowmark.node.first_token import FirstToken, prepare
from lowmark.node.homes import homes_of
from lowmark.node.listener import Listener
from lowmark.node.log_compaction import LogCompaction
from lowmark.node.messages import GuardReply, Nothing, PeerAddress, ReplaceAsk
from lowmark.node.operating import Operating
from lowmark.node.owner import Awaited, Owner, awaited_after
from lowmark.node.pass_actions import PassActions
from lowmark.node.rebalance import Rebalance
from lowmark.node.rebuilds import Rebuilds
from lowmark.node.resets import Resets
from lowmark.node.rewriting import RewriteActions, Rewriting
from lowmark.node.seeds import Seeds
from lowmark.node.settings import Settings, chosen
from lowmark.node.showing import found_secret
from lowmark.node.status import StatusService, parts_here, watermark_status
from lowmark.node.strangers import Door
from lowmark.node.tls import NodeTls, ServedCertificates, authority_of, check_mode
from lowmark.node.token_actions import TokenActions
from lowmark.node.tokens import Tokens
from lowmark.placement import Adjust, MetastoreMembers, Placement
from lowmark.runtime import Disk, RealDisk, RealLoop, TlsFiles, host_and_port, real_runtime
from lowmark.runtime.certificates import check_files
from lowmark.runtime.disk import closing_command, open_to_others, what_others_may
from lowmark.runtime.network import TLS_SCHEME, speaks_tls
from lowmark.runtime.refusals import TlsNeeded, TlsNotSpoken
from lowmark.runtime.store import Store, place_of_location, without_credentials
from lowmark.table import AsOfHold, LowWatermark, Partition, Tables
from lowmark.tokens import TokenMissing
from lowmark.upkeep import Upkeep

if TYPE_CHECKING:
    from lowmark.metastore.replacing import joins_nothing
    from lowmark.node.replacements import replacement
else:
    (joins_nothing,) = deferred("lowmark.metastore.replacing", "joins_nothing")
    (replacement,) = deferred("lowmark.node.replacements", "replacement")

logger = logging.getLogger(__name__)

EMBEDDED = "127.0.0.1:1"
"""The address of a node that no other can reach. It has the form of one: a directory that was
opened in a process may be served later, and a node that joins it then reads this in its history.
"""
_NO_HURRY_MS = 1e11
HAND_OVER_MS = 1_000
GOODBYE_MS = 2_000
SNAPSHOT_MS = 1_000
REPLAY_BYTES = 1 << 20
"""A partition with more than this to read again takes a snapshot before it is closed."""
SERVER_MS = 5_000
_AGAIN_MS = 100
_SEAL_MS = 100
"""So long the last batch of the WAL may stand there without a word that it was synced."""
_GUESTS = "guests of the process before may come back to what they read"
_NOT_REWRITTEN: dict[str, Any] = {
    "compaction_interval_ms": 0,
    "compaction_dead_ratio": 1.0,
    "disk_low_bytes": 0,
    "disk_reserved_bytes": 0,
}
"""Limits of a log whose directory stays as it is: what would be rewritten, memory would hold."""
STATUS_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """How one node is started."""

    data: str
    """Its data directory; made if it is not there."""
    listen: str = DEFAULT_ENDPOINT
    """Where it listens for clients."""
    advertise: str = ""
    """Where clients are told to find it; else where it listens."""
    peers: str = ""
    """Where it listens for other nodes; else at the port after `listen`."""
    advertise_peers: str = ""
    """Where other nodes are told to find it; else where it listens for them, on the machine that
    `advertise` names."""
    insecure: bool = False
    """Whether strangers may come in: it is reached by other machines without TLS or tokens."""
    join: str = ""
    """The endpoint of any node of the cluster to join, or several with commas between; not needed
    to come back to it.

    Given all the same, it must be of that cluster.
    """
    name: str = ""
    rack: str | None = None
    """What fails together with it; None: as at its last start, which its directory keeps."""
    attributes: Mapping[str, str] | None = None
    """All of them; None: as at its last start."""
    tls: str = ""
    """A folder with ca.pem, cert.pem and key.pem, by which nodes prove to each other who they are;
    empty: they don't.
    """
    tls_mode: str = "require"
    """`allow`: it also speaks with nodes without TLS, while a cluster goes over to it."""
    embedded: bool = False
    """Whether it lives in the process of its only client: without address and server."""
    tokens: bool = False
    """Whether its callers must show a token."""
    read_only: bool = False
    """Whether its directory stays as it is: embedded, and all that it writes is kept in memory. It
    has no lock, and looks after nothing: what is there is there to be read.
    """

    @property
    def guard(self) -> Guard:
        """What keeps strangers out of it."""
        return Guard(tls=self.speaks_tls == "require", tokens=self.tokens, insecure=self.insecure)

    def places(self) -> tuple[Place, Place]:
        """Where it is for clients, and for other nodes; refused if strangers could come in."""
        guard = self.guard
        clients = place_of(self.listen, self.advertise, guard=guard)
        given = {"peers": self.peers, "advertise": self.advertise_peers}
        return clients, peers_place(clients, **given, guard=guard)

    def check(self) -> None:
        """Refuse addresses that can't be used, before anything is tried."""
        if not self.embedded:
            self.places()
            _ = self.join and addresses_of(self.join)
            check_mode(self.tls, self.tls_mode)

    def check_certificate(self) -> None:
        """Refuse one that other nodes would refuse, before anything is made."""
        if self.tls and not self.embedded:
            _, peers = self.places()
            check_files(TlsFiles.of_folder(self.tls), host_and_port(peers.advertised)[0])

    @property
    def speaks_tls(self) -> str:
        """How it speaks TLS with other nodes (`PeerAddress.tls`)."""
        return self.tls_mode if self.tls else ""


class Node:
    """Build it, `run` it on one thread; `stop` it from any."""

    def __init__(self, options: NodeOptions, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.stuck = False
        """Whether a client kept the server from closing: its thread ends only with the process."""
        self._stopping = False
        self._history: AsOfHold | None = None
        self._damage: LowmarkError | None = None
        """What was found in the only copy of the metastore when the node was about to be ready."""
        self.embedded = options.embedded
        self._read_only = options.read_only
        self.awaited: Awaited | None = None
        """Guests of the process that had the directory before, while they may come back: what they
        hold is not known here yet."""
        self.actions: dict[str, Action] = {}
        """What clients may ask by name: of its server, or of one that an embedded node is behind.
        """
        self.catalogs: Catalogs | None = None
        """The catalog; there as soon as the cluster is ready."""
        self.tables: Tables | None = None
        self.watermark: LowWatermark | None = None
        self.placement: Placement | None = None
        self.upkeep: Upkeep | None = None
        self.operating: Operating | None = None
        self._passes: PassActions | None = None
        """What operators may ask of it."""
        self.open_at: list[str] = []
        """The addresses at which strangers can come in; of servers of an embedded one, too."""
        options.check()
        options.check_certificate()
        # Asked before anything is opened: nothing has to be closed if no node answers.
        ways = _ways(options) if options.join else []
        join = _seed(options, ways, self.settings.ledger.location)
        with contextlib.ExitStack() as undo:
            runtime = real_runtime(
                options.data,
                tls=TlsFiles.of_folder(options.tls) if options.tls else None,
                tls_optional=options.tls_mode == "allow",
                alone=options.embedded,
                read_only=options.read_only,
            )
            assert isinstance(runtime.loop, RealLoop)
            self.runtime = runtime
            self.loop = runtime.loop
            undo.callback(self.loop.close)
            self.bridge = Bridge(self.loop)
            known = find_identity(runtime.disk)
            limits = self.settings.log
            if options.read_only:
                limits = replace(limits, **_NOT_REWRITTEN)
            self.log = Log.open(runtime, limits, note=self._first_note)
            undo.callback(self.log.close)
            if not options.read_only:
                _warn_of_others(runtime.disk)
            self._wait_for_guests()
            if options.embedded:
                _check_lone(options.data, known)
            identity = identify(
                runtime.disk,
                draw=runtime.random.randrange,
                name=options.name,
                rack=options.rack,
                attributes=options.attributes,
            )
            lone = Place(EMBEDDED, EMBEDDED)
            self.place, peers = (lone, lone) if options.embedded else options.places()
            """Where it is for clients."""
            self.groups = Groups(
                runtime,
                self.log,
                node=identity.number,
                address=peers.advertised,
                listen=peers.listens_at,
                config=self.settings.group,
                limits=self.settings.transport,
            )
            undo.callback(self.groups.close)
            transport = self.groups.transport
            self.peers_place = Place(transport.listens_at, transport.address)
            """Where it is for other nodes."""
            self.loop.around = self.groups.turn
            self.of_servers: list[ServedCertificates] = []
            """Of servers of this process that a program has started."""
            self.tls = NodeTls(options.tls, options.speaks_tls, runtime.network)
            self._server = None if options.embedded else self._listener(options)
            if self._server is not None:
                self.place = self.place.with_port(host_and_port(self._server.address)[1])
                self._server.actions = self.actions
                undo.callback(self._server.close)
                self.open_at += options.guard.open_at(self.place, self.peers_place)
            undo.callback(self.bridge.close)  # before the server, so that no call keeps it open
            self.info = NodeInfo(
                number=identity.number,
                name=identity.name,
                address=self.groups.transport.address,
                endpoint="" if self._server is None else self._said(self.place.advertised),
                rack=identity.rack,
                attributes=identity.attributes,
                replaces=identity.replaces,
            )
            self.cluster = Cluster(
                runtime, self.log, self.groups, node=self.info, config=self.settings.metastore
            )
            self.members = MetastoreMembers(runtime, self.cluster, config=self.settings.rebalance)
            self.status = StatusService(self.groups, self.cluster)
            self.status.problems = lambda: [self.members.problem, *self._of_tls()]
            self.tokens_of_callers = Tokens(self.loop, self.cluster, asked=options.tokens)
            self.first_token = FirstToken(self.loop, runtime.disk, self.cluster.metastore)
            self.status.open_at = lambda: tuple(self.open_at)
            self.status.endings = self._endings
            self.status.tokens = options.tokens
            self._offer()
            writes = None if options.embedded else prepare(runtime.disk, join=bool(join))
            self._founds = writes is not None
            self.cluster.founding_writes = writes or ()
            self.cluster.start(join=join, settings=self.settings.for_founding())
            self.tokens_of_callers.start()
            if self._server is not None and options.tokens:
                self._server.callers = self.tokens_of_callers
            known = load_identity(runtime.disk)
            self._belongs_to(known.cluster if known is not None else "")
            if options.join and known is not None and known.cluster:
                looks = Seeds(
                    ways,
                    cluster=known.cluster,
                    found=self._may_come_by,
                    ca=self.tls.ca,
                )
                self.cluster.look_for_others = looks.look
            undo.pop_all()

    def _listener(self, options: NodeOptions) -> Listener:
        """Where clients come in; if it asks for tokens, none does before it knows them."""
        if not options.tokens:
            return self.tls.listener(self.place.listens_at)
        return self.tls.listener(self.place.listens_at, callers=NoCaller(), door=Door())

    # -- guests of an owner before ----------------------------------------------------------------

    def _first_note(self, left: bytes) -> bytes:
        """What the lock file says of this process from the beginning."""
        self.awaited = awaited_after(left, self.loop.wall_ms())
        return self._note().note()

    def _note(self) -> Owner:
        return Owner.here(
            "",
            chosen(self.settings),
            awaited=self.awaited,
            serves=not self.embedded,
        )

    def _wait_for_guests(self) -> None:
        """Keep for guests of an owner before what they may hold (see `owner`)."""
        if self.awaited is None:
            return
        left_ms = max(0, self.awaited.until_ms - self.loop.wall_ms())
        self.log.note(self._note().note(), stays=True)
        self.loop.call_later(left_ms, lambda: self._await(None))
        logger.info("guests of the owner before are waited for", extra={"ms": left_ms})

    def _await(self, awaited: Awaited | None) -> None:
        """On the loop: these are left."""
        over = self.awaited is not None and awaited is None
        self.awaited = awaited
        if over:
            self._keep_history()

    def guest_is_back(self, session: int) -> None:
        """A guest of an owner before holds again what it held, or holds nothing. On any thread."""

        def back() -> None:
            if self.awaited is not None:
                self._await(self.awaited.without(session))

        if self.awaited is not None:
            self.bridge.call(back)

    def _guests_hold(self, partition: Partition) -> Iterator[Hold]:
        """What no cut may pass until the time of guests is over: everything."""
        del partition
        if self.awaited is not None:
            yield Hold(
                holder="guests",
                kind="reader",
                pins=Span(0),
                since_ms=self.loop.wall_ms(),
                why=_GUESTS,
                expires_at_ms=self.awaited.until_ms,
            )

    @property
    def _history_is_awaited(self) -> bool:
        return self.awaited is not None and self.awaited.history

    def _keep_history(self) -> None:
        """Leave the low watermark until the time of guests that hold history is over."""
        watermark = self.watermark
        if watermark is None:
            return
        history, self._history = self._history, None
        if history is not None:
            history()
        if not self._history_is_awaited:
            return

        def held(future: Future[AsOfHold]) -> None:
            if future.error is None:
                self._history = future.result()
                if not self._history_is_awaited:
                    self._keep_history()
            else:  # another node has moved it just now, or the metastore is busy
                self.loop.call_later(_AGAIN_MS, self._keep_history)

        watermark.hold(watermark.current, _GUESTS).then(held)

    @property
    def server(self) -> Listener:
        """Where clients come in; an embedded node has none."""
        invariant(self._server is not None, "a node that is embedded has no server")
        return self._server  # type: ignore[return-value]

    def _offer(self) -> None:
        """What can be asked of it before the cluster is ready."""
        self._peer = PeerAddress(address=self.info.address, tls=self.tls.mode)
        if not self.embedded:
            # Without the loop: a node that waits for others to start says so, too.
            self.actions["cluster.peer-address"] = reply(Nothing, lambda _: self._peer)
        self.actions |= {
            "node.guard": reply(Nothing, lambda _: GuardReply(open_at=tuple(self.open_at))),
            "status": reply(
                Nothing, lambda _: self.bridge.ask(self.status.status, timeout_s=STATUS_S)
            ),
            **MetaActions(self.cluster.metastore, self.bridge).actions(),
        }

    def _belongs_to(self, cluster: str) -> None:
        """Say so to clients."""
        self._peer = msgspec.structs.replace(self._peer, cluster=cluster)

    def _may_come_by(self, address: str) -> None:
        """On any thread: a node of the cluster is there."""
        self.bridge.call(lambda: self.cluster.may_come_by([address]))

    def says_ledgers(self, location: str) -> None:
        """Say to nodes that join where the ledgers of the cluster are; empty: it will be known."""
        self._peer = msgspec.structs.replace(self._peer, ledgers=location)

    # -- running --------------------------------------------------------------------------------

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop` is called, on the thread of the caller; then close everything."""

        def settled(_: object) -> None:
            if self.cluster.ready.error is None:
                self._belongs_to(self.cluster.settings.id)
                self._start_rooms_above()
                # The catalog has read what the metastore has of it: damage may show only then.
                self._damage = self.cluster.damage
                if self._damage is None:
                    self._be_ready(on_ready)
            self.loop.call_soon(lambda: None)  # for `over` to be looked at

        def over() -> bool:
            failed = self.cluster.ready.error is not None or self._damage is not None
            return self._stopping or failed or self.cluster.renewed is not None

        try:
            self._keep_sealing()
            self.cluster.ready.then(settled)
            self.loop.run_until(over, timeout_ms=_NO_HURRY_MS)
            if self.cluster.ready.error is not None:
                raise self.cluster.ready.error.again()
            if self._damage is not None:
                raise self._damage
            if self.cluster.renewed is not None:
                self._hand_over()
                raise self.cluster.renewed.again()
            self._say_goodbye()
        finally:
            self._close()

    def _be_ready(self, on_ready: Callable[[], None]) -> None:
        """A founder is ready when there is a token by which it can be used."""
        first = self.first_token
        if not self.embedded:
            first.propose()
        if not self._founds:
            on_ready()
        else:
            first.done.then(lambda _: None if self._stopping else on_ready())

    def stop(self) -> None:
        """Have `run` end, in good order. From any thread, and from a signal's handler."""

        def stop() -> None:
            self._stopping = True

        self.loop.call_from_thread(stop)

    def _start_rooms_above(self) -> None:
        """What needs a cluster is built and started here, on the loop, once."""
        settled, runtime, cluster = self.cluster.settings, self.runtime, self.cluster
        self.catalogs = catalogs = Catalogs(
            runtime,
            cluster.metastore,
            delay_ms=1 if self.embedded else settled.schema_sync_delay_ms,
            max_skew_ms=0 if self.embedded else settled.clock_max_skew_ms,
        )
        routes = None if self.embedded else self._routes
        self.tables = tables = Tables(self.groups, self.log, routes=routes)
        tables.holding_cuts.append(self._guests_hold)
        self.watermark = LowWatermark(
            runtime,
            cluster.metastore,
            node=self.info.number,
            availability_ms=settled.watermark_availability_ms,
            # A lone node's clock is the only one: there is none that it could be ahead of.
            max_skew_ms=0 if self.embedded else settled.clock_max_skew_ms,
        )
        self._keep_history()
        moving = replace(self.settings.rebalance, adjust=Adjust(settled.rebalance_adjust))
        self.placement = Placement(runtime, cluster, catalogs, tables, self.groups, config=moving)
        self.upkeep = Upkeep(
            runtime,
            self.groups,
            cluster,
            catalogs,
            tables,
            self.placement,
            self.watermark,
            interval_ms=settled.watermark_interval_ms,
        )
        self.placement.start()  # before the catalog: it gets every version
        catalogs.start()
        if not self._read_only:
            self.upkeep.start()
        actions = CatalogActions(catalogs, self.bridge)
        self.status.catalog = actions.status
        routes_of = self.placement.routes
        self.status.homes = lambda: homes_of(catalogs.latest, routes_of)
        clock = runtime.clock
        self.status.tables = lambda: parts_here(catalogs.latest, tables, now_ms=clock.wall_ms())
        watermark, rooms = self.watermark, (self.placement, self.upkeep)
        self.status.watermark = lambda: watermark_status(watermark.standing())
        self.status.problems = lambda: [
            self.members.problem,
            *(room.problem for room in rooms),
            self._no_data(),
            *self._of_tls(),
        ]
        rebalance = Rebalance(self.groups, cluster, catalogs, tables, self.placement)
        replaced = partial(
            replacement, cluster, self.placement, rebalance, tokens=self.status.tokens
        )
        rounds = CatalogRounds(cluster.metastore, self.upkeep.catalog)
        tokens = TokenActions(cluster.metastore, self.tokens_of_callers)
        passes = self._passes = PassActions(self.loop, cluster.metastore, self.tokens_of_callers)
        self.operating = Operating(
            self.bridge,
            rebalance.answers,
            {"node.replacement": (ReplaceAsk, replaced)},
            rounds.answers,
            tokens.answers,
            passes.answers,
        )
        resets = Resets(
            self.groups, cluster, catalogs, tables, self.placement, self.status, self.bridge
        )
        self.status.draining = self.placement.zones.draining
        self.status.failing = rebalance.failing
        compaction = LogCompaction(self.loop, self.groups, self.log, catalogs, self.bridge)
        self.actions |= actions.actions() | self.operating.actions() | resets.actions()
        rewriting = Rewriting(
            self.loop, self.groups, self.log, cluster, catalogs, tables, self.placement
        )
        rebuilds = Rebuilds(self.loop, cluster, catalogs, self.placement, self.bridge)
        self.actions |= compaction.actions() | rebuilds.actions()
        self.actions |= RewriteActions(rewriting, self.bridge).actions()
        if self._server is not None:
            self._server.starting = False

    def _no_data(self) -> str:
        """Why it gives no rows to clients, if it does not."""
        error = None if self._server is None else self._server.no_data
        return "" if error is None else f"it gives no rows to clients: {error.message}"

    def _of_tls(self) -> list[str]:
        """What is wrong with its certificates, or will be soon; and whom it does not believe."""
        served = [one for each in self.of_servers for one in each.problems()]
        return [*self.tls.problems(self.groups.transport.refused), *served]

    def _endings(self) -> tuple[str, ...]:
        """What of its certificates ends soon, or has ended."""
        served = [one for each in self.of_servers for one in each.endings()]
        return (*self.tls.endings(), *served)

    def _said(self, address: str) -> str:
        """As clients are told it: an address says whether its server speaks TLS."""
        return f"{TLS_SCHEME}{address}" if self.tls.mode == "require" else address

    @property
    def address_here(self) -> str:
        """Where clients on this machine reach it. With TLS, by the name of its certificate."""
        return self.info.endpoint if self.tls.mode == "require" else self.place.here

    def _routes(self, table: int, number: int) -> tuple[int, ...]:
        return () if self.placement is None else self.placement.routes(table, number)

    # -- stopping -------------------------------------------------------------------------------

    def _say_goodbye(self) -> None:
        if self._read_only:
            return  # nothing of it stays
        if self._server is not None:
            self._server.refuse()
        for room in (self.upkeep, self.placement):
            if room is not None:
                room.close()  # they follow the metastore, which is about to say goodbye
        self._hand_over()
        self._within(GOODBYE_MS, _done(self.cluster))
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        """Write down what is known to be committed: the log alone does not say that.

        Of partitions, if there is much that a start would have to read again.
        """
        if not self.cluster.ready.done:
            return  # there may not even be a copy yet
        metastore = self.cluster.metastore.group
        due = {
            group: group.applied
            for group in self.groups.groups()
            if group.stopped is None
            and group.log.row.snapshot_index < group.applied
            and (group is metastore or group.log.log_bytes >= REPLAY_BYTES)
        }
        for group in due:
            group.snapshot()
        saved = self.groups.save_commits()
        self._within(
            SNAPSHOT_MS,
            lambda: (
                saved.done
                and all(group.log.row.snapshot_index >= goal for group, goal in due.items())
            ),
        )
        self._within(SNAPSHOT_MS, self.log.seal)

    def _keep_sealing(self) -> None:
        self.log.seal()
        self.loop.call_later(_SEAL_MS, self._keep_sealing)

    def _hand_over(self) -> None:
        """Have other nodes lead what this node leads, if there are any."""
        led = [group for group in self.groups.groups() if _transfer(group)]
        self._within(HAND_OVER_MS, lambda: not any(group.leads for group in led))

    def _within(self, limit_ms: float, condition: Callable[[], bool]) -> None:
        # The loop looks at a condition after each callback: there is one at least this often.
        def look() -> None:
            if not looked:
                self.loop.call_later(20, look)

        looked: list[bool] = []
        look()
        with contextlib.suppress(TimeoutError):
            self.loop.run_until(condition, timeout_ms=limit_ms)
        looked.append(True)

    def _close(self) -> None:
        """Close everything that is open, whatever happened before."""
        with contextlib.ExitStack() as last:
            last.callback(self.loop.close)
            last.callback(self.log.close)
            last.callback(self.groups.close)
            last.callback(self._close_server)
            last.callback(self.bridge.close)
            # Ends the watches, so that their streams end; it is fine if that was done.
            last.callback(self.cluster.close)
            last.callback(self.members.close)
            last.callback(self.tokens_of_callers.close)
            last.callback(self.first_token.close)
            if self._passes is not None:
                last.callback(self._passes.close)
            for room in (self.catalogs, self.placement, self.upkeep):
                if room is not None:
                    last.callback(room.close)

    def _close_server(self) -> None:
        if self._server is None:
            return
        ended: list[bool] = []
        server = self._server

        def close() -> None:
            with contextlib.suppress(ServerStuck):
                server.close(within_s=SERVER_MS / 1_000)
                ended.append(True)

        closing = threading.Thread(target=close, name="lowmark-server", daemon=True)
        closing.start()
        self._within(SERVER_MS, lambda: not closing.is_alive())
        self.stuck = not ended
        if self.stuck:
            logger.warning("a client does not take what it was sent; it is left alone")


def _check_lone(data: str, known: Identity | None) -> None:
    """Refuse to run a node of a cluster where it can't reach the others."""
    if known is not None and known.peers:
        raise Rejected(
            f"{data} belongs to a node of a cluster with other nodes",
            detail="Inside a process it could not reach them.",
            hint="Start it with `lowmark serve`.",
        )


def _warn_of_others(disk: Disk) -> None:
    """Say if other users of the machine can look into the directory: it is theirs to close."""
    wide = open_to_others(disk, deep=False)
    if wide:
        where = disk.describe("").rstrip("/")
        logger.warning(
            "other users of this machine may %s %s; close it to them: %s",
            what_others_may(disk, wide),
            where,
            closing_command(where),
        )


def _check_location(wanted: str, found: str) -> None:
    """Refuse to join a cluster whose ledgers are elsewhere than this node was told."""
    if wanted and place_of_location(wanted) != place_of_location(found):
        raise Rejected(
            f"the ledgers of this cluster are at {without_credentials(found)}, not at {wanted}",
            detail="`ledger.location` is settled when a cluster is founded.",
            hint="Leave the setting out: a node that joins takes the cluster's.",
        )


def _ways(options: NodeOptions) -> list[Way]:
    """Where to ask for the nodes to join, and the token to show there.

    A node that requires TLS asks by TLS alone. While the cluster goes over to it, a node asks
    without TLS as well, since the other one may still speak none at its endpoint. But that TLS
    failed may be the doing of a stranger on the network, who would then read the token: it is shown
    there only if the operator has said that strangers may come in.
    """
    secret, found = found_secret(), list[Way]()
    for one in addresses_of(options.join):
        if speaks_tls(one) or not options.tls:
            found.append(Way(one, secret))
            continue
        found.append(Way(f"{TLS_SCHEME}{one}", secret))
        if options.tls_mode == "allow":
            found.append(Way(one, secret if options.insecure else None))
    return found


def _needs_tls(options: NodeOptions) -> ClusterRefused:
    return ClusterRefused(
        f"the node at {options.join} speaks with other nodes by TLS alone",
        hint="Give this node a folder with certificates of the same authority: --tls DIR.",
    )


def _lacks_tls(options: NodeOptions) -> ClusterRefused:
    return ClusterRefused(
        f"the node at {options.join} speaks no TLS at its endpoint",
        detail="This node requires TLS, and asks other nodes for nothing without it.",
        hint="Start the nodes of that cluster with --tls DIR first; or this one with --tls-mode"
        " allow, or without --tls.",
    )


def _shows_no_token(options: NodeOptions) -> ClusterRefused:
    return ClusterRefused(
        f"the node at {options.join} asks for a token, and speaks no TLS at its endpoint",
        detail="This node shows its token by TLS alone: without, others could read it on the way.",
        hint="Start the nodes of that cluster with --tls DIR first. If you trust the network"
        " between them, start this one with --insecure.",
    )


def _check_tls(options: NodeOptions, seed: PeerAddress) -> None:
    """Refuse to join a cluster whose nodes would hang up."""
    if seed.tls == "require" and not options.tls:
        raise _needs_tls(options)


def _check_reach(options: NodeOptions, seed: PeerAddress) -> None:
    """Refuse to join nodes of other machines by an address that means their own to them."""
    _, peers = options.places()
    if is_loopback(peers.advertised) and not is_loopback(seed.address):
        raise Rejected(
            f"the nodes of this cluster could not connect to this one at {peers.advertised}",
            detail=f"It is a loopback address, and the node at {options.join} tells other nodes to"
            f" connect to {seed.address}.",
            hint="Say at which address of this machine they find it: --listen, and --advertise if"
            " that is another one.",
        )


def _asked(options: NodeOptions, ways: Sequence[Way], patience_s: float) -> PeerAddress:
    """What a node says where this one is to join; refused if they can't speak with each other."""
    try:
        return ask_peer(ways, ca=authority_of(options.tls), patience_s=patience_s)
    except TlsNeeded as error:
        raise _needs_tls(options) from error
    except TlsNotSpoken as error:
        raise _lacks_tls(options) from error
    except TokenMissing as error:
        if ways[0].secret is None:
            raise
        raise _shows_no_token(options) from error


def _seed(options: NodeOptions, ways: Sequence[Way], location: str) -> str:
    """The address that a new node joins by, or an old one may come back by; empty without one.

    A directory that belongs to another cluster is refused: the user meant another one.
    """
    known: Identity | None = None
    with contextlib.suppress(LowmarkError):
        known = load_identity(RealDisk(options.data, create=False))
    if not options.join:
        if known is not None and known.replaces and not known.cluster:
            raise joins_nothing(known.name)
        return ""
    if known is None or not known.cluster:
        seed = _asked(options, ways, JOIN_PATIENCE_S)
        _check_tls(options, seed)
        _check_reach(options, seed)
        if seed.ledgers:
            _check_location(location, seed.ledgers)
            prove(Store(location or seed.ledgers), seed.cluster, token=secrets.token_hex(8))
        return seed.address
    if known.left:
        return ""  # it gets that error when it starts
    try:
        patience_s = 0.0 if known.peers else JOIN_PATIENCE_S
        seed = _asked(options, ways, patience_s)
        _check_reach(options, seed)
    except LowmarkError as error:
        # A token that was revoked meanwhile, or a certificate that has ended, keeps no node out
        # that knows the others: it proves itself to them.
        if not known.peers:
            raise
        logger.warning(
            "no node answers where this node was to join; it goes back to the nodes it knows",
            extra={"seed": options.join, "reason": error.message},
        )
        return ""
    if seed.cluster and seed.cluster != known.cluster:
        raise ClusterRefused(
            f"{options.data} belongs to another cluster than the node at {options.join}",
            detail=f"It belongs to {known.cluster}, and that node to {seed.cluster}.",
            hint="Leave --join out to go back to its own cluster, or give an empty data directory.",
        )
    if not seed.cluster:
        logger.warning(
            "where this node was to join, no cluster is known; it goes back to its own",
            extra={"seed": options.join},
        )
        return ""
    return seed.address


def _done(cluster: Cluster) -> Callable[[], bool]:
    closing = cluster.close(leave_topology=True)
    return lambda: closing.done


def _transfer(group: Group) -> bool:
    """Whether leadership was asked to go to another voter."""
    if not group.leads:
        return False
    peers = [peer for peer in group.status().peers if peer.active and not peer.learner]
    if not peers:
        return False
    with contextlib.suppress(LowmarkError):
        group.transfer(max(peers, key=lambda peer: (peer.match, -peer.node)).node)
        return True
    return False
