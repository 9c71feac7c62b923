"""Phase 3, the decision: which segments are worth merging or rewriting. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowmark.log.config import LogConfig
from lowmark.log.live import LiveRow
from lowmark.log.segments import SegmentRef

_SMALL_SHARE = 64
"""A segment is small that has less than this share of what one may have."""


@dataclass(frozen=True, slots=True)
class SegmentStats:
    """A segment and what of it must be kept: live entries, and dead ones that somebody holds."""

    ref: SegmentRef
    kept_entries: int
    kept_bytes: int

    @property
    def mostly_dead(self) -> bool:
        """More than half of it, by entries or by bytes, is of no use any more.

        A big segment with few dead bytes is not worth a rewrite, whatever its entries say.
        """
        dead_bytes = self.ref.data_bytes - self.kept_bytes
        by_entries = 2 * self.kept_entries < self.ref.count
        by_bytes = 2 * self.kept_bytes < self.ref.data_bytes
        return by_bytes or (by_entries and 8 * dead_bytes >= self.ref.data_bytes)


@dataclass(frozen=True, slots=True)
class Merge:
    """Segments that become one, oldest first; a single one is rewritten."""

    sources: tuple[SegmentStats, ...]

    @property
    def frees_much(self) -> bool:
        """Whether it frees enough for the space that it takes meanwhile."""
        kept = sum(one.kept_bytes for one in self.sources)
        return 8 * (sum(one.ref.data_bytes for one in self.sources) - kept) >= kept


def eligible(segments: Sequence[SegmentRef], row: LiveRow) -> list[SegmentRef]:
    """The compacting section: segments wholly at or below the snapshot, without the newest."""
    if not row.known:
        return []
    return [ref for ref in segments[:-1] if ref.last <= row.snapshot_index]


def dead_shares(stats: Sequence[SegmentStats]) -> tuple[float, float]:
    """Which share of the compacting section is dead, by entries and by bytes."""
    entries, size = sum(s.ref.count for s in stats), sum(s.ref.data_bytes for s in stats)
    dead_entries = entries - sum(s.kept_entries for s in stats)
    dead_bytes = size - sum(s.kept_bytes for s in stats)
    return dead_entries / max(1, entries), dead_bytes / max(1, size)


def many_small(stats: Sequence[SegmentStats], config: LogConfig) -> bool:
    """Whether so many segments are small that making them fewer is worth it, with nothing dead in
    them: a file for each time that the WAL was closed, with a few entries of a quiet group.
    """
    small = config.segment_bytes_max // _SMALL_SHARE
    count = sum(0 < one.kept_entries and one.ref.data_bytes < small for one in stats)
    return count >= 2 * config.compaction_sources_max


def plan_merges(stats: Sequence[SegmentStats], config: LogConfig) -> list[Merge]:
    """Adjacent segments whose kept data fits into one are merged, oldest first; a segment that
    stays alone is rewritten when it is mostly dead.

    `stats` are the eligible segments in order. One with nothing to keep is left to phase 1.
    """
    merges: list[Merge] = []
    group: list[SegmentStats] = []
    entries = size = 0
    for one in stats:
        fits = (
            entries + one.kept_entries <= config.segment_entries_max
            and size + one.kept_bytes <= config.segment_bytes_max
            and len(group) < config.compaction_sources_max
        )
        if group and not fits:
            merges += _worth_it(group)
            group, entries, size = [], 0, 0
        group.append(one)
        entries += one.kept_entries
        size += one.kept_bytes
    return merges + _worth_it(group)


def _worth_it(group: list[SegmentStats]) -> list[Merge]:
    group = _without_empty_ends(group)
    if not group:
        return []
    if len(group) == 1:
        return [Merge(tuple(group))] if group[0].mostly_dead else []
    kept = sum(s.kept_bytes for s in group)
    dead = sum(s.ref.data_bytes for s in group) - kept
    largest = max(s.kept_bytes for s in group)
    # Without anything dead, a merge only makes files fewer. It pays when the pieces are of a size:
    # copying one big segment again and again for each small newcomer does not.
    if 2 * largest > kept and 8 * dead <= largest:
        at = next(i for i, s in enumerate(group) if s.kept_bytes == largest)
        parts = (group[:at], group[at : at + 1], group[at + 1 :])
        return [merge for part in parts for merge in _worth_it(part)]
    return [Merge(tuple(group))]


def _without_empty_ends(group: list[SegmentStats]) -> list[SegmentStats]:
    while group and group[0].kept_entries == 0:
        group = group[1:]
    while group and group[-1].kept_entries == 0:
        group = group[:-1]
    return group
