"""The log's limits: each has a name, a unit and a bound."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lowmark.errors import Rejected

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_BOUNDS: dict[str, tuple[float, float]] = {
    "wal_bytes_max": (4 * KIB, 64 * GIB),
    "wal_batch_bytes_max": (4 * KIB, GIB),
    "wal_queue_bytes_max": (4 * KIB, 64 * GIB),
    "wal_files_waiting_max": (1, 1_000),
    "segment_bytes_max": (4 * KIB, 4 * GIB),
    "segment_entries_max": (1, 1 << 24),
    "entry_bytes_max": (1, GIB),
    "large_entry_bytes_min": (1, GIB),
    "open_files_max": (1, 1_000_000),
    "compaction_sources_max": (2, 8),
    "compaction_dead_ratio": (0.0, 1.0),
    "compaction_interval_ms": (0, 1 << 40),
    "compaction_step_bytes": (4 * KIB, GIB),
    "compaction_bytes_per_second_max": (0, 1 << 50),
    "compaction_share": (0.01, 1.0),
    "link_grace_ms": (0, 1 << 40),
    "disk_reserved_bytes": (0, 1 << 50),
    "disk_low_bytes": (0, 1 << 50),
    "disk_check_interval_ms": (0, 1 << 40),
    "retry_ms": (1, 1 << 40),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Limits of one node's log. Sizes are in bytes."""

    wal_bytes_max: int = 256 * MIB
    """A WAL file is rolled over at this size. Memory holds what is in files not yet flushed."""
    wal_batch_bytes_max: int = 16 * MIB
    """At most this much is written before one sync."""
    wal_queue_bytes_max: int = 256 * MIB
    """More than this waiting for the WAL, and appends are refused with `LogBusy`."""
    wal_files_waiting_max: int = 4
    """With this many closed WAL files waiting for the segment writer, the WAL waits for it."""
    segment_bytes_max: int = 64 * MIB
    """A segment holds at most this much data, or one entry."""
    segment_entries_max: int = 1 << 16
    """A segment holds at most this many entries."""
    entry_bytes_max: int = 256 * MIB
    """A larger entry is refused."""
    large_entry_bytes_min: int = 256 * KIB
    """An entry from this size on is written once, to a large file, and only named in the WAL."""
    open_files_max: int = 256
    """How many segments may be open for reading at a time."""
    compaction_sources_max: int = 8
    """Phase 3 merges at most this many segments into one."""
    compaction_dead_ratio: float = 0.5
    """Phase 3 runs after phase 1 when more than this share of the compacting section is dead."""
    compaction_interval_ms: int = 600_000
    """Phase 3 also runs this often; 0 turns the timer off."""
    compaction_step_bytes: int = 2 * MIB
    """Phase 3 moves this much between two looks at the clock."""
    compaction_bytes_per_second_max: int = 0
    """Phase 3 moves at most this much a second; 0 is no limit."""
    compaction_share: float = 0.25
    """While appends are running, phase 3 takes at most this share of the time."""
    link_grace_ms: int = 60_000
    """How long the name of a merged segment stays readable."""
    disk_reserved_bytes: int = 64 * MIB
    """Appends that would leave less than this free are refused; what frees space may use it."""
    disk_low_bytes: int = 1 * GIB
    """Phase 3 runs when less than this is free; 0 never looks."""
    disk_check_interval_ms: int = 10_000
    """The node looks this often how much is free, and after each flush; 0 turns the timer off."""
    retry_ms: int = 1_000
    """A WAL that was stopped by its disk tries again after this time."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low, high = _BOUNDS[field.name]
            if isinstance(value, bool) or not low <= value <= high:
                raise Rejected(
                    f"log.{field.name} = {value!r} is out of range",
                    hint=f"Use a value from {low} to {high}.",
                )
