"""Tests of clusters, once more between hosts: each in a run of its own, which goes into a host.

The same files run on loopback in every `make test`. The short torture is between hosts there, too
(`torture/test_torture.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hosts.hosts import why_none

TESTS = Path(__file__).parents[1]
ENDS_S = 1_500.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(ENDS_S + 60)]


def passes_between_hosts(tmp_path: Path, *words: str) -> None:
    """Fail if these tests do not pass, or if there are none."""
    if why_none():
        pytest.skip(f"no hosts: {why_none()}")
    run = [sys.executable, "-m", "pytest", "--hosts", "-q", "-p", "no:cacheprovider"]
    ours = {key: one for key, one in os.environ.items() if not key.startswith("PYTEST_XDIST")}
    found = subprocess.run(
        [*run, f"--basetemp={tmp_path / 'tests'}", *words],
        cwd=TESTS.parent,
        env=ours,
        capture_output=True,
        text=True,
        timeout=ENDS_S,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-8_000:] + found.stderr[-2_000:]


@pytest.mark.release  # the short torture has nodes in hosts, and `server/test_workers` workers
@pytest.mark.parametrize(
    "name",
    [
        "cli/test_rebalance_commands.py",
        "server/test_catalog_history.py",
        # not the other test there: a directory with ledgers of its own is no place for two hosts
        "server/test_coming_back.py::test_a_node_that_was_down_while_tables_changed_comes_back_right",
        "server/test_moving.py",
        "server/test_plain_flight.py",
        "server/test_several_nodes.py",
        "server/test_staging.py",
        "server/test_workers.py",
    ],
)
def test_a_cluster_between_hosts(name: str, tmp_path: Path) -> None:
    passes_between_hosts(tmp_path, str(TESTS / name))


@pytest.mark.release  # as above: Spark only places tasks
@pytest.mark.spark
def test_spark_between_hosts_that_have_no_file_in_common(tmp_path: Path) -> None:
    passes_between_hosts(tmp_path, "--store", str(TESTS / "frames" / "test_cluster.py"))
