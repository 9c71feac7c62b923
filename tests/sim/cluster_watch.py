"""Watches one copy of a group through its lives: looks after every turn of its node, and at the
moments that matter (a commit, a proposal, a message that leaves).

What is durable is taken from the log (`written_index`, the group's own record); after a crash the
recovered copy must have all of it. Looking is incremental: a copy whose numbers have not moved
costs a comparison of tuples.
"""

from __future__ import annotations

from collections.abc import Callable

from lowmark.errors import LowmarkError
from lowmark.group import Group
from lowmark.group.storage import GroupMeta
from lowmark.group.wire import Item
from lowmark.raft import (
    AppendResponse,
    Entry,
    EntryKind,
    HardState,
    HeartbeatResponse,
    RaftNode,
    Role,
    VoteResponse,
)
from sim.cluster_ledger import Broken, Election, GroupLedger, WatchedMachine, confirm

__all__ = ["CopyWatch"]


class CopyWatch:
    """One copy: from its creation to its deletion."""

    def __init__(
        self,
        ledger: GroupLedger,
        node: int,
        *,
        above: int,
        others: Others,
        count: Callable[[str], None],
        elected: Callable[[int], None],
    ) -> None:
        self.ledger = ledger
        self.node = node
        self.above = above
        """Everything that an earlier copy of this node said was said as at most this."""
        self._others = others
        self._count = count
        self._elected = elected
        self.group: Group | None = None
        self.machine: WatchedMachine | None = None
        self.terms: dict[int, int] = {}
        self.snapshot_index = 0
        self.written = 0
        self.hard = HardState()
        self.known_as = -1
        """The highest incarnation as which it said anything."""
        self.drawn = b""
        """What the log drew when this copy was made."""
        self.spoke = False
        self.discarded = False
        """Whether it was thrown away once; a crash may bring back what of it was not deleted."""
        self.damaged = False
        """Whether somebody changed its files: it has to be replaced, noticed or not."""
        self._raft: RaftNode | None = None
        self._seen: tuple[object, ...] = ()
        self._committed = 0
        self._applied = 0
        self._last = 0
        self._meta = b""

    @property
    def who(self) -> str:
        return f"node {self.node}"

    # -- lives ----------------------------------------------------------------------------------

    def born(self, group: Group, machine: WatchedMachine) -> None:
        """A life of this copy begins; it has what was durable before."""
        self.group, self.machine = group, machine
        self.drawn = group.log.incarnation
        if group.stopped is None:
            try:
                self._check_recovered(group)
            except LowmarkError:
                if not self.damaged:
                    raise
        self.terms = {}
        self.snapshot_index = self.written = self._last = 0
        self._seen, self._raft = (), None
        self._committed = self._applied = 0
        self.look()

    def died(self) -> None:
        """Its process ended; what was durable must come back."""
        self.group = self.machine = None

    def _check_recovered(self, group: Group) -> None:
        log = group.log
        now, before = GroupMeta.decode(log.meta).hard, self.hard
        self._check_hard(before, now)
        confirm(
            log.row.snapshot_index >= self.snapshot_index,
            f"{self.who}: the snapshot at {self.snapshot_index} was lost",
        )
        snapshot, term = log.row.snapshot_index, log.row.snapshot_term
        if snapshot == self.snapshot_index or self.terms.get(snapshot) == term:
            self._check_tail(group)
        # Else a snapshot was installed just before the end: what followed another entry is void.
        committed = min(now.commit, log.last_index)
        confirm(
            group.raft.core.log.committed >= committed,
            f"{self.who}: {committed} was durably committed",
        )

    def _check_tail(self, group: Group) -> None:
        log = group.log
        confirm(
            log.last_index >= self.written,
            f"{self.who}: the log was durable up to {self.written}, and ends at {log.last_index}",
        )
        for index in range(log.first_index, self.written + 1):
            if index in self.terms:
                confirm(
                    log.term_at(index) == self.terms[index],
                    f"{self.who}: entry {index} was durable in term {self.terms[index]},"
                    f" and is of term {log.term_at(index)}",
                )

    def _check_hard(self, before: HardState, now: HardState) -> None:
        confirm(
            now.term > before.term or (now.term == before.term and before.vote in {0, now.vote}),
            f"{self.who}: term and vote went from {before} to {now}",
        )
        confirm(
            now.incarnation >= before.incarnation,
            f"{self.who}: the incarnation went from {before} to {now}",
        )

    # -- after every turn -----------------------------------------------------------------------

    def look(self) -> None:
        """Look at what has changed."""
        group = self.group
        if group is None:
            return
        if group.stopped is not None:
            return
        if group.raft is not self._raft:
            self._hook(group)
        core, log = group.raft.core, group.log
        seen = (
            core.term,
            core.role,
            core.log.committed,
            group.applied,
            log.last_index,
            log.last_term,
            log.written_index,
            log.row.snapshot_index,
            log.meta,
        )
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._look(group)
        except LowmarkError:
            if group.log.quarantined is None:
                raise
            # Damage that was found by looking: the copy will stop with its next tick.

    def _look(self, group: Group) -> None:
        core = group.raft.core
        if group.log.meta != self._meta:
            self._meta = group.log.meta
            now = GroupMeta.decode(group.log.meta).hard
            self._check_hard(self.hard, now)
            self.hard = now
        self.read_log()
        if core.role is Role.LEADER and core.term not in self.ledger.elections:
            first = max(1, group.log.first_index)
            terms = {i: core.log.term(i) or 0 for i in range(first, core.log.last_index + 1)}
            self.ledger.elected(Election(self.node, core.term, group.log.row.snapshot_index, terms))
            self._elected(self.node)
        elif core.role is Role.LEADER:
            confirm(
                self.ledger.elections[core.term].node == self.node,
                f"two leaders of term {core.term}",
            )
        self._look_at_committed(group)
        self._look_at_applied(group)

    def read_log(self) -> None:
        """Learn what is new in the log."""
        group = self.group
        if group is None:
            return
        log = group.log
        snapshot, last = log.row.snapshot_index, log.last_index
        index = last
        while index > snapshot and self.terms.get(index) != log.term_at(index):
            index -= 1
        for gone in range(last + 1, self._last + 1):
            self.terms.pop(gone, None)
        if index < last:
            for entry in log.read_range(index + 1, last, bytes_max=1 << 30):
                previous = log.term_at(entry.index - 1) if entry.index > 1 else 0
                self.ledger.entry(
                    entry.index,
                    entry.term,
                    previous=previous,
                    data=bytes(entry.data),
                    who=self.who,
                )
                self.terms[entry.index] = entry.term
        if snapshot and snapshot != self.snapshot_index:
            if snapshot > self._applied > 0 and snapshot not in self.terms:
                self._count("install")
            self.ledger.commit(
                snapshot, log.row.snapshot_term, in_term=group.raft.core.term, who=self.who
            )
        self._last = last
        self.snapshot_index = max(snapshot, self.snapshot_index)
        self.written = log.written_index

    def _look_at_committed(self, group: Group) -> None:
        view = group.raft.core.log
        committed = view.committed
        confirm(committed >= self._committed, f"{self.who}: the commit index went back")
        for index in range(self._committed + 1, committed + 1):
            term = view.term(index)
            if term is not None and index > 0:
                self.ledger.commit(index, term, in_term=group.raft.core.term, who=self.who)
        self._committed = committed

    def _look_at_applied(self, group: Group) -> None:
        applied, machine = group.applied, self.machine
        confirm(applied >= self._applied, f"{self.who}: what is applied went back")
        confirm(applied <= group.raft.core.log.committed, f"{self.who}: applied too much")
        confirm(group.log.row.snapshot_index <= applied, f"{self.who}: a snapshot of the future")
        live = group.log.row.live
        confirm(
            not live or live.max() <= group.log.row.snapshot_index,
            f"{self.who}: a live index after the snapshot",
        )
        if applied != self._applied and machine is not None:
            self._applied = applied
            self.ledger.stands(applied, machine.digest(), who=self.who)
            self.ledger.in_force(applied, group.members())

    # -- at the moments that matter -------------------------------------------------------------

    def _hook(self, group: Group) -> None:
        """A core was made, or made anew within a life: then it may have forgotten what was not
        durable, but nothing that is applied."""
        self._raft = group.raft
        if self._committed:
            self._committed = min(self._committed, group.raft.core.log.committed)
            confirm(
                group.raft.core.log.committed >= self._applied,
                f"{self.who}: {self._applied} was applied, and is not committed any more",
            )
        core, view = group.raft.core, group.raft.core.log
        commit, append = view.maybe_commit, view.append

        def maybe_commit(index: int, term: int) -> bool:
            committed = commit(index, term)
            if committed and core.role is Role.LEADER:
                self._check_quorum(group, view.committed)
            return committed

        def append_entries(entries: list[Entry]) -> int:
            if core.role is Role.LEADER and any(e.kind is not EntryKind.NORMAL for e in entries):
                confirm(
                    view.applied >= core.term_start,
                    f"{self.who}: a change of members before the first entry of term {core.term}",
                )
            return append(entries)

        view.maybe_commit = maybe_commit  # type: ignore[method-assign]
        view.append = append_entries  # type: ignore[method-assign]

    def _check_quorum(self, group: Group, index: int) -> None:
        """What a leader commits by counting is of its term, and durable on a quorum."""
        core = group.raft.core
        term = core.log.term(index)
        confirm(
            term == core.term,
            f"{self.who}: {index} of term {term} was committed by counting in term {core.term}",
        )
        # Members take effect when they are applied; that is safe only while at most one change lies
        # between what is applied and what is committed by those members.
        unapplied = core.log.slice(core.log.applied + 1, index + 1, 1 << 30) or []
        changes = [entry.index for entry in unapplied if entry.kind is not EntryKind.NORMAL]
        confirm(
            len(changes) <= 1,
            f"{self.who}: {index} was committed by members before the changes at {changes}",
        )
        self.read_log()
        members = core.members
        for voters in filter(None, (members.incoming, members.outgoing)):
            have = [
                node
                for node in sorted(voters)
                if self._others(node, members.incarnation(node), index, term or 0)
            ]
            confirm(
                len(have) > len(voters) // 2,
                f"{self.who}: {index} of term {term} was committed, and is durable only on {have}"
                f" of {sorted(voters)}",
            )

    def has_durable(self, index: int, term: int) -> bool:
        """Whether an entry is durable in this copy."""
        if self.snapshot_index >= index:
            return True
        return self.written >= index and self.terms.get(index) == term

    def leaves(self, item: Item) -> None:
        """A message leaves the node."""
        group = self.group
        if group is None or not isinstance(item, AppendResponse | VoteResponse | HeartbeatResponse):
            return
        confirm(
            item.incarnation > self.above,
            f"{self.who}: a copy that was lost as {self.above} still speaks: {item}",
        )
        self.spoke = True
        self.known_as = max(self.known_as, item.incarnation)
        core = group.raft.core
        if isinstance(item, VoteResponse):
            if not item.pre and not item.reject:
                hard = GroupMeta.decode(group.log.meta).hard
                confirm(
                    hard.term > item.term or (hard.term, hard.vote) == (item.term, item.to),
                    f"{self.who}: a vote left that is not durable: {item}, durable is {hard}",
                )
        elif isinstance(item, AppendResponse) and not item.reject and item.term == core.term:
            confirm(
                group.log.written_index >= item.index,
                f"{self.who}: {item.index} was acknowledged, durable is up to"
                f" {group.log.written_index}",
            )

    # -- now and then ---------------------------------------------------------------------------

    def check_live(self, key: str) -> None:
        """The value that the machine has for a key can be read, and is the right one."""
        group, machine = self.group, self.machine
        if group is None or machine is None or group.stopped is not None:
            return
        row = machine.rows[key]
        try:
            (entry,) = group.log.read([row.index])
            command = group.read_command(row.index)
        except LowmarkError as error:
            if group.log.quarantined is None:
                raise Broken(
                    f"{self.who}: live entry {row.index} can't be read: {error}"
                ) from error
            return
        known = self.ledger.committed.get(row.index)
        confirm(
            known in {None, entry.term},
            f"{self.who}: live entry {row.index} is of term {entry.term}, not {known}",
        )
        confirm(
            machine.holds(key, command.data),
            f"{self.who}: live entry {row.index} has another value",
        )


Others = Callable[[int, int, int, int], bool]
"""Whether a node has, as this incarnation or a later one, an entry of this index and term."""
