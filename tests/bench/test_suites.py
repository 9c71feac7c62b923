"""Every suite, once, with amounts too small to mean anything; and what is declared of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.catalog_sizes import CatalogSizes
from benchmarks.cluster_sizes import ClusterSizes
from benchmarks.command import COMMANDS
from benchmarks.compact_sizes import CompactSizes
from benchmarks.compact_workload import ROW_BYTES
from benchmarks.rebalance_sizes import RebalanceSizes
from benchmarks.spark_sizes import SparkSizes
from benchmarks.suites import SUITES
from benchmarks.table_sizes import TableSizes
from benchmarks.upkeep_sizes import UpkeepSizes
from lowmark.cli.app import app

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "operate.md"
DETAILS = {"value", "target", "at_least", "aim", "met", "ours", "peer", "unit", "spread", "runs"}
MACHINE = {"cores", "system", "python", "versions"}


def check(name: str, report: dict[str, Any]) -> None:
    """A number per figure, and the story behind it; null for what has no peer here."""
    suite, skipped = SUITES[name], report["skipped"]
    others = {"apart", "details", "skipped", "machine", "settings"}
    assert set(report) == suite.figures.keys() | others
    assert list(report["details"]) == [each for each in suite.figures if each not in skipped]
    for each, details in report["details"].items():
        figure = suite.figures[each]
        assert set(details) >= DETAILS | {"notes"}
        assert details["value"] == report[each]
        assert details["runs"] == 1
        assert (details["target"], details["unit"]) == (figure.target.limit, figure.unit)
        assert details["spread"][0] <= details["value"] <= details["spread"][1]
        assert "profile" not in details
    assert all(report[each] is None for each in skipped)
    assert set(report["machine"]) >= MACHINE
    assert set(report["machine"]["versions"]) == {"lowmark", *suite.versions}
    assert report["settings"]["mode"] == "tiny"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        "log",
        # One suite shows that a suite runs. What the others are made of, the tests beside this one
        # run: turns, clients, wires, workloads and what is made of them.
        *(
            pytest.param(name, marks=pytest.mark.release)
            for name in ("group", "catalog", "table", "cluster", "upkeep", "server", "rebalance")
        ),
    ],
)
def test_every_figure_can_be_measured(here: Path, name: str) -> None:
    command = ["bench", name, "--json", "--tiny", "--dir", str(here)]
    result = CliRunner().invoke(app, command)
    # a miss is a result, not a failure
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    check(name, report)
    may_be_missing = {"append_vs_postgres", "small_vs_etcd", "large_vs_etcd", "invoke_vs_etcd"}
    may_be_missing |= {"send_vs_nats", "send_vs_nats_default_sync"}
    assert report["skipped"].keys() <= may_be_missing
    assert report["apart"] == {}
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.release  # `test_compact_bench` starts such a session, and holds results to the truth
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_every_figure_of_compaction_can_be_measured(
    here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # in a process of its own: a process has one Spark session at a time
    done = subprocess.run(
        [sys.executable, "-m", "lowmark", "bench", "compact", "--json", "--tiny"],
        cwd=here,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    check("compact", report)
    assert report["skipped"].keys() <= {"vs_duckdb", "vs_polars", "memory_vs_duckdb"}
    assert all(report[name] > 0 for name in report["details"])
    assert report["apart"].keys() == {"empty_job_seconds"}
    assert report["apart"]["empty_job_seconds"] > 0
    if not report["skipped"]:
        variants = report["details"]["vs_duckdb"]["variants"]
        assert set(variants) == {"one_statement", "per_partition", "plain_input"}
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.release  # `test_spark_bench` holds its rows and its peers to what they should be
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_every_figure_of_spark_can_be_measured(here: Path) -> None:
    # in a process of its own: a process has one Spark session at a time
    done = subprocess.run(
        [sys.executable, "-m", "lowmark", "bench", "spark", "--json", "--tiny"],
        cwd=here,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    check("spark", report)
    details, skipped = report["details"], report["skipped"]
    assert skipped.keys() <= {"upsert_vs_delta", "upsert_memory_vs_delta", "stream_vs_kafka"}
    assert set(details["cold_vs_warm_run"]["variants"]) == {"large"}
    sink = details["sink_vs_append"]["variants"]
    assert set(sink) == {"in_one_call", "dropped_rows_vs_append"}
    if "upsert_vs_delta" not in skipped:
        assert set(details["upsert_vs_delta"]["variants"]) == {"with_a_run", "with_a_reader"}
    if "stream_vs_kafka" not in skipped:
        assert set(details["stream_vs_kafka"]["variants"]) == {"columns_of_json"}
    assert list(here.iterdir()) == []


# -- what is declared -------------------------------------------------------------------------


def test_every_suite_has_a_command() -> None:
    assert list(COMMANDS) == list(SUITES)


def test_names_of_figures_are_unique_and_rounds_are_counted() -> None:
    assert max(Counter(name for suite in SUITES.values() for name in suite.figures).values()) == 1
    for suite in SUITES.values():
        for sizes in (suite.sizes.full(), suite.sizes.quick(), suite.sizes.tiny()):
            assert all(getattr(sizes, one.runs) >= 1 for one in suite.measurements)
            assert sizes.space_needed_bytes > 0
        assert suite.sizes.tiny().mode == "tiny"


def test_the_guide_lists_every_figure() -> None:
    [section] = re.findall(r"\n### Figures\n(.*?)\n## ", GUIDE.read_text(), re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    names = ("group", "catalog", "table", "server", "compact", "spark", "cluster")
    shown = [SUITES[name].figures for name in (*names, "rebalance", "upkeep")]
    assert rows == [name for figures in shown for name in figures]


def test_the_full_sizes_are_those_that_the_targets_name() -> None:
    catalog = CatalogSizes.full()
    assert (catalog.restart_versions, catalog.restart_versions_few) == (20_000, 10)
    assert (catalog.lookup_versions, catalog.lookup_versions_few) == (20_000, 200)
    assert (catalog.apply_tables, catalog.apply_tables_few) == (10_000, 100)
    table = TableSizes.full()
    assert table.keys == 1_000_000
    assert (table.memory_rows, table.memory_rows_few) == (20_000_000, 5_000_000)
    # the WAL rolls over as often as promised
    assert table.roll_overs > 1
    rows = table.appended(table.append_wal_bytes)
    assert rows * ROW_BYTES > table.roll_overs * table.append_wal_bytes
    for cluster in (ClusterSizes.full(), ClusterSizes.quick()):
        assert (cluster.groups, cluster.groups_few) == (2_400, 300)
    assert RebalanceSizes.full().move_bytes == 512 << 20
    for rebalance in (RebalanceSizes.full(), RebalanceSizes.quick()):
        assert (rebalance.joined, rebalance.joined_partitions) == (5, 300)
        assert (rebalance.plan_nodes, rebalance.plan_joining) == (1_000, 10)
        assert (rebalance.plan_partitions, rebalance.plan_partitions_few) == (100_000, 10_000)
    assert UpkeepSizes.full().versions == 20_000
    for upkeep in (UpkeepSizes.full(), UpkeepSizes.quick()):
        assert (upkeep.groups, upkeep.groups_few) == (1_000, 100)
    for compact in (CompactSizes.full(), CompactSizes.quick()):
        assert (compact.rows, compact.keys) == (20_000_000, 2_000_000)
        assert compact.space_needed_bytes > 2 * compact.rows * ROW_BYTES
    spark = SparkSizes.full()
    assert (spark.rows, spark.large_rows, spark.idle_seconds) == (2_000_000, 20_000_000, 90.0)
    assert SparkSizes.quick().rows == spark.rows
    assert spark.upsert_keys == 10_000_000
