"""Consecutive entries of the normal section: where they are, and how much data they have.

For a follower that catches up, and for whoever decides by size. Nothing here looks up single
indexes: the way goes along segments, then along the memtable's runs, which hold the log's tail.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from lowmark.log.read_plan import InMemory, InSegment
from lowmark.log.segments import SegmentReader, SegmentRef, entry_gone
from lowmark.log.state import GroupState


def plan_range(
    state: GroupState, first: int, last: int, *, bytes_max: int
) -> list[InSegment | InMemory]:
    """Where these entries are; the rest is left out when there are surely more than `bytes_max`."""
    pieces: list[InSegment | InMemory] = []
    planned, expected = 0, first
    for ref, low, high in _in_segments(state, first, last):
        if low != expected:
            break
        pieces.append(InSegment(ref.number, range(low, high + 1)))
        expected = high + 1
        planned += ref.data_bytes if _is_whole(ref, low, high) else 0
        if planned > bytes_max:
            return pieces
    if expected <= last:
        pieces.append(_in_memory(state, expected, last, bytes_max=bytes_max - planned))
    return pieces


def _in_memory(state: GroupState, first: int, last: int, *, bytes_max: int) -> InMemory:
    memory = state.memtable
    if not (memory.first or last + 1) <= first <= last <= (memory.last or -1):
        missing = first if first < (memory.first or last + 1) else (memory.last or 0) + 1
        snapshot = state.row.snapshot_index
        raise entry_gone(state.name, missing, snapshot=snapshot, last=state.last_index)
    begin, end = memory.position(first), memory.position(last) + 1
    # A run before which there is too much already is not needed.
    enough = memory.view[begin].bytes_before + memory.view[begin].bytes_below(first) + bytes_max
    end = bisect_right(memory.view, enough, begin + 1, end, key=lambda run: run.bytes_before)
    runs = memory.view[begin:end]
    return InMemory(runs, first, min(last, runs[-1].kept_last))


def size_of(
    state: GroupState, first: int, last: int, *, reader: Callable[[SegmentRef], SegmentReader]
) -> int:
    """How much data entries of the normal section have; only segments at the edges are opened."""
    first, last = max(first, state.row.snapshot_index + 1), min(last, state.last_index)
    size = state.memtable.bytes_within(first, last)
    for ref, low, high in _in_segments(state, first, last):
        whole = _is_whole(ref, low, high)
        size += ref.data_bytes if whole else reader(ref).bytes_within(low, high)
    return size


def log_bytes(state: GroupState) -> int:
    """About how much data the normal section has; segments are counted again when they change."""
    memory, snapshot = state.memtable, state.row.snapshot_index
    size = memory.bytes_within(snapshot + 1, state.last_index)
    if not state.segments:
        return size
    newest = state.segments[-1]
    end = min(newest.last, state.last_index if memory.first is None else memory.first - 1)
    # What follows the snapshot changes only with these: compaction works on what is before it.
    key = (snapshot, newest.number, end)
    if state.segment_bytes_known[0] != key:
        parts = _in_segments(state, snapshot + 1, end)
        counted = sum(_share(ref, high + 1 - low) for ref, low, high in parts)
        state.segment_bytes_known = (key, counted)
    return size + state.segment_bytes_known[1]


def _in_segments(state: GroupState, first: int, last: int) -> Iterator[tuple[SegmentRef, int, int]]:
    """The segments that hold a range, each with the first and last index of it that is there."""
    if state.memtable.first is not None:
        last = min(last, state.memtable.first - 1)  # what memory has is newer
    refs = state.segments
    for at in range(max(0, bisect_right(refs, first, key=lambda ref: ref.first) - 1), len(refs)):
        ref = refs[at]
        if max(first, ref.first) > last:
            return
        if ref.last >= first:
            yield ref, max(first, ref.first), min(last, ref.last)


def _is_whole(ref: SegmentRef, low: int, high: int) -> bool:
    return (low, high) == (ref.first, ref.file_last)


def _share(ref: SegmentRef, part: int) -> int:
    """About how much of a segment's data so many of its entries have."""
    return ref.data_bytes if part >= ref.count else ref.data_bytes * part // ref.count
