"""Why each segment is kept, who holds it, and what would be freed: the decisions, not carried out.

Everything here comes from the code that decides for real: `plan_cuts` says which segments go and
why the others stay, `count_kept` and `plan_merges` say what a run of phase 3 would do. So what is
explained is what the next run does, unless the log moves on in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lowmark.errors import Corrupt
from lowmark.holds import Hold, Reason
from lowmark.log import compaction_plan, files, segment_format
from lowmark.log.compaction_plan import Merge, SegmentStats
from lowmark.log.compactor import count_kept
from lowmark.log.log import Log
from lowmark.log.segments import SegmentRef
from lowmark.log.snapshot_format import SnapshotMeta
from lowmark.log.state import CompactionRun, GroupState, kept_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentExplained:
    """One segment: what it holds, why it stays, and what would become of it."""

    number: int
    first: int
    last: int
    """The range that newer pieces have left to it."""
    entries: int
    """In the file, cancelled and dead ones included."""
    live_entries: int
    """Live, or after the snapshot."""
    live_bytes: int
    held_entries: int
    """Dead, but kept because somebody holds them."""
    file_bytes: int
    reasons: tuple[Reason, ...]
    """Why phase 1 keeps it; empty if it goes."""
    freed_by: str
    """"phase 1", "phase 3" or "": what would free a part of it."""
    freed_bytes: int
    damage: str = ""
    """Why it could not be looked into, if so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeExplained:
    """What one merge of the next run of phase 3 would do."""

    sources: tuple[int, ...]
    kept_entries: int
    kept_bytes: int
    freed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldExplained:
    """A hold, and what would be freed without it."""

    hold: Hold
    age_ms: int
    freed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Where a group's log stands, and why it is as large as it is."""

    group: str
    snapshot: SnapshotMeta | None
    snapshot_bytes: int
    live_known: bool
    live_entries: int
    """How many indexes at or below the snapshot are live."""
    first_index: int
    last_index: int
    written_index: int
    quarantine: str | None
    in_wal_entries: int
    in_wal_bytes: int
    """Not in segments yet."""
    segments: tuple[SegmentExplained, ...]
    merges: tuple[MergeExplained, ...]
    holds: tuple[HoldExplained, ...]
    runs: tuple[CompactionRun, ...]
    requests_dropped: int
    """Compactions that were asked for while one was running."""

    @property
    def file_bytes(self) -> int:
        """What its segments take on the disk, without large files."""
        return sum(segment.file_bytes for segment in self.segments)

    @property
    def freed_bytes(self) -> int:
        """What the next phases 1 and 3 would free."""
        return sum(segment.freed_bytes for segment in self.segments)


def explain_log(log: Log, group: str | None = None) -> list[Explanation]:
    """Explain one group, or all of them by name."""
    names = [group] if group is not None else [each.name for each in log.groups()]
    return [explain_group(log, name) for name in names]


def explain_group(log: Log, name: str) -> Explanation:
    """Explain one group. Call it on the loop; it opens the segments that are partly dead."""
    state = log.group(name).state
    now_ms = log.now_ms()
    holds = [h for h in state.holds if h.expires_at_ms is None or h.expires_at_ms > now_ms]
    plan = Plan(log, state, holds)
    return Explanation(
        group=name,
        snapshot=state.snapshot.meta if state.snapshot is not None else None,
        snapshot_bytes=state.snapshot.state_bytes if state.snapshot is not None else 0,
        live_known=state.row.known,
        live_entries=len(state.row.live),
        first_index=state.row.snapshot_index + 1,
        last_index=state.last_index,
        written_index=state.written_index,
        quarantine=state.quarantine,
        in_wal_entries=sum(run.kept for run in state.memtable.view),
        in_wal_bytes=sum(int(run.starts()[run.kept]) for run in state.memtable.view),
        segments=plan.segments(),
        merges=tuple(plan.explained(merge) for merge in plan.merges),
        holds=tuple(plan.without(hold, now_ms) for hold in holds),
        runs=tuple(state.runs),
        requests_dropped=state.requests_dropped,
    )


class Plan:
    """What phases 1 and 3 would do to a group, if these were the holds."""

    def __init__(self, log: Log, state: GroupState, holds: Sequence[Hold]) -> None:
        self._log = log
        self._state = state
        self._holds = holds
        busy = state.compacting_numbers
        self.decision = compaction_plan.plan_cuts(state.segments, state.row, holds, busy=busy)
        self.damage: dict[int, str] = {}
        cut = {ref.number for ref in self.decision.cut}
        self._left = [ref for ref in state.segments if ref.number not in cut]
        eligible = compaction_plan.eligible(self._left, state.row)
        self._keep = kept_of(state.row, holds)
        self.stats = {ref.number: s for ref in eligible if (s := self._count(ref)) is not None}
        self.merges: list[Merge] = []
        if state.quarantine is None and not self.damage:
            self.merges = compaction_plan.plan_merges(list(self.stats.values()), log.config)

    def _count(self, ref: SegmentRef) -> SegmentStats | None:
        try:
            return count_kept(self._log.disk, self._state, ref, self._keep)
        except Corrupt as damage:
            self.damage[ref.number] = damage.message
            return None

    def segments(self) -> tuple[SegmentExplained, ...]:
        """Every segment; those that newer ones have overwritten whole are there, too."""
        reasons = {kept.piece.number: kept.reasons for kept in self.decision.kept}
        share = {n: self._share(m, n) for m in self.merges for n in _numbers(m)}
        listed = [*self._state.segments, *self._state.garbage]
        return tuple(
            self._segment(ref, reasons.get(ref.number, ()), share.get(ref.number))
            for ref in sorted(listed, key=lambda ref: ref.number)
        )

    def _segment(
        self, ref: SegmentRef, reasons: tuple[Reason, ...], merged: int | None
    ) -> SegmentExplained:
        live = self._live(ref) if reasons else SegmentStats(ref, 0, 0)
        stats = self.stats.get(ref.number)
        gone = not reasons and self._state.quarantine is None
        freed_by = "phase 1" if gone else "phase 3" if merged is not None else ""
        return SegmentExplained(
            number=ref.number,
            first=ref.first,
            last=ref.last,
            entries=ref.count,
            live_entries=live.kept_entries,
            live_bytes=live.kept_bytes,
            held_entries=stats.kept_entries - live.kept_entries if stats is not None else 0,
            file_bytes=ref.file_bytes,
            reasons=reasons,
            freed_by=freed_by,
            freed_bytes=self._bytes_of([ref]) if gone else merged or 0,
            damage=self.damage.get(ref.number, ""),
        )

    def _live(self, ref: SegmentRef) -> SegmentStats:
        row = self._state.row
        live = row.live.copy()
        if not row.known:
            live.add_range(1, row.snapshot_index + 1)
        if ref.last > row.snapshot_index:
            live.add_range(row.snapshot_index + 1, ref.last + 1)
        try:
            return count_kept(self._log.disk, self._state, ref, live)
        except Corrupt as damage:
            self.damage[ref.number] = damage.message
            return SegmentStats(ref, 0, 0)

    def explained(self, merge: Merge) -> MergeExplained:
        """One merge, with what it would free."""
        return MergeExplained(
            sources=tuple(_numbers(merge)),
            kept_entries=sum(s.kept_entries for s in merge.sources),
            kept_bytes=sum(s.kept_bytes for s in merge.sources),
            freed_bytes=self._merge_frees(merge),
        )

    def without(self, hold: Hold, now_ms: int) -> HoldExplained:
        """What more would be freed if this hold were gone and all others stayed."""
        others = [each for each in self._holds if each is not hold]
        more = Plan(self._log, self._state, others).freed() - self.freed()
        return HoldExplained(hold=hold, age_ms=now_ms - hold.since_ms, freed_bytes=max(0, more))

    def freed(self) -> int:
        """What both phases would free together."""
        return self._bytes_of(self.decision.cut) + sum(map(self._merge_frees, self.merges))

    def _merge_frees(self, merge: Merge) -> int:
        entries = sum(s.kept_entries for s in merge.sources)
        new = segment_format.HEADER_BYTES + entries * segment_format.ROW.itemsize
        new += sum(s.kept_bytes for s in merge.sources)
        new += 8 * len(merge.sources) + segment_format.TRAILER_BYTES_MIN
        return self._bytes_of([s.ref for s in merge.sources]) - new

    def _share(self, merge: Merge, number: int) -> int:
        """A merge's freed bytes, told where they lie: what of each source is not carried over.

        The first one also bears what the new segment needs for itself.
        """
        shares = {
            s.ref.number: self._bytes_of([s.ref])
            - s.kept_bytes
            - s.kept_entries * segment_format.ROW.itemsize
            for s in merge.sources
        }
        first = min(shares)
        rest = sum(share for source, share in shares.items() if source != first)
        return shares[number] if number != first else self._merge_frees(merge) - rest

    def _bytes_of(self, refs: Iterable[SegmentRef]) -> int:
        """Their files, and the large files that nothing else refers to."""
        gone = list(refs)
        numbers = {ref.number for ref in gone}
        used = {ref.large for ref in self._state.segments if ref.number not in numbers}
        used |= {run.large.number for run in self._state.memtable.view if run.large is not None}
        return sum(ref.file_bytes for ref in gone) + sum(
            self._size(f"{self._state.folder}/{files.large_name(large)}")
            for large in {ref.large for ref in gone if ref.large} - used
        )

    def _size(self, path: str) -> int:
        stat = self._log.disk.stat(path)
        return stat.size if stat is not None else 0


def _numbers(merge: Merge) -> list[int]:
    return [stats.ref.number for stats in merge.sources]
