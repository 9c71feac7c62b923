"""When a member takes a snapshot of its own: by size and by age, off the hot path.

A leader waits a little with it while a follower is close behind: entries that a snapshot covers are
no longer sent one by one, so taking it now would cost that follower a whole snapshot.
"""

from __future__ import annotations

from lowmark.errors import LowmarkError, invariant
from lowmark.group.applying import Applying
from lowmark.group.config import GroupConfig
from lowmark.group.state_record import SnapshotMembers
from lowmark.log import GroupLog, SnapshotMeta
from lowmark.raft import Progress, ProgressState, RaftNode, Role

_RETRY_MS = 5_000
"""After one that failed, another is tried so much later."""
_PATIENCE = 4
"""A snapshot that waits for a follower waits until the log is so many times its size."""


class Snapshots:
    """The snapshots of one member."""

    def __init__(self, log: GroupLog, applying: Applying, config: GroupConfig, now_ms: int) -> None:
        self._log = log
        self._applying = applying
        self._config = config
        self._taken_at_ms = now_ms
        self._wanted = False
        self.busy = False
        self.taken = 0
        self.failed: LowmarkError | None = None
        """Why the last one was not taken."""

    def want(self) -> None:
        """Take one as soon as possible, whatever the size."""
        self._wanted = True

    def take_if_due(self, raft: RaftNode, now_ms: int) -> None:
        """Take one if it is time."""
        core = raft.core
        close = core.role is Role.LEADER and any(map(self._is_close, core.progress.values()))
        if self.due(now_ms, follower_close=close):
            term = core.log.term(self._applying.applied)
            invariant(term is not None, "the last entry applied has a term")
            self._take(term or 0, now_ms)

    def _is_close(self, progress: Progress) -> bool:
        """Whether a member is behind, but will be served from the log, now or after an install."""
        if progress.state is ProgressState.SNAPSHOT:
            return progress.recent_active
        comes = progress.state is ProgressState.REPLICATE or progress.recent_active
        return comes and self._log.first_index - 1 <= progress.match < self._applying.applied

    def due(self, now_ms: int, *, follower_close: bool) -> bool:
        """Whether it is time."""
        entries = self._applying.applied - self._log.row.snapshot_index
        if self.busy or entries < 1 or self._log.quarantined is not None:
            return False
        if self.failed is not None and now_ms - self._taken_at_ms < _RETRY_MS:
            return False
        if self._wanted:
            return True
        config = self._config
        patience = _PATIENCE if follower_close else 1
        if entries >= config.snapshot_entries * patience:
            return True
        if self._log.log_bytes >= config.snapshot_bytes * patience:
            return entries >= config.snapshot_entries_min
        return now_ms - self._taken_at_ms >= config.snapshot_age_ms

    def _take(self, term: int, now_ms: int) -> None:
        """Take one now, of the machine as it is."""
        machine, applying = self._applying.machine, self._applying
        meta = SnapshotMeta(
            index=applying.applied,
            term=term,
            members=SnapshotMembers(applying.members, applying.last_time).encode(),
            machine_version=applying.version,
        )
        self._wanted = False
        self._taken_at_ms = now_ms

        def done(error: LowmarkError | None) -> None:
            self.busy = False
            self.failed = error
            self.taken += error is None

        try:
            live = machine.live_indexes()
            self._log.take_snapshot(meta, machine.snapshot(), live, done)
            self.busy = True
        except LowmarkError as error:
            self.failed = error
