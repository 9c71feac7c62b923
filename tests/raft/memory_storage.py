"""A log in memory: what a core reads from, and what its driver writes to."""

from __future__ import annotations

from lowmark.raft import ConfState, Entry, HardState, Snapshot

__all__ = ["MemoryStorage"]

_NOTHING = Snapshot(0, 0, ConfState())


class MemoryStorage:
    """Entries behind a snapshot; whatever is written here counts as durable."""

    def __init__(self, snapshot: Snapshot = _NOTHING) -> None:
        self.hard = HardState()
        self.base = snapshot
        """Where the log begins: its members are those that the core starts with."""
        self.compacted = (snapshot.index, snapshot.term)
        self.log: list[Entry] = []
        self.offered: Snapshot | None = None
        """What to send to members that are too far behind; else the base."""

    # -- what the core reads --------------------------------------------------------------------

    def initial_state(self) -> tuple[HardState, ConfState]:
        return self.hard, self.base.members

    def first_index(self) -> int:
        return self.compacted[0] + 1

    def last_index(self) -> int:
        return self.compacted[0] + len(self.log)

    def term(self, index: int) -> int | None:
        first = self.compacted[0]
        if index == first:
            return self.compacted[1]
        return self.log[index - first - 1].term if first < index <= self.last_index() else None

    def entries(self, low: int, high: int, bytes_max: int) -> list[Entry] | None:
        first = self.first_index()
        return None if low < first else self.log[low - first : high - first]

    def snapshot(self) -> Snapshot | None:
        return self.offered or (self.base if self.base.index else None)

    # -- what its driver writes -----------------------------------------------------------------

    def write(
        self, hard: HardState | None, entries: list[Entry], snapshot: Snapshot | None
    ) -> None:
        if hard is not None:
            self.hard = hard
        if snapshot is not None:
            self.install(snapshot)
        if entries:
            self.append(entries)

    def install(self, snapshot: Snapshot) -> None:
        """Begin anew behind a snapshot."""
        assert snapshot.index > self.base.index or not self.base.index
        self.base = snapshot
        self.compacted = (snapshot.index, snapshot.term)
        self.log = []

    def append(self, entries: list[Entry]) -> None:
        """Put entries at the end, or over what follows their first index."""
        entries = [entry for entry in entries if entry.index >= self.first_index()]
        if entries:
            keep = entries[0].index - self.first_index()
            assert keep <= len(self.log), "a gap"
            self.log = self.log[:keep] + entries

    def compact(self, index: int) -> None:
        """Forget everything up to an index."""
        term = self.term(index)
        assert term is not None
        self.log = self.log[index - self.compacted[0] :]
        self.compacted = (index, term)
