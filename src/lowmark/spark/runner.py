"""Work on Spark: one task for each pack, and all answers in order.

Spark places the tasks and tries again those whose process died; nothing is shuffled, nothing is
cached, and it never sees what the bytes mean.

    `run` gives all answers, or raises. When it has ended, in whatever way, none of its tasks is
    under way any more, unless Spark itself does not know what became of them.
    An error of a task ends the run when it happens, not when the other tasks have ended.
    A task may be carried out more than once, even twice at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lowmark.errors import invariant
from lowmark.spark.errors import SessionRefused, SparkGone
from lowmark.spark.job import Job, translated
from lowmark.spark.session import close_session, open_session, slots_of
from lowmark.spark.worker import name_of, task
from lowmark.version import __version__

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession


class SparkRunner:
    """Carries work out on a Spark session: one of ours, or the caller's as it is."""

    def __init__(self, session: SparkSession, *, owns: bool = False) -> None:
        if type(session).__module__.startswith("pyspark.sql.connect"):
            raise SessionRefused(
                "a Spark Connect session can't run this work",
                detail="It has no way to place tasks one by one.",
                hint="Give a classic session, or the name of a master.",
            )
        self._session = session
        self._owns = owns
        self._lock = threading.Lock()
        self._jobs: set[Job] = set()

    @property
    def slots(self) -> int:
        """So many tasks run at once."""
        context = self._context()
        try:
            return slots_of(context)
        except Exception as error:  # Java is gone, and PySpark has not noticed
            raise translated(error, label="Spark") from error

    @property
    def busy(self) -> bool:
        """Whether something runs."""
        return bool(self._jobs)

    def run(
        self,
        function: Callable[[bytes], bytes],
        packs: Sequence[Sequence[bytes]],
        *,
        label: str,
    ) -> list[bytes]:
        """Call a function on every piece of every pack, a task for each pack; gives all answers, in
        order. The function is imported by its name where the tasks run.
        """
        named = name_of(function)
        full = [list(pack) for pack in packs if pack]
        if not full:
            return []
        context = self._context()
        job = Job(context, _accumulator(context), label)
        with self._lock:
            self._jobs.add(job)
        try:
            work = task(named, version=__version__, run=job.group, tell=job.told)
            answers = job.carry_out(work, full)
        finally:
            with self._lock:
                self._jobs.discard(job)
        invariant(len(answers) == sum(map(len, full)), "every piece has one answer")
        return answers

    def cancel(self) -> None:
        """End what runs; whoever waits for it gets `Cancelled`. From any thread."""
        with self._lock:
            jobs = list(self._jobs)
        for job in jobs:
            job.cancel()

    def close(self) -> None:
        """Stop the session if it is ours; what runs ends."""
        self.cancel()
        if self._owns:
            close_session(self._session)

    def _context(self) -> SparkContext:
        context = self._session.sparkContext
        if context._jsc is None:
            raise SparkGone("It was stopped.")
        process = getattr(context._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            raise SparkGone(
                "Its Java process has ended."
            )  # PySpark would print what it makes of it
        return context


_lock = threading.Lock()
_accumulators: WeakKeyDictionary[SparkContext, Accumulator[list[dict[str, Any]]]] = (
    WeakKeyDictionary()
)
"""One for all runs of a session: PySpark never forgets one."""


def _accumulator(context: SparkContext) -> Accumulator[list[dict[str, Any]]]:
    from pyspark.accumulators import AddingAccumulatorParam  # noqa: PLC0415

    with _lock:
        told = _accumulators.get(context)
        if told is None:
            nothing: list[dict[str, Any]] = []
            told = _accumulators[context] = context.accumulator([], AddingAccumulatorParam(nothing))
        return told


def echo(data: bytes) -> bytes:
    """The least work there is."""
    return data


def rehearse() -> None:
    """Do once what sessions do, so that Java learns the classes for it: see `make_archive`."""
    runner = SparkRunner(open_session("local[2]"), owns=True)
    try:
        for _ in range(3):
            runner.run(echo, [[b"1", b"2"], [b"3"]], label="rehearsal")
    finally:
        runner.close()
