"""How much `bench spark` is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from benchmarks.compact_workload import ROW_BYTES

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSizes:
    """Amounts; the shapes (rows, changes per key, partitions) are the same in all."""

    mode: str
    runs: int
    """Rounds that count."""
    variants: bool
    rows: int
    """Of a small table, of which the start of workers is a large part."""
    large_rows: int
    """Of a variant."""
    scan_runs: int
    scan_rows: int
    """Of a table that is read."""
    write_runs: int
    write_rows: int
    """Of a DataFrame that is written."""
    upsert_runs: int
    upsert_keys: int
    """Of a table some keys of which get new values."""
    stream_runs: int
    stream_rows: int
    """That a stream has before it."""
    idle_seconds: float
    """How long a session rests before a run; 0: it is told to end its workers now."""

    @classmethod
    def full(cls) -> Self:
        """The sizes that the targets name."""
        return cls(
            mode="full",
            runs=5,
            variants=True,
            rows=2_000_000,
            large_rows=20_000_000,
            scan_runs=7,
            scan_rows=10_000_000,
            write_runs=7,
            write_rows=4_000_000,
            upsert_runs=5,
            upsert_keys=10_000_000,
            stream_runs=5,
            stream_rows=3_000_000,
            idle_seconds=90.0,
        )

    @classmethod
    def quick(cls) -> Self:
        """The same table, and no time to rest."""
        return cls(
            mode="quick",
            runs=9,
            variants=False,
            rows=2_000_000,
            large_rows=20_000_000,
            scan_runs=3,
            scan_rows=4_000_000,
            write_runs=3,
            write_rows=1_000_000,
            upsert_runs=3,
            upsert_keys=1_000_000,
            stream_runs=2,
            stream_rows=600_000,
            idle_seconds=0.0,
        )

    @classmethod
    def tiny(cls) -> Self:
        """For the bench's own tests: everything runs, nothing is worth reading."""
        return cls(
            mode="tiny",
            runs=1,
            variants=True,
            rows=20_000,
            large_rows=40_000,
            scan_runs=1,
            scan_rows=2_000,
            write_runs=1,
            write_rows=2_000,
            upsert_runs=1,
            upsert_keys=2_000,
            stream_runs=1,
            stream_rows=2_000,
            idle_seconds=0.0,
        )

    @property
    def space_needed_bytes(self) -> int:
        """What is on the disk at one time, with some room."""
        rows = self.rows + (self.large_rows if self.variants else 0)
        compacted = rows * 2 * ROW_BYTES * 5 // 4
        scanned = self.scan_rows * 10 * ROW_BYTES
        # Delta Lake keeps the files of every version.
        upserted = self.upsert_keys * (self.upsert_runs + 4) * ROW_BYTES
        return max(compacted, scanned, upserted) + 512 * MIB
