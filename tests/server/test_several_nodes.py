"""Clients of a cluster: any node will do, whichever has the rows, and whichever dies."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from pyarrow import flight
from typer.testing import CliRunner

from eventually import eventually
from frames.alone import written
from lowmark.backend.errors import RunUnderWay
from lowmark.backend.spread import CopiesAway
from lowmark.catalog import TableId
from lowmark.cli.app import app
from lowmark.client import Database, Reader, Table
from lowmark.frames import LowmarkSource
from lowmark.ledger import kernel, work
from lowmark.node import NodeClient
from lowmark.table import ProducerFenced
from server.nodes import Nodes, table_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("several-nodes")]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes"), 3) as nodes:
        yield nodes


def rows(first: int, count: int) -> list[dict[str, object]]:
    return [{"id": number, "status": "new"} for number in range(first, first + count)]


def ids(table: Table) -> list[int]:
    return sorted(row["id"] for row in table.read().to_pylist())


def follow(reader: Reader, count: int) -> list[int]:
    """So many rows of a reader that follows."""
    found: list[int] = []
    while len(found) < count:
        found += next(reader).column("id").to_pylist()
    return found


def states(nodes: Nodes, table: str) -> set[str]:
    """Of the partitions of a table, as a node that is up has it."""
    with NodeClient(nodes.address(nodes.up[0])) as client:
        status = client.status()
    names = [f"table.{one.id}." for one in status.tables if one.name.endswith(table)]
    return {one.state for one in status.groups for name in names if one.group.startswith(name)}


def compact(table: Table) -> None:
    """As soon as its rows are old enough: older than clocks of nodes may differ."""

    compactable(table)
    assert table.compact(engine="local").state == "done"


def compactable(table: Table) -> None:
    """Wait until the low watermark has passed all rows that are there."""
    backend = table._backend
    time = backend.now(table.descriptor.id).time
    eventually(lambda: backend.advance_watermark(time).after >= time)


def test_any_node_gives_and_takes_rows_of_partitions_that_others_have(nodes: Nodes) -> None:
    # given a table whose partitions are each at one node only
    clients = [nodes.connect(number) for number in range(3)]
    table_of(clients[0], "single", replicas=1)
    tables = [db["single"] for db in clients]
    # when each client appends, then each finds all of it, by every way
    for number, table in enumerate(tables):
        table.append(rows(100 * number, 100))
    reader = tables[1].read(follow=True)
    assert sorted(follow(reader, 300)) == list(range(300))
    for table in tables:
        assert ids(table) == list(range(300))
        assert table.count() == 300
        assert [table.get(key) for key in (7, 107, 207)] == [
            rows(key, 1)[0] for key in (7, 107, 207)
        ]
        assert table.get(1_000) is None
        found = table.get_many([{"id": key} for key in range(0, 400, 10)])
        assert sum(row is not None for row in found) == 30
        assert table.read(as_of="now").to_arrow().num_rows == 300
    # and a reader that follows hears of rows that come by another node, at another node
    tables[2].append(rows(300, 50))
    assert sorted(follow(reader, 50)) == list(range(300, 350))
    reader.close()
    # and a cursor, a snapshot and a named producer work across nodes
    tables[0].cursors.create("c", start="earliest")
    snapshot = tables[2].snapshot()
    assert sum(snapshot.ends.values()) == 350
    with tables[1].read(cursor="c") as some:
        assert some.to_arrow().num_rows == 350
        tables[1].cursors.commit("c", some.position)
    assert tables[2].read(cursor="c").to_arrow().num_rows == 0
    # and a read of now has its answer at each node, though another one has moved the low watermark
    # to its own now
    for number, table in enumerate(tables):
        clients[number - 1].advance_watermark("now")
        assert table.count() == table.read(as_of="now").to_arrow().num_rows == 350
    old = tables[0].producer(name="p")
    with tables[2].producer(name="p") as new:
        new.send(rows(350, 1)[0])
    for row in rows(351, 8):
        old.send(row)
    with pytest.raises(ProducerFenced):
        old.close()
    for db in clients:
        db.close()


def test_a_plain_client_reads_and_appends_at_any_node(nodes: Nodes) -> None:
    with nodes.connect(0) as db:
        table_of(db, "plain", replicas=1).append(rows(0, 100))
        addresses = set()
        for number in range(3):
            with flight.FlightClient(f"grpc+tcp://{nodes.address(number)}") as plain:
                info = plain.get_flight_info(flight.FlightDescriptor.for_path("plain"))
                # each partition where it is, and at any other node, too
                read = 0
                for one in info.endpoints:
                    addresses.add(one.locations[0].uri.decode())
                    with flight.FlightClient(one.locations[0]) as there:
                        part = there.do_get(one.ticket).read_all()
                    assert plain.do_get(one.ticket).read_all().num_rows == part.num_rows
                    read += part.num_rows
                assert read == 100 + 10 * number
                batch = db["plain"].read(limit=10).to_arrow().slice(0, 10)
                batch = batch.set_column(
                    0, "id", [list(range(100 + 10 * number, 110 + 10 * number))]
                )
                writer, _ = plain.do_put(flight.FlightDescriptor.for_path("plain"), batch.schema)
                writer.write_table(batch)
                writer.close()
        assert len(addresses) > 1
        assert ids(db["plain"]) == list(range(130))


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_ledger_that_one_client_made_is_read_at_every_node(nodes: Nodes, replicas: int) -> None:
    # given a table whose rows came again and again, and one that is deleted
    clients = [nodes.connect(number) for number in range(3)]
    name = f"compacted{replicas}"
    table_of(clients[0], name, replicas=replicas, partitions=4)
    tables = [db[name] for db in clients]
    for status in ("new", "paid", "sent"):
        tables[1].append([{"id": number, "status": status} for number in range(200)])
    tables[2].delete([{"id": 7}])
    reader = tables[0].read(compacted=True, follow=True)
    # when a client of another node than the first compacts it
    compact(tables[2])
    # then all nodes read the same from the ledger
    expected = [{"id": number, "status": "sent"} for number in range(200) if number != 7]
    for table in tables:
        found = sorted(table.read(as_of="now").to_pylist(), key=lambda row: row["id"])
        assert found == expected
        assert table.read(compacted=True).to_arrow().num_rows in {199, 200}  # or with the delete
        assert table.get(8) == {"id": 8, "status": "sent"}
        assert table.get(7) is None
        assert table.explain(8).row is not None
    # and a reader from before sees each last row once
    seen: dict[int, str] = {}
    while seen.get(7) is not None or list(seen.values()).count("sent") < 199:
        for row in next(reader).to_pylist():
            seen[row["id"]] = row["status"]
    reader.close()
    # and a second run, by another client, begins with that ledger
    tables[0].append([{"id": 8, "status": "back"}])
    compact(tables[1])
    assert [table.get(8) for table in tables] == [{"id": 8, "status": "back"}] * 3
    for db in clients:
        db.close()


@pytest.mark.parametrize("replicas", [1, 3])
def test_clients_of_different_nodes_never_sweep_the_files_of_each_others_runs(
    nodes: Nodes, replicas: int
) -> None:
    # given a run of a client of one node, in the middle, and then one of another's
    clients = [nodes.connect(number) for number in range(3)]
    name = f"swept{replicas}"
    table_of(clients[0], name, replicas=replicas, partitions=2)
    tables = [db[name] for db in clients]
    for status in ("new", "paid"):
        tables[0].append([{"id": number, "status": status} for number in range(100)])
    compactable(tables[0])
    for mine, table in enumerate(tables[:2]):
        others = [one for number, one in enumerate(tables) if number != mine]
        begun: list[str] = []

        def others_sweep(step: str, others: list[Table] = others, begun: list[str] = begun) -> None:
            if step == "publish partition 0":
                # when clients of the other nodes sweep, and would compact
                [run] = [one for one in others[0].runs() if one.state == "running"]
                begun.append(run.run)
                for one in others:
                    assert not [path for path in one.sweep() if run.run in path]
                    with pytest.raises(RunUnderWay, match=run.run):
                        one.compact(engine="local")

        # then it ends well, and what it has published is read at every node
        run = table.compact(engine="local", rewrite=True, step=others_sweep)
        assert (run.state, [run.run]) == ("done", begun)
        for one in tables:
            found = one.read(as_of="now").to_pylist()
            assert sorted(row["id"] for row in found) == list(range(100))
            assert {row["status"] for row in found} == {"paid"}
    for db in clients:
        db.close()


_DIES = """
import os, sys, lowmark
table = lowmark.connect(sys.argv[1])[sys.argv[2]]
def step(name):
    if name == "adopt partition 0":
        os._exit(9)
table.compact(engine="local", step=step)
"""


def test_a_run_whose_process_dies_right_after_publishing_needs_no_other(nodes: Nodes) -> None:
    # given rows that are old enough
    with nodes.connect(0) as db:
        table = table_of(db, "published", replicas=3, partitions=1)
        table.append(rows(0, 100))
        table.append(rows(0, 100))
        view = partial(db.backend.view, table.descriptor.id, 0)
        compactable(table)
        # when the process of a run dies between publishing and adopting
        words = [sys.executable, "-c", _DIES, nodes.address(1), "published"]
        assert subprocess.run(words, check=False).returncode == 9
        assert view(latest=True).ledger is None
        # then the partition's leader adopts it, and it is read
        eventually(lambda: view(latest=True).ledger is not None)
        assert table.read(compacted=True).to_arrow().num_rows == 100
        assert table.get(99) == rows(99, 1)[0]


_WAITS = """
import sys, lowmark
table = lowmark.connect(sys.argv[1])[sys.argv[2]]
def step(name):
    if name == "adopt partition 0":
        print("published", flush=True)
        sys.stdin.read()
table.compact(engine="local", step=step)
"""


@pytest.mark.release  # the shorter relatives are the test before this one, and test_adopting
@pytest.mark.parametrize("gone", ["its leader", "all nodes"])
def test_a_ledger_of_a_dead_run_is_adopted_whichever_node_dies_with_it(
    nodes: Nodes, gone: str
) -> None:
    name = f"left_{gone[:3]}"
    with nodes.connect(0) as db:
        table = table_of(db, name, replicas=3, partitions=1)
        table.append(rows(0, 100))
        table.append(rows(0, 100))
        number = table.descriptor.id
        compactable(table)
        # given a run that has just published its ledger
        words = [sys.executable, "-c", _WAITS, nodes.address(1), name]
        run = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        assert run.stdout.readline() == "published\n"
        # when it is killed, with the node that leads the partition, or with all of them
        leader = leader_of(nodes, f"table.{number}.0")
        away = [leader] if gone == "its leader" else [0, 1, 2]
        for one in away:
            nodes.kill(one)
        run.kill()
        run.communicate()
        if gone != "its leader":
            with ThreadPoolExecutor() as pool:  # none is ready before a majority is up
                list(pool.map(nodes.start, away))
    # then the nodes that are left have it adopted: no client asks for it, and no other run is made
    copies = [nodes.connect(one) for one in nodes.up]
    eventually(lambda: all(has_adopted(db, number) for db in copies))
    [left] = copies[0][name].runs()
    assert left.state in {"running", "interrupted"}  # as long as it may be that it lives
    # and a node that comes back has it, too
    if gone == "its leader":
        nodes.start(leader)
        copies.append(nodes.connect(leader))
        eventually(lambda: has_adopted(copies[-1], number))
    for db in copies:
        assert db[name].read(compacted=True).to_arrow().num_rows == 100
        db.close()


def leader_of(nodes: Nodes, group: str) -> int:
    """The node that leads a group."""
    with NodeClient(nodes.address(0)) as client:
        [found] = [one for one in client.status().groups if one.group == group]
    return int(found.leader_name.removeprefix("n"))


def has_adopted(db: Database, table: TableId) -> bool:
    """Whether the copy at the node of a client has adopted a ledger."""
    return db.backend.view(table, 0, latest=False).ledger is not None


def test_a_task_reads_on_at_another_node_when_the_one_it_reads_from_is_killed(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a run that reads over Flight from node 1
    with nodes.connect(1) as db:
        table = table_of(db, "read_away", replicas=3, partitions=1)
        for _ in range(3):
            table.append(rows(0, 500))
        compactable(table)
        original = kernel.fold_tail

        def kill_between(*given: Any, **more: Any) -> Any:
            folded = original(*given, **more)
            nodes.kill(1)
            return folded

        # when that node is killed between the two passes over its rows
        monkeypatch.setattr(work, "fold_tail", kill_between)
        try:
            run = table.compact(engine="local", read="flight", verify=True)
        finally:
            nodes.start(1)
        # then the run has its rows from another one
        assert run.state == "done"
        assert run.partitions[0].read_from == nodes.address(1)
        assert run.rows_live == 500
        assert table.count() == 500
        eventually(lambda: states(nodes, "read_away") == {"available"})


def test_a_client_goes_on_at_another_node_when_its_own_is_killed(nodes: Nodes) -> None:
    # given a client at node 1 and a guest of node 0, a reader half-way and one that follows
    with nodes.connect(1) as db, nodes.open(0) as other:
        table = table_of(db, "three", replicas=3)
        table.append(rows(0, 2_000))
        half = table.read(batch_bytes=1)
        seen = next(half).column("id").to_pylist()
        following = table.read(follow=True)
        followed = follow(following, 2_000)
        # when that node is killed, again with another one
        first = 2_000
        for gone in (1, 2, 0):
            nodes.kill(gone)
            eventually(lambda: states(nodes, "three") == {"degraded"})
            for _ in range(5):
                table.append(rows(first, 20))
                other["three"].append(rows(first + 20, 20))
                first += 40
            # then nothing that was acknowledged is missing, and nothing is there twice
            assert ids(table) == list(range(first))
            assert ids(other["three"]) == list(range(first))
            assert table.get(first - 1) == rows(first - 1, 1)[0]
            nodes.start(gone)
            eventually(lambda: states(nodes, "three") == {"available"})
        # and the readers go on where they were
        for batch in half:
            seen += batch.column("id").to_pylist()
        assert sorted(seen) == list(range(2_000))
        followed += follow(following, first - 2_000)
        assert sorted(followed) == list(range(first))


def test_a_client_goes_on_at_another_node_when_its_own_is_suspended(nodes: Nodes) -> None:
    with nodes.connect(2) as db:
        table = table_of(db, "suspended", replicas=3)
        table.append(rows(0, 100))
        # given rows on their way all the time
        over, failed = threading.Event(), list[BaseException]()
        sent = 100

        def send() -> None:
            nonlocal sent
            try:
                while not over.is_set():
                    table.append(rows(sent, 10))
                    sent += 10
            except BaseException as error:
                failed.append(error)

        sending = threading.Thread(target=send)
        sending.start()
        # when the node of the client gives no answer any more
        nodes.pause(2)
        try:
            before = sent
            found = ids(table)
            # then others answer: reads have all that was acknowledged before them
            assert found[:before] == list(range(before))
            while sent < before + 100 and sending.is_alive():
                over.wait(0.05)
        finally:
            nodes.resume(2)
            over.set()
            sending.join()
        assert not failed
        # and what it does when it wakes up changes nothing
        assert ids(table) == list(range(sent))


def test_what_no_node_has_is_said_of_its_table_and_of_no_other(nodes: Nodes) -> None:
    # given a table with copies, one whose partitions are each at one node, and a node that is gone
    with nodes.connect(0) as db:
        table_of(db, "copied", replicas=3).append(rows(0, 100))
        # (A node that is away as a table comes has no part in it: another test may have paused it.)
        eventually(lambda: up(nodes) == 3)
        table = table_of(db, "lone", replicas=1)
        table.append(rows(0, 100))
        nodes.kill(2)
        try:
            eventually(lambda: up(nodes) == 2)  # the others know
            # then its rows can't be read, and the error names who is away
            assert raises(CopiesAway, lambda: ids(table))
            # and both commands and plain clients list all tables
            listed = CliRunner().invoke(
                app, ["table", "list", "--json", "--node", nodes.address(0)]
            )
            assert listed.exit_code == 0
            found = {row["table"].rpartition(".")[2]: row for row in json.loads(listed.stdout)}
            assert found["lone"]["rows"] is None
            assert "lone" in listed.stderr
            assert found["copied"]["rows"] is not None
            with flight.FlightClient(f"grpc+tcp://{nodes.address(0)}") as plain:
                names = {one.descriptor.path[-1].decode() for one in plain.list_flights()}
            assert {"lone", "copied"} <= names
        finally:
            nodes.start(2)
        # and when it is back, so are its rows
        eventually(lambda: not raises(CopiesAway, lambda: ids(table)))
        assert ids(table) == list(range(100))


def up(nodes: Nodes) -> int:
    """How many nodes are up, as the first of those has it."""
    with NodeClient(nodes.address(nodes.up[0])) as client:
        return sum(bool(one.up) for one in client.status().nodes)


def raises(kind: type[Exception], function: Callable[[], object]) -> bool:
    try:
        function()
    except kind:
        return True
    return False


# The shorter relative is in test_several_addresses.py: endpoints of one process.
@pytest.mark.release
def test_a_spark_stream_goes_on_when_the_node_that_it_names_first_is_killed(nodes: Nodes) -> None:
    # given a stream between tables of three replicas, which names all nodes
    db = nodes.connect(1)
    orders, copy = (table_of(db, name, replicas=3) for name in ("streamed", "streamed_copy"))
    place = {"node": ",".join(nodes.address(number) for number in range(3))}
    source = LowmarkSource({**place, "table": "streamed", "startingOffsets": "earliest"})
    schema, into = source.schema(), {**place, "table": "streamed_copy"}
    reader: Any = source.streamReader(schema)
    try:
        at = reader.initialOffset()
        for number in range(4):
            orders.append(rows(100 * number, 100))
            # when the first of them is killed while the tasks of a batch are on their way
            kill = partial(nodes.kill, 0) if number == 1 else (lambda: None)
            at = written(reader, schema, into, number, at, when_planned=kill)
        # then each row is there once
        assert ids(copy) == list(range(400))
        assert ids(orders) == list(range(400))
    finally:
        reader.stop()
        if 0 not in nodes.up:
            nodes.start(0)
        db.close()
