"""A node in the place of one that is lost with its disk: its name, its rack, its attributes.

The new node has a number of its own. What the lost one promised stands under the old number, which
votes no more than its directory can remember: it is there, or it is silent. The new number has
promised nothing, and joins each group as any new member: empty, and without a vote before it has
what a majority has. So nothing has to be known about what was lost, and nothing is lost while a
majority of a group has it.

Steps, and what is true after each

    1. an empty directory says whose place its node takes (`prepare`). The cluster knows nothing of
       it; the lost node may still come back, and then the directory is refused
    2. the node asks to be let in. The leader finds the lost one down, without a lease, heard by no
       node, and no partition that needs it (`Judge`)
    3. one write: the lost node is out, the new one is in under its name, and in all that named the
       lost one (`Taken`) stands the new one. A crash before leaves 1; after it, the node asks again
       as one that belongs, whatever its directory has heard
    4. members of groups change, the metastore's first, as after any event
    5. if the lost node is started after all, it hears that it was replaced, as soon as no group has
       it as a member: it notes that, and never starts again. Until then it is a member like any
       other that was away: it has forgotten nothing, and a majority may need it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lowmark.errors import Unavailable
from lowmark.group import Future
from lowmark.metastore.commands import Condition, Operation
from lowmark.metastore.errors import ClusterRefused
from lowmark.metastore.identity import PATH, Identity, find_identity, save_identity
from lowmark.metastore.nodes import NodeInfo, Topology
from lowmark.runtime import Disk


@dataclass(frozen=True, slots=True)
class Taken:
    """What is written besides when a node takes the place of a lost one, and what must hold."""

    conditions: tuple[Condition, ...] = ()
    operations: tuple[Operation, ...] = ()


class Judge(Protocol):
    """Knows what a lost node leaves behind: what stands above the metastore."""

    def taking(self, lost: NodeInfo, node: NodeInfo) -> Future[Taken]:
        """Whether a node may take the place of a lost one: fails if it may not, or not now."""

    def still_has(self, number: int) -> bool:
        """Whether a node that was replaced is a member of a partition's group still."""


# -- at the leader --------------------------------------------------------------------------------


def lost_node(node: NodeInfo, nodes: Mapping[int, NodeInfo], topology: Topology) -> NodeInfo:
    """The node whose place a new one takes; refused if there is none, or it is up."""
    lost = nodes.get(node.replaces)
    if lost is None or lost.name != node.name:
        raise ClusterRefused(
            f"there is no node {node.name} with number {node.replaces} to replace",
            detail="It was removed, or replaced by another one, since this directory was prepared.",
            hint=f"Prepare an empty directory with `lowmark node replace {node.name}`; or, if there"
            " is no such node any more, have a new one join.",
        )
    if topology.find(lost.number) is not None:
        raise still_up(lost, "the cluster counts it as up: its lease was renewed")
    return lost


def not_ready(lost: NodeInfo) -> Unavailable:
    """What nothing is known of can't be judged."""
    return Unavailable(
        f"whether node {lost.name} is needed is not known yet", hint="Try again in a moment."
    )


def still_up(lost: NodeInfo, why: str) -> ClusterRefused:
    """A node can't be replaced, for it is there."""
    return ClusterRefused(
        f"node {lost.name} can't be replaced: it is up",
        detail=f"This shows it: {why}.",
        hint="If it is to go, stop its process, or its machine, and try again. If nothing is lost,"
        f" move what it has: `lowmark node drain {lost.name}`.",
    )


def not_yet(lost: NodeInfo, why: str) -> Unavailable:
    """A node can't be replaced yet, for it may be there."""
    return Unavailable(
        f"node {lost.name} can't be replaced yet: {why}",
        detail="It may be running, so the nodes wait until they can tell.",
        hint="Make sure that it is off, and try again in some seconds (`metastore.lease_ms`).",
    )


def successor(number: int, nodes: Mapping[int, NodeInfo]) -> str:
    """Which node has the place of one that is out, in words; empty: none."""
    return next(
        (
            f"node {node.number} at {node.address}"
            for node in nodes.values()
            if node.replaces == number
        ),
        "",
    )


# -- at the node ----------------------------------------------------------------------------------


def prepare(disk: Disk, lost: NodeInfo, *, draw: Callable[[int], int]) -> Identity:
    """Step 1: say in an empty directory that its node takes the place of a lost one. Again, it
    gives what stands there.
    """
    known = find_identity(disk)
    if known is None:
        identity = Identity(
            number=draw((1 << 53) - 1) + 1,
            name=lost.name,
            rack=lost.rack,
            attributes=dict(lost.attributes),
            replaces=lost.number,
        )
        save_identity(disk, identity)
        return identity
    if known.replaces == lost.number and not known.left:
        return known
    where = disk.describe(PATH)
    if known.number == lost.number:
        raise ClusterRefused(
            f"this is the directory of node {lost.name} itself: {where}",
            hint="Nothing is lost: start it with `lowmark serve --data`.",
        )
    raise ClusterRefused(
        f"the directory belongs to another node, {known.name}: {where}",
        hint="Give an empty one, or one that is not there yet.",
    )


def joins_nothing(name: str) -> ClusterRefused:
    """A directory that was prepared must not found a cluster."""
    return ClusterRefused(
        f"this directory is to take the place of node {name}, and belongs to no cluster yet",
        hint="Say where that cluster is: `lowmark serve --join ADDR`.",
    )


def has_left(node: NodeInfo, *, by: str) -> ClusterRefused:
    """A node is out of its cluster, for good."""
    if not by:
        return ClusterRefused(
            f"node {node.name} has left its cluster",
            hint="Give it an empty data directory to have it join as a new node.",
        )
    return ClusterRefused(
        f"node {node.name} was replaced: {by} has its name and its place",
        detail="What this directory has counts for nothing in the cluster any more.",
        hint="To use this machine as one more node, give it an empty data directory and another"
        " name.",
    )
