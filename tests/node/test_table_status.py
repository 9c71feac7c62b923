"""What a status says of tables: figures that add up, and warnings at their limits."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowmark
from eventually import eventually
from inside import backend_of
from lowmark.inspect import open_offline
from lowmark.node import NodeClient
from lowmark.node.messages import HolderRow, WatermarkStatus
from lowmark.node.status import (
    HELD_MS_MAX,
    PINNED_BYTES_MAX,
    WAITING_MS_MAX,
    CursorPart,
    TablePart,
    cursor_warning,
    table_rows,
    warnings_of,
)
from node.running import Running

ORDERS: dict[str, object] = {
    "create_table": {
        "name": "orders",
        "key": ["id"],
        "partitions": 3,
        "columns": [{"name": "id", "type": "string", "required": True}],
    }
}


def kinds(*cursors: CursorPart) -> list[str]:
    parts = [TablePart(3, "orders", 8, 8, 0, 0, cursors)]
    return [each.kind for each in warnings_of(parts, None, now_ms=0)]


def test_a_cursor_is_warned_of_beyond_its_limits_and_not_at_them() -> None:
    at_limit = CursorPart("c", PINNED_BYTES_MAX, WAITING_MS_MAX, overdue=False)
    assert kinds(at_limit) == []
    assert kinds(CursorPart("c", PINNED_BYTES_MAX + 1, 0, overdue=False)) == ["cursor-pins"]
    assert kinds(CursorPart("c", 0, WAITING_MS_MAX + 1, overdue=False)) == ["cursor-waits"]
    # and of one that holds nothing any more, that is what counts
    assert kinds(CursorPart("c", 1 << 40, 1 << 40, overdue=True)) == ["cursor-overdue"]
    _, why = cursor_warning(pinned_bytes=3 << 29, waiting_ms=0, overdue=False)
    assert "1.5 GiB" in why


def test_a_holder_of_the_watermark_is_warned_of_beyond_its_limit() -> None:
    mark = WatermarkStatus(
        time_ms=0,
        goal_ms=0,
        holders=(HolderRow(holder="node 7", time_ms=0, since_ms=1_000, why="a long read"),),
    )
    assert warnings_of([], mark, now_ms=1_000 + HELD_MS_MAX) == ()
    [warning] = warnings_of([], mark, now_ms=1_001 + HELD_MS_MAX)
    assert (warning.kind, warning.holder) == ("watermark-held", "node 7")
    assert "a long read" in warning.text


def test_the_parts_of_all_nodes_add_up() -> None:
    # given what two nodes lead of a table; one of them has heard that it was dropped
    half = PINNED_BYTES_MAX // 2 + 1
    parts = [
        TablePart(3, "orders", 8, 5, 10, 100, (CursorPart("c", half, 5, overdue=False),)),
        TablePart(3, "table 3 (dropped)", 0, 3, 1, 10, (CursorPart("c", half, 7, overdue=False),)),
        TablePart(2, "lines", 1, 1, 1, 1),
    ]
    # then they are one row, and what is too much together is warned of
    first, second = table_rows(parts)
    assert first.name == "lines"
    assert (second.name, second.partitions, second.here) == ("orders", 8, 8)
    assert (second.rows, second.bytes, second.cursors) == (11, 110, 1)
    [warning] = warnings_of(parts, None, now_ms=0)
    assert (warning.kind, warning.table, warning.holder) == ("cursor-pins", "orders", "c")


def test_a_node_says_what_it_leads_of_tables(tmp_path: Path) -> None:
    with Running(tmp_path / "data", name="n1") as running:
        client = running.client()
        client.execute([ORDERS])
        eventually(lambda: _here(client) == 3)
        status = client.status()
        [table] = status.tables
        assert (table.name, table.partitions, table.rows) == ("orders", 3, 0)
        assert status.watermark is not None
        assert status.watermark.goal_ms > 0
        assert status.warnings == ()


def _here(client: NodeClient) -> int:
    return sum(table.here for table in client.status().tables)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with a table of two partitions, and a cursor that is overdue."""
    folder = tmp_path / "shop"
    with lowmark.open(folder) as database:
        orders = database.create_table("orders", {"id": "string"}, key="id", partitions=2)
        orders.cursors.create("slow", max_lag_rows=1)
        orders.append([{"id": f"o-{n}"} for n in range(20)])
        database.create_table("gone", {"n": "int64"}, partitions=1).append([{"n": 1}])
        database.drop_table("gone")
    return folder


def test_a_directory_says_the_same_of_tables_as_its_node_did(data: Path) -> None:
    # given what the node says
    with lowmark.open(data) as database:
        node = backend_of(database).node
        told = backend_of(database).ask(node.status.status)
    # when its directory is asked
    with open_offline(str(data)) as store:
        found = store.status()
    # then it says the same
    assert found.tables == told.tables
    assert [(row.name, row.rows) for row in found.tables if row.partitions] == [("orders", 20)]
    [warning] = found.warnings
    assert (warning.kind, warning.table, warning.holder) == ("cursor-overdue", "orders", "slow")
    assert warning in told.warnings
    # and what was dropped is there until the watermark passes
    [gone] = [row for row in found.tables if not row.partitions]
    assert gone.name.endswith("(dropped)")
    assert gone.rows == 1
