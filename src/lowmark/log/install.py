"""The log's half of installing a snapshot that another node sends.

Everything comes into `installing/`: live entries straight into segments, then the state. Nothing of
the group's own is touched, so an abort removes that folder and leaves it as it was. Finishing:

    1. all files in `installing/` are whole and synced   still nothing counts; an abort is harmless
    2. `installing/` is renamed to `installed/`, synced  the snapshot counts: recovery moves it in
    3. its segments are linked into the group's folder under new, higher numbers, synced
    4. its snapshot is linked into `snapshots/` and renamed there, synced; older snapshots go
    5. `installed/` is removed, synced
Steps 3 to 5 can be repeated. The state's trailer carries a floor, the place in the WAL up to which
this group's own runs are void: they may be stale, and the WAL may still hold them after a restart.
Own entries that are applied and live but only in the WAL are therefore copied in with the others.

A sender may be faster than the disk. So the installer says whether it wants more (`has_room`), and
calls `on_room` when it does again; who sends only then costs it no more memory than `room_bytes`,
one segment's worth that is being gathered, and one message.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c
from pyroaring import BitMap64

from lowmark.errors import LowmarkError, invariant
from lowmark.log import files, segment_format, segments
from lowmark.log.config import LogConfig
from lowmark.log.entries import U32, Entry, fold_checksums, own
from lowmark.log.errors import InstallRefused, check_u63
from lowmark.log.files import Note, SharedFolder, read_note, remove_folder, same_file, write_note
from lowmark.log.flush import SegmentPlan, reason_error, write_segment
from lowmark.log.segment_format import ROW
from lowmark.log.segments import SegmentRef
from lowmark.log.snapshot_format import Floor, SnapshotMeta
from lowmark.log.snapshots import LIVE, STATE, SnapshotWriter, StateSum, needed_by, remove_others
from lowmark.runtime import Disk, Lane, Outcome

_PLAN = "plan"
_BUFFERED_BYTES = 16 << 20


class _Plan(Note, frozen=True, kw_only=True):
    """What `installed/` needs to be moved in: where its segments go, and the snapshot's name."""

    base: int
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class Installed:
    """What a finished installation brought."""

    meta: SnapshotMeta
    live: BitMap64
    floor: Floor
    segments: tuple[SegmentRef, ...]
    state_bytes: int


def plan_of_entries(entries: Sequence[Entry]) -> SegmentPlan:
    """A segment made of single entries."""
    rows = np.empty(len(entries), ROW)
    rows["index"] = [entry.index for entry in entries]
    rows["term"] = [entry.term for entry in entries]
    rows["length"] = [len(entry.data) for entry in entries]
    rows["place"] = 0
    sums: U32 = np.fromiter((crc32c(entry.data) for entry in entries), np.uint32, len(entries))
    rows["checksum"] = fold_checksums(sums, rows["index"], rows["term"])
    segment_format.lay_out(rows)
    return SegmentPlan(rows, [entry.data for entry in entries], 0)


class Installer:
    """Takes one snapshot in. Calls come on the loop and return at once; work is on the lane."""

    def __init__(
        self,
        disk: Disk,
        lane: Lane,
        config: LogConfig,
        *,
        shared: SharedFolder,
        incarnation: bytes,
        meta: SnapshotMeta,
        last_applied: int,
        check: Callable[[BitMap64], None],
        complete: Callable[[Installer, BitMap64, Callable[[LowmarkError | None], None]], None],
        on_abort: Callable[[Installer], None],
    ) -> None:
        self._disk = disk
        self._lane = lane
        self._config = config
        self._shared = shared
        self._group_folder = shared.path
        self._folder = f"{shared.path}/{files.INSTALLING}"
        self._incarnation = incarnation
        self._check = check
        self._complete = complete
        self._on_abort = on_abort
        self._writer: SnapshotWriter | None = None
        self._buffer: list[Entry] = []
        self._buffered = 0
        self._buffered_max = min(_BUFFERED_BYTES, config.segment_bytes_max)
        self._waiting = 0
        self._segments = 1  # 0 is for the group's own entries
        self._moved: list[SegmentRef] | None = None
        self._unsure: set[str] = set()
        self.meta = meta
        self.last_applied = last_applied
        self.received = BitMap64()
        self.previous = last_applied
        """The last live index that has come: the next ones must say they follow it, and a sender
        that was cut off goes on after it (`SnapshotSender.go_on_after`)."""
        self.state_checksum = 0
        self.state_bytes = 0
        """How much of the state has come: a sender that was cut off goes on from here."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when `has_room` is true again; also after an error, which the next piece raises,
        but not after the end."""
        self.room_bytes = 2 * self._buffered_max
        """At so many bytes that wait for the disk it wants no more."""
        self.error: LowmarkError | None = None
        self.over = False
        self._submit(self._begin)

    # -- taking it in ---------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether it wants to be sent more now; what is sent all the same is taken."""
        return self._waiting < self.room_bytes

    def add_entries(self, previous: int, entries: Sequence[Entry]) -> None:
        """Take the next live entries; they must follow `previous` without a gap."""
        self._check_open()
        if not entries:
            return
        if previous != self.previous:
            raise InstallRefused(
                f"live entries after {previous} do not follow {self.previous}",
                hint=f"Send the live entries after {self.previous}.",
            )
        entries = [Entry(entry.index, entry.term, own(entry.data)) for entry in entries]
        for entry in entries:
            check_u63(entry.term, "a term")
        indexes = [previous, *(entry.index for entry in entries)]
        rising = all(a < b for a, b in itertools.pairwise(indexes))
        if not rising or indexes[-1] > self.meta.index:
            raise InstallRefused("live entries must rise and end at the snapshot")
        self.previous = indexes[-1]
        self.received.update(indexes[1:])
        self._buffer += entries
        self._buffered += sum(len(entry.data) for entry in entries)
        if (
            self._buffered >= self._buffered_max
            or len(self._buffer) >= self._config.segment_entries_max
        ):
            self._flush_buffer()

    def add_state(self, offset: int, chunk: bytes) -> None:
        """Take a piece of the state; what has come before is ignored, a gap is refused."""
        self._check_open()
        if offset > self.state_bytes:
            raise InstallRefused(
                f"state from byte {offset} on would leave a gap",
                hint=f"Send it from byte {self.state_bytes} on.",
            )
        new = chunk[self.state_bytes - offset :]
        if new:
            self.state_bytes += len(new)
            self.state_checksum = crc32c(new, self.state_checksum)
            self._submit(lambda: self._state(new), size=len(new))

    def finish(
        self,
        live: BitMap64,
        on_done: Callable[[LowmarkError | None], None],
        *,
        state: StateSum | None = None,
    ) -> None:
        """Put the snapshot in force. On an error the group is as it was.

        It must be whole: every live entry that is not the group's own has come, and the state is
        the one that the sender has (`state`, its length and checksum).
        """
        self._check_open()
        live = live.copy()
        if live and live.max() > self.meta.index:
            raise InstallRefused("a live index lies after the snapshot")
        missing = needed_by(live, self.last_applied) - self.received
        if missing:
            raise InstallRefused(
                f"{len(missing)} live entries have not come, the first is {missing.min()}",
                hint=f"Send the live entries after {self.last_applied} again.",
            )
        if state is not None and state != StateSum(self.state_bytes, self.state_checksum):
            raise InstallRefused(
                f"the state that came has {self.state_bytes} bytes and another checksum",
                hint="Send the snapshot again, from a node whose files are sound.",
            )
        self._check(live - self.received)
        self.over = True
        self._flush_buffer()
        self._complete(self, live, on_done)

    def abort(self) -> None:
        """Give it up; the group is as it was."""
        if not self.over:
            self.over = True
            self._lane.submit(self._remove, lambda _: self._on_abort(self))

    def _check_open(self) -> None:
        if self.error is not None:
            raise self.error.again()
        if self.over:
            raise InstallRefused("the installation has ended")

    def _flush_buffer(self) -> None:
        if self._buffer:
            entries, size, number = self._buffer, self._buffered, self._segments
            self._buffer, self._buffered = [], 0
            self._segments += 1
            self._submit(lambda: self._segment(number, plan_of_entries(entries)), size=size)

    # -- steps of the lane ----------------------------------------------------------------------

    def _submit(self, step: Callable[[], None], *, size: int = 0) -> None:
        self._waiting += size

        def guarded() -> None:
            if self.error is None:
                try:
                    step()
                except (LowmarkError, MemoryError) as error:
                    # Noted here, not on the loop: `commit` may run before the loop hears of it.
                    self.error = reason_error(error)

        def done(outcome: Outcome[None]) -> None:
            if outcome.error is not None:
                raise outcome.error
            had_room = self.has_room
            self._waiting -= size
            if self.has_room and not had_room and not self.over:
                self.on_room()

        self._lane.submit(guarded, done)

    def _begin(self) -> None:
        self._remove()
        self._disk.make_dir(self._folder)
        self._writer = SnapshotWriter(
            self._disk, f"{self._folder}/snapshot", self.meta, incarnation=self._incarnation
        )

    def _remove(self) -> None:
        remove_folder(self._disk, self._folder)

    def _state(self, chunk: bytes) -> None:
        invariant(self._writer is not None, "an installation begins before its state comes")
        self._writer.write(chunk)  # type: ignore[union-attr]

    def _segment(self, number: int, plan: SegmentPlan) -> None:
        # Its number in the group is not known yet, so its place in write order is that number.
        write_segment(
            self._disk,
            self._folder,
            number=number,
            plan=plan,
            incarnation=self._incarnation,
            order=0,
        )

    def commit(
        self, *, own: Sequence[Entry], live: BitMap64, floor: Floor, base: int
    ) -> Callable[[], None]:
        """The lane's step that makes the installation count."""

        def step() -> None:
            if self.error is not None:
                raise self.error.again()
            invariant(self._writer is not None, "an installation begins before it ends")
            if own:
                self._segment(0, plan_of_entries(own))
            self._writer.finish(live, floor)  # type: ignore[union-attr]
            plan = _Plan(base=base, index=self.meta.index, term=self.meta.term)
            write_note(self._disk, f"{self._folder}/{_PLAN}", plan)
            self._disk.sync_dir(self._folder)
            faults = self._shared.faults
            self._disk.rename(self._folder, f"{self._group_folder}/{files.INSTALLED}")
            self._shared.sync(self._disk, since=faults)

        return step

    @property
    def committed(self) -> bool:
        """Whether the snapshot counts, whatever else failed: then it must be moved in."""
        return self._disk.stat(f"{self._group_folder}/{files.INSTALLED}") is not None

    def move_in(self, live: BitMap64, floor: Floor) -> Installed:
        """The lane's step after `commit`; it can be repeated."""
        if self._moved is None:
            self._moved = link_in(
                self._disk, self._shared, incarnation=self._incarnation, unsure=self._unsure
            )
        _clear(self._disk, self._shared)
        return Installed(self.meta, live, floor, tuple(self._moved), self.state_bytes)

    @property
    def numbers_needed(self) -> int:
        """How many segment numbers it takes up."""
        return self._segments


def move_in(disk: Disk, shared: SharedFolder, *, incarnation: bytes) -> None:
    """Move in what a crash left in `installed/`; every step can be repeated."""
    # The plan came with the folder; without it, a crash interrupted step 5.
    installed = f"{shared.path}/{files.INSTALLED}"
    if disk.stat(f"{installed}/{_PLAN}") is not None:
        unsure: set[str] = set()
        if all(disk.stat(f"{installed}/snapshot/{part}") for part in (STATE, LIVE)):
            # The sync after the snapshot got its name may have failed in a process that was killed
            # then. If a part is gone, step 5 had begun, and the sync before it had worked.
            plan = read_note(disk, f"{installed}/{_PLAN}", _Plan)
            unsure.add(files.snapshot_name(plan.index, plan.term))
        link_in(disk, shared, incarnation=incarnation, unsure=unsure)
    _clear(disk, shared)


def _clear(disk: Disk, shared: SharedFolder) -> None:
    remove_folder(disk, f"{shared.path}/{files.INSTALLED}")
    shared.sync(disk)


def link_in(
    disk: Disk, shared: SharedFolder, *, incarnation: bytes, unsure: set[str]
) -> list[SegmentRef]:
    """Give a whole `installed/` its place in the group: steps 3 and 4.

    `unsure` holds the snapshot's name while a sync has still to make it durable, also for the next
    try: it is made anew then, because a later sync proves nothing.
    """
    group_folder, faults = shared.path, shared.faults
    installed = f"{group_folder}/{files.INSTALLED}"
    plan = read_note(disk, f"{installed}/{_PLAN}", _Plan)
    snapshot = f"{group_folder}/{files.SNAPSHOTS}/{files.snapshot_name(plan.index, plan.term)}"
    counts = disk.stat(snapshot) is not None  # then step 3 is done
    refs = []
    for name in disk.list(installed):
        number = files.number_of(name, files.SEGMENT)
        if number is None:
            continue
        source = disk.open(f"{installed}/{name}", "read")
        head = source.read_at(0, segment_format.HEADER_BYTES)
        where = disk.describe(f"{installed}/{name}")
        header = segment_format.decode_header(where, head, incarnation=incarnation)
        refs.append(segments.ref_of(plan.base + number, header, source.size()))
        source.close()
        target = f"{group_folder}/{files.segment_name(plan.base + number)}"
        if not counts and same_file(disk, f"{installed}/{name}", target):
            disk.unlink(target)  # an earlier try's sync failed, perhaps: only a new name is sure
        if disk.stat(target) is None:
            disk.link(f"{installed}/{name}", target)
    shared.sync(disk, since=faults)
    _move_snapshot(disk, group_folder, plan, unsure)
    return refs


def _move_snapshot(disk: Disk, group_folder: str, plan: _Plan, unsure: set[str]) -> None:
    root = f"{group_folder}/{files.SNAPSHOTS}"
    name = files.snapshot_name(plan.index, plan.term)
    aside = f"{root}/{name}{files.TEMPORARY}"
    if name in unsure and disk.stat(f"{root}/{name}") is not None:
        remove_folder(disk, aside)
        disk.rename(f"{root}/{name}", aside)  # in one step: under its name it is always whole
    if disk.stat(f"{root}/{name}") is None:
        remove_folder(disk, aside)
        disk.make_dir(aside)
        for part in (STATE, LIVE):
            disk.link(f"{group_folder}/{files.INSTALLED}/snapshot/{part}", f"{aside}/{part}")
        disk.sync_dir(aside)
        unsure.add(name)
        disk.rename(aside, f"{root}/{name}")
        disk.sync_dir(root)
        unsure.discard(name)
    remove_others(disk, group_folder, name, only_older=True)
