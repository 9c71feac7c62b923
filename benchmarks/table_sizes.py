"""How much each figure of tables is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from benchmarks.table_workload import BATCH_ROWS, ROW_BYTES

KIB, MIB = 1 << 10, 1 << 20
BATCH_BYTES = BATCH_ROWS * ROW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSizes:
    """Amounts; the shapes (rows, batches, partitions) are the same in all."""

    mode: str
    runs: int
    """Rounds that count; one more comes before them."""
    short_runs: int
    """The same for figures whose turns are short."""
    memory_runs: int
    variants: bool = True
    roll_overs: int = 4
    """Of the WAL, at least, in every turn that appends batches."""
    append_wal_bytes: int
    objects_wal_bytes: int
    """The same for rows that are Python objects, which take more memory."""
    sent: int
    one_rows: int
    keys: int
    gets: int
    read_rows: int
    memory_rows: int
    memory_rows_few: int
    memory_wal_bytes: int
    """Small enough to roll over before the first weighing: until then memory grows with the WAL."""

    @classmethod
    def full(cls) -> Self:
        """The sizes that the targets name."""
        return cls(
            mode="full",
            runs=3,
            short_runs=7,
            memory_runs=2,
            append_wal_bytes=32 * MIB,
            objects_wal_bytes=8 * MIB,
            sent=300_000,
            one_rows=1_000,
            keys=1_000_000,
            gets=50_000,
            read_rows=2_000_000,
            memory_rows=20_000_000,
            memory_rows_few=5_000_000,
            memory_wal_bytes=256 * MIB,
        )

    @classmethod
    def quick(cls) -> Self:
        """Less data, the same shape."""
        return cls(
            mode="quick",
            runs=2,
            short_runs=3,
            memory_runs=1,
            variants=False,
            append_wal_bytes=16 * MIB,
            objects_wal_bytes=4 * MIB,
            sent=100_000,
            one_rows=300,
            keys=200_000,
            gets=20_000,
            read_rows=500_000,
            memory_rows=4_000_000,
            memory_rows_few=1_000_000,
            memory_wal_bytes=16 * MIB,
        )

    @classmethod
    def tiny(cls) -> Self:
        """For the bench's own tests: everything runs, nothing is worth reading."""
        return cls(
            mode="tiny",
            runs=1,
            short_runs=1,
            memory_runs=1,
            roll_overs=1,
            append_wal_bytes=MIB,
            objects_wal_bytes=MIB,
            sent=2_000,
            one_rows=5,
            keys=2_000,
            gets=50,
            read_rows=20_000,
            memory_rows=40_000,
            memory_rows_few=10_000,
            memory_wal_bytes=MIB,
        )

    def appended(self, wal_bytes: int) -> int:
        """How many rows it takes to roll a WAL of that size over often enough."""
        # A file is full when a batch ends, so it may take a little more than its size.
        return BATCH_ROWS * (self.roll_overs * (wal_bytes // BATCH_BYTES + 2) + 1)

    @property
    def space_needed_bytes(self) -> int:
        """What the largest figure needs on the disk at one time, with some room."""
        # PostgreSQL's WAL keeps what it was fed, turn by turn, beside its table and its index.
        turns = (self.runs + 2) * (2 if self.variants else 1)
        appended = self.appended(self.append_wal_bytes) * ROW_BYTES
        others = max(self.memory_rows, 3 * self.read_rows, 4 * self.keys) * ROW_BYTES
        return max(3 * turns * appended, 2 * others) + 512 * MIB
