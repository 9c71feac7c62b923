"""Where the nodes of a test are: on loopback, at ports of their own, or each in a host of its own.

A test that takes its places from here runs either way. `pytest --hosts` has them in hosts: there
the process of the test is in a host, too, and no node sees the files of another one. Ledgers are
then in a folder that all nodes share, as if by a file system in the network; with `--store`, in an
object store on a host of its own, and nothing is shared. That store is a mock; with `--real-store`
it is a server that can be killed (`real_store`), also for nodes on loopback.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusters.ports import free_ports
from hosts.faults import Faults
from hosts.hosts import Host, Hosts
from hosts.store import ObjectStore

if TYPE_CHECKING:  # it takes a second to import the mock beside it
    from ledger.stores import RealStore

PORT, PEERS_PORT = 6570, 6571
SHARED = "ledgers"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one node is."""

    listen: str
    peers: str
    host: Host | None = None
    options: tuple[str, ...] = ()
    """Of `lowmark serve`."""
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, words: Sequence[str]) -> list[str]:
        """The same command, there."""
        return list(words) if self.host is None else self.host.command(words)


@dataclass(frozen=True, slots=True)
class World:
    """Hosts, and where this process is among them."""

    hosts: Hosts
    here: Host
    faults: Faults
    store: ObjectStore | RealStore | None = None
    delay_ms: float = 0.0
    """What leaves a node arrives so much later."""
    options: tuple[str, ...] = ("--insecure",)
    """Of every node: it is reached by others."""


_worlds: list[World] = []
_stores: list[RealStore] = []
_numbers = itertools.count(1)


def world() -> World | None:
    """The hosts that tests of this process use; None, if they are on loopback."""
    return _worlds[-1] if _worlds else None


def real_store() -> RealStore | None:
    """The server in which all tests of this process have their ledgers; None: there is none."""
    return _stores[-1] if _stores else None


@contextmanager
def in_real_store(folder: Path, host: Host | None = None) -> Iterator[RealStore]:
    """Have the ledgers of all nodes in a server of S3's protocol, on loopback or in a host that has
    this folder.
    """
    from clusters.processes import Children  # noqa: PLC0415
    from ledger.stores import RealStore, keys_shown  # noqa: PLC0415

    with keys_shown(), Children(folder) as children:
        _stores.append(RealStore(children, folder / "objects", host=host))
        try:
            yield _stores[-1]
        finally:
            _stores.pop()


@contextmanager
def in_hosts(
    folder: Path, *, store: bool = False, real: bool = False, delay_ms: float = 0.0
) -> Iterator[World]:
    """Have this process in a host, and all nodes that it starts in hosts of their own. It must have
    one thread only, and stays there.
    """
    with ExitStack() as ends:
        hosts = ends.enter_context(Hosts(folder))
        here = hosts.add("client")
        here.enter()
        objects: ObjectStore | RealStore | None = None
        if real:
            host = hosts.add("store")
            objects = ends.enter_context(in_real_store(host.folder, host))
        elif store:
            objects = ends.enter_context(ObjectStore(hosts))
        _worlds.append(World(hosts, here, Faults(hosts), objects, delay_ms))
        ends.callback(_worlds.pop)
        yield _worlds[-1]


@contextmanager
def places(folders: Sequence[Path], *, shared: Sequence[Path] = ()) -> Iterator[list[Place]]:
    """Places for nodes that have these folders, in one folder for all. Of that, a node in a host
    sees its own, and what is shared.
    """
    found = world()
    if found is None:
        ports = free_ports(2 * len(folders))
        pairs = zip(ports[::2], ports[1::2], strict=True)
        settings = {}
        if (real := real_store()) is not None:
            settings["LOWMARK_LEDGER_LOCATION"] = real.location(f"cluster-{next(_numbers)}")
        yield [
            Place(f"127.0.0.1:{one}", f"127.0.0.1:{two}", environment=settings)
            for one, two in pairs
        ]
        return
    with ExitStack() as ends:
        made, shared = [], list(shared)
        if found.store is not None:
            ledgers = found.store.location(f"cluster-{next(_numbers)}")
        else:
            shared.append(folders[0].parent / SHARED)
            shared[-1].mkdir(exist_ok=True)
            ledgers = str(shared[-1])
        for folder in folders:
            host = found.hosts.add(folder=folder, shared=shared, delay_ms=found.delay_ms)
            ends.callback(found.hosts.remove, host)
            listen, peers = (f"{host.address}:{port}" for port in (PORT, PEERS_PORT))
            settings = {"LOWMARK_LEDGER_LOCATION": ledgers}
            made.append(Place(listen, peers, host, found.options, settings))
        yield made
