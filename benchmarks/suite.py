"""All figures, in order, and the report of them."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from benchmarks.append import append_1m, append_100b
from benchmarks.compaction import append_during_phase3, phase3
from benchmarks.figure import Figure, rounded
from benchmarks.live_set import live_set_bytes
from benchmarks.recover import open_10k, recover, recover_small
from benchmarks.sizes import Sizes
from benchmarks.turns import Bench

__all__ = ["FIELDS", "report", "run"]

SWITCH_INTERVAL_SECONDS = 0.0005

FIELDS: Mapping[str, Callable[[Bench], Figure]] = {
    "append_1m_vs_raw": append_1m,
    "append_100b_vs_sqlite": append_100b,
    "recover_vs_read": recover,
    "recover_small_vs_read": recover_small,
    "phase3_vs_cp": phase3,
    "append_during_phase3": append_during_phase3,
    "live_set_bytes": live_set_bytes,
    "open_10k_vs_stat": open_10k,
}


def run(
    root: Path, sizes: Sizes, *, only: Sequence[str] = (), say: Callable[[str], None]
) -> list[Figure]:
    """Measure, in a folder that exists and is on the disk to be measured."""
    bench = Bench(root, sizes, say)
    with _switching_often():
        return [measure(bench) for name, measure in FIELDS.items() if not only or name in only]


def report(figures: Sequence[Figure], sizes: Sizes) -> dict[str, object]:
    """One JSON object: a number per field, and what is behind it."""
    return {
        **{figure.name: rounded(figure.value) for figure in figures},
        "details": {figure.name: figure.details() for figure in figures},
        "machine": {
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "versions": {
                name: version(name) for name in ("lowmark", "numpy", "crc32c", "pyroaring")
            },
        },
        "settings": {**asdict(sizes), "switch_interval_seconds": SWITCH_INTERVAL_SECONDS},
    }


@contextmanager
def _switching_often() -> Iterator[None]:
    """As `serve` does: a lane that comes back from the disk must not wait 5 ms for its turn."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
