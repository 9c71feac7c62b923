"""A node's log: all its groups, one WAL, one segment writer, one compactor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

import msgspec
from pyroaring import BitMap64

from lowmark.errors import Corrupt, LowmarkError
from lowmark.ids import group_id
from lowmark.log import files, identity, snapshots
from lowmark.log.compactor import Compactor
from lowmark.log.config import LogConfig
from lowmark.log.entries import Run
from lowmark.log.errors import (
    Damaged,
    GroupExists,
    GroupLeaving,
    GroupUnknown,
    InstallRefused,
    LogClosed,
    SnapshotRefused,
)
from lowmark.log.flush import SegmentWriter
from lowmark.log.folders import discard, remove_folder
from lowmark.log.group import GroupLog
from lowmark.log.group_recovery import covered
from lowmark.log.install import Installed, Installer
from lowmark.log.live import LiveRow
from lowmark.log.opening import Opening
from lowmark.log.runs import CompactionRun
from lowmark.log.segments import (
    ReaderCache,
    SegmentRef,
    add_newer,
    indexes_within,
    void_above,
)
from lowmark.log.snapshot_format import Floor, SnapshotMeta
from lowmark.log.snapshots import (
    Snapshot,
    SnapshotWriter,
    publish_snapshot,
)
from lowmark.log.state import GroupState
from lowmark.log.wal import Fence, MetaWrite, RunWrite, Wal, Write
from lowmark.log.wal_recovery import WalFile
from lowmark.runtime import Buffer, DiskLock, Outcome, Runtime

__all__ = ["Log", "Written"]

logger = logging.getLogger(__name__)

_LANES = ("wal", "segments", "compaction")


class Written(msgspec.Struct, frozen=True, gc=False):
    """Entries of one term are durable."""

    group: str
    term: int
    first: int
    last: int


class Log:
    """Open it, create groups, append; everything else follows by itself."""

    def __init__(self, runtime: Runtime, config: LogConfig, *, read_only: bool = False) -> None:
        self.config = config
        self.disk = runtime.disk
        self.cache = ReaderCache(runtime.disk, files_max=config.open_files_max)
        self.on_written: Callable[[Written], None] = lambda _: None
        self._runtime = runtime
        self._loop = runtime.loop
        self._read_only = read_only
        self._closed = False
        self._lock: DiskLock | None = None
        self._states: dict[str, GroupState] = {}
        self._groups: dict[str, GroupLog] = {}
        self._installers: dict[str, Installer] = {}
        self._leaving: dict[str, set[str]] = {}
        self._tasks = 0
        self.unreadable: dict[str, LowmarkError] = {}
        """Groups whose folder can't even say who they are; they are left alone."""
        self.wal = Wal(
            runtime,
            config,
            groups=self._states.values,
            on_written=self._written,
            on_closed=self._wal_closed,
            on_low_disk=lambda: self._compact_all("low disk"),
            on_broken=self.quarantine,
        )
        self.segment_writer = SegmentWriter(
            runtime,
            config,
            groups=self._states.values,
            on_flushed=self._flushed,
            on_wal_gone=self.wal.flushed,
            on_broken=self.quarantine,
        )
        self.compactor = Compactor(
            runtime,
            config,
            cache=self.cache,
            appended_bytes=lambda: self.wal.bytes_written,
            on_damage=self.quarantine,
        )

    @staticmethod
    def open(runtime: Runtime, config: LogConfig | None = None, *, read_only: bool = False) -> Log:
        """Open the log on the runtime's disk, mending what a crash left.

        Read-only, nothing on the disk is changed, and leftovers are passed over.
        """
        log = Log(runtime, config or LogConfig(), read_only=read_only)
        lock = None if read_only and runtime.disk.stat(files.LOCK) is None else files.LOCK
        if lock is not None:
            log._lock = runtime.disk.lock(lock, sign=not read_only)
        try:
            log._recover()
        except BaseException:
            log.close()
            raise
        return log

    def close(self) -> None:
        """Stop, after the steps that are under way. Call it from outside the loop.

        What is not written yet was not acknowledged either: nothing needs to be saved.
        """
        if self._closed:
            return
        self._closed = self.segment_writer.closed = self.compactor.closed = self.wal.closed = True
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
        identity.create_folder(self.disk, name, state.incarnation)
        return self._add(state)

    def delete_group(self, name: str) -> None:
        """Remove a group and everything it has.

        It takes nothing from now on; its folder goes, and its name is free, when steps on its files
        that are under way are through (`idle` says so). A crash before that brings it back.
        """
        self.check_not_closed()
        if name not in self.unreadable:
            state = self.group(name).state
            state.deleted = True
            state.installing = False
            self.wal.drop(state)
            self.cache.forget(state.folder)
            del self._groups[name], self._states[name]
            if name in self._installers:
                self._installers.pop(name).over = True
        self.unreadable.pop(name, None)
        left = self._leaving[name] = set(_LANES)

        def through(lane: str) -> None:
            left.discard(lane)
            if not left:
                self._task(lambda: identity.delete_folder(self.disk, name), gone)

        def gone(outcome: Outcome[None]) -> None:
            del self._leaving[name]
            if isinstance(outcome.error, Exception):
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
        return workers and self._tasks == 0 and not self._leaving

    @property
    def has_room(self) -> bool:
        """Whether an append would be taken without a wait."""
        return self.wal.queued_bytes < self.config.wal_batch_bytes_max and self.wal.stopped is None

    def roll(self) -> None:
        """Close the WAL file and let the segment writer work it off."""
        self.check_writable()
        self.wal.roll()

    def check_writable(self) -> None:
        """Raise what keeps the log from taking writes, if anything does."""
        if self._closed:
            raise LogClosed("it was closed")
        if self._read_only:
            raise LogClosed("it was opened for reading only")
        if self.wal.stopped is not None:
            raise self.wal.stopped.again()

    def now_ms(self) -> int:
        """The wall clock, for records."""
        return self._loop.wall_ms()

    def queued_bytes(self) -> int:
        """How much waits for the WAL."""
        return self.wal.queued_bytes

    # -- starting -------------------------------------------------------------------------------

    def _recover(self) -> None:
        opening = Opening(self.disk, self._read_only)
        opening.recover()
        self.unreadable = opening.unreadable
        for state in opening.states.values():
            self._add(state)
        if not self._read_only:
            self._start(opening)

    def _start(self, opening: Opening) -> None:
        for file in opening.wals:
            # A killed process may have left bytes that were written but never synced.
            handle = self.disk.open(files.wal_path(file.number), "read")
            handle.datasync()
            handle.close()
        # A floor names a place in the WAL: numbers go on above it, even if the files are gone.
        floors = [s.snapshot.floor.wal for s in opening.states.values() if s.snapshot is not None]
        newest = max([0, *(file.number for file in opening.wals), *floors])
        sound = [file for file in opening.wals if file.durable_bytes]
        previous = sound[-1] if sound else WalFile(0)
        self.segment_writer.keep_aside(opening.damaged_wals)
        waiting = [] if opening.quarantine_unsaved else [file.number for file in opening.wals]
        self.wal.start(
            number=newest + 1,
            previous=previous.number,
            previous_bytes=previous.durable_bytes,
            waiting=waiting,
        )
        for state in self._states.values():
            self.compactor.phase1(state)
            if state.links:
                self.compactor.watch_links(state)
        self._plan_timer()

    # -- events from below ----------------------------------------------------------------------

    def _written(self, writes: list[Write]) -> None:
        # All groups first, callbacks second: one that raises must not cost another its entries.
        answers: list[Callable[[], None]] = []
        for write in writes:
            match write:
                case RunWrite(state=state, run=run):
                    if run.kept and not state.deleted:
                        state.written_index = max(state.written_index, run.kept_last)
                        event = Written(state.name, run.term, run.first, run.kept_last)
                        answers.append(partial(self._tell_written, event))
                case MetaWrite(state=state, data=data, on_done=on_done):
                    state.meta = data
                    answers.append(on_done)
                case Fence(on_done=on_done):
                    answers.append(on_done)
        for answer in answers:
            answer()

    def _tell_written(self, event: Written) -> None:
        self.on_written(event)

    def _wal_closed(self, number: int) -> None:
        self.segment_writer.take(number)

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
        self.compactor.phase1(state)

    def _compact_all(self, trigger: str) -> None:
        for name in sorted(self._states):
            self.compactor.request(self._states[name], trigger)

    def _plan_timer(self) -> None:
        if self.config.compaction_interval_ms:
            self._loop.call_later(self.config.compaction_interval_ms, self._timer)

    def _timer(self) -> None:
        if not self._closed:
            self._compact_all("timer")
            self._plan_timer()

    # -- damage ---------------------------------------------------------------------------------

    def quarantine(self, state: GroupState, damage: LowmarkError) -> None:
        """Keep a group from writing and compacting here; remember it over a restart."""
        if state.quarantine is not None:
            return
        state.quarantine = damage.message
        logger.error("quarantined", extra={"group": state.name, "reason": damage.message})
        if not self._read_only:
            self._task(
                lambda: identity.write_quarantine(self.disk, state.name, damage.message),
                lambda _: None,
            )

    # -- services for groups --------------------------------------------------------------------

    def write(self, state: GroupState, runs: list[Run]) -> None:
        """Give runs to the WAL."""
        for run in runs:
            self.wal.write(RunWrite(state, run))

    def write_meta(self, state: GroupState, data: bytes, on_done: Callable[[], None]) -> None:
        """Give a group's own record to the WAL."""
        self.wal.write(MetaWrite(state, data, on_done))

    def compact(self, state: GroupState, on_done: Callable[[CompactionRun], None] | None) -> bool:
        """Run phase 3 because somebody asked."""
        self.check_not_closed()
        return self.compactor.request(state, "asked", on_done)

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
        on_done: Callable[[LowmarkError | None], None],
    ) -> None:
        """Write a snapshot, a chunk a step (see `snapshots`)."""
        if state.snapshot_busy or state.installing:
            raise SnapshotRefused(f"group {state.name} is writing a snapshot already")
        aside = snapshots.aside(state.folder, meta)
        source, writers = iter(chunks), list[SnapshotWriter]()
        state.snapshot_busy, state.snapshot_index_begun = True, meta.index

        def begin() -> None:
            remove_folder(self.disk, aside)
            writer = SnapshotWriter(self.disk, aside, meta, incarnation=state.incarnation)
            writers.append(writer)

        def give_up(error: Exception | None) -> None:
            self._task(lambda: remove_folder(self.disk, aside), lambda _: end(error))

        def turn(outcome: Outcome[None]) -> None:
            if outcome.error is not None or state.deleted:
                give_up(outcome.error)
                return
            try:
                # The caller's state is read here, on the loop; only the writing is the lane's.
                chunk = next(source, None)
            except BaseException:
                state.snapshot_busy, state.snapshot_index_begun = False, 0
                raise
            if meta.index <= state.row.snapshot_index:
                give_up(None)  # an installed snapshot has overtaken it
            elif chunk is not None:
                self._task(lambda: writers[0].write(chunk), turn)
            else:
                self._task(finish, lambda o: give_up(o.error) if o.error else end(None))

        floor = state.snapshot.floor if state.snapshot is not None else Floor()

        def finish() -> None:
            writers[0].finish(live, floor)
            publish_snapshot(self.disk, state.folder, meta)

        def end(error: Exception | None) -> None:
            state.snapshot_busy, state.snapshot_index_begun = False, 0
            if state.deleted:
                error = GroupUnknown(state.name)
            elif meta.index <= state.row.snapshot_index:
                error = SnapshotRefused(f"a newer snapshot overtook the one at {meta.index}")
            elif error is None:
                folder = aside.removesuffix(files.TEMPORARY)
                size = writers[0].state_bytes
                state.snapshot = Snapshot(folder, meta, live, floor, size)
                state.row = LiveRow(meta.index, meta.term, live)
                self.compactor.phase1(state)
            on_done(_lowmark_error(error))

        self._task(begin, turn)

    def restore_live(
        self,
        state: GroupState,
        live: BitMap64,
        on_done: Callable[[LowmarkError | None], None],
    ) -> None:
        """Write a rebuilt live set beside its snapshot, then use it."""
        snapshot = state.snapshot
        if snapshot is None or state.row.known:
            raise SnapshotRefused(f"the live set of group {state.name} is not lost")
        if live and live.max() > snapshot.meta.index:
            raise SnapshotRefused(f"index {live.max()} lies after the snapshot")
        gone = live - covered(state)
        if gone:
            raise SnapshotRefused(f"index {gone.min()} is dead and can't be live again")

        def step() -> None:
            path = f"{snapshot.folder}/{snapshots.LIVE}"
            discard(self.disk, path)
            snapshots.write_live(self.disk, snapshot.folder, live, incarnation=state.incarnation)
            self.disk.sync_dir(snapshot.folder)

        def done(outcome: Outcome[None]) -> None:
            if outcome.error is None:
                state.row = LiveRow(snapshot.meta.index, snapshot.meta.term, live.copy())
                self.compactor.phase1(state)
            on_done(_lowmark_error(outcome.error))

        self._task(step, done)

    def begin_install(self, state: GroupState, meta: SnapshotMeta, last_applied: int) -> Installer:
        """Start taking a snapshot in; one at a time per group, a new one replaces the old."""
        if state.installing:
            raise InstallRefused(f"group {state.name} is taking a snapshot over just now")
        if state.name in self._installers:
            self._installers[state.name].over = True  # its folder is the new one's now
        self._installers[state.name] = Installer(
            self.disk,
            self._loop.lane("compaction"),
            self.config,
            group_folder=state.folder,
            incarnation=state.incarnation,
            meta=meta,
            last_applied=last_applied,
            check_own=lambda live: self._check_own(state, live, last_applied),
            complete=lambda i, live, on_done: self._complete_install(state, i, live, on_done),
            on_abort=lambda: self._forget_installer(state.name),
        )
        return self._installers[state.name]

    def _check_own(self, state: GroupState, live: BitMap64, last_applied: int) -> None:
        """What the sender did not send must be here: live, or after the snapshot in force."""
        own = live.copy()
        own.remove_range(state.row.snapshot_index + 1, max(live, default=0) + 1)
        own -= state.row.live
        if own and state.row.known:
            raise InstallRefused(
                f"live entry {own.min()} was not sent, and is dead here",
                hint="Send every live entry: use 0 as what the receiver has applied.",
            )

    def _forget_installer(self, name: str) -> None:
        if name in self._installers and self._installers[name].over:
            del self._installers[name]

    def _complete_install(
        self,
        state: GroupState,
        installer: Installer,
        live: BitMap64,
        on_done: Callable[[LowmarkError | None], None],
    ) -> None:
        if installer.meta.index <= state.row.snapshot_index:
            raise InstallRefused("a newer snapshot is in force already")
        state.installing = True

        def drained() -> None:
            # Own entries that count and are applied, but only in the WAL, come along: all that this
            # group has in the WAL up to here is void once the snapshot counts.
            first, last = state.memtable.first or 0, installer.last_applied
            indexes = indexes_within(live, first, min(state.memtable.last or -1, last)).tolist()
            try:
                own = GroupLog(self, state).plan_read(indexes, held=True).execute(self.disk)
            except LowmarkError as error:
                if isinstance(error, Corrupt):
                    self.quarantine(state, error)
                committed(Outcome(None, error), Floor())
                return
            base, index = state.next_number, installer.meta.index
            floor = Floor(self.wal.number, self.wal.sequence - 1, base, index)
            state.next_number += installer.numbers_needed
            commit = installer.commit(own=own, live=live, floor=floor, base=base)
            self._task(commit, lambda outcome: committed(outcome, floor))

        def committed(outcome: Outcome[object], floor: Floor) -> None:
            if outcome.error is not None and not installer.committed:
                state.installing = False
                installer.over = False
                installer.abort()
                on_done(_lowmark_error(outcome.error))
                return
            self._task(lambda: installer.move_in(live, floor), lambda o: moved(o, floor))

        def moved(outcome: Outcome[Installed], floor: Floor) -> None:
            if outcome.error is not None:
                # It counts already; until it is moved in, the group takes nothing.
                again = lambda: committed(Outcome(None), floor)  # noqa: E731
                self._loop.call_later(self.config.retry_ms, again)
                return
            state.installing = False
            self._forget_installer(state.name)
            self._installed(state, outcome.value())
            on_done(None)

        # No append is taken meanwhile, so behind the fence nothing of this group is under way.
        self.wal.write(Fence(state, drained))

    def _installed(self, state: GroupState, new: Installed) -> None:
        for run in state.memtable.view:
            if run.large is not None:
                state.large_garbage.add(run.large.number)
        state.memtable.clear()
        state.open_large = None
        for ref in new.segments:
            state.garbage += add_newer(state.segments, ref)
        state.garbage += void_above(state.segments, new.floor)
        name = files.snapshot_name(new.meta.index, new.meta.term)
        folder = f"{state.folder}/{files.SNAPSHOTS}/{name}"
        state.snapshot = Snapshot(folder, new.meta, new.live, new.floor, new.state_bytes)
        state.row = LiveRow(new.meta.index, new.meta.term, new.live.copy())
        state.last_index, state.last_term = new.meta.index, new.meta.term
        state.written_index = new.meta.index
        self.compactor.phase1(state)

    def _task(self, step: Callable[[], object], on_done: Callable[..., None]) -> None:
        """Run a step on the compaction lane, counted as work."""
        self._tasks += 1

        def done(outcome: Outcome[object]) -> None:
            self._tasks -= 1
            if outcome.error is not None and not isinstance(outcome.error, LowmarkError):
                raise outcome.error
            if not self._closed:
                on_done(outcome)

        self._loop.lane("compaction").submit(step, done)


def _lowmark_error(error: Exception | None) -> LowmarkError | None:
    return error if isinstance(error, LowmarkError) else None
