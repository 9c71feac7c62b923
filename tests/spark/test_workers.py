"""Workers whose Python is not ours: the run says what is wrong with it, and what to do."""

from __future__ import annotations

import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lowmark import __version__
from lowmark.spark import SparkRunner, WorkersUnfit
from lowmark.spark.settings import DAEMON
from spark.jobs import shout

MODULE = "spark.python.daemon.module"

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]


def bare_python(folder: Path) -> Path:
    """A Python with nothing installed in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


@contextmanager
def workers_with(
    runner: SparkRunner,
    *,
    python: str | None = None,
    version: str | None = None,
    daemon: str = "pyspark.daemon",
) -> Iterator[None]:
    """A session is told once which Python its workers have; it can be told anew for each run.

    A session of ours that is opened with another Python than this one has PySpark's daemon.
    """
    context = runner._session.sparkContext
    java: Any = context._jsc
    settings = java.sc().conf()  # what it was made with; tasks look into it
    before = context.pythonExec, context.pythonVer, settings.get(MODULE)
    context.pythonExec = python or context.pythonExec
    context.pythonVer = version or context.pythonVer
    settings.set(MODULE, daemon)
    try:
        yield
    finally:
        context.pythonExec, context.pythonVer, module = before
        settings.set(MODULE, module)


def test_workers_without_lowmark(shared: SparkRunner, tmp_path: Path) -> None:
    # given workers with a Python of their own that has no packages
    python = str(bare_python(tmp_path / "bare"))
    with workers_with(shared, python=python), pytest.raises(WorkersUnfit) as caught:
        shared.run(shout, [[b"a"], [b"b"]], label="shouting")
    # then the error says what is missing, where, and what to do
    assert caught.value.message == "Spark's workers can't import Lowmark"
    assert "No module named 'lowmark'" in caught.value.detail
    assert socket.gethostname() in caught.value.detail
    assert python in caught.value.detail
    assert "spark.pyspark.python" in caught.value.hint


def test_workers_that_start_with_lowmark_and_do_not_have_it(
    shared: SparkRunner, tmp_path: Path
) -> None:
    # given a session that has workers forked from our daemon, and a Python without it
    python = str(bare_python(tmp_path / "bare"))
    with (
        workers_with(shared, python=python, daemon=DAEMON),
        pytest.raises(WorkersUnfit) as caught,
    ):
        shared.run(shout, [[b"a"]], label="shouting")
    # then it is the same error, and says how to do without
    assert caught.value.message == "Spark's workers can't import Lowmark"
    assert "No module named 'lowmark'" in caught.value.detail
    assert python in caught.value.detail
    assert "spark.python.daemon.module=pyspark.daemon" in caught.value.hint


def test_workers_with_another_lowmark(shared: SparkRunner, tmp_path: Path) -> None:
    # given workers with another version
    python = bare_python(tmp_path / "old")
    paths = sysconfig.get_paths("venv", vars={"base": str(tmp_path / "old")})
    package = Path(paths["purelib"], "lowmark")
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "0.0.9"\n')
    with workers_with(shared, python=str(python)), pytest.raises(WorkersUnfit) as caught:
        shared.run(shout, [[b"a"]], label="shouting")
    # then the error names both
    assert "0.0.9" in caught.value.message
    assert __version__ in caught.value.message
    assert str(python) in caught.value.detail


def test_workers_with_another_python(shared: SparkRunner) -> None:
    # given a driver that claims to be of another version than its workers are
    with workers_with(shared, version="3.99"), pytest.raises(WorkersUnfit) as caught:
        shared.run(shout, [[b"a"]], label="shouting")
    assert "another Python" in caught.value.message
    assert "3.99" in caught.value.detail
    assert "{}.{}".format(*sys.version_info) in caught.value.detail


def test_workers_without_that_python(shared: SparkRunner) -> None:
    with workers_with(shared, python="/no/such/python"), pytest.raises(WorkersUnfit) as caught:
        shared.run(shout, [[b"a"]], label="shouting")
    assert "do not have the Python" in caught.value.message
    assert "/no/such/python" in caught.value.detail
