"""A run works with the version of the catalog that it was planned with, or says that it can't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lowmark
from compaction.world import World
from inside import backend_of
from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import PlanOutdated
from lowmark.errors import Unavailable


def test_a_run_that_can_t_look_at_the_catalog_fails_and_is_resumed_with_the_right_schema(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given rows of a schema, and a column that came after them and before the low watermark
    world.write(("k1", 1), ("k2", 2))
    world.table.alter(add={"w": "string"})
    world.settle()
    original, looked = Embedded.catalog_at, 0

    def lost(self: Embedded, *given: Any, **named: Any) -> Any:
        nonlocal looked
        looked += 1
        if looked > 1:  # the first look is the plan's
            raise Unavailable("no answer came")
        return original(self, *given, **named)

    # when the catalog gives no answer after the run was planned
    with monkeypatch.context() as patch:
        patch.setattr(Embedded, "catalog_at", lost)
        with pytest.raises(Unavailable, match="no answer came"):
            world.table.compact(engine="local")
    (failed,) = world.table.runs()
    assert (failed.state, failed.catalog > 0) == ("failed", True)
    assert world.view().ledger is None
    # then the run that is resumed has all columns in its files
    run = world.table.compact(resume=failed.run)
    assert (run.state, run.catalog) == ("done", failed.catalog)
    (layout,) = world.manifest().layouts
    assert [column.name for column in layout.columns] == ["id", "v", "w"]
    world.table.read(columns=["w"], compacted=True).to_arrow()


def test_a_run_is_not_resumed_when_the_catalog_that_it_was_planned_with_is_gone(
    world: World,
) -> None:
    # given a run that was interrupted
    world.write(("k1", 1), ("k2", 2))
    planned = world.stopped_before("carry out the work")
    # when the table is altered, and older versions of the catalog are cut
    world.table.alter(add={"w": "string"})
    backend = backend_of(world.table)
    latest = backend.catalog().version
    assert backend.ask(lambda: backend.catalogs.compact(latest))
    # then it does not fall back to another schema: it says which version it needs
    with pytest.raises(PlanOutdated, match=f"version {planned.catalog} of the catalog") as refused:
        world.table.compact(resume=planned.run)
    assert "another run" in refused.value.hint
    assert world.view().ledger is None
    # and another run does its work, with the version of now
    world.settle()
    assert world.table.compact(engine="local").state == "done"
    assert [run.state for run in world.table.runs()] == ["done", "cancelled"]
    (layout,) = world.manifest().layouts
    assert [column.name for column in layout.columns] == ["id", "v", "w"]


def test_before_the_low_watermark_was_ever_moved_every_row_is_too_young(tmp_path: Path) -> None:
    # given a database whose low watermark stands at the beginning of time
    with lowmark.open(tmp_path / "data") as db:
        table = db.create_table("t", {"id": "int64"}, key="id")
        table.append([{"id": 1}])
        assert db.backend.watermark(latest=True).value == 0
        # then a run is planned, with the empty catalog, and has nothing to do
        plan = table.compact(engine="local", dry_run=True)
        assert (plan.too_young_rows, plan.catalog) == (1, 0)
        assert table.compact(engine="local").state == "too young"
