"""One member of a group: the core, its log and its machine, and those who wait for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from random import Random
from typing import Protocol

from lowmark.errors import Corrupt, LowmarkError, Rejected, invariant
from lowmark.group import envelope
from lowmark.group.config import GroupConfig
from lowmark.group.envelope import Command
from lowmark.group.errors import (
    CommandTooLarge,
    EntryTooNew,
    GroupBusy,
    GroupStopped,
    MachineFailed,
    MachineTooOld,
    NotAMember,
    NotLeader,
    OutcomeUnknown,
    QuarantinedHere,
    ShuttingDown,
)
from lowmark.group.future import Future
from lowmark.group.machine import Machine
from lowmark.group.observer import Observer
from lowmark.group.peers import ChangeAnswer, PeerChange, PeerListener, Stage
from lowmark.group.receiving import Receiving
from lowmark.group.requests import Proposal, Proposals, Read, Reads
from lowmark.group.resting import Resting
from lowmark.group.rewriting import Rewrite
from lowmark.group.sending import Sends
from lowmark.group.snapshotting import Snapshots
from lowmark.group.state_record import GroupMeta, SnapshotMembers
from lowmark.group.status import GroupStatus, PeerStatus
from lowmark.group.storage import GroupStorage
from lowmark.group.tracking import Tracking
from lowmark.group.wire import (
    InstallOffer,
    InstallOver,
    InstallPiece,
    InstallWant,
    Item,
    Knows,
    NotHere,
    Rejoin,
    Rest,
    Rested,
)
from lowmark.group.writes import Writes
from lowmark.log import (
    Dropped,
    EntryGone,
    EntryTooLarge,
    GroupLog,
    ReferenceExpired,
    Written,
)
from lowmark.raft import (
    NOBODY,
    ConfChange,
    Config,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    Install,
    LogDiverged,
    LogLost,
    Members,
    MembershipRefused,
    Message,
    Progress,
    ProgressState,
    ProposalDropped,
    RaftNode,
    Ready,
    Role,
    Snapshot,
    StorageAppended,
    StorageApplied,
)
from lowmark.raft.messages import Response
from lowmark.runtime import Buffer, DiskFailed, DiskFull, HybridClock

__all__ = ["Group", "Services"]

logger = logging.getLogger(__name__)

_UNREADABLE = (DiskFailed, DiskFull, EntryGone, ReferenceExpired)
"""A disk that fails to read is no proof of damage: the core is made anew, and asks again."""
_BATCHES_PER_TURN = 8
_TERM_JUMP_MAX = 1 << 32
"""No group has so many elections while a member is away."""
_LOOKS_PER_QUESTION = 6
"""How seldom a copy that rests asks whether its leader's copy is still there."""


class Services(Protocol):
    """What a group asks of its node."""

    node: int
    config: GroupConfig
    clock: HybridClock
    random: Random

    def now_ms(self) -> int: ...
    def later(self, delay_ms: float, callback: Callable[[], None]) -> None: ...
    def send(self, group: str, item: Item) -> None: ...
    def wake(self, group: Group) -> None: ...
    def quarantine(self, group: str, cause: LowmarkError) -> None: ...
    def cut(self, node: int, reason: str) -> None: ...


class Group:
    """One copy of a group. All calls are made on the loop; work is done in `work`, once a turn."""

    def __init__(
        self,
        services: Services,
        log: GroupLog,
        machine: Machine,
        listener: PeerListener,
        meta: GroupMeta,
        observer: Observer,
    ) -> None:
        self.name = log.name
        self.node = services.node
        self.config = services.config
        self.machine = machine
        self.log = log
        self._services = services
        self._listener = listener
        self._observer = observer
        self._meta = meta
        self._rejoin_above = meta.rejoin_above
        self._storage = GroupStorage(log, meta.founders)
        self.applied = 0
        self.last_time = 0
        """Of the last command that was applied."""
        self._stamped = 0
        """What this leader last stamped."""
        self.version = 1
        self._members_applied = meta.founders
        self._founded = False
        self._restore_machine()
        self._proposals = Proposals(self.name)
        self._reads = Reads(self.name, services.random.randbytes(8))
        self._writes = self._new_writes(meta)
        self._sends = Sends(self, log, failed=self._send_failed)
        self._receiving = Receiving(self, log, whole=self._fetched)
        self._snapshots = Snapshots(log, machine, services.config, services.now_ms())
        self._changes = PeerChange(
            self,
            listener,
            near_entries=self.config.near_entries,
            near_bytes=self.config.near_bytes,
            stall_ms=self.config.catch_up_stall_ms,
        )
        self.resting = Resting(self.config)
        self._tracking = Tracking()
        self._rewrite: Rewrite | None = None
        self._known_versions: dict[int, int] = {}
        self._version_proposed = 0
        self._told_leader = (0, 0)
        self._told_at_ms = 0
        self._ready_told = 0
        self._founding_in = 0
        self._ticks = self._looks = 0
        self._stuck_order: object = None
        self._role = Role.FOLLOWER
        self._own: list[Response] = []
        self.stopped: LowmarkError | None = None
        self.raft = self._new_raft()
        if log.quarantined is not None:
            self._replay_sound()
            self._stop(QuarantinedHere(self.name, cause=log.quarantined))
        elif self.raft.core.singleton:
            self._act(self.raft.campaign)  # there is nobody to wait for

    def _new_writes(self, meta: GroupMeta) -> Writes:
        return Writes(
            self.log,
            meta,
            install=self._install,
            release=self._release,
            failed=self._write_failed,
        )

    def _new_raft(self) -> RaftNode:
        self._storage.members_now = self._members_applied
        self._storage.commit_floor = self.applied
        config = self.config
        return RaftNode(
            Config(
                node=self.node,
                storage=self._storage,
                election_ticks=config.election_ticks,
                heartbeat_ticks=config.heartbeat_ticks,
                draw=self._services.random.randrange,
                applied=self.applied,
                message_bytes_max=config.message_bytes_max,
                uncommitted_bytes_max=config.waiting_bytes_max,
                inflight_max=config.inflight_max,
                inflight_bytes_max=config.inflight_bytes_max,
                rejoin_above=self._rejoin_above,
            )
        )

    # -- asking ---------------------------------------------------------------------------------

    @property
    def _running(self) -> bool:
        return self.stopped is None

    @property
    def leads(self) -> bool:
        """Whether this member leads, as far as it knows."""
        return self.stopped is None and self.raft.core.role is Role.LEADER

    @property
    def ready(self) -> bool:
        """Whether this member leads and has applied the first entry of its term."""
        return self.leads and self.applied >= self.raft.core.term_start

    @property
    def leader(self) -> int:
        """Who leads, as far as this member knows; 0 if it does not know."""
        return self.raft.core.leader

    @property
    def term(self) -> int:
        """The term that this member is in."""
        return self.raft.core.term

    @property
    def machine_newest(self) -> int:
        """The newest version of the machine that this process knows."""
        return self.machine.newest_version

    def propose(self, command: Buffer, *, timeout_ms: int | None = None) -> Future[object]:
        """Have a command applied by all members; the future gives the machine's result.

        It always resolves: with the result, or with the reason (see `errors`).
        """
        if not isinstance(command, bytes | bytearray | memoryview):
            raise TypeError(f"a command is bytes, not {type(command).__name__}")
        future: Future[object] = Future()
        refusal = self._refusal(len(command))
        if refusal is not None:
            future.reject(refusal)
            return future
        self._queue(command, raw=False, future=future, timeout_ms=timeout_ms)
        return future

    def _refusal(self, size: int) -> LowmarkError | None:
        if self.stopped is not None:
            return self.stopped.again()
        if not self.leads:
            return NotLeader(self.name, leader=self.leader or None)
        if size > self.config.command_bytes_max:
            return CommandTooLarge(size=size, limit=self.config.command_bytes_max)
        if len(self._proposals) + len(self._reads) >= self.config.waiting_requests_max:
            return GroupBusy(self.name, why=f"{self.config.waiting_requests_max} requests wait")
        waiting = self._proposals.queued_bytes
        if waiting and waiting + size > self.config.waiting_bytes_max:
            return GroupBusy(self.name, why=f"{waiting} bytes of commands wait")
        return None

    def _queue(
        self, data: Buffer, *, raw: bool, future: Future[object], timeout_ms: int | None
    ) -> None:
        now = self._services.now_ms()
        wait = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        self._proposals.queue(Proposal(data, raw, future, now, now + wait))
        self._wake()

    def propose_wrapped(self, datas: list[bytes]) -> list[Future[object]]:
        """Propose entries of the group's own; raises if nothing can be proposed here."""
        refusal = self._refusal(0)
        if refusal is not None:
            raise refusal
        futures: list[Future[object]] = [Future() for _ in datas]
        for data, future in zip(datas, futures, strict=True):
            self._queue(data, raw=True, future=future, timeout_ms=None)
        return futures

    def read(self, query: object, *, timeout_ms: int | None = None) -> Future[object]:
        """Ask the machine, linearizably: the answer reflects all that was answered before."""
        future: Future[object] = Future()
        if self.stopped is not None:
            future.reject(self.stopped.again())
            return future
        if len(self._proposals) + len(self._reads) >= self.config.waiting_requests_max:
            limit = self.config.waiting_requests_max
            future.reject(GroupBusy(self.name, why=f"{limit} requests wait"))
            return future
        now = self._services.now_ms()
        wait = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        self._reads.new.append(Read(query, future, now, now + wait))
        self._wake()
        return future

    def read_local(self, query: object) -> object:
        """Ask the machine as it is here: the answer may be old. Works without any other member."""
        return self.machine.read(query)

    def read_command(self, index: int) -> Command:
        """The command of an entry that is live, or not covered by a snapshot yet."""
        (command,) = self.read_commands([index])
        return command

    def read_commands(self, indexes: list[int]) -> list[Command]:
        """The commands of several such entries; the indexes rise."""
        return [envelope.open_command(entry.data) for entry in self.log.read(indexes)]

    def transfer(self, to: int) -> None:
        """Ask for leadership to go to another voter."""
        if self.stopped is not None:
            raise self.stopped.again()
        if to not in self.raft.core.members.voters:
            raise NotAMember(self.name, to)
        self._act(lambda: self.raft.transfer_leader(to))

    def campaign(self) -> None:
        """Stand for election now, without waiting for a timeout."""
        if self.stopped is not None:
            raise self.stopped.again()
        self.resting.wake()
        self._act(self.raft.campaign)

    def change_peers(
        self, term: int, token: int, peers: list[int], *, learners: Iterable[int] = ()
    ) -> ChangeAnswer:
        """Move the group to these voters, and have these learners beside them; see `peers`."""
        beside = tuple(sorted(set(learners) - set(peers)))
        if not peers or any(not 0 < node < 1 << 63 for node in (*peers, *beside)):
            raise Rejected(
                "a group needs at least one voter, and nodes have numbers from 1 to 2^63 - 1",
                hint="Name the nodes that the group shall have.",
            )
        if not self.leads:
            return ChangeAnswer.NOT_LEADER
        if term != self.term:
            return ChangeAnswer.OTHER_TERM
        answer = self._changes.change(token, tuple(peers), beside)
        self._wake()
        return answer

    def cancel_change_peers(self) -> bool:
        """Give up a change that is still catching up; True if none is left. Only the leader can."""
        if not self.leads:
            return False
        cancelled = self._changes.cancel()
        self._wake()
        return cancelled

    def rewrite(self, indexes: list[int] | None = None) -> Future[int]:
        """Phase 4: copy these live entries, or all scattered ones, to the end of the log."""
        size = self.config.rewrite_chunk_entries
        if indexes is None:
            chunks = self.log.rewrite_plan(chunk_entries=size)
        else:
            if any(index < 1 for index in indexes):
                raise Rejected("an index is at least 1")
            wanted = sorted(set(indexes))
            chunks = [wanted[at : at + size] for at in range(0, len(wanted), size)]
        run = Rewrite(self, self.log, self.machine, chunks)
        if self._rewrite is not None and not self._rewrite.future.done:
            run.stop(GroupBusy(self.name, why="another rewrite is under way"))
        elif self.stopped is not None:
            run.stop(self.stopped.again())
        elif not self.ready:
            run.stop(NotLeader(self.name, leader=self.leader or None))
        else:
            self._rewrite = run
            run.next_chunk()
        return run.future

    def snapshot(self) -> None:
        """Take a snapshot soon, whatever the size of the log."""
        self._snapshots.want()
        if self.stopped is None:
            self._act(lambda: self._maybe_snapshot(self._services.now_ms()))

    # -- events ---------------------------------------------------------------------------------

    def received(self, sender: int, item: Item) -> None:
        """A message has come from another node."""
        if self.stopped is not None:
            return
        match item:
            case Rest():
                self._asked_to_rest(item)
            case Rested():
                self.resting.rested(sender, item, self.raft)
            case Message():
                # A heartbeat and its answer are no sign of work: they are what rest is to end.
                if self.resting.resting or not isinstance(item, Heartbeat | HeartbeatResponse):
                    self.resting.wake()
                self._act(lambda: self._step(sender, item))
            case Knows():
                if self._known_versions.get(sender) != item.version:
                    self._act(lambda: self._known(sender, item))  # no reason to end a rest
            case _:
                self.resting.wake()
                self._act(lambda: self._received_own(sender, item))

    def _step(self, sender: int, message: Message) -> None:
        core = self.raft.core
        if message.term > core.term + _TERM_JUMP_MAX:
            self._services.cut(sender, f"a message of term {message.term}, far beyond any")
            return
        try:
            self.raft.step(message)
        except (LogLost, LogDiverged) as damage:
            if sender in core.members.everybody:
                raise
            # What a stranger says about this log is no proof against it.
            self._services.cut(sender, damage.message)
            return
        if self.leads:
            self._changes.heard(sender)
            progress = self.raft.core.progress.get(sender)
            if progress is None or progress.state is not ProgressState.SNAPSHOT:
                self._sends.stop(sender)
            elif progress.match >= progress.pending_snapshot:
                # It has it, but the log has moved on: it needs another one.
                self._sends.stop(sender)
                self.raft.report_snapshot(sender, failed=False)
            if progress is not None and progress.is_learner and self.ready:
                self._changes.go_on()

    def _received_own(self, sender: int, item: Item) -> None:
        match item:
            case InstallOffer():
                self._offered(item)
            case InstallPiece():
                self._receiving.piece(item)
            case InstallWant():
                if self.leads:
                    self._changes.heard(sender)
                self._sends.wanted(item)
            case InstallOver():
                self._receiving.over(item)
            case Rejoin():
                self._asked_to_rejoin(sender, item)
            case NotHere():
                if self.leads:
                    self._changes.not_here(sender)
                elif sender == self.leader:
                    self.raft.forget_leader()  # its node lives, but its copy does not
            case _:
                pass

    def refused(self, item: Item) -> None:
        """A message could not be sent: the peer's queue is full, or nobody knows where it is."""
        if self.stopped is None and isinstance(item, Message):
            self.raft.report_unreachable(item.to)

    def lost(self, node: int) -> None:
        """The connection with a node broke."""
        self._known_versions.pop(node, None)  # it may come back as another release
        if self.stopped is None and node in self.raft.core.progress:
            self.raft.report_unreachable(node)

    def written(self, event: Written) -> None:
        """Entries are durable."""
        if self.stopped is None:
            self._act(lambda: self._writes.written(event))

    def dropped(self, event: Dropped) -> None:
        """The log lost entries that it could not write: it is in quarantine."""
        cause = self.log.quarantined or f"entries from {event.first} on could not be written"
        self._stop(QuarantinedHere(self.name, cause=cause))

    def writable(self) -> None:
        """The log takes writes again."""
        if self.stopped is None and not self._writes.idle:
            self._act(self._writes.retry)

    def tick(self) -> None:
        """A little time has passed."""
        if self.stopped is not None:
            return
        if self.log.quarantined is not None:
            self._stop(QuarantinedHere(self.name, cause=self.log.quarantined))
            return
        self._act(self._tick)

    def _tick(self) -> None:
        if self.resting.tick(self.raft, self.quiet):
            self._propose_rest()  # in place of a heartbeat, which would wake everybody
        else:
            self.raft.tick()
        now = self._services.now_ms()
        self._proposals.expire(now)
        self._reads.expire(now)
        self._reads.ask_again(now, self.config.election_ms)
        self._sends.tick()
        self._receiving.tick()
        self._tell_version()
        self._ticks += 1
        if self._ticks % self.config.election_ticks == 0:
            self._ask_to_rejoin()
            self._hand_over_if_stuck()
        if self.leads:
            self._tracking.tick(now, self.raft.core.progress, self)
            if self.ready:
                self._maybe_found()
                self._changes.go_on()
                self._changes.bring_back()
        self._maybe_snapshot(now)

    def close(self) -> None:
        """Stop; whoever waits is told."""
        self._stop(GroupStopped(self.name))

    # -- one turn -------------------------------------------------------------------------------

    def _wake(self) -> None:
        self.resting.wake()
        self._services.wake(self)

    def _act(self, step: Callable[[], None]) -> None:
        """Do something with the core; if that shows damage, this copy stops."""
        try:
            step()
        except Corrupt as damage:
            self._damaged(damage)
            return
        except _UNREADABLE as error:
            self._start_over(error)
        except EntryTooLarge as error:
            self._stop(error)
            return
        self._services.wake(self)

    def work(self) -> None:
        """Do everything there is to do now."""
        if self.stopped is not None:
            return
        try:
            handled = 0
            self._ask_reads()
            while self._running:
                self._deliver_own()
                self._enter_proposals()
                if not self.raft.has_ready():
                    return
                if handled == _BATCHES_PER_TURN:
                    self._services.wake(self)  # others have work, too
                    return
                handled += 1
                self._handle(self.raft.ready())
        except Corrupt as damage:
            self._damaged(damage)
        except _UNREADABLE as error:
            self._start_over(error)
        except EntryTooLarge as error:
            self._stop(error)

    def _enter_proposals(self) -> None:
        proposals = self._proposals
        if not proposals.queued or not self.ready:
            return
        core = self.raft.core
        if core.transferee != NOBODY:
            return  # until it is known who leads
        room = self.config.waiting_bytes_max - core.uncommitted_bytes
        count = size = 0
        for proposal in proposals.queued:
            size += len(proposal.data) + (0 if proposal.raw else envelope.COMMAND_BYTES)
            if size > room and (count or core.uncommitted_bytes):
                break
            count += 1
        if not count:
            return
        taken = proposals.take(count)
        datas: list[Buffer] = []
        for proposal in taken:
            if proposal.raw:
                datas.append(proposal.data)
            else:
                floor = max(self._stamped, self.last_time) + 1
                self._stamped = max(self._services.clock.now(), floor)
                datas.append(envelope.wrap_command(self._stamped, proposal.data))
        first = core.log.last_index + 1
        try:
            self.raft.propose(datas)
        except ProposalDropped:
            for proposal in taken:
                proposal.future.reject(NotLeader(self.name, leader=self.leader or None))
            return
        proposals.entered(first, core.term, taken)

    def _ask_reads(self) -> None:
        if self._reads.new and self.leader != NOBODY:  # else there is nobody to ask yet
            self.raft.read_index(self._reads.ask(self._services.now_ms()))

    def _handle(self, ready: Ready) -> None:
        if ready.soft is not None:
            self._role_changed()
            self._observer.on_leader_changed(self.leader, self.term)
        for message in ready.messages:
            if isinstance(message, Install):
                self._sends.start(message)
            else:
                self.send(message)
        if ready.append is not None:
            self._writes.order(ready.append)
        for state in ready.read_states:
            self._reads.confirmed(state.context, state.index)
        if ready.apply is not None and self._running:
            self._apply(ready.apply.entries)
        self._answer_reads()

    def _release(self, responses: list[Response]) -> None:
        """What these claim is durable now."""
        for response in responses:
            if isinstance(response, StorageAppended) or response.to == self.node:
                self._own.append(response)
            else:
                self.send(response)
        self._services.wake(self)

    def _deliver_own(self) -> None:
        while self._own:
            own, self._own = self._own, []
            for response in own:
                self.raft.deliver(response)

    def _role_changed(self) -> None:
        role = self.raft.core.role
        if role is Role.LEADER and self._role is not Role.LEADER:
            self._known_versions = {self.node: self.machine_newest}
            self._version_proposed = 0
            self._tracking.clear()
        elif role is not Role.LEADER and self._role is Role.LEADER:
            self._sends.stop_all()
            self._changes.lost_leadership()
            if self._rewrite is not None:
                self._rewrite.stop(NotLeader(self.name, leader=self.leader or None))
            self._proposals.refuse_queued(lambda: NotLeader(self.name, leader=self.leader or None))
        self._role = role

    # -- applying -------------------------------------------------------------------------------

    def _apply(self, entries: list[Entry]) -> None:
        machine, leader = self.machine, self.leader
        answer = self._proposals.applied
        for entry in entries:
            invariant(entry.index == self.applied + 1, "entries are applied one after another")
            result: object = None
            data = entry.data
            if entry.kind is not EntryKind.NORMAL:
                self._apply_change(entry)
            elif data:
                kind = data[0]
                if kind == envelope.COMMAND:
                    time, command = envelope.open_command(data)
                    try:
                        result = machine.apply(entry.index, time, command)
                    except Exception as error:
                        what = f"the command at {entry.index}: {error!r}"
                        self._stop(MachineFailed(self.name, what=what))
                        return
                    self.last_time = max(self.last_time, time)
                elif kind == envelope.COPY:
                    machine.moved(envelope.old_index_of(data), entry.index)
                elif kind == envelope.VERSION:
                    if not self._upgrade(envelope.version_of(data)):
                        return
                elif kind == envelope.FOUNDING:
                    self._apply_founding(data)
                else:
                    self._stop(EntryTooNew(self.name, index=entry.index, kind=kind))
                    return
            self.applied = entry.index
            answer(entry.index, entry.term, result, leader)
        self.raft.applied(StorageApplied(entries))
        self.log.let_go(self.applied)
        self._became_ready()
        self._observer.on_applied()
        self._maybe_snapshot(self._services.now_ms())

    def _replay_sound(self) -> None:
        """For those who only look: bring the machine as far as committed entries are sound."""
        core, bytes_max = self.raft.core, self.config.message_bytes_max
        if core.singleton:
            core.log.commit_to(self.log.last_index)  # nobody else need agree
        while self._running and self.applied < core.log.committed:
            try:
                page = self._storage.entries(self.applied + 1, core.log.committed + 1, bytes_max)
                self._apply(page or [])
            except LowmarkError:
                if bytes_max == 1:
                    return
                bytes_max = 1  # one at a time, up to the bad one

    def _apply_change(self, entry: Entry) -> None:
        was_joint, led = self.raft.core.members.joint, self.leads
        try:
            change = ConfChange.decode(entry.data)
            self._members_applied = self.raft.apply_change(change, index=entry.index)
        except MembershipRefused as refused:
            # The same for every member, since all apply it to the same configuration.
            logger.warning(
                "a change of members could not be made",
                extra={"group": self.name, "index": entry.index, "reason": refused.message},
            )
        self._members_changed(was_joint, led=led)

    def _apply_founding(self, data: Buffer) -> None:
        if not self._founded:
            self._founded = True
            self._members_applied = envelope.founders_of(data)
            self.raft.found(self._members_applied)

    def _members_changed(self, was_joint: bool, *, led: bool) -> None:
        core = self.raft.core
        for to in [to for to in self._known_versions if to not in core.progress]:
            del self._known_versions[to]
        if led:
            # A leader that is no member any more has just stepped down; the change is its own.
            self._changes.applied(core.members, was_joint=was_joint)
            if core.members.joint and self.node not in core.members.incoming:
                self._hand_over()

    def _upgrade(self, version: int) -> bool:
        if version > self.machine_newest:
            self._told_leader = (0, 0)
            self._tell_version()  # there may have been no time for it yet
            error = MachineTooOld(self.name, needed=version, have=self.machine_newest)
            self._stop(error)
            return False
        if version > self.version:
            self.version = version
            self.machine.upgrade(version)
        return True

    def _became_ready(self) -> None:
        """The first entry of this leader's term is applied: now it may do everything."""
        if not self.ready or self._ready_told == self.term:
            return
        self._ready_told = self.term
        self._maybe_found()
        self._maybe_new_version()
        self._listener.on_leader_elected(self.term)

    def _maybe_found(self) -> None:
        """Put the first members into the log, before anything changes them."""
        if self._founded or self._founding_in == self.term:
            return
        try:
            self.raft.propose([envelope.seal_founders(self.raft.core.members.stored())])
        except ProposalDropped:
            return  # leadership is being handed over: the next tick, or the next leader
        self._founding_in = self.term

    def _answer_reads(self) -> None:
        for read in self._reads.answerable(self.applied):
            try:
                answer = self.machine.read(read.query)
            except LowmarkError as error:
                read.future.reject(error)
            except Exception as error:
                read.future.reject(MachineFailed(self.name, what=f"a read: {error!r}"))
            else:
                read.future.resolve(answer)

    # -- snapshots ------------------------------------------------------------------------------

    def _restore_machine(self) -> None:
        snapshot = self.log.snapshot
        if snapshot is None:
            return
        meta = snapshot.meta
        if meta.machine_version > self.machine_newest:
            raise MachineTooOld(self.name, needed=meta.machine_version, have=self.machine_newest)
        self.machine.restore(self.log.read_snapshot(), meta.machine_version)
        record = SnapshotMembers.decode(meta.members)
        self.applied, self.last_time = meta.index, max(self.last_time, record.last_time)
        self.version = meta.machine_version
        self._members_applied = record.members
        self._founded = True
        if not self.log.row.known:
            self.log.restore_live(self.machine.live_indexes(), lambda _: None)

    def _maybe_snapshot(self, now_ms: int) -> None:
        if self.stopped is not None or self._receiving.busy:
            return
        close = self.leads and any(map(self._is_close, self.raft.core.progress.values()))
        if self._snapshots.due(self.applied, now_ms, follower_close=close):
            term = self.raft.core.log.term(self.applied)
            invariant(term is not None, "the last entry applied has a term")
            self._snapshots.take(
                index=self.applied,
                term=term or 0,
                members=self._members_applied,
                last_time=self.last_time,
                version=self.version,
                now_ms=now_ms,
            )

    def _is_close(self, progress: Progress) -> bool:
        """Whether a member is behind, but will be served from the log, now or after an install."""
        if progress.state is ProgressState.SNAPSHOT:
            return progress.recent_active
        comes = progress.state is ProgressState.REPLICATE or progress.recent_active
        return comes and self.log.first_index - 1 <= progress.match < self.applied

    def _send_failed(self, to: int) -> None:
        self.raft.report_snapshot(to, failed=True)

    def _offered(self, offer: InstallOffer) -> None:
        core = self.raft.core
        if offer.term < core.term or offer.incarnation <= self._rejoin_above:
            return
        if offer.sender != core.leader:
            return  # a leader is heard of before it offers anything, and offers again
        if self._snapshots.busy:
            return  # it is offered again
        if offer.snapshot.index <= core.log.committed:
            # Perhaps late news: it says how far this log is, and disturbs no newer one.
            self.raft.step(
                Install(self.node, offer.sender, offer.term, offer.incarnation, offer.snapshot)
            )
            return
        self._receiving.offered(offer)

    def _fetched(self, install: Install) -> None:
        """All of a snapshot is here: the core decides whether it is taken."""
        self.raft.step(install)
        taken = self.raft.core.log.unstable.snapshot
        if taken is None or taken.index != install.snapshot.index:
            self._receiving.abort()

    def _install(self, snapshot: Snapshot, on_done: Callable[[LowmarkError | None], None]) -> None:
        def done(error: LowmarkError | None) -> None:
            if self.stopped is not None:
                return
            if error is None:
                try:
                    self._restore_machine()
                except LowmarkError as damage:
                    self._stop(damage)
                    return
                self._proposals.skipped(self.applied)
                self._observer.on_restored()
            on_done(error)
            self._services.wake(self)

        self._receiving.finish(snapshot, done)

    def _write_failed(self, error: LowmarkError) -> None:
        """An order could not be carried out."""
        if isinstance(error, Corrupt) or self.log.quarantined is not None:
            self._damaged(error)
        elif isinstance(error, EntryTooLarge):
            self._stop(error)
        else:
            self._start_over(error)

    def _start_over(self, error: LowmarkError) -> None:
        """Make the core anew from what is durable; whatever it was about to do is forgotten."""
        self._writes.close()
        self._receiving.abort()
        logger.warning("starting over", extra={"group": self.name, "reason": error.message})
        self._sends.stop_all()
        self._changes.lost_leadership()
        self._own = []
        self._writes = self._new_writes(self._durable_meta())
        self.raft = self._new_raft()
        self._role = Role.FOLLOWER
        self._services.wake(self)

    def _durable_meta(self) -> GroupMeta:
        return GroupMeta.decode(self.log.meta) if self.log.meta else self._meta

    # -- stopping -------------------------------------------------------------------------------

    def _damaged(self, damage: LowmarkError) -> None:
        self._services.quarantine(self.name, damage)
        self._stop(QuarantinedHere(self.name, cause=damage.message))

    def _stop(self, error: LowmarkError) -> None:
        if self.stopped is not None:
            return
        self.stopped = error
        self.resting.wake()
        for node in self.raft.core.progress:
            if node != self.node:
                self.send(NotHere(node, self.node))  # whoever rests on this copy must not wait
        self._writes.close()
        self._sends.stop_all()
        self._receiving.abort()
        if self._rewrite is not None:
            self._rewrite.stop(error.again())
        self._proposals.refuse_queued(error.again)
        # Others may have these by now, and apply them.
        closing = isinstance(error, GroupStopped)
        self._proposals.refuse_pending(
            lambda: (
                ShuttingDown(self.name) if closing else OutcomeUnknown(self.name, why=error.message)
            )
        )
        self._reads.refuse(error.again)
        if self._role is Role.LEADER:
            self._changes.lost_leadership()
        self._observer.on_stopped(error)

    # -- versions of the machine ----------------------------------------------------------------

    def _tell_version(self) -> None:
        """Tell a leader what this member knows, and again now and then: a message may be lost."""
        core, now = self.raft.core, self._services.now_ms()
        if core.leader in {NOBODY, self.node}:
            return
        told = self._told_leader == (core.leader, core.term)
        if told and now - self._told_at_ms < self.config.election_ms:
            return
        self._told_leader, self._told_at_ms = (core.leader, core.term), now
        self.send(Knows(core.leader, self.node, core.term, self.machine_newest))

    def _known(self, sender: int, item: Knows) -> None:
        if not self.leads or item.term != self.term:
            return
        self._known_versions[sender] = item.version
        self._maybe_new_version()

    def _maybe_new_version(self) -> None:
        if not self.ready:
            return
        known = self._known_versions
        common = min(known.get(node, 0) for node in [*self.raft.core.progress, self.node])
        if common > max(self.version, self._version_proposed):
            try:
                self.raft.propose([envelope.seal_version(common)])
            except ProposalDropped:
                return  # members tell again
            self._version_proposed = common
            self._wake()

    # -- copies that were lost ------------------------------------------------------------------

    def _ask_to_rejoin(self) -> None:
        core = self.raft.core
        if core.incarnation > self._rejoin_above:
            return
        for node in self._meta.ask:
            if node != self.node:
                self.send(Rejoin(node, self.node, self._rejoin_above))

    def _asked_to_rejoin(self, sender: int, item: Rejoin) -> None:
        core = self.raft.core
        if not self.ready or sender not in core.progress:
            return
        if core.members.incarnation(sender) <= item.incarnation:
            self._changes.replace(sender)

    # -- a disk that takes nothing --------------------------------------------------------------

    def _hand_over_if_stuck(self) -> None:
        """A leader that can't write for a whole election timeout asks another voter to lead.

        The others commit without it, but it can't apply what it can't write, so nobody who asks it
        would get an answer.
        """
        stuck, self._stuck_order = self._stuck_order, self._writes.stuck_order
        if not self.leads or stuck is None or stuck is not self._writes.stuck_order:
            return
        self._hand_over()

    def _hand_over(self) -> None:
        """Ask the voter that has most of the log, and will stay, to lead.

        A leader on its way out that left by itself would leave nobody behind who knows for sure
        that the new members are in force.
        """
        core = self.raft.core
        others = [
            (core.progress[node].match, node)
            for node in core.members.incoming
            if node != self.node and core.progress[node].recent_active
        ]
        if others:
            self.raft.transfer_leader(max(others)[1])

    # -- rest -----------------------------------------------------------------------------------

    def quiet(self) -> bool:
        """Whether nothing at all is going on."""
        return (
            not self._proposals
            and not self._reads
            and not self._own
            and self._writes.idle
            and self._changes.stage is Stage.NONE
            and not self._receiving.busy
            and self.raft.core.incarnation > self._rejoin_above
            and not (self.leads and self.raft.core.progress.keys() - self._known_versions.keys())
        )

    def rests_on(self) -> AbstractSet[int]:
        """Whose life this copy's rest depends on: a leader has everybody, and is all they have."""
        core = self.raft.core
        return core.progress.keys() if core.role is Role.LEADER else {core.leader}

    def rest_tick(self) -> None:
        """A long time has passed."""
        now, core = self._services.now_ms(), self.raft.core
        if self.stopped is None and self.log.quarantined is not None:
            self._stop(QuarantinedHere(self.name, cause=self.log.quarantined))
        self._looks += 1
        follows = core.role is Role.FOLLOWER and core.leader != NOBODY
        if self.stopped is None and follows and self._looks % _LOOKS_PER_QUESTION == 0:
            # The leader's node lives; does its copy? If not, the answer is `NotHere`.
            self.send(Knows(core.leader, self.node, core.term, self.machine_newest))
        if self.stopped is None and self._snapshots.due(self.applied, now, follower_close=False):
            self._act(lambda: self._maybe_snapshot(now))

    def _propose_rest(self) -> None:
        core = self.raft.core
        for node in core.progress:
            if node != self.node:
                self.send(Rest(node, self.node, core.term, core.log.committed))

    def _asked_to_rest(self, item: Rest) -> None:
        if self.resting.asked(item, self.raft, quiet=self.quiet()):
            self._writes.save(self.raft.core.hard_state)
            self.send(Rested(item.sender, self.node, item.term, item.commit))

    # -- for changes of peers, and for those who look ---------------------------------------------

    def send(self, item: Item) -> None:
        """Send a message to another node."""
        self._services.send(self.name, item)

    def later(self, delay_ms: float, callback: Callable[[], None]) -> None:
        """Call back, unless this copy has stopped by then."""

        def call() -> None:
            if self.stopped is None:
                callback()
                self._services.wake(self)

        self._services.later(delay_ms, call)

    def now_ms(self) -> int:
        """Time that only grows."""
        return self._services.now_ms()

    def draw_session(self) -> int:
        """A number that nobody has used."""
        return self._services.random.getrandbits(62)

    def members(self) -> Members:
        """The configuration in force."""
        return self.raft.core.members

    def progress(self) -> Mapping[int, Progress]:
        """How far the members are; meaningful on the leader."""
        return self.raft.core.progress

    def last_index(self) -> int:
        """The last index of the log."""
        return self.raft.core.log.last_index

    def bytes_behind(self, node: int) -> int:
        """How much of the log a member lacks."""
        match = self.raft.core.progress[node].match
        first, last = max(match + 1, self.log.first_index), self.log.last_index
        if match >= last:
            return 0
        try:
            return self.log.size_of(first, last)
        except LowmarkError:
            return self.log.log_bytes  # it can't be told now: not near, in any case

    def installed_bytes(self, node: int) -> int:
        """How much of a snapshot a member was sent."""
        progress = self._sends.progress(node)
        return progress.sent_bytes if progress is not None else 0

    def known_version(self, node: int) -> int:
        """The newest version of the machine that a member knows; 0 if it has not said."""
        return self._known_versions.get(node, 0)

    def change_pending(self) -> bool:
        """Whether a change of members may be in the log, unapplied."""
        core = self.raft.core
        return core.pending_change > core.log.applied

    def propose_change(self, change: ConfChange) -> bool:
        """Propose a change of members; False if it can't be made now."""
        core = self.raft.core
        if not self.ready or not self._founded or core.transferee != NOBODY:
            return False
        if core.pending_change > core.log.applied:
            return False
        try:
            self.raft.propose_change(change)
        except ProposalDropped:
            return False
        self._services.wake(self)
        return core.pending_change == core.log.last_index

    def when_kept(self, callback: Callable[[], None]) -> None:
        """Call back when a majority of the members in force know durably that they are.

        An empty entry tells: it is sent with a commit index that covers the change, and that is
        durable before the entry is (see `writes`). A leader that left with the change can't tell,
        and calls back at once.
        """
        if not self.leads:
            callback()
            return
        term, future = self.term, Future[object]()

        def applied(_: Future[object]) -> None:
            if future.error is None:
                callback()
            elif self.leads and self.term == term:
                self.when_kept(callback)  # it only took too long

        future.then(applied)
        self._queue(b"", raw=True, future=future, timeout_ms=None)

    def status(self) -> GroupStatus:
        """Everything worth knowing about this copy."""
        core, members = self.raft.core, self.raft.core.members
        row = self.log.row
        return GroupStatus(
            group=self.name,
            node=self.node,
            role=core.role.value,
            term=core.term,
            leader=core.leader,
            voters=tuple(sorted(members.incoming)),
            voters_outgoing=tuple(sorted(members.outgoing)),
            learners=tuple(sorted(members.learners)),
            incarnation=core.incarnation,
            first_index=self.log.first_index,
            last_index=self.log.last_index,
            written_index=self.log.written_index,
            committed=core.log.committed,
            applied=self.applied,
            snapshot_index=row.snapshot_index,
            live_entries=len(row.live),
            machine_version=self.version,
            stage=self._changes.stage,
            resting=self.resting.resting,
            waiting=len(self._proposals) + len(self._reads),
            stopped=self.stopped.message if self.stopped is not None else "",
            install_refused=self._receiving.refused,
            peers=self._peer_statuses() if self.leads else (),
        )

    def _peer_statuses(self) -> tuple[PeerStatus, ...]:
        last = self.last_index()
        found = []
        for node, progress in self.raft.core.progress.items():
            if node == self.node:
                continue
            behind = self.bytes_behind(node)
            sending = self._sends.progress(node)
            if sending is not None:
                behind += sending.bytes_left
            rate = self._tracking.bytes_per_s(node)
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
                    installing_bytes=self.installed_bytes(node),
                    machine_version=self._known_versions.get(node, 0),
                )
            )
        return tuple(found)
