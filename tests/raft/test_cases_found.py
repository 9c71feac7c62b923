"""Cases in which this core was wrong once; most were found by walking at random (see `walk`)."""

from __future__ import annotations

import pytest

from lowmark.raft import (
    Append,
    AppendResponse,
    ConfChange,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    HeartbeatResponse,
    LogDiverged,
    MembershipRefused,
    Role,
    Snapshot,
    StorageAppended,
    Transition,
    Vote,
    VoteResponse,
)
from lowmark.raft.membership import restore
from lowmark.raft.messages import Forward
from raft.cluster import (
    ELECTION_TICKS,
    Cluster,
    Member,
    a_leader,
    acknowledge,
    append_to,
    change,
    entry,
)


def test_storage_is_given_no_order_that_says_nothing() -> None:
    # given a leader whose write is under way
    leader = a_leader()
    leader.holds_writes = True
    leader.raft.propose([b"a"])
    leader.work()
    assert len(leader.orders) == 1
    # when it has something to send, and nothing to write
    assert leader.tick() != []
    # then storage is not asked again whether the write is done
    assert len(leader.orders) == 1


def test_a_window_opens_as_soon_as_somebody_answers() -> None:
    # given a leader that may have one append on its way
    leader = a_leader(inflight_max=1)
    for node in (2, 3):
        acknowledge(leader, node, 1)
    leader.raft.propose([b"a"])
    leader.work()
    assert leader.core.progress[2].paused
    leader.raft.propose([b"b"])
    assert leader.work() == []
    # when it is answered
    sent = acknowledge(leader, 2, 2)
    # then the next goes out at once, without waiting for a heartbeat
    assert [m.to for m in sent if getattr(m, "entries", [])] == [2]


def test_a_candidate_learns_of_a_change_from_whoever_refuses_it_and_needs_it_no_more() -> None:
    # given the one who led until it applied, at 4, that node 2 is the only voter now; its log is
    # the longer one, and as a learner it can't be elected
    old = Member(1, members=ConfState(voters=(2,), learners=(1,)), first=5, log=(2, 2))
    # and node 2, which has that entry, but does not know that it is committed
    joint = ConfState(voters=(2,), voters_outgoing=(1, 2), learners_next=(1,), auto_leave=True)
    new = Member(2, members=joint, first=4, hard=HardState(term=2, commit=3))
    new.storage.append([Entry(4, 2, EntryKind.JOINT_CHANGE, b"")])
    new.start()
    # when time passes
    cluster = Cluster(old, new)
    cluster.tick(5 * ELECTION_TICKS)
    # then it leads: it was told by the refusal, and has needed no vote but its own since
    assert new.role() is Role.LEADER
    assert new.core.members.incoming == {2}
    assert not new.core.members.joint
    assert old.terms == new.terms[1:]


def test_a_commit_index_in_a_refusal_is_believed_only_if_the_entry_is_the_same() -> None:
    # given a candidate with an entry of term 1 at 2
    candidate = Member(1, log=(1, 1), pre_vote=False)
    candidate.raft.campaign()
    candidate.work()
    # when it is refused by somebody who has committed another one there
    candidate.step(
        VoteResponse(1, 2, 2, 0, pre=False, reject=True, commit=2, commit_term=2),
    )
    assert candidate.core.log.committed == 0
    candidate.step(
        VoteResponse(1, 3, 2, 0, pre=False, reject=True, commit=2, commit_term=1),
    )
    assert candidate.core.log.committed == 2


def test_a_change_that_could_never_be_applied_does_not_enter_the_log() -> None:
    # given a single voter
    leader = a_leader(voters=(1,))
    # when it is told to remove itself, and to leave what it never entered
    for wrong in (change("r1"), change("r1 l2", Transition.JOINT_EXPLICIT), ConfChange()):
        leader.raft.propose_change(wrong)
        leader.work()
        # then an empty entry takes its place, and everybody can apply that
        assert leader.storage.log[-1].kind is EntryKind.NORMAL
    assert leader.core.members.incoming == {1}


def test_a_forwarded_proposal_that_comes_twice_does_not_change_the_log() -> None:
    leader = a_leader(voters=(1,), forward_proposals=True)
    message = Forward(1, 2, 0, 0, [entry(0, 0, b"a")])
    leader.step(message, message)
    assert [(one.index, one.data) for one in leader.storage.log[1:]] == [(2, b"a"), (3, b"a")]


def test_a_read_is_answered_when_those_whose_answer_was_awaited_are_gone() -> None:
    # given a leader with a read under way, and a follower that does not answer heartbeats
    leader = a_leader(voters=(1, 2))
    acknowledge(leader, 2, 1)
    leader.raft.propose_change(change("r2"))
    leader.work()
    leader.raft.read_index(b"r")
    leader.work()
    assert leader.reads == []
    # when that follower is removed
    acknowledge(leader, 2, 2)
    # then the leader is a majority by itself
    assert leader.core.singleton
    assert [state.context for state in leader.reads] == [b"r"]


def test_a_leader_that_is_no_member_any_more_still_asks_for_reads() -> None:
    # given a leader that was removed, and goes on until another one takes over
    leader = a_leader(step_down_on_removal=False)
    acknowledge(leader, 2, 1)
    leader.raft.propose_change(change("r1"))
    leader.work()
    acknowledge(leader, 2, 2)
    assert leader.core.node not in leader.core.progress
    # when it is asked for a read
    leader.raft.read_index(b"r")
    beats = leader.work()
    # then both who are left must confirm it
    context = max(getattr(m, "context", 0) for m in beats)
    leader.step(HeartbeatResponse(1, 2, 1, 0, context))
    assert leader.reads == []
    leader.step(HeartbeatResponse(1, 3, 1, 0, context))
    assert [state.context for state in leader.reads] == [b"r"]


def test_what_is_applied_is_committed_even_if_that_was_not_durable() -> None:
    # given a disk with a snapshot at 3, and a note that 1 is committed
    member = Member(1, log=(1, 1, 1), hard=HardState(term=1, commit=1))
    member.storage.base = Snapshot(3, 1, ConfState(voters=(1, 2, 3)))
    # when the member begins
    member.start()
    # then it goes on behind the snapshot
    assert (member.core.log.committed, member.core.log.applied) == (3, 3)


def test_an_acknowledgement_of_a_snapshot_counts_in_any_term() -> None:
    # given a member that installs a snapshot while the term changes
    member = Member(1)
    member.holds_writes = True
    snapshot = Snapshot(5, 2, ConfState(voters=(1, 2, 3)))
    member.core.log.restore(snapshot)
    member.work()
    member.step(append_to(1, after=(5, 2), term=9))
    # when it is installed
    member.raft.appended(StorageAppended(2, 0, 0, snapshot))
    # then it is applied
    assert member.core.log.applied == 5
    assert member.core.log.unstable.snapshot is None


@pytest.mark.parametrize(
    "wrong",
    [
        ConfState(voters=(1,), learners=(1,)),
        ConfState(voters=(1,), learners_next=(1,)),
        ConfState(voters=(1,), auto_leave=True),
        ConfState(voters_outgoing=(1,)),
        ConfState(voters=(1,), incarnations=((2, 5),)),
    ],
)
def test_a_stored_configuration_that_can_not_be_is_refused(wrong: ConfState) -> None:
    with pytest.raises(MembershipRefused):
        restore(wrong)


def test_a_stranger_is_not_heard() -> None:
    leader = a_leader()
    leader.step(AppendResponse(1, 9, 1, 0, 1), HeartbeatResponse(1, 9, 1, 0))
    assert leader.core.log.committed == 0


@pytest.mark.parametrize(("asked_as", "votes"), [(0, False), (7, True)])
def test_a_new_copy_does_not_vote_as_the_one_that_it_replaces(asked_as: int, votes: bool) -> None:
    # given a node that was removed, lost its copy, and was added again at 7; its log is short yet
    member = Member(1)
    member.step(Append(1, 2, 3, 7, 0, 0, 0, []))
    member.core.leader = 0
    # when a candidate asks it that knows the members from before, or those of today
    sent = member.step(Vote(1, 2, 6, asked_as, 9, 2, pre=False, transfer=True))
    # then it judges only as what it is today: its old copy may have had what the candidate lacks
    granted = [m for m in sent if isinstance(m, VoteResponse) and not m.reject]
    assert bool(granted) is votes


@pytest.mark.parametrize("probing", [True, False])
def test_a_member_that_was_held_up_is_sent_no_entry_again_for_each_heartbeat_it_missed(
    probing: bool,
) -> None:
    # given a leader with entries that a member lacks: it was suspended, and so was its node
    leader = a_leader()
    acknowledge(leader, 2, 1)
    acknowledge(leader, 3, 1)
    leader.raft.propose([b"a", b"b"])
    leader.work()
    if probing:
        leader.raft.report_unreachable(3)
    # when it wakes up, and answers all heartbeats of a minute at a time
    answer = HeartbeatResponse(1, 3, leader.core.term, 0)
    sent = [m for m in leader.step(*[answer] * 600) if isinstance(m, Append)]
    # then one of them has something sent: the leader has other things to do
    assert [message.to for message in sent] == [3]
    # and it is sent once more after the next heartbeat, in case it was lost
    leader.raft.tick()
    leader.work()
    sent = [m for m in leader.step(answer, answer) if isinstance(m, Append)]
    assert [message.to for message in sent] == [3]


def test_a_copy_that_was_added_again_does_not_vote_by_a_configuration_of_its_past() -> None:
    """It read in the log that it had been the only voter once, and elected itself."""
    # given a node that was the only member, left, and is added again by the entry at 23
    copy = Member(1, members=ConfState(voters=()), rejoin_above=0)
    copy.step(Append(1, 3, 2, 23, 0, 0, 0, [entry(1, 1)]))
    assert copy.core.incarnation == 23
    # when it has learnt of the log only that it was the only voter, and hears nothing more
    copy.raft.found(ConfState(voters=(1,)))
    copy.tick(5 * ELECTION_TICKS)
    copy.raft.campaign()
    copy.work()
    # then it waits
    assert copy.role() is Role.FOLLOWER


def test_a_member_that_has_committed_something_else_is_not_counted() -> None:
    # given a member that knows three entries of term 1 as committed
    member = Member(1, log=(1, 1, 1), hard=HardState(term=1, commit=3))
    # when a leader of a later term has another one at 2
    with pytest.raises(LogDiverged):
        member.step(append_to(1, entry(2, 2), after=(1, 1), term=2))
    # then it has not acknowledged, and keeps what it has
    assert member.work() == []
    assert [member.core.log.term(index) for index in (1, 2, 3, 4)] == [1, 1, 1, None]


def test_a_member_that_names_more_than_the_leader_has_is_not_counted() -> None:
    # given a leader, and a follower that has committed what it lacks
    leader = a_leader()
    acknowledge(leader, 2, 9)
    # when there is more to commit
    leader.raft.propose([b"a"])
    leader.work()
    # then that follower has none of it
    assert leader.core.log.committed < leader.core.log.last_index
    assert leader.core.progress[2].match < 9
