"""A cluster with a catalog to measure: nodes are processes on loopback, each with its folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from clusters.group import Load
from clusters.processes import Child, Children
from lowmark.errors import invariant

DEADLINE_S = 300.0
MODULE = "benchmarks.catalog_node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What a node says when it is up."""

    address: str
    version: int
    """The latest version of its catalog."""
    versions: int
    """How many of them it keeps."""
    tables: int
    opened_s: float
    """Until its log was open."""
    up_s: float
    """Until its metastore answered and its catalog was there."""


class CatalogCluster:
    """Node 1 founds it and the others join, inside the `with`; gone after it.

    A single node comes back to its folder, if it was there before.
    """

    def __init__(
        self, folder: Path, nodes: int = 1, *, metastore: dict[str, Any] | None = None
    ) -> None:
        self._folder = folder
        self._metastore = metastore or {}
        self._children = Children(folder)
        self._numbers = range(1, nodes + 1)
        self.nodes: dict[int, Child] = {}
        self.started: dict[int, Started] = {}

    def __enter__(self) -> Self:
        try:
            founder, *others = self._numbers
            self._start(founder)
            self._hear(founder)
            for number in others:
                self._start(number)
            for number in others:
                self._hear(number)
            self._eventually(
                lambda: self.ask(1, do="where")["voters"] == list(self._numbers),
                "all nodes vote in the metastore",
            )
        except BaseException:
            self._children.kill_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._children.kill_all()

    def _start(self, number: int) -> None:
        folder = self._folder / f"node-{number}"
        invariant(len(self._numbers) == 1 or not folder.exists(), "only a single node comes back")
        folder.mkdir(exist_ok=True)
        settings = {
            "join": self.started[1].address if number > 1 else "",
            "members": len(self._numbers),
            "metastore": self._metastore,
            "group": {},
            "log": {},
        }
        self.nodes[number] = self._children.start(
            MODULE,
            str(number),
            str(folder),
            msgspec.json.encode(settings).decode(),
            name=f"node-{number}",
        )

    def _hear(self, number: int) -> None:
        said = self.nodes[number].receive(dict[str, Any], deadline_s=DEADLINE_S)
        self.started[number] = Started(**said)

    def finish(self) -> None:
        """Stop all nodes in good order; their folders stay."""
        for child in self.nodes.values():
            child.finish(deadline_s=DEADLINE_S)
        self.nodes.clear()

    def ask(self, number: int, **order: Any) -> dict[str, Any]:
        """Give a node an order and wait for its answer."""
        return self.nodes[number].ask(order, dict[str, Any], deadline_s=DEADLINE_S)

    def run(self, number: int, **order: Any) -> Load:
        """Have a node do something many times."""
        return Load(**self.ask(number, **order))

    def leader(self) -> int:
        """Who leads, once somebody does."""
        found: list[int] = []

        def led() -> bool:
            found[:] = [n for n in self.nodes if self.ask(n, do="where")["leads"]]
            return bool(found)

        self._eventually(led, "the metastore has a leader")
        return found[0]

    def _eventually(self, condition: Callable[[], bool], what: str) -> None:
        ends_at = time.monotonic() + DEADLINE_S
        while not condition():
            invariant(time.monotonic() < ends_at, f"{what}: not in time")
            time.sleep(0.005)
