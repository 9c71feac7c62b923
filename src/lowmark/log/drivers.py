"""Drives the steps of snapshots on the lane `compaction`: of those that are written here, a chunk a
step, and of those that other nodes sent, which are put in force.

What is true after each step on the disk is at the head of `snapshots` and of `install`.

Of one that is written, the caller's state is pulled on the loop, one chunk between two steps; so it
may be made as it is asked for, and appends go on while a big one is written.

An `Installer` takes one in that another node sent; what happens from its `finish` on is driven
here. In memory: from `finish` to the end the group takes no entries; behind a fence in the WAL
nothing of it is under way; then the snapshot is made to count, moved in, and the group's memory is
replaced. Once it counts on the disk there is no way back: moving it in is tried until it works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.log import files, snapshots
from lowmark.log.config import LogConfig
from lowmark.log.entries import Entry
from lowmark.log.errors import GroupUnknown, InstallRefused, SnapshotRefused
from lowmark.log.files import discard, remove_folder
from lowmark.log.group_recovery import covered
from lowmark.log.install import Installed, Installer
from lowmark.log.segments import add_newer, indexes_within, void_above
from lowmark.log.snapshot_format import Floor, SnapshotMeta
from lowmark.log.snapshots import Snapshot, SnapshotWriter, publish_snapshot
from lowmark.log.state import GroupState, LiveRow
from lowmark.log.tasks import OnDone, PendingAnswers, Tasks
from lowmark.log.wal import Fence, Wal
from lowmark.runtime import Buffer, Disk, Outcome, Runtime


@dataclass(slots=True)
class _Job:
    """One snapshot on its way."""

    state: GroupState
    meta: SnapshotMeta
    source: Iterator[Buffer]
    live: BitMap64
    floor: Floor
    answer: OnDone
    aside: str
    writer: SnapshotWriter = field(init=False)
    """Made by the first step."""

    @property
    def overtaken(self) -> bool:
        """Whether an installed snapshot is in force that covers as much."""
        return self.meta.index <= self.state.row.snapshot_index


class Snapshotter:
    """Takes snapshots of groups; one at a time per group."""

    def __init__(
        self,
        disk: Disk,
        *,
        tasks: Tasks,
        answers: PendingAnswers,
        on_taken: Callable[[GroupState], object],
    ) -> None:
        self._disk = disk
        self._tasks = tasks
        self._answers = answers
        self._on_taken = on_taken

    # -- taking one -----------------------------------------------------------------------------

    def take(
        self,
        state: GroupState,
        meta: SnapshotMeta,
        chunks: Iterable[Buffer],
        live: BitMap64,
        on_done: OnDone,
    ) -> None:
        """Write a snapshot whose index and live set were checked."""
        if state.snapshot_busy or state.installing:
            raise SnapshotRefused(f"group {state.name} is writing a snapshot already")
        floor = state.snapshot.floor if state.snapshot is not None else Floor()
        job = _Job(
            state,
            meta,
            iter(chunks),
            live,
            floor,
            self._answers.note(state, on_done),
            snapshots.aside(state.folder, meta),
        )
        state.snapshot_busy, state.snapshot_index_begun = True, meta.index
        self._tasks.run(lambda: self._begin(job), lambda outcome: self._next(job, outcome))

    def _next(self, job: _Job, outcome: Outcome[None]) -> None:
        """Write the next chunk, or the end; or give up."""
        if outcome.error is not None or job.state.deleted or job.overtaken:
            self._give_up(job, outcome.error)
            return
        try:
            # The caller's state is read here, on the loop; only the writing is the lane's.
            chunk = next(job.source, None)
        except LowmarkError as error:
            self._give_up(job, error)
            return
        except BaseException:
            # A bug of the caller's: it ends the loop, and the answer is given when the log is
            # closed. Should it go on, the next snapshot can be taken.
            self._let_go(job.state)
            raise
        if chunk is not None:
            self._tasks.run(lambda: job.writer.write(chunk), lambda o: self._next(job, o))
        else:
            self._tasks.run(lambda: self._finish(job), lambda o: self._finished(job, o))

    def _finished(self, job: _Job, outcome: Outcome[None]) -> None:
        if outcome.error is not None:
            self._give_up(job, outcome.error)
        else:
            self._end(job, None)

    def _give_up(self, job: _Job, error: Exception | None) -> None:
        self._tasks.run(
            lambda: remove_folder(self._disk, job.aside), lambda _: self._end(job, error)
        )

    def _end(self, job: _Job, error: Exception | None) -> None:
        state, meta = job.state, job.meta
        self._let_go(state)
        if state.deleted:
            error = GroupUnknown(state.name)
        elif job.overtaken:
            error = SnapshotRefused(f"a newer snapshot overtook the one at {meta.index}")
        elif error is None:
            folder = job.aside.removesuffix(files.TEMPORARY)
            state.snapshot = Snapshot(folder, meta, job.live, job.floor, job.writer.state_bytes)
            state.row = LiveRow(meta.index, meta.term, job.live)
            self._on_taken(state)
        job.answer(error if isinstance(error, LowmarkError) else None)

    def _let_go(self, state: GroupState) -> None:
        state.snapshot_busy, state.snapshot_index_begun = False, 0

    # -- steps of the lane ----------------------------------------------------------------------

    def _begin(self, job: _Job) -> None:
        remove_folder(self._disk, job.aside)
        job.writer = SnapshotWriter(
            self._disk, job.aside, job.meta, incarnation=job.state.incarnation
        )

    def _finish(self, job: _Job) -> None:
        job.writer.finish(job.live, job.floor)
        publish_snapshot(self._disk, job.state.folder, job.meta)

    # -- a live set that was lost ---------------------------------------------------------------

    def restore_live(self, state: GroupState, live: BitMap64, on_done: OnDone) -> None:
        """Write a rebuilt live set beside its snapshot, then use it."""
        snapshot = state.snapshot
        if snapshot is None or state.row.known:
            raise SnapshotRefused(f"the live set of group {state.name} is not lost")
        if live and live.max() > snapshot.meta.index:
            raise SnapshotRefused(f"index {live.max()} lies after the snapshot")
        gone = live - covered(state)
        if gone:
            raise SnapshotRefused(f"index {gone.min()} is dead and can't be live again")
        answer = self._answers.note(state, on_done)

        def step() -> None:
            path = f"{snapshot.folder}/{snapshots.LIVE}"
            discard(self._disk, path)
            snapshots.write_live(self._disk, snapshot.folder, live, incarnation=state.incarnation)
            self._disk.sync_dir(snapshot.folder)

        def done(outcome: Outcome[None]) -> None:
            error = outcome.error
            if state.deleted:
                error = GroupUnknown(state.name)
            elif error is None:
                state.row = LiveRow(snapshot.meta.index, snapshot.meta.term, live.copy())
                self._on_taken(state)
            answer(error if isinstance(error, LowmarkError) else None)

        self._tasks.run(step, done)


class Installs:
    """The installations of one node; one at a time per group."""

    def __init__(
        self,
        runtime: Runtime,
        config: LogConfig,
        *,
        wal: Wal,
        tasks: Tasks,
        answers: PendingAnswers,
        read_own: Callable[[GroupState, list[int]], list[Entry]],
        on_installed: Callable[[GroupState], object],
    ) -> None:
        self._disk = runtime.disk
        self._lane = runtime.loop.lane("compaction")
        self._config = config
        self._wal = wal
        self._tasks = tasks
        self._answers = answers
        self._read_own = read_own
        self._on_installed = on_installed
        self._installers: dict[str, Installer] = {}

    # -- beginning and ending -------------------------------------------------------------------

    def begin(self, state: GroupState, meta: SnapshotMeta, last_applied: int) -> Installer:
        """Start taking a snapshot in; a new one replaces the old."""
        if state.installing:
            raise InstallRefused(f"group {state.name} is taking a snapshot over just now")
        self.forget(state)  # its folder is the new one's now
        self._installers[state.name] = Installer(
            self._disk,
            self._lane,
            self._config,
            shared=state.shared_folder,
            incarnation=state.incarnation,
            meta=meta,
            last_applied=last_applied,
            check=lambda own: _check_fits(state, meta, own),
            complete=lambda i, live, on_done: self._complete(state, i, live, on_done),
            on_abort=lambda i: self._ended(state, i),
        )
        return self._installers[state.name]

    def forget(self, state: GroupState) -> None:
        """A group goes away, or another installation replaces its own."""
        state.installing = False
        if state.name in self._installers:
            self._installers.pop(state.name).over = True

    def close(self) -> None:
        """Take nothing more, and tell nobody that there is room."""
        for installer in self._installers.values():
            installer.over = True

    def _ended(self, state: GroupState, installer: Installer) -> None:
        if self._installers.get(state.name) is installer:
            del self._installers[state.name]

    # -- putting one in force -------------------------------------------------------------------

    def _complete(
        self, state: GroupState, installer: Installer, live: BitMap64, on_done: OnDone
    ) -> None:
        state.installing = True
        answer = self._answers.note(state, on_done)
        # No append is taken meanwhile, so behind the fence nothing of this group is under way.
        fence = Fence(state, lambda error: self._drained(state, installer, live, answer, error))
        self._wal.write(fence)

    def _drained(
        self,
        state: GroupState,
        installer: Installer,
        live: BitMap64,
        answer: OnDone,
        error: LowmarkError | None,
    ) -> None:
        if state.deleted or self._tasks.closed:
            return
        if error is not None:
            self._fail(state, installer, answer, error)
            return
        # Own entries that count and are applied, but only in the WAL, come along: all that this
        # group has in the WAL up to here is void once the snapshot counts.
        first, last = state.memtable.first or 0, installer.last_applied
        indexes = indexes_within(live, first, min(state.memtable.last or -1, last)).tolist()
        try:
            own = self._read_own(state, indexes)
        except LowmarkError as failed:
            self._fail(state, installer, answer, failed)
            return
        base, index = state.next_number, installer.meta.index
        floor = Floor(self._wal.number, self._wal.sequence - 1, base, index)
        state.next_number += installer.numbers_needed
        self._tasks.run(
            installer.commit(own=own, live=live, floor=floor, base=base),
            lambda outcome: self._committed(state, installer, live, floor, answer, outcome),
        )

    def _committed(
        self,
        state: GroupState,
        installer: Installer,
        live: BitMap64,
        floor: Floor,
        answer: OnDone,
        outcome: Outcome[None],
    ) -> None:
        if state.deleted:
            return
        if outcome.error is not None and not installer.committed:
            self._fail(state, installer, answer, outcome.error)
            return

        def move_in() -> None:
            if not state.deleted:
                self._tasks.run(lambda: installer.move_in(live, floor), moved)

        def moved(outcome: Outcome[Installed]) -> None:
            if state.deleted:
                return
            if outcome.error is not None:
                # It counts already; until it is moved in, the group takes nothing.
                self._tasks.later(self._config.retry_ms, move_in)
                return
            state.installing = False
            self._ended(state, installer)
            _take_over(state, outcome.value())
            self._on_installed(state)
            answer(None)

        move_in()

    def _fail(
        self, state: GroupState, installer: Installer, answer: OnDone, error: Exception
    ) -> None:
        """It does not count: the group is as it was."""
        state.installing = False
        installer.over = False
        installer.abort()
        answer(error if isinstance(error, LowmarkError) else None)


def _check_fits(state: GroupState, meta: SnapshotMeta, own: BitMap64) -> None:
    """The snapshot is ahead; what counts and was not sent is live here, or after our snapshot."""
    if meta.index <= state.row.snapshot_index:
        raise InstallRefused("a newer snapshot is in force already")
    own = own - state.row.live
    own.remove_range(state.row.snapshot_index + 1, meta.index + 1)
    if own and state.row.known:
        raise InstallRefused(
            f"live entry {own.min()} was not sent, and is dead here",
            hint="Send every live entry: use 0 as what the receiver has applied.",
        )


def _take_over(state: GroupState, new: Installed) -> None:
    """Replace what memory says of the group by what was installed."""
    for run in state.memtable.view:
        if run.large is not None:
            state.large_garbage.add(run.large.number)
    state.memtable.clear()
    state.loaded.clear()
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
