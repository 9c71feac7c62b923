"""The cluster's memory: keys with revisions, conditional writes, watches; and who is in it.

Words
    key, value   bytes; keys are in the order of their bytes
    revision     every command that changes something makes one; all its changes belong together
    version      how often a key was written since it was created
    cut          the revision up to which history was compacted away (`compacted`)
    lease        its holder is there until a time; it may hold revisions
    coordinator  the node that leads the metastore

The state machine keeps records, not values: per key and revision the place, length and digest of
its value. A value is part of the command that wrote it, and that command's entry in the log is live
as long as the value can be asked for. So a snapshot holds no values, and the log compacts them.

What it promises
    1. Reads and writes are linearizable, through any node: a write is carried to the leader; a read
       is answered here, when everything that was answered anywhere before it is applied here.
    2. An invoke is atomic: one of its branches is carried out, whole, in one revision.
    3. A watch is told every revision from the one it asked for, once, in order, whole; or it is
       told that a revision it needed was compacted away, and which one is the first left.
    4. The cut never passes what a lease held when the cut was made. At the cut and after it, every
       read answers as it did before.
    5. A write that failed was not carried out, unless the error is an `OutcomeUnknown`.
    6. Times rise with revisions. When a node says that it is complete up to a time, no revision
       will come to it later that is not above that time.
    7. At most one node coordinates in a term.

Time is in the log only. A leader could promise its time with heartbeats, but one that is elected
after it, with a clock behind, would break that promise; so who waits for a time has the leader put
an empty command into the log (see the design notes).
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.metastore.cluster import Cluster, identify
    from lowmark.metastore.commands import (
        AllOf,
        AnyOf,
        Branch,
        Compare,
        Condition,
        Do,
        Exists,
        LeaseIsOver,
        Not,
        Operation,
        Put,
        Remove,
        RemoveRange,
        Revision,
        Statement,
        ValueIs,
        Version,
        all_of,
        any_of,
        missing,
        value_is,
    )
    from lowmark.metastore.coordinator import name_of
    from lowmark.metastore.errors import (
        ClusterRefused,
        MetastoreDamagedHere,
        MetastoreOutdated,
        MetastoreRenewed,
        NotComplete,
        RevisionCompacted,
    )
    from lowmark.metastore.following import Following
    from lowmark.metastore.identity import (
        GROUP,
        Identity,
        MetastoreDamaged,
        MetastoreUnreadable,
        check_metastore,
        find_identity,
        load_identity,
    )
    from lowmark.metastore.machine import MetastoreMachine
    from lowmark.metastore.nodes import ClusterSettings, NodeInfo, Topology
    from lowmark.metastore.state import Answer, Lease
    from lowmark.metastore.store import Metastore, MetastoreConfig, Page
    from lowmark.metastore.watches import Entry, Event, Watch

__all__ = [
    "GROUP",
    "AllOf",
    "Answer",
    "AnyOf",
    "Branch",
    "Cluster",
    "ClusterRefused",
    "ClusterSettings",
    "Compare",
    "Condition",
    "Do",
    "Entry",
    "Event",
    "Exists",
    "Following",
    "Identity",
    "Lease",
    "LeaseIsOver",
    "Metastore",
    "MetastoreConfig",
    "MetastoreDamaged",
    "MetastoreDamagedHere",
    "MetastoreMachine",
    "MetastoreOutdated",
    "MetastoreRenewed",
    "MetastoreUnreadable",
    "NodeInfo",
    "Not",
    "NotComplete",
    "Operation",
    "Page",
    "Put",
    "Remove",
    "RemoveRange",
    "Revision",
    "RevisionCompacted",
    "Statement",
    "Topology",
    "ValueIs",
    "Version",
    "Watch",
    "all_of",
    "any_of",
    "check_metastore",
    "find_identity",
    "identify",
    "load_identity",
    "missing",
    "name_of",
    "value_is",
]

__getattr__, __dir__ = face(__name__)
