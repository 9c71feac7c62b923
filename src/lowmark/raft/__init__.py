"""Consensus without I/O: Raft, in the shape of a function from events to work.

Events go in (messages, ticks, proposals, "that write is durable"); a batch of work comes out (what
to persist, send and apply). There is no clock, no chance but what is drawn through the
configuration, no disk, no network and no logging here.

Words are those of the Raft thesis: term, index, vote, leader, follower, candidate, learner.

What it guarantees, as long as its driver keeps the contract of `node`
    1. At most one leader per term.
    2. Logs that have an entry of the same index and term are the same up to it.
    3. What is committed is in the log of every later leader.
    4. Only entries of the leader's own term are committed by counting; the count is over the
       configuration in force, and the leader counts itself when its own write is durable.
    5. A vote or an acknowledgement leaves only when what it claims is durable.
    6. A configuration takes effect when it is applied; at most one change is under way.
    7. A read waits for an index that was committed when it was asked, confirmed by a majority in a
       round of its own.
    8. What a member says as an earlier incarnation never moves the progress of the present one.
    9. A member hears only messages of its own lineage: after a reset by hand, those that it left
       behind can neither lead it nor vote with it, nor it with them.

The files, each a story: `quorum`, `membership`, `progress`, `log_view`, `elections`, `replication`,
`reads`, `changes` (of members, and proposals), and `node`, which puts them together.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.raft.log_view import LineageLeft, LogDiverged, LogLost, Storage
    from lowmark.raft.membership import (
        Change,
        ChangeKind,
        ConfChange,
        Members,
        MembershipRefused,
        Transition,
    )
    from lowmark.raft.messages import (
        NOBODY,
        Append,
        AppendResponse,
        ConfState,
        Entry,
        EntryKind,
        HardState,
        Heartbeat,
        HeartbeatResponse,
        Install,
        Message,
        ReadIndex,
        ReadIndexResponse,
        Snapshot,
        StorageAppend,
        StorageAppended,
        StorageApplied,
        TimeoutNow,
        TransferLeader,
        Vote,
        VoteResponse,
    )
    from lowmark.raft.node import RaftNode, Ready
    from lowmark.raft.progress import Progress, ProgressState
    from lowmark.raft.state import Config, ProposalDropped, Role

__all__ = [
    "NOBODY",
    "Append",
    "AppendResponse",
    "Change",
    "ChangeKind",
    "ConfChange",
    "ConfState",
    "Config",
    "Entry",
    "EntryKind",
    "HardState",
    "Heartbeat",
    "HeartbeatResponse",
    "Install",
    "LineageLeft",
    "LogDiverged",
    "LogLost",
    "Members",
    "MembershipRefused",
    "Message",
    "Progress",
    "ProgressState",
    "ProposalDropped",
    "RaftNode",
    "ReadIndex",
    "ReadIndexResponse",
    "Ready",
    "Role",
    "Snapshot",
    "Storage",
    "StorageAppend",
    "StorageAppended",
    "StorageApplied",
    "TimeoutNow",
    "TransferLeader",
    "Transition",
    "Vote",
    "VoteResponse",
]

__getattr__, __dir__ = face(__name__)
