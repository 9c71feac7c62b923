"""What nodes know of each other's wall clocks, and which of them count."""

from __future__ import annotations

import pytest

from group.cluster import Cluster
from group.kv import put
from lowmark.group import wire
from lowmark.group.clocks import SERVICE
from lowmark.group.wire import Answer
from lowmark.runtime import COUNTER_BITS, HybridTime, millis_of

HOUR_MS = 3_600_000
SKEW_MS = 500


def asking(nodes: int = 3) -> Cluster:
    """Nodes that have heard of each other's clocks."""
    cluster = Cluster(nodes=nodes)
    cluster.wait_leader()
    for member in cluster.members.values():
        member.here.clocks.start()
    cluster.run_for(500)
    return cluster


def off_by(cluster: Cluster, number: int) -> int:
    """How far the times that a node gives are off from the world's."""
    return millis_of(cluster[number].here.clock.now()) - cluster.loop.wall_ms()


@pytest.mark.parametrize("jump_ms", [-900_000, -5_000, 5_000, HOUR_MS])
def test_a_clock_that_jumps_alone_moves_no_time_and_is_named(jump_ms: int) -> None:
    # given three nodes, of which one gets a wrong clock
    cluster = asking()
    cluster[2].clock.skew_ms = jump_ms
    # then its very next time is as near to the others' as if it were right
    assert abs(off_by(cluster, 2)) <= SKEW_MS // 2 + 5
    cluster.run_for(3_000)
    for number in (1, 2, 3):
        assert abs(off_by(cluster, number)) <= SKEW_MS // 2 + 5
    # and each node knows which one it is, and by how much it is off
    for member in cluster.members.values():
        (off,) = member.here.clocks.off()
        assert (off.node, off.of_most) == (2, True)
        assert off.ahead_ms == pytest.approx(jump_ms, abs=20)
    # until it is right again
    cluster[2].clock.skew_ms = 0
    cluster.run_for(3_000)
    assert not any(member.here.clocks.off() for member in cluster.members.values())


def test_clocks_that_jump_together_take_the_third_along() -> None:
    cluster = asking()
    for number in (1, 3):
        cluster[number].clock.skew_ms = HOUR_MS
    cluster.run_for(3_000)
    for number in (1, 2, 3):
        assert HOUR_MS - SKEW_MS <= off_by(cluster, number) <= HOUR_MS + 5
    (off,) = cluster[1].here.clocks.off()
    assert off.node == 2
    assert off.ahead_ms == pytest.approx(-HOUR_MS, abs=20)


def test_of_two_clocks_none_is_held_and_both_nodes_say_that_they_differ() -> None:
    cluster = asking(2)
    cluster[2].clock.skew_ms = HOUR_MS
    cluster.run_for(3_000)
    # each goes its way
    assert abs(off_by(cluster, 1)) <= 5
    assert off_by(cluster, 2) == pytest.approx(HOUR_MS, abs=5)
    # and the one that is behind follows the other, however far
    ahead = cluster[2].here.clock.now()
    assert cluster[1].here.clock.follow(ahead)
    assert cluster[1].here.clock.now() > ahead
    for number, other, ahead_ms in ((1, 2, HOUR_MS), (2, 1, -HOUR_MS)):
        (off,) = cluster[number].here.clocks.off()
        assert (off.node, off.of_most) == (other, False)
        assert off.ahead_ms == pytest.approx(ahead_ms, abs=20)


def test_a_node_that_has_heard_of_no_other_goes_by_its_own_clock() -> None:
    cluster = asking()
    cluster.isolate(2)
    member = cluster[2]
    member.crash()
    member.clock.skew_ms = HOUR_MS
    member.start()
    member.here.clocks.start()
    cluster.run_for(2_000)
    assert off_by(cluster, 2) == pytest.approx(HOUR_MS, abs=5)
    assert member.here.clocks.off() == ()
    # when it hears of them, it goes by theirs
    cluster.heal()
    cluster.run_for(3_000)
    assert member.here.clock.wall_ms() - cluster.loop.wall_ms() <= SKEW_MS // 2 + 5
    # and what it gave meanwhile, which no log has, is taken back
    assert off_by(cluster, 2) <= SKEW_MS // 2 + 5
    assert member.here.clocks.times_ahead_ms == 0


def test_what_two_nodes_gave_by_a_wrong_clock_is_taken_back_when_it_is_put_right() -> None:
    # given two nodes of which one had a wrong clock, which both went by
    cluster = asking(2)
    cluster[2].clock.skew_ms = HOUR_MS
    cluster.run_for(3_000)
    assert cluster[1].here.clock.follow(cluster[2].here.clock.now())
    # when the clock is put right
    cluster[2].clock.skew_ms = 0
    cluster.run_for(3_000)
    # then each gives times of the present again, and follows the other
    for number in (1, 2):
        assert abs(off_by(cluster, number)) <= 5
    assert cluster[1].here.clock.follow(cluster[2].here.clock.now())


@pytest.mark.slow
def test_a_silent_node_s_last_word_counts_for_ten_minutes() -> None:
    # given a clock that goes wrong while one of three nodes is down
    cluster = asking()
    cluster[3].crash()
    cluster[2].clock.skew_ms = HOUR_MS
    cluster.run_for(590_000)
    # then the two that differ are judged by what the third had said
    assert abs(off_by(cluster, 2)) <= SKEW_MS // 2 + 5
    cluster.run_for(15_000)
    assert off_by(cluster, 2) == pytest.approx(HOUR_MS, abs=5)


def test_what_is_no_answer_does_not_count() -> None:
    # given nodes that get no answer
    cluster = Cluster()
    cluster.wait_leader()
    cluster.network.loses = lambda _one, _two, item: isinstance(item, Answer)
    for member in cluster.members.values():
        member.here.clocks.start()
    cluster.run_for(1_000)
    # then every clock is believed
    cluster[2].clock.skew_ms = HOUR_MS
    assert off_by(cluster, 2) == pytest.approx(HOUR_MS, abs=5)
    # and an answer of another length, as of another release, is no clock
    cluster[1].here.calls.serve(SERVICE, lambda _a, _s, _q, reply: reply(b"?"))
    cluster[3].here.calls.serve(SERVICE, lambda _a, _s, _q, reply: reply(b"?"))
    cluster.network.loses = None
    cluster.run_for(3_000)
    assert off_by(cluster, 2) >= HOUR_MS - 5


def test_what_a_log_has_is_followed_by_all_nodes_also_those_without_a_copy() -> None:
    # given a group on one node, whose log has times of an hour ahead
    cluster = asking()
    group = cluster[1].create("only", (1,))
    cluster.run_until(lambda: group.ready)
    cluster[1].here.clock.catch_up(HybridTime(cluster.loop.wall_ms() + HOUR_MS << COUNTER_BITS))
    cluster.wait(group.propose(put("a", b"1")))
    cluster.run_for(2_000)
    # then every node's times are behind it, and the present is where it was
    for number in (1, 2, 3):
        clock = cluster[number].here.clock
        assert clock.logged >= group._applier.last_time
        assert clock.now() > group._applier.last_time
        assert cluster[number].here.clocks.times_ahead_ms > HOUR_MS - 10_000
        assert abs(clock.wall_ms() - cluster.loop.wall_ms()) <= 5


def test_a_node_at_rest_asks_no_more_than_once_a_second() -> None:
    cluster = asking()
    cluster.run_for(2_000)
    sent = cluster.network.watch()
    cluster.run_for(10_000)
    asked = [item for frame in sent for _, item in frame.items if isinstance(item, wire.Ask)]
    assert 0 < len(asked) <= 6 * 11
