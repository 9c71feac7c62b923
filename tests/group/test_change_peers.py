"""Changing who belongs to a group: stages, answers, callbacks, failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from group.cluster import FAST, Cluster, Member
from group.kv import put
from lowmark.errors import Rejected
from lowmark.group import ChangeAnswer, ChangeError, ChangeFailed, NotLeader, OutcomeUnknown, Stage
from lowmark.group.errors import NotAMember
from lowmark.group.wire import InstallPiece, Item
from lowmark.raft import Append, AppendResponse, EntryKind

STALL = replace(FAST, catch_up_stall_ms=3_000)


def change(
    cluster: Cluster, peers: Iterable[int], *, token: int = 1, create: bool = True
) -> Member:
    """Ask the leader for these peers; new ones get their copies first."""
    leader = cluster.wait_leader()
    for number in peers if create else ():
        if not cluster[number].has():
            cluster[number].create("g")
    answer = leader.group().change_peers(leader.group().term, token, list(peers))
    assert answer is ChangeAnswer.RECEIVED
    return leader


def changed(cluster: Cluster, peers: Iterable[int], *, token: int = 1) -> Member:
    """Change peers and wait until the new ones are in force; give who led the change."""
    peers = tuple(peers)
    leader = change(cluster, peers, token=token)
    told: list[Member] = []

    def is_told() -> bool:
        # A leader that is on its way out hands over first, and the next one tells.
        told[:] = [
            member
            for member in cluster.members.values()
            if member.has() and member.listener.committed
        ]
        return bool(told or leader.listener.errors)

    cluster.run_until(is_told)
    assert leader.listener.errors == []
    assert told[0].listener.committed.pop() == tuple(sorted(peers))
    return leader


def remove_leftovers(cluster: Cluster, peers: Iterable[int]) -> None:
    """As placement does: who is no member any more gives up its copy."""
    for member in cluster.members.values():
        if member.number not in peers and member.has():
            member.here.leave("g")


def watch_stages(cluster: Cluster, leader: Member, until: Callable[[], bool]) -> list[Stage]:
    """Run, and note every stage that the leader goes through."""
    group = leader.group()
    stages = [group.status().stage]

    def noted() -> bool:
        stage = group.status().stage
        if stage is not stages[-1]:
            stages.append(stage)
        return until()

    cluster.run_until(noted)
    return stages


def hold_back_appends_to(cluster: Cluster, number: int) -> None:
    """Let a node answer heartbeats, but never get an entry."""

    def loses(sender: int, to: int, item: Item) -> bool:
        del sender
        return to == number and isinstance(item, Append) and bool(item.entries)

    cluster.network.loses = loses


# -- the way it goes ------------------------------------------------------------------------------


def test_a_change_goes_through_its_stages_and_ends_with_none() -> None:
    cluster = Cluster(spare=2)
    cluster.propose(put("a", b"1"))
    leader = change(cluster, [1, 2, 3, 4, 5])
    stages = watch_stages(cluster, leader, lambda: bool(leader.listener.committed))
    assert stages == [Stage.CATCHING_UP, Stage.JOINT, Stage.STABLE, Stage.NONE]
    assert leader.listener.committed == [(1, 2, 3, 4, 5)]
    assert [peers for peers, _ in leader.listener.asked] == [(1, 2, 3, 4, 5)]
    cluster.wait_even()
    for member in cluster.members.values():
        assert member.group().status().voters == (1, 2, 3, 4, 5)
        assert member.machine.rows == leader.machine.rows


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([[1], [1, 2, 3], [1, 2, 3, 4, 5]], id="from one to three to five"),
        pytest.param([[1, 2, 3, 4, 5], [1, 2, 3], [1]], id="from five to three to one"),
        pytest.param([[1, 2, 3], [4, 5, 6]], id="to others altogether"),
        pytest.param([[1], [2]], id="one to another one"),
        pytest.param([[1, 2, 3], [1, 2, 4], [1, 4, 5], [4, 5, 6]], id="one at a time"),
        pytest.param([[1, 2, 3, 4, 5], [5]], id="from five to one"),
    ],
)
def test_a_group_can_move_anywhere(steps: list[list[int]]) -> None:
    # given a group somewhere
    first = steps[0]
    cluster = Cluster(nodes=0, spare=6, group="")
    for number in first:
        cluster[number].create("g", first)
    version = 0
    for token, peers in enumerate(steps[1:]):
        version += 1
        assert cluster.propose(put("a", b"x")) == [version]
        # when it is to be elsewhere
        changed(cluster, peers, token=token)
        remove_leftovers(cluster, peers)
        # then it is, with all that it had, and serves
        version += 1
        assert cluster.propose(put("a", b"x")) == [version]
        cluster.wait_even(*peers)
        for number in peers:
            status = cluster[number].group().status()
            assert status.voters == tuple(sorted(peers))
            assert (status.learners, status.voters_outgoing) == ((), ())
    # and every one of them starts again as a member
    for number in steps[-1]:
        cluster[number].restart()
    assert cluster.propose(put("a", b"x")) == [version + 1]


@pytest.mark.parametrize("shrink", [False, True])
def test_a_leader_that_does_not_belong_any_more_hands_over_to_one_that_does(shrink: bool) -> None:
    # given a leader that is not in the new list
    cluster = Cluster(spare=1)
    cluster.propose(put("a", b"1"))
    leader = cluster.wait_leader()
    others = sorted({1, 2, 3} - {leader.number})
    peers = others if shrink else [*others, 4]
    # when the change is through
    change(cluster, peers)
    cluster.run_until(lambda: any(cluster[number].listener.committed for number in peers))
    # then one of the new members leads, and says so: it was asked to lead while both had a say
    new = cluster.wait_leader()
    assert new.number in peers
    assert new.listener.committed == [tuple(peers)]
    assert not leader.group().leads
    assert leader.listener.committed in ([], [tuple(peers)])
    assert cluster.propose(put("a", b"2")) == [2]
    # and its copy disturbs nobody
    term = new.group().term
    cluster.run_for(3_000)
    assert cluster.wait_leader().group().term == term
    assert isinstance(leader.group().propose(put("a", b"3")).error, NotLeader)


def test_the_same_list_again_is_committed_at_once() -> None:
    cluster = Cluster()
    leader = changed(cluster, [3, 2, 1])
    assert leader.group().status().voters == (1, 2, 3)


def test_proposals_are_answered_in_every_stage() -> None:
    # given a change in which one stage after another is held up
    cluster = Cluster(spare=2)
    leader = cluster.wait_leader()
    leader.listener.finish = False
    change(cluster, [1, 2, 3, 4, 5])
    seen: dict[Stage, int] = {}
    version = 0

    def serve() -> None:
        nonlocal version
        stage = leader.group().status().stage
        future = leader.group().propose(put("a", b"x"))
        version += 1
        assert cluster.wait(future) == version
        if leader.group().status().stage is stage:
            seen[stage] = seen.get(stage, 0) + 1

    for _ in range(20):
        serve()
    assert seen[Stage.CATCHING_UP] >= 10
    cluster.run_until(lambda: bool(leader.listener.asked))
    leader.listener.asked[-1][1](True)
    while leader.group().status().stage is not Stage.NONE:
        serve()
        cluster.run_for(0.2)
    serve()
    assert seen[Stage.NONE] == 1
    cluster.wait_even()
    assert {m.machine.rows["a"].version for m in cluster.members.values()} == {version}


def test_new_members_are_learners_until_they_are_near() -> None:
    # given a newcomer that gets no entries
    cluster = Cluster(spare=1, config=replace(STALL, near_entries=5))
    cluster.propose(*(put("a", b"x" * 100) for _ in range(50)))
    hold_back_appends_to(cluster, 4)
    leader = change(cluster, [1, 2, 3, 4])
    cluster.run_for(1_000)
    # then it stays a learner, and everybody can see how far behind it is
    status = leader.group().status()
    assert (status.voters, status.learners) == ((1, 2, 3), (4,))
    assert status.stage is Stage.CATCHING_UP
    assert leader.listener.asked == []
    (peer,) = (p for p in status.peers if p.node == 4)
    assert peer.learner
    assert peer.entries_behind == status.last_index
    assert peer.bytes_behind > 5_000
    # and it is promoted once it has caught up
    cluster.network.loses = None
    cluster.run_until(lambda: bool(leader.listener.committed))
    (peer,) = (p for p in leader.group().status().peers if p.node == 4)
    assert not peer.learner
    assert peer.entries_behind <= 5


@pytest.mark.parametrize("missing", [5, 6])
def test_near_is_a_number_of_entries(missing: int) -> None:
    # given a limit of five entries, and a learner that lacks five, or six
    cluster = Cluster(spare=1, config=replace(STALL, near_entries=5))
    cluster.wait_leader()
    leader = cluster.wait_leader()
    leader.listener.finish = False
    change(cluster, [1, 2, 3, 4])
    cluster.run_until(lambda: bool(leader.listener.asked))
    cluster.wait_even()
    last = leader.group().status().last_index
    group = leader.group()

    def loses(sender: int, to: int, item: Item) -> bool:
        del sender
        return to == 4 and isinstance(item, Append) and bool(item.entries)

    cluster.network.loses = loses
    cluster.propose(*(put("a", b"x") for _ in range(missing)))
    assert group.status().last_index == last + missing
    progress = group.progress()[4]
    assert group.last_index() - progress.match == missing
    # then it is near at the limit, and not one entry further
    assert group._leadership.changes.is_near(4, progress) is (missing == 5)


@pytest.mark.slow
def test_the_way_of_a_learner_can_be_watched() -> None:
    # given a newcomer that is sent a large log in small windows
    config = replace(FAST, message_bytes_max=10_000, inflight_bytes_max=10_000, inflight_max=1)
    cluster = Cluster(spare=1, config=config)
    cluster.network.weather.delay_us_min = cluster.network.weather.delay_us_max = 20_000
    for _ in range(10):
        cluster.propose(*(put("a", b"x" * 1_000) for _ in range(100)))
    leader = change(cluster, [1, 2, 3, 4])
    seen: list[tuple[int, int, float, float | None]] = []
    while not leader.listener.committed:
        cluster.run_for(500)
        seen += [
            (p.entries_behind, p.bytes_behind, p.bytes_per_s, p.seconds_left)
            for p in leader.group().status().peers
            if p.node == 4 and p.learner
        ]
    # then what is missing shrinks, at a rate that says when it will be there
    entries = [entry for entry, *_ in seen]
    assert len(seen) >= 4
    assert entries == sorted(entries, reverse=True)
    rated = [(size, rate, left) for _, size, rate, left in seen if rate and size]
    assert len(rated) >= 2
    for size, rate, left in rated:
        assert left == pytest.approx(size / rate)


@pytest.mark.parametrize("long", [True, False])
def test_a_newcomer_gets_a_snapshot_if_it_would_else_be_sent_a_long_log(long: bool) -> None:
    # given a log of 100,000 bytes, most of them dead, and no snapshot
    near_bytes = 99_000 if long else 200_000
    cluster = Cluster(spare=1, config=replace(FAST, near_bytes=near_bytes))
    cluster.make_leader(1)
    cluster.propose(*(put(f"k{i % 10}", b"%03d" % i + b"x" * 1_000) for i in range(100)))
    cluster.wait_even()
    assert cluster[1].group().status().snapshot_index == 0
    sent: list[Item] = []
    cluster.network.on_sent = lambda one: sent.extend(
        item for _, item in one.items if one.to == 4 and isinstance(item, Append | InstallPiece)
    )
    # when a node is to join
    changed(cluster, [1, 2, 3, 4])
    cluster.wait_even()
    # then the leader took a snapshot first, and sent what is live in it; or all, if that is little
    pieces = [item for item in sent if isinstance(item, InstallPiece)]
    live = sum(len(piece.entries) for piece in pieces)
    entries = {e.index for item in sent if isinstance(item, Append) for e in item.entries}
    assert (live, len(entries) >= 100) == ((10, False) if long else (0, True))
    assert (cluster[1].group().status().snapshot_index > 0) is long
    assert cluster[4].machine.rows == cluster[1].machine.rows


# -- answers --------------------------------------------------------------------------------------


def test_whoever_does_not_lead_says_so() -> None:
    cluster = Cluster()
    leader = cluster.wait_leader()
    follower = cluster.followers()[0]
    answer = follower.group().change_peers(leader.group().term, 1, [1, 2])
    assert answer is ChangeAnswer.NOT_LEADER


@pytest.mark.parametrize("off", [-1, 1, 100])
def test_a_request_for_another_term_is_ignored_and_said_so(off: int) -> None:
    cluster = Cluster()
    leader = cluster.wait_leader()
    answer = leader.group().change_peers(leader.group().term + off, 1, [1, 2])
    assert answer is ChangeAnswer.OTHER_TERM
    assert leader.group().status().stage is Stage.NONE


def test_an_older_token_is_stale_also_after_the_change() -> None:
    cluster = Cluster(spare=1)
    leader = change(cluster, [1, 2, 3, 4], token=10)
    group = leader.group()
    assert group.change_peers(group.term, 9, [1, 2, 3]) is ChangeAnswer.STALE_TOKEN
    cluster.run_until(lambda: bool(leader.listener.committed))
    assert group.change_peers(group.term, 9, [1, 2, 3]) is ChangeAnswer.STALE_TOKEN
    assert group.status().voters == (1, 2, 3, 4)
    # and each is told of as every change that fails
    stale = ChangeFailed(error=ChangeError.STALE_TOKEN, token=9, peers=(1, 2, 3))
    assert leader.listener.errors == [stale, stale]
    assert group.change_peers(group.term, 11, [1, 2, 3]) is ChangeAnswer.RECEIVED


@pytest.mark.parametrize("peers", [[], [0, 1], [-1, 1]])
def test_a_list_that_can_not_be_is_refused(peers: list[int]) -> None:
    cluster = Cluster()
    leader = cluster.wait_leader()
    with pytest.raises(Rejected):
        leader.group().change_peers(leader.group().term, 1, peers)


@pytest.mark.parametrize("stage", [Stage.JOINT, Stage.STABLE])
def test_from_the_joint_stage_on_the_leader_is_busy_and_does_not_cancel(stage: Stage) -> None:
    cluster = Cluster(spare=1)
    leader = change(cluster, [1, 2, 3, 4], token=1)
    group = leader.group()
    cluster.run_until(lambda: group.status().stage is stage)
    assert group.change_peers(group.term, 2, [1, 2, 3]) is ChangeAnswer.BUSY
    assert group.cancel_change_peers() is False
    cluster.run_until(lambda: bool(leader.listener.committed))
    assert leader.listener.committed == [(1, 2, 3, 4)]
    assert group.cancel_change_peers() is True


def test_a_newer_list_replaces_one_that_is_being_caught_up() -> None:
    # given a change that waits for node 4, which gets nothing
    cluster = Cluster(spare=3)
    cluster.propose(put("a", b"1"))
    hold_back_appends_to(cluster, 4)
    leader = change(cluster, [1, 2, 3, 4, 5], token=1)
    cluster.run_until(lambda: leader.group().status().learners == (4, 5))
    # when a newer list comes without it
    change(cluster, [1, 2, 3, 5, 6], token=2)
    cluster.run_until(lambda: bool(leader.listener.committed))
    # then that one is put in force, and nobody speaks to node 4 any more
    assert leader.listener.committed == [(1, 2, 3, 5, 6)]
    assert leader.listener.errors == []
    assert leader.group().status().learners == ()
    sent = cluster.network.watch()
    cluster.run_for(1_000)
    assert not [s for s in sent if s.to == 4 and s.items and s.sender == leader.number]


def test_the_same_request_again_is_received_and_changes_nothing() -> None:
    # given a change that stands still
    cluster = Cluster(spare=1, config=STALL)
    cluster.propose(put("a", b"1"))
    hold_back_appends_to(cluster, 4)
    leader = change(cluster, [4, 3, 2, 1], token=1)
    # when it is asked for again and again, as an impatient caller does
    for _ in range(20):
        cluster.run_for(200)
        leader.group().change_peers(leader.group().term, 1, [4, 3, 2, 1])
        if leader.listener.errors:
            break
    # then that is no progress: it stalls as it should
    assert [error.error for error in leader.listener.errors] == [ChangeError.STALLED]


def test_cancelling_while_catching_up_leaves_the_old_members_and_no_learner() -> None:
    cluster = Cluster(spare=2)
    cluster.propose(put("a", b"1"))
    hold_back_appends_to(cluster, 4)
    leader = change(cluster, [1, 4, 5])
    cluster.run_until(lambda: leader.group().status().learners == (4, 5))
    assert leader.group().cancel_change_peers() is True
    cluster.run_until(lambda: not leader.group().status().learners)
    status = leader.group().status()
    assert (status.voters, status.stage) == ((1, 2, 3), Stage.NONE)
    assert (leader.listener.committed, leader.listener.errors) == ([], [])
    assert cluster.propose(put("a", b"2")) == [2]
    # and another change may follow at once
    cluster.network.loses = None
    changed(cluster, [1, 2, 3, 4], token=2)


def test_with_nothing_to_cancel_cancelling_succeeds() -> None:
    cluster = Cluster()
    assert cluster.wait_leader().group().cancel_change_peers() is True


def test_a_follower_may_ask_for_leadership_to_go_to_anybody() -> None:
    cluster = Cluster()
    cluster.make_leader(1)
    cluster.wait_even()
    # asked at a follower, for itself and for another one
    for asked, to in ((2, 3), (2, 2), (3, 1)):
        cluster[asked].group().transfer(to)
        cluster.run_until(lambda to=to: cluster.leader() is cluster[to])  # type: ignore[misc]
        cluster.wait_even()
    assert all(not m.here.transport.last_cut for m in cluster.members.values())


def test_leadership_can_go_to_voters_only() -> None:
    cluster = Cluster(spare=1)
    leader = cluster.wait_leader()
    with pytest.raises(NotAMember):
        leader.group().transfer(4)


# -- the last question ----------------------------------------------------------------------------


def asked_and_waiting(cluster: Cluster, peers: list[int]) -> Member:
    """A change whose listener was asked whether it may finish, and has not answered."""
    leader = cluster.wait_leader()
    leader.listener.finish = False
    change(cluster, peers, token=1)
    cluster.run_until(lambda: bool(leader.listener.asked))
    return leader


def test_a_yes_may_come_late() -> None:
    cluster = Cluster(spare=1)
    leader = asked_and_waiting(cluster, [1, 2, 3, 4])
    cluster.run_for(5_000)
    assert leader.group().status().stage is Stage.CATCHING_UP
    assert len(leader.listener.asked) == 1
    leader.listener.asked[0][1](True)
    cluster.run_until(lambda: bool(leader.listener.committed))
    assert leader.listener.committed == [(1, 2, 3, 4)]


def test_a_late_yes_promotes_nobody_who_has_fallen_behind_meanwhile() -> None:
    # given a learner that was near when the question was asked, and gets nothing since
    cluster = Cluster(spare=1, config=replace(FAST, near_entries=5))
    leader = asked_and_waiting(cluster, [1, 2, 3, 4])
    hold_back_appends_to(cluster, 4)
    cluster.propose(*(put("a", b"x") for _ in range(20)))
    # when the answer is yes
    leader.listener.asked[0][1](True)
    cluster.run_for(1_000)
    assert leader.group().status().stage is Stage.CATCHING_UP
    # then it is promoted when it is near again, and the question is not asked twice
    cluster.network.loses = None
    cluster.run_until(lambda: bool(leader.listener.committed))
    assert len(leader.listener.asked) == 1


def test_a_yes_that_finds_the_way_barred_is_not_asked_for_again() -> None:
    # given a leader that is handing leadership over, to somebody who does not answer
    cluster = Cluster(spare=1)
    leader = asked_and_waiting(cluster, [1, 2, 3, 4])
    other = next(m for m in cluster.followers() if m.number != 4)
    cluster.isolate(other.number)
    leader.group().transfer(other.number)
    # when the answer comes
    leader.listener.asked[0][1](True)
    assert leader.group().status().stage is Stage.CATCHING_UP
    # then the change goes on when the way is free, without another question
    cluster.run_until(lambda: bool(leader.listener.committed))
    assert len(leader.listener.asked) == 1


def test_after_a_no_the_same_list_with_a_newer_token_is_asked_about_again() -> None:
    cluster = Cluster(spare=1)
    leader = asked_and_waiting(cluster, [1, 2, 3, 4])
    leader.listener.asked[0][1](False)
    leader.listener.finish = True
    change(cluster, [1, 2, 3, 4], token=2)
    cluster.run_until(lambda: bool(leader.listener.committed))
    assert len(leader.listener.asked) == 2


def test_after_a_no_the_newer_list_is_awaited_and_asked_about() -> None:
    # given a listener that says no, since a newer list is on its way
    cluster = Cluster(spare=2)
    leader = asked_and_waiting(cluster, [1, 2, 3, 4])
    leader.listener.asked[0][1](False)
    cluster.run_for(2_000)
    assert leader.group().status().stage is Stage.CATCHING_UP
    assert len(leader.listener.asked) == 1
    # when it comes
    leader.listener.finish = True
    change(cluster, [1, 2, 3, 5], token=2)
    cluster.run_until(lambda: bool(leader.listener.committed))
    # then that is what is asked about, and what is put in force
    assert [peers for peers, _ in leader.listener.asked] == [(1, 2, 3, 4), (1, 2, 3, 5)]
    assert leader.listener.committed == [(1, 2, 3, 5)]


def test_an_answer_to_a_list_that_was_replaced_counts_for_nothing() -> None:
    cluster = Cluster(spare=2)
    leader = asked_and_waiting(cluster, [1, 2, 3, 4])
    change(cluster, [1, 2, 3, 5], token=2)
    leader.listener.asked[0][1](True)
    cluster.run_until(lambda: len(leader.listener.asked) == 2)
    leader.listener.asked[0][1](True)
    cluster.run_for(1_000)
    assert leader.group().status().stage is Stage.CATCHING_UP
    leader.listener.asked[1][1](True)
    cluster.run_until(lambda: bool(leader.listener.committed))
    assert leader.listener.committed == [(1, 2, 3, 5)]


def test_an_answer_after_a_cancel_counts_for_nothing() -> None:
    cluster = Cluster(spare=1)
    leader = asked_and_waiting(cluster, [1, 2, 3, 4])
    assert leader.group().cancel_change_peers() is True
    leader.listener.asked[0][1](True)
    cluster.run_for(2_000)
    status = leader.group().status()
    assert (status.voters, status.learners, status.stage) == ((1, 2, 3), (), Stage.NONE)
    assert leader.listener.committed == []


def test_an_answer_after_leadership_was_lost_counts_for_nothing() -> None:
    cluster = Cluster(spare=1)
    leader = asked_and_waiting(cluster, [1, 2, 3, 4])
    other = next(m for m in cluster.followers() if m.number != 4)
    cluster.make_leader(other.number)
    leader.listener.asked[0][1](True)
    cluster.run_for(1_000)
    assert cluster.wait_leader().group().status().voters == (1, 2, 3)
    assert leader.listener.committed == []


def test_a_second_answer_counts_for_nothing() -> None:
    cluster = Cluster(spare=1)
    leader = asked_and_waiting(cluster, [1, 2, 3, 4])
    answer = leader.listener.asked[0][1]
    answer(True)
    answer(True)
    answer(False)
    cluster.run_until(lambda: bool(leader.listener.committed))
    answer(True)
    cluster.run_for(1_000)
    assert leader.listener.committed == [(1, 2, 3, 4)]


def test_a_listener_may_ask_for_the_next_change_from_within_its_callback() -> None:
    cluster = Cluster(spare=1)
    leader = cluster.wait_leader()
    answers: list[ChangeAnswer] = []
    group = leader.group()

    def committed(peers: tuple[int, ...]) -> None:
        leader.listener.committed.append(peers)
        if len(leader.listener.committed) == 1:
            answers.append(group.change_peers(group.term, 2, [1, 2, 3]))

    leader.listener.on_change_peers_committed = committed  # type: ignore[method-assign]
    change(cluster, [1, 2, 3, 4])
    cluster.run_until(lambda: len(leader.listener.committed) == 2)
    assert answers == [ChangeAnswer.RECEIVED]
    assert leader.listener.committed == [(1, 2, 3, 4), (1, 2, 3)]


# -- failures -------------------------------------------------------------------------------------


def failed(cluster: Cluster, leader: Member) -> ChangeFailed:
    cluster.run_until(lambda: bool(leader.listener.errors))
    (error,) = leader.listener.errors
    return error


def check_as_before(cluster: Cluster, leader: Member) -> None:
    cluster.run_until(lambda: not leader.group().status().learners)
    status = leader.group().status()
    assert (status.voters, status.stage) == ((1, 2, 3), Stage.NONE)
    assert leader.listener.committed == []
    cluster.propose(put("after", b"x"))


def test_a_node_without_a_copy_fails_the_change_by_name() -> None:
    # given a node that is there, but has no copy of the group
    cluster = Cluster(spare=1, config=STALL)
    cluster.propose(put("a", b"1"))
    leader = change(cluster, [1, 2, 3, 4], token=5, create=False)
    began = cluster.now_ms
    error = failed(cluster, leader)
    assert error == ChangeFailed(error=ChangeError.NOT_STARTED, token=5, peers=(1, 2, 3, 4), node=4)
    waited = cluster.now_ms - began
    assert STALL.catch_up_stall_ms <= waited <= STALL.catch_up_stall_ms + 500
    check_as_before(cluster, leader)
    # and once it has one, the change can be made
    changed_leader = change(cluster, [1, 2, 3, 4], token=6)
    cluster.run_until(lambda: bool(changed_leader.listener.committed))


def test_a_node_that_is_down_fails_the_change_by_name() -> None:
    cluster = Cluster(spare=1, config=STALL)
    cluster.propose(put("a", b"1"))
    cluster[4].stop()
    leader = change(cluster, [1, 2, 3, 4], create=False)
    assert failed(cluster, leader).error is ChangeError.NOT_STARTED
    check_as_before(cluster, leader)


def test_a_node_that_starts_in_time_is_waited_for() -> None:
    cluster = Cluster(spare=1, config=STALL)
    cluster.propose(put("a", b"1"))
    leader = change(cluster, [1, 2, 3, 4], create=False)
    cluster.run_for(STALL.catch_up_stall_ms * 0.6)
    cluster[4].create("g")
    cluster.run_until(lambda: bool(leader.listener.committed or leader.listener.errors))
    assert leader.listener.committed == [(1, 2, 3, 4)]


def test_a_node_that_makes_no_progress_fails_the_change_by_name() -> None:
    cluster = Cluster(spare=1, config=STALL)
    cluster.propose(put("a", b"1"))
    hold_back_appends_to(cluster, 4)
    leader = change(cluster, [1, 2, 3, 4], token=8)
    error = failed(cluster, leader)
    assert error == ChangeFailed(error=ChangeError.STALLED, token=8, peers=(1, 2, 3, 4), node=4)
    check_as_before(cluster, leader)


@pytest.mark.slow
def test_a_slow_node_that_makes_progress_is_waited_for() -> None:
    # given a newcomer that gets an entry only now and then
    cluster = Cluster(spare=1, config=replace(STALL, message_bytes_max=2_000, near_entries=1))
    cluster.propose(*(put("a", b"x" * 1_500) for _ in range(12)))
    now = cluster.now_ms

    def loses(sender: int, to: int, item: Item) -> bool:
        nonlocal now
        del sender
        if to != 4 or not isinstance(item, Append) or not item.entries:
            return False
        if cluster.now_ms - now > 1_000:
            now = cluster.now_ms
            return False
        return True

    cluster.network.loses = loses
    leader = change(cluster, [1, 2, 3, 4])
    cluster.run_until(lambda: bool(leader.listener.committed or leader.listener.errors))
    # then it takes far longer than the limit, and does not fail
    assert leader.listener.errors == []


def test_losing_leadership_fails_a_change_that_is_catching_up() -> None:
    # given a change that is catching up
    cluster = Cluster(spare=1)
    leader = asked_and_waiting(cluster, [1, 2, 3, 4])
    other = next(m for m in cluster.followers() if m.number != 4)
    cluster.make_leader(other.number)
    (error,) = leader.listener.errors
    assert error == ChangeFailed(
        error=ChangeError.LOST_LEADERSHIP, token=1, peers=(1, 2, 3, 4), node=0
    )
    # then the old members serve, and the new leader, who was told of its election, asks again
    assert other.listener.elected
    status = other.group().status()
    assert (status.voters, status.stage) == ((1, 2, 3), Stage.NONE)
    assert cluster.propose(put("a", b"1")) == [1]
    changed(cluster, [1, 2, 3, 4])


def test_learners_that_a_new_leader_finds_go_when_the_new_list_does_not_want_them() -> None:
    cluster = Cluster(spare=2)
    leader = asked_and_waiting(cluster, [1, 2, 3, 4])
    other = next(m for m in cluster.followers() if m.number != 4)
    cluster.make_leader(other.number)
    assert other.group().status().learners == (4,)
    changed(cluster, [1, 2, 3, 5])
    status = cluster.wait_leader().group().status()
    assert (status.voters, status.learners) == ((1, 2, 3, 5), ())
    assert leader.listener.committed == []


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_leader_that_dies_in_the_joint_stage_leaves_no_joint_configuration(seed: int) -> None:
    # given a change whose joint configuration is in the log
    cluster = Cluster(seed, spare=2)
    cluster.propose(put("a", b"1"))
    leader = change(cluster, [1, 2, 3, 4, 5])
    cluster.run_until(lambda: leader.group().status().stage in {Stage.JOINT, Stage.STABLE})
    cluster.run_for(seed)
    # when its leader dies
    leader.crash()
    new = cluster.wait_leader(other_than=leader.number)
    # then the next one brings it to an end, whatever that is, and serves
    cluster.run_until(lambda: not new.group().status().voters_outgoing)
    status = new.group().status()
    assert status.voters in {(1, 2, 3), (1, 2, 3, 4, 5)}
    if status.voters == (1, 2, 3, 4, 5) and new.listener.committed:
        assert new.listener.committed == [(1, 2, 3, 4, 5)]
    assert cluster.propose(put("a", b"2")) == [2]
    # and says so to whoever asks: the change can be asked for again
    leader.start()
    changed(cluster, [1, 2, 3, 4, 5], token=9)


def test_a_new_leader_that_leaves_the_joint_configuration_says_that_it_is_committed() -> None:
    # given a leader that is cut off just when the joint configuration is in force
    cluster = Cluster(spare=2)
    leader = change(cluster, [1, 2, 3, 4, 5])
    cluster.run_until(lambda: leader.group().status().stage is Stage.STABLE)
    cluster.isolate(leader.number)
    # when another one takes over
    new = cluster.wait_leader(other_than=leader.number)
    cluster.run_until(lambda: new.group().status().voters == (1, 2, 3, 4, 5))
    cluster.run_until(lambda: not new.group().status().voters_outgoing)
    # then whoever listens there hears that the new members are in force
    cluster.run_until(lambda: bool(new.listener.committed))
    assert new.listener.committed == [(1, 2, 3, 4, 5)]


def test_joint_means_that_both_majorities_must_agree() -> None:
    # given a move from 1, 2, 3 to 1, 4, 5, in its joint stage
    cluster = Cluster(spare=3)
    leader = cluster.make_leader(1)
    change(cluster, [1, 4, 5])
    cluster.run_until(lambda: bool(leader.group().status().voters_outgoing))

    # when acknowledgements of the new majority do not arrive
    def loses(sender: int, to: int, item: Item) -> bool:
        del to
        return sender in {4, 5} and isinstance(item, AppendResponse)

    cluster.network.loses = loses
    waiting = leader.group().propose(put("a", b"1"), timeout_ms=1_000)
    cluster.run_for(500)
    # then nothing is committed by the old one alone
    assert not waiting.done
    cluster.network.loses = None
    cluster.run_until(lambda: bool(leader.listener.committed))
    assert cluster.propose(put("b", b"1")) == [1]


@pytest.mark.slow
def test_a_change_during_heavy_traffic_and_snapshots_ends_well() -> None:
    cluster = Cluster(spare=3, config=replace(FAST, snapshot_entries=40, near_entries=20))
    version = maybe = 0
    for token, peers in enumerate(([1, 2, 3, 4], [2, 3, 4, 5], [4, 5, 6])):
        for _ in range(4):
            results = cluster.propose(*(put("a", b"x") for _ in range(25)))
            version += 25
            assert isinstance(results[-1], int)
            assert version <= results[-1] <= version + maybe
        leader = change(cluster, peers, token=token)
        while not any(m.listener.committed for m in cluster.members.values() if m.has()):
            assert leader.listener.errors == []
            future = (cluster.leader() or leader).group().propose(put("a", b"x"))
            cluster.run_until(lambda f=future: f.done)  # type: ignore[misc]
            cluster.run_for(1)
            assert future.error is None or isinstance(future.error, OutcomeUnknown | NotLeader)
            version += future.error is None
            maybe += isinstance(future.error, OutcomeUnknown)
        for member in cluster.members.values():
            if member.has():
                member.listener.committed.clear()
        remove_leftovers(cluster, peers)
    cluster.wait_even(4, 5, 6)
    (result,) = {cluster[n].machine.rows["a"].version for n in (4, 5, 6)}
    assert version <= result <= version + maybe


def test_every_change_is_one_entry_of_the_log_or_two() -> None:
    # given one voter more
    cluster = Cluster(spare=1)
    cluster.propose(put("a", b"1"))
    leader = changed(cluster, [1, 2, 3, 4])
    # then the log has: a learner is added, the joint configuration is entered, and left
    group = leader.group()
    entries = group.raft.core.log.entries(1, 1 << 20) or []
    changes = [entry for entry in entries if entry.kind is not EntryKind.NORMAL]
    assert len(changes) == 3
