"""Which Python sessions of this process start, if nothing else says it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lowmark.spark import python
from lowmark.spark.python import NAMED, name_python


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    """A PATH where `python3` is another one."""
    (tmp_path / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "python3").chmod(0o755)
    return str(tmp_path)


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.core.context", None)
    monkeypatch.setattr(python, "_by_us", "")


def test_sessions_use_this_python_where_python3_is_another_one(elsewhere: str) -> None:
    environment = {"PATH": elsewhere}
    name_python(environment)
    assert environment == {"PATH": elsewhere, NAMED: sys.executable}


@pytest.mark.parametrize(
    "given", [{NAMED: "theirs"}, {"PYSPARK_DRIVER_PYTHON": "theirs"}, {"PYSPARK_GATEWAY_PORT": "1"}]
)
def test_what_a_user_has_named_and_a_java_process_that_is_there_stay(
    elsewhere: str, given: dict[str, str]
) -> None:
    environment = {"PATH": elsewhere, **given}
    name_python(environment)
    assert environment == {"PATH": elsewhere, **given}


def test_nothing_is_named_where_python3_is_this_one(elsewhere: str) -> None:
    # given an environment that was activated
    path = f"{Path(sys.executable).parent}:{elsewhere}"
    environment = {"PATH": path}
    name_python(environment)
    assert environment == {"PATH": path}


def test_nothing_is_named_when_a_session_is_there(
    elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(SparkContext=SimpleNamespace(_gateway=object()))
    monkeypatch.setitem(sys.modules, "pyspark.core.context", context)
    environment = {"PATH": elsewhere}
    name_python(environment)
    assert NAMED not in environment


@pytest.mark.slow
def test_importing_the_package_names_it_and_neither_pyspark_nor_arrow_is_imported(
    elsewhere: str,
) -> None:
    code = (
        "import os, sys, lowmark.spark\n"
        "assert os.environ['PYSPARK_PYTHON'] == sys.executable\n"
        "assert not {'pyspark', 'pyarrow'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], env={"PATH": elsewhere}, check=True)
    # and a process that opens databases, and has not asked for Spark, names none
    code = "import os, lowmark; lowmark.open; assert 'PYSPARK_PYTHON' not in os.environ"
    subprocess.run([sys.executable, "-c", code], env={"PATH": elsewhere}, check=True)


@pytest.mark.parametrize(
    ("before", "master", "told", "used"),
    [
        ("python3", "local[2]", None, sys.executable),
        ("python3", "spark://h:7077", None, "python3"),
        ("python3", "spark://h:7077", "/opt/python", "/opt/python"),
        ("ours", "spark://h:7077", "/opt/python", "/opt/python"),
        ("theirs", "local[2]", "/opt/python", "theirs"),
    ],
)
def test_what_is_sent_runs_in_the_python_that_was_named(
    monkeypatch: pytest.MonkeyPatch, before: str, master: str, told: str | None, used: str
) -> None:
    # given a session of the caller's, and `ours` as what importing us has named
    monkeypatch.setattr(python, "_by_us", "ours")
    conf = SimpleNamespace(get=lambda name: told)
    context = SimpleNamespace(pythonExec=before, master=master, getConf=lambda: conf)
    # when something is put together for its workers
    with python.python_of(context):  # type: ignore[arg-type]
        assert context.pythonExec == used
    # then the session is left as it was
    assert context.pythonExec == before
