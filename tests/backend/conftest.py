"""A database in a fresh directory, behind each implementation of the port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.encoded import EncodedBackend
from lowmark.backend.embedded import Embedded
from lowmark.backend.port import Backend
from lowmark.backend.remote import RemoteBackend
from lowmark.client import Database
from lowmark.node import load_settings, make_directory
from lowmark.server import Server


def embedded(path: Path) -> Embedded:
    make_directory(str(path))
    settings = load_settings(arguments={"watermark": {"availability_ms": 60_000}})
    return Embedded(path, settings)


@pytest.fixture(params=["embedded", "encoded", "tcp", "unix"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made = embedded(tmp_path / "data")
    match request.param:
        case "embedded":
            yield made
        case "encoded":
            yield EncodedBackend(made)
        case kind:
            address = "127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/socket"
            with Server(Database(made), address) as server:
                remote = RemoteBackend(server.address)
                yield remote
                remote.close()
    made.close()


@pytest.fixture
def db(backend: Backend) -> Iterator[Database]:
    with Database(backend) as database:
        yield database
