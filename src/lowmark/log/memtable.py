"""The entries of one group that are not in segments yet.

Two views of the same runs: `view` is the log's tail as it stands, newest writes winning, for reads;
`by_wal` is, per WAL file, what that file holds, overwritten only by itself. The segment writer
flushes the second: an entry that a later file overwrites is flushed all the same, because that
later write may not be durable yet when the older file goes.
"""

from __future__ import annotations

from bisect import bisect_right

from lowmark.errors import invariant
from lowmark.log.entries import Run


class FlushPart:
    """A run in a WAL file, and how many of its first entries that same file has not overwritten."""

    __slots__ = ("kept", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.kept = run.count


class Memtable:
    """Runs in memory, in log order."""

    def __init__(self) -> None:
        self.view: list[Run] = []
        self.by_wal: dict[int, list[Run]] = {}

    @property
    def first(self) -> int | None:
        """The first index it holds."""
        return self.view[0].first if self.view else None

    @property
    def last(self) -> int | None:
        """The last index it holds."""
        if not self.view:
            return None
        newest = self.view[-1]
        return newest.first + newest.kept - 1

    def append(self, run: Run) -> None:
        """Add a run at the end; what it overwrites leaves the view."""
        # Written out, without the properties: a start comes here once per record of the WAL.
        view, first = self.view, run.first
        if view and view[-1].first + view[-1].kept > first:
            self.truncate(first)
        if view:
            newest = view[-1]
            kept = newest.kept
            if newest.first + kept != first:
                invariant(False, "a tail has no gaps")
            whole = kept == newest.count
            run.bytes_before = newest.bytes_before + (
                newest.data_bytes if whole else newest.kept_bytes
            )
        view.append(run)

    def truncate(self, first: int) -> None:
        """Take everything from `first` on out of the view."""
        view = self.view
        while view and view[-1].kept_last >= first:
            if view[-1].first >= first:
                view.pop().kept = 0
            else:
                view[-1].kept = first - view[-1].first
                return

    def stored(self, run: Run, wal: int) -> None:
        """Note that a run is going into a WAL file."""
        run.wal = wal
        runs = self.by_wal.get(wal)
        if runs is None:
            runs = self.by_wal[wal] = []
        runs.append(run)

    def unstored(self, run: Run) -> None:
        """Note that a run did not get into its WAL file after all."""
        self.by_wal[run.wal] = [other for other in self.by_wal[run.wal] if other is not run]
        run.wal = 0

    def flushed(self, wal: int) -> None:
        """Forget what is in segments now."""
        self.by_wal.pop(wal, None)
        self.view = [run for run in self.view if run.wal != wal]

    def clear(self) -> None:
        """Forget everything; a run that is being written just now no longer counts, either."""
        for run in (*self.view, *(run for runs in self.by_wal.values() for run in runs)):
            run.kept = run.wal = 0
        self.view.clear()
        self.by_wal.clear()

    def find(self, index: int) -> Run | None:
        """The run that holds an index in the view."""
        at = self.position(index)
        return self.view[at] if at >= 0 and index <= self.view[at].kept_last else None

    def position(self, index: int) -> int:
        """Where the run that begins at or before an index stands in the view; -1 if none does."""
        newest = len(self.view) - 1
        if newest >= 0 and self.view[newest].first <= index:
            return newest  # most look at the log's end
        return bisect_right(self.view, index, key=lambda run: run.first) - 1

    def bytes_within(self, first: int, last: int) -> int:
        """How much data the entries from `first` to `last` have, as far as they are here.

        Runs come and are cut at the end, and go at the front; so the sums that they were given when
        they came stay right among themselves.
        """
        first, last = max(first, self.first or 0), min(last, self.last or -1)
        if first > last:
            return 0
        low, high = self.view[self.position(first)], self.view[self.position(last)]
        above = high.bytes_before + high.bytes_below(last + 1)
        return above - low.bytes_before - low.bytes_below(first)


def parts_of(runs: list[Run]) -> list[FlushPart]:
    """What one WAL file's runs of a group hold, without what they overwrote themselves."""
    parts: list[FlushPart] = []
    for run in runs:
        while parts and parts[-1].run.first + parts[-1].kept > run.first:
            if parts[-1].run.first >= run.first:
                parts.pop()
            else:
                parts[-1].kept = run.first - parts[-1].run.first
        parts.append(FlushPart(run))
    return parts
