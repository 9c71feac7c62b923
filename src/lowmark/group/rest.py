"""Groups with nothing to do rest: no ticks, no heartbeats, no batches.

When a leader has been quiet for a while and everybody has everything, it asks all members to stop
their clocks; when all have said yes, it stops its own. While it waits for their answers it sends no
heartbeat, which would wake those that rest already; if they take too long, it goes on as before and
asks again later (a node with thousands of groups needs its time for all of them). Any message,
proposal or read starts the clock again.

Meanwhile nodes watch over each other, one small frame per pair and tick: a leader over all members,
the others over the leader. When a node falls silent for an election timeout, or comes back as a new
process, the groups that rest on it wake, as if they had counted all that time themselves. (Not on
each other: a follower that woke alone would hear of no leader, and elect one.) Silence is counted
in the node's own ticks: on a machine that is too slow for all its groups, nodes that are late would
else be taken for dead, and wake more groups.

A node that is down does not keep the others awake. A member is *missing* if its node has said
nothing to the leader's node for two election timeouts, though it was called or should have spoken.
A leader may rest without those; it wakes when it hears of their node again, to bring them up to
date. (Nothing but the work of callers needs `rest_ticks` of quiet after it: a group that was woken
by the news of a node rests again as soon as all have everything.)

What holds, whichever nodes hear each other
    1. A leader that rests, and the members that rest on it, are a majority of the voters; each of
       these has everything that is in the leader's log, and everything is committed.
    2. The leader watches each of them, missing ones excepted. If one falls silent, it goes on
       resting if what is left is a majority; else it wakes, and steps down. Each of them watches
       the leader.
    3. To rest is no promise: a member that rests answers as it would if it had just
       heard its leader's heartbeat, no more and no less. (That its leader's node was heard within
       an election timeout is as good.)
    4. A member that is woken by another one than its leader wakes its leader, too: else it would
       take the leader's rest for its death. A member that the leader misses, but which can speak to
       others, so wakes the group with every election that it tries.
    5. No copy is left behind for good. A node that is missed is asked now and then whether it is
       there, because it may have no reason to speak: a copy there may rest, too, on a leader of an
       earlier term that it still hears. As soon as it answers, the leader wakes, and calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from enum import Enum

from lowmark.group.config import GroupConfig
from lowmark.group.wire import Rest, Rested
from lowmark.raft import NOBODY, ProgressState, RaftNode, Role
from lowmark.raft.quorum import VoteResult, joint_vote
from lowmark.raft.state import Core

_SHORT_TICKS = 2
_LOOKS_PER_QUESTION = 6
"""How seldom a copy that rests asks whether its leader's copy is still there."""


class Pace(Enum):
    """What a tick is to a group that does not rest."""

    RUN = "as always"
    ASK = "ask everybody to rest"
    WAIT = "for their answers"


class Resting:
    """Whether one copy of a group rests."""

    def __init__(self, config: GroupConfig, *, changed: Callable[[], None]) -> None:
        self._rest_ticks = config.rest_ticks
        self._election_ticks = config.election_ticks
        self._needed_ticks = config.rest_ticks
        """How long it must have been quiet: after a rest that no work ended, not for long."""
        # A member that does not agree must hear of its leader in time.
        self._patience_ticks = max(1, (config.election_ticks - config.heartbeat_ticks) // 2)
        self._changed = changed
        self._quiet_ticks = 0
        self._wait_ticks = 0
        """How long answers are still waited for; 0: they come too late."""
        self._agreed: set[int] = set()
        self._asked: tuple[int, int] = (0, 0)
        self._looks = 0
        self.resting = False
        self.without: AbstractSet[int] = frozenset()
        """Members that a leader rests without: their nodes are down, as far as it knows."""

    def wake(self) -> None:
        """Something happened."""
        self._quiet_ticks = self._wait_ticks = 0
        self._agreed.clear()
        if self.resting:
            self.resting, self.without = False, frozenset()
            self._changed()

    def work(self) -> None:
        """A caller wants something; there may be more to come."""
        self._needed_ticks = self._rest_ticks
        self.wake()

    def _rest(self, without: AbstractSet[int] = frozenset()) -> None:
        self.resting, self.without = True, without
        self._needed_ticks = min(self._rest_ticks, _SHORT_TICKS)
        self._changed()

    def fell_silent(self, node: int, raft: RaftNode, *, missing: bool) -> None:
        """A node says nothing any more, and this group rests on it.

        A leader that has a majority without it, which has everything, has no reason to wake.
        """
        core = raft.core
        if core.role is not Role.LEADER:
            self.wake_late(raft)
        elif not _is_majority(core, self.without | {node}):
            self.wake()
        elif missing:
            self.without |= {node}
            self._changed()

    def wake_late(self, raft: RaftNode) -> None:
        """A node fell silent: the time since then counts."""
        if self.resting:
            self.wake()
            raft.core.election_elapsed = raft.core.config.election_ticks

    def rests_on(self, raft: RaftNode) -> AbstractSet[int]:
        """Whose life a rest depends on: a leader has everybody, and is all they have."""
        core = raft.core
        if core.role is not Role.LEADER:
            return {core.leader}
        return core.progress.keys() - self.without

    def look(self, raft: RaftNode) -> bool:
        """A long time has passed; True if it is time to ask whether the leader's copy lives."""
        self._looks += 1
        core = raft.core
        follows = core.role is Role.FOLLOWER and core.leader != NOBODY
        return follows and self._looks % _LOOKS_PER_QUESTION == 0

    def tick(self, raft: RaftNode, quiet: Callable[[], bool], missing: AbstractSet[int]) -> Pace:
        """A tick of a member that does not rest: whether those that are not missing shall."""
        if not self._rest_ticks or not _settled(raft, missing) or not quiet():
            self._quiet_ticks = self._wait_ticks = 0
            return Pace.RUN
        self._quiet_ticks += 1
        core = raft.core
        needed = max(self._needed_ticks, self._election_ticks) if missing else self._needed_ticks
        if core.role is not Role.LEADER or self._quiet_ticks < needed:
            return Pace.RUN
        if core.progress.keys() <= missing | {core.node}:
            self._rest(missing)
            return Pace.RUN
        if self._wait_ticks:
            self._wait_ticks -= 1
            return Pace.WAIT if self._wait_ticks else Pace.RUN
        if (self._quiet_ticks - needed) % self._rest_ticks:
            return Pace.RUN
        self._asked = (core.term, core.log.committed)
        self._agreed.clear()
        self._wait_ticks = 1 + self._patience_ticks
        return Pace.ASK

    def questions(self, raft: RaftNode, missing: AbstractSet[int]) -> list[Rest]:
        """What to ask members, in place of a heartbeat, which would wake them."""
        core = raft.core
        return [
            Rest(node, core.node, core.term, core.log.committed)
            for node in core.progress
            if node != core.node and node not in missing
        ]

    def asked(self, item: Rest, raft: RaftNode, *, quiet: bool) -> bool:
        """A leader asks; True if this member rests from now on."""
        core = raft.core
        agrees = (
            quiet
            and core.role is Role.FOLLOWER
            and (core.term, core.leader) == (item.term, item.sender)
            and core.log.committed == item.commit
            and _settled(raft)
        )
        if agrees:
            core.election_elapsed = 0
            self._rest()
        elif self.resting:
            self.wake()
        return agrees

    def rested(self, sender: int, item: Rested, raft: RaftNode, missing: AbstractSet[int]) -> None:
        """A member rests; when all that are not missing do, so does the leader."""
        core = raft.core
        if core.role is not Role.LEADER or (item.term, item.commit) != self._asked:
            return
        if self._asked != (core.term, core.log.last_index) or not self._wait_ticks:
            return
        self._agreed.add(sender)
        others = core.progress.keys() - {core.node}
        if self._agreed | missing >= others and _all_have_all(core, missing):
            self._rest(missing)


def _settled(raft: RaftNode, missing: AbstractSet[int] = frozenset()) -> bool:
    """Whether everything in the log is committed and applied, and no member needs anything.

    Those who are missing get nothing now, whatever they need; but they may not be too many.
    """
    core = raft.core
    log = core.log
    return (
        log.applied == log.committed == log.last_index
        and not raft.has_ready()
        and core.leader != NOBODY
        and core.transferee == NOBODY
        and not core.members.joint
        and (core.role is not Role.LEADER or _all_have_all(core, missing))
    )


def _is_majority(core: Core, missing: AbstractSet[int]) -> bool:
    """Whether enough voters are left without those who are missing."""
    here = {node: node not in missing for node in core.members.voters}
    return joint_vote(core.members.incoming, core.members.outgoing, here) is VoteResult.WON


def _all_have_all(core: Core, missing: AbstractSet[int]) -> bool:
    if missing and not _is_majority(core, missing):
        return False
    last = core.log.last_index
    for node, progress in core.progress.items():
        if node in missing:
            if progress.state is ProgressState.SNAPSHOT:
                return False  # it is given up first
        elif progress.state is not ProgressState.REPLICATE or progress.match != last:
            return False
    return True
