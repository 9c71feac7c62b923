"""One life of a cluster whose partitions move, decided by one seed: trouble, then peace.

While there is trouble, every revision of the metastore, every change of members, every copy that
goes and every answer to a client is judged as it comes (`placement_ledger`). When it stops, all
that was begun must be finished by itself. Then one more event comes, without any trouble: every
partition must be where its zone's baseline sends it, with few writes, with all rows, and nowhere
else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

from lowmark.catalog import NEVER, AlterZone, CreateZone
from lowmark.group import Future, GroupConfig
from lowmark.log import LogConfig
from lowmark.metastore import ClusterSettings, MetastoreConfig
from lowmark.placement import Adjust, RebalanceConfig, copies, leaving, zones
from lowmark.placement.assignments import PartitionId
from sim.cluster_ledger import Broken, confirm
from sim.mutants import replaced
from sim.placement_clients import PlacementClients
from sim.placement_nemesis import MOODS, PlacementNemesis
from sim.placement_world import MovingNode, MovingShape, MovingWorld

__all__ = ["SEEDS_IN_ALL", "SEEDS_IN_TEST", "PlacementLife", "PlacementStory", "live"]

SEEDS_IN_TEST = 15
"""Lives in `make test`."""
SEEDS_IN_ALL = 150
"""Lives in `make test-all`."""

TROUBLE_MS = 6_000
PAUSES_MS = (5, 20, 60, 150, 400)
PATROL_MS = 20
PEACE_MS = 60_000
ANSWER_MS = 5_000
"""A node that was asked for something may be down by then: another one is asked."""
WRITES_MAX = 6
"""Of one move: the decision, the lock, its end; and if the leader is not among the new members, the
next one takes the lock away and sets it anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementStory:
    """What a life came to."""

    seed: int
    virtual_ms: int
    turns: int
    operations: int
    counts: Counter[str]
    digest: str

    def as_figures(self) -> dict[str, int]:
        """Everything that can be added up over many lives."""
        figures = {"lives": 1, "virtual ms": self.virtual_ms, "turns": self.turns}
        return {**figures, "operations": self.operations, **self.counts}


@contextmanager
def impatient() -> Iterator[None]:
    """What is tried again by and by is tried again soon: a life is short."""
    with ExitStack() as stack:
        for module, name, value in (
            (leaving, "ASK_MS", 400),
            (leaving, "RETRY_MS", 50),
            (leaving, "RETRY_MS_MAX", 800),
            (zones, "OTHERS_MS", 600),
            (copies, "RETRY_MS", 100),
            (copies, "RETRY_MS_MAX", 800),
        ):
            stack.enter_context(replaced(module, name, value))
        yield


def shape_of(dice: Random, mood: str) -> MovingShape:
    """Draw what a cluster is made of: small limits, so that everything happens often."""
    return MovingShape(
        nodes=dice.choice([4, 5] if mood == "trips" else [3, 3, 4, 5]),
        racks=dice.choice([("",), ("",), ("a", "b"), ("a", "b", "c")]),
        rebalance=RebalanceConfig(
            adjust=dice.choice([Adjust.UPDATE, Adjust.CANCEL]),
            retry_delay_ms=dice.choice([50, 200]),
            retry_max=dice.choice([3, 10]),
            moves_max=dice.choice([1, 2, 4]),
        ),
        config=GroupConfig(
            tick_ms=40,
            election_ticks=5,
            rest_ticks=dice.choice([5, 12]),
            request_timeout_ms=dice.choice([600, 1_500]),
            command_bytes_max=16_000,
            message_bytes_max=dice.choice([500, 4_000]),
            inflight_max=dice.choice([2, 64]),
            inflight_bytes_max=8_000,
            snapshot_bytes=dice.choice([8_000, 80_000]),
            snapshot_entries=dice.choice([10, 60, 1_000]),
            snapshot_age_ms=dice.choice([800, 60_000]),
            install_piece_bytes=dice.choice([500, 4_000]),
            install_window_bytes=8_000,
            install_stall_ms=800,
            near_entries=dice.choice([0, 5, 50]),
            near_bytes=50_000,
            catch_up_stall_ms=dice.choice([600, 1_500]),
        ),
        metastore=MetastoreConfig(
            lease_ms=dice.choice([600, 1_500]),
            request_timeout_ms=dice.choice([700, 2_000]),
            snapshot_entries=dice.choice([50, 500]),
        ),
        log_config=LogConfig(
            wal_bytes_max=dice.choice([16_384, 65_536]),
            segment_bytes_max=8_192,
            segment_entries_max=dice.choice([16, 64]),
            large_entry_bytes_min=1_024,
            compaction_interval_ms=dice.choice([0, 400]),
            link_grace_ms=dice.choice([0, 300]),
            disk_reserved_bytes=0,
            disk_low_bytes=0,
            retry_ms=50,
        ),
        settings=ClusterSettings(
            id="",
            schema_sync_delay_ms=30,
            clock_max_skew_ms=20,
            watermark_availability_ms=300,
            watermark_interval_ms=dice.choice([500, 1_500]),
        ),
    )


class PlacementLife:
    """A world, its clients and its trouble."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._dice = dice = Random(f"placement life {seed}")
        self.mood = MOODS[seed % len(MOODS)]
        self.world = world = MovingWorld(seed, shape_of(dice, self.mood))
        self.clients = PlacementClients(world, Random(dice.getrandbits(64)))
        self.nemesis = PlacementNemesis(
            world, self.clients, Random(dice.getrandbits(64)), self.mood
        )
        shape = world.shape
        world.tell(f"mood: {self.mood}; {shape.nodes} nodes, {shape.rebalance}, {shape.racks}")

    # -- trouble ----------------------------------------------------------------------------------

    def run(self) -> PlacementStory:
        """Live it."""
        world, loop = self.world, self.world.loop
        self._begin()
        until_us = loop.elapsed_us() + TROUBLE_MS * 1_000
        self._patrol()
        while loop.elapsed_us() < until_us:
            loop.run_for(self._dice.choice(PAUSES_MS))
            self.nemesis.act()
        self.clients.open = False
        self.nemesis.stop()
        self._until("there is no peace", self._is_whole, chores=self._undo())
        self._check_whole()
        self._one_more_event()
        self._check_rows()
        world.count("move", world.ledger.moves)
        world.count("revision", world.ledger.latest)
        return PlacementStory(
            seed=self.seed,
            virtual_ms=loop.elapsed_us() // 1_000,
            turns=world.turns,
            operations=self.clients.operations,
            counts=world.counts,
            digest=loop.digest(),
        )

    def _begin(self) -> None:
        dice, world = self._dice, self.world
        node = world[1]
        replicas = 3 if self.mood == "trips" else dice.choice([1, 2, 3])
        times = {"scale_up_ms": dice.choice([0, 300]), "scale_down_ms": dice.choice([1_500, NEVER])}
        commands: list[AlterZone | CreateZone] = [
            AlterZone(name="default", replicas=replicas, **times)  # type: ignore[arg-type]
        ]
        if dice.random() < 0.4:
            commands.append(CreateZone(name="other", replicas=dice.choice([1, 3]), **times))  # type: ignore[arg-type]
        world.wait(node.catalog.execute(commands))
        for _ in range(dice.choice([1, 2, 3])):
            self.nemesis.create(node, partitions=dice.choice([1, 2, 4]))
        world.run_until(lambda: bool(self.clients.tables))
        self.clients.act(dice.choice([5, 30]))

    def _patrol(self) -> None:
        self.world.ledger.look()
        self.world.loop.call_later(PATROL_MS, self._patrol)

    # -- peace ------------------------------------------------------------------------------------

    def _undo(self) -> list[Callable[[MovingNode], Future[object]]]:
        """What an operator takes back: pauses, limits, nodes that were named or drained."""
        chores: list[Callable[[MovingNode], Future[object]]] = [_resume]
        names = ["default", "other"] if self._dice.random() < 0.5 else []
        return [*chores, *(partial(_by_themselves, name) for name in names)]

    def _until(
        self,
        promise: str,
        condition: Callable[[], str],
        *,
        chores: list[Callable[[MovingNode], Future[object]]],
    ) -> None:
        """Until a condition says nothing is missing; chores are tried until they are done."""
        world, loop = self.world, self.world.loop
        deadline_us = loop.elapsed_us() + PEACE_MS * 1_000
        left, asked = dict(enumerate(chores)), dict[int, float]()

        def ask(number: int, node: MovingNode) -> None:
            def answered(future: Future[object]) -> None:
                asked.pop(number, None)
                if future.error is None:
                    left.pop(number, None)

            asked[number] = world.now_ms + ANSWER_MS
            node.ask(lambda: left[number](node), answered)

        while True:
            self.nemesis.tend()
            loop.run_for(60)
            serving = world.serving
            if not left and any(node.placement.moves.paused for node in serving):
                left[len(chores)] = _resume  # a pause that was asked for before came late
            due = [one for one in left if asked.get(one, 0) <= world.now_ms]
            for number in due if serving else []:
                ask(number, self._dice.choice(serving))
            missing = condition() if not left else f"chores are left: {sorted(left)}"
            if not missing:
                return
            if loop.elapsed_us() > deadline_us:
                raise Broken(f"{promise}: {missing}\n{self._statuses()}")

    def _is_whole(self) -> str:
        """What is still to be done by itself; empty: nothing."""
        world, ledger = self.world, self.world.ledger
        coordinator = world.coordinator()
        if coordinator is None or not coordinator.serves:
            return "no node coordinates"
        for node in world.present:
            if not node.serves or node.leaving:
                return f"node {node.number} is not there, or is to leave"
            if node.metastore.state.latest != ledger.latest:
                return f"node {node.number} is behind"
        up = {node.number for node in coordinator.here.topology.nodes}
        if up != {node.number for node in world.present}:
            return f"nodes {up} are up"
        latest, placed = coordinator.catalog.latest, coordinator.placement
        own: dict[int, list[PartitionId]] = {node.number: [] for node in world.present}
        partitions = set()
        for table in latest.all_tables():
            for number in range(table.partitions):
                partition = PartitionId(table.id, number)
                partitions.add(partition)
                missing = self._is_at_home(partition, placed.zones.revision(table.zone_id))
                if missing:
                    return f"{partition}: {missing}"
                stable = ledger.keys[partition].stable
                assert stable is not None
                for holder in stable.nodes:
                    own[holder].append(partition)
        if ledger.keys.keys() != partitions:
            return f"there are keys of {ledger.keys.keys() - partitions}"
        for node in world.present:
            if node.tables.on_disk() != sorted(own[node.number]):
                return f"node {node.number} has {node.tables.on_disk()}, not {own[node.number]}"
            if node.placement.problem:
                return f"node {node.number}: {node.placement.problem}"
        return ""

    def _is_at_home(self, partition: PartitionId, baseline: int) -> str:
        keys = self.world.ledger.keys.get(partition)
        if keys is None or keys.stable is None or (keys.trigger or 0) < baseline:
            return f"not decided on since {baseline}: {keys}"
        if keys.pending or keys.planned or keys.lock is not None:
            return f"on its way: {keys}"
        if any(number not in self.world.nodes for number in keys.stable.nodes):
            return f"on a node that has left: {keys}"
        leader = self.world.leader_of(partition)
        if leader is None:
            return "no leader"
        members = leader.tables.get(*partition).group.members()
        if members.everybody != set(keys.stable.nodes) or members.joint or members.learners:
            return f"the group is at {members}, stable is {keys.stable.nodes}"
        if members.returning:
            return f"somebody is to come back: {members}"
        groups = [self.world.ledger.groups.get((partition, n)) for n in keys.stable.nodes]
        if len({None if group is None else group.applied for group in groups}) != 1:
            return "copies differ"
        return ""

    def _check_whole(self) -> None:
        """Partitions that were decided on are where they were sent, though nobody helped."""
        ledger = self.world.ledger
        for partition, keys in ledger.keys.items():
            zone = ledger.zones.get(partition.table)
            if zone is None or partition in ledger.withdrawn or partition in ledger.firsts:
                continue
            baseline = ledger.baselines[zone][max(ledger.baselines[zone])]
            assert keys.stable is not None
            wanted = min(baseline.replicas, len(baseline.nodes))
            confirm(
                set(keys.stable.nodes) <= set(baseline.numbers)
                and len(keys.stable.nodes) == wanted,
                f"{partition} is on {keys.stable.nodes}, by {baseline}",
            )

    def _one_more_event(self) -> None:
        """Another number of replicas, and no trouble: everything goes where it is sent."""
        world, ledger = self.world, self.world.ledger
        coordinator = world.coordinator()
        assert coordinator is not None
        before = dict.fromkeys(ledger.baselines, 0) | {
            zone: max(found) for zone, found in ledger.baselines.items()
        }
        ledger.writes.clear()
        if all(number in coordinator.placement.zones.draining() for number in world.nodes):
            return  # there is no node to send anything to
        # More than one node, so that whoever leads stays or hands over.
        chores: list[Callable[[MovingNode], Future[object]]] = []
        for zone in sorted(coordinator.catalog.latest.zones.values(), key=lambda one: one.id):
            count = 2 if zone.replicas != 2 else 3
            command = AlterZone(name=zone.name, replicas=count)
            chores.append(lambda node, command=command: node.catalog.execute(command).map(_any))  # type: ignore[misc]

        def is_done() -> str:
            for zone, revision in before.items():
                if max(ledger.baselines[zone]) == revision:
                    return f"zone {zone} has no other baseline"
            return self._is_whole()

        self._until("one more event is not done", is_done, chores=chores)
        some = self._dice.choice(world.serving)
        for number in sorted(before):
            target = some.placement.zones.target(number)
            confirm(target is not None, f"zone {number} has no target")
            assert target is not None
            for partition, nodes in target.nodes.items():
                stable = ledger.keys[partition].stable
                assert stable is not None
                confirm(
                    nodes == stable.nodes,
                    f"{partition} is on {stable.nodes}, its target is {nodes}",
                )
        for (partition, event), writes in ledger.writes.items():
            confirm(
                writes <= WRITES_MAX, f"{partition} was moved by {writes} writes for event {event}"
            )

    def _check_rows(self) -> None:
        """Every partition takes rows from everywhere, and every copy has them all."""
        world, clients, ledger = self.world, self.clients, self.world.ledger
        clients.open = True
        before = {one: ledger.ends.get(one, 0) for one in ledger.keys}
        deadline_ms = world.now_ms + PEACE_MS
        while waiting := [one for one in before if ledger.ends.get(one, 0) <= before[one]]:
            confirm(world.now_ms < deadline_ms, f"{waiting} take no rows\n{self._statuses()}")
            for partition in waiting:
                clients.append(self._dice.choice(world.serving), partition)
            world.run_for(200)
        clients.open = False
        world.run_for(300)
        for partition, keys in ledger.keys.items():
            assert keys.stable is not None
            for number in keys.stable.nodes:
                copy = world[number].tables.get(*partition)
                world.run_until(lambda c=copy, p=partition: c.view.end >= ledger.ends[p])  # type: ignore[misc]
                batches = world[number].batches(copy, copy.view)
                ledger.check_rows(partition, batches, who=f"node {number}")

    def _statuses(self) -> str:
        lines = []
        for node in self.world.present:
            lines.append(f"node {node.number}: up {node.up} serves {node.serves} {node.leaving=}")
            if node.serves:
                lines.append(f"  problem: {node.placement.problem}")
                lines.append(f"  leaving: {node.placement.leaving.left}")
                lines.append(f"  moves: {node.placement.moves._moves}")
                lines += [f"  {copy.group.status()}" for copy in node.tables.all()]
        return "\n".join([*lines, *(f"{p}: {k}" for p, k in self.world.ledger.keys.items())])


def _resume(node: MovingNode) -> Future[object]:
    return node.placement.operations.change(paused=False, bytes_per_s=0).map(_any)


def _by_themselves(zone: str, node: MovingNode) -> Future[object]:
    if node.catalog.latest.zone_named(zone) is None:
        return Future.of(None)
    return node.placement.operations.choose(zone, None).map(_any)


def _any(_: object) -> object:
    return None


def live(seed: int) -> PlacementStory:
    """Live one life; a failure says what happened, and how to see it again."""
    life = None
    try:
        with impatient():
            life = PlacementLife(seed)
            return life.run()
    except BaseException as failure:
        if life is not None:
            failure.add_note("\n".join(["the end of the life:", *life.world.events]))
        failure.add_note(f"placement seed {seed}; replay it: make sim SEED={seed}")
        raise
