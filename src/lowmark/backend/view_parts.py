"""What is new of a view: a client that has an older one is sent the rest, not all of it again.

Batches are only added at the end and cut at the front. A client says which batch it has last; if
that is still there, it gets the batches behind it, and where the view begins now. What is left of
its own stays, though compaction may have moved a batch in the log since: where a batch is, the
server finds out anyway when it is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lowmark.table import Columns, View


class Known(NamedTuple):
    """The last batch of a view that a client has: its first offset, and its place in the log."""

    first: int
    place: int
    lineage: int = 0
    """Of the view: in another one, another batch may have the same offset and place."""

    @classmethod
    def of(cls, view: View | None) -> Known | None:
        """None: it has no batch."""
        if view is None or not view.count:
            return None
        last = view.count - 1
        return cls(int(view.columns.first[last]), int(view.columns.place[last]), view.lineage)

    def said(self) -> tuple[int, ...]:
        """As it travels: a server of an earlier release, which knows no resets, takes two."""
        return self if self.lineage else self[:2]


def since(view: View, known: Known | None) -> tuple[int | None, View]:
    """The first offset of the view's first batch, and the batches behind the one that is known;
    None and all of it, if that one is not there.
    """
    if known is None or not view.count or known.lineage != view.lineage:
        return None, view
    at = int(np.searchsorted(view.first, np.uint64(known.first)))
    if at >= view.count or (int(view.first[at]), int(view.places[at])) != known[:2]:
        return None, view
    arrays: list[Any] = [column[at + 1 : view.count] for column in view.columns]
    columns = Columns(*arrays)
    new = view.count - at - 1
    rest = replace(view, columns=columns, count=new)
    return int(view.first[0]), rest


def joined(old: View, first: int, new: View) -> View:
    """The view that begins at `first`, goes on as an older one does, and then with what is new."""
    cut = int(np.searchsorted(old.first, np.uint64(first)))
    columns, count = old.columns, old.count
    if cut or new.count:
        pairs: list[Any] = list(zip(old.columns, new.columns, strict=True))
        columns = Columns(*(np.concatenate([a[cut : old.count], b]) for a, b in pairs))
        count = old.count - cut + new.count
    return replace(new, columns=columns, count=count)
