"""One group's log, as its owner uses it. All calls are made on the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.holds import Hold, Pins
from lowmark.log import read_plan, segments
from lowmark.log.compaction_plan import plan_rewrite
from lowmark.log.config import LogConfig
from lowmark.log.entries import Entry, Run, own, run_of
from lowmark.log.errors import (
    Damaged,
    EntryGone,
    EntryTooLarge,
    GroupQuarantined,
    GroupUnknown,
    GroupUnwritable,
    InstallRefused,
    LogBusy,
    NotContiguous,
    ReferenceExpired,
    SnapshotRefused,
    TermFell,
    check_u63,
)
from lowmark.log.group_recovery import covered
from lowmark.log.install import Installer
from lowmark.log.read_plan import InMemory, InSegment, ReadPlan
from lowmark.log.segments import SegmentReader
from lowmark.log.snapshot_format import SnapshotMeta
from lowmark.log.snapshots import Snapshot, SnapshotSender, needed_by, read_state
from lowmark.log.state import CompactionRun, GroupState, LiveRow
from lowmark.log.tasks import OnDone
from lowmark.log.wal import RunWrite
from lowmark.runtime import Buffer

if TYPE_CHECKING:
    from lowmark.log.log import Log


_READ_RETRIES = 8
META_BYTES_MAX = 64 << 10
"""A group's own record is repeated at the head of every WAL file, so it must be small."""


class GroupLog:
    """Append, read, snapshot, install, compact: the log of one group."""

    def __init__(self, services: Log, state: GroupState) -> None:
        self._services = services
        self._state = state
        self._wal = services.wal
        self.fits = services.wal.fits
        """Whether so much would be taken without `reserve`, as far as is known."""
        self.promise = services.promise
        """Count so much as taken that will be appended; less than 0 when it is, or never will be.
        The sum is the node's: what one group has promised, another does not get.
        """

    # -- where it stands ------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The group's name."""
        return self._state.name

    @property
    def incarnation(self) -> bytes:
        """Drawn when the group was created: one that is made anew under the name has another."""
        return self._state.incarnation

    @property
    def first_index(self) -> int:
        """The first index of the normal section: what follows the snapshot."""
        return self._state.row.snapshot_index + 1

    @property
    def last_index(self) -> int:
        """The last index, written or not."""
        return self._state.last_index

    @property
    def last_term(self) -> int:
        """The term of the last index."""
        return self._state.last_term

    @property
    def written_index(self) -> int:
        """Everything up to here is durable. It falls at once when entries are overwritten."""
        return self._state.written_index

    @property
    def meta(self) -> bytes:
        """The last durable record of the group's own."""
        return self._state.meta

    @property
    def row(self) -> LiveRow:
        """The snapshot's index and the live set."""
        return self._state.row

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot in force."""
        return self._state.snapshot

    @property
    def state_bytes(self) -> int:
        """How much state the snapshot in force has; 0 without one."""
        return self._state.snapshot.state_bytes if self._state.snapshot is not None else 0

    @property
    def log_bytes(self) -> int:
        """About how much data the normal section has: what a snapshot at its end would cover."""
        return read_plan.log_bytes(self._state)

    def has_bytes(self, limit: int) -> bool:
        """Whether it has so much data; cheaper than `log_bytes`."""
        return read_plan.has_bytes(self._state, limit)

    def has_segments(self, count: int) -> bool:
        """Whether this many segments, or more, have entries behind the snapshot."""
        segments = self._state.segments
        return len(segments) >= count and segments[-count].last > self._state.row.snapshot_index

    @property
    def quarantined(self) -> str | None:
        """Why the group takes no writes here, if so."""
        return self._state.quarantine

    @property
    def damaged(self) -> bool:
        """Whether it is in quarantine for damage, which no later start or release finds sound."""
        return self._state.quarantine is not None and self._state.quarantine_lasts

    @property
    def unwritable(self) -> GroupUnwritable | None:
        """Why the group takes no writes just now, if its folder can't be written."""
        state = self._state
        if state.sick is None:
            return None
        folder = self._services.disk.describe(state.folder)
        return GroupUnwritable(self.name, folder=folder, cause=state.sick.message)

    @property
    def runs(self) -> list[CompactionRun]:
        """The last runs of phase 3, oldest first."""
        return list(self._state.runs)

    @property
    def state(self) -> GroupState:
        """Everything there is in memory; for tests and tools, to look at only."""
        return self._state

    # -- writing --------------------------------------------------------------------------------

    def check_space(self, size: int) -> None:
        """Raise `DiskFull` if so much is not taken without `reserve`."""
        self._services.check_space(size)

    @property
    def trouble(self) -> LowmarkError | None:
        """What keeps all that is appended from becoming durable, and not just this once."""
        if self._state.sick is None and self._wal.well:
            return None  # asked with every proposal
        return self.unwritable or self._services.trouble

    def append(
        self,
        term: int,
        datas: Sequence[Buffer],
        *,
        first: int | None = None,
        reserve: bool = False,
    ) -> int:
        """Add entries of one term; give the first one's index.

        With `first` at or below the last index, everything from there on is overwritten. What the
        snapshot covers already is left out. "Written" comes later, by the log's `on_written`.
        With `reserve` they may use the space that is reserved, for what frees space or is small.
        """
        state, config = self._state, self._services.config
        self._check_writes()
        first = state.last_index + 1 if first is None else first
        if first > state.last_index + 1 or first < 1:
            raise NotContiguous(self.name, first=first, last=state.last_index)
        check_u63(term, "a term")
        datas = list(map(own, datas))
        largest = max(map(len, datas), default=0)
        if largest > config.entry_bytes_max:
            raise EntryTooLarge(size=largest, limit=config.entry_bytes_max)
        covered = min(len(datas), max(0, state.row.snapshot_index + 1 - first))
        if covered == len(datas):
            return first
        datas, at = datas[covered:], first + covered
        if at <= min(state.snapshot_index_begun, state.last_index):
            raise SnapshotRefused(
                f"entry {at} can't be overwritten",
                detail=f"A snapshot at {state.snapshot_index_begun} is being taken.",
            )
        previous = state.last_term if at == state.last_index + 1 else self.term_at(at - 1)
        if previous is not None and term < previous:
            raise TermFell(self.name, term=term, previous=previous)
        if not reserve:
            self._services.check_space(sum(map(len, datas)))
        waiting = self._wal.queued_bytes
        if waiting > config.wal_queue_bytes_max:
            raise LogBusy(waiting=waiting, limit=config.wal_queue_bytes_max)
        runs = _cut_into_runs(at, term, datas, largest=largest, config=config)
        for run in runs:
            state.appended_bytes += run.data_bytes
            state.memtable.append(run)
            if run.count == 1 and len(run.payload) >= config.large_entry_bytes_min:
                state.loaded.append(run)
        state.written_index = min(state.written_index, at - 1)
        state.last_index, state.last_term = at + len(datas) - 1, term
        for run in runs:
            self._wal.write(RunWrite(state, run))
        return first

    def let_go(self, index: int) -> None:
        """Keep the data of large entries up to an index out of memory: files have it, and will do.

        An owner calls it when it has applied them; whoever still wants them reads them from there.
        """
        state = self._state
        durable = min(index, state.written_index)
        while state.loaded and (state.loaded[0].last <= durable or not state.loaded[0].kept):
            run = state.loaded.popleft()
            # What was overwritten may be on its way to the disk still; it goes with its run.
            if run.kept and run.large is not None:
                run.payload = b""

    def put_meta(self, data: bytes, on_done: OnDone) -> None:
        """Make a small record of the group's own durable (a vote); the newest one counts.

        `on_done` is called once: with None when it is durable, or with what came in between (the
        group was deleted or broke, the log was closed). A disk that fails only delays it.
        """
        self._check_writes(while_installing=True)
        if len(data) > META_BYTES_MAX:
            raise EntryTooLarge(size=len(data), limit=META_BYTES_MAX)
        self._services.write_meta(self._state, data, on_done)

    def drop_from(self, first: int) -> None:
        """Take entries back that will never be written; for the log, whose WAL gave them up."""
        state = self._state
        state.memtable.truncate(first)
        state.last_index = first - 1
        state.written_index = min(state.written_index, first - 1)
        try:
            state.last_term = self.term_at(first - 1) or 0
        except LowmarkError:
            state.last_term = 0  # the group is broken already, and takes nothing that could follow

    def _check_writes(self, *, while_installing: bool = False) -> None:
        state = self._state
        self._services.check_writable()
        if state.deleted or state.quarantine is not None:
            self._check_sound()
        if state.sick is not None:
            unwritable = self.unwritable
            if unwritable is not None:
                raise unwritable
        if state.installing and not while_installing:
            raise InstallRefused(f"group {self.name} is taking a snapshot over just now")

    def _check_there(self) -> None:
        if self._state.deleted:
            raise GroupUnknown(self.name)

    def _check_sound(self) -> None:
        self._check_there()
        if self._state.quarantine is not None:
            raise GroupQuarantined(self.name, cause=self._state.quarantine)

    # -- reading --------------------------------------------------------------------------------

    def term_at(self, index: int) -> int | None:
        """The term of an entry, or None if it does not count any more."""
        state = self._state
        if index == state.row.snapshot_index:
            return state.row.snapshot_term
        if not 0 < index <= state.last_index or not state.row.counts(index):
            return None
        run = state.memtable.find(index)
        if run is not None:
            return run.term
        ref = segments.place_of(state.segments, index)
        if ref is None:
            return None
        known = ref.known_term_at(index)
        if known is not None:
            return known
        try:
            reader = self._reader(ref.number)
        except Damaged as damage:
            self._services.quarantine(state, damage)
            raise
        ref.learn_terms(reader)
        return reader.term_at(index)

    def read(self, indexes: Iterable[int]) -> list[Entry]:
        """Read entries that count, in the order asked for; every checksum is checked.

        Damage puts the group into quarantine, and is raised.
        """
        wanted = list(indexes)
        return self._read(lambda: self.plan_read(wanted))

    def read_range(self, first: int, last: int, *, bytes_max: int) -> list[Entry]:
        """Read consecutive entries after the snapshot, from `first` on, for a follower.

        They end at `last`, at the log's end, or before the entry that would make it more than
        `bytes_max` of data; but there is at least one, unless the range is empty. What the snapshot
        covers raises `EntryGone`: then the snapshot must be sent. Damage is as with `read`.
        """
        return self._read(lambda: self.plan_range(first, last, bytes_max=bytes_max))

    def _read(self, plan: Callable[[], ReadPlan]) -> list[Entry]:
        """Plan and carry out, again if segments moved in between. Damage quarantines the group."""
        expired: ReferenceExpired | None = None
        for _ in range(_READ_RETRIES):
            try:
                return plan().execute(self._services.disk, self._services.cache)
            except ReferenceExpired as moved:
                expired = moved
            except Damaged as damage:
                self._services.quarantine(self._state, damage)
                raise
        # Nothing moves while the loop is here: the segment does not hold what it should.
        where = self._services.disk.describe(self._state.folder)
        what = f"an entry that counts is in no segment: {expired}"
        lost = Damaged(where, offset=0, what=what)
        self._services.quarantine(self._state, lost)
        raise lost

    def plan_read(
        self, indexes: Iterable[int], *, held: bool = False, bytes_max: int | None = None
    ) -> ReadPlan:
        """Find where entries are. With `held`, also dead ones that the caller has a hold on.

        With `bytes_max`, the plan ends before the entry that would make it more data than that, but
        not before the first.
        """
        state = self._state
        self._check_there()
        plan = ReadPlan(self.name, state.folder, state.incarnation, bytes_max)
        pieces = plan.pieces
        for index in indexes:
            if not 0 < index <= state.last_index or not (held or state.row.counts(index)):
                raise self._gone(index)
            last = pieces[-1] if pieces else None
            run = state.memtable.find(index)
            if run is not None:
                if isinstance(last, InMemory) and last.last + 1 == index:
                    if last.runs[-1] is not run:
                        last.runs.append(run)
                    pieces[-1] = InMemory(last.runs, last.first, index)
                else:
                    pieces.append(InMemory([run], index, index))
                continue
            ref = segments.place_of(state.segments, index)
            if ref is None:
                raise self._gone(index)
            if isinstance(last, InSegment) and last.number == ref.number:
                if isinstance(last.indexes, list) and last.indexes[-1] < index:
                    last.indexes.append(index)
                    continue
            pieces.append(InSegment(ref.number, [index]))
        return plan

    def plan_range(self, first: int, last: int, *, bytes_max: int) -> ReadPlan:
        """Find where consecutive entries after the snapshot are; see `read_range`."""
        state = self._state
        self._check_there()
        plan = ReadPlan(self.name, state.folder, state.incarnation, bytes_max)
        last = min(last, state.last_index)
        if first <= state.row.snapshot_index:
            raise self._gone(first)
        if first <= last:
            plan.pieces += read_plan.plan_range(state, first, last, bytes_max=bytes_max)
        return plan

    def size_of(self, first: int, last: int) -> int:
        """How much data these entries have, as far as they follow the snapshot; without reading it.

        In segments that the range cuts the index is read; damage there is as with `read`.
        """
        try:
            return read_plan.size_of(
                self._state, first, last, reader=lambda ref: self._reader(ref.number)
            )
        except Damaged as damage:
            self._services.quarantine(self._state, damage)
            raise

    def _gone(self, index: int) -> EntryGone:
        state = self._state
        return segments.entry_gone(
            self.name, index, snapshot=state.row.snapshot_index, last=state.last_index
        )

    def _reader(self, number: int) -> SegmentReader:
        self._check_there()
        return self._services.cache.get(
            self._state.folder, number, incarnation=self._state.incarnation
        )

    # -- snapshots ------------------------------------------------------------------------------

    def take_snapshot(
        self,
        meta: SnapshotMeta,
        state: Iterable[Buffer],
        live: BitMap64,
        on_done: OnDone,
    ) -> None:
        """Write a snapshot; when it is durable, phase 1 follows.

        `live` are the indexes at or below it that must stay readable. An index that is dead already
        can't be live again. A full disk is no reason to refuse it: it is what frees space.
        """
        self._services.check_not_closed()
        self._check_sound()
        row = self._state.row
        if not row.snapshot_index < meta.index <= self._state.written_index:
            raise SnapshotRefused(
                f"a snapshot at {meta.index} can't be taken",
                detail=f"The last one is at {row.snapshot_index},"
                f" and entries are durable up to {self._state.written_index}.",
            )
        if self.term_at(meta.index) != meta.term:
            raise SnapshotRefused(f"entry {meta.index} is not of term {meta.term}")
        if live and live.max() > meta.index:
            raise SnapshotRefused(f"index {live.max()} lies after the snapshot at {meta.index}")
        revived = live.copy()
        revived.remove_range(row.snapshot_index + 1, meta.index + 1)
        revived -= row.live
        if not row.known:
            revived = live - covered(self._state)
        if revived:
            raise SnapshotRefused(f"index {revived.min()} is dead and can't be live again")
        self._services.take_snapshot(self._state, meta, state, live.copy(), on_done)

    def read_snapshot(self) -> Iterable[bytes]:
        """The state of the snapshot in force, in chunks, checked."""
        if self._state.snapshot is None:
            return iter(())
        return read_state(self._services.disk, self._state.snapshot.folder)

    def restore_live(self, live: BitMap64, on_done: OnDone) -> None:
        """Give a live set back that was lost (`row.known` is false), rebuilt from the state."""
        self._services.check_not_closed()
        self._check_there()
        self._services.restore_live(self._state, live, on_done)

    def open_sender(self, holder: str, *, last_applied: int) -> SnapshotSender:
        """Send the snapshot in force to a receiver that has applied that much; close it after."""
        snapshot, row = self._state.snapshot, self._state.row
        if snapshot is None or not row.known:
            raise SnapshotRefused(f"group {self.name} has no snapshot to send")
        needed = needed_by(row.live, last_applied)
        sender = SnapshotSender(
            self._services.disk,
            snapshot=snapshot,
            needed=needed,
            last_applied=last_applied,
            read=lambda indexes, bytes_max: self._read(
                lambda: self.plan_read(indexes, held=True, bytes_max=bytes_max)
            ),
            on_close=lambda: self.release(holder, "snapshot sender"),
        )
        self.hold(holder, kind="snapshot sender", pins=needed, why="sending a snapshot")
        return sender

    def begin_install(self, meta: SnapshotMeta, *, last_applied: int) -> Installer:
        """Take in a snapshot that another node sends. Until it is finished, nothing changes."""
        self._services.check_writable()
        self._services.check_space(0)
        self._check_sound()
        unwritable = self.unwritable
        if unwritable is not None:
            raise unwritable
        check_u63(meta.index, "an index")
        check_u63(meta.term, "a term")
        if meta.index <= self._state.row.snapshot_index or last_applied > meta.index:
            raise InstallRefused(f"a snapshot at {meta.index} is not ahead of this log")
        if last_applied > self._state.last_index:
            raise InstallRefused(f"entry {last_applied} can't be applied: it is not in this log")
        return self._services.begin_install(self._state, meta, last_applied)

    # -- compaction -----------------------------------------------------------------------------

    def compact(self, on_done: Callable[[CompactionRun], None] | None = None) -> bool:
        """Run phase 3 now; False if a run is under way already."""
        return self._services.compact(self._state, on_done)

    def rewrite_plan(
        self, *, dense_share: float = 0.5, chunk_entries: int = 1_024, neighbours: int = 0
    ) -> list[list[int]]:
        """Phase 4: which live entries are scattered, in chunks to rewrite one at a time."""
        return plan_rewrite(
            self._state.row.live,
            dense_share=dense_share,
            chunk_entries=chunk_entries,
            neighbours=neighbours,
        )

    def rewrite(self, term: int, indexes: Sequence[int], wrap: Callable[[Entry], Buffer]) -> int:
        """Phase 4: append copies of live entries; give the first copy's index.

        `wrap` makes the new entry of an old one. The old ones die with a snapshot that says so.
        """
        return self.append(term, [wrap(entry) for entry in self.read(indexes)])

    def hold(
        self,
        holder: str,
        *,
        kind: str,
        pins: Pins,
        why: str,
        expires_at_ms: int | None = None,
    ) -> None:
        """Keep entries readable for somebody, live or not."""
        self._state.holds.place(
            Hold(
                holder=holder,
                kind=kind,
                pins=pins,
                since_ms=self._services.now_ms(),
                why=why,
                expires_at_ms=expires_at_ms,
            )
        )

    def release(self, holder: str, kind: str) -> None:
        """End a hold; what it kept goes now, if nothing else keeps it."""
        self._state.holds.release(holder, kind)
        self._services.phase1(self._state)


def _cut_into_runs(
    first: int, term: int, datas: Sequence[Buffer], *, largest: int, config: LogConfig
) -> list[Run]:
    """A run holds at most what fits into a segment; a large entry is a run of its own."""
    small = largest < min(config.large_entry_bytes_min, config.segment_bytes_max)
    if small and len(datas) <= config.segment_entries_max:
        run = run_of(first, term, datas)
        if len(run.payload) <= config.segment_bytes_max:
            return [run]
    runs: list[Run] = []
    start = size = 0
    for i, data in enumerate(datas):
        large = len(data) >= config.large_entry_bytes_min
        full = (
            size + len(data) > config.segment_bytes_max or i - start >= config.segment_entries_max
        )
        if i > start and (large or full):
            runs.append(run_of(first + start, term, datas[start:i]))
            start, size = i, 0
        size += len(data)
        if large:
            runs.append(run_of(first + i, term, datas[i : i + 1]))
            start, size = i + 1, 0
    if start < len(datas):
        runs.append(run_of(first + start, term, datas[start:]))
    return runs
