"""Spreads leaders: every partition has a node that should lead it, so that no node leads too much.

A leader takes the rows of its partition, so nodes share the work as they share leaders. Elections
are won by the node that is first: after a node was down, it leads nothing. Each node looks at what
it leads, and hands over what another node should lead (`placement.leaders`). All nodes come to the
same, once they have heard the same, and ask no one.

A partition that moves is led by a node that has it and will have it; one on nodes that are drained,
by one of the others, if there is any.

What holds
    1. Only a node that was heard of at two looks in a row, and that has next to everything, is
       given anything. A node that has just started is left in peace.
    2. A partition whose leadership comes back, because that node can't write, say, is left where it
       is for twice as long each time. So leadership does not go to and fro.
    3. At most `MOVES_MAX` a look. With thousands of partitions it takes some looks, and rows do not
       wait for the elections of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from lowmark.catalog import Catalogs
from lowmark.placement import Placement
from lowmark.placement.assignments import Keys, PartitionId
from lowmark.placement.leaders import spread_leaders
from lowmark.raft import ProgressState
from lowmark.table import Partition

MOVES_MAX: Final = 64
WAIT_MS: Final = 30_000
WAIT_MS_MAX: Final = 600_000
NEAR_ENTRIES: Final = 100
"""What the next leader may lack: it gets it while rows wait."""
_DROPPED: Final = 0
"""Stands for the zone of tables that were dropped; no zone has this id."""


def may_lead(keys: Keys, drained: AbstractSet[int]) -> tuple[int, ...]:
    """The nodes that a partition may be led by; none if it is nowhere yet."""
    if keys.stable is None or keys.heading is None:
        return ()
    nodes = keys.stable.nodes
    stay = tuple(node for node in nodes if node not in drained) or nodes
    return tuple(node for node in stay if node in keys.heading.nodes) or stay


class WhoLeads:
    """The node that should lead each partition, as this node knows; computed when asked for."""

    def __init__(self, placement: Placement, catalogs: Catalogs) -> None:
        self._placement = placement
        self._catalogs = catalogs
        self._known: dict[PartitionId, int] = {}
        self._as_of: tuple[int, AbstractSet[int], int] | None = None

    def __call__(self, partition: PartitionId) -> int | None:
        """None: this node does not know where the partition is."""
        drained, catalog = self._placement.zones.drained, self._catalogs.latest
        as_of = self._placement.heard, drained, catalog.version
        if as_of != self._as_of:
            zones: dict[int, dict[PartitionId, tuple[int, ...]]] = {}
            tables = {table.id: table.zone_id for table in catalog.all_tables()}
            for one, keys in self._placement.all_keys():
                nodes = may_lead(keys, drained)
                if nodes:
                    zones.setdefault(tables.get(one.table, _DROPPED), {})[one] = nodes
            self._known = {}
            for zone in zones.values():
                self._known |= spread_leaders(zone)
            self._as_of = as_of
        return self._known.get(partition)


@dataclass(slots=True)
class _Given:
    at_ms: int
    wait_ms: int


class Leaders:
    """Of the partitions that this node leads."""

    def __init__(
        self, *, should_lead: Callable[[PartitionId], int | None], now_ms: Callable[[], int]
    ) -> None:
        self._should_lead = should_lead
        self._now_ms = now_ms
        self._heard: frozenset[int] = frozenset()
        """Nodes that were heard of at the last look."""
        self._given: dict[PartitionId, _Given] = {}

    def look(self, partitions: Iterable[Partition]) -> int:
        """Hand over what others should lead; says how many partitions that were."""
        now_ms, moved = self._now_ms(), 0
        heard: set[int] = set()
        for partition in partitions:
            group, key = partition.group, PartitionId(partition.table, partition.number)
            if not group.ready:
                continue
            to = self._should_lead(key)
            if to is None or to == group.node or not group.hears(to):
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

    def _may_give(self, key: PartitionId, now_ms: int) -> bool:
        given = self._given.get(key)
        return given is None or now_ms - given.at_ms >= given.wait_ms

    def _note(self, key: PartitionId, now_ms: int) -> None:
        before, wait_ms = self._given.get(key), WAIT_MS
        if before is not None and now_ms - before.at_ms < 2 * before.wait_ms:
            wait_ms = min(2 * before.wait_ms, WAIT_MS_MAX)  # it came back soon
        self._given[key] = _Given(now_ms, wait_ms)
