"""Where the last row of each key is, in the part of a partition that is not compacted yet.

The index goes from the hash of a key to the place of the last row with it. It has no keys, since
with them it would be as large as the rows. So what it finds is a hint, and the reader verifies it:
it reads the row that it was sent to, also if that is a delete, and compares the key. If the key is
another one, the two have the same 64 bits of hash, one hides the other, and the reader scans. A
hundred million keys contain such a pair in one of 3,700 cases. Where the index finds nothing, there
is nothing.

An index never changes: `with_rows` makes the next one, and readers of an older one go on. It
is a few *runs*, oldest first: hashes in order, and the place of each. A batch becomes a run, which
takes in the runs before it that are not much larger; so there are few, and a row is not merged
often. Within a run a hash is there once. Of several runs, the newest one that has it is right.

Which row of a key is the last one is not said here but in `ledger/rule.py`: rows are added in the
order of their offsets, from those that lose to those that win.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lowmark.errors import invariant
from lowmark.table.hashing import I64, U64

_SMALL = 512
"""A run of fewer keys counts as one of so many: merging it costs little more than making it."""

_RATIO = 4
"""A run is merged with the one behind it, unless it is more than so many times as large."""

Mask: TypeAlias = npt.NDArray[np.bool_]


class Place(NamedTuple):
    """Where the last row of a key is, and whether it deletes the key."""

    offset: int
    deleted: bool


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Hashes in order, each once; and for each a place: the offset of its last row, doubled, plus
    one if that row is a delete.
    """

    hashes: U64
    places: U64
    lowest: int
    """The lowest place: a run that a cut does not reach need not be looked through."""
    one_hash: memoryview = field(init=False)
    """The same hashes and places for single look-ups: `bisect` and an index into a memoryview are
    quicker than numpy.
    """
    one_place: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self.hashes.flags.writeable = False
        self.places.flags.writeable = False
        object.__setattr__(self, "one_hash", self.hashes.data)
        object.__setattr__(self, "one_place", self.places.data)


@dataclass(frozen=True, slots=True, eq=False)
class KeyIndex:
    """The keys of all rows of a partition's tail up to `end`."""

    runs: tuple[Run, ...] = ()
    end: int = 0
    """The offset of the next row to be indexed."""
    lineage: int = 0
    """Of the views that it was made of: in another one, offsets may be of other rows."""

    @property
    def keys(self) -> int:
        """How many keys there are, at most: one that is in several runs counts in each."""
        return sum(len(run.hashes) for run in self.runs)

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return sum(run.hashes.nbytes + run.places.nbytes for run in self.runs)

    # -- finding --------------------------------------------------------------------------------

    def find(self, hashed: int) -> Place | None:
        """Where the last row of a key is, by the key's hash; the reader verifies it."""
        for run in reversed(self.runs):
            hashes = run.one_hash
            at = bisect_left(hashes, hashed)
            if at < len(hashes) and hashes[at] == hashed:
                place = run.one_place[at]
                return Place(place >> 1, place & 1 == 1)
        return None

    def find_many(self, hashes: U64) -> tuple[I64, Mask]:
        """For each hash the offset of the last row, or -1, and whether that row is a delete."""
        offsets = np.full(len(hashes), -1, np.int64)
        deleted = np.zeros(len(hashes), np.bool_)
        left = np.argsort(hashes)  # looked for in order, neighbours are in the cache already
        for run in reversed(self.runs):
            wanted = hashes[left]
            at = np.minimum(run.hashes.searchsorted(wanted), len(run.hashes) - 1)
            there = run.hashes[at] == wanted
            found, places = left[there], run.places[at[there]]
            offsets[found] = places >> 1
            deleted[found] = places & 1
            left = left[~there]
        return offsets, deleted

    # -- the next index -------------------------------------------------------------------------

    def with_rows(
        self,
        hashes: U64,
        first_offset: int,
        deletes: bool | Mask | None = None,
        *,
        offsets: U64 | I64 | None = None,
        valid: Mask | None = None,
        end: int | None = None,
    ) -> KeyIndex:
        """The index with more rows behind those it has.

        `deletes` says which rows are deletes: none, all, or those of a mask. Rows follow each other
        from `first_offset` on, unless `offsets` says where each is, in order. Rows that are not
        `valid` have no key and are left out. `end` is where the next rows begin; it only has to be
        said if it is not right behind the last of these.
        """
        count = len(hashes)
        invariant(first_offset >= self.end, f"{first_offset} is indexed, up to {self.end}")
        if offsets is None:
            places = np.arange(first_offset, first_offset + count, dtype=np.uint64)
            behind = first_offset + count
        else:
            places = offsets.astype(np.uint64)
            invariant(count == 0 or offsets[0] >= first_offset, "rows lie before their batch")
            behind = int(offsets[-1]) + 1 if count else first_offset
        invariant(end is None or end >= behind, "rows lie behind their batch")
        places <<= 1
        if deletes is not None:
            places |= deletes
        if valid is not None:
            hashes, places = hashes[valid], places[valid]
        after = behind if end is None else end
        if not len(hashes):
            return KeyIndex(self.runs, after, self.lineage)
        # Which of equal hashes comes first does not matter here, and an unstable sort is quicker.
        runs = _merged_in(self.runs, _run_of(hashes, places, "quicksort"))
        return KeyIndex(runs, after, self.lineage)

    def without_below(self, offset: int) -> KeyIndex:
        """The index without the keys whose last row is below an offset, where a cut was made."""
        runs = (_cut(run, offset << 1) for run in self.runs)
        left = tuple(run for run in runs if run is not None)
        return KeyIndex(left, max(self.end, offset), self.lineage)

    def compact(self) -> KeyIndex:
        """The same index as one run: the smallest there is, and the quickest to look into."""
        if len(self.runs) <= 1:
            return self
        return KeyIndex((_merged(self.runs),), self.end, self.lineage)


def _run_of(hashes: U64, places: U64, kind: Literal["quicksort", "stable"]) -> Run:
    """A run of rows in any order. Of equal hashes the highest place wins: that is the last row."""
    order = np.argsort(hashes, kind=kind)
    hashes, places = hashes[order], places[order]
    new = hashes[1:] != hashes[:-1]
    if not new.all():
        starts = np.concatenate([[0], np.flatnonzero(new) + 1])
        hashes, places = hashes[starts], np.maximum.reduceat(places, starts)
    return Run(hashes, places, int(places.min()))


def _merged_in(runs: tuple[Run, ...], new: Run) -> tuple[Run, ...]:
    """The runs with a new one, which takes in those before it that are not much larger."""
    first, size = len(runs), max(len(new.hashes), _SMALL)
    while first and len(runs[first - 1].hashes) <= _RATIO * size:
        first -= 1
        size += len(runs[first].hashes)
    return (*runs[:first], _merged([*runs[first:], new]))


def _merged(runs: Sequence[Run]) -> Run:
    if len(runs) == 1:
        return runs[0]
    # A stable sort finds that it is given a few sorted pieces, and merges them.
    return _run_of(
        np.concatenate([run.hashes for run in runs]),
        np.concatenate([run.places for run in runs]),
        "stable",
    )


def _cut(run: Run, lowest: int) -> Run | None:
    """A run without the places below one, or nothing if none is left."""
    if run.lowest >= lowest:
        return run
    keep = run.places >= lowest
    places = run.places[keep]
    return Run(run.hashes[keep], places, int(places.min())) if len(places) else None
