"""Appending: large entries against a bare write loop, small ones against SQLite."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from benchmarks.feed import (
    SMALL_BATCH,
    SMALL_BYTES,
    SMALL_GROUPS,
    TERM,
    TIMEOUT_MS,
    Batch,
    Feed,
    opened,
    small_batches,
    spread,
)
from benchmarks.figure import Figure, Side, Target
from benchmarks.log_sizes import LogSizes
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.stopwatch import Stopwatch
from lowmark.errors import invariant
from lowmark.log import Log, LogConfig
from lowmark.runtime import Runtime

MIB = 1 << 20
LARGE_IN_FLIGHT = 8
SMALL_IN_FLIGHT = 4
SQLITE_CHECKPOINT_PAGES = 10_000


@measures(Figure("append_1m_vs_raw", Target(0.4, aim=0.7), "MB/s", per_unit=1e6))
def append_1m(bench: Bench[LogSizes]) -> Iterator[Plan]:
    """Entries of 1 MiB, durable, until they are in their segments."""
    sizes = bench.sizes
    # A file is full when a batch ends, so it may take a little more than its size.
    count = sizes.roll_overs * (sizes.large_wal_bytes // MIB + LARGE_IN_FLIGHT) + 1
    config = LogConfig(wal_bytes_max=sizes.large_wal_bytes)
    datas = [os.urandom(MIB) for _ in range(8)]

    def ours(in_flight: int) -> Turn:
        def turn(folder: Path) -> Side:
            with opened(folder, config) as (runtime, log):
                group = log.create_group("rows")
                batches: list[Batch] = [[(group, [datas[i % 8]])] for i in range(count)]
                seconds = _seconds_until_idle(
                    runtime, log, batches, in_flight=in_flight, roll_overs=sizes.roll_overs
                )
            return Side(count * MIB, seconds)

        return turn

    def raw(synced_every: int) -> Turn:
        def turn(folder: Path) -> Side:
            fd = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                with Stopwatch() as watch:
                    for i in range(count):
                        os.write(fd, datas[i % 8])
                        if (i + 1) % synced_every == 0 or i + 1 == count:
                            os.fdatasync(fd)
                return Side(count * MIB, watch.seconds())
            finally:
                os.close(fd)

        return turn

    many, bare = ours(LARGE_IN_FLIGHT), raw(1)
    yield bench.compare(
        many,
        bare,
        variants={
            "one_in_flight": (ours(1), bare),
            f"raw_synced_every_{LARGE_IN_FLIGHT}": (many, raw(LARGE_IN_FLIGHT)),
        },
        notes=f"{count} entries of 1 MiB in one group, {LARGE_IN_FLIGHT} in flight,"
        f" {sizes.roll_overs} roll-overs of {sizes.large_wal_bytes // MIB} MiB, until idle;"
        " peer: write 1 MiB, fdatasync, again",
    )


@measures(Figure("append_100b_vs_sqlite", Target(0.8, aim=1.5), "entries/s"), runs="long_runs")
def append_100b(bench: Bench[LogSizes]) -> Iterator[Plan]:
    """Entries of 100 bytes over 64 groups, durable, until they are in their segments."""
    sizes = bench.sizes
    batch_bytes = SMALL_BATCH * SMALL_BYTES  # what the WAL adds only makes it roll earlier
    count = sizes.roll_overs * (sizes.small_wal_bytes // batch_bytes + SMALL_IN_FLIGHT) + 1
    config = LogConfig(wal_bytes_max=sizes.small_wal_bytes)

    def ours(in_flight: int) -> Turn:
        def turn(folder: Path) -> Side:
            with opened(folder, config) as (runtime, log):
                groups = [log.create_group(f"group-{i}") for i in range(SMALL_GROUPS)]
                batches = list(small_batches(groups, count))
                seconds = _seconds_until_idle(
                    runtime, log, batches, in_flight=in_flight, roll_overs=sizes.roll_overs
                )
            return Side(count * SMALL_BATCH, seconds)

        return turn

    def sqlite(folder: Path) -> Side:
        rows = _rows(count)
        db = sqlite3.connect(folder / "peer.sqlite", isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute(f"PRAGMA wal_autocheckpoint = {SQLITE_CHECKPOINT_PAGES}")
            db.execute(
                "CREATE TABLE entry (grp INTEGER, idx INTEGER, term INTEGER, data BLOB,"
                " PRIMARY KEY (grp, idx))"
            )
            with Stopwatch() as watch:
                for batch in rows:
                    db.execute("BEGIN")
                    db.executemany("INSERT INTO entry VALUES (?, ?, ?, ?)", batch)
                    db.execute("COMMIT")
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return Side(count * SMALL_BATCH, watch.seconds())
        finally:
            db.close()

    yield bench.compare(
        ours(SMALL_IN_FLIGHT),
        sqlite,
        variants={"one_in_flight": (ours(1), sqlite)},
        notes=f"{count} batches of 1,000 entries of 100 bytes over {SMALL_GROUPS} groups,"
        f" {SMALL_IN_FLIGHT} batches in flight, {sizes.roll_overs} roll-overs of"
        f" {sizes.small_wal_bytes / MIB:g} MiB, until idle; peer: SQLite {sqlite3.sqlite_version},"
        " WAL, synchronous=FULL, a transaction per batch (it has one in flight by nature), one"
        " table with PRIMARY KEY (grp, idx) (faster here than WITHOUT ROWID), a checkpoint every"
        f" {SQLITE_CHECKPOINT_PAGES:,} pages and a last one in the measured time",
    )


def _seconds_until_idle(
    runtime: Runtime, log: Log, batches: list[Batch], *, in_flight: int, roll_overs: int
) -> float:
    feed, first_wal = Feed(runtime, log, in_flight=in_flight), log.wal.number
    with Stopwatch() as watch:
        feed.run(batches)
        runtime.loop.run_until(lambda: log.idle, timeout_ms=TIMEOUT_MS)
    rolled = log.wal.number - first_wal
    invariant(rolled >= roll_overs, f"only {rolled} roll-overs")
    return watch.seconds()


def _rows(count: int) -> list[list[tuple[int, int, int, bytes]]]:
    """The same entries as rows, with the indexes that the log gives by itself."""
    shares = spread(SMALL_GROUPS)
    places = [(group, i) for group, share in enumerate(shares) for i in range(1, share + 1)]
    datas = [[os.urandom(SMALL_BYTES) for _ in places] for _ in range(min(count, 8))]
    return [
        [
            (group, batch * shares[group] + i, TERM, data)
            for (group, i), data in zip(places, datas[batch % len(datas)], strict=True)
        ]
        for batch in range(count)
    ]
