"""The log at work: append, snapshot, compact, die in the middle of it, recover.

    .venv/bin/python examples/log_tour.py

A process keeps 200 sensors on a log: every reading is an entry, and only the last one of each
sensor is still needed. It takes a snapshot that says so, and compacts. In the middle of that it
kills itself with -9. A second process opens what is left, checks it, and shows what was kept, what
went, and why.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyroaring import BitMap64
from rich.console import Console
from rich.table import Table

from lowmark.inspect import verify_log
from lowmark.log import (
    Explanation,
    Log,
    LogConfig,
    SnapshotMeta,
    explain_group,
)
from lowmark.runtime import RealDisk, Runtime, real_runtime

READINGS = 60_000
SENSORS = 200
GROUP = "sensors"
CONFIG = LogConfig(wal_bytes_max=256 << 10, segment_bytes_max=128 << 10)


def reading(index: int) -> bytes:
    """What is appended at an index."""
    return f"{sensor_of(index)} reads {index * 37 % 1000 / 10} at {index}".encode()


def sensor_of(index: int) -> str:
    """Most sensors fall silent after a third or two thirds; then others report in their place."""
    sensor = index * 7919 % SENSORS
    silent_after = (READINGS // 3) * (1 + sensor // 70)
    return f"sensor-{sensor if index <= silent_after else sensor % 10:03d}"


def last_readings() -> dict[str, int]:
    """The index of each sensor's last reading: the live set."""
    return {sensor_of(index): index for index in range(1, READINGS + 1)}


class DiesInACompaction(RealDisk):
    """The machine's disk, until phase 3 makes its first symlink: then the process is gone."""

    def symlink(self, target: str, path: str) -> None:
        super().symlink(target, path)
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def opened(folder: str, *, disk: RealDisk | None = None) -> Iterator[tuple[Log, Runtime]]:
    """A log in that folder."""
    runtime = real_runtime(folder)
    if disk is not None:
        runtime = replace(runtime, disk=disk)
    log = Log.open(runtime, CONFIG)
    try:
        yield log, runtime
    finally:
        log.close()
        runtime.loop.close()


def first_life(folder: str, notes: str) -> None:
    """Append everything, wait until it is durable, snapshot, compact; this never returns."""
    with opened(folder, disk=DiesInACompaction(folder)) as (log, runtime):
        group = log.create_group(GROUP)
        for first in range(1, READINGS + 1, 1_000):
            group.append(1, [reading(index) for index in range(first, first + 1_000)])
            runtime.loop.run_until(lambda: group.written_index == group.last_index)
        runtime.loop.run_until(lambda: log.idle)
        spans = [(ref.first, ref.last) for ref in group.state.segments]
        print(f"{group.written_index:,} entries are durable, in {len(spans)} segments.")
        with open(notes, "w") as file:
            json.dump(spans, file)
        live = BitMap64(last_readings().values())
        print(f"A snapshot says that {len(live)} of them are still needed.", flush=True)
        meta = SnapshotMeta(index=READINGS, term=1)
        group.take_snapshot(meta, [b"the sensors' state"], live, lambda _: None)
        # Phase 1 follows the snapshot, phase 3 follows phase 1; the disk will not survive that.
        runtime.loop.run_until(lambda: False, timeout_ms=60_000)


def second_life(folder: str, before: list[tuple[int, int]], console: Console) -> None:
    """Open what is left: recovery finishes the merge that was cut short."""
    with opened(folder) as (log, runtime):
        runtime.loop.run_until(lambda: log.idle)
        group = log.group(GROUP)
        for sensor, index in last_readings().items():
            [entry] = group.read([index])
            assert bytes(entry.data) == reading(index), sensor
        console.print(f"Recovered: all {SENSORS} last readings are there, and checked.\n")
        explained = explain_group(log, GROUP)
    console.print(fates(before, explained))
    entries = sum(segment.entries for segment in explained.segments)
    console.print(f"{READINGS:,} entries were written, {entries:,} are kept.")
    for run in explained.runs:
        console.print(
            f"Phase 3, {run.trigger}: {run.sources} segments became {run.merges},"
            f" {run.bytes_freed:,} bytes freed, {run.result}."
        )
    findings = list(verify_log(RealDisk(folder)))
    console.print(f"`lowmark log verify` finds {len(findings) or 'nothing'} wrong.")


def fates(before: list[tuple[int, int]], after: Explanation) -> Table:
    """What became of each segment that there was before the snapshot."""
    table = Table("segment", "live", "what became of it, and why", title_justify="left")
    live = BitMap64(last_readings().values())
    for first, last in before:
        count = live.range_cardinality(first, last + 1)
        fate = "[red]went[/]: nothing in it is live"
        for now in after.segments:
            if count and now.first <= last and first <= now.last:
                why = "; ".join(reason.text for reason in now.reasons)
                alone = first <= now.first and now.last <= last
                fate = f"[green]kept[/]: {why}" if alone else "[yellow]merged[/]: it was sparse"
        table.add_row(f"{first:,} to {last:,}", f"{count} of {last - first + 1:,}", fate)
    first = before[-1][1] + 1
    count = live.range_cardinality(first, READINGS + 1)
    fate = "[green]kept[/]: it was still in the WAL; only what is live went into a segment"
    table.add_row(f"{first:,} to {READINGS:,}", f"{count} of {READINGS + 1 - first:,}", fate)
    return table


def main() -> int:
    """Two lives in one folder, the first in a process of its own."""
    if len(sys.argv) == 4 and sys.argv[1] == "--first-life":
        first_life(sys.argv[2], sys.argv[3])
        return 1
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="lowmark-") as home:
        folder, notes = f"{home}/data", f"{home}/segments.json"
        first = [sys.executable, __file__, "--first-life", folder, notes]
        died = subprocess.run(first, check=False).returncode
        if died != -signal.SIGKILL:
            console.print(f"The first process should have died in a compaction, not with {died}.")
            return 1
        console.print("The process killed itself in the middle of a compaction (kill -9).")
        with open(notes) as file:
            second_life(folder, json.load(file), console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
