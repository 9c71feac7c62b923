"""Three real processes on loopback, killed with -9: nothing acknowledged is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusters.group import Cluster
from eventually import eventually

pytestmark = pytest.mark.slow

SETTINGS = {"tick_ms": 30}


def applied(cluster: Cluster) -> set[int]:
    return {cluster.ask(number, do="where")["applied"]["g"] for number in cluster.nodes}


def settle(cluster: Cluster) -> int:
    """Wait until all have applied the same; give how much."""
    eventually(lambda: len(applied(cluster)) == 1, deadline_s=60)
    return applied(cluster).pop()


def test_a_killed_leader_loses_nothing_and_comes_back(tmp_path: Path) -> None:
    # given a group of three with commands that were acknowledged
    with Cluster(tmp_path, 3, group=SETTINGS) as cluster:
        cluster.create("g", members=[1, 2, 3])
        leader = cluster.leader("g")
        cluster.propose("g", size=100, in_flight=16, count=400, at=leader)
        # when its leader is killed
        cluster.kill(leader)
        # then another one leads, has all of them, and takes more
        successor = cluster.leader("g")
        assert successor != leader
        cluster.propose("g", size=300_000, in_flight=4, count=20, at=successor)
        before = settle(cluster)
        assert before >= 420
        # and the killed one catches up when it comes back
        cluster.start(leader)
        assert settle(cluster) >= before


def test_all_of_them_killed_at_once_go_on_where_they_were(tmp_path: Path) -> None:
    # given a group of three with commands that were acknowledged
    with Cluster(tmp_path, 3, group=SETTINGS) as cluster:
        cluster.create("g", members=[1, 2, 3])
        cluster.propose("g", size=1_000, in_flight=16, count=300)
        # when all are killed and started again
        for number in (1, 2, 3):
            cluster.kill(number)
        for number in (1, 2, 3):
            cluster.start(number)
        # then nothing is missing
        leader = cluster.leader("g")
        assert cluster.ask(leader, do="where")["applied"]["g"] >= 300
        cluster.propose("g", size=1_000, in_flight=16, count=10, at=leader)
        assert settle(cluster) >= 310
