"""What happens to a cluster with a metastore: faults, nodes that come and go, and chores.

Each life has a mood that makes some of it frequent; all of it can always come. What an operator
does is here, too: nodes that are down are started again, one whose way into the cluster is gone
gets another one, and one that is to leave is told so until it has.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.runtime.sim import Weather
from sim.cluster_ledger import confirm
from sim.metastore_clients import MetastoreClients
from sim.metastore_world import MetastoreNode, MetastoreWorld

__all__ = ["MOODS", "MetastoreNemesis"]

MOODS = ("crashes", "partitions", "nodes", "clocks", "logs", "all")
DOWN_MS = (20, 900)
GOODBYE_MS = 150
NODES_MAX = 6


class MetastoreNemesis:
    """One source of trouble."""

    def __init__(
        self, world: MetastoreWorld, clients: MetastoreClients, dice: Random, mood: str
    ) -> None:
        self.world = world
        self.clients = clients
        self.dice = dice
        self.mood = mood
        self.troubles = True
        self._up_at_ms: dict[int, float] = {}
        self._asked_to_leave: dict[int, int] = {}
        """In which life a node was last asked to leave."""
        self._actions: list[tuple[str, int, Callable[[], bool]]] = [
            ("power cut", self._weight("crashes", 4), self._lose_power),
            ("kill", self._weight("crashes", 3), self._kill),
            ("power cut at a disk call", self._weight("crashes", 3), self._stop_at_call),
            ("power cut for all", self._weight("crashes", 1), self._lose_all_power),
            ("restart", 3, self._restart),
            ("goodbye", 2, self._say_goodbye),
            ("partition", self._weight("partitions", 4), self._partition),
            ("leader cut off", self._weight("partitions", 4), self._isolate_leader),
            ("one-way cut", self._weight("partitions", 3), self._cut_one_way),
            ("healing", self._weight("partitions", 8), self._heal),
            ("weather", 6, self._change_weather),
            ("burst", 5, self._burst),
            ("transfer", 4, self._transfer),
            ("node comes", self._weight("nodes", 3), self._come),
            ("node leaves", self._weight("nodes", 3), self._leave),
            ("snapshot", self._weight("logs", 5), self._snapshot),
            ("roll", self._weight("logs", 4), self._roll),
            ("phase 3", self._weight("logs", 5), self._compact_log),
            ("phase 4", self._weight("logs", 5), self._rewrite),
            ("slow disk", self._weight("logs", 3), self._slow_down),
            ("clock rate", self._weight("clocks", 4), self._drift),
            ("clock jump", self._weight("clocks", 3), self._jump),
        ]

    def _weight(self, mood: str, weight: int) -> int:
        return weight * 4 if self.mood == mood else weight

    @property
    def now_ms(self) -> float:
        return self.world.loop.elapsed_us() / 1_000

    def act(self) -> None:
        """One thing happens, and chores are done."""
        self.tend()
        weights = [weight for _, weight, _ in self._actions]
        ((name, _, action),) = self.dice.choices(self._actions, weights)
        if action():
            self.world.count(name)

    # -- chores ---------------------------------------------------------------------------------

    def tend(self) -> None:
        """An operator's work."""
        for node in list(self.world.nodes.values()):
            if node.gone:
                continue
            if not node.up and self._up_at_ms.get(node.number, 0.0) <= self.now_ms:
                self._find_a_way_in(node)
                node.start()
                self.world.count("start")
            elif node.up and self._others(node) and self._has_no_way_in(node):
                if any(other.belongs and other.metastore for other in self._others(node)):
                    self.world.count("another way in")
                    self._down(node, None)
            if node.has_left:
                node.retire()  # it was out before its operator knew
            elif node.up and node.leaving:
                self._ask_to_leave(node)

    def _has_no_way_in(self, node: MetastoreNode) -> bool:
        """Whether all whom it knows are gone, or are out themselves: nobody can let it in, lead it,
        or tell it that it is out. Then its operator names somebody else."""
        known = node.knows()
        return not any(other.belongs and other.address in known for other in self._others(node))

    def _others(self, node: MetastoreNode) -> list[MetastoreNode]:
        return [other for other in self.world.present() if other is not node]

    def _find_a_way_in(self, node: MetastoreNode) -> None:
        if self._has_no_way_in(node):
            ways = [other for other in self._others(node) if other.belongs and other.metastore]
            if ways:
                node.seed = self.dice.choice(ways).address

    def _ask_to_leave(self, node: MetastoreNode) -> None:
        life = node.lives
        if self._asked_to_leave.get(node.number) == life or node.metastore is None:
            return
        self._asked_to_leave[node.number] = life
        cluster = node.cluster
        assert cluster is not None

        def answered(future: Future[None]) -> None:
            if future.done and future.error is None:
                self.world.tell(f"node {node.number} may go")
                confirm(not node.belongs, f"node {node.number} may go, and belongs to the cluster")
                # Not in the middle of its own turn.
                self.world.loop.call_soon(lambda: node.retire() if not node.gone else None)
            elif future.done:
                self.world.tell(f"node {node.number} can't leave: {future.error}")
                self._asked_to_leave.pop(node.number, None)
                if node.belongs and self.dice.random() < 0.3 and self.troubles:
                    node.leaving = False

        node.loop.run(lambda: node.ask(cluster.leave(), answered))

    # -- crashes --------------------------------------------------------------------------------

    def _some_up(self) -> MetastoreNode | None:
        up = self.world.up()
        return self.dice.choice(up) if up else None

    def _victim(self) -> MetastoreNode | None:
        leader = self.world.leader() if self.dice.random() < 0.5 else None
        return leader or self._some_up()

    def _down(self, node: MetastoreNode, dice: Random | None) -> None:
        node.crash(dice)
        self._up_at_ms[node.number] = self.now_ms + self.dice.randint(*DOWN_MS)

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

    def _stop_at_call(self) -> bool:
        node = self._victim()
        if node is None or node.disk.stop_at_call is not None:
            return False
        node.disk.stop_at_call = node.disk.calls + self.dice.randint(1, 40)
        self._up_at_ms[node.number] = self.now_ms + self.dice.randint(*DOWN_MS)
        return True

    def _lose_all_power(self) -> bool:
        for node in self.world.up():
            self._down(node, Random(self.dice.getrandbits(32)))
        return True

    def _restart(self) -> bool:
        node = self._some_up()
        if node is None or node.disk.stop_at_call is not None:
            return False
        node.close()
        self._up_at_ms[node.number] = self.now_ms + self.dice.randint(0, 300)
        return True

    def _say_goodbye(self) -> bool:
        node = self._some_up()
        if node is None or node.metastore is None or node.disk.stop_at_call is not None:
            return False
        life = node.lives
        node.say_goodbye()

        def close() -> None:
            if not node.up or node.lives != life or node.shutting_down:
                return
            if node.disk.stop_at_call is None:
                node.close()
            else:
                # Its power is about to be cut at a disk call; if that call never comes, it closes.
                self.world.loop.call_later(GOODBYE_MS, close)

        self.world.loop.call_later(GOODBYE_MS, close)
        self._up_at_ms[node.number] = self.now_ms + GOODBYE_MS + self.dice.randint(0, 900)
        return True

    # -- the network ----------------------------------------------------------------------------

    def _addresses(self) -> list[str]:
        return [node.address for node in self.world.present()]

    def _partition(self) -> bool:
        addresses = self._addresses()
        if len(addresses) < 2:
            return False
        self.dice.shuffle(addresses)
        at = self.dice.randint(1, len(addresses) - 1)
        self.world.tell(f"partition: {addresses[:at]} | {addresses[at:]}")
        self.world.network.cut(addresses[:at], addresses[at:])
        return True

    def _isolate_leader(self) -> bool:
        leader = self.world.leader()
        if leader is None:
            return False
        others = [address for address in self._addresses() if address != leader.address]
        self.world.tell(f"leader {leader.number} is cut off")
        self.world.network.cut([leader.address], others)
        if self.dice.random() < 0.4:
            leader.loop.rate = 0.3
        for _ in range(self.dice.choice([0, 4, 12])):
            if leader.metastore is not None:
                self.clients.act(leader)
        return True

    def _cut_one_way(self) -> bool:
        addresses = self._addresses()
        if len(addresses) < 2:
            return False
        one, other = self.dice.sample(addresses, 2)
        self.world.tell(f"cut: {one} to {other}")
        self.world.network.cut_one_way(one, other)
        return True

    def _heal(self) -> bool:
        self.world.tell("the network heals")
        self.world.network.heal()
        return True

    def _change_weather(self) -> bool:
        dice = self.dice
        if dice.random() < 0.4:
            weather = Weather()
        else:
            weather = Weather(
                delay_us_max=dice.choice([2_000, 20_000, 120_000]),
                drop=dice.choice([0.0, 0.02, 0.2]),
                duplicate=dice.choice([0.0, 0.05, 0.3]),
                overtake=dice.choice([0.0, 0.1, 0.5]),
                detour_us_max=dice.choice([50_000, 300_000]),
            )
        self.world.tell(f"weather: {weather}")
        self.world.network.weather = weather
        return True

    # -- requests -------------------------------------------------------------------------------

    def _burst(self) -> bool:
        serving = self.world.serving()
        if not serving:
            return False
        node = self.dice.choice(serving)
        for _ in range(self.dice.choice([3, 8, 20])):
            if node.metastore is not None:
                self.clients.act(node)
        return True

    def _transfer(self) -> bool:
        leader = self.world.leader()
        if leader is None or leader.group is None:
            return False
        to = self.dice.choice([node.number for node in self.world.present()])
        try:
            leader.group.transfer(to)
        except LowmarkError:
            return False
        self.world.tell(f"node {leader.number} hands the metastore to {to}")
        return True

    # -- nodes ----------------------------------------------------------------------------------

    def _come(self) -> bool:
        there = [node for node in self.world.present() if node.belongs]
        if len(self.world.present()) >= NODES_MAX or not there:
            return False
        self.world.join(self.dice.choice(there).address)
        return True

    def _leave(self) -> bool:
        staying = [node for node in self.world.present() if node.belongs and not node.leaving]
        if len(staying) < 2:
            return False
        node = self.dice.choice(staying)
        self.world.tell(f"node {node.number} shall leave")
        node.leaving = True
        return True

    # -- the log --------------------------------------------------------------------------------

    def _some_serving(self) -> MetastoreNode | None:
        serving = self.world.serving()
        return self.dice.choice(serving) if serving else None

    def _snapshot(self) -> bool:
        node = self._some_serving()
        if node is None or node.group is None:
            return False
        node.loop.run(node.group.snapshot)
        return True

    def _roll(self) -> bool:
        node = self._some_serving()
        if node is None or node.log is None:
            return False
        node.loop.run(node.log.roll)
        return True

    def _compact_log(self) -> bool:
        node = self._some_serving()
        done: list[bool] = []
        if node is not None and node.group is not None:
            log = node.group.log
            node.loop.run(lambda: done.append(log.compact()))
        return any(done)

    def _rewrite(self) -> bool:
        leader = self.world.leader()
        group = leader.group if leader is not None else None
        if leader is None or group is None:
            return False
        live = list(group.log.row.live)
        indexes = self.dice.sample(live, len(live) // 2) if self.dice.random() < 0.7 else None
        futures: list[Future[int]] = []
        leader.loop.run(lambda: futures.append(group.rewrite(indexes)))

        def ended(future: Future[int]) -> None:
            if future.done and future.error is None:
                self.world.count("entries copied by phase 4", future.result())

        for future in futures:
            leader.ask(future, ended)
        return bool(futures)

    def _slow_down(self) -> bool:
        node = self._some_up()
        if node is None:
            return False
        node.loop.slow_us = self.dice.choice([0, 2_000, 20_000, 150_000])
        self.world.tell(f"disk of node {node.number} takes {node.loop.slow_us} us more")
        return True

    # -- clocks ---------------------------------------------------------------------------------

    def _drift(self) -> bool:
        node = self.dice.choice(self.world.present())
        node.loop.rate = self.dice.choice([0.3, 0.7, 0.95, 1.0, 1.0, 1.05, 1.5, 3.0])
        self.world.tell(f"clock of node {node.number} runs at {node.loop.rate}")
        return True

    def _jump(self) -> bool:
        node = self.dice.choice(self.world.present())
        node.loop.skew_ms = self.dice.choice([-2_000, -200, 0, 200, 2_000])
        self.world.tell(f"clock of node {node.number} is {node.loop.skew_ms} ms off")
        return True

    # -- the end --------------------------------------------------------------------------------

    def stop(self) -> None:
        """No more trouble: everything is whole, and everybody is there."""
        world = self.world
        world.tell("faults stop")
        self.troubles = False
        world.network.heal()
        world.network.weather = Weather()
        for node in world.present():
            node.disk.stop_at_call = None
            node.loop.rate = 1.0
            node.loop.skew_ms = 0
            node.loop.slow_us = 0
            self._up_at_ms[node.number] = 0.0
