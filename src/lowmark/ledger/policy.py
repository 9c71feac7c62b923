"""Which files of a ledger a run writes anew: as few as keep it small and quick to read. Pure.

nothing live      the file goes
mostly dead       it is written anew, without its dead rows
many small ones   the newest are put together, as long as each is not much larger than all after
it; so a row is written a few times in its life, not once a run
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from lowmark.ledger.manifest import LedgerFile

__all__ = ["FILES_MIN", "Fate", "fates"]

FILES_MIN: Final = 4
"""So many files are fine, however small they are."""
_RATIO: Final = 4
Fate: TypeAlias = Literal["keep", "drop", "rewrite", "merge"]
"""What becomes of a file; those to merge are the last ones, and the tail goes with them."""


def fates(files: Sequence[LedgerFile], *, tail_rows: int) -> list[Fate]:
    """What becomes of each file, given how many rows come after them."""
    found: list[Fate] = [_alone(file) for file in files]
    kept = [at for at, fate in enumerate(found) if fate != "drop"]
    rows = tail_rows
    for at in reversed(kept) if tail_rows else ():
        # One that is written anyway goes along; the others only if there are many.
        if files[at].live_rows > _RATIO * rows or (found[at] == "keep" and len(kept) < FILES_MIN):
            break
        found[at] = "merge"
        rows += files[at].live_rows
    return found


def _alone(file: LedgerFile) -> Fate:
    if not file.live_rows:
        return "drop"
    return "rewrite" if 2 * file.live_rows < file.rows else "keep"
