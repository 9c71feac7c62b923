"""The process that Spark's Python workers are forked from, with what their tasks need at hand.

Spark ends Python workers that had nothing to do for a minute. PySpark's own daemon forks new ones
quickly, but each of them imports PySpark's worker, Arrow and Lowmark again, before its first task:
a second, in which a small run would have ended. This daemon has imported them before it forks, and
is PySpark's own else:

    spark.python.daemon.module=lowmark.spark.daemon

A fork has only the thread that called it, and locks that another one held stay locked. So no other
thread may run here. PySpark imports nothing before it forks for that reason; we look:

    1. Arrow's jemalloc is told to do without its thread, which a fork would not have, either.
    2. If there is a thread after all (one of a BLAS, where `OMP_NUM_THREADS` asks for some, or of a
       module that we do not know), or if that can't be seen, the process begins anew as PySpark's
       own daemon, and workers import for themselves.
    3. What can't be imported here is left to the worker, whose error reaches the driver.

Nothing may be printed on the way: Java reads this process's output, and expects a port.

It is started by `python -m`, which imports the packages `lowmark` and `lowmark.spark` before this
module has a say; so neither of them may import Arrow.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from zipimport import zipimporter

NEEDED = ("pyarrow.parquet", "lowmark.fault", "lowmark.compaction.runner")
"""What the tasks of a run import, by name: they are above this package. PySpark's worker comes
first, whichever Spark asks for."""

_PLAIN = "pyspark.daemon"
_WORKER = "pyspark.worker"
_NO_THREAD = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


def main() -> None:
    """Import, see that nothing else runs here, and be PySpark's daemon from here on."""
    with _no_output(), _environment(_NO_THREAD):
        _import_all([_PLAIN, *_asked_for(sys.argv), *NEEDED])
        _have_arrow_look_for_pandas()
    if threads() != 1:
        _begin_anew()
    _forget_zips()
    # What is here stays: no worker needs to look through it for garbage, after each of its tasks,
    # and get a copy of its own of every page by that.
    gc.collect()
    gc.freeze()
    daemon = importlib.import_module(_PLAIN)
    _leave_quietly(daemon)
    os.register_at_fork(after_in_child=_draw_anew)
    daemon.manager()


def threads() -> int:
    """How many threads this process has, those that Python does not know of among them; 0 if the
    system does not say.
    """
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    return 0


def _asked_for(arguments: Sequence[str]) -> list[str]:
    # PySpark's daemon takes it by the same rule.
    told = arguments[1] if len(arguments) > 1 else ""
    return [told if told.startswith("pyspark") else _WORKER]


def _import_all(names: Sequence[str]) -> None:
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)


def _have_arrow_look_for_pandas() -> None:
    """No task of ours uses pandas. But Arrow imports it, where it is installed, at the first array
    that it makes of something else, or makes something else of: that takes as long as all the rest.
    """
    with suppress(Exception):
        arrow: Any = importlib.import_module("pyarrow")
        arrow.array([0])


def _forget_zips() -> None:
    """Keep workers from reading the contents of PySpark's zip again: before its first task, one
    has every finder look at its place anew, and up to Python 3.12 a zip's finder does so at once.
    There is one for every package in the zip, and one for a jar of Spark's. New ones are made when
    they are needed, of what is known of the zips.
    """
    for place, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[place]


def _draw_anew() -> None:
    # Python's own generator does so by itself. NumPy's would draw the same in all workers.
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()


def _begin_anew() -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-m", _PLAIN, *sys.argv[1:]])


def _leave_quietly(daemon: ModuleType) -> None:
    """Let a worker on which Spark hangs up, after a minute without a task, end without a traceback.

    It reports the end of the connection to the connection that has ended. Nothing is lost by that.
    """
    work: Callable[..., int] = daemon.worker

    def worker(*arguments: Any) -> int:
        try:
            return work(*arguments)
        except BrokenPipeError:
            return 1

    daemon.worker = worker  # type: ignore[attr-defined]


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Add what the environment does not have; it is as it was afterwards."""
    added = {name: text for name, text in settings.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def _no_output() -> Iterator[None]:
    """What is printed goes nowhere; by its number, since a module that is imported may keep the
    stream itself.
    """
    streams = sys.stdout, sys.stderr
    kept = [os.dup(stream.fileno()) for stream in streams]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in streams:
            os.dup2(nowhere, stream.fileno())
        yield
    finally:
        for stream, before in zip(streams, kept, strict=True):
            stream.flush()
            os.dup2(before, stream.fileno())
        for number in (nowhere, *kept):
            os.close(number)


if __name__ == "__main__":
    main()
