"""Elections: pre-vote, vote, hand-over, and the check that a leader still has followers.

A member that hears of no leader for long enough first asks whether it would be elected (pre-vote):
nothing is recorded and no term rises, so a member that was cut off disturbs no other when it
returns. A member that has heard of a leader within an election timeout ignores candidates, unless
the leader itself asked for the election. Learners vote when asked: they may be voters without
knowing it yet.

A refusal says what is committed. A candidate may need the vote of a node that is no voter any more
but has the longer log, and can't be elected itself: the candidate must learn that the change is
committed, apply it, and go on without that vote.
"""

from __future__ import annotations

from enum import Enum

from lowmark.errors import invariant
from lowmark.raft.messages import NOBODY, Entry, EntryKind, Vote, VoteResponse
from lowmark.raft.quorum import VoteResult
from lowmark.raft.replication import append_own, broadcast_append
from lowmark.raft.state import Core, Role


class Campaign(Enum):
    """Why an election is held."""

    PRE_VOTE = "pre-vote"
    TIMEOUT = "timeout"
    TRANSFER = "transfer"


def start(core: Core, campaign: Campaign | None = None) -> None:
    """Stand for election, if this member may."""
    if core.role is Role.LEADER or not core.promotable or _has_unapplied_change(core):
        return
    if campaign is None:
        campaign = Campaign.PRE_VOTE if core.config.pre_vote else Campaign.TIMEOUT
    _campaign(core, campaign)


def _has_unapplied_change(core: Core) -> bool:
    """Whether a committed change of members is not in force yet: its voters might be others."""
    log = core.log
    if log.applied >= log.committed:
        return False
    unapplied = log.scan(log.applied + 1, log.committed + 1, core.config.message_bytes_max)
    return any(entry.kind is not EntryKind.NORMAL for entry in unapplied)


def _campaign(core: Core, campaign: Campaign) -> None:
    pre = campaign is Campaign.PRE_VOTE
    if pre:
        core.votes = {}
        core.leader = NOBODY
        core.role = Role.PRE_CANDIDATE
        term = core.term + 1
    else:
        core.reset(core.term + 1)
        core.vote = core.node
        core.role = Role.CANDIDATE
        term = core.term
    index, log_term = core.log.last_index, core.log.last_term
    for node in sorted(core.members.voters):
        if node == core.node:
            # Its own vote counts when it is durable, like any other.
            core.send_durable(VoteResponse(node, node, term, core.incarnation, pre))
        else:
            core.send(
                Vote(
                    node,
                    core.node,
                    term,
                    core.incarnation_of(node),
                    index,
                    log_term,
                    pre,
                    campaign is Campaign.TRANSFER,
                )
            )


def in_lease(core: Core) -> bool:
    """Whether a leader was heard of so recently that candidates are ignored."""
    return (
        core.config.check_quorum
        and core.leader != NOBODY
        and core.election_elapsed < core.config.election_ticks
    )


def answer_vote(core: Core, message: Vote) -> None:
    """Vote for a candidate that may lead, once per term."""
    can_vote = (
        core.vote == message.sender
        or (core.vote == NOBODY and core.leader == NOBODY)
        or (message.pre and message.term > core.term)
    )
    if can_vote and core.log.is_up_to_date(message.index, message.log_term):
        # The term of the question: the answer to a pre-vote is about a term to come.
        core.send_durable(
            VoteResponse(message.sender, core.node, message.term, core.incarnation, message.pre)
        )
        if not message.pre:
            core.election_elapsed = 0
            core.vote = message.sender
    else:
        refuse_vote(core, message)


def refuse_vote(core: Core, message: Vote) -> None:
    """Say no, and what is committed."""
    commit = core.log.committed if core.config.commit_by_vote else 0
    core.send_durable(
        VoteResponse(
            message.sender,
            core.node,
            core.term,
            core.incarnation,
            message.pre,
            reject=True,
            commit=commit,
            commit_term=core.log.term(commit) or 0,
        )
    )


def heard_vote(core: Core, message: VoteResponse) -> None:
    """A member answered a candidate."""
    if core.role is Role.LEADER:
        return
    # An entry that is committed elsewhere is committed here too, if it is the same one.
    learned = core.log.maybe_commit(message.commit, message.commit_term)
    if core.role is Role.FOLLOWER:
        return
    if learned and _has_unapplied_change(core):
        core.become_follower(core.term, NOBODY)
        return
    if message.pre is not (core.role is Role.PRE_CANDIDATE):
        return  # an answer to the round before
    core.votes.setdefault(message.sender, not message.reject)
    result = core.tally()
    if result is VoteResult.WON:
        if core.role is Role.PRE_CANDIDATE:
            _campaign(core, Campaign.TIMEOUT)
        elif core.votes.get(core.node):
            # Not before its own vote is durable, however many others there are: after a crash it
            # could be elected in this term once more, with another log.
            _become_leader(core)
            broadcast_append(core)
    elif result is VoteResult.LOST:
        core.become_follower(core.term, NOBODY)


def _become_leader(core: Core) -> None:
    invariant(core.role is Role.CANDIDATE, "only a candidate becomes leader")
    core.reset(core.term)
    core.leader = core.node
    core.role = Role.LEADER
    own = core.progress[core.node]
    own.become_replicate()
    own.recent_active = True
    core.pending_change = core.log.last_index
    core.term_start = core.log.last_index + 1
    took = append_own(core, [Entry(0, 0, EntryKind.NORMAL, b"")])
    invariant(took, "an empty entry is never refused")


def check_quorum(core: Core) -> None:
    """A leader that a majority does not answer steps down: others may be led already."""
    if not core.quorum_active():
        core.become_follower(core.term, NOBODY)
    for node, progress in core.progress.items():
        if node != core.node:
            progress.recent_active = False
