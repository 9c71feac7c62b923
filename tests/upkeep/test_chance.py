"""Tables that come and go while nodes do: in the end everything is where it should be."""

from __future__ import annotations

import contextlib
from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from lowmark.catalog import Catalog, DropTable
from lowmark.errors import LowmarkError
from lowmark.placement.assignments import (
    ASSIGNMENTS_PREFIX,
    METASTORE,
    STABLE,
    TRIGGER,
    parse_key,
)
from lowmark.table import encode_batch
from table.world import SETTINGS, TableNode, TableWorld, log_table


class Storm:
    """Does things to a world, one after another, as the dice say."""

    def __init__(self, seed: int) -> None:
        self.world = TableWorld(seed=seed, settings=replace(SETTINGS, watermark_interval_ms=700))
        self._dice = Random(f"storm {seed}")
        self._names: list[str] = []
        self._made = 0

    def step(self) -> None:
        what = self._dice.choice(
            [self._create, self._drop, self._crash, self._start, self._append, self._cut]
        )
        with contextlib.suppress(LowmarkError):  # nobody may lead at the moment
            what()
        self.world.run_for(self._dice.choice([0, 3, 20, 100, 600]))

    def _some(self) -> TableNode:
        return self._dice.choice(self.world.up)

    def _create(self) -> None:
        self._made += 1
        self._names.append(name := f"t{self._made}")
        options = {"retention_ms": "200"} if self._dice.random() < 0.5 else {}
        partitions = self._dice.choice([1, 3])
        self._some().catalog.execute(log_table(name, partitions=partitions, options=options))

    def _drop(self) -> None:
        if self._names:
            name = self._names.pop(self._dice.randrange(len(self._names)))
            self._some().catalog.execute(DropTable(name=name, if_exists=True))

    def _crash(self) -> None:
        if len(self.world.up) == 3:
            self._some().crash(killed=self._dice.random() < 0.5)

    def _start(self) -> None:
        for node in self.world.nodes.values():
            if not node.up:
                node.start()

    def _append(self) -> None:
        for partition in self._some().tables.all():
            if partition.group.ready:
                partition.append(encode_batch(bytes(50), rows=2, schema=1))

    def _cut(self) -> None:
        self.world.isolate(self._dice.choice([1, 2, 3]))
        self.world.run_for(self._dice.choice([50, 2_500]))
        self.world.heal()

    def calm(self) -> Catalog:
        """Until all nodes are up, and nothing is left to do."""
        self.world.heal()
        self._start()
        world = self.world
        world.run_until(lambda: len(world.up) == 3 and world.leader() is not None)
        world.run_for(20_000)
        return world[world.wait_leader().number].catalog.latest


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_after_a_storm_every_table_is_at_home_and_nothing_else_is_left(seed: int) -> None:
    # given tables that are made, written to and dropped, and nodes that crash and are cut off
    storm = Storm(seed)
    for _ in range(40):
        storm.step()
    # when all of it is over
    latest, world = storm.calm(), storm.world
    partitions = [(t.id, number) for t in latest.all_tables() for number in range(t.partitions)]
    for node in world.up:
        # then every node knows the same, and is content
        assert node.catalog.ready_version == latest.version
        assert (node.placement.problem, node.upkeep.problem) == ("", "")
        parsed = [parse_key(e.key) for e in node.metastore.range_local(ASSIGNMENTS_PREFIX).entries]
        kinds = Counter(one[0] for one in parsed if one is not None and one[1] != METASTORE.table)
        assert kinds[STABLE] == kinds[TRIGGER] == len(partitions)
        assert kinds.keys() <= {STABLE, TRIGGER}
        routes = {one: node.placement.routes(*one) for one in partitions}
        assert routes == {one: world[1].placement.routes(*one) for one in partitions}
        # and has the copies that it should have, and no others
        own = sorted(one for one in partitions if node.number in routes[one])
        assert node.tables.on_disk() == own
        assert [(one.table, one.number) for one in node.tables.all()] == own
    # and every partition is led by somebody
    for table, number in partitions:
        assert world.leading(table, number).group.ready
