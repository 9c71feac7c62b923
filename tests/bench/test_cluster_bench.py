"""What `lowmark bench cluster` makes of its clients' appends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.cluster_load import longest_gaps_ms, p99_ms
from benchmarks.cluster_sizes import ClusterSizes
from benchmarks.server_client import Client
from benchmarks.server_wire import Done, Pace, Reach, Read
from benchmarks.table_workload import BATCH_ROWS
from hosts.hosts import why_none
from lowmark.cli.app import app

MS = 1_000_000


def client_with(*acks: tuple[int, int], began_ms: int = 0) -> Done:
    """A client whose appends were made and acknowledged at these milliseconds."""
    return Done(
        amount=len(acks),
        began_ns=began_ms * MS,
        ended_ns=acks[-1][1] * MS,
        acks=tuple((made * MS, heard * MS) for made, heard in acks),
    )


# -- what is made of times ----------------------------------------------------------------------


def test_a_gap_is_that_of_the_client_that_waits_longest_and_may_span_the_kill() -> None:
    # given two clients, one of which is stuck from just before the kill at 100 on
    calm = client_with((0, 10), (10, 60), (60, 110), (110, 130))
    stuck = client_with((0, 20), (20, 95), (95, 1_700), (1_700, 1_710))
    # then what was acknowledged before the kill is told apart from what came after
    assert longest_gaps_ms([calm, stuck], 100 * MS) == (75.0, 1_605.0)


def test_a_gap_counts_from_the_beginning_of_the_load() -> None:
    late = client_with((500, 700), (700, 710), began_ms=0)
    assert longest_gaps_ms([late], 705 * MS) == (700.0, 10.0)


def test_the_slowest_in_a_hundred_appends_is_left_out_of_all_clients_together() -> None:
    # given a hundred appends of two clients: 98 of 1 ms, one of 5 ms, one of 900 ms
    quick = [(at, at + 1) for at in range(49)]
    clients = [client_with(*quick, (49, 54)), client_with(*quick, (49, 949))]
    assert p99_ms(clients) == 5.0


# -- appends whose times are noted --------------------------------------------------------------


@pytest.fixture
def client(here: Path) -> Iterator[Client]:
    client = Client(Reach(folder=str(here / "data"), wal_bytes=1 << 20))
    yield client
    client.close()


def test_paced_appends_are_noted_one_by_one(client: Client) -> None:
    # when batches are appended, each once
    assert client.prepared(Pace(first=0, batch_rows=10, batches=3))() == 30
    # then each was made after the one before was acknowledged
    moments = [moment for ack in client.acks for moment in ack]
    assert len(moments) == 6
    assert moments == sorted(moments)
    # and the next work begins without them
    assert client.prepared(Read())() == 30
    assert client.acks == []


def test_paced_appends_go_on_for_their_time(client: Client) -> None:
    rows = client.prepared(Pace(first=0, batch_rows=10, batches=2, seconds=0.1))()
    assert client.acks[-1][1] - client.acks[0][0] >= 0.09 * 1e9
    assert rows == 10 * len(client.acks) > 20
    # and every row that was acknowledged is there, though its key came again
    assert client.prepared(Read())() == rows


# -- what is declared ---------------------------------------------------------------------------


def test_a_leader_is_killed_as_often_as_the_target_says() -> None:
    assert (ClusterSizes.full().kills, BATCH_ROWS) == (10, 10_000)
    for sizes in (ClusterSizes.full(), ClusterSizes.quick()):
        assert sizes.clients == 4
        # with fewer, the slowest in a hundred would be the slowest of all
        assert sizes.clients * sizes.paced_batches > 100


# -- what is run --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.release  # shorter: tests/server/test_tls.py starts such nodes
def test_appends_to_three_nodes_are_measured_with_tls(here: Path) -> None:
    words = ["bench", "cluster", "--json", "--tiny", "--dir", str(here), "--only", "tls_replicated"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert report["details"]["tls_replicated"]["ours"] > 0
    assert report["details"]["tls_replicated"]["peer"] > 0


# -- between hosts ------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", ["-1", "5000"])
def test_what_is_no_delay_between_hosts_is_refused(here: Path, delay: str) -> None:
    found = CliRunner().invoke(app, ["bench", "cluster", "--hosts", delay, "--dir", str(here)])
    assert found.exit_code == 2
    assert "is no delay" in found.output


@pytest.mark.slow
@pytest.mark.release  # on loopback a suite is measured in `test_suites`
def test_appends_are_measured_between_hosts(here: Path) -> None:
    if why_none():
        pytest.skip(f"no hosts: {why_none()}")
    figures = ("replicated_append", "failover_gap_in_timeouts", "catch_up")
    words = ["bench", "cluster", "--json", "--tiny", "--dir", str(here), "--hosts", "20"]
    words += [word for one in figures for word in ("--only", one)]
    found = subprocess.run(
        [sys.executable, "-m", "lowmark", *words], capture_output=True, text=True, check=True
    )
    report = json.loads(found.stdout)
    assert report["settings"]["delay_ms"] == 20
    assert all(report[one] > 0 for one in figures)
    assert "arrives 20 ms later" in report["details"]["catch_up"]["notes"]
    # and the slowest append of those before took at least the way there and back, and the nodes'
    assert report["details"]["failover_gap_in_timeouts"]["peer"] > 40
    assert list(here.iterdir()) == []
