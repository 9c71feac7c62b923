"""Work on Spark: one task for each pack, and all answers in order.

Spark places the tasks and tries again those whose process died; nothing is shuffled, nothing is
cached, and it never sees what the bytes mean.

    `run` gives all answers, or raises. When it has ended, in whatever way, none of its tasks is
    under way any more, unless Spark itself does not know what became of them.
    An error of a task ends the run when it happens, not when the other tasks have ended.
    A task may be carried out more than once, even twice at the same time.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lowmark.backend.errors import Cancelled
from lowmark.errors import LowmarkError, invariant
from lowmark.spark.errors import SessionRefused, SparkGone, TaskFailed, TaskLost, WorkersUnfit
from lowmark.spark.python import python_of
from lowmark.spark.session import close_session, open_session, slots_of
from lowmark.spark.settings import DAEMON
from lowmark.spark.worker import error_of, name_of, task
from lowmark.version import __version__

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# One run: started on a thread of its own, watched, and ended.
#
# What Spark keeps per thread (groups of jobs, pools) is the caller's; so the thread is ours.
#
# Errors of the work itself come from `worker`. What Spark says when a job fails is translated here:
# processes that died, workers that can't even begin, and a session that goes away. Spark tells them
# apart only in text.

_LOOKS_EVERY_S = 0.1
_TASKS_END_WITHIN_S = 30.0


class Job:
    """One run, on a thread of its own: what Spark keeps per thread is the caller's otherwise."""

    def __init__(
        self, context: SparkContext, told: Accumulator[list[dict[str, Any]]], label: str
    ) -> None:
        self.group = f"lowmark-{secrets.token_hex(8)}"
        self.told = told
        self._context = context
        self._label = label
        self._changed = threading.Event()
        self._cancelled = False
        self._answers: list[bytes] | None = None
        self._failure: BaseException | None = None

    def cancel(self) -> None:
        self._cancelled = True
        self._changed.set()

    def carry_out(self, work: Callable[[Any], Any], packs: list[list[bytes]]) -> list[bytes]:
        from pyspark import InheritableThread  # noqa: PLC0415

        thread = InheritableThread(
            target=self._collect, args=(work, packs), name=f"spark {self._label}", daemon=True
        )
        try:
            thread.start()  # it asks Java for what the caller's thread has told Spark
        except Exception as error:
            raise translated(error, label=self._label) from error
        try:
            while thread.is_alive() and not self._cancelled and not self._errors():
                self._changed.wait(_LOOKS_EVERY_S)
            if thread.is_alive() or self._failure is not None:
                self._end(thread)
        except BaseException:
            # Ctrl-C while we waited.
            self._end(thread)
            raise
        if self._cancelled:
            raise Cancelled(f"{self._label} was cancelled")
        if errors := self._errors():
            raise errors[0]
        if self._failure is not None:
            raise translated(self._failure, label=self._label) from self._failure
        assert self._answers is not None
        return self._answers

    def _collect(self, work: Callable[[Any], Any], packs: list[list[bytes]]) -> None:
        try:
            self._context.setJobGroup(self.group, self._label, interruptOnCancel=True)
            tasks = self._context.parallelize(packs, len(packs)).mapPartitions(work)
            _pack(self._context, tasks)
            self._answers = tasks.collect()
        except BaseException as error:
            self._failure = error
        finally:
            self._changed.set()

    def _errors(self) -> list[LowmarkError]:
        return [
            error_of(each, label=self._label)
            for each in self.told.value
            if each["run"] == self.group
        ]

    def _end(self, thread: threading.Thread) -> None:
        """Cancel what is left, and wait until no task is under way."""
        ends_at = time.monotonic() + _TASKS_END_WITHIN_S
        try:
            while (thread.is_alive() or self._tasks()) and time.monotonic() < ends_at:
                # Again and again: a job that is not there yet can't be cancelled.
                self._context.cancelJobGroup(self.group)
                thread.join(_LOOKS_EVERY_S)
                time.sleep(0 if thread.is_alive() else _LOOKS_EVERY_S)
        except Exception as error:
            # The session is going away, and its tasks with it.
            logger.debug("tasks not awaited", extra={"error": str(error)})
            return
        if thread.is_alive() or self._tasks():
            logger.warning("cancelled tasks are still under way", extra={"run": self._label})

    def _tasks(self) -> int:
        tracker = self._context.statusTracker()
        stages = [
            tracker.getStageInfo(stage)
            for number in tracker.getJobIdsForGroup(self.group)
            if (job := tracker.getJobInfo(number)) is not None
            for stage in job.stageIds
        ]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)


_packing = threading.Lock()


def _pack(context: SparkContext, tasks: RDD[Any]) -> None:
    """Put the function of tasks together, with the name of the Python that they run in."""
    with _packing, python_of(context):
        _ = tasks._jrdd  # this is where it is put together


_HOST = re.compile(r"\(TID \d+\) \((\S+) executor")
_DIED = ("exited unexpectedly", "ExecutorLostFailure", "Python worker failed to connect back")
_STOPPED = ("SparkContext was shut down", "stopped SparkContext", "Py4JNetworkError")
_SHOWN_LINES = 30


def translated(failure: BaseException, *, label: str) -> LowmarkError:
    """A failure of Spark's, in our words."""
    text = str(failure) or type(failure).__name__
    if "SPARK_JOB_CANCELLED" in text:
        return Cancelled(f"{label} was cancelled in Spark")
    host = _HOST.search(text)
    on = f" on {host.group(1)}" if host else ""
    if line := _line_with("PYTHON_VERSION_MISMATCH", text):
        return WorkersUnfit(
            f"Spark's workers{on} have another Python than this process",
            detail=line.rpartition("] ")[2],
            hint="Name one of the same minor version, with Lowmark in it, in spark.pyspark.python.",
        )
    if line := _line_with("Cannot run program", text):
        return WorkersUnfit(
            f"Spark's workers{on} do not have the Python that they should use",
            detail=line.strip(),
            hint="Name one that they have, with Lowmark in it, in spark.pyspark.python.",
        )
    line = _line_with(DAEMON, text)
    if line and "No module named" in line:
        return WorkersUnfit(
            "Spark's workers can't import Lowmark",
            detail=f"{line.strip()}{on}",
            hint="Install it in that Python, the same version as here, or name a Python that has it"
            " in spark.pyspark.python. If you send Lowmark to the workers as a file, set"
            " spark.python.daemon.module=pyspark.daemon.",
        )
    if any(word in text or word == type(failure).__name__ for word in _STOPPED) or isinstance(
        failure, OSError
    ):
        return SparkGone(text.splitlines()[0])
    shown = "\n".join(text.splitlines()[:_SHOWN_LINES])
    if any(word in text for word in _DIED):
        return TaskLost(
            f"{label} was given up: a task's process died{on}, and so did those of its further"
            " attempts",
            detail=shown,
            hint="Mostly it needed more memory than there is; see the system's log of that"
            " machine.",
        )
    return TaskFailed(f"{label} failed in Spark", detail=shown)


def _line_with(word: str, text: str) -> str | None:
    return next((line for line in text.splitlines() if word in line), None)


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
        """This many tasks run at once."""
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
        """End what runs; the caller that waits for it gets `Cancelled`. From any thread."""
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
