"""What can be seen of a group from outside."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.group.peers import Stage

__all__ = ["GroupStatus", "PeerStatus"]


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
    install_refused: str
    peers: tuple[PeerStatus, ...]
