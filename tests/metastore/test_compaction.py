"""The cut: how far it goes, who holds it back, and that it takes nothing away that can be asked."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from lowmark.errors import Unavailable
from lowmark.group import Future
from lowmark.metastore import Do, Metastore, Put, RevisionCompacted, store
from lowmark.metastore.errors import LeaseOver, LeaseTaken, MetastoreUnreachable, NotInCluster
from metastore.world import QUICK, Watcher, World


def fill(world: World, metastore: Metastore, count: int) -> list[int]:
    return [world.wait(metastore.put(b"k", b"%d" % n)).revision for n in range(count)]


def settle(world: World) -> None:
    """Until every node has said that it needs nothing old."""
    world.run_for(QUICK.lease_ms)


def value_at(world: World, metastore: Metastore, revision: int) -> bytes | None:
    entry = world.wait(metastore.get(b"k", at=revision))
    return None if entry is None else entry.value


@pytest.mark.slow
def test_the_value_in_force_at_the_cut_and_everything_after_it_stays() -> None:
    # given a key with a long history, and one that was written once, at the beginning
    world = World()
    here = world[1].metastore
    world.wait(here.put(b"old", b"still there"))
    made = fill(world, here, 10)
    settle(world)
    # when the history is cut
    cut = world.wait(world[3].metastore.compact(made[6]))
    assert (cut.asked, cut.compacted, cut.held_by) == (made[6], made[6], ())
    # then on every node what is at the cut or after it reads as before
    for node in world.nodes.values():
        world.wait(node.metastore.get(b"k"))
        assert node.metastore.standing().compacted == made[6]
        for at in range(6, 10):
            assert value_at(world, node.metastore, made[at]) == b"%d" % at
            old = world.wait(node.metastore.get(b"old", at=made[at]))
            assert old is not None
            assert old.value == b"still there"
        error = world.wait_error(node.metastore.get(b"k", at=made[5]))
        assert isinstance(error, RevisionCompacted)
        assert error.first_left == made[6]


def test_a_cut_of_what_was_cut_or_is_not_made_yet_goes_as_far_as_it_can() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    made = fill(world, here, 5)
    settle(world)
    assert world.wait(here.compact(made[3])).compacted == made[3]
    assert world.wait(here.compact(made[1])).compacted == made[3]
    settle(world)
    assert world.wait(here.compact(made[-1] + 100)).compacted == made[-1]


def test_a_far_cut_is_made_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    # given steps of three revisions
    monkeypatch.setattr(store, "_COMPACTED_PER_STEP", 3)
    world = World(nodes=1)
    here = world[1].metastore
    made = fill(world, here, 10)
    settle(world)
    cuts: list[int] = []

    def reached() -> bool:
        if here.state.compacted not in cuts:
            cuts.append(here.state.compacted)
        return future.done

    future = here.compact(made[-1])
    world.run_until(reached)
    # then no step is longer, and the last one is where it was to go
    assert future.result().compacted == made[-1]
    assert all(b - a <= 3 for a, b in pairwise(cuts))


@pytest.mark.slow
def test_a_reader_holds_the_revision_that_it_reads_and_nothing_before() -> None:
    # given a reader on a follower
    world = World()
    here, leader = world[3].metastore, world[1].metastore
    made = fill(world, leader, 10)
    world.wait(here.get(b"k"))
    let_go = world.wait(here.hold(made[4]))
    settle(world)
    # when somebody compacts
    cut = world.wait(leader.compact(made[-1]))
    # then the cut stops there, and says who holds it back and why
    assert cut.compacted == made[4]
    [holder] = cut.held_by
    assert (holder.name, holder.hold) == ("node.3", made[5])
    assert "readers" in holder.why
    assert value_at(world, here, made[4]) == b"4"
    assert [one.name for one in leader.standing().leases if one.hold <= made[5]] == ["node.3"]
    # and when the reader lets go, it goes on
    let_go()
    let_go()  # twice is once
    settle(world)
    assert world.wait(leader.compact(made[-1])).compacted == made[-1]


@pytest.mark.slow
def test_a_watcher_that_is_behind_holds_what_it_has_not_seen() -> None:
    world = World()
    here, leader = world[2].metastore, world[1].metastore
    watcher = Watcher()
    watcher.waits = Future()
    here.watch(prefix=b"k", on_event=watcher.on_event, on_end=watcher.on_end)
    made = fill(world, leader, 10)
    settle(world)
    cut = world.wait(leader.compact(made[-1]))
    assert cut.compacted == made[0]
    assert [one.name for one in cut.held_by] == ["node.2"]


@pytest.mark.slow
def test_a_node_that_is_gone_holds_no_longer_than_its_lease() -> None:
    # given a node that holds an old revision, and is gone
    world = World()
    leader = world[1].metastore
    made = fill(world, leader, 10)
    settle(world)
    world.wait(world[3].metastore.hold(made[2]))
    world[3].crash()
    assert world.wait(leader.compact(made[-1])).compacted == made[2]
    # when its lease has run out
    world.run_for(2 * QUICK.lease_ms)
    # then nothing holds the cut, and what held it is forgotten
    assert world.wait(leader.compact(made[-1])).compacted == made[-1]
    assert "node.3" not in {lease.name for lease in leader.standing().leases}


@pytest.mark.slow
def test_a_node_that_was_restarted_within_its_lease_goes_on_with_it() -> None:
    # given a node that held an old revision
    world = World()
    leader = world[1].metastore
    made = fill(world, leader, 10)
    world.wait(world[3].metastore.get(b"k"))
    world.wait(world[3].metastore.hold(made[2]))
    # when it comes back at once
    world[3].crash(killed=True)
    world[3].start()
    settle(world)
    # then it has its lease again, and needs nothing of what its readers needed
    [lease] = [one for one in leader.standing().leases if one.name == "node.3"]
    assert lease.hold > made[2]
    assert world.wait(leader.compact(made[-1])).compacted == made[-1]
    assert world.wait_leader().here.topology.version == 3, "it never left the topology"


def test_a_hold_that_comes_too_late_is_refused_also_on_a_node_that_does_not_know_yet() -> None:
    # given a follower that has not heard of the cut
    world = World()
    leader, here = world.wait_leader().metastore, world[3].metastore
    made = fill(world, leader, 10)
    world.wait(here.get(b"k"))
    settle(world)
    world.wait(leader.compact(made[5]))
    world.wait(here.get(b"k"))
    error = world.wait_error(here.hold(made[4]))
    assert isinstance(error, RevisionCompacted)
    assert error.first_left == made[5]
    # when the cut goes on while it asks: the hold and the cut race each other in the log
    ahead = leader.compact(made[8])
    late = here.hold(made[6])
    world.run_until(lambda: late.done and ahead.done)
    # then one of the two gives way to the other
    if late.error is None:
        assert ahead.result().compacted <= made[6]
    else:
        assert isinstance(late.error, RevisionCompacted)
        assert late.error.first_left == ahead.result().compacted
        assert here.needed_from() > made[7], "nothing is held for somebody who was refused"


@pytest.mark.slow
def test_a_hold_waits_for_a_lease_that_the_node_lost_meanwhile() -> None:
    # given a node that was cut off for longer than its lease
    world = World()
    world.run_for(2_000)
    leader = world.wait_leader()
    away = next(node for node in world.nodes.values() if node is not leader)
    made = fill(world, leader.metastore, 5)
    world.wait(away.metastore.get(b"k"))
    world.isolate(away.number)
    world.run_for(3 * QUICK.lease_ms)
    world.heal()
    world.run_until(lambda: away.metastore.leadership.node == leader.number)
    # when it wants to hold something that is still there
    held = away.metastore.hold(made[2])
    world.wait(held)
    # then it has a new lease, and holds it
    settle(world)
    assert world.wait(leader.metastore.compact(made[-1])).compacted == made[2]


@pytest.mark.slow
def test_a_hold_on_a_node_that_is_cut_off_fails_and_leaves_nothing() -> None:
    world = World()
    world.run_for(2_000)
    leader = world.wait_leader()
    away = next(node for node in world.nodes.values() if node is not leader)
    made = fill(world, leader.metastore, 5)
    world.wait(away.metastore.get(b"k"))
    world.isolate(away.number)
    world.run_for(1_000)
    error = world.wait_error(away.metastore.hold(made[1]))
    assert isinstance(error, MetastoreUnreachable | Unavailable)
    assert away.metastore.needed_from() == away.metastore.state.latest + 1


def test_a_hold_before_the_node_is_in_a_cluster_says_so() -> None:
    world = World(nodes=1)
    stranger = world.nodes[2] = world.new_node(2)
    stranger.start(join="nobody:1")
    error = world.wait_error(stranger.metastore.hold(0))
    assert isinstance(error, NotInCluster)
    assert isinstance(world.wait_error(stranger.metastore.put(b"k", b"v")), NotInCluster)
    assert isinstance(world.wait_error(stranger.metastore.get(b"k")), NotInCluster)


@pytest.mark.slow
def test_a_node_whose_watcher_was_cut_off_is_up_all_the_same() -> None:
    # given a node with a busy watcher, whose patience is long, that loses its lease
    world = World(metastore_config=replace(QUICK, watch_patience_ms=1_000_000))
    world.run_for(2_000)
    leader = world.wait_leader()
    away = next(node for node in world.nodes.values() if node is not leader)
    watcher = Watcher()
    watcher.waits = Future()
    away.metastore.watch(prefix=b"k", on_event=watcher.on_event, on_end=watcher.on_end)
    made = fill(world, leader.metastore, 3)
    world.run_until(lambda: len(watcher.events) == 1)
    world.isolate(away.number)
    world.run_for(3 * QUICK.lease_ms)
    made += fill(world, leader.metastore, 3)
    settle(world)
    assert world.wait(leader.metastore.compact(made[-1])).compacted == made[-1]
    assert leader.here.topology.find(away.number) is None
    # when it is connected again
    world.heal()
    # then its watcher is told, and it has a lease and its place in the topology
    world.run_until(lambda: watcher.ended is not None)
    assert isinstance(watcher.ended, RevisionCompacted)
    world.run_until(lambda: leader.here.topology.find(away.number) is not None)
    world.run_for(4 * QUICK.lease_ms)
    assert leader.here.topology.find(away.number) is not None


# -- leases as such -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_lease_has_one_holder_who_alone_renews_it_until_it_is_over() -> None:
    world = World()
    one, two = world[1].metastore, world[2].metastore
    # given a lease that somebody has
    taken = world.wait(one.take_lease("job", holder=11, ttl_ms=500, why="a test"))
    # then nobody else gets it, renews it or releases it
    assert isinstance(world.wait_error(two.take_lease("job", holder=22, ttl_ms=500)), LeaseTaken)
    assert isinstance(world.wait_error(two.renew_lease("job", holder=22)), LeaseOver)
    world.wait(two.release_lease("job", holder=22))
    world.run_for(300)
    renewed = world.wait(one.renew_lease("job", holder=11))
    assert renewed.expires_at > taken.expires_at
    # when it has run out, it can't be renewed, but taken by anybody
    world.run_for(600)
    assert isinstance(world.wait_error(one.renew_lease("job", holder=11)), LeaseOver)
    world.wait(two.take_lease("job", holder=22, ttl_ms=500))
    assert isinstance(world.wait_error(one.take_lease("job", holder=11, ttl_ms=500)), LeaseTaken)
    # and a lease that was given back is free at once
    world.wait(two.release_lease("job", holder=22))
    world.wait(one.take_lease("job", holder=11, ttl_ms=500))


def test_a_lease_that_would_hold_what_is_gone_is_refused_by_name() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    made = fill(world, here, 6)
    settle(world)
    world.wait(here.take_lease("reader", holder=1, ttl_ms=60_000, hold=made[4]))
    cut = world.wait(here.compact(made[-1]))
    assert (cut.compacted, [one.name for one in cut.held_by]) == (made[3], ["reader"])
    for refused in (
        here.take_lease("late", holder=1, ttl_ms=1_000, hold=made[3]),
        here.renew_lease("reader", holder=1, hold=made[2]),
    ):
        error = world.wait_error(refused)
        assert isinstance(error, RevisionCompacted)
        assert error.first_left == made[4]
    # and the one that holds is as it was
    world.wait(here.renew_lease("reader", holder=1, hold=made[4]))


def test_holders_are_named_in_the_order_in_which_they_hold() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    made = fill(world, here, 6)
    world.wait(here.invoke(Do((Put(b"x", b""),))))
    settle(world)
    for name, at in (("b", 3), ("a", 3), ("c", 1), ("none", None)):
        hold = 0 if at is None else made[at]
        world.wait(here.take_lease(name, holder=1, ttl_ms=60_000, hold=hold, why=f"why {name}"))
    cut = world.wait(here.compact(made[4]))
    assert [(one.name, one.why) for one in cut.held_by] == [
        ("c", "why c"),
        ("a", "why a"),
        ("b", "why b"),
    ]
    assert cut.compacted == made[0]
