"""When a table is due to be compacted without a request. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowmark.catalog.options import TableOptions


@dataclass(frozen=True, slots=True)
class Dirt:
    """What a run could compact of one partition."""

    bytes: int
    """Of its backlog, not in the ledger yet, and old enough."""
    kept_bytes: int
    """All that there is of it, in the backlog and in the ledger."""
    age_ms: int
    """How long ago the first of those rows was written; 0 if there is none."""


def due(options: TableOptions, parts: Sequence[Dirt]) -> str | None:
    """Why a table is due, in words; None: it is not.

    By size, when enough could be compacted and it is a large enough part of all; by age, when a row
    has waited for longer than the table's largest lag.
    """
    if options.compaction != "auto":
        return None
    dirty, kept = sum(part.bytes for part in parts), sum(part.kept_bytes for part in parts)
    if not dirty:
        return None
    oldest_ms = max(part.age_ms for part in parts)
    if options.max_lag_ms is not None and oldest_ms > options.max_lag_ms:
        return f"a row waits for {oldest_ms} ms, and max_lag_ms is {options.max_lag_ms}"
    if dirty >= options.dirty_bytes and 100 * dirty >= options.dirty_percent * kept:
        return f"{dirty} bytes are dirty, {100 * dirty // max(kept, 1)} % of all"
    return None
