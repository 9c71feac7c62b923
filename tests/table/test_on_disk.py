"""What placement asks of the copies on a node's disk."""

from __future__ import annotations

import pytest

from lowmark.catalog import DropTable, TableId
from lowmark.table import Tables
from table.world import TableWorld, log_table


def test_a_node_with_many_dropped_partitions_looks_at_its_disk_once_when_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It listed its disk again for each partition of a dropped table."""
    # given a table with many partitions that was dropped, and may still be read
    world = TableWorld(nodes=1)
    table = world.create(1, log_table("events", partitions=50))
    world.execute(1, DropTable(name="events"))
    world[1].crash()
    looks = 0
    on_disk = Tables.on_disk

    def counted(tables: Tables) -> list[tuple[TableId, int]]:
        nonlocal looks
        looks += 1
        return on_disk(tables)

    monkeypatch.setattr(Tables, "on_disk", counted)
    # when its node starts again
    world[1].start()
    world.run_until(lambda: world[1].tables_ is not None and len(world[1].tables.of(table)) == 50)
    # then it has all copies, and looked for them no more than a few times
    assert 1 <= looks <= 3
