"""Phase 4 on request: any node finds the leader, and what it frees is told."""

from __future__ import annotations

import pytest

from lowmark.catalog import AlterZone, TableId
from lowmark.node.messages import RewriteLogAsk, RewrittenRow
from lowmark.node.rewriting import RewriteOf, Rewriting
from lowmark.table import Tick
from placement.test_moves import stable
from table.world import TableWorld, log_table

ROWS, BETWEEN = 10, 40
EVENTS = RewriteLogAsk(table="events")


class World(TableWorld):
    """Four nodes; a partition is on three of them, and its batches stand far from each other."""

    def __init__(self) -> None:
        super().__init__(nodes=4)
        self.execute(1, AlterZone(name="default", replicas=3))
        self.run_for(8_000)
        self.rewriting = {number: self._rewriting(number) for number in self.nodes}
        self.table = self.create(1, log_table("events"))
        lead = self.leading(self.table)
        for _ in range(ROWS):
            self.append(self.table)
            for _ in range(BETWEEN):
                self.wait(lead.ask(Tick()))
            self.roll()
        self.snapshots(self.table)

    def _rewriting(self, number: int) -> Rewriting:
        node = self[number]
        assert node.groups is not None
        assert node.log is not None
        return Rewriting(
            node.run.loop,
            node.groups,
            node.log,
            node.here,
            node.catalog,
            node.tables,
            node.placement,
        )

    def roll(self) -> None:
        """What every node has written is a segment."""
        for node in self.up:
            assert node.log is not None
            node.log.roll()
            self.run_until(lambda log=node.log: log.idle)  # type: ignore[misc]

    def snapshots(self, table: TableId) -> None:
        """Every copy takes a snapshot, and has its entries in segments."""
        goal = self.leading(table).group.applied
        copies = [n.tables.get(table, 0).group for n in self.up if n.tables.here(table, 0)]
        self.roll()
        for one in copies:
            self.run_until(lambda one=one: one.applied >= goal)  # type: ignore[misc]
            one.snapshot()
        self.run_until(lambda: all(one.log.row.snapshot_index >= goal for one in copies))
        self.roll()  # what compaction does of itself is over

    @property
    def lead(self) -> int:
        """The node that leads the partition."""
        return self.leading(self.table).group.node

    def begin(self, number: int, asked: RewriteLogAsk = EVENTS) -> RewriteOf:
        [one] = self.rewriting[number].partitions(asked)
        return one

    def rows(self, one: RewriteOf) -> list[RewrittenRow]:
        found = [self.wait(one.look())]
        while not found[-1].done:
            found.append(self.wait(one.look()))
        return found


@pytest.mark.slow
def test_any_node_finds_the_leader_and_the_old_places_go() -> None:
    # given a node without a copy, and scattered batches
    world = World()
    asked = next(n for n in world.nodes if n not in stable(world, world.table))
    before = world.leading(world.table).view
    assert int(before.places[-1]) - int(before.places[0]) > ROWS * BETWEEN // 2
    # when it is asked what would be done, then the leader says it, and does nothing
    *_, plan = world.rows(world.begin(asked, RewriteLogAsk(table="events", dry_run=True)))
    assert (plan.stage, plan.planned, plan.rewritten) == ("planned", ROWS, 0)
    assert plan.node == world[world.lead].here.node.name
    # and when it is done
    *_, done = world.rows(world.begin(asked))
    # then the batches stand together, their old places are free, and nothing else has changed
    assert (done.stage, done.rewritten, done.planned) == ("done", ROWS, ROWS)
    assert done.bytes_before == plan.bytes_before > done.bytes_freed > 0
    after = world.leading(world.table).view
    assert int(after.places[-1]) - int(after.places[0]) < 2 * ROWS
    assert after.first.tolist() == before.first.tolist()
    assert after.time.tolist() == before.time.tolist()
    # and a second time there is nothing to do
    *_, again = world.rows(world.begin(asked))
    assert (again.stage, again.planned, again.bytes_freed) == ("done", 0, 0)


@pytest.mark.slow
def test_a_rate_slows_it_down_and_it_says_how_far_it_is() -> None:
    # given a rate at which one chunk takes seconds
    world = World()
    slow = RewriteLogAsk(table="events", partition=0, bytes_per_s=1_000)
    one = world.begin(world.lead, slow)
    # when a second request comes meanwhile
    first = world.wait(one.look())
    assert (first.done, first.stage) == (False, "rewriting")
    *_, other = world.rows(world.begin(world.lead))
    # then that one is refused, and this one goes on
    assert other.stage == "failed"
    assert "another rewrite is under way" in other.problem
    rows = world.rows(one)
    assert len(rows) > 2
    assert (rows[-1].stage, rows[-1].rewritten) == ("done", ROWS)


@pytest.mark.slow
def test_a_leader_that_goes_ends_it_with_a_reason_and_asking_again_goes_on() -> None:
    # given a rewrite that has begun
    world = World()
    lead = world.lead
    asked = next(n for n in stable(world, world.table) if n != lead)
    one = world.begin(asked, RewriteLogAsk(table="events", bytes_per_s=1_000))
    assert not world.wait(one.look()).done
    # when its leader dies
    world[lead].crash()
    *_, row = world.rows(one)
    # then it says so
    assert row.stage == "failed"
    assert row.problem
    # and the next leader finds what is left to do
    world.run_until(lambda: world.lead != lead)
    world.snapshots(world.table)
    *_, done = world.rows(world.begin(asked))
    assert done.stage == "done"
    assert world.append(world.table).first == ROWS
