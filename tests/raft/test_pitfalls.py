"""Twenty-five ways in which others got Raft wrong (raft-and-log.md, section 5), by number.

These are about the core alone, with a disk that may be slow or forget what it did not finish. Where
a real disk or wire matters as well, a simulation of whole groups completes the test; the docstring
says so.
"""

from __future__ import annotations

from typing import Any

import pytest

from lowmark.errors import Rejected
from lowmark.raft import (
    Append,
    AppendResponse,
    ConfChange,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Install,
    LogLost,
    Message,
    ProgressState,
    ProposalDropped,
    Role,
    Snapshot,
    TimeoutNow,
    Transition,
    Vote,
    VoteResponse,
)
from lowmark.raft.state import DropReason, ReadMode
from raft.cluster import (
    ELECTION_TICKS,
    Cluster,
    Member,
    a_leader,
    acknowledge,
    append_to,
    change,
    entry,
    heartbeat_to,
)


def change_entry(index: int, term: int, word: str) -> Entry:
    return Entry(index, term, EntryKind.JOINT_CHANGE, change(word).encode())


# -- commit ---------------------------------------------------------------------------------------


def test_01_an_entry_of_an_older_term_is_not_committed_by_counting() -> None:
    """Pitfall 1 (paper, figure 8)."""
    # given a leader of term 3 whose log ends with an entry of term 2
    leader = a_leader(log=(1, 2))
    assert leader.core.term == 3
    # when a majority has that entry
    acknowledge(leader, 2, 2)
    # then it is not committed: a later leader could still overwrite it
    assert leader.core.log.committed == 0
    # when a majority has an entry of the leader's own term
    acknowledge(leader, 2, 3)
    # then everything up to it is committed
    assert leader.core.log.committed == 3


def test_02_a_leader_counts_itself_only_when_its_own_write_is_durable() -> None:
    """Pitfall 2. A group's simulation completes it with a disk that loses what was not synced."""
    # given a leader whose disk is slow
    leader = a_leader()
    acknowledge(leader, 2, 1)
    leader.holds_writes = True
    leader.raft.propose([b"a"])
    leader.work()
    # when one follower of two has the entry
    acknowledge(leader, 2, 2)
    # then that is one of three, not two
    assert leader.core.log.committed == 1
    # when the leader's own write is done
    leader.holds_writes = False
    leader.work()
    assert leader.core.log.committed == 2


def test_02_two_followers_may_commit_what_the_leader_has_not_written_yet() -> None:
    leader = a_leader()
    leader.holds_writes = True
    leader.raft.propose([b"a"])
    leader.work()
    acknowledge(leader, 2, 2)
    acknowledge(leader, 3, 2)
    assert leader.core.log.committed == 2
    # but it does not apply it
    assert [one.index for one in leader.applied] == [1]


def test_03_a_write_that_was_overwritten_meanwhile_is_not_believed_to_be_durable() -> None:
    """Pitfall 3 (Ra 516, 637)."""
    # given a follower that is writing an entry of term 1 and then one of term 2 over it
    member = Member(1)
    member.holds_writes = True
    member.step(append_to(1, entry(1, 1, b"old"), term=1, leader=2))
    member.step(append_to(1, entry(1, 2, b"new"), term=2, leader=3))
    # when the first write is done
    member.write()
    # then the log still says what is to be there in the end, and does not take it for durable
    assert member.core.log.term(1) == 2
    assert member.core.log.unstable.offset == 1
    # and the old leader is told in the old term, which nobody listens to any more
    assert member.sent == [AppendResponse(2, 1, 1, 0, 1)]
    member.write()
    assert member.core.log.unstable.offset == 2


def test_03_an_entry_overwritten_and_overwritten_back_is_not_durable_by_its_first_write() -> None:
    """Pitfall 3: (index, term) are the same as in the first write, and a write is on its way that
    undoes it for a while. Only the term in which the write was ordered tells them apart.
    """
    # given three writes in line: an entry, another one in its place, and the first one again
    member = Member(1, (1, 2, 3, 4, 5))
    member.holds_writes = True
    member.step(append_to(1, entry(1, 1, b"a"), term=1, leader=2))
    member.step(append_to(1, entry(1, 2, b"b"), term=2, leader=3))
    member.step(append_to(1, entry(1, 1, b"a"), term=3, leader=2))
    # when the first is done
    member.write()
    # then what the disk says is not used: the second will change it
    assert member.core.log.unstable.offset == 1
    member.write()
    assert member.storage.term(1) == 2
    assert member.core.log.term(1) == 1
    # when the last is done
    member.write()
    assert member.core.log.unstable.offset == 2
    assert member.storage.term(1) == 1


def test_04_only_entries_that_this_leader_has_vouched_for_are_committed() -> None:
    """Pitfall 4 (Ra 508)."""
    # given a follower with a tail of an older leader
    member = Member(1, log=(1, 1, 1))
    # when a new leader has agreed on the first entry only, and has committed three
    sent = member.step(append_to(1, after=(1, 1), term=2, commit=3))
    # then the tail is not committed: it may be another than the leader's
    assert member.core.log.committed == 1
    assert sent == [AppendResponse(2, 1, 2, 0, 1)]


def test_05_a_heartbeat_commits_no_more_than_is_known_to_be_the_same() -> None:
    """Pitfall 5."""
    # given a leader that has committed two entries with one follower, and has not heard of another
    leader = a_leader()
    acknowledge(leader, 2, 1)
    leader.raft.propose([b"a"])
    leader.work()
    acknowledge(leader, 2, 2)
    # when it sends heartbeats
    beats = [m for m in leader.tick() if isinstance(m, Heartbeat)]
    # then each one says what the follower is known to have
    assert {m.to: m.commit for m in beats} == {2: 2, 3: 0}


def test_06_what_is_not_durable_here_is_not_applied() -> None:
    """Pitfall 6 (Ra 562). What a machine persists itself is checked by a group's simulation."""
    # given a follower whose disk is slow
    member = Member(1)
    member.holds_writes = True
    # when it learns that an entry is committed
    member.step(append_to(1, entry(1, 1), commit=1))
    # then it is not applied
    assert member.core.log.committed == 1
    assert member.applied == []
    # before it is durable
    member.holds_writes = False
    member.work()
    assert [one.index for one in member.applied] == [1]


def test_07_a_vote_is_durable_before_anybody_hears_of_it() -> None:
    """Pitfall 7. That a file's directory is synced too is checked by the log's own simulation."""
    # given a member whose disk is slow
    member = Member(1)
    member.holds_writes = True
    # when it is asked for a vote
    assert member.step(Vote(1, 2, 5, 0, 0, 0, pre=False)) == []
    # and it crashes before its vote is written
    member.start()
    # then it may vote for another
    member.holds_writes = False
    assert member.step(Vote(1, 3, 5, 0, 0, 0, pre=False)) == [VoteResponse(3, 1, 5, 0, pre=False)]
    # but not for two, not even after a crash
    member.start()
    assert (member.core.term, member.core.vote) == (5, 3)
    refusal = member.step(Vote(1, 2, 5, 0, 0, 0, pre=False))
    assert [m.reject for m in refusal if isinstance(m, VoteResponse)] == [True]


def test_07_an_acknowledgement_waits_for_the_disk() -> None:
    member = Member(1)
    member.holds_writes = True
    assert member.step(append_to(1, entry(1, 1))) == []
    # a refusal waits as well: it carries a term that must not be forgotten
    assert member.step(append_to(1, after=(5, 2), term=2)) == []
    member.holds_writes = False
    assert [m.term for m in member.work()] == [1, 2]


# -- membership -----------------------------------------------------------------------------------


def test_08_a_leader_changes_members_only_after_an_entry_of_its_own_term() -> None:
    """Pitfall 8 (the bug in single-server changes)."""
    # given a leader whose first entry is not committed
    leader = a_leader()
    # when it is asked to change members
    leader.raft.propose_change(change("v4"))
    leader.work()
    # then an empty entry is put in the change's place
    last = leader.storage.log[-1]
    assert (last.index, last.kind, last.data) == (2, EntryKind.NORMAL, b"")
    # when its first entry is applied, it does
    acknowledge(leader, 2, 2)
    leader.raft.propose_change(change("v4"))
    leader.work()
    acknowledge(leader, 2, 3)
    assert leader.core.members.incoming == {1, 2, 3, 4}


def test_09_a_change_takes_effect_when_it_is_applied_and_leaves_no_trace_if_it_is_not() -> None:
    """Pitfall 9 (Ra 600)."""
    # given a follower with a change in its log that is not committed
    member = Member(1, pre_vote=False)
    member.step(append_to(1, change_entry(1, 1, "v4 v5")))
    assert member.core.members.incoming == {1, 2, 3}
    # when another leader overwrites it
    member.step(append_to(1, entry(1, 2), term=2, leader=3, commit=1))
    # then nothing has to be rolled back
    assert member.core.members.incoming == {1, 2, 3}
    assert member.terms == [2]
    # and it asks the members there are
    votes = member.tick(ELECTION_TICKS)
    assert [m.to for m in votes if isinstance(m, Vote)] == [2, 3]


def joint_cluster() -> Cluster:
    """Leader 1 has applied a joint configuration, and its order to leave it is lost."""
    cluster = Cluster.of(5, pre_vote=False)
    cluster.elect(1)
    leave = EntryKind.JOINT_CHANGE, b""

    def no_leave(message: Message) -> bool:
        if isinstance(message, Append):
            return all((one.kind, one.data) != leave for one in message.entries)
        return True

    cluster.passes = no_leave
    cluster[1].raft.propose_change(change("r5", Transition.JOINT_IMPLICIT))
    cluster.run()
    assert all(cluster[node].core.members.joint for node in (1, 2))
    return cluster


def test_10_a_new_leader_leaves_a_joint_configuration_that_was_to_be_left_by_itself() -> None:
    """Pitfall 10 (etcd 12136)."""
    # given a joint configuration whose leader is gone before it was left
    cluster = joint_cluster()
    cluster.isolate(1)
    # when another leader is elected
    cluster.elect(2)
    # then it leaves the joint configuration
    assert not cluster[2].core.members.joint
    assert cluster[2].core.members.incoming == {1, 2, 3, 4}


def test_10_a_joint_configuration_is_left_once_a_hand_over_has_failed() -> None:
    # given a leader that is handing over when a joint configuration could be left
    cluster = Cluster.of(3, pre_vote=False, check_quorum=False)
    leader = cluster.elect(1)
    cluster.isolate(3)
    leader.raft.propose_change(change("l3", Transition.JOINT_IMPLICIT))
    leader.work()
    leader.raft.transfer_leader(3)
    cluster.passes = lambda m: m.to != 3
    acknowledge(leader, 2, 2)
    acknowledge(leader, 3, 2)
    assert leader.core.members.joint
    # when the hand-over is given up, without anything else happening
    leader.tick(ELECTION_TICKS)
    # then the order to leave is in the log
    assert leader.storage.log[-1].kind is EntryKind.JOINT_CHANGE
    assert leader.storage.log[-1].data == b""


def test_10_a_second_order_to_leave_does_nothing() -> None:
    """Pitfall 10 (etcd 12582)."""
    # given a leader whose order to leave is in the log already
    cluster = joint_cluster()
    leader = cluster[1]
    before = leader.core.log.last_index
    # when somebody gives it again
    leader.raft.propose_change(ConfChange())
    cluster.heal()
    cluster.tick()
    # then an empty entry takes its place
    assert leader.storage.term(before + 1) == leader.core.term
    assert cluster[2].core.members.incoming == {1, 2, 3, 4}
    assert not cluster[2].core.members.joint


def test_11_nobody_campaigns_who_has_a_committed_change_to_apply() -> None:
    """Pitfall 11."""
    # given a member that knows of a committed change but could not apply it yet
    member = Member(1, pre_vote=False)
    member.holds_writes = True
    member.step(append_to(1, change_entry(1, 1, "v4"), commit=1))
    assert (member.core.log.committed, member.core.log.applied) == (1, 0)
    # when it hears of no leader, or is asked to take over
    member.tick(2 * ELECTION_TICKS)
    member.step(TimeoutNow(1, 2, 1, 0))
    # then it does not stand for election: the voters may be others
    assert (member.role(), member.core.term) == (Role.FOLLOWER, 1)
    # when it has applied it, it asks the new members
    member.holds_writes = False
    member.work()
    votes = member.tick(ELECTION_TICKS)
    assert [m.to for m in votes if isinstance(m, Vote)] == [2, 3, 4]


def test_12_a_learner_votes_when_asked() -> None:
    """Pitfall 12: whoever asks may know that it was promoted."""
    learner = Member(3, (1, 2), learners=(3,))
    assert learner.step(Vote(3, 2, 1, 0, 0, 0, pre=False)) == [VoteResponse(2, 3, 1, 0, pre=False)]


def test_13_leadership_is_not_handed_to_somebody_without_a_vote() -> None:
    """Pitfall 13 (Ra 525)."""
    # given a leader with a learner that has everything
    cluster = Cluster(*(Member(node, (1, 2), learners=(3,)) for node in (1, 2, 3)))
    leader = cluster.elect(1)
    # when leadership is to be handed to the learner, or to a stranger
    leader.raft.transfer_leader(3)
    leader.raft.transfer_leader(9)
    # then nothing happens
    assert leader.core.transferee == 0
    assert leader.work() == []
    # and a learner that is told to take over does not
    cluster[3].step(TimeoutNow(3, 1, leader.core.term, 0))
    assert cluster[3].role() is Role.FOLLOWER


def readded() -> Member:
    """A leader that had node 3, removed it at 2 and added it again at 3, all in one term."""
    leader = a_leader()
    acknowledge(leader, 2, 1)
    acknowledge(leader, 3, 1)
    for at, word in enumerate(("r3", "v3"), start=2):
        leader.raft.propose_change(change(word))
        leader.work()
        acknowledge(leader, 2, at)
    assert leader.core.progress[3].incarnation == 3
    assert leader.core.progress[3].match == 0
    return leader


def test_14_what_an_earlier_incarnation_acknowledged_moves_nothing() -> None:
    """Pitfall 14 (raft-rs 571, etcd-io/raft 349)."""
    # given a node that was removed and added again within one term
    leader = readded()
    before = leader.core.progress[3]
    was = (before.match, before.next, before.state)
    # when acknowledgements, refusals and heartbeats of its earlier membership come in
    term = leader.core.term
    leader.step(
        AppendResponse(1, 3, term, 0, 1),
        AppendResponse(1, 3, term, 0, 2, reject=True, hint=1, hint_term=1),
        HeartbeatResponse(1, 3, term, 0, context=0),
    )
    # then its progress stands where it stood
    now = leader.core.progress[3]
    assert (now.match, now.next, now.state) == was
    # when it answers as what it is now, it moves
    acknowledge(leader, 3, 3, incarnation=3)
    assert now.match == 3


def test_14_a_vote_of_an_earlier_incarnation_does_not_count() -> None:
    # given a candidate that knows of node 3 as of entry 3
    members = ConfState(voters=(1, 2, 3), incarnations=((3, 3),))
    candidate = Member(1, members=members, pre_vote=False)
    candidate.raft.campaign()
    candidate.work()
    # when its earlier incarnation says yes
    candidate.step(VoteResponse(1, 3, 1, 0, pre=False))
    assert candidate.role() is Role.CANDIDATE
    # and then its present one
    candidate.step(VoteResponse(1, 3, 1, 3, pre=False))
    assert candidate.role() is Role.LEADER


def test_14_a_copy_in_place_of_a_lost_one_says_nothing_until_its_node_is_added_again() -> None:
    # given a new copy of a node whose copy was lost when it had been added at 3; it even knows
    # who the members were
    copy = Member(3, rejoin_above=3)
    # when it is asked anything at all as what it was, or time passes
    heard: list[Message] = [
        Vote(3, 1, 9, 3, 5, 5, pre=False),
        Vote(3, 1, 9, 3, 5, 5, pre=True),
        Append(3, 1, 9, 3, 0, 0, 0, [entry(1, 1)]),
        Heartbeat(3, 1, 9, 3, 0),
        Install(3, 1, 9, 3, Snapshot(8, 8, ConfState(voters=(1, 2, 3)))),
        TimeoutNow(3, 1, 9, 3),
    ]
    # then it does not answer, and learns nothing
    assert copy.step(*heard) == []
    copy.raft.campaign()
    assert copy.tick(5 * ELECTION_TICKS) == []
    assert (copy.core.term, copy.core.log.last_index) == (0, 0)
    # when somebody knows it as added again
    sent = copy.step(Append(3, 1, 9, 7, 0, 0, 0, [entry(1, 1)]))
    # then it follows, and says as what; and it remembers that
    assert sent == [AppendResponse(1, 3, 9, 7, 1)]
    copy.start()
    assert copy.step(Heartbeat(3, 1, 9, 7, 1)) == [HeartbeatResponse(1, 3, 9, 7)]


def test_14_a_late_heartbeat_to_an_earlier_incarnation_accuses_nobody_of_having_lost_its_log() -> (
    None
):
    # given a new copy that was added again and has no log yet
    copy = Member(3, rejoin_above=0)
    copy.step(Heartbeat(3, 1, 2, 7, 0))
    # when a heartbeat to the lost copy comes late: that one had five entries
    sent = copy.step(Heartbeat(3, 1, 2, 0, 5))
    # then it only says that it is there
    assert sent == [HeartbeatResponse(1, 3, 2, 7)]
    assert copy.core.log.committed == 0


def test_14_a_node_that_learns_from_its_log_that_it_was_added_again_counts_its_own_vote() -> None:
    # given a node that a leader called by its old incarnation when it sent that it was removed and
    # added again
    member = Member(3, pre_vote=False, hard=HardState(incarnation=0))
    member.step(
        append_to(3, change_entry(1, 1, "r3"), change_entry(2, 1, "v3"), leader=1, commit=2)
    )
    assert member.core.members.incarnation(3) == 2
    # when it stands for election and gets one vote more
    member.tick(2 * ELECTION_TICKS)
    member.step(VoteResponse(3, 2, member.core.term, 0, pre=False))
    # then it leads: its own vote is of the present incarnation
    assert member.role() is Role.LEADER
    assert member.storage.hard.incarnation == 2


def test_15_a_snapshot_has_the_members_at_its_index_and_what_follows_changes_them() -> None:
    """Pitfall 15. That a driver stores them so is checked by a group's simulation."""
    # given a leader that made a snapshot, and added a node afterwards
    cluster = Cluster.of(2)
    leader = cluster.elect(1)
    cluster.propose(1, b"a", b"b")
    leader.compact()
    leader.raft.propose_change(change("v3"))
    cluster.run()
    # when the node comes up, empty
    cluster.members[3] = Member(3, ())
    installed: list[Snapshot] = []

    def see(message: Message) -> bool:
        if isinstance(message, Install):
            installed.append(message.snapshot)
        return True

    cluster.passes = see
    cluster.tick(2)
    # then it gets a snapshot that does not know it, takes it, and learns the rest from the log
    assert [snapshot.members.voters for snapshot in installed] == [(1, 2)]
    assert cluster[3].core.members.incoming == {1, 2, 3}
    assert cluster[3].core.log.committed == leader.core.log.last_index


# -- elections ------------------------------------------------------------------------------------


def test_16_a_member_that_was_cut_off_disturbs_nobody_when_it_returns() -> None:
    """Pitfall 16."""
    # given a member that was cut off for a long time
    cluster = Cluster.of(3)
    leader = cluster.elect(1)
    cluster.isolate(3)
    cluster.tick(10 * ELECTION_TICKS)
    # then its term has not risen
    assert cluster[3].core.term == leader.core.term
    # when it returns
    cluster.heal()
    cluster.tick(3)
    # then there is the same leader in the same term
    assert (leader.role(), leader.core.term, cluster[3].core.leader) == (Role.LEADER, 1, 1)


def test_16_a_removed_member_that_does_not_know_it_disturbs_nobody() -> None:
    # given a member that was removed while it was cut off
    cluster = Cluster.of(3)
    leader = cluster.elect(1)
    cluster.isolate(3)
    leader.raft.propose_change(change("r3"))
    cluster.run()
    # when it returns, and stands for election again and again, with and without asking before
    cluster.heal()
    for pre in (True, False):
        for _ in range(3):
            cluster.tick(1, 1, 2)
            for node in (1, 2):
                cluster[node].step(Vote(node, 3, leader.core.term + 1, 0, 99, 99, pre=pre))
    # then nobody follows it
    assert (leader.role(), leader.core.term) == (Role.LEADER, 1)
    assert cluster[2].core.leader == 1


def test_17_the_longer_log_and_the_higher_term_do_not_wait_for_each_other_for_ever() -> None:
    """Pitfall 17 (etcd 8243, Ra 439, openraft 1796)."""
    # given two members: one has the longer log, the other the higher term
    longer = Member(1, (1, 2), log=(1, 1), hard=HardState(term=1))
    higher = Member(2, (1, 2), log=(1,), hard=HardState(term=7))
    cluster = Cluster(longer, higher)
    # when time passes
    cluster.tick(5 * ELECTION_TICKS, 1, 2)
    # then the one with the longer log leads, in a term above both
    assert longer.role() is Role.LEADER
    assert longer.core.term > 7


def test_17_a_leader_that_lost_touch_hears_of_the_higher_term() -> None:
    # given a member with a higher term, which ignores nobody but is not asked either
    member = Member(1, hard=HardState(term=5))
    # when a leader of an older term sends something
    for message in (append_to(1, term=3), heartbeat_to(1, term=3)):
        # then it is told
        assert member.step(message) == [AppendResponse(2, 1, 5, 0, 0)]


def test_18_a_pre_vote_is_not_recorded_and_a_pre_candidate_begins_afresh() -> None:
    """Pitfall 18."""
    # given a voter
    voter = Member(1)
    # when two members ask whether it would vote for them
    sent = voter.step(Vote(1, 2, 4, 0, 0, 0, pre=True), Vote(1, 3, 4, 0, 0, 0, pre=True))
    # then it would, for both, and has promised nothing
    assert [m.reject for m in sent if isinstance(m, VoteResponse)] == [False, False]
    assert (voter.core.term, voter.core.vote) == (0, 0)

    # given a follower
    member = Member(1)
    member.step(heartbeat_to(1))
    assert member.core.leader == 2
    # when it asks for pre-votes, in vain, and asks again
    member.tick(ELECTION_TICKS)
    assert (member.role(), member.core.leader) == (Role.PRE_CANDIDATE, 0)
    assert member.core.votes == {1: True}
    member.step(VoteResponse(1, 2, 1, 0, pre=True, reject=True))
    member.tick(ELECTION_TICKS)
    # then old answers are forgotten, and its term is what it was
    assert member.core.votes == {1: True}
    assert (member.core.term, member.core.vote) == (1, 0)


@pytest.mark.parametrize("term", [1, 2], ids=["same term", "higher term"])
def test_19_a_refused_vote_does_not_put_off_the_next_election(term: int) -> None:
    """Pitfall 19."""
    # given a member that is about to stand for election, with a log better than another's
    member = Member(1, log=(1, 1), pre_vote=False, check_quorum=False)
    member.tick(ELECTION_TICKS - 1)
    # when the other asks for its vote, in vain
    sent = member.step(Vote(1, 2, term, 0, 1, 1, pre=False))
    assert [m.reject for m in sent if isinstance(m, VoteResponse)] == [True]
    # then it stands for election when it would have
    member.tick()
    assert (member.role(), member.core.term) == (Role.CANDIDATE, term + 1)


def test_19_a_vote_that_is_given_does() -> None:
    member = Member(1, pre_vote=False)
    member.tick(ELECTION_TICKS - 1)
    member.step(Vote(1, 2, 1, 0, 0, 0, pre=False))
    member.tick()
    assert member.role() is Role.FOLLOWER


# -- reads ----------------------------------------------------------------------------------------


def test_20_nothing_is_read_before_the_first_commit_of_the_term() -> None:
    """Pitfall 20 (etcd 7331)."""
    # given a new leader, which does not know yet what is committed
    leader = a_leader(log=(1, 1))
    leader.raft.read_index(b"r")
    leader.tick()
    assert leader.reads == []
    # when its own entry is committed
    acknowledge(leader, 2, 3)
    # then it asks whether it still leads, and answers with what was committed when it asked
    beats = [m for m in leader.tick() if isinstance(m, Heartbeat)]
    assert leader.reads == []
    leader.step(HeartbeatResponse(1, 2, leader.core.term, 0, beats[0].context))
    assert [(state.index, state.context) for state in leader.reads] == [(3, b"r")]


def test_20_a_single_voter_too_waits_for_its_first_commit() -> None:
    # given a single voter that has just been elected, and whose disk is slow
    leader = Member(1, (1,), log=(1,), pre_vote=False)
    leader.holds_writes = True
    leader.raft.campaign()
    leader.work()
    leader.write()
    assert leader.role() is Role.LEADER
    # when it is asked before its own entry is durable
    leader.raft.read_index(b"r")
    leader.work()
    assert leader.reads == []
    # then it answers when it is
    leader.holds_writes = False
    leader.work()
    assert [state.index for state in leader.reads] == [leader.core.log.last_index]


def test_20_a_context_used_twice_is_not_confirmed_by_a_late_answer_to_its_first_use() -> None:
    """Pitfall 20 (etcd 20418)."""
    # given a leader that was asked for a read, and whose round of heartbeats is under way
    leader = a_leader()
    acknowledge(leader, 2, 1)
    leader.raft.read_index(b"same")
    first = next(m.context for m in leader.work() if isinstance(m, Heartbeat))
    leader.step(HeartbeatResponse(1, 2, 1, 0, first))
    assert len(leader.reads) == 1
    # when a read with the same context is asked, and another follower answers the first round
    leader.raft.read_index(b"same")
    second = next(m.context for m in leader.work() if isinstance(m, Heartbeat))
    leader.step(HeartbeatResponse(1, 3, 1, 0, first), HeartbeatResponse(1, 2, 1, 0, first))
    # then that confirms nothing: it may have been sent before another leader was elected
    assert len(leader.reads) == 1
    # when somebody answers the second round, it is confirmed
    leader.step(HeartbeatResponse(1, 3, 1, 0, second))
    assert len(leader.reads) == 2


def test_20_a_leader_that_was_replaced_confirms_nothing() -> None:
    # given a leader that is cut off with a read under way
    cluster = Cluster.of(3, check_quorum=False)
    old = cluster.elect(1)
    cluster.isolate(1)
    old.raft.read_index(b"r")
    cluster.run()
    # when another one has committed more
    cluster.elect(2)
    cluster.propose(2, b"x")
    # then the read is never answered, not even when everybody is back
    cluster.heal()
    cluster.tick(3)
    assert old.reads == []
    # and a later one is answered with what is committed now
    old.raft.read_index(b"s")
    cluster.run()
    assert [(state.index, state.context) for state in old.reads] == [(3, b"s")]


def test_20_every_read_of_a_round_that_is_confirmed_is_answered_in_order() -> None:
    leader = a_leader()
    acknowledge(leader, 2, 1)
    rounds = []
    for context in (b"a", b"b", b"c"):
        leader.raft.read_index(context)
        rounds.append(next(m.context for m in leader.work() if isinstance(m, Heartbeat)))
    leader.step(HeartbeatResponse(1, 3, 1, 0, rounds[1]))
    assert [state.context for state in leader.reads] == [b"a", b"b"]


def test_20_reads_by_lease_need_a_leader_that_steps_down_when_it_is_alone() -> None:
    """Pitfall 20: what a lease is worth depends on clocks, so it is off unless asked for."""
    with pytest.raises(Rejected):
        Member(1, read_mode=ReadMode.LEASE, check_quorum=False)


# -- snapshots ------------------------------------------------------------------------------------


def needing_snapshot(**options: Any) -> tuple[Cluster, Member]:
    """Leader 1 has cut its log; member 3 has nothing of it."""
    cluster = Cluster.of(3, **options)
    leader = cluster.elect(1)
    cluster.isolate(3)
    cluster.propose(1, b"a", b"b")
    leader.compact()
    return cluster, leader


def test_21_a_snapshot_that_did_not_arrive_is_sent_again() -> None:
    """Pitfall 21 (etcd 10225). A driver must report each one; a group's simulation checks that."""
    # given a leader whose snapshot to a member was lost
    cluster, leader = needing_snapshot()
    cluster.heal()
    cluster.passes = lambda m: not isinstance(m, Install)
    cluster.tick(2)
    assert leader.state_of(3) is ProgressState.SNAPSHOT
    # when that is reported
    cluster.heal()
    leader.raft.report_snapshot(3, failed=True)
    cluster.tick(2)
    # then the member catches up
    assert leader.state_of(3) is ProgressState.REPLICATE
    assert cluster[3].core.log.last_index == leader.core.log.last_index


def test_22_a_snapshot_that_is_behind_still_moves_the_member_on() -> None:
    """Pitfall 22."""
    # given a leader that waits for a member to install a snapshot
    cluster, leader = needing_snapshot()
    cluster.heal()
    installs: list[Install] = []

    def hold(message: Message) -> bool:
        if isinstance(message, Install):
            installs.append(message)
            return False
        return True

    cluster.passes = hold
    cluster.tick(2)
    assert leader.state_of(3) is ProgressState.SNAPSHOT
    # when the member has all of it already when the snapshot arrives, by an earlier one
    cluster[3].step(installs[0])
    sent = cluster[3].step(installs[0])
    # then it says how far it is, and the leader goes on from there
    assert sent == [AppendResponse(1, 3, leader.core.term, 0, installs[0].snapshot.index)]
    leader.step(*sent)
    assert leader.state_of(3) is ProgressState.REPLICATE
    assert leader.core.progress[3].match == installs[0].snapshot.index


def test_23_an_install_overtakes_writes_that_are_under_way() -> None:
    """Pitfall 23. Local snapshots and checkpoints are the log's; its simulation completes this."""
    # given a follower that is writing two entries
    member = Member(1)
    member.holds_writes = True
    member.step(append_to(1, entry(1, 1), entry(2, 1)))
    # when a snapshot is installed, before they are durable, and entries follow it
    snapshot = Snapshot(5, 2, ConfState(voters=(1, 2, 3)))
    member.step(Install(1, 3, 2, 0, snapshot))
    member.step(append_to(1, entry(6, 2), after=(5, 2), term=2, commit=6, leader=3))
    # then the writes are done in their order, and none of them is taken for another
    while member.orders:
        assert member.core.log.last_index == 6
        assert member.core.log.first_index == 6
        member.write()
        member.work()
    assert (member.storage.base, member.storage.last_index()) == (snapshot, 6)
    assert [one.index for one in member.applied] == [6]


@pytest.mark.parametrize("written", range(4))
def test_23_a_crash_at_any_write_of_an_install_leaves_a_log_that_goes_on(written: int) -> None:
    # given the same, and a crash after so many writes
    member = Member(1)
    member.holds_writes = True
    member.step(append_to(1, entry(1, 1), entry(2, 1)))
    snapshot = Snapshot(5, 2, ConfState(voters=(1, 2, 3)))
    member.step(Install(1, 3, 2, 0, snapshot))
    member.step(append_to(1, entry(6, 2), after=(5, 2), term=2, commit=6, leader=3))
    for _ in range(min(written, len(member.orders))):
        member.write()
    # when it begins again
    member.start()
    member.holds_writes = False
    # then its log is one of those it went through, and the leader can go on from it
    assert (member.core.log.first_index, member.core.log.last_index) in {
        (1, 0),
        (1, 2),
        (6, 5),
        (6, 6),
    }
    member.step(Install(1, 3, 2, 0, snapshot))
    member.step(append_to(1, entry(6, 2), after=(5, 2), term=2, commit=6, leader=3))
    assert member.core.log.committed == 6


def test_24_a_member_whose_disk_went_back_in_time_is_found_out() -> None:
    """Pitfall 24 (etcd 10166, 13509). To throw the copy away and make it anew is the group's."""
    # given a member that acknowledged three entries, and whose disk has one of them
    member = Member(1, log=(1,))
    # when the leader says that three are committed
    with pytest.raises(LogLost) as found:
        member.step(heartbeat_to(1, commit=3))
    # then it says what is missing
    assert "the log ends at 1" in found.value.message
    # and so it does when its own notes say it
    with pytest.raises(LogLost):
        Member(1, log=(1,), hard=HardState(term=1, commit=3))


def test_25_too_much_that_is_not_committed_is_refused() -> None:
    """Pitfall 25."""
    # given a leader that hears of nobody, and may hold ten bytes
    leader = a_leader(uncommitted_bytes_max=10)
    # then one proposal is always taken, however large, while nothing waits
    leader.raft.propose([b"x" * 8])
    # and another one up to the limit, not beyond
    leader.raft.propose([b"xx"])
    with pytest.raises(ProposalDropped) as dropped:
        leader.raft.propose([b"x"])
    assert dropped.value.reason is DropReason.TAIL_FULL
    # but an empty one always
    leader.raft.propose([b""])
    # when it is committed and applied, there is room again
    leader.work()
    acknowledge(leader, 2, leader.core.log.last_index)
    leader.raft.propose([b"x" * 100])


def test_25_a_change_that_was_refused_for_its_size_stands_in_nobodys_way() -> None:
    # given a leader whose tail is full
    leader = a_leader(uncommitted_bytes_max=1)
    acknowledge(leader, 2, 1)
    leader.raft.propose([b"xx"])
    leader.work()
    with pytest.raises(ProposalDropped):
        leader.raft.propose_change(change("v4"))
    # when there is room again
    acknowledge(leader, 2, 2)
    # then a change is taken
    leader.raft.propose_change(change("v4"))
    leader.work()
    acknowledge(leader, 2, 3)
    assert 4 in leader.core.members.incoming
