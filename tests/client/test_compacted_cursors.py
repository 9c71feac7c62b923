"""Cursors of those who read a table compacted."""

from __future__ import annotations

import pytest

from inside import proposed
from lowmark.client import Database, Table
from lowmark.table import Adopt, DeletesGone, DeletesHeld


def adopt(table: Table, wanted: Adopt) -> None:
    """As whoever publishes a ledger does; nobody reads its files here."""
    proposed(table, wanted)


@pytest.fixture
def events(db: Database) -> Table:
    """Ten rows, of which the first six are in a ledger only, and its first three deletes gone."""
    events = db.create_table("events", {"id": "int64"}, key="id", partitions=1)
    for number in range(10):
        events.append([{"id": number}])
    adopt(events, Adopt(1, "one", 6, bytes(16), 3))
    events.trim({0: 10})
    return events


def test_a_compacted_cursor_begins_at_0_and_keeps_no_byte_of_the_backlog(events: Table) -> None:
    # when cursors of both kinds are created at the earliest
    compacted = events.cursors.create("compacted", kind="compacted")
    raw = events.cursors.create("raw")
    # then one begins before the backlog, and only the other one keeps rows
    assert (compacted.position, raw.position) == ({0: 0}, {0: 6})
    assert (compacted.lag_rows, raw.lag_rows) == (10, 4)
    assert compacted.pinned_bytes == 0
    assert raw.pinned_bytes > 0
    assert [holder.name for holder in events.explain().holders] == ["raw"]
    # and it moves on through the ledger
    moved = events.cursors.commit("compacted", {0: 2})
    assert (moved.position, moved.pinned_bytes) == ({0: 2}, 0)
    assert events.cursors.move("compacted", {0: 3}).position == {0: 3}  # the older name


def test_a_compacted_cursor_is_not_created_where_deletes_are_gone(events: Table) -> None:
    with pytest.raises(DeletesGone, match="Begin at 0"):
        events.cursors.create("c", kind="compacted", start={0: 2})
    assert events.cursors.list() == []
    assert events.cursors.create("c", kind="compacted", start={0: 3}).position == {0: 3}
    with pytest.raises(DeletesGone):
        events.cursors.commit("c", {0: 1}, reset=True)
    assert events.cursors.commit("c", {0: 0}, reset=True).position == {0: 0}
    assert events.cursors.create("d", kind="compacted", start="latest").position == {0: 10}


def test_a_compacted_cursor_holds_deletes_against_the_next_ledger(events: Table) -> None:
    events.cursors.create("c", kind="compacted", start={0: 4})
    with pytest.raises(DeletesHeld, match="cursor 'c' stands at 4"):
        adopt(events, Adopt(2, "two", 10, bytes(16), 5))
    adopt(events, Adopt(2, "two", 10, bytes(16), 4))
    assert events.explain().partitions[0].horizon == 10


def test_a_cursor_on_its_way_through_the_ledger_is_read_with_a_lease(db: Database) -> None:
    # given a ledger without its deletes, and a cursor that began at 0 and has read a part of it
    table = db.create_table("read", {"id": "int64"}, key="id", partitions=1)
    table.append([{"id": number} for number in range(8)])
    table.delete([0, 1])
    db.advance_watermark("now")
    table.compact(engine="local")
    table.cursors.create("c", kind="compacted")
    table.cursors.commit("c", {0: 5})
    # when it is read on, with a lease
    with table.read(cursor="c", compacted=True, lease_ms=60_000) as reader:
        # then it gives the rest: the cursor holds what it needs, though no lease could begin here
        assert [row["id"] for row in reader.to_pylist()] == [5, 6, 7]
    # and a reader without that cursor is refused
    with pytest.raises(DeletesGone):
        table.read(start={0: 5}, compacted=True, lease_ms=60_000)
