"""Compaction where it is meant to run: on Spark, on one machine and on clusters of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from inside import partitions_of
from lowmark.spark import SparkRunner
from lowmark.spark.archive import SWITCH
from spark.compacting import ROWS, expected, make, opened, state_of
from spark.jobs import TESTS
from spark.standalone import standalone

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

SOON_S = 240.0


@pytest.fixture
def history(tmp_path: Path) -> Path:
    folder = tmp_path / "db"
    make(folder)
    return folder


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_table_is_compacted_on_a_session_of_the_caller(
    history: Path, shared: SparkRunner
) -> None:
    with opened(history) as (_, table):
        # when it is compacted on Spark, every survivor found twice
        done = table.compact(spark=shared._session, verify=True)
        # then all of it was read, and what is left is what a plain program comes to
        assert (done.state, done.rows_read) == ("done", ROWS + len(range(0, 3_000, 7)))
        assert state_of(table) == expected()
        # and a second run finds nothing to do
        assert table.compact(spark=shared._session).rows_read == 0
        assert len(table.runs()) == 1


@pytest.mark.slow
def test_spark_comes_to_the_same_ledger_as_this_process(
    history: Path, tmp_path: Path, shared: SparkRunner
) -> None:
    # given the same history twice
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", str(history), str(other)], check=True)
    digests = []
    ways: list[tuple[Path, dict[str, Any]]] = [
        (history, {"spark": shared._session, "read": "flight"}),
        (other, {"engine": "local"}),
    ]
    for folder, how in ways:
        with opened(folder) as (_, table):
            run = table.compact(**how)
            # though Spark's tasks have asked a server, as on another machine
            assert ("read" in how) == all(one.read_from != "segments" for one in run.partitions)
            ledgers = [part.ledger for part in map(_view, partitions_of(table))]
            digests.append([one.digest for one in ledgers if one is not None])
    # then both have the same rows
    assert digests[0] == digests[1]
    assert len(digests[0]) == 4


def _view(partition: object):  # type: ignore[no-untyped-def]
    return partition.view  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_task_that_is_slowed_down_can_be_cancelled(history: Path, shared: SparkRunner) -> None:
    with opened(history) as (_, table):
        before = state_of(table)

        def stop(_: object) -> None:
            for run in table.runs():
                table.cancel_run(run.run)

        # when a slow run is cancelled while its tasks read
        with pytest.raises(Exception, match="cancelled"):
            table.compact(spark=shared._session, read_rate=200_000, progress=stop)
        # then it is noted, nothing has changed, and nothing is left of it
        assert [run.state for run in table.runs()] == ["cancelled"]
        assert state_of(table) == before
        assert files_of(history / "ledgers") == []


def drive(master: str, folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spark.compacting", master, str(folder), *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(TESTS), SWITCH: "off"},
    )


@pytest.mark.slow
@pytest.mark.release  # a session of the caller compacts above
def test_a_cluster_inside_one_process_compacts(history: Path) -> None:
    driver = drive("local-cluster[2,1,512]", history)
    out, err = driver.communicate(timeout=SOON_S)
    assert driver.returncode == 0, err
    assert json.loads(out)["right"]


# `test_runner` has workers that die, `frames/test_sink_kills` an executor that is killed, and
# `tests/compaction` runs that crash at every step.
@pytest.mark.slow
@pytest.mark.release
def test_an_executor_is_killed_in_the_middle_and_the_ledger_is_right(
    history: Path, tmp_path: Path
) -> None:
    with standalone(tmp_path, workers=2) as cluster:
        # given a slow run with a task on each of two executors
        driver = drive(cluster.master, history, "3000000")
        try:
            eventually(lambda: bool(list(history.rglob("*.progress"))), deadline_s=SOON_S)
            assert len(cluster.executors()) == 2
            # when one of them is killed with all its processes
            cluster.kill_executor(cluster.executors()[0])
            out, err = driver.communicate(timeout=SOON_S)
        finally:
            driver.kill()
            driver.communicate()
    # then the run ends, and what it has made is right
    assert driver.returncode == 0, err
    answer = json.loads(out)
    assert (answer["state"], answer["right"]) == ("done", True)
    # and what the dead executor had begun was swept: every file is one that a manifest names
    with opened(history) as (_, table):
        assert table.sweep() == []
        assert state_of(table) == expected()
    names = files_of(history / "ledgers")
    assert len([name for name in names if name.endswith(".parquet")]) == 4
    assert not [name for name in names if name.endswith((".tmp", ".progress", ".done"))]


@pytest.mark.slow
# Above, a run on the shared session is cancelled; in `test_runner`, two share it.
@pytest.mark.release
def test_a_session_of_our_own_serves_several_runs_and_outlives_none_of_its_ends(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark.own_session", str(tmp_path / "db")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(TESTS), SWITCH: "off"},
        timeout=SOON_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    # a run that is cancelled takes no other one with it
    assert facts["cancelled"]
    assert facts["states"] == ["cancelled", "done"]
    # a new session is opened where Java has died
    assert facts["after a dead Java"] == "done"
    # and what goes on when the database is closed can be resumed
    assert (facts["after closing"], facts["resumed"]) == ("interrupted", "done")
    assert facts["right"]


@pytest.mark.slow
@pytest.mark.release  # `test_workers` has sessions with another Python, or none
def test_a_plain_session_of_the_callers_needs_to_be_told_nothing(tmp_path: Path) -> None:
    # given a session that was made without a word about Python, whose first one on the path is not
    # the one that we run in
    told = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "-m", "spark.plain_session", str(tmp_path / "db")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=told | {"PYTHONPATH": str(TESTS), "PATH": os.defpath},
        timeout=SOON_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # then it compacts all the same, and the session is left as it was
    assert json.loads(done.stdout) == {"state": "done", "right": True, "untouched": True}
