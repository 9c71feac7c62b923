"""A Spark cluster of real processes on this machine: a master and its workers.

They are started from the installed PySpark, listen on loopback, at ports that the system chooses,
and are gone when the context ends, however it ends.

    with standalone(folder, workers=2) as cluster:
        open_session(cluster.master)
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from eventually import eventually
from lowmark.spark.java import spark_home
from spark.processes import below, command, is_alive

READY_S = 60.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """A cluster that runs."""

    master: str
    processes: tuple[subprocess.Popen[bytes], ...]

    def everybody(self) -> list[int]:
        """All its processes, executors and their Python included."""
        return [pid for each in self.processes for pid in (each.pid, *below(each.pid))]

    def executors(self) -> list[int]:
        """The Java process of each executor."""
        return [pid for pid in self.everybody() if _is_executor(pid)]

    def kill_executor(self, pid: int) -> None:
        """Kill it, and all that it has started, at once and without a word."""
        for each in (pid, *below(pid)):
            _kill(each)


@contextmanager
def standalone(
    folder: Path, *, workers: int = 2, cores: int = 1, apart: bool = False
) -> Iterator[Standalone]:
    """A master and so many workers; all are registered when the context begins.

    With `apart`, workers are of different hosts by their addresses: Spark never starts a second
    attempt at the host of the first one.
    """
    started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(name: str, *arguments: str) -> Path:
        said = folder / f"{name}.log"
        with said.open("wb") as log:
            process = subprocess.Popen(
                [str(spark_home() / "bin" / "spark-class"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(folder),
                start_new_session=True,
            )
        started.append((process, said))
        return said

    def wait_for(words: str, said: Path) -> None:
        def there() -> bool:
            for process, log in started:
                assert process.poll() is None, log.read_text()
            return words in said.read_text()

        eventually(there, deadline_s=READY_S)

    try:
        said = start("master", "org.apache.spark.deploy.master.Master", *_AT, "--port", "0")
        wait_for("Starting Spark master at", said)
        found = _MASTER.search(said.read_text())
        assert found is not None
        for number in range(workers):
            start(
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                *("--host", f"127.0.0.{1 + number if apart else 1}", "--webui-port", "0"),
                *("--port", "0", "--cores", str(cores), "--memory", "1g"),
                *("--work-dir", str(folder / f"work-{number}"), found.group(1)),
            )
        for _, log in started[1:]:
            wait_for("Successfully registered with master", log)
        yield Standalone(master=found.group(1), processes=tuple(process for process, _ in started))
    finally:
        _end([process for process, _ in started])


_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_AT = ("--host", "127.0.0.1", "--webui-port", "0")


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LOG_DIR": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _QUICK,
        "SPARK_LAUNCHER_OPTS": _QUICK,
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "PYSPARK_PYTHON": sys.executable,
    }


def _is_executor(pid: int) -> bool:
    words = command(pid)
    return _EXECUTOR in words and " -cp " in words


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    everybody = [pid for each in processes for pid in (each.pid, *below(each.pid))]
    for pid in everybody:
        _kill(pid)
    for process in processes:
        process.wait()
    eventually(lambda: not any(is_alive(pid) for pid in everybody))
