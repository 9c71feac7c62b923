"""Groups that have nothing to do rest, and wake in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from group.cluster import FAST, Cluster, Member
from group.kv import Row, put
from lowmark.group.group import Group

NAMES = [f"g{i}" for i in range(5)]


def many_groups(seed: int = 1) -> Cluster:
    cluster = Cluster(seed, group="")
    for name in NAMES:
        for number in (1, 2, 3):
            cluster[number].create(name, (1, 2, 3))
    for name in NAMES:
        cluster.propose(put("a", b"1"), name=name)
    return cluster


def copies(cluster: Cluster) -> list[Group]:
    return [group for m in cluster.members.values() if m.up for group in m.here.groups()]


def wait_rest(cluster: Cluster) -> None:
    cluster.run_until(lambda: all(group.resting.resting for group in copies(cluster)))


def election_ms(cluster: Cluster) -> int:
    return cluster.config.election_ms


def test_idle_groups_stop_working_and_sending() -> None:
    # given idle groups that rest
    cluster = many_groups()
    wait_rest(cluster)
    cluster.run_for(100)  # the last of them writes down what is committed
    terms = [group.term for group in copies(cluster)]
    calls = 0

    def counted(work: object) -> object:
        def call() -> None:
            nonlocal calls
            calls += 1
            work()  # type: ignore[operator]

        return call

    for group in copies(cluster):
        group.work = counted(group.work)  # type: ignore[assignment, method-assign]
        group.tick = counted(group.tick)  # type: ignore[assignment, method-assign]
    sent = cluster.network.watch()
    # when ten seconds pass
    cluster.run_for(10_000)
    # then not one of them did anything, and nodes only told each other that they are there
    assert calls == 0
    assert all(not s.items for s in sent)
    ticks = 10_000 // cluster.config.tick_ms
    assert len(sent) <= 6 * (ticks + 1)
    # and nobody stood for election meanwhile
    assert [group.term for group in copies(cluster)] == terms
    assert all(group.resting.resting for group in copies(cluster))


def test_groups_rest_again_and_again_without_an_election() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    leader = cluster.wait_leader()
    for _ in range(5):
        wait_rest(cluster)
        cluster.run_for(3_000)
        cluster.propose(put("a", b"1"))
    assert cluster.wait_leader() is leader
    assert leader.group().term == 1


def test_a_proposal_wakes_its_group_only() -> None:
    cluster = many_groups()
    wait_rest(cluster)
    assert cluster.propose(put("a", b"2"), name="g2") == [2]
    awake = {group.name for group in copies(cluster) if not group.resting.resting}
    assert awake == {"g2"}
    wait_rest(cluster)
    assert all(m.machines["g2"].rows["a"].version == 2 for m in cluster.members.values())


@pytest.mark.parametrize("of_leader", [True, False])
def test_a_read_wakes_its_group_and_is_answered(of_leader: bool) -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    wait_rest(cluster)
    leader = cluster.wait_leader()
    member = leader if of_leader else cluster.followers()[0]
    began = cluster.now_ms
    row = cluster.wait(member.group().read("a"))
    assert isinstance(row, Row)
    assert row.version == 1
    assert cluster.now_ms - began < 50
    wait_rest(cluster)
    assert cluster.wait_leader() is leader


@pytest.mark.parametrize("seed", range(1, 7))
def test_when_the_leaders_node_dies_resting_groups_have_a_new_one_in_time(seed: int) -> None:
    # given resting groups
    cluster = many_groups(seed)
    wait_rest(cluster)
    cluster.run_for(seed * 313)
    leaders = {name: cluster.wait_leader(name) for name in NAMES}
    terms = {name: leader.group(name).term for name, leader in leaders.items()}
    dying = leaders["g0"]
    # when the node that leads some of them dies
    dying.crash()
    began = cluster.now_ms
    # then each of them has another leader within three election timeouts, or with the next
    # election if two candidates split the vote
    for name, leader in leaders.items():
        if leader is dying:
            new = cluster.wait_leader(name, other_than=dying.number)
            rounds = new.group(name).term - terms[name]
            assert cluster.now_ms - began <= (1 + 2 * rounds) * election_ms(cluster)
            assert rounds <= 2
    # and the others never noticed
    for name, leader in leaders.items():
        if leader is not dying:
            assert cluster.leader(name) is leader
    # and when it is back, everybody rests again
    dying.start()
    wait_rest(cluster)


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_node_that_restarts_quickly_finds_its_resting_groups(who: str) -> None:
    cluster = many_groups()
    wait_rest(cluster)
    leader = cluster.wait_leader("g0")
    member: Member = leader if who == "leader" else cluster.followers("g0")[0]
    # when a node is gone for less than anybody would notice
    member.crash(killed=True)
    cluster.run_for(10)
    member.start()
    began = cluster.now_ms
    # then its groups find together in time
    for name in NAMES:
        assert cluster.propose(put("a", b"2"), name=name) == [2]
    assert cluster.now_ms - began <= 3 * election_ms(cluster) + 100
    for name in NAMES:
        cluster.wait_even(name=name)
    wait_rest(cluster)


def test_a_member_that_is_cut_off_while_all_rest_wakes_the_leader_and_elects_nobody() -> None:
    # given resting groups
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    leader = cluster.wait_leader()
    wait_rest(cluster)
    away = cluster.followers()[0]
    # when one member is cut off
    cluster.isolate(away.number)
    cluster.run_for(5_000)
    # then the leader still leads, and serves
    assert cluster.wait_leader() is leader
    assert cluster.propose(put("a", b"2")) == [2]
    # and the one that is cut off could not win, nor raise the term
    assert away.group().term == leader.group().term
    cluster.heal()
    cluster.wait_even()
    wait_rest(cluster)
    assert cluster.wait_leader() is leader


def test_a_leader_that_is_cut_off_while_all_rest_is_replaced() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    old = cluster.wait_leader()
    wait_rest(cluster)
    cluster.isolate(old.number)
    began = cluster.now_ms
    new = cluster.wait_leader(other_than=old.number)
    assert cluster.now_ms - began <= 3 * election_ms(cluster)
    cluster.wait(new.group().propose(put("a", b"2")))
    cluster.run_for(2_000)
    # It noticed that it can't be leading any more.
    assert not old.group().leads
    cluster.heal()
    cluster.wait_even()
    wait_rest(cluster)


def test_a_member_whose_copy_lacks_something_does_not_rest() -> None:
    # given a member that does not get what the others have
    cluster = Cluster()
    cluster.wait_leader()
    away = cluster.followers()[0]
    cluster.isolate(away.number)
    cluster.propose(put("a", b"1"))
    # then nobody rests until it has
    cluster.run_for(3_000)
    assert not any(group.resting.resting for group in copies(cluster))
    cluster.heal()
    cluster.wait_even()
    wait_rest(cluster)


def test_groups_that_may_not_rest_go_on_ticking() -> None:
    cluster = Cluster(config=replace(FAST, rest_ticks=0))
    cluster.propose(put("a", b"1"))
    cluster.run_for(3_000)
    assert not any(group.resting.resting for group in copies(cluster))
    single = Cluster(nodes=1, config=replace(FAST, rest_ticks=0))
    single.propose(put("a", b"1"))
    single.run_for(3_000)
    assert not single[1].group().resting.resting


def test_what_was_committed_before_a_rest_is_known_after_a_crash_of_all() -> None:
    # given a group that rests: the commit index was written down at leisure
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    wait_rest(cluster)
    cluster.run_for(100)
    # when all nodes crash and are back
    for number in (1, 2, 3):
        cluster[number].crash()
    for number in (1, 2, 3):
        cluster[number].start()
    cluster.run_for(3 * cluster.config.tick_ms)
    assert cluster.leader() is None
    # then members that said that they rest show what was committed, before any election
    shown = [m.machine.rows.get("a") for m in cluster.members.values()]
    assert sum(row is not None for row in shown) >= 2


def test_a_snapshot_that_is_asked_for_is_taken_without_ending_the_rest() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    wait_rest(cluster)
    follower = cluster.followers()[0]
    follower.group().snapshot()
    cluster.run_until(lambda: follower.group().status().snapshot_index > 0)
    assert all(group.resting.resting for group in copies(cluster))


def test_snapshots_grow_old_while_a_group_rests() -> None:
    cluster = Cluster(config=replace(FAST, snapshot_age_ms=20_000))
    cluster.propose(put("a", b"1"))
    wait_rest(cluster)
    cluster.run_for(45_000)
    assert all(group.status().snapshot_index > 0 for group in copies(cluster))
    assert all(group.resting.resting for group in copies(cluster))
