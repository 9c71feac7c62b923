"""Puts snapshots that other nodes sent in force.

An `Installer` takes one in; what happens from its `finish` on is driven here. What is true after
each step on the disk is at the head of `install`. In memory: from `finish` to the end the group
takes no entries; behind a fence in the WAL nothing of it is under way; then the snapshot is made to
count, moved in, and the group's memory is replaced. Once it counts on the disk there is no way
back: moving it in is tried until it works.
"""

from __future__ import annotations

from collections.abc import Callable

from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.log import files
from lowmark.log.config import LogConfig
from lowmark.log.entries import Entry
from lowmark.log.errors import InstallRefused
from lowmark.log.install import Installed, Installer
from lowmark.log.live import LiveRow
from lowmark.log.owed import OnDone, Owed
from lowmark.log.segments import add_newer, indexes_within, void_above
from lowmark.log.snapshot_format import Floor, SnapshotMeta
from lowmark.log.snapshots import Snapshot
from lowmark.log.state import GroupState
from lowmark.log.tasks import Tasks
from lowmark.log.wal import Fence, Wal
from lowmark.runtime import Outcome, Runtime


class Installs:
    """The installations of one node; one at a time per group."""

    def __init__(
        self,
        runtime: Runtime,
        config: LogConfig,
        *,
        wal: Wal,
        tasks: Tasks,
        owed: Owed,
        read_own: Callable[[GroupState, list[int]], list[Entry]],
        on_installed: Callable[[GroupState], object],
    ) -> None:
        self._disk = runtime.disk
        self._lane = runtime.loop.lane("compaction")
        self._config = config
        self._wal = wal
        self._tasks = tasks
        self._owed = owed
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
        answer = self._owed.note(state, on_done)
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
