"""The log's half of sending a snapshot: first live entries that the receiver lacks, then the state.

While it lives, the sender holds the entries it still has to send: a newer snapshot may make them
dead, but compaction leaves them where they are until the sender is closed. The state file stays
open, so it can be read to its end even when a newer snapshot has replaced it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap64

from lowmark.log import snapshot_format
from lowmark.log.entries import Entry
from lowmark.log.snapshot_format import SnapshotMeta
from lowmark.log.snapshots import STATE, Snapshot
from lowmark.runtime import Disk


def needed_by(live: BitMap64, last_applied: int) -> BitMap64:
    """The live indexes that a receiver lacks.

    Up to what it has applied, its own entries are the same as ours; above that they may be stale,
    so it gets all of them.
    """
    needed = live.copy()
    needed.remove_range(0, last_applied + 1)
    return needed


class StateSum(NamedTuple):
    """What the receiver must have got of the state."""

    length: int
    checksum: int


class SnapshotSender:
    """Reads one snapshot out, in order, in pieces of any size."""

    def __init__(
        self,
        disk: Disk,
        *,
        snapshot: Snapshot,
        needed: BitMap64,
        last_applied: int,
        read: Callable[[list[int], int], list[Entry]],
        on_close: Callable[[], None],
    ) -> None:
        path = f"{snapshot.folder}/{STATE}"
        self._file = disk.open(path, "read")
        self.meta: SnapshotMeta = snapshot.meta
        _, self._state_at = snapshot_format.decode_meta(disk.describe(path), self._file)
        trailer = snapshot_format.read_trailer(disk.describe(path), self._file, self._state_at)
        self.state_sum = StateSum(trailer.length, trailer.checksum)
        self.state_bytes = trailer.length
        self.needed = needed
        self._order = np.frombuffer(needed.to_array(), np.uint64)
        self._sent = 0
        self._previous = last_applied
        self._read = read
        self._on_close = on_close

    def entries(self, count_max: int = 256, bytes_max: int = 1 << 20) -> tuple[int, list[Entry]]:
        """The next live entries, and the index before them in the sequence; empty at the end.

        At least one comes, however large; after it no more than what `bytes_max` has room for.
        """
        indexes = self._order[self._sent : self._sent + count_max].tolist()
        previous, found = self._previous, self._read(indexes, bytes_max) if indexes else []
        self._sent += len(found)
        if found:
            self._previous = found[-1].index
        return previous, found

    def go_on_after(self, previous: int) -> None:
        """Go on after an index that the receiver has got already (its installer's `previous`)."""
        self._sent = int(np.searchsorted(self._order, np.uint64(previous), "right"))
        self._previous = previous

    def state(self, offset: int, length: int) -> bytes:
        """A piece of the state; empty at its end."""
        return self._file.read_at(self._state_at + offset, min(length, self.state_bytes - offset))

    def close(self) -> None:
        """Let go of everything that was held."""
        self._file.close()
        self._on_close()
