"""A server of a program's own database, with TLS: who is let in, renewal, TLS 1.3 alone."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import lowmark
from clusters.ports import free_ports
from eventually import eventually
from lowmark.authority import Authority
from lowmark.errors import NotLoopback, Rejected, TlsNeeded, TlsUnusable
from lowmark.node import NodeClient
from lowmark.runtime import host_and_port
from lowmark.runtime.certificates import Certificates
from lowmark.server import Server
from runtime.certificates import serial_at
from server.world import COLUMNS, Served

pytestmark = pytest.mark.slow


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority.found(str(tmp_path / "tls"))
    authority.issue("db1", ["127.0.0.1"])
    return authority


def folder(authority: Authority) -> str:
    return f"{authority.folder}/db1"


def test_a_server_with_tls_and_tokens_shows_what_it_has_now(
    tmp_path: Path, authority: Authority
) -> None:
    ca = f"{authority.folder}/ca.pem"
    with Served(tmp_path / "data", tls=folder(authority), tokens=True) as served:
        token = served.db.tokens.create("client").token
        assert served.address.startswith("lowmark+tls://127.0.0.1:")
        with lowmark.connect(served.address, ca=ca, token=token) as db:
            orders = db.create_table("orders", COLUMNS, key="id", partitions=2)
            orders.append([{"id": 1, "status": "new"}])
            assert orders.get(1) == {"id": 1, "status": "new"}
            # other Flight clients are sent to the same place
            plain = served.address.replace("lowmark", "grpc")
            options = flight.FlightCallOptions(
                headers=[(b"authorization", f"Bearer {token}".encode())]
            )
            with flight.FlightClient(plain, tls_root_certs=Path(ca).read_bytes()) as client:
                descriptor = flight.FlightDescriptor.for_path("orders")
                info = client.get_flight_info(descriptor, options)
                assert {one.uri.decode() for end in info.endpoints for one in end.locations} == {
                    plain
                }
                parts = [client.do_get(one.ticket, options).read_all() for one in info.endpoints]
                assert pa.concat_tables(parts)["id"].to_pylist() == [1]
            bare = served.address.removeprefix("lowmark+tls://")
            with pytest.raises(TlsNeeded):
                lowmark.connect(bare, token=token)
            # when its certificate is renewed, then it is shown, and clients go on
            issued = authority.issue("db1", ["127.0.0.1"])
            eventually(lambda: f"{serial_at(bare):x}" == issued.serial)
            orders.append([{"id": 2, "status": "new"}])
            assert orders.count() == 2
            # a file that can't be used is a problem of its node, until the server ends
            node = served.backend.node
            Path(folder(authority), "cert.pem").write_text("nonsense")
            eventually(lambda: any("cert.pem" in one for one in node.status.problems()))
            assert orders.count() == 2
        served.server.close()
        assert not any("cert.pem" in one for one in node.status.problems())


def test_a_certificate_that_ends_soon_is_a_warning(tmp_path: Path, authority: Authority) -> None:
    ca = f"{authority.folder}/ca.pem"
    with Served(tmp_path / "data", tls=folder(authority)) as served:
        with NodeClient(served.address, ca=ca) as client:
            assert client.status().warnings == ()
            # when less is left of it than 30 days
            authority.issue("db1", ["127.0.0.1"], days=20)
            eventually(lambda: bool(client.status().warnings))
            [warning] = client.status().warnings
        # then status warns
        assert warning.kind == "certificate"
        assert warning.text.startswith(f"node {warning.holder}: the certificate in")
        assert "cert.pem ends in 19 days, on" in warning.text


def test_what_is_no_way_to_serve_by_tls_is_refused(tmp_path: Path, authority: Authority) -> None:
    with Served(tmp_path / "data") as served:
        node = served.backend.node
        with pytest.raises(TlsUnusable, match=r"it is for 127\.0\.0\.1, and others know us as ::1"):
            Server(served.db, "[::1]:0", tls=folder(authority))
        with pytest.raises(TlsUnusable, match="nowhere"):
            Server(served.db, tls=tmp_path / "nowhere")
        with pytest.raises(Rejected, match="a Unix socket speaks no TLS"):
            Server(served.db, f"unix:{tmp_path}/socket", tls=folder(authority))
        with pytest.raises(NotLoopback, match="and the node has no tokens"):
            Server(served.db, "0.0.0.0:0", advertise="10.0.0.7:0", tls=folder(authority))
        assert node.of_servers == []


@pytest.mark.parametrize("ends", [KeyboardInterrupt, MemoryError])
def test_a_server_that_is_not_made_leaves_nothing(
    tmp_path: Path,
    authority: Authority,
    ends: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with lowmark.open(tmp_path / "data") as db:
        node = db.backend.node  # type: ignore[attr-defined]
        before, asked = watches(), node.bridge.call

        def ended(callback: Any) -> Any:
            if getattr(getattr(callback, "func", None), "__name__", "") != "follow":
                return asked(callback)
            assert watches() != before
            raise ends

        # when something comes in between, as it listens already
        with monkeypatch.context() as patched:
            patched.setattr(node.bridge, "call", ended)
            with pytest.raises(ends):
                Server(db, address, tls=folder(authority))
        # then it does not listen, and looks at no certificates
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(host_and_port(address))
        assert watches() == before
        assert node.of_servers == []
        # and another one can be made
        Server(db, address, tls=folder(authority)).close()


def watches() -> set[int]:
    """Those in this process that look at certificates."""
    return {id(one) for one in gc.get_objects() if type(one) is Certificates and not one._ended}


ALONE = """
import os, socket, ssl, sys
import lowmark
from lowmark.server import Server, only_tls_1_3
if sys.argv[3] == "alone":
    only_tls_1_3()
assert "GRPC_SSL_CIPHER_SUITES" not in os.environ
with lowmark.open(sys.argv[1]) as db, Server(db, tls=f"{sys.argv[2]}/db1") as server:
    host, _, port = server.address.rpartition("/")[2].rpartition(":")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context(cafile=f"{sys.argv[2]}/ca.pem")
        context.set_alpn_protocols(["h2"])
        context.minimum_version = context.maximum_version = version
        with socket.create_connection((host, int(port))) as bare:
            try:
                with context.wrap_socket(bare, server_hostname=host) as secure:
                    print(secure.version())
            except OSError:
                print("refused")
"""


@pytest.mark.parametrize(
    ("how", "spoken"),
    [
        ("alone", ["refused", "TLSv1.3"]),
        pytest.param("not", ["TLSv1.2", "TLSv1.3"], marks=pytest.mark.release),  # the one above
    ],
)
def test_a_program_may_leave_tls_1_2_out(
    tmp_path: Path, authority: Authority, how: str, spoken: list[str]
) -> None:
    words = [str(tmp_path / "data"), authority.folder, how]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == spoken
