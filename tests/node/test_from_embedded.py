"""A directory that was opened inside a process can be served later, and others may join it."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowmark
from eventually import eventually
from lowmark.errors import Rejected
from lowmark.table import Tables
from node.running import Running


@pytest.mark.slow
def test_a_directory_of_one_process_grows_into_a_cluster(tmp_path: Path) -> None:
    # given a directory with a table, made inside a process
    with lowmark.open(tmp_path / "a") as db:
        orders = db.create_table("orders", {"id": "int64"}, key="id", partitions=2)
        orders.append([{"id": number} for number in range(100)])
    # when it is served, and another node joins
    with Running(tmp_path / "a", name="") as first:
        tables = first.node.tables
        assert isinstance(tables, Tables)
        eventually(lambda: sum(one.view.end for one in tables.all()) == 100)
        with Running(tmp_path / "b", join=first.endpoint) as second:
            # then both know each other, and the rows are where they were
            eventually(lambda: len(second.client().status().nodes) == 2)
            eventually(lambda: all(node.up for node in first.client().status().nodes))
    # and from now on the first one is a node of a cluster: it is served, not opened
    with pytest.raises(Rejected, match="a node of a cluster"):
        lowmark.open(tmp_path / "a")
