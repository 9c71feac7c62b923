"""All figures of tables, in order, and the report of them."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from benchmarks.figure import Figure, rounded
from benchmarks.sizes import Sizes
from benchmarks.table_figures import (
    append_objects_vs_sqlite,
    append_vs_postgres,
    append_vs_raw,
    append_vs_sqlite,
    get_p50_vs_sqlite,
    memory_growth,
    one_row_vs_sqlite,
    read_vs_memory,
    send_per_s,
)
from benchmarks.table_peers import PeerMissing, postgres_version
from benchmarks.table_sizes import TableSizes
from benchmarks.turns import Bench

__all__ = ["TABLE_FIELDS", "run_tables", "table_report"]

TABLE_FIELDS: Mapping[str, Callable[[Bench, TableSizes], Figure]] = {
    "append_vs_raw": append_vs_raw,
    "append_vs_sqlite": append_vs_sqlite,
    "append_objects_vs_sqlite": append_objects_vs_sqlite,
    "append_vs_postgres": append_vs_postgres,
    "send_per_s": send_per_s,
    "one_row_vs_sqlite": one_row_vs_sqlite,
    "get_p50_vs_sqlite": get_p50_vs_sqlite,
    "read_vs_memory": read_vs_memory,
    "memory_growth": memory_growth,
}


def run_tables(
    root: Path, sizes: TableSizes, *, only: Sequence[str] = (), say: Callable[[str], None]
) -> tuple[list[Figure], dict[str, str]]:
    """Measure; give the figures, and why others were left out.

    The interpreter's switch interval stays as it is: this is what a caller has who only opens a
    database.
    """
    pace = {"full": Sizes.full, "quick": Sizes.quick, "tiny": Sizes.tiny}[sizes.mode]()
    bench = Bench(root, pace, say, runs=sizes.runs, variants=sizes.variants)
    figures: list[Figure] = []
    skipped: dict[str, str] = {}
    for name, measure in TABLE_FIELDS.items():
        if only and name not in only:
            continue
        try:
            figures.append(measure(bench, sizes))
        except PeerMissing as missing:
            skipped[name] = missing.one_line()
            say(f"{name}: skipped: {missing.one_line()}")
    return figures, skipped


def table_report(
    figures: Sequence[Figure], skipped: Mapping[str, str], sizes: TableSizes
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
            "sqlite": sqlite3.sqlite_version,
            "postgresql": postgres_version(),
            "versions": {
                name: version(name) for name in ("lowmark", "pyarrow", "numpy", "msgspec")
            },
        },
        "settings": {**asdict(sizes), "switch_interval_seconds": sys.getswitchinterval()},
    }
