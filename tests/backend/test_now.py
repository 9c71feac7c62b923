"""What a caller was answered is in what it asks for next as of now, over each implementation of the
port: also when all of it happens within one millisecond of the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.conftest import served
from lowmark.backend.port import Backend
from lowmark.client import Database, Table
from walls import by_steps, standing, wall_clock

pytestmark = pytest.mark.contract

TIMES = 125
"""With two walls and four implementations, a thousand."""


@pytest.fixture(params=["steps of 20 ms", "stands still"], autouse=True)
def wall(request: pytest.FixtureRequest) -> Iterator[None]:
    with wall_clock(standing() if request.param == "stands still" else by_steps(20)):
        yield


@pytest.fixture(params=["embedded", "encoded", "tcp", "unix"])
def backend(request: pytest.FixtureRequest, wall: None, tmp_path: Path) -> Iterator[Backend]:
    """With no history at all: what is before the low watermark can't be asked for."""
    with served(request.param, tmp_path, availability_ms=0) as one:
        yield one


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", {"id": "int64"}, key="id", partitions=1)


@pytest.mark.slow
def test_now_is_after_every_row_that_was_appended(backend: Backend, table: Table) -> None:
    number = table.descriptor.id
    for at in range(TIMES):
        table.append([{"id": at}])
        now = backend.now().time
        view = backend.view(number, 0, latest=True)
        assert view.offset_after(now) == view.end == at + 1


@pytest.mark.slow
def test_now_is_after_every_version_that_was_made(db: Database, table: Table) -> None:
    for at in range(TIMES // 10):
        table.alter(add={f"c{at}": "string"})
        newest = db.catalog.version
        moved = db.advance_watermark() if at % 2 else db.advance_watermark("now")
        assert db.backend.catalog_at(moved.after).version == newest
        assert len(db.table("t", as_of="now").descriptor.columns) == at + 2
        assert db.backend.catalog_at(db.backend.now().time).version == newest
    # and a cut of the catalog leaves no version that nothing needs
    assert db.catalog.compact().version == db.catalog.version


@pytest.mark.slow
def test_all_that_asks_for_now_has_what_was_appended(db: Database, table: Table) -> None:
    for count in range(1, TIMES // 20):
        table.append([{"id": count}])
        snapshot = table.snapshot()
        assert snapshot.ends == {0: count}
        assert table.count(as_of=snapshot.time) == count
        assert table.read(as_of="now").to_arrow().num_rows == count
        assert table.get(count, as_of="now") == {"id": count}
        assert table.changes(start=snapshot).to_arrow().num_rows == 0
        moved = db.advance_watermark() if count % 2 else db.advance_watermark("now")
        assert moved.after == moved.wanted
        assert not table.compact(engine="local", dry_run=True).too_young_rows


def test_a_table_without_any_history_is_compacted_up_to_now(db: Database) -> None:
    table = db.create_table("t", {"id": "int64"}, key="id", options={"history": "0 s"})
    table.append([{"id": 1}])
    db.advance_watermark("now")
    assert not table.compact(engine="local", dry_run=True).too_young_rows
