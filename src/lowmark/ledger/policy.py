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
