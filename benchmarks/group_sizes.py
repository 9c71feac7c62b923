"""How much each figure of groups is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSizes:
    """Amounts; the shapes (entry sizes, what is in flight) are the same in all of them."""

    mode: str
    runs: int
    variants: bool = True
    entries_1m: int
    small: int
    """Proposals of 100 bytes."""
    large: int
    """Proposals of 256 KiB."""
    kills: int
    kill_tick_ms: int
    catch_up_bytes: int
    idle_runs: int = 1
    idle_groups: int
    idle_seconds: float

    @classmethod
    def full(cls) -> Self:
        """The sizes that the targets name."""
        return cls(
            mode="full",
            runs=3,
            entries_1m=512,
            small=30_000,
            large=1_500,
            kills=10,
            kill_tick_ms=100,
            catch_up_bytes=GIB,
            idle_groups=500,
            idle_seconds=30.0,
        )

    @classmethod
    def quick(cls) -> Self:
        """Less data, the same shape."""
        return cls(
            mode="quick",
            runs=1,
            variants=False,
            entries_1m=96,
            small=6_000,
            large=200,
            kills=3,
            kill_tick_ms=30,
            catch_up_bytes=128 * MIB,
            idle_groups=500,
            idle_seconds=3.0,
        )

    @classmethod
    def tiny(cls) -> Self:
        """For the bench's own tests: everything runs, nothing is worth reading."""
        return cls(
            mode="tiny",
            runs=1,
            variants=False,
            entries_1m=4,
            small=200,
            large=8,
            kills=1,
            kill_tick_ms=20,
            catch_up_bytes=4 * MIB,
            idle_groups=8,
            idle_seconds=0.2,
        )

    @property
    def space_needed_bytes(self) -> int:
        """What the largest figure needs on the disk at one time, with some room."""
        replicated = 3 * 2 * self.entries_1m * MIB
        etcd = 7 * self.large * 256 * KIB
        caught_up = 4 * self.catch_up_bytes
        return max(replicated, etcd, caught_up) + 512 * MIB
