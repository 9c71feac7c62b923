"""A move that does not get on has a reason and an age, whatever stage it stands in; and an alarm
when that lasts for all retries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from lowmark.catalog import TableId
from lowmark.group import ChangeError, Stage
from lowmark.placement import RebalanceConfig
from lowmark.placement import moves as moves_module
from lowmark.placement.assignments import PartitionId
from lowmark.placement.progress import Move
from lowmark.placement.standing import MoveStage, Obstacle
from metastore.world import FAST
from placement.test_moves import replicas, settle, stable
from placement.test_operations import hold_back, keys
from table.world import TableNode, TableWorld, log_table

RETRIES = RebalanceConfig(retry_delay_ms=200, retry_max=10)


def choose(world: TableWorld, *nodes: int, by: int = 1) -> None:
    """Name the nodes of the zone by hand."""
    zone = world[by].catalog.latest.default_zone
    assert zone is not None
    assert world.wait(world[by].placement.zones.choose(zone, nodes))


def placed(world: TableWorld, *nodes: int) -> TableId:
    """A table with five rows, on these nodes."""
    choose(world, *nodes)
    replicas(world, len(nodes))
    table = world.create(1, log_table("events"))
    world.run_until(lambda: stable(world, table) == nodes, timeout_ms=120_000)
    settle(world, table)
    world.append(table, rows=5)
    return table


def said(world: TableWorld, by: int) -> Move | None:
    """What a node says of the only move that it speaks for."""
    found = world[by].placement.progress.here()
    assert len(found) <= 1
    return found[0] if found else None


def alarm(world: TableWorld, by: int) -> Move:
    """What it says when that is an alarm."""
    world.run_until(lambda: bool(world[by].placement.progress.alarms()))
    (move,) = world[by].placement.progress.alarms()
    return move


def until_joint(world: TableWorld, table: TableId) -> None:
    """Until old and new members decide together."""
    group = world.leading(table).group
    world.run_until(lambda: group.stage is Stage.JOINT or group.members().joint)


@pytest.mark.slow
def test_a_move_without_a_majority_of_its_new_members_is_an_alarm() -> None:
    # given a partition whose old and new members decide together
    world = TableWorld(nodes=5)
    table = placed(world, 4)
    replicas(world, 2)
    choose(world, 4, 5)
    until_joint(world, table)
    # when a new one is lost just then
    world[5].crash()
    # then its old node says why it does not get on, and for how long: not at once, but in the end
    world.run_until(lambda: world[4].tables.get(table, 0).group.leaderless_since_ms is not None)
    first = said(world, 4)
    assert first is not None
    assert not first.alarm
    assert world[4].placement.problem == ""
    move = alarm(world, 4)
    assert (move.stage, move.reason) == (MoveStage.NO_LEADER, Obstacle.NO_LEADER)
    assert (move.leader, move.attempts) == (0, 0)
    assert move.failing_ms >= RETRIES.alarm_ms
    assert f"can't be moved: {Obstacle.NO_LEADER} (2 s)" in world[4].placement.problem
    # and pending is kept, and goes on when the node is back
    assert keys(world, table).pending is not None
    world[5].start()
    world.run_until(lambda: stable(world, table) == (4, 5), timeout_ms=120_000)
    world.run_until(lambda: said(world, 4) is None)
    assert world[4].placement.problem == ""
    assert world.append(table).first == 5


@pytest.mark.slow
def test_a_move_that_can_not_be_written_is_an_alarm() -> None:
    # given a partition that is being put in force
    world = TableWorld(nodes=5)
    table = placed(world, 4)
    replicas(world, 2)
    choose(world, 4, 5)
    until_joint(world, table)
    leader = world.leading(table).group.node
    # when the metastore has no majority any more
    for number in (2, 3):
        world[number].crash()
    # then its leader says so, which still takes rows
    move = alarm(world, leader)
    assert (move.stage, move.leader) == (MoveStage.SWITCHING, leader)
    assert move.reason == Obstacle.METASTORE
    assert move.failing_ms >= RETRIES.alarm_ms
    assert world.append(table).first == 5
    # with what came of that, as soon as it knows
    progress = world[leader].placement.progress
    world.run_until(lambda: progress.alarms()[0].reason.startswith(Obstacle.METASTORE + ": "))
    # and when it has one, it is written
    for number in (2, 3):
        world[number].start()
    world.run_until(lambda: stable(world, table) == (4, 5), timeout_ms=120_000)
    world.run_until(lambda: progress.here() == [])


@pytest.mark.slow
def test_a_move_whose_old_nodes_are_all_down_is_an_alarm_of_the_coordinator() -> None:
    # given a partition that is to move away from its only node
    world = TableWorld(nodes=5)
    table = placed(world, 4)
    go_on = hold_back(world, table)
    choose(world, 5)
    world.run_until(lambda: keys(world, table).pending is not None)
    # when that node is down
    world[4].crash()
    coordinator = world.wait_leader().number
    # then no node that has a copy can say so, and the coordinator does
    move = alarm(world, coordinator)
    assert (move.stage, move.reason) == (MoveStage.NO_LEADER, Obstacle.NO_NODE)
    others = [node.number for node in world.up if node.number != coordinator]
    assert not any(world[number].placement.progress.alarms() for number in others)
    # and it is over when that node is back
    go_on()
    world[4].start()
    world.run_until(lambda: stable(world, table) == (5,), timeout_ms=120_000)
    world.run_until(lambda: world[coordinator].placement.problem == "")


@pytest.mark.slow
def test_a_move_that_waits_for_its_turn_says_so_and_is_no_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TableNode, "rebalance", RebalanceConfig(retry_delay_ms=200, moves_max=1))
    # given a node that leads two partitions, of which one copies, and does not get near
    world = TableWorld(nodes=3)
    choose(world, 3)
    table = world.create(1, log_table("events", partitions=2))
    world.run_until(lambda: all(stable(world, table, n) == (3,) for n in (0, 1)))
    go_on = hold_back(world, table)
    choose(world, 2)
    # when it has copied for longer than all retries would take
    world.run_until(lambda: len(world[3].placement.progress.here()) == 2)
    world.run_for(3 * RETRIES.alarm_ms)
    # then the other one says what it waits for, and for how long, and nothing is wrong
    copies, waits = sorted(world[3].placement.progress.here(), key=lambda one: one.stage)
    assert (copies.stage, copies.reason, copies.alarm) == (MoveStage.COPYING, "", False)
    assert (waits.stage, waits.reason, waits.alarm) == (MoveStage.WAITING, Obstacle.TURN, False)
    assert waits.failing_ms >= 2 * RETRIES.alarm_ms
    go_on()
    world.run_until(lambda: all(stable(world, table, n) == (2,) for n in (0, 1)))


@pytest.mark.slow
def test_what_no_node_speaks_for_is_shown_with_the_time_since_it_was_decided_on() -> None:
    world = TableWorld(nodes=5)
    table = placed(world, 4)
    hold_back(world, table)
    choose(world, 5)
    world.run_until(lambda: keys(world, table).pending is not None)
    world[4].crash()
    world.run_for(1_500)
    (move,) = world[1].placement.progress.known()
    assert (move.stage, move.reason) == (MoveStage.NO_LEADER, Obstacle.NO_ANSWER)
    assert 1_500 <= move.failing_ms < 10_000


@pytest.mark.slow
@pytest.mark.parametrize("again", ["another leader", "a later target"])
def test_a_stale_token_is_a_failure_as_others(again: str) -> None:
    # given a group that was changed by a later token: the metastore was reset, and is behind
    world = TableWorld(nodes=4)
    table = placed(world, 2, 3)
    leader = world.leading(table).group
    later = world[1].metastore.state.latest + 200
    leader.change_peers(leader.term, later, [2, 3])
    moves, partition = world[leader.node].placement.moves, PartitionId(table, 0)
    # when the partition is to move
    choose(world, 2, 3, 4)
    replicas(world, 3)
    # then it fails, which is an alarm after all retries; pending is kept, and rows are taken
    move = alarm(world, leader.node)
    assert move.reason == ChangeError.STALE_TOKEN.value
    assert (move.stage, move.attempts >= RETRIES.retry_max) == (MoveStage.FAILED, True)
    failure = moves.failure(partition)
    assert failure is not None
    assert failure.token == keys(world, table).pending_revision
    assert keys(world, table).lock is None
    assert world.append(table).first == 5
    # and another leader, or a target that is later still, gets on
    if again == "another leader":
        world[leader.node].crash()
        world.run_for(1_000)
        world[leader.node].start()
    else:
        bump(world, until=lambda: world[1].metastore.state.latest > later)
        choose(world, 3, 4)
        replicas(world, 2)
    world.run_until(lambda: keys(world, table).pending is None, timeout_ms=120_000)
    assert 4 in stable(world, table)


def bump(world: TableWorld, *, until: Callable[[], bool]) -> None:
    """Write to the metastore until its revision is where it should be."""
    while not until():
        world.wait(world[1].metastore.put(b"any", b"value"))


@pytest.mark.slow
def test_moves_that_go_on_are_looked_at_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that led ten thousand partitions looked at all of them in one turn of its loop."""
    monkeypatch.setattr(moves_module, "LOOKS_PER_TURN", 4)
    monkeypatch.setattr(TableNode, "rebalance", RebalanceConfig(retry_delay_ms=200, moves_max=1))
    # given moves of many partitions that are paused
    world = TableWorld(nodes=3)
    choose(world, 3)
    table = world.create(1, log_table("events", partitions=10))
    world.run_until(lambda: all(stable(world, table, n) == (3,) for n in range(10)))
    operations, progress = world[1].placement.operations, world[3].placement.progress
    world.wait(operations.change(paused=True))
    choose(world, 2)
    world.run_until(lambda: len(progress.here()) == 10)
    # when they go on
    go_on = hold_back(world, table)
    done = operations.change(paused=False)
    begun = [0]
    while begun[-1] < 10:
        world.loop.turn()
        stages = [one for one in progress.here() if one.stage == MoveStage.COPYING or one.reason]
        begun.append(len([one for one in stages if one.reason != Obstacle.NOT_BEGUN]))
    # then each turn begins with a few of them, until all copy or wait for their turn
    assert max(after - before for before, after in pairwise(begun)) == 4
    world.wait(done)
    go_on()
    world.run_until(lambda: all(stable(world, table, n) == (2,) for n in range(10)))


@pytest.mark.slow
def test_a_move_that_has_failed_begins_at_once_when_moves_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited until its next attempt was due, which is long for one that is an alarm."""
    slow = RebalanceConfig(retry_delay_ms=10_000, retry_max=1)
    monkeypatch.setattr(TableNode, "rebalance", slow)
    # given a move that has failed, since its new node is down, and is tried again much later
    world = TableWorld(nodes=5, config=replace(FAST, catch_up_stall_ms=2_000))
    table = placed(world, 4)
    replicas(world, 2)
    world[5].crash()
    choose(world, 4, 5)
    move = alarm(world, 4)
    assert (move.reason, move.node) == (ChangeError.NOT_STARTED.value, 5)
    # when its node is back, and moves are paused and go on
    world[5].start()
    world.run_until(lambda: world[5] in world.up and bool(world[5].tables.of(table)))
    operations = world[1].placement.operations
    world.wait(operations.change(paused=True))
    world.run_until(lambda: world[4].placement.progress.here()[0].stage == MoveStage.PAUSED)
    assert alarms(world, 4) == []
    world.wait(operations.change(paused=False))
    # then it is moved long before that
    world.run_until(lambda: stable(world, table) == (4, 5), timeout_ms=slow.retry_delay_ms)


def alarms(world: TableWorld, by: int) -> list[Move]:
    return world[by].placement.progress.alarms()
