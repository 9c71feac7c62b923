"""Which nodes the partitions of a zone should be on. Pure.

A plan follows four rules. An earlier one outweighs all later ones.

    1. A partition is on as many nodes as it has replicas; on all nodes, if there are fewer.
    2. Its replicas are spread over the racks as evenly as the racks' sizes allow: no rack gets
       another replica while a rack with a free node has fewer.
    3. Nodes have the same number of replicas of the zone, give or take one. A rack that rule 2
       gives more or fewer replicas than its share has even nodes, too, on another level.
    4. A replica stays where it is.

What these leave open is decided by `score`, a hash. The same input gives the same plan in every
process and in whatever order it comes. A plan of a plan is that plan.

How: rules 2 and 3 give every node a *quota*, before any partition is looked at. Each partition
keeps the nodes that rule 2 lets it keep. Now nodes have *room*, or more than their quota, and
partitions have *gaps*. Gaps are filled from nodes with room, then replicas go directly from a node
with too many to a node with room; both in rounds over whole arrays, each of which pairs the two
sides in an order drawn by `score`. Each such step adds one replica to a node that has to get one,
so none is wasted. The few that no round can place go by a chain of replicas, each of which makes
room for the one before. A chain always exists (`_chain`). Where the zone is small and the plan not
provably the best, cycles of replicas that save a move are looked for, until there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from lowmark.errors import InvariantBroken, invariant

PartitionT = TypeVar("PartitionT", bound=tuple[int, int])
"""A partition: the id of its table, and its number."""
_Ints: TypeAlias = npt.NDArray[np.int64]
_Bools: TypeAlias = npt.NDArray[np.bool_]
_Words: TypeAlias = npt.NDArray[np.uint64]

_NO_LOADS: Final[Mapping[int, int]] = MappingProxyType({})
_KEEP_STEPS: Final = 64
"""Partitions choose what to keep in this many turns; each turn sees what the ones before chose."""
_ROUNDS_MAX: Final = 96
_IDLE_ROUNDS_MAX: Final = 6
_TIGHT: Final = 2
"""A rack that needs more than one in this many partitions gets rounds of its own."""
_TIGHT_RACKS_MAX: Final = 16
_SETTLE_MAX: Final = 40_000_000
"""Chains that cost no move are looked for at this many replicas, one for all at each node."""
_CHAINS_MAX: Final = 64
"""If more gaps than this are left, nodes without room take them first."""
_IMPROVE_MAX: Final = 200_000
"""Up to this many replicas times nodes, a plan is made the best one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node that may hold partitions.

    Nodes with an empty rack form one rack together: we don't know that any two of them are apart.
    So without any racks rule 2 says nothing.
    """

    number: int
    rack: str = ""


def plan(
    current: Mapping[PartitionT, Sequence[int]],
    places: Sequence[Place],
    *,
    replicas: int,
    holding: Mapping[PartitionT, Sequence[int]] | None = None,
) -> dict[PartitionT, tuple[int, ...]]:
    """The nodes that each partition of a zone should be on, in order.

    `current` has all partitions of the zone: each with the nodes that it is on, or is already on
    its way to; with none if it is new. Nodes that are not among the places are lost. `holding`
    names further nodes that have data of a partition: where the rules leave a choice, they come
    first.
    """
    partitions = sorted(current)
    nodes = _Nodes(places, partitions=len(partitions), replicas=replicas)
    if not partitions or not nodes.replicas:
        return dict.fromkeys(partitions, ())
    had = nodes.table_of([current[one] for one in partitions])
    counts = np.bincount(had[had >= 0], minlength=nodes.count)
    quotas = nodes.quotas([(-min(has, top), tie) for has, top, tie in nodes.ranks(counts)])
    work = _Work(nodes, partitions, had=had, quotas=quotas)
    work.keep()
    # A partition that had more replicas than it may have now, can go back to one that it gave up.
    work.take(had)
    work.settle()
    if holding:
        work.take(nodes.table_of([holding.get(one, ()) for one in partitions]))
    work.place()
    work.improve()
    return dict(zip(partitions, work.result(), strict=True))


def first(
    table: int,
    numbers: Sequence[int],
    places: Sequence[Place],
    *,
    replicas: int,
    loads: Mapping[int, int] = _NO_LOADS,
) -> dict[int, tuple[int, ...]]:
    """The nodes that the partitions of a new table should be on.

    The rules hold within the table. If its replicas can't be divided evenly, the nodes with the
    smallest loads get one more. `loads` are replicas of other tables, by the number of a node.
    """
    partitions = [(table, number) for number in sorted(set(numbers))]
    nodes = _Nodes(places, partitions=len(partitions), replicas=replicas)
    if not partitions or not nodes.replicas:
        return {number: () for _, number in partitions}
    ties = score(nodes.numbers, np.full(nodes.count, table), np.zeros(nodes.count, np.int64))
    order = [
        (loads.get(int(node), 0), -int(tie)) for node, tie in zip(nodes.numbers, ties, strict=True)
    ]
    had = np.full((len(partitions), 1), -1, np.int64)
    work = _Work(nodes, partitions, had=had, quotas=nodes.quotas(order))
    work.place()
    return {number: nodes for (_, number), nodes in zip(partitions, work.result(), strict=True)}


def score(node: _Ints, table: _Ints, number: _Ints) -> _Words:
    """The hash that breaks ties, of 64 bits. It never changes: another would move replicas.

    Each argument in turn is added to what there is, and mixed by the finalizer of SplitMix64.
    """
    mixed = np.full(len(node), 0x9E3779B97F4A7C15, np.uint64)
    for part in (node, table, number):
        mixed = mixed + part.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed


class _Nodes:
    """The nodes and racks of a zone, by index, and what rules 1 to 3 say of them.

    Rule 2 in numbers: a partition has `low` replicas in each rack, and one more in `extras` of the
    racks that are `open`. Index -1 is no node, in no rack.
    """

    def __init__(self, places: Sequence[Place], *, partitions: int, replicas: int) -> None:
        ordered = sorted(places, key=lambda place: place.number)
        self.numbers = np.array([place.number for place in ordered], np.int64)
        self.count = len(ordered)
        invariant(len(np.unique(self.numbers)) == self.count, "each node is one place")
        self.partitions = partitions
        self.replicas = max(0, min(replicas, self.count))
        names = sorted({place.rack for place in ordered})
        index = {name: at for at, name in enumerate(names)}
        self.racks = len(names)
        self.rack = np.array([*(index[place.rack] for place in ordered), self.racks], np.int64)
        sizes = np.bincount(self.rack[:-1], minlength=self.racks)
        level = _level(np.ones_like(sizes), np.zeros_like(sizes), sizes, total=self.replicas)
        self.low = np.append(np.minimum(sizes, level), self.replicas + 1)
        self.open = np.append(sizes > level, False)
        self.extras = self.replicas - int(self.low[:-1].sum())
        self._sizes = sizes

    def table_of(self, lists: Sequence[Sequence[int]]) -> _Ints:
        """Lists of nodes as rows of indexes; -1 for what is no place, or is named twice."""
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        given = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
        at = np.minimum(np.searchsorted(self.numbers, given), self.count - 1)
        at[self.numbers[at] != given] = -1
        rows = np.repeat(np.arange(len(lists)), lengths)
        columns = np.arange(len(given)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        table = np.full((len(lists), max(1, int(lengths.max(initial=0)))), -1, np.int64)
        table[rows, columns] = at
        table = -np.sort(-table, axis=1)
        table[:, 1:][table[:, 1:] == table[:, :-1]] = -1
        return table

    def ranks(self, counts: _Ints) -> list[tuple[int, int, int]]:
        """Of each node: its replicas, the least that is more than the lower quota, and a tie."""
        ceiling = self._floors()[0][self.rack[:-1]] + 1
        ties = score(self.numbers, np.zeros_like(self.numbers), np.zeros_like(self.numbers))
        return [
            (int(has), int(top), -int(tie))
            for has, top, tie in zip(counts, ceiling, ties, strict=True)
        ]

    def _floors(self) -> tuple[_Ints, _Ints, _Ints, int]:
        """Of each rack: a node's lower quota, the nodes that have one more, those that may; and how
        many of the latter do, in all racks together.
        """
        low = self.low[:-1] * self.partitions
        high = low + self.open[:-1] * self.partitions
        total = self.partitions * self.replicas
        level = _level(self._sizes, low, high, total=total)
        base = np.clip(self._sizes * level, low, high)
        more = np.clip(self._sizes * (level + 1), low, high) - base
        floors = base // self._sizes
        return floors, base - floors * self._sizes, more, total - int(base.sum())

    def quotas(self, order: Sequence[tuple[int, int]]) -> _Ints:
        """How many replicas each node should have; the first in this order have one more."""
        floors, must, may, left = self._floors()
        quotas: _Ints = floors[self.rack[:-1]]
        maybe = []
        for node in sorted(range(self.count), key=lambda node: (order[node], node)):
            rack = self.rack[node]
            if must[rack]:
                must[rack] -= 1
                quotas[node] += 1
            elif may[rack]:
                may[rack] -= 1
                maybe.append(node)
        quotas[maybe[:left]] += 1
        return quotas

    def may_trade(self, quotas: _Ints) -> _Bools:
        """Whether a node (row) may get one more in its quota and another (column) one less."""
        floors, must, may, _ = self._floors()
        rack = self.rack[:-1]
        above = quotas - floors[rack]
        used = np.bincount(rack, above, minlength=self.racks).astype(np.int64)
        same = rack[:, None] == rack[None, :]
        across = (used < must + may)[rack][:, None] & ((used > must) & (may > 0))[rack][None, :]
        trade: _Bools = (above == 0)[:, None] & (above == 1)[None, :] & (same | across)
        return trade


def _level(sizes: _Ints, low: _Ints, high: _Ints, *, total: int) -> int:
    """How far nodes can be filled evenly, racks of these sizes having limits, by this total."""
    under, over = 0, max(1, total) + 1
    while over - under > 1:
        middle = (under + over) // 2
        if int(np.clip(sizes * middle, low, high).sum()) <= total:
            under = middle
        else:
            over = middle
    return under


class _Work:
    """A plan in the making: `cells` has a row of nodes for each partition, -1 for a gap.

    At any time each row keeps to rule 2: its gaps can be filled, and without moving the others.
    """

    def __init__(
        self, nodes: _Nodes, partitions: Sequence[tuple[int, int]], *, had: _Ints, quotas: _Ints
    ) -> None:
        self._nodes = nodes
        self._partitions = partitions
        parts = np.fromiter(chain.from_iterable(partitions), np.int64, 2 * len(partitions))
        self._tables, self._numbers = parts[::2].copy(), parts[1::2].copy()
        self._had = had
        self._quotas = quotas
        self._room = quotas.copy()
        """What a node may still get; negative: what it has too many."""
        self.cells = np.full((len(partitions), nodes.replicas), -1, np.int64)
        self._moves_min = self.cells.size
        self._searched = 0

    def result(self) -> list[tuple[int, ...]]:
        """The plan, in the order of the partitions."""
        invariant(not self._room.any(), "every node has its quota")
        columns = np.sort(self._nodes.numbers[self.cells], axis=1).T
        return list(zip(*(column.tolist() for column in columns), strict=True))

    # -- what fits ------------------------------------------------------------------------------

    def _fits_rack(self, cells: _Ints, wanted: _Ints) -> _Bools:
        """Whether rule 2 lets each of these rows have one of its gaps filled in the rack beside."""
        low = self._nodes.low
        racks = self._nodes.rack[cells]
        has = (racks == wanted[:, None]).sum(axis=1)
        extras = np.zeros(len(cells), np.int64)
        for column in range(cells.shape[1]):
            mine = racks[:, column]
            extras += (racks[:, :column] == mine[:, None]).sum(axis=1) >= low[mine]
        more = (has == low[wanted]) & self._nodes.open[wanted] & (extras < self._nodes.extras)
        fits: _Bools = (has < low[wanted]) | more
        return fits

    def _fits(self, cells: _Ints, nodes: _Ints) -> _Bools:
        """Whether each of these rows can have one of its gaps filled by the node beside it."""
        has: _Bools = (cells == nodes[:, None]).any(axis=1)
        return ~has & self._fits_rack(cells, self._nodes.rack[nodes])

    def _fits_any(self, cells: _Ints) -> _Bools:
        """Whether each of these rows (row) can have one of its gaps filled by a node (column)."""
        nodes = self._nodes
        at = np.arange(len(cells))[:, None]
        taken = np.zeros((len(cells), nodes.count + 1), np.bool_)
        taken[at, cells] = True
        keys = (at * (nodes.racks + 1) + nodes.rack[cells]).ravel()
        has = np.bincount(keys, minlength=len(cells) * (nodes.racks + 1))
        has = has.reshape(len(cells), -1)[:, :-1]
        low = nodes.low[:-1]
        extras = np.maximum(has - low, 0).sum(axis=1) < nodes.extras
        racks = (has < low) | ((has == low) & nodes.open[:-1] & extras[:, None])
        fits: _Bools = racks[:, nodes.rack[:-1]] & ~taken[:, :-1]
        return fits

    def _without(self, rows: _Ints, columns: _Ints) -> _Ints:
        """These rows, with a gap in the column beside."""
        cells: _Ints = self.cells[rows]
        cells[np.arange(len(rows)), columns] = -1
        return cells

    def _set(self, rows: _Ints, columns: _Ints, nodes: _Ints) -> None:
        before = self.cells[rows, columns]
        self.cells[rows, columns] = nodes
        count = self._nodes.count
        self._room += np.bincount(before[before >= 0], minlength=count)
        self._room -= np.bincount(nodes[nodes >= 0], minlength=count)

    def _draw(self, nodes: _Ints, rows: _Ints) -> _Words:
        """The scores of nodes, by index, for the partitions beside them."""
        return score(self._nodes.numbers[nodes], self._tables[rows], self._numbers[rows])

    # -- steps ----------------------------------------------------------------------------------

    def keep(self) -> None:
        """Let each partition keep all that rule 2 lets it; of two, that on the emptier node."""
        had, count = self._had, self._nodes.count
        over = np.append(np.bincount(had[had >= 0], minlength=count) - self._quotas, 0)
        lacking = int(np.maximum(-over, 0).sum())
        everything = np.arange(len(had))
        zeros = np.zeros_like(everything)
        order = _order(score(zeros, self._tables, self._numbers))
        for rows in np.array_split(order, min(_KEEP_STEPS, len(order))):
            mine = had[rows]
            ties = self._draw(mine.ravel(), np.repeat(rows, mine.shape[1])).reshape(mine.shape)
            ranks = np.lexsort((ties, over[mine], mine < 0), axis=1)
            mine = np.take_along_axis(mine, ranks, axis=1)
            kept = np.full((len(rows), self._nodes.replicas), -1, np.int64)
            lengths = np.zeros(len(rows), np.int64)
            for column in range(mine.shape[1]):
                nodes = mine[:, column]
                fits = (nodes >= 0) & (lengths < self._nodes.replicas)
                fits[fits] = self._fits(kept[fits], nodes[fits])
                kept[fits, lengths[fits]] = nodes[fits]
                lengths += fits
                lost = nodes[(nodes >= 0) & ~fits]
                over[:-1] -= np.bincount(lost, minlength=count)
            self.cells[rows] = kept
        kept = self.cells[self.cells >= 0]
        self._room -= np.bincount(kept, minlength=count)
        # No plan moves fewer: each gap has to be filled, and each node brought up to its quota.
        self._moves_min = max(self.cells.size - len(kept), lacking)

    def take(self, wanted: _Ints) -> None:
        """Let partitions have these nodes: for gaps, and for replicas on nodes with too many."""
        # Most have no chance, and need not be put in order.
        rows, columns = np.nonzero(np.append(self._room, 0)[wanted] > 0)
        nodes = wanted[rows, columns]
        order = _order(self._draw(nodes, rows))
        rows, nodes = rows[order], nodes[order]
        while True:
            chance = (self._room[nodes] > 0) & ~(self.cells[rows] == nodes[:, None]).any(axis=1)
            rows, nodes = rows[chance], nodes[chance]
            room = np.append(self._room, -len(self.cells) - 1)[self.cells[rows]]  # gaps come first
            columns = np.argmin(room, axis=1)
            fits = self._fits(self._without(rows, columns), nodes)
            ok = np.flatnonzero((room.min(axis=1, initial=0) < 0) & fits)
            ok = ok[_firsts(rows[ok])]
            ok = ok[_ranks(nodes[ok]) < self._room[nodes[ok]]]
            left = self.cells[rows[ok], columns[ok]]
            ok = ok[(left < 0) | (_ranks(left) < -self._room[left])]
            if not len(ok):
                return
            self._set(rows[ok], columns[ok], nodes[ok])

    def settle(self) -> None:
        """Let partitions choose again what they keep, by chains, where nodes have too many."""
        if (self._had >= 0).sum() == (self.cells >= 0).sum():
            return  # no partition had a choice
        last = self._searched + _SETTLE_MAX // self.cells.size
        for node in np.flatnonzero(self._room < 0).tolist():
            while self._room[node] < 0 and self._searched < last:
                if self._follow({node: None}, cost_max=0, searched_max=last) is None:
                    break

    def place(self) -> None:
        """Fill all gaps, and bring every node to its quota."""
        for gaps in (True, False):
            idle = 0
            for turn in range(_ROUNDS_MAX):
                if idle == _IDLE_ROUNDS_MAX or not self._owed(gaps=gaps).any():
                    break
                idle = 0 if self._round(turn, gaps=gaps) else idle + 1
            if gaps:
                self._force()
        for row, column in zip(*np.nonzero(self.cells < 0), strict=True):
            self._chain(int(row), int(column))
        while (over := np.flatnonzero(self._room < 0)).size:
            self._reach(over[:1].tolist())

    def _force(self) -> None:
        """Fill gaps by nodes without room, if too many gaps are left for chains.

        These nodes have too many then: it is the first step of a chain, for many gaps at a time.
        """
        for turn in range(_ROUNDS_MAX):
            rows, columns = np.nonzero(self.cells < 0)
            if len(rows) <= _CHAINS_MAX:
                return
            rows, columns = rows[_firsts(rows)], columns[_firsts(rows)]
            turns = np.full(len(rows), turn, np.int64)
            drawn = score(turns, self._tables[rows], self._numbers[rows])
            nodes = (drawn % np.uint64(self._nodes.count)).astype(np.int64)
            fits = self._fits(self.cells[rows], nodes)
            self._set(rows[fits], columns[fits], nodes[fits])

    def _owed(self, *, gaps: bool) -> _Bools:
        """The cells that are gaps; or those with nodes that have too many."""
        owed: _Bools = self.cells < 0 if gaps else np.append(self._room, 0)[self.cells] < 0
        return owed

    def _round(self, turn: int, *, gaps: bool) -> bool:
        """Pair gaps, or replicas on nodes with too many, with room. False: no pair fitted."""
        done = [self._pair(turn, rack=rack, gaps=gaps) for rack in self._tight_racks(gaps=gaps)]
        return any(done) or self._pair(turn, rack=None, gaps=gaps)

    def _tight_racks(self, *, gaps: bool) -> list[int]:
        """The racks that need most of the partitions that they can get, those that can choose least
        first. They choose before the others: else partitions would have got others instead.
        """
        rack = self._nodes.rack
        free = np.repeat(rack[:-1], np.maximum(self._room, 0))
        room = np.bincount(free, minlength=self._nodes.racks)
        owed = self._owed(gaps=gaps)
        rows = np.flatnonzero(owed.any(axis=1))
        if self._nodes.low[:-1].any():  # then there are fewer racks than replicas
            cells = self._without(rows, owed[rows].argmax(axis=1))
            asked = [np.full(len(rows), one) for one in range(len(room))]
            choice = np.array([self._fits_rack(cells, one).sum() for one in asked])
            tight = np.flatnonzero(room > 0)
        else:
            inside = np.bincount(rack[self.cells[rows]].ravel(), minlength=len(room) + 1)
            choice = len(rows) - inside[:-1]
            tight = np.flatnonzero((room > 0) & (room * _TIGHT > choice))
        slack = (choice - room)[tight]
        racks: list[int] = tight[np.argsort(slack, kind="stable")][:_TIGHT_RACKS_MAX].tolist()
        return racks

    def _pair(self, turn: int, *, rack: int | None, gaps: bool) -> bool:
        room = np.maximum(self._room, 0)
        if rack is not None:
            room = np.where(self._nodes.rack[:-1] == rack, room, 0)
        free = np.repeat(np.arange(len(room)), room)
        owed = self._owed(gaps=gaps)
        rows, columns = np.nonzero(owed)
        if rack is not None:
            # Rows that no node of the rack fits would only stand in the way of the others.
            without = self._without(rows, columns)
            fits = self._fits_rack(without, np.full(len(rows), rack))
            must = (self._nodes.rack[without] == rack).sum(axis=1) < self._nodes.low[rack]
            if gaps and must.any():  # those that can fill a gap in no other rack come first
                fits &= must
            rows, columns = rows[fits], columns[fits]
        turns = turn * self.cells.shape[1] + columns
        ties = score(turns, self._tables[rows], self._numbers[rows])
        # Partitions with the most gaps come first: they have to be in the most racks.
        order = np.lexsort((ties, -owed.sum(axis=1)[rows])) if gaps else _order(ties)
        order = order[_firsts(rows[order])]
        if not gaps:
            donors = self.cells[rows[order], columns[order]]
            order = order[_ranks(donors) < -self._room[donors]]
        turns = np.full(len(free), turn, np.int64)
        ties = score(self._nodes.numbers[free], np.arange(len(free)), turns)
        free = free[_order(ties)]
        pairs = min(len(order), len(free))
        rows, columns, free = rows[order[:pairs]], columns[order[:pairs]], free[:pairs]
        fits = self._fits(self._without(rows, columns), free)
        self._set(rows[fits], columns[fits], free[fits])
        return bool(fits.any())

    # -- chains ---------------------------------------------------------------------------------

    def _chain(self, row: int, column: int) -> None:
        """Fill a gap by a node that gives up another replica for it, if it has to; and so on.

        There is always a way: the quotas can be met by some plan that keeps rule 2, so gaps, racks
        and nodes are a network with a flow that fills all of it; and a flow that does not yet can
        be made larger along some path. What we look for is the shortest one.
        """
        nodes = np.flatnonzero(self._fits_any(self.cells[row : row + 1])[0])
        ties = self._draw(nodes, np.full(len(nodes), row))
        strange = ~np.isin(nodes, self._had[row])
        start = self._reach(nodes[np.lexsort((ties, strange))].tolist())
        self._set(np.array([row]), np.array([column]), np.array([start]))

    def _reach(self, starts: Sequence[int]) -> int:
        """Make room at one of these nodes, or take what one has too many: by a chain."""
        start = self._follow(dict.fromkeys(starts))
        if start is None:
            raise InvariantBroken("there is always a chain to a node with room")
        return start

    def _follow(
        self,
        parents: dict[int, _Hop | None],
        *,
        cost_max: int = 1,
        searched_max: int | None = None,
    ) -> int | None:
        """Move replicas along the shortest chain from one of these nodes to one with room.

        Returns the node where it starts; None if there is none: of steps that cost no more than
        this, before this many nodes were searched. A chain with as few steps as possible moves no
        replica into the way of another one of the same partition: it could be cut short there.
        """
        queue = deque(parents)
        end = next((node for node in queue if self._room[node] > 0), None)
        while end is None:
            if not queue or (searched_max is not None and self._searched >= searched_max):
                return None
            node = queue.popleft()
            costs, rows = self._hops(node)
            seen = np.zeros(len(costs), np.bool_)
            seen[list(parents)] = True
            found = np.flatnonzero((costs <= cost_max) & ~seen)
            found = found[np.argsort(costs[found], kind="stable")]
            # One node of each rack first: what one can't pass on, others of its rack can't, mostly.
            turns = _ranks(self._nodes.rack[found])
            found = found[np.lexsort((costs[found], turns, self._room[found] <= 0))]
            for other in found.tolist():
                parents[other] = (node, other, int(rows[other]))
                queue.append(other)
            if len(found) and self._room[found[0]] > 0:
                end = int(found[0])
        while (hop := parents[end]) is not None:
            invariant(self._hop(hop), "a shortest chain can be followed")
            end = hop[0]
        return end

    def _hops(self, node: int) -> tuple[_Ints, _Ints]:
        """For each other node: what it costs to move a replica there from this one, and whose."""
        self._searched += 1
        rows, columns = np.nonzero(self.cells == node)
        order = np.argsort(self._draw(np.full(len(rows), node), rows), kind="stable")
        rows, columns = rows[order], columns[order]
        if not len(rows):
            return np.full(self._nodes.count, _NEVER), np.zeros(self._nodes.count, np.int64)
        new = np.ones((len(rows), self._nodes.count + 1), np.int8)
        new[np.arange(len(rows))[:, None], self._had[rows]] = 0
        costs = np.where(
            self._fits_any(self._without(rows, columns)),
            new[:, :-1] - new[:, node][:, None],
            np.int8(_NEVER),
        )
        best = costs.argmin(axis=0)
        return costs[best, np.arange(costs.shape[1])].astype(np.int64), rows[best]

    def _hop(self, hop: _Hop) -> bool:
        """Move a replica from a node to another, if it fits there."""
        node, other, row = hop
        rows = np.array([row])
        columns = np.flatnonzero(self.cells[row] == node)
        others = np.array([other])
        if len(columns) != 1 or not self._fits(self._without(rows, columns), others)[0]:
            return False
        self._set(rows, columns, others)
        return True

    # -- the best plan --------------------------------------------------------------------------

    def improve(self) -> None:
        """Save moves by cycles of replicas until the plan is the best one, if the zone is small."""
        count = self._nodes.count
        if max(self.cells.size, count) * count > _IMPROVE_MAX:
            return
        banned: set[_Hop] = set()
        while self._moves() > self._moves_min:
            cycle = self._cycle(banned)
            if not cycle:
                return
            before = self.cells.copy(), self._room.copy(), self._quotas.copy()
            moves = self._moves()
            if not all(self._hop(one) if one[2] >= 0 else self._trade(one) for one in cycle):
                self.cells, self._room, self._quotas = before
                banned.update(cycle)
            else:
                invariant(self._moves() < moves, "a cycle saves a move")

    def _moves(self) -> int:
        stays = sum((self.cells == column[:, None]).any(axis=1) for column in self._had.T)
        return self.cells.size - int(np.sum(stays))

    def _trade(self, hop: _Hop) -> bool:
        """Let a node have one more, by the quota of another."""
        node, other, _ = hop
        if not self._nodes.may_trade(self._quotas)[node, other]:
            return False
        for quota in (self._quotas, self._room):
            quota[node] += 1
            quota[other] -= 1
        return True

    def _cycle(self, banned: set[_Hop]) -> list[_Hop]:
        """Hops from node to node, in a circle, that save a move in all; empty if there are none.

        Bellman and Ford's search, from all nodes at once.
        """
        found = [self._hops(node) for node in range(self._nodes.count)]
        costs = np.array([one[0] for one in found])
        rows = np.array([one[1] for one in found])
        trade = self._nodes.may_trade(self._quotas) & (costs > 0)
        costs[trade], rows[trade] = 0, -1
        for node, other, row in banned:
            if rows[node, other] == row:
                costs[node, other] = _NEVER
        costs[costs == _NEVER] = self.cells.size + 1
        distances = np.zeros(len(costs), np.int64)
        parents = np.full(len(costs), -1, np.int64)
        for _ in range(len(costs) + 1):
            ways = distances[:, None] + costs
            best = ways.argmin(axis=0)
            nearer = ways[best, np.arange(len(costs))] < distances
            if not nearer.any():
                return []
            distances = np.where(nearer, ways.min(axis=0), distances)
            parents[nearer] = best[nearer]
            circle = _circle(parents.tolist())
            if circle:
                hops = zip(circle, [*circle[1:], circle[0]], strict=True)
                return [(node, other, int(rows[node, other])) for node, other in hops]
        return []


_Hop: TypeAlias = tuple[int, int, int]
"""From a node to another, and the row whose replica goes; -1: a quota goes the other way."""
_NEVER: Final = 9


# A zone has many replicas, and the time of a plan should grow as they do. So the order of indexes,
# which are small, is found by counting; and scores, of which no two are the same, are sorted by the
# fastest sort there is, though it does not keep the order of equals.


def _order(ties: _Words) -> _Ints:
    """The order of scores; equal ones stay in the order in which they come."""
    order = np.argsort(ties)
    ordered = ties[order]
    if (ordered[1:] == ordered[:-1]).any():
        return np.argsort(ties, kind="stable")
    return order


def _firsts(values: _Ints) -> _Ints:
    """Where each value stands first, in order. No value is negative."""
    places = np.arange(len(values))
    first = np.empty(int(values.max(initial=-1)) + 1, np.int64)
    first[values[::-1]] = places[::-1]  # of those at one place, the last one stays
    return np.flatnonzero(first[values] == places)


def _ranks(values: _Ints) -> _Ints:
    """Of each value, how often it stands before."""
    values = values - values.min(initial=0)
    counts = np.bincount(values)
    small = len(counts) <= 1 << 16
    order = np.argsort(values.astype(np.uint16) if small else values, kind="stable")
    starts = np.cumsum(counts) - counts
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(values)) - starts[values[order]]
    return ranks


def _circle(parents: Sequence[int]) -> list[int]:
    """A circle of parents, in the order in which they lead to each other; empty if none."""
    seen: dict[int, int] = {}
    for start in range(len(parents)):
        node = start
        while node >= 0 and node not in seen:
            seen[node] = start
            node = parents[node]
        if node >= 0 and seen[node] == start:
            circle = [node]
            while (node := parents[node]) != circle[0]:
                circle.append(node)
            return circle[::-1]
    return []
