"""The cluster of a database, for operators: what moves, what would move, and what shall not.

What each call does, `lowmark rebalance`, `lowmark node` and `lowmark zone baseline` do, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

from lowmark.backend.errors import OutcomeUnknown
from lowmark.backend.operating import (
    BaselineAsk,
    BaselineReply,
    CancelAsk,
    CancelledReply,
    ChangeAsk,
    DrainAsk,
    DrainReply,
    NewNode,
    NodeReply,
    Nothing,
    PlanAsk,
    PlanReply,
    RebalanceReply,
    RebalanceSettings,
    RemoveNodeAsk,
    operated,
)
from lowmark.backend.port import Backend
from lowmark.client.checking import whole
from lowmark.client.edges import edge
from lowmark.client.session import Session
from lowmark.errors import LowmarkError, Rejected
from lowmark.ledger.home import HOME_KEY, keep_of
from lowmark.metastore import NodeInfo
from lowmark.metastore.nodes import NODE_PREFIX, decode_node

T = TypeVar("T")


@edge()
class Cluster:
    """The nodes of a database and the moves of partitions among them. See `Database.cluster`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def _backend(self) -> Backend:
        return self._session.backend

    # -- moves ----------------------------------------------------------------------------------

    def rebalance(self) -> RebalanceReply:
        """What moves, how far it is, and what fails; whether moves are paused or limited."""
        return operated(self._backend, "rebalance.status", Nothing(), RebalanceReply)

    def plan(
        self,
        *,
        add: Sequence[str | NewNode] = (),
        remove: Sequence[str] = (),
        replicas: Mapping[str, int] | None = None,
    ) -> PlanReply:
        """What would move if nodes came (`"n4"`, or `"n4:r2"` with its rack) or went, or zones had
        other replicas (by name). Nothing is changed.
        """
        new = tuple(new_node(one) if isinstance(one, str) else one for one in _several(add, "add"))
        asked = PlanAsk(
            add=new,
            remove=tuple(_several(remove, "remove")),
            replicas={
                zone: whole(number, "replicas", least=1)
                for zone, number in (replicas or {}).items()
            },
        )
        return operated(self._backend, "rebalance.plan", asked, PlanReply)

    def pause(self) -> RebalanceSettings:
        """Begin no move, and stop those that still copy rows, until `resume`."""
        return self._change(ChangeAsk(paused=True))

    def resume(self) -> RebalanceSettings:
        """Let moves go on."""
        return self._change(ChangeAsk(paused=False))

    def throttle(self, bytes_per_s: int) -> RebalanceSettings:
        """Limit what each node sends for moves; 0 lifts the limit."""
        return self._change(ChangeAsk(bytes_per_s=whole(bytes_per_s, "bytes_per_s")))

    def _change(self, asked: ChangeAsk) -> RebalanceSettings:
        return operated(self._backend, "rebalance.change", asked, RebalanceSettings)

    def cancel(self, table: str | None = None, partition: int | None = None) -> CancelledReply:
        """Have partitions stay where they are: one, those of a table, or all that move. The next
        change of the cluster decides on them anew.
        """
        number = None if partition is None else whole(partition, "partition")
        asked = CancelAsk(table=table, partition=number)
        return operated(self._backend, "rebalance.cancel", asked, CancelledReply)

    # -- nodes ----------------------------------------------------------------------------------

    def drain(self, node: str, *, stop: bool = False) -> DrainReply:
        """Have all partitions leave a node, by its name; with `stop`, let it have some again. It
        returns at once: `drained` says how far it is.
        """
        return operated(self._backend, "node.drain", DrainAsk(node=node, stop=stop), DrainReply)

    def drained(self, node: str) -> DrainReply:
        """What is still on a node."""
        return operated(self._backend, "node.drain", DrainAsk(node=node, look=True), DrainReply)

    def remove(self, node: str) -> NodeReply:
        """Take a node out of the cluster, for good. It is refused while partitions need it.

        Should the answer be lost, the metastore says whether the node is gone: then it is done.
        """
        before = next((one for one in self._nodes() if node in (one.name, str(one.number))), None)
        try:
            return operated(self._backend, "node.remove", RemoveNodeAsk(node=node), NodeReply)
        except OutcomeUnknown as unknown:
            if before is None:
                raise
            try:
                is_gone = all(one.number != before.number for one in self._nodes())
                home = self._backend.get(HOME_KEY)
            except LowmarkError:
                raise unknown from None
            if not is_gone:
                raise
            keep = keep_of(None if home is None else home.value, before.number)
            return NodeReply(node=before.name, number=before.number, keep=keep)

    def _nodes(self) -> list[NodeInfo]:
        """What belongs to the cluster, up or down."""
        return [decode_node(entry.value) for entry in self._backend.range(NODE_PREFIX)]

    def baseline(
        self, zone: str, nodes: Sequence[str] | Literal["auto"] | None = None
    ) -> BaselineReply:
        """The nodes that partitions of a zone are placed on. With `nodes`, these and no others from
        now on; with `"auto"`, nodes come and go by themselves again.
        """
        auto = nodes == "auto"
        if nodes is not None and not auto and not nodes:
            raise Rejected("a zone needs at least one node", hint='Name nodes, or give "auto".')
        named = () if nodes is None or auto else tuple(_several(nodes, "nodes"))
        asked = BaselineAsk(zone=zone, nodes=named, auto=auto)
        return operated(self._backend, "zone.baseline", asked, BaselineReply)


def new_node(text: str) -> NewNode:
    """A node that could join, from its name, or its name and rack: `n4:r2`."""
    name, _, rack = text.strip().partition(":")
    if not name:
        raise Rejected(f"{text!r} names no node", hint="Write n4, or n4:r2 with its rack.")
    return NewNode(name=name, rack=rack)


def _several(names: Sequence[T], argument: str) -> list[T]:
    if isinstance(names, str):
        raise Rejected(f"{argument} is one name", hint=f"Give a list: {argument}=[{names!r}].")
    return list(names)
