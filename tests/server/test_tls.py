"""An endpoint with TLS: who is let in, what the others hear, and certificates that are renewed."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import flight
from typer.testing import CliRunner

import lowmark
from eventually import eventually
from lowmark.authority import Authority
from lowmark.cli.app import app
from lowmark.client import Database, Table
from lowmark.errors import (
    AuthorityUnusable,
    CopiesAway,
    LowmarkError,
    ServerNotTrusted,
    TlsNeeded,
    TlsNotSpoken,
)
from lowmark.node import NodeClient
from runtime.certificates import serial_at
from server.nodes import Nodes, table_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("nodes-with-tls")]


class Secure(Nodes):
    """Nodes that speak TLS, each with a folder of the authority."""

    SHARED = ("tls",)

    def __init__(self, path: Path, count: int) -> None:
        super().__init__(path, count, started=0)
        self.authority = Authority.found(str(path / "tls"))
        self.ca = f"{self.authority.folder}/ca.pem"
        for number in range(count):
            host = self.address(number).rpartition(":")[0]
            self.authority.issue(f"n{number}", [host, "localhost"])
            self.more[number] = ["--tls", f"{self.authority.folder}/n{number}"]

    def url(self, number: int) -> str:
        return f"lowmark+tls://{self.address(number)}"

    def shown(self, number: int) -> str:
        """The serial number of the certificate that a node shows to clients."""
        return f"{serial_at(self.address(number)):x}"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with Secure(tmp_path_factory.mktemp("secure"), 2) as nodes:
        nodes.start(0)
        nodes.start(1, join=True)
        yield nodes


def rows(first: int, count: int) -> list[dict[str, object]]:
    return [{"id": number, "status": "new"} for number in range(first, first + count)]


def ids(table: Table) -> list[int]:
    return sorted(row["id"] for row in table.read().to_pylist())


def test_clients_append_and_read_by_tls_whichever_node_has_the_rows(
    nodes: Secure, tmp_path: Path
) -> None:
    # given a table whose partitions are each at one node
    with nodes.connect(0) as db:
        table = table_of(db, "orders", replicas=1)
        table.append(rows(0, 100))
        assert ids(table) == [*range(100)]
    # then any node gives all of them, by each way in
    addresses = f"{nodes.url(0)},{nodes.address(1)}"
    for address in (addresses, [nodes.url(1), nodes.url(0)]):
        with lowmark.connect(address, ca=nodes.ca) as db:
            assert len(ids(db.table("orders"))) == 100
    # and by commands, with the authority as an option or in the environment
    for words, env in ((["--ca", str(nodes.ca)], {}), ([], {"LOWMARK_CA": str(nodes.ca)})):
        done = CliRunner().invoke(
            app, ["read", "orders", "--node", nodes.url(1), *words, "--json"], env=env
        )
        assert done.exit_code == 0, done.output
        assert len(done.stdout.splitlines()) == 100
        done = CliRunner().invoke(
            app, ["status", "--node", nodes.url(1), *words, "--json"], env=env
        )
        assert done.exit_code == 0, done.output
        status = json.loads(done.stdout)
        assert [one["door"] for one in status["nodes"]] == [nodes.url(0), nodes.url(1)]


@pytest.mark.release
def test_plain_flight_clients_follow_the_endpoints_by_tls(nodes: Secure) -> None:
    with nodes.connect(0) as db:
        table_of(db, "plain", replicas=1).append(rows(0, 50))
    roots = Path(str(nodes.ca)).read_bytes()
    with flight.FlightClient(f"grpc+tls://{nodes.address(0)}", tls_root_certs=roots) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_path("plain"))
        count = 0
        for endpoint in info.endpoints:
            (location,) = endpoint.locations
            assert location.uri.startswith(b"grpc+tls://")
            with flight.FlightClient(location, tls_root_certs=roots) as there:
                count += there.do_get(endpoint.ticket).read_all().num_rows
        assert count == 50


def test_only_tls_1_3_is_spoken(nodes: Secure) -> None:
    host, _, port = nodes.address(0).rpartition(":")
    context = ssl.create_default_context(cafile=nodes.ca)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port))) as bare,
        context.wrap_socket(bare, server_hostname=host) as secure,
    ):
        assert secure.version() == "TLSv1.3"
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection((host, int(port))) as bare,
        pytest.raises(OSError),
        context.wrap_socket(bare, server_hostname=host, do_handshake_on_connect=False) as old,
    ):
        old.do_handshake()


def test_who_is_not_trusted_is_said_at_once_and_by_name(nodes: Secure, tmp_path: Path) -> None:
    other = Authority.found(str(tmp_path / "other"))
    wrong = f"{other.folder}/ca.pem"

    def refused(kind: type[LowmarkError], address: str, ca: str | None) -> str:
        with pytest.raises(kind) as error:
            lowmark.connect(address, ca=ca, timeout_s=60)
        with pytest.raises(kind) as again:
            NodeClient(address, ca=ca).status()
        assert str(again.value) == str(error.value)
        return str(error.value)

    assert f"no authority in {wrong} has signed" in refused(ServerNotTrusted, nodes.url(0), wrong)
    assert "lowmark+tls://" in refused(TlsNeeded, nodes.address(0), None)
    refused(AuthorityUnusable, nodes.url(0), str(tmp_path / "nowhere.pem"))
    # and by commands
    done = CliRunner().invoke(app, ["status", "--node", nodes.address(0)])
    assert done.exit_code == 1
    assert "speaks TLS" in done.stderr
    assert "--ca" in done.stderr


def test_a_node_is_trusted_by_the_names_of_its_certificate_alone(nodes: Secure) -> None:
    host = nodes.address(0).rpartition(":")[0]
    if host == "127.0.0.1":  # between hosts, that name is another one's
        with lowmark.connect(nodes.url(0).replace(host, "localhost"), ca=nodes.ca) as db:
            assert db.tables() is not None
    address = nodes.url(0).replace(host, f"[::ffff:{host}]")
    with pytest.raises(ServerNotTrusted, match=f"its certificate is for {host}"):
        lowmark.connect(address, ca=nodes.ca, timeout_s=60)


@pytest.mark.release
def test_a_client_that_asks_a_plain_node_for_tls_hears_that(tmp_path: Path) -> None:
    Authority.found(str(tmp_path / "tls"))
    with Nodes(tmp_path, 1) as nodes, pytest.raises(TlsNotSpoken):
        lowmark.connect(
            f"lowmark+tls://{nodes.address(0)}", ca=str(tmp_path / "tls" / "ca.pem"), timeout_s=60
        )


class Busy:
    """A writer and a reader that go on while nodes are restarted, or get new certificates."""

    def __init__(self, writing: Database, reading: Database, name: str) -> None:
        self._table = writing.table(name)
        self._reading = reading.table(name)
        self._over = threading.Event()
        self._all_written = threading.Event()
        self.written = 0
        self.read: list[int] = []
        self.failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._until_it_fails, args=(one,), daemon=True)
            for one in (self._write, self._follow)
        ]
        for one in self._threads:
            one.start()

    def _until_it_fails(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failed.append(error)

    def _write(self) -> None:
        while not self._over.is_set():
            self._table.append(rows(self.written, 10))
            self.written += 10

    def _follow(self) -> None:
        with self._reading.read(follow=True) as reader:
            while not self._all_written.is_set() or len(self.read) < self.written:
                self.read.extend(next(reader).column("id").to_pylist())

    def goes_on(self) -> None:
        """Wait until both have done more."""
        written, read = self.written, len(self.read)
        eventually(
            lambda: (self.written > written + 20 and len(self.read) > read + 20) or self.has_failed,
            deadline_s=60.0,
        )
        assert self.failed == []

    @property
    def has_failed(self) -> bool:
        return bool(self.failed)

    def check_all_is_there_once(self) -> None:
        self._over.set()
        writer, reader = self._threads
        writer.join(60)
        self.written += 1
        self._all_written.set()
        self._table.append(rows(self.written - 1, 1))  # the reader may be waiting for one more
        reader.join(60)
        assert self.failed == []
        assert sorted(self.read) == [*range(self.written)]
        assert ids(self._table) == [*range(self.written)]


def test_a_renewal_loses_nothing_of_what_is_under_way(nodes: Secure) -> None:
    with nodes.connect(0) as db, nodes.connect(0) as reading:
        # given a writer and a reader that go on
        table_of(db, "renewed", replicas=2, partitions=2)
        busy = Busy(db, reading, "renewed")
        # when both nodes get new certificates, twice
        for number in (0, 1, 0, 1):
            serial = nodes.authority.issue(f"n{number}").serial
            eventually(lambda number=number, serial=serial: nodes.shown(number) == serial)  # type: ignore[misc]
            busy.goes_on()
        # then nothing was lost, and nothing is there twice
        busy.check_all_is_there_once()


@pytest.mark.release
def test_a_cluster_goes_over_to_tls_node_by_node_under_load(tmp_path: Path) -> None:
    # given three nodes without TLS, and clients that know the authority already
    with Secure(tmp_path, 3) as nodes:
        options = dict(nodes.more)
        nodes.more.clear()
        nodes.start(0)
        for number in (1, 2):
            nodes.start(number, join=True)
        addresses = ",".join(nodes.address(number) for number in range(3))
        with (
            lowmark.connect(addresses, ca=nodes.ca, timeout_s=60) as db,
            lowmark.connect(addresses, ca=nodes.ca, timeout_s=60) as reading,
        ):
            table_of(db, "moved", replicas=3, partitions=3)
            busy = Busy(db, reading, "moved")
            # when each node is started again, first with both, then with TLS alone
            for mode in ("allow", "require"):
                for number in range(3):
                    nodes.stop(number)
                    nodes.more[number] = [*options[number], "--tls-mode", mode]
                    nodes.start(number)
                    busy.goes_on()
            # then nothing was lost, and nothing is there twice
            busy.check_all_is_there_once()
        # and every node is to be reached by TLS alone, and says that nothing is wrong
        for number in range(3):
            with pytest.raises(TlsNeeded):
                lowmark.connect(nodes.address(number), timeout_s=60)
        with NodeClient(nodes.url(0), ca=nodes.ca) as client:
            eventually(lambda: [one.problem for one in client.status().nodes] == [""] * 3)


@pytest.mark.release
def test_a_node_with_tls_asks_no_other_without_for_its_rows(tmp_path: Path) -> None:
    def missing(db: Database) -> str:
        """Why not all rows are to be had; empty: they are."""
        try:
            assert len(ids(db.table("orders"))) == 100
        except CopiesAway as error:
            return str(error.detail)
        return ""

    # given two nodes on their way to TLS, and rows that each of them has alone
    with Secure(tmp_path, 2) as nodes:
        for number in (0, 1):
            nodes.more[number] += ["--tls-mode", "allow"]
            nodes.start(number, join=number > 0)
        with lowmark.connect(nodes.address(0), ca=nodes.ca, timeout_s=60) as db:
            table_of(db, "orders", replicas=1).append(rows(0, 100))
            # when the other one goes over to TLS alone
            nodes.stop(1)
            nodes.more[1] = nodes.more[1][:2]
            nodes.start(1)
            # then the first asks it by TLS, as soon as it has heard of that
            eventually(lambda: not missing(db))
        # but it asks nothing of the first, and says why
        with nodes.connect(1) as db:
            eventually(lambda: "asks by TLS alone" in missing(db))
            # until that one has gone over as well
            nodes.stop(0)
            nodes.more[0] = nodes.more[0][:2]
            nodes.start(0)
            eventually(lambda: not missing(db))


@pytest.mark.release
def test_a_plain_client_of_a_node_that_went_over_hears_what_to_give(tmp_path: Path) -> None:
    # given a client without an authority, and its node
    with Secure(tmp_path, 1) as nodes:
        options = nodes.more.pop(0)
        nodes.start(0)
        with lowmark.connect(nodes.address(0), timeout_s=60) as db:
            table = table_of(db, "orders", replicas=1)
            table.append(rows(0, 10))
            # when that is started again with TLS
            nodes.stop(0)
            nodes.more[0] = options
            nodes.start(0)
            # then the client hears so
            with pytest.raises(TlsNeeded, match="speaks TLS"):
                db.tables()
