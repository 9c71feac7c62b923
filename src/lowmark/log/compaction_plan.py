"""What compaction should do, decided without touching a disk.

    phase 1   which whole segments may go, and why the others stay
    phase 3   which segments are worth merging or rewriting
    phase 4   which scattered live entries are written again at the head of the log

A live set without neighbours costs memory, and its entries pin one segment each. Written again,
they stand side by side, and their old places die with the next snapshot. The machine above decides
what a rewritten entry means (it keeps its offsets, times and revisions); the log chooses, reads,
appends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap64

from lowmark.formatting import counted, verb
from lowmark.holds import Decision, Hold, Kept, Reason
from lowmark.log.config import LogConfig
from lowmark.log.segments import SegmentRef
from lowmark.log.state import LiveRow


def plan_cuts(
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
            f"{counted(after, 'entry', 'entries')} {verb(after, 'follow')} the snapshot",
        )
    live = row.live.range_cardinality(ref.first, ref.last + 1)
    if live:
        yield Reason("live", f"{counted(live, 'entry', 'entries')} {verb(live, 'are')} live")
    for hold in holds:
        if hold.pins_any(ref.first, ref.last):
            yield Reason("held", f"{hold.holder} holds it: {hold.why}", hold)
    if ref.number in busy:
        yield Reason("compacting", "phase 3 is reading it")
    if newest:
        yield Reason("newest", "the newest segment always stays")


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

    def takes_little(self, config: LogConfig) -> bool:
        """Whether all of its sources are small, so that the space it takes meanwhile is, too."""
        return all(one.ref.data_bytes < _small_below(config) for one in self.sources)


def _small_below(config: LogConfig) -> int:
    return config.segment_bytes_max // _SMALL_SHARE


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
    small = _small_below(config)
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


_BLOCK_BITS = 10


def plan_rewrite(
    live: BitMap64, *, dense_share: float = 0.5, chunk_entries: int = 1_024, neighbours: int = 0
) -> list[list[int]]:
    """The live indexes in thinly populated blocks of the log, lowest first, in chunks.

    A block of 1,024 indexes in which at least `dense_share` are live is left alone. With
    `neighbours`, so is an index with that share among as many on both sides: the ends of a clump
    are in thin blocks, too. And so is what is left if it makes one clump by itself: to write it
    again would gain nothing.
    """
    indexes = np.frombuffer(live.to_array(), np.uint64)
    if not len(indexes):
        return []
    blocks, at, counts = np.unique(
        indexes >> np.uint64(_BLOCK_BITS), return_inverse=True, return_counts=True
    )
    del blocks
    thin = counts[at] < dense_share * (1 << _BLOCK_BITS)
    if neighbours:
        low = np.searchsorted(indexes, indexes - np.minimum(indexes, np.uint64(neighbours)))
        high = np.searchsorted(indexes, indexes + np.uint64(neighbours), side="right")
        thin &= high - low <= dense_share * 2 * neighbours
    scattered = indexes[thin].tolist()
    if neighbours and scattered:
        span = scattered[-1] - scattered[0] + 1
        scattered = scattered if len(scattered) < dense_share * span else []
    return [scattered[i : i + chunk_entries] for i in range(0, len(scattered), chunk_entries)]
