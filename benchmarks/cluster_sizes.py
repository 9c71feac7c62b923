"""How much each figure of a cluster is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

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

    @classmethod
    def full(cls) -> Self:
        """The sizes that the targets name."""
        return cls(mode="full", runs=3, groups=2_400, groups_few=300, idle_seconds=30.0)

    @classmethod
    def quick(cls) -> Self:
        """Fewer rounds, the same shape."""
        return cls(mode="quick", runs=1, groups=2_400, groups_few=300, idle_seconds=5.0)

    @classmethod
    def tiny(cls) -> Self:
        """For the bench's own tests: everything runs, nothing is worth reading."""
        return cls(mode="tiny", runs=1, groups=9, groups_few=3, idle_seconds=0.2)

    @property
    def space_needed_bytes(self) -> int:
        """What the largest figure needs on the disk at one time, with some room."""
        return 3 * (self.groups + self.groups_few) * GROUP_BYTES + 512 * MIB
