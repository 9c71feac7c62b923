"""Disk images that are put back, on nodes that are processes."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from lowmark.client import Table
from lowmark.errors import LowmarkError
from lowmark.node import NodeClient
from lowmark.node.messages import Status
from server.nodes import Nodes, table_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("older directories")]

soon = partial(eventually, deadline_s=120.0)


def status_at(nodes: Nodes, number: int) -> Status:
    with NodeClient(nodes.address(number)) as client:
        return client.status()


def problem_of(nodes: Nodes, number: int, *, at: int) -> str:
    rows = {row.name: row for row in status_at(nodes, at).nodes}
    return rows[f"n{number}"].problem


def copy(nodes: Nodes, path: Path, number: int) -> Path:
    """An image of a node's directory, which is stopped."""
    assert number not in nodes.up
    image = path / f"image of n{number}"
    shutil.copytree(path / f"n{number}", image, symlinks=True)
    return image


def put_back(nodes: Nodes, path: Path, number: int, image: Path) -> None:
    assert number not in nodes.up
    shutil.rmtree(path / f"n{number}")
    shutil.copytree(image, path / f"n{number}", symlinks=True)


def has_heard(path: Path, number: int, *, of: int) -> bool:
    """Whether a node has written down the last start of another one."""

    def note(one: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((path / f"n{one}" / "starts").read_text().split("\n")[0])
        return found

    there = note(of)
    return any(
        start == there["number"] and there["id"] in (one, *before)
        for start, one, before in note(number)["known"].values()
    )


def count(table: Table) -> int | None:
    """How many rows a table has; None: no node says."""
    try:
        return table.count()
    except LowmarkError:
        return None


def all_voters(nodes: Nodes, at: int) -> bool:
    groups = status_at(nodes, at).groups
    return all(len(g.voters) == 3 and g.state == "available" and not g.learners for g in groups)


@pytest.mark.release  # `group/test_older_directories` has the same scene, without processes
def test_rows_that_an_older_directory_had_acknowledged_are_not_lost(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3) as nodes:
        # given an image of n1 from before its last start, which all have heard of
        with nodes.connect(0) as db:
            orders = table_of(db, "orders", replicas=3, partitions=2)
            orders.append([{"id": n, "status": "new"} for n in range(1_000)])
        soon(lambda: all_voters(nodes, 0))
        nodes.stop(1)
        image = copy(nodes, tmp_path, 1)
        nodes.start(1)
        soon(lambda: all_voters(nodes, 0) and has_heard(tmp_path, 2, of=1))
        # and rows that n0 and n1 alone have acknowledged
        nodes.stop(2)
        with nodes.connect(0) as db:
            orders = db.table("orders")
            orders.append([{"id": n, "status": "new"} for n in range(1_000, 2_000)])
            assert orders.count() == 2_000
        # when the image is put back, and n0 is down
        nodes.stop(1)
        put_back(nodes, tmp_path, 1, image)
        nodes.stop(0)
        nodes.start(1)
        nodes.start(2)
        # then it is named, and there is no leader that lacks the rows
        soon(lambda: "older" in problem_of(nodes, 1, at=2))
        groups = status_at(nodes, 2).groups
        assert {group.leader for group in groups} == {0}
        # and when n0 is back, n1 is made good, and no row is lost
        nodes.start(0)
        soon(lambda: all_voters(nodes, 0))
        soon(lambda: not problem_of(nodes, 1, at=0))
        nodes.stop(0)
        with nodes.connect(1) as db:
            soon(lambda: count(db.table("orders")) == 2_000)
