"""The record of one compaction: why it ran, what it cost, what came of it."""

from __future__ import annotations

import msgspec

Trigger = str
"""One of: "dead ratio", "small segments", "timer", "low disk", "asked"."""


class CompactionRun(msgspec.Struct, kw_only=True):
    """Phase 3, once, for one group."""

    trigger: Trigger
    started_ms: int
    ended_ms: int = 0
    merges: int = 0
    sources: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    bytes_freed: int = 0
    result: str = "running"
