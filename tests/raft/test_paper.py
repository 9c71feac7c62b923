"""The rules of the Raft paper, section by section (Ongaro and Ousterhout, extended version)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from lowmark.raft import (
    Append,
    AppendResponse,
    HardState,
    Heartbeat,
    Message,
    Role,
    TimeoutNow,
    Vote,
    VoteResponse,
)
from raft.cluster import (
    ELECTION_TICKS,
    Cluster,
    Member,
    a_leader,
    acknowledge,
    append_to,
    entry,
    heartbeat_to,
)


def a_candidate(**options: Any) -> Member:
    member = Member(1, pre_vote=False, **options)
    member.raft.campaign()
    member.work()
    assert member.role() is Role.CANDIDATE
    return member


def a_member_as(role: Role) -> Member:
    match role:
        case Role.FOLLOWER:
            return Member(1, hard=HardState(term=1))
        case Role.PRE_CANDIDATE:
            member = Member(1, hard=HardState(term=1))
            member.raft.campaign()
            member.work()
            return member
        case Role.CANDIDATE:
            return a_candidate()
        case Role.LEADER:
            return a_leader()


# -- terms (5.1) ----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", Role)
def test_5_1_whoever_hears_of_a_higher_term_takes_it_and_follows(role: Role) -> None:
    # given a member of term 1
    member = a_member_as(role)
    assert (member.role(), member.core.term) == (role, 1)
    # when it hears from the leader of term 2
    member.step(append_to(1, term=2))
    # then it follows that leader
    assert (member.role(), member.core.term, member.core.leader) == (Role.FOLLOWER, 2, 2)


@pytest.mark.parametrize("role", Role)
def test_5_1_what_comes_from_an_older_term_is_refused(role: Role) -> None:
    # given a member of term 1, which is about to be of term 2
    member = a_member_as(role)
    member.core.term = 2
    # when a leader or a candidate of term 1 sends something
    sent = member.step(
        append_to(1, entry(1, 1), commit=1),
        heartbeat_to(1),
        Vote(1, 3, 1, 0, 9, 9, pre=False),
    )
    # then nothing changes; a leader of the past is told the term
    assert member.core.log.committed == 0
    assert (member.role(), member.core.leader in {0, 1}) == (role, True)
    assert all(isinstance(m, AppendResponse) and (m.to, m.term) == (2, 2) for m in sent)


def test_5_2_a_member_begins_as_a_follower() -> None:
    assert Member(1).role() is Role.FOLLOWER


# -- elections (5.2) ------------------------------------------------------------------------------


def test_5_2_a_leader_sends_heartbeats_to_everybody_at_its_interval() -> None:
    leader = a_leader(heartbeat_ticks=3)
    assert leader.tick(2) == []
    beats = leader.tick()
    assert [(type(m), m.to, m.term) for m in beats] == [(Heartbeat, 2, 1), (Heartbeat, 3, 1)]


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE])
def test_5_2_who_hears_of_no_leader_stands_for_election_with_a_vote_for_itself(role: Role) -> None:
    # given a follower, or a candidate that did not win
    member = Member(1, pre_vote=False)
    if role is Role.CANDIDATE:
        member = a_candidate()
    term = member.core.term
    # when an election timeout passes
    sent = member.tick(ELECTION_TICKS)
    # then it begins a new term and asks everybody
    assert (member.role(), member.core.term, member.core.vote) == (Role.CANDIDATE, term + 1, 1)
    assert sent == [
        Vote(2, 1, term + 1, 0, 0, 0, pre=False),
        Vote(3, 1, term + 1, 0, 0, 0, pre=False),
    ]


@pytest.mark.parametrize(
    ("size", "yes", "no", "role"),
    [
        # a majority says yes
        (1, 0, 0, Role.LEADER),
        (3, 2, 0, Role.LEADER),
        (3, 1, 0, Role.LEADER),
        (5, 4, 0, Role.LEADER),
        (5, 3, 0, Role.LEADER),
        (5, 2, 0, Role.LEADER),
        (7, 3, 3, Role.LEADER),
        # a majority says no
        (3, 0, 2, Role.FOLLOWER),
        (5, 0, 4, Role.FOLLOWER),
        (5, 1, 3, Role.FOLLOWER),
        # neither
        (3, 0, 0, Role.CANDIDATE),
        (5, 1, 0, Role.CANDIDATE),
        (5, 1, 2, Role.CANDIDATE),
        (5, 0, 0, Role.CANDIDATE),
        (7, 2, 3, Role.CANDIDATE),
    ],
)
def test_5_2_an_election_of_one_round_is_won_by_a_majority(
    size: int, yes: int, no: int, role: Role
) -> None:
    member = Member(1, tuple(range(1, size + 1)), pre_vote=False)
    member.raft.campaign()
    member.work()
    for node in range(2, 2 + yes + no):
        reject = node >= 2 + yes
        member.raft.step(VoteResponse(1, node, 1, 0, pre=False, reject=reject))
    assert (member.role(), member.core.term) == (role, 1)


def test_5_2_a_member_votes_once_in_a_term_first_come_first_served() -> None:
    for first, second in ((2, 3), (3, 2)):
        member = Member(1)
        sent = member.step(
            Vote(1, first, 1, 0, 0, 0, pre=False),
            Vote(1, second, 1, 0, 0, 0, pre=False),
            Vote(1, first, 1, 0, 0, 0, pre=False),
        )
        answers = [(m.to, m.reject) for m in sent if isinstance(m, VoteResponse)]
        assert answers == [(first, False), (second, True), (first, False)]
        # in a later term it is free again
        sent = member.step(Vote(1, second, 2, 0, 0, 0, pre=False))
        assert sent == [VoteResponse(second, 1, 2, 0, pre=False)]


@pytest.mark.parametrize("term", [1, 2])
def test_5_2_a_candidate_that_hears_of_a_leader_follows_it(term: int) -> None:
    candidate = a_candidate()
    candidate.step(append_to(1, term=term))
    assert candidate.role() is Role.FOLLOWER
    assert (candidate.core.term, candidate.core.leader) == (term, 2)


def test_5_2_election_timeouts_are_spread_over_their_whole_range() -> None:
    # given a member that draws its timeouts
    drawn = set()
    member = Member(1, pre_vote=False, draw=Random(3).randrange)
    # when it stands for election again and again
    for _ in range(60 * ELECTION_TICKS):
        before = member.core.term
        member.tick()
        if member.core.term > before:
            drawn.add(member.core.election_timeout)
    # then each timeout from one to just under two intervals has occurred, and no other
    assert drawn == set(range(ELECTION_TICKS, 2 * ELECTION_TICKS))


def test_5_2_members_seldom_stand_for_election_at_the_same_time() -> None:
    dice, together, rounds = Random(5), 0, 500
    for _ in range(rounds):
        members = [Member(node, tuple(range(1, 6)), draw=dice.randrange) for node in range(1, 6)]
        timeouts = sorted(member.core.election_timeout for member in members)
        together += timeouts[0] == timeouts[1]
    assert together < 0.5 * rounds


# -- replication (5.3) ----------------------------------------------------------------------------


def test_5_3_a_leader_appends_a_proposal_and_sends_it_to_everybody() -> None:
    # given a leader with a log that everybody has
    leader = a_leader()
    acknowledge(leader, 2, 1)
    acknowledge(leader, 3, 1)
    # when a client proposes something
    leader.raft.propose([b"a"])
    sent = leader.work()
    # then it is in its log, and on its way to all
    assert leader.terms == [1, 1]
    assert sent == [
        Append(2, 1, 1, 0, 1, 1, 1, [entry(2, 1, b"a")]),
        Append(3, 1, 1, 0, 1, 1, 1, [entry(2, 1, b"a")]),
    ]


@pytest.mark.parametrize(
    ("size", "answers", "committed"),
    [
        (1, 0, True),
        (3, 0, False),
        (3, 1, True),
        (3, 2, True),
        (5, 0, False),
        (5, 1, False),
        (5, 2, True),
        (5, 3, True),
        (5, 4, True),
    ],
)
def test_5_3_an_entry_is_committed_once_a_majority_has_it(
    size: int, answers: int, committed: bool
) -> None:
    leader = a_leader(voters=tuple(range(1, size + 1)))
    for node in range(2, size + 1):
        acknowledge(leader, node, 1)
    leader.raft.propose([b"a"])
    leader.work()
    for node in range(2, 2 + answers):
        acknowledge(leader, node, 2)
    assert (leader.core.log.committed == 2) is committed
    assert ([one.data for one in leader.applied] == [b"", b"a"]) is committed


def test_5_3_a_leader_tells_followers_what_is_committed_and_they_apply_it() -> None:
    # given a cluster
    cluster = Cluster.of(3)
    cluster.elect(1)
    # when something is proposed
    cluster.propose(1, b"a", b"b")
    # then everybody applies it, in order
    for member in cluster.members.values():
        assert [one.data for one in member.applied] == [b"", b"a", b"b"]


@pytest.mark.parametrize("log", [(), (2,), (1, 2), (1,)])
def test_5_3_an_entry_commits_everything_before_it_of_older_terms_too(log: tuple[int, ...]) -> None:
    # given a new leader of term 3, with entries of older terms
    leader = a_leader(log=log, hard=HardState(term=2))
    # when its first entry is committed
    acknowledge(leader, 2, len(log) + 1)
    # then so is all before it, and it is applied in order
    assert [one.term for one in leader.applied] == [*log, 3]


@pytest.mark.parametrize(
    ("entries", "commit", "committed"),
    [(1, 1, 1), (2, 2, 2), (2, 1, 1), (1, 5, 1), (0, 5, 0)],
)
def test_5_3_a_follower_commits_what_it_has_of_what_the_leader_committed(
    entries: int, commit: int, committed: int
) -> None:
    member = Member(1)
    member.step(append_to(1, *(entry(at, 1) for at in range(1, entries + 1)), commit=commit))
    assert member.core.log.committed == committed
    assert [one.index for one in member.applied] == list(range(1, committed + 1))


@pytest.mark.parametrize(
    ("after", "accepted", "hint"),
    [
        # what it has committed
        ((0, 0), True, None),
        ((1, 1), True, None),
        # an entry that matches
        ((2, 2), True, None),
        # an entry of another term: the hint is the last that could match
        ((2, 1), False, (1, 1)),
        ((2, 4), False, (2, 2)),
        # no such entry
        ((3, 3), False, (2, 2)),
        ((9, 4), False, (2, 2)),
    ],
)
def test_5_3_a_follower_takes_entries_only_where_the_logs_agree(
    after: tuple[int, int], accepted: bool, hint: tuple[int, int] | None
) -> None:
    # given a follower that has entries of terms 1 and 2, the first one committed
    member = Member(1, log=(1, 2), hard=HardState(term=2, commit=1))
    # when a leader sends entries that follow (index, term)
    (answer,) = member.step(append_to(1, after=after, term=4))
    # then it says whether it has that entry; if not, where to try next
    assert isinstance(answer, AppendResponse)
    assert answer.reject is not accepted
    if hint is not None:
        assert (answer.index, answer.hint, answer.hint_term) == (after[0], *hint)


@pytest.mark.parametrize(
    ("after", "terms", "result"),
    [
        ((2, 2), (3,), [1, 2, 3]),
        ((1, 1), (3, 4), [1, 3, 4]),
        ((0, 0), (1,), [1, 2]),
        ((0, 0), (3,), [3]),
        ((1, 1), (2,), [1, 2]),
        ((1, 1), (), [1, 2]),
    ],
    ids=["extends", "replaces", "repeats", "replaces all", "repeats the end", "says nothing"],
)
def test_5_3_a_follower_drops_what_conflicts_and_only_that(
    after: tuple[int, int], terms: tuple[int, ...], result: list[int]
) -> None:
    # given a follower with entries of terms 1 and 2
    member = Member(1, log=(1, 2))
    # when entries come
    entries = [entry(after[0] + at, term) for at, term in enumerate(terms, start=1)]
    member.step(append_to(1, *entries, after=after, term=4))
    # then its log is this, in memory and on disk
    assert member.terms == result
    assert [one.term for one in member.storage.log] == result


FIGURE_7 = {
    "a": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b": (1, 1, 1, 4),
    "c": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e": (1, 1, 1, 4, 4, 4, 4),
    "f": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("log", FIGURE_7.values(), ids=FIGURE_7)
def test_5_3_a_leader_makes_every_log_of_figure_7_like_its_own(log: tuple[int, ...]) -> None:
    # given the leader of figure 7, a follower with one of its logs, and one that only votes
    leader_log = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
    leader = Member(1, log=leader_log, hard=HardState(term=7), pre_vote=False)
    follower = Member(2, log=log, hard=HardState(term=7))
    cluster = Cluster(leader, follower, Member(3, hard=HardState(term=7)))
    # when it is elected for term 8
    probes: list[Append] = []

    def see(message: Message) -> bool:
        if isinstance(message, Append) and message.to == 2:
            probes.append(message)
        return True

    cluster.passes = see
    cluster.elect(1)
    # then both logs are the same
    assert follower.terms == [*leader_log, 8] == leader.terms
    assert follower.core.log.committed == len(leader_log) + 1
    # and no term was probed twice
    probed = [m.log_term for m in probes if m.index <= len(leader_log)]
    assert len(probed) <= len(set(leader_log) | set(log)) + 1


# -- safety (5.4) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("log", [(1,), (1, 2), (1, 2, 2)])
def test_5_4_1_a_request_for_a_vote_says_how_the_candidates_log_ends(log: tuple[int, ...]) -> None:
    member = Member(1, log=log, pre_vote=False)
    sent = member.tick(ELECTION_TICKS)
    term = log[-1] + 1
    assert sent == [Vote(node, 1, term, 0, len(log), log[-1], pre=False) for node in (2, 3)]


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize(
    ("log", "index", "term", "granted"),
    [
        # the same last term: the longer log is better
        ((1,), 1, 1, True),
        ((1,), 2, 1, True),
        ((1, 1), 1, 1, False),
        # the higher last term is better, however short
        ((1,), 1, 2, True),
        ((1,), 2, 2, True),
        ((1, 1), 1, 2, True),
        ((2,), 1, 1, False),
        ((2,), 2, 1, False),
        ((2, 1), 1, 1, False),
    ],
)
def test_5_4_1_nobody_votes_for_a_log_worse_than_its_own(
    log: tuple[int, ...], index: int, term: int, granted: bool, pre: bool
) -> None:
    member = Member(1, log=log)
    (answer,) = member.step(Vote(1, 2, 3, 0, index, term, pre))
    assert isinstance(answer, VoteResponse)
    assert answer.reject is not granted


@pytest.mark.parametrize(("index", "committed"), [(1, 0), (2, 0), (3, 3)])
def test_5_4_2_only_entries_of_its_own_term_are_committed_by_counting(
    index: int, committed: int
) -> None:
    # given a leader of term 3 with entries of terms 1 and 2 before its own
    leader = a_leader(log=(1, 2))
    # when a majority has everything up to an index
    acknowledge(leader, 2, index)
    assert leader.core.log.committed == committed


# -- thesis: hand-over (3.10), check of quorum (6.2) -----------------------------------------------


def test_3_10_leadership_is_handed_over_to_a_member_that_has_everything() -> None:
    # given a leader, and a follower that is behind
    cluster = Cluster.of(3)
    leader = cluster.elect(1)
    cluster.isolate(2)
    cluster.propose(1, b"a")
    cluster.heal()
    # when leadership is to be handed to it
    leader.raft.transfer_leader(2)
    # then it gets what it misses first, and leads without waiting for a timeout
    cluster.tick()
    assert cluster[2].role() is Role.LEADER
    assert cluster[2].core.term == 2
    assert leader.role() is Role.FOLLOWER


def test_3_10_a_hand_over_that_takes_too_long_is_given_up() -> None:
    leader = a_leader(check_quorum=False)
    leader.raft.transfer_leader(3)
    assert leader.core.transferee == 3
    leader.tick(ELECTION_TICKS)
    assert leader.core.transferee == 0
    leader.raft.propose([b"a"])


def test_3_10_a_member_that_ignored_the_call_is_called_again() -> None:
    # given a leader whose call to take over is lost, or comes before its voter can campaign
    cluster = Cluster.of(3)
    leader = cluster.elect(1)
    cluster.passes = lambda message: not isinstance(message, TimeoutNow)
    leader.raft.transfer_leader(2)
    cluster.tick()
    assert leader.role() is Role.LEADER
    assert leader.core.transferee == 2
    # when the member answers the next heartbeat
    cluster.heal()
    cluster.tick(2)
    # then it is called again, and leads
    assert cluster[2].role() is Role.LEADER


def test_3_10_an_election_that_the_leader_asked_for_is_not_ignored() -> None:
    # given a follower that has just heard of its leader
    member = Member(1)
    member.step(heartbeat_to(1))
    # when somebody asks for its vote, because of a timeout or because the leader told it to
    assert member.step(Vote(1, 3, 2, 0, 0, 0, pre=False)) == []
    sent = member.step(Vote(1, 3, 2, 0, 0, 0, pre=False, transfer=True))
    # then it votes in the second case
    assert sent == [VoteResponse(3, 1, 2, 0, pre=False)]
    # and whoever is told to take over says so
    votes = Member(3).step(TimeoutNow(3, 2, 1, 0))
    assert [m.transfer for m in votes if isinstance(m, Vote)] == [True, True]


def test_6_2_a_leader_that_a_majority_does_not_answer_steps_down() -> None:
    cluster = Cluster.of(5)
    leader = cluster.elect(1)
    # given a leader that two of four answer
    cluster.isolate(1, 2, 3)
    cluster.tick(3 * ELECTION_TICKS, 1)
    assert leader.role() is Role.LEADER
    # when only one does
    cluster.isolate(1, 2)
    cluster.tick(2 * ELECTION_TICKS, 1)
    assert leader.role() is Role.FOLLOWER
