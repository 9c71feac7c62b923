"""How far each member is, as its leader sees it, and how much is on the way to it.

    probe      it is not known where the logs agree: one append at a time, until one is answered
    replicate  appends are sent ahead of their answers, up to the window
    snapshot   it needs a snapshot first: nothing is sent meanwhile

Invariants: match < next; entries in (match, next) are on the way.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import msgspec


class ProgressState(Enum):
    """How the leader deals with a member."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Inflights:
    """A window over appends on the way, limited by count and (softly) by bytes."""

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "_sent")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sent: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def sent_bytes(self) -> int:
        """How much is on the way."""
        return self._bytes

    @property
    def full(self) -> bool:
        """Whether nothing more may be sent. The last message may have overshot the bytes."""
        return len(self._sent) >= self._count_max or self._bytes >= self._bytes_max

    def add(self, last_index: int, size: int) -> None:
        """A message that ends with this index is on its way."""
        self._sent.append((last_index, size))
        self._bytes += size

    def free(self, index: int) -> None:
        """Everything up to this index has been answered."""
        sent = self._sent
        while sent and sent[0][0] <= index:
            self._bytes -= sent.popleft()[1]

    def clear(self) -> None:
        """Nothing is on its way any more, or so we assume."""
        self._sent.clear()
        self._bytes = 0


class Progress(msgspec.Struct, kw_only=True):
    """One member."""

    match: int
    next: int
    inflights: Inflights
    is_learner: bool = False
    incarnation: int = 0
    """Its membership; an answer of an earlier one says nothing about this one."""
    state: ProgressState = ProgressState.PROBE
    pending_snapshot: int = 0
    sent_commit: int = 0
    recent_active: bool = False
    """Whether it was heard of since quorum was last checked."""
    flow_paused: bool = False
    """A probe is on its way, or the window is full: wait for an answer or a heartbeat's."""
    nudged: bool = False
    """Whether an answer to a heartbeat had something sent, since the last tick that called it."""
    disk_full: bool = False
    """Whether it said, when it last answered a heartbeat, that its disk is full."""
    read_round: int = 0
    """The last round of reads in which it said that it follows."""

    def _enter(self, state: ProgressState) -> None:
        self.flow_paused = self.nudged = False
        self.pending_snapshot = 0
        self.state = state
        self.inflights.clear()

    def become_probe(self) -> None:
        """Find out where the logs agree; after a snapshot that arrived, ask right behind it."""
        if self.state is ProgressState.SNAPSHOT:
            pending = self.pending_snapshot
            self._enter(ProgressState.PROBE)
            self.next = max(self.match + 1, pending + 1)
        else:
            self._enter(ProgressState.PROBE)
            self.next = self.match + 1
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_replicate(self) -> None:
        """Send ahead, from the first entry that is not known to be there."""
        self._enter(ProgressState.REPLICATE)
        self.next = self.match + 1
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_snapshot(self, index: int) -> None:
        """Wait until a snapshot up to this index is installed."""
        self._enter(ProgressState.SNAPSHOT)
        self.pending_snapshot = index
        self.next = index + 1
        self.sent_commit = index

    def sent_entries(self, count: int, size: int) -> None:
        """An append with this many entries is on its way."""
        if self.state is ProgressState.REPLICATE:
            if count:
                self.next += count
                self.inflights.add(self.next - 1, size)
            self.flow_paused = self.inflights.full
        elif count:
            self.flow_paused = True

    def can_bump_commit(self, commit: int) -> bool:
        """Whether telling it this commit could move its own."""
        return commit > self.sent_commit and self.sent_commit < self.next - 1

    def sent(self, commit: int) -> None:
        """It was told this commit."""
        self.sent_commit = commit

    def maybe_update(self, index: int) -> bool:
        """It has everything up to an index; False if that is old news."""
        if index <= self.match:
            return False
        self.match = index
        self.next = max(self.next, index + 1)
        self.flow_paused = False
        return True

    def maybe_decrease(self, rejected: int, hint: int) -> bool:
        """It refused an append at `rejected`; False if that was an old one."""
        if self.state is ProgressState.REPLICATE:
            if rejected <= self.match:
                return False
            self.next = self.match + 1
        else:
            # A probe is one message: its answer names the index it was sent with.
            if self.next - 1 != rejected:
                return False
            self.next = max(min(rejected, hint + 1), self.match + 1)
            self.flow_paused = False
        self.sent_commit = min(self.sent_commit, self.next - 1)
        return True

    @property
    def paused(self) -> bool:
        """Whether no append may be sent now."""
        return self.flow_paused or self.state is ProgressState.SNAPSHOT
