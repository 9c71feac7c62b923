"""What a tide is made of: plain values, one for each partition, and for each reader in it.

A partition's offsets run from 0 to its end. Its ledger covers those below the horizon, its backlog
those from its start on. Where both have an offset, the backlog is kept for a reader, or waits to be
cut. From the horizon to the watermark lies what the next run takes; what is later than the
watermark no run may touch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HolderKind = Literal["cursor", "compacted cursor", "lease", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TideHolder:
    """A reader that stands in a partition: a cursor, a lease, or a run."""

    kind: HolderKind
    name: str
    offset: int
    """The first offset that it has not seen, or still needs."""
    behind_rows: int
    """From there to the end."""
    behind_bytes: int
    """What the backlog has of that."""
    keeps_rows: int
    keeps_bytes: int
    """What the ledger has, too: without it, and those at or before its place, that could go now."""
    overdue: bool = False
    """Whether it fell too far behind, and holds nothing any more."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderTotal:
    """A reader in all partitions together."""

    kind: HolderKind
    name: str
    behind_rows: int
    behind_bytes: int
    keeps_rows: int
    keeps_bytes: int
    overdue: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TideLedger:
    """The compacted form of a partition's offsets below the horizon."""

    manifest: str
    epoch: int
    files: int
    bytes: int
    rows: int
    """In its files, dead ones among them."""
    live_rows: int
    """That count, without deletes."""
    deletes: int
    """That count, because a reader may not have got them yet."""
    survivors: tuple[int, ...] = ()
    """Live rows, and deletes, in equal stretches of the offsets from 0 to the horizon; empty: not
    asked for."""

    def shares(self, horizon: int, stretches: int) -> tuple[float, ...]:
        """How much is left of what was written, from 0 to 1, in so many stretches."""
        counts = self.survivors or (self.live_rows + self.deletes,)
        found = []
        for number in range(stretches):
            low = number * len(counts) // stretches
            high = max(low + 1, (number + 1) * len(counts) // stretches)
            # An offset is in the stretch that it begins in, so they differ by one row.
            first, last = (-(-at * horizon // len(counts)) for at in (low, high))
            found.append(sum(counts[low:high]) / (last - first) if last > first else 0.0)
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTide:
    """One partition. Always start <= end and horizon <= watermark <= end."""

    partition: int
    start: int
    """Where the backlog begins."""
    horizon: int
    """The ledger covers the offsets below it."""
    watermark: int
    """The first offset that is later than the low watermark."""
    end: int
    """The next offset to be written."""
    expired: int
    """Below this offset, rows went by retention."""
    backlog_bytes: int
    kept_bytes: int
    """In the backlog though the ledger has it, too."""
    next_bytes: int
    """What the next run takes."""
    young_bytes: int
    """Later than the watermark."""
    ledger: TideLedger | None
    holders: tuple[TideHolder, ...]
    """In the order of their offsets."""

    @property
    def backlog_rows(self) -> int:
        """Rows that can be read one change after another."""
        return self.end - self.start

    @property
    def kept_rows(self) -> int:
        """In the backlog though the ledger has them, or their successors."""
        return max(0, self.horizon - self.start)

    @property
    def next_rows(self) -> int:
        """What the next run takes."""
        return self.watermark - max(self.horizon, self.start)

    @property
    def young_rows(self) -> int:
        """Later than the watermark."""
        return self.end - self.watermark

    @property
    def live_share(self) -> float:
        """How much of what was written below the horizon is left in the ledger."""
        if self.ledger is None or not self.horizon:
            return 0.0
        return (self.ledger.live_rows + self.ledger.deletes) / self.horizon
