"""Learners for good: members that follow, are asked, and never decide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from group.cluster import FAST, TINY_LOG, Cluster, Member
from group.kv import Row, put
from lowmark.errors import Rejected
from lowmark.group import ChangeAnswer, ChangeError, NotLeader, Stage
from lowmark.group.errors import NotAMember
from lowmark.group.wire import Item
from lowmark.raft import Append, ChangeKind, ConfChange, EntryKind, Vote

STALL = replace(FAST, catch_up_stall_ms=3_000)


def ask(
    cluster: Cluster,
    peers: Iterable[int],
    learners: Iterable[int] = (),
    *,
    token: int = 1,
    create: bool = True,
) -> Member:
    """Ask the leader for these voters and learners; new ones get their copies first."""
    leader = cluster.wait_leader()
    peers, learners = list(peers), list(learners)
    for number in (*peers, *learners) if create else ():
        if not cluster[number].has():
            cluster[number].create("g")
    answer = leader.group().change_peers(leader.group().term, token, peers, learners=learners)
    assert answer is ChangeAnswer.RECEIVED
    return leader


def changed(
    cluster: Cluster,
    peers: Iterable[int],
    learners: Iterable[int] = (),
    *,
    token: int = 1,
    create: bool = True,
) -> None:
    """Change voters and learners and wait until they are in force."""
    peers = tuple(sorted(peers))
    leader = ask(cluster, peers, learners, token=token, create=create)
    up = [m for m in cluster.members.values() if m.has()]
    for member in up:
        member.listener.committed.clear()
    cluster.run_until(lambda: any(m.listener.committed for m in up) or bool(leader.listener.errors))
    assert leader.listener.errors == []
    assert next(m.listener.committed for m in up if m.listener.committed) == [peers]
    agree(cluster, peers, learners)


def agree(cluster: Cluster, peers: Iterable[int], learners: Iterable[int] = ()) -> None:
    """Wait until a leader has exactly these members."""
    want = (tuple(sorted(peers)), tuple(sorted(learners)), ())

    def same() -> bool:
        leader = cluster.leader()
        return leader is not None and members_of(leader) == want

    cluster.run_until(same)


def members_of(member: Member) -> tuple[tuple[int, ...], ...]:
    status = member.group().status()
    return status.voters, status.learners, status.voters_outgoing


def with_learner(**options: object) -> Cluster:
    """Voters 1 to 3, learner 4, and two nodes to spare."""
    cluster = Cluster(spare=3, **options)  # type: ignore[arg-type]
    changed(cluster, [1, 2, 3], [4])
    cluster.wait_even(1, 2, 3, 4)
    return cluster


# -- having them ----------------------------------------------------------------------------------


def test_a_learner_follows_and_is_never_promoted() -> None:
    cluster = with_learner()
    cluster.propose(put("a", b"1"))
    cluster.wait_even(1, 2, 3, 4)
    cluster.run_for(5_000)
    assert cluster[4].machine.rows == cluster[1].machine.rows
    assert members_of(cluster[4]) == ((1, 2, 3), (4,), ())
    leader = cluster.wait_leader()
    assert leader.group().status().stage is Stage.NONE
    (peer,) = [p for p in leader.group().status().peers if p.node == 4]
    assert peer.learner


def test_learners_are_added_without_waiting_until_they_are_near() -> None:
    # given two nodes that are not even there
    cluster = Cluster(spare=2, config=STALL)
    cluster.propose(put("a", b"1"))
    for number in (4, 5):
        cluster[number].crash()
    # when they shall be learners, with a new voter beside them that is
    leader = cluster.wait_leader()
    asked_at = cluster.now_ms
    changed(cluster, [1, 2, 3], [4, 5], create=False)
    # then that is done at once
    assert cluster.now_ms - asked_at < 1_000
    # and they get everything when they come
    cluster[5].start()
    cluster[5].create("g")
    cluster.wait_even(1, 2, 3, 5)
    assert cluster[5].machine.rows == leader.machine.rows
    assert leader.listener.errors == []


def test_a_change_waits_for_its_voters_but_not_for_its_learners() -> None:
    # given a change in which neither the new voter nor the new learner is there
    cluster = Cluster(spare=2, config=STALL)
    leader = ask(cluster, [1, 2, 3, 4], [5], create=False)
    cluster.run_for(1_000)
    status = leader.group().status()
    assert (status.stage, status.learners) == (Stage.CATCHING_UP, (4, 5))
    # when the voter comes, it goes on
    cluster[4].create("g")
    agree(cluster, [1, 2, 3, 4], [5])
    cluster.run_until(lambda: leader.listener.committed == [(1, 2, 3, 4)])


def test_the_listener_is_asked_about_the_voters_alone() -> None:
    cluster = Cluster(spare=2)
    leader = ask(cluster, [1, 2, 3, 4], [5])
    agree(cluster, [1, 2, 3, 4], [5])
    assert [peers for peers, _ in leader.listener.asked] == [(1, 2, 3, 4)]


def test_who_is_named_as_both_is_a_voter() -> None:
    cluster = Cluster(spare=1)
    ask(cluster, [1, 2, 3], [3, 4, 4])
    agree(cluster, [1, 2, 3], [4])


@pytest.mark.parametrize("number", [0, -1, 1 << 63])
def test_a_learner_needs_a_number_that_a_node_can_have(number: int) -> None:
    cluster = Cluster()
    group = cluster.wait_leader().group()
    with pytest.raises(Rejected):
        group.change_peers(group.term, 1, [1, 2, 3], learners=[number])
    assert group.status().stage is Stage.NONE


def test_a_group_can_be_one_voter_and_learners() -> None:
    cluster = Cluster(nodes=1, spare=2)
    changed(cluster, [1], [2, 3])
    assert cluster.propose(put("a", b"1")) == [1]
    cluster.wait_even(1, 2, 3)
    for member in cluster.members.values():
        member.restart()
    assert cluster.propose(put("a", b"2")) == [2]
    cluster.wait_even(1, 2, 3)
    agree(cluster, [1], [2, 3])


def test_a_group_with_learners_rests_and_wakes() -> None:
    cluster = with_learner()
    four = (1, 2, 3, 4)
    cluster.run_until(lambda: all(cluster[n].group().resting.resting for n in four))
    cluster.propose(put("a", b"1"))
    cluster.wait_even(*four)


# -- they do not decide ---------------------------------------------------------------------------


def test_a_learner_counts_for_nothing_when_a_majority_is_gone() -> None:
    # given a leader with a learner beside it, and both other voters away
    cluster = with_learner()
    cluster.make_leader(1)
    cluster.isolate(1, 4)
    group = cluster[1].group()
    committed = group.raft.core.log.committed
    # when something is proposed
    future = group.propose(put("a", b"1"))
    cluster.run_until(lambda: cluster[4].group().last_index() > committed)
    # then the learner has it, and it is not committed; nor does anybody lead there for long
    cluster.run_for(1_000)
    assert group.raft.core.log.committed == committed
    assert future.error is not None or not future.done
    assert not group.leads


def test_a_learner_never_stands_for_election_nor_votes() -> None:
    cluster = with_learner()
    leader = cluster.make_leader(1)
    term = leader.group().term
    sent = cluster.network.watch()
    # when it hears of nobody for long
    cluster.isolate(4)
    cluster.run_for(5_000)
    cluster.heal()
    cluster[4].group().campaign()
    cluster.run_for(500)
    # then it asks nobody for a vote
    assert not [s for s in sent if s.sender == 4 if any(isinstance(i, Vote) for _, i in s.items)]
    assert leader.group().leads
    assert leader.group().term == term
    # and when the leader goes, the voters agree without it
    leader.crash()
    new = cluster.wait_leader()
    assert new.number in {2, 3}
    asked = [s for s in sent if s.to == 4 if any(isinstance(i, Vote) for _, i in s.items)]
    assert asked == []


def test_leadership_can_not_be_handed_to_a_learner() -> None:
    cluster = with_learner()
    leader = cluster.wait_leader()
    with pytest.raises(NotAMember):
        leader.group().transfer(4)
    assert isinstance(cluster[4].group().propose(put("a", b"1")).error, NotLeader)


def test_a_learner_that_is_away_delays_nothing() -> None:
    cluster = with_learner()
    cluster[4].crash()
    for n in range(1, 20):
        assert cluster.propose(put("a", b"x")) == [n]


# -- reads ----------------------------------------------------------------------------------------


def test_a_learner_can_be_asked_for_what_was_just_answered() -> None:
    cluster = with_learner()
    for n in range(1, 10):
        cluster.propose(put("a", b"%d" % n))
        row = cluster.wait(cluster[4].group().read("a"))
        assert isinstance(row, Row)
        assert row.version == n


def test_a_learner_without_a_majority_answers_no_read() -> None:
    cluster = with_learner()
    cluster.make_leader(1)
    cluster.propose(put("a", b"1"))
    cluster.wait_even(1, 2, 3, 4)
    cluster.isolate(1, 4)
    future = cluster[4].group().read("a", timeout_ms=800)
    assert cluster.wait_error(future) is not None
    local = cluster[4].group().read_local("a")
    assert isinstance(local, Row)


# -- changing them --------------------------------------------------------------------------------


def test_a_voter_becomes_a_learner_in_one_change() -> None:
    cluster = Cluster(spare=2)
    cluster.propose(put("a", b"1"))
    cluster.make_leader(1)
    changes: list[ConfChange] = []
    group = cluster[1].group()
    propose = group.raft.propose_change

    def noted(change: ConfChange, *, single: bool = False) -> None:
        changes.append(change)
        propose(change, single=single)

    group.raft.propose_change = noted  # type: ignore[method-assign]
    incarnation = group.members().incarnation(3)
    changed(cluster, [1, 2], [3])
    assert len(changes) == 1
    # and it is the same member as before, with what it has
    assert group.members().incarnation(3) == incarnation
    assert cluster.propose(put("a", b"2")) == [2]
    cluster.wait_even(1, 2, 3)
    assert members_of(cluster[3]) == ((1, 2), (3,), ())
    # and does not count any more
    cluster[2].crash()
    assert not cluster[1].group().propose(put("a", b"3"), timeout_ms=500).done
    cluster.run_for(1_000)
    assert cluster[3].group().applied == cluster[1].group().raft.core.log.committed


def test_a_leader_that_becomes_a_learner_hands_over_first() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"1"))
    leader = cluster.wait_leader()
    rest = sorted({1, 2, 3} - {leader.number})
    changed(cluster, rest, [leader.number])
    assert not leader.group().leads
    assert cluster.propose(put("a", b"2")) == [2]
    cluster.wait_even(1, 2, 3)
    assert members_of(leader) == (tuple(rest), (leader.number,), ())


def test_a_learner_is_promoted_as_the_member_that_it_is() -> None:
    cluster = with_learner()
    cluster.propose(put("a", b"1"))
    incarnation = cluster.wait_leader().group().members().incarnation(4)
    changed(cluster, [1, 2, 3, 4], token=2)
    assert cluster.wait_leader().group().members().incarnation(4) == incarnation
    cluster.make_leader(4)
    assert cluster.propose(put("a", b"2")) == [2]


def test_a_learner_and_a_voter_trade_places() -> None:
    cluster = with_learner()
    changed(cluster, [1, 2, 4], [3], token=2)
    cluster.make_leader(4)
    assert cluster.propose(put("a", b"1")) == [1]
    cluster.wait_even(1, 2, 3, 4)


def test_a_learner_is_promoted_only_when_it_is_near() -> None:
    # given a learner that gets no entries
    cluster = Cluster(spare=3, config=replace(STALL, near_entries=2))
    changed(cluster, [1, 2, 3], [4])
    held = True

    def loses(sender: int, to: int, item: Item) -> bool:
        del sender
        return held and to == 4 and isinstance(item, Append) and bool(item.entries)

    cluster.network.loses = loses
    for _ in range(10):
        cluster.propose(put("a", b"x"))
    # when it shall vote, that waits
    leader = ask(cluster, [1, 2, 3, 4], token=2)
    cluster.run_for(1_000)
    assert leader.group().status().stage is Stage.CATCHING_UP
    held = False
    agree(cluster, [1, 2, 3, 4])


def test_learners_that_are_not_named_any_more_are_removed() -> None:
    cluster = with_learner()
    changed(cluster, [1, 2, 3], [5, 6], token=2)
    changed(cluster, [1, 2, 3], [6], token=3)
    changed(cluster, [1, 2, 3], token=4)
    assert cluster.propose(put("a", b"1")) == [1]


def test_learners_stay_while_the_voters_change() -> None:
    cluster = with_learner()
    incarnation = cluster.wait_leader().group().members().incarnation(4)
    changed(cluster, [1, 2, 5], [4], token=2)
    changed(cluster, [5], [4], token=3)
    assert cluster.wait_leader().group().members().incarnation(4) == incarnation
    assert cluster.propose(put("a", b"1")) == [1]
    cluster.wait_even(4, 5)


# -- changes that end early -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_change_that_ends_early_keeps_the_learners_it_names_and_drops_the_others(
    cancelled: bool,
) -> None:
    # given learner 4, and a change that names it, a new learner 5 and a voter 6 that is not there
    cluster = with_learner(config=STALL)
    leader = ask(cluster, [1, 2, 3, 6], [4, 5], token=2, create=False)
    cluster.run_until(lambda: leader.group().status().learners == (4, 5, 6))
    # when it is given up
    if cancelled:
        assert leader.group().cancel_change_peers()
    else:
        cluster.run_until(lambda: bool(leader.listener.errors))
        assert leader.listener.errors[0].error is ChangeError.NOT_STARTED
        assert leader.listener.errors[0].node == 6
    # then only that voter goes
    agree(cluster, [1, 2, 3], [4, 5])
    cluster.run_for(2_000)
    agree(cluster, [1, 2, 3], [4, 5])


@pytest.mark.slow
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_change_that_ends_early_leaves_a_learner_that_was_to_vote_a_learner(
    cancelled: bool,
) -> None:
    # given learner 4, that shall vote together with 6, which is not there
    cluster = with_learner(config=STALL)
    incarnation = cluster.wait_leader().group().members().incarnation(4)
    leader = ask(cluster, [1, 2, 3, 4, 6], token=2, create=False)
    cluster.run_until(lambda: leader.group().status().learners == (4, 6))
    # when nothing comes of that
    if cancelled:
        assert leader.group().cancel_change_peers()
    cluster.run_until(lambda: leader.group().status().stage is Stage.NONE)
    # then it is what it was
    agree(cluster, [1, 2, 3], [4])
    cluster.run_for(2_000)
    agree(cluster, [1, 2, 3], [4])
    assert leader.group().members().incarnation(4) == incarnation


def test_a_voter_that_was_to_be_a_learner_votes_if_nothing_comes_of_it() -> None:
    cluster = with_learner(config=STALL)
    cluster.make_leader(1)
    leader = ask(cluster, [1, 2, 6], [3, 4], token=2, create=False)
    cluster.run_until(lambda: bool(leader.listener.errors))
    agree(cluster, [1, 2, 3], [4])
    cluster.isolate(2)
    assert cluster.propose(put("a", b"1")) == [1]


def test_a_newer_list_of_learners_replaces_one_that_is_catching_up() -> None:
    cluster = Cluster(spare=3, config=STALL)
    leader = ask(cluster, [1, 2, 3, 6], [4], create=False)
    cluster.run_until(lambda: leader.group().status().learners == (4, 6))
    ask(cluster, [1, 2, 3], [5], token=2)
    agree(cluster, [1, 2, 3], [5])
    cluster.run_until(lambda: leader.listener.committed == [(1, 2, 3)])
    assert leader.listener.errors == []


# -- other leaders, other lives -------------------------------------------------------------------


def test_a_new_leader_keeps_the_learners() -> None:
    cluster = with_learner()
    for _ in range(3):
        old = cluster.wait_leader()
        old.group().transfer(next(n for n in (1, 2, 3) if n != old.number))
        cluster.wait_leader(other_than=old.number)
        cluster.run_for(2_000)
        agree(cluster, [1, 2, 3], [4])
    # also one that does not know whether it may cancel anything
    assert cluster.wait_leader().group().cancel_change_peers()
    cluster.run_for(1_000)
    agree(cluster, [1, 2, 3], [4])


def test_learners_are_learners_after_a_restart_and_after_a_snapshot() -> None:
    cluster = with_learner(config=replace(FAST, snapshot_entries=20))
    cluster.propose(*(put("a", b"x") for _ in range(50)))
    cluster.wait_even(1, 2, 3, 4)
    cluster.run_for(1_000)
    for number in (1, 2, 3, 4):
        cluster[number].crash()
    for number in (1, 2, 3, 4):
        cluster[number].start()
    cluster.wait_leader()
    agree(cluster, [1, 2, 3], [4])
    assert members_of(cluster[4]) == ((1, 2, 3), (4,), ())
    assert cluster[4].group().status().snapshot_index > 0


def test_a_learner_that_lost_its_copy_is_a_learner_again() -> None:
    # given a learner
    cluster = with_learner(log_config=TINY_LOG)
    cluster.propose(*(put(f"k{i}", b"x" * 100) for i in range(100)))
    cluster.wait_even(1, 2, 3, 4)
    leader = cluster.wait_leader()
    before = leader.group().members().incarnation(4)
    # when its copy is thrown away
    cluster.wait(cluster[4].rebuild())
    # then it comes back as another incarnation, and as what it was
    cluster.run_until(lambda: leader.group().members().incarnation(4) > before)
    agree(cluster, [1, 2, 3], [4])
    cluster.wait_even(1, 2, 3, 4)
    assert cluster[4].machine.rows == leader.machine.rows
    cluster.run_for(2_000)
    agree(cluster, [1, 2, 3], [4])
    assert leader.group().members().returning == frozenset()
    assert isinstance(cluster.wait(cluster[4].group().read("k1")), Row)


def test_a_learner_is_never_out_of_the_group_while_it_is_replaced() -> None:
    # given a learner whose copy was thrown away
    cluster = with_learner()
    cluster.propose(put("a", b"1"))
    leader = cluster.wait_leader()
    before = leader.group().members().incarnation(4)
    cluster.wait(cluster[4].rebuild())
    # when the leader dies as soon as it has begun to replace it
    was_gone = False

    def begun() -> bool:
        nonlocal was_gone
        members = leader.group().members()
        was_gone = was_gone or 4 not in members.everybody
        return members.incarnation(4) > before or was_gone

    cluster.run_until(begun)
    leader.crash()
    # then the next one has it, and brings the replacement to its end
    assert not was_gone
    new = cluster.wait_leader()
    cluster.run_until(lambda: new.group().members().incarnation(4) > before)
    agree(cluster, [1, 2, 3], [4])
    cluster.wait_even(new.number, 4)


def test_a_voter_that_lost_its_copy_votes_again_and_the_learner_does_not() -> None:
    cluster = with_learner()
    cluster.make_leader(1)
    cluster.propose(put("a", b"1"))
    learner = cluster[1].group().members().incarnation(4)
    cluster.wait(cluster[3].rebuild())
    cluster.run_until(lambda: cluster[1].group().members().incarnation(3) > 0)
    agree(cluster, [1, 2, 3], [4])
    assert cluster[1].group().members().incarnation(4) == learner


def test_a_learner_and_a_voter_that_lost_their_copies_both_come_back() -> None:
    cluster = with_learner()
    cluster.make_leader(1)
    cluster.propose(put("a", b"1"))
    learner = cluster[1].group().members().incarnation(4)
    cluster.wait(cluster[4].rebuild())
    cluster.wait(cluster[3].rebuild())

    def back() -> bool:
        members = cluster[1].group().members()
        return members.incarnation(3) > 0 and members.incarnation(4) > learner

    cluster.run_until(back)
    agree(cluster, [1, 2, 3], [4])
    cluster.wait_even(1, 2, 3, 4)


def test_one_entry_takes_a_learner_out_and_in() -> None:
    cluster = with_learner()
    leader = cluster.wait_leader()
    last = leader.group().last_index()
    before = leader.group().members().incarnation(4)
    cluster.wait(cluster[4].rebuild())
    cluster.run_until(lambda: leader.group().members().incarnation(4) > before)
    agree(cluster, [1, 2, 3], [4])
    found = leader.group()._storage.entries(last + 1, leader.group().last_index() + 1, 1 << 20)
    changes = [ConfChange.decode(e.data) for e in found or () if e.kind is not EntryKind.NORMAL]
    kinds = [[(c.kind, c.node) for c in change.changes] for change in changes]
    assert kinds == [[(ChangeKind.REMOVE, 4), (ChangeKind.ADD_LEARNER, 4)], []]
