"""All figures of compaction, in order, and the report of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from benchmarks.compact_figures import COMPACT_FIELDS, figure_of
from benchmarks.compact_peers import find_peer
from benchmarks.compact_rounds import Measured, measure
from benchmarks.compact_sizes import CompactSizes
from benchmarks.figure import Figure, rounded
from benchmarks.table_peers import PeerMissing

__all__ = ["COMPACT_FIELDS", "compact_report", "run_compaction"]

PEERS = ("duckdb", "polars")
VERSIONS = ("lowmark", "pyarrow", "numpy", "pyspark", *PEERS)


def run_compaction(
    root: Path, sizes: CompactSizes, *, only: Sequence[str] = (), say: Callable[[str], None]
) -> tuple[list[Figure], dict[str, str], dict[str, object]]:
    """Measure; give the figures, why others were left out, and what is told apart from them."""
    missing = _missing()
    skipped: dict[str, str] = {}
    wanted: list[str] = []
    for name, field in COMPACT_FIELDS.items():
        if only and name not in only:
            continue
        why = next((why for peer, why in missing.items() if peer in field.sides(sizes)), None)
        if why is None:
            wanted.append(name)
        else:
            skipped[name] = why
            say(f"{name}: skipped: {why}")
    if not wanted:
        return [], skipped, {}
    sides = set().union(*(COMPACT_FIELDS[name].sides(sizes) for name in wanted))
    if not only:
        sides |= {"starts", "empty"}
    measured = measure(root, sizes, sides, say=say)
    return [figure_of(name, measured, sizes) for name in wanted], skipped, _apart(measured)


def _missing() -> dict[str, str]:
    missing = {}
    for peer in PEERS:
        try:
            find_peer(peer)
        except PeerMissing as error:
            missing[peer] = error.one_line()
    return missing


def _apart(measured: Measured) -> dict[str, object]:
    """What belongs to no figure: Spark's own part."""
    told: dict[str, object] = {}
    if rounds := measured.with_all("empty"):
        told["empty_job_seconds"] = rounded(median(one["empty"].seconds for one in rounds))
    for name, start in measured.starts.items():
        told[f"session_start_{name}_seconds"] = rounded(start.session)
        told[f"first_job_{name}_seconds"] = rounded(start.first_job)
    return told


def compact_report(
    figures: Sequence[Figure],
    skipped: Mapping[str, str],
    apart: Mapping[str, object],
    sizes: CompactSizes,
) -> dict[str, object]:
    """One JSON object: a number per field, and what is behind it; null for what was left out."""
    return {
        **{figure.name: rounded(figure.value) for figure in figures},
        **dict.fromkeys(skipped),
        "apart": dict(apart),
        "details": {figure.name: figure.details() for figure in figures},
        "skipped": dict(skipped),
        "machine": {
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "versions": {name: _version(name) for name in VERSIONS},
        },
        "settings": asdict(sizes),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
