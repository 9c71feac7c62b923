"""Reading a table through its ledger: from anywhere, with no gap and no repeat, whatever is
published, cut or closed meanwhile.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.world import COLUMNS, World, folded
from inside import backend_of, partition_of
from lowmark.client import GapFound
from lowmark.ledger import files as ledger_files
from lowmark.ledger import tail as ledger_tail
from lowmark.table import encode_rows
from lowmark.table.commands import Change, Finish, encode_batch


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledger files of many small row groups: a reader takes one of them at a time."""
    monkeypatch.setattr(ledger_files, "ROW_GROUP_ROWS", 10)
    monkeypatch.setattr(ledger_tail, "_CHUNK_BYTES", 1_000)


# -- before, after, and in between ----------------------------------------------------------------


def test_without_a_ledger_a_compacted_reader_gets_the_whole_backlog(both: World) -> None:
    both.write(*[("k", number) for number in range(10)])
    assert both.offsets(compacted=True) == both.offsets() == [("k", at) for at in range(10)]
    # and after compaction only the last of it
    both.compact()
    assert both.offsets(compacted=True) == [("k", 9)]
    both.check()


def test_behind_the_ledger_the_backlog_goes_on(both: World) -> None:
    both.write(("a", 1), ("a", 2), ("b", 3))
    both.compact()
    both.write(("a", 4))
    assert both.offsets(compacted=True) == [("a", 1), ("b", 2), ("a", 3)]
    both.check()


def test_a_second_run_takes_over_what_the_first_one_had(both: World) -> None:
    both.write(("a", 1), ("b", 2), ("c", 3))
    both.compact()
    both.write(("b", 4), ("d", 5), ("c", None))
    both.compact()
    both.check()
    assert both.model.keys() == {"a", "b", "d"}
    assert {key for key, _ in both.offsets(compacted=True)} == both.model.keys()


@pytest.mark.slow
def test_a_key_more_is_added_to_all_that_are_in_the_ledger_only(
    world: World, small_groups: None
) -> None:
    # given 200 keys, of which the backlog has nothing any more
    for turn in range(10):
        for first in range(0, 200, 20):
            world.write(*[(f"k{number}", turn) for number in range(first, first + 20)])
    world.compact()
    assert world.view().count == 0
    assert len(_groups(world)) > 1
    # when one key comes and everything is compacted again, whatever is written anew
    for rewrite in [False, True]:
        world.write((f"one more {rewrite}", 1))
        run = world.compact(rewrite=rewrite)
        # then it is one more, not one alone: all of the ledger was read, not its first part
        assert run.rows_live == len(world.model) == 201 + rewrite
        world.check()


def test_the_same_is_read_after_a_restart(both: World) -> None:
    both.write(*[(f"k{number % 7}", number) for number in range(30)])
    both.write(("k3", None))
    both.compact()
    both.write(("k4", None), ("k1", 100))
    before = both.offsets(compacted=True)
    for _ in range(2):
        both.reopen()
        assert both.offsets(compacted=True) == before
        both.check()


# -- beginnings and ends --------------------------------------------------------------------------


def test_the_earliest_is_the_first_row_of_the_ledger_or_of_the_backlog(both: World) -> None:
    both.write(*[(f"k{number % 5}", number) for number in range(20)])
    both.compact(trim=False)
    assert both.offsets(compacted=True, start="earliest") == [
        (f"k{at}", 15 + at) for at in range(5)
    ]
    assert len(both.offsets(start="earliest")) == 20
    both.check()


def test_a_reader_that_comes_last_gets_the_ledger_and_the_one_row_behind_it(both: World) -> None:
    # given ten keys in the ledger only, and one row in the backlog
    both.write(*[(f"k{number}", number) for number in range(10)])
    both.compact()
    both.reopen()
    both.write(("new", 10))
    # when somebody begins with the earliest, then it gets eleven, not what the backlog has
    assert len(both.offsets(compacted=True)) == 11
    assert both.offsets(start="earliest") == [("new", 10)]
    with pytest.raises(GapFound):
        both.offsets()  # without a start, all changes are meant
    both.table.cursors.create("c", kind="compacted")
    assert len(both.offsets(compacted=True, cursor="c")) == 11
    both.check()


def test_the_last_row_is_found_in_the_ledger_when_the_backlog_is_empty(both: World) -> None:
    both.write(*[(f"k{number}", number) for number in range(10)])
    both.compact()
    assert both.view().count == 0
    assert both.offsets(compacted=True, start="latest") == []
    assert both.offsets(compacted=True, start=9) == [("k9", 9)]


ENDINGS: dict[str, tuple[list[tuple[str, int | None]], dict[str, str | int]]] = {
    "a value": ([("a", 1), ("b", 2)], {}),
    "a replaced row": ([("a", 1), ("b", 2), ("a", 3)], {}),
    "a delete": ([("a", 1), ("b", 2), ("b", None)], {}),
    "deletes of all": ([("a", 1), ("b", 2), ("a", None), ("b", None)], {}),
    "deletes of nothing": ([("a", None), ("b", None)], {}),
    "a delete, compressed": ([("a", 1), ("b", 2), ("b", None)], {"compression": "lz4"}),
    "a value, compressed": ([("a", 1), ("a", 2)], {"compression": "zstd"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "row by row"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_where_a_table_ends_and_which_row_is_its_last(
    tmp_path: Path, ending: str, batched: bool
) -> None:
    changes, options = ENDINGS[ending]
    with World(tmp_path / "data", batched=batched, options=options) as world:
        world.write(*changes)
        end = len(changes)
        for trim in [False, True]:
            world.compact(trim=trim, rewrite=True)
            # the end is where it was, whatever survived
            assert world.table.snapshot().ends == {0: end}
            # and whoever reads, with deletes or without, ends there, behind the last live row
            for columns in [["id"], ["id", "_change"]]:
                reader = world.table.read(compacted=True, columns=columns)
                rows = [row["id"] for row in reader.to_pylist()]
                assert reader.position == {0: end}
                assert rows == sorted(world.model, key=lambda key: _last(changes, key))
            world.check()
        world.reopen()
        assert world.table.snapshot().ends == {0: end}


def _last(changes: list[tuple[str, int | None]], key: str) -> int:
    return max(at for at, (one, _) in enumerate(changes) if one == key)


def test_a_bounded_reader_ends_though_the_last_rows_are_deletes(both: World) -> None:
    both.write(("a", 1), ("b", 2))
    both.compact()
    both.write(("b", None), ("c", None))
    # in the backlog, and in the ledger, and to whom deletes are not given
    for _ in range(2):
        for columns in [["id"], ["id", "_change"]]:
            reader = both.table.read(compacted=True, columns=columns)
            rows = list(itertools.chain.from_iterable(batch.to_pylist() for batch in reader))
            assert rows[0]["id"] == "a"
            assert reader.position == {0: 4}
        both.check()
        both.compact()


def test_a_raw_reader_ends_where_the_backlog_does_though_all_of_it_was_cut(both: World) -> None:
    both.write(*[(f"k{number}", number) for number in range(10)])
    both.compact()
    # when nothing is left, who begins with the earliest is at the end
    reader = both.table.read(start="earliest")
    assert (reader.to_pylist(), reader.position) == ([], {0: 10})
    # and who begins at an offset that is gone is told which one is the first that is left
    both.write(("new", 1))
    with pytest.raises(GapFound, match=r"offsets 3 to 9 of partition 0 .* begins at 10") as caught:
        both.table.read(start=3).to_pylist()
    assert caught.value.gap.kind == "superseded"
    skipping = both.table.read(start=3, on_gap="skip")
    assert [row["id"] for row in skipping.to_pylist()] == ["new"]
    assert [(gap.first, gap.last) for gap in skipping.gaps] == [(3, 9)]


# -- from everywhere ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("trim", [True, False], ids=["cut", "not cut"])
def test_from_every_offset_the_first_row_at_or_behind_it_is_found(
    world: World, small_groups: None, trim: bool
) -> None:
    # given survivors with gaps between them, in several files and row groups
    for turn in range(3):
        world.write(*[(f"k{number % 17}", number) for number in range(40 + turn)])
        world.write(*[(f"n{turn}.{number}", number) for number in range(30)])
        world.compact(trim=trim)
    world.write(*[(f"k{number}", 1) for number in range(0, 17, 2)])
    assert len(world.manifest().files) > 1
    assert len(_groups(world)) > 5
    every = world.offsets(compacted=True)
    end, horizon = world.view().end, world.adopted().horizon
    assert [offset for _, offset in every] == sorted({offset for _, offset in every})
    assert horizon < end
    # when a reader begins anywhere, also where the next row will be
    for start in range(end + 1):
        wanted = [one for one in every if one[1] >= start]
        # then it gets all that is at or behind it, and one that ends anywhere all before
        assert world.offsets(compacted=True, start=start) == wanted, start
        assert world.offsets(compacted=True, start=start, limit=1) == wanted[:1], start
        assert world.offsets(compacted=True, end=start) == [one for one in every if one[1] < start]


def _groups(world: World) -> list[int]:
    counts = []
    for file in world.manifest().files:
        meta = pq.read_metadata(world.path / "ledgers" / file.path)
        counts += [meta.row_group(at).num_rows for at in range(meta.num_row_groups)]
    return counts


def test_a_reader_may_stop_and_go_on_behind_every_row(world: World, small_groups: None) -> None:
    world.write(*[(f"k{number % 11}", number) for number in range(60)])
    world.compact()
    world.write(*[(f"k{number % 13}", number) for number in range(20)])
    every = world.offsets(compacted=True)
    for size in [1, 3, 7]:
        found: list[tuple[Any, int]] = []
        position: dict[int, int] = {0: 0}
        while True:
            columns = ["id", "_offset", "_change"]
            reader = world.table.read(compacted=True, start=position, limit=size, columns=columns)
            rows = reader.to_pylist()
            if not rows:
                break
            found += [(row["id"], row["_offset"]) for row in rows]
            position = reader.position
        assert found == every


def test_rows_of_a_time_are_found_in_the_ledger(world: World) -> None:
    world.batched = False
    world.write(*[(f"k{number % 4}", number) for number in range(12)])
    rows = world.table.read(columns=["id", "_offset", "_time", "_change"]).to_pylist()
    world.compact()
    survivors = world.offsets(compacted=True)
    for row in rows:
        after = [one for one in survivors if one[1] >= row["_offset"]]
        assert world.offsets(compacted=True, start=row["_time"]) == after


# -- while things change --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_within_the_ledger_sees_every_key_once_though_the_backlog_is_cut(
    world: World, small_groups: None
) -> None:
    # given 300 keys in the ledger, 300 more in the backlog, and a reader that has begun
    for kind in "kn":
        for first in range(0, 300, 30):
            world.write(*[(f"{kind}{number}", number) for number in range(first, first + 30)])
        if kind == "k":
            world.compact()
    bounded = world.table.read(compacted=True)
    following = world.table.read(compacted=True, follow=True)
    seen = [next(bounded).to_pylist(), next(following).to_pylist()]
    assert all(0 < len(rows) < 300 for rows in seen)
    # when all of it is compacted again, the log's files go, and old ledgers are swept
    world.compact(rewrite=True)
    assert world.view().count == 0
    world.write(("last", 1))
    world.compact(rewrite=True)
    world.table.sweep()
    # then both go on and see everything once
    rows = seen[0] + list(itertools.chain.from_iterable(batch.to_pylist() for batch in bounded))
    assert [row["id"] for row in rows] == [f"{kind}{at}" for kind in "kn" for at in range(300)]
    rows = seen[1]
    while rows[-1]["id"] != "last":
        rows += next(following).to_pylist()
    following.close()
    assert [row["id"] for row in rows[:-1]] == [f"{kind}{at}" for kind in "kn" for at in range(300)]
    # and when nobody reads them any more, the old files go
    world.check_tidy()


@pytest.mark.slow
def test_a_reader_goes_on_after_restarts_with_no_gap_and_no_repeat(world: World) -> None:
    # given 1,000 rows in the ledger and 1,000 behind it
    world.write(*[(f"k{number}", number) for number in range(1_000)])
    world.compact()
    world.write(*[(f"k{number % 1_500}", number) for number in range(500, 1_500)])
    every = world.offsets(compacted=True)
    assert len(every) == 2_000
    found: list[tuple[Any, int]] = []
    position: dict[int, int] = {0: 0}
    # when a reader stops in the ledger, at its edge and behind it, each time before a restart
    for size in [500, 499, 2, 600, 10_000]:
        columns = ["id", "_offset", "_change"]
        reader = world.table.read(compacted=True, start=position, limit=size, columns=columns)
        found += [(row["id"], row["_offset"]) for row in reader.to_pylist()]
        position = reader.position
        world.reopen()
    assert found == every


@pytest.mark.slow
def test_a_cursor_goes_on_behind_what_it_has_seen_of_the_ledger(both: World) -> None:
    # given a cursor that has seen five of ten rows of the ledger
    both.write(*[(f"k{number}", number) for number in range(10)])
    both.compact()
    both.table.cursors.create("c", kind="compacted")
    reader = both.table.read(compacted=True, cursor="c", limit=5)
    assert [row["v"] for row in reader.to_pylist()] == [0, 1, 2, 3, 4]
    both.table.cursors.commit("c", reader.position)
    # when the database is opened again
    both.reopen()
    # then it gets the other five, and ends at the end
    reader = both.table.read(compacted=True, cursor="c")
    assert [row["v"] for row in reader.to_pylist()] == [5, 6, 7, 8, 9]
    moved = both.table.cursors.commit("c", reader.position)
    assert (moved.position, moved.lag_rows) == ({0: 10}, 0)


def test_a_late_note_of_a_position_that_is_in_the_ledger_only_skips_nothing(both: World) -> None:
    # given a cursor behind the second row, whose note comes when the backlog is gone
    both.write(*[(f"k{number}", number) for number in range(10)])
    both.table.cursors.create("c", kind="compacted")
    reader = both.table.read(compacted=True, cursor="c", limit=2)
    reader.to_pylist()
    position = reader.position
    both.compact()
    both.reopen()
    assert both.view().start == 10
    # when it is moved there
    assert both.table.cursors.commit("c", position).position == {0: 2}
    # then it goes on right behind it
    rows = both.table.read(compacted=True, cursor="c").to_pylist()
    assert [row["v"] for row in rows] == list(range(2, 10))


@pytest.mark.slow
@pytest.mark.parametrize("lease_ms", [None, 600_000], ids=["without a lease", "with a lease"])
def test_a_slow_follower_passes_over_versions_that_were_compacted_away(
    world: World, lease_ms: int | None
) -> None:
    # given somebody who follows keys and keeps their state
    world.write(("k", 0), ("gone", 0))
    follower = world.table.read(compacted=True, follow=True, on_gap="skip", lease_ms=lease_ms)
    state = _applied({}, next(follower))
    assert state == {"k": 0, "gone": 0}
    # when many versions come, and only the last one is left before it looks again
    world.write(("gone", None))
    for number in range(1, 30):
        world.write(("k", number), (f"n{number}", number))
        if number % 10 == 0:
            world.compact()
    world.write(("last", 1))
    world.compact()
    # then its state becomes what the table's is
    while "last" not in state:
        state = _applied(state, next(follower))
    follower.close()
    if lease_ms is None:
        # and who held nothing is told that it may have missed deletes: it has
        assert [gap.kind for gap in follower.gaps] == ["deleted"]
        assert state.pop("gone") == 0
    assert lease_ms is None or not follower.gaps
    assert state == world.model
    world.check()


def _applied(state: dict[str, int], batch: pa.RecordBatch) -> dict[str, int]:
    state = dict(state)
    for row in batch.to_pylist():
        if row["_change"] == "delete":
            state.pop(row["id"], None)
        else:
            state[row["id"]] = row["v"]
    return state


# -- how much at once -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_takes_no_more_at_once_than_it_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given rows of 100 KB each, in the ledger and in the backlog
    monkeypatch.setattr(ledger_files, "ROW_GROUP_BYTES", 1_000_000)
    monkeypatch.setattr(ledger_tail, "_CHUNK_BYTES", 400_000)
    values = {f"k{number:02}": os.urandom(100_000) for number in range(50)}
    with World(tmp_path / "data", columns={"id": "string", "v": "binary"}) as world:
        world.batched = False
        world.write(*list(values.items())[:40])
        world.compact()
        world.write(*list(values.items())[40:])
        # when they are read, then few come at a time, wherever they are
        found: dict[str, bytes] = {}
        largest = 0
        for batch in world.table.read(compacted=True, batch_bytes=500_000):
            largest = max(largest, batch.nbytes)
            found |= {row["id"]: row["v"] for row in batch.to_pylist()}
        assert found == values
        assert largest < 2_000_000
        # and who wants one row gets one
        reader = world.table.read(compacted=True, limit=1)
        assert reader.to_arrow().num_rows == 1
        assert reader.position == {0: 1}


# -- rows that wait for their transaction ---------------------------------------------------------


def staged(world: World, transaction: int, *changes: tuple[str, int]) -> None:
    """Rows that wait for `Finish`: one batch."""
    partition, table = partition_of(world.table), world.table
    rows = pa.record_batch(
        {"id": [key for key, _ in changes], "v": pa.array([v for _, v in changes], pa.int64())}
    )
    command = encode_batch(
        memoryview(encode_rows(rows)),
        rows=len(changes),
        schema=table.descriptor.latest.number,
        change=Change.UPSERT,
        transaction=transaction,
    )
    backend_of(table).ask(lambda: partition.append(command))


def rolled(world: World) -> None:
    """What follows stands in another segment."""
    embedded = backend_of(world.table)
    embedded.ask_now(embedded.node.log.roll)


@pytest.mark.slow
def test_rows_of_an_open_transaction_are_in_no_ledger_until_it_ends(world: World) -> None:
    # given rows before, within and after a transaction that is open
    world.write(("a", 1), ("b", 1))
    staged(world, 7, ("a", 2), ("c", 2))
    rolled(world)
    world.write(("b", 3))
    # when they are compacted, then the table is what was committed, in all that is read
    for _ in range(2):
        world.compact()
        world.check()
        assert world.adopted().horizon == world.view().end == 3
        world.reopen()
    # and when it is committed, its rows come behind what was there, once
    world.ask(Finish(7, commit=True))
    world.note([("a", 2), ("c", 2)])
    world.check()
    assert world.offsets(compacted=True, start=3) == [("a", 3), ("c", 4)]
    world.compact(verify=True)
    world.check()
    world.reopen()
    world.check()


@pytest.mark.slow
def test_rows_of_an_aborted_transaction_are_never_seen(world: World) -> None:
    # given a transaction over three segments, with other rows between
    for number in range(3):
        staged(world, 9, ("a", 100 + number), (f"x{number}", 1))
        world.write((f"k{number}", number), ("a", number))
        rolled(world)
        if number == 1:
            world.compact()
    # when it is aborted, then nothing of it is ever read, before a run and after it
    world.ask(Finish(9, commit=False))
    world.write(("a", 50))
    for _ in range(2):
        world.check()
        world.compact(verify=True)
        world.reopen()
    world.check()
    assert world.view().end == world.changes


@pytest.mark.slow
def test_how_a_transaction_ended_is_known_when_all_its_rows_are_gone(world: World) -> None:
    # given a transaction whose only row was replaced
    staged(world, 5, ("a", 1))
    first = world.ask(Finish(5, commit=True))
    world.note([("a", 1)])
    world.write(("a", 2))
    # when that was compacted, twice, with a restart between
    for _ in range(2):
        world.compact(rewrite=True)
        world.reopen()
        # then who asks for its end again gets the first answer, and no row comes back
        assert world.ask(Finish(5, commit=True)) == first
        world.check()
    assert folded(world.table.read(compacted=True)) == {"a": 2}


@pytest.mark.slow
def test_several_partitions_are_read_as_one(tmp_path: Path) -> None:
    with World(tmp_path / "data", partitions=3, columns=COLUMNS) as world:
        for turn in range(3):
            world.write(*[(f"k{number}", turn) for number in range(60)])
            world.write(*[(f"k{number}", None) for number in range(turn, 60, 9)])
            world.compact()
            world.check()
        world.write(*[(f"k{number}", 9) for number in range(0, 60, 5)])
        world.check()
        world.reopen()
        world.check()
