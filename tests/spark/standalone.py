"""A Spark cluster of real processes on this machine: a master and its workers.

They are started from the installed PySpark, listen on loopback, at ports that the system chooses,
and are gone when the context ends, however it ends. With `pytest --hosts`, each is in a host of its
own, and sees no other file of the tests.

    with standalone(folder, workers=2) as cluster:
        open_session(cluster.master, config=cluster.config)
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from clusters.places import world
from eventually import eventually
from hosts.hosts import Host
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
    config: dict[str, str] = field(default_factory=dict)
    """Of a session of this process: where executors reach it, if they are in other hosts."""

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
    ends, found = ExitStack(), world()

    def place(name: str) -> tuple[Host | None, Path]:
        if found is None:
            return None, folder
        (folder / name).mkdir()
        host = found.hosts.add(folder=folder / name, hidden=folder.parent)
        ends.callback(found.hosts.remove, host)
        return host, folder / name

    def start(name: str, arguments: Sequence[str], host: Host | None, home: Path) -> Path:
        said = folder / f"{name}.log"
        words = [str(spark_home() / "bin" / "spark-class"), *arguments]
        with said.open("wb") as log:
            process = subprocess.Popen(
                words if host is None else host.command(words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(home, "127.0.0.1" if host is None else host.address),
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
        host, home = place("master")
        at = "127.0.0.1" if host is None else host.address
        words = ["org.apache.spark.deploy.master.Master", "--host", at, "--webui-port", "0"]
        said = start("master", [*words, "--port", "0"], host, home)
        wait_for("Starting Spark master at", said)
        address = _MASTER.search(said.read_text())
        assert address is not None
        for number in range(workers):
            host, home = place(f"worker-{number}")
            at = f"127.0.0.{1 + number if apart else 1}" if host is None else host.address
            words = ["org.apache.spark.deploy.worker.Worker", "--host", at, "--webui-port", "0"]
            words += ["--port", "0", "--cores", str(cores), "--memory", "1g"]
            words += ["--work-dir", str(home / f"work-{number}"), address.group(1)]
            start(f"worker-{number}", words, host, home)
        for _, log in started[1:]:
            wait_for("Successfully registered with master", log)
        yield Standalone(
            master=address.group(1),
            processes=tuple(process for process, _ in started),
            config={} if found is None else _reached_at(found.here),
        )
    finally:
        _end([process for process, _ in started])
        ends.close()


_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def _reached_at(host: Host) -> dict[str, str]:
    return {"spark.driver.host": host.address, "spark.driver.bindAddress": host.address}


def _environment(folder: Path, address: str) -> dict[str, str]:
    return os.environ | {
        "SPARK_LOCAL_IP": address,
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
