"""Tests of clusters, once more between hosts: each in a run of its own, which goes into a host.

In `make test` they run on loopback, but for those that are marked `hosts` and the short torture.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.between import TESTS, passes_alone, passes_between_hosts
from ledger.stores import with_real_store

ENDS_S = 1_500.0

pytestmark = [pytest.mark.slow, pytest.mark.release, pytest.mark.timeout(ENDS_S + 60)]


# The shorter relatives are the tests that are marked `hosts`, and the short torture.
@pytest.mark.parametrize(
    "words",
    [
        ("server/test_catalog_history.py",),
        # not the other test there: a directory with ledgers of its own is no place for two hosts
        (
            "server/test_coming_back.py::test_a_node_that_was_down_while_tables_changed_comes_back_right",
        ),
        ("server/test_moving.py",),
        ("server/test_plain_flight.py",),
        ("server/test_several_nodes.py", "-m", "not release"),
        ("server/test_staging.py",),
        ("server/test_tls.py",),
        ("server/test_workers.py",),
    ],
    ids=" ".join,
)
def test_a_cluster_between_hosts(words: tuple[str, ...], tmp_path: Path) -> None:
    path, *more = words
    passes_between_hosts(tmp_path, str(TESTS / path), *more, ends_s=ENDS_S)


# Spark only places tasks: workers are the shorter relative.
@pytest.mark.spark
def test_spark_between_hosts_that_have_no_file_in_common(tmp_path: Path) -> None:
    passes_between_hosts(tmp_path, "--store", str(TESTS / "frames/test_cluster.py"), ends_s=ENDS_S)


# Between hosts, what a task needs of its driver's files would be missing. The shorter relative is
# ledger/test_real_object_store, without nodes and Spark.
@pytest.mark.spark
@pytest.mark.timeout(2 * ENDS_S + 60)
@with_real_store
@pytest.mark.parametrize("where", ["loopback", "hosts"])
def test_a_store_that_is_lost_under_three_nodes_and_spark(where: str, tmp_path: Path) -> None:
    words = ("--real-store", str(TESTS / "frames/test_store_lost.py"))
    run = passes_alone if where == "loopback" else passes_between_hosts
    run(tmp_path, *words, ends_s=2 * ENDS_S)
