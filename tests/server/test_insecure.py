"""A server that strangers could reach is refused, or says so to all who ask it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import flight
from typer.testing import CliRunner

import lowmark
from lowmark.cli.app import app
from lowmark.node import NodeClient, NotAdvertised, NotLoopback
from lowmark.server import Server
from server.world import COLUMNS, Served

ELSEWHERE = "db1.invalid:0"
"""It listens at a loopback address, and says that others come by another one."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "db") as served:
        orders = served.db.create_table("orders", COLUMNS, key="id", partitions=1)
        orders.append([{"id": 1, "status": "new"}])
        yield served


def test_a_server_that_strangers_could_reach_is_refused(served: Served) -> None:
    for address, advertise in (("10.0.0.7:0", ""), ("0.0.0.0:0", ""), ("127.0.0.1:0", ELSEWHERE)):
        with pytest.raises(NotLoopback, match="no TLS and no tokens"):
            Server(served.db, address, advertise=advertise)
    with pytest.raises(NotAdvertised):
        Server(served.db, "[::]:0", insecure=True)
    # and one that nobody else reaches is not insecure, whatever it is told
    with Server(served.db, "127.0.0.1:0", insecure=True) as server:
        assert backend_of(server.address) == ()


def backend_of(address: str) -> tuple[str, ...]:
    with lowmark.connect(address) as db:
        return db.backend.open_at


def test_an_insecure_server_says_so(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    # given a server that its user has allowed to be reached by others
    with (
        caplog.at_level(logging.WARNING),
        Server(served.db, "127.0.0.1:0", advertise=ELSEWHERE, insecure=True) as server,
    ):
        advertised, port = server.address, server.address.rpartition(":")[2]
        listens_at = f"127.0.0.1:{port}"
        assert advertised == f"db1.invalid:{port}"
        # then it warns when it starts
        assert f"insecure: other machines can reach {advertised}" in caplog.text
        # and clients know it, also by the other server of the same process
        assert backend_of(listens_at) == backend_of(served.address) == (advertised,)
        # and the status names its node
        with NodeClient(listens_at) as client:
            status = client.status()
            assert client.guard().open_at == (advertised,)
        assert status.insecure == (status.nodes[0].name,)
        assert [one.text for one in status.warnings if one.kind == "insecure"]
        # and a plain client is sent where it says
        plain = flight.FlightClient(f"grpc://{listens_at}")
        [part] = plain.get_flight_info(flight.FlightDescriptor.for_path("orders")).endpoints
        assert [one.uri.decode() for one in part.locations] == [f"grpc+tcp://{advertised}"]
        plain.close()
        # and commands say so first, and not on stdout
        for words in (["read", "orders"], ["status"], ["meta", "get", "cluster"]):
            ran = CliRunner().invoke(app, [*words, "--node", listens_at, "--json"])
            assert ran.exit_code == 0, ran.output
            assert ran.stderr.startswith("warning: the node that answers is insecure: ")
            json.loads(ran.stdout)
    # and when it is closed, that is over
    assert backend_of(served.address) == ()
    ran = CliRunner().invoke(app, ["status", "--node", served.address, "--json"])
    assert ran.stderr == ""
    assert json.loads(ran.stdout)["insecure"] == []
