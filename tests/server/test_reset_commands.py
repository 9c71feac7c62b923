"""A majority is lost for good: operators reset partitions and the metastore by the command."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from eventually import eventually
from lowmark.catalog import AlterZone
from lowmark.cli.app import app
from lowmark.client import Table
from lowmark.node import NodeClient
from lowmark.node.messages import PartitionRow, PartitionsAsk, PartitionsReply
from server.nodes import Nodes, table_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("reset")]
PLACED_S = 120.0


soon = partial(eventually, deadline_s=PLACED_S)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--json"])


def command(*words: str, code: int = 0) -> tuple[Any, str]:
    """What a command with --json says, and what it says on stderr."""
    done = run(*words)
    assert done.exit_code == code, (words, done.stdout, done.stderr)
    return json.loads(done.stdout) if done.stdout.strip() else None, done.stderr


def partitions(nodes: Nodes, at: int, table: str | None = None) -> list[PartitionRow]:
    with NodeClient(nodes.address(at)) as client:
        asked = PartitionsAsk(table=table)
        return list(client.ask("partition.list", asked, PartitionsReply).partitions)


def up(nodes: Nodes, at: int) -> set[str]:
    with NodeClient(nodes.address(at)) as client:
        return {node.name for node in client.status().nodes if node.up}


def rows_of(table: Table) -> list[int]:
    return sorted(row["id"] for row in table.read().to_pylist())


def lost_words(names: set[str]) -> list[str]:
    return [word for name in sorted(names) for word in ("--lost", name)]


def test_a_partition_is_reset_from_the_node_that_is_left(tmp_path: Path) -> None:
    # given four nodes, three of which vote in the metastore, and a table with three replicas
    with Nodes(tmp_path, 4) as nodes:
        with nodes.connect(0) as db:
            orders = table_of(db, "orders", replicas=3)
            soon(lambda: all(len(one.stable) == 3 for one in partitions(nodes, 0)))
            orders.append([{"id": n, "status": "new"} for n in range(200)])
        # when two nodes are lost for good
        nodes.kill(2)
        nodes.kill(3)
        gone = {"n2", "n3"}
        ill = [one for one in partitions(nodes, 0, "orders") if gone <= set(one.stable)]
        assert ill, "no partition was on both"
        sound = next(one for one in partitions(nodes, 0, "orders") if not gone <= set(one.stable))
        first = ill[0]
        keep = next(name for name in first.stable if name not in gone)
        words = ("partition", "reset", "orders", str(first.partition), "--node", nodes.address(0))
        # then a reset is refused while their leases run, or if one is not named, or without --yes
        _, said = command(*words, "--from", keep, "--lost", "n2", "--yes", code=1)
        assert "not all of its other nodes are lost" in said or "--lost n3" in said
        soon(lambda: up(nodes, 0) == {"n0", "n1"})
        _, said = command(*words, "--from", keep, "--lost", "n2", "--yes", code=1)
        assert "--lost n3" in said or "gone for long enough" in said
        _, said = command(*words, "--from", keep, *lost_words(gone), code=2)
        assert "--dry-run" in said

        def ready() -> bool:
            with NodeClient(nodes.address(0)) as client:
                metastore = client.status().metastore
            assert metastore is not None
            return sum(not one.expired for one in metastore.leases) == 2

        soon(ready)
        # and it says first what may be lost
        found, _ = command(*words, "--from", keep, *lost_words(gone), "--dry-run")
        assert not found["done"]
        assert not found["refused"]
        by_node = {one["node"]: one for one in found["replicas"]}
        assert set(by_node) == {keep, "n2", "n3"}
        assert by_node[keep]["up"]
        assert by_node[keep]["rows"] + by_node[keep]["more_rows"] > 0
        assert not by_node["n2"]["up"]
        assert by_node["n2"]["rows"] is None
        # when each of those partitions is reset
        for one in ill:
            keep = next(name for name in one.stable if name not in gone)
            words = ("partition", "reset", "orders", str(one.partition), "--node", nodes.address(0))
            found, _ = command(*words, "--from", keep, *lost_words(gone), "--yes")
            assert found["done"]
            assert set(found["drained"]) == gone
        # then every row is there, and others are taken
        with nodes.connect(0) as db:
            orders = db.table("orders")
            assert rows_of(orders) == list(range(200))
            orders.append([{"id": n, "status": "new"} for n in range(200, 300)])
            assert rows_of(orders) == list(range(300))
        # a partition that has its majority can't be reset
        kept = next(name for name in sound.stable if name not in gone)
        words = ("partition", "reset", "orders", str(sound.partition), "--node", nodes.address(0))
        others = set(sound.stable) - {kept}
        _, said = command(*words, "--from", kept, *lost_words(others), "--yes", code=1)
        assert "can't be reset" in said or "has no copy" in said or "nothing to reset" in said
        # and everything is on the two that are left
        soon(
            lambda: all(set(one.stable) == {"n0", "n1"} for one in partitions(nodes, 0, "orders")),
        )


@pytest.mark.release  # the next one resets it, too; `placement/test_metastore_reset` in all stages
def test_the_metastore_is_reset_from_the_directory_of_the_node_that_is_left(
    tmp_path: Path,
) -> None:
    # given three nodes, all of which vote, and a table on all of them
    with Nodes(tmp_path, 4, started=3) as nodes:
        with nodes.connect(0) as db:
            orders = table_of(db, "orders", replicas=3, partitions=3)
            soon(lambda: all(len(one.stable) == 3 for one in partitions(nodes, 0)))
            orders.append([{"id": n, "status": "new"} for n in range(100)])
        data = str(tmp_path / "n1")
        words = ("meta", "reset", "--data", data, "--yes")
        lost = ("--lost", "n0", "--lost", "n2")
        # a reset is refused while its node runs, and while a lost one answers
        _, said = command(*words, *lost, code=1)
        assert "DataInUse" in said
        nodes.kill(1)
        nodes.kill(2)
        _, said = command(*words, *lost, code=1)
        assert "node n0 is not lost" in said
        nodes.kill(0)
        # and unless every other voter is named
        _, said = command(*words, "--lost", "n0", code=1)
        assert "--lost n2" in said
        _, said = command(*words, *lost, "--lost", "n1", code=1)
        assert "not a voter of the metastore: n1" in said
        found, _ = command(*words, *lost, "--dry-run")
        assert not found["done"]
        assert found["revision"] > 0
        # when it is reset
        found, _ = command(*words, *lost)
        assert found["done"]
        _, said = command(*words, *lost, code=1)
        assert "nothing to reset" in said
        # then its node comes up alone, and coordinates
        nodes.start(1)
        with NodeClient(nodes.address(1)) as client:
            roles = {one.name: one.role for one in client.status().nodes}
        assert roles["n1"] == "coordinator"
        assert {one.state for one in partitions(nodes, 1)} <= {"read-only", "unavailable"}
        # and its partitions can be reset, when the leases of the lost ones are over
        for number in range(3):

            def reset(number: int = number) -> bool:
                which = ("orders", str(number), "--from", "n1", *lost)
                done = run("partition", "reset", *which, "--yes", "--node", nodes.address(1))
                assert done.exit_code == 0 or "not gone for long enough" in done.stderr
                return done.exit_code == 0

            soon(reset)
        with nodes.connect(1) as db:
            orders = db.table("orders")
            assert rows_of(orders) == list(range(100))
            orders.append([{"id": n, "status": "new"} for n in range(100, 150)])
            # and a new node joins, votes and gets replicas
            db.backend.execute([AlterZone(name="default", replicas=2)])
        nodes.start(3, join=True, by=1)
        soon(lambda: all(set(one.stable) == {"n1", "n3"} for one in partitions(nodes, 1)))
        with nodes.connect(3) as db:
            assert rows_of(db.table("orders")) == list(range(150))


def test_a_follower_starts_itself_again_with_a_new_copy(tmp_path: Path) -> None:
    # given four nodes, one of which only follows in the metastore
    with Nodes(tmp_path, 4) as nodes:
        with nodes.connect(0) as db:
            orders = table_of(db, "orders", replicas=3, partitions=4)
            soon(lambda: all(len(one.stable) == 3 for one in partitions(nodes, 0)))
            orders.append([{"id": n, "status": "new"} for n in range(100)])
        # when two voters are lost, and the metastore is reset from the third one
        for number in (0, 1, 2):
            nodes.kill(number)
        words = ("meta", "reset", "--data", str(tmp_path / "n0"), "--lost", "n1", "--lost", "n2")
        command(*words, "--yes")
        nodes.start(0)
        # then the follower gets a new copy by itself, in the same process, and votes
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(nodes.line(3)), daemon=True)
        reader.start()
        reader.join(PLACED_S)
        assert said
        assert json.loads(said[0])["name"] == "n3"

        def votes() -> bool:
            with NodeClient(nodes.address(3)) as client:
                status = client.status()
            return {one.name: one.role for one in status.nodes}["n3"] == "voter"

        soon(votes)
        # and partitions that both of them have have their rows and take others
        both = [one for one in partitions(nodes, 0) if {"n0", "n3"} <= set(one.stable)]
        assert both
        soon(
            lambda: all(
                one.state in {"available", "degraded"}
                for one in partitions(nodes, 0)
                if {"n0", "n3"} <= set(one.stable)
            ),
        )
