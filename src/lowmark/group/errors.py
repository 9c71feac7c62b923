"""Why a group did not do what it was asked, sorted by whether it can still happen.

A refused request left no trace and may be repeated. After `OutcomeUnknown` it may have been
applied, or may still be: only the caller knows whether repeating it is safe.
"""

from __future__ import annotations

from lowmark.errors import Conflict, LowmarkError, Rejected, Unavailable


class NotLeader(Conflict):
    """Only the leader takes proposals."""

    def __init__(self, group: str, *, leader: int | None) -> None:
        who = f"node {leader} does" if leader else "no node does at the moment"
        super().__init__(
            f"this node does not lead group {group}; {who}",
            hint=f"Ask node {leader}." if leader else "Retry after an election.",
        )
        self.leader = leader


class Superseded(Conflict):
    """Another leader's entry took the place: the command was not applied and never will be."""

    def __init__(self, group: str, *, index: int, leader: int | None) -> None:
        super().__init__(
            f"the command at {index} of group {group} was superseded",
            detail="Leadership changed before a majority had it.",
            hint="Propose it again at the leader.",
        )
        self.leader = leader


class OutcomeUnknown(Unavailable):
    """The command is in a log somewhere; whether it will be applied is not known here."""

    def __init__(self, group: str, *, why: str) -> None:
        super().__init__(
            f"it is not known whether a command of group {group} was or will be applied: {why}",
            hint="Repeat it only if applying it twice does no harm, or look first.",
        )


class NoQuorum(OutcomeUnknown):
    """No majority answered in time."""

    def __init__(self, group: str, *, waited_ms: int) -> None:
        super().__init__(group, why=f"no majority answered within {waited_ms} ms")


class NotWritten(OutcomeUnknown):
    """This node could not write the command in time.

    While its WAL can't be written, the node keeps the command and tries again by itself. While only
    the group's folder can't, it may have dropped it; another member may have it all the same.
    """

    def __init__(self, group: str, *, why: str) -> None:
        super().__init__(group, why=f"this node could not write it: {why}")


class ReadTimedOut(Unavailable):
    """No majority confirmed in time that the answer would be up to date."""

    def __init__(self, group: str, *, waited_ms: int) -> None:
        super().__init__(
            f"a read of group {group} was not confirmed within {waited_ms} ms",
            hint="Retry, or read locally if an older answer will do.",
        )


class ShuttingDown(OutcomeUnknown):
    """The node, or its copy of the group, stopped while a command was under way."""

    def __init__(self, group: str) -> None:
        super().__init__(group, why="this copy of the group is shutting down")


class GroupStopped(Unavailable):
    """The request came after this copy of the group had stopped; it left no trace."""

    def __init__(self, group: str) -> None:
        super().__init__(f"this node's copy of group {group} has stopped", hint="Ask another node.")


class GroupUnfinished(Rejected):
    """A crash came before the copy's first record was durable: it never took part in anything."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"this node's copy of group {group} was never finished",
            hint="Create it: what is there is taken over.",
        )


class EntryTooNew(Rejected):
    """The log has an entry of a kind that this release does not know."""

    def __init__(self, group: str, *, index: int, kind: int) -> None:
        super().__init__(
            f"entry {index} of group {group} is of kind {kind}, which this release does not know",
            hint="Upgrade Lowmark on this node.",
        )


class QuarantinedHere(Unavailable):
    """This copy is damaged; others may serve."""

    def __init__(self, group: str, *, cause: str, alone: bool = False) -> None:
        super().__init__(
            f"this node's copy of group {group} is in quarantine: {cause}",
            detail="It neither votes nor acknowledges, so that nothing can be lost by it.",
            hint="It is the only copy: `lowmark log verify` lists the damage; restore the directory"
            " from a backup."
            if alone
            else "Ask another member; rebuild this copy from the others: `lowmark partition"
            " rebuild`.",
        )


class CopyOutdated(Unavailable):
    """The group was reset by hand without this copy, and has added this node again since."""

    def __init__(self, group: str, *, why: LowmarkError) -> None:
        super().__init__(
            f"this node's copy of group {group} is no longer a member: {why.message}",
            detail=why.detail,
            hint="Rebuild this copy from the others: `lowmark partition rebuild`.",
        )
        self.lineage = getattr(why, "theirs", 0)
        """Of the group, as far as is known."""


class GroupBusy(Unavailable):
    """Too much is waiting; nothing of this request was taken."""

    def __init__(self, group: str, *, why: str) -> None:
        super().__init__(f"group {group} is busy: {why}", hint="Retry after a short while.")


class CommandTooLarge(Rejected):
    """A command above the limit."""

    def __init__(self, *, size: int, limit: int) -> None:
        super().__init__(
            f"a command of {size} bytes is too large",
            detail=f"At most {limit} bytes are allowed (group.command_bytes_max).",
            hint="Split it.",
        )


class NotAMember(Rejected):
    """A node that does not belong to the group was named."""

    def __init__(self, group: str, node: int) -> None:
        super().__init__(
            f"node {node} is not a voter of group {group}",
            hint="Look at the group's members first.",
        )


class MachineFailed(Unavailable):
    """The state machine raised an exception, which it must not."""

    def __init__(self, group: str, *, what: str) -> None:
        super().__init__(
            f"the machine of group {group} failed at {what}",
            detail="This copy has stopped; other groups of this node go on.",
            hint="This is a bug of the machine: report it, with the command.",
        )


class MachineTooOld(Rejected):
    """A snapshot or an entry needs a newer state machine than this process has."""

    def __init__(self, group: str, *, needed: int, have: int) -> None:
        super().__init__(
            f"group {group} needs version {needed} of its machine; this process has {have}",
            hint="Upgrade Lowmark on this node.",
        )
        self.needed = needed
        self.have = have
