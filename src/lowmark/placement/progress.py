"""How far moves are, as one node can tell: what `lowmark rebalance status` shows.

A node speaks for the moves of partitions that it leads. Of a partition without a leader, each node
says so that may lead it and has a copy; and the coordinator, if no such node is up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from lowmark.errors import LowmarkError
from lowmark.group import Group
from lowmark.metastore import Cluster
from lowmark.placement.assignments import Keys, PartitionId
from lowmark.placement.moves import Moves
from lowmark.placement.standing import MoveStage, Obstacle, Standing
from lowmark.placement.zones import Zones
from lowmark.runtime import Loop, millis_of
from lowmark.table import Partition, Tables


class Move(msgspec.Struct, frozen=True, array_like=True):
    """How far the move of one partition is, as the node says that leads it."""

    table: int
    partition: int
    stable: tuple[int, ...]
    pending: tuple[int, ...]
    planned: tuple[int, ...] = ()
    leader: int = 0
    """The node that says so; 0: none that leads it does."""
    stage: str = MoveStage.NO_LEADER.value
    """A `MoveStage`."""
    bytes_done: int = 0
    bytes_left: int = 0
    bytes_per_s: float = 0.0
    seconds_left: float | None = None
    reason: str = ""
    """What keeps it from getting on, if anything does."""
    node: int = 0
    """The node that it is kept by, if it is one."""
    attempts: int = 0
    """How often it has failed in a row."""
    failing_ms: int = 0
    """For how long it has not got on."""
    alarm: bool = False
    """Whether that has lasted for so long that a person should look."""


class Progress:
    """One node's part. All calls are made on the loop."""

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        tables: Tables,
        *,
        zones: Zones,
        moves: Moves,
        keys: Callable[[PartitionId], Keys],
        moving: Callable[[], Sequence[PartitionId]],
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._metastore = cluster.metastore
        self._tables = tables
        self._zones = zones
        self._moves = moves
        self._keys = keys
        self._moving = moving

    def here(self) -> list[Move]:
        """The moves that this node speaks for."""
        return [self._move(partition, standing) for partition, standing in self._standings()]

    def alarms(self) -> list[Move]:
        """Those of them that a person should look at."""
        return [
            self._move(partition, standing)
            for partition, standing in self._standings()
            if standing.alarm
        ]

    def known(self) -> list[Move]:
        """All moves that are decided on, as they are if no node speaks for them."""
        return [self._silent(partition) for partition in self._moving()]

    # -- who speaks -------------------------------------------------------------------------------

    def _standings(self) -> Iterator[tuple[PartitionId, Standing]]:
        for partition in self._moving():
            found = self._moves.standing(partition) or self._without_leader(partition)
            if found is not None:
                yield partition, found

    def _without_leader(self, partition: PartitionId) -> Standing | None:
        keys, copy = self._keys(partition), self._tables.here(*partition)
        node, now_ms = self._metastore.node, self._loop.elapsed_us() // 1_000
        if node in keys.voters and copy is not None:
            # Of one that has stopped, the other members know whether there is a leader.
            answers = copy.group.stopped is None or copy.group.alone
            since_ms = copy.group.leaderless_since_ms if answers else None
            return None if since_ms is None else self._stands(Obstacle.NO_LEADER, now_ms - since_ms)
        if self._metastore.coordinates:
            down_ms = self._down_ms(keys)
            return None if down_ms is None else self._stands(Obstacle.NO_NODE, down_ms)
        return None

    def _down_ms(self, keys: Keys) -> int | None:
        """For how long no node has been up that a group needs; None: one is."""
        sets = (keys.stable, keys.pending if keys.lock is not None else None)
        found = [self._zones.down_ms(one.nodes) for one in sets if one is not None]
        return max((one for one in found if one is not None), default=None)

    def _stands(self, reason: Obstacle, age_ms: int) -> Standing:
        alarm = age_ms >= self._moves.config.alarm_ms
        return Standing(MoveStage.NO_LEADER, reason, age_ms=age_ms, alarm=alarm)

    # -- what they say ----------------------------------------------------------------------------

    def _silent(self, partition: PartitionId) -> Move:
        """What is known without an answer: for how long the partition has been to move."""
        keys, age_ms = self._keys(partition), 0
        with contextlib.suppress(LowmarkError):  # its revision may be compacted
            since = millis_of(self._metastore.state.time_of(keys.pending_revision))
            age_ms = max(0, millis_of(self._metastore.clock.now()) - since)
        return msgspec.structs.replace(
            _move_of(partition, keys), reason=Obstacle.NO_ANSWER.value, failing_ms=age_ms
        )

    def _move(self, partition: PartitionId, standing: Standing) -> Move:
        move = msgspec.structs.replace(
            _move_of(partition, self._keys(partition)),
            stage=standing.stage.value,
            reason=str(standing.reason),
            node=standing.node,
            attempts=standing.attempts,
            failing_ms=standing.age_ms,
            alarm=standing.alarm,
        )
        copy = self._tables.here(*partition)
        if standing.stage is MoveStage.NO_LEADER or copy is None:
            return move
        return _with_bytes(move, copy.group, bytes_of(copy))


def _move_of(partition: PartitionId, keys: Keys) -> Move:
    sets = (keys.stable, keys.pending, keys.planned)
    stable, pending, planned = (() if one is None else one.nodes for one in sets)
    return Move(partition.table, partition.number, stable, pending, planned)


def _with_bytes(move: Move, group: Group, total: int) -> Move:
    """With what its leader knows of the nodes that get copies, of so many bytes each."""
    peers = {peer.node: peer for peer in group.status().peers}
    coming = [node for node in move.pending if node not in move.stable]
    left, rate, seconds, known = 0, 0.0, 0.0, True
    for node in coming:
        if node in group.members().incoming:
            continue
        peer = peers.get(node)
        behind = total if peer is None else peer.bytes_behind
        left += behind
        rate += 0.0 if peer is None else peer.bytes_per_s
        if behind and (peer is None or peer.seconds_left is None):
            known = False
        elif peer is not None and peer.seconds_left is not None:
            seconds = max(seconds, peer.seconds_left)
    return msgspec.structs.replace(
        move,
        leader=group.node,
        bytes_done=max(0, total * len(coming) - left),
        bytes_left=left,
        bytes_per_s=rate,
        seconds_left=seconds if known else None,
    )


def bytes_of(copy: Partition) -> int:
    """Of its backlog: what each node that gets a copy is sent."""
    view = copy.view
    return int(view.bytes_from(view.start))
