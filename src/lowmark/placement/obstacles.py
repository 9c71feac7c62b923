"""What keeps partitions on a node that is drained, and a node in its cluster. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from lowmark.catalog import Catalog, Catalogs, TableId, Zone
from lowmark.metastore import NodeInfo
from lowmark.placement.assignments import Keys, PartitionId


class Stuck(msgspec.Struct, frozen=True):
    """A zone whose partitions can't leave a node that is drained: it may have no other node."""

    node: int
    zone: str
    partitions: int
    """This many of them are on the node."""
    reason: str
    hint: str


def why_stuck(zone: Zone, node: int, others: Sequence[NodeInfo], by_hand: bool) -> tuple[str, str]:
    """Why a zone may have no other node than one that is drained, and what helps."""
    drained = [other.name for other in others if other.number != node]
    reason, hint = f"zone {zone.name} has no other node", "Let another node join"
    if drained:
        names = ", ".join(sorted(drained))
        reason = f"all nodes that zone {zone.name} may have are drained, such as {names}"
        hint += f", or end a drain: `lowmark node drain {drained[0]} --stop`"
    elif by_hand:
        reason += ": its nodes were named by hand"
        hint = (
            f"Name others: `lowmark zone baseline {zone.name} NODE …`; or let nodes come and go by"
            f" themselves: `lowmark zone baseline {zone.name} auto`"
        )
    elif zone.node_filter:
        reason += f": its filter {zone.node_filter!r} matches none"
        hint = (
            "Let a node join that the filter matches, or alter it:"
            f" `lowmark zone alter {zone.name} --node-filter FILTER`"
        )
    return reason, f"{hint}."


def needing(
    node: int, partitions: Iterable[tuple[PartitionId, Keys]], up: AbstractSet[int]
) -> tuple[Counter[int], Counter[int]]:
    """Partitions, by table, that are on a node alone, and others without a majority of nodes that
    are up besides it.
    """
    alone, last = needed(node, partitions, up)
    return Counter(one.table for one in alone), Counter(one.table for one in last)


def needed(
    node: int, partitions: Iterable[tuple[PartitionId, Keys]], up: AbstractSet[int]
) -> tuple[list[PartitionId], list[PartitionId]]:
    """The partitions themselves."""
    alone, last = list[PartitionId](), list[PartitionId]()
    for partition, keys in partitions:
        # While pending is put in force, the group needs a majority of it, too.
        for assigned in (keys.stable, keys.pending):
            if assigned is None or node not in assigned.nodes:
                continue
            if len(assigned.nodes) == 1:
                alone.append(partition)
            elif 2 * len(up & set(assigned.nodes)) <= len(assigned.nodes):
                last.append(partition)
    return alone, last


def last_with(catalogs: Catalogs, table: TableId) -> Catalog | None:
    """The last version of the catalog that has a table, of those that are left."""
    for version in range(catalogs.latest.version, catalogs.earliest.version - 1, -1):
        catalog = catalogs.version(version)
        if table in catalog.tables:
            return catalog
    return None
