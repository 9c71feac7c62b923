"""Rows wait for their commit while nodes are killed and partitions move: each is stored once."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eventually import eventually
from lowmark.client import Committed, Database, Staged, Table
from lowmark.errors import AppendFailed, Unavailable
from lowmark.node import NodeClient
from lowmark.node.messages import DrainAsk, DrainReply
from lowmark.table import group_name
from server.nodes import Nodes, table_of
from server.test_coming_back import has_all
from server.test_log_work_commands import SMALL, command
from server.test_moving import MOVED_S, leader_of, moves, voters

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("staging")]
WRITERS, BATCHES, ROWS = 3, 4, 50
EACH = BATCHES * ROWS


def stage(table: Table, first: int) -> Staged:
    """What one writer stages: `EACH` rows, a few at a time."""
    with table.stage() as writer:
        for at in range(first, first + EACH, ROWS):
            writer.append([{"id": key, "status": "x" * 100} for key in range(at, at + ROWS)])
        return writer.staged()


def stage_all(dbs: list[Database], first: int) -> list[Staged]:
    """What several writers stage at once, each by way of another node."""
    with ThreadPoolExecutor(WRITERS) as pool:
        begun = [
            pool.submit(stage, dbs[number % len(dbs)]["events"], first + number * EACH)
            for number in range(WRITERS)
        ]
        return [one.result() for one in begun]


def stored(table: Table) -> Counter[int]:
    """How often each key is in the log."""
    keys = table.read(start="earliest", columns=["id"]).to_arrow()["id"]
    return Counter(keys.to_pylist())


def staged_rows(table: Table) -> int:
    found = table._backend.status(table.descriptor.id).values()
    return sum(one.staging.rows for one in found if one.staging is not None)


def has_led(nodes: Nodes, table: Table, partition: int) -> int:
    """The node that leads a partition."""
    group = group_name(table.descriptor.id, partition)
    eventually(lambda: leader_of(nodes, group) in nodes.up, deadline_s=MOVED_S)
    return leader_of(nodes, group)


def snapshots(path: Path, number: int) -> int:
    """How many partitions have one, of a node."""
    folders = (path / f"n{number}" / "groups").glob("table.*")
    return sum(any(folder.glob("snapshots/*-*")) for folder in folders)


class Query:
    """Stages and commits epoch after epoch until it is stopped, each of them twice."""

    def __init__(self, table: Table) -> None:
        self.epochs = 0
        self.failed = 0
        """How often what it did was tried again."""
        self._table = table
        self._error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                first = self._epoch()
                again = self._epoch()
                assert again.repeated
                assert again.parts == first.parts
                self.epochs += 1
        except Exception as error:
            self._error = error

    def _epoch(self) -> Committed:
        """As a driver does it that is followed by another one wherever it fails."""
        while True:
            try:
                staged = stage(self._table, self.epochs * EACH)
                return self._table.commit([staged], query="q", epoch=self.epochs)
            except (Unavailable, AppendFailed):
                self.failed += 1

    def goes_on(self) -> None:
        """Wait for two more epochs."""
        wanted = self.epochs + 2

        def there() -> bool:
            if self._error is not None:
                raise self._error
            return self.epochs >= wanted

        eventually(there, deadline_s=MOVED_S)

    def stop(self) -> int:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self.epochs


def test_staged_rows_outlive_their_leaders_and_come_with_snapshots(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3, started=None, **SMALL) as nodes:
        # given rows that several writers have staged
        dbs = [nodes.connect(number) for number in range(3)]
        table = table_of(dbs[0], "events", replicas=3, partitions=4)
        staged = stage_all(dbs, 0)
        for db in dbs[1:]:
            db.close()
        # when a leader is killed, and the log goes on, and what is dead of it is removed
        killed = next(one for one in (has_led(nodes, table, at) for at in range(4)) if one)
        table.cursors.create("c")
        nodes.kill(killed)
        for at in range(4):
            has_led(nodes, table, at)
        for number in range(100):
            table.cursors.commit("c", dict.fromkeys(range(4), 0), reset=True)
            if number % 10 == 0:
                with table.stage() as writer:
                    writer.append([{"id": -1, "status": "x" * 300}] * 20)
                    writer.abort()
        for at in nodes.up:
            done, _ = command("log", "compact", "events", "--node", nodes.address(at), "--snapshot")
            assert all(one["bytes_freed"] > 0 for one in done["groups"])
        # and it comes back, without the entries that are gone: it is given snapshots
        assert snapshots(tmp_path, killed) == 0
        nodes.start(killed)
        eventually(has_all(nodes, killed), deadline_s=MOVED_S)
        assert snapshots(tmp_path, killed) == 4
        other = ({1, 2} - {killed}).pop()
        nodes.kill(other)
        assert staged_rows(table) == WRITERS * EACH
        assert table.count() == 0
        # then what was staged can be committed
        first = table.commit(staged, query="q", epoch=0)
        assert stored(table) == Counter(range(WRITERS * EACH))
        nodes.start(other)
        eventually(has_all(nodes, other), deadline_s=MOVED_S)
        dbs[0].close()
        nodes.kill(0)
        # and a repeat by way of another node gets the first answer
        with nodes.connect(killed) as db:
            again = db["events"].commit([stage(db["events"], 7)], query="q", epoch=0)
            assert (again.repeated, again.parts) == (True, first.parts)
            assert stored(db["events"]) == Counter(range(WRITERS * EACH))
            assert staged_rows(db["events"]) == 0


@pytest.mark.release  # the one before kills leaders, and commits twice
def test_a_query_commits_while_leaders_are_killed(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3) as nodes, nodes.connect(0) as db:
        # given a query that commits one epoch after the other, each twice
        table = table_of(db, "events", replicas=3, partitions=4)
        query = Query(table)
        # when nodes that lead are killed at any moment of it, and come back
        for number in (1, 2):
            query.goes_on()
            nodes.kill(number)
            query.goes_on()
            nodes.start(number)
            eventually(has_all(nodes, number), deadline_s=MOVED_S)
        epochs = query.stop()
        # then each row of each epoch is there once
        assert stored(table) == Counter(range(epochs * EACH))
        # and nothing waits but of what was given up and tried again
        assert staged_rows(table) <= query.failed * EACH


@pytest.mark.release
def test_staged_rows_move_with_their_partitions(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3, started=None, **SMALL) as nodes, nodes.connect(0) as db:
        # given rows that are staged, and a query that goes on
        table = table_of(db, "events", replicas=1, partitions=4)
        query = Query(table_of(db, "others", replicas=1, partitions=4))
        staged = stage_all([db], 0)
        # when copies are made at all nodes, by snapshots, and two nodes are drained
        for at in nodes.up:
            command("log", "compact", "--node", nodes.address(at), "--snapshot")
        db.alter_zone("r1", replicas=3)
        are_at(nodes, {"n0", "n1", "n2"})
        staged += stage_all([db], WRITERS * EACH)
        db.alter_zone("r1", replicas=1)
        eventually(
            lambda: (
                all(len(names) == 1 for names in voters(nodes).values()) and not moves(nodes).moves
            ),
            deadline_s=MOVED_S,
        )
        with NodeClient(nodes.address(0)) as client:
            for name in ("n1", "n2"):
                client.ask("node.drain", DrainAsk(node=name), DrainReply)
        are_at(nodes, {"n0"})
        # then no row is read or lost, and all of them are committed, once
        assert table.count() == 0
        assert staged_rows(table) == 2 * WRITERS * EACH
        first = table.commit(staged, query="q", epoch=1)
        again = table.commit([stage(table, 7)], query="q", epoch=1)
        assert (again.repeated, again.parts) == (True, first.parts)
        assert stored(table) == Counter(range(2 * WRITERS * EACH))
        assert staged_rows(table) == 0
        query.goes_on()
        epochs = query.stop()
        assert stored(db["others"]) == Counter(range(epochs * EACH))


def are_at(nodes: Nodes, names: set[str]) -> None:
    """Wait until all partitions have their copies there."""
    eventually(
        lambda: all(one == names for one in voters(nodes).values()) and not moves(nodes).moves,
        deadline_s=MOVED_S,
    )
