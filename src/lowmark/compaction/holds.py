"""What a run holds while it reads: a lease in each partition, and pins in this process's log.

The lease is in the partition's group: nobody cuts the backlog that is read, on any node, and it
ends by itself if nobody renews it. The pins are of this process alone: they keep the segments that
were planned to be read, also if the lease is gone.

A lease goes by its run's name, the same in every process: whoever resumes a run, or gives it up,
can end what the process before has left.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping

from pyroaring import BitMap64

from lowmark.backend.embedded import Embedded
from lowmark.errors import LowmarkError
from lowmark.ledger import PartitionPlan
from lowmark.table import Partition, ReleaseLease, RenewLease, TakeLease, View

__all__ = ["LEASE_MS", "RunHolds", "release_of"]

LEASE_MS = 600_000
_WHY = "compaction reads it"


class RunHolds:
    """What one run holds, in which partitions. Taken and released on the run's threads, each
    partition by one; renewed on the one that watches it.
    """

    def __init__(self, backend: Embedded, partitions: Mapping[int, Partition]) -> None:
        self._backend = backend
        self._partitions = partitions
        self._held: dict[int, TakeLease] = {}
        """By which lease each partition's backlog is held."""

    def take(self, run: str, plan: PartitionPlan, view: View) -> None:
        """Hold what is going to be read of a partition."""
        number, partition = plan.partition, self._partitions[plan.partition]
        low = max(plan.low, view.start)
        lease = TakeLease(_lease_of(run), _holder_of(run), low, LEASE_MS, _WHY, "run")
        self._held[number] = lease  # first: an outcome that is not known has to be given back, too
        self._backend.ask(lambda: partition.ask(lease))
        self._pin(lease.name, plan, view)

    def _pin(self, name: str, plan: PartitionPlan, view: View) -> None:
        if plan.low >= plan.horizon:
            return
        pins = BitMap64(view.places[view.batch_at(plan.low) : view.batch_at(plan.horizon - 1) + 1])
        log = self._partitions[plan.partition].group.log
        self._backend.ask_now(lambda: log.hold(name, kind="run", pins=pins, why=_WHY))

    def renew(self) -> None:
        """Hold it all for as long again."""
        for number, lease in list(self._held.items()):
            renew = RenewLease(lease.name, lease.holder, lease.offset)
            partition = self._partitions[number]
            # If it is gone, what is read stays all the same: the log of this process holds it.
            with contextlib.suppress(LowmarkError):
                self._backend.ask(lambda partition=partition, renew=renew: partition.ask(renew))  # type: ignore[misc]

    def release(self, number: int) -> None:
        """Hold nothing of a partition any more."""
        lease = self._held.pop(number, None)
        if lease is None or self._backend.closed:
            return
        partition = self._partitions[number]

        def let_go() -> None:
            partition.group.log.release(lease.name, "run")

        with contextlib.suppress(LowmarkError):
            self._backend.ask_now(let_go)
            self._backend.ask(lambda: partition.ask(ReleaseLease(lease.name, lease.holder)))

    def release_all(self) -> None:
        """Hold nothing any more."""
        for number in list(self._held):
            self.release(number)


def release_of(run: str) -> ReleaseLease:
    """Ends the lease of a run in a partition, whichever process has taken it."""
    return ReleaseLease(_lease_of(run), _holder_of(run))


def _lease_of(run: str) -> str:
    return f"compaction {run}"


def _holder_of(run: str) -> int:
    """The same in every process: whoever resumes a run, or gives it up, can end its leases."""
    return int.from_bytes(hashlib.blake2b(run.encode(), digest_size=7).digest(), "little")
