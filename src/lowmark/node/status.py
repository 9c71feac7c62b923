"""What `lowmark status` shows, put together from what each node says of itself.

A node knows its own copies, and as a leader how far the others are. The node that is asked asks all
that are up, waits for them a short while, and lays their answers side by side; a node that did not
answer is shown with the reason. What no node answered for is shown, too: each table of the catalog,
and each partition with the nodes that it is assigned to (`homes`).

A status is asked for when something is wrong, so nothing that is wrong keeps it from being shown:
what can't be read (a copy may be damaged) is a problem of the node that can't read it, and the rest
is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from lowmark.catalog import Catalog, TableId
from lowmark.errors import LowmarkError
from lowmark.formatting import counted, insecure_words, times_text
from lowmark.group import Future, Group, Groups, Off, Reply
from lowmark.metastore import GROUP, Cluster, ClusterSettings, Lease, NodeInfo, Topology
from lowmark.node.asking import ask_each
from lowmark.node.homes import Home, name_of, replica_warnings, worst_states
from lowmark.node.messages import (
    CatalogStatus,
    ClusterStatus,
    GroupRow,
    HolderRow,
    LeaseRow,
    MemberRow,
    MetastoreStatus,
    NodeRow,
    Status,
    TableRow,
    WarningRow,
    WatermarkStatus,
)
from lowmark.runtime import Buffer, millis_of
from lowmark.table import State, Tables
from lowmark.table.watermark import WatermarkStanding

# What `lowmark status` says of tables: how much is there, its holders, and what needs a look.
#
# A node says what it knows of the partitions that it leads, so that the parts of all nodes add up;
# the rows of a partition without a leader are in none of them.

PINNED_BYTES_MAX = 1 << 30
"""A cursor that keeps more than this is worth a look."""
WAITING_MS_MAX = 3_600_000
"""So is one that has let rows wait for longer than this,"""
HELD_MS_MAX = 600_000
"""and a reader that has held the low watermark for longer than this."""
TIMES_AHEAD_MS_MAX = 1_000
"""Times of a log may be this far ahead of all clocks without a word."""


class CursorPart(msgspec.Struct, frozen=True, array_like=True):
    """A cursor, as far as one node can tell."""

    name: str
    pinned_bytes: int
    waiting_ms: int
    """For how long it has not moved while rows were there for it; 0 if it has seen all."""
    overdue: bool


class TablePart(msgspec.Struct, frozen=True, array_like=True):
    """What one node leads of a table."""

    id: int
    name: str
    partitions: int
    """Of the whole table; 0 if it was dropped."""
    here: int
    rows: int
    bytes: int
    cursors: tuple[CursorPart, ...] = ()


def parts_here(catalog: Catalog, tables: Tables, *, now_ms: int) -> list[TablePart]:
    """What this node leads."""
    led = [one for one in tables.all() if one.group.leads]
    return parts_of(catalog, ((one.table, one.state) for one in led), now_ms=now_ms)


def parts_of(
    catalog: Catalog, states: Iterable[tuple[TableId, State]], *, now_ms: int
) -> list[TablePart]:
    """What is there, of every table of which there are partitions."""
    by_table: dict[TableId, list[State]] = {}
    for owner, state in states:
        by_table.setdefault(owner, []).append(state)
    found = []
    for table_id, mine in sorted(by_table.items()):
        table = catalog.table(table_id)
        found.append(
            TablePart(
                table_id,
                f"table {table_id} (dropped)" if table is None else name_of(catalog, table),
                0 if table is None else table.partitions,
                len(mine),
                sum(state.backlog.end - state.backlog.start for state in mine),
                sum(int(state.backlog.view.size.sum()) for state in mine),
                _summed(part for state in mine for part in _cursors(state, now_ms)),
            )
        )
    return found


def _cursors(state: State, now_ms: int) -> Iterable[CursorPart]:
    view = state.backlog.view
    for cursor in state.cursors.values():
        waiting_ms = 0
        if cursor.offset < view.end and view.count:
            first = int(view.time[min(view.batch_at(cursor.offset), view.count - 1)])
            waiting_ms = max(0, now_ms - max(millis_of(first), millis_of(cursor.moved)))
        holds = cursor.kind == "raw" and not cursor.overdue
        pinned = view.bytes_from(cursor.offset) if holds else 0
        yield CursorPart(cursor.name, pinned, waiting_ms, cursor.overdue)


def _summed(parts: Iterable[CursorPart]) -> tuple[CursorPart, ...]:
    found: dict[str, CursorPart] = {}
    for part in parts:
        other = found.get(part.name)
        found[part.name] = part if other is None else _both(other, part)
    return tuple(found[name] for name in sorted(found))


def _both(one: CursorPart, other: CursorPart) -> CursorPart:
    return CursorPart(
        one.name,
        one.pinned_bytes + other.pinned_bytes,
        max(one.waiting_ms, other.waiting_ms),
        one.overdue or other.overdue,
    )


# -- of all nodes -------------------------------------------------------------------------------


def _added(parts: Iterable[TablePart]) -> list[TablePart]:
    found: dict[int, TablePart] = {}
    for part in parts:
        other = found.get(part.id)
        if other is None:
            found[part.id] = part
            continue
        # Who has not heard of a drop yet still knows the name.
        known = part if part.partitions else other
        found[part.id] = TablePart(
            part.id,
            known.name,
            known.partitions,
            other.here + part.here,
            other.rows + part.rows,
            other.bytes + part.bytes,
            _summed([*other.cursors, *part.cursors]),
        )
    return sorted(found.values(), key=lambda part: (not part.partitions, part.name))


def table_rows(parts: Iterable[TablePart], groups: Iterable[GroupRow]) -> tuple[TableRow, ...]:
    """Tables as they are shown."""
    states = worst_states(groups)
    return tuple(
        TableRow(
            name=part.name,
            partitions=part.partitions,
            here=part.here,
            rows=part.rows,
            bytes=part.bytes,
            cursors=len(part.cursors),
            id=part.id,
            state=states.get(part.id, ""),
        )
        for part in _added(parts)
    )


def cursor_warning(*, pinned_bytes: int, waiting_ms: int, overdue: bool) -> tuple[str, str]:
    """Which kind of look a cursor needs, and why, in words; empty if it needs none."""
    if overdue:
        return "cursor-overdue", "is overdue: it holds nothing any more, and may miss rows"
    if pinned_bytes > PINNED_BYTES_MAX:
        return "cursor-pins", f"keeps {pinned_bytes / (1 << 30):,.1f} GiB of the backlog"
    if waiting_ms > WAITING_MS_MAX:
        return "cursor-waits", f"has let rows wait for {waiting_ms / 3_600_000:,.1f} hours"
    return "", ""


def warnings_of(
    parts: Iterable[TablePart], watermark: WatermarkStatus | None, *, now_ms: int
) -> tuple[WarningRow, ...]:
    """What needs a look."""
    found = []
    for part in _added(parts):
        for cursor in part.cursors:
            kind, why = cursor_warning(
                pinned_bytes=cursor.pinned_bytes,
                waiting_ms=cursor.waiting_ms,
                overdue=cursor.overdue,
            )
            if kind:
                text = f"cursor {cursor.name} of {part.name} {why}"
                found.append(WarningRow(kind=kind, table=part.name, holder=cursor.name, text=text))
    for holder in watermark.holders if watermark is not None else ():
        held_ms = now_ms - holder.since_ms
        if held_ms > HELD_MS_MAX:
            text = (
                f"{holder.holder} has held the low watermark for {held_ms / 60_000:,.0f} minutes:"
                f" {holder.why}"
            )
            found.append(WarningRow(kind="watermark-held", holder=holder.holder, text=text))
    return tuple(found)


def move_warnings(
    failing: Iterable[FailingMove], led: AbstractSet[str] = frozenset()
) -> Iterable[WarningRow]:
    """The moves that a person should look at. `led`: the groups that some node says it leads."""
    by_partition = {
        (move.table, move.partition): move for move in failing if move.without_leader not in led
    }
    for _, move in sorted(by_partition.items()):
        text = (
            f"partition {move.partition} of table {move.table} can't be moved to"
            f" {', '.join(move.nodes)}: {move.reason}. It has"
        )
        if move.attempts:
            text += f" failed {counted(move.attempts, 'time')} in {times_text(move.failing_ms)}"
        else:
            text += f" not got on for {times_text(move.failing_ms)}"
        text += ", and is tried again"
        text += "" if move.without_leader else "; its nodes of before serve"
        yield WarningRow(kind="move-failing", table=move.table, text=text)


def clock_warnings(
    off: Iterable[Off], names: Mapping[int, str], *, own: str, times_ahead_ms: int
) -> Iterable[WarningRow]:
    """The nodes whose clocks are wrong, and what came of one that was."""
    for one in off:
        name = names.get(one.node, str(one.node))
        where = "ahead of" if one.ahead_ms > 0 else "behind"
        text = f"the clock of node {name} is {times_text(abs(one.ahead_ms))} {where}"
        if one.of_most:
            text += " those of most nodes, and the node goes by theirs"
        else:
            text += f" that of node {own}, and two nodes can't tell which is right"
        text += ": look at `timedatectl` on that machine, and have it synchronised"
        yield WarningRow(kind="clock", holder=name, text=text)
    if times_ahead_ms > TIMES_AHEAD_MS_MAX:
        text = (
            f"times in a log are {times_text(times_ahead_ms)} ahead of the clocks: a clock was"
            " wrong when they were given. New rows get times right above them until the clocks have"
            " come there; nothing has to be done"
        )
        yield WarningRow(kind="times-ahead", text=text)


def watermark_status(standing: WatermarkStanding) -> WatermarkStatus:
    """The low watermark as it is shown."""
    return WatermarkStatus(
        time_ms=millis_of(standing.value),
        goal_ms=millis_of(standing.goal),
        holders=tuple(
            HolderRow(
                holder=hold.holder,
                time_ms=millis_of(hold.lowest() or 0),
                since_ms=hold.since_ms,
                why=hold.why,
            )
            for hold in standing.holds
        ),
    )


SERVICE = "node.status"


class Behind(msgspec.Struct, frozen=True, array_like=True):
    """How far a member is, as its leader sees it."""

    node: int
    entries: int
    bytes: int
    seconds_left: float | None


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """One node's copy of a group, as it says itself."""

    group: str
    node: int
    role: str
    term: int
    leader: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    committed: int
    applied: int
    stage: str
    problem: str
    behind: tuple[Behind, ...]


class FailingMove(msgspec.Struct, frozen=True, array_like=True):
    """The move of a partition that does not get on, as its leader says, or a node that has none."""

    table: str
    partition: int
    nodes: tuple[str, ...]
    """Where it is to go."""
    reason: str
    attempts: int
    """How often it has failed in a row; 0: it stands still."""
    failing_ms: int
    without_leader: str = ""
    """The group of which the node that says so knows no leader; empty: it leads it itself."""


class Said(msgspec.Struct, frozen=True, array_like=True):
    """What a node says of itself."""

    copies: list[Copy]
    problem: str
    tables: list[TablePart] = []
    failing: list[FailingMove] = []
    open_at: tuple[str, ...] = ()
    """The addresses at which strangers can come in."""
    tokens: bool | None = None
    """Whether it asks its callers for tokens; None: it is of an earlier release."""
    endings: tuple[str, ...] = ()
    """What of its certificates ends soon, or has ended."""


T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Said).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a node, or a data directory, knows of the cluster."""

    source: str
    settings: ClusterSettings | None
    nodes: list[NodeInfo]
    topology: Topology
    topology_is_current: bool = True
    metastore: MetastoreStatus | None
    catalog: CatalogStatus | None = None
    problems: dict[int, str] = field(default_factory=dict)
    """What is wrong with nodes, by number: what they say themselves, or why they say nothing."""
    silent_ms: dict[int, int] = field(default_factory=dict)
    """For how long nothing was heard of nodes that did not answer; 0 of those that did."""
    tables: Sequence[TablePart] = ()
    """What each node leads of tables."""
    homes: Sequence[Home] = ()
    """The tables that there should be, and where."""
    watermark: WatermarkStatus | None = None
    draining: AbstractSet[int] = frozenset()
    failing: Sequence[FailingMove] = ()
    open_at: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """The addresses of nodes at which strangers can come in, by number."""
    tokens: Mapping[int, bool | None] = field(default_factory=dict)
    """Whether nodes ask their callers for tokens, by number, of those that say."""
    endings: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """What of nodes' certificates ends soon, or has ended, by number."""
    now_ms: int = 0
    clocks_off: Sequence[Off] = ()
    """The clocks that are wrong, as `own`, the node that says so, knows them."""
    times_ahead_ms: int = 0
    own: str = ""


def _copy_of(group: Group) -> Copy:
    status = group.status()
    behind = tuple(
        Behind(peer.node, peer.entries_behind, peer.bytes_behind, peer.seconds_left)
        for peer in status.peers
    )
    return Copy(
        status.group,
        status.node,
        status.role,
        status.term,
        status.leader,
        tuple(sorted({*status.voters, *status.voters_outgoing})),
        status.learners,
        status.committed,
        status.applied,
        status.stage.value,
        status.stopped or status.silent or status.install_refused,
        behind,
    )


class Trying:
    """Asks for one thing after another; what can't be had is a problem, and no reason to stop."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    def get(self, what: str, ask: Callable[[], T], otherwise: T) -> T:
        """What the function gives, or something instead."""
        try:
            return ask()
        except LowmarkError as error:
            self.add(f"{what} can't be read: {error.message}")
            return otherwise

    def add(self, problem: str) -> None:
        """Something is wrong."""
        if problem and problem not in self._problems:
            self._problems.append(problem)

    @property
    def problem(self) -> str:
        """All of it, in words."""
        return "; ".join(self._problems)


def lease_row(lease: Lease, *, now: int) -> LeaseRow:
    """A lease as it is shown."""
    return LeaseRow(
        name=lease.name,
        hold=lease.hold,
        why=lease.why,
        expires_at_ms=millis_of(lease.expires_at),
        expired=lease.expires_at <= now,
    )


class StatusService:
    """Says what this node knows, to other nodes and to clients. All on the loop."""

    def __init__(self, groups: Groups, cluster: Cluster) -> None:
        self._groups = groups
        self._cluster = cluster
        self.catalog: Callable[[], CatalogStatus | None] = lambda: None
        """Which versions of the catalog this node has; set by the node that runs one."""
        self.tables: Callable[[], list[TablePart]] = list
        self.watermark: Callable[[], WatermarkStatus | None] = lambda: None
        """The same of tables, and of the low watermark."""
        self.homes: Callable[[], list[Home]] = list
        """The tables that there should be."""
        self.draining: Callable[[], AbstractSet[int]] = frozenset
        """The nodes that are drained."""
        self.failing: Callable[[], list[FailingMove]] = list
        """The moves that do not get on, of partitions that this node leads."""
        self.problems: Callable[[], list[str]] = list
        """What is wrong with what is built on the cluster."""
        self.open_at: Callable[[], tuple[str, ...]] = tuple
        self.endings: Callable[[], tuple[str, ...]] = tuple
        """The addresses at which strangers can come in here."""
        self.tokens = False
        """Whether callers must show a token here; set by the node."""
        groups.calls.serve(SERVICE, self._asked)

    def _asked(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        del address, sender, question
        answer(_encode(self._said(Trying())))

    def _said(self, trying: Trying) -> Said:
        """What this node says of itself."""
        trying.add(self._cluster.problem)
        for problem in self.problems():
            trying.add(problem)
        copies = [
            trying.get(f"group {group.name}", lambda group=group: _copy_of(group), None)  # type: ignore[misc]
            for group in self._groups.groups()
        ]
        nothing: list[TablePart] = []
        tables = trying.get("the tables", self.tables, nothing)
        no_moves: list[FailingMove] = []
        failing = trying.get("the moves", self.failing, no_moves)
        sound = [copy for copy in copies if copy is not None]
        own = self.open_at(), self.tokens, self.endings()
        return Said(sound, trying.problem, tables, failing, *own)

    def status(self) -> Future[Status]:
        """Of the whole cluster, as far as its nodes answer."""
        own = self._groups.node
        up = [node.number for node in self._cluster.topology.nodes]
        # A node that can't read its copy does not know who is up; but where others were, it does.
        others = [node for node in up or self._groups.transport.addresses if node != own]

        def known(answers: dict[int, Said | LowmarkError]) -> Status:
            said = {
                node: one if isinstance(one, Said) else Said([], one.message)
                for node, one in answers.items()
            }
            silent: dict[int, int | None] = {own: 0}
            silent |= {
                node: 0 if isinstance(one, Said) else self._groups.silent_ms(node)
                for node, one in answers.items()
            }
            return self._merged(said, silent)

        return ask_each(self._groups, others, SERVICE, _decode).map(known)

    def _merged(self, said: dict[int, Said], silent: dict[int, int | None]) -> Status:
        trying = Trying()
        own = self._said(trying)
        known = self._known(trying)
        problems = {node: each.problem for node, each in said.items()}
        problems[self._groups.node] = trying.problem  # with what could not be read just now
        tables = [*own.tables, *(part for each in said.values() for part in each.tables)]
        failing = [*own.failing, *(move for each in said.values() for move in each.failing)]
        heard = {node: ms for node, ms in silent.items() if ms is not None}
        open_at = {node: each.open_at for node, each in said.items()}
        open_at[self._groups.node] = own.open_at
        known = replace(known, problems=problems, tables=tables, failing=failing, silent_ms=heard)
        tokens = {node: each.tokens for node, each in said.items()}
        tokens[self._groups.node] = own.tokens
        endings = {node: each.endings for node, each in said.items()}
        endings[self._groups.node] = own.endings
        known = replace(known, open_at=open_at, tokens=tokens, endings=endings)
        if trying.problem and all(node.number != self._groups.node for node in known.nodes):
            # It has left, or does not know itself any more: its problem needs a place all the same.
            known = replace(known, nodes=[*known.nodes, self._cluster.node])
        return merged(
            known, [*own.copies, *(copy for each in said.values() for copy in each.copies)]
        )

    def _known(self, trying: Trying) -> Known:
        cluster = self._cluster
        settled = cluster.ready.done and cluster.ready.error is None
        nowhere: list[Home] = []
        no_nodes: frozenset[int] = frozenset()
        return Known(
            source=f"node {cluster.node.name}",
            settings=cluster.settings if settled else None,
            # Those that are up were told to this node while it could read.
            nodes=trying.get("the metastore", cluster.nodes, list(cluster.topology.nodes)),
            topology=cluster.topology,
            topology_is_current=cluster.topology.version > 0,
            metastore=trying.get("the metastore", self._metastore, None),
            catalog=trying.get("the catalog", self.catalog, None),
            homes=trying.get("the catalog", self.homes, nowhere),
            watermark=trying.get("the low watermark", self.watermark, None),
            draining=trying.get("the metastore", self.draining, no_nodes),
            now_ms=millis_of(cluster.metastore.clock.now()),
            clocks_off=self._groups.clocks.off(),
            times_ahead_ms=self._groups.clocks.times_ahead_ms,
            own=cluster.node.name,
        )

    def _metastore(self) -> MetastoreStatus:
        metastore = self._cluster.metastore
        standing, now = metastore.standing(), metastore.clock.now()
        return MetastoreStatus(
            revision=standing.latest,
            compacted=standing.compacted,
            time_ms=millis_of(standing.time),
            keys=standing.keys,
            live_entries=standing.live_entries,
            watches=standing.watches,
            leases=tuple(lease_row(lease, now=now) for lease in standing.leases),
        )


def merged(known: Known, copies: Iterable[Copy]) -> Status:
    """Everything side by side."""
    names = {node.number: node.name for node in known.nodes}
    by_group: dict[str, list[Copy]] = {}
    for copy in copies:
        by_group.setdefault(copy.group, []).append(copy)
    for home in known.homes:
        for name, nodes in home.groups():
            by_group.setdefault(name, [_copy_of_none(name, nodes)])
    groups = tuple(
        _group_row(name, by_group[name], names=names, problems=known.problems)
        for name in sorted(by_group)
    )
    led = {name for name, some in by_group.items() if any(one.role == "leader" for one in some)}
    metastore = next((group for group in groups if group.group == GROUP), None)
    settings = known.settings
    empty = (TablePart(home.id, home.name, len(home.nodes), 0, 0, 0) for home in known.homes)
    # A node alone can have one replica of each table, whatever zones ask for.
    lacking = replica_warnings(known.homes) if len(known.nodes) > 1 else ()
    open_nodes = [node for node in names if known.open_at.get(node)]
    return Status(
        source=known.source,
        cluster=None
        if settings is None
        else ClusterStatus(
            id=settings.id,
            members=settings.members,
            schema_sync_delay_ms=settings.schema_sync_delay_ms,
            clock_max_skew_ms=settings.clock_max_skew_ms,
            topology_version=known.topology.version,
        ),
        nodes=tuple(
            _node_row(node, known, metastore, known.problems.get(node.number, ""))
            for node in known.nodes
        ),
        groups=groups,
        metastore=known.metastore,
        catalog=known.catalog,
        tables=table_rows([*known.tables, *empty], groups),
        watermark=known.watermark,
        warnings=(
            *warnings_of(known.tables, known.watermark, now_ms=known.now_ms),
            *lacking,
            *move_warnings(known.failing, led),
            *clock_warnings(
                known.clocks_off, names, own=known.own, times_ahead_ms=known.times_ahead_ms
            ),
            *(
                WarningRow(
                    kind="insecure",
                    text=insecure_words(f"node {names[node]}", known.open_at[node]),
                )
                for node in open_nodes
            ),
            *_token_warnings(known),
            *_certificate_warnings(known),
        ),
        insecure=tuple(names[node] for node in open_nodes),
    )


def _token_warnings(known: Known) -> Iterable[WarningRow]:
    """The nodes that let in whom others keep out: all nodes read and write the same tables."""
    asking = [node.name for node in known.nodes if known.tokens.get(node.number)]
    for node in known.nodes:
        if asking and known.tokens.get(node.number) is False:
            text = (
                f"node {node.name} asks for no tokens, and {' and '.join(asking)}"
                f" {'does' if len(asking) == 1 else 'do'}: every program that reaches it at"
                f" {node.endpoint} can read and change all data of the cluster. Stop it, and start"
                " it again with --tokens"
            )
            yield WarningRow(kind="no-tokens", holder=node.name, text=text)


def _certificate_warnings(known: Known) -> Iterable[WarningRow]:
    """The nodes to whom the others will not speak any more soon, or do not already."""
    for node in known.nodes:
        for what in known.endings.get(node.number, ()):
            yield WarningRow(kind="certificate", holder=node.name, text=f"node {node.name}: {what}")


def _copy_of_none(group: str, nodes: tuple[int, ...]) -> Copy:
    """In the place of copies of which none answered: it says who the members are."""
    return Copy(group, 0, "stopped", 0, 0, nodes, (), 0, 0, "stopped", "", ())


def _node_row(node: NodeInfo, known: Known, metastore: GroupRow | None, problem: str) -> NodeRow:
    role = ""
    if metastore is not None:
        if node.number == metastore.leader:
            role = "coordinator"
        elif node.number in metastore.voters:
            role = "voter"
        elif node.number in metastore.learners:
            role = "learner"
    return NodeRow(
        number=node.number,
        name=node.name,
        up=known.topology.find(node.number) is not None if known.topology_is_current else None,
        role=role,
        endpoint=node.endpoint,
        address=node.address,
        rack=node.rack,
        attributes=node.attributes,
        draining=node.number in known.draining,
        problem=problem,
        silent_ms=known.silent_ms.get(node.number),
    )


def _group_row(
    name: str, copies: list[Copy], *, names: dict[int, str], problems: dict[int, str]
) -> GroupRow:
    # The leader of the newest term knows best; else a copy that has heard of the newest term.
    best = max(copies, key=lambda copy: (copy.term, copy.role == "leader", copy.applied))
    behind = {one.node: one for one in best.behind}
    by_node = {copy.node: copy for copy in copies}
    members = []
    order = {node: place for place, node in enumerate(names)}
    everybody = {*best.voters, *best.learners}
    for node in sorted(everybody, key=lambda one: (order.get(one, len(order)), one)):
        copy, lag = by_node.get(node), behind.get(node)
        problem = problems.get(node, "it is down") or "it shows no copy"
        role = "learner" if node in best.learners else "voter"
        leads = node == best.leader
        members.append(
            MemberRow(
                node=node,
                name=names.get(node, str(node)),
                role="leader" if leads else role,
                applied=copy.applied if copy is not None else None,
                committed=copy.committed if copy is not None else None,
                entries_behind=0 if leads else lag.entries if lag is not None else None,
                bytes_behind=0 if leads else lag.bytes if lag is not None else None,
                seconds_left=lag.seconds_left if lag is not None else None,
                problem=copy.problem if copy is not None else problem,
            )
        )
    return GroupRow(
        group=name,
        leader=best.leader,
        leader_name=names.get(best.leader, str(best.leader) if best.leader else ""),
        term=best.term,
        voters=best.voters,
        learners=best.learners,
        stage=best.stage,
        members=tuple(members),
        state=_state(best, members),
    )


def _state(best: Copy, members: Sequence[MemberRow]) -> str:
    """See `GroupRow.state`."""
    sound = [one for one in members if one.node in best.voters and not one.problem]
    if not sound:
        return "unavailable"
    if not best.leader or len(sound) <= len(best.voters) // 2:
        return "read-only"
    return "available" if len(sound) == len(best.voters) else "degraded"
