"""What an operator asks for: drain, remove, pause, cancel, plan; and what becomes of failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lowmark.catalog import AlterZone, CreateZone, DropTable, TableId
from lowmark.errors import Rejected
from lowmark.group import ChangeError
from lowmark.metastore import NodeInfo
from lowmark.placement import Adjust, RebalanceConfig
from lowmark.placement.assignments import Keys, PartitionId
from lowmark.table import encode_batch
from metastore.world import FAST
from placement.test_moves import join, replicas, settle, stable
from table.world import TableNode, TableWorld, log_table


def keys(world: TableWorld, table: TableId, number: int = 0) -> Keys:
    return world.up[0].placement.keys(PartitionId(table, number))


def hold_back(world: TableWorld, table: TableId) -> Callable[[], None]:
    """Have no copy of a table become near: what is behind stays behind. Gives what ends that."""
    undo = []
    for node in world.up:
        for one in node.tables.of(table):
            changes = one.group._leadership.changes
            undo.append((changes, changes.is_near))
            changes.is_near = lambda *_: False  # type: ignore[method-assign]

    def end() -> None:
        for changes, is_near in undo:
            changes.is_near = is_near  # type: ignore[method-assign]

    return end


@pytest.mark.slow
def test_a_node_that_is_drained_has_nothing_left_and_may_be_removed() -> None:
    # given a table on three of four nodes
    world = TableWorld(nodes=4)
    replicas(world, 3)
    table = world.create(1, log_table("events", partitions=8))
    world.append(table, rows=5)
    operations = world[1].placement.operations
    out = 3
    assert operations.left_on(out)
    # when one is drained
    world.wait(operations.drain(out))
    world.run_until(lambda: not world[1].placement.operations.left_on(out), timeout_ms=120_000)
    settle(world, table)
    # then it has no copy, leads nothing, and may go
    assert world[out].tables.all() == []
    assert operations.refusal(out) is None
    world.wait(world[1].here.remove(out))
    world.run_until(lambda: world[out].here.refused is not None)
    world[out].stop()
    del world.nodes[out]
    world.run_until(lambda: not world[1].placement.zones.draining())
    assert world.append(table).first == 5


@pytest.mark.slow
def test_a_drained_node_is_given_no_new_table_until_that_is_over() -> None:
    world = TableWorld(nodes=3)
    operations = world[1].placement.operations
    world.wait(operations.drain(2))
    world.everywhere()
    replicas(world, 3)
    table = world.create(1, log_table("events", partitions=4))
    assert {stable(world, table, n) for n in range(4)} == {(1, 3)}
    world.wait(operations.fill(2))
    world.run_until(
        lambda: all(stable(world, table, n) == (1, 2, 3) for n in range(4)), timeout_ms=120_000
    )
    # and all of them at once can't be drained
    world.wait(operations.drain(1))
    world.wait(operations.drain(2))
    world.everywhere()
    with pytest.raises(Rejected, match="no other node would be left"):
        operations.drain(3)


@pytest.mark.slow
def test_a_node_with_the_only_copy_or_a_majority_s_last_is_not_removed() -> None:
    world = TableWorld(nodes=3)
    replicas(world, 1)
    lone = world.create(1, log_table("lone"))
    (holder,) = stable(world, lone)
    other = next(n for n in (1, 2, 3) if n != holder)
    refused = world.wait_error(world[other].here.remove(holder))
    assert "can't be removed" in refused.message
    assert "the only copy of 1 partition of public.lone" in refused.detail
    assert "lowmark node drain" in refused.hint
    # nor may it leave by itself
    assert "can't be removed" in world.wait_error(world[holder].here.leave()).message
    # and of three, with one down, neither of the others
    replicas(world, 3)
    world.run_until(lambda: stable(world, lone) == (1, 2, 3), timeout_ms=120_000)
    settle(world, lone)
    world[other].crash()
    world.run_until(lambda: world[holder].here.topology.find(other) is None)
    third = next(n for n in (1, 2, 3) if n not in (holder, other))
    refused = world.wait_error(world[holder].here.remove(third))
    assert "would have no majority" in refused.detail
    # but the one that is down may be: the others are a majority
    assert world[holder].placement.operations.refusal(other) is None


@pytest.mark.slow
def test_a_node_with_the_last_copy_of_a_dropped_table_stays_until_no_read_needs_it() -> None:
    # given a table on one node, which was dropped, and a reader as of a time before that
    world = TableWorld(nodes=3)
    replicas(world, 1)
    table = world.create(1, log_table("lone"))
    world.append(table, rows=3)
    (holder,) = stable(world, table)
    other = world[next(n for n in (1, 2, 3) if n != holder)]
    before = world[1].run.clock.now()
    world.execute(1, DropTable(name="lone"))
    world.everywhere()
    held = world.wait(other.watermark.hold(before, "a report"))
    # when the node is drained, then nothing of any table is left on it
    world.wait(other.placement.operations.drain(holder))
    world.everywhere()
    assert other.placement.operations.left_on(holder) == []
    # but it can't be removed: by name, with what to do
    refused = world.wait_error(other.here.remove(holder))
    assert refused.message == f"node n{holder} can't be removed now"
    assert "copies of dropped tables" in refused.detail
    assert "1 partition of public.lone" in refused.detail
    assert "lowmark watermark" in refused.hint
    assert world[holder].tables.get(table, 0).view.end == 3
    # and others can
    third = next(n for n in (1, 2, 3) if n not in (holder, other.number))
    assert other.placement.operations.refusal(third) is None
    # when no reader needs it any more, then it goes
    held()
    world.run_for(5_000)
    world.look()
    world.run_until(lambda: other.placement.operations.refusal(holder) is None)
    world.wait(other.here.remove(holder))


@pytest.mark.slow
def test_a_node_whose_copies_of_a_dropped_table_others_have_may_go() -> None:
    world = TableWorld(nodes=4)
    replicas(world, 3)
    table = world.create(1, log_table("events"))
    first, *others = stable(world, table)
    before = world[1].run.clock.now()
    world.execute(1, DropTable(name="events"))
    world.everywhere()
    world.wait(world[1].watermark.hold(before, "a report"))
    operations = world[others[0]].placement.operations
    # the others are a majority
    assert operations.refusal(first) is None
    # but not without two
    world[first].crash()
    world.run_until(lambda: world[others[0]].here.topology.find(first) is None)
    refused = operations.refusal(others[1])
    assert refused is not None
    assert "1 partition of public.events" in refused.detail


@pytest.mark.slow
def test_paused_moves_stand_still_and_go_on() -> None:
    world = TableWorld(nodes=3)
    replicas(world, 1)
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    operations = world[1].placement.operations
    # given moves that are paused
    world.wait(operations.change(paused=True))
    world.everywhere()
    world.run_for(100)
    replicas(world, 3)
    world.run_for(20_000)
    # then what is decided stands there, and nothing moves
    assert keys(world, table).pending is not None
    assert len(stable(world, table)) == 1
    leader = world.leading(table).group.node
    (move,) = world[leader].placement.progress.here()
    assert move.stage == "paused"
    # and when they go on, it moves
    world.wait(operations.change(paused=False))
    world.run_until(lambda: stable(world, table) == (1, 2, 3), timeout_ms=120_000)
    settle(world, table)


@pytest.mark.slow
def test_a_move_that_is_cancelled_leaves_all_as_it_was() -> None:
    world = TableWorld(nodes=3)
    replicas(world, 1)
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    before = stable(world, table)
    go_on = hold_back(world, table)
    replicas(world, 3)
    world.run_until(lambda: keys(world, table).pending is not None)
    world.run_for(2_000)
    # when a move that copies is cancelled
    done = world.wait(world[2].placement.operations.cancel())
    assert done.cancelled == ((table, 0),)
    assert done.too_late == ()
    go_on()
    # then it stays where it was, and nothing is left of it
    world.run_until(lambda: keys(world, table).pending is None)
    settle(world, table)
    assert stable(world, table) == before
    group = world.leading(table).group
    world.run_until(lambda: group.members().everybody == set(before))
    assert world.append(table).first == 5
    # and the next event counts
    replicas(world, 2)
    world.run_until(lambda: len(stable(world, table)) == 2, timeout_ms=120_000)


@pytest.mark.slow
def test_a_plan_says_what_would_move_by_the_code_that_moves() -> None:
    world = TableWorld(nodes=3)
    replicas(world, 3)
    table = world.create(1, log_table("events", partitions=4))
    world.append(table, rows=1, size=1_000)
    world.run_for(8_000)
    settle(world, table)
    operations = world[1].placement.operations
    # nothing would move by itself
    assert operations.plan().moves == ()
    # a node that joins gets its share
    new = NodeInfo(number=-1, name="new", address="?")
    plan = operations.plan(add=[new])
    assert plan.replicas == 3
    assert all(-1 in one.then for one in plan.moves)
    # what is said comes true
    join(world, 4)
    world.run_until(
        lambda: sum(4 in stable(world, table, n) for n in range(4)) == 3, timeout_ms=120_000
    )
    # two replicas survive no loss, and that is said; with bytes
    settle(world, table)
    plan = world[1].placement.operations.plan(replicas={"default": 2})
    assert any("survive no loss" in text for text in plan.warnings)
    assert plan.replicas == 0
    plan = world[1].placement.operations.plan(remove=[1])
    assert plan.bytes >= 0
    assert all(1 not in one.then for one in plan.moves)
    for bad in ({"replicas": {"nowhere": 3}}, {"remove": [77]}):
        with pytest.raises(Rejected):
            world[1].placement.operations.plan(**bad)


@pytest.mark.slow
def test_a_plan_warns_of_nodes_that_are_down_and_of_filters_that_match_none() -> None:
    # given a zone whose filter matches one node, with a table; and one that matches none
    world = TableWorld(nodes=3)
    replicas(world, 3)
    world.create(1, log_table("events", partitions=4))
    world.execute(1, CreateZone(name="near", replicas=1, node_filter="rack = r9"))
    world.run_for(8_000)
    operations = world[1].placement.operations
    none = "the filter 'rack = r9' of zone near matches no node: new tables have to wait"
    assert operations.plan().warnings == (none,)
    # a node that would match is enough
    new = NodeInfo(number=-1, name="new", address="?", rack="r9")
    assert operations.plan(add=[new]).warnings == ()
    # when a node is down
    world[3].crash()
    world.run_until(lambda: world[1].here.topology.find(3) is None)
    # then the plan says that it counts on it, and what would wait for it
    assert operations.plan().warnings == (
        none,
        "node n3 is down: what it holds is not moved by this plan",
    )
    assert operations.plan(remove=[3]).warnings == (
        "zone default would have 2 of 3 replicas: it has 2 nodes",
        "zone default would have two replicas: they survive no loss of a node; use three",
        none,
    )


@pytest.mark.slow
def test_a_plan_counts_what_would_wait_for_a_node_that_is_down() -> None:
    # given a table of one replica on three nodes, one of which is down
    world = TableWorld(nodes=3)
    replicas(world, 1)
    table = world.create(1, log_table("events", partitions=6))
    world.run_for(8_000)
    settle(world, table)
    world[3].crash()
    world.run_until(lambda: world[1].here.topology.find(3) is None)
    # when three replicas are thought of, then partitions would wait for it
    plan = world[1].placement.operations.plan(replicas={"default": 3})
    waiting = [one for one in plan.moves if 3 in set(one.then) - set(one.now)]
    assert len(waiting) == 4
    assert plan.warnings == (
        "node n3 is down: 4 partitions would move there, and wait until it is up",
    )


@pytest.mark.slow
def test_a_drain_says_which_zones_have_no_other_node() -> None:
    # given a zone whose nodes are named by hand, and one with a filter, both of node 3 alone
    world = TableWorld(nodes=3)
    world[3].rack = "r7"
    world[3].restart()
    world.run_until(lambda: world[1].here.topology.find(3) == world[3].info)
    world.execute(1, CreateZone(name="fast", replicas=1, node_filter="rack = r7"))
    world.execute(1, CreateZone(name="hand", replicas=1))
    operations = world[1].placement.operations
    world.wait(operations.choose("hand", (3,)))
    world.everywhere()
    fast = world.create(1, log_table("a", partitions=2, zone="fast"))
    hand = world.create(1, log_table("b", partitions=1, zone="hand"))
    assert {stable(world, fast), stable(world, hand)} == {(3,)}
    assert operations.stuck(3) == []
    # when it is drained
    world.wait(operations.drain(3))
    world.everywhere()
    # then that is said of both, with what to do
    by_filter, by_hand = operations.stuck(3)
    assert (by_filter.zone, by_filter.partitions) == ("fast", 2)
    assert by_filter.reason == "zone fast has no other node: its filter 'rack = r7' matches none"
    assert "`lowmark zone alter fast --node-filter FILTER`" in by_filter.hint
    assert (by_hand.zone, by_hand.partitions) == ("hand", 1)
    assert by_hand.reason == "zone hand has no other node: its nodes were named by hand"
    assert "`lowmark zone baseline hand auto`" in by_hand.hint
    # and when it was done, partitions go
    world.wait(operations.choose("hand", None))
    world.execute(1, AlterZone(name="fast", node_filter=""))
    world.run_until(lambda: not operations.left_on(3), timeout_ms=120_000)
    assert operations.stuck(3) == []
    # of a zone whose other nodes are all drained, these are named
    world.wait(operations.choose("hand", (1, 3)))
    world.everywhere()
    world.run_until(lambda: stable(world, hand) == (1,), timeout_ms=120_000)
    settle(world, hand)
    world.wait(operations.drain(1))
    world.everywhere()
    [stuck] = operations.stuck(1)
    assert stuck.reason == "all nodes that zone hand may have are drained, such as n3"
    assert "`lowmark node drain n3 --stop`" in stuck.hint


@pytest.mark.slow
def test_failures_have_a_context_are_tried_again_and_become_an_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TableNode, "rebalance", RebalanceConfig(retry_delay_ms=100, retry_max=3))
    world = TableWorld(nodes=3, config=replace(FAST, catch_up_stall_ms=300))
    replicas(world, 1)
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(6_000)
    (holder,) = stable(world, table)
    down = next(n for n in (1, 2, 3) if n != holder and n != world.wait_leader().number)
    # given a new member that is down, and known to be only later
    zone = world[1].catalog.latest.default_zone
    assert zone is not None
    world[down].crash()
    world.wait(world[holder].placement.zones.choose(zone, tuple(sorted({holder, down}))))
    world.execute(holder, AlterZone(name="default", replicas=2))
    moves = world[holder].placement.moves
    partition = PartitionId(table, 0)
    # then it is tried again, says why, and after some attempts it is an alarm
    world.run_until(lambda: moves.failure(partition) is not None)
    failure = moves.failure(partition)
    assert failure is not None
    assert (failure.error, failure.node) == (ChangeError.NOT_STARTED, down)
    world.run_until(lambda: moves.failure(partition).alarm, timeout_ms=120_000)  # type: ignore[union-attr]
    assert f"can't be moved to node n{down}" in world[holder].placement.problem
    (move,) = world[holder].placement.progress.here()
    assert (move.alarm, move.node) == (True, down)
    assert move.attempts >= 3
    # and pending is kept, rows are taken, and slow retries go on
    assert keys(world, table).pending is not None
    assert world.append(table).first == 5
    attempts = failure.attempts
    world.run_for(20_000)
    later = moves.failure(partition)
    assert later is not None
    assert later.attempts > attempts
    # and when it is back, it is moved, and the alarm is over
    world[down].start()
    world.run_until(lambda: len(stable(world, table)) == 2, timeout_ms=120_000)
    assert world[holder].placement.problem == ""


@pytest.mark.slow
def test_a_new_member_whose_disk_is_full_is_named() -> None:
    world = TableWorld(nodes=3, config=replace(FAST, catch_up_stall_ms=600))
    replicas(world, 1)
    table = world.create(1, log_table("events"))
    for _ in range(20):
        world.append(table, rows=1, size=50_000)
    world.run_for(6_000)
    (holder,) = stable(world, table)
    full = next(n for n in (1, 2, 3) if n != holder)
    world[full].disk.capacity_bytes = world[full].disk._used_bytes + 200_000
    zone = world[1].catalog.latest.default_zone
    assert zone is not None
    world.wait(world[holder].placement.zones.choose(zone, (full,)))
    moves = world[holder].placement.moves
    partition = PartitionId(table, 0)
    world.run_until(lambda: moves.failure(partition) is not None, timeout_ms=120_000)
    failure = moves.failure(partition)
    assert failure is not None
    assert (failure.error, failure.node) == (ChangeError.DISK_FULL, full)
    # and when there is room, it is moved
    world[full].disk.capacity_bytes = None
    world.run_until(lambda: stable(world, table) == (full,), timeout_ms=120_000)
    batch = encode_batch(bytes(10), rows=1, schema=1)
    assert world.wait(world.leading(table).append(batch)).first == 20


@pytest.mark.slow
def test_a_node_that_is_drained_hands_over_what_it_leads_though_it_can_not_go() -> None:
    # given three nodes, all of which have the table, and moves that are paused
    world = TableWorld(nodes=3)
    replicas(world, 3)
    table = world.create(1, log_table("events", partitions=6))
    operations = world[1].placement.operations
    world.wait(operations.change(paused=True))
    # when one is drained
    world.wait(operations.drain(2))
    world.everywhere()
    for _ in range(3):
        world.look()
        world.run_for(1_000)
    # then it has its copies still, and leads none of them
    assert len(world[2].tables.of(table)) == 6
    assert not any(one.group.leads for one in world[2].tables.of(table))


@pytest.mark.slow
@pytest.mark.parametrize("adjust", Adjust)
def test_what_was_planned_takes_the_place_of_a_move_that_can_not_succeed(
    adjust: Adjust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A locked move whose new node was lost was tried for ever, and the next target waited."""
    monkeypatch.setattr(TableNode, "rebalance", RebalanceConfig(adjust=adjust, retry_delay_ms=100))
    world = TableWorld(nodes=4, config=replace(FAST, catch_up_stall_ms=300))
    replicas(world, 1)
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(6_000)
    (holder,) = stable(world, table)
    lost, other = [n for n in (1, 2, 3, 4) if n not in (holder, world.wait_leader().number)][:2]
    zone = world[1].catalog.latest.default_zone
    assert zone is not None
    # given a move to a node that is lost, which is locked, and another target behind it
    world[lost].crash()
    del world.nodes[lost]
    asked = world[holder].placement
    world.wait(asked.zones.choose(zone, (lost,)))
    world.run_until(lambda: keys(world, table).pending is not None)
    locked = PartitionId(table, 0).key("pending.lock")
    world.wait(world[holder].metastore.put(locked, b"%d" % world.leading(table).group.term))
    world.wait(asked.zones.choose(zone, (other,)))
    # then it gets there
    world.run_until(lambda: stable(world, table) == (other,), timeout_ms=120_000)
    assert keys(world, table).planned is None
    assert world.append(table).first == 5


@pytest.mark.slow
def test_a_lock_that_is_set_while_moves_are_paused_does_not_stay() -> None:
    world = TableWorld(nodes=3)
    replicas(world, 1)
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(6_000)
    leader = world.leading(table).group.node
    moves = world[leader].placement.moves
    # given a move that is paused while its lock is on its way
    may_finish = moves.may_finish

    def paused_first(*given: object) -> None:
        may_finish(*given)  # type: ignore[arg-type]
        moves.paused = True
        moves.look_at_all()

    moves.may_finish = paused_first  # type: ignore[assignment,method-assign]
    replicas(world, 3)
    world.run_until(lambda: moves.paused)
    world.run_for(3_000)
    # then nothing bars the next target
    assert keys(world, table).lock is None
    assert keys(world, table).pending is not None
    # and it goes on
    moves.may_finish = may_finish  # type: ignore[method-assign]
    moves.paused = False
    moves.look_at_all()
    world.run_until(lambda: stable(world, table) == (1, 2, 3), timeout_ms=120_000)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["drain", "replicas"])
def test_no_move_puts_members_in_force_without_a_majority_that_is_up(what: str) -> None:
    """With one of three nodes down, draining another, or fewer replicas, ended the partition."""
    world = TableWorld(nodes=3, config=replace(FAST, catch_up_stall_ms=500))
    replicas(world, 3)
    table = world.create(1, log_table("events", partitions=4))
    world.append(table, rows=5)
    world.run_for(6_000)
    settle(world, table)
    # given a node that is down
    down = next(n for n in (1, 2, 3) if n != world.wait_leader().number)
    world[down].crash()
    here = world.wait_leader().number
    world.run_until(lambda: world[here].here.topology.find(down) is None)
    # when another one is drained, or fewer replicas are asked for
    other = next(n for n in (1, 2, 3) if n not in (here, down))
    if what == "drain":
        world.wait(world[here].placement.operations.drain(other))
    else:
        replicas(world, 2, by=here)
    world.run_for(20_000)
    # then every partition takes rows, and the ones that can't be moved say why
    batch = encode_batch(bytes(10), rows=1, schema=1)
    for number in range(4):
        world.wait(world.leading(table, number).append(batch))
    found = [move for node in world.up for move in node.placement.progress.here()]
    assert found
    assert {one.reason for one in found} == {ChangeError.NO_MAJORITY.value}
    # and when it is back, all is where it should be
    world[down].start()
    world.run_until(lambda: len(world.up) == 3)
    world.run_until(lambda: all(len(stable(world, table, n)) == 2 for n in range(4)))
    settle(world, table)


@pytest.mark.slow
def test_a_small_partition_is_not_put_on_a_full_disk() -> None:
    """All of it fits into what counts as near: a member that could write none of it voted."""
    world = TableWorld(nodes=3, config=replace(FAST, catch_up_stall_ms=600))
    replicas(world, 1)
    table = world.create(1, log_table("events"))
    for _ in range(5):
        world.append(table, rows=1, size=20_000)
    world.run_for(6_000)
    (holder,) = stable(world, table)
    full = next(n for n in (1, 2, 3) if n not in (holder, world.wait_leader().number))
    world[full].disk.capacity_bytes = world[full].disk._used_bytes + 30_000
    zone = world[1].catalog.latest.default_zone
    assert zone is not None
    world.wait(world[holder].placement.zones.choose(zone, tuple(sorted((holder, full)))))
    replicas(world, 2, by=holder)
    world.run_for(10_000)
    assert world.append(table, size=20_000).first == 5
    world[full].disk.capacity_bytes = None
    world.run_until(lambda: len(stable(world, table)) == 2, timeout_ms=120_000)
    assert world.append(table).first == 6


@pytest.mark.slow
def test_a_drain_that_is_asked_for_again_goes_on_after_a_cancel() -> None:
    world = TableWorld(nodes=4)
    replicas(world, 3)
    table = world.create(1, log_table("events", partitions=4))
    world.append(table, rows=5)
    world.run_for(6_000)
    operations = world[1].placement.operations
    out = next(n for n in (2, 3, 4) if operations.left_on(n))
    go_on = hold_back(world, table)
    world.wait(operations.drain(out))
    world.run_until(lambda: any(keys(world, table, n).moving for n in range(4)))
    world.wait(operations.cancel())
    go_on()
    world.run_for(3_000)
    assert operations.left_on(out)
    world.wait(operations.drain(out))
    world.run_until(lambda: not operations.left_on(out), timeout_ms=120_000)


@pytest.mark.slow
def test_a_removal_that_the_metastore_refuses_leaves_the_node_as_it_was() -> None:
    world = TableWorld(nodes=3)
    down, other = [n for n in (1, 2, 3) if n != world.wait_leader().number]
    world[down].crash()
    here = world.wait_leader().number
    world.run_until(lambda: world[here].here.topology.find(down) is None)
    refused = world.wait_error(world[here].here.remove(other))
    assert "majority" in refused.message
    world.run_until(lambda: not world[here].placement.zones.draining())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_of_two_nodes_that_are_removed_at_once_the_one_that_is_needed_stays(seed: int) -> None:
    # given a partition on three of five nodes, which stays there for now
    world = TableWorld(seed, nodes=5)
    replicas(world, 3)
    table = world.create(1, log_table("events"))
    world.append(table, rows=5)
    world.run_for(6_000)
    settle(world, table)
    world.wait(world[1].placement.operations.change(paused=True))
    world.everywhere()
    coordinator = world.wait_leader().number
    [first, second] = [number for number in stable(world, table) if number != coordinator][:2]
    # when two of them are removed at once, by way of two nodes
    by = [number for number in (1, 2, 3, 4, 5) if number not in (first, second)]
    asked = [world[by[0]].here.remove(first), world[by[1]].here.remove(second)]
    world.run_until(lambda: all(one.done for one in asked))
    # then one is out, and the other one is refused: with it the partition has its majority
    [refused] = [one.error for one in asked if one.error is not None]
    assert refused is not None
    assert "would have no majority" in refused.detail
    assert len(world[by[0]].here.nodes()) == 4
    # and it may have partitions again
    world.run_until(lambda: len(world[by[0]].placement.zones.draining()) == 0)
