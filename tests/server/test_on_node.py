"""A node that is served by the command gives rows out at its address for clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from pyarrow import flight

import lowmark
from backend.conftest import embedded
from clusters.ports import free_ports
from eventually import eventually
from lowmark.access.directory import Directory
from lowmark.backend.attached import Attached
from lowmark.backend.embedded import Embedded
from lowmark.backend.protocol import CALLS, Request, encode_request
from lowmark.backend.remote import RemoteBackend
from lowmark.backend.spread import Spread
from lowmark.backend.values import ReadRange
from lowmark.client import Database
from lowmark.errors import Rejected, Unavailable
from lowmark.node import (
    Node,
    NodeClient,
    NodeOptions,
    NodeUnreachable,
    Settings,
    load_settings,
    make_directory,
)
from lowmark.node.addresses import location_of
from lowmark.node.owner import Owner
from lowmark.runtime import Locked, NoHandles
from lowmark.server import Limits, Server, on_node
from lowmark.server.adopting import Adopter
from lowmark.server.endpoint import Endpoint
from lowmark.server.on_node import attach
from node.running import QUICK
from server.world import COLUMNS


def serve(data: Path, listen: str = "127.0.0.1:0") -> tuple[subprocess.Popen[str], str]:
    words = ["serve", "--data", str(data), "--listen", listen, "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lowmark", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["listen"]


@pytest.mark.slow
def test_all_that_a_node_follows_is_followed_again_after_an_error(tmp_path: Path) -> None:
    # given a node with everything that a served one has
    make_directory(str(tmp_path / "n1"))
    backend = Embedded(tmp_path / "n1", load_settings())
    adopter = Adopter(backend)  # type: ignore[arg-type]  # it has all that is asked of it here
    try:
        metastore = backend.node.cluster.metastore

        def names() -> list[str]:
            return backend.ask_now(lambda: sorted(one.name for one in metastore.watches()))

        before = names()
        assert {"published ledgers", "low watermark", "assignments", "zones"} < {*before}
        # when none of its watches can read what it is about to be told
        error = NoHandles("1.wal", call="read", reason="too many open files")
        backend.ask_now(lambda: metastore._watches.end_all(error))
        assert names() == []
        # then it follows the same again
        eventually(lambda: names() == before)
        # and nothing is told to what was closed
        adopter.close()
        eventually(lambda: set(before) - {*names()} == {"published ledgers"})
    finally:
        adopter.close()
        backend.close()


@pytest.mark.slow
def test_a_served_node_gives_rows_out_at_its_address(tmp_path: Path) -> None:
    # given a node, by the command, at a port that no other process is given meanwhile
    place = f"127.0.0.1:{free_ports(2, adjacent=True)[0]}"
    process, address = serve(tmp_path / "n1", place)
    try:
        with lowmark.connect(address, timeout_s=30) as db:
            # then its tables can be used, by our client and by any other, beside its actions
            orders = db.create_table("orders", COLUMNS, key="id", partitions=2)
            orders.append([{"id": number, "status": "new"} for number in range(10)])
            assert orders.get(3) == {"id": 3, "status": "new"}
            with flight.FlightClient(f"grpc+tcp://{address}") as plain:
                (info,) = plain.list_flights()
                tables = [plain.do_get(one.ticket).read_all() for one in info.endpoints]
                assert sum(table.num_rows for table in tables) == 10
            with NodeClient(address) as client:
                assert client.status().tables
            # when it is killed and started again, then a client goes on
            process.kill()
            process.communicate()
            process, again = serve(tmp_path / "n1", address)
            assert again == address
            orders.append([{"id": 10, "status": "new"}])
            assert sorted(row["id"] for row in orders.read().to_pylist()) == list(range(11))
            # and it ends in time beside a reader that follows
            reader = orders.read(follow=True)
            next(reader)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert time.monotonic() - began < 15
            reader.close()
    finally:
        process.kill()
        process.communicate()


def test_a_served_node_does_not_wait_for_copies_that_other_nodes_have() -> None:
    assert Attached.wait_for_copies is not Embedded.wait_for_copies


@pytest.mark.slow
def test_a_served_node_lets_processes_of_its_machine_in_by_its_directory(tmp_path: Path) -> None:
    # given a node, by the command
    data = tmp_path / "n1"
    process, address = serve(data)
    try:
        # when its directory is opened, then that is a way to the node
        with lowmark.open(data) as db:
            orders = db.create_table("orders", COLUMNS, key="id", partitions=2)
            orders.append([{"id": number, "status": "new"} for number in range(10)])
            assert owner_of(data).pid == process.pid
            assert (owner_of(data).address, owner_of(data).serves) == (address, True)
            # and so it is for commands, also for one that would insist on other settings
            words = ["get", "orders", "3", "--data", str(data), "--json"]
            ran = subprocess.run(
                [sys.executable, "-m", "lowmark", *words],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "LOWMARK_LOG_WAL_BYTES_MAX": "8MiB"},
            )
            assert json.loads(ran.stdout) == {"id": 3, "status": "new"}
            with lowmark.open(data, read_only=True) as reports:
                assert reports["orders"].count() == 10
            # and the one that insists on owning does not get in
            with pytest.raises(Locked):
                lowmark.open(data, owner=True)
            # when the node is killed, then a guest waits for it, and does not take its place
            process.kill()
            process.communicate()
            with ThreadPoolExecutor(1) as pool:
                waits = pool.submit(orders.count)
                backend = db.backend
                assert isinstance(backend, RemoteBackend)
                eventually(lambda: backend._connection._away)
                process, _ = serve(data)
                assert waits.result() == 10
            assert owner_of(data).pid == process.pid
    finally:
        process.kill()
        process.communicate()


def owner_of(data: Path) -> Owner:
    """The process that the lock file names."""
    found = Owner.noted((data / "LOCK").read_bytes()[32:])
    assert found is not None
    return found


def test_a_guest_of_a_served_node_never_takes_its_place(tmp_path: Path) -> None:
    # given a directory whose node was served, and is not any more
    with lowmark.open(tmp_path / "n1"):
        pass
    directory = Directory(str(tmp_path / "n1"), lambda: pytest.fail("it was owned"))
    directory.owner = Owner.here("127.0.0.1:1", {}, serves=True)
    # when one of its guests looks for it, then it hears that there is none
    with pytest.raises(NodeUnreachable, match="no node serves"):
        directory.locate(0.1)


class Gone:
    """A database that was served at two addresses, as by two nodes, and a guest of the first."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *, nodes: int) -> None:
        self.db = Database(embedded(path / "rows"))
        self.servers = [Server(self.db, f"unix:{path}/{number}") for number in range(nodes)]
        addresses = tuple(one.address for one in self.servers)
        members = addresses if nodes > 1 else ()
        monkeypatch.setattr(self.db.backend, "members", lambda: members)
        with lowmark.open(path / "n1"):
            pass
        directory = Directory(str(path / "n1"), lambda: pytest.fail("it was owned"))
        directory.owner = Owner.here(addresses[0], {}, serves=True)
        self.guest = RemoteBackend(addresses[0], locate=directory.locate, explain=directory.explain)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.guest.close()
        for server in self.servers:
            server.close()
        self.db.close()


def test_a_guest_of_a_node_that_is_gone_goes_on_at_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gone(tmp_path, monkeypatch, nodes=2) as world:
        table = world.db.create_table("t", COLUMNS, key="id", partitions=1).descriptor.id
        held = world.guest.hold(table, {0: ReadRange(0, None)}, holder="a test", why="it reads")
        # when the node of the directory is gone
        world.servers[0].close()
        # then the guest is answered by another one of its cluster, and has its holds there
        assert world.guest.status(table).keys() == {0}
        assert world.guest.wait(held.hold, 0.0) >= 0


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_all_that_wait_for_a_node_that_is_gone_hear_that_no_node_serves_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    with Gone(tmp_path, monkeypatch, nodes=nodes) as world, ThreadPoolExecutor(3) as pool:
        for server in world.servers:
            server.close()
        # when several threads ask, of which one looks for the next owner
        asked = [pool.submit(world.guest.get, b"k", timeout_s=s) for s in (0.1, 0.1, 0.4)]
        # then each hears the same, and what to do
        for one in asked:
            error = one.exception()
            assert isinstance(error, NodeUnreachable)
            assert error.message == f"no node serves {tmp_path}/n1 any more"
            assert "lowmark serve" in error.hint


class Node1:
    """A node in this process that gives rows to clients."""

    def __init__(
        self,
        data: Path,
        limits: Limits | None = None,
        *,
        join: str = "",
        settings: Settings = QUICK,
    ) -> None:
        options = NodeOptions(data=str(data), listen="127.0.0.1:0", join=join)
        self.node = Node(options, settings)
        self.address = self.node.server.address
        ready = threading.Event()

        def on_ready() -> None:
            attach(self.node, str(data), limits=limits)
            ready.set()

        self._thread = threading.Thread(target=self.node.run, args=(on_ready,), name="a node")
        self._thread.start()
        assert ready.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.node.stop()
        self._thread.join()


@pytest.mark.slow
def test_a_client_that_takes_no_answers_is_cut_off_at_a_node_too(tmp_path: Path) -> None:
    # given a client of a node that makes calls, and takes no answers
    with Node1(tmp_path / "n1", Limits(stall_ms=300)) as served:
        with lowmark.connect(served.address) as db:
            cluster = db.backend.info.cluster
        endpoint = served.node.server.data
        assert isinstance(endpoint, Endpoint)

        def request(call: str) -> bytes:
            return encode_request(Request(cluster, 1, call, (), {}))

        descriptor = flight.FlightDescriptor.for_command(CALLS + request("calls"))
        many = pa.py_buffer(request("x" * 100))
        with flight.FlightClient(location_of(served.address)) as client:
            writer, _ = client.do_exchange(descriptor)
            # when it goes on so, then it is cut off
            with pytest.raises((flight.FlightError, OSError)):
                _repeat(lambda: writer.write_metadata(many))
        eventually(lambda: endpoint._call_streams.taken == 0)


def _repeat(send: Callable[[], None]) -> None:
    ends_at = time.monotonic() + 30
    while time.monotonic() < ends_at:
        send()


def test_clients_hear_why_a_node_gives_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a node whose tables can't be given to clients
    def fails(*_: object, **__: object) -> Attached:
        raise Rejected("the ledgers are of another database")

    monkeypatch.setattr(on_node, "Spread", fails)
    with Node1(tmp_path / "n1") as served:
        eventually(lambda: served.node.server.no_data is not None)
        # when a client connects, then it hears the reason at once, whichever way it asks
        with pytest.raises(Rejected, match="the ledgers are of another database"):
            lowmark.connect(served.address, timeout_s=30)
        plain = flight.FlightClient(location_of(served.address))
        with plain, pytest.raises(pa.ArrowInvalid, match="ledgers are of another database"):
            list(plain.list_flights())


def test_a_node_that_could_not_give_rows_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a node that can't give rows to clients at its first try
    tries = iter([Unavailable("the metastore has no leader"), None])

    def fails_once(*given: Any, **named: Any) -> Attached:
        error = next(tries)
        if error is not None:
            raise error
        return Spread(*given, **named)

    monkeypatch.setattr(on_node, "Spread", fails_once)
    monkeypatch.setattr(on_node, "_AGAIN_S", 0.01)
    with Node1(tmp_path / "n1") as served:
        eventually(lambda: served.node.server.data is not None)
        with lowmark.connect(served.address) as db:
            assert db.tables() == []
