"""A snapshot of another member takes the place of what this copy has, if the core wants it.

It is offered, fetched aside (`receiving`), handed to the core, and put in force by an order of the
core's, in line with all others (`writes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lowmark.errors import LowmarkError
from lowmark.group.applying import Applying
from lowmark.group.config import GroupConfig
from lowmark.group.lost import Rejoining
from lowmark.group.observer import Observer
from lowmark.group.receiving import Receiving
from lowmark.group.requests import Proposals
from lowmark.group.snapshotting import Snapshots
from lowmark.group.wire import InstallOffer, Item
from lowmark.log import GroupLog
from lowmark.raft import Install, RaftNode, Snapshot


class Host(Protocol):
    """What installing asks of its group."""

    name: str
    node: int
    config: GroupConfig
    raft: RaftNode
    stopped: LowmarkError | None

    @property
    def applied(self) -> int: ...
    @property
    def machine_newest(self) -> int: ...
    def send(self, item: Item) -> None: ...
    def now_ms(self) -> int: ...
    def stop(self, error: LowmarkError) -> None: ...
    def work_soon(self) -> None: ...


class Installing:
    """From an offer to a machine that has it."""

    def __init__(
        self,
        host: Host,
        log: GroupLog,
        *,
        applying: Applying,
        snapshots: Snapshots,
        proposals: Proposals,
        rejoining: Rejoining,
        observer: Observer,
    ) -> None:
        self._host = host
        self._applying = applying
        self._snapshots = snapshots
        self._proposals = proposals
        self._rejoining = rejoining
        self._observer = observer
        self.receiving = Receiving(host, log, whole=self._fetched)

    def offered(self, offer: InstallOffer) -> None:
        """Somebody has a snapshot for this member."""
        host, core = self._host, self._host.raft.core
        if offer.term < core.term or offer.incarnation <= self._rejoining.above:
            return
        if offer.sender != core.leader:
            return  # a leader is heard of before it offers anything, and offers again
        if self._snapshots.busy:
            return  # it is offered again
        if offer.snapshot.index <= core.log.committed:
            # Perhaps late news: it says how far this log is, and disturbs no newer one.
            host.raft.step(
                Install(host.node, offer.sender, offer.term, offer.incarnation, offer.snapshot)
            )
            return
        self.receiving.offered(offer)

    def _fetched(self, install: Install) -> None:
        """All of a snapshot is here: the core decides whether it is taken."""
        raft = self._host.raft
        raft.step(install)
        taken = raft.core.log.unstable.snapshot
        if taken is None or taken.index != install.snapshot.index:
            self.receiving.abort()

    def install(self, snapshot: Snapshot, on_done: Callable[[LowmarkError | None], None]) -> None:
        """Put a snapshot in force: it is the core's order."""
        host = self._host

        def done(error: LowmarkError | None) -> None:
            if host.stopped is not None:
                return
            if error is None:
                try:
                    self._applying.restore()
                except LowmarkError as damage:
                    host.stop(damage)
                    return
                # The observer first: whoever waits for a proposal may close this copy when told.
                self._observer.on_restored()
                self._proposals.skipped(self._applying.applied)
            on_done(error)
            host.work_soon()

        self.receiving.finish(snapshot, done)
