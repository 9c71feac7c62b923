"""What `lowmark status` shows, put together from what each node says of itself.

A node knows its own copies, and as a leader how far the others are. Whoever is asked asks all nodes
that are up, waits for them a short while, and lays their answers side by side; who did not answer
is shown with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from lowmark.errors import LowmarkError
from lowmark.group import Future, Groups, Reply
from lowmark.metastore import GROUP, Cluster, ClusterSettings, Lease, NodeInfo, Topology
from lowmark.node.messages import (
    CatalogStatus,
    ClusterStatus,
    GroupRow,
    LeaseRow,
    MemberRow,
    MetastoreStatus,
    NodeRow,
    Status,
)
from lowmark.runtime import Buffer, HybridTime, millis_of

__all__ = ["Copy", "Known", "StatusService", "lease_row", "merged"]

SERVICE = "node.status"
ANSWER_MS = 1_500


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


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Copy]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What somebody knows of the cluster."""

    source: str
    settings: ClusterSettings | None
    nodes: list[NodeInfo]
    topology: Topology
    topology_is_current: bool = True
    metastore: MetastoreStatus | None
    catalog: CatalogStatus | None = None


def copies_of(groups: Groups) -> list[Copy]:
    """All copies of a node."""
    found = []
    for group in groups.groups():
        status = group.status()
        behind = tuple(
            Behind(peer.node, peer.entries_behind, peer.bytes_behind, peer.seconds_left)
            for peer in status.peers
        )
        found.append(
            Copy(
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
                status.stopped or status.install_refused,
                behind,
            )
        )
    return found


def lease_row(lease: Lease, *, now: int) -> LeaseRow:
    """A lease as it is shown."""
    return LeaseRow(
        name=lease.name,
        hold=lease.hold,
        why=lease.why,
        expires_at_ms=millis_of(HybridTime(lease.expires_at)),
        expired=lease.expires_at <= now,
    )


class StatusService:
    """Says what this node knows, to other nodes and to clients. All on the loop."""

    def __init__(self, groups: Groups, cluster: Cluster) -> None:
        self._groups = groups
        self._cluster = cluster
        self.catalog: Callable[[], CatalogStatus | None] = lambda: None
        """Which versions of the catalog this node has; set by whoever runs one."""
        groups.calls.serve(SERVICE, self._asked)

    def _asked(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        del address, sender, question
        answer(_encode(copies_of(self._groups)))

    def status(self) -> Future[Status]:
        """Of the whole cluster, as far as its nodes answer."""
        whole: Future[Status] = Future()
        own = self._groups.node
        copies = copies_of(self._groups)
        silent: dict[int, str] = {}
        others = [node.number for node in self._cluster.topology.nodes if node.number != own]
        left = set(others)

        def answered(node: int, future: Future[bytes]) -> None:
            try:
                copies.extend(_decode(future.result()))
            except (LowmarkError, msgspec.MsgspecError) as error:
                silent[node] = error.message if isinstance(error, LowmarkError) else str(error)
            left.discard(node)
            if not left:
                whole.resolve(merged(self._known(), copies, silent))

        if not others:
            whole.resolve(merged(self._known(), copies, silent))
        for node in others:
            asked = self._groups.calls.ask(node, SERVICE, b"", timeout_ms=ANSWER_MS)
            asked.then(lambda future, node=node: answered(node, future))  # type: ignore[misc]
        return whole

    def _known(self) -> Known:
        cluster = self._cluster
        standing = cluster.metastore.standing()
        now = cluster.metastore.clock.now()
        return Known(
            source=f"node {cluster.node.name}",
            settings=cluster.settings if cluster.ready.done else None,
            nodes=cluster.nodes(),
            topology=cluster.topology,
            metastore=MetastoreStatus(
                revision=standing.latest,
                compacted=standing.compacted,
                time_ms=millis_of(HybridTime(standing.time)),
                keys=standing.keys,
                live_entries=standing.live_entries,
                watches=standing.watches,
                leases=tuple(lease_row(lease, now=now) for lease in standing.leases),
            ),
            catalog=self.catalog(),
        )


def merged(known: Known, copies: Iterable[Copy], silent: dict[int, str]) -> Status:
    """Everything side by side."""
    names = {node.number: node.name for node in known.nodes}
    by_group: dict[str, list[Copy]] = {}
    for copy in copies:
        by_group.setdefault(copy.group, []).append(copy)
    groups = tuple(
        _group_row(name, by_group[name], names=names, silent=silent) for name in sorted(by_group)
    )
    metastore = next((group for group in groups if group.group == GROUP), None)
    settings = known.settings
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
            _node_row(node, known, metastore, silent.get(node.number, "")) for node in known.nodes
        ),
        groups=groups,
        metastore=known.metastore,
        catalog=known.catalog,
    )


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
        door=node.door,
        address=node.address,
        rack=node.rack,
        attributes=node.attributes,
        problem=problem,
    )


def _group_row(
    name: str, copies: list[Copy], *, names: dict[int, str], silent: dict[int, str]
) -> GroupRow:
    # The leader of the newest term knows best; else whoever has heard of the newest term.
    best = max(copies, key=lambda copy: (copy.term, copy.role == "leader", copy.applied))
    behind = {one.node: one for one in best.behind}
    by_node = {copy.node: copy for copy in copies}
    members = []
    order = {node: place for place, node in enumerate(names)}
    everybody = {*best.voters, *best.learners}
    for node in sorted(everybody, key=lambda one: (order.get(one, len(order)), one)):
        copy, lag = by_node.get(node), behind.get(node)
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
                problem=copy.problem if copy is not None else silent.get(node, "it is down"),
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
    )
