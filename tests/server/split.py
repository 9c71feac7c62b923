"""A partition that was reset on one node while its majority is alive: two groups, two truths.

Four nodes of this process, as real as they get, that all reach each other: so nothing but lineages
keeps a caller from the group that was left behind. One of the nodes has no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeVar

from eventually import eventually
from lowmark.backend.protocol import Request, decode_reply, encode_request
from lowmark.backend.remote import RemoteBackend
from lowmark.backend.spread import Spread
from lowmark.backend.values import NOBODY
from lowmark.catalog import AlterZone, TableId
from lowmark.client import Database, Table
from lowmark.errors import LowmarkError
from lowmark.ids import group_name
from lowmark.placement.assignments import PartitionId
from lowmark.server.endpoint import Endpoint
from lowmark.server.on_node import attach
from lowmark.table import Fence, Partition
from node.running import Running

T = TypeVar("T")
NODES = 4
PRODUCER = b"p" * 16
COMMON, ONLY_LEFT, ONLY_RESET = range(5), range(100, 107), range(200, 203)
"""The keys of rows: of both, of what was left behind, and of what was reset."""


class Serving(Running):
    """A node that gives rows to clients."""

    def __init__(self, data: Path, **more: Any) -> None:
        super().__init__(data, **more)
        self.data = str(data)

    def _run(self) -> None:
        try:
            self.node.run(self._attach)
        except BaseException as failure:
            self.failure = failure
            self._ready.set()

    def _attach(self) -> None:
        attach(self.node, self.data)
        self._ready.set()

    @property
    def endpoint_of_data(self) -> Endpoint:
        eventually(lambda: self.node.server.data is not None)
        endpoint = self.node.server.data
        assert isinstance(endpoint, Endpoint)
        return endpoint

    @property
    def backend(self) -> Spread:
        backend = self.endpoint_of_data._backend
        assert isinstance(backend, Spread)
        return backend

    def ask(self, function: Callable[[], T]) -> T:
        return self.node.bridge.ask_now(function, timeout_s=30.0)

    def request(
        self,
        call: str,
        *arguments: Any,
        lineages: Mapping[str, int] | None,
        by_node: bool = False,
        **named: Any,
    ) -> tuple[Any, Mapping[str, int] | None]:
        """What this node answers to a client that has seen these lineages, and those of that."""
        session = -7 if by_node else 7
        cluster = self.backend.info.cluster
        asked = Request(cluster, session, call, arguments, named, lineages)
        try:
            reply = decode_reply(self.endpoint_of_data.act("call", encode_request(asked)))
        except LowmarkError as error:
            return error, None
        finally:
            self.backend.asked_by(NOBODY)  # a server's threads ask nothing else
        return reply.value, reply.lineages


class Split:
    """See above. `left` are the nodes that were left behind."""

    def __init__(self, path: Path) -> None:
        self.numbers = count()
        self.proposed = ""
        self._ends = ExitStack()
        self.nodes: list[Serving] = []
        try:
            for number in range(NODES):
                join = self.nodes[0].endpoint if self.nodes else ""
                node = Serving(path / f"n{number}", name=f"n{number}", join=join)
                self.nodes.append(self._ends.enter_context(node))
            first = self.nodes[0]
            eventually(lambda: len(first.client().status().nodes) == NODES)
            first.backend.execute([AlterZone(name="default", replicas=3)])
            self.db = Database(first.backend)
            columns = {"id": "int64"}
            self.table: Table = self.db.create_table("orders", columns, key="id", partitions=1)
            self.id: TableId = self.table.descriptor.id
            self.group = group_name(self.id, 0)
            eventually(self._is_placed)
        except BaseException:
            self._ends.close()
            raise

    def _is_placed(self) -> bool:
        copies = [node.ask(partial(self._copy, node)) for node in self.nodes]
        members = [one.group.members().voters for one in copies if one is not None]
        return len(members) == 3 and all(len(one) == 3 for one in members)

    def _copy(self, node: Serving) -> Partition | None:
        assert node.node.tables is not None
        return node.node.tables.here(self.id, 0)

    def copy(self, node: Serving) -> Partition:
        found = node.ask(lambda: self._copy(node))
        assert found is not None
        return found

    def reset(self) -> None:
        """As an operator does who is wrong: one copy goes on alone, while the others are alive."""
        holders = [node for node in self.nodes if node.ask(partial(self._copy, node)) is not None]
        (self.without,) = [node for node in self.nodes if node not in holders]
        self.alone = next(one for one in holders if not self.copy(one).group.leads)
        self.holders = holders
        self.left = [node for node in holders if node is not self.alone]
        placement, tables = self.alone.node.placement, self.alone.node.tables
        assert placement is not None
        assert tables is not None
        partition = PartitionId(self.id, 0)
        # Else it would add the others as members again, and their copies would be made anew.
        self.alone.ask(placement.moves.close)
        self.alone.ask(
            lambda: tables.reset(*partition, listener=placement.moves.listener(partition))
        )
        eventually(lambda: self.copy(self.alone).group.ready)
        self.lineage = self.copy(self.alone).lineage
        assert self.lineage
        self.seen = {self.group: self.lineage}

    def part(self) -> None:
        """Give each side rows, a producer and a cursor that the other one has not."""
        for node, name, keys, epoch in (
            (self.left[0], "left", ONLY_LEFT, 5),
            (self.alone, "reset", ONLY_RESET, 0),
        ):
            table = Database(node.backend)["orders"]
            table.append([{"id": key} for key in keys])
            table.cursors.create(name)
            if epoch:
                node.backend.propose(self.id, {0: Fence(PRODUCER, epoch)})

        views = [node.backend.view(self.id, 0) for node in (self.left[0], self.alone)]
        self.marks = [int(view.time[view.batch_at(len(COMMON))]) for view in views]
        """The times of the first batches that one side has, and the other has not."""

    def forget(self) -> None:
        """As if no node had heard of the reset; the copy that was reset knows what it is."""
        for node in self.nodes:
            node.backend.lineages._known = {}

    def connect(self, node: Serving, **more: Any) -> RemoteBackend:
        backend = RemoteBackend(node.endpoint, **more)
        self._ends.callback(backend.close)
        return backend

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:  # all at once
            node.node.stop()
        self._ends.close()
