"""Nodes that listen where other machines could reach them, in a network that only the test sees."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters.own_network import OwnNetwork
from clusters.served import ServedNodes
from eventually import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("addresses")]
NAMES = {"db1.example": "10.7.0.1", "db2.example": "fd00:7::1", "db3.example": "10.7.0.3"}
STARTS = {
    "n1": ["--listen", "0.0.0.0:6570", "--advertise", "db1.example:6570"],
    "n2": ["--listen", "[::]:6580", "--advertise", "db2.example:6580", "--peers", "[::]:7000"],
    "n3": ["--listen", "db3.example:6590"],
}


@pytest.fixture
def network(tmp_path: Path) -> Iterator[OwnNetwork]:
    with OwnNetwork(tmp_path) as network:
        network.name(NAMES)
        yield network


@pytest.fixture
def nodes(network: OwnNetwork, tmp_path: Path) -> Iterator[ServedNodes]:
    with ServedNodes(tmp_path, inside=network.words) as nodes:
        yield nodes


def test_a_node_that_listens_everywhere_is_found_by_the_name_that_it_advertises(
    network: OwnNetwork, nodes: ServedNodes
) -> None:
    # given a node that listens at all addresses, and its name
    nodes.start("n1", *STARTS["n1"], "--insecure")
    # when a command asks it, first at a place where no node is
    ran = network.run("status", "--node", "db9.example:1,db1.example:6570", "--json")
    # then it is told the name, and says that strangers can come in
    status = json.loads(ran.stdout)
    [node] = status["nodes"]
    assert (node["door"], node["address"]) == ("db1.example:6570", "db1.example:6571")
    assert status["insecure"] == ["n1"]
    warning = "is insecure: other machines can reach db1.example:6570 and db1.example:6571"
    assert ran.stderr.startswith(f"warning: the node that answers {warning}")
    assert nodes.said("n1").read_text().startswith(f"warning: this node {warning}")


@pytest.mark.release  # the one before is the same of one node
def test_nodes_are_found_where_they_advertise_and_say_that_they_are_insecure(
    network: OwnNetwork, nodes: ServedNodes, tmp_path: Path
) -> None:
    run = network.run
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
        assert warning.startswith("warning: the node that answers is insecure"), ran.stderr
        assert "db2.example:6580" in warning
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
    words = network.words([sys.executable, "-c", program, "db1.example:6570"])
    members, locations, rows = json.loads(subprocess.check_output(words))
    assert members == sorted(facts["advertise"] for facts in said.values())
    assert {one.removeprefix("grpc+tcp://") for one in locations} <= {*members}
    assert rows == 1
    # and a process that opens a node's directory finds the node at a loopback address
    ran = run("read", "t", "--data", said["n1"]["data"], "--json")
    assert "other machines can reach db1.example:6570" in ran.stderr
    assert json.loads(ran.stdout)["id"] == 1


APPENDS = """
import sys, lowmark
with lowmark.connect(sys.argv[1], timeout_s=60) as db:
    for number, line in enumerate(sys.stdin):
        db["t"].append([{"id": number}])
        print(number, flush=True)
"""


@pytest.mark.release
def test_a_client_finds_a_node_whose_name_means_another_address_now(
    network: OwnNetwork, nodes: ServedNodes
) -> None:
    # given a node that listens at what its name means, and a client that knows the name
    words = [*STARTS["n3"], "--insecure"]
    nodes.start("n3", *words)
    network.run("table", "create", "t", "--columns", "id int64", "--node", "db3.example:6590")
    with subprocess.Popen(
        network.words([sys.executable, "-c", APPENDS, "db3.example:6590"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.stdout.readline() == "0\n"
        # when the machine gets another address, and the name means that
        nodes.stop("n3")
        network.name(NAMES | {"db3.example": "10.7.0.2"})
        assert nodes.start("n3", *words)["listen"] == "10.7.0.2:6590"
        # then the client goes on there
        client.stdin.write("\n")
        client.stdin.close()
        assert client.stdout.readline() == "1\n"
    assert client.returncode == 0


@pytest.mark.release
def test_nodes_find_a_node_whose_name_means_another_address_now(
    network: OwnNetwork, nodes: ServedNodes
) -> None:
    nodes.start("n1", *STARTS["n1"], "--insecure")
    words = [*STARTS["n3"], "--insecure", "--join", "db1.example:6570"]
    nodes.start("n3", *words)
    # when the machine of one of two gets another address, and its name means that
    nodes.stop("n3")
    network.name(NAMES | {"db3.example": "10.7.0.2"})
    nodes.start("n3", *words)

    # then the other one reaches it there by the same name
    def settled() -> bool:
        ran = network.run("status", "--node", "db1.example:6570", "--json", ok=False)
        found = json.loads(ran.stdout or '{"nodes": []}')["nodes"]
        return [one["up"] and not one["problem"] for one in found] == [True, True]

    eventually(settled, deadline_s=60)
    network.run("meta", "get", "cluster", "--node", "db3.example:6590")
