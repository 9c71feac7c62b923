"""What the partitions of a zone are placed by: its nodes and its replicas, as one value. Pure.

    zone.<id>.baseline    {"nodes":[{"number":1,"rack":"r1"},…],"replicas":3,"catalog_version":7}
    zone.draining.<node>  {"since_ms":1735652600000}

A target is computed from this value, so all that moves a partition changes it first: a node that
joins, leaves, is drained or has another rack; a zone that gets another filter or other replicas; an
operator that names the nodes (`chosen`). Its revision is the revision of the event, which every
partition of the zone is decided on once.

Nodes come and go by themselves unless the operator has chosen them:

    - A node that matches the zone's filter and is up comes in when `scale_up_ms` have passed since
      it came, whichever nodes have coordinated meanwhile. One that came meanwhile waits for no one:
      a change that is made for another reason takes all along that are up.
    - A node that is down stays for `scale_down_ms` (for good, if that is None). So a restart moves
      no data. It also stays while the zone would have fewer nodes than replicas without it: its
      partitions could go nowhere, and would have to be copied again when it is back. A node that
      was given a new table before it came in, and is down since, counts as one that was in.
    - A node that leaves the cluster, does not match the filter any more, or is drained goes at
      once. Chosen nodes go only if they leave or are drained.

A node that was away when a table was made, and is back, is an event, too, after `scale_up_ms`: the
same baseline is written once more (`zones`).

A zone without any node left keeps those that it had: nothing can be moved to nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import msgspec

from lowmark.catalog import Zone
from lowmark.errors import Corrupt
from lowmark.metastore import NodeInfo
from lowmark.runtime import Buffer

ZONE_PREFIX: Final = b"zone."
_BASELINE: Final = b".baseline"
DRAINING_PREFIX: Final = b"zone.draining."


class BaselineNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node that partitions of the zone may be on."""

    number: int
    rack: str = ""


class Baseline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the partitions of a zone are placed by."""

    nodes: tuple[BaselineNode, ...]
    """By number."""
    replicas: int
    catalog_version: int
    """The version of the catalog that the zone was looked up in."""
    chosen: tuple[int, ...] | None = None
    """The nodes that an operator has named; None: they come and go by themselves."""

    def encode(self) -> bytes:
        """As it stands in the metastore."""
        return msgspec.json.encode(self)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The nodes."""
        return tuple(node.number for node in self.nodes)


class Draining(msgspec.Struct, frozen=True):
    """A node that shall have no partitions."""

    since_ms: int

    def encode(self) -> bytes:
        """As it stands in the metastore."""
        return msgspec.json.encode(self)


def decode_baseline(value: Buffer) -> Baseline:
    """As it stands in the metastore."""
    try:
        return msgspec.json.decode(value, type=Baseline)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a zone's baseline in the metastore can't be read: {error}") from error


def baseline_key(zone: int) -> bytes:
    """Where a zone's baseline stands."""
    return b"%s%d%s" % (ZONE_PREFIX, zone, _BASELINE)


def parse_baseline_key(key: bytes) -> int | None:
    """The zone whose baseline a key is; None: it is no such key."""
    if not (key.startswith(ZONE_PREFIX) and key.endswith(_BASELINE)):
        return None
    number = key.removeprefix(ZONE_PREFIX).removesuffix(_BASELINE)
    return int(number) if number.isdigit() else None


def draining_key(node: int) -> bytes:
    """Where it stands that a node is drained."""
    return b"%s%d" % (DRAINING_PREFIX, node)


def parse_draining_key(key: bytes) -> int | None:
    """The node that is drained by a key; None: it is no such key."""
    number = key.removeprefix(DRAINING_PREFIX)
    return int(number) if key.startswith(DRAINING_PREFIX) and number.isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """The nodes of the cluster, as the coordinator sees them."""

    nodes: Sequence[NodeInfo]
    """All that belong to it."""
    up_ms: Mapping[int, int]
    """For how long each of those has been up that are."""
    down_ms: Mapping[int, int]
    """For how long each of those has been down that are not."""
    draining: AbstractSet[int]
    holders: Callable[[Zone], AbstractSet[int]] = lambda _: frozenset()
    """The nodes that partitions of a zone are on; only asked if one of them may be missing."""


@dataclass(frozen=True, slots=True)
class Look:
    """What became of a zone's baseline."""

    baseline: Baseline
    again_ms: int | None
    """After this time another node will be due; None: none is waiting."""


def next_baseline(
    now: Baseline | None, zone: Zone, catalog_version: int, presence: Presence
) -> Look:
    """The baseline that a zone should have; `now` itself, if nothing is to be changed."""
    chosen = None if now is None else now.chosen
    if chosen is not None:
        nodes = open_to(zone, chosen, presence)
        waits: list[int] = []
    else:
        nodes, waits = _by_themselves(now, zone, presence)
    found = Baseline(
        nodes=tuple(
            BaselineNode(node.number, node.rack)
            for node in sorted(nodes, key=lambda one: one.number)
        ),
        replicas=zone.replicas,
        catalog_version=catalog_version,
        chosen=chosen,
    )
    again_ms = min(waits, default=None)
    if now is None:
        return Look(found, again_ms)
    if not found.nodes:
        found = msgspec.structs.replace(found, nodes=now.nodes)
    if (found.nodes, found.replicas) == (now.nodes, now.replicas):
        return Look(now, again_ms)
    if chosen is None and waits:
        # It changes in any case: nodes that would come a little later come now.
        at_once = open_to(zone, None, presence)
        there = {one.number for one in found.nodes}
        late = [n for n in at_once if n.number in presence.up_ms and n.number not in there]
        nodes_now = (*found.nodes, *(BaselineNode(n.number, n.rack) for n in late))
        found = msgspec.structs.replace(
            found, nodes=tuple(sorted(nodes_now, key=lambda one: one.number))
        )
    return Look(found, again_ms)


def open_to(zone: Zone, chosen: Collection[int] | None, presence: Presence) -> list[NodeInfo]:
    """The nodes that a zone may have, up or down: by name, if an operator has chosen them."""
    return [
        node
        for node in presence.nodes
        if node.number not in presence.draining
        and (zone.matches(node.all_attributes) if chosen is None else node.number in chosen)
    ]


def _by_themselves(
    now: Baseline | None, zone: Zone, presence: Presence
) -> tuple[list[NodeInfo], list[int]]:
    """The nodes, and after which times others may come or go."""
    eligible = open_to(zone, None, presence)
    if now is None:
        return eligible, []  # of an older release's zone, partitions may be on any of them
    there, waits = set(now.numbers), list[int]()
    if any(n.number not in there and n.number in presence.down_ms for n in eligible):
        there |= presence.holders(zone) & presence.down_ms.keys()
    nodes, gone = list[NodeInfo](), list[NodeInfo]()
    for node in eligible:
        if node.number in there:
            down_ms = presence.down_ms.get(node.number)
            left_ms = None
            if down_ms is not None and zone.scale_down_ms is not None:
                left_ms = zone.scale_down_ms - down_ms
            (nodes if left_ms is None or left_ms > 0 else gone).append(node)
            if left_ms is not None and left_ms > 0:
                waits.append(left_ms)
        elif node.number in presence.up_ms:
            left_ms = zone.scale_up_ms - presence.up_ms[node.number]
            if left_ms <= 0:
                nodes.append(node)
            else:
                waits.append(left_ms)
    short = max(0, zone.replicas - len(nodes))
    gone.sort(key=lambda one: (presence.down_ms[one.number], one.number))
    return nodes + gone[:short], waits
