"""Why the metastore did not do what it was asked."""

from __future__ import annotations

from lowmark.errors import Conflict, LowmarkError, Rejected, Unavailable


class RevisionCompacted(Conflict):
    """A revision, or a time, of which only what came after it is left."""

    def __init__(self, *, wanted: str, first_left: int) -> None:
        super().__init__(
            f"{wanted} was compacted away",
            detail=f"The first revision left is {first_left}.",
            hint=f"Read the latest state, then go on from {first_left}.",
        )
        self.first_left = first_left


class RevisionUnknown(Rejected):
    """A revision that was not made yet."""

    def __init__(self, *, wanted: int, latest: int) -> None:
        super().__init__(
            f"revision {wanted} was not made yet",
            detail=f"The latest one is {latest}.",
            hint="Leave the revision out to read the latest state.",
        )
        self.latest = latest


class InvokeRefused(Rejected):
    """A request that is wrong as it stands: nothing of it was done."""


class LeaseTaken(Conflict):
    """Another holder has a lease of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"lease {name} is taken",
            hint="Wait until it is released or has run out.",
        )


class LeaseOver(Conflict):
    """A lease that has run out, was released, or was never taken. It can't be renewed."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"lease {name} is over",
            detail="What it held may be gone.",
            hint="Take it again, then look what is left.",
        )


class MetastoreUnreachable(Unavailable):
    """No leader could be asked in time. Nothing happened."""

    def __init__(self, *, waited_ms: int, why: str) -> None:
        super().__init__(
            f"the metastore could not be reached within {waited_ms} ms: {why}",
            hint="See `lowmark status`: a majority of its members must be up and connected.",
        )


class NotComplete(Unavailable):
    """This node does not know whether it has heard everything up to a time."""

    def __init__(self, *, waited_ms: int, behind_ms: int) -> None:
        super().__init__(
            f"this node can't tell what happened in the last {behind_ms} ms",
            detail=f"It heard nothing newer from the metastore's leader within {waited_ms} ms.",
            hint="Retry when it is connected again, or ask for an earlier time.",
        )
        self.behind_ms = behind_ms


class TimeToCome(Rejected):
    """A time that is yet to come: what will have happened by then is not known."""

    def __init__(self, *, ahead_ms: int) -> None:
        super().__init__(
            f"the requested time is {ahead_ms} ms in the future (by this node's clock)",
            hint="Ask for a time that has passed.",
        )


class NotInCluster(Unavailable):
    """This node was not let into a cluster yet, or has left it."""

    def __init__(self) -> None:
        super().__init__(
            "this node belongs to no cluster yet",
            hint="It joins as soon as a node of the cluster answers.",
        )


class MetastoreRenewed(Unavailable):
    """The next start of this node throws its copy of the metastore away, and gets another one."""


class MetastoreDamagedHere(MetastoreRenewed):
    """This node's copy of the metastore is damaged; the other nodes have it."""

    def __init__(self, node: str, *, why: str) -> None:
        super().__init__(
            f"node {node} has a damaged copy of the metastore: {why}",
            detail="Other nodes have the metastore, and do without this copy.",
            hint="Start the node again: it throws this copy away and gets a new one from the"
            " others. Its copies of partitions stay.",
        )


class MetastoreOutdated(MetastoreRenewed):
    """The metastore was reset on another node, without this node's copy of it."""

    def __init__(self, node: str, *, why: LowmarkError) -> None:
        super().__init__(
            f"node {node} has an outdated copy of the metastore: {why.message}",
            detail="An operator reset the metastore on another node (`lowmark meta reset`). What"
            " this copy has may differ from what the cluster has, so the node stops using it.",
            hint="Start the node again: it throws this copy away and gets a new one from the"
            " others. Its copies of partitions stay.",
        )


class ClusterRefused(Rejected):
    """A cluster did not let a node in."""
