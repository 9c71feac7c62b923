"""A database in a fresh directory, and a table in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lowmark
from lowmark.client import Database, Table

COLUMNS = {"id": "string", "status": "string", "amount": "decimal(12,2)"}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with lowmark.open(tmp_path / "data") as database:
        yield database


@pytest.fixture
def orders(db: Database) -> Table:
    return db.create_table("orders", COLUMNS, key="id", partitions=4)
