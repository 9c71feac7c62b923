"""What `read()` says when the backlog no longer begins where the table did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lowmark
from inside import proposed
from lowmark.client import Database, Gap, GapFound, Table
from lowmark.table import Trim

ROWS = 20


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """A table of which all was compacted, and nothing is left in the backlog."""
    path: Path = tmp_path_factory.mktemp("compacted") / "data"
    with lowmark.open(path) as db:
        table = db.create_table("orders", {"id": int, "status": str}, key="id", partitions=2)
        table.append([{"id": number, "status": "new"} for number in range(ROWS)])
        db.advance_watermark("now")
        table.compact(engine="local")
        yield table


def test_reading_all_of_a_table_that_was_compacted_raises_and_says_how(compacted: Table) -> None:
    for reader in (compacted.read(), compacted.read(columns=["id"], limit=5)):
        with pytest.raises(GapFound) as found:
            reader.to_arrow()
        assert found.value.gap.kind == "superseded"
        assert found.value.gap.first == 0
        # The hint is for people who write Python, and for those at a shell.
        assert "read(compacted=True)" in found.value.hint
        assert 'start="earliest"' in found.value.hint
        assert "--compacted" in found.value.hint


def test_a_follower_that_wants_all_hears_of_it_too(compacted: Table) -> None:
    with compacted.read(follow=True) as reader, pytest.raises(GapFound):
        next(reader)


def test_who_asks_for_the_earliest_gets_what_is_left(compacted: Table) -> None:
    with compacted.read(start="earliest") as reader:
        assert reader.to_arrow().num_rows == 0
        assert reader.gaps == []


def test_who_skips_gaps_is_told_which(compacted: Table) -> None:
    with compacted.read(on_gap="skip") as reader:
        assert reader.to_arrow().num_rows == 0
        assert [(gap.partition, gap.first, gap.kind) for gap in reader.gaps] == [
            (0, 0, "superseded"),
            (1, 0, "superseded"),
        ]
        assert sum(gap.last + 1 for gap in reader.gaps) == ROWS


def test_the_compacted_rows_the_state_and_a_cursor_have_no_gap(compacted: Table) -> None:
    assert compacted.read(compacted=True).to_arrow().num_rows == ROWS
    assert compacted.read(as_of="now").to_arrow().num_rows == ROWS
    compacted.cursors.create("billing")
    assert compacted.read(cursor="billing").to_arrow().num_rows == 0


def test_a_table_whose_backlog_is_whole_is_read_as_before(db: Database, orders: Table) -> None:
    # given a table that was compacted, and whose backlog a cursor holds
    orders.cursors.create("billing")
    orders.append([{"id": "o-1"}, {"id": "o-2"}])
    db.advance_watermark("now")
    orders.compact(engine="local")
    # then every change can be read
    assert orders.read().to_arrow().num_rows == 2
    assert orders.read().gaps == []


@pytest.mark.parametrize("follow", [False, True])
def test_what_expired_is_no_gap_for_who_reads_all_and_what_was_compacted_is(
    db: Database, follow: bool
) -> None:
    # given rows that went by retention, and others after them that were compacted
    events = db.create_table("events", {"n": int}, partitions=1)
    events.append([{"n": number} for number in range(10)])
    proposed(events, Trim(4, expire=True))
    db.advance_watermark("now")
    assert events.compact(engine="local", trim=False).state == "done"
    # then what is left is all, as it was before the compaction
    with events.read(follow=follow, limit=6) as reader:
        assert reader.to_arrow()["n"].to_pylist() == [4, 5, 6, 7, 8, 9]
        assert reader.gaps == []
    # when some of them are cut because they are in the ledger
    proposed(events, Trim(10))
    # then these are the gap, and no others
    with events.read(follow=follow, limit=6) as reader, pytest.raises(GapFound) as found:
        reader.to_arrow()
    assert found.value.gap == Gap(0, 4, 9, "superseded")
