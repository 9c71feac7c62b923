"""How much `bench compact` is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from benchmarks.compact_workload import ROW_BYTES

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSizes:
    """Amounts; the shapes (rows, changes per key, partitions) are the same in all."""

    mode: str
    runs: int
    """Rounds that count."""
    spark_runs: int
    """Rounds in which plain Spark has a turn, too."""
    whole_warm_up: bool
    """Whether the round before them is like the others; else it is a small one."""
    variants: bool
    rows: int
    keys: int
    spark_partitions: int = 2
    """Plain Spark is given so many of the partitions."""
    rewritten_in: int = 100
    """One key in so many is rewritten before the second run."""
    empty_jobs: int = 5
    starts: int = 1
    """How often a session is started in a process of its own, with the archive and without it."""

    @classmethod
    def full(cls) -> Self:
        """The sizes that the targets name, in more rounds."""
        return cls(
            mode="full",
            runs=5,
            spark_runs=2,
            whole_warm_up=True,
            variants=True,
            rows=20_000_000,
            keys=2_000_000,
            starts=3,
        )

    @classmethod
    def quick(cls) -> Self:
        """The same sizes in fewer rounds."""
        return cls(
            mode="quick",
            runs=3,
            spark_runs=1,
            whole_warm_up=False,
            variants=False,
            rows=20_000_000,
            keys=2_000_000,
        )

    @classmethod
    def tiny(cls) -> Self:
        """For the bench's own tests: everything runs, nothing is worth reading."""
        return cls(
            mode="tiny",
            runs=1,
            spark_runs=1,
            whole_warm_up=True,
            variants=True,
            rows=20_000,
            keys=2_000,
            empty_jobs=1,
            starts=0,
        )

    @property
    def half_rows(self) -> int:
        """Of the smaller table that `rows_growth` compares with."""
        return self.rows // 2

    @property
    def half_keys(self) -> int:
        """As many changes of each."""
        return self.keys // 2

    @property
    def space_needed_bytes(self) -> int:
        """What is on the disk at one time, with some room."""
        # Two databases and the peers' input; then what is left, of everybody.
        inputs = self.rows + self.half_rows + self.rows * (2 if self.variants else 1)
        return (inputs + 6 * self.keys) * ROW_BYTES * 5 // 4 + 512 * MIB
