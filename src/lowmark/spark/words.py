"""What Spark says when a job fails, in words that say what to do.

Errors of the work itself never come this way: see `work`. What is left are processes that died,
workers that can't even begin, and a session that goes away. Spark tells them apart only in text.
"""

from __future__ import annotations

import re

from lowmark.backend.errors import Cancelled
from lowmark.errors import LowmarkError
from lowmark.spark.errors import SparkGone, TaskFailed, TaskLost, WorkersUnfit

__all__ = ["translated"]

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
