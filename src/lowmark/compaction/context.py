"""What all that have a part in one run know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from lowmark.backend.ledgers import Ledgers
from lowmark.backend.port import Backend
from lowmark.catalog import Table
from lowmark.compaction.cancel import CancelToken
from lowmark.compaction.records import Records
from lowmark.runtime.store import Store

# What a caller asks of a run, and what it is told while the run goes on.

_TASK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: never less than it was told before, and all of it in the end."""

    step: str
    """`compacting`, or `done`."""
    bytes_done: int
    bytes_total: int
    partitions_done: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a run is to be made."""

    verify: bool = False
    trim: bool = True
    rewrite: bool = False
    """Write every file anew, though nothing may be new."""
    read_rate: int | None = None
    """Bytes a second; 0: no limit; None: no limit, or as before if the run is resumed."""
    write_rate: int | None = None
    memory_bytes: int = _TASK_BYTES
    trigger: str = "by hand"
    engine: Literal["", "spark", "local"] = ""
    where: str = ""
    progress: Callable[[Progress], None] | None = None
    step: Callable[[str], None] = field(default=lambda name: None)
    """Told of every step before it is made."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """One run, or one look at the ledgers of a table."""

    backend: Backend
    ledgers: Ledgers
    records: Records
    table: Table
    partitions: tuple[int, ...]
    options: RunOptions
    run: str
    """Its name."""
    token: CancelToken
    """Ends it."""

    @property
    def store(self) -> Store:
        """Where its files are."""
        return self.ledgers.store

    def step(self, name: str) -> None:
        """Tell of a step before it is made; raises if the run shall end."""
        self.token.check()
        self.options.step(name)

    def now_ms(self) -> int:
        """The wall clock of the database."""
        return self.backend.now().wall_ms
