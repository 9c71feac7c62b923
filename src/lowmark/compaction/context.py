"""What all that have a part in one run know of it."""

from __future__ import annotations

from dataclasses import dataclass

from lowmark.backend.ledgers import Ledgers
from lowmark.backend.port import Backend
from lowmark.catalog import Table
from lowmark.compaction.cancel import CancelToken
from lowmark.compaction.options import RunOptions
from lowmark.compaction.records import Records
from lowmark.runtime.store import Store


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
