"""Work on clusters: inside one process, and of real processes, one of which is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventually import eventually
from spark.drivers import Driver
from spark.processes import LOOPBACK_ADDRESSES, below, is_alive, listening
from spark.standalone import standalone

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]

SOON_S = 240.0


@pytest.mark.release  # `frames/test_sink_kills` writes on a cluster of real processes
def test_a_cluster_inside_one_process(tmp_path: Path) -> None:
    # given two executors of one core each
    driver = Driver("local-cluster[2,1,512]", tmp_path)
    try:
        # when two packs are worked off
        eventually(lambda: len(driver.begun()) == 2, deadline_s=SOON_S)
        # then both executors work at once, and all of it listens on loopback
        everybody = below(driver.process.pid)
        assert listening(everybody) <= LOOPBACK_ADDRESSES
        driver.go()
        answer, said = driver.answer()
    finally:
        driver.kill()
    assert answer["slots"] == 2
    assert answer["pieces"] == ["a", "b", "c"]
    # and nothing is said, and nobody is left
    assert not said
    assert not any(is_alive(pid) for pid in everybody)


@pytest.mark.release  # `frames/test_sink_kills` kills an executor of such a cluster, too
def test_a_cluster_of_processes_one_of_which_is_killed(tmp_path: Path) -> None:
    with standalone(tmp_path, workers=2) as cluster:
        driver = Driver(cluster.master, tmp_path)
        try:
            # given a run with a task on each of two executors
            eventually(lambda: len(driver.begun()) == 2, deadline_s=SOON_S)
            assert len(cluster.executors()) == 2
            assert listening(cluster.everybody()) <= LOOPBACK_ADDRESSES
            # when one executor is killed with all its processes
            victim = cluster.executors()[0]
            doomed = set(below(victim)) & set(driver.begun())
            cluster.kill_executor(victim)
            assert len(doomed) == 1
            # then its task begins again elsewhere
            eventually(lambda: len(driver.begun()) == 3, deadline_s=SOON_S)
            driver.go()
            # and the run has every answer, once and in order
            answer, _ = driver.answer()
            assert answer["slots"] == 2
            assert answer["pieces"] == ["a", "b", "c"]
        finally:
            driver.kill()
