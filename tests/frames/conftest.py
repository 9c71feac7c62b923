"""A Spark session, and a shop that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lowmark
from lowmark.client import Database
from lowmark.spark import SparkRunner


@pytest.fixture
def spark(shared: SparkRunner) -> Any:
    return shared._session


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with lowmark.open(tmp_path / "db") as database:
        yield database


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "db")
