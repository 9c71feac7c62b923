"""Whether a table may get an index is asked of all its partitions, wherever they are."""

from __future__ import annotations

import pytest

from lowmark.catalog import AlterZone, CreateIndex, Executed, IndexNotBuildable, TableId
from lowmark.catalog.descriptors import IndexStatus
from lowmark.errors import LowmarkError, Unavailable
from lowmark.group import Future
from lowmark.node.indexes import Indexes
from placement.test_moves import settle
from table.world import TableWorld, log_table


class World(TableWorld):
    """Three nodes; each partition is on one of them."""

    def __init__(self) -> None:
        super().__init__(nodes=3)
        self.execute(1, AlterZone(name="default", replicas=1))
        self.run_for(8_000)
        self.indexes = {number: self._indexes(number) for number in self.nodes}

    def _indexes(self, number: int) -> Indexes:
        node = self[number]
        assert node.groups is not None
        return Indexes(node.groups, node.catalog, node.tables, routes=node.placement.routes)

    def table(self) -> TableId:
        """One whose partitions are on all three nodes."""
        table = self.create(1, log_table("events", partitions=6))
        settle(self, table)
        homes = {self[1].placement.routes(table, number) for number in range(6)}
        assert homes == {(1,), (2,), (3,)}
        return table

    def ask(self, number: int, name: str) -> Future[Executed]:
        command = CreateIndex(name=name, table="events", columns=("note",))
        return self.indexes[number].execute([command])


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.slow
def test_every_node_creates_an_index_of_an_empty_table(world: World) -> None:
    table = world.table()
    done = [world.wait(world.ask(number, f"i{number}")) for number in world.nodes]
    assert [one.applied for one in done] == [(True,)] * 3
    found = done[-1].catalog.indexes_of_table(table)
    assert [one.status for one in found] == [IndexStatus.AVAILABLE] * 3


@pytest.mark.slow
def test_a_row_in_any_partition_is_enough_to_refuse_it(world: World) -> None:
    # given rows in one partition, which one node has
    table = world.table()
    world.append(table)
    # then every node refuses the index, by name
    for number in world.nodes:
        assert isinstance(world.wait_error(world.ask(number, "i")), IndexNotBuildable)
    assert not world[1].catalog.latest.indexes_of_table(table)


@pytest.mark.slow
def test_what_can_not_be_known_is_no_reason_to_create_it(world: World) -> None:
    # given a node that has partitions
    table = world.table()
    leader = world.wait_leader().number
    kept = world[1].placement.routes(table, 0)[0]
    gone = next(n for n in world.nodes if n not in {leader, kept})
    # when it is away
    world[gone].crash()
    # then the index waits for it
    error: LowmarkError = world.wait_error(world.ask(kept, "i"))
    assert isinstance(error, Unavailable)
    assert "it is not known whether" in error.message
    assert not world[kept].catalog.latest.indexes_of_table(table)
    # but rows elsewhere are enough to refuse it
    world.append(table)
    assert isinstance(world.wait_error(world.ask(kept, "i")), IndexNotBuildable)
