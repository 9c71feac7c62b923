"""How much each figure of a rebalance is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from benchmarks.table_workload import BATCH_ROWS, ROW_BYTES

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceSizes:
    """Amounts; the shapes (nodes, replicas, what joins) are the same in all of them."""

    mode: str
    runs: int
    """Rounds of moves between nodes."""
    variants: bool = False
    move_bytes: int
    """Of the partition that moves alone."""
    load_bytes: int
    """Of the partitions that move while clients append."""
    load_partitions: int = 4
    load_seconds: float
    """Clients append for this long before partitions move, and for as long after."""
    clients: int = 4
    paced_batches: int = 50
    """Of 1,000 rows: each client has this many, and appends them again and again."""
    plan_runs: int
    """Rounds of plans."""
    joined: int = 5
    """Nodes that another one joins,"""
    joined_partitions: int = 300
    """and their partitions."""
    plan_nodes: int
    plan_partitions: int
    plan_partitions_few: int
    plan_joining: int = 10

    @classmethod
    def full(cls) -> Self:
        """The sizes that the targets name."""
        return cls(
            mode="full",
            runs=5,
            move_bytes=512 * MIB,
            load_bytes=512 * MIB,
            load_seconds=5.0,
            plan_runs=5,
            plan_nodes=1_000,
            plan_partitions=100_000,
            plan_partitions_few=10_000,
        )

    @classmethod
    def quick(cls) -> Self:
        """Less data and fewer rounds, the same shape; plans are those of a full run."""
        return cls(
            mode="quick",
            runs=3,
            move_bytes=128 * MIB,
            load_bytes=128 * MIB,
            load_seconds=2.0,
            plan_runs=5,
            plan_nodes=1_000,
            plan_partitions=100_000,
            plan_partitions_few=10_000,
        )

    @classmethod
    def tiny(cls) -> Self:
        """For the bench's own tests: everything runs, nothing is worth reading."""
        return cls(
            mode="tiny",
            runs=1,
            move_bytes=2 * MIB,
            load_bytes=4 * MIB,
            load_seconds=0.2,
            clients=2,
            paced_batches=5,
            plan_runs=1,
            plan_nodes=20,
            plan_partitions=200,
            plan_partitions_few=50,
            plan_joining=2,
        )

    @property
    def space_needed_bytes(self) -> int:
        """What the largest figure needs on the disk at one time, with some room."""
        # A partition is at two nodes while it moves, in the WAL and in segments; beside a file and
        # its copy.
        moved = 6 * max(self.move_bytes, self.load_bytes)
        # On three nodes, as fast as any machine appends.
        appended = 3 * self.runs * int(4 * self.load_seconds + 8) * 60 * BATCH_ROWS * ROW_BYTES
        return moved + appended + 512 * MIB


def rows_of(size_bytes: int) -> int:
    """The rows of this many bytes, in whole batches."""
    return -(-size_bytes // (BATCH_ROWS * ROW_BYTES)) * BATCH_ROWS
