"""The rule: which row of a key wins, and which deletes may go. Pure.

Which row wins
    A rule puts the rows of a key in order. The row with the greatest rank wins; of rows with equal
    ranks, the one with the highest offset. Tables go by `LAST_ROW`: no row has a rank, so the last
    row wins. A delete is a row like any other: if it wins, the key is gone. A row without a key
    has no rivals: it neither replaces a row nor is replaced. (Whether a table takes such rows is
    its option `keyless_rows`, and is decided when they are appended.)

Which deletes may go
    A delete that has won may go when three things are so: every reader has passed it, it lies
    below the horizon and so at or before the low watermark, and no file that stays has an older
    row of its key. Without the third, a program that reads the files without live sets would take
    that older row for the winner.

The rule gives the order; it finds no winner. Those who do, each in a way of its own, take the order
from here, so that each is a proof of the others:

    `table.Fold`           numbers the keys; the winner is the last to write to its key's place
    `kernel.fold_tail`     folds in ranges of keys, and again whenever the memory is full
    `kernel.Second`        sorts by key and rank; the winner is the last one of its key
    `recovery`             sorts the rows of all files that there are, and folds them
    look-ups               ask sources one after the other; the first one that has the key has the
                           winner (`Rule.sources`): batches, `table.KeyIndex`, files of a ledger

`table` lies below this package and can't import the rule, nor does it have to: `Fold` is handed
ranks, and `KeyIndex` rows in their order. Both are ways to find a winner; neither says who wins. A
partition has the last word on deletes: it refuses a ledger that lacks one that a reader holds,
when it knows of a reader that the planner of the run could not know of (`table/adopting.py`).

A rule with a column takes no part in ledgers yet: the format of the files promises other programs
that the highest offset of a key wins (docs/formats/ledger.md), and a later source is taken to win
over an earlier one without being compared. Code that relies on that asks for `Rule.sources`,
which only a rule that goes by offsets has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from lowmark.catalog import ColumnId
from lowmark.errors import invariant
from lowmark.table import I64, Mask

__all__ = [
    "LAST_ROW",
    "Ranks",
    "Rule",
    "deletes_to_drop",
    "lacks_needed_deletes",
    "may_go_below",
    "passed_by_readers",
    "passed_deletes",
]

Ranks: TypeAlias = I64 | None
"""The rank of each row; None: all ranks are equal, so offsets decide."""


# -- which row wins -----------------------------------------------------------------------------


class Rule(ABC):
    """The order of a key's rows: by rank, and by offset where ranks are equal."""

    __slots__ = ()

    @property
    @abstractmethod
    def column(self) -> ColumnId | None:
        """The column that ranks are made of; None: the rule goes by offsets alone."""

    @abstractmethod
    def ranks(self, values: pa.Array | None) -> Ranks:
        """The ranks of rows, by the values that they have in the rule's column: null where a row
        has none, as every delete.
        """

    def order(self, offsets: I64, ranks: Ranks = None) -> I64:
        """The places of rows, from the one that loses to all to the one that wins over all; rows
        with the same rank and offset stay as they are.
        """
        if ranks is None:
            return np.argsort(offsets, kind="stable")
        return np.lexsort((offsets, ranks))

    def sources(self, count: int) -> range:
        """The order in which to ask sources of a key's rows, which are numbered by their offsets:
        the first one that has the key has its winner.
        """
        invariant(
            self.column is None,
            "sources are asked in the order of offsets, but the rule goes by a column",
        )
        return range(count - 1, -1, -1)


class _LastRow(Rule):
    """The last row of a key wins: nothing is read for it, and nothing is kept in memory."""

    __slots__ = ()

    @property
    def column(self) -> None:
        return None

    def ranks(self, values: pa.Array | None) -> None:
        del values


LAST_ROW: Final[Rule] = _LastRow()
"""The rule of all tables."""


# -- which deletes may go -----------------------------------------------------------------------


def passed_by_readers(held: Iterable[int], *, end: int) -> int:
    """Below this offset every reader has passed. `held` are the offsets from which on readers hold
    deletes, `end` is where the partition ends.
    """
    return min(held, default=end)


def may_go_below(passed: int, *, horizon: int) -> int:
    """Below this offset deletes may go: readers have passed them, and so has the low watermark,
    since no horizon lies above it.
    """
    return min(passed, horizon)


def passed_deletes(offsets: I64, deletes: Mask, *, below: int) -> Mask:
    """Which rows are deletes that may go, if no older row of their key stays."""
    return deletes & (offsets < below)


def deletes_to_drop(
    offsets: I64, deletes: Mask, *, below: int, older_stays: Callable[[I64], Mask]
) -> I64:
    """The places of the deletes that go, of rows that have won. `older_stays` says of some places
    whether a file that stays has an older row of the key; it is asked of no others than it must be.
    """
    passed = np.flatnonzero(passed_deletes(offsets, deletes, below=below))
    return passed[~older_stays(passed)] if len(passed) else passed


def lacks_needed_deletes(gone_below: int, *, passed: int) -> bool:
    """Whether a ledger that lacks deletes below an offset lacks one that a reader may need, if
    readers have passed everything below another.
    """
    return gone_below > passed
