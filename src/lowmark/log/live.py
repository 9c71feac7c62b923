"""The one row that says what of a group's log still counts.

The row is replaced whole, never changed, so whoever reads it sees one moment: the WAL to drop
writes that nobody needs, the segment writer to leave out what is dead, compaction to choose.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyroaring import BitMap64

from lowmark.holds import Hold


@dataclass(frozen=True, slots=True)
class LiveRow:
    """Up to `snapshot_index` only `live` counts; everything after it does."""

    snapshot_index: int = 0
    snapshot_term: int = 0
    live: BitMap64 = field(default_factory=BitMap64)
    known: bool = True
    """False while the live set is lost and not yet rebuilt: then everything counts as live."""

    @property
    def smallest_live(self) -> int:
        """Nothing below this index is needed."""
        if not self.known:
            return 0
        return self.live.min() if self.live else self.snapshot_index + 1

    def counts(self, index: int) -> bool:
        """Whether an entry at this index still counts."""
        return index > self.snapshot_index or not self.known or index in self.live


def kept_of(row: LiveRow, holds: Iterable[Hold]) -> BitMap64:
    """What must stay readable up to the snapshot: live entries, and those that somebody holds."""
    keep = row.live.copy()
    for hold in holds:
        keep |= hold.within(1, row.snapshot_index)
    return keep
