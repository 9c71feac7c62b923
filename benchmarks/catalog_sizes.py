"""How much each figure of the catalog is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSizes:
    """Amounts; the shapes (what is in flight, what a history is made of) are the same in all."""

    mode: str
    runs: int
    """Rounds of clusters that count; one more comes before them."""
    start_runs: int
    """The same for starts of one node."""
    short_runs: int
    """The same for what happens in memory."""
    variants: bool = True
    restart_versions: int
    restart_versions_few: int = 10
    replay_versions: int
    history_tables: int
    """How many tables there are at a time, however long the history."""
    lookup_versions: int = 20_000
    lookup_versions_few: int = 200
    lookup_tables: int = 25
    """Fewer, so that a history of few versions has all steps of a long one."""
    lookups: int
    apply_tables: int = 10_000
    apply_tables_few: int = 100
    applied: int
    transactions: int
    watched_puts: int

    @classmethod
    def full(cls) -> Self:
        """The sizes that the targets name."""
        return cls(
            mode="full",
            runs=3,
            start_runs=5,
            short_runs=7,
            restart_versions=20_000,
            replay_versions=20_000,
            history_tables=200,
            lookups=500_000,
            applied=4_000,
            transactions=30_000,
            watched_puts=10_000,
        )

    @classmethod
    def quick(cls) -> Self:
        """Less data, the same shape: shorter histories to start with, fewer rounds."""
        return cls(
            mode="quick",
            runs=1,
            start_runs=2,
            short_runs=3,
            variants=False,
            restart_versions=3_000,
            replay_versions=3_000,
            history_tables=200,
            lookups=100_000,
            applied=500,
            transactions=6_000,
            watched_puts=3_000,
        )

    @classmethod
    def tiny(cls) -> Self:
        """For the bench's own tests: everything runs, nothing is worth reading."""
        return cls(
            mode="tiny",
            runs=1,
            start_runs=1,
            short_runs=1,
            variants=False,
            restart_versions=60,
            replay_versions=60,
            history_tables=4,
            lookup_versions=200,
            lookup_versions_few=20,
            lookup_tables=2,
            lookups=1_000,
            apply_tables=50,
            apply_tables_few=5,
            applied=20,
            transactions=200,
            watched_puts=50,
        )

    @property
    def space_needed_bytes(self) -> int:
        """What the largest figure needs on the disk at one time, with some room."""
        etcd = 3 * 2 * 64 * MIB + 7 * self.transactions * KIB
        histories = 4 * KIB * max(self.restart_versions, self.replay_versions)
        return max(etcd, histories) + 512 * MIB
