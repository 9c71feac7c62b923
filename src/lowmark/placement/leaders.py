"""Which of its nodes should lead each partition of a zone, so that nodes lead equally many. Pure.

Every node computes it from the sets of all partitions, and comes to the same. Two steps:

    1. Each partition takes the node with the highest `score`, less that node's *handicap*. A node
       that would lead too many gets a greater handicap, one that would lead too few a smaller one,
       for some rounds over whole arrays.
    2. What is left uneven goes by chains: a node gives a partition to another node of its set,
       which gives one to a third, until one comes to a node that leads at least two fewer than the
       first. Without such a chain no choice is more even.

So nodes differ by one at most where the sets allow it. Few leaders change when few sets do: scores
stay, handicaps change little, and chains are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from lowmark.placement.target import score

PartitionT = TypeVar("PartitionT", bound=tuple[int, int])
"""A partition: the id of its table, and its number."""
_Ints: TypeAlias = npt.NDArray[np.int64]
_Hop: TypeAlias = tuple[int, int, int]
"""From a node, a row, and the column of the node that the row goes to."""

_ROUNDS: Final = 48
_SCORE_BITS: Final = 40
"""Scores and handicaps are whole numbers, which are the same on every machine."""
_NEVER: Final = -(1 << 62)
_SEARCHED_MAX: Final = 8_000
"""Chains are looked for at this many nodes; what is uneven then stays so."""


def spread_leaders(nodes: Mapping[PartitionT, Sequence[int]]) -> dict[PartitionT, int]:
    """The node that should lead each partition, of those that may; each has one at least.

    The order of partitions does not matter.
    """
    if not nodes:
        return {}
    partitions = sorted(nodes)
    parts = np.array(partitions, np.int64)
    lists = [nodes[one] for one in partitions]
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    given = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
    numbers, at = np.unique(given, return_inverse=True)
    cells = np.full((len(lists), int(lengths.max())), -1, np.int64)
    cells[np.arange(cells.shape[1]) < lengths[:, None]] = at
    tables, rows = parts[:, 0], np.repeat(np.arange(len(parts)), lengths)
    drawn = score(given, tables[rows], parts[rows, 1]) >> np.uint64(64 - _SCORE_BITS)
    scores = np.full(cells.shape, _NEVER, np.int64)
    scores[cells >= 0] = drawn.astype(np.int64)
    work = _Work(cells, scores, count=len(numbers))
    work.choose()
    work.even_out()
    return dict(zip(partitions, numbers[work.led].tolist(), strict=True))


class _Work:
    """A choice in the making: `cells` has a row of nodes for each partition, by index; -1: none."""

    def __init__(self, cells: _Ints, scores: _Ints, *, count: int) -> None:
        self._cells = cells
        self._scores = scores
        self._count = count
        self.led = cells[:, 0]
        """The node that leads each."""

    def choose(self) -> None:
        """By scores and handicaps."""
        rows, count = len(self._cells), self._count
        handicaps = np.zeros(count + 1, np.int64)  # the last one is for no node
        for turn in range(_ROUNDS):
            self.led = self._best(self._scores - handicaps[self._cells])
            more = np.bincount(self.led, minlength=count) * count - rows
            step = np.clip(more * (1 << _SCORE_BITS) // rows, -(1 << 50), 1 << 50)
            handicaps[:-1] += step // (2 + turn // 4)
        self._scores = self._scores - handicaps[self._cells]
        self.led = self._best(self._scores)

    def _best(self, values: _Ints) -> _Ints:
        best: _Ints = np.take_along_axis(self._cells, values.argmax(axis=1)[:, None], axis=1)[:, 0]
        return best

    def even_out(self) -> None:
        """By chains, from those that lead the most, until no chain is left."""
        loads = np.bincount(self.led, minlength=self._count)
        settled = np.zeros(self._count, np.bool_)
        searched = 0
        while not settled.all() and searched < _SEARCHED_MAX:
            top = int(loads[~settled].max())
            if loads[~settled].min() > top - 2:
                return
            starts = np.flatnonzero(~settled & (loads == top)).tolist()
            parents: dict[int, _Hop | None] = dict.fromkeys(starts)
            end, queue = -1, starts
            for node in queue:  # it grows meanwhile
                searched += 1
                for hop, other in self._hops(node, parents):
                    parents[other] = hop
                    queue.append(other)
                    if loads[other] <= top - 2:
                        end = other
                        break
                if end >= 0:
                    break
            if end < 0:
                # What these lead can only go to one of these, now and later.
                settled[queue] = True
                continue
            loads[end] += 1
            while (step := parents[end]) is not None:
                before, row, column = step
                self.led[row] = self._cells[row, column]
                end = before
            loads[end] -= 1

    def _hops(self, node: int, seen: Mapping[int, object]) -> list[tuple[_Hop, int]]:
        """Other nodes that can take a partition from a node, and the one that costs least."""
        rows = np.flatnonzero(self.led == node)
        cells, scores = self._cells[rows], self._scores[rows]
        mine = scores[cells == node]
        at, columns = np.nonzero((cells >= 0) & (cells != node))
        order = np.argsort(mine[at] - scores[at, columns], kind="stable")
        at, columns = at[order], columns[order]
        _, firsts = np.unique(cells[at, columns], return_index=True)
        found = []
        for first in np.sort(firsts).tolist():
            row, column = int(at[first]), int(columns[first])
            other = int(cells[row, column])
            if other not in seen:
                found.append(((node, int(rows[row]), column), other))
        return found
