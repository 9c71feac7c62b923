"""Runs phases 1 and 3 for the groups of a node, on the lane `compaction`.

Phase 1 runs after every snapshot and whenever the segment writer hands segments over. References go
first, files later, so nobody finds a file in the index that is gone. Phase 3 has five triggers: a
share of dead entries or bytes after phase 1, many small segments there, a timer, low disk, and
being asked. While the disk is low, what phase 1 and the timer start has that trigger, whatever
share is dead, and takes only merges that free much. One run at a time per group; a request during a
run is dropped and counted. While appends are running, phase 3 steps back: it takes a set share of
the time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import cast

import msgspec
from pyroaring import BitMap64

from lowmark.errors import Corrupt, LowmarkError
from lowmark.holds import Decision
from lowmark.log import compaction_plan, files
from lowmark.log.compaction_plan import Merge, SegmentStats
from lowmark.log.config import LogConfig
from lowmark.log.errors import reason_of
from lowmark.log.files import discard
from lowmark.log.merge import Merger
from lowmark.log.segments import ReaderCache, SegmentReader, SegmentRef, live_rows
from lowmark.log.state import CompactionRun, GroupState, Trigger, kept_of
from lowmark.log.tasks import by_our_name
from lowmark.runtime import Disk, Future, Outcome, Runtime

logger = logging.getLogger(__name__)

_SURVEYED_PER_STEP = 32


def count_kept(disk: Disk, state: GroupState, ref: SegmentRef, keep: BitMap64) -> SegmentStats:
    """Count what is kept of a segment; only a partly dead one needs to be opened, and once."""
    kept = int(keep.range_cardinality(ref.first, ref.last + 1))
    if kept in {0, ref.count}:
        return SegmentStats(ref, kept, ref.data_bytes if kept else 0)
    known = state.surveyed.get(ref.number)
    if known is not None and known[0] == kept:
        return SegmentStats(ref, known[1], known[2])
    reader = SegmentReader(disk, state.folder, ref.number, incarnation=state.incarnation)
    try:
        rows = live_rows(reader.rows, ref, keep)
    finally:
        reader.close()
    counted = len(rows), int(rows["length"].sum(dtype="u8"))
    state.surveyed[ref.number] = (kept, *counted)
    return SegmentStats(ref, *counted)


class Compactor:
    """Decides on the loop, works on the lane."""

    def __init__(
        self,
        runtime: Runtime,
        config: LogConfig,
        *,
        cache: ReaderCache,
        appended_bytes: Callable[[], int],
        disk_is_low: Callable[[], bool],
        on_damage: Callable[[GroupState, Corrupt], None],
    ) -> None:
        self._loop = runtime.loop
        self._disk = runtime.disk
        self._lane = runtime.loop.lane("compaction")
        self._config = config
        self._cache = cache
        self._appended_bytes = appended_bytes
        self._disk_is_low = disk_is_low
        self._on_damage = on_damage
        self._tasks = 0
        self.closed = False

    @property
    def idle(self) -> bool:
        """Whether nothing is being deleted or merged."""
        return self._tasks == 0

    # -- phase 1 --------------------------------------------------------------------------------

    def phase1(self, state: GroupState) -> Decision[SegmentRef] | None:
        """Delete whole segments that nobody needs; what stays comes back with its reasons."""
        if state.quarantine is not None or state.deleted or self.closed:
            return None
        if state.phase1_busy:
            state.phase1_again = True
            return None
        state.holds.expire(self._loop.wall_ms())
        decision = compaction_plan.plan_cuts(
            state.segments, state.row, state.holds, busy=state.compacting_numbers
        )
        gone = [*decision.cut, *state.garbage]
        state.garbage = [g for g in state.garbage if g.number in state.compacting_numbers]
        gone = [ref for ref in gone if ref not in state.garbage]
        # A run that is reading segments keeps them for now; look again when it has ended.
        state.phase1_again = bool(state.compacting_numbers)
        if not gone and not state.large_garbage:
            self._consider_phase3(state)
            return decision
        cut = {ref.number for ref in decision.cut}
        state.segments = [ref for ref in state.segments if ref.number not in cut]
        for ref in gone:
            self._cache.forget(state.folder, ref.number)
            state.surveyed.pop(ref.number, None)
        self._delete(state, gone, then=lambda: self._consider_phase3(state))
        return decision

    def _delete(self, state: GroupState, gone: list[SegmentRef], then: Callable[[], None]) -> None:
        numbers = {ref.number for ref in gone}
        dangling = [link for link, target in state.links.items() if target in numbers]
        for link in dangling:
            del state.links[link]
        larges = {ref.large for ref in gone if ref.large} | state.large_garbage
        larges -= state.larges_in_use()
        state.large_garbage.clear()
        names = [files.segment_name(n) for n in sorted({*numbers, *dangling})]

        def step() -> None:
            for name in names:
                discard(self._disk, f"{state.folder}/{name}")
            # A segment that comes back after a crash must find its large file: it goes last.
            if larges:
                state.sync_folder(self._disk)
            for large in sorted(larges):
                discard(self._disk, f"{state.folder}/{files.large_name(large)}")
            state.sync_folder(self._disk)

        def done(outcome: Outcome[object]) -> None:
            state.phase1_busy = False
            if outcome.error is not None:
                # They stay on the list, and the next phase 1 tries again.
                self._tell("segments could not be deleted", state, outcome.error)
                state.garbage += gone
                state.large_garbage |= larges
            if state.phase1_again and state.compacting is None:
                self.phase1(state)
            else:
                then()

        state.phase1_busy = True
        self._submit(step, done)

    # -- phase 3 --------------------------------------------------------------------------------

    def request(
        self,
        state: GroupState,
        trigger: Trigger,
        on_done: Callable[[CompactionRun], None] | None = None,
    ) -> bool:
        """Start a run; False if one is running already, or the group takes none."""
        if state.quarantine is not None or state.deleted or self.closed or not state.row.known:
            return False
        if state.compacting is not None:
            state.requests_dropped += 1
            # This run may merge nothing, or what frees nothing: phase 1 looks again after it.
            state.phase1_again |= trigger == "low disk"
            return False
        run = CompactionRun(trigger=trigger, started_ms=self._loop.wall_ms())
        if state.holds.expire(run.started_ms):
            state.phase1_again = True  # when the run has ended, what they alone kept goes
        self._start(state, run, on_done or (lambda _: None), only_if_dead=trigger == "dead ratio")
        return True

    def _consider_phase3(self, state: GroupState) -> None:
        section = compaction_plan.eligible(state.segments, state.row)
        if section and state.compacting is None:
            self.request(state, "low disk" if self._disk_is_low() else "dead ratio")

    def _start(
        self,
        state: GroupState,
        run: CompactionRun,
        on_done: Callable[[CompactionRun], None],
        *,
        only_if_dead: bool,
    ) -> None:
        section = compaction_plan.eligible(state.segments, state.row)
        keep = kept_of(state.row, state.holds)
        state.compacting = run
        state.compacting_numbers = frozenset(ref.number for ref in section)

        def surveyed(stats: list[SegmentStats]) -> None:
            shares = compaction_plan.dead_shares(stats)
            if only_if_dead and max(shares) <= self._config.compaction_dead_ratio:
                if not compaction_plan.many_small(stats, self._config):
                    self._end(state, run, None, on_done)
                    return
                run.trigger = "small segments"
            merges = deque(compaction_plan.plan_merges(stats, self._config))
            if run.trigger == "low disk":
                # What only makes files fewer would take the space that is left; many small ones
                # take little of it, and a disk may stay low for as long as the node lives.
                small = compaction_plan.many_small(stats, self._config)
                merges = deque(
                    merge
                    for merge in merges
                    if merge.frees_much or (small and merge.takes_little(self._config))
                )
            numbers = (s.ref.number for merge in merges for s in merge.sources)
            state.compacting_numbers = frozenset(numbers)
            self._next_merge(state, run, merges, keep, on_done)

        def failed(error: Exception) -> None:
            self._end(state, run, error, on_done)

        self._survey(state, section, keep, surveyed, failed)

    def survey(self, state: GroupState) -> Future[None]:
        """Count what is kept of the segments that a run would look at, so that a plan knows it."""
        surveyed: Future[None] = Future()
        self._survey(
            state,
            compaction_plan.eligible(state.segments, state.row),
            kept_of(state.row, state.holds),
            lambda _: surveyed.resolve(None),
            lambda error: surveyed.reject(cast("LowmarkError", error)),  # `_submit` names it
        )
        return surveyed

    def _survey(
        self,
        state: GroupState,
        section: list[SegmentRef],
        keep: BitMap64,
        on_done: Callable[[list[SegmentStats]], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Count what is kept of each segment; only partly dead ones need to be opened."""
        stats: list[SegmentStats] = []
        todo = deque(section)

        def step() -> None:
            some = min(len(todo), _SURVEYED_PER_STEP)
            refs = (todo.popleft() for _ in range(some))
            stats.extend(count_kept(self._disk, state, ref, keep) for ref in refs)

        def done(outcome: Outcome[object]) -> None:
            if outcome.error is not None:
                on_error(outcome.error)
            elif todo:
                self._submit(step, done)
            else:
                on_done(stats)

        self._submit(step, done)

    def _next_merge(
        self,
        state: GroupState,
        run: CompactionRun,
        merges: deque[Merge],
        keep: BitMap64,
        on_done: Callable[[CompactionRun], None],
    ) -> None:
        if not merges or state.deleted or state.quarantine is not None:
            self._end(state, run, None, on_done)
            return
        merge = merges.popleft()
        merger = Merger(
            self._disk,
            state.folder,
            incarnation=state.incarnation,
            merge=merge,
            keep=keep,
            step_bytes=self._config.compaction_step_bytes,
            shared=state.shared_folder,
        )

        def finished(error: Exception | None) -> None:
            if state.deleted:
                self._end(state, run, error, on_done)
                return
            if error is None:
                self._merged(state, run, merge, merger)
                self._next_merge(state, run, merges, keep, on_done)
                return
            self._submit(merger.abandon, lambda outcome: abandoned(outcome, error))

        def abandoned(outcome: Outcome[object], error: Exception) -> None:
            if outcome.error is not None or outcome.result or state.deleted:
                self._end(state, run, error, on_done)
                return
            if merger.sync_failed:
                # To repeat an act that was done would change nothing, and so make nothing durable.
                # These segments are not touched any more: the next start sees what is durable, and
                # rolls the merge forward or undoes it.
                run.ended_ms = self._loop.wall_ms()
                run.result = f"failed until the log is opened again: {reason_of(error)}"
                state.runs.append(run)
                self._tell("phase 3 stands still", state, error)
                on_done(run)
                return
            self._tell("phase 3 waits for its disk", state, error)
            self._tasks += 1
            self._loop.call_later(self._config.retry_ms, again)

        def again() -> None:
            self._tasks -= 1
            if not self.closed:
                self._drive(state, merger, merger.finish(), finished)

        self._drive(state, merger, merger.steps(), finished)

    def _drive(
        self,
        state: GroupState,
        merger: Merger,
        steps: Iterator[int],
        on_done: Callable[[Exception | None], None],
    ) -> None:
        """Run a generator's turns as steps of the lane, with pauses in between."""
        if state.deleted:
            on_done(None)  # its folder is gone, and perhaps another's by now
            return
        began_us, appended = self._loop.elapsed_us(), self._appended_bytes()

        def done(outcome: Outcome[object]) -> None:
            if outcome.error is not None or not isinstance(outcome.result, int):
                on_done(outcome.error)
                return
            spent_ms = (self._loop.elapsed_us() - began_us) / 1_000
            busy = merger.gentle = self._appended_bytes() != appended
            pause_ms = self._pause_ms(outcome.result, spent_ms, busy=busy)
            if pause_ms > 0:
                self._tasks += 1
                self._loop.call_later(pause_ms, resume)
            else:
                self._drive(state, merger, steps, on_done)

        def resume() -> None:
            self._tasks -= 1
            if not self.closed:
                self._drive(state, merger, steps, on_done)

        self._submit(lambda: next(steps, None), done)

    def _pause_ms(self, moved_bytes: int, spent_ms: float, *, busy: bool) -> float:
        pause = spent_ms * (1 / self._config.compaction_share - 1) if busy else 0.0
        rate = self._config.compaction_bytes_per_second_max
        return max(pause, moved_bytes * 1_000 / rate - spent_ms) if rate else pause

    def _merged(self, state: GroupState, run: CompactionRun, merge: Merge, merger: Merger) -> None:
        """Let the new segment take its sources' place in memory; on disk it has it already."""
        numbers = set(merger.numbers)
        for number in merger.numbers:
            self._cache.forget(state.folder, number)
            state.surveyed.pop(number, None)
        replaced = [ref for ref in state.segments if ref.number in numbers]
        state.segments = [ref for ref in state.segments if ref.number not in numbers]
        state.garbage = [ref for ref in state.garbage if ref.number not in numbers]
        new = merger.result
        if new is not None:
            newer = [ref for ref in state.segments if ref.order > new.order]
            if newer:
                # Pieces that arrived meanwhile cancel what they overwrote, as ever.
                new.last = min(new.last, newer[0].first - 1)
            at = len(state.segments) - len(newer)
            if new.first <= new.last:
                state.segments.insert(at, new)
            else:
                state.garbage.append(new)
            for number in merger.numbers[1:]:
                state.links[number] = new.number
            self.watch_links(state)
        sources = [stats.ref for stats in merge.sources]
        larges = {ref.large for ref in sources if ref.large} - state.larges_in_use()
        freed = sum(ref.file_bytes for ref in sources) + sum(
            ref.data_bytes for ref in sources if ref.large in larges
        )
        run.merges += 1
        run.sources += len(replaced)
        run.entries_copied += merger.entries
        run.bytes_copied += merger.bytes
        run.bytes_freed += freed - (new.file_bytes if new is not None else 0)
        if larges:
            state.large_garbage |= larges

    def _end(
        self,
        state: GroupState,
        run: CompactionRun,
        error: Exception | None,
        on_done: Callable[[CompactionRun], None],
    ) -> None:
        state.compacting = None
        state.compacting_numbers = frozenset()
        if self.closed:
            return
        run.ended_ms = self._loop.wall_ms()
        run.result = "done" if run.merges else "nothing to do"
        if error is not None:
            run.result = f"failed: {reason_of(error)}"
            self._tell("phase 3 failed", state, error)
        if run.merges or error is not None or run.trigger == "asked":
            state.runs.append(run)
            self._submit(lambda: self._save_runs(state), lambda _: None)
        if isinstance(error, Corrupt):
            self._on_damage(state, error)
        on_done(run)
        if (run.merges or state.phase1_again) and not state.deleted:
            self.phase1(state)

    def _save_runs(self, state: GroupState) -> None:
        """Keep the last runs for people; losing this file loses nothing."""
        path = f"{state.folder}/{files.RUNS}"
        discard(self._disk, path + files.TEMPORARY)
        file = self._disk.open(path + files.TEMPORARY, "create")
        file.append([b"".join(msgspec.json.encode(run) + b"\n" for run in list(state.runs))])
        file.close()
        self._disk.rename(path + files.TEMPORARY, path)

    def watch_links(self, state: GroupState) -> None:
        """Remove the links that a group has now when their grace time is over."""
        self._loop.call_later(self._config.link_grace_ms, lambda: self._purge_links(state))

    def _purge_links(self, state: GroupState) -> None:
        """Remove the names of merged segments whose grace time is over."""
        if self.closed or state.deleted or not state.links:
            return
        now_ms, grace_ms = self._loop.wall_ms(), self._config.link_grace_ms
        numbers = sorted(state.links)
        gone: list[int] = []

        def step() -> None:
            for number in numbers:
                path = f"{state.folder}/{files.segment_name(number)}"
                stat = self._disk.stat(path)
                if stat is None or (
                    stat.kind == "symlink" and now_ms - stat.changed_ms >= grace_ms
                ):
                    discard(self._disk, path)
                    gone.append(number)

        def done(outcome: Outcome[object]) -> None:
            for number in gone:
                state.links.pop(number, None)
            if state.links:
                self.watch_links(state)  # the clock may have jumped back

        self._submit(step, done)

    # -- the lane -------------------------------------------------------------------------------

    def _submit(
        self, step: Callable[[], object], on_done: Callable[[Outcome[object]], None]
    ) -> None:
        self._tasks += 1

        def done(outcome: Outcome[object]) -> None:
            self._tasks -= 1
            named = by_our_name(outcome)
            if not self.closed:
                on_done(named)

        self._lane.submit(step, done)

    def _tell(self, what: str, state: GroupState, error: Exception) -> None:
        logger.warning(what, extra={"group": state.name, "reason": reason_of(error)})
