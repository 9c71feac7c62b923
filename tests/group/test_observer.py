"""Observers: they hear what became of a copy, after it became so."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from group.cluster import FAST, TINY_LOG, Cluster, Member
from group.kv import put
from lowmark.errors import LowmarkError
from lowmark.group import Future, GroupStopped, MachineFailed
from lowmark.group.wire import Item, NotHere
from lowmark.raft import Heartbeat, Vote
from lowmark.runtime import Buffer, DiskFailed

SMALL = replace(FAST, snapshot_entries=20)


def with_learner() -> Cluster:
    cluster = Cluster(spare=1)
    cluster[4].create("g")
    group = cluster.wait_leader().group()
    group.change_peers(group.term, 1, [1, 2, 3], learners=[4])
    cluster.run_until(lambda: group.status().learners == (4,))
    cluster.wait_even(1, 2, 3, 4)
    return cluster


def check_leaders(member: Member) -> None:
    """What was heard of leaders holds now, and nothing was said twice in a row."""
    heard = member.watcher.of("leader")
    group = member.group()
    assert heard[-1] == (group.leader, group.term)
    assert all(one != two for one, two in pairwise(heard))


# -- applied --------------------------------------------------------------------------------------


def test_observers_hear_of_commands_when_the_machine_has_applied_them() -> None:
    cluster = with_learner()
    seen: dict[int, int] = {}
    for member in cluster.members.values():

        def look(what: str, member: Member = member) -> None:
            row = member.machine.rows.get("a")
            if what == "applied" and row is not None:
                seen[member.number] = row.version

        member.watcher.then = look
    for version in range(1, 6):
        cluster.propose(put("a", b"x"))
        cluster.wait_even(1, 2, 3, 4)
        # then each of them, the learner too, could see the new value when it was told
        assert seen == dict.fromkeys((1, 2, 3, 4), version)


def test_what_is_applied_at_once_is_told_once() -> None:
    cluster = Cluster()
    leader = cluster.wait_leader()
    cluster.wait_even()
    leader.watcher.heard.clear()
    first = leader.group().applied
    futures = [leader.group().propose(put("a", b"x")) for _ in range(100)]
    cluster.run_until(lambda: all(future.done for future in futures))
    assert leader.watcher.of("applied") == [(first + 100,)]


def test_what_is_applied_after_a_start_is_told() -> None:
    cluster = Cluster(nodes=1)
    cluster.propose(*(put("a", b"x") for _ in range(10)))
    applied = cluster[1].group().applied
    cluster[1].restart()
    cluster.wait_leader()
    assert cluster[1].watcher.of("applied")[-1] >= (applied,)


# -- restored -------------------------------------------------------------------------------------


def test_an_installed_snapshot_is_told_when_the_machine_has_it() -> None:
    # given a follower that missed what the others no longer have one by one
    cluster = Cluster(config=SMALL, log_config=TINY_LOG)
    cluster.make_leader(1)
    cluster.isolate(3)
    cluster.propose(*(put(f"k{i}", b"x" * 50) for i in range(200)))
    cluster.run_for(2_000)
    assert cluster[1].group().log.first_index > cluster[3].group().applied + 1
    watcher = cluster[3].watcher
    watcher.heard.clear()
    rows: list[int] = []
    watcher.then = lambda what: rows.append(len(cluster[3].machine.rows))
    # when it is sent a snapshot
    cluster.heal()
    cluster.wait_even()
    # then that is told, after the machine was replaced
    ((applied,),) = watcher.of("restored")
    assert applied == cluster[3].group().log.row.snapshot_index
    at = [kind for kind, *_ in watcher.heard].index("restored")
    assert rows[at] > 100
    # and the others have heard of none
    assert cluster[1].watcher.of("restored") == cluster[2].watcher.of("restored") == []


# -- leaders --------------------------------------------------------------------------------------


def test_leaders_followers_and_learners_hear_who_leads() -> None:
    cluster = with_learner()
    for number in (2, 3, 1):
        leader = cluster.make_leader(number)
        cluster.wait_even(1, 2, 3, 4)
        for member in cluster.members.values():
            check_leaders(member)
            assert member.watcher.of("leader")[-1] == (number, leader.group().term)


@pytest.mark.slow
def test_they_hear_that_nobody_leads() -> None:
    # given a leader that loses its majority
    cluster = with_learner()
    cluster.make_leader(1)
    cluster.wait_even(1, 2, 3, 4)
    term = cluster[1].group().term
    cluster.isolate(1, 4)
    # when it steps down, it hears that itself, and so do the others when they stand for election
    cluster.run_until(lambda: not cluster[1].group().leads)
    cluster.run_for(10)
    assert cluster[1].watcher.of("leader")[-1] == (0, term)
    new = cluster.wait_leader()
    heard = new.watcher.of("leader")
    assert heard[-2][0] == 0
    assert heard[-1] == (new.number, new.group().term)
    # and the learner, when it hears of the new term
    cluster.heal()
    cluster.wait_even(1, 2, 3, 4)
    for member in cluster.members.values():
        check_leaders(member)


def test_a_leader_whose_copy_is_gone_leads_no_more() -> None:
    cluster = Cluster()
    cluster.make_leader(1)
    cluster.wait_even()
    cluster[1].here.close_group("g")
    cluster.wait_leader(other_than=1)
    for number in (2, 3):
        assert any(leader == 0 for leader, _ in cluster[number].watcher.of("leader"))
        check_leaders(cluster[number])


def test_a_node_that_leads_again_in_a_later_term_is_told_by_that_term() -> None:
    # given a follower
    cluster = Cluster()
    cluster.make_leader(1)
    cluster.wait_even()
    follower = cluster[3]
    term = follower.group().term
    cluster.isolate(3)
    heard = follower.watcher.heard
    heard.clear()
    # when it hears of the same leader in a later term, and of nothing between
    beat = Heartbeat(3, 1, term + 5, 0, 0, 0)
    follower.group().received(1, beat)
    cluster.run_for(1)
    # then it is told, once
    assert follower.watcher.of("leader") == [(1, term + 5)]
    follower.group().received(1, beat)
    cluster.run_for(1)
    assert follower.watcher.of("leader") == [(1, term + 5)]


@pytest.mark.slow
def test_over_many_elections_nothing_is_missed_and_nothing_is_said_twice() -> None:
    cluster = with_learner()
    for turn in range(12):
        leader = cluster.wait_leader()
        if turn % 3 == 0:
            cluster.isolate(leader.number)
            cluster.run_for(1_000)
            cluster.heal()
        elif turn % 3 == 1:
            follower = next(m for m in cluster.followers() if m.number != 4)
            follower.group().campaign()
        else:
            leader.here.close_group("g")
            cluster.wait_leader(other_than=leader.number)
            leader.open()
        cluster.propose(put("a", b"x"))
        cluster.wait_even(1, 2, 3, 4)
        for member in cluster.members.values():
            check_leaders(member)


def test_a_core_that_is_made_anew_knows_no_leader_and_says_so() -> None:
    cluster = Cluster()
    cluster.make_leader(1)
    cluster.wait_even()
    follower = cluster[3]
    follower.watcher.heard.clear()

    def fail() -> None:
        raise DiskFailed("x", call="read", reason="I/O error")

    follower.group()._act(fail)
    assert follower.watcher.of("leader") == [(0, follower.group().term)]
    cluster.run_until(lambda: follower.group().leader == 1)
    cluster.run_for(1)
    check_leaders(follower)


# -- stopped --------------------------------------------------------------------------------------


def test_a_copy_that_is_closed_says_so_once_and_last() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    group = cluster[1].group()
    cluster[1].here.close_group("g")
    group.close()
    group.tick()
    cluster.run_for(1_000)
    assert cluster[1].watcher.of("stopped") == [(GroupStopped,)]
    assert cluster[1].watcher.heard[-1] == ("stopped", GroupStopped)


def test_a_copy_whose_machine_fails_says_so_once_and_last() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    follower = cluster.followers()[0]

    def fail(index: int, time: int, command: Buffer) -> object:
        raise RuntimeError("out of order")

    follower.machine.apply = fail  # type: ignore[method-assign]
    cluster.propose(put("a", b"2"))
    cluster.run_for(1_000)
    assert follower.watcher.of("stopped") == [(MachineFailed,)]
    assert follower.watcher.heard[-1] == ("stopped", MachineFailed)


# -- observers that act ---------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["applied", "leader", "restored"])
@pytest.mark.parametrize("how", ["close", "leave"])
def test_an_observer_may_close_the_copy_that_it_hears_of(when: str, how: str) -> None:
    # given a copy whose observer closes it
    cluster = Cluster(config=SMALL, log_config=TINY_LOG)
    cluster.make_leader(1)
    cluster.isolate(3)
    cluster.propose(*(put(f"k{i}", b"x" * 50) for i in range(200)))
    cluster.run_for(2_000)
    watcher = cluster[3].watcher
    watcher.heard.clear()
    here = cluster[3].here

    def act(what: str) -> None:
        if what == when and here.groups():
            if how == "close":
                here.close_group("g")
            else:
                here.leave("g")

    watcher.then = act
    # when it hears of what it waits for
    cluster.heal()
    cluster.propose(put("last", b"x"))  # what comes by a snapshot alone is not applied
    cluster.run_until(lambda: bool(watcher.of("stopped")))
    # then nothing follows, and the others go on
    cluster.run_for(1_000)
    assert watcher.heard[-1] == ("stopped", GroupStopped)
    assert len(watcher.of("stopped")) == 1
    assert cluster.propose(put("new", b"x")) == [1]


def test_a_copy_that_is_closed_when_nobody_leads_asks_for_no_votes() -> None:
    # given a follower that is closed when it loses its leader
    cluster = Cluster()
    cluster.make_leader(1)
    cluster.wait_even()
    here = cluster[3].here
    cluster[3].watcher.then = lambda what: here.close_group("g") if what == "leader" else None
    cluster.isolate(3)
    # when that comes to pass, as it is about to stand for election
    sent = cluster.network.watch()
    cluster.run_until(lambda: bool(cluster[3].watcher.of("stopped")))
    cluster.run_for(1_000)
    # then it says nothing but that it is gone
    said = {type(item) for s in sent if s.sender == 3 for _, item in s.items}
    assert NotHere in said
    assert Vote not in said


@pytest.mark.parametrize("how", ["close", "leave"])
def test_who_proposed_may_close_the_copy_when_answered(how: str) -> None:
    # given several commands that are applied at once
    cluster = Cluster()
    leader = cluster.wait_leader()
    cluster.wait_even()
    here, group = leader.here, leader.group()
    futures = [group.propose(put("a", b"x")) for _ in range(10)]
    errors: list[LowmarkError | None] = []
    for future in futures:
        future.then(lambda done: errors.append(done.error))
    # when the first answer makes somebody close the copy
    futures[0].then(lambda _: here.close_group("g") if how == "close" else here.leave("g"))
    cluster.run_until(lambda: len(errors) == 10)
    # then everybody is answered, and nothing is applied or told after the end
    cluster.run_for(1_000)
    assert leader.machine.rows["a"].version == 1
    assert leader.watcher.heard[-1] == ("stopped", GroupStopped)
    cluster.wait_leader(other_than=leader.number)


def test_an_observer_may_propose_and_read() -> None:
    cluster = Cluster()
    leader = cluster.make_leader(1)
    cluster.wait_even()
    group, results = leader.group(), list[Future[object]]()

    def act(what: str) -> None:
        if what == "applied" and len(results) < 3:
            future = group.propose(put("a", b"x"))
            results.append(future)
            results.append(group.read("a"))

    leader.watcher.then = act
    cluster.propose(put("a", b"x"))
    cluster.run_until(lambda: len(results) == 4 and all(future.done for future in results))
    assert all(future.error is None for future in results)


def test_a_heartbeat_says_nothing_to_an_observer() -> None:
    cluster = Cluster(config=replace(FAST, rest_ticks=0))
    cluster.propose(put("a", b"x"))
    cluster.wait_even()
    before = {n: len(cluster[n].watcher.heard) for n in (1, 2, 3)}
    seen = 0

    def on_heartbeat(sender: int, to: int, item: Item) -> bool:
        nonlocal seen
        del sender, to
        seen += isinstance(item, Heartbeat)
        return False

    cluster.network.loses = on_heartbeat
    cluster.run_for(1_000)
    assert seen > 50
    assert {n: len(cluster[n].watcher.heard) for n in (1, 2, 3)} == before
