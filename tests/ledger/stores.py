"""Servers of S3's protocol for tests: one in this process, and a real one, to be killed.

`moto` is a mock: it is in the lock, so it is always there. `versitygw` is a server that keeps
objects in a folder; it is a Go program, and used where it is installed
(`go install github.com/versity/versitygw/cmd/versitygw@latest`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from clusters.ports import free_ports
from clusters.processes import Children, Program
from eventually import eventually
from hosts.hosts import Host

BUCKET = "lowmark"
PORT = 9000
KEY, SECRET = "KEYID", "SECRET"


def location(endpoint: str, folder: str, user: str = "") -> str:
    """A folder of the store as a user would give it."""
    options = f"endpoint_override={endpoint}&scheme=http&region=us-east-1"
    return f"s3://{user}{BUCKET}/{folder}?{options}"


def _make_bucket(endpoint: str) -> None:
    fs.S3FileSystem(
        access_key=KEY,
        secret_key=SECRET,
        region="us-east-1",
        scheme="http",
        endpoint_override=endpoint,
        allow_bucket_creation=True,
        connect_timeout=1.0,
        request_timeout=1.0,
    ).create_dir(BUCKET)


@contextlib.contextmanager
def keys_shown() -> Iterator[None]:
    """Have this process, and all that it starts, show the right keys."""
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    keys["AWS_EC2_METADATA_DISABLED"] = "true"
    with pytest.MonkeyPatch.context() as environment:
        for name, value in keys.items():
            environment.setenv(name, value)
        yield


@contextlib.contextmanager
def mock_store(port: int = 0) -> Iterator[str]:
    """A store with one bucket; after the block it is away."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server.start()
    try:
        host, port = server.get_host_and_port()
        _make_bucket(f"{host}:{port}")
        yield f"{host}:{port}"
    finally:
        server.stop()


def _program() -> str | None:
    by_go = Path(os.environ.get("GOPATH") or Path.home() / "go") / "bin"
    return shutil.which("versitygw") or shutil.which("versitygw", path=str(by_go))


with_real_store = pytest.mark.skipif(
    _program() is None, reason="versitygw, a server of S3's protocol, is not installed"
)


class RealStore:
    """A server of S3's protocol in a process of its own, with one bucket."""

    def __init__(self, children: Children, folder: Path, *, host: Host | None = None) -> None:
        """On loopback, or in a host that sees this folder."""
        self._children = children
        self._folder = folder
        (folder / BUCKET).mkdir(parents=True)  # a folder at the top is a bucket
        self._host = host
        self._at = ("127.0.0.1", free_ports(1)[0]) if host is None else (host.address, PORT)
        self.endpoint = "{}:{}".format(*self._at)
        self._process: Program
        self.start()

    @property
    def objects(self) -> Path:
        """Where it keeps what is in the bucket."""
        return self._folder / BUCKET

    def start(self, secret: str = SECRET) -> None:
        """Have it there, after a kill, too; with another secret, clients have a wrong one."""
        program = _program()
        assert program is not None
        options = ["--port", self.endpoint, "--access", KEY, "--secret", secret, "--quiet"]
        command = [program, *options, "posix", str(self._folder)]
        if self._host is not None:
            command = self._host.command(command)
        self._process = self._children.start_program(command, name="store")
        eventually(self._answers)

    def _answers(self) -> bool:
        self._process.check()
        with contextlib.suppress(OSError), socket.create_connection(self._at, 1):
            return True
        return False

    def location(self, folder: str) -> str:
        """Where a database has its ledgers there."""
        return location(self.endpoint, folder)

    def kill(self) -> None:
        """End it with -9."""
        self._process.kill()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """In the block it takes connections and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)
