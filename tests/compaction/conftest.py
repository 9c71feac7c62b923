"""A table in a fresh directory; of B scenarios, once with batches and once with single rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "data") as one:
        yield one


@pytest.fixture(params=["batched", "row by row"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "data", batched=request.param == "batched") as one:
        yield one
