"""Drives the writing of snapshots, a chunk a step, on the lane `compaction`.

What is true after each step on the disk is at the head of `snapshots`. The caller's state is pulled
on the loop, one chunk between two steps; so it may be made as it is asked for, and appends go on
while a big one is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.log import files, snapshots
from lowmark.log.errors import GroupUnknown, SnapshotRefused
from lowmark.log.folders import discard, remove_folder
from lowmark.log.group_recovery import covered
from lowmark.log.live import LiveRow
from lowmark.log.owed import OnDone, Owed
from lowmark.log.snapshot_format import Floor, SnapshotMeta
from lowmark.log.snapshots import Snapshot, SnapshotWriter, publish_snapshot
from lowmark.log.state import GroupState
from lowmark.log.tasks import Tasks
from lowmark.runtime import Buffer, Disk, Outcome


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
        owed: Owed,
        on_taken: Callable[[GroupState], object],
    ) -> None:
        self._disk = disk
        self._tasks = tasks
        self._owed = owed
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
            self._owed.note(state, on_done),
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
        answer = self._owed.note(state, on_done)

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
