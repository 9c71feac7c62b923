"""What can be seen of a group from outside."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.errors import LowmarkError
from lowmark.group.applier import Applier
from lowmark.group.leadership import Leadership
from lowmark.group.peers import Stage
from lowmark.log import GroupLog
from lowmark.raft import RaftNode


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """One other member, as the leader sees it."""

    node: int
    learner: bool
    incarnation: int
    state: str
    match: int
    entries_behind: int
    bytes_behind: int
    """Of the log, and of a snapshot that it is being sent (an estimate until all is read)."""
    bytes_per_s: float
    """How fast it has been catching up lately."""
    seconds_left: float | None
    """Until it has caught up, at that rate; None if that can't be told."""
    active: bool
    installing_bytes: int
    """How much of a snapshot it has been sent."""
    machine_version: int
    disk_full: bool = False
    """Whether it says that it can't write what it is sent, for want of space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """One copy of a group."""

    group: str
    node: int
    role: str
    term: int
    leader: int
    voters: tuple[int, ...]
    voters_outgoing: tuple[int, ...]
    learners: tuple[int, ...]
    incarnation: int
    lineage: int
    """The term of the last reset of the group, 0 if it was never reset (see `reset`)."""
    first_index: int
    last_index: int
    written_index: int
    committed: int
    applied: int
    snapshot_index: int
    live_entries: int
    machine_version: int
    stage: Stage
    resting: bool
    waiting: int
    """Requests that are not answered."""
    stopped: str
    """Why it serves nothing, if so."""
    silent: str
    """Why it says nothing to other members, if so: it waits to be added again."""
    install_refused: str
    peers: tuple[PeerStatus, ...]


def status_of(
    log: GroupLog,
    raft: RaftNode,
    applier: Applier,
    leadership: Leadership,
    *,
    peers: tuple[PeerStatus, ...],
    resting: bool,
    waiting: int,
    stopped: LowmarkError | None,
    silent: str,
    install_refused: str,
) -> GroupStatus:
    """Everything worth knowing about a copy."""
    core, members, row = raft.core, raft.core.members, log.row
    return GroupStatus(
        group=log.name,
        node=core.node,
        role=core.role.value,
        term=core.term,
        leader=core.leader,
        voters=tuple(sorted(members.incoming)),
        voters_outgoing=tuple(sorted(members.outgoing)),
        learners=tuple(sorted(members.learners)),
        incarnation=core.incarnation,
        lineage=core.lineage,
        first_index=log.first_index,
        last_index=log.last_index,
        written_index=log.written_index,
        committed=core.log.committed,
        applied=applier.applied,
        snapshot_index=row.snapshot_index,
        live_entries=len(row.live),
        machine_version=applier.version,
        stage=leadership.changes.stage,
        resting=resting,
        waiting=waiting,
        stopped=stopped.message if stopped is not None else "",
        silent=silent,
        install_refused=install_refused,
        peers=peers,
    )


def peer_statuses(raft: RaftNode, leadership: Leadership) -> tuple[PeerStatus, ...]:
    """The other members, as a leader sees them."""
    core, last = raft.core, raft.core.log.last_index
    found = []
    for node, progress in core.progress.items():
        if node == core.node:
            continue
        behind = leadership.bytes_behind(node)
        sending = leadership.sends.progress(node)
        if sending is not None:
            behind += sending.bytes_left
        rate = leadership.tracking.bytes_per_s(node)
        found.append(
            PeerStatus(
                node=node,
                learner=progress.is_learner,
                incarnation=progress.incarnation,
                state=progress.state.value,
                match=progress.match,
                entries_behind=last - progress.match,
                bytes_behind=behind,
                bytes_per_s=rate,
                seconds_left=0.0 if not behind else behind / rate if rate else None,
                active=progress.recent_active,
                installing_bytes=leadership.installed_bytes(node),
                machine_version=leadership.known_version(node),
                disk_full=progress.disk_full,
            )
        )
    return tuple(found)
