"""A life of three nodes of which one has a clock that goes wrong by far, again and again.

Beside that, nodes crash and are cut off, and leaders change. Whenever all nodes are up and reach
each other, though that clock may be wrong, the present of tables with several partitions is read
from any node, as the backend reads it, and has to be answered soon. No log gets a time that is
further ahead than clocks may differ.

In some lives the node of that clock starts alone, cut off, and stamps rows of a table without
replicas before it has heard of another clock: then nothing can keep these times out of that log,
and the present is behind them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from lowmark.catalog import AlterZone, CreateZone, TableId
from lowmark.errors import LowmarkError
from lowmark.group import Future, when_all
from lowmark.metastore import ClusterSettings
from lowmark.runtime import HybridTime, millis_of
from lowmark.table import Appended, Partition, encode_batch
from sim.cluster_ledger import Broken, confirm
from table.world import NEVER_MS, TableNode, TableWorld, log_table

__all__ = ["SEEDS_IN_ALL", "SEEDS_IN_TEST", "ClockStory", "live"]

T = TypeVar("T")

SEEDS_IN_ALL, SEEDS_IN_TEST = 60, 4
STEPS = 40
PARTITIONS = 3
SKEW_MS = 100
SLACK_MS = 10
FAR_MS = (-600_000, -5_000, -1_000, 1_000, 5_000, 600_000, 3_600_000)
SOON_MS = 4_000
"""Within this the present is read: an election, and a look at the others' clocks."""
PATIENCE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStory:
    """What a life came to."""

    seed: int
    virtual_ms: int
    turns: int
    operations: int
    counts: Counter[str]
    digest: str

    def as_figures(self) -> dict[str, int]:
        """For the summary of many lives."""
        sums = {"virtual ms": self.virtual_ms, "turns": self.turns, "operations": self.operations}
        return {"lives": 1, **sums, **self.counts}


class ClockLife:
    """One life, decided by its seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = Random(f"clocks {seed}")
        self.alone = seed % 3 == 1
        """Whether the node of the wrong clock is left alone with it for a while."""
        self.counts: Counter[str] = Counter()
        self.operations = 0
        settings = ClusterSettings(
            id="",
            schema_sync_delay_ms=50,
            clock_max_skew_ms=SKEW_MS,
            watermark_availability_ms=1_000,
            watermark_interval_ms=NEVER_MS,
        )
        self.world = TableWorld(seed, nodes=3, settings=settings)
        self.wrong = self.dice.choice([1, 2, 3])
        world = self.world
        world.execute(1, AlterZone(name="default", replicas=3))
        world.execute(1, CreateZone(name="single", replicas=1))
        wide = log_table("wide", partitions=PARTITIONS)
        single = log_table("single", partitions=PARTITIONS, zone="single")
        self.tables = [world.create(1, wide), world.create(1, single)]
        self._wait_calm()
        self.acknowledged: Counter[tuple[TableId, int]] = Counter()

    # -- a life -----------------------------------------------------------------------------------

    def run(self) -> ClockStory:
        acts: list[Callable[[], None]] = [
            *[self._append] * 6,
            *[self._jump] * 4,
            self._put_right,
            self._crash,
            self._cut_off,
            self._transfer,
        ]
        for step in range(STEPS):
            if self.alone and step == STEPS // 2:
                self._be_alone()
            self.dice.choice(acts)()
            self.world.run_for(self.dice.choice([0, 50, 500, 2_000]))
            if self.dice.random() < 0.5:
                self._calm()
                self._read()
        self._calm()
        for node in self.world.up:
            for table in self.tables:
                self._read(node, table)
        loop = self.world.loop
        return ClockStory(
            seed=self.seed,
            virtual_ms=loop.elapsed_us() // 1_000,
            turns=loop.events,
            operations=self.operations,
            counts=self.counts,
            digest=loop.digest(),
        )

    def _node(self) -> TableNode | None:
        up = self.world.up
        return self.dice.choice(up) if up else None

    def _append(self) -> None:
        node = self._node()
        if node is None:
            return
        for _ in range(self.dice.choice([1, 5, 20])):
            self._append_to(node, self.dice.choice(self.tables), self.dice.randrange(PARTITIONS))

    def _append_to(self, node: TableNode, table: TableId, number: int) -> None:
        self.operations += 1

        def answered(future: Future[object]) -> None:
            if future.error is None and isinstance(future.result(), Appended):
                self.acknowledged[table, number] += 1
                self.counts["row acknowledged"] += 1

        batch = encode_batch(b"row", rows=1, schema=1)
        node.tables.way(table, number).propose(batch).then(answered)

    def _jump(self) -> None:
        self._put(self.dice.choice(FAR_MS))
        self.counts["far jump"] += 1

    def _put(self, ahead_ms: int) -> None:
        self.world[self.wrong].clock.skew_ms = ahead_ms

    def _put_right(self) -> None:
        self._put(0)

    def _crash(self) -> None:
        node = self._node()
        if node is not None:
            node.crash(killed=self.dice.random() < 0.5)
            self.counts["crash"] += 1

    def _cut_off(self) -> None:
        self.world.isolate(self.dice.choice([1, 2, 3]))
        self.counts["cut off"] += 1

    def _transfer(self) -> None:
        for node in self.world.up:
            for copy in node.tables.all():
                others = [one for one in self.world.nodes if one != node.number]
                if copy.group.leads and len(copy.group.members().voters) > 1:
                    copy.group.transfer(self.dice.choice(others))

    def _be_alone(self) -> None:
        """The wrong clock's node starts without having heard of another."""
        node, world = self.world[self.wrong], self.world
        self._calm()
        world.isolate(self.wrong)
        node.crash()
        self._put(3_600_000)
        node.start()
        world.run_until(lambda: node.tables_ is not None)
        world.run_for(2_000)
        for number in range(PARTITIONS):
            self._append_to(node, self.tables[1], number)
        world.run_for(1_000)
        self.counts["alone with a wrong clock"] += 1

    # -- peace, but for that clock ----------------------------------------------------------------

    def _calm(self) -> None:
        world = self.world
        world.heal()
        for number in world.nodes:
            if not world[number].up:
                world[number].start()
        self._wait_calm()

    def _wait_calm(self) -> None:
        world = self.world

        def led(table: TableId, number: int) -> bool:
            copies = [node.tables.here(table, number) for node in world.up]
            return any(copy is not None and copy.group.ready for copy in copies)

        def calm() -> bool:
            if len(world.up) < len(world.nodes):
                return False
            return all(_heard(node) == 2 for node in world.up) and all(
                led(table, number) for table in self.tables for number in range(PARTITIONS)
            )

        try:
            world.run_until(calm, timeout_ms=PATIENCE_MS)
        except TimeoutError:
            raise Broken("not all partitions have leaders") from None

    def _read(self, node: TableNode | None = None, table: TableId | None = None) -> None:
        """The present of a table, from any node; asked again, as clients ask, but not for long."""
        world = self.world
        node = node or self.dice.choice(world.up)
        table = self.dice.choice(self.tables) if table is None else table
        since_ms = world.loop.elapsed_us() // 1_000
        while True:
            self.operations += 1
            try:
                self._read_once(node, table)
                break
            except LowmarkError as error:
                self.counts["refused for a moment"] += 1
                late = world.loop.elapsed_us() // 1_000 - since_ms > SOON_MS
                confirm(not late, f"the present can't be read for {SOON_MS} ms: {error}")
                world.run_for(100)
        self.counts["read of the present"] += 1
        if "alone with a wrong clock" not in self.counts:
            self._check_times()

    def _read_once(self, node: TableNode, table: TableId) -> None:
        """As `Spread.now` and `Embedded.views` do it."""
        wanted = {number: self.acknowledged[table, number] for number in range(PARTITIONS)}
        by_node: dict[int, list[Partition]] = {}
        for number in range(PARTITIONS):
            holder, copy = self._copy(node, table, number)
            by_node.setdefault(holder.number, []).append(copy)
        time = 0
        for number in sorted(by_node, key=lambda one: one == node.number):
            time = max(time, self._now(self.world[number], by_node[number], known=time))
        if node.number not in by_node:
            time = max(time, self._now(node, [], known=time))
        for number, copies in by_node.items():
            self.world[number].run.clock.follow(time)
            for copy in copies:
                view = self._done(copy.closed(time))
                seen, there = view.offset_after(time), wanted[copy.number]
                confirm(seen >= there, f"the present has {seen} rows of {there} acknowledged")
        assert node.catalogs is not None
        self._done(node.catalogs.at(HybridTime(time)))

    def _copy(self, node: TableNode, table: TableId, number: int) -> tuple[TableNode, Partition]:
        for one in (node, *self.world.up):
            copy = one.tables.here(table, number)
            if copy is not None:
                return one, copy
        raise Broken("a partition has no copy")

    def _now(self, node: TableNode, copies: list[Partition], *, known: int) -> int:
        clock = node.run.clock
        clock.follow(known)
        views = self._done(when_all([copy.latest() for copy in copies]))
        closed = max((view.closed for view in views), default=0)
        clock.follow_log(closed)
        return max(int(clock.now()), closed + 1)

    def _done(self, future: Future[T]) -> T:
        try:
            return self.world.wait(future, timeout_ms=PATIENCE_MS)
        except TimeoutError:
            raise Broken("a read waits for ever") from None

    def _check_times(self) -> None:
        """No log has a time further ahead than clocks may differ, whatever that one clock says."""
        world = self.world
        right_ms = world.loop.wall_ms()
        for node in world.up:
            times = [copy.view.closed for copy in node.tables.all()]
            ahead_ms = millis_of(max([node.metastore.state.time, *times])) - right_ms
            confirm(ahead_ms <= SKEW_MS + SLACK_MS, f"a log has times {ahead_ms} ms ahead")


def _heard(node: TableNode) -> int:
    assert node.groups is not None
    return node.groups.clocks.heard


def live(seed: int) -> ClockStory:
    """Live one life; a failure says how to see it again."""
    try:
        return ClockLife(seed).run()
    except BaseException as failure:
        failure.add_note(f"clock seed {seed}; replay it: make sim SEED={seed}")
        raise
