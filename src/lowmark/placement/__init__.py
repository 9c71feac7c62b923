"""Which nodes hold a partition: its first assignment, and how it moves when the cluster changes.

Words
    target    the nodes that a partition should be on: a pure function of what the metastore says
    stable    the nodes that it is on
    pending   the nodes that it is moving to; while it moves, its old nodes serve
    planned   the nodes that it moves to after that
    lock      pending is being put in force, and is not replaced any more
    baseline  what the partitions of a zone are placed by: its nodes, their racks, its replicas
    trigger   an event that may move partitions: a new baseline; its revision says which one
    copy      what a node has of a partition (`lowmark.table`)

All of them but the target and the copy are values in the metastore. A node learns of them by a
watch and by nothing else.

A table's first nodes: its version of the catalog is told to every node. Each computes the targets
from the nodes as of that version's revision, so all come to the same, and writes each of them if
there is none yet. The first write wins; the other nodes find it there.

A move: the coordinator writes a new baseline, and for every partition of the zone what becomes of
it (`decisions`). Nodes in pending make empty copies; the node that leads the partition changes the
members of its group, and writes that they are stable (`moves`). Nodes that are in neither set
destroy their copies (`leaving`). The metastore's own members move the same way (`members`).

Invariants
    1. A partition's first stable set is written once. All founders of its group are in it, and all
       of them read it there: they found the same group, whatever they computed themselves.
    2. Stable changes only to members that the partition's group has put in force, and that a
       majority of them knows of after any crash.
    3. A node starts a copy only of what stable or pending say. It destroys one only if neither
       names it, and the leader of the group has said that it is no member. So no copy goes that a
       majority needs, and never the last one.
    4. Every event is decided on once for each partition, whichever nodes hear of it; the later one
       wins.
    5. A version with a new table is ready at a node when that node's copies of it are started;
       and lead, if they are the only ones. A client that hears that the table is there can use it.
    6. What a crash left undone is done by the next start of any node, by the next leader of the
       partition, or by the next coordinator: all three look at what is, not at what they remember.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.placement.assignments import Keys, PartitionId
    from lowmark.placement.config import RebalanceConfig
    from lowmark.placement.decisions import Adjust
    from lowmark.placement.members import MetastoreMembers
    from lowmark.placement.placement import Placement

__all__ = [
    "Adjust",
    "Keys",
    "MetastoreMembers",
    "PartitionId",
    "Placement",
    "RebalanceConfig",
]

__getattr__, __dir__ = face(__name__)
