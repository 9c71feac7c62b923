"""The state of one member of one group, and the few moves that every part of the core makes.

`Core` only holds; the rules are in `elections`, `replication`, `reads` and `changes`, each a set of
functions over it. Two outboxes: `outbox` may be sent at once; `after_append` holds what claims that
something is durable here (votes and acknowledgements, refusals too, and those to oneself), which
may leave only when everything that was ordered to be written so far is.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from lowmark.errors import Rejected, Unavailable, invariant
from lowmark.raft import membership
from lowmark.raft.log_view import LogView, Storage
from lowmark.raft.membership import Members
from lowmark.raft.messages import (
    NOBODY,
    AppendResponse,
    HardState,
    Message,
    ReadIndex,
    VoteResponse,
    set_lineage,
)
from lowmark.raft.progress import Inflights, Progress
from lowmark.raft.quorum import VoteResult, joint_committed, joint_vote

NO_LIMIT = 1 << 62


class Role(Enum):
    """What a member is at the moment."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class ReadMode(Enum):
    """How a leader makes sure that it still is one before it answers a read."""

    SAFE = "safe"
    """It asks a majority."""
    LEASE = "lease"
    """It trusts its clock; a clock that stands still gives stale answers."""


class DropReason(Enum):
    """Why a proposal was not even put into the log."""

    NO_LEADER = "there is no leader"
    NOT_LEADER = "this member does not lead"
    REMOVED = "this leader is no member any more"
    TRANSFERRING = "leadership is being handed over"
    TAIL_FULL = "too much is waiting to be committed"


class ProposalDropped(Unavailable):
    """A proposal that left no trace."""

    def __init__(self, reason: DropReason) -> None:
        super().__init__(f"the proposal was dropped: {reason.value}", hint="Propose it again.")
        self.reason = reason


class ReadState(msgspec.Struct, frozen=True):
    """A read may be answered once everything up to `index` is applied."""

    index: int
    context: bytes


class SoftState(msgspec.Struct, frozen=True):
    """What is worth knowing, but need not be durable."""

    leader: int
    role: Role


class Config(msgspec.Struct, kw_only=True):
    """How one member behaves. Time is counted in ticks."""

    node: int
    storage: Storage
    election_ticks: int
    heartbeat_ticks: int
    draw: Callable[[int], int]
    """Draw a number in [0, n): the core's only source of chance."""
    applied: int = 0
    async_storage: bool = True
    """Writes are acknowledged later, by `StorageAppended` and `StorageApplied`."""
    message_bytes_max: int = 1 << 20
    applying_bytes_max: int = 0
    """0: as `message_bytes_max`."""
    uncommitted_bytes_max: int = NO_LIMIT
    inflight_max: int = 256
    inflight_bytes_max: int = NO_LIMIT
    check_quorum: bool = True
    pre_vote: bool = True
    read_mode: ReadMode = ReadMode.SAFE
    forward_proposals: bool = False
    validate_changes: bool = True
    changes_after_noop: bool = True
    """Whether a leader changes members only after the first entry of its term is applied."""
    step_down_on_removal: bool = True
    commit_by_vote: bool = True
    """Whether a member that refuses a vote says what is committed."""
    rejoin_above: int = -1
    """This copy replaces one that was lost while its node had this incarnation: until the node is
    added again, with a higher one, it says nothing at all."""
    rejoin_lineage: int = 0
    """The lineage of the copy that was lost. In a later one it had promised nothing."""
    in_doubt: bool = False
    """This copy may lack what its node has promised, as whatever incarnation: it says nothing."""

    def check(self) -> None:
        """Refuse what can't work."""
        problems = [
            (self.node == NOBODY, "a node's id is not 0"),
            (self.heartbeat_ticks <= 0, "heartbeat_ticks is at least 1"),
            (self.election_ticks <= self.heartbeat_ticks, "election_ticks exceeds heartbeat_ticks"),
            (self.inflight_max <= 0, "inflight_max is at least 1"),
            (
                self.inflight_bytes_max < self.message_bytes_max < NO_LIMIT,
                "inflight_bytes_max has room for one message",
            ),
            (
                self.read_mode is ReadMode.LEASE and not self.check_quorum,
                "reads by lease need check_quorum",
            ),
        ]
        for wrong, rule in problems:
            if wrong:
                raise Rejected(f"this can't be a member's configuration: {rule}")


class Core:
    """Everything that one member knows."""

    def __init__(self, config: Config) -> None:
        config.check()
        self.config = config
        self.node = config.node
        self.log = LogView(
            config.storage,
            applying_bytes_max=config.applying_bytes_max or config.message_bytes_max,
        )
        hard, stored = config.storage.initial_state()
        self.term = hard.term
        self.vote = hard.vote
        self.lineage = hard.lineage
        self.incarnation = hard.incarnation
        if self.lineage <= config.rejoin_lineage:
            self.incarnation = max(self.incarnation, config.rejoin_above)
        # What is applied was committed, even if that was not durable before a crash.
        self.log.commit_to(max(hard.commit, config.applied))
        if config.applied:
            self.log.applied_to(config.applied, 0)
        self.role = Role.FOLLOWER
        self.leader = NOBODY
        self.transferee = NOBODY
        """Whom leadership is being handed to."""
        self.pending_change = 0
        """No change of members is in the log, unapplied, above this index."""
        self.term_start = 0
        """The index of the leader's own first entry."""
        self.uncommitted_bytes = 0
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.election_timeout = config.election_ticks
        self.votes: dict[int, bool] = {}
        self.progress: dict[int, Progress] = {}
        self.members = Members()
        self.outbox: list[Message] = []
        self.after_append: list[AppendResponse | VoteResponse] = []
        self.read_states: list[ReadState] = []
        self.read_round = 0
        self.waiting_reads: list[tuple[int, int, ReadIndex]] = []
        """(round, index, request): asked, and waiting for a majority to confirm the round."""
        self.early_reads: list[ReadIndex] = []
        """Asked before the leader's first commit."""
        self.disk_full = False
        """Its driver can't write what this member is sent, for want of space; its leader is told
        with the next answer to a heartbeat."""
        self.set_members(membership.restore(stored))
        self.become_follower(self.term, NOBODY)

    @property
    def hard_state(self) -> HardState:
        """What must be durable."""
        return HardState(self.term, self.vote, self.log.committed, self.incarnation, self.lineage)

    @property
    def soft_state(self) -> SoftState:
        """Who leads, and what this member is."""
        return SoftState(self.leader, self.role)

    # -- sending --------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send it with the next batch."""
        set_lineage(message, self.lineage)
        self.outbox.append(message)

    def send_durable(self, message: AppendResponse | VoteResponse) -> None:
        """Send it once everything up to now is durable."""
        set_lineage(message, self.lineage)
        self.after_append.append(message)

    def incarnation_of(self, node: int) -> int:
        """A member's incarnation in the configuration in force."""
        progress = self.progress.get(node)
        return progress.incarnation if progress is not None else 0

    # -- roles ----------------------------------------------------------------------------------

    def reset(self, term: int) -> None:
        """Forget everything that belongs to a role."""
        if self.term != term:
            self.term = term
            self.vote = NOBODY
        self.leader = NOBODY
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.draw_timeout()
        self.transferee = NOBODY
        self.votes = {}
        last = self.log.last_index
        for node, old in self.progress.items():
            self.progress[node] = self._new_progress(node, next_index=last + 1)
            self.progress[node].is_learner = old.is_learner
            if node == self.node:
                self.progress[node].match = last
        self.pending_change = 0
        self.uncommitted_bytes = 0
        self.waiting_reads = []
        self.early_reads = []

    def draw_timeout(self) -> None:
        """Elections start after T to 2T - 1 ticks, so that two members seldom start at once."""
        ticks = self.config.election_ticks
        self.election_timeout = ticks + self.config.draw(ticks)

    def become_follower(self, term: int, leader: int) -> None:
        """Follow the leader of this term, or wait for one."""
        self.reset(term)
        self.leader = leader
        self.role = Role.FOLLOWER

    # -- members --------------------------------------------------------------------------------

    def set_members(self, members: Members, fresh: frozenset[int] | None = None) -> None:
        """Follow the progress of exactly these."""
        last = self.log.last_index
        progress: dict[int, Progress] = {}
        for node in sorted(members.everybody):
            known = self.progress.get(node)
            if known is None or fresh is None or node in fresh:
                known = self._new_progress(node, next_index=max(last, 1))
                # A new member gets a chance to speak before quorum is checked without it.
                known.recent_active = True
            known.is_learner = node in members.learners
            known.incarnation = members.incarnation(node)
            progress[node] = known
        self.members, self.progress = members, progress
        # It may learn from the log that it was added again, before another member calls it so.
        self.incarnation = max(self.incarnation, members.incarnation(self.node))

    def _new_progress(self, node: int, *, next_index: int) -> Progress:
        config = self.config
        return Progress(
            match=0,
            next=next_index,
            inflights=Inflights(config.inflight_max, config.inflight_bytes_max),
            incarnation=self.members.incarnation(node),
        )

    @property
    def is_learner(self) -> bool:
        """Whether this member has no vote, as far as it knows."""
        own = self.progress.get(self.node)
        return own is not None and own.is_learner

    @property
    def promotable(self) -> bool:
        """Whether this member may lead: a voter with nothing but its log to go by.

        A copy that was added again reads in the log that it was a voter before. That was an earlier
        incarnation, and with it went what it had acknowledged: it has no vote, not even for itself.
        """
        own = self.progress.get(self.node)
        return (
            own is not None
            and not own.is_learner
            and own.incarnation >= self.incarnation
            and self.log.unstable.snapshot is None
            and not self.mute
        )

    @property
    def mute(self) -> bool:
        """Whether this copy waits to be added again."""
        config = self.config
        if config.in_doubt:
            return True
        return self.lineage <= config.rejoin_lineage and self.incarnation <= config.rejoin_above

    @property
    def singleton(self) -> bool:
        """Whether this member is the only voter."""
        return self.members.incoming == {self.node} and not self.members.joint

    # -- quorums --------------------------------------------------------------------------------

    def quorum_index(self) -> int:
        """The highest index that the configuration in force has durable."""
        progress = self.progress
        return joint_committed(
            self.members.incoming, self.members.outgoing, lambda node: progress[node].match
        )

    def quorum_round(self) -> int:
        """The last round of reads in which a majority followed."""
        progress = self.progress
        return joint_committed(
            self.members.incoming, self.members.outgoing, lambda node: progress[node].read_round
        )

    def tally(self) -> VoteResult:
        """How the election stands."""
        return joint_vote(self.members.incoming, self.members.outgoing, self.votes)

    def quorum_active(self) -> bool:
        """Whether a majority was heard of since the last check."""
        active = {
            node: known.recent_active
            for node, known in self.progress.items()
            if not known.is_learner
        }
        won = joint_vote(self.members.incoming, self.members.outgoing, active)
        return won is VoteResult.WON

    def committed_in_term(self) -> bool:
        """Whether the leader has committed an entry of its own term."""
        invariant(self.role is Role.LEADER, "only a leader asks")
        return self.log.term(self.log.committed) == self.term
