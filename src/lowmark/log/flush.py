"""The segment writer: moves what a closed WAL file holds into segments, then removes the file.

After each step this is true:
    1. segments are written as `.tmp`, synced, renamed   the WAL file still holds everything
    2. the group's folder is synced                      both hold it; the newer segments count
    3. the group takes the segments over in memory       its memtable forgets the WAL file's part
    4. all groups done: the WAL file is removed, `wal/` synced
A crash before 4 replays the file and flushes it again; the newer segments then cancel the older
ones. Files go in order and the removal is synced before the next begins, so an older file never
comes back after a newer one is gone.

The rule, where WAL files end: **no WAL file is renamed, removed or passed over while any group with
records in it is unreadable, unflushed, or in a quarantine that is not durable.** Such a group is
owed the file. Then step 4 is another one:
    4a. all other groups done: a note beside the file (`kept`) names those that are owed it, synced
        the file counts for them alone; files after it may go
    4b. one of them is done, and takes nothing new yet: the note is written again without it, synced
    4c. no group is owed it any more: the note is written again and names none, synced
    4d. the file goes, `wal/` is synced, and then the note goes
What happens to a group that is owed a file:
    - Its folder can't be written, time after time: it is sick (`GroupState.sick`). It takes no
      writes, and says why; so what it is owed does not grow. All of its later parts wait behind the
      first. It is tried again for ever, with pauses, under the same segment numbers; when all of it
      is through and a probe of its folder works, it is well and takes writes again.
    - It could not be read at the start, or leaves a gap: its records are not in memory; the file
      stays until a later start has read it, or the group is deleted.
    - Its quarantine is not written down, here or there: the file stays until it is.
Meanwhile all others go on. A damaged file is set aside (renamed) instead of removed; a note beside
it says for which groups it still counts, most often for none.

When the removal's sync fails, the file may come back with a crash, and a later sync proves nothing
about that. But a note that is made after the failed sync, and synced, is there for sure: it says
that the file is spent. So that is tried until it works, and then the next file's turn has come.
The same holds for a note that a start finds: the sync after its rename may have failed in a process
that was killed then. So it is written again, and synced, before any file after it goes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from lowmark.errors import LowmarkError, NoMemory
from lowmark.log import files, segment_format
from lowmark.log.config import LogConfig
from lowmark.log.entries import U32, U64, fold_checksums
from lowmark.log.errors import reason_of
from lowmark.log.files import SharedFolder, discard, write_whole
from lowmark.log.kept import Kept, Owner, retire, write_kept
from lowmark.log.memtable import FlushPart, parts_of
from lowmark.log.segment_format import IN_LARGE, ROW, Rows
from lowmark.log.segments import SegmentRef, indexes_within
from lowmark.log.state import GroupState, LiveRow
from lowmark.runtime import (
    Buffer,
    Disk,
    DiskFailed,
    DiskFull,
    NoHandles,
    Outcome,
    Runtime,
    by_name,
)

logger = logging.getLogger(__name__)

_TRIES_MAX = 5
_PAUSES_MAX = 10
"""A sick group is tried again after `retry_ms`, then after twice that, up to this many times it."""
_PROBE = "probe"
_NOT_THE_FOLDER_S = (DiskFull, NoHandles, NoMemory)
"""However often these come, they say nothing about one group's folder."""


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


@dataclass(slots=True, eq=False)
class ClosedFile:
    """A WAL file that takes no more writes, on its way to its end."""

    number: int
    bytes: int = 0
    """How many of its bytes count."""
    aside: bool = False
    """It is set aside already."""
    damaged: bool = False
    """It is to be set aside, not removed."""
    spent: bool = False
    """It counts for no group, but it may be there, or come back."""
    noted: Kept | None = None
    """What the note beside it says, if there is one."""
    unsure: bool = False
    """The note was found at the start, or its sync failed: its name may not be durable."""
    holders: set[Owner] = field(default_factory=set)
    """Everybody who is known to have records in it."""
    strangers: set[Owner] = field(default_factory=set)
    """Those of them whose records are not in memory."""
    parked: list[GroupState] = field(default_factory=list)
    """Groups whose part could not be flushed yet."""
    counted: bool = True
    """Whether the WAL counts it among the files that it waits for."""


class SegmentWriter:
    """Works off closed WAL files, one after another, group by group, on the lane `segments`."""

    def __init__(
        self,
        runtime: Runtime,
        config: LogConfig,
        *,
        wal_folder: SharedFolder,
        groups: Callable[[], Iterable[GroupState]],
        is_here: Callable[[Owner], bool],
        on_flushed: Callable[[GroupState, int, list[SegmentRef]], None],
        on_wal_gone: Callable[[int], None],
        on_error: Callable[[], None],
        on_well: Callable[[], None],
    ) -> None:
        self._loop = runtime.loop
        self._disk = runtime.disk
        self._lane = runtime.loop.lane("segments")
        self._wal_folder = wal_folder
        self._config = config
        self._groups = groups
        self._is_here = is_here
        self._on_flushed = on_flushed
        self._on_wal_gone = on_wal_gone
        self._on_error = on_error
        self._on_well = on_well
        self._waiting: deque[ClosedFile] = deque()
        self._kept: dict[int, ClosedFile] = {}
        self._round: deque[ClosedFile] = deque()
        self._todo: deque[GroupState] = deque()
        self._skipped: set[GroupState] = set()
        self._numbered: dict[tuple[GroupState, int], list[tuple[int, SegmentPlan]]] = {}
        self._sick: dict[Owner, GroupState] = {}
        self._pause_ms: float = config.retry_ms
        self._retry_planned = False
        self._look_again = False
        self._busy = False
        self._file_failed = False
        self.closed = False
        self.error: LowmarkError | None = None
        """What it waits for just now; perhaps only for one group's folder, and not for long."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing left that it could flush."""
        return not (self._waiting or self._busy or self._sick or self._look_again)

    @property
    def stuck(self) -> LowmarkError | None:
        """What it waits for, if nothing can go on before that is over."""
        everybody = self._file_failed or isinstance(self.error, _NOT_THE_FOLDER_S)
        return self.error if everybody else None

    @property
    def kept(self) -> list[ClosedFile]:
        """Files that stay for some groups, oldest first."""
        return [self._kept[number] for number in sorted(self._kept)]

    def take(self, file: ClosedFile) -> None:
        """Queue a closed WAL file."""
        self._waiting.append(file)
        self._pump()

    def look_again(self) -> None:
        """Something changed for who is owed a file: it is gone, or its quarantine is durable.

        A note may be on its way just now that names it, and counts among the kept ones only later.
        """
        if self._kept or self._sick or self._busy:
            self._look_again = True
            self._pump()

    def sicken(self, state: GroupState, error: LowmarkError) -> None:
        """A group's folder can't be written: let it take nothing until that works again."""
        if state.sick is None:
            extra = {"group": state.name, "reason": error.message}
            logger.error("a group takes no writes: its folder can't be written", extra=extra)
        state.sick = error
        self._sick[owner_of(state)] = state
        self._plan_retry()

    # -- which file, and which group ------------------------------------------------------------

    def _pump(self) -> None:
        if self._busy or self.closed:
            return
        if self._look_again:
            self._look_again = False
            self._busy = True
            self._skipped = set()
            self._round = deque(self.kept)
            self._next_kept()
        elif self._waiting:
            self._busy = True
            # What a group is owed comes in order: behind an older part of it, no newer one.
            self._skipped = {state for file in self._kept.values() for state in file.parked}
            self._look_at(self._waiting[0])

    def _next_kept(self) -> None:
        if self._round:
            self._look_at(self._round[0])
        else:
            self._probe(deque(self._sick.values()))

    def _look_at(self, file: ClosedFile) -> None:
        self._todo = deque(s for s in self._groups() if file.number in s.memtable.by_wal)
        file.holders.update(map(owner_of, self._todo))
        file.parked = []
        self._next_group(file)

    def _next_group(self, file: ClosedFile, waits: int = 0) -> None:
        while self._todo:
            state = self._todo[0]
            if state.deleted:
                self._todo.popleft()
            elif state in self._skipped or (state.quarantine and not state.quarantine_saved):
                self._park(file, state)
            elif not state.installing:
                self._plan(file, state)
                return
            elif any(not other.installing for other in self._todo):
                self._todo.rotate(-1)
            elif waits < _TRIES_MAX:
                # Its segments would be newer than those of the snapshot that voids them.
                again = partial(self._next_group, file, waits + 1)
                self._loop.call_later(self._config.retry_ms, partial(self._unless_closed, again))
                return
            else:
                self._park(file, state)  # perhaps its folder is what it waits for
                self._plan_retry()
        self._finish(file)

    def _park(self, file: ClosedFile, state: GroupState) -> None:
        self._todo.popleft()
        self._skipped.add(state)
        file.parked.append(state)

    def _plan(self, file: ClosedFile, state: GroupState) -> None:
        """Cut the group's part into segments, on the lane: a closed file's runs do not change."""
        wal = file.number
        known = self._numbered.get((state, wal))
        if known is not None:
            # Some may be on the disk already, under these numbers: none may stay beside others.
            self._write(file, state, known)
            return
        runs, row = list(state.memtable.by_wal.get(wal, ())), state.kept_row()
        older_last = state.segments[-1].last if state.segments else 0

        def step() -> list[SegmentPlan]:
            return plan_segments(parts_of(runs), row, self._config, older_last=older_last)

        def done(outcome: Outcome[list[SegmentPlan]]) -> None:
            if self.closed:
                return
            if outcome.error is not None:
                self._failed(outcome.error, lambda: self._next_group(file))
                return
            self.error, plans = None, outcome.value()
            if state.installing and not state.deleted:
                self._next_group(file)
                return
            if plans and not state.deleted:
                # Numbers are taken on the loop, so number order stays write order.
                self._write(file, state, [(state.take_number(), plan) for plan in plans])
                return
            self._todo.popleft()
            if not state.deleted:
                self._on_flushed(state, wal, [])
            self._next_group(file)

        self._lane.submit(step, done)

    def _unless_closed(self, act: Callable[[], None]) -> None:
        if not self.closed:
            act()

    def _write(
        self,
        file: ClosedFile,
        state: GroupState,
        numbered: list[tuple[int, SegmentPlan]],
        *,
        tries: int = 1,
    ) -> None:
        """Write the segments, a step each, then sync their folder once."""
        if state.deleted:
            self._next_group(file)
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
                again = lambda: self._write(file, state, numbered, tries=tries + 1)  # noqa: E731
                tries_max = 1 if state.sick is not None else _TRIES_MAX
                if isinstance(error, _NOT_THE_FOLDER_S) or tries < tries_max:
                    self._failed(error, again)
                    return
                # Its folder is broken. The WAL file stays for it, and the others go on.
                self._numbered[state, file.number] = numbered
                self.error = None
                self._park(file, state)
                self.sicken(state, error)
                self._next_group(file)
                return
            self.error = None
            made.append(outcome.value())
            if len(made) < len(numbered):
                self._lane.submit(step, done)
                return
            self._todo.popleft()
            self._numbered.pop((state, file.number), None)
            self._on_flushed(state, file.number, made)
            self._next_group(file)

        self._lane.submit(step, done)

    # -- the end of a file ----------------------------------------------------------------------

    def _owed(self, file: ClosedFile) -> tuple[set[Owner], bool]:
        """Who is owed the file, and whether all of them are in a durable quarantine."""
        owed = {owner_of(state) for state in file.parked if not state.deleted}
        for state in self._groups():
            holds = file.damaged or owner_of(state) in file.holders
            if state.quarantine is not None and not state.quarantine_saved and holds:
                owed.add(owner_of(state))
        sealed = {owner_of(state) for state in self._groups() if state.quarantine_saved} - owed
        owed |= {owner for owner in file.strangers if self._is_here(owner)}
        return owed, owed <= sealed

    def _finish(self, file: ClosedFile) -> None:
        owed, sealed = self._owed(file)
        note = Kept(frozenset() if file.spent else frozenset(owed), file.bytes)
        path = files.wal_path(file.number)
        keeps = not file.spent and (bool(owed) or file.aside or file.damaged)
        unlinked = False

        def step() -> None:
            nonlocal unlinked
            disk, folder = self._disk, self._wal_folder
            faults = folder.faults
            if not keeps and (file.spent or file.noted is not None):
                write_kept(disk, file.number, note, folder)
                retire(disk, file.number, folder)
            elif keeps:
                if file.unsure or file.noted != note:
                    write_kept(disk, file.number, note, folder)
                if file.damaged and not file.aside and sealed and disk.stat(path) is not None:
                    # The note counts: whichever of its two names a crash leaves, nobody is misled.
                    disk.rename(path, path + files.DAMAGED)
                    folder.sync(disk, since=faults)
            else:
                discard(disk, path)
                unlinked = True
                folder.sync(disk, since=faults)

        def done(outcome: Outcome[None]) -> None:
            if self.closed:
                return
            if outcome.error is not None:
                file.spent, file.unsure = file.spent or unlinked, True
                self._file_failed = True
                self._failed(outcome.error, lambda: self._finish(file))
                return
            self.error, self._file_failed = None, False
            self._finished(file, note if keeps else None, aside=keeps and file.damaged and sealed)

        as_it_is = file.noted == note and not file.unsure
        if keeps and as_it_is and (file.aside or not (file.damaged and sealed)):
            self._finished(file, note, aside=file.aside)
        else:
            self._lane.submit(step, done)

    def _finished(self, file: ClosedFile, note: Kept | None, *, aside: bool) -> None:
        file.noted, file.unsure, file.aside = note, False, file.aside or aside
        if note is not None and note.owners:
            self._kept[file.number] = file
        else:
            self._kept.pop(file.number, None)
        if self._waiting and self._waiting[0] is file:
            self._waiting.popleft()
        if file.counted:
            file.counted = False
            self._on_wal_gone(file.number)
        if self._round and self._round[0] is file:
            self._round.popleft()
            self._next_kept()
            return
        self._busy = False
        self._pump()

    # -- waiting --------------------------------------------------------------------------------

    def _failed(self, error: Exception, again: Callable[[], None]) -> None:
        """Nothing is lost: the WAL file stays, and the step is tried again."""
        told, self.error = self.error, reason_error(error)
        self._on_error()
        if type(told) is not type(self.error):  # once, and not with every try
            logger.warning("the segment writer waits", extra={"reason": reason_of(self.error)})
        self._loop.call_later(self._config.retry_ms, lambda: self._unless_closed(again))

    def _plan_retry(self) -> None:
        if self._retry_planned:
            return
        self._retry_planned = True

        def due() -> None:
            self._retry_planned = False
            self._look_again = True
            self._pump()

        self._loop.call_later(self._pause_ms, lambda: self._unless_closed(due))

    def _probe(self, todo: deque[GroupState]) -> None:
        """At the end of a round: who has nothing parked any more may be well."""
        parked = {state for file in self._kept.values() for state in file.parked}
        while todo and (todo[0] in parked or todo[0].deleted):
            todo.popleft()
        if not todo:
            self._round_over()
            return
        state = todo.popleft()

        def done(outcome: Outcome[None]) -> None:
            if self.closed:
                return
            if outcome.error is None:
                logger.warning("a group's folder can be written again", extra={"group": state.name})
                state.sick = None
                self._sick.pop(owner_of(state), None)
                self._on_well()
            else:
                state.sick = reason_error(outcome.error)
            self._probe(todo)

        self._lane.submit(lambda: _write_probe(self._disk, state), done)

    def _round_over(self) -> None:
        self._sick = {owner: state for owner, state in self._sick.items() if not state.deleted}
        self._numbered = {
            (state, wal): plans
            for (state, wal), plans in self._numbered.items()
            if wal in state.memtable.by_wal and not state.deleted
        }
        waits = self._sick or any(s.installing for f in self._kept.values() for s in f.parked)
        pause_max = _PAUSES_MAX * self._config.retry_ms
        self._pause_ms = min(2 * self._pause_ms, pause_max) if waits else self._config.retry_ms
        if waits:
            self._plan_retry()
        self._busy = False
        self._pump()


def owner_of(state: GroupState) -> Owner:
    """A group as notes name it."""
    return state.name, state.incarnation


def _write_probe(disk: Disk, state: GroupState) -> None:
    """Do in a group's folder what a flush does, and leave nothing."""
    path = f"{state.folder}/{_PROBE}{files.TEMPORARY}"
    discard(disk, path)
    write_whole(disk, path, b"can this folder be written?")
    disk.unlink(path)
    state.sync_folder(disk)


def reason_error(error: Exception) -> LowmarkError:
    """A disk's error, or that memory ran out; anything else is a bug and is raised."""
    cause = by_name(error)
    if not isinstance(cause, LowmarkError):
        raise error
    return cause
