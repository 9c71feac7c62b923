"""Partitions move between real nodes, while clients write and read: every row, exactly once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest

import lowmark
from eventually import eventually
from lowmark.backend.remote import RemoteBackend
from lowmark.backend.values import BatchRange
from lowmark.client import Database, Table
from lowmark.errors import LowmarkError
from lowmark.node import NodeClient
from lowmark.node.messages import (
    DrainAsk,
    DrainReply,
    NodeReply,
    Nothing,
    RebalanceReply,
    RemoveNodeAsk,
)
from lowmark.runtime import Buffer
from lowmark.server.endpoint import Endpoint
from lowmark.table import PartitionNotHere
from lowmark.table.commands import Batch, decode
from server.nodes import Nodes, table_of
from server.test_on_node import Node1

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moving")]
MOVED_S = 180.0
RANGES, RANGE_BYTES = 64, 1 << 20
"""More than a node fetches ahead of another one's answers."""


def moves(nodes: Nodes) -> RebalanceReply:
    with NodeClient(nodes.address(nodes.up[0])) as client:
        return client.ask("rebalance.status", Nothing(), RebalanceReply)


def voters(nodes: Nodes) -> dict[str, set[str]]:
    """The nodes of each partition, by name, as its leader says."""
    with NodeClient(nodes.address(nodes.up[0])) as client:
        status = client.status()
    names = {node.number: node.name for node in status.nodes}
    return {
        one.group: {names.get(number, "?") for number in one.voters}
        for one in status.groups
        if one.group.startswith("table.")
    }


class Writer:
    """Appends rows with rising ids, one after another, until it is stopped."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.acknowledged = 0
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            first = self.acknowledged
            batch = [{"id": first + n, "status": "x" * 100} for n in range(50)]
            try:
                self.table.append(batch)
            except Exception as error:
                self.error = error
                return
            self.acknowledged = first + 50

    def stop(self) -> int:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.acknowledged


class Compacting:
    """Compacts a table again and again, until it is stopped."""

    def __init__(self, db: Database, table: str) -> None:
        self.done = 0
        self._db, self._table = db, table
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            try:
                run = self._db[self._table].compact(engine="local")
            except LowmarkError:  # a node was killed, or its partition is on its way: once more
                continue
            self.done += run.state == "done"

    def stop(self) -> int:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.done


class Follower:
    """Reads a table from its beginning, and goes on; counts how often each id came."""

    def __init__(self, table: Table) -> None:
        self.seen: Counter[int] = Counter()
        self.error: Exception | None = None
        self._reader = table.read(follow=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for batch in self._reader:
                self.seen.update(batch.column("id").to_pylist())
        except Exception as error:
            self.error = error

    def finish(self, count: int) -> None:
        def done() -> bool:
            if self.error is not None:
                raise self.error
            return len(self.seen) >= count

        eventually(done, deadline_s=120)
        self._reader.close()
        self._thread.join(60)
        assert sorted(self.seen) == list(range(count))
        assert set(self.seen.values()) == {1}


def leader_of(nodes: Nodes, group: str) -> int:
    """The node that leads a partition, by its place in the list; -1: none is known."""
    with NodeClient(nodes.address(nodes.up[0])) as client:
        status = client.status()
    names = [one.leader_name for one in status.groups if one.group == group]
    return int(names[0].removeprefix("n")) if names and names[0] else -1


@pytest.mark.release  # the next one moves partitions under the same load
def test_rows_go_on_while_nodes_come_and_go(tmp_path: Path) -> None:
    # given three nodes with a table of three replicas, a writer, a reader that follows, and runs
    with Nodes(tmp_path, 5, started=3) as nodes:
        dbs = [nodes.connect(number) for number in range(3)]
        dbs[0].set_history("0 s")
        table = table_of(dbs[0], "events", replicas=3, partitions=4)
        writer = Writer(table)
        follower = Follower(dbs[1]["events"])
        compacting = Compacting(dbs[2], "events")
        eventually(lambda: writer.acknowledged > 500)
        # when two more nodes come, and one of them dies as soon as it is given anything
        nodes.start(3, join=True)
        nodes.start(4, join=True)
        eventually(lambda: bool(moves(nodes).moves), deadline_s=MOVED_S)
        nodes.kill(4)
        # and so does a node that leads a partition
        group = f"table.{table.descriptor.id}.0"
        eventually(lambda: leader_of(nodes, group) in nodes.up, deadline_s=MOVED_S)
        killed = leader_of(nodes, group)
        nodes.kill(killed)
        nodes.start(4)
        nodes.start(killed)

        # then all have their share in the end
        def shared() -> bool:
            counts = Counter(name for names in voters(nodes).values() for name in names)
            return counts["n3"] >= 2 and counts["n4"] >= 2 and not moves(nodes).moves

        eventually(shared, deadline_s=MOVED_S)
        # and when they are drained and removed
        with NodeClient(nodes.address(0)) as client:
            for name in ("n3", "n4"):
                client.ask("node.drain", DrainAsk(node=name), DrainReply)

            def empty(name: str) -> bool:
                said = client.ask("node.drain", DrainAsk(node=name, look=True), DrainReply)
                return said.partitions == 0 and said.leads == 0

            for name in ("n3", "n4"):
                eventually(lambda name=name: empty(name), deadline_s=MOVED_S)  # type: ignore[misc]
                client.ask("node.remove", RemoveNodeAsk(node=name), NodeReply)
        nodes.kill(3)
        nodes.kill(4)
        # then all is at the three again, and no row was lost or doubled
        eventually(
            lambda: all(names == {"n0", "n1", "n2"} for names in voters(nodes).values()),
            deadline_s=MOVED_S,
        )
        assert compacting.stop() > 0
        count = writer.stop()
        assert count > 500
        follower.finish(count)
        assert dbs[2]["events"].count() == count
        for db in dbs:
            db.close()


@pytest.mark.hosts
def test_replicas_are_added_and_taken_away_under_load(tmp_path: Path) -> None:
    with Nodes(tmp_path, 3) as nodes:
        db = nodes.connect(0)
        table_of(db, "events", replicas=1, partitions=3)
        writer = Writer(db["events"])
        follower = Follower(nodes.connect(2)["events"])
        eventually(lambda: writer.acknowledged > 500)
        for replicas in (3, 1):
            db.alter_zone("r1", replicas=replicas)
            eventually(
                lambda replicas=replicas: (  # type: ignore[misc]
                    all(len(names) == replicas for names in voters(nodes).values())
                    and not moves(nodes).moves
                ),
                deadline_s=MOVED_S,
            )
        count = writer.stop()
        follower.finish(count)
        assert db["events"].count() == count
        db.close()


def test_a_read_at_another_node_goes_on_where_its_partition_has_moved_to(tmp_path: Path) -> None:
    """In the middle of its batches, the node that gave them says that it has the copy not."""
    # given three nodes, a partition at the second one, and the first one that reads it there
    folders = [tmp_path / name for name in ("n1", "n2", "n3")]
    with (
        Node1(folders[0]) as first,
        Node1(folders[1], join=first.address) as second,
        Node1(folders[2], join=first.address) as third,
        lowmark.connect(first.address, timeout_s=60) as db,
    ):
        table = db.create_table("events", {"id": "int64", "text": "string"}, partitions=1)

        def moves_to(node: Node1) -> None:
            db.cluster.baseline("default", [node.node.info.name])
            wanted = [one is node for one in (first, second, third)]
            eventually(lambda: [has_copy(one) for one in folders] == wanted, deadline_s=MOVED_S)

        moves_to(second)
        for number in range(RANGES):
            table.append([{"id": number, "text": "x" * RANGE_BYTES}])
        endpoint = first.node.server.data
        assert isinstance(endpoint, Endpoint)
        reading, where = endpoint._backend, table.descriptor.id
        view = reading.view(where, 0, latest=True)
        assert view.count == RANGES
        ranges = [BatchRange.of(view, at, at + 1) for at in range(RANGES)]
        # then it gives all of them, each once, in several answers of that node
        batches = reading.batches(where, 0, ranges, held=False)
        assert sequences(chain.from_iterable(batches)) == list(range(RANGES))
        # and when it moves to the third one after the first batch was given
        batches = reading.batches(where, 0, ranges, held=False)
        found = sequences(next(batches))
        moves_to(third)
        # then the others come from there
        found += sequences(chain.from_iterable(batches))
        assert found == list(range(RANGES))
        # and the node that has it not sends no other node on, which looks for itself
        peer = RemoteBackend(second.address, cluster=reading.info.cluster, of_node=True)
        with closing(peer), pytest.raises(PartitionNotHere):
            next(peer.batches(where, 0, ranges, held=False))


def sequences(batches: Iterable[Buffer]) -> list[int]:
    """The numbers that their producer gave them."""
    found = [decode(batch) for batch in batches]
    return [one.sequence for one in found if isinstance(one, Batch)]


def has_copy(folder: Path) -> bool:
    """Whether a node has anything of a table on its disk."""
    return any((folder / "groups").glob("table.*"))
