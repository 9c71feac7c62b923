"""Three nodes as people run them: processes of `lowmark serve` on this machine.

They are on loopback, or each is in a host of its own.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from clusters.places import Place, places, world
from clusters.processes import Child, Children, own_path
from lowmark.authority import Authority
from lowmark.errors import LowmarkError, invariant
from lowmark.node import NodeClient, Status
from lowmark.node.messages import GroupRow
from lowmark.runtime import host_and_port
from lowmark.runtime.network import TLS_SCHEME

DEADLINE_S = 300.0
ON_LOOPBACK = "TCP on loopback"
PARTITIONS = 8
"""Of a table."""
TABLES_AT_ONCE = 100
METASTORE = "metastore"
CALM = 0.1
"""Processor time per second below which a node is taken to rest."""
CALM_SECONDS_MAX = 60.0
POLL_PAUSE = 2.0
"""How long to wait between two questions, in times of what the last one took."""


def where() -> str:
    """How nodes and clients reach each other, in words."""
    found = world()
    if found is None:
        return ON_LOOPBACK
    return (
        "TCP between hosts on one machine, network namespaces at a bridge; what leaves a node"
        f" arrives {found.delay_ms:g} ms later"
    )


class ServedCluster:
    """Nodes n1, n2, n3: started inside the `with`, gone after it."""

    def __init__(self, folder: Path, nodes: int = 3, *, tls: bool = False) -> None:
        """`tls`: they speak it with each other, both sides with a certificate, and with clients."""
        self._folder = folder
        self._tls = folder / "tls" if tls else None
        self.ca = f"{self._tls}/ca.pem" if tls else ""
        """Whom clients believe."""
        self._children = Children(folder)
        self._lives: dict[str, int] = {}
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self._places: dict[str, Place] = {}
        self._ends = ExitStack()
        self.nodes: dict[str, Child] = {}
        """Those that are up."""
        self.numbers: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            folders = [self._folder / name for name in self.names]
            # Where no other process is while a node is down, and starts again there.
            shared = [] if self._tls is None else [self._tls]
            for one in shared:
                one.mkdir(mode=0o700)
            found = self._ends.enter_context(places(folders, shared=shared))
            self._places = dict(zip(self.names, found, strict=True))
            self._issue()
            first, *others = self.names
            self.start(first)
            for name in others:
                self.launch(name, join=self.endpoint(first))
            for name in others:
                self.wait_ready(name)
            self.until(self._all_in, "all nodes are in")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._children.kill_all()
        self._ends.close()

    def _issue(self) -> None:
        """A certificate for each node."""
        if self._tls is None:
            return
        authority = Authority.found(str(self._tls))
        for name, place in self._places.items():
            hosts = {host_and_port(one)[0] for one in (place.listen, place.peers)}
            authority.issue(name, sorted(hosts))

    # -- nodes ----------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a node, with the folder and the address that it had, if it had any."""
        self.launch(name)
        self.wait_ready(name)

    def launch(self, name: str, *, join: str = "") -> None:
        """The same, without waiting until it is ready."""
        life = self._lives[name] = self._lives.get(name, 0) + 1
        place = self._places[name]
        words = ["serve", "--data", str(self._folder / name), "--name", name, *place.options]
        words += ["--listen", place.listen, "--peers", place.peers]
        words += [] if self._tls is None else ["--tls", str(self._tls / name)]
        self.nodes[name] = self._children.start(
            "lowmark",
            *words,
            "--json",
            *(["--join", join] if join else []),
            name=f"{name}-{life}",
            env=own_path() | place.environment,
            within=place.command,
        )

    def wait_ready(self, name: str) -> None:
        """Until it says that it is ready."""
        said = self.nodes[name].receive(dict[str, Any], deadline_s=DEADLINE_S)
        self.numbers[name] = said["number"]

    def kill(self, name: str) -> None:
        """With -9."""
        self.nodes.pop(name).kill()

    def stop(self, name: str) -> None:
        """In good order."""
        node = self.nodes[name]
        node.send_signal(signal.SIGTERM)
        self.until(lambda: not node.alive, f"{name} has stopped", of=False)
        self.kill(name)

    def client(self, name: str) -> NodeClient:
        """To ask a node."""
        return NodeClient(self.endpoint(name), ca=self.ca or None)

    def endpoint(self, name: str) -> str:
        """Where clients reach a node."""
        return f"{TLS_SCHEME if self._tls is not None else ''}{self._places[name].listen}"

    def _all_in(self) -> bool:
        status = self.status(self.names[0])
        voters = [row for row in status.nodes if row.up and row.role in {"coordinator", "voter"}]
        return len(voters) == len(self.names)

    def until(self, condition: Callable[[], bool], what: str, *, of: bool = True) -> None:
        """Wait for something; `of`: a node that dies meanwhile is an error."""
        ends_at = time.monotonic() + DEADLINE_S
        while True:
            asked_at = time.monotonic()
            if condition():
                return
            now = time.monotonic()
            invariant(now < ends_at, f"{what}: not in time")
            if of:
                for node in self.nodes.values():
                    node.check()
            # The answer is work for every node, much of it with thousands of partitions: nodes that
            # are asked without a pause would have little time for what is waited for.
            time.sleep(max(0.02, POLL_PAUSE * (now - asked_at)))

    # -- tables ---------------------------------------------------------------------------------

    def status(self, name: str) -> Status:
        """What a node says of the cluster."""
        with self.client(name) as client:
            return client.status()

    def create_groups(self, count: int) -> None:
        """Make tables, each with three replicas, until there are so many partitions."""
        sizes = [PARTITIONS] * (count // PARTITIONS)
        sizes += [count % PARTITIONS] if count % PARTITIONS else []
        commands: list[dict[str, object]] = [
            {
                "create_table": {
                    "name": f"t{number:04d}",
                    "columns": [{"name": "id", "type": "int64", "required": True}],
                    "key": ["id"],
                    "partitions": partitions,
                }
            }
            for number, partitions in enumerate(sizes)
        ]
        with self.client(self.names[0]) as client:
            for at in range(0, len(commands), TABLES_AT_ONCE):
                client.execute(commands[at : at + TABLES_AT_ONCE])

    def fill(self, count: int) -> None:
        """Make so many partitions, and wait until every node has its copies, each of them led."""
        self.create_groups(count)
        for name in self.names:
            self.until(
                lambda name=name: self.has_all(name, count),  # type: ignore[misc]
                f"{name} has its partitions",
            )

    def partitions(self, asked: str) -> list[GroupRow]:
        """All partitions, as a node sees them; none if it can't say yet."""
        try:
            groups = self.status(asked).groups
        except LowmarkError:
            return []
        return [row for row in groups if row.group != METASTORE]

    def has_all(self, name: str, count: int, *, asked: str = "") -> bool:
        """Whether a node has its copies of so many partitions, each of which is led."""
        number = self.numbers[name]
        rows = self.partitions(asked or name)
        here = [
            row
            for row in rows
            if row.leader and any(m.node == number and m.applied is not None for m in row.members)
        ]
        return len(here) >= count

    # -- rest -----------------------------------------------------------------------------------

    def cpu_seconds(self) -> dict[str, float]:
        """The processor time of each node that is up."""
        return {name: node.cpu_seconds() for name, node in self.nodes.items()}

    def shares(self, seconds: float) -> list[float]:
        """Processor time per second of each node, watched for so long; the calmest first."""
        before, began = self.cpu_seconds(), time.perf_counter()
        time.sleep(seconds)
        after, took = self.cpu_seconds(), time.perf_counter() - began
        return sorted((after[name] - before[name]) / took for name in after)

    def calm(self, seconds: float) -> None:
        """Wait until no node works any more, watched for so long at a time; not for ever: a node
        that never rests is a result.
        """
        ends_at = time.monotonic() + CALM_SECONDS_MAX
        while self.shares(seconds)[-1] > CALM and time.monotonic() < ends_at:
            pass
