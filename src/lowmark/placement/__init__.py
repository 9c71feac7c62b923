"""Which nodes hold a partition: the first assignment, and the copies that follow from it.

Words
    target   the nodes that a partition should be on: a pure function of the zone's nodes, of those
             that are up; if they are too few for its replicas, of some that are down, too
    stable   the nodes that it is on: a value in the metastore, one per partition
    assigned a partition that has stable nodes; a table that no node may hold has none, until one
             comes
    copy     what a node has of a partition (`lowmark.table`)

A table's way: its version of the catalog is told to every node. Each computes the targets from the
topology as of that version's revision, so all come to the same, and writes each of them if there is
none yet. The first write wins; the other nodes find it there. A node learns of stable sets by a
watch and by nothing else, and starts a copy where it is among the nodes.

Invariants
    1. A partition's first stable set is written once. All founders of its group are in it, and all
       of them read it there: they found the same group, whatever they computed themselves.
    2. A node starts a copy only of what the metastore says, and stops none: what is not needed any
       more goes with the low watermark (`lowmark.upkeep`).
    3. A version with a new table is ready at a node when that node's copies of it are started;
       and lead, if they are the only ones. A client that hears that the table is there can use it.
    4. Every table of the catalog has its stable sets by and by: what a crash left undone is done
       by the next start of any node, or by the next change of who is up.
"""

from lowmark.placement.placement import Placement

__all__ = [
    "Placement",
]
