"""Spreads leaders: every partition has a node that should lead it, so that no node leads too much.

A leader takes the rows of its partition, so nodes share the work as they share leaders. Elections
are won by the node that is first: after a node was down, it leads nothing. Each node looks at what
it leads, and hands over what another node should lead: the one that stands in its assignments at
the place that the table's id and the partition's number give. All nodes come to the same, and ask
no one.

What holds
    1. Only a node that was heard of at two looks in a row, and that has next to everything, is
       given anything. A node that has just started is left in peace.
    2. A partition whose leadership comes back, because that node can't write, say, is left where it
       is for twice as long each time. So leadership does not go to and fro.
    3. At most `MOVES_MAX` a look. With thousands of partitions it takes some looks, and rows do not
       wait for the elections of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lowmark.raft import ProgressState
from lowmark.table import Partition

MOVES_MAX: Final = 64
WAIT_MS: Final = 30_000
WAIT_MS_MAX: Final = 600_000
NEAR_ENTRIES: Final = 100
"""What the next leader may lack: it gets it while rows wait."""


def should_lead(table: int, number: int, nodes: Sequence[int]) -> int:
    """The node that should lead a partition that is on these nodes."""
    # The table counts, too: else the first node would lead every table of one partition.
    return sorted(nodes)[(table + number) % len(nodes)]


@dataclass(slots=True)
class _Given:
    at_ms: int
    wait_ms: int


class Leaders:
    """Of the partitions that this node leads."""

    def __init__(
        self, *, routes: Callable[[int, int], Sequence[int]], now_ms: Callable[[], int]
    ) -> None:
        self._routes = routes
        self._now_ms = now_ms
        self._heard: frozenset[int] = frozenset()
        """Nodes that were heard of at the last look."""
        self._given: dict[tuple[int, int], _Given] = {}

    def look(self, partitions: Iterable[Partition]) -> int:
        """Hand over what others should lead; says how many partitions that were."""
        now_ms, moved = self._now_ms(), 0
        heard: set[int] = set()
        for partition in partitions:
            group, key = partition.group, (partition.table, partition.number)
            nodes = self._routes(*key)
            if not group.ready or not nodes:
                continue
            to = should_lead(*key, nodes)
            if to == group.node or not group.hears(to):
                continue
            heard.add(to)
            if moved < MOVES_MAX and to in self._heard and self._may_give(key, now_ms):
                progress = group.progress().get(to)
                if progress is None or progress.is_learner:
                    continue
                if progress.state is not ProgressState.REPLICATE:
                    continue
                if progress.match + NEAR_ENTRIES >= group.last_index():
                    self._note(key, now_ms)
                    group.transfer(to)
                    moved += 1
        self._heard = frozenset(heard)
        return moved

    def _may_give(self, key: tuple[int, int], now_ms: int) -> bool:
        given = self._given.get(key)
        return given is None or now_ms - given.at_ms >= given.wait_ms

    def _note(self, key: tuple[int, int], now_ms: int) -> None:
        before, wait_ms = self._given.get(key), WAIT_MS
        if before is not None and now_ms - before.at_ms < 2 * before.wait_ms:
            wait_ms = min(2 * before.wait_ms, WAIT_MS_MAX)  # it came back soon
        self._given[key] = _Given(now_ms, wait_ms)
