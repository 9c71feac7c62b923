"""How much each figure of the upkeep is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from benchmarks.cluster_sizes import GROUP_BYTES
from benchmarks.table_workload import BATCH_ROWS, ROW_BYTES

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepSizes:
    """Amounts; the shapes (nodes, replicas, what a history is made of) are the same in all."""

    mode: str
    runs: int
    """Cuts on clusters that count; the first one of each cluster does not."""
    load_runs: int
    """Turns of clients with rounds, and without."""
    start_runs: int
    memory_runs: int = 1
    """What is allocated hardly differs from one time to the next."""
    variants: bool = True
    groups: int
    """Partitions that every node has a copy of."""
    groups_few: int
    look_seconds: float = 1.0
    """Nodes are watched for this long at a time until they rest."""
    load_seconds: float
    """Clients append for this long in a turn."""
    clients: int = 4
    paced_batches: int = 50
    """Of 1,000 rows: each client has this many, and appends them again and again."""
    versions: int
    """Of the catalog that is cut."""
    versions_few: int = 5
    """Of a new one: the fewest that make its tables."""
    tables: int = 200

    @classmethod
    def full(cls) -> Self:
        """The sizes that the targets name."""
        return cls(
            mode="full",
            runs=9,
            load_runs=7,
            start_runs=7,
            groups=1_000,
            groups_few=100,
            load_seconds=10.0,
            versions=20_000,
        )

    @classmethod
    def quick(cls) -> Self:
        """Fewer rounds, shorter turns and a shorter history, the same shape."""
        return cls(
            mode="quick",
            runs=2,
            load_runs=3,
            start_runs=3,
            variants=False,
            groups=1_000,
            groups_few=100,
            load_seconds=2.0,
            versions=2_000,
        )

    @classmethod
    def tiny(cls) -> Self:
        """For the bench's own tests: everything runs, nothing is worth reading."""
        return cls(
            mode="tiny",
            runs=1,
            load_runs=1,
            start_runs=1,
            variants=False,
            groups=9,
            groups_few=3,
            look_seconds=0.2,
            load_seconds=0.4,
            clients=2,
            paced_batches=5,
            versions=60,
            tables=4,
        )

    @property
    def space_needed_bytes(self) -> int:
        """What the largest figure needs on the disk at one time, with some room."""
        groups = 3 * (self.groups + self.groups_few) * GROUP_BYTES
        # On three nodes, as fast as any machine appends.
        turns = self.load_runs * (4 if self.variants else 2)
        appended = 3 * turns * int(self.load_seconds + 1) * 60 * BATCH_ROWS * ROW_BYTES
        history = 4 * KIB * self.versions
        return max(groups, appended, history) + 512 * MIB
