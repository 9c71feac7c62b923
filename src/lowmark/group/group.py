"""One member of a group: the core, its log and its machine, and those who wait for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import msgspec

from lowmark.errors import Corrupt, LowmarkError, Unavailable
from lowmark.group import envelope
from lowmark.group.applier import Applier
from lowmark.group.envelope import Command
from lowmark.group.errors import (
    CopyOutdated,
    GroupStopped,
    MachineTooOld,
    NotAMember,
    QuarantinedHere,
)
from lowmark.group.leadership import Leadership
from lowmark.group.machine import Machine, Observer
from lowmark.group.peers import ChangeAnswer, PeerListener, Stage
from lowmark.group.rejoin import Rejoining
from lowmark.group.requests import CONFIRM, Requests
from lowmark.group.rest import Pace, Resting
from lowmark.group.rewrite import Rewrite
from lowmark.group.snapshots import Installs, Snapshots
from lowmark.group.status import GroupStatus, peer_statuses, status_of
from lowmark.group.storage import GroupMeta, GroupStorage
from lowmark.group.versions import Versions
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
from lowmark.log import Dropped, EntryGone, EntryTooLarge, GroupLog, ReferenceExpired, Written
from lowmark.raft import (
    NOBODY,
    Append,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    Install,
    LineageLeft,
    LogDiverged,
    LogLost,
    Members,
    Message,
    Progress,
    RaftNode,
    ReadIndex,
    Ready,
    Role,
    StorageAppended,
)
from lowmark.raft.messages import Response, lineage_of
from lowmark.runtime import Buffer, DiskFailed, DiskFull, Future

if TYPE_CHECKING:
    from lowmark.group.groups import Groups


logger = logging.getLogger(__name__)

_UNREADABLE = (DiskFailed, DiskFull, EntryGone, ReferenceExpired)
"""A disk that fails to read is no proof of damage: the core is made anew, and asks again."""
_BATCHES_PER_TURN = 8
_NOBODY: frozenset[int] = frozenset()
_TERM_JUMP_MAX = 1 << 32
"""No group has so many elections while a member is away."""


class Group:
    """One copy of a group. All calls are made on the loop; work is done in `work`, once a turn."""

    def __init__(
        self,
        services: Groups,
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
        self.stopped: LowmarkError | None = None
        self.elsewhere: Callable[[Buffer, bool], Future[object]] | None = None
        """Takes what is proposed here while another node leads (with whether it is `in_place`);
        without it, that is refused by `NotLeader`.
        """
        self._services = services
        self._observer = observer
        self._meta = meta
        self._storage = GroupStorage(log, meta)
        self._applier = Applier(self, log, machine, meta.founders)
        self._applier.restore()
        self.follow_times()
        self.elapsed_us = services.elapsed_us
        self.now_ms = services.now_ms
        self._requests = Requests(self, services.random.randbytes(8))
        self.propose = self._requests.propose
        self.read = self._requests.read
        self._snapshots = Snapshots(
            log, self._applier, services.config, services.now_ms(), on_done=self._snapshot_done
        )
        self._versions = Versions(self, self._applier)
        self._leadership = Leadership(
            self,
            log,
            applier=self._applier,
            versions=self._versions,
            snapshots=self._snapshots,
            requests=self._requests,
            listener=listener,
            clock=services.clock,
            throttle=services.throttle_of(self.name),
        )
        self._rejoining = Rejoining(self, meta, replace=self._leadership.changes.replace)
        self._installs = Installs(
            self,
            log,
            applier=self._applier,
            snapshots=self._snapshots,
            proposals=self._requests.proposals,
            rejoining=self._rejoining,
            observer=observer,
        )
        self._receives = self._installs.receives
        self._writes = self._new_writes(meta)
        self.resting = Resting(self.config, changed=services.rest_changed)
        self._ticks = 0
        self._own: list[Response] = []
        self._reset_seen = False
        self._at_work = False
        """Whether it is in `work`, which goes on until there is nothing left to do."""
        self.raft: RaftNode = self._new_raft()
        self._heard_leader, self._heard_term = self.leader, self.term
        """What the observer knows."""
        self.leaderless_since_ms: int | None = services.now_ms()
        """Since when this member knows of no leader that serves, by the time of the loop; None: it
        knows of one. One that is elected again and again, and is never ready, does not count.
        """
        if log.quarantined is not None:
            self._replay_sound()
            self.stop(QuarantinedHere(self.name, cause=log.quarantined, alone=self.alone))
        elif self.raft.core.singleton:
            self._act(self.raft.campaign)  # there is nobody to wait for

    def _new_writes(self, meta: GroupMeta) -> Writes:
        return Writes(
            self.log,
            meta,
            install=self._installs.install,
            release=self._release,
            failed=self._write_failed,
            may_use_reserve=self._may_use_reserve,
        )

    def _may_use_reserve(self, entries: list[Entry], size: int) -> bool:
        """Whether these may be written though the disk may be full.

        A leader has refused what may not, before it was in its log; there, all must be written.
        """
        if self.leads or self.log.fits(size):
            return True
        commands = [envelope.command_in(e.data) for e in entries if e.kind is EntryKind.NORMAL]
        return all(one is None or self.machine.may_use_reserve(one) for one in commands)

    def _new_raft(self) -> RaftNode:
        return self._storage.new_core(
            self.node,
            self.config,
            members=self._applier.members,
            applied=self._applier.applied,
            meta=self._meta,
            draw=self._services.random.randrange,
        )

    # -- asking ---------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this member leads, as far as it knows."""
        return self.stopped is None and self.raft.core.role is Role.LEADER

    @property
    def ready(self) -> bool:
        """Whether this member leads and has applied the first entry of its term."""
        core = self.raft.core
        leads = self.stopped is None and core.role is Role.LEADER
        return leads and self._applier.applied >= core.term_start

    @property
    def alone(self) -> bool:
        """Whether this copy is the only voter: no other copy does what it can't."""
        return self.raft.core.singleton

    @property
    def trouble(self) -> LowmarkError | None:
        """Why no member does what is asked: this copy is the only voter, and can't."""
        found = self.log.trouble if self.stopped is None else self.stopped  # asked often: cheap
        return None if found is None or not self.raft.core.singleton else found.again()

    @property
    def leader(self) -> int:
        """Who leads, as far as this member knows; 0 if it does not know."""
        return self.raft.core.leader

    @property
    def term(self) -> int:
        """The term that this member is in."""
        return self.raft.core.term

    @property
    def applied(self) -> int:
        """The last index that the machine has applied."""
        return self._applier.applied

    @property
    def ticks(self) -> int:
        """Of its node; while the group rests, too."""
        return self._services.ticks

    @property
    def incarnation(self) -> int:
        """Of this member: which time that its node was added to the group this copy is of."""
        return self.raft.core.incarnation

    @property
    def in_doubt(self) -> bool:
        """Whether this copy may lack what its node has promised for it (`doubts`)."""
        return self._meta.in_doubt

    @property
    def waits(self) -> bool:
        """Whether this copy is silent until its node was added to the group again."""
        return self._rejoining.waits

    @property
    def stage(self) -> Stage:
        """How far the change of peers is that this member leads, if any."""
        return self._leadership.changes.stage

    @property
    def version(self) -> int:
        """The version of the machine that is in use."""
        return self._applier.version

    @property
    def machine_newest(self) -> int:
        """The newest version of the machine that this process knows."""
        return self.machine.newest_version

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
        self.resting.wake()  # without a clock, one that fails would never be given up
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
        return self._leadership.change_peers(term, token, peers, learners)

    def cancel_change_peers(self) -> bool:
        """Give up a change that is still catching up; True if none is left. Only the leader can."""
        return self._leadership.cancel_change_peers()

    def rewrite(self, indexes: list[int] | None = None) -> Future[int]:
        """Phase 4: copy these live entries, or all scattered ones, to the end of the log."""
        run = self.planned_rewrite(indexes)
        self.begin_rewrite(run)
        return run.future

    def planned_rewrite(
        self,
        indexes: list[int] | None = None,
        *,
        bytes_per_s: int | None = None,
        neighbours: int = 0,
    ) -> Rewrite:
        """What such a run would copy; `bytes_per_s` counts instead of the setting.

        With `neighbours`, entries that have enough of them are not scattered (`plan_rewrite`).
        """
        return self._leadership.planned_rewrite(
            indexes, bytes_per_s=bytes_per_s, neighbours=neighbours
        )

    def begin_rewrite(self, run: Rewrite) -> None:
        """Begin it. Only a leader can, and one at a time; else its future says why not."""
        self._leadership.rewrite(run)

    def save_commit(self, on_done: Callable[[LowmarkError | None], None]) -> bool:
        """Write down how far this copy knows the log to be committed; False if it is, or can't be.

        Else a start knows it of what a snapshot covers alone, and could not tell that a leader cuts
        off what was committed.
        """
        return self.stopped is None and self._writes.save(self.raft.core.hard_state, on_done)

    def confirm(self, *, timeout_ms: int) -> Future[object]:
        """Make sure, with a majority, that what this leader has applied was up to date."""
        return self._requests.read(CONFIRM, timeout_ms=timeout_ms)

    def snapshot(self) -> None:
        """Take a snapshot soon, whatever the size of the log."""
        self._snapshots.want()
        if self.stopped is None:
            self._act(lambda: self._maybe_snapshot(self._services.now_ms()))

    # -- events ---------------------------------------------------------------------------------

    def received(self, sender: int, item: Item) -> None:
        """A message has come from another node."""
        if self.stopped is not None or self._meta.in_doubt:
            return
        match item:
            case Rest():
                self._asked_to_rest(item)
            case Rested():
                self.resting.rested(sender, item, self.raft, self._missing())
            case Message():
                if lineage_of(item) < self.raft.core.lineage:
                    return  # of a group that this one was: it is no news, and ends no rest
                rested = self.resting.resting
                # A heartbeat and its answer are no sign of work: they are what rest is to end.
                if rested or not isinstance(item, Heartbeat | HeartbeatResponse):
                    self.resting.wake()
                if isinstance(item, ReadIndex):
                    self.resting.work()  # of a member's reader
                self._act(self._step, sender, item)
                if rested:
                    self._wake_leader(sender)
            case Knows():
                if not item.term:
                    self.resting.wake()
                    self._act(self._is_here, sender)
                elif self._versions.known.get(sender) != item.version:
                    # No reason to end a rest.
                    self._act(self._knows, sender, item)
            case _:
                self.resting.wake()
                self._act(self._received_own, sender, item)

    def doubt(self, node: int) -> None:
        """What a node has said may not hold: its vote does not count in an election under way."""
        self.raft.core.votes.pop(node, None)

    def tell_it_is_here(self, node: int) -> None:
        """A node was told that this copy is not here: it shall not wait any longer."""
        if self.stopped is None and not self._rejoining.asks and not self.in_doubt:
            self.send(Knows(node, self.node, 0, self.machine_newest))

    def _is_here(self, sender: int) -> None:
        """A copy has come to a node that had none. Its leader calls it without waiting for the next
        tick, so that it answers, and gets what it lacks.
        """
        if self.leads:
            self._leadership.changes.heard(sender)
            self.raft.call(sender)

    def _knows(self, sender: int, item: Knows) -> None:
        self._versions.heard(sender, item)
        if self.leads:
            self._leadership.go_on_with(sender)

    def _wake_leader(self, sender: int) -> None:
        """This member rested until it heard another one than its leader: that one rests, too.

        It is told what it would be told if it had just called.
        """
        core = self.raft.core
        if core.role is Role.FOLLOWER and core.leader not in {NOBODY, sender}:
            self.send(
                HeartbeatResponse(
                    core.leader, self.node, core.term, core.incarnation, lineage=core.lineage
                )
            )

    def _step(self, sender: int, message: Message) -> None:
        core = self.raft.core
        lineage = lineage_of(message)
        known = core.term if lineage <= core.lineage else max(core.term, lineage)
        if message.term > known + _TERM_JUMP_MAX:
            self._services.cut(sender, f"a message of term {message.term}, far beyond any")
            return
        if isinstance(message, Heartbeat):
            core.disk_full = self._is_disk_full()
        try:
            self.raft.step(message)
        except LineageLeft as left:
            self.stop(CopyOutdated(self.name, why=left))
            return
        except (LogLost, LogDiverged) as damage:
            if sender in core.members.everybody:
                raise
            # What a stranger says about this log is no proof against it.
            self._services.cut(sender, damage.message)
            return
        if core.role is Role.LEADER:
            self._leadership.heard(sender)

    def _is_disk_full(self) -> bool:
        """Whether this copy can't take what it is sent, entries or a snapshot, for want of space.

        A leader that changes members tells a full disk from a stall by it.
        """
        if self._receives.disk_full:
            return True
        if self._writes.idle:
            return False
        return isinstance(self._writes.refused or self.log.trouble, DiskFull)

    def _received_own(self, sender: int, item: Item) -> None:
        match item:
            case InstallOffer():
                self._installs.offered(item)
            case InstallPiece():
                self._receives.piece(item)
            case InstallWant():
                if self.leads:
                    self._leadership.changes.heard(sender)
                self._leadership.sends.wanted(item)
            case InstallOver():
                self._receives.over(item)
            case Rejoin():
                self._rejoining.asked(sender, item)
            case NotHere():
                if self.leads:
                    self._leadership.changes.not_here(sender)
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
        self._versions.lost(node)
        if self.stopped is None and node in self.raft.core.progress:
            self.raft.report_unreachable(node)

    def written(self, event: Written) -> None:
        """Entries are durable."""
        self._receives.disk_full = False
        if self.stopped is None:
            self._act(self._writes.written, event)

    def dropped(self, event: Dropped) -> None:
        """The log dropped entries that it could not write: they were never acknowledged."""
        if self.stopped is not None:
            return
        if self.log.quarantined is not None:
            self.stop(QuarantinedHere(self.name, cause=self.log.quarantined, alone=self.alone))
            return
        # Its folder is sick. It goes on from what is durable, and waits until it can write again.
        what = f"entries {event.first} to {event.last} of group {self.name} could not be written"
        self._start_over(self.log.unwritable or Unavailable(what))

    def writable(self) -> None:
        """The log takes writes again."""
        if self.stopped is None and not self._writes.idle:
            self._act(self._writes.retry)

    def tick(self) -> None:
        """A little time has passed."""
        if self.stopped is not None:
            return
        if self.log.quarantined is not None:
            self.stop(QuarantinedHere(self.name, cause=self.log.quarantined, alone=self.alone))
            return
        if not self._only_counts():
            self._act(self._tick)

    def _only_counts(self) -> bool:
        """Whether a tick is nothing but one tick more since the leader called; most of them are."""
        core, ticks = self.raft.core, self.config.election_ticks
        if core.role is not Role.FOLLOWER or core.leader == NOBODY:
            return False
        if core.election_elapsed + 1 >= core.election_timeout or (self._ticks + 1) % ticks == 0:
            return False  # now and then all is looked at
        if not self.quiet() or self.raft.has_ready() or not self._versions.told:
            return False
        core.election_elapsed += 1
        self._ticks += 1
        return True

    def _tick(self) -> None:
        missing = self._missing()
        match self.resting.tick(self.raft, lambda: self.quiet(missing), missing):
            case Pace.RUN:
                self.raft.tick()
            case Pace.ASK:
                for question in self.resting.questions(self.raft, missing):
                    self.send(question)
            case Pace.WAIT:
                pass
        if self.resting.resting:
            self.save_commit(lambda _: None)
        now = self._services.now_ms()
        self._requests.tick(now)
        self._leadership.sends.tick()
        self._receives.tick()
        self._versions.tell()
        self._ticks += 1
        if self._ticks % self.config.election_ticks == 0:
            self._rejoining.ask()
            self._leadership.hand_over_if_stuck(self._writes.stuck_order)
            self._leadership.hand_over_if_short(now)
        if self.leads:
            self._leadership.tick(now)
        self._maybe_snapshot(now)

    def close(self) -> None:
        """Stop; whoever waits is told."""
        self.stop(GroupStopped(self.name))

    # -- one turn -------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is something to do, and no time to rest."""
        self.resting.work()
        self._services.wake(self)

    def work_soon(self) -> None:
        """There is something to do."""
        self._services.wake(self)

    def _act(self, step: Callable[..., None], *given: object) -> None:
        """Do something with the core; if that shows damage, this copy stops."""
        try:
            step(*given)
        except Corrupt as damage:
            self._damaged(damage)
            return
        except _UNREADABLE as error:
            self._start_over(error)
        except EntryTooLarge as error:
            self.stop(error)
            return
        self._services.wake(self)

    def work(self) -> None:
        """Do everything there is to do now."""
        if self.stopped is not None:
            return
        handled, reads, proposals = 0, self._requests.reads, self._requests.proposals
        self._at_work = True
        try:
            if proposals.promised:
                self._count_appended()  # an order that had to wait may have gone through
            if reads.new and self.leader != NOBODY:  # else there is nobody to ask yet
                self.raft.read_index(reads.ask(self._services.now_ms()))
            while self.stopped is None:
                if self._own:
                    self._deliver_own()
                if proposals.queued:
                    self._leadership.enter_proposals()
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
            self.stop(error)
        finally:
            self._at_work = False

    def _handle(self, ready: Ready) -> None:
        core, reads = self.raft.core, self._requests.reads
        if ready.soft is not None:
            self._leadership.role_changed()
        if core.leader != self._heard_leader or core.term != self._heard_term:
            self._tell_leader()  # also of one that leads again, in another term
        if self.stopped is not None:
            return  # who was told has closed it
        for message in ready.messages:
            if isinstance(message, Install):
                self._leadership.install(message)
            elif not isinstance(message, Append) or not self._leadership.held.takes(message):
                self.send(message)
        if ready.append is not None:
            self._writes.order(ready.append)
            if self._requests.proposals.promised:
                self._count_appended()
        for state in ready.read_states:
            reads.confirmed(state.context, state.index)
        if ready.apply is not None and self.stopped is None:
            self._apply(ready.apply.entries)
        if reads.agreed:
            self._applier.answer(reads.answerable(self._applier.applied))

    def _count_appended(self) -> None:
        """What entered the log is counted there, and not as promised any more."""
        if not self._writes.waits:
            self._requests.proposals.appended()

    def _tell_leader(self) -> None:
        self._heard_leader, self._heard_term = self.leader, self.term
        if self.leader not in {NOBODY, self.node}:
            self.leaderless_since_ms = None
        elif self.leader == NOBODY and self.leaderless_since_ms is None:
            self.leaderless_since_ms = self._services.now_ms()
        self._observer.on_leader_changed(self._heard_leader, self._heard_term)

    def _release(self, responses: list[Response]) -> None:
        """What these claim is durable now."""
        for response in responses:
            if isinstance(response, StorageAppended) or response.to == self.node:
                self._own.append(response)
            else:
                self.send(response)
        if not self._at_work:  # else it is seen to there
            self._services.wake(self)

    def _deliver_own(self) -> None:
        while self._own:
            own, self._own = self._own, []
            for response in own:
                self.raft.deliver(response)

    # -- applying -------------------------------------------------------------------------------

    def _apply(self, entries: list[Entry]) -> None:
        if not self._applier.apply(entries, self._requests.proposals.applied):
            return
        self.follow_times()
        if self._reset_seen and self.raft.core.singleton:
            self.raft.campaign()  # there is nobody to wait for any more
        self._reset_seen = False
        if self.stopped is None and not self._versions.told:
            self._versions.tell()  # a leader that adds this member waits for it
        self._leadership.became_ready()
        if self.stopped is None:
            self._observer.on_applied()
        self._maybe_snapshot(self.elapsed_us() // 1_000)

    def _replay_sound(self) -> None:
        before, answer = self._applier.applied, self._requests.proposals.applied
        self._applier.replay_sound(self._storage, answer, self.config.message_bytes_max)
        if self._applier.applied > before and self.stopped is None:
            self.follow_times()
            self._observer.on_applied()

    def follow_times(self) -> None:
        """Another node's clock stamped what was applied here, and callers are shown it from here:
        they are given no earlier time by this one's.
        """
        self._services.clock.follow_log(self._applier.last_time)

    def members_changed(self, *, was_joint: bool, led: bool) -> None:
        """A change of members is in force; `led`: this member led until then."""
        self._versions.keep_only(self.raft.core.progress)
        if led:
            self._leadership.members_changed(was_joint=was_joint)

    def was_reset(self) -> None:
        """The entry of a reset is applied."""
        self._reset_seen = True
        self._versions.keep_only(self.raft.core.progress)

    def too_old(self, error: MachineTooOld) -> None:
        """The machine does not know the version that is to be in use."""
        self._versions.tell_now()  # there may have been no time for it yet
        self.stop(error)

    def _maybe_snapshot(self, now_ms: int) -> None:
        if self.stopped is None and not self._receives.busy:
            self._snapshots.take_if_due(self.raft, now_ms)

    def _snapshot_done(self) -> None:
        if self.stopped is None:
            self._leadership.snapshot_taken()

    # -- starting over, and stopping ------------------------------------------------------------

    def _write_failed(self, error: LowmarkError) -> None:
        """An order could not be carried out."""
        if isinstance(error, Corrupt) or self.log.quarantined is not None:
            self._damaged(error)
        elif isinstance(error, EntryTooLarge):
            self.stop(error)
        else:
            self._start_over(error)

    def _start_over(self, error: LowmarkError) -> None:
        """Make the core anew from what is durable; whatever it was about to do is forgotten."""
        self.resting.wake()
        self._writes.close()
        self._receives.abort()
        logger.warning("starting over", extra={"group": self.name, "reason": error.message})
        self._leadership.start_over()
        self._requests.proposals.appended()  # or forgotten
        self._own = []
        self._writes = self._new_writes(self._durable_meta())
        self.raft = self._new_raft()
        told = (self.leader, self.term) == (self._heard_leader, self._heard_term)
        if self.stopped is None and not told:
            self._tell_leader()
        self._services.wake(self)

    def change_record(
        self,
        change: Callable[[GroupMeta, Members], GroupMeta],
        on_done: Callable[[LowmarkError | None], None],
    ) -> None:
        """Write another record of this copy's, and go on by it, with all else that is durable.

        Nothing is written or said in between: what was under way is forgotten, as by a restart.
        """
        meta = change(msgspec.structs.replace(self._meta, hard=self._writes.hard), self.members())

        def done(error: LowmarkError | None) -> None:
            if self.stopped is None:
                if error is None:
                    self._meta = meta
                    self._rejoining.renew(meta)
                what = f"the record of group {self.name} was to change"
                self._start_over(error or Unavailable(what))
            on_done(error)

        self.log.put_meta(meta.encode(), done)
        self._writes.close()

    def _durable_meta(self) -> GroupMeta:
        return self._storage.record() if self.log.meta else self._meta

    def _damaged(self, damage: LowmarkError) -> None:
        self._services.quarantine(self.name, damage)
        # The first damage says more than a refusal that came of it.
        cause = self.log.quarantined or damage.message
        self.stop(QuarantinedHere(self.name, cause=cause, alone=self.alone))

    def stop(self, error: LowmarkError) -> None:
        """Go no further, for this reason."""
        if self.stopped is not None:
            return
        self.stopped = error
        if self.leaderless_since_ms is None:
            self.leaderless_since_ms = self._services.now_ms()
        self.resting.wake()
        for node in self.raft.core.progress:
            if node != self.node:
                self.send(NotHere(node, self.node))  # whoever rests on this copy must not wait
        self._writes.close()
        self._leadership.halt(error)
        self._receives.abort()
        self._requests.refuse_all(error)
        self._leadership.give_up_change()
        self._observer.on_stopped(error)

    # -- rest -----------------------------------------------------------------------------------

    def _missing(self) -> AbstractSet[int]:
        """Members whose nodes are down, as far as this node knows. Of use to a leader only."""
        core = self.raft.core
        return self._services.missing(core.progress) if core.role is Role.LEADER else _NOBODY

    def quiet(self, missing: AbstractSet[int] = _NOBODY) -> bool:
        """Whether nothing at all is going on; who is missing has not said what it knows."""
        known = self._versions.known.keys()
        return (
            not self._requests.waiting
            and self._requests.short_of is None
            and not self._own
            and self._writes.idle
            and self._leadership.changes.stage is Stage.NONE
            and not self._receives.busy
            and not self._rejoining.waits
            and (not self.leads or known | missing >= self.raft.core.progress.keys())
        )

    def rest_tick(self) -> None:
        """A long time has passed."""
        now = self._services.now_ms()
        if self.stopped is None and self.log.quarantined is not None:
            self.stop(QuarantinedHere(self.name, cause=self.log.quarantined, alone=self.alone))
        if self.stopped is None and self.resting.look(self.raft):
            self._versions.ask_whether_it_lives()
        if self.stopped is None and self._snapshots.due(now, follower_close=False):
            self._act(lambda: self._maybe_snapshot(now))

    def _asked_to_rest(self, item: Rest) -> None:
        if self.resting.asked(item, self.raft, quiet=self.quiet()):
            self._writes.save(self.raft.core.hard_state)
            self.send(Rested(item.sender, self.node, item.term, item.commit))

    # -- for its parts, and for those who look --------------------------------------------------

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

    def draw_session(self) -> int:
        """A number that nobody has used."""
        return self._services.random.getrandbits(62)

    @property
    def lineage(self) -> int:
        """The term of the group's last reset that this copy is of; 0: it is of none."""
        return self.raft.core.lineage

    def members(self) -> Members:
        """The configuration in force."""
        return self.raft.core.members

    def progress(self) -> Mapping[int, Progress]:
        """How far the members are; meaningful on the leader."""
        return self.raft.core.progress

    def last_index(self) -> int:
        """The last index of the log."""
        return self.raft.core.log.last_index

    def hears(self, node: int) -> bool:
        """Whether a member's node has spoken lately."""
        return node not in self._services.missing(self.raft.core.progress)

    def _why_silent(self) -> str:
        """Why this copy says nothing, in words, if so."""
        if not self._rejoining.waits or self.stopped is not None:
            return ""
        others = sorted(self.raft.core.members.voters - {self.node})
        if not self.in_doubt:
            return "it is made good from the other copies, and has no vote until then"
        if not others:
            return (
                "it is older than what this node has acknowledged, and is the only copy that can"
                " vote: rows that it lacks are lost if it goes on (`lowmark partition reset`)"
            )
        names = ", ".join(self._services.calls.name_of(node) for node in others)
        return (
            "it is older than what this node has acknowledged: it has no vote until a majority"
            f" without it ({names}) has a leader"
        )

    def status(self) -> GroupStatus:
        """Everything worth knowing about this copy."""
        return status_of(
            self.log,
            self.raft,
            self._applier,
            self._leadership,
            peers=peer_statuses(self.raft, self._leadership) if self.leads else (),
            resting=self.resting.resting,
            waiting=self._requests.waiting,
            stopped=self.stopped,
            silent=self._why_silent(),
            install_refused=self._receives.refused,
        )
