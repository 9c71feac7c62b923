from __future__ import annotations

import pytest
from msgspec.structs import replace

from lowmark.catalog import AlterZone, TableId
from table.world import SETTINGS, TableWorld, log_table


@pytest.mark.slow
def test_the_coordinator_moves_the_watermark_by_itself_and_nobody_else_does() -> None:
    # given a cluster that looks after itself every second
    world = TableWorld(settings=replace(SETTINGS, watermark_interval_ms=1_000))
    # when some time has passed
    world.run_for(10_000)
    # then the watermark is not further behind than it need be
    leader = world.wait_leader().number
    for node in world.up:
        behind_ms = world.now_ms() - (node.watermark.current >> 16)
        assert 1_020 <= behind_ms <= 1_020 + 1_000 + 100
        last = node.upkeep.last
        assert last is not None
        assert (last.advanced is not None) == (node.number == leader)
        assert node.upkeep.problem == ""
    # when the coordinator dies
    before = world[leader].watermark.current
    world[leader].crash()
    # then another one goes on
    other = world.wait_leader(other_than=leader).number
    world.run_until(lambda: world[other].watermark.current > before)


def test_a_look_that_is_asked_for_during_another_one_comes_after_it() -> None:
    # given a look that is under way
    world = TableWorld(nodes=1)
    world.run_for(2_000)
    first = world[1].upkeep.tick()
    # when two more are asked for
    second, third = world[1].upkeep.tick(), world[1].upkeep.tick()
    moved = [world.wait(one).advanced for one in (first, second, third)]
    # then each of them looked
    assert all(one is not None for one in moved)
    assert [one.before for one in moved[1:] if one] == [one.after for one in moved[:-1] if one]


@pytest.mark.slow
def test_what_fails_is_told_and_holds_up_nothing_else() -> None:
    # given a coordinator that loses its majority, with a table whose rows are too old
    world = TableWorld()
    world.execute(1, AlterZone(name="default", replicas=1))
    number = world.wait_leader().number
    node = world[number]
    table = table_at(world, number)
    world.append(table)
    world.run_for(1_000)
    world.isolate(number)
    # when it looks, and can't move the watermark
    look = world.wait(node.upkeep.tick())
    # then it says so, and what is only its own is done
    assert look.advanced is None
    assert look.errors
    assert node.upkeep.problem
    assert [one.rows for one in look.retained] == [1]
    # and it goes on when it can
    world.heal()
    world.run_for(1_000)
    world.look()
    assert node.upkeep.problem == ""


def table_at(world: TableWorld, number: int) -> TableId:
    """A table with its only copy at a node."""
    while True:
        name = f"t{len(world[number].catalog.latest.tables)}"
        table = world.create(number, log_table(name, options={"retention_ms": "10"}))
        if world[number].placement.routes(table, 0) == (number,):
            return table


def test_a_closed_node_looks_no_more() -> None:
    # given a node that looks often
    world = TableWorld(nodes=1, settings=replace(SETTINGS, watermark_interval_ms=10))
    world.run_for(1_000)
    assert world[1].upkeep.last is not None
    # when it is closed
    world[1].upkeep.close()
    world.run_for(100)
    at = world[1].watermark.current
    world.run_for(1_000)
    # then it is left as it was
    assert world[1].watermark.current == at
