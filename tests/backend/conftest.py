"""A database in a fresh directory, behind each implementation of the port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.encoded import EncodedBackend
from lowmark.backend.embedded import Embedded
from lowmark.backend.port import Backend
from lowmark.client import Database
from lowmark.node import load_settings, make_directory


def embedded(path: Path) -> Embedded:
    make_directory(str(path))
    settings = load_settings(arguments={"watermark": {"availability_ms": 60_000}})
    return Embedded(path, settings)


@pytest.fixture(params=["embedded", "encoded"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made: Backend = embedded(tmp_path / "data")
    if request.param == "encoded":
        made = EncodedBackend(made)
    yield made
    made.close()


@pytest.fixture
def db(backend: Backend) -> Iterator[Database]:
    with Database(backend) as database:
        yield database
