"""What happens to a partition: faults, changes and chores, drawn one after another from the seed.

Each life has a mood that makes some of them frequent; all of them can always come.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lowmark.errors import LowmarkError
from lowmark.group import ChangeAnswer, Future, Group
from lowmark.runtime.sim import Weather
from sim.table_clients import TableClients
from sim.table_world import PartitionNode, PartitionWorld

__all__ = ["MOODS", "TableNemesis"]

MOODS = ("crashes", "partitions", "members", "logs", "clocks", "all")
DOWN_MS = (20, 700)


class TableNemesis:
    """One source of trouble."""

    def __init__(
        self, world: PartitionWorld, clients: TableClients, dice: Random, mood: str
    ) -> None:
        self.world = world
        self.clients = clients
        self.dice = dice
        self.mood = mood
        self._up_at_ms: dict[int, float] = {}
        self._token = 0
        self._actions: list[tuple[str, int, Callable[[], bool]]] = [
            ("power cut", self._weight("crashes", 4), self._lose_power),
            ("kill", self._weight("crashes", 3), self._kill),
            ("power cut for all", self._weight("crashes", 1), self._lose_all_power),
            ("leader cut off", self._weight("partitions", 3), self._isolate_leader),
            ("partition", self._weight("partitions", 3), self._isolate_any),
            ("healing", self._weight("partitions", 5), self._heal),
            ("weather", 4, self._change_weather),
            ("burst", 10, self._burst),
            ("transfer", 4, self._transfer),
            ("change of peers", self._weight("members", 4), self._change_peers),
            ("snapshot", self._weight("logs", 6), self._snapshot),
            ("roll", self._weight("logs", 5), self._roll),
            ("phase 3", self._weight("logs", 5), self._compact),
            ("phase 4", self._weight("logs", 5), self._rewrite),
            ("clock rate", self._weight("clocks", 2), self._drift),
            ("clock jump", self._weight("clocks", 2), self._jump),
        ]

    def _weight(self, mood: str, weight: int) -> int:
        return weight * 4 if self.mood == mood else weight

    def act(self) -> None:
        """One thing happens, nodes come back, and clients go on."""
        self._start_nodes()
        weights = [weight for _, weight, _ in self._actions]
        ((name, _, action),) = self.dice.choices(self._actions, weights)
        if action():
            self.world.count(name)
        self.clients.act(self.dice.choice([2, 4, 8]))

    def _start_nodes(self) -> None:
        for node in self.world.nodes.values():
            if not node.up and self._up_at_ms.get(node.number, 0.0) <= self.world.now_ms:
                node.start()
                self.world.count("start")

    # -- crashes --------------------------------------------------------------------------------

    def _victim(self) -> PartitionNode | None:
        leader, up = self.world.leader(), self.world.up
        if leader is not None and self.dice.random() < 0.5:
            return leader
        return self.dice.choice(up) if up else None

    def _down(self, node: PartitionNode, dice: Random | None) -> None:
        node.crash(dice)
        self._up_at_ms[node.number] = self.world.now_ms + self.dice.randint(*DOWN_MS)

    def _lose_power(self) -> bool:
        node = self._victim()
        if node is not None:
            self._down(node, Random(self.dice.getrandbits(32)))
        return node is not None

    def _kill(self) -> bool:
        node = self._victim()
        if node is not None:
            self._down(node, None)
        return node is not None

    def _lose_all_power(self) -> bool:
        for node in self.world.up:
            self._down(node, Random(self.dice.getrandbits(32)))
        return True

    # -- the network ----------------------------------------------------------------------------

    def _isolate_leader(self) -> bool:
        """It goes on as if it led, and is asked for what others have changed meanwhile."""
        leader = self.world.leader()
        if leader is None:
            return False
        self.world.tell(f"leader {leader.number} is cut off")
        self.world.isolate(leader.number)
        later = self.world.loop.call_later
        for delay_ms in (250, 350, 450, 550):
            later(delay_ms, lambda: self._ask_both(leader))
        later(self.dice.randint(300, 900), self.world.network.heal)
        return True

    def _ask_both(self, old: PartitionNode) -> None:
        leader = self.world.leader()
        if self.clients.open and leader is not None and leader is not old:
            self.clients._append(leader)
        if self.clients.open and old.group is not None:
            self.clients._read_latest(old)
            self.clients._look_back(old)

    def _isolate_any(self) -> bool:
        number = self.dice.choice(sorted(self.world.nodes))
        self.world.tell(f"node {number} is cut off")
        self.world.isolate(number)
        return True

    def _heal(self) -> bool:
        self.world.network.heal()
        return True

    def _change_weather(self) -> bool:
        dice = self.dice
        self.world.network.weather = Weather(
            delay_us_max=dice.choice([2_000, 20_000, 80_000]),
            drop=dice.choice([0.0, 0.0, 0.1]),
            duplicate=dice.choice([0.0, 0.1]),
            overtake=dice.choice([0.0, 0.2]),
        )
        return True

    # -- groups ---------------------------------------------------------------------------------

    def _burst(self) -> bool:
        self.clients.act(self.dice.choice([5, 10, 25]))
        return True

    def _leading(self) -> Group | None:
        leader = self.world.leader()
        return None if leader is None else leader.group

    def _transfer(self) -> bool:
        group = self._leading()
        if group is None:
            return False
        try:
            group.transfer(self.dice.choice(sorted(self.world.nodes)))
        except LowmarkError:
            return False
        return True

    def _change_peers(self) -> bool:
        group = self._leading()
        if group is None:
            return False
        numbers = sorted(self.world.nodes)
        count = min(len(numbers), self.dice.choice([1, 2, 3, 3, 4]))
        peers = sorted(self.dice.sample(numbers, count))
        for number in peers:
            if self.world[number].up:
                self.world[number].have_copy()
        self._token += 1
        answer = group.change_peers(group.term, self._token, peers)
        self.world.tell(f"change peers to {peers}: {answer.value}")
        return answer is ChangeAnswer.RECEIVED

    # -- the log --------------------------------------------------------------------------------

    def _some_group(self) -> Group | None:
        serving = self.world.serving
        return self.dice.choice(serving).group if serving else None

    def _snapshot(self) -> bool:
        group = self._some_group()
        if group is not None:
            group.snapshot()
        return group is not None

    def _roll(self) -> bool:
        for node in self.world.up:
            assert node.log is not None
            node.log.roll()
        return True

    def _compact(self) -> bool:
        group = self._some_group()
        return group is not None and group.log.compact()

    def _rewrite(self) -> bool:
        leader, group = self.world.leader(), self._leading()
        if leader is None or group is None:
            return False
        live = list(group.log.row.live)
        chosen = sorted(self.dice.sample(live, len(live) // 2))

        def ended(done: Future[int]) -> None:
            if done.error is None:
                self.world.count("batch copied by phase 4", done.result())

        leader.ask(group.rewrite(chosen if self.dice.random() < 0.7 else None), ended)
        return True

    # -- clocks ---------------------------------------------------------------------------------

    def _drift(self) -> bool:
        node = self.dice.choice(list(self.world.nodes.values()))
        node.loop.rate = self.dice.choice([0.7, 1.0, 1.0, 1.5])
        return True

    def _jump(self) -> bool:
        node = self.dice.choice(list(self.world.nodes.values()))
        node.loop.skew_ms = self.dice.choice([-2_000, -100, 0, 100, 2_000])
        return True

    # -- the end --------------------------------------------------------------------------------

    def stop(self) -> None:
        """No more trouble: everything is whole, and everybody is there."""
        world = self.world
        world.tell("faults stop")
        world.network.heal()
        world.network.weather = Weather()
        for node in world.nodes.values():
            node.loop.rate, node.loop.skew_ms = 1.0, 0
        self.tend()

    def tend(self) -> None:
        """What an operator does until all is well: nodes are up, and members have a copy."""
        self._up_at_ms.clear()
        self._start_nodes()
        group = self._leading()
        for number in () if group is None else sorted(group.members().everybody):
            self.world[number].have_copy()
