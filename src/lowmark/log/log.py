"""A node's log: all its groups, one WAL, one segment writer, one compactor."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar, cast

import msgspec
from pyroaring import BitMap64

from lowmark.errors import Corrupt, LowmarkError
from lowmark.ids import group_id
from lowmark.log import files, identity
from lowmark.log.compactor import Compactor
from lowmark.log.config import LogConfig
from lowmark.log.disk_watch import DiskWatch
from lowmark.log.drivers import Installs, Snapshotter
from lowmark.log.entries import Entry, Run
from lowmark.log.errors import (
    Damaged,
    FolderMissing,
    FolderMistaken,
    GroupExists,
    GroupLeaving,
    GroupUnknown,
    LogClosed,
    NewerFormat,
    in_directory,
    reason_of,
)
from lowmark.log.files import SharedFolder
from lowmark.log.flush import ClosedFile, SegmentWriter
from lowmark.log.group import GroupLog
from lowmark.log.install import Installer
from lowmark.log.kept import Owner
from lowmark.log.opening import Opening
from lowmark.log.roster import Roster
from lowmark.log.segments import ReaderCache, SegmentRef, add_newer
from lowmark.log.snapshot_format import SnapshotMeta
from lowmark.log.state import CompactionRun, GroupState
from lowmark.log.tasks import OnDone, PendingAnswers, Tasks
from lowmark.log.wal import Fence, MetaWrite, RunWrite, Wal, Write
from lowmark.log.wal_recovery import WalFile
from lowmark.runtime import Buffer, DiskLock, Future, Outcome, Runtime

logger = logging.getLogger(__name__)
T = TypeVar("T")

_LANES = ("wal", "segments", "compaction")


class Written(msgspec.Struct, frozen=True, gc=False):
    """Entries of one term are durable."""

    group: str
    term: int
    first: int
    last: int


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """Entries that were appended, but never written, are not in the log any more."""

    group: str
    first: int
    last: int


class Log:
    """Open it, create groups, append; everything else follows by itself.

    Every entry that an append took ends in one of these ways, and nothing else:
        written      `on_written` says so, in the order of the log. A disk that is full or fails
                     only delays it: the WAL keeps what it took, in memory and in order, and writes
                     it by itself when it can. Meanwhile it can be read, and `written_index` stays.
        overwritten  by a newer append of the group's owner, who knows
        replaced     by a snapshot that the owner installs: `last_index` is then the snapshot's
        dropped      `on_dropped` says so. It happens only when a large entry waits for a group's
                     own folder, and that can't be written: the group is sick from that moment on
                     (`GroupUnwritable`), `last_index` falls to the entry before the first one
                     dropped, and what is written stays readable.
        forgotten    with the group when that is deleted, or with the process when it ends: not
                     acknowledged, so nothing is owed; it may or may not be there at the next start

    While the WAL is stopped by its disk, appends and `put_meta` are refused with the disk's error;
    while more than `wal_queue_bytes_max` waits, appends are refused with `LogBusy`. `has_room` is
    false then, and somewhat earlier; when it is true again, `on_writable` is called. While one
    group's folder can't be written, that group alone is refused with `GroupUnwritable`; `has_room`
    does not know of it, but `on_writable` is called when it is well again. While too little is free
    beside the reserve, appends are refused with `DiskFull` that do not say that they may use it;
    when there is enough again, `on_writable` is called, too.

    Who gives an `on_done` that takes an error is called exactly once (`put_meta`, `take_snapshot`,
    `restore_live`, `Installer.finish`), unless the call itself raised: with None when it is done,
    else with the reason; with `GroupUnknown` when the group was deleted in between.
    """

    def __init__(self, runtime: Runtime, config: LogConfig, *, read_only: bool = False) -> None:
        self.config = config
        self.disk = runtime.disk
        self.cache = ReaderCache(runtime.disk, files_max=config.open_files_max)
        self.on_written: Callable[[Written], None] = lambda _: None
        self.on_dropped: Callable[[Dropped], None] = lambda _: None
        self.on_writable: Callable[[], None] = lambda: None
        """Called in a turn of its own when `has_room` is true again; now and then once too often,
        so look again."""
        self._runtime = runtime
        self._loop = runtime.loop
        self._read_only = read_only
        self._closed = False
        self._lock: DiskLock | None = None
        self._states: dict[str, GroupState] = {}
        self._groups: dict[str, GroupLog] = {}
        self._leaving: dict[str, set[str]] = {}
        self._tasks = Tasks(runtime.loop)
        self._answers = PendingAnswers()
        self.unreadable: dict[str, LowmarkError] = {}
        """Groups whose folder is missing or can't be read just now, and why: they are left alone,
        and what the WAL has of them stays there."""
        self._roster = Roster(runtime.disk)
        self._found: dict[int, ClosedFile] = {}
        self._disk_watch = DiskWatch(
            runtime.disk,
            config,
            tasks=self._tasks,
            on_low=lambda: self._compact_all("low disk"),
        )
        self.wal_folder = SharedFolder(files.WAL)
        self.wal = Wal(
            runtime,
            config,
            folder=self.wal_folder,
            groups=self._states.values,
            on_written=self._written,
            on_closed=self._wal_closed,
            on_low_disk=lambda: self._compact_all("low disk"),
            on_free=self._disk_watch.found,
            on_broken=self._writes_dropped,
            on_room=self._tell_writable,
            flush_error=lambda: self.segment_writer.stuck,
            flush_stands=self._flush_stands,
        )
        self.segment_writer = SegmentWriter(
            runtime,
            config,
            wal_folder=self.wal_folder,
            groups=self._states.values,
            is_here=self._is_here,
            on_flushed=self._flushed,
            on_wal_gone=self._wal_gone,
            on_error=self.wal.look_for_room,
            on_well=lambda: self._loop.call_soon(self._tell_writable),
        )
        self.compactor = Compactor(
            runtime,
            config,
            cache=self.cache,
            appended_bytes=lambda: self.wal.bytes_written,
            disk_is_low=lambda: self._disk_watch.is_low,
            on_damage=self.quarantine,
        )
        self._snapshotter = Snapshotter(
            runtime.disk, tasks=self._tasks, answers=self._answers, on_taken=self.compactor.phase1
        )
        self._installs = Installs(
            runtime,
            config,
            wal=self.wal,
            tasks=self._tasks,
            answers=self._answers,
            read_own=self._read_own,
            on_installed=self.compactor.phase1,
        )

    @staticmethod
    def open(
        runtime: Runtime,
        config: LogConfig | None = None,
        *,
        read_only: bool = False,
        note: Callable[[bytes], bytes] | None = None,
    ) -> Log:
        """Open the log on the runtime's disk, mending what a crash left.

        Read-only, nothing on the disk is changed, and leftovers are passed over. `note` makes what
        the lock file says of its holder from the beginning, of what the one before it left.
        """
        log = Log(runtime, config or LogConfig(), read_only=read_only)
        lock = None if read_only and runtime.disk.stat(files.LOCK) is None else files.LOCK
        if lock is not None:
            log._lock = runtime.disk.lock(lock, sign=not read_only, note=note)
        try:
            log._recover()
        except BaseException:
            log.close()
            raise
        return log

    def note(self, text: bytes, *, stays: bool = False) -> None:
        """Say more of this process to others that want the directory; see `DiskLock.note`."""
        lock = self._lock
        if lock is not None:
            lock.note(text, stays=stays)

    @property
    def left(self) -> bytes:
        """What the process before this one noted and did not take back."""
        return b"" if self._lock is None else self._lock.left

    def close(self) -> None:
        """Stop, after the steps that are under way. Call it from outside the loop.

        What is not written yet was not acknowledged either: nothing needs to be saved. Who still
        waits for an answer (an `on_done` that takes an error) gets `LogClosed` before this returns;
        what he asked for may have been done all the same, and the next start shows whether. Nobody
        else is called any more, from the beginning of this call on: no event, no `on_room`, and not
        the `on_done` of a compaction.
        """
        if self._closed:
            return
        self._closed = self.segment_writer.closed = self.compactor.closed = self.wal.closed = True
        self._tasks.closed = True
        self._installs.close()
        drained: list[str] = []
        for name in _LANES:
            lane = self._loop.lane(name)
            lane.submit(lambda: None, lambda _, name=name: drained.append(name))  # type: ignore[misc]
        self._loop.run_until(lambda: len(drained) == len(_LANES))
        self.wal.close()
        for state in self._states.values():
            self.cache.forget(state.folder)
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self._answers.fail(LogClosed("it was closed"))

    # -- groups ---------------------------------------------------------------------------------

    def create_group(self, name: str) -> GroupLog:
        """Make a new, empty group. (Rare, so it works on the disk at once.)"""
        self.check_writable()
        name = group_id(name)
        if name in self._states or name in self.unreadable:
            raise GroupExists(name)
        if name in self._leaving:
            raise GroupLeaving(name)
        state = GroupState(name, self._runtime.random.randbytes(16))
        self._roster.create(name, state.incarnation)
        return self._add(state)

    def delete_group(self, name: str) -> None:
        """Remove a group and everything it has.

        It takes nothing from now on, and who waits for an answer gets `GroupUnknown` in the next
        turn. Its folder goes, and its name is free, when steps on its files that are under way are
        through (`idle` says so). A crash or a close before that brings it back.
        """
        self.check_not_closed()
        if name not in self.unreadable:
            state = self.group(name).state
            state.deleted = True
            self.wal.drop(state)
            self._installs.forget(state)
            self.cache.forget(state.folder)
            del self._groups[name], self._states[name]
            self._loop.call_soon(lambda: self._answers.fail(GroupUnknown(name), of=state))
        self.unreadable.pop(name, None)
        left = self._leaving[name] = set(_LANES)
        self.segment_writer.look_again()

        newest = 0

        def through(lane: str) -> None:
            nonlocal newest
            left.discard(lane)
            if not left:
                newest = self.wal.newest_number  # nothing of the group is written from here on
                self._tasks.run(lambda: self._roster.delete(name), gone)

        def gone(outcome: Outcome[set[Owner]]) -> None:
            del self._leaving[name]
            self._loop.call_soon(self.segment_writer.look_again)
            if outcome.error is None:
                self._roster.mark(outcome.value(), wal=newest)
            else:
                # It is still there, and can be deleted again.
                self.unreadable[name] = Damaged(
                    self.disk.describe(files.group_dir(name)),
                    offset=0,
                    what=f"it could not be deleted: {outcome.error}",
                )

        for lane in _LANES:
            self._loop.lane(lane).submit(lambda: None, lambda _, lane=lane: through(lane))  # type: ignore[misc]

    def group(self, name: str) -> GroupLog:
        """An existing group."""
        if name in self.unreadable:
            raise self.unreadable[name].again()
        if name not in self._groups:
            raise GroupUnknown(name)
        return self._groups[name]

    def damage(self, name: str) -> str:
        """Why what is here of a group is good for nothing; empty if it is sound, or if it is only
        this release, or this disk just now, that can't read it.
        """
        unreadable = self.unreadable.get(name)
        if unreadable is not None:
            passes = not isinstance(unreadable, Corrupt) or isinstance(
                unreadable, FolderMissing | FolderMistaken | NewerFormat
            )
            return "" if passes else unreadable.message
        group = self._groups.get(name)
        return "" if group is None or not group.damaged else group.quarantined or ""

    def groups(self) -> list[GroupLog]:
        """All groups, by name."""
        return [self._groups[name] for name in sorted(self._groups)]

    def _add(self, state: GroupState) -> GroupLog:
        self._states[state.name] = state
        self._groups[state.name] = GroupLog(self, state)
        return self._groups[state.name]

    # -- as a whole -----------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting, being written, flushed, snapshotted or compacted."""
        workers = self.wal.idle and self.segment_writer.idle and self.compactor.idle
        return workers and self._tasks.idle and not self._leaving

    @property
    def has_room(self) -> bool:
        """Whether an append would be taken without a wait; if not, `on_writable` tells when."""
        return self.wal.has_room and not (self._closed or self._read_only)

    @property
    def trouble(self) -> LowmarkError | None:
        """What keeps everything that is appended from becoming durable, and not just this once.

        The disk's error, that the segment writer's error leaves no room in the WAL, or None. What
        was taken is written when it is over, without anybody's help.
        """
        found = self.wal.trouble
        if found is None and self.wal.waits_for_flush:
            found = self.segment_writer.stuck
        return None if found is None else in_directory(found, self.disk.describe(""))

    @property
    def flush_trouble(self) -> LowmarkError | None:
        """What keeps the segment writer from writing anything, if something does just now."""
        found = self.segment_writer.stuck
        return None if found is None else in_directory(found, self.disk.describe(""))

    def _flush_stands(self) -> bool:
        """Whether waiting for the segment writer may be in vain."""
        # One group's installation or folder is not worth it: it is parked, and the others go on.
        return self.segment_writer.stuck is not None

    def roll(self) -> None:
        """Close the WAL file and let the segment writer work it off."""
        self.check_writable()
        self.wal.roll()

    def seal(self) -> bool:
        """Have a start know that all that is written now was synced, if nothing more comes; gives
        whether it would.
        """
        return self._closed or self._read_only or self.wal.seal()

    def check_writable(self) -> None:
        """Raise what keeps the log from taking writes, if anything does."""
        if self._closed:
            raise LogClosed("it was closed")
        if self._read_only:
            raise LogClosed("it was opened for reading only")
        if not self.wal.well:
            refusal = self.wal.refusal
            if refusal is not None:
                raise refusal.again()

    def check_space(self, size: int) -> None:
        """Raise `DiskFull` if so much may not be taken that may not use the reserve."""
        refused = None if self.wal.fits(size) else self.wal.shortage(size)
        if refused is not None:
            raise refused

    def promise(self, size: int) -> None:
        """Count so much more, or less, as taken by groups and about to be appended."""
        self.wal.promised_bytes += size

    def now_ms(self) -> int:
        """The wall clock, for records."""
        return self._loop.wall_ms()

    # -- starting -------------------------------------------------------------------------------

    def _recover(self) -> None:
        opening = Opening(self.disk, self._read_only, self._roster)
        opening.recover()
        self.unreadable = opening.unreadable
        for state in opening.states.values():
            self._add(state)
        if not self._read_only:
            self._start(opening)

    def _start(self, opening: Opening) -> None:
        for file in opening.wals:
            if file.size:
                self._make_durable(file)
        # A floor names a place in the WAL: numbers go on above it, even if the files are gone.
        floors = [s.snapshot.floor.wal for s in opening.states.values() if s.snapshot is not None]
        newest = max([0, *(file.number for file in opening.wals), *floors])
        sound = [f for f in opening.wals if f.durable_bytes and not (f.aside or f.unused)]
        previous = sound[-1] if sound else WalFile(0)
        self._found = {file.number: file for file in opening.closed_files()}
        self._roster.mark_found(wal=max(self._found, default=0))
        self.wal.start(
            number=newest + 1,
            previous=previous.number,
            previous_bytes=previous.durable_bytes,
            waiting=list(self._found),
        )
        if not opening.wals:
            self._remove_marks(0)
        for state in self._states.values():
            if state.quarantine is not None and not state.quarantine_saved:
                self._save_quarantine(state)
            self.compactor.phase1(state)
            if state.links:
                self.compactor.watch_links(state)
        self._plan_timer()
        self._disk_watch.plan()

    def _make_durable(self, file: WalFile) -> None:
        """A killed process may have left bytes that were written but never synced.

        Its last batch may even be one whose sync failed: then the system takes it for saved though
        it is not, and another sync would do nothing. So that batch is written again, as it stands.
        """
        handle = self.disk.open(file.path, "write" if file.unsure_from else "read")
        try:
            if file.unsure_from:
                size = file.durable_bytes - file.unsure_from
                handle.write_at(file.unsure_from, [handle.read_at(file.unsure_from, size)])
            handle.datasync()
        finally:
            handle.close()

    # -- events from below ----------------------------------------------------------------------

    def _written(self, writes: list[Write]) -> None:
        # All groups first, callbacks second: one that raises must not cost another its entries.
        answers: list[Callable[[], None]] = []
        for write in writes:
            match write:
                case RunWrite(state=state, run=run):
                    if run.kept and not state.deleted:
                        state.written_index = max(state.written_index, run.first + run.kept - 1)
                        answers.append(partial(self._tell_written, state, run))
                case MetaWrite(state=state, data=data, on_done=on_done):
                    if not state.deleted:
                        state.meta = data
                        answers.append(partial(on_done, None))
                case Fence(on_done=on_done):
                    answers.append(partial(on_done, None))
        for answer in answers:
            answer()

    def _tell_written(self, state: GroupState, run: Run) -> None:
        # Whoever was told before may have overwritten this, or deleted its group.
        if run.kept and not state.deleted:
            last = run.first + run.kept - 1
            self.on_written(Written(state.name, run.term, run.first, last))

    def _tell_dropped(self, event: Dropped) -> None:
        if not self._closed:
            self.on_dropped(event)

    def _tell_writable(self) -> None:
        if self.has_room:
            self.on_writable()

    def _writes_dropped(
        self, state: GroupState, damage: LowmarkError, dropped: list[Write]
    ) -> None:
        """The WAL gave up what waited of a group, because its folder can't be written."""
        self.segment_writer.sicken(state, damage)
        firsts = [w.run.first for w in dropped if isinstance(w, RunWrite) and w.run.kept]
        if firsts:
            event = Dropped(state.name, min(firsts), state.last_index)
            self._groups[state.name].drop_from(event.first)
            self._loop.call_soon(partial(self._tell_dropped, event))
        error = self._groups[state.name].unwritable or damage
        for write in dropped:
            if not isinstance(write, RunWrite):
                self._loop.call_soon(partial(write.on_done, error.again()))

    def _wal_closed(self, number: int) -> None:
        found = self._found.pop(number, None)
        closed = found or ClosedFile(number, bytes=self.wal.closed_bytes(number))
        self.segment_writer.take(closed)

    def _wal_gone(self, number: int) -> None:
        self.wal.flushed(number)
        self._disk_watch.look()  # segments take space before the WAL file gives it back
        self._remove_marks(number)

    def _remove_marks(self, number: int) -> None:
        """WAL files up to that one are finished: forget deletions of which no file speaks."""
        owed = (file.noted.owners for file in self.segment_writer.kept if file.noted is not None)
        spent = self._roster.take_spent(wal=number, owed=frozenset().union(*owed))
        if spent:
            self._tasks.run(lambda: self._roster.remove_marks(spent), lambda _: None)

    def _is_here(self, owner: Owner) -> bool:
        """Whether a group that is owed a WAL file may still come and ask for it."""
        name, incarnation = owner
        if name in self.unreadable or name in self._leaving:
            return True
        return name in self._states and self._states[name].incarnation == incarnation

    def _flushed(self, state: GroupState, wal: int, refs: list[SegmentRef]) -> None:
        for run in state.memtable.by_wal.get(wal, ()):
            if run.large is not None:
                state.large_garbage.add(run.large.number)
        if wal not in state.memtable.by_wal:
            # A snapshot was installed meanwhile: what was flushed is void, and older than its own.
            state.garbage += refs
            refs = []
        for ref in refs:
            state.garbage += add_newer(state.segments, ref)
        state.memtable.flushed(wal)
        state.loaded = deque(run for run in state.loaded if run.wal != wal)
        self.compactor.phase1(state)

    def _compact_all(self, trigger: str) -> None:
        for name in sorted(self._states):
            self.compactor.request(self._states[name], trigger)

    def _plan_timer(self) -> None:
        if self.config.compaction_interval_ms:
            self._loop.call_later(self.config.compaction_interval_ms, self._timer)

    def _timer(self) -> None:
        if not self._closed:
            self._compact_all("low disk" if self._disk_watch.is_low else "timer")
            self._plan_timer()

    # -- damage ---------------------------------------------------------------------------------

    def quarantine(self, state: GroupState, damage: LowmarkError) -> None:
        """Keep a group from writing and compacting here; remember it over a restart."""
        if state.quarantine is not None or state.deleted:
            return  # once is enough; and the name of a deleted group may be another's by now
        state.quarantine = damage.message
        state.quarantine_lasts = not isinstance(damage, NewerFormat)
        logger.error("quarantined", extra={"group": state.name, "reason": damage.message})
        if not self._read_only:
            self._save_quarantine(state)

    def _save_quarantine(self, state: GroupState) -> None:
        """Write it down, however long it takes; until then no WAL file of the group goes."""
        cause = state.quarantine
        if cause is None or not state.quarantine_lasts or state.deleted:
            return

        def done(outcome: Outcome[None]) -> None:
            if outcome.error is None:
                state.quarantine_saved = True
                self.segment_writer.look_again()
                return
            extra = {"group": state.name, "reason": reason_of(outcome.error)}
            logger.error("a quarantine could not be written down", extra=extra)
            again = partial(self._save_quarantine, state)
            self._loop.call_later(self.config.retry_ms, lambda: None if self._closed else again())

        write = partial(identity.write_quarantine, self.disk, state.name, state.incarnation, cause)
        self._tasks.run(partial(write, folder=state.shared_folder), done)

    def _read_own(self, state: GroupState, indexes: list[int]) -> list[Entry]:
        """What an installation takes along of a group's own entries."""
        try:
            plan = self._groups[state.name].plan_read(indexes, held=True)
            return plan.execute(self.disk)
        except Corrupt as damage:
            self.quarantine(state, damage)
            raise

    # -- services for groups --------------------------------------------------------------------

    def write_meta(self, state: GroupState, data: bytes, on_done: OnDone) -> None:
        """Give a group's own record to the WAL."""
        self.wal.write(MetaWrite(state, data, self._answers.note(state, on_done)))

    def compact(self, state: GroupState, on_done: Callable[[CompactionRun], None] | None) -> bool:
        """Run phase 3 because somebody asked."""
        self.check_not_closed()
        return self.compactor.request(state, "asked", on_done)

    def on_lane(self, step: Callable[[], T], found: Future[T]) -> None:
        """Look at the disk on the lane `compaction`; the future gets what the step gives."""

        def done(outcome: Outcome[T]) -> None:
            if outcome.error is None:
                found.resolve(outcome.value())
            else:
                found.reject(cast("LowmarkError", outcome.error))  # `Tasks` names it

        self._tasks.run(step, done)

    def later(self, delay_ms: float, act: Callable[[], None]) -> None:
        """Do something after a while, unless the log is closed by then."""
        self._tasks.later(delay_ms, act)

    def check_not_closed(self) -> None:
        """Compaction and deletes go on when the disk is full, but not after a close."""
        if self._closed or self._read_only:
            raise LogClosed("it was closed" if self._closed else "it was opened for reading only")

    def phase1(self, state: GroupState) -> None:
        """Delete what nobody needs any more."""
        self.compactor.phase1(state)

    def take_snapshot(
        self,
        state: GroupState,
        meta: SnapshotMeta,
        chunks: Iterable[Buffer],
        live: BitMap64,
        on_done: OnDone,
    ) -> None:
        """Write a snapshot (see `drivers`)."""
        self._snapshotter.take(state, meta, chunks, live, on_done)

    def restore_live(self, state: GroupState, live: BitMap64, on_done: OnDone) -> None:
        """Give a live set back that was lost."""
        self._snapshotter.restore_live(state, live, on_done)

    def begin_install(self, state: GroupState, meta: SnapshotMeta, last_applied: int) -> Installer:
        """Start taking a snapshot in (see `drivers`)."""
        return self._installs.begin(state, meta, last_applied)
