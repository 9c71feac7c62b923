"""One life of a cluster whose nodes are lost with their disks and replaced, from one seed.

Rows are written, nodes are killed, cut off and started again, all the time. Now and then a node is
lost; another one takes its place while others fail; and the lost directory is found, before, while
and after that. No second one is lost before all copies are made again: a majority has every row.
The ledger knows what was acknowledged, by itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from lowmark.catalog import AlterZone
from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.group.envelope import open_command
from lowmark.metastore.coordinator import known
from lowmark.metastore.identity import load_identity
from lowmark.table import Appended, Partition, encode_batch
from lowmark.table.commands import HEADER_BYTES
from placement.test_moves import settled
from sim.cluster_ledger import Broken
from table.world import TableNode, TableWorld, log_table

__all__ = ["SEEDS_IN_ALL", "SEEDS_IN_TEST", "ReplacingStory", "live"]

SEEDS_IN_TEST = 1
SEEDS_IN_ALL = 60
STEPS = 60
LOOK_STEPS = 15
PARTITIONS = 2
PEACE_MS = 240_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacingStory:
    """What a life came to."""

    seed: int
    virtual_ms: int
    acknowledged: int
    counts: Counter[str]

    def as_figures(self) -> dict[str, int]:
        """Everything that can be added up over many lives."""
        figures = {"lives": 1, "virtual ms": self.virtual_ms, "turns": 0}
        return {**figures, "operations": self.acknowledged, **self.counts}


class _Life:
    """A cluster, what was acknowledged, and its trouble."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(f"replacing {seed}")
        self.count = self.dice.choice([3, 3, 4, 5])
        self.world = world = TableWorld(seed, nodes=self.count)
        world.execute(1, AlterZone(name="default", replicas=3))
        self.table = world.create(1, log_table("events", partitions=PARTITIONS))
        self.counts: Counter[str] = Counter()
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        """By partition and offset: what is there."""
        self.lost: TableNode | None = None
        """It is gone with its disk, and its place is not taken, or not all copies are made."""
        self.heir: TableNode | None = None
        self.found: list[TableNode] = []
        """All that were lost and replaced: their directories."""
        self._next = self.count + 1
        self._writes = 0
        self._cut = False

    # -- what is written --------------------------------------------------------------------------

    def _copies(self, number: int) -> list[tuple[TableNode, Partition]]:
        return [
            (node, one)
            for node in self.world.up
            for one in node.tables.of(self.table)
            if one.number == number
        ]

    def write(self) -> None:
        number = self.dice.randrange(PARTITIONS)
        leading = [one for _, one in self._copies(number) if one.group.ready]
        if not leading:
            return
        self._writes += 1
        content = b"row %d of partition %d" % (self._writes, number)
        batch = encode_batch(content, rows=1, schema=1)

        def answered(future: Future[Appended]) -> None:
            if future.error is None:
                self.acknowledged[number, future.result().first] = content

        try:
            leading[-1].append(batch).then(answered)
        except LowmarkError:
            self.counts["refused"] += 1

    def check(self) -> None:
        """All that was acknowledged is there, on each copy that has come so far."""
        for number in range(PARTITIONS):
            for node, copy in self._copies(number):
                view = copy.view
                places = [int(place) for place in view.places]
                entries = {e.index: e for e in copy.plan(sorted(places)).execute(node.disk)}
                there = {
                    int(first): bytes(open_command(entries[place].data).data)[HEADER_BYTES:]
                    for first, place in zip(view.first, places, strict=True)
                }
                for (partition, offset), content in self.acknowledged.items():
                    if partition == number and offset < view.end and there[offset] != content:
                        raise Broken(f"node {node.number} has another row at {number}/{offset}")

    # -- trouble ----------------------------------------------------------------------------------

    def _down(self) -> list[TableNode]:
        return [self.world[n] for n in self.world.nodes if not self.world[n].up]

    def crash(self) -> None:
        up = [self.world[n] for n in self.world.nodes if self.world[n].up]
        if len(self._down()) + (self.lost is not None) < 2 and len(up) > 1:
            self.dice.choice(up).crash(killed=self.dice.random() < 0.5)
            self.counts["crashes"] += 1

    def start(self) -> None:
        for node in self._down():
            if node is not self.heir:
                node.start()

    def cut(self) -> None:
        self.world.isolate(self.dice.choice(sorted(self.world.nodes)))
        self._cut = True

    def heal(self) -> None:
        self.world.heal()
        self._cut = False

    def lose(self) -> None:
        """A node and its disk, if there is every copy of everything."""
        if self.lost is not None or self._down() or self._cut or not self._is_whole():
            return
        number = self.dice.choice(sorted(self.world.nodes))
        lost = self.world[number]
        if self.dice.random() < 0.3:  # it only can't be reached
            self.world.isolate(number)
            self._cut = True
        else:
            lost.crash(killed=True)
        del self.world.nodes[number]
        self.lost = lost
        self.counts["lost"] += 1

    def take_place(self) -> None:
        """Start another one in its place, or the same once more."""
        if self.lost is None:
            return
        if self.heir is None:
            self.heir = heir = self.world.new_node(self._next)
            assert isinstance(heir, TableNode)
            heir.replaces, heir.rack = self.lost.info, self.lost.rack
            if self.dice.random() < 0.3 and not self.lost.up:
                heir.address = self.lost.address
            self._next += 1
        heir = self.heir
        if heir.up and heir.here.ready.done and heir.here.ready.error is not None:
            self.counts["not let in"] += 1
            heir.crash(killed=True)
        if not heir.up and (self.world.network is not None):
            others = [self.world[n] for n in self.world.nodes if n != heir.number]
            heir.start(join=self.dice.choice(others).address)
            self.world.nodes[heir.number] = heir

    def find(self) -> None:
        """A directory that was lost is started, or stopped again."""
        known_lost = [*self.found, *([self.lost] if self.lost is not None else [])]
        if not known_lost:
            return
        lost = self.dice.choice(known_lost)
        if lost.up:
            lost.crash(killed=True)
        elif not self._has_left(lost):
            if any(lost.address == self.world[n].address for n in self.world.nodes):
                lost.address = f"found-{lost.number}:1"
            lost.start()
            self.counts["found"] += 1

    def _has_left(self, node: TableNode) -> bool:
        identity = load_identity(node.disk)
        return identity is not None and identity.left

    def _is_whole(self) -> bool:
        """Whether each copy that should be is there, and the metastore has its voters."""
        leader = self.world.leader()
        if leader is None or leader.number not in self.world.nodes:
            return False
        here = known(leader.metastore).nodes
        voters = leader.metastore.group.members()
        if here.keys() != self.world.nodes.keys() or voters.joint or len(voters.voters) != 3:
            return False
        return (
            voters.voters <= self.world.nodes.keys()
            and len(self.world.up) == len(self.world.nodes)
            and settled(self.world, self.table)
        )

    def look(self) -> None:
        """Whether the place of the lost node is taken, whole."""
        if self.heir is not None and self._is_whole() and self.heir.number in self.world.nodes:
            assert self.lost is not None
            self.found.append(self.lost)
            self.counts["replaced"] += 1
            self.lost = self.heir = None

    # -- the life ---------------------------------------------------------------------------------

    def act(self) -> None:
        for _ in range(self.dice.randrange(4)):
            self.write()
        acts = {
            self.crash: 3,
            self.start: 5,
            self.cut: 1,
            self.heal: 3,
            self.lose: 6,
            self.take_place: 5,
            self.find: 2,
        }
        self.dice.choices(list(acts), weights=list(acts.values()))[0]()
        self.world.run_for(self.dice.choice([20, 200, 1_000, 3_000]))
        self.look()

    def peace(self) -> None:
        """Everything that is not lost is up: then all is well by itself."""
        self.heal()
        if self.lost is not None and self.lost.up:
            self.lost.crash(killed=True)
        ends_ms = self.world.loop.elapsed_us() // 1_000 + PEACE_MS
        while not (self.lost is None and self._is_whole()):
            if self.world.loop.elapsed_us() // 1_000 > ends_ms:
                raise Broken(f"there is no peace: {self.lost}, {self.heir}, {self._down()}")
            self.start()
            self.take_place()
            self.world.run_for(2_000)
            self.look()
        for number in range(PARTITIONS):
            end = self.world.leading(self.table, number).view.end
            wanted = max((o for p, o in self.acknowledged if p == number), default=-1)
            if end <= wanted:
                raise Broken(f"partition {number} ends at {end}, and {wanted} was acknowledged")
        self.check()

    def found_at_last(self) -> None:
        """All that was lost is refused, and never starts again."""
        for lost in self.found:
            if lost.up:
                lost.crash(killed=True)
            if not self._has_left(lost):
                lost.address = f"found-{lost.number}:1"
                # All that it knew may have been replaced since: then it is alone without `--join`.
                lost.start(join=self.world.wait_leader().address)
            self.world.run_until(lambda lost=lost: self._has_left(lost), timeout_ms=PEACE_MS)  # type: ignore[misc]
        self.check()


def live(seed: int) -> ReplacingStory:
    """Live it; raise `Broken` if a promise is."""
    life = _Life(seed)
    for step in range(STEPS):
        life.act()
        if step % LOOK_STEPS == 0:
            life.check()
    life.peace()
    life.found_at_last()
    return ReplacingStory(
        seed=seed,
        virtual_ms=life.world.loop.elapsed_us() // 1_000,
        acknowledged=len(life.acknowledged),
        counts=life.counts,
    )
