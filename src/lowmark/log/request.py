"""Phases 1 and 3 of one group because an operator asks for them, while the log is in use.

    1. what there is, is measured; nothing has changed
    2. a dry run counts what is kept of each segment, as a run does, and ends with the plan that a
       run carries out (`compaction_plan`)
    3. phase 1 deletes what nothing needs. A run that is under way is waited for
    4. phase 3 merges and rewrites what is sparse; phase 1 follows it
    5. what is left is named with what holds it

Segments that the log gets meanwhile are not counted: what was freed is freed of those that were
there at the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lowmark.holds import Decision
from lowmark.log import compaction_plan, files
from lowmark.log.explain import Plan
from lowmark.log.segments import SegmentRef
from lowmark.log.state import CompactionRun, GroupState
from lowmark.runtime import Future

if TYPE_CHECKING:
    from lowmark.log.log import Log

_LOOK_MS = 20
_TRIES = 3


@dataclass(frozen=True, slots=True)
class KeptBy:
    """Segments that stay for one reason; a segment may have several."""

    reason: str
    segments: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What phases 1 and 3 did to a group, or would do."""

    group: str
    dry_run: bool
    result: str = "running"
    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    """Of segments and large files."""
    bytes_freed: int = 0
    merges: int = 0
    bytes_copied: int = 0
    kept: tuple[KeptBy, ...] = ()
    """What holds the segments that are left."""
    wal_bytes: int = 0
    """Not in segments yet."""

    @property
    def bytes_after(self) -> int:
        """What is left of what was there."""
        return self.bytes_before - self.bytes_freed


class CompactionRequest:
    """One request. Made and called on the loop; `done` is resolved when it is over."""

    def __init__(
        self, log: Log, group: str, *, dry_run: bool = False, before: Measure | None = None
    ) -> None:
        """With `before`, what was measured then counts as what was there at the beginning."""
        self._log = log
        self._state = log.group(group).state
        self.so_far = Compacted(group=group, dry_run=dry_run)
        self.done: Future[Compacted] = Future()
        refusal = self._refusal()
        if refusal:
            self._end(refusal)
        else:
            measured = before or Measure(log, self._state)
            measured.done.then(lambda _: self._begin(measured))

    def _refusal(self) -> str:
        state = self._state
        if state.deleted:
            return "refused: the group is gone"
        if state.quarantine is not None:
            return "refused: the group is in quarantine"
        return "" if state.row.known else "refused: its live set is lost"

    def _begin(self, before: Measure) -> None:
        if self._over():
            return
        found = before.done
        if found.error is not None:
            self._end(f"failed: {found.error.message}")
            return
        self.so_far = replace(
            self.so_far,
            segments_before=len(before.segments),
            bytes_before=found.result(),
            wal_bytes=sum(int(run.starts()[run.kept]) for run in self._state.memtable.view),
        )
        if self.so_far.dry_run:
            self._survey(before)
        else:
            self._log.phase1(self._state)
            self._compact(before)

    def _survey(self, before: Measure, tries: int = 0) -> None:
        surveyed = self._log.compactor.survey(self._state)
        surveyed.then(lambda future: self._plan(before, future, tries))

    def _plan(self, before: Measure, surveyed: Future[None], tries: int) -> None:
        if self._over():
            return
        if surveyed.error is not None:
            if tries < _TRIES:  # a segment may have gone meanwhile
                self._survey(before, tries + 1)
            else:
                self._end(f"failed: {surveyed.error.message}")
            return
        now_ms = self._log.now_ms()
        holds = [
            h for h in self._state.holds if h.expires_at_ms is None or h.expires_at_ms > now_ms
        ]
        plan = Plan(self._log, self._state, holds)
        gone = len(plan.decision.cut) + sum(len(one.sources) - 1 for one in plan.merges)
        self.so_far = replace(
            self.so_far,
            segments_after=len(before.segments) - gone,
            bytes_freed=plan.freed(),
            merges=len(plan.merges),
            kept=_kept_by(plan.decision),
        )
        self._end("would be done" if gone or plan.merges else "nothing to do")

    def _compact(self, before: Measure) -> None:
        """Phase 3, as soon as no other run is under way."""
        state = self._state
        if self._over():
            return
        if state.compacting is not None and state.compacting.result != "running":
            self._end(state.compacting.result)  # it stands still until the log is opened again
            return
        if state.phase1_busy or not self._log.compact(state, lambda run: self._ran(before, run)):
            self._later(lambda: self._compact(before))
            return
        self._watch()

    def _watch(self) -> None:
        """Say how far it is."""
        run = self._state.compacting
        if run is not None and not self.done.done:
            self.so_far = replace(self.so_far, merges=run.merges, bytes_copied=run.bytes_copied)
            self._later(self._watch)

    def _ran(self, before: Measure, run: CompactionRun) -> None:
        self.so_far = replace(
            self.so_far, merges=run.merges, bytes_copied=run.bytes_copied, result=run.result
        )
        self._log.phase1(self._state)
        self._settle(before)

    def _settle(self, before: Measure) -> None:
        """When phase 1 has deleted what the run has left, look what is there."""
        if self._over():
            return
        state = self._state
        running = state.compacting is not None and state.compacting.result == "running"
        if state.phase1_busy or running:
            self._later(lambda: self._settle(before))
            return
        after = Measure(self._log, state, below=before.next_number)
        after.done.then(lambda _: self._measured(after))

    def _measured(self, after: Measure) -> None:
        if self._over():
            return
        now, found = self.so_far, after.done
        if found.error is not None:
            self._end(f"failed: {found.error.message}")
            return
        self.so_far = replace(
            now,
            segments_after=len(after.segments),
            bytes_freed=max(0, now.bytes_before - found.result()),
        )
        self.so_far = replace(self.so_far, kept=_kept_by(self._decision()))
        did = now.segments_before != self.so_far.segments_after or now.merges
        self._end("done" if did and now.result == "nothing to do" else now.result)

    def _decision(self) -> Decision[SegmentRef]:
        state = self._state
        return compaction_plan.plan_cuts(
            state.segments, state.row, state.holds, busy=state.compacting_numbers
        )

    def _over(self) -> bool:
        """Whether there is nothing more to look at."""
        refusal = self._refusal()
        if refusal and not self.done.done:
            self._end(refusal.replace("refused", "failed"))
        return self.done.done

    def _end(self, result: str) -> None:
        self.so_far = replace(self.so_far, result=result)
        self.done.resolve(self.so_far)

    def _later(self, act: Callable[[], None]) -> None:
        self._log.later(_LOOK_MS, act)


class Measure:
    """The bytes of a group's segments and of their large files; found on the lane."""

    def __init__(self, log: Log, state: GroupState, *, below: int | None = None) -> None:
        """With `below`, of segments whose numbers are lower: those that are not new."""
        self.next_number = state.next_number
        """Segments that come later have this number, or a higher one."""
        self.segments = [ref for ref in state.segments if below is None or ref.number < below]
        self.done: Future[int] = Future()
        segments = self.segments

        def step() -> int:
            larges = {ref.large for ref in segments if ref.large}
            return sum(ref.file_bytes for ref in segments) + sum(
                stat.size
                for large in sorted(larges)
                if (stat := log.disk.stat(f"{state.folder}/{files.large_name(large)}")) is not None
            )

        log.on_lane(step, self.done)


_IN_WORDS = {
    "after the snapshot": "entries follow the snapshot",
    "live": "entries are live",
    "newest": "it is the newest segment",
    "compacting": "phase 3 is reading it",
}


def _kept_by(decision: Decision[SegmentRef]) -> tuple[KeptBy, ...]:
    found: dict[str, list[SegmentRef]] = {}
    for kept in decision.kept:
        for reason in kept.reasons:
            words = _IN_WORDS.get(reason.kind, reason.text)
            found.setdefault(words, []).append(kept.piece)
    return tuple(KeptBy(words, len(refs), _bytes_of(refs)) for words, refs in sorted(found.items()))


def _bytes_of(refs: Iterable[SegmentRef]) -> int:
    return sum(ref.file_bytes for ref in refs)
