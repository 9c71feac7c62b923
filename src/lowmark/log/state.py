"""What the log keeps in memory of one group. Only the loop touches it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec
from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.holds import Hold, Holds
from lowmark.log import files
from lowmark.log.entries import Run
from lowmark.log.files import SharedFolder
from lowmark.log.memtable import Memtable
from lowmark.log.segments import SegmentRef
from lowmark.log.snapshots import Snapshot
from lowmark.runtime import Disk

Trigger = str
"""One of: "dead ratio", "small segments", "timer", "low disk", "asked"."""


class CompactionRun(msgspec.Struct, kw_only=True):
    """Phase 3, once, for one group: why it ran, what it cost, what came of it."""

    trigger: Trigger
    started_ms: int
    ended_ms: int = 0
    merges: int = 0
    sources: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    bytes_freed: int = 0
    result: str = "running"


@dataclass(frozen=True, slots=True)
class LiveRow:
    """The one row that says what of a group's log still counts.

    Up to `snapshot_index` only `live` counts; everything after it does. The row is replaced whole,
    never changed, so all that read it see one moment: the segment writer to leave out what is dead,
    compaction to choose.
    """

    snapshot_index: int = 0
    snapshot_term: int = 0
    live: BitMap64 = field(default_factory=BitMap64)
    known: bool = True
    """False while the live set is lost and not yet rebuilt: then everything counts as live."""

    def counts(self, index: int) -> bool:
        """Whether an entry at this index still counts."""
        return index > self.snapshot_index or not self.known or index in self.live


def kept_of(row: LiveRow, holds: Iterable[Hold]) -> BitMap64:
    """What must stay readable up to the snapshot: live entries, and those that somebody holds."""
    keep = row.live.copy()
    for hold in holds:
        keep |= hold.within(1, row.snapshot_index)
    return keep


RUNS_KEPT = 32


@dataclass(slots=True)
class OpenLarge:
    """The large file that takes a group's large entries while one WAL file is open."""

    number: int
    wal: int
    size: int


@dataclass(slots=True, eq=False)
class GroupState:
    """One group's log: segments, then memtable, then what waits for the WAL."""

    name: str
    incarnation: bytes
    memtable: Memtable = field(default_factory=Memtable)
    segments: list[SegmentRef] = field(default_factory=list)
    row: LiveRow = field(default_factory=LiveRow)
    snapshot: Snapshot | None = None
    holds: Holds = field(default_factory=Holds)
    meta: bytes = b""

    last_index: int = 0
    last_term: int = 0
    written_index: int = 0
    """Everything up to here is durable and not overwritten."""

    next_number: int = 1
    """The next segment's number; never used before, not even by a link."""
    next_large: int = 1
    open_large: OpenLarge | None = None

    loaded: deque[Run] = field(default_factory=deque)
    """Large entries whose data is in memory, oldest first."""

    quarantine: str | None = None
    quarantine_saved: bool = False
    """Whether a restart finds the quarantine written down; else no WAL file of the group goes."""
    quarantine_lasts: bool = True
    """False: this release can't read what a newer one wrote; the next start may be that one."""
    sick: LowmarkError | None = None
    """Why its folder can't be written just now; it takes no writes until that works again."""
    deleted: bool = False
    installing: bool = False
    phase1_busy: bool = False
    snapshot_busy: bool = False
    compacting: CompactionRun | None = None
    compacting_numbers: frozenset[int] = frozenset()
    runs: deque[CompactionRun] = field(default_factory=lambda: deque(maxlen=RUNS_KEPT))
    requests_dropped: int = 0
    garbage: list[SegmentRef] = field(default_factory=list)
    """Segments that newer ones have overwritten whole; phase 1 removes their files."""
    large_garbage: set[int] = field(default_factory=set)
    """Large files that may have no user any more; phase 1 looks."""
    surveyed: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Per segment what phase 3 counted last: expected, kept entries, kept bytes."""
    appended_bytes: int = 0
    """How much data was appended in this life."""
    bytes_known: tuple[int, int, int] = (0, 0, -1)
    """What `read_plan.log_bytes` gave last, how much was appended then, and the newest segment."""
    segment_bytes_known: tuple[tuple[int, int, int], int] = ((0, 0, 0), 0)
    """What `read_plan.log_bytes` counted last, and for which segments."""
    links: dict[int, int] = field(default_factory=dict)
    """Names of merged segments that are still readable, and the segment that each points to."""
    phase1_again: bool = False
    shared_folder: SharedFolder = field(init=False)
    """Its folder, as lanes sync it."""
    snapshot_index_begun: int = 0
    """The index of the snapshot that is being written; nothing at or below it is overwritten."""

    def __post_init__(self) -> None:
        self.shared_folder = SharedFolder(self.folder)

    @property
    def folder(self) -> str:
        """Where its files are."""
        return files.group_dir(self.name)

    def kept_row(self) -> LiveRow:
        """The row with everything that must stay readable: live entries, and what is held."""
        if not len(self.holds):
            return self.row
        return replace(self.row, live=kept_of(self.row, self.holds))

    @property
    def folder_faults(self) -> int:
        """How many syncs of its folder have failed; lanes add to it, too."""
        return self.shared_folder.faults

    def sync_folder(self, disk: Disk) -> None:
        """Sync the group's folder."""
        self.shared_folder.sync(disk)

    def take_number(self) -> int:
        """A number for a new segment."""
        self.next_number += 1
        return self.next_number - 1

    def larges_in_use(self) -> set[int]:
        """The large files that something still refers to.

        Garbage counts until it is deleted: a run of phase 3 may be reading it, also after an
        installed snapshot has taken its place. Its large file goes with it.
        """
        used = {ref.large for ref in [*self.segments, *self.garbage] if ref.large}
        runs = [*self.memtable.view, *(r for runs in self.memtable.by_wal.values() for r in runs)]
        return used | {run.large.number for run in runs if run.large is not None}

    def place_large(
        self, *, wal: int, frame_bytes: int, header_bytes: int, bytes_max: int
    ) -> tuple[int, int]:
        """Where the next large entry goes: file number and the frame's offset."""
        large = self.open_large
        if large is None or large.wal != wal or large.size + frame_bytes > bytes_max:
            large = self.open_large = OpenLarge(self.next_large, wal, header_bytes)
            self.next_large += 1
        offset = large.size
        large.size += frame_bytes
        return large.number, offset
