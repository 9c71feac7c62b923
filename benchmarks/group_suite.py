"""All figures of groups, in order, and the report of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from benchmarks.catalog_sizes import CatalogSizes
from benchmarks.etcd_peer import EtcdMissing, find_etcd
from benchmarks.figure import Figure, rounded
from benchmarks.group_figures import (
    catch_up,
    failover,
    idle_groups,
    large_vs_etcd,
    replicated_1m,
    small_vs_etcd,
)
from benchmarks.group_sizes import GroupSizes
from benchmarks.sizes import Sizes
from benchmarks.turns import Bench

__all__ = ["GROUP_FIELDS", "group_report", "run_groups", "without_etcd"]

GROUP_FIELDS: Mapping[str, Callable[[Bench, GroupSizes], Figure]] = {
    "replicated_1m_vs_single": replicated_1m,
    "small_vs_etcd": small_vs_etcd,
    "large_vs_etcd": large_vs_etcd,
    "failover_in_timeouts": failover,
    "catch_up_vs_cp": catch_up,
    "idle_500_groups_cpu": idle_groups,
}
_NEED_ETCD = {"small_vs_etcd", "large_vs_etcd"}


def run_groups(
    root: Path, sizes: GroupSizes, *, only: Sequence[str] = (), say: Callable[[str], None]
) -> tuple[list[Figure], dict[str, str]]:
    """Measure; give the figures, and why others were left out."""
    pace = {"full": Sizes.full, "quick": Sizes.quick, "tiny": Sizes.tiny}[sizes.mode]()
    bench = Bench(root, pace, say, runs=sizes.runs, variants=sizes.variants)
    chosen = {name: field for name, field in GROUP_FIELDS.items() if not only or name in only}
    skipped = without_etcd(chosen.keys() & _NEED_ETCD, say=say)
    figures = [measure(bench, sizes) for name, measure in chosen.items() if name not in skipped]
    return figures, skipped


def without_etcd(fields: Iterable[str], *, say: Callable[[str], None]) -> dict[str, str]:
    """Which of the figures that need etcd are left out, and why: none, if it is here."""
    try:
        find_etcd()
    except EtcdMissing as missing:
        skipped = {name: missing.one_line() for name in sorted(fields)}
        for name, why in skipped.items():
            say(f"{name}: skipped: {why}")
        return skipped
    return {}


def group_report(
    figures: Sequence[Figure], skipped: Mapping[str, str], sizes: GroupSizes | CatalogSizes
) -> dict[str, object]:
    """One JSON object: a number per field, and what is behind it; null for what was left out."""
    return {
        **{figure.name: rounded(figure.value) for figure in figures},
        **dict.fromkeys(skipped),
        "details": {figure.name: figure.details() for figure in figures},
        "skipped": dict(skipped),
        "machine": {
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "versions": {
                name: version(name) for name in ("lowmark", "msgspec", "numpy", "immutables")
            },
        },
        "settings": asdict(sizes),
    }
