"""One life of a cluster whose catalog's history is cut, decided by one seed: trouble, then peace.

While there is trouble, every cut, every decision, every start of a copy and every entry that is
applied is held against what transactions need (`upkeep_ledger`). When it stops, and no transaction
is left, the history goes by itself until each node has the latest version alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random

import msgspec

from lowmark.catalog import (
    AddColumns,
    AlterZone,
    Command,
    CreateIndex,
    DropIndex,
    DropTable,
    NewColumn,
    TableId,
    parse_type,
)
from lowmark.errors import LowmarkError
from lowmark.group import Future, GroupConfig
from lowmark.ledger import RunRecord, run_key
from lowmark.metastore import ClusterSettings, MetastoreConfig
from lowmark.placement import PartitionId, copies, leaving, zones
from lowmark.runtime.sim.network import Weather
from lowmark.table import Partition, encode_batch
from lowmark.upkeep import catalog_compaction, catalog_minimums
from sim.cluster_ledger import Broken, confirm
from sim.mutants import replaced
from sim.upkeep_ledger import Transaction
from sim.upkeep_world import UpkeepNode, UpkeepWorld, watched
from table.world import log_table

__all__ = ["SEEDS_IN_ALL", "SEEDS_IN_TEST", "UpkeepLife", "UpkeepStory", "live"]

SEEDS_IN_TEST = 8
"""Lives in `make test`."""
SEEDS_IN_ALL = 100
"""Lives in `make test-all`."""
TROUBLE_MS = 8_000
PEACE_MS = 40_000
PAUSES_MS = (2, 5, 20, 60, 150)
SKEW_MS = 20
FAR_MS = 2_000
"""How far a clock jumps that is wrong."""
TABLES_MAX = 4
MANY = 30
"""Partitions of a table that has many."""
ROUNDS_KEPT = 5
MOODS = ("mixed", "mixed", "busy", "stormy", "partitioned", "long")
"""What there is more of: nothing, rows, crashes, nodes that are cut off, long transactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepStory:
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
def impatient(*, answer_ms: int = 800) -> Iterator[None]:
    """What is tried again by and by is tried again soon: a life is short."""
    with ExitStack() as stack:
        for module, name, value in (
            (catalog_compaction, "ANSWER_MS", answer_ms),
            (catalog_compaction, "PATIENCE_MS", 1_000),
            (catalog_compaction, "ROUNDS_KEPT", ROUNDS_KEPT),
            (catalog_minimums, "SNAPSHOT_EVERY_MS", 400),
            (leaving, "ASK_MS", 400),
            (leaving, "RETRY_MS", 50),
            (leaving, "RETRY_MS_MAX", 800),
            (zones, "OTHERS_MS", 600),
            (copies, "RETRY_MS", 100),
            (copies, "RETRY_MS_MAX", 800),
        ):
            stack.enter_context(replaced(module, name, value))
        yield


@dataclass(slots=True)
class _Write:
    """A batch on its way."""

    transaction: int
    node: int
    life: int
    future: Future[object]


class UpkeepLife:
    """A world and its trouble."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = dice = Random(f"upkeep life {seed}")
        self.mood = MOODS[seed % len(MOODS)]
        self.jumps = seed % 4 == 3
        """Whether clocks go wrong by more than the cluster allows."""
        self.crowded = seed % 11 == 8
        """Whether nodes get many more copies than an answer shows."""
        self.operations = 0
        self._batches = 0
        self._writes: list[_Write] = []
        self._ending: list[Transaction] = []
        self._names = 0
        self._runs: dict[bytes, RunRecord] = {}
        self.world = UpkeepWorld(
            seed,
            nodes=3,
            config=GroupConfig(
                tick_ms=20,
                election_ticks=dice.choice([5, 10]),
                rest_ticks=dice.choice([3, 8, 15]),
                request_timeout_ms=800,
                snapshot_entries=dice.choice([5, 30, 1_000]),
            ),
            metastore_config=MetastoreConfig(
                lease_ms=dice.choice([500, 1_200]), request_timeout_ms=1_000
            ),
            settings=ClusterSettings(
                id="",
                schema_sync_delay_ms=20,
                clock_max_skew_ms=SKEW_MS,
                watermark_availability_ms=dice.choice([50, 200, 400]),
                watermark_interval_ms=dice.choice([60, 150]),
            ),
        )
        self.world.tell(f"mood: {self.mood}, jumps: {self.jumps}, crowded: {self.crowded}")

    # -- a life -----------------------------------------------------------------------------------

    def run(self) -> UpkeepStory:
        """Live it."""
        world, loop = self.world, self.world.loop
        self._execute(world[1], log_table("first", partitions=2))
        self._execute(world[2], log_table("second"))
        world.run_until(lambda: all(node.tables.all() for node in world.serving))
        until_us = loop.elapsed_us() + TROUBLE_MS * 1_000
        while loop.elapsed_us() < until_us:
            loop.run_for(self.dice.choice(PAUSES_MS))
            self._end_those_that_can()
            for _ in range(2):
                self._act()
        self._make_peace()
        self._check_peace()
        counts = world.counts + Counter({"cut": world.ledger.cuts})
        return UpkeepStory(
            seed=self.seed,
            virtual_ms=loop.elapsed_us() // 1_000,
            turns=loop.events,
            operations=self.operations,
            counts=counts,
            digest=loop.digest(),
        )

    def _act(self) -> None:
        rows = [self.write] * (12 if self.mood == "busy" else 6)
        acts: list[Callable[[UpkeepNode], None]] = [
            *rows,
            *[self.begin] * 4,
            *[self.end] * (1 if self.mood == "long" else 4),
            *[self.alter] * 5,
            self.create,
            *[self.create_many] * (2 if self.crowded else 0),
            self.drop,
            self.register_index,
            *[self.drop_index] * 3,
            self.begin_run,
            *[self.end_run] * 3,
            self.alter_replicas,
            self.compact,
            self.transfer,
            self.transfer_partition,
            self.be_slow,
            *[self.be_quick] * 2,
            self.set_clock,
            self.snapshot,
            *[self.crash] * (3 if self.mood == "stormy" else 1),
            *[self.cut_off] * (3 if self.mood == "partitioned" else 1),
            *[self.heal] * 5,
            *[self.come_back] * 5,
        ]
        act = self.dice.choice(acts)
        serving = self.world.serving
        if serving:
            self.operations += 1
            act(self.dice.choice(serving))
        else:
            self.come_back()

    # -- what clients do --------------------------------------------------------------------------

    def _execute(self, node: UpkeepNode, command: Command) -> None:
        self.world.tell(f"node {node.number}: {command}")
        node.catalog.execute(command)

    def _table(self, node: UpkeepNode) -> str | None:
        names = sorted(one.name for one in node.catalog.latest.all_tables())
        return self.dice.choice(names) if names else None

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def alter(self, node: UpkeepNode) -> None:
        name = self._table(node)
        if name is not None:
            column = NewColumn(name=self._name("c"), type=parse_type("string"))
            self._execute(node, AddColumns(table=name, columns=(column,)))

    def create(self, node: UpkeepNode) -> None:
        if len(list(node.catalog.latest.all_tables())) < TABLES_MAX:
            partitions = self.dice.choice([1, 1, 2])
            self._execute(node, log_table(self._name("t"), partitions=partitions))

    def create_many(self, node: UpkeepNode) -> None:
        """A table of many partitions, whose copies have published nothing for a while."""
        there = sum(one.partitions for one in node.catalog.latest.all_tables())
        if there < MANY:
            self._execute(node, log_table(self._name("m"), partitions=MANY))

    def drop(self, node: UpkeepNode) -> None:
        name = self._table(node)
        if name is not None and name != "first":
            self._execute(node, DropTable(name=name))

    def register_index(self, node: UpkeepNode) -> None:
        name = self._table(node)
        if name is not None:
            self._execute(node, CreateIndex(name=self._name("i"), table=name, columns=("note",)))

    def drop_index(self, node: UpkeepNode) -> None:
        for index in sorted(node.catalog.latest.all_indexes(), key=lambda one: one.id):
            self._execute(node, DropIndex(name=index.name, if_exists=True))

    def alter_replicas(self, node: UpkeepNode) -> None:
        self._execute(node, AlterZone(name="default", replicas=self.dice.choice([1, 2, 3, 3])))

    def begin_run(self, node: UpkeepNode) -> None:
        """As a run of compaction does: it is planned, and written down."""
        latest = node.catalog.latest
        record = RunRecord(
            run=self._name("r"),
            table=1,
            table_name="first",
            state="running",
            began_at_ms=1,
            catalog=latest.version,
        )
        key = run_key(TableId(1), record.run)
        self._runs[key] = record
        node.metastore.put(key, msgspec.json.encode(record))

    def end_run(self, node: UpkeepNode) -> None:
        for key, record in self._runs.items():
            done = msgspec.structs.replace(record, state="done")
            node.metastore.put(key, msgspec.json.encode(done))

    def begin(self, node: UpkeepNode) -> None:
        one = node.begin()
        if one is not None:
            self.world.count("transaction")
            for _ in range(self.dice.choice([0, 1, 3])):
                self._write(one)

    def write(self, node: UpkeepNode) -> None:
        """A row of a transaction that is active; or of one that is over when the row is there."""
        if node.transactions and self.dice.random() < 0.5:
            one = self.dice.choice(list(node.transactions.values()))
            if one not in self._ending:
                self._write(one)
            return
        short = node.begin()
        if short is not None:
            self._write(short)
            self._ending.append(short)

    def _write(self, one: Transaction) -> None:
        leading = [
            (node, copy)
            for node in self.world.serving
            for copy in node.tables.all()
            if copy.group.ready and self.world.ledger.knows(one, copy.table)
        ]
        if not leading:
            return
        node, copy = self.dice.choice(leading)
        self._batches += 1
        partition = PartitionId(copy.table, copy.number)
        self.world.ledger.begins[self._batches] = partition, one.begin
        message = self._batches.to_bytes(8, "little") + bytes(self.dice.choice([0, 50]))
        future: Future[object] = Future()

        def propose() -> None:
            copy.propose(encode_batch(message, rows=1, schema=1)).then(future.follow)

        try:
            node.loop.run(propose)
        except LowmarkError as error:
            future.reject(error)
        self._writes.append(_Write(one.number, node.number, node.life, future))

    def end(self, node: UpkeepNode) -> None:
        """Transactions end when they know what became of their rows."""
        self._ending.extend(one for one in node.transactions.values() if one not in self._ending)

    def _end_those_that_can(self) -> None:
        world = self.world
        self._writes = [
            one
            for one in self._writes
            if not one.future.done and world[one.node].life == one.life and world[one.node].up
        ]
        busy = {one.transaction for one in self._writes}
        for one in [one for one in self._ending if one.number not in busy]:
            self._ending.remove(one)
            world.end(one)

    # -- what operators do ------------------------------------------------------------------------

    def compact(self, node: UpkeepNode) -> None:
        self.world.tell(f"node {node.number} is asked to cut")
        node.upkeep.catalog.compact(dry_run=self.dice.random() < 0.2)

    def transfer(self, node: UpkeepNode) -> None:
        """Another node coordinates, perhaps in the middle of a round."""
        leader = self.world.leader()
        if leader is not None:
            self.world.tell(f"node {leader.number} gives way to {node.number}")
            leader.metastore.group.transfer(node.number)

    def transfer_partition(self, node: UpkeepNode) -> None:
        led = [copy for copy in node.tables.all() if copy.group.leads]
        if led:
            copy = self.dice.choice(led)
            copy.group.transfer(self.dice.choice(sorted(copy.group.members().voters)))

    def snapshot(self, node: UpkeepNode) -> None:
        here = [copy for copy in node.tables.all() if copy.group.stopped is None]
        if here:
            self.dice.choice(here).group.snapshot()

    # -- trouble ----------------------------------------------------------------------------------

    def be_slow(self, node: UpkeepNode) -> None:
        node.loop.snapshot_us = self.dice.choice([50_000, 500_000, 2_000_000])

    def be_quick(self, node: UpkeepNode) -> None:
        node.loop.snapshot_us = 0

    def set_clock(self, node: UpkeepNode) -> None:
        skew_ms = self.dice.randint(-SKEW_MS // 2, SKEW_MS // 2)
        if self.jumps:
            skew_ms += self.dice.choice([-FAR_MS, 0, FAR_MS])
        node.loop.skew_ms = skew_ms
        self.world.tell(f"node {node.number}: clock {skew_ms}")

    def crash(self, node: UpkeepNode) -> None:
        world = self.world
        if sum(one.up for one in world.nodes.values()) == 1 and self.dice.random() < 0.7:
            return
        killed = self.dice.random() < 0.5
        world.tell(f"node {node.number} {'is killed' if killed else 'loses power'}")
        world.count("crash")
        node.crash(killed=killed)

    def come_back(self, node: UpkeepNode | None = None) -> None:
        del node
        world = self.world
        down = [world[number] for number in world.nodes if not world[number].up]
        if down:
            one = self.dice.choice(down)
            # A wrong clock is put right while its machine is down: a clock that is put back under
            # a process is no matter to it, but the next process knows of nothing.
            one.loop.skew_ms = self.dice.randint(-SKEW_MS // 2, SKEW_MS // 2)
            world.tell(f"node {one.number} comes back")
            one.start()

    def cut_off(self, node: UpkeepNode) -> None:
        world = self.world
        others = [other for other in world.nodes if other != node.number]
        some = others if self.dice.random() < 0.5 else [self.dice.choice(others)]
        world.tell(f"node {node.number} is cut off from {some}")
        world.count("cut off")
        world.network.cut([node.address], [world[other].address for other in some])

    def heal(self, node: UpkeepNode) -> None:
        del node
        self.world.tell("heal")
        self.world.heal()

    # -- peace ------------------------------------------------------------------------------------

    def _make_peace(self) -> None:
        world = self.world
        world.tell("peace")
        world.heal()
        world.network.weather = Weather()
        for number in world.nodes:
            node = world[number]
            if not node.up:
                node.start()
            node.loop.skew_ms = node.loop.snapshot_us = 0
        self._wait("all nodes", lambda: len(world.serving) == len(world.nodes))
        for node in world.serving:
            for one in list(node.transactions.values()):
                world.end(one)
        self._ending.clear()

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        try:
            self.world.run_until(condition, timeout_ms=PEACE_MS)
        except TimeoutError:
            raise Broken(f"in peace, no {what}\n{self._statuses()}") from None

    def _check_peace(self) -> None:
        world = self.world
        for _ in range(2):  # an operator may have to ask again
            self._chores()
        self._wait("short history", self._is_short)
        rounds = world.serving[0].upkeep.catalog.rounds()
        confirm(len(rounds) <= ROUNDS_KEPT, f"{len(rounds)} rounds are kept")
        confirm(len({node.catalog.earliest.activates_at for node in world.serving}) == 1, "times")
        # and copies that start anew need nothing that is gone
        for number in world.nodes:
            world[number].crash(killed=self.dice.random() < 0.5)
        for number in world.nodes:
            world[number].start()
        self._wait("all nodes", lambda: len(world.serving) == len(world.nodes))
        self._wait("all copies", self._has_copies)
        self._wait("short history", self._is_short)

    def _chores(self) -> None:
        """What an operator takes back: runs, indexes that are never built."""
        world = self.world
        self._wait("coordinator", lambda: world.leader() is not None)
        coordinator = world[world.wait_leader().number]
        world.everywhere()
        self.end_run(coordinator)
        self.drop_index(coordinator)
        world.run_for(500)

    def _is_short(self) -> bool:
        serving = self.world.serving
        latest = {node.catalog.latest.version for node in serving}
        earliest = {node.catalog.earliest.version for node in serving}
        return len(serving) == len(self.world.nodes) and len(latest) == 1 and latest == earliest

    def _has_copies(self) -> bool:
        """Whether each copy that was there is there again, and has applied what it had."""
        ledger, world = self.world.ledger, self.world
        for partition, entries in ledger.entries.items():
            for node in world.serving:
                if not ledger.is_member(node.number, partition):
                    continue
                copy = node.tables.here(*partition)
                if copy is None or copy.group.applied < max(entries, default=0):
                    return False
        return True

    def _statuses(self) -> str:
        lines = []
        for node in self.world.serving:
            history = node.catalog.history
            versions = f"{history.earliest.version} to {history.latest.version}"
            lines.append(f"node {node.number}: {versions}, {node.upkeep.catalog.last}")
            lines += [self._status(copy) for copy in node.tables.all()]
        return "\n".join(lines)

    def _status(self, copy: Partition) -> str:
        return f"  published {copy.published}, {copy.group.status()}"


def live(seed: int) -> UpkeepStory:
    """Live one life; a failure says what happened, and how to see it again."""
    lives: list[UpkeepLife] = []
    try:
        with impatient(), watched(lambda: lives[0].world if lives else None):
            lives.append(UpkeepLife(seed))
            return lives[0].run()
    except BaseException as failure:
        if lives:
            failure.add_note("\n".join(["the end of the life:", *lives[0].world.events]))
        failure.add_note(f"upkeep seed {seed}; replay it: make sim SEED={seed}")
        raise
