"""What a run would do to a partition: from which ledger on, up to which offset, and what it reads.

The same for a dry run and for a run. The horizon goes up to the first row that is later than the
low watermark, or younger than the table's least lag: what lies after it may still be asked for as
of an earlier time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from lowmark.backend.embedded import Embedded
from lowmark.catalog import Table
from lowmark.compaction.records import SeenPointer
from lowmark.convert.times import time_text
from lowmark.errors import Unavailable
from lowmark.ledger import NothingLike, PartitionPlan, Pointer, Tail, tail_of
from lowmark.log import ReadPlan
from lowmark.runtime import COUNTER_BITS, HybridTime, millis_of
from lowmark.table import Adopted, Partition, State, View, deletes_held

__all__ = ["Standing", "old_enough", "plan_partition", "sealed_tail", "standing_of"]

_FLUSH_S = 60.0
_STUCK_S = 3.0
"""How long the segment writer may lack space, handles or memory before a run says so."""
_PLANNED_MAX = 4_096
"""So many batches are looked up in one turn of the loop."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A partition as a plan finds it."""

    view: View
    seen: SeenPointer
    watermark: int
    now_ms: int
    deletes_below: int
    """Deletes below this offset were passed by everybody who reads."""
    expired: int
    deletes_gone: int = 0
    """Deletes below this offset may be gone from the ledger that it has adopted."""

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

    def once_adopted(self, pointer: Pointer) -> Standing:
        """As it will be when it has adopted what was published; as it is, if that is refused."""
        if pointer.deletes_below > self.passed:
            return self
        below = max(pointer.deletes_below, self.deletes_gone)
        ledger = Adopted(pointer.epoch, pointer.manifest, pointer.horizon, b"", below)
        return replace(self, view=replace(self.view, ledger=ledger), deletes_gone=below)


def standing_of(
    backend: Embedded,
    partition: Partition,
    seen: SeenPointer,
    *,
    watermark: int,
    compare: bool = True,
) -> Standing:
    """Ask a partition where it stands, and compare that with what was published."""
    now_ms = backend.node.loop.wall_ms()

    def look(state: State) -> tuple[View, int, int, int]:
        held_ms = max(now_ms, millis_of(HybridTime(state.closed)))
        held = deletes_held(state.cursors, state.leases, now_ms=held_ms)
        lowest = min((hold.lowest() or 0 for hold in held), default=state.backlog.end)
        gone = state.ledger.deletes_below if state.ledger is not None else 0
        return state.backlog.view, lowest, state.expired, gone

    view, below, expired, gone = backend.ask(lambda: partition.read(look))
    if compare:
        _compare(partition, view.ledger, seen)
    return Standing(view, seen, watermark, now_ms, below, expired, gone)


def _compare(partition: Partition, adopted: Adopted | None, seen: SeenPointer) -> None:
    if adopted is None:
        return
    where = f"partition {partition.number} has adopted the ledger of epoch {adopted.epoch}"
    if seen.epoch < adopted.epoch:
        raise NothingLike(f"{where}, but {seen.epoch} is the last one that was published")
    if seen.pointer is not None and seen.epoch == adopted.epoch:
        if seen.pointer.manifest != adopted.manifest:
            raise NothingLike(f"{where}, and another one of that epoch was published")


def old_enough(view: View, table: Table, *, watermark: int, now_ms: int) -> int:
    """Below this offset rows may be compacted: no later one may be asked for as of an earlier
    time, and none is younger than the table's least lag.
    """
    before = view.offset_after(watermark)
    if table.settings.min_lag_ms:
        since_ms = max(now_ms - table.settings.min_lag_ms, 0)
        before = min(before, view.offset_from(since_ms << COUNTER_BITS))
    return before


def plan_partition(
    partition: int, table: Table, standing: Standing, *, anyway: bool = False
) -> PartitionPlan:
    """What a run would do; `anyway`, though there is nothing new."""
    view = standing.view
    horizon = old_enough(view, table, watermark=standing.watermark, now_ms=standing.now_ms)
    low = max(standing.base_horizon, view.start)
    horizon = max(horizon, standing.base_horizon)
    horizon = max(horizon, low)  # retention may have gone further than the watermark
    held = view.end - horizon
    at = view.batch_at(horizon)
    ledger = standing.ledger
    plan = PartitionPlan(
        partition=partition,
        base_epoch=ledger.epoch if ledger is not None else 0,
        base=ledger.manifest if ledger is not None else "",
        low=low,
        horizon=horizon,
        rows=horizon - low,
        bytes=view.bytes_from(low) - view.bytes_from(horizon) if horizon > low else 0,
        held_rows=held,
        held_until=time_text(int(view.columns.time[at])) if held and at < view.count else "",
    )
    if horizon > low or (ledger is not None and anyway):
        return plan
    if not held:
        return _skipped(plan, "nothing is new")
    if view.offset_after(standing.watermark) > low:
        return _skipped(plan, "every row is younger than min_lag_ms")
    return _skipped(plan, "every row is later than the low watermark")


def _skipped(plan: PartitionPlan, why: str) -> PartitionPlan:
    return msgspec.structs.replace(plan, state="skipped", why=why)


def sealed_tail(
    backend: Embedded, partition: Partition, view: View, *, low: int, high: int
) -> Tail:
    """The batches from `low` to before `high` as other processes can read them.

    What is still in memory is written into segments first.
    """
    if low >= high:
        return Tail("", "", b"", low, high)
    at, end = view.batch_at(low), view.batch_at(high - 1) + 1
    ends_at, rolled, pause_s = time.monotonic() + _FLUSH_S, False, 0.002
    stuck_at: float | None = None
    while True:
        plan = _whole_plan(backend, partition, view, at, end)
        tail = tail_of(view, plan, at=at, low=low, high=high)
        if tail is not None:
            return tail
        if not rolled:
            backend.ask_now(backend.node.log.roll)
            rolled = True
        stuck = backend.node.log.flush_trouble
        stuck_at = None if stuck is None else stuck_at or time.monotonic()
        if stuck is not None and stuck_at is not None and time.monotonic() > stuck_at + _STUCK_S:
            raise stuck
        if time.monotonic() > ends_at:
            raise Unavailable(
                f"partition {partition.number} was not written into segments within"
                f" {_FLUSH_S:g} seconds",
                detail=f"The database is in {backend.data}.",
                hint="The disk may be busy: try again.",
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)


def _whole_plan(backend: Embedded, partition: Partition, view: View, at: int, end: int) -> ReadPlan:
    """Where these batches are; the loop is asked for a few thousand at a time."""
    whole: ReadPlan | None = None
    for low, high in _spans(at, end):
        indexes = view.places[low:high].tolist()
        plan = backend.ask_now(lambda indexes=indexes: partition.plan(indexes, held=True))  # type: ignore[misc]
        if whole is None:
            whole = plan
        else:
            whole.pieces += plan.pieces
    assert whole is not None
    return whole


def _spans(at: int, end: int) -> Iterator[tuple[int, int]]:
    while at < end:
        yield at, min(at + _PLANNED_MAX, end)
        at += _PLANNED_MAX
