"""Faults that lie in wait for a stage of a move, and strike when some partition is in it.

Faults that come at any time seldom hit the short stages. One may wait for each stage; what the
world is like is looked at after every turn of every node, as long as any waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lowmark.group import Stage
from lowmark.placement.assignments import Keys, PartitionId
from lowmark.raft import Members
from sim.placement_world import MovingWorld

__all__ = ["STAGES", "Ambushes"]

STAGES = ("copying", "locked", "joint", "in force", "written")
"""Of a move: rows are copied; the lock is set; old and new members decide together; the new members
alone do, and the metastore does not say so; it does, and old copies are still there."""
PATIENCE_MS = 2_000


@dataclass(slots=True)
class _Ambush:
    strike: Callable[[PartitionId], bool]
    name: str
    until_ms: float


class Ambushes:
    """All that lie in wait in one world."""

    def __init__(self, world: MovingWorld) -> None:
        self._world = world
        self._waiting: dict[str, _Ambush] = {}
        self._stables: dict[PartitionId, tuple[int, ...]] = {}
        """Where partitions were when one began to wait for the next move that is written."""

    def lie(self, stage: str, name: str, strike: Callable[[PartitionId], bool]) -> bool:
        """Strike when some partition is in a stage; one that waits for it already stays."""
        if stage in self._waiting:
            return False
        self._waiting[stage] = _Ambush(strike, name, self._world.now_ms + PATIENCE_MS)
        if stage == "written":
            self._stables = {
                one: keys.stable.nodes
                for one, keys in self._world.ledger.keys.items()
                if keys.stable is not None
            }
        self._world.on_turn = self._look
        return True

    def clear(self) -> None:
        """Strike no more."""
        self._waiting.clear()
        self._world.on_turn = None

    def _look(self) -> None:
        now_ms, world = self._world.now_ms, self._world
        for stage in [stage for stage, one in self._waiting.items() if now_ms > one.until_ms]:
            del self._waiting[stage]
        for partition, keys in world.ledger.keys.items() if self._waiting else ():
            stage = self._stage(partition, keys)
            ambush = self._waiting.pop(stage, None)
            if ambush is not None:
                # Not in the middle of a turn.
                world.loop.call_soon(lambda a=ambush, s=stage, p=partition: self._strike(a, s, p))  # type: ignore[misc]
        if not self._waiting:
            world.on_turn = None

    def _strike(self, ambush: _Ambush, stage: str, partition: PartitionId) -> None:
        if ambush.strike(partition):
            self._world.tell(f"{partition}: {ambush.name} when {stage}")
            self._world.count(f"struck when {stage}")

    def _stage(self, partition: PartitionId, keys: Keys) -> str:
        """In which stage a partition is; empty: in none that is waited for."""
        if "written" in self._waiting and keys.stable is not None:
            if self._stables.setdefault(partition, keys.stable.nodes) != keys.stable.nodes:
                return "written"
        if keys.pending is None:
            return ""
        _, members = self._world.ledger.members.get(partition, (0, Members()))
        if members.joint:
            return "joint"
        if members.incoming == set(keys.pending.nodes):
            return "in force"
        if keys.lock is not None:
            return "locked"
        return "copying" if "copying" in self._waiting and self._is_copied(partition) else ""

    def _is_copied(self, partition: PartitionId) -> bool:
        return any(
            group.ready and group.stage is Stage.CATCHING_UP
            for (one, _), group in self._world.ledger.groups.items()
            if one == partition
        )
