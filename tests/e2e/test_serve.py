"""Three `lowmark serve` processes on loopback: join, kill -9, come back, stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from lowmark.errors import LowmarkError
from lowmark.group import OutcomeUnknown
from lowmark.inspect import open_offline
from lowmark.node import NodeClient, Status, WatchEvent

pytestmark = pytest.mark.slow

ENVIRONMENT = {
    "LOWMARK_GROUP_TICK_MS": "30",
    "LOWMARK_METASTORE_LEASE_MS": "1500",
    "LOWMARK_METASTORE_REQUEST_TIMEOUT_MS": "5000",
}


class Served:
    """One process, and where it listens."""

    def __init__(
        self,
        data: Path,
        *more: str,
        name: str,
        join: str = "",
        listen: str = "127.0.0.1:0",
    ) -> None:
        self.data = data
        self.name = name
        words = ["serve", "--data", str(data), "--name", name, "--listen", listen, "--json", *more]
        self._said = data.parent / f"{name}.stderr"
        with self._said.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lowmark", *words, *(["--join", join] if join else [])],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
            )
        self.ready: dict[str, Any] = {}

    def wait(self) -> Served:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._said.read_text()
        self.ready = json.loads(line)
        return self

    @property
    def endpoint(self) -> str:
        return str(self.ready["listen"])

    def client(self) -> NodeClient:
        return NodeClient(self.endpoint)

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        code = self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    @property
    def alive(self) -> bool:
        return self._process.poll() is None


class Three:
    """The processes of one test, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, Served] = {}

    def start(self, name: str, *, join: str = "", listen: str = "127.0.0.1:0") -> Served:
        served = Served(self.folder / name, name=name, join=join, listen=listen)
        self.nodes[name] = served
        return served

    def kill_all(self) -> None:
        for served in self.nodes.values():
            if served.alive:
                served.end(signal.SIGKILL)

    def status(self, name: str) -> Status:
        with self.nodes[name].client() as client:
            return client.status()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    three = Three(tmp_path)
    try:
        first = three.start("n1").wait()
        others = [three.start(name, join=first.endpoint) for name in ("n2", "n3")]
        for other in others:
            other.wait()
        eventually(lambda: settled(three.status("n1")))
        yield three
    finally:
        three.kill_all()


def settled(status: Status) -> bool:
    """Whether three nodes are up and vote, and one of them leads."""
    roles = sorted(node.role for node in status.nodes if node.up)
    [group] = status.groups
    return roles == ["coordinator", "voter", "voter"] and len(group.voters) == 3


def leader(three: Three, by: str) -> str:
    found = ""

    def leads() -> bool:
        nonlocal found
        [group] = three.status(by).groups
        found = group.leader_name
        return bool(found) and three.nodes[found].alive

    eventually(leads)
    return found


def put(client: NodeClient, key: bytes, value: bytes) -> int:
    """Write until it is certain; a put of the same value twice does no harm."""
    while True:
        try:
            return client.put(key, value).revision
        except OutcomeUnknown:
            continue


class Watching:
    """A watch on a thread of its own, which goes on at another node when its own is gone."""

    def __init__(self, endpoints: list[str], *, from_revision: int) -> None:
        self.revisions: list[int] = []
        self.ends: list[LowmarkError] = []
        self._next = from_revision
        self._doors = endpoints
        self._until = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for endpoint in self._doors:
            with NodeClient(endpoint) as client:
                try:
                    for told in client.watch(b"k", from_revision=self._next):
                        if isinstance(told, WatchEvent):
                            if told.changes[0].key == b"k.end":
                                return
                            self.revisions.append(told.revision)
                            self._next = told.revision + 1
                except LowmarkError as error:
                    self.ends.append(error)

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def command(*words: str) -> Any:
    ran = subprocess.run(
        [sys.executable, "-m", "lowmark", *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_cluster_outlives_its_leader_and_takes_it_back(three: Three) -> None:
    # given three nodes, and what was written
    shown = command("status", "--node", three.nodes["n3"].endpoint)
    assert sorted((node["name"], node["up"]) for node in shown["nodes"]) == [
        ("n1", True),
        ("n2", True),
        ("n3", True),
    ]
    assert [node["role"] for node in shown["nodes"]].count("coordinator") == 1
    killed = leader(three, "n1")
    survivor, other = [name for name in three.nodes if name != killed]
    with three.nodes[survivor].client() as client:
        written = [put(client, b"k.%d" % number, b"before") for number in range(20)]
        endpoints = [three.nodes[name].endpoint for name in (killed, survivor)]
        watching = [
            Watching(endpoints, from_revision=written[0]),  # loses its node, and goes on elsewhere
            Watching(endpoints[1:], from_revision=written[0]),
        ]
        eventually(lambda: all(len(each.revisions) >= 20 for each in watching))
        # when the leader is killed
        three.nodes[killed].end(signal.SIGKILL)
        # then writes go on through another
        written += [put(client, b"k.%d" % number, b"after") for number in range(20)]
        assert leader(three, survivor) != killed
        eventually(lambda: [n.up for n in client.status().nodes].count(False) == 1)
        # and the killed one comes back by itself, at another address, and catches up
        back = three.start(killed).wait()
        eventually(lambda: settled(client.status()))
        with back.client() as again:
            assert [e.value for p in again.range(b"k.") for e in p.entries] == [b"after"] * 20
            written.append(put(again, b"k.0", b"by the one that was killed"))
            [group] = again.status().groups
            behind = {member.name: member.entries_behind for member in group.members}
            assert behind.keys() == {"n1", "n2", "n3"}
        put(client, b"k.end", b"")
        # and every watch was told each revision once, in order
        for each in watching:
            each.join()
            assert each.revisions == sorted(set(each.revisions))
            assert set(written) <= set(each.revisions)
        assert len(watching[0].ends) == 1
        assert watching[1].ends == []
    assert other in three.nodes


def test_a_node_that_is_asked_to_stop_leaves_in_good_order(three: Three) -> None:
    # given the leader of three
    stopped = leader(three, "n1")
    survivor = next(name for name in three.nodes if name != stopped)
    with three.nodes[stopped].client() as client:
        revision = put(client, b"k", b"v")
    # when it gets SIGTERM
    assert three.nodes[stopped].end(signal.SIGTERM) == 0
    # then its directory is free, and says what it knew
    with open_offline(str(three.nodes[stopped].data)) as store:
        entry = store.get(b"k").entry
        assert entry is not None
        assert entry.revision == revision
    # and the others go on at once, and soon know that it is gone
    with three.nodes[survivor].client() as client:
        assert put(client, b"k", b"w") > revision
        eventually(lambda: [n.name for n in client.status().nodes if not n.up] == [stopped])
    # and Ctrl-C is as good as SIGTERM
    assert three.nodes[survivor].end(signal.SIGINT) == 0


def test_who_watches_can_be_interrupted_and_who_reads_nothing_stops_nobody(tmp_path: Path) -> None:
    three = Three(tmp_path)
    try:
        served = three.start("n1").wait()
        # given a watch to which nothing happens
        with subprocess.Popen(
            [sys.executable, "-m", "lowmark", "meta", "watch", "--json", "--node", served.endpoint],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as watching:
            assert watching.stdout is not None
            assert b"from_revision" in watching.stdout.readline()
            # when somebody presses Ctrl-C, then it ends
            watching.send_signal(signal.SIGINT)
            assert watching.wait(30) == 130
        # given a client that does not read what it asked for
        with served.client() as client, served.client() as silent:
            watch = silent.watch(b"", from_revision=1)
            next(watch)
            for _ in range(40):
                client.put(b"k", bytes(500_000))
            # when the node is asked to stop, then it stops
            assert served.end(signal.SIGTERM) == 0
    finally:
        three.kill_all()


def test_a_node_keeps_its_rack_over_restarts_until_it_is_given_another(tmp_path: Path) -> None:
    def knows(rack: str, attributes: dict[str, str], *words: str) -> None:
        """A node that is started like this says this of itself."""
        served = Served(tmp_path / "n1", *words, name="n1").wait()
        try:
            with served.client() as client:

                def known() -> bool:
                    entry = client.get(f"node.{served.ready['number']}".encode()).entry
                    assert entry is not None
                    said = json.loads(entry.value or b"")
                    return bool(said.get("rack", "") == rack) and (
                        said.get("attributes", {}) == attributes
                    )

                eventually(known)
        finally:
            assert served.end(signal.SIGTERM) == 0

    knows("r1", {"disk": "ssd"}, "--rack", "r1", "--attribute", "disk=ssd")
    knows("r1", {"disk": "ssd"})
    knows("r2", {"disk": "ssd"}, "--rack", "r2")
    knows("r2", {"disk": "ssd"})
    knows("", {}, "--rack", "", "--attribute", "")
