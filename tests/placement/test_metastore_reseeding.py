"""A damaged copy of the metastore is made anew by itself, where the others are sound without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowmark.catalog import AlterZone, TableId
from lowmark.errors import MetastoreDamagedHere, QuarantinedHere
from lowmark.log import Damaged
from lowmark.metastore import GROUP
from lowmark.metastore.identity import DUE
from metastore.world import QUICK
from placement.test_metastore_reset import reset_directory, run_until_members, start_again
from placement.test_reseeding import is_sound
from table.world import TableWorld, log_table

pytestmark = pytest.mark.slow


@pytest.fixture
def world() -> TableWorld:
    """Four nodes, three of which vote in the metastore."""
    world = TableWorld(nodes=4)
    world.execute(1, AlterZone(name="default", replicas=3))
    world.run_for(8_000)
    return world


def voters(world: TableWorld) -> set[int]:
    return set(world.wait_leader().metastore.group.members().voters)


def damage(world: TableWorld, number: int) -> None:
    """A node finds that its copy of the metastore is not what was written."""
    groups = world[number].groups
    assert groups is not None
    what = Damaged("a segment", offset=0, what="entry 3 fails its checksum")
    groups.quarantine(GROUP, what)


def with_rows(world: TableWorld) -> TableId:
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(500)
    return table


@pytest.mark.parametrize("who", ["leader", "voter", "learner"])
def test_a_damaged_copy_of_the_metastore_is_made_anew(world: TableWorld, who: str) -> None:
    # given a node whose copy of the metastore turns out to be damaged
    table, before, leader = with_rows(world), voters(world), world.wait_leader().number
    ill = {
        "leader": leader,
        "voter": min(before - {leader}),
        "learner": min(world.nodes.keys() - before),
    }[who]
    damage(world, ill)
    # then it ends by name, and its next start has another one
    world.run_until(lambda: world[ill].here.renewed is not None)
    assert isinstance(world[ill].here.renewed, MetastoreDamagedHere)
    assert world[ill].here._identity.renewing == DUE
    assert start_again(world) == [ill]
    run_until_members(world, before)
    world.run_until(lambda: not world[ill].here._identity.renewing)
    # and it knows of everything, with its copies of partitions as they were
    for number in world.nodes:
        held = world[number].tables_
        if held is not None and held.here(table, 0) is not None:
            world.run_until(lambda number=number: is_sound(world, table, number, 5))  # type: ignore[misc]
    assert world.append(table).first == 5


def test_a_copy_that_others_may_need_stays(world: TableWorld) -> None:
    # given a metastore of which two copies of three are damaged
    with_rows(world)
    ill = sorted(voters(world))[:2]
    for number in ill:
        damage(world, number)
    # then none of them is thrown away, however long that lasts
    world.run_for(60_000)
    for number in ill:
        assert world[number].here.renewed is None
        assert isinstance(world[number].here.metastore.group.stopped, QuarantinedHere)


@pytest.mark.parametrize("after_ms", [0, 5, 20, 60, 300, 1_000])
def test_a_crash_at_any_time_is_made_good_at_the_next_start(
    world: TableWorld, after_ms: int
) -> None:
    # given a node that dies while it gives its damaged copy up, or while it makes another one
    with_rows(world)
    before = voters(world)
    ill = min(before - {world.wait_leader().number})
    damage(world, ill)
    world.run_until(lambda: world[ill].here.renewed is not None)
    start_again(world)
    world.run_for(after_ms)
    # when it starts again after a power cut
    world[ill].crash()
    world[ill].start()
    # then it gets there all the same
    run_until_members(world, before)
    world.run_until(lambda: not world[ill].here._identity.renewing)


def test_a_copy_that_is_damaged_again_and_again_waits_longer_each_time() -> None:
    # given a node whose disk is sick
    world = TableWorld(nodes=3, metastore_config=replace(QUICK, renew_again_ms=3_000))
    with_rows(world)
    ill = min(voters(world) - {world.wait_leader().number})
    took = []
    for _ in range(4):
        before = world.now_ms()
        damage(world, ill)
        world.run_until(lambda: world[ill].here.renewed is not None)
        took.append(world.now_ms() - before)
        start_again(world)
        world.run_until(lambda: not world[ill].here._identity.renewing)
    # then the process does not end again and again at once
    assert took[0] < took[1] < took[2] < took[3]


def test_a_copy_of_a_reset_metastore_is_not_thrown_away_on_the_word_of_those_it_left() -> None:
    # given a metastore that was reset at node 1, by mistake: all others are alive
    world = TableWorld(nodes=4)
    world.execute(1, AlterZone(name="default", replicas=3))
    world.run_for(8_000)
    world.isolate(1)
    world[1].crash(killed=True)
    reset_directory(world[1])
    world[1].start()
    world.run_until(lambda: world[1].here.ready.done and world[1].metastore.coordinates)
    # when its copy is damaged, and the others are there again
    damage(world, 1)
    world.run_until(lambda: world[1].metastore.group.stopped is not None)
    world.heal()
    # then it stays: it is the only one of its lineage
    world.run_for(60_000)
    assert world[1].here.renewed is None
    assert "is damaged" in world[1].here.problem
