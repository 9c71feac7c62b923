"""The metastore's own members: moved by the same keys, decisions and steps as a partition's nodes.

Its keys are those of table 0, which no table is: `partition.assignments.stable.0.0` and so on. The
nodes in them vote; all other nodes of the cluster follow (`learners`). The event is a change of the
topology, and its revision that of the key `topology`: a node that joins, leaves, or is up again
changes it.

    target    nodes that vote stay voters while they belong to the cluster, and so do those that
              shall, while they are up. If there are fewer than were settled, those that came first
              and are up are added. All others are learners.

The group that is changed is the one that the keys are written to. It takes writes in every stage: a
change that fails or is cancelled leaves the old members in force, and they serve all the time. A
node that is down stays a member until it leaves: it may come back any moment.

An operator may have reset the metastore in the directory of a node (`lowmark meta reset`): the
group has one voter, and its keys name those that are lost. The group's lineage says so, as long as
`metastore.lineage` has another value. Before that node changes any member, one write makes the keys
say what is: the node is stable, alone; the other voters are drained; and no other node is up. Those
that are ask to be let in again, and get new copies of the metastore (`Cluster`). The lost voters
belong to the cluster until an operator removes them; if they come back after all, they get new
copies, too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from lowmark.errors import LowmarkError
from lowmark.group import ChangeFailed, Future, Group
from lowmark.metastore import (
    Answer,
    Branch,
    Cluster,
    Compare,
    Do,
    Following,
    NodeInfo,
    Operation,
    Put,
    Revision,
    missing,
)
from lowmark.metastore.coordinator import known, name_of, voters_of
from lowmark.metastore.nodes import TOPOLOGY_KEY, encode
from lowmark.placement import decisions
from lowmark.placement.assignments import (
    KINDS,
    LINEAGE_KEY,
    METASTORE,
    Assignments,
    Keys,
    decode_number,
)
from lowmark.placement.baseline import Draining, draining_key
from lowmark.placement.config import RebalanceConfig
from lowmark.placement.moves import Moves
from lowmark.placement.writes import carry_out, local_keys
from lowmark.runtime import Runtime

logger = logging.getLogger(__name__)

_RETRY_MS = 300


def members_target(
    stable: Assignments,
    heading: Assignments,
    nodes: Mapping[int, NodeInfo],
    up: AbstractSet[int],
    wanted: int,
) -> Assignments:
    """The nodes that should vote, and those that should follow. Pure."""
    there = [node for node in heading.nodes if node in stable.nodes or node in up]
    voters = voters_of(there, nodes, up, wanted)
    learners = tuple(sorted(number for number in nodes if number not in voters))
    return Assignments(tuple(sorted(voters)), 0, learners)


class MetastoreMembers:
    """One node's part: it acts while this node leads the metastore. All calls on the loop."""

    def __init__(
        self, runtime: Runtime, cluster: Cluster, *, config: RebalanceConfig | None = None
    ) -> None:
        self._loop = runtime.loop
        self._cluster = cluster
        self._metastore = cluster.metastore
        self._moves = Moves(
            runtime.loop,
            cluster.metastore,
            group=lambda _: self._group(),
            keys=lambda _: local_keys(self._metastore, METASTORE),
            config=config or RebalanceConfig(),
        )
        self._writing = False
        self._again = False
        self._closed = False
        self._following: Following | None = None
        self._metastore.members = self
        cluster.on_changed(self.look)

    def close(self) -> None:
        """Change nothing more."""
        self._closed = True
        if self._following is not None:
            self._following.close()
        self._moves.close()

    @property
    def problem(self) -> str:
        """Why members could not be changed, in words; empty if nothing is wrong."""
        standing = None
        if self._metastore.coordinates:
            with contextlib.suppress(LowmarkError):  # that it can't be read is said elsewhere
                standing = self._moves.standing(METASTORE)
        if standing is None or not (standing.attempts or standing.alarm):
            return ""
        by = f" by node {name_of(self._metastore, standing.node)}" if standing.node else ""
        return f"the metastore's members could not be changed{by}: {standing.reason}"

    def _group(self) -> Group | None:
        return self._metastore.group if self._metastore.has_copy else None

    # -- deciding ---------------------------------------------------------------------------------

    def look(self) -> None:
        """Decide who should be a member, if this node coordinates."""
        if self._closed or not self._metastore.coordinates:
            return
        if self._writing:
            self._again = True
            return
        try:
            if self._was_reset():
                return  # `on_leader_elected` sees to it
            decide = self._decision()
        except LowmarkError as error:
            logger.warning("the metastore can't be read here", extra={"reason": error.message})
            return
        if decide is not None:
            self._writing = True
            carry_out(self._metastore, METASTORE, decide).then(self._written)

    def _decision(self) -> Callable[[Keys], decisions.Decision] | None:
        now, keys = known(self._metastore), local_keys(self._metastore, METASTORE)
        settings, at = now.settings, now.topology_revision
        if settings is None:
            return None
        if keys.stable is None:
            members = self._metastore.group.members()
            if members.joint:
                return None
            found = Assignments(tuple(sorted(members.incoming)), 0, tuple(sorted(members.learners)))
            return lambda now: decisions.first(METASTORE, now, found, 0)
        assert keys.heading is not None
        up = {node.number for node in now.topology.nodes}
        target = members_target(keys.stable, keys.heading, now.nodes, up, settings.members)
        heading = keys.heading
        if not target.nodes or (target.nodes, target.learners) == (heading.nodes, heading.learners):
            return None
        adjust = self._moves.config.adjust
        return lambda now: decisions.trigger(METASTORE, now, target, at, adjust=adjust)

    def _written(self, future: Future[bool]) -> None:
        self._writing = False
        again, self._again = self._again, False
        if future.error is not None:
            self._loop.call_later(_RETRY_MS, self.look)
        elif again or future.result():
            self.look()

    # -- after a reset ----------------------------------------------------------------------------

    def _was_reset(self) -> bool:
        """Whether the group was reset since its keys were written."""
        entry = self._metastore.get_local(LINEAGE_KEY)
        told = 0 if entry is None else decode_number(entry.value)
        return self._metastore.lineage != told

    def _settle_reset(self, term: int) -> None:
        """Have the keys say that this node is the only member; then go on in this term."""
        if self._closed or not self._metastore.coordinates or self._metastore.group.term != term:
            return  # the next leader does it
        try:
            if not self._was_reset():
                self._lead(term)
                return
            statement, lost = self._reset_statement()
        except LowmarkError as error:
            logger.warning("the metastore can't be read here", extra={"reason": error.message})
            self._loop.call_later(_RETRY_MS, lambda: self._settle_reset(term))
            return

        def written(future: Future[Answer]) -> None:
            if future.error is None and future.result().answer == decisions.DONE:
                logger.warning("the metastore was reset", extra={"lost": lost})
                self._settle_reset(term)
            else:
                self._loop.call_later(_RETRY_MS, lambda: self._settle_reset(term))

        self._metastore.invoke(statement).then(written)

    def _reset_statement(self) -> tuple[Branch, list[int]]:
        """One write that is carried out if the keys and the topology are as this node knows them;
        and the nodes that are lost.
        """
        now, keys = known(self._metastore), local_keys(self._metastore, METASTORE)
        here = self._metastore.node
        told = Put(LINEAGE_KEY, b"%d" % self._metastore.lineage)
        if self._metastore.group.members().voters != {here}:
            # It was reset before there was such a key, and has other members since.
            return Branch(missing(LINEAGE_KEY), Do((told,), decisions.DONE), Do()), []
        lost = sorted((keys.nodes - {here}) & now.nodes.keys())
        only = Assignments((here,), 0)
        if keys.stable is None:
            decision = decisions.first(METASTORE, keys, only, 0)
        else:
            decision = decisions.reset(METASTORE, keys, only)
        # Nodes that only followed may be lost as well, and a member that is not there would be
        # waited for: those that are up say so.
        topology = now.topology
        for other in now.topology.nodes:
            if other.number != here:
                topology = topology.without(other.number)
        since = Draining(self._loop.wall_ms()).encode()
        operations: tuple[Operation, ...] = (
            *decision.operations,
            *(Put(draining_key(node), since) for node in lost),
            Put(TOPOLOGY_KEY, encode(topology)),
            told,
        )
        decision = decisions.Decision(operations, True)
        unchanged = decisions.statement(METASTORE, keys, decision)
        same = Revision(TOPOLOGY_KEY, Compare.EQ, now.topology_revision)
        return Branch(same, unchanged, Do(answer=decisions.LOST)), lost

    # -- told by the group ------------------------------------------------------------------------

    def on_leader_elected(self, term: int) -> None:
        """See `PeerListener`."""
        self._follow()
        self._settle_reset(term)

    def _lead(self, term: int) -> None:
        self._moves.elected(METASTORE, term)
        self.look()

    def on_change_peers_committed(self, peers: tuple[int, ...]) -> None:
        """See `PeerListener`."""
        self._moves.finished(METASTORE, peers)

    def on_change_peers_error(self, context: ChangeFailed) -> None:
        """See `PeerListener`."""
        self._moves.failed(METASTORE, context)

    def try_catch_up_finish(self, peers: tuple[int, ...], answer: Callable[[bool], None]) -> None:
        """See `PeerListener`."""
        self._moves.may_finish(METASTORE, peers, answer)

    # -- following its keys -----------------------------------------------------------------------

    def _follow(self) -> None:
        if self._following is None:
            self._following = self._metastore.keep_watching(
                keys=[METASTORE.key(kind) for kind in KINDS],
                start=self._changed,
                on_event=lambda _: self._changed(),
                name="the metastore's members",
            )
        else:
            self._following.begin()

    def _changed(self) -> None:
        self._moves.changed(METASTORE)
        self.look()
