"""A database in a fresh directory, behind each implementation of the port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backend.encoded import EncodedBackend
from lowmark.backend.embedded import Embedded
from lowmark.backend.port import Backend
from lowmark.backend.remote import RemoteBackend
from lowmark.client import Database
from lowmark.node import load_settings, make_directory
from lowmark.server import Server


def embedded(path: Path, *, availability_ms: int = 60_000) -> Embedded:
    make_directory(str(path))
    watermark = {"availability_ms": availability_ms}
    return Embedded(path, load_settings(arguments={"watermark": watermark}))


@contextmanager
def served(kind: str, path: Path, *, availability_ms: int = 60_000) -> Iterator[Backend]:
    """A database in a folder, behind one implementation of the port."""
    made = embedded(path / "data", availability_ms=availability_ms)
    match kind:
        case "embedded":
            yield made
        case "encoded":
            yield EncodedBackend(made)
        case _:
            address = "127.0.0.1:0" if kind == "tcp" else f"unix:{path}/socket"
            with Server(Database(made), address) as server:
                remote = RemoteBackend(server.address)
                yield remote
                remote.close()
    made.close()


@pytest.fixture(params=["embedded", "encoded", "tcp", "unix"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with served(request.param, tmp_path) as one:
        yield one


@pytest.fixture
def db(backend: Backend) -> Iterator[Database]:
    with Database(backend) as database:
        yield database
