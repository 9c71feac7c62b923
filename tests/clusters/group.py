"""A cluster of nodes with groups: they are processes on loopback, each with a folder of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from clusters.processes import Child, Children
from lowmark.errors import invariant

DEADLINE_S = 120.0
MODULE = "clusters.group_node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What came of a run of proposals."""

    count: int
    seconds: float
    p50_ms: float
    p99_ms: float


class Cluster:
    """Started inside the `with`, gone after it."""

    def __init__(
        self,
        folder: Path,
        nodes: int,
        *,
        group: dict[str, Any] | None = None,
        log: dict[str, Any] | None = None,
        keep: bool = False,
    ) -> None:
        self._folder = folder
        self._settings = {"group": group or {}, "log": log or {}, "keep": keep}
        self._children = Children(folder)
        self._addresses: dict[int, str] = {}
        self._lives: dict[int, int] = {}
        self.nodes: dict[int, Child] = {}
        self._numbers = range(1, nodes + 1)
        self.answered = 0
        """Who answered first, the last time that several were asked."""

    def __enter__(self) -> Self:
        try:
            for number in self._numbers:
                self.start(number, tell=False)
            for number in self._numbers:
                self._heard(number)
            self._tell_addresses()
        except BaseException:
            self._children.kill_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._children.kill_all()

    def start(self, number: int, *, tell: bool = True) -> None:
        """Start a node, or start it again with the folder it had."""
        life = self._lives[number] = self._lives.get(number, 0) + 1
        folder = self._folder / f"node-{number}"
        folder.mkdir(exist_ok=True)
        settings = msgspec.json.encode(self._settings).decode()
        self.nodes[number] = self._children.start(
            MODULE, str(number), str(folder), settings, name=f"node-{number}-{life}"
        )
        if tell:
            self._heard(number)
            self._tell_addresses()

    def kill(self, number: int) -> float:
        """Kill a node with -9; give the moment."""
        moment = time.perf_counter()
        self.nodes.pop(number).kill()
        return moment

    def _heard(self, number: int) -> None:
        said = self.nodes[number].receive(dict[str, Any], deadline_s=DEADLINE_S)
        self._addresses[number] = said["address"]

    def _tell_addresses(self) -> None:
        addresses = {str(number): address for number, address in self._addresses.items()}
        for number in self.nodes:
            self.ask(number, do="learn", addresses=addresses)

    def ask(self, number: int, **order: Any) -> dict[str, Any]:
        """Give a node an order and wait for its answer."""
        return self.nodes[number].ask(order, dict[str, Any], deadline_s=DEADLINE_S)

    def create(self, *groups: str, members: list[int]) -> None:
        """Found groups."""
        for number in members:
            self.nodes[number].send({"do": "create", "groups": groups, "members": members})
        for number in members:
            self.nodes[number].receive(dict[str, Any], deadline_s=DEADLINE_S)

    def leader(self, group: str) -> int:
        """Who leads, once somebody is ready to."""
        ends_at = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends_at:
            leading = [n for n in self.nodes if group in self.ask(n, do="where")["leads"]]
            if leading:
                return leading[0]
            time.sleep(0.005)
        invariant(False, f"group {group} has no leader")
        return 0

    def propose(
        self, group: str, *, size: int, in_flight: int, count: int, at: int | None = None
    ) -> Load:
        """Let the leader propose to itself."""
        leader = self.leader(group) if at is None else at
        said = self.ask(
            leader, do="propose", group=group, size=size, in_flight=in_flight, count=count
        )
        return Load(**said)

    def cpu_seconds(self) -> dict[int, float]:
        """The processor time of each node so far."""
        return {number: child.cpu_seconds() for number, child in self.nodes.items()}
