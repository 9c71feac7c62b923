"""A damaged copy is thrown away by command and made anew, if the others can do without it."""

from __future__ import annotations

import pytest

from lowmark.catalog import AlterZone, TableId
from lowmark.errors import CopyNeeded, CopySound, LowmarkError, QuarantinedHere
from lowmark.log import Damaged
from lowmark.placement import RebalanceConfig
from lowmark.placement.assignments import PartitionId
from lowmark.placement.rebuilding import Rebuild
from placement.test_moves import stable
from table.world import TableNode, TableWorld, log_table


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> TableWorld:
    """Of nodes that leave a damaged copy to the operator."""
    monkeypatch.setattr(TableNode, "rebalance", RebalanceConfig(retry_delay_ms=200, reseed=False))
    world = TableWorld(nodes=3)
    world.execute(1, AlterZone(name="default", replicas=3))
    world.run_for(8_000)
    return world


def damaged(world: TableWorld, table: TableId, number: int) -> None:
    """A node finds that its copy is not what was written."""
    copy, groups = world[number].tables.get(table, 0), world[number].groups
    assert groups is not None
    damage = Damaged("a segment", offset=0, what="entry 3 fails its checksum")
    groups.quarantine(copy.group.name, damage)
    world.run_until(lambda: isinstance(copy.group.stopped, QuarantinedHere))


def follower(world: TableWorld, table: TableId) -> int:
    leader = world.leading(table).group.node
    return next(number for number in stable(world, table) if number != leader)


def followed(world: TableWorld, table: TableId, at: int, began: Rebuild) -> list[str]:
    """The stages of a rebuild, each once, until the copy votes."""
    stages, partition, found = [began.stage], PartitionId(table, 0), began
    while stages[-1] != "voter":
        found = world.wait(world[at].placement.rebuilding.look(partition, began))
        if found.stage != stages[-1]:
            stages.append(found.stage)
        world.run_for(20)
        assert len(stages) < 10
    assert found.incarnation > began.above
    assert found.rows == world.leading(table).view.end  # it votes when it has them
    return stages


@pytest.mark.slow
@pytest.mark.parametrize("at_itself", [True, False])
def test_a_damaged_copy_comes_back_with_all_rows_and_votes(
    world: TableWorld, at_itself: bool
) -> None:
    # given a partition with a damaged copy, and rows that came after that
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    ill = follower(world, table)
    damaged(world, table, ill)
    world.append(table, rows=3)
    asked = ill if at_itself else next(n for n in stable(world, table) if n != ill)
    rebuilding, partition = world[asked].placement.rebuilding, PartitionId(table, 0)
    # when it is asked what would be done, then nothing is
    plan = world.wait(rebuilding.begin(partition, node=ill, dry_run=True))
    assert (plan.stage, plan.node) == ("planned", ill)
    assert "fails its checksum" in plan.cause
    assert world[ill].tables.get(table, 0).group.stopped is not None
    # and when it is done
    began = world.wait(rebuilding.begin(partition, node=ill))
    assert (began.stage, began.cause, began.above) == ("asking", plan.cause, plan.incarnation)
    stages = followed(world, table, asked, began)
    # then it learns first, votes at last, and has every row
    assert stages[0] == "asking"
    assert stages[-1] == "voter"
    copy = world[ill].tables.get(table, 0)
    world.run_until(lambda: copy.view.end == 8)
    assert copy.group.log.quarantined is None
    # and it counts: with another node away, rows are taken
    world[next(n for n in stable(world, table) if n != ill)].crash()
    assert world.append(table).first == 8


@pytest.mark.slow
@pytest.mark.parametrize("gone", [True, False])
def test_a_crash_in_between_leaves_the_old_copy_or_a_new_one(world: TableWorld, gone: bool) -> None:
    # given a damaged copy that is being thrown away
    table = world.create(1, log_table("events"))
    partition = PartitionId(table, 0)
    world.append(table, rows=5)
    ill = follower(world, table)
    damaged(world, table, ill)
    other = next(n for n in stable(world, table) if n != ill)
    rebuilding = world[other].placement.rebuilding
    began = world.wait(rebuilding.begin(partition, node=ill))
    # when its node dies, before it is gone or after that
    if gone:
        world.run_until(lambda: world[ill].tables.here(table, 0) is not None)
        world.run_for(20)
    world[ill].crash()
    world[ill].start()
    world.run_until(
        lambda: (tables := world[ill].tables_) is not None and tables.here(table, 0) is not None
    )
    # then the old one is as it was, and can be thrown away again; or the new one is made by itself.
    # (A power cut right after the answer may leave either of both.)
    old = world[ill].tables.get(table, 0).group.log.quarantined
    assert old is None or not gone
    if old is not None:
        began = world.wait(rebuilding.begin(partition, node=ill))
    assert followed(world, table, other, began)[-1] == "voter"
    world.run_until(lambda: world[ill].tables.get(table, 0).view.end == 5)


def refused(world: TableWorld, table: TableId, node: int, at: int) -> LowmarkError:
    partition, rebuilding = PartitionId(table, 0), world[at].placement.rebuilding
    planned = world.wait_error(rebuilding.begin(partition, node=node, dry_run=True))
    error = world.wait_error(rebuilding.begin(partition, node=node))
    assert (type(planned), planned.message) == (type(error), error.message)
    return error


@pytest.mark.slow
def test_what_is_sound_or_needed_stays(world: TableWorld) -> None:
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    ill = follower(world, table)
    others = [n for n in stable(world, table) if n != ill]
    # a sound copy is not thrown away
    assert isinstance(refused(world, table, ill, others[0]), CopySound)
    # nor one of a partition whose other nodes have no majority
    damaged(world, table, ill)
    damaged(world, table, others[0])
    for number in (ill, others[0]):
        error = refused(world, table, number, others[1])
        assert isinstance(error, CopyNeeded)
        assert "no other node leads" in error.message
        assert world[number].tables.get(table, 0).view.end == 5
    # nor one that is not there
    error = refused(world, table, 99, others[0])
    assert "has no copy" in error.message
    world[ill].crash()
    world.run_until(lambda: world[others[0]].here.topology.find(ill) is None)
    error = refused(world, table, ill, others[0])
    assert "is down" in error.message


def test_the_only_copy_stays() -> None:
    world = TableWorld(nodes=1)
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    damaged(world, table, 1)
    error = refused(world, table, 1, 1)
    assert isinstance(error, CopyNeeded)
    assert "it is the only one" in error.message
    assert "backup" in error.hint
