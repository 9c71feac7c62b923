"""The durable log that every group of a node writes to: WAL, memtables, segments, snapshots,
live indexes, compaction.

Words
    entry     an index, a term, and bytes that the log does not look into
    run       consecutive entries of one term and one append; the unit of the WAL and of memory
    written   durable on this node; nothing may be acknowledged before
    segment   an immutable file of one group's entries; segments are numbered in write order
    large     an entry that is written once, into a large file, and only named elsewhere
    live      an index at or below the snapshot whose entry must stay readable
    sections  the normal section follows the snapshot without gaps; the compacting section is the
              live indexes at or below it

A row's way: `append` puts a run into the memtable and the WAL's queue. The lane `wal` writes what
waits as one batch, syncs once, and the run is written. A full WAL file is closed; the lane
`segments` turns what it holds into segments, then removes it; for groups that can't take over what
is theirs, it stays (`flush`). A snapshot names the live indexes;
the lane `compaction` deletes whole segments with none (phase 1), merges sparse ones (phase 3).
Phase 4 appends scattered live entries again, so that they stand together. (There is no phase 2: it
was never more than a name.)

Invariants
    1. What was reported as written is read back with its term after any crash, until a newer run
       overwrites it or a snapshot says that nobody needs it.
    2. Every live index is readable at any moment, compaction or not.
    3. Nothing dead comes back: an index at or below the snapshot that is not live is not served,
       whatever files still hold it. (While a live set is lost and not yet rebuilt, nobody can tell
       them apart: then nothing is deleted, and what files hold can be read.)
    4. A newer piece cancels, from its first index on, whatever older pieces hold. So an index has
       one place, and a newer term always wins.
    5. `written_index` falls at once when entries are overwritten.
    6. No file is trusted because another one is absent: what is finished says so itself.
    7. A file that fails a checksum never gives data. It puts its group into quarantine, and only
       it.
    8. What a hold pins stays; every decision says what it cut and who held back the rest.
    9. No WAL file is renamed, removed or passed over while any group with records in it is
       unreadable, unflushed, or in a quarantine that is not durable. What can't be written down
       where it belongs is written into the node's own folders (`wal/<number>.kept`,
       `quarantine/<group>`), or the file stays.
   10. A folder that is missing is no deleted group: the node's own folder `roster/` says which
       groups there are, and which were deleted; and what has records in the WAL, and is not spoken
       of there, is missing, too. Its WAL files are kept for it, and no empty group takes its place.
   11. A disk that refuses to read or write is no damage: it puts no group into quarantine, and
       whoever asks hears its reason.
   12. Every entry that was taken, and every callback that waits for an end, has exactly one end,
       and is told of it (see `Log`), also when its group goes away or the disk fails.
   13. A part of the disk is reserved: an append uses it only if its owner says so (see `wal`).

One loop decides everything; lanes only carry out. So there are no locks here, and each multi-step
change is described, step by step, at the head of its file: `roster` (groups come and go), `flush`
(roll-over), `snapshots`, `install`, `merge`.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.log.config import LogConfig
    from lowmark.log.entries import Entry
    from lowmark.log.errors import (
        Damaged,
        EntryGone,
        EntryTooLarge,
        GroupExists,
        GroupLeaving,
        GroupQuarantined,
        GroupUnknown,
        GroupUnwritable,
        InstallRefused,
        NewerFormat,
        ReferenceExpired,
    )
    from lowmark.log.explain import Explanation, SegmentExplained, explain_group, explain_log
    from lowmark.log.files import is_log
    from lowmark.log.group import GroupLog
    from lowmark.log.install import Installer
    from lowmark.log.log import Dropped, Log, Written
    from lowmark.log.read_plan import ReadPlan
    from lowmark.log.request import Compacted, CompactionRequest, KeptBy, Measure
    from lowmark.log.snapshot_format import SnapshotMeta
    from lowmark.log.snapshots import SnapshotSender
    from lowmark.log.state import CompactionRun, LiveRow

__all__ = [
    "Compacted",
    "CompactionRequest",
    "CompactionRun",
    "Damaged",
    "Dropped",
    "Entry",
    "EntryGone",
    "EntryTooLarge",
    "Explanation",
    "GroupExists",
    "GroupLeaving",
    "GroupLog",
    "GroupQuarantined",
    "GroupUnknown",
    "GroupUnwritable",
    "InstallRefused",
    "Installer",
    "KeptBy",
    "LiveRow",
    "Log",
    "LogConfig",
    "Measure",
    "NewerFormat",
    "ReadPlan",
    "ReferenceExpired",
    "SegmentExplained",
    "SnapshotMeta",
    "SnapshotSender",
    "Written",
    "explain_group",
    "explain_log",
    "is_log",
]

__getattr__, __dir__ = face(__name__)
