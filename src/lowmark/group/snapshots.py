"""The snapshots of a member: when it takes one of its own, and how one of another member takes the
place of what this copy has.

Its own are taken by size and by age, off the hot path. A leader waits a little with it while a
follower is close behind: entries that a snapshot covers are no longer sent one by one, so taking it
now would cost that follower a whole snapshot.

One of another member is offered, fetched aside (`transfer`), handed to the core, and put in force
by an order of the core's, in line with all others (`writes`), if the core wants it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lowmark.errors import LowmarkError, invariant
from lowmark.group.applier import Applier
from lowmark.group.config import GroupConfig
from lowmark.group.machine import Observer
from lowmark.group.rejoin import Rejoining
from lowmark.group.requests import Proposals
from lowmark.group.storage import SnapshotMembers
from lowmark.group.transfer import Receives
from lowmark.group.wire import InstallOffer
from lowmark.log import GroupLog, SnapshotMeta
from lowmark.raft import Install, Progress, ProgressState, RaftNode, Role, Snapshot

if TYPE_CHECKING:
    from lowmark.group.group import Group

_RETRY_MS = 5_000
"""After one that failed, another is tried so much later."""
_PATIENCE = 4
"""A snapshot that waits for a follower waits until the log is so many times its size."""


class Snapshots:
    """The snapshots of one member."""

    def __init__(
        self,
        log: GroupLog,
        applier: Applier,
        config: GroupConfig,
        now_ms: int,
        *,
        on_done: Callable[[], None],
    ) -> None:
        self._log = log
        self._on_done = on_done
        self._applier = applier
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
            term = core.log.term(self._applier.applied)
            invariant(term is not None, "the last entry applied has a term")
            self._take(term or 0, now_ms)

    def _is_close(self, progress: Progress) -> bool:
        """Whether a member is behind, but will be served from the log, now or after an install."""
        if progress.state is ProgressState.SNAPSHOT:
            return progress.recent_active
        comes = progress.state is ProgressState.REPLICATE or progress.recent_active
        return comes and self._log.first_index - 1 <= progress.match < self._applier.applied

    def due(self, now_ms: int, *, follower_close: bool) -> bool:
        """Whether it is time."""
        entries = self._applier.applied - self._log.row.snapshot_index
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
        if self._log.has_bytes(config.snapshot_bytes * patience):
            return entries >= config.snapshot_entries_min
        if self._log.has_segments(config.snapshot_segments * patience):
            return True
        return now_ms - self._taken_at_ms >= config.snapshot_age_ms

    def _take(self, term: int, now_ms: int) -> None:
        """Take one now, of the machine as it is."""
        machine, applier = self._applier.machine, self._applier
        meta = SnapshotMeta(
            index=applier.applied,
            term=term,
            members=SnapshotMembers(applier.members, applier.last_time).encode(),
            machine_version=applier.version,
        )
        self._wanted = False
        self._taken_at_ms = now_ms

        def done(error: LowmarkError | None) -> None:
            self.busy = False
            self.failed = error
            self.taken += error is None
            self._on_done()

        try:
            live = machine.live_indexes()
            self._log.take_snapshot(meta, machine.snapshot(), live, done)
            self.busy = True
        except LowmarkError as error:
            self.failed = error


class Installs:
    """From an offer to a machine that has it."""

    def __init__(
        self,
        host: Group,
        log: GroupLog,
        *,
        applier: Applier,
        snapshots: Snapshots,
        proposals: Proposals,
        rejoining: Rejoining,
        observer: Observer,
    ) -> None:
        self._host = host
        self._applier = applier
        self._snapshots = snapshots
        self._proposals = proposals
        self._rejoining = rejoining
        self._observer = observer
        self.receives = Receives(host, log, whole=self._fetched)

    def offered(self, offer: InstallOffer) -> None:
        """Somebody has a snapshot for this member."""
        host, core = self._host, self._host.raft.core
        if offer.term < core.term or self._rejoining.is_lost(offer.incarnation):
            return
        if offer.sender != core.leader:
            return  # a leader is heard of before it offers anything, and offers again
        if self._snapshots.busy:
            return  # it is offered again
        if offer.snapshot.index <= core.log.committed:
            # Perhaps late news: it says how far this log is, and disturbs no newer one.
            host.raft.step(
                Install(
                    host.node,
                    offer.sender,
                    offer.term,
                    offer.incarnation,
                    offer.snapshot,
                    core.lineage,  # its sender leads this copy, so it is of the same
                )
            )
            return
        self.receives.offered(offer)

    def _fetched(self, install: Install) -> None:
        """All of a snapshot is here: the core decides whether it is taken."""
        raft = self._host.raft
        raft.step(install)
        taken = raft.core.log.unstable.snapshot
        if taken is None or taken.index != install.snapshot.index:
            self.receives.abort()

    def install(self, snapshot: Snapshot, on_done: Callable[[LowmarkError | None], None]) -> None:
        """Put a snapshot in force: it is the core's order."""
        host = self._host

        def done(error: LowmarkError | None) -> None:
            if host.stopped is not None:
                return
            if error is None:
                try:
                    self._applier.restore()
                except LowmarkError as damage:
                    host.stop(damage)
                    return
                host.follow_times()
                # The observer first: whoever waits for a proposal may close this copy when told.
                self._observer.on_restored()
                self._proposals.skipped(self._applier.applied)
            on_done(error)
            host.work_soon()

        self.receives.finish(snapshot, done)
