"""Nodes that missed something, and a database of one process that others join: all is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lowmark
from eventually import eventually
from lowmark.client import Table
from lowmark.node import NodeClient
from server.nodes import Nodes, table_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("coming-back")]

COLUMNS = {"id": "int64", "status": "string"}


def rows(count: int, status: str, **more: object) -> list[dict[str, object]]:
    return [{"id": number, "status": status, **more} for number in range(count)]


def by_id(table: Table) -> list[dict[str, object]]:
    return sorted(table.read(as_of="now").to_pylist(), key=lambda row: row["id"])


def compact(table: Table) -> None:
    backend = table._backend
    time = backend.now(table.descriptor.id).time
    eventually(lambda: backend.advance_watermark(time).after >= time)
    assert table.compact(engine="local").state == "done"


def has_all(nodes: Nodes, number: int) -> Callable[[], bool]:
    """Whether a node's copies have all that their leaders have."""

    def look() -> bool:
        with NodeClient(nodes.address(number)) as client:
            status = client.status()
        name = {row.name for row in status.nodes if row.endpoint == nodes.address(number)}
        copies = [
            member for group in status.groups for member in group.members if member.name in name
        ]
        return bool(copies) and all(copy.entries_behind == 0 for copy in copies)

    return look


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    # They look often at what may go: a test waits for that.
    with Nodes(tmp_path, 3, LOWMARK_WATERMARK_INTERVAL_MS="300") as nodes:
        yield nodes


def test_a_node_that_was_down_while_tables_changed_comes_back_right(
    nodes: Nodes, tmp_path: Path
) -> None:
    # given tables on three nodes
    with nodes.connect(0) as db:
        for name in ("altered", "dropped"):
            table_of(db, name, replicas=3, partitions=2)
            db[name].append(rows(100, "new"))
        gone = db["dropped"].descriptor.id
        eventually(has_all(nodes, 2))
        # when a node is down, and meanwhile tables are created, altered, compacted and dropped
        nodes.kill(2)
        table_of(db, "created", replicas=3, partitions=2).append(rows(50, "new"))
        db["altered"].alter(add={"note": "string"})
        db["altered"].append(rows(100, "paid", note="late"))
        db["altered"].delete([{"id": 7}])
        compact(db["altered"])
        db["altered"].append(rows(1, "sent", note="last"))
        db.drop_table("dropped")
        expected = {name: by_id(db[name]) for name in ("altered", "created")}
        assert len(expected["altered"]) == 99
        # and it is started again
        nodes.start(2)
        eventually(has_all(nodes, 2))
    # then it gives the same as the others, also when one of those is away that knew all of it
    nodes.kill(0)
    with nodes.connect(2) as db:
        assert {name: by_id(db[name]) for name in expected} == expected
        assert db["altered"].get(7) is None
        assert "dropped" not in db.tables()
        # and takes rows, and has nothing left of what was dropped once no read can look back
        db["created"].append(rows(60, "back"))
        assert by_id(db["created"]) == rows(60, "back")
        assert list((tmp_path / "n2").glob(f"groups/table.{gone}.*"))
        time = db.backend.now().time
        eventually(lambda: db.backend.advance_watermark(time).after >= time)
        eventually(lambda: not list((tmp_path / "n2").glob(f"groups/table.{gone}.*")))


@pytest.mark.release  # `node/test_from_embedded` grows into a cluster in one process
def test_a_directory_that_was_embedded_is_served_and_joined(tmp_path: Path) -> None:
    # given a database of one process, with rows, a ledger, a cursor and a past
    with lowmark.open(tmp_path / "n0") as db:
        db.set_history("0 s")
        table = db.create_table("old", COLUMNS, key="id", partitions=2)
        table.append(rows(100, "new"))
        table.append(rows(100, "paid"))
        table.cursors.create("c", start="earliest")
        compact(table)
        table.append(rows(1, "sent"))
        expected = by_id(table)
    # when it is served, and two nodes join
    with Nodes(tmp_path, 3) as nodes:
        for number in (1, 2):
            with nodes.connect(number) as db:
                # then all of it is there at each of them
                assert by_id(db["old"])[:100] == expected
                assert db["old"].read(compacted=True).to_arrow().num_rows >= 100
                assert db["old"].cursors.get("c").name == "c"
                db["old"].append([{"id": 1_000 + number, "status": f"from {number}"}])
                compact(db["old"])
        # and new tables are on all three: they outlive the first node
        with nodes.connect(1) as db:
            assert db["old"].count() == 102
            table_of(db, "wide", replicas=3, partitions=2).append(rows(10, "new"))
            nodes.kill(0)
            assert by_id(db["wide"]) == rows(10, "new")
