"""Proposals, and changes of members among them.

At most one change of members is in the log unapplied. A new leader does not know whether there is
one in its tail, so it takes its whole tail for one. A change that may not be made now is replaced
by an empty entry: its proposer sees that nothing changed.
"""

from __future__ import annotations

from lowmark.raft import membership
from lowmark.raft.membership import ConfChange, MembershipRefused
from lowmark.raft.messages import NOBODY, ConfState, Entry, EntryKind
from lowmark.raft.replication import (
    append_own,
    broadcast_append,
    maybe_commit,
    maybe_send_append,
)
from lowmark.raft.state import Core, DropReason, ProposalDropped, Role

_LEAVE = ConfChange()


def propose(core: Core, entries: list[Entry]) -> None:
    """The leader puts proposals into its log and sends them out."""
    if core.node not in core.progress:
        raise ProposalDropped(DropReason.REMOVED)
    if core.transferee != NOBODY:
        raise ProposalDropped(DropReason.TRANSFERRING)
    pending = core.pending_change
    for at, entry in enumerate(entries):
        if entry.kind is not EntryKind.NORMAL:
            change = ConfChange.decode(entry.data)
            if core.config.validate_changes and _why_not(core, change):
                entries[at] = Entry(0, 0, EntryKind.NORMAL, b"")
            else:
                core.pending_change = core.log.last_index + at + 1
    if not append_own(core, entries):
        core.pending_change = pending
        raise ProposalDropped(DropReason.TAIL_FULL)
    broadcast_append(core)


def _why_not(core: Core, change: ConfChange) -> str:
    if core.pending_change > core.log.applied:
        return "another change may be in the log"
    if core.config.changes_after_noop and core.log.applied < core.term_start:
        return "the leader has not applied an entry of its own term"
    if core.members.joint and change.changes:
        return "a joint configuration must be left first"
    if not core.members.joint and not change.changes:
        return "there is no joint configuration to leave"
    try:
        # No other change is under way, so it will be applied to just these members.
        membership.members_after(core.members, change)
    except MembershipRefused as error:
        return error.message
    return ""


def apply_change(core: Core, change: ConfChange, *, index: int = 0) -> ConfState:
    """A change at an index is applied: the new configuration is in force."""
    members, fresh = membership.members_after(core.members, change, index=index)
    core.set_members(members, fresh)
    stored = members.stored()
    if core.role is not Role.LEADER:
        return stored
    if core.node not in core.progress or core.is_learner:
        if core.config.step_down_on_removal:
            core.become_follower(core.term, NOBODY)
        return stored
    if maybe_commit(core):
        broadcast_append(core)
    else:
        for node in core.progress:
            if node != core.node:
                maybe_send_append(core, node, if_empty=False)
    if core.transferee not in members.voters:
        core.transferee = NOBODY
    return stored


def leave_if_due(core: Core) -> None:
    """Leave a joint configuration that says so, once it is applied.

    A hand-over of leadership may stand in the way; it is tried again with every applied entry and
    when the hand-over is given up, and a new leader tries it too.
    """
    if (
        core.members.auto_leave
        and core.role is Role.LEADER
        and core.transferee == NOBODY
        and core.node in core.progress
        and not _why_not(core, _LEAVE)
    ):
        propose(core, [Entry(0, 0, EntryKind.JOINT_CHANGE, b"")])
