"""A Spark session of our own, opened and closed, and its executors.

It listens on loopback, prints nothing, uses this Python for its workers, and starts as fast as it
can; `config` overrides every setting. There is one session in a process at a time, as Spark has it.
"""

from __future__ import annotations

import importlib
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowmark.spark.archive import archive_options
from lowmark.spark.errors import NoExecutors, SessionRefused, SparkMissing, SparkNotStarted
from lowmark.spark.java import find_java, spark_home
from lowmark.spark.jvm import Jvm, attach, start_jvm
from lowmark.spark.settings import (
    Master,
    java_options,
    launch_environment,
    reach,
    read_master,
    settings_for,
)

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_lock = threading.RLock()
_jvm: Jvm | None = None


def open_session(
    master: str = "local[*]",
    *,
    app_name: str = "lowmark",
    config: Mapping[str, str] | None = None,
    archive: bool = True,
) -> SparkSession:
    """Open a session; on a cluster, it has executors when this returns.

    `archive` says whether a class-data archive is used if there is one, and written if there is
    none: see `lowmark.spark.archive`.
    """
    where = read_master(master)
    home = spark_home()
    told = dict(config or {})
    python = _python_for(where, told)
    warm = _may_be_warm(python, told, os.environ)
    with _lock:
        _import_pyspark()
        _refuse_a_second()
        reach(where)
        try:
            if _runs_already():
                scratch = _jvm.scratch if _jvm is not None else None
                settings = settings_for(
                    where,
                    app_name=app_name,
                    config=told,
                    scratch=scratch,
                    python=python,
                    warm=warm,
                )
                gateway = None
            else:
                settings, gateway = _start(
                    where,
                    home,
                    app_name=app_name,
                    config=told,
                    python=python,
                    warm=warm,
                    archive=archive,
                )
            context = _context(settings, gateway)
            context.pythonExec = python
            if not where.in_process:
                await_executors(context)
            return _session_over(context)
        except BaseException:
            _stop_and_end()
            raise


def close_session(session: SparkSession) -> None:
    """Stop a session, and end its Java process if we have started that."""
    with _lock:
        if session.sparkContext is _active():
            _stop_and_end()


def _start(
    where: Master,
    home: Path,
    *,
    app_name: str,
    config: Mapping[str, str],
    python: str,
    warm: bool,
    archive: bool,
) -> tuple[dict[str, str], Any]:
    """Start a Java process; gives the settings that it has, and the connection to it."""
    global _jvm  # noqa: PLW0603
    java = find_java()
    options, recording = (
        archive_options(home, java, environment=os.environ) if archive else ((), None)
    )
    scratch = Path(tempfile.mkdtemp(prefix="lowmark-spark-"))
    try:
        settings = settings_for(
            where, app_name=app_name, config=config, scratch=scratch, python=python, warm=warm
        )
        settings["spark.driver.extraJavaOptions"] = java_options(config, options)
        _jvm = start_jvm(
            home,
            settings,
            environment=launch_environment(os.environ, settings, scratch=scratch, python=python),
            scratch=scratch,
            recording=recording,
        )
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    # Py4J would import this when it first has an argument to convert, and pandas with it. Here it
    # costs nothing: Java takes longer.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(ImportError):
            importlib.import_module("pyspark.testing.utils")
    return settings, attach(_jvm)


def _context(settings: Mapping[str, str], gateway: Any) -> SparkContext:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        with _interrupts_left_alone():
            context = SparkContext(conf=conf, gateway=gateway)
    except Exception as error:
        raise SparkNotStarted(
            f"no Spark session on {settings['spark.master']} could be opened",
            detail="\n".join(str(error).splitlines()[:4]),
        ) from error
    # It would print a traceback if Java dies; a call that waits for Java hears of it otherwise.
    context._accumulatorServer.handle_error = _say_nothing  # type: ignore[assignment,method-assign]
    return context


def _say_nothing(request: object, address: object) -> None:
    logger.debug("Spark's Java process hung up", extra={"address": str(address)})


def _session_over(context: SparkContext) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    return SparkSession(context)


def _python_for(where: Master, config: Mapping[str, str]) -> str:
    told = config.get("spark.pyspark.python")
    if told is None and not where.in_process:
        told = os.environ.get("PYSPARK_PYTHON")  # elsewhere, Python may be elsewhere
    return told or sys.executable


def _may_be_warm(python: str, config: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether Lowmark is where workers are started, as far as can be told from here.

    It is in this Python. Another one may have an older Lowmark, or none, and then the tasks say it
    best. Files that are sent come later than the process that workers are forked from; and what
    `spark-submit` sends, if it has started us, we do not see.
    """
    arguments = shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    sent = (
        "spark.submit.pyFiles" in config
        or any(one.startswith("--py-files") for one in arguments)
        or "PYSPARK_GATEWAY_PORT" in environment
    )
    return python == sys.executable and not sent


def _import_pyspark() -> None:
    try:
        importlib.import_module("pyspark.sql")
    except ImportError as error:
        raise SparkMissing(str(error)) from error


def _active() -> SparkContext | None:
    from pyspark import SparkContext  # noqa: PLC0415

    return SparkContext._active_spark_context


def _runs_already() -> bool:
    from pyspark import SparkContext  # noqa: PLC0415

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _refuse_a_second() -> None:
    if _jvm is not None and _jvm.process.poll() is not None:
        _stop_and_end()  # it died; PySpark has not noticed
    if _active() is not None:
        raise SessionRefused(
            "this process has a Spark session already, and it can have only one",
            hint="Give that session instead of a master, or stop it first.",
        )


def _stop_and_end() -> None:
    """Stop the session of this process, and end the Java process if it is ours."""
    global _jvm
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    with warnings.catch_warnings():
        # PySpark warns if the process is gone. It should be.
        warnings.simplefilter("ignore")
        with suppress(Py4JError, OSError):
            if SparkSession._instantiatedSession is not None:
                SparkSession._instantiatedSession.stop()
        if (active := SparkContext._active_spark_context) is not None:
            active.stop()
    SparkSession._instantiatedSession = None
    if _jvm is None:
        return
    if SparkContext._gateway is not None and SparkContext._gateway.proc is _jvm.process:
        with suppress(Py4JError, OSError):
            SparkContext._gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
    jvm, _jvm = _jvm, None
    jvm.end()


@contextmanager
def _interrupts_left_alone() -> Iterator[None]:
    # A context made on the main thread takes Ctrl-C for itself, for good.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_LOOKS_EVERY_S = 0.05
_WITHIN_S = 60.0
_SETTLED_AFTER_S = 1.0


def slots_of(context: SparkContext) -> int:
    """This many tasks run at once: the executors' cores, in units of what a task takes."""
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
