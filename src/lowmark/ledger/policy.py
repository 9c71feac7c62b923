"""Which files of a ledger a run writes anew: as few as keep it small and quick to read. Pure.

nothing live      the file goes
mostly dead       it is written anew, without its dead rows, and together with neighbours that are
many small ones   the newest are put together, as long as each is not much larger than all after
it; so a row is written a few times in its life, not once a run

A file that is large enough stays as it is, however many there are, and so does what is before it:
put together, such files would be parted again. Large enough is half of what fits into a file, so
one that was ended because it was full is, until half of it is dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from lowmark.catalog.options import TableOptions
from lowmark.ledger.manifest import LedgerFile

FILES_MIN: Final = 4
"""This many files are fine, however small they are."""
_RATIO: Final = 4
Fate: TypeAlias = Literal["keep", "drop", "rewrite", "merge"]
"""What becomes of a file; those to merge are the last ones, and the tail goes with them."""


@dataclass(frozen=True, slots=True)
class Room:
    """What fits into a file: it is ended when it has as much of either."""

    rows: int
    keys_bytes: int
    """Of the index of its keys."""

    def is_full(self, *, rows: int, keys_bytes: int) -> bool:
        """Whether nothing more is added to a file that has so much."""
        return rows >= self.rows or keys_bytes >= self.keys_bytes

    def is_large(self, file: LedgerFile) -> bool:
        """Whether what is live of a file is half of what fits into one."""
        live = file.kept_rows
        return self.is_full(rows=2 * live, keys_bytes=2 * file.keys_bytes * live // file.rows)


def fates(files: Sequence[LedgerFile], *, tail_rows: int, room: Room) -> list[Fate]:
    """What becomes of each file, given how many rows come after them, and what fits into one."""
    found: list[Fate] = [_alone(file) for file in files]
    small = _last_small_ones(files, room)
    rows = tail_rows
    for at in small if tail_rows else ():
        # One that is written anyway goes along; the others only if there are many.
        if files[at].kept_rows > _RATIO * rows or (found[at] == "keep" and len(small) < FILES_MIN):
            break
        found[at] = "merge"
        rows += files[at].kept_rows
    return found


def _last_small_ones(files: Sequence[LedgerFile], room: Room) -> list[int]:
    """Those behind the last one that is large, the newest first, without those that go."""
    small = []
    for at in reversed(range(len(files))):
        if room.is_large(files[at]):
            break
        if files[at].kept_rows:
            small.append(at)
    return small


def _alone(file: LedgerFile) -> Fate:
    if not file.kept_rows:
        return "drop"
    return "rewrite" if 2 * file.kept_rows < file.rows else "keep"


# When a table is due to be compacted without a request.


@dataclass(frozen=True, slots=True)
class Dirt:
    """What a run could compact of one partition."""

    bytes: int
    """Of its backlog, not in the ledger yet, and old enough."""
    kept_bytes: int
    """All that there is of it, in the backlog and in the ledger."""
    age_ms: int
    """How long ago the first of those rows was written; 0 if there is none."""


def due(options: TableOptions, parts: Sequence[Dirt]) -> str | None:
    """Why a table is due, in words; None: it is not.

    By size, when enough could be compacted and it is a large enough part of all; by age, when a row
    has waited for longer than the table's largest lag.
    """
    if options.compaction != "auto":
        return None
    dirty, kept = sum(part.bytes for part in parts), sum(part.kept_bytes for part in parts)
    if not dirty:
        return None
    oldest_ms = max(part.age_ms for part in parts)
    if options.max_lag_ms is not None and oldest_ms > options.max_lag_ms:
        return f"a row waits for {oldest_ms} ms, and max_lag_ms is {options.max_lag_ms}"
    if dirty >= options.dirty_bytes and 100 * dirty >= options.dirty_percent * kept:
        return f"{dirty} bytes are dirty, {100 * dirty // max(kept, 1)} % of all"
    return None
