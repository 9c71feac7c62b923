"""One member of one group: messages and ticks in, a batch of work out.

    node.step(message), node.tick(), node.propose(...)     something happened
    if node.has_ready(): ready = node.ready()              what to persist, send, apply

With asynchronous storage, `ready.append` and `ready.apply` are orders; they are carried out in the
order given, and their responses are stepped (or sent) when they are done. Otherwise: persist, send,
apply, then `advance()`.

A commit index need not be durable, with one exception: an order that writes a change of members
writes the commit index with it. A member that acknowledges a change must not forget that the one
before it was committed, or it could be elected by members of the past.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lowmark.errors import invariant
from lowmark.raft import changes, elections, membership, reads, replication
from lowmark.raft.elections import Campaign
from lowmark.raft.log_view import LineageLeft
from lowmark.raft.membership import ConfChange
from lowmark.raft.messages import (
    NOBODY,
    Append,
    AppendResponse,
    Buffer,
    ConfState,
    Entry,
    EntryKind,
    Forward,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Install,
    Message,
    ReadIndex,
    ReadIndexResponse,
    Response,
    Snapshot,
    StorageAppend,
    StorageAppended,
    StorageApplied,
    StorageApply,
    TimeoutNow,
    TransferLeader,
    Vote,
    VoteResponse,
    entries_bytes,
    lineage_of,
    payload_bytes,
)
from lowmark.raft.progress import ProgressState
from lowmark.raft.state import (
    Config,
    Core,
    DropReason,
    ProposalDropped,
    ReadMode,
    ReadState,
    Role,
    SoftState,
)

_REQUESTS = (Append, Heartbeat, Install, Vote)
_RESPONSES = (AppendResponse, HeartbeatResponse, VoteResponse)


class Ready(msgspec.Struct, kw_only=True):
    """A batch of work."""

    soft: SoftState | None
    hard: HardState | None
    read_states: list[ReadState]
    entries: list[Entry]
    snapshot: Snapshot | None
    committed: list[Entry]
    messages: list[Message]
    must_sync: bool
    append: StorageAppend | None = None
    apply: StorageApply | None = None


class RaftNode:
    """The core, as its driver uses it."""

    def __init__(self, config: Config) -> None:
        self.core = Core(config)
        self._async = config.async_storage
        self._soft = self.core.soft_state
        self._hard = self.core.hard_state
        self._on_advance: list[Response | StorageApplied] = []

    # -- events ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """A little time has passed."""
        core = self.core
        if core.role is Role.LEADER:
            self._tick_leader()
            return
        core.election_elapsed += 1
        if core.election_elapsed >= core.election_timeout and core.promotable:
            core.election_elapsed = 0
            elections.start(core)

    def _tick_leader(self) -> None:
        core = self.core
        core.heartbeat_elapsed += 1
        core.election_elapsed += 1
        if core.election_elapsed >= core.config.election_ticks:
            core.election_elapsed = 0
            if core.config.check_quorum:
                elections.check_quorum(core)
            core.transferee = NOBODY  # it had its time
            changes.leave_if_due(core)
        if core.role is Role.LEADER and core.heartbeat_elapsed >= core.config.heartbeat_ticks:
            core.heartbeat_elapsed = 0
            for progress in core.progress.values():
                progress.nudged = False
            replication.broadcast_heartbeat(core)

    def campaign(self) -> None:
        """Stand for election now."""
        elections.start(self.core)

    def propose(self, datas: Sequence[Buffer]) -> None:
        """Propose entries, all or none; raises `ProposalDropped`."""
        entries = [Entry(0, 0, EntryKind.NORMAL, data) for data in datas]
        if self.core.role is Role.LEADER:
            changes.propose(self.core, entries)
        else:
            self._propose(entries)

    def propose_change(self, change: ConfChange, *, single: bool = False) -> None:
        """Propose a change of members; raises `ProposalDropped`."""
        kind = EntryKind.CHANGE if single else EntryKind.JOINT_CHANGE
        self._propose([Entry(0, 0, kind, change.encode())])

    def _propose(self, entries: list[Entry]) -> None:
        core = self.core
        if core.role is Role.LEADER:
            changes.propose(core, entries)
        elif core.leader == NOBODY or core.role is not Role.FOLLOWER:
            raise ProposalDropped(DropReason.NO_LEADER)
        elif not core.config.forward_proposals:
            raise ProposalDropped(DropReason.NOT_LEADER)
        else:
            core.send(Forward(core.leader, core.node, 0, core.incarnation_of(core.leader), entries))

    def apply_change(self, change: ConfChange, *, index: int = 0) -> ConfState:
        """The entry of a change was applied; give the configuration now in force."""
        core = self.core
        stored = changes.apply_change(core, change, index=index)
        if core.role is Role.LEADER:
            reads.release_early(core)
            reads.release_confirmed(core)
        return stored

    def found(self, members: ConfState) -> None:
        """The entry that names the first members was applied."""
        self.core.set_members(membership.restore(members), frozenset())

    def read_index(self, context: bytes) -> None:
        """Ask for an index to read at; it comes as a `ReadState` with this context, or never."""
        self._read_index(ReadIndex(0, NOBODY, 0, 0, context))

    def _read_index(self, request: ReadIndex) -> None:
        core = self.core
        if core.role is Role.LEADER:
            reads.ask(core, request)
        elif core.role is Role.FOLLOWER and core.leader != NOBODY and request.sender == NOBODY:
            # Only our own: a node that asked us by mistake asks again, and none speaks for another.
            incarnation = core.incarnation_of(core.leader)
            core.send(ReadIndex(core.leader, core.node, 0, incarnation, request.context))

    def transfer_leader(self, to: int) -> None:
        """Hand leadership to a voter, or ask the leader to."""
        core = self.core
        if core.role is Role.LEADER:
            self._transfer(to)
        elif core.role is Role.FOLLOWER and core.leader != NOBODY:
            incarnation = core.incarnation_of(core.leader)
            core.send(TransferLeader(core.leader, core.node, core.term, incarnation, to))

    def _transfer(self, to: int) -> None:
        core = self.core
        progress = core.progress.get(to)
        if progress is None or progress.is_learner or to in {core.transferee, core.node}:
            if to == core.node:
                core.transferee = NOBODY
            return
        core.election_elapsed = 0  # it gets one election timeout
        core.transferee = to
        if progress.match == core.log.last_index:
            replication.send_timeout_now(core, to)
        else:
            replication.send_append(core, to)

    def forget_leader(self) -> None:
        """Believe in no leader, and be ready to vote; the term stays."""
        core = self.core
        if core.role is Role.FOLLOWER and core.config.read_mode is not ReadMode.LEASE:
            core.leader = NOBODY

    def call(self, node: int) -> None:
        """A member is there that may not have heard of this leader: call it without a tick."""
        progress = self.core.progress.get(node)
        if self.core.role is Role.LEADER and progress is not None and node != self.core.node:
            replication.send_heartbeat(self.core, node, progress)

    def report_unreachable(self, node: int) -> None:
        """Messages to a member may have been lost."""
        progress = self.core.progress.get(node)
        if self.core.role is Role.LEADER and progress is not None:
            replication.unreachable(progress)

    def report_snapshot(self, node: int, *, failed: bool) -> None:
        """A snapshot was delivered to a member, or given up."""
        progress = self.core.progress.get(node)
        if self.core.role is Role.LEADER and progress is not None:
            replication.snapshot_reported(progress, failed=failed)

    # -- messages -------------------------------------------------------------------------------

    def step(self, message: Message) -> None:
        """A message has come from another member, or one of our own after a write."""
        core = self.core
        if not self._may_hear(message):
            return
        if message.term > core.term:
            if isinstance(message, Vote):
                if not message.transfer and elections.in_lease(core):
                    return
                if not message.pre:
                    # Only a vote that is given puts off the next election: a candidate that can't
                    # win must not keep others from it.
                    elapsed = core.election_elapsed if core.role is Role.FOLLOWER else 0
                    core.become_follower(message.term, NOBODY)
                    core.election_elapsed = elapsed
            elif isinstance(message, VoteResponse) and message.pre and not message.reject:
                pass  # it is about the term that was asked for
            elif isinstance(message, Append | Heartbeat | Install):
                core.become_follower(message.term, message.sender)
            elif message.term:
                core.become_follower(message.term, NOBODY)
        elif 0 < message.term < core.term:
            self._step_lower(message)
            return
        self._step_current(message)

    def _may_hear(self, message: Message) -> bool:
        """Whether a message is of this lineage, and meant for, or from, present incarnations."""
        core = self.core
        lineage = lineage_of(message)
        if lineage != core.lineage and not self._adopts(message, lineage):
            return False
        if isinstance(message, _RESPONSES):
            progress = core.progress.get(message.sender)
            return progress is not None and message.incarnation >= progress.incarnation
        if message.incarnation > core.incarnation and isinstance(message, _REQUESTS):
            core.incarnation = message.incarnation
        if isinstance(message, Vote) and message.incarnation < core.incarnation:
            # It is meant for a copy that is no more, and that may have acknowledged what the
            # candidate lacks: this one can't judge. Who knows the present members asks anew.
            return False
        return not core.mute

    def _adopts(self, message: Message, lineage: int) -> bool:
        """Whether a message of another lineage is heard: by a copy that has nothing yet.

        A leader calls only members. So one of a later lineage calls this node because it was added
        to that group; what is here may differ from the group's log, even where it is committed, and
        must go first (`LineageLeft`). Any other message of another lineage is for or from a member
        of a group that is not this one.
        """
        core = self.core
        if lineage < core.lineage or not isinstance(message, Append | Heartbeat):
            return False
        if core.log.last_index:
            raise LineageLeft(own=core.lineage, theirs=lineage)
        core.lineage, core.incarnation = lineage, message.incarnation
        return True

    def _step_lower(self, message: Message) -> None:
        core = self.core
        if isinstance(message, Append | Heartbeat):
            if core.config.check_quorum or core.config.pre_vote:
                # Its sender may never hear of the higher term otherwise: votes are ignored while
                # it leads.
                core.send_durable(
                    AppendResponse(message.sender, core.node, core.term, core.incarnation, 0)
                )
        elif isinstance(message, Vote) and message.pre:
            # Silence could leave two members waiting for each other for ever: one with the longer
            # log, one with the higher term.
            elections.refuse_vote(core, message)

    def _step_current(self, message: Message) -> None:
        core = self.core
        match message:
            case Append() | Heartbeat() | Install():
                self._step_from_leader(message)
            case AppendResponse():
                if core.role is Role.LEADER:
                    progress = core.progress[message.sender]
                    if replication.heard_append_response(core, message, progress):
                        reads.release_early(core)
            case HeartbeatResponse():
                if core.role is Role.LEADER:
                    self._heard_heartbeat_response(message)
            case Vote():
                elections.answer_vote(core, message)
            case VoteResponse():
                elections.heard_vote(core, message)
            case TimeoutNow():
                if core.role is Role.FOLLOWER:
                    elections.start(core, Campaign.TRANSFER)
            case ReadIndex():
                self._read_index(message)
            case ReadIndexResponse():
                if core.role is Role.FOLLOWER:
                    core.read_states.append(ReadState(message.index, message.context))
            case TransferLeader():
                self.transfer_leader(message.transferee)
            case Forward():
                # A message may come twice, and what is in the log already must not change.
                self._propose([Entry(0, 0, e.kind, e.data) for e in message.entries])
            case _:
                invariant(False, f"a message of an unknown kind: {type(message).__name__}")

    def _step_from_leader(self, message: Append | Heartbeat | Install) -> None:
        core = self.core
        if core.role is Role.LEADER:
            return  # there is one leader in a term: this one
        if core.role is not Role.FOLLOWER:
            core.become_follower(message.term, message.sender)
        elif core.leader not in {NOBODY, message.sender}:
            return  # there is one leader in a term, and it is known
        core.election_elapsed = 0
        core.leader = message.sender
        match message:
            case Append():
                replication.answer_append(core, message)
            case Heartbeat():
                replication.answer_heartbeat(core, message)
            case Install():
                replication.answer_install(core, message)

    def _heard_heartbeat_response(self, message: HeartbeatResponse) -> None:
        core = self.core
        progress = core.progress[message.sender]
        progress.recent_active = True
        progress.disk_full = message.disk_full
        # Once per heartbeat: a member that was held up answers all that it missed at a time, and
        # each answer would have the same entries read and sent once more.
        if not progress.nudged:
            progress.flow_paused = False
            if progress.match < core.log.last_index or progress.state is ProgressState.PROBE:
                replication.send_append(core, message.sender)
                progress.nudged = True
        if message.sender == core.transferee and progress.match == core.log.last_index:
            # One that has not applied yet what made it a voter ignored the first call.
            replication.send_timeout_now(core, message.sender)
        if message.context:
            reads.heard_round(core, message, progress)

    # -- storage --------------------------------------------------------------------------------

    def appended(self, done: StorageAppended) -> None:
        """A write is durable."""
        core = self.core
        if done.index and done.term == core.term:
            core.log.stable_to(done.index, done.log_term)
        if done.snapshot is not None:
            index = done.snapshot.index
            core.log.unstable.stable_snapshot_to(index)
            self._applied_to(max(index, core.log.applied), 0)

    def applied(self, done: StorageApplied) -> None:
        """Entries were applied."""
        core = self.core
        if done.entries:
            self._applied_to(
                max(done.entries[-1].index, core.log.applied), entries_bytes(done.entries)
            )
            core.uncommitted_bytes = max(0, core.uncommitted_bytes - payload_bytes(done.entries))

    def _applied_to(self, index: int, size: int) -> None:
        self.core.log.applied_to(index, size)
        changes.leave_if_due(self.core)

    # -- work to do -----------------------------------------------------------------------------

    def has_ready(self) -> bool:
        """Whether there is anything to do."""
        core, tail = self.core, self.core.log.unstable
        return bool(
            core.outbox
            or core.after_append
            or core.read_states
            or tail.in_progress < tail.start + len(tail.entries)
            or (tail.snapshot is not None and not tail.snapshot_in_progress)
            or (
                core.log.applying < core.log.committed
                and core.log.has_next_committed(not self._async)
            )
            or self._state_changed()
        )

    def _state_changed(self) -> bool:
        """Asked all the time, so it makes no state to compare."""
        core, hard, soft = self.core, self._hard, self._soft
        return (
            core.log.committed != hard.commit
            or core.term != hard.term
            or core.vote != hard.vote
            or core.incarnation != hard.incarnation
            or core.leader != soft.leader
            or core.role is not soft.role
        )

    def ready(self) -> Ready:
        """What to persist, send and apply now."""
        core, unstable = self.core, self.core.log.unstable
        soft, hard = core.soft_state, core.hard_state
        entries = unstable.entries[unstable.in_progress - unstable.start :]
        committed: list[Entry] = []
        if core.log.applying < core.log.committed:
            committed = core.log.next_committed(not self._async)
        snapshot = None if unstable.snapshot_in_progress else unstable.snapshot
        before = self._hard
        durable_part = (hard.term, hard.vote, hard.incarnation)
        ready = Ready(
            soft=soft if soft != self._soft else None,
            hard=hard if hard != before else None,
            read_states=core.read_states,
            entries=entries,
            snapshot=snapshot,
            committed=committed,
            messages=core.outbox,
            must_sync=bool(entries)
            or durable_part != (before.term, before.vote, before.incarnation),
        )
        self._soft, self._hard = soft, hard
        own = self._storage_appended(ready)
        if not self._async:
            self._order_in_step(ready, own)
        elif entries or ready.hard is not None or snapshot is not None or core.after_append:
            # An order is never made for `own` alone: it would be made again and again.
            responses: list[Response] = [*core.after_append]
            if own is not None:
                responses.append(own)
            ready.append = StorageAppend(entries, ready.hard, snapshot, responses)
        if committed and self._async:
            ready.apply = StorageApply(committed)
        core.outbox, core.after_append, core.read_states = [], [], []
        unstable.accept()
        if committed:
            size = entries_bytes(committed)
            core.log.accept_applying(committed[-1].index, size, not self._async)
        return ready

    def _order_in_step(self, ready: Ready, own: StorageAppended | None) -> None:
        """For owners that write and apply all of it before `advance`."""
        core = self.core
        ready.messages += [m for m in core.after_append if m.to != core.node]
        self._on_advance += [m for m in core.after_append if m.to == core.node]
        if own is not None:
            self._on_advance.append(own)
        if ready.committed:
            self._on_advance.append(StorageApplied(ready.committed))

    def _storage_appended(self, ready: Ready) -> StorageAppended | None:
        """What to say when this write is durable: how the log ended when it was ordered."""
        core = self.core
        all_durable = core.log.all_durable
        if all_durable and ready.snapshot is None:
            return None
        index, term = (0, 0) if all_durable else (core.log.last_index, core.log.last_term)
        return StorageAppended(core.term, index, term, ready.snapshot)

    def advance(self) -> None:
        """Everything of the last batch is done. (Without asynchronous storage only.)"""
        invariant(not self._async, "asynchronous storage answers for itself")
        steps, self._on_advance = self._on_advance, []
        for step in steps:
            self.deliver(step)

    def deliver(self, response: Response | StorageApplied) -> None:
        """Something that this member told itself, after a write."""
        match response:
            case StorageAppended():
                self.appended(response)
            case StorageApplied():
                self.applied(response)
            case AppendResponse() | VoteResponse():
                self.step(response)
