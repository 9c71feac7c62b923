"""All figures of the catalog and its metastore, in order, and the report of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.catalog_figures import (
    apply_growth,
    invoke_vs_etcd,
    lookup_growth,
    replay_rate,
    restart_after_snapshot,
    watchers_50,
)
from benchmarks.catalog_sizes import CatalogSizes
from benchmarks.figure import Figure
from benchmarks.group_suite import without_etcd
from benchmarks.sizes import Sizes
from benchmarks.turns import Bench

__all__ = ["CATALOG_FIELDS", "run_catalog"]

CATALOG_FIELDS: Mapping[str, Callable[[Bench, CatalogSizes], Figure]] = {
    "restart_after_snapshot": restart_after_snapshot,
    "replay_per_s": replay_rate,
    "lookup_growth": lookup_growth,
    "apply_growth": apply_growth,
    "invoke_vs_etcd": invoke_vs_etcd,
    "watchers_50": watchers_50,
}
_NEED_ETCD = {"invoke_vs_etcd"}


def run_catalog(
    root: Path, sizes: CatalogSizes, *, only: Sequence[str] = (), say: Callable[[str], None]
) -> tuple[list[Figure], dict[str, str]]:
    """Measure; give the figures, and why others were left out."""
    pace = {"full": Sizes.full, "quick": Sizes.quick, "tiny": Sizes.tiny}[sizes.mode]()
    bench = Bench(root, pace, say, runs=sizes.runs, variants=sizes.variants)
    chosen = {name: field for name, field in CATALOG_FIELDS.items() if not only or name in only}
    skipped = without_etcd(chosen.keys() & _NEED_ETCD, say=say)
    figures = [measure(bench, sizes) for name, measure in chosen.items() if name not in skipped]
    return figures, skipped
