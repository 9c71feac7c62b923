"""A partition leaves a node and comes back; a member that is cut off meanwhile hears of neither.

What it then asks of the node is for a copy that is no more. The one there now has not what that had
acknowledged; the two of them would be a majority of the members that were.

Steps, and what is true after each

    1. a member is cut off, and another one is to be replaced by a node outside
    2. that is done, and the copy is gone: the one that is cut off knows it as a member. The
       partition is to be as before
    3. the node has a new copy, with less than its old one had. It hears the member that was cut
       off, and they hear no other node
    4. the network heals
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from lowmark.placement.assignments import PartitionId
from sim.placement_world import MovingNode, MovingWorld

__all__ = ["Trip"]

PATIENCE_MS = 3_000
TOGETHER_MS = 1_200
"""Long enough for an election."""


@dataclass(slots=True)
class Trip:
    """One, from its first step until it is over."""

    world: MovingWorld
    partition: PartitionId
    zone: str
    home: tuple[int, ...]
    traveller: int
    stand_in: int
    cut_off: int
    step: int = 0
    until_ms: float = 0.0

    @staticmethod
    def draw(world: MovingWorld, dice: Random) -> Trip | None:
        """One that can begin now, if there is any: all members and one more node are there."""
        coordinator = world.coordinator()
        if coordinator is None or not coordinator.serves:
            return None
        serving = {node.number for node in world.serving}
        resting = [one for one, keys in world.ledger.keys.items() if keys.pending is None]
        for partition in dice.sample(resting, len(resting)):
            stable = world.ledger.keys[partition].stable
            leader = world.leader_of(partition)
            table = coordinator.catalog.latest.tables.get(partition.table)
            if stable is None or leader is None or table is None or len(stable.nodes) != 3:
                continue
            others = [one for one in stable.nodes if one not in {leader.number, coordinator.number}]
            spare = sorted(serving - set(stable.nodes))
            if len(others) < 2 or not spare or not serving.issuperset(stable.nodes):
                continue
            traveller, cut_off = dice.sample(others, 2)
            zone = coordinator.catalog.latest.zones[table.zone_id].name
            stand_in = dice.choice(spare)
            return Trip(world, partition, zone, stable.nodes, traveller, stand_in, cut_off)
        return None

    def begin(self) -> None:
        """Go, after every turn of any node, as far as it goes."""
        world = self.world
        world.tell(f"{self.partition} leaves {self.traveller}, and {self.cut_off} hears nothing")
        world.network.heal()
        world.isolate(self.cut_off)
        self._choose([self.stand_in if one == self.traveller else one for one in self.home])
        self.step, self.until_ms = 1, world.now_ms + PATIENCE_MS
        world.on_turn = self._look

    @property
    def is_over(self) -> bool:
        """Whether it came to its end, or will not."""
        return self.step == 0 or self.world.now_ms > self.until_ms

    def end(self) -> None:
        """Whatever came of it."""
        self.world.on_turn = None
        self.world.network.heal()
        self.step = 0

    def _choose(self, nodes: list[int]) -> None:
        node = self._asked()
        if node is not None:
            node.ask(lambda: node.placement.operations.choose(self.zone, sorted(nodes)))

    def _asked(self) -> MovingNode | None:
        there = [one for one in self.world.serving if one.number != self.cut_off]
        return there[0] if there else None

    def _look(self) -> None:
        if self.step == 1 and self._is_away():
            self.step = 2
            self.world.count("partition went away")
            # Not in the middle of a turn.
            self.world.loop.call_soon(lambda: self._choose(list(self.home)))
        elif self.step == 2 and self._is_back():
            self.step = 3
            self.world.loop.call_soon(self._bring_together)

    def _is_away(self) -> bool:
        ledger = self.world.ledger
        keys = ledger.keys.get(self.partition)
        return (
            keys is not None
            and keys.stable is not None
            and self.traveller not in keys.stable.nodes
            and (self.partition, self.traveller) not in ledger.copies
        )

    def _is_back(self) -> bool:
        """Whether the new copy was called by its leader, and has less than the one cut off."""
        groups = self.world.ledger.groups
        new = groups.get((self.partition, self.traveller))
        old = groups.get((self.partition, self.cut_off))
        return (
            new is not None
            and old is not None
            and not new.raft.core.mute
            and new.last_index() < old.last_index()
        )

    def _bring_together(self) -> None:
        world, pair = self.world, {self.traveller, self.cut_off}
        if self.step != 3:
            return
        world.tell(f"{self.partition}: {pair} hear each other only")
        world.count("partition came back to a member that was cut off")
        world.network.heal()
        world.isolate(*pair)
        self.until_ms = world.now_ms + TOGETHER_MS
