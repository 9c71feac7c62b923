"""What is withdrawn, outdated or taken back while the nodes of a partition change."""

from __future__ import annotations

import pytest

from lowmark.errors import Rejected
from lowmark.placement.assignments import STABLE, Assignments, PartitionId
from placement.test_moves import replicas, settle, stable
from placement.test_operations import hold_back, keys
from placement.test_standing import choose, placed
from table.world import TableWorld


@pytest.mark.slow
def test_a_group_goes_back_by_a_later_token_than_that_of_the_move_that_was_withdrawn() -> None:
    # given a leader that had another node learn the log, and lost its followers
    world = TableWorld(nodes=5)
    table = placed(world, 3, 4)
    go_on = hold_back(world, table)
    group = world.leading(table).group
    leader, term = group.node, group.term
    follower = 7 - leader
    replicas(world, 3)
    choose(world, 3, 4, 5)
    world.run_until(lambda: group.members().learners == {5})
    begun = keys(world, table).pending_revision
    world.network.cut([world[leader].address], [world[n].address for n in (follower, 5)])
    world.run_until(lambda: not group.leads)
    # when the move is withdrawn, and the same leader is elected again
    done = world.wait(world[1].placement.operations.cancel())
    assert done.cancelled == ((table, 0),)
    world.run_until(lambda: world[leader].placement.keys(PartitionId(table, 0)).pending is None)
    world.heal()
    group.campaign()
    world.run_until(lambda: world.leading(table).group.term > term)
    again = world.leading(table).group
    # then it takes that node away: it asks by a token that is later than the one of the move
    world.run_until(lambda: again.members().learners == frozenset(), timeout_ms=30_000)
    assert again.node == leader
    assert again._leadership.changes.token > begun
    # and a target that comes after that is later still
    go_on()
    choose(world, 3, 5)
    replicas(world, 2)
    world.run_until(lambda: stable(world, table) == (3, 5), timeout_ms=120_000)
    settle(world, table)
    assert world.append(table).first == 5


@pytest.mark.slow
def test_a_reset_is_refused_if_the_group_has_a_voter_that_its_keys_do_not_name() -> None:
    # given a partition on three nodes, of which the keys name two: they are of an older copy of the
    # metastore, from which it was reset
    world = TableWorld(nodes=5)
    table = placed(world, 3, 4, 5)
    partition = PartitionId(table, 0)
    world[4].crash()
    world.run_until(lambda: world[3].here.topology.find(4) is None)
    world.run_until(lambda: not world[1].placement.resetting.has_lease(4))
    old = Assignments((3, 4), 1)
    world.wait(world[1].metastore.put(partition.key(STABLE), old.encode()))
    # when one of the two is lost, and an operator has the other one go on alone
    group = world[3].tables.get(table, 0).group
    asked = world[1].placement.resetting.reset(partition, node=3, lost=[4])
    error = world.wait_error(asked)
    # then it is refused: the third one votes, and may be ahead
    assert isinstance(error, Rejected)
    assert "its group has other voters that are not named as lost: n5" in error.message
    assert group.members().voters == {3, 4, 5}
    assert group.status().lineage == 0
    assert world.append(table).first == 5


LATE_MS = 150
"""Less than an election timeout, after which a read is asked for once more."""


def slow_down_way(world: TableWorld, sender: int, to: int, ms: int) -> None:
    """Let each frame from one node to another be this much longer under way.

    Little by little: a member that heard nothing of its leader for so long would look for another.
    """
    network, slow = world.network, (world[sender].address, world[to].address)
    plain, since_us = network._draw_arrival_us, world.loop.elapsed_us()

    def draw(way: tuple[str, str], size: int, *, urgent: bool) -> int:
        at_us = plain(way, size, urgent=urgent)
        late_us = min(ms * 1_000, (world.loop.elapsed_us() - since_us) // 4)
        return at_us + (late_us if way == slow else 0)

    network._draw_arrival_us = draw  # type: ignore[method-assign]
    world.run_for(4 * ms)


@pytest.mark.slow
def test_a_copy_that_was_added_again_is_not_destroyed_by_an_earlier_word() -> None:
    # given a node that hears late of what the metastore says, and that a partition has left
    world = TableWorld(nodes=5)
    table = placed(world, 4, 5)
    slow_down_way(world, world.wait_leader().number, 5, LATE_MS)
    choose(world, 4)
    world.run_until(lambda: bool(world[5].placement.leaving.left))
    copy = world[5].tables.get(table, 0)
    before = copy.group.incarnation
    # when its leader has said that its copy may go, what the metastore says is under way,
    world.run_for(20)
    assert world[5].tables.here(table, 0) is copy
    # and the node is added again before that is there
    choose(world, 4, 5)
    world.run_until(lambda: copy.group.incarnation > before, timeout_ms=LATE_MS - 40)
    assert world[5].placement.keys(PartitionId(table, 0)).nodes == {4}
    # then its copy stays
    world.run_until(lambda: stable(world, table) == (4, 5), timeout_ms=120_000)
    world.run_for(10_000)
    assert world[5].tables.here(table, 0) is copy
    settle(world, table)
    assert world.append(table).first == 5
