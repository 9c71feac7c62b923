"""How a ledger that was written comes to be read: published, adopted, and the backlog cut.

Steps 4 to 6 of a run (see `run`), for one partition at a time. What became of it is the
state of the plan that comes out:

    adopted     it is read; the backlog is cut, if that is wished, as far as no reader holds it
    overtaken   another one was published or adopted meanwhile: there is nothing left to do
    planned     a reader came that needs deletes which it lacks: the next round sees to it

A file that is gone, or a newer ledger that is adopted already, is met here by a run that another
one has overtaken after the last look: `run` tells that from a loss.

The backlog is never cut unless every file of the ledger is there: nothing else has its rows then.
"""

from __future__ import annotations

from typing import cast

import msgspec

from lowmark.compaction.context import RunContext
from lowmark.compaction.holds import RunHolds
from lowmark.compaction.plan import PlanInput
from lowmark.ledger import (
    Done,
    Expected,
    PartitionPlan,
    Pointer,
    RunRecord,
    check_there,
    read_adopted,
    read_manifest,
)
from lowmark.table import Adopt, DeletesHeld, Trim, Trimmed, View


class Publisher:
    """Publishes what one run has written."""

    def __init__(self, context: RunContext, holds: RunHolds) -> None:
        self._context = context
        self._backend = context.backend
        self._store = context.store
        self._table = context.table.id
        self._holds = holds
        self._trim = context.options.trim

    def finish(
        self, plan: PartitionPlan, done: Done, *, before: PlanInput, now: PlanInput
    ) -> PartitionPlan:
        """Have one partition read what was written for it; where it stood when that was begun, and
        where it stands now, tell whether it still may.
        """
        number, table = done.partition, self._table
        if now.view.ledger != before.view.ledger or done.epoch <= now.seen.epoch:
            own = self._own(now)
            if own is None:
                return msgspec.structs.replace(plan, state="overtaken")
            return self.trimmed(
                msgspec.structs.replace(plan, manifest=own.manifest, horizon=own.horizon)
            )
        # After a reset, what was read may not be what the partition has.
        reset = len({plan.lineage, before.view.lineage, now.view.lineage}) > 1
        if reset or now.refuses(done.deletes_below):
            return PartitionPlan(partition=number)  # anew, from the start
        pointer = Pointer(
            manifest=done.manifest,
            horizon=done.horizon,
            epoch=done.epoch,
            digest=done.digest,
            deletes_below=max(done.deletes_below, now.deletes_gone),
            run=self._context.run,
            lineage=plan.lineage,
        )
        self._context.step(f"publish partition {number}")
        said = Expected.published(table, number, pointer)
        check_there(self._store, read_manifest(self._store, done.manifest, said).files)
        published = self._context.records.publish(
            table,
            number,
            pointer,
            seen=now.seen,
            now_ms=self._context.now_ms(),
            fenced=True,
        )
        if not published:
            return msgspec.structs.replace(plan, state="overtaken")
        self._context.step(f"adopt partition {number}")
        if not self.adopt(number, pointer):
            # It keeps what it was: if the reader that held deletes goes, the next round adopts it.
            return msgspec.structs.replace(plan, state="planned")
        return self.trimmed(plan)

    def _own(self, now: PlanInput) -> Pointer | None:
        """What this run published in an earlier round, if the partition has adopted it since.

        A reader that held deletes kept it from that; when the reader went, the next look at the
        partition had it adopted. What was written again meanwhile has the same rows.
        """
        pointer, adopted = now.seen.pointer, now.view.ledger
        if pointer is None or adopted is None or pointer.run != self._context.run:
            return None
        return pointer if pointer.manifest == adopted.manifest else None

    def adopt(self, number: int, pointer: Pointer) -> bool:
        """Have a partition read from a ledger that was published; False if a reader needs more, or
        if the partition was reset since: the ledger may have other rows.
        """
        said = Expected.published(self._table, number, pointer)
        read_manifest(self._store, pointer.manifest, said)  # whatever lies there now
        if self._backend.view(self._table, number, latest=True).lineage != pointer.lineage:
            return False
        adopt = Adopt(
            pointer.epoch,
            pointer.manifest,
            pointer.horizon,
            said.digest,
            pointer.deletes_below,
        )
        try:
            self._backend.propose(self._table, {number: adopt})
        except DeletesHeld:
            return False
        return True

    def trimmed(self, plan: PartitionPlan) -> PartitionPlan:
        """Of a partition that has adopted its ledger: hold nothing any more, and cut the rest."""
        self._holds.release(plan.partition)
        plan = msgspec.structs.replace(plan, state="adopted")
        if self._trim:
            self._context.step(f"trim partition {plan.partition}")
            plan = self._cut(plan)
        return plan

    def cut_rest(self, record: RunRecord) -> RunRecord:
        """Where nothing is new, what was published and not cut yet may be cut all the same."""
        if not self._trim:
            return record
        for plan in record.partitions:
            view = self._backend.view(self._table, plan.partition, latest=True)
            cut = view.ledger is None or view.start >= view.ledger.horizon
            if plan.state == "skipped" and not cut:
                record = record.with_partition(self._cut(plan))
        return record

    def _cut(self, plan: PartitionPlan) -> PartitionPlan:
        """Cut the backlog up to the horizon, as far as no reader holds it; says how far."""
        number = plan.partition
        before = self._backend.view(self._table, number, latest=True)
        self._check_there(before)
        outcomes = self._backend.propose(self._table, {number: Trim(plan.horizon)})
        trimmed = cast("Trimmed", outcomes[number])
        after = self._backend.view(self._table, number, latest=True)
        names = tuple(f"{hold.kind} {hold.holder}" for hold in trimmed.safe.held_by)
        return msgspec.structs.replace(
            plan,
            trimmed_to=after.start,
            trimmed_bytes=before.bytes_from(before.start) - after.bytes_from(after.start),
            held_by=names if after.start < plan.horizon else (),
        )

    def _check_there(self, view: View) -> None:
        """Raise if a file of the ledger is missing, or is cut: then the backlog must not be, since
        nothing else has its rows.
        """
        if view.ledger is not None and view.start < view.ledger.horizon:
            check_there(self._store, read_adopted(self._store, view.ledger).files)
