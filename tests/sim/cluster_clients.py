"""Clients of a simulated cluster: they put, cas, delete and read, and note what they are told.

A client asks whom it takes for the leader, follows hints, and goes on after an answer or when the
process that it asked dies. Every value is unique, so a read tells which write it saw.
"""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

from group.kv import Row, cas, delete, digest, put
from lowmark.group import Future, NotLeader, OutcomeUnknown, Superseded
from sim.cluster_ledger import confirm
from sim.cluster_world import ClusterNode, ClusterWorld
from sim.history import Cas, Get, History, Put

__all__ = ["Clients"]

THINK_MS_MAX = 50
LARGE_SHARE = 0.06


class Clients:
    """Some clients, and the history that they write."""

    def __init__(self, world: ClusterWorld, dice: Random, *, count: int, keys: int) -> None:
        self.world = world
        self.history = History()
        self.dice = dice
        self.keys = [f"k{number}" for number in range(keys)]
        self.open = True
        self._values = 0
        self._name_of: dict[bytes, str] = {}
        self._believed: dict[tuple[str, str], int] = {}
        self._last_seen: dict[str, str | None] = {}
        for number in range(count):
            self._think(f"c{number}")

    # -- one client after another ---------------------------------------------------------------

    def _think(self, client: str) -> None:
        delay = self.dice.randint(1, THINK_MS_MAX)
        self.world.loop.call_later(delay, lambda: self._act(client))

    def _act(self, client: str) -> None:
        if not self.open:
            return
        name = self.dice.choice(self.world.shape.groups)
        if self.dice.random() < 0.35:
            node = self._some_node(name)
            if node is None:
                self._think(client)
            else:
                self.read(node, name, self.dice.choice(self.keys), client=client)
            return
        leader = self._believed.get((client, name))
        node = self.world.nodes.get(leader or 0) or self._some_node(name)
        if node is None or node.serves(name) is None:
            self._believed.pop((client, name), None)
            self._think(client)
            return
        self.write(node, name, self.dice.choice(self.keys), client=client)

    def _some_node(self, name: str) -> ClusterNode | None:
        serving = [n for n in self.world.nodes.values() if n.serves(name) is not None]
        return self.dice.choice(serving) if serving else None

    # -- operations -----------------------------------------------------------------------------

    def value(self) -> tuple[str, bytes]:
        """A value that nobody has used; what it is called, and its bytes."""
        self._values += 1
        name = f"v{self._values}"
        large = self.dice.random() < LARGE_SHARE
        data = name.encode().ljust(self.dice.randint(520, 900) if large else 24, b".")
        self._name_of[digest(data)] = name
        return name, data

    def write(self, node: ClusterNode, group: str, key: str, *, client: str) -> None:
        """Put, cas or delete; a client without a name goes on to nothing."""
        name, data = self.value()
        place, chance = f"{group}/{key}", self.dice.random()
        command: Hashable
        if chance < 0.1:
            command, sent = Put(None), delete(key)
        elif chance < 0.35:
            expected = self._last_seen.get(place)
            old = next((d for d, n in self._name_of.items() if n == expected), None)
            command, sent = Cas(expected, name), cas(key, old, data)
        else:
            command, sent = Put(name), put(key, data)
        found = node.serves(group)
        assert found is not None
        is_cas = isinstance(command, Cas)
        number = self._start(client, place, command)
        node.ask(
            found.propose(sent),
            lambda future: self._wrote(
                future, number, client=client, group=group, node=node, is_cas=is_cas
            ),
        )

    def read(self, node: ClusterNode, group: str, key: str, *, client: str) -> None:
        """Read, at any member."""
        found = node.serves(group)
        assert found is not None
        place = f"{group}/{key}"
        number = self._start(client, place, Get())
        node.ask(found.read(key), lambda future: self._read(future, number, client, place))

    def _start(self, client: str, place: str, command: Hashable) -> int:
        now_us = self.world.loop.elapsed_us()
        return self.history.start(client or "burst", place, command, at_us=now_us)

    def _wrote(
        self,
        future: Future[object],
        number: int,
        *,
        client: str,
        group: str,
        node: ClusterNode,
        is_cas: bool,
    ) -> None:
        error = future.error
        if not future.done:
            self.history.unknown(number, "its node died")
            self._believed.pop((client, group), None)
        elif error is None:
            result = future.result() if is_cas else None
            confirm(result in {None, True, False}, f"a cas came to {result}")
            self._believed[client, group] = node.number
            self.history.returned(
                number,
                result if isinstance(result, bool) else None,
                at_us=self.world.loop.elapsed_us(),
            )
        elif isinstance(error, OutcomeUnknown):
            self.history.unknown(number, type(error).__name__)
            self._believed.pop((client, group), None)
        else:
            self.history.refused(number)
            leader = error.leader if isinstance(error, NotLeader | Superseded) else None
            if leader is None:
                self._believed.pop((client, group), None)
            else:
                self._believed[client, group] = leader
        if client:
            self._think(client)

    def _read(self, future: Future[object], number: int, client: str, place: str) -> None:
        if not future.done or future.error is not None:
            self.history.refused(number)  # a read that nobody answered changes nothing
        else:
            row = future.result()
            assert row is None or isinstance(row, Row)
            value = None if row is None else self._name_of[row.digest]
            self._last_seen[place] = value
            self.history.returned(number, value, at_us=self.world.loop.elapsed_us())
        if client:
            self._think(client)
