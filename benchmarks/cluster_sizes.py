"""How much each figure of a cluster is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from benchmarks.table_workload import BATCH_ROWS, ROW_BYTES

MIB = 1 << 20
GROUP_BYTES = 48 << 10
"""What an empty partition takes on a node's disk, with some room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSizes:
    """Amounts; the shapes (nodes, replicas, partitions of a table) are the same in all of them."""

    mode: str
    runs: int
    variants: bool = False
    groups: int
    """Partitions that a node has a copy of."""
    groups_few: int
    idle_seconds: float
    clients: int = 4
    load_batches: int
    """Of 10,000 rows, by each client, in a turn."""
    kills: int
    """Of a leader: as many rounds there are with clients."""
    kill_seconds: float
    """Clients append for so long; the leader is killed in the middle of it."""
    paced_batches: int
    """Of 1,000 rows, by each client, with all nodes and with one killed."""
    delay_ms: float | None = None
    """Each node is in a host of its own, and what leaves it arrives so much later."""

    @classmethod
    def full(cls) -> Self:
        """The sizes that the targets name."""
        return cls(
            mode="full",
            runs=3,
            groups=2_400,
            groups_few=300,
            idle_seconds=30.0,
            load_batches=50,
            kills=10,
            kill_seconds=6.0,
            paced_batches=250,
        )

    @classmethod
    def quick(cls) -> Self:
        """Fewer rounds, the same shape."""
        return cls(
            mode="quick",
            runs=1,
            groups=2_400,
            groups_few=300,
            idle_seconds=5.0,
            load_batches=15,
            kills=3,
            kill_seconds=3.0,
            paced_batches=50,
        )

    @classmethod
    def tiny(cls) -> Self:
        """For the bench's own tests: everything runs, nothing is worth reading."""
        return cls(
            mode="tiny",
            runs=1,
            groups=9,
            groups_few=3,
            idle_seconds=0.2,
            clients=2,
            load_batches=1,
            kills=1,
            kill_seconds=0.4,
            paced_batches=5,
        )

    @property
    def space_needed_bytes(self) -> int:
        """What the largest figure needs on the disk at one time, with some room."""
        groups = 3 * (self.groups + self.groups_few) * GROUP_BYTES
        # On three nodes and on one, turn by turn; while a segment is written, its WAL is there too.
        batches = 4 * (self.kills + 1) * (self.load_batches + 1) * self.clients
        rows = batches * BATCH_ROWS * ROW_BYTES
        return max(groups, 2 * rows) + 512 * MIB
