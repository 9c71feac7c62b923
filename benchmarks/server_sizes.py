"""How much each figure of the server is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from benchmarks.table_sizes import BATCH_BYTES, MIB
from benchmarks.table_workload import BATCH_ROWS, ROW_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSizes:
    """Amounts; the shapes (rows, batches, partitions, clients, windows) are the same in all."""

    mode: str
    runs: int
    """Rounds that count; one more comes before them."""
    short_runs: int
    """The same for figures whose turns are short."""
    variants: bool = True
    roll_overs: int = 4
    """Of the WAL, at least, in every turn that appends batches."""
    append_wal_bytes: int
    sent: int
    published: int
    """Messages for NATS, which takes them more slowly."""
    read_rows: int
    keys: int
    gets: int
    """By each client."""
    append_clients: int = 4
    get_clients: int = 16

    @classmethod
    def full(cls) -> Self:
        """The sizes that the targets name."""
        return cls(
            mode="full",
            runs=5,
            short_runs=7,
            append_wal_bytes=32 * MIB,
            sent=400_000,
            published=50_000,
            read_rows=2_000_000,
            keys=1_000_000,
            gets=2_000,
        )

    @classmethod
    def quick(cls) -> Self:
        """Less data, the same shape."""
        return cls(
            mode="quick",
            runs=2,
            short_runs=3,
            variants=False,
            append_wal_bytes=16 * MIB,
            sent=100_000,
            published=10_000,
            read_rows=1_000_000,
            keys=200_000,
            gets=200,
        )

    @classmethod
    def tiny(cls) -> Self:
        """For the bench's own tests: everything runs, nothing is worth reading."""
        return cls(
            mode="tiny",
            runs=1,
            short_runs=1,
            roll_overs=1,
            append_wal_bytes=MIB,
            sent=2_000,
            published=500,
            read_rows=20_000,
            keys=10_000,
            gets=10,
            append_clients=2,
            get_clients=2,
        )

    def appended(self, clients: int) -> int:
        """How many rows it takes to roll the WAL over often enough, as many by each client."""
        # A file is full when a batch ends, so it may take a little more than its size.
        batches = self.roll_overs * (self.append_wal_bytes // BATCH_BYTES + 2) + 1
        return BATCH_ROWS * clients * -(-batches // clients)

    @property
    def space_needed_bytes(self) -> int:
        """What the largest figure needs on the disk at one time, with some room."""
        turns = self.runs + 1
        # NATS keeps what it was sent, turn by turn.
        published = 3 * turns * self.published * 3 * ROW_BYTES
        rows = max(self.appended(self.append_clients), self.sent, 2 * self.read_rows, 2 * self.keys)
        return 3 * rows * ROW_BYTES + published + 512 * MIB
