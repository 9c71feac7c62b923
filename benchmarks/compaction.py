"""Phase 3: how fast it moves what is alive, and how much it takes from appends."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from pyroaring import BitMap64

from benchmarks.feed import SMALL_GROUPS, TERM, TIMEOUT_MS, Batch, Feed, opened, small_batches
from benchmarks.figure import Figure, Side, Target
from benchmarks.log_sizes import LogSizes
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.stopwatch import Stopwatch
from lowmark.errors import LowmarkError, invariant
from lowmark.log import CompactionRun, Log, LogConfig, SnapshotMeta
from lowmark.runtime import Runtime

MIB = 1 << 20
ENTRY_BYTES = 64 << 10
IN_FLIGHT = 8
SMALL_IN_FLIGHT = 4


@measures(Figure("phase3_vs_cp", Target(0.5), "MB/s", per_unit=1e6))
def phase3(bench: Bench[LogSizes]) -> Iterator[Plan]:
    """64 KiB entries, every second one dead."""
    config = _config(bench)
    segment_bytes = config.segment_bytes_max
    copies = max(1, bench.sizes.phase3_bytes // 2 // segment_bytes)

    with _half_dead(bench, config) as source, bench.fresh_folder() as dense:
        for i in range(copies):
            (dense / str(i)).write_bytes(os.urandom(segment_bytes))

        def ours(folder: Path) -> Side:
            with _opened_copy(source, folder, config) as (runtime, log):
                runs: list[CompactionRun] = []
                with Stopwatch() as watch:
                    log.group("old").compact(runs.append)
                    runtime.loop.run_until(lambda: bool(runs) and log.idle, timeout_ms=TIMEOUT_MS)
            invariant(runs[0].bytes_copied > 0, f"phase 3 moved nothing: {runs[0].result}")
            return Side(runs[0].bytes_copied, watch.seconds())

        def copy(folder: Path) -> Side:
            with Stopwatch() as watch:
                for i in range(copies):
                    shutil.copyfile(dense / str(i), folder / str(i))
                    with open(folder / str(i), "rb") as copied:
                        os.fdatasync(copied.fileno())
            return Side(copies * segment_bytes, watch.seconds())

        yield bench.compare(
            ours,
            copy,
            notes=f"{bench.sizes.phase3_bytes // MIB} MiB in 64 KiB entries, every second one"
            f" dead, in segments of {segment_bytes / MIB:g} MiB, nothing else running, all in the"
            " page cache; only what is alive counts; peer: copy as many bytes from dense files of"
            " a segment's size (sendfile), fdatasync each",
        )


@measures(Figure("append_during_phase3", Target(0.6), "entries/s"))
def append_during_phase3(bench: Bench[LogSizes]) -> Iterator[Plan]:
    """Appends to some groups while another one is being compacted, against the same in peace."""
    sizes, config = bench.sizes, _config(bench)
    datas = [os.urandom(ENTRY_BYTES) for _ in range(16)]

    def batches(log: Log, *, small: bool) -> Iterator[Batch]:
        if small:
            groups = [log.create_group(f"group-{i}") for i in range(SMALL_GROUPS)]
            return cycle(list(small_batches(groups, 8)))
        group = log.create_group("new")
        return cycle([[(group, [data])] for data in datas])

    def turn(*, compacting: bool, small: bool) -> Turn:
        def take(folder: Path) -> Side:
            with _opened_copy(source, folder, config) as (runtime, log):
                endless = batches(log, small=small)
                feed = Feed(runtime, log, in_flight=SMALL_IN_FLIGHT if small else IN_FLIGHT)
                runs: list[CompactionRun] = []
                with Stopwatch() as watch:
                    if compacting:
                        log.group("old").compact(runs.append)

                    def while_it_lasts() -> Iterator[Batch]:
                        while watch.seconds() < sizes.during_seconds and not runs:
                            yield next(endless)

                    feed.run(while_it_lasts())
                return Side(feed.entries, watch.seconds())

        return take

    with _half_dead(bench, config) as source:
        yield bench.compare(
            turn(compacting=True, small=False),
            turn(compacting=False, small=False),
            variants={
                "100_byte_entries": (
                    turn(compacting=True, small=True),
                    turn(compacting=False, small=True),
                )
            },
            notes=f"64 KiB entries, {IN_FLIGHT} in flight, for {sizes.during_seconds:g} s, or less"
            f" if phase 3 is sooner done with {sizes.phase3_bytes // MIB} MiB, half dead, of"
            f" another group; the WAL rolls over at {config.wal_bytes_max // MIB} MiB; peer: the"
            f" same without phase 3; the variant has batches of 1,000 over {SMALL_GROUPS} groups",
        )


def _config(bench: Bench[LogSizes]) -> LogConfig:
    """No run but the one that is measured, neither for dead entries nor by the clock."""
    return LogConfig(
        wal_bytes_max=bench.sizes.during_wal_bytes,
        segment_bytes_max=min(64 * MIB, bench.sizes.phase3_bytes // 8),
        compaction_dead_ratio=1.0,
        compaction_interval_ms=0,
        disk_low_bytes=0,
    )


@contextlib.contextmanager
def _half_dead(bench: Bench[LogSizes], config: LogConfig) -> Iterator[Path]:
    """A log whose one group is in segments, half of it dead."""
    bench.say("writing what phase 3 will find")
    count = bench.sizes.phase3_bytes // ENTRY_BYTES
    datas = [os.urandom(ENTRY_BYTES) for _ in range(16)]
    # The WAL is one file here, so that segments are as large as they may be.
    one_file = replace(config, wal_bytes_max=64 << 30)
    with bench.fresh_folder() as folder:
        with opened(folder, one_file, hasty=True) as (runtime, log):
            group = log.create_group("old")
            feed = Feed(runtime, log, in_flight=64)
            feed.run([(group, [datas[i % 16]])] for i in range(count))
            _wait_until_flushed(runtime, log)
            live = BitMap64(range(2, count, 2))
            outcome: list[LowmarkError | None] = []
            group.take_snapshot(
                SnapshotMeta(index=count, term=TERM), [b"state"], live, outcome.append
            )
            runtime.loop.run_until(lambda: bool(outcome) and log.idle, timeout_ms=TIMEOUT_MS)
            invariant(outcome == [None], "the snapshot is taken")
            # The newest segment is never compacted: let a small one be the newest.
            feed.run([[(group, [b"newest"])]])
            _wait_until_flushed(runtime, log)
        yield folder


def _wait_until_flushed(runtime: Runtime, log: Log) -> None:
    log.roll()
    runtime.loop.run_until(lambda: log.idle, timeout_ms=TIMEOUT_MS)


@contextlib.contextmanager
def _opened_copy(source: Path, folder: Path, config: LogConfig) -> Iterator[tuple[Runtime, Log]]:
    """The log in `source`, by links (segments are never changed in place), at rest."""
    shutil.copytree(source, folder / "log", copy_function=os.link)
    with opened(folder / "log", config) as (runtime, log):
        runtime.loop.run_until(lambda: log.idle, timeout_ms=TIMEOUT_MS)
        os.sync()
        yield runtime, log
