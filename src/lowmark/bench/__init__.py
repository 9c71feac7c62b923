"""Figures as ratios, both sides measured in the same run on the same machine.

A rate by itself says more about the machine than about us. So every figure has a peer that does
the same job with less around it (a bare write loop, SQLite, `cp`), on the same disk, with the same
bytes and the same promise of durability, and the figure is the ratio.

How it is kept fair
    1. The sides take turns (ours, peer, ours, peer, ...) after one round that does not count, so a
       machine that grows slower slows both. The figure is the median of the rounds' ratios.
    2. Before each turn the disk is brought to rest (`sync`) and garbage is collected; each turn
       works in a fresh folder.
    3. What the sides are fed is built before the clock starts.
    4. A turn of ours ends when nothing is left to do: the segment writer is idle, not only the WAL.
    5. Where one choice would flatter us (how much is in flight), the other is measured as well.

A figure that misses its target is a result, not a failure: it comes with a profile of one more
turn.
"""

from lowmark.bench.catalog_sizes import CatalogSizes
from lowmark.bench.catalog_suite import CATALOG_FIELDS, run_catalog
from lowmark.bench.compact_sizes import CompactSizes
from lowmark.bench.compact_suite import COMPACT_FIELDS, compact_report, run_compaction
from lowmark.bench.figure import Figure, Side, Target
from lowmark.bench.group_sizes import GroupSizes
from lowmark.bench.group_suite import GROUP_FIELDS, group_report, run_groups
from lowmark.bench.sizes import Sizes
from lowmark.bench.suite import FIELDS, report, run
from lowmark.bench.table_sizes import TableSizes
from lowmark.bench.table_suite import TABLE_FIELDS, run_tables, table_report

__all__ = [
    "CATALOG_FIELDS",
    "COMPACT_FIELDS",
    "FIELDS",
    "GROUP_FIELDS",
    "TABLE_FIELDS",
    "CatalogSizes",
    "CompactSizes",
    "Figure",
    "GroupSizes",
    "Side",
    "Sizes",
    "TableSizes",
    "Target",
    "compact_report",
    "group_report",
    "report",
    "run",
    "run_catalog",
    "run_compaction",
    "run_groups",
    "run_tables",
    "table_report",
]
