"""Spark sessions of the bench: the one that all rounds share, and how long one takes to start.

A session of ours gives Java the compiler that is ready soonest, since Java only places tasks then.
Plain Spark needs the one that makes the fastest code, and memory. So the rounds have a session with
that; to our tasks, which are Python, it makes no difference.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from benchmarks.stopwatch import Stopwatch
from clusters.processes import Children, Parent
from lowmark.spark import SparkRunner, archive_path, close_session, make_archive, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_S = 300.0
MASTER = "local[*]"
SHUFFLE = {"spark.sql.shuffle.partitions": "8"}
FAST_CODE = {
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}


class Start(msgspec.Struct, frozen=True):
    """Seconds from a session's opening."""

    session: float
    first_job: float


@contextmanager
def opened_session(*, rehearsal: bool) -> Iterator[SparkSession]:
    """The session of all rounds; a rehearsal has one of ours, which is ready sooner."""
    config = SHUFFLE if rehearsal else SHUFFLE | FAST_CODE
    session = open_session(MASTER, app_name="lowmark bench", config=config, archive=False)
    try:
        yield session
    finally:
        close_session(session)


def empty_job_seconds(session: SparkSession, count: int) -> float:
    """What a job takes that has a task for every slot, and nothing to do; the median of some."""
    # Workers import what they run by its name, and they know no benchmarks; `bytes` is at hand.
    runner = SparkRunner(session)
    packs = [[b""]] * runner.slots
    taken = []
    for _ in range(count):
        with Stopwatch() as watch:
            runner.run(bytes, packs, label="empty")
        taken.append(watch.seconds())
    return median(taken)


def start_seconds(folder: Path, *, archive: bool, count: int) -> Start:
    """What a session of ours takes to start in a new process; the median of some."""
    if archive and not archive_path().exists():
        make_archive()
    starts = []
    for _ in range(count):
        with Children(folder) as children:
            word = "archive" if archive else "plain"
            child = children.start("benchmarks.compact_session", word, name="session")
            starts.append(child.receive(Start, deadline_s=DEADLINE_S))
            child.finish(deadline_s=DEADLINE_S)
    return Start(
        median(start.session for start in starts), median(start.first_job for start in starts)
    )


def main() -> None:
    """Open a session, run a job, and say how long both took."""
    parent = Parent()
    with Stopwatch() as watch:
        session = open_session(MASTER, archive=sys.argv[1] == "archive")
        opened = watch.seconds()
        runner = SparkRunner(session)
        runner.run(bytes, [[b""]] * runner.slots, label="first")
    close_session(session)
    parent.send(Start(opened, watch.seconds()))


if __name__ == "__main__":
    main()
