"""What a run would do to a partition: from which ledger on, up to which offset, and what it reads.

The same for a dry run and for a run. The horizon goes up to the first row that is later than the
low watermark, or younger than the table's history or its least lag: what lies after it may still be
asked for as of an earlier time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from lowmark.backend.port import Backend
from lowmark.backend.values import PartitionStatus
from lowmark.catalog import Catalog, Table, duration_text
from lowmark.compaction.records import SeenPointer
from lowmark.convert.times import parse_time, time_text
from lowmark.ledger import (
    NothingLike,
    PartitionPlan,
    Pointer,
    WaitsFor,
    lacks_needed_deletes,
    passed_by_readers,
)
from lowmark.runtime import COUNTER_BITS, HybridTime, millis_of
from lowmark.table import Adopted, View, table_mark
from lowmark.table.watermark import WatermarkStanding


@dataclass(frozen=True, slots=True)
class PlanInput:
    """What a plan for a partition is made from."""

    status: PartitionStatus
    seen: SeenPointer
    watermark: int
    """Of the table: its history may keep it behind the low watermark (`lowmark.table.history`)."""
    deletes_below: int
    """Deletes below this offset were passed by all readers."""

    @classmethod
    def of(cls, status: PartitionStatus, seen: SeenPointer, *, watermark: int) -> PlanInput:
        """Of a partition as it is."""
        held = [hold.lowest() or 0 for hold in status.delete_holders()]
        passed = passed_by_readers(held, end=status.view.end)
        return cls(status, seen, watermark, passed)

    @property
    def view(self) -> View:
        """The backlog, and the ledger that was adopted with it."""
        return self.status.view

    @property
    def deletes_gone(self) -> int:
        """Deletes below this offset may be gone from the ledger that it has adopted."""
        return self.status.deletes_gone

    @property
    def ledger(self) -> Adopted | None:
        """The ledger that the partition has adopted, and that a run begins with; None, if what
        followed it has expired: it begins with nothing then.
        """
        return self.view.readable

    @property
    def base_horizon(self) -> int:
        """Where the ledger that is there ends."""
        return self.view.readable.horizon if self.view.readable is not None else 0

    @property
    def passed(self) -> int:
        """Below this offset deletes may go, or went."""
        return max(self.deletes_gone, self.deletes_below)

    def refuses(self, gone_below: int) -> bool:
        """Whether it will not adopt a ledger that lacks deletes below an offset."""
        return lacks_needed_deletes(gone_below, passed=self.passed)

    def once_adopted(self, pointer: Pointer) -> PlanInput:
        """As it will be when it has adopted what was published; as it is, if that is refused."""
        if self.refuses(pointer.deletes_below):
            return self
        below = max(pointer.deletes_below, self.deletes_gone)
        ledger = Adopted(pointer.epoch, pointer.manifest, pointer.horizon, b"", below)
        view = replace(self.view, ledger=ledger)
        return replace(self, status=replace(self.status, view=view))


def plan_input(
    backend: Backend,
    table: Table,
    partition: int,
    seen: SeenPointer,
    *,
    watermark: int,
    compare: bool = True,
) -> PlanInput:
    """Ask a partition where it stands, and compare that with what was published.

    Without comparing, it is for a ledger that is made again: it ends where it ended, and is not
    said to be exact before the low watermark.
    """
    status = backend.status(table.id, [partition])[partition]
    if compare:
        _compare(status, seen)
        watermark = table_mark(table, watermark=watermark, wall_ms=status.wall_ms)
    return PlanInput.of(status, seen, watermark=watermark)


def catalog_then(backend: Backend, time: int) -> Catalog:
    """The version of the catalog in force at a time. At 0, where watermarks begin, it is the empty
    one, which is in force from 1 on.
    """
    return backend.catalog_at(max(time, 1))


def _compare(status: PartitionStatus, seen: SeenPointer) -> None:
    adopted = status.ledger
    if adopted is None:
        return
    where = f"partition {status.partition} has adopted the ledger of epoch {adopted.epoch}"
    if seen.epoch < adopted.epoch:
        raise NothingLike(f"{where}, but {seen.epoch} is the last one that was published")
    if seen.pointer is not None and seen.epoch == adopted.epoch:
        if seen.pointer.manifest != adopted.manifest:
            raise NothingLike(f"{where}, and another one of that epoch was published")


def old_enough(view: View, table: Table, *, watermark: int, wall_ms: int) -> int:
    """Below this offset rows may be compacted: no later one may be asked for as of an earlier
    time, and none is younger than the table's history or its least lag, by the wall clock.
    """
    before = view.offset_after(table_mark(table, watermark=watermark, wall_ms=wall_ms))
    if table.settings.min_lag_ms:
        since_ms = max(wall_ms - table.settings.min_lag_ms, 0)
        before = min(before, view.offset_from(since_ms << COUNTER_BITS))
    return before


def plan_partition(
    partition: int, table: Table, given: PlanInput, *, anyway: bool = False
) -> PartitionPlan:
    """What a run would do; `anyway`, though there is nothing new."""
    view = given.view
    horizon = old_enough(view, table, watermark=given.watermark, wall_ms=given.status.wall_ms)
    low = max(given.base_horizon, view.start)
    horizon = max(horizon, given.base_horizon)
    horizon = max(horizon, low)  # retention may have gone further than the watermark
    held = view.end - horizon
    at = view.batch_at(horizon)
    ledger = given.ledger
    plan = PartitionPlan(
        partition=partition,
        base_epoch=ledger.epoch if ledger is not None else 0,
        base=ledger.manifest if ledger is not None else "",
        lineage=view.lineage,
        low=low,
        horizon=horizon,
        rows=horizon - low,
        bytes=view.bytes_from(low) - view.bytes_from(horizon) if horizon > low else 0,
        too_young_rows=held,
        held_until=time_text(int(view.columns.time[at])) if held and at < view.count else "",
    )
    if horizon > low or (ledger is not None and anyway):
        return plan
    if not held:
        return _skipped(plan, "nothing is new")
    if view.offset_after(given.watermark) > low:
        return _skipped(plan, "every row is younger than min_lag_ms")
    if table.settings.history_ms is not None:
        kept = duration_text(table.settings.history_ms)
        return _skipped(plan, f"every row is within the table's history ({kept})")
    return _skipped(plan, "every row is later than the low watermark")


def waiting(
    table: Table, plans: Iterable[PartitionPlan], standing: WatermarkStanding, *, now_ms: int
) -> dict[str, Any]:
    """From when on the first row is old enough that is too young, and what keeps it until then: the
    one of three ages that is the highest. Fields of a `RunRecord`.
    """
    first = min((plan.held_until for plan in plans if plan.held_until), default="")
    if not first:
        return {}
    written = parse_time(first, now=HybridTime(now_ms << COUNTER_BITS))
    written_ms = millis_of(HybridTime(written))
    ages: dict[WaitsFor, int] = {
        "db.history": max(0, now_ms - millis_of(HybridTime(standing.goal))),
        "history": table.settings.history_ms or 0,
        "min_lag_ms": table.settings.min_lag_ms,
    }
    waits_for = max(ages, key=lambda name: ages[name])
    held_by = [hold.holder for hold in standing.holds if (hold.lowest() or 0) <= written]
    return {
        "ready_at_ms": written_ms + ages[waits_for],
        "waits_for": waits_for,
        "watermark_held_by": tuple(dict.fromkeys(held_by)),
    }


def _skipped(plan: PartitionPlan, why: str) -> PartitionPlan:
    return msgspec.structs.replace(plan, state="skipped", why=why)
