"""What a status says of tables: figures that add up, and warnings at their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import lowmark
from eventually import eventually
from inside import backend_of
from lowmark.group import Off
from lowmark.inspect import open_offline
from lowmark.metastore import NodeInfo, Topology
from lowmark.node import NodeClient, Status
from lowmark.node.homes import Home
from lowmark.node.messages import HolderRow, WatermarkStatus
from lowmark.node.status import (
    HELD_MS_MAX,
    PINNED_BYTES_MAX,
    TIMES_AHEAD_MS_MAX,
    WAITING_MS_MAX,
    Copy,
    CursorPart,
    FailingMove,
    Known,
    TablePart,
    clock_warnings,
    cursor_warning,
    merged,
    table_rows,
    warnings_of,
)
from node.running import QUICK, Running


def orders(partitions: int) -> dict[str, object]:
    """The command that creates a table."""
    return {
        "create_table": {
            "name": "orders",
            "key": ["id"],
            "partitions": partitions,
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
    first, second = table_rows(parts, [])
    assert first.name == "lines"
    assert (second.name, second.partitions, second.here) == ("orders", 8, 8)
    assert (second.rows, second.bytes, second.cursors) == (11, 110, 1)
    [warning] = warnings_of(parts, None, now_ms=0)
    assert (warning.kind, warning.table, warning.holder) == ("cursor-pins", "orders", "c")


@pytest.mark.slow
def test_a_node_says_what_it_leads_of_tables(tmp_path: Path) -> None:
    with Running(tmp_path / "data", name="n1") as running:
        client = running.client()
        client.execute([orders(3)])
        eventually(lambda: _here(client) == 3)
        status = client.status()
        [table] = status.tables
        assert (table.name, table.partitions, table.rows) == ("orders", 3, 0)
        assert status.watermark is not None
        assert status.watermark.goal_ms > 0
        assert status.warnings == ()


ALONE = replace(QUICK, metastore=replace(QUICK.metastore, members=1))
"""The first node decides alone who is up, also when others are gone."""


@pytest.mark.slow
def test_a_table_whose_nodes_are_down_is_shown_as_unavailable(tmp_path: Path) -> None:
    # given one copy of each partition, and enough partitions that each of two nodes has some
    with (
        Running(tmp_path / "1", name="n1", settings=ALONE) as first,
        Running(tmp_path / "2", name="n2", join=first.endpoint) as second,
    ):
        client = first.client()
        client.execute([{"alter_zone": {"name": "default", "replicas": 1}}, orders(24)])
        eventually(lambda: _here(client) == 24)
        [table] = client.status().tables
        assert table.state == "available"
        homes = {one.group: one.voters for one in client.status().groups}
        gone = {name for name, nodes in homes.items() if nodes == (second.node.info.number,)}
        assert gone, "no partition is at the second node"
        # when the second is stopped
        second.stop()
        # then the first shows the table, its partitions, and what is wrong with them
        status = client.status()
    [table] = status.tables
    assert (table.name, table.partitions, table.here) == ("orders", 24, 24 - len(gone))
    assert table.state == "unavailable"
    lost = [one for one in status.groups if one.state == "unavailable"]
    assert {one.group for one in lost} == gone
    for one in lost:
        [member] = one.members
        assert (one.leader, member.name, bool(member.problem)) == (0, "n2", True)


NODES = [
    NodeInfo(number=number, name=f"n{number}", address=f"127.0.0.1:{number}")
    for number in (1, 2, 3)
]


def known(home: Home, *copies: Copy, failing: Sequence[FailingMove] = ()) -> Status:
    """As node 1 shows it: node 2 is up and does not answer, node 3 is down."""
    return merged(
        Known(
            source="node n1",
            settings=None,
            nodes=NODES,
            topology=Topology(nodes=tuple(NODES[:2])),
            metastore=None,
            problems={1: "", 2: "it gives no answer"},
            homes=[home],
            draining={2},
            failing=failing,
        ),
        copies,
    )


def test_what_no_node_answers_for_is_shown_from_the_catalog_and_its_assignments() -> None:
    # given a table of three partitions: one has lost its leader, one all, the last has no nodes yet
    home = Home(id=7, name="newt", zone="default", replicas=2, nodes=((1, 3), (2, 3), ()))
    left = Copy("table.7.0", 1, "follower", 4, 0, (1, 3), (), 9, 9, "none", "", ())
    # when a node that has heard of it is asked
    status = known(home, left)
    # then the table is there, though no node leads any of it, with the worst of its states
    [table] = status.tables
    assert (table.name, table.partitions, table.here, table.rows) == ("newt", 3, 0, 0)
    assert table.state == "unavailable"
    # and so is each partition that has nodes, with why each of them does not answer
    first, second = status.groups
    assert (first.group, first.state) == ("table.7.0", "read-only")
    assert (second.group, second.state, second.leader) == ("table.7.1", "unavailable", 0)
    assert {one.name: one.problem for one in second.members} == {
        "n2": "it gives no answer",
        "n3": "it is down",
    }
    assert status.warnings == ()


def test_a_table_with_fewer_replicas_than_its_zone_asks_for_is_warned_of() -> None:
    home = Home(id=7, name="newt", zone="wide", replicas=3, nodes=((1, 2, 3), (1, 2)))
    [warning] = known(home).warnings
    assert (warning.kind, warning.table) == ("replicas-missing", "newt")
    assert warning.text.startswith("table newt has 2 of 3 replicas: ")
    assert "takes no rows while 1 of its 2 nodes is down" in warning.text
    assert "gets the rest by itself when the zone has 3 nodes" in warning.text
    # and none of one that has all, or more since the zone asks for fewer
    assert known(replace(home, replicas=2)).warnings == ()


def test_nodes_that_are_drained_are_marked_and_moves_that_fail_are_warned_of() -> None:
    home = Home(id=7, name="newt", zone="wide", replicas=1, nodes=((1,),))
    reason = "a new member makes no progress (node n3)"
    status = known(home, failing=[FailingMove("newt", 0, ("n1", "n3"), reason, 12, 90_000)])
    assert [node.draining for node in status.nodes] == [False, True, False]
    [warning] = status.warnings
    assert (warning.kind, warning.table) == ("move-failing", "newt")
    assert warning.text.startswith(f"partition 0 of table newt can't be moved to n1, n3: {reason}.")
    assert "It has failed 12 times in 1.5 min" in warning.text


def test_a_move_that_no_node_leads_is_warned_of_once_and_not_if_a_node_leads_it() -> None:
    # given two nodes that know no leader of a partition that is to move
    home = Home(id=7, name="newt", zone="wide", replicas=1, nodes=((1,),))
    group, reason = "table.7.0", "no node leads the partition"
    stuck = FailingMove("newt", 0, ("n1", "n3"), reason, 0, 90_000, group)
    # then that is one warning, which says for how long
    [warning] = known(home, failing=[stuck, stuck]).warnings
    assert warning.text == (
        f"partition 0 of table newt can't be moved to n1, n3: {reason}. It has not got on for 1.5"
        " min, and is tried again"
    )
    # and none if a third one says that it leads the partition: the two are cut off
    leads = Copy(group, 2, "leader", 4, 2, (2,), (), 9, 9, "none", "", ())
    assert known(home, leads, failing=[stuck]).warnings == ()


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
    # (but for how partitions are, which a directory can't tell)
    assert {row.state for row in told.tables} == {"available"}
    assert found.tables == tuple(msgspec.structs.replace(row, state="") for row in told.tables)
    assert [(row.name, row.rows) for row in found.tables if row.partitions] == [("orders", 20)]
    [warning] = found.warnings
    assert (warning.kind, warning.table, warning.holder) == ("cursor-overdue", "orders", "slow")
    assert warning in told.warnings
    # and what was dropped is there until the watermark passes
    [gone] = [row for row in found.tables if not row.partitions]
    assert gone.name.endswith("(dropped)")
    assert gone.rows == 1


def test_clocks_that_are_wrong_are_warned_of_by_name_and_by_how_much() -> None:
    names = {1: "db1", 2: "db2"}
    off = [Off(1, 3_600_000, of_most=True), Off(2, -5_000, of_most=True)]
    ahead, behind = clock_warnings(off, names, own="db1", times_ahead_ms=TIMES_AHEAD_MS_MAX)
    assert (ahead.kind, ahead.holder) == ("clock", "db1")
    assert "db1 is 1.0 h ahead of those of most nodes" in ahead.text
    assert "timedatectl" in ahead.text
    assert "db2 is 5.0 s behind those of most nodes" in behind.text
    # of two nodes, none can tell
    differ, late = clock_warnings(
        [Off(2, 5_000, of_most=False)], names, own="db1", times_ahead_ms=TIMES_AHEAD_MS_MAX + 1
    )
    assert "db2 is 5.0 s ahead of that of node db1" in differ.text
    # and what came of a wrong clock is said apart
    assert late.kind == "times-ahead"
