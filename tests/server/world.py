"""A database that is served, in this process or in one of its own, and started again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from backend.conftest import embedded
from lowmark.backend.embedded import Embedded
from lowmark.client import Database
from lowmark.server import Server

COLUMNS = {"id": "int64", "status": "string"}


class Served:
    """A directory, a database and its server in this process; at one address, however often."""

    def __init__(self, path: Path, address: str = "127.0.0.1:0", **more: Any) -> None:
        self.path = path
        self.address = address
        self._more = more
        self.backend: Embedded
        self.server: Server
        self.start()

    def start(self) -> None:
        self.backend = embedded(self.path)
        self.db = Database(self.backend)
        self.serve()

    def serve(self) -> None:
        self.server = Server(self.db, self.address, **self._more)
        self.address = self.server.address

    def stop(self) -> None:
        self.server.close()
        self.db.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self.stop()


_PROGRAM = """
import sys, os
import lowmark
from lowmark.node import load_settings
from lowmark.server import Server
patient = {"group": {"request_timeout_ms": 60_000}}  # a start takes long on a busy machine
db = lowmark.open(sys.argv[1], settings=load_settings(arguments=patient))
server = Server(db, sys.argv[2])
print(server.address, flush=True)
sys.stdin.read()  # it ends with the test, however that ends
os._exit(0)
"""


class ServedProcess:
    """The same in a process of its own, to be killed."""

    def __init__(self, path: Path, address: str = "127.0.0.1:0") -> None:
        self.path = path
        self.address = address
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(self.path), self.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
