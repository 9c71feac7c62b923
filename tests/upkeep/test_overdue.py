"""A cursor of a table that nobody writes to is overdue all the same."""

from __future__ import annotations

from lowmark.table import CreateCursor
from table.world import TableWorld, log_table


def test_a_cursor_is_overdue_though_nobody_writes() -> None:
    # given a cursor that may be a second late, and rows that it has not seen
    world = TableWorld(nodes=1)
    table = world.create(1, log_table("events"))
    world.append(table)
    partition = world.leading(table)
    world.wait(partition.ask(CreateCursor("c", 1, "raw", 0, max_lag_ms=1_000)))
    # when nothing is written for longer than that
    world.run_for(2_000)
    world.look()
    world.run_for(100)
    # then it is marked, and holds nothing
    assert partition.state.cursors["c"].overdue
