"""The process that workers are forked from: what it has imported, and that its forks are sound."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from lowmark.spark import SparkRunner
from lowmark.spark.daemon import NEEDED
from lowmark.spark.session import _may_be_warm
from lowmark.spark.settings import DAEMON, read_master, settings_for
from spark.compacting import make, opened
from spark.jobs import draw, origin
from spark.processes import command, is_alive

# -- by itself, without Java ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon as Java starts it, with a Unix socket."""

    process: subprocess.Popen[bytes]
    address: str

    def hire(self) -> tuple[socket.socket, int]:
        """Have it fork a worker."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self.address)
            return connection, int.from_bytes(connection.recv(4), "big")
        except OSError:
            connection.close()
            raise

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def files(self) -> list[str]:
        """What it has open, but for its three streams."""
        numbers = Path(f"/proc/{self.process.pid}/fd")
        return [os.readlink(one) for one in numbers.iterdir() if int(one.name) > 2]

    def dismissed(self) -> tuple[bytes, bytes]:
        """End it as Java does; gives what it has printed meanwhile."""
        out, err = self.process.communicate(timeout=60)
        return out, err


@contextmanager
def started(module: str, folder: Path, environment: Mapping[str, str] = {}) -> Iterator[Daemon]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",  # as Spark says
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
            "SPARK_REUSE_WORKER": "1",
            **environment,
        },
    )
    assert process.stdout is not None
    try:
        length = int.from_bytes(process.stdout.read(4), "big")
        yield Daemon(process, process.stdout.read(length).decode())
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for sockets, whose paths have 107 characters at most: a test's own may have more."""
    with tempfile.TemporaryDirectory(prefix="lowmark-") as folder:
        yield Path(folder)


@pytest.fixture
def shadowed(tmp_path: Path) -> Path:
    """A folder whose modules come before others of that name."""
    folder = tmp_path / "shadowed"
    folder.mkdir()
    return folder


def first_on_path(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.slow
def test_nothing_else_runs_where_workers_are_forked(short: Path) -> None:
    with started(DAEMON, short) as daemon:
        # then it has become no other program, has one thread, and no file open
        assert DAEMON in command(daemon.process.pid)
        assert daemon.threads() == 1
        assert all(name.startswith("socket:") for name in daemon.files())
        # and it says nothing but where it is
        assert daemon.dismissed() == (b"", b"")


@pytest.mark.slow
def test_a_worker_on_which_spark_hangs_up_says_nothing(short: Path) -> None:
    with started(DAEMON, short) as daemon:
        connection, worker = daemon.hire()
        assert is_alive(worker)
        connection.close()
        eventually(lambda: not is_alive(worker))
        assert daemon.dismissed() == (b"", b"")


@pytest.mark.slow
def test_with_a_thread_it_begins_anew_as_the_plain_one(short: Path, shadowed: Path) -> None:
    # given a Python in which a thread runs from the beginning
    text = (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (shadowed / "sitecustomize.py").write_text(text)
    # then workers come from the daemon that imports nothing
    with started(DAEMON, short, first_on_path(shadowed)) as daemon:
        assert "-m pyspark.daemon pyspark.worker" in command(daemon.process.pid)
        connection, worker = daemon.hire()
        assert is_alive(worker)
        connection.close()


@pytest.mark.slow
def test_what_can_not_be_imported_is_left_to_the_worker(short: Path, shadowed: Path) -> None:
    # given an Arrow that prints something, and fails
    (shadowed / "pyarrow.py").write_text("print('noise', flush=True)\nraise RuntimeError('no')\n")
    # then workers are forked all the same, and no one reads of it
    with started(DAEMON, short, first_on_path(shadowed)) as daemon:
        assert DAEMON in command(daemon.process.pid)
        connection, worker = daemon.hire()
        assert is_alive(worker)
        connection.close()
        eventually(lambda: not is_alive(worker))
        assert daemon.dismissed() == (b"", b"")


# -- where it is used -----------------------------------------------------------------------------


def settings(*, warm: bool, **config: str) -> dict[str, str]:
    told = {name.replace("_", "."): text for name, text in config.items()}
    return settings_for(
        read_master("local[2]"), app_name="a", config=told, scratch=None, python="p", warm=warm
    )


def test_a_caller_s_daemon_is_left_as_it_is() -> None:
    name = "spark.python.daemon.module"
    assert settings(warm=True)[name] == DAEMON
    assert name not in settings(warm=False)
    assert settings(warm=True, spark_python_daemon_module="theirs")[name] == "theirs"


def test_it_is_not_set_where_lowmark_may_not_be_installed() -> None:
    ours = sys.executable
    assert _may_be_warm(ours, {}, {})
    assert _may_be_warm(ours, {"spark.jars": "a.jar"}, {"PYSPARK_SUBMIT_ARGS": "pyspark-shell"})
    # in a Python that we do not know
    assert not _may_be_warm("/opt/other/python", {}, {})
    # where it may come with files that are sent, by a setting, an argument, or `spark-submit`
    assert not _may_be_warm(ours, {"spark.submit.pyFiles": "lowmark.zip"}, {})
    sent = {"PYSPARK_SUBMIT_ARGS": "--py-files lowmark.zip pyspark-shell"}
    assert not _may_be_warm(ours, {}, sent)
    assert not _may_be_warm(ours, {}, {"PYSPARK_SUBMIT_ARGS": "--py-files=a.zip pyspark-shell"})
    assert not _may_be_warm(ours, {}, {"PYSPARK_GATEWAY_PORT": "25333"})


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_tasks_of_a_run_import_nothing_more(tmp_path: Path, shared: SparkRunner) -> None:
    # given a session of ours in which a table was compacted
    make(tmp_path / "db")
    with opened(tmp_path / "db") as (_, table):
        assert table.compact(spark=shared._session).state == "done"
    # when its workers are asked
    told = shared.run(origin, [[b""], [b""]], label="asking")
    workers: list[dict[str, Any]] = [json.loads(one) for one in told]
    # then each was forked from a daemon with one thread that had Arrow before
    for worker in workers:
        assert DAEMON in worker["command"]
        assert worker["threads"] == 1
        assert any(name.startswith("libparquet.") for name in worker["libraries"])
    # and of what takes long to import, no task has imported anything
    own = DAEMON.rpartition(".")[0]  # what `python -m` imports before the daemon
    names = json.dumps([own, "pyspark.daemon", "pyspark.worker", *NEEDED])
    program = f"""
import importlib, json, sys
for name in {names}:
    importlib.import_module(name)
import pyarrow
assert "pandas" not in sys.modules  # no module of ours, or of PySpark's, has imported it
pyarrow.array([1])
print(json.dumps(sorted(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    needed = set(json.loads(done.stdout))
    for worker in workers:
        later = set(worker["modules"]) - needed
        slow = {"lowmark", "numpy", "pandas", "pyarrow", "pyspark"}
        assert [one for one in sorted(later) if one.split(".")[0] in slow] == []


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_workers_draw_numbers_of_their_own(shared: SparkRunner) -> None:
    # NumPy's generator was seeded before they were forked
    drawn = shared.run(draw, [[b""], [b""]], label="drawing")
    assert len({one.split()[0] for one in drawn}) == len({one.split()[1] for one in drawn})
