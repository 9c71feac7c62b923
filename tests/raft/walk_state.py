"""What a random walk is made of: habits, copies, and what the observer has seen. See `walk`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from lowmark.raft import (
    Config,
    ConfState,
    EntryKind,
    HardState,
    Message,
    RaftNode,
    Role,
    Snapshot,
    StorageAppend,
    StorageAppended,
    StorageApplied,
)
from lowmark.raft.state import NO_LIMIT
from raft.memory_storage import MemoryStorage

__all__ = ["ELECTION_TICKS", "NODES", "Copy", "Habits", "Truth"]

NODES = range(1, 7)
ELECTION_TICKS = 3


@dataclass(frozen=True, slots=True)
class Habits:
    """What is the same for a whole walk, and differs between walks."""

    founders: tuple[int, ...]
    pre_vote: bool
    check_quorum: bool
    forward_proposals: bool
    changes_after_noop: bool
    step_down_on_removal: bool
    message_bytes_max: int
    applying_bytes_max: int
    inflight_max: int
    drop: float
    double: float
    eager: float
    """How often a node does all its work at once."""
    lazy_commits: bool
    """Whether a commit index is written only with something that needs it."""

    @staticmethod
    def drawn(dice: Random) -> Habits:
        return Habits(
            founders=tuple(range(1, dice.choice((1, 2, 3, 3, 3, 5)) + 1)),
            pre_vote=dice.random() < 0.6,
            check_quorum=dice.random() < 0.6,
            forward_proposals=dice.random() < 0.5,
            changes_after_noop=dice.random() < 0.7,
            step_down_on_removal=dice.random() < 0.7,
            message_bytes_max=dice.choice((0, 60, NO_LIMIT)),
            applying_bytes_max=dice.choice((1, 60, NO_LIMIT)),
            inflight_max=dice.choice((1, 3, 100)),
            drop=dice.choice((0.0, 0.05, 0.2)),
            double=dice.choice((0.0, 0.05, 0.2)),
            eager=dice.choice((0.1, 0.7, 0.95)),
            lazy_commits=dice.random() < 0.7,
        )


class Copy:
    """One node's copy: a core, a disk, a state machine, and what is on its way between them."""

    def __init__(self, node: int, habits: Habits, dice: Random, *, rejoin_above: int = -1) -> None:
        self.node = node
        self.habits = habits
        self.dice = dice
        self.rejoin_above = rejoin_above
        self.storage = MemoryStorage()
        if node in habits.founders and rejoin_above < 0:
            # Founders begin behind a snapshot, which others need: nobody else knows who they are.
            self.storage = MemoryStorage(Snapshot(1, 1, ConfState(voters=habits.founders)))
            self.storage.hard = HardState(term=1, commit=1)
        self.start()

    def start(self) -> None:
        """Begin from what is durable."""
        self.orders: deque[StorageAppend] = deque()
        self.own: deque[Message | StorageAppended | StorageApplied] = deque()
        self.hard = self.storage.hard
        """As the last order has it; the commit index on disk may be older."""
        self.applied = self.storage.base.index
        self.members = self.storage.base.members
        habits = self.habits
        self.raft = RaftNode(
            Config(
                node=self.node,
                storage=self.storage,
                election_ticks=ELECTION_TICKS,
                heartbeat_ticks=1,
                draw=self.dice.randrange,
                applied=self.applied,
                message_bytes_max=habits.message_bytes_max,
                applying_bytes_max=habits.applying_bytes_max,
                inflight_max=habits.inflight_max,
                pre_vote=habits.pre_vote,
                check_quorum=habits.check_quorum,
                forward_proposals=habits.forward_proposals,
                changes_after_noop=habits.changes_after_noop,
                step_down_on_removal=habits.step_down_on_removal,
                rejoin_above=self.rejoin_above,
            )
        )
        core = self.raft.core
        self.term, self.commit = core.term, core.log.committed

    @property
    def leads(self) -> bool:
        return self.raft.core.role is Role.LEADER

    def has_durable(self, index: int, term: int) -> bool:
        return self.storage.compacted[0] > index or self.storage.term(index) == term


@dataclass(slots=True)
class Truth:
    """What the observer has seen."""

    members: ConfState
    """As the last entry left them that anybody applied."""
    leaders: dict[int, int] = field(default_factory=dict)
    """Who led, by term."""
    votes: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """Whom a copy (node, incarnation it began with) voted for, by term."""
    entries: dict[tuple[int, int], tuple[int, EntryKind, bytes]] = field(default_factory=dict)
    """What each (index, term) is and which term stands before it: log matching, by induction."""
    applied: dict[int, int] = field(default_factory=dict)
    """The term of each entry that somebody applied."""
    committed: tuple[int, int, int] = (0, 0, 0)
    """The highest (index, its term, the term it was committed in)."""
    reads: dict[bytes, int] = field(default_factory=dict)
    """What was committed when a read was asked."""
    lost: dict[int, list[Copy]] = field(default_factory=dict)
    answered_reads: int = 0
