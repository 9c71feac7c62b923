"""The log as the core sees it: what storage has, and what is on its way there.

Entries and snapshots that were handed out to be written stay here (`_Tail`) until storage says that
they are durable, because until then storage may not serve them; entries stay until they are applied
too, so that they need not be read back for it.

An acknowledgement names the end of the log and the term in which the write was ordered. If the term
has changed meanwhile, it is not believed: entries may have been overwritten and overwritten back,
and an order that is still on its way could undo what the acknowledgement describes. Every later
acknowledgement names the end of the log again, so what is durable is believed in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from lowmark.errors import Corrupt, InvariantBroken, Rejected, invariant
from lowmark.raft.messages import (
    ConfState,
    Entry,
    HardState,
    Snapshot,
    entries_bytes,
)


class LogLost(Corrupt):
    """The leader has committed what this log acknowledged and no longer has."""

    def __init__(self, *, commit: int, last: int) -> None:
        super().__init__(
            f"entry {commit} is committed, but the log ends at {last}",
            detail="Acknowledged entries are missing: an older disk was put back, or files are"
            " gone.",
            hint="This copy must be thrown away and made again from the other members.",
        )


class LogDiverged(Corrupt):
    """The leader's log contradicts an entry that is committed here."""

    def __init__(self, *, index: int, commit: int) -> None:
        super().__init__(
            f"entry {index} of the leader differs from ours, which is committed",
            detail=f"Everything up to {commit} is committed here.",
            hint="Find the member whose disk or version is wrong before going on.",
        )


class LineageLeft(Rejected):
    """A leader of a later lineage calls: the group was reset, and this copy is none of it."""

    def __init__(self, *, own: int, theirs: int) -> None:
        super().__init__(
            f"the group was reset in term {theirs}, without this copy",
            detail=f"This copy's lineage is {own}: what it has may not be what the group has.",
            hint="Rebuild this copy.",
        )
        self.theirs = theirs


class Storage(Protocol):
    """What is durable, or will be in order: the core only reads it.

    Nothing is compacted away before the core was told that it is applied.
    """

    def initial_state(self) -> tuple[HardState, ConfState]:
        """The hard state, and the members at what is applied (`Config.applied`)."""

    def first_index(self) -> int:
        """The first index that `entries` can give; the one before it has a term at least."""

    def last_index(self) -> int:
        """The last index."""

    def term(self, index: int) -> int | None:
        """The term of an entry; None if it is compacted away or not there."""

    def entries(self, low: int, high: int, bytes_max: int) -> list[Entry] | None:
        """Entries in [low, high), at least one if there are any; None if compacted away."""

    def snapshot(self) -> Snapshot | None:
        """The snapshot in force; None if there is none to send just now."""


def limit_bytes(entries: list[Entry], bytes_max: int) -> list[Entry]:
    """The first entries that fit, and at least one."""
    if entries_bytes(entries) <= bytes_max:
        return entries
    size = 0
    for at, entry in enumerate(entries):
        size += entries_bytes([entry])
        if size > bytes_max and at:
            return entries[:at]
    return entries


class _Tail:
    """The end of the log: what is not known to be durable, and before that what is not applied.

    `entries[i]` has index `start + i`; everything below `offset` is durable.
    """

    __slots__ = (
        "before",
        "entries",
        "in_progress",
        "offset",
        "snapshot",
        "snapshot_in_progress",
        "start",
    )

    def __init__(self, start: int) -> None:
        self.entries: list[Entry] = []
        self.start = start
        self.before = (-1, 0)
        """The last entry that left: (index, term)."""
        self.offset = start
        self.in_progress = start
        """Entries below were handed out to be written."""
        self.snapshot: Snapshot | None = None
        self.snapshot_in_progress = False

    def term(self, index: int) -> int | None:
        at = index - self.start
        if at >= 0:
            return self.entries[at].term if at < len(self.entries) else None
        if index == self.before[0]:
            return self.before[1]
        snapshot = self.snapshot
        return snapshot.term if snapshot is not None and snapshot.index == index else None

    def accept(self) -> None:
        self.in_progress = max(self.in_progress, self.start + len(self.entries))
        if self.snapshot is not None:
            self.snapshot_in_progress = True

    def stable_to(self, index: int, term: int) -> None:
        if index >= self.offset and self.term(index) == term:
            self.offset = index + 1
            self.in_progress = max(self.in_progress, self.offset)

    def forget_to(self, applied: int) -> None:
        """What is both durable and applied is read from storage, if ever again."""
        last = min(applied, self.offset - 1)
        count = last + 1 - self.start
        if count > 0:
            self.before = (last, self.entries[count - 1].term)
            del self.entries[:count]
            self.start = last + 1

    def stable_snapshot_to(self, index: int) -> None:
        if self.snapshot is not None and self.snapshot.index == index:
            self.snapshot = None
            self.snapshot_in_progress = False

    def restore(self, snapshot: Snapshot) -> None:
        self.start = self.offset = self.in_progress = snapshot.index + 1
        self.before = (snapshot.index, snapshot.term)
        self.entries = []
        self.snapshot = snapshot
        self.snapshot_in_progress = False

    def overwrite(self, entries: list[Entry]) -> None:
        first = entries[0].index
        if first <= self.start:
            self.entries = list(entries)
            self.start = first
            if self.before[0] >= first:
                self.before = (-1, 0)
        else:
            self.entries[first - self.start :] = entries
        self.offset = min(self.offset, first)
        self.in_progress = min(self.in_progress, first)


class LogView:
    """Where the log begins and ends, what is committed, what is being applied."""

    def __init__(self, storage: Storage, *, applying_bytes_max: int) -> None:
        self.storage = storage
        first, last = storage.first_index(), storage.last_index()
        self.unstable = _Tail(last + 1)
        self.committed = first - 1
        self.applying = first - 1
        """Everything up to here was handed out to be applied."""
        self.applied = first - 1
        self._applying_bytes_max = applying_bytes_max
        self._applying_bytes = 0
        self._applying_paused = False

    # -- where it stands ------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        """The first index whose entry is here."""
        snapshot = self.unstable.snapshot
        return snapshot.index + 1 if snapshot is not None else self.storage.first_index()

    @property
    def last_index(self) -> int:
        """The last index, durable or not."""
        tail = self.unstable
        return tail.start + len(tail.entries) - 1

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        if self.unstable.entries:
            return self.unstable.entries[-1].term
        term = self.term(self.last_index)
        invariant(term is not None, "the last entry of a log has a term")
        return term or 0

    def term(self, index: int) -> int | None:
        """The term of an entry; None if it is compacted away or not there."""
        term = self.unstable.term(index)
        if term is not None:
            return term
        if index + 1 < self.first_index or index > self.last_index:
            return None
        return self.storage.term(index)

    def matches(self, index: int, term: int) -> bool:
        """Whether there is an entry of this index and term."""
        return self.term(index) == term

    def is_up_to_date(self, index: int, term: int) -> bool:
        """Whether a log that ends so lacks nothing of what could be committed in this one."""
        last = self.last_term
        return term > last or (term == last and index >= self.last_index)

    # -- reading --------------------------------------------------------------------------------

    def entries(self, first: int, bytes_max: int) -> list[Entry] | None:
        """Entries from an index on; None if they are compacted away."""
        last = self.last_index
        return [] if first > last else self.slice(first, last + 1, bytes_max)

    def slice(self, low: int, high: int, bytes_max: int) -> list[Entry] | None:
        """Entries in [low, high) that fit, and at least one; None if they are compacted away."""
        if low < self.first_index:
            return None
        tail, start = self.unstable.entries, self.unstable.start
        if low >= start:
            return limit_bytes(tail[low - start : high - start], bytes_max)
        cut = min(high, start)
        stored = self.storage.entries(low, cut, bytes_max)
        if stored is None:
            return None
        stored = limit_bytes(stored, bytes_max)
        size = entries_bytes(stored)
        if len(stored) < cut - low or high <= start or size >= bytes_max:
            return stored
        more = limit_bytes(tail[: high - start], bytes_max - size)
        if len(more) == 1 and size + entries_bytes(more) > bytes_max:
            return stored
        return stored + more

    def scan(self, low: int, high: int, bytes_max: int) -> Iterator[Entry]:
        """All entries in [low, high), page by page."""
        while low < high:
            page = self.slice(low, high, bytes_max)
            invariant(page, "entries that are not applied are not compacted away")
            yield from page or ()
            low += len(page or ())

    # -- writing --------------------------------------------------------------------------------

    def append(self, entries: list[Entry]) -> int:
        """Put entries at the end, or over what follows; give the last index."""
        tail = self.unstable
        if entries:
            first = entries[0].index
            if first <= self.committed:
                invariant(False, "nothing that is committed is overwritten")
            if first == tail.start + len(tail.entries):
                tail.entries += entries
            else:
                tail.overwrite(entries)
        return tail.start + len(tail.entries) - 1

    def maybe_append(
        self, index: int, log_term: int, commit: int, entries: list[Entry]
    ) -> int | None:
        """Take what a leader sent; give the last index that is the same now, None if none is."""
        if not self.matches(index, log_term):
            return None
        last = index + len(entries)
        conflict = self._find_conflict(entries)
        if conflict:
            if conflict <= self.committed:
                raise LogDiverged(index=conflict, commit=self.committed)
            self.append(entries[conflict - index - 1 :])
        self.commit_to(min(commit, last))
        return last

    def _find_conflict(self, entries: list[Entry]) -> int:
        """The first index that is new or of another term; 0 if there is none."""
        if entries and entries[0].index > self.last_index:
            return entries[0].index  # by far the most frequent case
        for entry in entries:
            if not self.matches(entry.index, entry.term):
                return entry.index
        return 0

    def find_conflict_by_term(self, index: int, term: int) -> tuple[int, int]:
        """The highest index up to this one whose term is at most `term`, and its term.

        Both sides of a refused append use it to skip whole terms: all that is known of the other
        log is that it has (index, term), and terms only rise within a log.
        """
        low = self.first_index - 1
        if not low <= index <= self.last_index:
            return index, 0
        if (self.term(low) or 0) > term:
            return max(low - 1, 0), 0
        high = index
        while low < high:
            middle = (low + high + 1) // 2
            if (self.term(middle) or 0) <= term:
                low = middle
            else:
                high = middle - 1
        return low, self.term(low) or 0

    def commit_to(self, index: int) -> None:
        """Never goes back."""
        if self.committed < index:
            if self.last_index < index:
                raise LogLost(commit=index, last=self.last_index)
            self.committed = index

    def maybe_commit(self, index: int, term: int) -> bool:
        """Commit up to an entry, if it is of this term; a leader's own one if it counts (5.4.2)."""
        if index > self.committed and self.term(index) == term:
            self.commit_to(index)
            return True
        return False

    @property
    def all_durable(self) -> bool:
        """Whether all entries are known to be durable."""
        tail = self.unstable
        return tail.offset == tail.start + len(tail.entries)

    def stable_to(self, index: int, term: int) -> None:
        """A write is done that ended with this entry."""
        self.unstable.stable_to(index, term)
        self.unstable.forget_to(self.applied)

    def restore(self, snapshot: Snapshot) -> None:
        """The log begins behind this snapshot now."""
        self.committed = snapshot.index
        self.unstable.restore(snapshot)

    # -- applying -------------------------------------------------------------------------------

    def _appliable(self, allow_unstable: bool) -> int:
        return self.committed if allow_unstable else min(self.committed, self.unstable.offset - 1)

    def has_next_committed(self, allow_unstable: bool) -> bool:
        """Whether there is something to apply now. A snapshot goes first."""
        tail = self.unstable
        if self._applying_paused or tail.snapshot is not None:
            return False
        return self.applying < self.committed and (
            allow_unstable or self.applying < tail.offset - 1
        )

    def next_committed(self, allow_unstable: bool) -> list[Entry]:
        """What is to be applied next, within the limit on what is being applied."""
        if not self.has_next_committed(allow_unstable):
            return []
        low, high = self.applying + 1, self._appliable(allow_unstable) + 1
        entries = self.slice(low, high, self._applying_bytes_max - self._applying_bytes)
        if not entries:
            raise InvariantBroken("entries that are not applied are not compacted away")
        return entries

    def accept_applying(self, index: int, size: int, allow_unstable: bool) -> None:
        """Everything up to an index was handed out to be applied."""
        self.applying = index
        self._applying_bytes += size
        self._applying_paused = (
            self._applying_bytes >= self._applying_bytes_max
            or index < self._appliable(allow_unstable)
        )

    def applied_to(self, index: int, size: int) -> None:
        """Everything up to an index is applied."""
        if not self.applied <= index <= self.committed:
            invariant(False, "only committed entries are applied")
        self.applied = index
        self.applying = max(self.applying, index)
        self._applying_bytes = max(0, self._applying_bytes - size)
        self._applying_paused = self._applying_bytes >= self._applying_bytes_max
        self.unstable.forget_to(index)
