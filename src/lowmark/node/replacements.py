"""A node in the place of a lost one, for operators: what the lost one leaves behind, and the
directory of the new one. What becomes of it then is in `lowmark.metastore.replacing`.
"""

from __future__ import annotations

import secrets

import msgspec

from lowmark.group import Future
from lowmark.ledger.home import HOME_KEY, keep_of
from lowmark.log import files
from lowmark.metastore import Cluster, Identity, NodeInfo
from lowmark.metastore.replacing import prepare
from lowmark.node.directory import check_directory, data_path
from lowmark.node.messages import ReplaceAsk
from lowmark.node.rebalance import Rebalance
from lowmark.placement import PartitionId, Placement
from lowmark.placement.replacing import Loss, Standing
from lowmark.runtime import RealDisk


class ReplaceReply(msgspec.Struct, frozen=True, kw_only=True):
    """What it leaves behind."""

    node: str
    number: int
    cluster: str
    address: str
    endpoint: str
    rack: str
    attributes: dict[str, str]
    voter: bool
    """Whether it votes in the metastore."""
    zones: tuple[str, ...]
    """Those that have it among their nodes."""
    partitions: int
    """This many have a copy there, or were to have one: the new node gets one of each."""
    bytes: int
    """What it is sent for them, as far as their leaders say."""
    losses: tuple[Loss, ...]
    """Partitions that have no majority without it."""
    ledgers: str
    """Where the cluster's ledgers are, if that is in its directory."""
    join: tuple[str, ...]
    """The endpoints of nodes that are up."""
    tokens: bool
    """Whether the node that answers asks for tokens."""
    refused: str = ""
    """Why it can't be replaced now; empty: it can."""
    detail: str = ""
    hint: str = ""

    @property
    def lost(self) -> NodeInfo:
        """The node itself."""
        return NodeInfo(
            number=self.number,
            name=self.node,
            address=self.address,
            endpoint=self.endpoint,
            rack=self.rack,
            attributes=self.attributes,
        )


def replacement(
    cluster: Cluster, placement: Placement, rebalance: Rebalance, asked: ReplaceAsk, *, tokens: bool
) -> Future[ReplaceReply]:
    """What a node leaves behind, as an operator is told. Called on the loop."""
    whole: Future[ReplaceReply] = Future()
    number = placement.operations.node_named(asked.node)

    def looked(future: Future[Standing]) -> None:
        if future.error is not None:
            whole.reject(future.error)
            return
        standing = future.result()
        answer = rebalance.sizes().map(
            lambda sizes: _reply(cluster, standing, sizes, tokens=tokens)
        )
        answer.then(whole.follow)

    placement.replacing.look(number, tries=asked.tries).then(looked)
    return whole


def _reply(
    cluster: Cluster, standing: Standing, sizes: dict[PartitionId, int], *, tokens: bool
) -> ReplaceReply:
    node, refused = standing.node, standing.refused
    home = cluster.metastore.get_local(HOME_KEY)
    up = cluster.topology.nodes
    return ReplaceReply(
        node=node.name,
        number=node.number,
        cluster=cluster.settings.id,
        address=node.address,
        endpoint=node.endpoint,
        rack=node.rack,
        attributes=node.attributes,
        voter=standing.voter,
        zones=standing.zones,
        partitions=len(standing.partitions),
        bytes=sum(sizes.get(one, 0) for one in standing.partitions),
        losses=standing.losses,
        ledgers=keep_of(None if home is None else home.value, node.number),
        join=tuple(one.endpoint for one in up if one.endpoint and one.number != node.number),
        tokens=tokens,
        refused="" if refused is None else refused.message,
        detail="" if refused is None else refused.detail,
        hint="" if refused is None else refused.hint,
    )


def prepare_directory(path: str, lost: NodeInfo) -> Identity:
    """Say in a directory, which is made if it is not there, whose place its node takes."""
    path = data_path(path)
    check_directory(path, create=True)
    disk = RealDisk(path)
    # A directory without a lock file is none of Lowmark's to a start that looks into it.
    lock = disk.lock(files.LOCK)
    try:
        return prepare(disk, lost, draw=secrets.randbelow)
    finally:
        lock.release()
