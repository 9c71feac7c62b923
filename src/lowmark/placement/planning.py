"""What would move if the cluster changed, by the code that decides on moves; nothing is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from lowmark.catalog import Catalog, Zone, find_zone
from lowmark.errors import Rejected
from lowmark.formatting import counted
from lowmark.metastore import NodeInfo
from lowmark.placement.assignments import PartitionId
from lowmark.placement.baseline import Presence, next_baseline, open_to
from lowmark.placement.target import Place, plan
from lowmark.placement.zones import Zones

_LONG_MS: Final = 1 << 60
"""For longer than any zone waits for a node that comes."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What would be otherwise."""

    add: Sequence[NodeInfo] = ()
    """Nodes that came; their numbers are those of no other node."""
    remove: Collection[int] = ()
    """Nodes that left."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """Of zones, by name."""


class PlannedMove(msgspec.Struct, frozen=True, array_like=True):
    """What would become of one partition."""

    table: int
    partition: int
    now: tuple[int, ...]
    then: tuple[int, ...]
    bytes: int
    """Of its backlog, which each node that gets a copy is sent; 0 if no node said."""


class Plan(msgspec.Struct, frozen=True):
    """What would move."""

    moves: tuple[PlannedMove, ...]
    replicas: int
    """This many copies would be made."""
    bytes: int
    """This much would be sent."""
    warnings: tuple[str, ...]


def planned(
    zones: Zones, catalog: Catalog, wish: Wish, *, sizes: Mapping[PartitionId, int]
) -> Plan:
    """What would move, and what an operator should know before it does."""
    for name, number in sorted(wish.replicas.items()):
        find_zone(catalog, name)
        if number < 1:
            raise Rejected(f"zone {name} can't have {counted(number, 'replica')}")
    now = zones.presence()
    then = _wished(now, wish)
    moves: list[PlannedMove] = []
    warnings: list[str] = []
    counted_on: set[int] = set()
    for zone in sorted(catalog.zones.values(), key=lambda one: one.id):
        wanted = replace(zone, replicas=wish.replicas.get(zone.name, zone.replicas))
        before, _ = zones.baseline(zone.id)
        chosen = None if before is None else before.chosen
        found = next_baseline(before, wanted, catalog.version, then).baseline
        places = [Place(n.number, n.rack) for n in found.nodes if n.number not in wish.remove]
        current, holding = zones.standing(zone.id)
        if not open_to(zone, chosen, then):
            stays = "its partitions stay where they are" if current else "new tables have to wait"
            warnings.append(f"{_no_node(zone, chosen, now, then)}: {stays}")
        elif current:
            warnings += _warnings(zone, wanted.replicas, len(places))
        if not current or not places:
            continue
        counted_on.update(place.number for place in places)
        target = plan(current, places, replicas=wanted.replicas, holding=holding)
        for partition in sorted(target):
            if set(target[partition]) != set(current[partition]):
                size = sizes.get(partition, 0)
                moved = PlannedMove(*partition, tuple(current[partition]), target[partition], size)
                moves.append(moved)
    warnings += _down(then, counted_on, moves)
    news = [len(set(move.then) - set(move.now)) for move in moves]
    sent = sum(move.bytes * new for move, new in zip(moves, news, strict=True))
    return Plan(tuple(moves), sum(news), sent, tuple(warnings))


def _wished(now: Presence, wish: Wish) -> Presence:
    """The nodes, if it came as wished."""
    nodes = [node for node in now.nodes if node.number not in wish.remove]
    come = {node.number: _LONG_MS for node in wish.add}
    return replace(now, nodes=[*nodes, *wish.add], up_ms={**now.up_ms, **come})


def _no_node(zone: Zone, chosen: Collection[int] | None, now: Presence, then: Presence) -> str:
    """Why a zone may have no node."""
    if open_to(zone, chosen, replace(then, draining=frozenset())):
        return f"all nodes that zone {zone.name} may have are drained"
    if chosen is not None or open_to(zone, None, replace(now, draining=frozenset())):
        return f"zone {zone.name} would have no node"
    return f"the filter {zone.node_filter!r} of zone {zone.name} matches no node"


def _down(there: Presence, places: Collection[int], moves: Sequence[PlannedMove]) -> list[str]:
    """Of nodes that are down, and that the plan counts on."""
    found = []
    for node in there.nodes:
        if node.number in places and node.number not in there.up_ms:
            waiting = sum(node.number in set(one.then) - set(one.now) for one in moves)
            what = "what it holds is not moved by this plan"
            if waiting:
                what = f"{counted(waiting, 'partition')} would move there, and wait until it is up"
            found.append(f"node {node.name} is down: {what}")
    return found


def _warnings(zone: Zone, replicas: int, nodes: int) -> list[str]:
    copies = min(replicas, nodes)
    if not nodes:
        return [f"zone {zone.name} would have no node: its partitions would stay where they are"]
    found = []
    if copies < replicas:
        found.append(
            f"zone {zone.name} would have {copies} of {counted(replicas, 'replica')}: it has"
            f" {counted(nodes, 'node')}"
        )
    if copies == 2:
        found.append(
            f"zone {zone.name} would have two replicas: they survive no loss of a node; use three"
        )
    elif copies == 1:
        found.append(f"zone {zone.name} would have one replica: a lost disk is lost data")
    return found
