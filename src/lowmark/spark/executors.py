"""Who works for a session, and how many tasks they take at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from lowmark.spark.errors import NoExecutors

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["await_executors", "slots_of"]

_LOOKS_EVERY_S = 0.05
_WITHIN_S = 60.0
_SETTLED_AFTER_S = 1.0


def slots_of(context: SparkContext) -> int:
    """So many tasks run at once: the executors' cores, in units of what a task takes."""
    cores = _cores(context) // int(context.getConf().get("spark.task.cpus", "1") or 1)
    # A session whose executors come with its first job (dynamic allocation) has none yet.
    return max(1, cores or context.defaultParallelism)


def await_executors(context: SparkContext) -> None:
    """Wait until a cluster has given us executors, and no more of them come at once.

    They come within about a second of each other. One that comes later is used, too; only the
    first plan does not count on it.
    """
    began = now = time.monotonic()
    cores, since = 0, now
    while not cores or now - since < _SETTLED_AFTER_S:
        if now - began > _WITHIN_S:
            raise NoExecutors(str(context.master), waited_s=_WITHIN_S)
        time.sleep(_LOOKS_EVERY_S)
        found, now = _cores(context), time.monotonic()
        if found != cores:
            cores, since = found, now


def _cores(context: SparkContext) -> int:
    # In local mode the driver is listed with its cores; on a cluster it has none.
    executors: Any = context._jsc.sc().statusStore().executorList(True)
    return sum(executors.apply(at).totalCores() for at in range(executors.size()))
