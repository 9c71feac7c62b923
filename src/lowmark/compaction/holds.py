"""What a run holds while it reads: a lease in each partition, and pins in this process's log.

The lease is in the partition's group: no node cuts the backlog that is read, and the lease ends by
itself if the run does not renew it. The pins are of this process alone: they keep the segments that
were planned to be read, also if the lease is gone.

A lease goes by its run's name, the same in every process: the process that resumes a run, or
gives it up, can end what the process before has left.
"""

from __future__ import annotations

import contextlib
import hashlib

from lowmark.backend.values import Hold, ReadRange
from lowmark.compaction.context import RunContext
from lowmark.errors import LowmarkError
from lowmark.ledger import PartitionPlan
from lowmark.table import ReleaseLease, RenewLease, TakeLease, View

BACKLOG_LEASE_MS = 600_000
_WHY = "compaction reads it"


class RunHolds:
    """What one run holds, in which partitions. Taken and released on the run's threads, each
    partition by one; renewed on the one that watches it.
    """

    def __init__(self, context: RunContext) -> None:
        self._backend = context.backend
        self._table = context.table.id
        self._run = context.run
        self._held: dict[int, TakeLease] = {}
        """By which lease each partition's backlog is held."""
        self._pins: dict[int, Hold] = {}
        """What keeps the segments that are read."""

    def take(self, plan: PartitionPlan, view: View) -> None:
        """Hold what is going to be read of a partition."""
        number, run = plan.partition, self._run
        low = max(plan.low, view.start)
        lease = TakeLease(lease_of(run), _holder_of(run), low, BACKLOG_LEASE_MS, _WHY, "run")
        self._held[number] = lease  # first: an outcome that is not known has to be given back, too
        self._backend.propose(self._table, {number: lease})
        self._unpin(number)  # of an earlier round: one name has one hold
        if plan.low < plan.horizon:
            wanted = {number: ReadRange(plan.low, plan.horizon)}
            held = self._backend.hold(self._table, wanted, kind="run", holder=lease.name, why=_WHY)
            self._pins[number] = held.hold

    def _unpin(self, number: int) -> None:
        pins = self._pins.pop(number, None)
        if pins is not None:
            self._backend.release(pins)

    def renew(self) -> None:
        """Hold it all for as long again."""
        for number, lease in list(self._held.items()):
            renew = RenewLease(lease.name, lease.holder, lease.offset)
            # If it is gone, what is read stays all the same: the log of this process holds it.
            with contextlib.suppress(LowmarkError):
                self._backend.propose(self._table, {number: renew})

    def release(self, number: int) -> None:
        """Hold nothing of a partition any more."""
        lease = self._held.pop(number, None)
        self._unpin(number)
        if lease is None or self._backend.closed:
            return
        let_go = ReleaseLease(lease.name, lease.holder)
        with contextlib.suppress(LowmarkError):
            self._backend.propose(self._table, {number: let_go})

    def release_all(self) -> None:
        """Hold nothing any more."""
        for number in list(self._held):
            self.release(number)


def release_of(run: str) -> ReleaseLease:
    """Ends the lease of a run in a partition, whichever process has taken it."""
    return ReleaseLease(lease_of(run), _holder_of(run))


def lease_of(run: str) -> str:
    """The name of a run's lease: its tasks show it where they read."""
    return f"compaction {run}"


def _holder_of(run: str) -> int:
    """The same in every process: one that resumes a run, or gives it up, can end its leases."""
    return int.from_bytes(hashlib.blake2b(run.encode(), digest_size=7).digest(), "little")
