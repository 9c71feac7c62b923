"""What the metastore says of nodes and of the cluster: values under a few keys.

    cluster         what was settled when the cluster was founded, and never changes
    node.<number>   a node that belongs to the cluster, up or down, until it leaves
    topology        the nodes that are up, with a version that grows by one with every change

They are JSON, so that a person can read them with any client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from lowmark.errors import Corrupt, Rejected
from lowmark.runtime import Buffer

CLUSTER_KEY = b"cluster"
NODE_PREFIX = b"node."
TOPOLOGY_KEY = b"topology"
NAME_BYTES_MAX = 64
ATTRIBUTES_MAX = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who a node is."""

    number: int
    """Drawn when its data directory was made; it never changes."""
    name: str
    """For people; no two nodes of a cluster share one."""
    address: str
    """Where other nodes reach it."""
    endpoint: str = msgspec.field(default="", name="door")
    """Where clients reach it."""
    rack: str = ""
    attributes: dict[str, str] = {}
    replaces: int = 0
    """The number of the node whose name and place it took, which was lost; 0: of none."""

    @property
    def all_attributes(self) -> dict[str, str]:
        """With the rack among them, as zones filter by it."""
        return {**self.attributes, "rack": self.rack} if self.rack else dict(self.attributes)


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that are up, by number."""

    version: int = 0
    nodes: tuple[NodeInfo, ...] = ()

    def with_node(self, node: NodeInfo) -> Topology:
        """With a node, or with what is new about it."""
        others = [other for other in self.nodes if other.number != node.number]
        nodes = tuple(sorted([*others, node], key=lambda one: one.number))
        return Topology(version=self.version + 1, nodes=nodes)

    def without(self, number: int) -> Topology:
        """Without a node."""
        nodes = tuple(node for node in self.nodes if node.number != number)
        return Topology(version=self.version + 1, nodes=nodes)

    def find(self, number: int) -> NodeInfo | None:
        """A node that is up."""
        return next((node for node in self.nodes if node.number == number), None)


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What was settled when the cluster was founded."""

    id: str
    members: int = 3
    """This many nodes vote in the metastore."""
    schema_sync_delay_ms: int = 500
    clock_max_skew_ms: int = 500
    watermark_availability_ms: int = 600_000
    """So far back history stays exact, for tables to be read as they were; 0 is allowed."""
    watermark_interval_ms: int = 10_000
    """So often the low watermark is moved, and what it holds no longer is removed."""
    ledger_location: str = ""
    """Where ledgers are; empty: in a node's own data directory, which only one node can do."""
    rebalance_adjust: Literal["update", "cancel"] = "update"
    """What becomes of a move that still copies when its partition gets another target."""

    def __post_init__(self) -> None:
        if self.schema_sync_delay_ms < 1 or self.clock_max_skew_ms < 0:
            raise ValueError("schema_sync.delay_ms is at least 1, clock.max_skew_ms at least 0")
        if self.watermark_availability_ms < 0 or self.watermark_interval_ms < 10:
            raise ValueError(
                "watermark.availability_ms is at least 0, watermark.interval_ms at least 10"
            )


T = TypeVar("T")


def node_key(number: int) -> bytes:
    """Where a node's description stands."""
    return b"%s%d" % (NODE_PREFIX, number)


def lease_of(number: int) -> str:
    """The lease that says that a node is up."""
    return f"node.{number}"


def encode(value: ClusterSettings | NodeInfo | Topology) -> bytes:
    """As it stands in the metastore."""
    return msgspec.json.encode(value)


def _decode(value: Buffer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a {kind.__name__} in the metastore can't be read: {error}") from error


def decode_cluster(value: Buffer) -> ClusterSettings:
    """As it stands in the metastore."""
    return _decode(value, ClusterSettings)


def decode_node(value: Buffer) -> NodeInfo:
    """As it stands in the metastore."""
    return _decode(value, NodeInfo)


def decode_topology(value: Buffer) -> Topology:
    """As it stands in the metastore."""
    return _decode(value, Topology)


def check_name(name: str) -> None:
    """Refuse what can't name a node."""
    if len(name) > NAME_BYTES_MAX or not _NAME.fullmatch(name):
        raise Rejected(
            f"{name!r} can't name a node",
            hint=f"Use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-',"
            " starting with a letter or a digit.",
        )


def check_node(node: NodeInfo) -> None:
    """Refuse what can't be a node."""
    check_name(node.name)
    if not 0 < node.number < 1 << 63 or not node.address:
        raise Rejected("a node has a number from 1 to 2^63 - 1, and an address")
    check_attributes(node.name, rack=node.rack, attributes=node.attributes, endpoint=node.endpoint)


def check_attributes(
    name: str, *, rack: str, attributes: Mapping[str, str], endpoint: str = ""
) -> None:
    """Refuse what a node can't have."""
    long = [*attributes.items(), ("rack", rack), ("endpoint", endpoint)]
    if len(attributes) > ATTRIBUTES_MAX or any(len(k) + len(v) > 1_024 for k, v in long):
        raise Rejected(
            f"node {name} has too many attributes, or too long ones",
            hint=f"At most {ATTRIBUTES_MAX} of at most 1,024 characters each are allowed.",
        )
