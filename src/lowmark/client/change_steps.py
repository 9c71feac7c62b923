"""The steps that keys take, made of the rows of one partition. Pure, and without Python per row.

A *step* is what one commit did to one key, held against what the key was right before that commit:

    it was        the commit leaves    the step is
    not there     a row                insert
    there         a row                update (its pre-image is what was there)
    there         a delete             delete (the same)
    not there     a delete             none

If a commit has a key more than once, its last row counts: no reader sees the table in between.
With `net` all that is given is taken for one commit. A row without a key is an insert, always.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lowmark.table import I64, Mask

I8 = npt.NDArray[np.int8]


class Kind(IntEnum):
    """What a row of the feed is."""

    INSERT = 0
    DELETE = 1
    UPDATE_PREIMAGE = 2
    UPDATE_POSTIMAGE = 3


@dataclass(frozen=True, slots=True)
class Touched:
    """The rows of a range, in the order of their offsets, which have no gaps."""

    keys: pa.Array
    """The keys that occur, each once, in their canonical form."""
    codes: I64
    """Of each row the place of its key; -1: it has none."""
    deletes: Mask
    versions: I64
    """The commit of each row; it never falls."""
    start: int
    """The offset of the first row."""

    def first_offsets(self) -> I64:
        """Of each key where it occurs first."""
        first = np.zeros(len(self.keys) + 1, np.int64)
        # Of several rows that write to one place, numpy lets the last one win.
        first[self.codes[::-1]] = np.arange(len(self.codes), dtype=np.int64)[::-1] + self.start
        return first[:-1]


@dataclass(frozen=True, slots=True)
class Before:
    """What the keys of a range were right before it. Rows without a key have the place behind the
    last one, which is never there: -1 finds it.
    """

    lived: Mask
    offsets: I64
    """Where the row of a key stands that lived, if pre-images are wanted; else -1."""

    @classmethod
    def nothing(cls, keys: int) -> Before:
        """Of as many keys, of which the table had none."""
        return cls(np.zeros(keys + 1, np.bool_), np.full(keys + 1, -1, np.int64))


@dataclass(frozen=True, slots=True)
class Steps:
    """What happened, in the order of offsets: one element a step."""

    offsets: I64
    """Of the row that made the step."""
    kinds: I8
    """Of an update, that of its post-image."""
    pre: I64
    """Of an update and a delete, the offset of the row that was there; -1: there was none."""


def steps_of(touched: Touched, before: Before, *, net: bool) -> Steps:
    """The steps of all keys of a range."""
    count = len(touched.codes)
    order = np.argsort(touched.codes, kind="stable")  # key by key, each in the order of offsets
    codes, versions = touched.codes[order], touched.versions[order]
    counts = np.ones(count, np.bool_)
    counts[:-1] = codes[1:] != codes[:-1]
    if not net:
        counts[:-1] |= versions[1:] != versions[:-1]
    counts |= codes < 0
    rows, codes = order[counts], codes[counts]
    gone, offsets = touched.deletes[rows], rows + touched.start
    follows = np.zeros(len(rows), np.bool_)
    follows[1:] = (codes[1:] == codes[:-1]) & (codes[1:] >= 0)
    lived, pre = before.lived[codes], before.offsets[codes]
    after = np.flatnonzero(follows)
    lived[after], pre[after] = ~gone[after - 1], offsets[after - 1]
    kinds = np.where(gone, Kind.DELETE, np.where(lived, Kind.UPDATE_POSTIMAGE, Kind.INSERT))
    pre[~lived] = -1
    happened = np.flatnonzero(lived | ~gone)
    in_order = happened[np.argsort(rows[happened])]
    return Steps(offsets[in_order], kinds[in_order].astype(np.int8), pre[in_order])


def with_preimages(kinds: I8) -> tuple[I64, I8, Mask]:
    """Of each row of the feed with pre-images: the step that it is of, what it is, and whether it
    shows the row that was there before, as deletes and pre-images do.
    """
    twice = kinds == Kind.UPDATE_POSTIMAGE
    step = np.repeat(np.arange(len(kinds), dtype=np.int64), 1 + twice)
    last = np.cumsum(1 + twice) - 1
    shown = kinds[step]
    shown[last[twice] - 1] = Kind.UPDATE_PREIMAGE
    return step, shown, (shown == Kind.UPDATE_PREIMAGE) | (shown == Kind.DELETE)
