"""The segment writer: moves what a closed WAL file holds into segments, then removes the file.

After each step this is true:
    1. segments are written as `.tmp`, synced, renamed   the WAL file still holds everything
    2. the group's folder is synced                      both hold it; the newer segments count
    3. the group takes the segments over in memory       its memtable forgets the WAL file's part
    4. all groups done: the WAL file is removed, `wal/` synced
A crash before 4 replays the file and flushes it again; the newer segments then cancel the older
ones. Files go in order and the removal is synced before the next begins, so an older file never
comes back after a newer one is gone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from lowmark.errors import LowmarkError
from lowmark.log import files, segment_format
from lowmark.log.config import LogConfig
from lowmark.log.entries import U32, U64, fold_checksums
from lowmark.log.errors import reason_of
from lowmark.log.folders import discard
from lowmark.log.live import LiveRow
from lowmark.log.memtable import FlushPart, parts_of
from lowmark.log.segment_format import IN_LARGE, ROW, Rows
from lowmark.log.segments import SegmentRef, indexes_within
from lowmark.log.state import GroupState
from lowmark.runtime import Buffer, Disk, DiskFailed, DiskFull, Outcome, Runtime

__all__ = ["SegmentPlan", "SegmentWriter", "plan_segments", "write_segment"]

logger = logging.getLogger(__name__)

_TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """A segment about to be written."""

    rows: Rows
    payload: list[Buffer]
    large: int


def plan_segments(
    parts: list[FlushPart], row: LiveRow, config: LogConfig, *, older_last: int = 0
) -> list[SegmentPlan]:
    """Cut what is needed of a WAL file's runs into segments.

    Needed is everything after the snapshot, and of what it covers only the live indexes. Where
    older segments reach beyond the file's end (up to `older_last`), that tail was overwritten: then
    the file's last entry is needed, dead or not, because only a newer piece cancels older ones.
    """
    end = parts[-1].run.first + parts[-1].kept - 1 if parts else 0
    cut_at = end if end < older_last else None
    plans: list[SegmentPlan] = []
    group: list[FlushPart] = []
    entries = size = large = 0
    for part in parts:
        part_bytes = part.run.data_bytes
        its_large = part.run.large.number if part.run.large is not None else 0
        full = (
            entries + part.kept > config.segment_entries_max
            or size + part_bytes > config.segment_bytes_max
        )
        if group and (full or (its_large and large and its_large != large)):
            plans += _plan_one(group, row, large, cut_at)
            group, entries, size, large = [], 0, 0, 0
        group.append(part)
        entries += part.kept
        size += part_bytes
        large = its_large or large
    return plans + (_plan_one(group, row, large, cut_at) if group else [])


def _plan_one(
    parts: list[FlushPart], row: LiveRow, large: int, cut_at: int | None
) -> list[SegmentPlan]:
    kept = np.fromiter((part.kept for part in parts), np.int64, len(parts))
    starts = np.cumsum(kept) - kept
    firsts = np.fromiter((part.run.first for part in parts), np.int64, len(parts))
    terms = np.fromiter((part.run.term for part in parts), np.uint64, len(parts))
    rows = np.empty(int(kept.sum()), ROW)
    rows["index"] = np.repeat(firsts - starts, kept) + np.arange(len(rows))
    rows["term"] = np.repeat(terms, kept)
    lengths = b"".join(part.run.lengths[: 4 * part.kept] for part in parts)
    rows["length"] = np.frombuffer(lengths, np.uint32)
    sums = b"".join(part.run.checksums[: 4 * part.kept] for part in parts)
    data_sums: U32 = np.frombuffer(sums, np.uint32)
    rows["checksum"] = fold_checksums(data_sums, rows["index"], rows["term"])
    rows["place"] = 0
    if large:
        for part, start in zip(parts, starts.tolist(), strict=True):
            if part.run.large is not None:
                rows["place"][start] = IN_LARGE | part.run.large.offset
    needed = _needed(rows["index"], row)
    if cut_at is not None:
        needed |= rows["index"] == cut_at
    payload: list[Buffer] = []
    if needed.all():
        payload = [_kept_bytes(part) for part in parts if part.run.large is None]
    else:
        for part, start in zip(parts, starts.tolist(), strict=True):
            if part.run.large is None:
                payload += _needed_bytes(part, needed[start : start + part.kept])
        rows = rows[needed]
    if not len(rows):
        return []
    segment_format.lay_out(rows)
    return [SegmentPlan(rows, payload, large if bool((rows["place"] & IN_LARGE).any()) else 0)]


def _needed(indexes: U64, row: LiveRow) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    if not row.known:
        return np.ones(len(indexes), np.bool_)
    needed = indexes > row.snapshot_index
    if row.live and not needed.all():
        live = indexes_within(row.live, int(indexes[0]), int(indexes[-1]))
        needed |= np.isin(indexes, live, assume_unique=True)
    return needed


def _kept_bytes(part: FlushPart) -> Buffer:
    run = part.run
    if part.kept == run.count:
        return run.payload
    return memoryview(run.payload)[: int(run.starts()[part.kept])]


def _needed_bytes(
    part: FlushPart, needed: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> list[Buffer]:
    run = part.run
    # Neighbours that are both needed are one slice: edges are where "needed" changes.
    starts, payload = run.starts(), memoryview(run.payload)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], needed.view(np.int8), [0]))))
    return [
        payload[int(starts[a]) : int(starts[b])]
        for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    ]


def write_segment(
    disk: Disk,
    folder: str,
    *,
    number: int,
    plan: SegmentPlan,
    incarnation: bytes,
    order: int | None = None,
) -> SegmentRef:
    """Write a segment aside, sync it and give it its name; the folder is not yet synced."""
    order = number if order is None else order
    buffers = segment_format.encode_segment(
        rows=plan.rows,
        payload=plan.payload,
        large=plan.large,
        members=[number],
        order=order,
        incarnation=incarnation,
    )
    path = f"{folder}/{files.segment_name(number)}"
    discard(disk, path + files.TEMPORARY)
    file = disk.open(path + files.TEMPORARY, "create")
    file.append(buffers)
    file.datasync()
    file.close()
    disk.rename(path + files.TEMPORARY, path)
    return SegmentRef(
        number,
        int(plan.rows["index"][0]),
        int(plan.rows["index"][-1]),
        len(plan.rows),
        int(plan.rows["length"].sum(dtype=np.uint64)),
        plan.large,
        sum(map(len, buffers)),
        order,
        int(plan.rows["index"][-1]),
        int(plan.rows["term"][0]),
        int(plan.rows["term"][-1]),
    )


class SegmentWriter:
    """Works off closed WAL files, one after another, group by group, on the lane `segments`."""

    def __init__(
        self,
        runtime: Runtime,
        config: LogConfig,
        *,
        groups: Callable[[], Iterable[GroupState]],
        on_flushed: Callable[[GroupState, int, list[SegmentRef]], None],
        on_wal_gone: Callable[[int], None],
        on_broken: Callable[[GroupState, LowmarkError], None],
    ) -> None:
        self._on_broken = on_broken
        self._loop = runtime.loop
        self._disk = runtime.disk
        self._lane = runtime.loop.lane("segments")
        self._config = config
        self._groups = groups
        self._on_flushed = on_flushed
        self._on_wal_gone = on_wal_gone
        self._waiting: deque[int] = deque()
        self._todo: deque[GroupState] = deque()
        self._aside: frozenset[int] = frozenset()
        self._busy = False
        self.closed = False
        self.error: LowmarkError | None = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing left to flush."""
        return not (self._waiting or self._busy)

    def keep_aside(self, wals: set[int]) -> None:
        """Files to rename instead of removing: what is damaged is kept for analysis."""
        self._aside = frozenset(wals)

    def take(self, wal: int) -> None:
        """Queue a closed WAL file."""
        self._waiting.append(wal)
        self._pump()

    def _pump(self) -> None:
        if self._busy or not self._waiting or self.closed:
            return
        self._busy = True
        wal = self._waiting[0]
        self._todo = deque(s for s in self._groups() if wal in s.memtable.by_wal)
        self._next_group(wal)

    def _next_group(self, wal: int) -> None:
        while self._todo:
            self._todo = deque(state for state in self._todo if not state.deleted)
            if self._todo and all(state.installing for state in self._todo):
                # Its segments would be newer than those of the snapshot that voids them.
                self._loop.call_later(self._config.retry_ms, lambda: self._go_on(wal))
                return
            if not self._todo:
                break
            state = self._todo.popleft()
            if state.installing:
                self._todo.append(state)
                continue
            self._plan(wal, state)
            return
        self._lane.submit(self._remove(wal), lambda done: self._removed(wal, done))

    def _plan(self, wal: int, state: GroupState) -> None:
        """Cut the group's part into segments, on the lane: a closed file's runs do not change."""
        runs, row = list(state.memtable.by_wal.get(wal, ())), state.kept_row()
        older_last = state.segments[-1].last if state.segments else 0

        def step() -> list[SegmentPlan]:
            return plan_segments(parts_of(runs), row, self._config, older_last=older_last)

        def done(outcome: Outcome[list[SegmentPlan]]) -> None:
            if self.closed:
                return
            plans = outcome.value()
            if state.installing and not state.deleted:
                self._todo.append(state)
            elif plans and not state.deleted:
                # Numbers are taken on the loop, so number order stays write order.
                self._write(wal, state, [(state.take_number(), plan) for plan in plans])
                return
            elif not state.deleted:
                self._on_flushed(state, wal, [])
            self._next_group(wal)

        self._lane.submit(step, done)

    def _go_on(self, wal: int) -> None:
        if not self.closed:
            self._next_group(wal)

    def _write(
        self,
        wal: int,
        state: GroupState,
        numbered: list[tuple[int, SegmentPlan]],
        *,
        tries: int = 1,
    ) -> None:
        """Write the segments, a step each, then sync their folder once."""
        if state.deleted:
            self._next_group(wal)
            return
        made: list[SegmentRef] = []
        faults = state.folder_faults

        def step() -> SegmentRef:
            number, plan = numbered[len(made)]
            ref = write_segment(
                self._disk, state.folder, number=number, plan=plan, incarnation=state.incarnation
            )
            if len(made) + 1 == len(numbered):
                state.sync_folder(self._disk)
            return ref

        def done(outcome: Outcome[SegmentRef]) -> None:
            if self.closed:
                return
            if outcome.error is not None or state.folder_faults != faults:
                # After a failed sync of the folder no name in it is sure, those of earlier steps
                # included, and a later sync proves nothing: all are written and named again.
                unsure = DiskFailed(state.folder, call="fsync", reason="another lane's failed")
                error = reason_error(outcome.error or unsure)
                again = lambda: self._write(wal, state, numbered, tries=tries + 1)  # noqa: E731
                if isinstance(error, DiskFull) or tries < _TRIES_MAX:
                    self._failed(error, again)
                    return
                # Its folder is broken. The WAL file keeps what it has, and the others go on.
                self._aside |= {wal}
                self._on_broken(state, error)
                self._next_group(wal)
                return
            self.error = None
            made.append(outcome.value())
            if len(made) < len(numbered):
                self._lane.submit(step, done)
                return
            self._on_flushed(state, wal, made)
            self._next_group(wal)

        self._lane.submit(step, done)

    def _remove(self, wal: int) -> Callable[[], None]:
        def step() -> None:
            path = files.wal_path(wal)
            if wal not in self._aside:
                discard(self._disk, path)
            elif self._disk.stat(path) is not None:
                self._disk.rename(path, path + files.DAMAGED)
            self._disk.sync_dir(files.WAL)

        return step

    def _removed(self, wal: int, outcome: Outcome[None]) -> None:
        if self.closed:
            return
        if outcome.error is not None:
            if self._disk.stat(files.wal_path(wal)) is None:
                # Gone, but perhaps not for good, and a later sync proves nothing. It must not come
                # back after a newer file is gone: so none goes any more, until the next start.
                self.error = reason_error(outcome.error)
                logger.error("the segment writer stands still", extra={"reason": str(self.error)})
                return
            again = lambda: self._lane.submit(self._remove(wal), lambda d: self._removed(wal, d))  # noqa: E731
            self._failed(outcome.error, again)
            return
        self._busy = False
        self._waiting.popleft()
        self._on_wal_gone(wal)
        self._pump()

    def _failed(self, error: Exception, again: Callable[[], None]) -> None:
        """Nothing is lost: the WAL file stays, and the step is tried again."""
        self.error = reason_error(error)
        logger.warning("the segment writer waits", extra={"reason": reason_of(error)})
        self._loop.call_later(self._config.retry_ms, lambda: None if self.closed else again())


def reason_error(error: Exception) -> LowmarkError:
    """A disk's error; anything else is a bug and is raised."""
    if not isinstance(error, LowmarkError):
        raise error
    return error
