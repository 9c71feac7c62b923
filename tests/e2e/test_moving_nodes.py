"""Nodes are started anew at other addresses, while rows flow through one client."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

import lowmark
from clusters.ports import free_ports
from clusters.served import ServedNodes
from eventually import eventually
from lowmark.backend.remote import RemoteBackend
from lowmark.client import Database, Table
from lowmark.errors import LowmarkError
from lowmark.node import NodeClient

pytestmark = [
    pytest.mark.release,  # in virtual time, and with more cases: tests/metastore/test_moving_nodes
    pytest.mark.slow,
    pytest.mark.xdist_group("addresses"),
]
NAMES = ("n1", "n2", "n3")
PATIENT_S = 60.0


class Writing:
    """Appends one row after another, by one client that knew one address."""

    def __init__(self, address: str) -> None:
        self.db = lowmark.connect(address, timeout_s=PATIENT_S)
        self.count = 0
        self.error: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self.db["events"],), daemon=True)
        self._thread.start()

    def _run(self, table: Table) -> None:
        try:
            while not self._over.is_set():
                table.append([{"id": self.count}])
                self.count += 1
        except Exception as error:
            self.error = error

    def known(self) -> list[str]:
        """Where it would go on."""
        backend = self.db.backend
        assert isinstance(backend, RemoteBackend)
        return backend.addresses

    def goes_on(self) -> None:
        """Rows are stored that were not there before."""
        before = self.count
        eventually(lambda: self.error is not None or self.count > before + 5, deadline_s=PATIENT_S)
        assert self.error is None, self.error

    def stop(self) -> int:
        self._over.set()
        self._thread.join(PATIENT_S)
        assert self.error is None, self.error
        self.db.close()
        return self.count


def members(address: str) -> set[str]:
    """The endpoints of all nodes that are up, if each leads or votes, as a node says."""
    try:
        with NodeClient(address) as client:
            nodes = client.status().nodes
    except LowmarkError:
        return set()
    return {node.endpoint for node in nodes if node.up and node.role}


def made(db: Database) -> None:
    db.create_zone("three", replicas=3)
    db.create_table("events", {"id": "int64"}, partitions=2, zone="three")


def ids(address: str) -> list[int]:
    with lowmark.connect(address, timeout_s=PATIENT_S) as db:
        batches = db["events"].read()
        return sorted(one for batch in batches for one in batch.column("id").to_pylist())


def founded(nodes: ServedNodes, ports: list[int]) -> list[str]:
    """Three nodes at 127.0.0.1, and a table on all of them."""
    addresses = [f"127.0.0.1:{port}" for port in ports[::2]]
    first, *others = zip(NAMES, addresses, strict=True)
    nodes.start(first[0], "--listen", first[1])
    for name, address in others:
        nodes.start(name, "--listen", address, "--join", addresses[0])
    eventually(lambda: members(addresses[0]) == {*addresses}, deadline_s=PATIENT_S)
    with lowmark.connect(addresses[0], timeout_s=PATIENT_S) as db:
        made(db)
    return addresses


def test_all_nodes_move_one_after_another_and_rows_flow(tmp_path: Path) -> None:
    first, second = free_ports(6, adjacent=True), free_ports(6, adjacent=True)
    with ServedNodes(tmp_path) as nodes:
        # given three nodes, and a client that was told of one of them, which moves last
        addresses = founded(nodes, first)
        writing = Writing(addresses[0])
        # when each comes back at another address: of IPv4, of IPv6, and a name
        places = [f"localhost:{second[0]}", f"127.0.0.2:{second[2]}", f"[::1]:{second[4]}"]
        for at in (1, 2, 0):
            nodes.stop(NAMES[at], signal.SIGKILL if at == 2 else signal.SIGTERM)
            words = ["--listen", places[at], "--advertise", places[at]]
            facts = nodes.start(NAMES[at], *words)
            assert facts["advertise"] == places[at]
            addresses[at] = places[at]
            # then all know it, that client as well, and rows go on
            there = addresses[at]
            eventually(lambda there=there: members(there) == {*addresses}, deadline_s=PATIENT_S)  # type: ignore[misc]
            eventually(lambda: {*writing.known()} == {*addresses}, deadline_s=PATIENT_S)
            writing.goes_on()
        count = writing.stop()
        # and no row is lost or doubled, wherever they are read
        for address in addresses:
            assert ids(address) == list(range(count))


def test_all_nodes_move_at_once_and_find_each_other_by_one_list(tmp_path: Path) -> None:
    first, second = free_ports(6, adjacent=True), free_ports(6, adjacent=True)
    with ServedNodes(tmp_path) as nodes:
        addresses = founded(nodes, first)
        with lowmark.connect(addresses[0]) as db:
            db["events"].append([{"id": number} for number in range(10)])
        # when all are gone, and come back elsewhere, each with the same list of all endpoints
        for name in NAMES:
            nodes.stop(name, signal.SIGKILL)
        places = [f"127.0.0.2:{port}" for port in second[::2]]
        for name, place in zip(NAMES, places, strict=True):
            nodes.begin(name, "--listen", place, "--join", ",".join(places))
        for name in NAMES:
            nodes.ready(name)
        # then they find each other, and all is there
        eventually(lambda: members(places[1]) == {*places}, deadline_s=PATIENT_S)
        assert ids(places[2]) == list(range(10))
        # and the next start needs no list
        nodes.stop("n2")
        nodes.start("n2", "--listen", places[1])
        eventually(lambda: members(places[1]) == {*places}, deadline_s=PATIENT_S)


def test_two_nodes_change_places(tmp_path: Path) -> None:
    with ServedNodes(tmp_path) as nodes:
        addresses = founded(nodes, free_ports(6, adjacent=True))
        writing = Writing(addresses[2])
        # when each of two is started where the other one was
        for name in ("n1", "n2"):
            nodes.stop(name, signal.SIGKILL)
        nodes.begin("n1", "--listen", addresses[1])
        nodes.begin("n2", "--listen", addresses[0])
        for name in ("n1", "n2"):
            nodes.ready(name)
        # then nobody takes one for the other
        with NodeClient(addresses[2]) as client:

            def found() -> dict[str, str]:
                return {node.name: node.endpoint for node in client.status().nodes if node.up}

            swapped = {"n1": addresses[1], "n2": addresses[0], "n3": addresses[2]}
            eventually(lambda: found() == swapped, deadline_s=PATIENT_S)
        writing.goes_on()
        count = writing.stop()
        assert ids(addresses[0]) == list(range(count))
