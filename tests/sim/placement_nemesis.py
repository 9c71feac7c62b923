"""What happens to a cluster whose partitions move: faults, operators, nodes that come and go.

Each life has a mood that makes some of it frequent; all of it can always come. Most faults lie in
ambush (`placement_ambush`): they strike when some partition is in a stage of its move, and at the
node that has a part in it. Now and then one partition makes a trip (`placement_trip`), without any
other trouble: what that shows takes several steps in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lowmark.catalog import AlterZone, DropTable, Executed
from lowmark.errors import DiskFull, LowmarkError
from lowmark.group import Future
from lowmark.placement.assignments import PartitionId
from lowmark.runtime.sim import Weather
from sim.cluster_ledger import confirm
from sim.placement_ambush import Ambushes
from sim.placement_clients import PlacementClients
from sim.placement_trip import Trip
from sim.placement_world import MovingNode, MovingWorld
from table.world import log_table

__all__ = ["MOODS", "PlacementNemesis"]

MOODS = ("moves", "crashes", "partitions", "nodes", "operators", "logs", "trips", "all")
DOWN_MS = (20, 900)
LONG_MS = (1_500, 4_000)
RESUME_MS = 500
NODES_MAX = 6
NODES_MIN = 3
TABLES_MAX = 5
STAGES = ("copying", "locked", "locked", "joint", "joint", "in force", "written")
"""The short ones are waited for more often."""
VICTIMS = ("leader", "leader", "newcomer", "old", "coordinator", "any")


class PlacementNemesis:
    """One source of trouble."""

    def __init__(
        self, world: MovingWorld, clients: PlacementClients, dice: Random, mood: str
    ) -> None:
        self.world = world
        self.clients = clients
        self.dice = dice
        self.mood = mood
        self.troubles = True
        self._up_at_ms: dict[int, float] = {}
        self._resumed_at_ms = 0.0
        self._asked_to_leave: dict[int, int] = {}
        """In which life a node was last asked to leave."""
        self._numbers = max(world.nodes)
        self._made = 0
        self._names: dict[str, int] = {}
        """Tables that are there, with their ids."""
        self._ambushes = Ambushes(world)
        self._trip: Trip | None = None
        weight = self._weight
        self._actions: list[tuple[str, int, Callable[[], bool]]] = [
            ("ambush", 20, self._lie_in_wait),
            ("power cut", weight("crashes", 2), lambda: self._crash_some(killed=False)),
            ("kill", weight("crashes", 2), lambda: self._crash_some(killed=True)),
            ("power cut at a disk call", weight("crashes", 2), self._stop_at_call),
            ("power cut for all", weight("crashes", 1), self._crash_all),
            ("restart", 2, self._restart),
            ("partition", weight("partitions", 3), self._partition),
            ("one-way cut", weight("partitions", 3), self._cut_one_way),
            ("healing", weight("partitions", 6) + 4, self._heal),
            ("weather", 4, self._change_weather),
            ("transfer", 3, self._transfer),
            ("transfer of the metastore", 2, self._transfer_metastore),
            ("replicas", weight("moves", 4), self._replicas),
            ("named nodes", weight("moves", 4), self._choose),
            ("nodes by themselves", weight("moves", 2), self._auto),
            ("node comes", weight("nodes", 2), self._come),
            ("node leaves", weight("nodes", 2), self._leave),
            ("node leaves after a power cut", weight("nodes", 2), self._leave_after_power_cut),
            ("drain", weight("operators", 2), self._drain),
            ("fill", weight("operators", 2), self._fill),
            ("pause", weight("operators", 1), lambda: self._change(paused=True)),
            ("resume", weight("operators", 2), lambda: self._change(paused=False)),
            ("throttle", weight("operators", 1), self._throttle),
            ("cancel", weight("operators", 1), self._cancel),
            ("new table", 2, self._create),
            ("dropped table", 1, self._drop),
            ("snapshot", weight("logs", 4), self._snapshot),
            ("roll", weight("logs", 2), self._roll),
            ("slow disk", weight("logs", 2), self._slow_down),
            ("full disk", weight("logs", 2), self._fill_some_disk),
            ("clock jump", 2, self._jump),
            ("trip", weight("trips", 5), self._set_out),
        ]

    def _weight(self, mood: str, weight: int) -> int:
        return weight * 4 if self.mood == mood else weight

    @property
    def now_ms(self) -> float:
        return self.world.now_ms

    def act(self) -> None:
        """One thing happens, and chores are done."""
        self.tend()
        if self._trip is not None:
            self._go_on()
            return
        weights = [weight for _, weight, _ in self._actions]
        ((name, _, action),) = self.dice.choices(self._actions, weights)
        if action():
            self.world.count(name)
        self.clients.act(self.dice.choice([0, 2, 5]))

    # -- chores -----------------------------------------------------------------------------------

    def tend(self) -> None:
        """What an operator does: starts nodes that are down, and sees that one that leaves does."""
        for node in self.world.present:
            if node.up and node.loop.crashed:
                node.crash()  # its disk stopped it
            if not node.up and self._up_at_ms.get(node.number, 0.0) <= self.now_ms:
                node.disk.capacity_bytes = None  # it is started when there is space
                self._start(node)
            elif node.up and node.has_left:
                self._retire(node)  # it was out before its operator knew
            elif node.up and node.leaving:
                self._ask_to_leave(node)
            elif node.up and not node.serves and not self._has_way_in(node):
                self._down(node, killed=True, ms=0)
        if not self.troubles:
            self._end_pauses()

    def _end_pauses(self) -> None:
        """A pause that was asked for long ago may come only now: nothing would ever move again."""
        paused = [node for node in self.world.serving if node.placement.moves.paused]
        if paused and self._resumed_at_ms + RESUME_MS <= self.now_ms:
            self._resumed_at_ms = self.now_ms
            paused[0].ask(lambda: paused[0].placement.operations.change(paused=False))

    def _has_way_in(self, node: MovingNode) -> bool:
        return any(one.address == node.seed for one in self.world.present if one is not node)

    def _start(self, node: MovingNode) -> None:
        if node.has_left:
            self._retire(node)
            return
        if not self._has_way_in(node):
            others = [one for one in self.world.serving if one is not node]
            if others:
                node.seed = self.dice.choice(others).address
        self.world.tell(f"node {node.number} starts")
        node.start()

    def _ask_to_leave(self, node: MovingNode) -> None:
        if self._asked_to_leave.get(node.number) == node.life or not node.serves:
            return
        self._asked_to_leave[node.number] = node.life

        def answered(future: Future[None]) -> None:
            if future.error is None:
                # Not in the middle of its own turn.
                self.world.loop.call_soon(lambda: self._retire(node))
                return
            self.world.tell(f"node {node.number} can't leave: {future.error}")
            self._asked_to_leave.pop(node.number, None)
            if self.troubles and self.dice.random() < 0.2:
                node.leaving = False
            elif node.serves:  # as the hint says; what was cancelled is decided on once more
                node.ask(lambda: node.placement.operations.drain(node.number))

        node.ask(node.here.leave, answered)

    def _retire(self, node: MovingNode) -> None:
        """It is out: its machine is switched off for good."""
        if node.number not in self.world.nodes:
            return
        self.world.tell(f"node {node.number} is gone")
        self.world.count("node left")
        if node.up:
            node.crash(killed=True)
        del self.world.nodes[node.number]
        self.world.ledger.left.add(node.number)

    # -- ambushes ---------------------------------------------------------------------------------

    def _lie_in_wait(self) -> bool:
        """Strike when some partition is in a stage of its move."""
        stage, victim = self.dice.choice(STAGES), self.dice.choice(VICTIMS)
        strikes: list[tuple[str, Callable[[PartitionId], bool]]] = [
            ("power cut", lambda one: self._hit(one, victim, self._lose_power)),
            ("kill", lambda one: self._hit(one, victim, self._kill)),
            ("long outage", lambda one: self._hit(one, victim, self._lose_power_for_long)),
            ("isolation", lambda one: self._hit(one, victim, self._isolate)),
            ("away from the coordinator", lambda one: self._hit(one, victim, self._cut_off)),
            ("transfer", self._transfer_of),
            ("replicas", lambda _: self._replicas()),
            ("named nodes", lambda _: self._choose()),
            ("pause", lambda _: self._change(paused=True)),
            ("cancel", lambda _: self._cancel()),
            ("stop at a disk call", lambda one: self._hit(one, victim, self._stop_soon)),
            ("full disk", lambda one: self._hit(one, victim, self._fill_disk)),
        ]
        weights = [4, 3, 2, 4, 4, 4, 4, 3, 1, 2, 3, 3]
        ((name, strike),) = self.dice.choices(strikes, weights)
        return self._ambushes.lie(
            stage, f"{name} ({victim})", lambda one: self.troubles and strike(one)
        )

    def _hit(
        self, partition: PartitionId, victim: str, strike: Callable[[MovingNode], None]
    ) -> bool:
        node = self._victim(partition, victim)
        if node is not None and node.up:
            strike(node)
            return True
        return False

    def _victim(self, partition: PartitionId, victim: str) -> MovingNode | None:
        keys = self.world.ledger.keys.get(partition)
        if victim == "coordinator":
            return self.world.coordinator()
        if victim == "leader":
            return self.world.leader_of(partition)
        stable = set() if keys is None or keys.stable is None else set(keys.stable.nodes)
        pending = set() if keys is None or keys.pending is None else set(keys.pending.nodes)
        numbers = {"newcomer": pending - stable, "old": stable - pending}.get(victim)
        there = [node for node in self.world.present if node.up]
        if numbers is not None:
            there = [node for node in there if node.number in numbers]
        return self.dice.choice(there) if there else None

    # -- crashes ----------------------------------------------------------------------------------

    def _down(self, node: MovingNode, *, killed: bool, ms: float | None = None) -> None:
        self.world.tell(f"node {node.number} {'is killed' if killed else 'loses power'}")
        node.crash(killed=killed)
        if ms is None:
            ms = self.dice.randint(*(DOWN_MS if self.dice.random() < 0.85 else LONG_MS))
        self._up_at_ms[node.number] = self.now_ms + ms

    def _lose_power(self, node: MovingNode) -> None:
        self._down(node, killed=False)

    def _kill(self, node: MovingNode) -> None:
        self._down(node, killed=True)

    def _lose_power_for_long(self, node: MovingNode) -> None:
        self._down(node, killed=False, ms=self.dice.randint(*LONG_MS))

    def _stop_soon(self, node: MovingNode) -> None:
        node.disk.stop_at_call = node.disk.calls + self.dice.randint(1, 30)
        self._up_at_ms[node.number] = self.now_ms + self.dice.randint(*DOWN_MS)

    def _some_up(self) -> MovingNode | None:
        up = [node for node in self.world.present if node.up]
        coordinator = self.world.coordinator()
        if coordinator is not None and self.dice.random() < 0.3:
            return coordinator
        return self.dice.choice(up) if up else None

    def _crash_some(self, *, killed: bool) -> bool:
        node = self._some_up()
        if node is not None:
            self._down(node, killed=killed)
        return node is not None

    def _stop_at_call(self) -> bool:
        node = self._some_up()
        if node is not None:
            self._stop_soon(node)
        return node is not None

    def _crash_all(self) -> bool:
        for node in self.world.present:
            if node.up:
                self._down(node, killed=False, ms=self.dice.randint(*DOWN_MS))
        return True

    def _restart(self) -> bool:
        node = self._some_up()
        if node is None or not node.serves or node.loop.slow_us:
            return False
        if node.disk.stop_at_call is not None or node.disk.capacity_bytes is not None:
            return False
        self.world.tell(f"node {node.number} is stopped")
        node.stop()
        self._up_at_ms[node.number] = self.now_ms + self.dice.randint(0, 300)
        return True

    # -- the network ------------------------------------------------------------------------------

    def _isolate(self, node: MovingNode) -> None:
        self.world.tell(f"node {node.number} is cut off")
        self.world.isolate(node.number)
        self._heal_in(self.dice.choice([200, 600, 2_500]))

    def _cut_off(self, node: MovingNode) -> None:
        """It hears the others, and the coordinator not; or the other way round."""
        coordinator = self.world.coordinator()
        if coordinator is None or coordinator is node:
            self._isolate(node)
            return
        ways = [(node.address, coordinator.address), (coordinator.address, node.address)]
        for sender, to in self.dice.choice([ways, ways[:1], ways[1:]]):
            self.world.network.cut_one_way(sender, to)
        self.world.tell(f"node {node.number} and coordinator {coordinator.number} are apart")
        self._heal_in(self.dice.choice([200, 600, 1_500]))

    def _partition(self) -> bool:
        addresses = [node.address for node in self.world.present]
        self.dice.shuffle(addresses)
        at = self.dice.randint(1, len(addresses) - 1)
        self.world.tell(f"partition: {addresses[:at]} | {addresses[at:]}")
        self.world.network.cut(addresses[:at], addresses[at:])
        return True

    def _cut_one_way(self) -> bool:
        one, other = self.dice.sample([node.address for node in self.world.present], 2)
        self.world.tell(f"cut: {one} to {other}")
        self.world.network.cut_one_way(one, other)
        return True

    def _heal_in(self, ms: float) -> None:
        def heal() -> None:
            self._heal()

        self.world.loop.call_later(ms, heal)

    def _heal(self) -> bool:
        self.world.tell("the network heals")
        self.world.network.heal()
        return True

    def _change_weather(self) -> bool:
        dice = self.dice
        weather = Weather()
        if dice.random() < 0.6:
            weather = Weather(
                delay_us_max=dice.choice([2_000, 20_000, 100_000]),
                drop=dice.choice([0.0, 0.02, 0.15]),
                duplicate=dice.choice([0.0, 0.2]),
                overtake=dice.choice([0.0, 0.3]),
                detour_us_max=dice.choice([50_000, 300_000]),
            )
        self.world.tell(f"weather: {weather}")
        self.world.network.weather = weather
        return True

    # -- leadership -------------------------------------------------------------------------------

    def _transfer(self) -> bool:
        some = sorted(self.world.ledger.keys)
        moving = self.world.ledger.moving
        return bool(some) and self._transfer_of(self.dice.choice(moving or some))

    def _transfer_of(self, partition: PartitionId) -> bool:
        leader = self.world.leader_of(partition)
        if leader is None:
            return False
        group = self.world.ledger.groups[partition, leader.number]
        to = self.dice.choice(sorted(group.members().voters))
        try:
            leader.loop.run(lambda: group.transfer(to))
        except LowmarkError:
            return False
        self.world.tell(f"node {leader.number} hands {partition} to {to}")
        return True

    def _transfer_metastore(self) -> bool:
        leader = self.world.coordinator()
        if leader is None:
            return False
        group = leader.metastore.group
        to = self.dice.choice(sorted(group.members().voters))
        try:
            leader.loop.run(lambda: group.transfer(to))
        except LowmarkError:
            return False
        self.world.tell(f"node {leader.number} hands the metastore to {to}")
        return True

    # -- operators --------------------------------------------------------------------------------

    def _someone(self) -> MovingNode | None:
        serving = self.world.serving
        return self.dice.choice(serving) if serving else None

    def _some_zone(self, node: MovingNode) -> str:
        return self.dice.choice(sorted(zone.name for zone in node.catalog.latest.zones.values()))

    def _replicas(self) -> bool:
        node = self._someone()
        if node is None:
            return False
        zone, count = self._some_zone(node), self.dice.choice([1, 2, 3, 3, 4])
        self.world.tell(f"zone {zone} shall have {count} replicas")
        node.ask(lambda: node.catalog.execute(AlterZone(name=zone, replicas=count)))
        return True

    def _choose(self) -> bool:
        node = self._someone()
        if node is None:
            return False
        belong = [one.number for one in node.here.nodes()]
        if not belong:
            return False
        count = self.dice.randint(min(2, len(belong)), len(belong))
        chosen, zone = sorted(self.dice.sample(belong, count)), self._some_zone(node)
        self.world.tell(f"zone {zone} shall be on {chosen}")
        node.ask(lambda: node.placement.operations.choose(zone, chosen))
        return True

    def _auto(self) -> bool:
        node = self._someone()
        if node is None:
            return False
        zone = self._some_zone(node)
        self.world.tell(f"nodes of zone {zone} come and go by themselves")
        node.ask(lambda: node.placement.operations.choose(zone, None))
        return True

    def _drain(self) -> bool:
        node, drained = self._someone(), self._someone()
        if node is None or drained is None:
            return False
        self.world.tell(f"node {drained.number} is drained")
        node.ask(lambda: node.placement.operations.drain(drained.number))
        return True

    def _fill(self) -> bool:
        node = self._someone()
        if node is None:
            return False
        for number in sorted(node.placement.zones.draining()):
            self.world.tell(f"node {number} is filled")
            node.ask(lambda number=number: node.placement.operations.fill(number))  # type: ignore[misc]
        return True

    def _change(self, *, paused: bool | None = None, bytes_per_s: int | None = None) -> bool:
        node = self._someone()
        if node is None:
            return False
        self.world.tell(f"moves: paused {paused}, {bytes_per_s} bytes a second")
        node.ask(lambda: node.placement.operations.change(paused=paused, bytes_per_s=bytes_per_s))
        if paused:
            self.world.loop.call_later(self.dice.choice([100, 1_000]), self._resume)
        return True

    def _resume(self) -> None:
        if self.troubles:
            self._change(paused=False)

    def _throttle(self) -> bool:
        return self._change(bytes_per_s=self.dice.choice([0, 0, 2_000, 30_000]))

    def _cancel(self) -> bool:
        node = self._someone()
        if node is None:
            return False
        self.world.tell("moves are called off")
        node.ask(node.placement.operations.cancel)
        return True

    # -- nodes ------------------------------------------------------------------------------------

    def _come(self) -> bool:
        node = self._someone()
        if node is None or len(self.world.nodes) >= NODES_MAX:
            return False
        self._numbers += 1
        new = self.world.nodes[self._numbers] = self.world.new_node(self._numbers)
        self.world.tell(f"node {self._numbers} comes")
        new.start(join=node.address)
        return True

    def _leave(self) -> bool:
        present = self.world.present
        if len(present) <= NODES_MIN or any(node.leaving for node in present):
            return False
        node = self.dice.choice(present)
        self.world.tell(f"node {node.number} shall leave")
        node.leaving = True
        return True

    def _leave_after_power_cut(self) -> bool:
        """The node that coordinates then has just started, and has heard of few partitions."""
        if not self._leave():
            return False
        for node in self.world.present:
            if node.up:
                self._down(node, killed=False, ms=self.dice.randint(20, 200))
        return True

    # -- tables -----------------------------------------------------------------------------------

    def _create(self) -> bool:
        node = self._someone()
        if node is None or len(self._names) >= TABLES_MAX:
            return False
        self.create(node, partitions=self.dice.choice([1, 1, 2, 4]))
        return True

    def create(self, node: MovingNode, *, partitions: int) -> None:
        """Have one more table."""
        self._made += 1
        name = f"t{self._made}"

        def made(future: Future[Executed]) -> None:
            if future.error is not None:
                return
            table = future.result().catalog.table_named("public", name)
            confirm(table is not None, f"table {name} was made, and is not there")
            assert table is not None
            self.world.ledger.zones[table.id] = table.zone_id
            self.clients.tables[table.id] = partitions
            self._names[name] = table.id

        zone = self._some_zone(node)
        self.world.tell(f"table {name} of {partitions} in zone {zone}")
        command = log_table(name, partitions=partitions, zone=zone)
        node.ask(lambda: node.catalog.execute(command), made)

    def _drop(self) -> bool:
        node = self._someone()
        if node is None or len(self._names) < 2:
            return False
        name = self.dice.choice(sorted(self._names))
        table = self._names.pop(name)
        self.world.tell(f"table {name} is dropped")
        self.world.ledger.dropped.add(table)  # type: ignore[arg-type]
        self.clients.tables.pop(table, None)  # type: ignore[call-overload]
        node.ask(lambda: node.catalog.execute(DropTable(name=name, if_exists=True)))
        return True

    # -- the log ----------------------------------------------------------------------------------

    def _snapshot(self) -> bool:
        """All copies of a partition have one: who comes now gets that, and not the log."""
        some = sorted(self.world.ledger.keys)
        if not some:
            return False
        chosen = self.dice.choice(some)
        for (partition, number), group in list(self.world.ledger.groups.items()):
            if partition == chosen and group.stopped is None:
                self.world[number].loop.run(group.snapshot)
        return True

    def _roll(self) -> bool:
        node = self._someone()
        if node is None or node.log is None:
            return False
        try:
            node.loop.run(node.log.roll)
        except DiskFull:
            return False
        return True

    def _slow_down(self) -> bool:
        node = self._some_up()
        if node is None:
            return False
        node.loop.slow_us = self.dice.choice([0, 0, 2_000, 20_000, 100_000])
        self.world.tell(f"disk of node {node.number} takes {node.loop.slow_us} us more")
        return True

    # -- disks and clocks -------------------------------------------------------------------------

    def _fill_some_disk(self) -> bool:
        node = self._someone()
        if node is None or node.disk.capacity_bytes is not None:
            return False
        self._fill_disk(node)
        return True

    def _fill_disk(self, node: MovingNode) -> None:
        node.disk.capacity_bytes = node.disk._used_bytes + self.dice.randint(0, 8_000)
        self.world.tell(f"disk of node {node.number} is full")

        def empty() -> None:
            node.disk.capacity_bytes = None

        self.world.loop.call_later(self.dice.randint(50, 1_500), empty)

    def _jump(self) -> bool:
        node = self.dice.choice(self.world.present)
        node.loop.skew_ms = self.dice.choice([-2_000, -100, 0, 100, 2_000])
        self.world.tell(f"clock of node {node.number} is {node.loop.skew_ms} ms off")
        return True

    # -- trips ------------------------------------------------------------------------------------

    def _set_out(self) -> bool:
        self._trip = Trip.draw(self.world, self.dice)
        if self._trip is None:
            return False
        self._ambushes.clear()
        self._trip.begin()
        return True

    def _go_on(self) -> None:
        """No other trouble, and rows."""
        assert self._trip is not None
        if self._trip.is_over:
            self._trip.end()
            self._trip = None
        self.clients.act(self.dice.choice([0, 2, 5]))

    # -- the end ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """No more trouble: everything is whole, and every node that belongs is there."""
        world = self.world
        world.tell("faults stop")
        self.troubles = False
        self._trip = None
        self._ambushes.clear()
        world.network.heal()
        world.network.weather = Weather()
        for node in world.present:
            node.disk.stop_at_call = node.disk.capacity_bytes = None
            node.loop.slow_us = node.loop.skew_ms = 0
            self._up_at_ms[node.number] = 0.0
