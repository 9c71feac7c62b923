"""How much each figure is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSizes:
    """Amounts; the shapes (entry sizes, groups, batches) are the same in all of them."""

    mode: str
    runs: int
    """Rounds that count; one more comes before them."""
    long_runs: int
    """The same for figures whose rounds take long."""
    variants: bool = True
    """Whether figures come with their variants (one in flight, one group); quick ones do not."""
    roll_overs: int = 4
    large_wal_bytes: int
    """When the WAL rolls over in `append_1m_vs_raw`."""
    small_wal_bytes: int
    """The same in `append_100b_vs_sqlite`."""
    recover_bytes: int
    recover_small_bytes: int
    phase3_bytes: int
    """What phase 3 finds: half of it is dead."""
    during_wal_bytes: int
    during_seconds: float
    live_runs: int = 1
    live_indexes: int
    live_space: int
    segments: int

    @classmethod
    def full(cls) -> Self:
        """The sizes that the targets name."""
        return cls(
            mode="full",
            runs=4,
            long_runs=3,
            large_wal_bytes=256 * MIB,
            small_wal_bytes=32 * MIB,
            recover_bytes=GIB,
            recover_small_bytes=GIB,
            phase3_bytes=GIB,
            during_wal_bytes=64 * MIB,
            during_seconds=2.0,
            live_indexes=10_000_000,
            live_space=100_000_000,
            segments=10_000,
        )

    @classmethod
    def quick(cls) -> Self:
        """Less data, the same shape."""
        return cls(
            mode="quick",
            runs=2,
            long_runs=2,
            variants=False,
            large_wal_bytes=32 * MIB,
            small_wal_bytes=6 * MIB,
            recover_bytes=128 * MIB,
            recover_small_bytes=16 * MIB,
            phase3_bytes=256 * MIB,
            during_wal_bytes=16 * MIB,
            during_seconds=0.3,
            live_indexes=10_000_000,
            live_space=100_000_000,
            segments=1_500,
        )

    @classmethod
    def tiny(cls) -> Self:
        """For the bench's own tests: everything runs, nothing is worth reading."""
        return cls(
            mode="tiny",
            runs=1,
            long_runs=1,
            large_wal_bytes=4 * MIB,
            small_wal_bytes=256 * KIB,
            recover_bytes=4 * MIB,
            recover_small_bytes=MIB,
            phase3_bytes=8 * MIB,
            during_wal_bytes=2 * MIB,
            during_seconds=0.05,
            live_indexes=10_000,
            live_space=100_000,
            segments=50,
        )

    @property
    def space_needed_bytes(self) -> int:
        """What the largest figure needs on the disk at one time, with some room."""
        appended = (self.roll_overs + 1) * (2 * self.large_wal_bytes + 3 * self.small_wal_bytes)
        recovered = 4 * max(self.recover_bytes, self.recover_small_bytes)
        merged = 3 * self.phase3_bytes
        return max(appended, recovered, merged) + 256 * MIB
