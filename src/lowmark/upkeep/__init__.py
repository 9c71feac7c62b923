"""What a cluster does by itself, every now and then: the low watermark, retention, dropped tables,
old revisions of the metastore, old versions of the catalog, who leads what, staged rows whose
driver is gone.

Every node looks after what it has: retention of the partitions that it leads, leadership that
another node should have, files that a cut has freed, copies of dropped tables, epochs that a driver
has left half bound (`epochs`) and rows that none will bind. What is there once
for the whole cluster, the watermark, the catalog's history and keys of dropped tables, is the
coordinator's.

Invariants
    1. Nothing is done that the low watermark, or a hold in a partition, does not allow: each duty
       asks them in the same step in which it cuts.
    2. Every duty looks at what is there, and remembers nothing that matters. Whatever a crash left
       half done, the next look finds and finishes.
    3. One look at a time. A duty that fails is told in the log and in `problem`, and holds up
       neither the others nor the next look.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.upkeep.catalog_compaction import ROUND_PREFIX, CatalogCompaction, Round, read_round
    from lowmark.upkeep.catalog_decision import Holder
    from lowmark.upkeep.upkeep import Upkeep

__all__ = [
    "ROUND_PREFIX",
    "CatalogCompaction",
    "Holder",
    "Round",
    "Upkeep",
    "read_round",
]

__getattr__, __dir__ = face(__name__)
