"""Where ledger, backlog, low watermark and readers of a table stand, and what is kept for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventually import eventually
from lowmark.client import Database, Table
from lowmark.client.tide import TideLedger
from lowmark.errors import Rejected


@pytest.fixture
def history(db: Database) -> Table:
    """Two partitions: 900 changes of 100 keys, all of them at or below the low watermark."""
    table = db.create_table("history", {"id": "int64", "v": "string"}, key="id", partitions=2)
    for at in range(9):
        table.append([{"id": n, "v": f"{at}"} for n in range(100)])
    settle(db, table)
    return table


def settle(db: Database, table: Table) -> None:
    def passed() -> bool:
        db.advance_watermark("now")
        return not table.compact(dry_run=True).too_young_rows

    eventually(passed)


def test_rows_go_from_young_to_next_to_kept_to_cut(db: Database, history: Table) -> None:
    # given what may be compacted, and what may not yet
    history.append([{"id": n, "v": "young"} for n in range(10)])
    seen = history.tide()
    assert (seen.changes, seen.backlog_rows, seen.ledger_rows) == (910, 910, 0)
    assert sum(one.next_rows for one in seen.partitions) == 900
    assert sum(one.young_rows for one in seen.partitions) == 10
    # when it is compacted while somebody reads from the beginning
    history.cursors.create("slow")
    history.compact(engine="local")
    seen = history.tide()
    # then it is kept for that one alone
    assert sum(one.kept_rows for one in seen.partitions) == 900
    assert (seen.ledger_rows, seen.backlog_rows) == (100, 910)
    [slow] = seen.holders
    assert (slow.name, slow.keeps_rows, slow.keeps_bytes) == ("slow", 900, seen.kept_bytes)
    # and cut when that one is gone
    history.cursors.delete("slow")
    history.compact(engine="local")
    seen = history.tide()
    assert (seen.kept_bytes, seen.backlog_rows, seen.holders) == (0, 10, ())
    assert [one.start for one in seen.partitions] == [one.horizon for one in seen.partitions]
    assert db.watermark().value


def test_every_row_that_is_left_is_counted_where_it_was_written(history: Table) -> None:
    history.compact(engine="local")
    for stretches in (1, 7, 200, 10_000):
        for one in history.tide(stretches=stretches).partitions:
            assert one.ledger is not None
            counts = one.ledger.survivors
            assert sum(counts) == one.ledger.live_rows
            assert len(counts) == min(stretches, one.horizon)
            shares = one.ledger.shares(one.horizon, len(counts))
            # the last change of each key came last
            assert 0 <= min(shares)
            assert shares[-1] == max(shares) <= 1
    assert history.tide(stretches=0).partitions[0].ledger is not None
    with pytest.raises(Rejected):
        history.tide(stretches=-1)


def test_a_ledger_of_which_all_is_left_is_full_however_it_is_cut() -> None:
    ledger = TideLedger(
        manifest="m",
        epoch=1,
        files=1,
        bytes=1,
        rows=10,
        live_rows=10,
        deletes=0,
        # ten offsets in four stretches: one is in the stretch that it begins in
        survivors=(3, 2, 3, 2),
    )
    for stretches in (1, 2, 3, 4, 64):
        assert ledger.shares(10, stretches) == (1.0,) * stretches


@pytest.mark.slow
def test_a_picture_has_the_size_that_was_asked_for(history: Table, tmp_path: Path) -> None:
    path = tmp_path / "tide.png"
    history.tide().save(path, width=800, height=500)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (800, 500)
    for width, height in ((399, 500), (800, 299), (10_001, 500)):
        with pytest.raises(Rejected, match="a picture can't be"):
            history.tide().save(path, width=width, height=height)


@pytest.mark.slow
def test_many_partitions_and_readers_fit_into_a_picture(db: Database, tmp_path: Path) -> None:
    # given more of both than there is room for, with names that mean something to a formula
    table = db.create_table("many", {"id": "int64"}, key="id", partitions=20)
    table.append([{"id": n} for n in range(2_000)])
    for n in range(9):
        table.cursors.create(f"$reader_{n}^{'x' * 40}")
    settle(db, table)
    table.compact(engine="local")
    # then they are drawn all the same
    table.tide().save(tmp_path / "tide.png")
    assert (tmp_path / "tide.png").stat().st_size > 20_000


def test_an_explanation_says_who_holds_what_in_words(history: Table) -> None:
    history.cursors.create("slow")
    history.cursors.create("index", kind="compacted")
    history.compact(engine="local")
    found = history.explain()
    assert [one.name for one in found.holders] == ["slow", "slow"]
    assert {one.name for one in found.delete_holders} == {"slow", "index"}
    assert (found.rows, found.ledger_rows) == (900, 100)
    words = str(found)
    assert "cursor slow holds partition 0 from 0 on" in words
    assert "cursor index holds deletes of partition 1 from 0 on" in words
    assert "ledgers: 100 rows" in words
    assert found.holders[0].keeps_bytes == max(one.keeps_bytes for one in found.holders)
