"""A driver that writes a table on a Spark of its own, to be killed: a process has one session at a
time.

python -m frames.writing KIND MASTER PLACE FOLDER [NAME=VALUE ...]

Each number of the source becomes `EACH` rows. When the most of them are staged, a task waits for as
long as a file of `FOLDER` holds it, and so does a commit between its steps. What comes to such a
step says so by a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

import lowmark
from lowmark.client.staging import Commit
from lowmark.client.table_writing import SLICE_ROWS
from lowmark.frames.options import Options
from lowmark.frames.sink import StreamWriter
from lowmark.frames.source import LowmarkSource
from lowmark.spark import open_session
from lowmark.spark.archive import SWITCH
from lowmark.table import Bind, Bound
from spark.drivers import SMALL
from spark.jobs import ON_WORKERS, TESTS
from spark.processes import below, is_alive

FIRST = SLICE_ROWS + 40_000
"""What a task gives before it waits: some of it stays in pipes between processes."""
EACH = FIRST + 1_000
SCHEMA = "id long, v string"
FORMAT = "lowmark_held"


class Steps:
    """Where tasks and commits of a driver are, and how far they may go."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def hold(self, step: str) -> None:
        """From now on, let what comes to this step wait."""
        (self._folder / f"{step}.hold").touch()

    def release(self, step: str) -> None:
        """Let it go on."""
        (self._folder / f"{step}.hold").unlink(missing_ok=True)

    def reached(self, step: str) -> int:
        """How often it was come to."""
        return len(list(self._folder.glob(f"{step}.*.reached")))

    def forget(self) -> None:
        """All that was come to."""
        for path in self._folder.glob("*.reached"):
            path.unlink()

    def reach(self, step: str, who: object) -> None:
        """Come to a step, and wait while it is held."""
        (self._folder / f"{step}.{who}.reached").touch()
        while (self._folder / f"{step}.hold").exists():
            time.sleep(0.01)


class Driver:
    """The process of a driver, with all that it has started."""

    def __init__(self, kind: str, master: str, place: str, folder: Path, **config: str) -> None:
        self._log = folder.with_suffix(".log")
        words = [kind, master, place, str(folder), *(f"{key}={one}" for key, one in config.items())]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "frames.writing", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": _PATH, SWITCH: "off"},
            )

    def runs(self) -> bool:
        """Whether it has not ended; that it has failed is an error."""
        assert self._process.poll() in (None, 0), self._log.read_text()
        return self._process.poll() is None

    def end(self) -> None:
        """Wait for its end."""
        self._process.wait(timeout=240)
        self.runs()

    def kill(self) -> None:
        """Kill it, and all that it has started, at once and without a word."""
        everybody = [self._process.pid, *below(self._process.pid)]
        for pid in everybody:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


_PATH = os.pathsep.join([str(TESTS), str(Path(lowmark.__file__).parents[1])])
"""Executors work in folders of their own, and must not find another Lowmark there."""


# -- in the driver --------------------------------------------------------------------------------


def expanded(folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: the rows of each number."""
    steps, context = Steps(Path(folder)), TaskContext.get()
    assert context is not None
    attempt = f"{context.attemptNumber()}-{os.getpid()}"
    for number in (one for batch in batches for one in batch.column("id").to_pylist()):
        yield from _rows(number * EACH, FIRST)
        again = "again" if context.attemptNumber() else "first"
        steps.reach(f"{again}-{number}", attempt)
        yield from _rows(number * EACH + FIRST, EACH - FIRST)


def _rows(first: int, count: int) -> Iterator[pa.RecordBatch]:
    for at in range(first, first + count, 10_000):
        keys = pa.array(range(at, min(at + 10_000, first + count)), pa.int64())
        yield pa.record_batch({"id": keys, "v": pa.array(["x"] * len(keys))})


class HeldSource(LowmarkSource):
    """One whose commits wait where they are told to."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = {key: text for key, text in self.options.items() if key != "steps"}
        wanted = Options.write(options, stream=True)
        return HeldWriter(wanted, schema, overwrite=overwrite, steps=self.options["steps"])


class HeldWriter(StreamWriter):
    def __init__(
        self, options: Options, schema: StructType, *, overwrite: bool, steps: str
    ) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._steps = steps

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        """In a process of the driver's, which ends with it."""
        steps, bound = Steps(Path(self._steps)), Commit._bound

        def by_steps(commit: Commit, wanted: Mapping[int, Bind]) -> dict[int, Bound]:
            if any(one.plan for one in wanted.values()):  # where the epoch is decided
                steps.reach("committing", os.getpid())
                answers = bound(commit, wanted)
                steps.reach("decided", os.getpid())
                return answers
            some = sorted(wanted)[::2]
            answers = bound(commit, {number: wanted[number] for number in some})
            steps.reach("half", os.getpid())
            return bound(commit, wanted)

        Commit._bound = by_steps  # type: ignore[method-assign,assignment]
        try:
            super().commit(messages, batchId)
        finally:
            Commit._bound = bound  # type: ignore[method-assign]


def _write(spark: Any, place: str, folder: str) -> None:
    frame = spark.range(0, 2, numPartitions=2).mapInArrow(partial(expanded, folder), SCHEMA)
    frame.write.format("lowmark").options(path=place, table="t").mode("append").save()


def _stream(spark: Any, place: str, folder: str) -> None:
    spark.dataSource.register(HeldSource)
    given = {"path": place, "table": "source", "startingOffsets": "earliest"}
    frame = spark.readStream.format("lowmark").options(**given, maxRowsPerTrigger="2").load()
    options = {"path": place, "table": "t", "checkpointLocation": f"{folder}/checkpoint"}
    query = (
        frame.select("id")
        .mapInArrow(partial(expanded, folder), SCHEMA)
        .writeStream.format(FORMAT)
        .options(**options, steps=folder)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _drive(kind: str, master: str, place: str, folder: str, *config: str) -> None:
    given = dict(one.split("=", 1) for one in config)
    on_workers = dict.fromkeys(ON_WORKERS, _PATH)
    session = open_session(master, config={**on_workers, **SMALL, **given})
    {"write": _write, "stream": _stream}[kind](session, place, folder)


if __name__ == "__main__":
    _drive(*sys.argv[1:])
