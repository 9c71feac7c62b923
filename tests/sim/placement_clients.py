"""Clients of a cluster whose partitions move: they append through any node, and read back.

Every batch has a content of its own. Half of them go as they are, and are never sent again; the
others go by a producer of their node, which numbers them and sends them again when it must. Reads
are linearizable: one has all that was acknowledged before it was asked.
"""

from __future__ import annotations

from random import Random
from typing import cast

from lowmark.catalog import TableId
from lowmark.errors import LowmarkError
from lowmark.group import Future
from lowmark.placement.assignments import PartitionId
from lowmark.table import Appended, Change, Outgoing, Producing, View, encode_batch
from sim.cluster_ledger import confirm
from sim.placement_ledger import Batch
from sim.placement_world import MovingNode, MovingWorld

__all__ = ["PlacementClients"]


class PlacementClients:
    """All clients of one world."""

    def __init__(self, world: MovingWorld, dice: Random) -> None:
        self.world = world
        self.dice = dice
        self.tables: dict[TableId, int] = {}
        """Those that are there, with their partitions."""
        self.operations = 0
        self.open = True
        self._number = 0
        self._producers: dict[tuple[int, int], Producing] = {}

    def act(self, count: int) -> None:
        """Some clients do something."""
        serving = self.world.serving
        for _ in range(count if serving and self.tables and self.open else 0):
            partition = self._some_partition()
            node = self.dice.choice(serving)
            if self.dice.random() < 0.15:
                self.probe(node, partition)
            else:
                self.append(node, partition)

    def _some_partition(self) -> PartitionId:
        table = self.dice.choice(sorted(self.tables))
        return PartitionId(table, self.dice.randrange(self.tables[table]))

    def append(self, node: MovingNode, partition: PartitionId) -> None:
        """Have rows in a partition, through a node."""
        self._number += 1
        self.operations += 1
        rows, size = self.dice.choice([1, 1, 3]), self.dice.choice([0, 40, 400, 2_500])
        payload = b"%d:" % self._number + bytes(size)

        def answered(future: Future[object]) -> None:
            if future.error is None and isinstance(future.result(), Appended):
                done = cast("Appended", future.result())
                self.world.count("batch acknowledged")
                self.world.ledger.appended(partition, Batch(done.first, rows, payload))
            else:
                self.world.count("batch not acknowledged")

        if self.dice.random() < 0.5:
            node.ask(
                lambda: node.tables.way(*partition).propose(
                    encode_batch(payload, rows=rows, schema=1)
                ),
                answered,
            )
        else:
            batch = Outgoing(payload, rows, 1, Change.UPSERT)
            node.ask(
                lambda: cast(
                    "Future[object]",
                    self._producer(node).send(node.tables.way(*partition), batch),
                ),
                answered,
            )

    def _producer(self, node: MovingNode) -> Producing:
        key = node.number, node.life
        if key not in self._producers:
            name = self.dice.getrandbits(128).to_bytes(16, "little")
            self._producers[key] = Producing(node.run, producer=name, timeout_ms=1_500)
        return self._producers[key]

    def probe(self, node: MovingNode, partition: PartitionId) -> None:
        """Read all of a partition, linearizably, if the node has a copy."""
        copy = node.tables.here(*partition)
        if copy is None or copy.group.stopped is not None:
            return
        self.operations += 1
        ledger, end = self.world.ledger, self.world.ledger.ends.get(partition, 0)

        def answered(future: Future[View]) -> None:
            if future.error is not None or copy.group.stopped is not None:
                return
            view, who = future.result(), f"node {node.number}"
            confirm(view.end >= end, f"{who}: {partition} ends at {view.end}, acknowledged {end}")
            try:
                batches = node.batches(copy, view)
            except LowmarkError as error:
                confirm(False, f"{who}: {partition} can't be read: {error}")
                return
            self.world.count("probe")
            ledger.check_rows(partition, batches, who=who, end=end)

        node.ask(copy.latest, answered)
