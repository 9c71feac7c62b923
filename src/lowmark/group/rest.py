"""Groups with nothing to do rest: no ticks, no heartbeats, no batches.

When a leader has been quiet for a while and everybody has everything, it asks all members to stop
their clocks; when all have said yes, it stops its own. Any message, proposal or read starts the
clock again. Meanwhile nodes watch over each other, one small frame per pair and tick: a leader over
all members, the others over the leader. When a node falls silent for an election timeout, or comes
back as a new process, the groups that rest on it wake, as if they had counted all that time
themselves. (Not on each other: a follower that woke alone would hear of no leader, and elect one.)
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from lowmark.group.config import GroupConfig
from lowmark.group.wire import Rest, Rested
from lowmark.raft import NOBODY, ProgressState, RaftNode, Role

_LOOKS_PER_QUESTION = 6
"""How seldom a copy that rests asks whether its leader's copy is still there."""


class Resting:
    """Whether one copy of a group rests."""

    def __init__(self, config: GroupConfig) -> None:
        self._rest_ticks = config.rest_ticks
        self._quiet_ticks = 0
        self._agreed: set[int] = set()
        self._asked: tuple[int, int] = (0, 0)
        self._looks = 0
        self.resting = False

    def wake(self) -> None:
        """Something happened."""
        self._quiet_ticks = 0
        self._agreed.clear()
        self.resting = False

    def wake_late(self, raft: RaftNode) -> None:
        """A node fell silent: the time since then counts."""
        if self.resting:
            self.wake()
            raft.core.election_elapsed = raft.core.config.election_ticks

    def rests_on(self, raft: RaftNode) -> AbstractSet[int]:
        """Whose life a rest depends on: a leader has everybody, and is all they have."""
        core = raft.core
        return core.progress.keys() if core.role is Role.LEADER else {core.leader}

    def look(self, raft: RaftNode) -> bool:
        """A long time has passed; True if it is time to ask whether the leader's copy lives."""
        self._looks += 1
        core = raft.core
        follows = core.role is Role.FOLLOWER and core.leader != NOBODY
        return follows and self._looks % _LOOKS_PER_QUESTION == 0

    def tick(self, raft: RaftNode, quiet: Callable[[], bool]) -> bool:
        """A tick of a leader; True if it is time to ask everybody to rest."""
        if not self._rest_ticks or not _settled(raft) or not quiet():
            self._quiet_ticks = 0
            return False
        self._quiet_ticks += 1
        if raft.core.role is not Role.LEADER or self._quiet_ticks < self._rest_ticks:
            return False
        core = raft.core
        if any(p.match != core.log.last_index for p in core.progress.values()):
            return False
        if len(core.progress) == 1:
            self.resting = True
            return False
        self._asked = (core.term, core.log.committed)
        return self._quiet_ticks % self._rest_ticks == 0

    def questions(self, raft: RaftNode) -> list[Rest]:
        """What to ask everybody, in place of a heartbeat, which would wake them."""
        core = raft.core
        return [
            Rest(node, core.node, core.term, core.log.committed)
            for node in core.progress
            if node != core.node
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
        self.resting = agrees
        if agrees:
            core.election_elapsed = 0
        return agrees

    def rested(self, sender: int, item: Rested, raft: RaftNode) -> None:
        """A member rests; when all do, so does the leader."""
        core = raft.core
        if core.role is not Role.LEADER or (item.term, item.commit) != self._asked:
            return
        if self._asked != (core.term, core.log.last_index) or not self._quiet_ticks:
            return
        self._agreed.add(sender)
        if self._agreed >= core.progress.keys() - {core.node}:
            self.resting = True


def _settled(raft: RaftNode) -> bool:
    """Whether everything in the log is committed and applied, and nobody needs anything."""
    core = raft.core
    log = core.log
    return (
        log.applied == log.committed == log.last_index
        and not raft.has_ready()
        and core.leader != NOBODY
        and core.transferee == NOBODY
        and not core.members.joint
        and (
            core.role is not Role.LEADER
            or all(p.state is ProgressState.REPLICATE for p in core.progress.values())
        )
    )
