"""What lives of moving partitions have found (`sim/test_placement_lives`), each reduced."""

from __future__ import annotations

import pytest

from lowmark.catalog import TableId
from lowmark.errors import Conflict
from lowmark.group import Future, Group, Stage
from lowmark.placement import Adjust, RebalanceConfig
from lowmark.placement.assignments import LOCK, PENDING, Assignments, Keys, PartitionId
from lowmark.placement.moves import _never_in_force
from lowmark.placement.standing import MoveStage
from lowmark.raft import Members
from lowmark.runtime.sim import Weather
from lowmark.table import Appended, Change, Outgoing, Producing
from lowmark.table.producing import WINDOW
from placement.test_moves import replicas, settle, stable
from placement.test_operations import hold_back, keys
from placement.test_standing import choose, placed, until_joint
from table.world import TableNode, TableWorld, log_table

NEVER_MS = 600_000
"""What begins by itself does not wait for the retry task."""


def nodes(*numbers: int) -> Assignments:
    return Assignments(numbers, 1)


def voters(*numbers: int) -> Members:
    return Members(incoming=frozenset(numbers))


def in_force(group: Group, *numbers: int) -> bool:
    """Whether these are the members of a group, and no others."""
    members = group.members()
    return members.everybody == members.incoming == set(numbers)


def lead(world: TableWorld, table: TableId, number: int, *, by: int) -> None:
    """Have a node lead a partition."""
    world.leading(table, number)

    def leads() -> bool:
        group = world.leading(table, number).group
        if group.node != by:
            group.transfer(by)
        return group.node == by and group.ready

    while not leads():
        world.run_for(100)


@pytest.mark.slow
def test_a_producer_keeps_its_numbers_when_its_partition_gets_another_way() -> None:
    """Two lanes began the same epoch: one batch got the answer of the other, and was not stored."""
    # given a producer at a node without a copy, whose batches are stored, and no answer arrives
    world = TableWorld(nodes=5)
    table = placed(world, 3, 4)
    lead(world, table, 0, by=4)
    producing = Producing(world[5].run, producer=bytes(15) + b"p", timeout_ms=20_000)

    def send(count: int) -> list[Future[Appended]]:
        way = world[5].tables.way(table, 0)
        batch = Outgoing(b"rows", 1, 1, Change.UPSERT)
        return [producing.send(way, batch) for _ in range(count)]

    world.network.cut_one_way(world[4].address, world[5].address)
    sent = send(WINDOW + 1)  # one has to wait
    world.run_until(lambda: world.leading(table).view.end == 5 + WINDOW)
    # when the partition moves there, and the next one goes another way
    lead(world, table, 0, by=3)
    choose(world, 3, 5)
    world.run_until(lambda: world[5].placement.routes(table, 0) == (3, 5))
    assert not any(one.done for one in sent)
    sent += send(1)
    # then each is stored once, and has an answer of its own
    answers = [world.wait(one).first for one in sent]
    assert sorted(answers) == list(range(5, 5 + WINDOW + 2))
    assert world.leading(table).view.end == 5 + WINDOW + 2


def test_what_is_in_force_is_not_cancelled_before_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With adjust=cancel a new leader cancelled its own last step, and nothing was written."""
    monkeypatch.setattr(
        TableNode, "rebalance", RebalanceConfig(adjust=Adjust.CANCEL, retry_delay_ms=200)
    )
    # given members that are in force, which could not be written, and another target behind them
    world = TableWorld(nodes=5)
    table = placed(world, 4)
    partition = PartitionId(table, 0)
    replicas(world, 2)
    choose(world, 4, 5)
    until_joint(world, table)
    group = world[4].tables.get(table, 0).group
    world.isolate(4, 5)
    world.run_until(lambda: in_force(group, 4, 5))
    choose(world, 3)
    world.run_until(lambda: keys(world, table).planned is not None)
    assert stable(world, table) == (4,)
    # when another leader finds them so, and hears of its keys while it sees to that
    group.transfer(5)
    follows = world[5].tables.get(table, 0).group
    world.run_until(lambda: follows.ready)
    world.heal()
    world.run_until(lambda: world[5].placement.keys(partition).planned is not None)
    world.run_until(lambda: follows.stage is Stage.CATCHING_UP)
    world[5].placement.moves.look(partition)
    # then it says that they are stable, and goes on with what is planned
    world.run_until(lambda: stable(world, table) != (4,), timeout_ms=120_000)
    assert stable(world, table) == (4, 5)
    world.run_until(lambda: stable(world, table) == (3,), timeout_ms=120_000)
    settle(world, table)
    assert world.append(table).first == 5


def test_a_lock_stays_on_what_is_in_force() -> None:
    """It was opened: another target came, and no key named the members that the group had."""
    locked = Keys(stable=nodes(1, 2, 3), pending=nodes(2, 3), lock=4, revisions=(1, 2, 0, 0, 3))
    assert _never_in_force(locked, voters(1, 2, 3), 5)
    assert not _never_in_force(locked, voters(2, 3), 5)
    joint = Members(incoming=frozenset({2, 3}), outgoing=frozenset({1, 2, 3}))
    assert not _never_in_force(locked, joint, 5)
    # and nobody takes the lock of a later leader, or its own
    assert not _never_in_force(locked, voters(1, 2, 3), 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4, 10, 12])  # in these, the answer is overtaken
def test_what_is_heard_before_an_answer_is_looked_at_after_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planned target became pending, and was not begun: the watch was faster."""
    monkeypatch.setattr(TableNode, "rebalance", RebalanceConfig(retry_delay_ms=NEVER_MS))
    # given a move that is being put in force, with another target behind it
    world = TableWorld(seed, nodes=5)
    table = placed(world, 4)
    replicas(world, 2)
    choose(world, 4, 5)
    until_joint(world, table)
    world.network.weather = Weather(overtake=0.5)
    choose(world, 3, 4)
    # when its leader has it written, and hears what comes next before it has the answer
    # then it begins with that at once
    world.run_until(lambda: stable(world, table) == (3, 4), timeout_ms=60_000)
    settle(world, table)


@pytest.mark.slow
def test_one_that_waits_in_vain_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first that waited was looked at, and it had lost its leadership."""
    monkeypatch.setattr(
        TableNode, "rebalance", RebalanceConfig(moves_max=1, retry_delay_ms=NEVER_MS)
    )
    # given two moves that wait for a third one
    world = TableWorld(nodes=5)
    choose(world, 3, 4)
    replicas(world, 2)
    third, first, second = (world.create(1, log_table(name)) for name in ("a", "b", "c"))
    for table in (third, first, second):
        world.run_until(lambda table=table: stable(world, table) == (3, 4))  # type: ignore[misc]
        lead(world, table, 0, by=3)
    go_on, _ = hold_back(world, third), hold_back(world, first)
    progress = world[3].placement.progress
    replicas(world, 3)
    choose(world, 3, 4, 5)
    stages = [MoveStage.COPYING, MoveStage.WAITING, MoveStage.WAITING]
    world.run_until(lambda: [one.stage for one in progress.here()] == stages)
    # when the third one is over, and another node leads the first one
    lead(world, first, 0, by=4)
    go_on()
    # then the second one begins
    world.run_until(lambda: stable(world, second) == (3, 4, 5), timeout_ms=60_000)


@pytest.mark.slow
def test_a_move_that_copies_needs_no_turn_for_its_next_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Moves with outdated targets waited for each other."""
    monkeypatch.setattr(
        TableNode, "rebalance", RebalanceConfig(moves_max=1, retry_delay_ms=NEVER_MS)
    )
    # given as many moves that copy as may
    world = TableWorld(nodes=5)
    table = placed(world, 4)
    go_on = hold_back(world, table)
    group = world.leading(table).group
    choose(world, 5)
    world.run_until(lambda: group.members().learners == {5})
    # when one has another target, then it copies to that
    choose(world, 3)
    world.run_until(lambda: group.members().learners == {3}, timeout_ms=60_000)
    go_on()
    world.run_until(lambda: stable(world, table) == (3,), timeout_ms=60_000)


@pytest.mark.slow
def test_learners_of_an_earlier_leader_are_taken_away() -> None:
    """A withdrawn move left one behind: its copy was a member for good, and was never destroyed."""
    # given a leader that had another node learn the log
    world = TableWorld(nodes=5)
    table = placed(world, 2, 3, 4)
    hold_back(world, table)
    group = world.leading(table).group
    replicas(world, 4)
    choose(world, 2, 3, 4, 5)
    world.run_until(lambda: group.members().learners == {5})
    # when that leader is lost, and the move is withdrawn before another one is elected
    world[group.node].crash()
    some = world.up[0]
    assert world.wait(some.placement.operations.cancel()).cancelled == ((table, 0),)
    assert not any(
        node.tables.get(table, 0).group.ready for node in world.up if node.number in (2, 3, 4)
    )
    # then the next one puts in force what stable says
    world.run_until(lambda: in_force(world.leading(table).group, 2, 3, 4))
    world.run_until(lambda: world[5].tables.here(table, 0) is None)
    assert stable(world, table) == (2, 3, 4)


def test_a_node_that_the_new_members_need_can_not_leave() -> None:
    """Stable had a majority without it; the group had moved on, and had none."""
    # given a partition that is being put in force on two of its three nodes
    world = TableWorld()
    table = placed(world, 1, 2, 3)
    operations, partition = world[1].placement.operations, PartitionId(table, 0)
    world.wait(operations.change(paused=True))
    world.everywhere()
    for kind, value in ((LOCK, b"1"), (PENDING, nodes(2, 3).encode())):
        world.wait(world[1].metastore.put(partition.key(kind), value))
    world.run_until(lambda: keys(world, table).pending == nodes(2, 3))
    # then each of the two is needed, and the third one is not
    assert operations.refusal(1) is None
    assert operations.refusal(2) is not None
    assert operations.refusal(3) is not None


def test_a_change_that_never_goes_through_is_an_error() -> None:
    """After ten attempts it was reported as done; and moves were paused by a tower of futures."""
    world = TableWorld(nodes=1)
    operations = world[1].placement.operations
    lost = operations._again(lambda: Future.of(False))
    assert isinstance(world.wait_error(lost), Conflict)
