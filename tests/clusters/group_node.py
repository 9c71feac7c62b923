"""One node of a cluster with groups: a process of its own that does what its parent says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from pyroaring import BitMap64

from clusters.closed_loop import ClosedLoop
from clusters.node import RETRY_MS, Node, run_node
from lowmark.group import (
    ChangeFailed,
    Future,
    GroupConfig,
    Groups,
    SilentListener,
)
from lowmark.log import Log, LogConfig
from lowmark.runtime import Buffer

PAYLOADS = 16


class CountingMachine:
    """Counts; with `keep`, all its commands stay live, as rows of a table do."""

    newest_version = 1

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._live = BitMap64()
        self._bytes = 0

    def apply(self, index: int, time: int, command: Buffer) -> object:
        """Note that it was there."""
        del time
        self._bytes += len(command)
        if self._keep:
            self._live.add(index)
        return index

    def may_use_reserve(self, command: Buffer) -> bool:
        """They are what fills a disk."""
        del command
        return False

    def moved(self, old: int, new: int) -> None:
        """Follow it."""
        if old in self._live:
            self._live.discard(old)
            self._live.add(new)

    def upgrade(self, version: int) -> None:
        """There is one version."""

    def live_indexes(self) -> BitMap64:
        """Everything, or nothing."""
        return self._live.copy()

    def snapshot(self) -> Iterable[Buffer]:
        """The count, and what is alive."""
        return [msgspec.msgpack.encode((self._bytes, self._live.serialize()))]

    def restore(self, chunks: Iterable[bytes], version: int) -> None:
        """As it was."""
        del version
        self._bytes, live = msgspec.msgpack.decode(b"".join(chunks), type=tuple[int, bytes])
        self._live = BitMap64.deserialize(live)

    def read(self, query: object) -> object:
        """How many bytes there were."""
        del query
        return self._bytes


class _Listener(SilentListener):
    """Says when a change of peers is through."""

    def __init__(self, node: _Node) -> None:
        self._node = node

    def on_change_peers_committed(self, peers: tuple[int, ...]) -> None:
        self._node.say({"committed": peers})

    def on_change_peers_error(self, context: ChangeFailed) -> None:
        self._node.say({"failed": context.error.value})


class _Node(Node):
    def __init__(self, number: int, folder: Path, settings: dict[str, Any]) -> None:
        super().__init__(folder)
        self._log = Log.open(self._runtime, LogConfig(**settings["log"]))
        self._groups = Groups(
            self._runtime,
            self._log,
            node=number,
            address="127.0.0.1:0",
            config=GroupConfig(**settings["group"]),
        )
        self._keep: bool = settings["keep"]
        for stored in self._log.groups():
            self._groups.open(stored.name, self._machine(), listener=_Listener(self))
        self.say({"address": self._groups.transport.address})

    def close(self) -> None:
        self._groups.close()
        self._log.close()

    def _machine(self) -> CountingMachine:
        return CountingMachine(keep=self._keep)

    # -- orders -----------------------------------------------------------------------------------

    def _do_learn(self, addresses: dict[str, str]) -> None:
        for node, address in addresses.items():
            if int(node) != self._groups.node:
                self._groups.transport.learn(int(node), address)
        self.say({"ok": True})

    def _do_create(self, groups: list[str], members: list[int]) -> None:
        for name in groups:
            self._groups.create(name, self._machine(), members=members, listener=_Listener(self))
        self.say({"ok": True})

    def _do_where(self) -> None:
        groups = self._groups.groups()
        self.say(
            {
                "leads": [g.name for g in groups if g.ready],
                "resting": sum(g.resting.resting for g in groups),
                "applied": {g.name: g.applied for g in groups[:4]},
                "terms": {g.name: g.term for g in groups[:4]},
            }
        )

    def _do_transfer(self, to: int) -> None:
        for group in self._groups.groups():
            group.transfer(to)
        self.say({"ok": True})

    def _do_campaign(self) -> None:
        """Stand for election in all groups now, instead of after a timeout."""
        for group in self._groups.groups():
            group.campaign()
        self.say({"ok": True})

    def _do_snapshot(self, group: str) -> None:
        found = self._groups.group(group)
        found.snapshot()
        target = found.applied
        self._when(
            lambda: found.log.row.snapshot_index >= target,
            lambda: self.say({"index": found.log.row.snapshot_index}),
        )

    def _do_change(self, group: str, token: int, peers: list[int]) -> None:
        found = self._groups.group(group)
        answer = found.change_peers(found.term, token, peers)
        if answer.value != "received":
            self.say({"failed": answer.value})

    def _do_probe(self, group: str) -> None:
        """Say when a proposal was applied here; try until one is."""
        found = self._groups.group(group)

        def attempt() -> None:
            if found.ready:
                found.propose(b"probe", timeout_ms=1_000).then(judge)
            else:
                self._loop.call_later(RETRY_MS, attempt)

        def judge(future: Future[object]) -> None:
            if future.error is None:
                self.say({"applied": found.applied})
            else:
                self._loop.call_later(RETRY_MS, attempt)

        attempt()

    def _do_propose(self, group: str, size: int, in_flight: int, count: int) -> None:
        """Keep so many proposals of that size under way until all are applied."""
        found = self._groups.group(group)
        payloads = [os.urandom(size) for _ in range(PAYLOADS)]

        def propose(number: int) -> Future[object]:
            return found.propose(payloads[number % PAYLOADS], timeout_ms=120_000)

        ClosedLoop(propose, in_flight=in_flight, count=count, done=self.say).start()


if __name__ == "__main__":
    run_node(_Node)
