"""Operators compact and rewrite logs of nodes that run, and have damaged copies made anew."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eventually import eventually
from lowmark.cli.app import app
from lowmark.node import NodeClient, Status
from lowmark.table import group_name
from server.nodes import Nodes, table_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("log work")]
SMALL = {"LOWMARK_LOG_WAL_BYTES_MAX": "4096", "LOWMARK_LOG_WAL_BATCH_BYTES_MAX": "4096"}
"""Each few batches are a segment of their own."""
ROWS = 12
BETWEEN = 30


def command(*words: str, code: int = 0) -> tuple[Any, str]:
    """What a command with --json says, and what it says on stderr."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == code, (words, done.stdout, done.stderr)
    return json.loads(done.stdout) if done.stdout.strip() else None, done.stderr


def status(nodes: Nodes, at: int) -> Status:
    with NodeClient(nodes.address(at)) as client:
        return client.status()


def ids(nodes: Nodes, at: int) -> list[int]:
    with nodes.connect(at) as db:
        return sorted(row["id"] for row in db.table("orders").read().to_pylist())


def test_logs_are_compacted_and_rewritten_and_a_damaged_copy_is_made_anew(tmp_path: Path) -> None:
    # given three nodes, and a partition whose batches stand far from each other in the log
    with Nodes(tmp_path, 3, started=None, **SMALL) as nodes:
        with nodes.connect(0) as db:
            orders = table_of(db, "orders", replicas=3, partitions=1)
            group = group_name(orders.descriptor.id, 0)
            orders.cursors.create("c")
            for number in range(ROWS):
                orders.append([{"id": number, "status": "x" * 300}])
                for _ in range(BETWEEN):
                    orders.cursors.commit("c", {0: number}, reset=True)
        # when it is asked what could be freed, then nothing can: no snapshot covers it
        words: tuple[str, ...] = ("log", "compact", "orders", "0", "--node", nodes.address(1))
        plan, _ = command(*words, "--dry-run")
        [row] = plan["groups"]
        assert (plan["dry_run"], row["group"], row["bytes_freed"]) == (True, group, 0)
        assert "entries follow the snapshot" in {one["reason"] for one in row["kept"]}
        # and when a snapshot is taken first, dead entries go, and live ones stay
        done, _ = command(*words, "--snapshot")
        [row] = done["groups"]
        assert row["result"] == "done"
        assert 0 < row["bytes_freed"] == done["bytes_freed"] < row["bytes_before"]
        assert row["segments_after"] < row["segments_before"]
        assert "entries are live" in {one["reason"] for one in row["kept"]}
        # and all groups of a node, or the metastore's alone, can be asked for
        done, _ = command("log", "compact", "--node", nodes.address(0), "--snapshot")
        assert {one["group"] for one in done["groups"]} == {"metastore", group}
        done, _ = command("log", "compact", "--meta", "--node", nodes.address(0), "--dry-run")
        assert [one["group"] for one in done["groups"]] == ["metastore"]
        _, said = command("log", "compact", "ordres", "--node", nodes.address(0), code=1)
        assert "orders" in said
        _, said = command("log", "compact", "--meta", code=2)
        assert "--node" in said
        # when all nodes have snapshots, a node that does not lead is asked to rewrite
        for at in range(3):
            command("log", "compact", "orders", "--node", nodes.address(at), "--snapshot")
        leader = {one.group: one.leader_name for one in status(nodes, 0).groups}[group]
        asked = next(at for at in range(3) if f"n{at}" != leader)
        words = ("log", "rewrite", "orders", "--node", nodes.address(asked))
        plan, _ = command(*words, "--dry-run")
        [row] = plan["partitions"]
        assert (row["node"], row["stage"], row["planned"]) == (leader, "planned", ROWS)
        done, _ = command(*words, "--rate", "1MiB")
        # then the leader has done it, and freed the old places
        [row] = done["partitions"]
        assert (row["node"], row["stage"], row["rewritten"]) == (leader, "done", ROWS)
        assert row["bytes_freed"] > 0
        assert all(ids(nodes, at) == list(range(ROWS)) for at in range(3))
        # and a second time there is nothing to do
        done, _ = command(*words)
        assert done["partitions"][0]["planned"] == 0
        # when another node's copy is damaged
        ill = next(at for at in range(3) if f"n{at}" != leader)
        words = ("partition", "rebuild", "orders", "0", "--node", nodes.address(ill))
        _, said = command(*words, code=1)
        assert "CopySound" in said
        nodes.kill(ill)
        spoil(tmp_path / f"n{ill}" / "groups" / group)
        nodes.start(ill)

        def problem() -> str:
            groups = {one.group: one for one in status(nodes, ill).groups}
            members = groups[group].members if group in groups else ()
            return next((one.problem for one in members if one.name == f"n{ill}"), "")

        eventually(lambda: "quarantine" in problem())
        # then a new copy comes in its place, and votes
        plan, _ = command(*words, "--dry-run")
        assert (plan["stage"], plan["node"]) == ("planned", f"n{ill}")
        done, _ = command(*words)
        assert (done["stage"], done["rows"]) == ("voter", ROWS)
        assert done["incarnation"] > plan["incarnation"]
        eventually(lambda: problem() == "")
        assert ids(nodes, ill) == list(range(ROWS))


def spoil(folder: Path) -> None:
    """Cut every segment in two."""
    segments = [one for one in folder.glob("*.segment") if not one.is_symlink()]
    assert segments
    for one in segments:
        os.truncate(one, one.stat().st_size // 2)
