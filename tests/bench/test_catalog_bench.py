"""What `lowmark bench catalog` feeds, and the nodes that it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.catalog_cluster import CatalogCluster
from benchmarks.catalog_workload import batches, catalog_with, history_of
from lowmark.catalog import Table
from lowmark.errors import InvariantBroken


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


@pytest.mark.slow
@pytest.mark.release  # histories are above; `tests/e2e` has nodes that come back with theirs
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
        assert cluster.ask(1, do="look_up", count=10, versions=40, tables=2)["count"] == 10


@pytest.mark.slow
@pytest.mark.release  # `tests/metastore` holds conditions and watchers to the same
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
