"""Groups that have nothing to do rest, and wake in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from group.cluster import FAST, Cluster, Member
from group.kv import Row, put
from lowmark.group.group import Group
from lowmark.group.wire import Ask
from lowmark.raft import Append, Message
from lowmark.runtime.sim import Weather

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


@pytest.mark.slow
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
    # given a member that does not get what the others have, though its node is there
    cluster = Cluster()
    cluster.wait_leader()
    away = cluster.followers()[0].number
    cluster.network.loses = lambda _, to, item: to == away and isinstance(item, Append)
    cluster.propose(put("a", b"1"))
    # then nobody rests until it has
    cluster.run_for(3_000)
    assert not any(group.resting.resting for group in copies(cluster))
    cluster.network.loses = None
    cluster.wait_even()
    wait_rest(cluster)


@pytest.mark.slow
def test_groups_rest_though_answers_take_longer_than_a_tick() -> None:
    # given nodes that are slow to answer, as those with thousands of groups are
    cluster = many_groups()
    tick_us = cluster.config.tick_ms * 1_000
    cluster.network.weather = Weather(delay_us_min=tick_us, delay_us_max=2 * tick_us)
    for name in NAMES:
        cluster.propose(put("a", b"2"), name=name)
    terms = {name: cluster.wait_leader(name).group(name).term for name in NAMES}
    # then all rest, and go on resting under the same leaders
    wait_rest(cluster)
    cluster.run_for(5_000)
    assert all(group.resting.resting for group in copies(cluster))
    assert {name: cluster.wait_leader(name).group(name).term for name in NAMES} == terms


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


@pytest.mark.slow
def test_snapshots_grow_old_while_a_group_rests() -> None:
    cluster = Cluster(config=replace(FAST, snapshot_age_ms=20_000))
    cluster.propose(put("a", b"1"))
    wait_rest(cluster)
    cluster.run_for(45_000)
    assert all(group.status().snapshot_index > 0 for group in copies(cluster))
    assert all(group.resting.resting for group in copies(cluster))


# -- with a node that is down ---------------------------------------------------------------------


def wait_rest_of(cluster: Cluster, *numbers: int) -> None:
    def rest() -> bool:
        return all(group.resting.resting for n in numbers for group in cluster[n].here.groups())

    cluster.run_until(rest)


@pytest.mark.slow
@pytest.mark.parametrize("leads", [True, False])
def test_groups_rest_while_one_node_of_three_is_down(leads: bool) -> None:
    # given groups at rest, and a node that dies
    cluster = many_groups()
    wait_rest(cluster)
    leader = cluster.wait_leader("g0")
    dead = leader if leads else cluster.followers("g0")[0]
    dead.crash()
    # when the others have noticed
    for name in NAMES:
        cluster.wait_leader(name, other_than=dead.number)
        assert cluster.propose(put("a", b"2"), name=name) == [2]
    # then they rest without it
    wait_rest(cluster)
    terms = [group.term for group in copies(cluster)]
    sent = cluster.network.watch()
    cluster.run_for(10_000)
    assert all(group.resting.resting for group in copies(cluster))
    assert [group.term for group in copies(cluster)] == terms
    # and say nothing for any group: nodes watch each other, and ask whether it is back
    items = [item for frame in sent for _, item in frame.items]
    assert all(isinstance(item, Ask) and item.to == dead.number for item in items)
    assert len(items) <= 2 * 10_000 / election_ms(cluster) + 2
    # and when it is back, it gets what it lacks, though nobody asks for anything
    dead.start()
    for name in NAMES:
        cluster.wait_even(name=name)
    wait_rest(cluster)
    assert all(member.machines["g0"].rows["a"].version == 2 for member in cluster.members.values())


def test_a_group_that_rests_does_not_wake_when_the_node_of_a_follower_dies() -> None:
    # given groups at rest, some of them led by another node than the one that dies
    cluster = many_groups()
    wait_rest(cluster)
    dead = cluster.wait_leader("g0")
    dead.crash()
    untouched = [g for g in copies(cluster) if g.leader != dead.number]
    assert untouched
    ticked: list[str] = []
    for group in untouched:
        group.tick = lambda group=group: ticked.append(group.name)  # type: ignore[method-assign, misc]
    # when the others have noticed, and the dead node's groups have other leaders and rest
    cluster.run_for(3_000)
    wait_rest(cluster)
    # then those that it did not lead never woke
    assert ticked == []
    # and do so when it is back
    for group in untouched:
        del group.tick
    dead.start()
    cluster.run_until(lambda: any(not group.resting.resting for group in untouched))
    wait_rest(cluster)


def test_a_node_that_is_down_when_the_others_start_does_not_keep_them_awake() -> None:
    cluster = many_groups()
    wait_rest(cluster)
    for number in (1, 2, 3):
        cluster[number].crash()
    for number in (1, 3):
        cluster[number].start()
    wait_rest(cluster)
    cluster[2].start()
    for name in NAMES:
        cluster.wait_even(name=name)
    wait_rest(cluster)


@pytest.mark.parametrize("leads", [True, False])
def test_when_a_second_node_dies_those_that_rested_without_the_first_notice(leads: bool) -> None:
    # given two nodes that rest without the third
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    leader = cluster.wait_leader()
    first, second = cluster.followers()
    first.crash()
    cluster.propose(put("a", b"2"))
    wait_rest(cluster)
    # when another one dies
    dying, left = (leader, second) if leads else (second, leader)
    dying.crash()
    # then the last one does not rest, and does not lead for long
    cluster.run_for(3 * election_ms(cluster))
    assert not left.group().resting.resting
    assert not left.group().leads
    # and with the first one back they serve, and everything is there
    first.start()
    assert cluster.propose(put("a", b"3")) == [3]
    assert cluster.leader() is left  # the other one lacked what was committed without it
    dying.start()
    cluster.wait_even()
    wait_rest(cluster)


@pytest.mark.parametrize(("down", "may_rest"), [(2, True), (3, False)])
def test_only_a_majority_rests(down: int, may_rest: bool) -> None:
    cluster = Cluster(nodes=5)
    cluster.propose(put("a", b"1"))
    cluster.wait_leader()
    for member in cluster.followers()[:down]:
        member.crash()
    cluster.run_for(5_000)
    assert all(group.resting.resting is may_rest for group in copies(cluster))


def test_a_node_that_was_cut_off_gets_what_it_lacks_though_nobody_asks() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    leader = cluster.wait_leader()
    away = cluster.followers()[0]
    cluster.isolate(away.number)
    cluster.propose(put("a", b"2"))
    others = [n for n in cluster.members if n != away.number]
    wait_rest_of(cluster, *others)
    cluster.heal()
    cluster.wait_even()
    wait_rest(cluster)
    assert cluster.wait_leader() is leader
    assert leader.group().term == 1


@pytest.mark.parametrize("cut", ["to the leader", "from the leader", "both"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_member_that_the_leader_misses_but_others_hear_elects_nobody(cut: str, seed: int) -> None:
    # given a group at rest
    cluster = Cluster(seed)
    cluster.propose(put("a", b"1"))
    leader = cluster.wait_leader()
    away, other = cluster.followers()
    wait_rest(cluster)
    # when one member and the leader don't hear each other, while both hear the third
    if cut in {"to the leader", "both"}:
        cluster.network.cut_one_way(away.address, leader.address)
    if cut in {"from the leader", "both"}:
        cluster.network.cut_one_way(leader.address, away.address)
    cluster.run_for(2_000)
    assert cluster.propose(put("a", b"2")) == [2]
    cluster.run_for(10_000)
    # then the leader leads all the time
    assert cluster.leader() is leader
    assert [m.group().term for m in (leader, other)] == [1, 1]
    assert cluster.propose(put("a", b"3")) == [3]
    # and afterwards all have everything, and rest
    cluster.run_for(3_000)
    cluster.heal()
    cluster.wait_even()
    wait_rest(cluster)


def test_a_copy_that_rests_on_a_leader_of_the_past_is_found() -> None:
    # given two groups of one leader, at rest
    cluster = Cluster(group="")
    for name in ("g", "h"):
        for number in (1, 2, 3):
            cluster[number].create(name, (1, 2, 3))
    old, new, away = cluster[1], cluster[2], cluster[3]
    for name in ("g", "h"):
        cluster.make_leader(1, name)
    wait_rest(cluster)
    # when one of them is led by another, and a member does not hear of it: it and the new leader
    # don't hear each other, and the old one tells it nothing but that its node is there
    cluster.network.cut([new.address], [away.address])
    cluster.network.loses = lambda _, to, item: to == 3 and isinstance(item, Message)
    old.group("g").transfer(2)
    cluster.run_until(lambda: cluster.leader("g") is new)
    cluster.propose(put("a", b"1"), name="g")
    wait_rest(cluster)
    assert away.group("g").leader == 1
    # then it is found as soon as it can be
    cluster.heal()
    cluster.network.loses = None
    cluster.wait_even(name="g")
    assert away.group("g").leader == 2
    wait_rest(cluster)
