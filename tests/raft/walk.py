"""A cluster of cores that walks at random, with an observer that sees everything.

Messages are dropped, doubled and put out of order. Storage is asynchronous: a write counts when it
is done, and a crash forgets what was only ordered. Members come and go, copies are lost for good,
logs are compacted. After each event the observer compares what happened with what Raft promises
(thesis, figure 3.2), knowing what no member knows: all logs, all disks, all votes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from lowmark.raft import (
    NOBODY,
    Change,
    ChangeKind,
    ConfChange,
    ConfState,
    Entry,
    EntryKind,
    Install,
    Members,
    Message,
    ProgressState,
    ProposalDropped,
    Ready,
    Role,
    Snapshot,
    StorageAppend,
    StorageAppended,
    StorageApplied,
    Transition,
    VoteResponse,
)
from lowmark.raft.membership import restore
from lowmark.raft.quorum import VoteResult, majority_vote
from lowmark.raft.state import NO_LIMIT
from raft.walk_state import ELECTION_TICKS, NODES, Copy, Habits, Truth

__all__ = ["Walk"]

MAIL_MAX = 50


class Walk:
    """One world from one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.habits = Habits.drawn(self.dice)
        self.copies = {node: Copy(node, self.habits, self.dice) for node in NODES}
        self.mail: list[Message] = []
        self.truth = Truth(members=ConfState(voters=self.habits.founders))
        self.cut: frozenset[int] = frozenset()
        self.swinging = self.dice.choice(NODES)
        self.asked = 0
        self.proposed = 0
        self._events: list[tuple[Callable[[], None], int]] = [
            (self._deliver, 70),
            (self._write, 40),
            (self._hear_own, 40),
            (self._work, 40),
            (self._tick, 25),
            (self._campaign, 2),
            (self._propose, 6),
            (self._change, 8),
            (self._read, 8),
            (self._compact, 4),
            (self._report, 2),
            (self._transfer, 2),
            (self._crash, 2),
            (self._partition, 2),
            (self._forget, 1),
            (self._lose, 1),
        ]

    # -- walking --------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        events = [event for event, _ in self._events]
        weights = [weight for _, weight in self._events]
        for event in self.dice.choices(events, weights, k=steps):
            event()
        self._compare_logs()

    def settle(self) -> bool:
        """Stop all faults; whether somebody leads then and everybody follows."""
        self.cut = frozenset()
        for _ in range(60):
            for copy in self.copies.values():
                copy.raft.tick()
                self._check(copy)
            self._drain()
            leader = self._leader()
            if leader is not None and self._all_follow(leader):
                self._compare_logs()
                return True
            if leader is not None:
                self._help(leader)
        return not self._can_go_on()

    def _drain(self) -> None:
        for _ in range(3_000):
            busy = False
            for copy in self.copies.values():
                busy |= self._finish(copy)
            mail, self.mail = self.mail, []
            for message in mail:
                busy = True
                self._hand_over(message)
            if not busy:
                return
        raise AssertionError("it does not come to rest")

    def _finish(self, copy: Copy) -> bool:
        """Do all work of a node; whether there was any."""
        busy = False
        while copy.raft.has_ready() or copy.orders or copy.own:
            busy = True
            self._work_on(copy)
            while copy.orders:
                self._write_one(copy)
            while copy.own:
                self._hear_one(copy)
        return busy

    def _leader(self) -> Copy | None:
        leaders = [copy for copy in self.copies.values() if copy.leads]
        return max(leaders, key=lambda copy: copy.raft.core.term, default=None)

    def _all_follow(self, leader: Copy) -> bool:
        core = leader.raft.core
        if core.members.joint or core.log.committed < max(core.term_start, self.truth.committed[0]):
            return False
        return all(
            self.copies[node].applied == core.log.last_index == core.log.committed
            and self.copies[node].raft.core.leader == leader.node
            for node in core.members.everybody
        )

    def _help(self, leader: Copy) -> None:
        """What a driver does: report lost snapshots, leave joint configurations, replace copies."""
        core = leader.raft.core
        for node, progress in core.progress.items():
            if progress.state is ProgressState.SNAPSHOT:
                leader.raft.report_snapshot(node, failed=True)
        mute = sorted(n for n in core.members.everybody if self.copies[n].raft.core.mute)
        speak = sorted(core.members.incoming.difference(mute))
        with suppress(ProposalDropped):
            if leader.node not in core.members.voters and speak:
                leader.raft.transfer_leader(self.dice.choice(speak))
            elif core.members.joint:
                leader.raft.propose_change(ConfChange())
            elif mute:
                # Removed now; with what is left, everybody can follow.
                leader.raft.propose_change(
                    ConfChange(changes=(Change(ChangeKind.REMOVE, mute[0]),))
                )
        self._check(leader)

    def _can_go_on(self) -> bool:
        """Whether majorities speak: of the members there are, and of those that survivors know."""
        speak = {node: not self.copies[node].raft.core.mute for node in NODES}
        known = max(self.copies.values(), key=lambda copy: copy.applied).members
        groups = [restore(stored) for stored in (self.truth.members, known)]
        return all(
            majority_vote(voters, speak) is VoteResult.WON
            for members in groups
            for voters in (members.incoming, members.outgoing)
        )

    # -- events ---------------------------------------------------------------------------------

    def _any(self) -> Copy:
        return self.copies[self.dice.choice(NODES)]

    def _any_leader(self) -> Copy | None:
        leaders = [copy for copy in self.copies.values() if copy.leads]
        return self.dice.choice(leaders) if leaders else None

    def _deliver(self) -> None:
        if not self.mail:
            return
        at = self.dice.randrange(len(self.mail))
        message = self.mail[at]
        if self.dice.random() >= self.habits.double:
            self.mail[at] = self.mail[-1]
            self.mail.pop()
        if self.dice.random() >= self.habits.drop:
            self._hand_over(message)

    def _hand_over(self, message: Message) -> None:
        if (message.to in self.cut) is not (message.sender in self.cut):
            return
        copy = self.copies[message.to]
        with suppress(ProposalDropped):
            copy.raft.step(message)
        self._check(copy)
        if self.dice.random() < self.habits.eager:
            self._finish(copy)
        elif self.dice.random() < 0.7:
            self._work_on(copy)

    def _write(self) -> None:
        busy = [copy for copy in self.copies.values() if copy.orders]
        if busy:
            self._write_one(self.dice.choice(busy))

    def _write_one(self, copy: Copy) -> None:
        if not copy.orders:
            return
        order = copy.orders.popleft()
        self._store(copy, order)
        for response in order.responses:
            if isinstance(response, StorageAppended) or response.to == copy.node:
                copy.own.append(response)
            else:
                self._send(copy, response)

    def _store(self, copy: Copy, order: StorageAppend) -> None:
        copy.hard = order.hard or copy.hard
        disk, new = copy.storage.hard, copy.hard
        needed = any(entry.kind is not EntryKind.NORMAL for entry in order.entries) or (
            (new.term, new.vote, new.incarnation) != (disk.term, disk.vote, disk.incarnation)
        )
        hard = new if needed or not self.habits.lazy_commits else None
        copy.storage.write(hard, order.entries, order.snapshot)
        if order.snapshot is not None:
            copy.applied = order.snapshot.index
            copy.members = order.snapshot.members

    def _hear_own(self) -> None:
        busy = [copy for copy in self.copies.values() if copy.own]
        if busy:
            self._hear_one(self.dice.choice(busy))

    def _hear_one(self, copy: Copy) -> None:
        if not copy.own:
            return
        mine = copy.own.popleft()
        if isinstance(mine, Message):
            copy.raft.step(mine)
        else:
            copy.raft.deliver(mine)
        self._check(copy)

    def _work(self) -> None:
        busy = [copy for copy in self.copies.values() if copy.raft.has_ready()]
        if busy:
            self._work_on(self.dice.choice(busy))

    def _work_on(self, copy: Copy) -> None:
        if not copy.raft.has_ready():
            return
        ready = copy.raft.ready()
        self._see_ready(copy, ready)
        for message in ready.messages:
            self._send(copy, message)
        if ready.append is not None:
            copy.orders.append(ready.append)
        for state in ready.read_states:
            self.truth.answered_reads += 1
            assert state.index >= self.truth.reads[state.context], "a stale read"
        if ready.apply is not None:
            self._apply(copy, ready.apply.entries)
            copy.own.append(StorageApplied(ready.apply.entries))
        self._check(copy)

    def _apply(self, copy: Copy, entries: list[Entry]) -> None:
        for entry in entries:
            assert entry.index == copy.applied + 1, "entries are applied one after another"
            assert copy.has_durable(entry.index, entry.term), "applied before it was durable"
            first = entry.index not in self.truth.applied
            seen = self.truth.applied.setdefault(entry.index, entry.term)
            assert seen == entry.term, f"two entries were applied at {entry.index}"
            copy.applied = entry.index
            if entry.kind is not EntryKind.NORMAL:
                change = ConfChange.decode(entry.data)
                copy.members = copy.raft.apply_change(change, index=entry.index)
                if first:
                    self.truth.members = copy.members
                self._check(copy)

    def _tick(self) -> None:
        copy = self._any()
        for _ in range(self.dice.choice((1, 1, 1, ELECTION_TICKS))):
            copy.raft.tick()
            self._check(copy)

    def _campaign(self) -> None:
        copy = self._any()
        copy.raft.campaign()
        self._check(copy)

    def _propose(self) -> None:
        copy = self._any_leader() if self.dice.random() < 0.9 else self._any()
        if copy is None:
            return
        datas = []
        for _ in range(self.dice.choice((1, 1, 3))):
            self.proposed += 1
            datas.append(b"%d" % self.proposed)
        with suppress(ProposalDropped):
            copy.raft.propose(datas)
        self._check(copy)

    def _change(self) -> None:
        copy = self._any_leader()
        if copy is None:
            return
        members = copy.raft.core.members
        if members.joint and self.dice.random() < 0.8:
            change = ConfChange()
        elif self.dice.random() < 0.5:
            # The same node goes and comes: what it said before is still on its way.
            kind = self.dice.choice((ChangeKind.ADD_VOTER, ChangeKind.ADD_LEARNER))
            if self.swinging in members.everybody:
                kind = ChangeKind.REMOVE
            change = ConfChange(changes=(Change(kind, self.swinging),))
        else:
            kinds = (ChangeKind.ADD_VOTER, ChangeKind.ADD_LEARNER, ChangeKind.REMOVE)
            size = self.dice.choice((1, 1, 1, 2, 3))
            changes = [
                Change(self.dice.choice(kinds), self.dice.choice(NODES)) for _ in range(size)
            ]
            change = ConfChange(self.dice.choice(list(Transition)), tuple(changes))
        with suppress(ProposalDropped):
            copy.raft.propose_change(change, single=len(change.changes) == 1)
        self._check(copy)

    def _read(self) -> None:
        copy = (self._any_leader() if self.dice.random() < 0.7 else None) or self._any()
        self.asked += 1
        context = b"%d" % self.asked
        self.truth.reads[context] = self.truth.committed[0]
        copy.raft.read_index(context)
        self._check(copy)

    def _compact(self) -> None:
        copy = self._any()
        storage, base = copy.storage, copy.storage.base
        if copy.applied > base.index and self.dice.random() < 0.7:
            term = storage.term(copy.applied)
            assert term is not None
            storage.base = Snapshot(copy.applied, term, copy.members)
        upto = min(storage.base.index, copy.raft.core.log.applied)
        if upto > storage.compacted[0]:
            storage.compact(self.dice.randrange(storage.compacted[0], upto) + 1)

    def _report(self) -> None:
        copy = self._any_leader()
        if copy is None:
            return
        node = self.dice.choice(NODES)
        if self.dice.random() < 0.5:
            copy.raft.report_unreachable(node)
        else:
            copy.raft.report_snapshot(node, failed=self.dice.random() < 0.5)
        self._check(copy)

    def _transfer(self) -> None:
        copy = self._any()
        copy.raft.transfer_leader(self.dice.choice(NODES))
        self._check(copy)

    def _forget(self) -> None:
        self._any().raft.forget_leader()

    def _partition(self) -> None:
        if self.cut or self.dice.random() < 0.5:
            self.cut = frozenset()
        else:
            self.cut = frozenset(self.dice.sample(NODES, self.dice.randrange(1, 4)))

    def _crash(self) -> None:
        copy = self._any()
        if copy.orders and self.dice.random() < 0.5:
            self._store(copy, copy.orders[0])  # written, but nobody was told
        copy.start()
        self._check(copy)

    def _lose(self) -> None:
        """A disk is lost; the node begins anew, and says nothing until it is added again."""
        copy = self.copies[self.swinging]
        if self.dice.random() > 0.3 or any(c.raft.core.mute for c in self.copies.values()):
            return
        self.truth.lost.setdefault(copy.node, []).append(copy)
        incarnation = copy.raft.core.incarnation
        self.copies[copy.node] = Copy(copy.node, self.habits, self.dice, rejoin_above=incarnation)

    def _send(self, copy: Copy, message: Message) -> None:
        assert not copy.raft.core.mute, "a copy that waits to be added again spoke"
        self._see_vote(copy, message)
        if len(self.mail) >= MAIL_MAX:
            self.mail[self.dice.randrange(MAIL_MAX)] = message
        else:
            self.mail.append(message)

    # -- observing ------------------------------------------------------------------------------

    def _see_vote(self, copy: Copy, message: Message) -> None:
        if isinstance(message, VoteResponse) and not message.pre and not message.reject:
            key = (copy.node, copy.rejoin_above, message.term)
            voted = self.truth.votes.setdefault(key, message.to)
            assert voted == message.to, f"two votes in term {message.term}"
            hard = copy.storage.hard
            assert hard.term > message.term or (hard.term, hard.vote) == (message.term, message.to)

    def _see_ready(self, copy: Copy, ready: Ready) -> None:
        before = 0
        for entry in ready.entries:
            before = before or copy.raft.core.log.term(entry.index - 1) or 0
            what = (before, entry.kind, bytes(entry.data))
            seen = self.truth.entries.setdefault((entry.index, entry.term), what)
            assert seen == what, f"logs differ at {entry.index}"
            before = entry.term
        for message in ready.messages:
            if isinstance(message, Install):
                assert message.snapshot.index <= copy.raft.core.log.committed

    def _check(self, copy: Copy) -> None:
        """After each event."""
        core = copy.raft.core
        log = core.log
        assert core.term >= copy.term, "the term went back"
        assert log.committed >= copy.commit, "the commit index went back"
        assert log.applied <= log.committed <= log.last_index
        assert copy.storage.base.index <= copy.applied <= log.committed
        more = log.committed > copy.commit
        copy.term, copy.commit = core.term, log.committed
        if core.role is Role.LEADER:
            self._check_leader(copy, more_committed=more)

    def _check_leader(self, copy: Copy, *, more_committed: bool) -> None:
        core, truth = copy.raft.core, self.truth
        new = core.term not in truth.leaders
        assert truth.leaders.setdefault(core.term, copy.node) == copy.node, "two leaders"
        index, term, committed_in = truth.committed
        if new and committed_in < core.term:
            assert self._log_has(copy, index, term), "a leader lacks what is committed"
        if more_committed:
            index = core.log.committed
            entry_term = core.log.term(index)
            assert entry_term == core.term, "only entries of its own term, by counting"
            self._check_durable(core.members, index, core.term)
            for other in self.copies.values():
                if other.leads and other.raft.core.term > core.term:
                    assert self._log_has(other, index, core.term), "committed behind a new leader"
            truth.committed = max(truth.committed, (index, core.term, core.term))
        for node, progress in core.progress.items():
            if node != copy.node:
                assert progress.match < progress.next
                assert progress.match <= self._durable_end(node, progress.incarnation, core.term)

    def _log_has(self, copy: Copy, index: int, term: int) -> bool:
        log = copy.raft.core.log
        return index < log.first_index - 1 or index == NOBODY or log.term(index) == term

    def _check_durable(self, members: Members, index: int, term: int) -> None:
        have = {
            node: any(
                copy.has_durable(index, term)
                for copy in [self.copies[node], *self.truth.lost.get(node, [])]
            )
            for node in members.voters
        }
        for voters in (members.incoming, members.outgoing):
            assert majority_vote(voters, have) is VoteResult.WON, f"{index} is not durable"

    def _durable_end(self, node: int, incarnation: int, term: int) -> int:
        """How far the disk of a member reaches, as that incarnation; any, if it moved on."""
        copy = self.copies[node]
        if max(copy.storage.hard.term, copy.raft.core.term) > term:
            return NO_LIMIT
        ends = [old.storage.last_index() for old in self._lost_as(node, incarnation)]
        if copy.rejoin_above < incarnation or not ends:
            ends.append(copy.storage.last_index())
        return max(ends)

    def _lost_as(self, node: int, incarnation: int) -> list[Copy]:
        lost = self.truth.lost.get(node, [])
        return [old for old in lost if old.raft.core.incarnation >= incarnation]

    def _compare_logs(self) -> None:
        """Two logs that have an entry of the same index and term are the same up to it."""
        known = self.truth.entries
        for copy in self.copies.values():
            log = copy.raft.core.log
            for index in range(log.first_index + 1, log.unstable.in_progress):
                term = log.term(index)
                assert term is not None
                assert known[index, term][0] == log.term(index - 1)
