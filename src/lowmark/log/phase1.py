"""Phase 1: which whole segments may go, and why the others stay. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lowmark.holds import Decision, Hold, Kept, Reason
from lowmark.log.live import LiveRow
from lowmark.log.segments import SegmentRef


def decide(
    segments: Sequence[SegmentRef],
    row: LiveRow,
    holds: Iterable[Hold],
    *,
    busy: frozenset[int] = frozenset(),
) -> Decision[SegmentRef]:
    """Cut every segment with nothing live and nothing held, never the newest.

    The newest stays, because the segment writer may be adding behind it while we look. An empty
    live set is plain Raft truncation. A segment that phase 3 is reading stays until it has
    finished.
    """
    holders = list(holds)
    cut: list[SegmentRef] = []
    kept: list[Kept[SegmentRef]] = []
    for ref in segments:
        reasons = tuple(_reasons(ref, row, holders, newest=ref is segments[-1], busy=busy))
        if reasons:
            kept.append(Kept(ref, reasons))
        else:
            cut.append(ref)
    return Decision(tuple(cut), tuple(kept))


def _reasons(
    ref: SegmentRef, row: LiveRow, holds: list[Hold], *, newest: bool, busy: frozenset[int]
) -> Iterable[Reason]:
    if not row.known:
        yield Reason("live set lost", "the live set is lost and must be rebuilt first")
        return
    if ref.last > row.snapshot_index:
        after = ref.last - max(ref.first - 1, row.snapshot_index)
        yield Reason(
            "after the snapshot",
            f"{after} entry follows the snapshot"
            if after == 1
            else f"{after} entries follow the snapshot",
        )
    live = row.live.range_cardinality(ref.first, ref.last + 1)
    if live:
        yield Reason("live", "1 entry is live" if live == 1 else f"{live} entries are live")
    for hold in holds:
        if hold.pins_any(ref.first, ref.last):
            yield Reason("held", f"{hold.holder} holds it: {hold.why}", hold)
    if ref.number in busy:
        yield Reason("compacting", "phase 3 is reading it")
    if newest:
        yield Reason("newest", "the newest segment always stays")
