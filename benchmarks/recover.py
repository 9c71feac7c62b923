"""Opening a log: a long WAL against reading its bytes, many segments against touching files."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crc32c import crc32c

from benchmarks.feed import (
    SMALL_BATCH,
    SMALL_BYTES,
    SMALL_GROUPS,
    TIMEOUT_MS,
    Batch,
    Feed,
    opened,
    small_batches,
)
from benchmarks.figure import Figure, Side, Target
from benchmarks.log_sizes import LogSizes
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.stopwatch import Stopwatch
from lowmark.errors import invariant
from lowmark.log import GroupLog, Log, LogConfig
from lowmark.runtime import real_runtime

MIB = 1 << 20
ENTRY_BYTES = 64 << 10
READ_BYTES = MIB
HANDLES = 1_024


@measures(Figure("recover_vs_read", Target(0.3), "MB/s", per_unit=1e6))
def recover(bench: Bench[LogSizes]) -> Iterator[Plan]:
    """A WAL of 64 KiB entries."""
    count = bench.sizes.recover_bytes // ENTRY_BYTES
    datas = [os.urandom(ENTRY_BYTES) for _ in range(16)]

    def batches(groups: list[GroupLog]) -> Iterable[Batch]:
        return ([(groups[i % len(groups)], [datas[i % 16]])] for i in range(count))

    with _wal(bench, groups=4, batches=batches) as (ours, read, size):
        yield bench.compare(ours, read, notes=_notes(f"{count} entries of 64 KiB", size))


@measures(Figure("recover_small_vs_read", Target(0.3), "MB/s", per_unit=1e6), runs="long_runs")
def recover_small(bench: Bench[LogSizes]) -> Iterator[Plan]:
    """The same with 100-byte entries, in the batches of `append_100b_vs_sqlite`."""
    count = max(1, bench.sizes.recover_small_bytes // (SMALL_BATCH * SMALL_BYTES))

    def batches(groups: list[GroupLog]) -> Iterable[Batch]:
        return small_batches(groups, count)

    with (
        _wal(bench, groups=SMALL_GROUPS, batches=batches) as (ours, read, size),
        _wal(bench, groups=1, batches=batches) as (ours_of_one, read_of_one, _),
    ):
        shape = (
            f"{count} batches of 1,000 entries of 100 bytes over {SMALL_GROUPS} groups, so records"
            f" of about {SMALL_BATCH // SMALL_GROUPS}"
        )
        yield bench.compare(
            ours,
            read,
            notes=_notes(shape, size),
            variants={"one_group": (ours_of_one, read_of_one)},
        )


def _notes(shape: str, size: int) -> str:
    return (
        f"{shape}: {size / MIB:.0f} MiB of WAL, in the page cache for both, until appends and reads"
        " are taken; peer: read by 1 MiB, CRC-32C"
    )


@contextmanager
def _wal(
    bench: Bench[LogSizes], *, groups: int, batches: Callable[[list[GroupLog]], Iterable[Batch]]
) -> Iterator[tuple[Turn, Turn, int]]:
    """A turn that opens a log, one that reads its WAL, and the WAL's size."""
    one_file = LogConfig(wal_bytes_max=64 << 30)
    with bench.fresh_folder() as source:
        bench.say("writing the WAL")
        with opened(source, one_file, hasty=True) as (runtime, log):
            made = [log.create_group(f"group-{i}") for i in range(groups)]
            Feed(runtime, log, in_flight=64).run(batches(made))
            indexes = {group.name: group.written_index for group in made}
            (wal,) = (source / "wal").iterdir()
            size = wal.stat().st_size

        def ours(folder: Path) -> Side:
            # Opening begins to move the WAL into segments, so each turn has the files by links.
            shutil.copytree(source, folder / "log", copy_function=os.link)
            runtime = real_runtime(str(folder / "log"))
            with Stopwatch() as watch:
                log = Log.open(runtime, one_file)
            found = {group.name: group.written_index for group in log.groups()}
            log.close()
            runtime.loop.close()
            invariant(found == indexes, "the log opens with every entry that was written")
            return Side(size, watch.seconds())

        def read(_: Path) -> Side:
            buffer = memoryview(bytearray(READ_BYTES))
            with Stopwatch() as watch:
                fd, checksum = os.open(wal, os.O_RDONLY), 0
                while count := os.readv(fd, [buffer]):
                    checksum = crc32c(buffer[:count], checksum)
                os.close(fd)
            return Side(size, watch.seconds())

        yield ours, read, size


@measures(Figure("open_10k_vs_stat", Target(4.0, at_least=False), "segments/s"))
def open_10k(bench: Bench[LogSizes]) -> Iterator[Plan]:
    """A group of many segments, with fewer file handles than segments."""
    count = bench.sizes.segments
    config = LogConfig(segment_entries_max=1, open_files_max=HANDLES // 2)
    with bench.fresh_folder() as root:
        bench.say(f"writing {count:,} segments")
        with opened(root, config, hasty=True) as (runtime, log):
            group = log.create_group("rows")
            Feed(runtime, log, in_flight=1).run([[(group, [bytes(512)] * count)]])
            log.roll()
            runtime.loop.run_until(lambda: log.idle, timeout_ms=TIMEOUT_MS)
        segments = sorted((root / "groups" / "rows").glob("*.segment"))
        invariant(len(segments) == count, f"{len(segments)} segments were written")
        paths = [str(path) for path in segments]

        def ours(_: Path) -> Side:
            runtime = real_runtime(str(root))
            with Stopwatch() as watch:
                log = Log.open(runtime, config)
            found = log.group("rows").written_index
            runtime.loop.run_until(lambda: log.idle, timeout_ms=TIMEOUT_MS)  # the WAL file goes
            log.close()
            runtime.loop.close()
            invariant(found == count, "the group opens with all its segments")
            return Side(count, watch.seconds())

        def touch(_: Path) -> Side:
            with Stopwatch() as watch:
                for path in paths:
                    os.stat(path)
                    fd = os.open(path, os.O_RDONLY)
                    os.read(fd, 4096)
                    os.close(fd)
            return Side(count, watch.seconds())

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(HANDLES, hard), hard))
        try:
            yield bench.compare(
                ours,
                touch,
                notes=f"{count:,} segments in one group, at most {HANDLES:,} file handles,"
                " in the page cache for both; our time by the peer's; peer: stat, open, read,"
                " close",
            )
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
