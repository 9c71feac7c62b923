"""A machine is lost with its disk, and another one takes its place, on nodes that are processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eventually import eventually
from lowmark.cli.app import app
from lowmark.client import Table
from lowmark.errors import LowmarkError
from lowmark.metastore import load_identity
from lowmark.node import NodeClient
from lowmark.node.messages import Status
from lowmark.runtime import RealDisk
from server.nodes import Nodes, table_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("replacing")]

soon = partial(eventually, deadline_s=120.0)
LOST, NEW = 2, 3


class Writing:
    """Rows come all the time; `ids` of all that were acknowledged."""

    def __init__(self, table: Table) -> None:
        self.ids: list[int] = []
        self._table = table
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write, name="writing")
        self._thread.start()

    def _write(self) -> None:
        next_id = 0
        while not self._ends.is_set():
            some = list(range(next_id, next_id + 10))
            next_id += 10
            try:
                self._table.append([{"id": n, "status": "new"} for n in some])
            except LowmarkError:
                continue  # what became of these is not known
            self.ids += some

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "lowmark", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done
    return done


def status(nodes: Nodes, at: int = 0) -> Status:
    with NodeClient(nodes.address(at)) as client:
        return client.status()


def all_voters(nodes: Nodes, numbers: set[int]) -> bool:
    groups = status(nodes).groups
    return all(set(g.voters) == numbers and g.state == "available" for g in groups)


def replacing(nodes: Nodes, *more: str, code: int = 0) -> Any:
    words = ["node", "replace", f"n{LOST}", "--node", nodes.address(0), "--json", *more]
    return json.loads(run(*words, code=code).stdout)


@pytest.mark.release  # `placement/test_replacing` has the same, without processes
def test_a_lost_machine_is_replaced_under_load_and_refused_when_it_is_found(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / f"n{LOST}", tmp_path / f"n{NEW}"
    with Nodes(tmp_path, 4, started=3) as nodes, nodes.connect(0) as db:
        orders = table_of(db, "orders", replicas=3, partitions=3)
        writing = Writing(orders)
        try:
            soon(lambda: len(writing.ids) >= 50)
            soon(lambda: all(len(group.voters) == 3 for group in status(nodes).groups))
            # a machine that is there is not replaced, also while it is only suspended
            assert "it is up" in replacing(nodes, "--dry-run", code=1)["refused"]
            nodes.pause(LOST)
            # (unless its operator knows better)
            soon(lambda: may_be_replaced(nodes, "--gone"))
            said = replacing(nodes, "--dry-run", code=1)
            assert "may be up" in said["refused"]
            assert "a process listens" in said["detail"]
            # when it is lost with its disk
            nodes.kill(LOST)
            shutil.move(old, tmp_path / "found later")
            plan = replacing(nodes, "--dry-run")
            assert (plan["voter"], plan["losses"], plan["partitions"]) == (True, [], 3)
            done = replacing(nodes, "--data", str(new))
            assert done["new_number"] not in (0, plan["number"])
            # (asked again, it is the same)
            assert replacing(nodes, "--data", str(new))["new_number"] == done["new_number"]
            nodes.start(NEW, join=True)
            # then the new machine has its name and its place in every group, and rows come
            numbers = {one.number for one in status(nodes).nodes}
            assert plan["number"] not in numbers
            soon(lambda: all_voters(nodes, numbers))
            soon(lambda: db.cluster.rebalance().moves == ())
            more = len(writing.ids) + 50
            soon(lambda: len(writing.ids) >= more)
            # and the old directory is refused by name, for good
            shutil.move(tmp_path / "found later", old)
            nodes.start(LOST)
            soon(lambda: has_left(old))
            nodes.kill(LOST)
            refused = run("serve", "--data", str(old), "--listen", "127.0.0.1:0", code=1)
            assert f"node n{LOST} was replaced: node {done['new_number']} at" in refused.stderr
        finally:
            writing.end()
        # and without one of those that were there before, all that was acknowledged is there
        nodes.kill(1)
        soon(lambda: set(writing.ids) <= {one["id"] for one in orders.read().to_pylist()})


def may_be_replaced(nodes: Nodes, *more: str) -> bool:
    words = ["node", "replace", f"n{LOST}", "--node", nodes.address(0), "--dry-run", *more]
    return CliRunner().invoke(app, words).exit_code == 0


def has_left(path: Path) -> bool:
    found = load_identity(RealDisk(str(path), create=False))
    return found is not None and found.left
