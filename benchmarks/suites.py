"""All suites: what each is fed, its figures, and how it is run."""

from benchmarks.catalog_sizes import CatalogSizes
from benchmarks.catalog_suite import CATALOG_FIELDS, run_catalog
from benchmarks.compact_sizes import CompactSizes
from benchmarks.compact_suite import COMPACT_FIELDS, compact_report, run_compaction
from benchmarks.figure import Figure, Side, Target
from benchmarks.group_sizes import GroupSizes
from benchmarks.group_suite import GROUP_FIELDS, group_report, run_groups
from benchmarks.sizes import Sizes
from benchmarks.suite import FIELDS, report, run
from benchmarks.table_sizes import TableSizes
from benchmarks.table_suite import TABLE_FIELDS, run_tables, table_report

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
