"""Replicated groups: a Raft core, a log and a state machine, and the link between nodes.

Words
    member   a node that has a copy of a group: a voter, or a learner that has no vote yet
    machine  what is replicated: it applies commands, one after another, the same on every member
    command  bytes that the machine understands; the leader stamps its time
    peers    the voters that a group shall have (`change_peers`)

A command's way: `propose` on the leader queues it; once a turn all that is queued enters the log as
one batch, stamped; the batch goes to the other members and to the own WAL at the same time; when a
majority has it durable it is committed, and every member applies it. Then its future resolves.

What it promises
    1. A future always resolves, once: with the result, or with a named reason. A reason that is an
       `OutcomeUnknown` leaves open whether the command was applied; every other one means it was
       not, and will not be.
    2. What was answered as applied is applied on every member, in the same order, and survives any
       crash of a minority, and of all if disks keep what they synced.
    3. `read` reflects everything that was answered before it was asked. `read_local` may be old.
    4. A vote or an acknowledgement leaves a node only when what it claims is durable there.
    5. A copy that is damaged, or that lost what it acknowledged, stops: it neither votes nor
       acknowledges until it was taken out of the group and added again, as a new incarnation.
    6. Proposals are served in every stage of a change of peers; one that fails or is cancelled
       leaves the old voters in force.
    7. What fills a disk (the machine says so) is refused by a leader whose disk is full before it
       is in the log; everything else may use the reserve. A copy that is the only one and can't
       write refuses with the cause, instead of waiting for nobody.
    8. What a peer sends is checked before it is believed; a peer that breaks the rules is cut off.
    9. A copy that an operator has go on alone (`reset`) is another group to those it left behind.

Not promised: that the leader is the only one who believes to lead. It is the only one who can
commit.

The core knows nothing of this package, and the machine knows nothing of consensus. `group` joins
them, with a part for each story: `requests` (callers that wait), `applier` (the machine),
`leadership` (what only a leader does), `writes` (what must be durable), `snapshots` (its own, and
those of others, which come by `transfer`, as fast as `throttle` lets them), `versions`, `rejoin`,
`reset`, `rest`. `groups` drives all groups of a node with one clock and one link (`transport`,
`wire`), which nodes also use to ask each other (`calls`), for what their clocks say among others
(`clocks`).
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.group.calls import CallLost, Calls, NoService, NotAsked, Reply
    from lowmark.group.clocks import Clocks, Off
    from lowmark.group.config import GroupConfig
    from lowmark.group.envelope import COMMAND_BYTES, Command, open_command
    from lowmark.group.errors import (
        CommandTooLarge,
        CopyOutdated,
        EntryTooNew,
        GroupBusy,
        GroupStopped,
        GroupUnfinished,
        MachineFailed,
        MachineTooOld,
        NoQuorum,
        NotLeader,
        NotWritten,
        OutcomeUnknown,
        QuarantinedHere,
        ReadTimedOut,
        ShuttingDown,
        Superseded,
    )
    from lowmark.group.group import Group
    from lowmark.group.groups import Groups, SilentListener
    from lowmark.group.lineages import Lineages, outdated
    from lowmark.group.machine import Machine, Observer
    from lowmark.group.peers import ChangeAnswer, ChangeError, ChangeFailed, PeerListener, Stage
    from lowmark.group.reset import Reset, reset_members
    from lowmark.group.status import GroupStatus, PeerStatus
    from lowmark.group.throttle import Throttle
    from lowmark.group.transport import TransportLimits
    from lowmark.group.wire import BadFrame
    from lowmark.runtime import Future, together, when_all

__all__ = [
    "COMMAND_BYTES",
    "BadFrame",
    "CallLost",
    "Calls",
    "ChangeAnswer",
    "ChangeError",
    "ChangeFailed",
    "Clocks",
    "Command",
    "CommandTooLarge",
    "CopyOutdated",
    "EntryTooNew",
    "Future",
    "Group",
    "GroupBusy",
    "GroupConfig",
    "GroupStatus",
    "GroupStopped",
    "GroupUnfinished",
    "Groups",
    "Lineages",
    "Machine",
    "MachineFailed",
    "MachineTooOld",
    "NoQuorum",
    "NoService",
    "NotAsked",
    "NotLeader",
    "NotWritten",
    "Observer",
    "Off",
    "OutcomeUnknown",
    "PeerListener",
    "PeerStatus",
    "QuarantinedHere",
    "ReadTimedOut",
    "Reply",
    "Reset",
    "ShuttingDown",
    "SilentListener",
    "Stage",
    "Superseded",
    "Throttle",
    "TransportLimits",
    "open_command",
    "outdated",
    "reset_members",
    "together",
    "when_all",
]

__getattr__, __dir__ = face(__name__)
