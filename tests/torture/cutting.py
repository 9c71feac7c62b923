"""Ways between nodes that can be cut, in both directions or in one, with or without a word.

Between hosts, their bridge loses what does not pass (`hosts/faults.py`). On loopback each ordered
pair of nodes has a proxy: what node `a` dials to reach `b`. A direction that is cut holds all bytes
back, as a network does that loses every packet: when it is mended they arrive, but late. New
connections are not made while one of both directions is cut. A cut `aloud` also resets the
connections that there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import permutations
from typing import Self

from clusters.places import World
from hosts.faults import both
from hosts.hosts import Host

Way = tuple[int, int]
"""From a node to a node."""

_CHUNK_BYTES = 64 << 10


class Cutting:
    """Proxies on a thread of their own, until the `with` ends."""

    def __init__(self, peers: Mapping[int, str]) -> None:
        self._peers = peers
        self._loop = asyncio.new_event_loop()
        self._open: dict[Way, asyncio.Event] = {}
        self._tasks: dict[asyncio.Task[None], Way] = {}
        self._ports: dict[Way, int] = {}
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._run, name="cutting", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def routes(self, node: int) -> dict[str, str]:
        """Where a node dials its peers."""
        return {
            self._peers[there]: f"127.0.0.1:{self._ports[here, there]}"
            for here, there in self._ports
            if here == node
        }

    def cut(self, ways: Collection[Way], *, aloud: bool = False) -> None:
        """Let nothing pass there."""

        def change() -> None:
            for way in ways:
                self._open[way].clear()
            for task, (here, there) in list(self._tasks.items()):
                if aloud and ((here, there) in ways or (there, here) in ways):
                    task.cancel()

        self._ask(change)

    def mend(self) -> None:
        """Let everything pass."""

        def change() -> None:
            for way in self._open.values():
                way.set()

        self._ask(change)

    def _ask(self, change: Callable[[], None]) -> None:
        async def ask() -> None:
            change()

        asyncio.run_coroutine_threadsafe(ask(), self._loop).result(30)

    # -- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _listen(self) -> None:
        for way in [(a, b) for a in self._peers for b in self._peers if a != b]:
            self._open[way] = asyncio.Event()
            self._open[way].set()
            server = await asyncio.start_server(self._accepts(way), "127.0.0.1", 0)
            self._ports[way] = server.sockets[0].getsockname()[1]
            self._servers.append(server)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepts(self, way: Way) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._carry(way, reader, writer))
            self._tasks[task] = way
            task.add_done_callback(self._tasks.pop)

        return accept

    async def _carry(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError, asyncio.CancelledError):
            try:
                while not (self._open[way].is_set() and self._open[way[::-1]].is_set()):
                    await self._open[way].wait()
                    await self._open[way[::-1]].wait()
                host, _, port = self._peers[way[1]].rpartition(":")
                answers, there = await asyncio.open_connection(host, int(port))
                ways = [
                    self._loop.create_task(self._pump(reader, there, self._open[way])),
                    self._loop.create_task(self._pump(answers, writer, self._open[way[::-1]])),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for one in ways:
                        one.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
            finally:
                for end in (writer, there):
                    if end is not None:
                        end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event
    ) -> None:
        while True:
            some = await reader.read(_CHUNK_BYTES)
            await passes.wait()
            if not some:
                return
            writer.write(some)
            await writer.drain()


class CuttingHosts:
    """The same between hosts, whose bridge loses what does not pass; nobody is told."""

    def __init__(self, world: World, hosts: Sequence[Host]) -> None:
        self._world = world
        self._hosts = hosts
        self._faults = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.mend()

    def routes(self, node: int) -> dict[str, str]:
        """Every node dials its peers where they are."""
        del node
        return {}

    def cut(self, ways: Collection[Way], *, aloud: bool = False) -> None:
        """Let nothing pass there."""
        del aloud
        hosts = [(self._hosts[here], self._hosts[there]) for here, there in ways]
        self._faults.enter_context(self._world.faults.cut(hosts))

    def lose(self, share: float) -> None:
        """Let this share of what nodes send each other be lost."""
        ways = permutations(self._hosts, 2)
        self._faults.enter_context(self._world.faults.lose(ways, share=share))

    def hide(self, node: int) -> None:
        """Let nothing pass between a node and clients."""
        ways = both(self._hosts[node], self._world.here)
        self._faults.enter_context(self._world.faults.cut(ways))

    def mend(self) -> None:
        """Let everything pass."""
        self._faults.close()
