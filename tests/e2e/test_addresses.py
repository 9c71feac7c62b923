"""Nodes that listen where other machines could reach them, in a network that only the test sees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusters.own_network import OwnNetwork

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("addresses")]
ENVIRONMENT = {"LOWMARK_GROUP_TICK_MS": "30", "LOWMARK_METASTORE_LEASE_MS": "1500"}
NAMES = {"db1.example": "10.7.0.1", "db2.example": "fd00:7::1", "db3.example": "10.7.0.3"}
STARTS = {
    "n1": ["--listen", "0.0.0.0:6570", "--advertise", "db1.example:6570"],
    "n2": ["--listen", "[::]:6580", "--advertise", "db2.example:6580", "--peers", "[::]:7000"],
    "n3": ["--listen", "db3.example:6590"],
}


class Nodes:
    """Nodes of one network, by name."""

    def __init__(self, network: OwnNetwork, folder: Path) -> None:
        self.network = network
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, *words: str) -> dict[str, Any]:
        """What it says when it is ready."""
        given = ["serve", "--data", str(self._folder / name), "--name", name, "--json", *words]
        with self.said(name).open("ab") as stderr:
            process = self._processes[name] = subprocess.Popen(
                self.network.words([sys.executable, "-m", "lowmark", *given]),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=os.environ | ENVIRONMENT,
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, self.said(name).read_text()
        facts: dict[str, Any] = json.loads(line)
        return facts

    def said(self, name: str) -> Path:
        return self._folder / f"{name}.stderr"

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self._processes.pop(name)
        process.send_signal(number)
        process.communicate()

    def end(self) -> None:
        for name in list(self._processes):
            self.stop(name, signal.SIGKILL)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with OwnNetwork(tmp_path) as network:
        network.name(NAMES)
        nodes = Nodes(network, tmp_path)
        try:
            yield nodes
        finally:
            nodes.end()


def test_nodes_are_found_where_they_advertise_and_say_that_they_are_insecure(
    nodes: Nodes, tmp_path: Path
) -> None:
    run = nodes.network.run
    # given three nodes: all addresses of IPv4, all of both kinds, and what a name means
    said = {"n1": nodes.start("n1", *STARTS["n1"], "--insecure")}
    join = ["--insecure", "--join", "db9.example:1,db1.example:6570"]  # the first is nowhere
    said |= {name: nodes.start(name, *STARTS[name], *join) for name in ("n2", "n3")}
    addresses = ["listen", "advertise", "peers", "advertise_peers", "insecure"]
    assert {name: [facts[one] for one in addresses] for name, facts in said.items()} == {
        "n1": ["0.0.0.0:6570", "db1.example:6570", "0.0.0.0:6571", "db1.example:6571", True],
        "n2": ["[::]:6580", "db2.example:6580", "[::]:7000", "db2.example:7000", True],
        "n3": ["10.7.0.3:6590", "db3.example:6590", "10.7.0.3:6591", "db3.example:6591", True],
    }
    # then each says at its start what that means
    for name in STARTS:
        first, *_ = nodes.said(name).read_text().splitlines()
        assert first.startswith("warning: this node is insecure: other machines can reach db")
    # and so does every command, before anything else, and not on stdout
    (rows_file := tmp_path / "rows.jsonl").write_text('{"id": 1}\n')
    several = "db9.example:1,db2.example:6580"
    for words in (
        ["table", "create", "t", "--columns", "id int64", "--partitions", "3"],
        ["append", "t", str(rows_file)],
        ["read", "t"],
        ["status"],
        ["meta", "get", "cluster"],
    ):
        ran = run(*words, "--node", several, "--json", ok=False)
        warning, *rest = ran.stderr.splitlines()
        assert warning.startswith("warning: the node at db2.example:6580 is insecure"), ran.stderr
        assert ran.returncode == 0, rest
        json.loads(ran.stdout)
    # and the status, of all of them
    shown = json.loads(run("status", "--node", "db3.example:6590", "--json").stdout)
    assert sorted(shown["insecure"]) == ["n1", "n2", "n3"]
    assert [one["kind"] for one in shown["warnings"]].count("insecure") == 3
    text = run("status", "--node", "db3.example:6590").stdout
    assert "node n2 is insecure: other machines can reach db2.example:6580" in text
    # and all are sent to names: by the metastore, and so by all that asks it
    known = {one["name"]: (one["door"], one["address"]) for one in shown["nodes"]}
    assert known == {
        name: (facts["advertise"], facts["advertise_peers"]) for name, facts in said.items()
    }
    # and clients, ours and others
    program = """
import json, sys, lowmark
from pyarrow import flight
with lowmark.connect(sys.argv[1]) as db:
    members = sorted(db.backend._connection.welcome.members)
client = flight.FlightClient("grpc://" + sys.argv[1])
info = client.get_flight_info(flight.FlightDescriptor.for_path("t"))
found = sorted({one.uri.decode() for part in info.endpoints for one in part.locations})
rows = sum(
    flight.FlightClient(part.locations[0]).do_get(part.ticket).read_all().num_rows
    for part in info.endpoints
)
print(json.dumps([members, found, rows]))
"""
    words = nodes.network.words([sys.executable, "-c", program, "db1.example:6570"])
    members, locations, rows = json.loads(subprocess.check_output(words))
    assert members == sorted(facts["advertise"] for facts in said.values())
    assert {one.removeprefix("grpc+tcp://") for one in locations} <= {*members}
    assert rows == 1
    # and a process that opens a node's directory finds the node at a loopback address
    ran = run("read", "t", "--data", said["n1"]["data"], "--json")
    assert "warning: the node at 127.0.0.1:6570 is insecure" in ran.stderr
    assert json.loads(ran.stdout)["id"] == 1
