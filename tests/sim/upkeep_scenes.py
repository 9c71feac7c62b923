"""Short stories of catalog compaction, judged as lives are: what chance brings about too seldom.

Each is about one thing that a life would have to do in one order, at one pace.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from lowmark.catalog import (
    AddColumns,
    AlterZone,
    CreateIndex,
    DropIndex,
    NewColumn,
    TableId,
    parse_type,
)
from lowmark.group import GroupConfig
from lowmark.ledger import RunRecord, run_key
from lowmark.metastore import ClusterSettings, MetastoreConfig
from lowmark.placement.assignments import PENDING, Assignments, PartitionId
from lowmark.table import Partition, encode_batch
from sim.cluster_ledger import Broken
from sim.upkeep_ledger import Transaction
from sim.upkeep_life import impatient
from sim.upkeep_world import UpkeepNode, UpkeepWorld, watched
from table.world import NEVER_MS, log_table

__all__ = ["SCENES", "play"]

ANSWER_MS = 300
LEASE_MS = 6_000
"""A node that is cut off is in the topology for longer than some rounds take."""
SHORT_MS = 10_000
MANY = 100
"""Partitions of a table that has many: several times as many copies as an answer shows."""


class Stage:
    """Three nodes and a table; rounds are made when the story says so."""

    def __init__(self) -> None:
        self.world: UpkeepWorld | None = None
        self._batches = 0

    def open(self, *, replicas: int = 3, interval_ms: int = NEVER_MS) -> UpkeepWorld:
        """Have the nodes, and the table."""
        world = self.world = UpkeepWorld(
            1,
            nodes=3,
            config=GroupConfig(
                tick_ms=20, election_ticks=5, rest_ticks=5, request_timeout_ms=1_000
            ),
            metastore_config=MetastoreConfig(lease_ms=LEASE_MS, request_timeout_ms=1_000),
            settings=ClusterSettings(
                id="",
                schema_sync_delay_ms=20,
                clock_max_skew_ms=20,
                watermark_availability_ms=50,
                watermark_interval_ms=interval_ms,
            ),
        )
        if replicas != 3:
            world.execute(1, AlterZone(name="default", replicas=replicas))
        self.table: TableId = world.create(1, log_table("t"))
        world.run_until(lambda: len(self.copies()) == replicas)
        self.alter()
        return world

    def copies(self) -> dict[int, Partition]:
        """The copies of the table's only partition, by node."""
        assert self.world is not None
        found = {node.number: node.tables.here(self.table, 0) for node in self.world.serving}
        return {number: copy for number, copy in found.items() if copy is not None}

    def coordinator(self) -> UpkeepNode:
        assert self.world is not None
        return self.world[self.world.wait_leader().number]

    def others(self) -> list[UpkeepNode]:
        """Nodes that do not coordinate."""
        assert self.world is not None
        coordinator = self.coordinator()
        return [node for node in self.world.serving if node is not coordinator]

    def alter(self, times: int = 2) -> None:
        """Make versions, and let the watermark come past them."""
        assert self.world is not None
        for _ in range(times):
            node = self.coordinator()
            name = f"c{node.catalog.latest.version}"
            column = NewColumn(name=name, type=parse_type("string"))
            self.world.execute(node.number, AddColumns(table="t", columns=(column,)))
        self.world.run_for(150)

    def rounds(self, count: int) -> None:
        """Rounds, an election timeout and more apart: groups that rest publish meanwhile."""
        world = self.world
        assert world is not None
        for _ in range(count):
            node = self.coordinator()
            world.wait(node.watermark.advance())
            world.wait(node.upkeep.catalog._request("low watermark", dry_run=False))
            world.run_for(2 * world.config.election_ms)

    def begin(self, node: UpkeepNode) -> Transaction:
        one = node.begin()
        assert one is not None
        return one

    def write(self, one: Transaction, *, everywhere: bool = True) -> int:
        """A row of a transaction; gives its place."""
        world = self.world
        assert world is not None
        world.run_until(lambda: any(copy.group.ready for copy in self.copies().values()))
        leading = next(copy for copy in self.copies().values() if copy.group.ready)
        self._batches += 1
        partition = PartitionId(leading.table, leading.number)
        world.ledger.begins[self._batches] = partition, one.begin
        message = self._batches.to_bytes(8, "little")
        world.wait(leading.append(encode_batch(message, rows=1, schema=1)))
        place = leading.group.applied
        if everywhere:
            world.run_until(lambda: all(c.group.applied >= place for c in self.copies().values()))
        return place

    def lead(self, number: int) -> None:
        """Have a node lead the partition."""
        assert self.world is not None
        for copy in self.copies().values():
            if copy.group.ready and copy.group.node != number:
                copy.group.transfer(number)
        self.world.run_until(lambda: self.copies()[number].group.ready)

    def at_rest(self) -> bool:
        return all(copy.group.resting.resting for copy in self.copies().values())


def a_silent_node_has_a_transaction(stage: Stage) -> None:
    """It has no copy, so nothing but its silence holds the version that the transaction has."""
    world = stage.open(replicas=1)
    silent = next(node for node in stage.others() if node.number not in stage.copies())
    stage.begin(silent)
    stage.alter()
    world.isolate(silent.number)
    stage.rounds(4)
    assert silent.transactions, "it is in the topology all the time"


def a_silent_node_writes_a_row_later(stage: Stage) -> None:
    """What other copies have heard meanwhile says nothing of its transaction."""
    world = stage.open()
    silent = stage.others()[0]
    one = stage.begin(silent)
    stage.alter()
    world.isolate(silent.number)
    stage.rounds(3)
    world.heal()
    assert silent.transactions, "it is in the topology all the time"
    stage.write(one)
    world.end(one)
    world.run_until(stage.at_rest)
    stage.rounds(6)


def a_node_is_gone_for_long(stage: Stage) -> None:
    """Its copy replays a row when it comes back, though it is in no topology meanwhile."""
    world = stage.open()
    gone = stage.others()[0]
    one = stage.begin(gone)
    stage.write(one)
    world.end(one)
    gone.crash()
    world.run_until(lambda: len(stage.coordinator().here.topology.nodes) == 2)
    stage.alter()
    stage.rounds(6)
    gone.start()
    world.run_until(lambda: len(stage.copies()) == 3)


def nodes_have_hundreds_of_copies(stage: Stage) -> None:
    """All but one have published nothing, and need newer versions than that one's log."""
    world = stage.open()
    stage.rounds(4)
    one = stage.begin(stage.coordinator())
    stage.write(one)
    world.end(one)
    stage.alter()
    many = world.create(1, log_table("many", partitions=MANY))
    world.run_until(lambda: all(len(node.tables.of(many)) == MANY for node in world.serving))
    stage.alter()
    stage.rounds(1)


def a_leader_hands_over_unheard(stage: Stage) -> None:
    """A copy rests on a leader that was replaced, while a row is on its way to it."""
    world = stage.open()
    node = stage.coordinator()
    after, left_out = (other.number for other in stage.others())
    stage.lead(node.number)
    world.run_until(stage.at_rest)
    world.network.cut([world[after].address], [world[left_out].address])
    stage.copies()[node.number].group.transfer(after)
    world.run_until(lambda: stage.copies()[after].group.ready)
    one = stage.begin(node)
    stage.write(one, everywhere=False)
    world.end(one)
    stage.alter()
    stage.rounds(8)
    world.heal()
    world.run_until(lambda: len({c.group.applied for c in stage.copies().values()}) == 1)


def a_transaction_begins_between_rounds(stage: Stage) -> None:
    """At a node that does not coordinate, and that had none when it was asked before."""
    world = stage.open()
    stage.rounds(3)
    stage.alter()
    one = stage.begin(stage.others()[0])
    stage.alter()
    stage.rounds(4)
    world.end(one)
    stage.rounds(4)


def an_index_is_registered(stage: Stage) -> None:
    """It is not built for a while, and then dropped."""
    world = stage.open()
    world.execute(1, CreateIndex(name="i", table="t", columns=("note",)))
    stage.alter()
    stage.rounds(6)
    world.execute(1, DropIndex(name="i"))
    stage.rounds(2)


def a_move_takes_long(stage: Stage) -> None:
    """Its target was computed for a version that is old by now."""
    world = stage.open()
    for one in world.serving:
        one.placement.moves.paused = True
    node = stage.coordinator()
    routes = node.placement.routes(stage.table, 0)
    pending = Assignments(routes, node.catalog.latest.version)
    key = PartitionId(stage.table, 0).key(PENDING)
    world.wait(node.metastore.put(key, pending.encode()))
    stage.alter()
    stage.rounds(6)


def a_run_takes_long(stage: Stage) -> None:
    """It can go on with the version that it was planned with."""
    world = stage.open()
    node = stage.coordinator()
    record = RunRecord(
        run="r1",
        table=stage.table,
        table_name="t",
        state="running",
        began_at_ms=1,
        catalog=node.catalog.latest.version,
    )
    world.wait(node.metastore.put(run_key(stage.table, "r1"), msgspec.json.encode(record)))
    stage.alter()
    stage.rounds(6)


def nothing_happens(stage: Stage) -> None:
    """Without trouble and transactions, the history goes by itself, soon."""
    world = stage.open(interval_ms=100)
    one = stage.begin(stage.coordinator())
    stage.write(one)
    world.end(one)
    stage.alter()

    def is_short() -> bool:
        return all(node.catalog.earliest is node.catalog.latest for node in world.serving)

    try:
        world.run_until(is_short, timeout_ms=SHORT_MS)
    except TimeoutError:
        raise Broken("the history does not go by itself") from None


SCENES: dict[str, Callable[[Stage], None]] = {
    "a silent node has a transaction": a_silent_node_has_a_transaction,
    "a silent node writes a row later": a_silent_node_writes_a_row_later,
    "a node is gone for long": a_node_is_gone_for_long,
    "nodes have hundreds of copies": nodes_have_hundreds_of_copies,
    "a leader hands over unheard": a_leader_hands_over_unheard,
    "a transaction begins between rounds": a_transaction_begins_between_rounds,
    "an index is registered": an_index_is_registered,
    "a move takes long": a_move_takes_long,
    "a run takes long": a_run_takes_long,
    "nothing happens": nothing_happens,
}


def play(name: str) -> None:
    """Play a story to its end."""
    stage = Stage()
    with ExitStack() as stack:
        stack.enter_context(impatient(answer_ms=ANSWER_MS))
        stack.enter_context(watched(lambda: stage.world))
        SCENES[name](stage)
