"""What a member does only while it leads.

It enters proposals into the log and stamps them, names the first members there, follows how far the
others are, sends them snapshots, changes who belongs to the group (`peers`), copies scattered
entries (`rewrite`), and hands over when it can't serve. All of it ends with its leadership, and
nothing of it is durable but what is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from lowmark.errors import LowmarkError, Rejected
from lowmark.group import envelope
from lowmark.group.applier import Applier
from lowmark.group.config import GroupConfig
from lowmark.group.errors import GroupBusy, NotLeader
from lowmark.group.peers import ChangeAnswer, PeerChange, PeerListener
from lowmark.group.requests import Requests
from lowmark.group.rewrite import Rewrite
from lowmark.group.snapshots import Snapshots
from lowmark.group.throttle import HeldEntries, Throttle
from lowmark.group.transfer import Sends
from lowmark.group.versions import Versions
from lowmark.log import GroupLog
from lowmark.raft import (
    NOBODY,
    ConfChange,
    Install,
    Members,
    Progress,
    ProgressState,
    ProposalDropped,
    Role,
)
from lowmark.runtime import Buffer, Future, HybridClock

if TYPE_CHECKING:
    from lowmark.group.group import Group

_SHORT_PAUSES_MAX = 64
"""For at most so many election timeouts a leader without space does not hand over again."""


class Leadership:
    """The leader's part of one copy. It does nothing on other members."""

    def __init__(
        self,
        host: Group,
        log: GroupLog,
        *,
        applier: Applier,
        versions: Versions,
        snapshots: Snapshots,
        requests: Requests,
        listener: PeerListener,
        clock: HybridClock,
        throttle: Throttle,
    ) -> None:
        self.config: GroupConfig = host.config
        self._host = host
        self._log = log
        self._applier = applier
        self._versions = versions
        self._snapshots = snapshots
        self._requests = requests
        self._listener = listener
        self._clock = clock
        self._stamped = 0
        """What this leader last stamped."""
        self._role = Role.FOLLOWER
        """As it was when it was last looked at."""
        self._ready_told = 0
        self._founding_in = 0
        self._stuck_order: object = None
        self._short_pause_ms = host.config.election_ms
        self._short_until_ms = 0
        """A leader without space does not hand over again before."""
        self._over_due = False
        """Whether it should have handed over, and had heard of no one just then."""
        self._rewrite: Rewrite | None = None
        self._heard_at_ms: dict[int, int] = {}
        """When members last spoke, as such."""
        self.tracking = Tracking()
        self.sends = Sends(host, log, throttle, answers=self._answers, failed=self._send_failed)
        self.held = HeldEntries(host, throttle)
        self.changes = PeerChange(
            self,
            listener,
            near_entries=host.config.near_entries,
            near_bytes=host.config.near_bytes,
            stall_ms=host.config.catch_up_stall_ms,
        )

    # -- from its beginning to its end ------------------------------------------------------------

    def role_changed(self) -> None:
        """Another role, or another leader."""
        role = self._host.raft.core.role
        if role is Role.LEADER and self._role is not Role.LEADER:
            self._versions.elected()
            self.tracking.clear()
            self._heard_at_ms.clear()
        elif role is not Role.LEADER and self._role is Role.LEADER:
            self._over_due = False
            self.sends.stop_all()
            self.held.clear()
            self.changes.lost_leadership()
            if self._rewrite is not None:
                self._rewrite.stop(self._not_leader())
            self._requests.proposals.refuse_queued(self._not_leader)
        self._role = role

    def became_ready(self) -> None:
        """The first entry of this leader's term is applied: now it may do everything."""
        if self._ready_told == self._host.raft.core.term or not self._host.ready:
            return
        self._ready_told = self._host.term
        self._host.leaderless_since_ms = None
        self._found()
        self._versions.raise_if_all_know()
        self._listener.on_leader_elected(self._host.term)

    def start_over(self) -> None:
        """The core is made anew, and leads nobody."""
        self.sends.stop_all()
        self.held.clear()
        self.changes.lost_leadership()
        self._role = Role.FOLLOWER

    def halt(self, error: LowmarkError) -> None:
        """This copy stops: it sends and copies nothing more."""
        self.sends.stop_all()
        self.held.clear()
        if self._rewrite is not None:
            self._rewrite.stop(error.again())

    def give_up_change(self) -> None:
        """This copy has stopped: if it led a change, that is over."""
        if self._role is Role.LEADER:
            self.changes.lost_leadership()

    def _not_leader(self) -> NotLeader:
        return NotLeader(self._host.name, leader=self._host.leader or None)

    # -- time and messages ------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """A little time has passed."""
        self.tracking.tick(now_ms, self._host.raft.core.progress, self)
        if self._over_due:
            self.hand_over()
        if self._host.ready:
            self._found()
            self.changes.go_on()
            self.changes.bring_back()

    def heard(self, sender: int) -> None:
        """The core has taken a message from a node."""
        self.changes.heard(sender)
        self._heard_at_ms[sender] = self._host.now_ms()
        progress = self._host.raft.core.progress.get(sender)
        if progress is None or progress.state is not ProgressState.SNAPSHOT:
            self.sends.stop(sender)
        elif progress.match >= progress.pending_snapshot:
            # It has it, but the log has moved on: it needs another one.
            self.sends.stop(sender)
            self._host.raft.report_snapshot(sender, failed=False)
        self.go_on_with(sender)

    def go_on_with(self, node: int) -> None:
        """A member has said something: if it is a learner, it may be near now."""
        progress = self._host.raft.core.progress.get(node)
        if progress is not None and progress.is_learner and self._host.ready:
            self.changes.go_on()

    def members_changed(self, *, was_joint: bool) -> None:
        """A change of members is in force that this member led."""
        members = self._host.raft.core.members
        self.held.members_changed()
        # A leader that is no member any more has just stepped down; the change is its own.
        self.changes.applied(members, was_joint=was_joint)
        if members.joint and self._host.node not in members.incoming:
            self.hand_over()

    def _send_failed(self, to: int) -> None:
        self._host.raft.report_snapshot(to, failed=True)

    # -- entries ----------------------------------------------------------------------------------

    def enter_proposals(self) -> None:
        """Let what is queued enter the log, as far as there is room."""
        proposals, host = self._requests.proposals, self._host
        if not proposals.queued or not host.ready:
            return
        core = host.raft.core
        if core.transferee != NOBODY:
            return  # until it is known who leads
        room = self.config.waiting_bytes_max - core.uncommitted_bytes
        count = size = 0
        for proposal in proposals.queued:
            whole = proposal.raw or proposal.in_place
            size += len(proposal.data) + (0 if whole else envelope.COMMAND_BYTES)
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
                floor = max(self._stamped, self._applier.last_time) + 1
                self._stamped = max(self._clock.now(), floor)
                if proposal.in_place:
                    data = memoryview(proposal.data)
                    datas.append(envelope.stamp_in_place(self._stamped, data))
                else:
                    datas.append(envelope.wrap_command(self._stamped, proposal.data))
        first = core.log.last_index + 1
        try:
            host.raft.propose(datas)
        except ProposalDropped:
            for proposal in taken:
                proposal.future.reject(self._not_leader())
            return
        proposals.entered(first, core.term, taken)

    def _found(self) -> None:
        """Put the first members into the log, before anything changes them."""
        host = self._host
        if self._applier.founded or self._founding_in == host.term:
            return
        try:
            host.raft.propose([envelope.seal_founders(host.raft.core.members.stored())])
        except ProposalDropped:
            return  # leadership is being handed over: the next tick, or the next leader
        self._founding_in = host.term

    def planned_rewrite(
        self,
        indexes: list[int] | None = None,
        *,
        bytes_per_s: int | None = None,
        neighbours: int = 0,
    ) -> Rewrite:
        """A run that copies these live entries, or all scattered ones; it is not begun."""
        size = self._host.config.rewrite_chunk_entries
        if indexes is None:
            chunks = self._log.rewrite_plan(chunk_entries=size, neighbours=neighbours)
        else:
            if any(index < 1 for index in indexes):
                raise Rejected("an index is at least 1")
            wanted = sorted(set(indexes))
            chunks = [wanted[at : at + size] for at in range(0, len(wanted), size)]
        return Rewrite(self, self._log, self._applier.machine, chunks, bytes_per_s=bytes_per_s)

    def rewrite(self, run: Rewrite) -> None:
        """Begin it; if that can't be, its future says so."""
        host = self._host
        if self._rewrite is not None and not self._rewrite.future.done:
            run.stop(GroupBusy(host.name, why="another rewrite is under way"))
        elif host.stopped is not None:
            run.stop(host.stopped.again())
        elif not host.ready:
            run.stop(self._not_leader())
        else:
            self._rewrite = run
            run.next_chunk()

    # -- handing over -----------------------------------------------------------------------------

    def hand_over_if_stuck(self, stuck_order: object) -> None:
        """A leader that can't write for a whole election timeout asks another voter to lead.

        The others commit without it, but it can't apply what it can't write, so nobody who asks it
        would get an answer.
        """
        self._over_due = False
        before, self._stuck_order = self._stuck_order, stuck_order
        if self._host.leads and before is not None and before is stuck_order:
            self.hand_over()

    def hand_over_if_short(self, now_ms: int) -> None:
        """A leader that has refused rows for want of space asks another voter to lead.

        That one may have space, and a follower without it stops no one. If none of them has,
        leadership goes round; so each hands over after a pause that doubles while it is short.
        """
        short_of, self._requests.short_of = self._requests.short_of, None
        if short_of is None or not self._host.leads or self._log.fits(short_of):
            return
        wait_ms = now_ms - self._short_until_ms
        if wait_ms < 0:
            return
        longest_ms = _SHORT_PAUSES_MAX * self.config.election_ms
        pause_ms = self.config.election_ms if wait_ms > longest_ms else 2 * self._short_pause_ms
        self._short_pause_ms = min(pause_ms, longest_ms)
        self._short_until_ms = now_ms + self._short_pause_ms
        self.hand_over()

    def hand_over(self) -> None:
        """Ask the voter that has most of the log, and will stay, to lead.

        A leader on its way out that left by itself would leave nobody behind who knows for sure
        that the new members are in force.
        """
        core = self._host.raft.core
        others = [
            (core.progress[node].match, node)
            for node in core.members.incoming
            if node != self._host.node and core.progress[node].recent_active
        ]
        self._over_due = not others  # the core forgets now and then whom it has heard
        if others:
            self._host.raft.transfer_leader(max(others)[1])

    # -- changing members -------------------------------------------------------------------------

    def change_peers(
        self, term: int, token: int, peers: list[int], learners: Iterable[int]
    ) -> ChangeAnswer:
        """Move the group to these voters, and have these learners beside them."""
        beside = tuple(sorted(set(learners) - set(peers)))
        if not peers or any(not 0 < node < 1 << 63 for node in (*peers, *beside)):
            raise Rejected(
                "a group needs at least one voter, and nodes have numbers from 1 to 2^63 - 1",
                hint="Name the nodes that the group shall have.",
            )
        if not self._host.leads:
            return ChangeAnswer.NOT_LEADER
        if term != self._host.term:
            return ChangeAnswer.OTHER_TERM
        answer = self.changes.change(token, tuple(peers), beside)
        if answer is ChangeAnswer.RECEIVED:
            self._host.later(0, self._go_on)  # not only with the next tick
        self._host.wake()
        return answer

    def snapshot_taken(self) -> None:
        """One was taken, or could not be: a change of members may have waited for it."""
        if self._host.ready:
            self._host.later(0, self._go_on)

    def _go_on(self) -> None:
        if self._host.ready:
            self.changes.go_on()

    def cancel_change_peers(self) -> bool:
        """Give up a change that is still catching up; True if none is left."""
        if not self._host.leads:
            return False
        cancelled = self.changes.cancel()
        self._host.wake()
        return cancelled

    # -- for changes and rewrites, and for those who look -----------------------------------------

    def propose_wrapped(self, datas: list[bytes]) -> list[Future[object]]:
        """Propose entries of the group's own; raises if nothing can be proposed here."""
        return self._requests.propose_wrapped(datas)

    def later(self, delay_ms: float, callback: Callable[[], None]) -> None:
        """Call back, unless this copy has stopped by then."""
        self._host.later(delay_ms, callback)

    def now_ms(self) -> int:
        """Time that only grows."""
        return self._host.now_ms()

    def hears(self, node: int) -> bool:
        """Whether a member's node has spoken lately; this one has."""
        return node == self._host.node or self._host.hears(node)

    def members(self) -> Members:
        """The configuration in force."""
        return self._host.raft.core.members

    def progress(self) -> Mapping[int, Progress]:
        """How far the members are."""
        return self._host.raft.core.progress

    def last_index(self) -> int:
        """The last index of the log."""
        return self._host.raft.core.log.last_index

    @property
    def version(self) -> int:
        """The version of the machine that is in use."""
        return self._applier.version

    def known_version(self, node: int) -> int:
        """The newest version of the machine that a member knows; 0 if it has not said."""
        return self._versions.known.get(node, 0)

    def bytes_behind(self, node: int) -> int:
        """How much of the log a member lacks."""
        match = self._host.raft.core.progress[node].match
        first, last = max(match + 1, self._log.first_index), self._log.last_index
        if match >= last:
            return 0
        try:
            return self._log.size_of(first, last)
        except LowmarkError:
            return self._log.log_bytes  # it can't be told now: not near, in any case

    def cut_log_short(self) -> None:
        """Take a snapshot, if there is more log after the last one than one near may lack."""
        if self._log.has_bytes(max(1, self.config.near_bytes)):
            self._host.snapshot()

    def takes_snapshot(self) -> bool:
        """Whether one is being taken."""
        return self._snapshots.busy

    def installed_bytes(self, node: int) -> int:
        """How much of a snapshot a member was sent."""
        progress = self.sends.progress(node)
        return progress.sent_bytes if progress is not None else 0

    def install(self, install: Install) -> None:
        """The core wants a member to have a snapshot."""
        self.held.drop(install.to)
        self.sends.start(install)

    def is_throttled(self, node: int) -> bool:
        """Whether only the node's own budget holds a member up, which answers all the time."""
        return self.sends.waits(node) or (self.held.holds(node) and self._answers(node))

    def _answers(self, node: int) -> bool:
        """Whether a member's copy has spoken lately."""
        heard_at_ms = self._heard_at_ms.get(node)
        now_ms = self._host.now_ms()
        return heard_at_ms is not None and now_ms - heard_at_ms < 2 * self.config.election_ms

    def install_refusal(self, node: int) -> str:
        """Why a member refused the last snapshot that it was offered, if it did."""
        return self.sends.refusals.get(node, "")

    def change_pending(self) -> bool:
        """Whether a change of members may be in the log, unapplied."""
        core = self._host.raft.core
        return core.pending_change > core.log.applied

    def propose_change(self, change: ConfChange) -> bool:
        """Propose a change of members; False if it can't be made now."""
        core = self._host.raft.core
        if not self._host.ready or not self._applier.founded or core.transferee != NOBODY:
            return False
        if core.pending_change > core.log.applied:
            return False
        try:
            self._host.raft.propose_change(change)
        except ProposalDropped:
            return False
        self._host.work_soon()
        return core.pending_change == core.log.last_index

    def when_kept(self, callback: Callable[[], None]) -> None:
        """Call back when a majority of the members in force know durably that they are.

        An empty entry tells: it is sent with a commit index that covers the change, and that is
        durable before the entry is (see `writes`). A leader that left with the change can't tell,
        and calls back at once.
        """
        host = self._host
        if not host.leads:
            callback()
            return
        term = host.term

        def applied(future: Future[object]) -> None:
            if future.error is None:
                callback()
            elif host.leads and host.term == term:
                self.when_kept(callback)  # it only took too long

        self._requests.propose(b"", raw=True).then(applied)


_SAMPLE_MS = 1_000
_WEIGHT = 0.3


class Tracking:
    """How fast members catch up, for those who watch: a smoothed rate for each that is behind."""

    def __init__(self) -> None:
        self._samples: dict[int, tuple[int, int, int]] = {}
        self._rates: dict[int, float] = {}

    def clear(self) -> None:
        """Another leader's figures are not ours."""
        self._samples.clear()
        self._rates.clear()

    def bytes_per_s(self, node: int) -> float:
        """How fast a member was lately; 0 if it is not known."""
        return self._rates.get(node, 0.0)

    def tick(self, now_ms: int, progress: Mapping[int, Progress], leader: Leadership) -> None:
        """Look again, about once a second, at members that are behind."""
        for node in progress:
            last = self._samples.get(node)
            if last is not None and now_ms - last[0] < _SAMPLE_MS:
                continue
            behind, sent = leader.bytes_behind(node), leader.installed_bytes(node)
            self._samples[node] = (now_ms, behind, sent)
            if not behind and not sent:
                self._rates.pop(node, None)
            elif last is not None:
                gained = max(0, last[1] - behind) + max(0, sent - last[2])
                rate = gained * 1_000 / (now_ms - last[0])
                old = self._rates.get(node, rate)
                self._rates[node] = old + _WEIGHT * (rate - old)
        for node in [node for node in self._samples if node not in progress]:
            self._samples.pop(node)
            self._rates.pop(node, None)
