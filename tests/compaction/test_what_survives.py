"""What is left of a table after compaction: of each key the last change, and nothing else."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.world import COLUMNS, World, folded
from lowmark.client import Table
from lowmark.errors import Rejected
from lowmark.ledger import OpenFile
from lowmark.ledger.files import FileWriter, Rows
from lowmark.runtime.store import Store
from lowmark.table.commands import (
    Control,
    CreateCursor,
    DeleteCursor,
    MoveCursor,
    ReleaseLease,
    TakeLease,
    Tick,
)

# -- the last row of each key ---------------------------------------------------------------------


def test_a_compacted_reader_gets_one_row_of_each_key_and_a_raw_one_gets_all(both: World) -> None:
    # given twenty writes over ten keys
    both.write(*[(f"k{number % 10}", number) for number in range(20)])
    # when they are compacted and nothing is cut
    both.compact(trim=False)
    # then a compacted reader gets the last of each key, and a raw one all of them
    assert len(both.offsets(compacted=True)) == 10
    assert len(both.offsets()) == 20
    both.check()


def test_a_thousand_writes_of_ten_keys_leave_ten_rows(world: World) -> None:
    world.write(*[(f"k{random.Random(number).randrange(10)}", number) for number in range(1_000)])
    run = world.compact(verify=True)
    assert (run.rows_read, run.rows_live) == (1_000, 10)
    assert run.partitions[0].rows_checked == 1_000
    assert world.manifest().rows == 10
    world.check()


def test_survivors_stand_in_the_order_of_their_offsets_not_of_their_keys(both: World) -> None:
    both.write(("c", 1), ("a", 2), ("b", 3), ("a", 4))
    both.compact()
    assert both.offsets(compacted=True) == [("c", 0), ("b", 2), ("a", 3)]


def test_two_runs_over_one_key_leave_its_last_value(both: World) -> None:
    for turn in range(2):
        both.write(*[("k", 10 * turn + number) for number in range(10)])
        both.compact()
    assert both.table.read(compacted=True, columns=["v"]).to_pylist() == [{"v": 19}]
    both.check()


def test_the_first_row_of_a_table_survives_at_offset_0(both: World) -> None:
    both.write(("first", 1), ("k", 2), ("k", 3))
    both.compact()
    assert both.offsets(compacted=True) == [("first", 0), ("k", 2)]
    both.check()


def test_batches_and_single_rows_are_compacted_alike(world: World) -> None:
    # given appends of both kinds that change each other's keys
    world.write(*[(f"k{number}", number) for number in range(10)])
    world.batched = False
    world.write(*[(f"k{number}", 100 + number) for number in range(0, 10, 2)])
    world.batched = True
    world.write(*[(f"k{number}", 200 + number) for number in range(0, 10, 3)])
    world.compact()
    world.check()
    # and when the last change of all is a delete, alone or at the end of a batch
    world.batched = False
    world.write(("k0", 300), ("k1", None))
    world.batched = True
    world.write(("k2", 301), ("k3", None))
    world.compact()
    world.check()


def test_rows_of_the_newest_batch_are_compacted_as_well(world: World) -> None:
    # given rows that no segment has yet: others never compact the newest one
    world.write(("k", 1), ("k", 2))
    run = world.compact()
    assert (run.rows_live, world.adopted().horizon, world.view().start) == (1, 2, 2)


# -- nothing to do, and nothing left --------------------------------------------------------------


def test_an_empty_table_is_compacted_and_takes_rows_after_that(both: World) -> None:
    # when there is nothing, the run is a good one, and no ledger is made
    run = both.compact()
    assert [one.why for one in run.partitions] == ["nothing is new"]
    assert both.view().ledger is None
    assert both.files() == set()
    # then what is written later can be read
    both.write(("k", 1))
    both.check()


def test_a_table_of_nothing_but_deletes_gives_nothing_and_nobody_waits(both: World) -> None:
    both.write(*[(f"k{number}", None) for number in range(10)])
    run = both.compact()
    assert (run.rows_live, both.manifest().files) == (0, ())
    assert both.adopted().horizon == 10
    assert both.table.read(compacted=True).to_pylist() == []
    both.check()


def test_after_all_keys_were_deleted_only_new_rows_are_read(both: World) -> None:
    both.write(*[(f"k{number}", number) for number in range(10)])
    both.compact()
    both.write(*[(f"k{number}", None) for number in range(10)])
    both.compact()
    both.check()
    both.write(*[(f"n{number}", number) for number in range(3)])
    both.check()
    both.compact()
    both.check()
    assert len(both.offsets(compacted=True)) == 3


def test_a_run_ends_though_the_last_row_is_a_delete(both: World) -> None:
    both.write(("a", 1), ("b", 2), ("c", 3), ("b", None))
    both.compact()
    assert both.adopted().horizon == 4
    assert both.offsets(compacted=True) == [("a", 0), ("c", 2)]
    both.check()


def test_entries_of_the_log_that_are_no_rows_hold_nothing_up_and_are_never_seen(
    world: World,
) -> None:
    # given a hundred entries at the end of the log that are no rows
    world.write(*[(f"k{number % 5}", number) for number in range(20)])
    chance = random.Random(1)
    world.ask(CreateCursor("c", 1, "compacted", None))
    for number in range(100):
        entries: list[Control] = [
            Tick(),
            MoveCursor("c", 20),
            TakeLease(f"l{number}", number, 20, 60_000),
            ReleaseLease(f"l{number - 1}", number - 1),
        ]
        world.ask(chance.choice(entries))
    world.ask(DeleteCursor("c"))
    # when it is compacted, then the run ends, and rows are all there is
    run = world.compact()
    assert (run.rows_read, run.rows_live) == (20, 5)
    world.check()


# -- deletes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_key_that_was_deleted_and_written_again_lives(
    both: World, tmp_path: Path, compression: str
) -> None:
    options = {"compression": compression}
    with World(tmp_path / "other", batched=both.batched, options=options) as world:
        world.write(("k", 1), ("k", None), ("k", 3), ("other", 4))
        world.compact()
        assert world.table.get("k") == {"id": "k", "v": 3}
        world.check()
        # over two runs, too
        world.write(("k", None))
        world.compact()
        world.check()
        world.write(("k", 5))
        world.compact()
        world.check()


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("runs", [1, 2])
def test_a_delete_counts_within_its_batch_and_over_batches(
    tmp_path: Path, compression: str, runs: int
) -> None:
    with World(tmp_path / "data", options={"compression": compression}) as world:
        # given a key that goes in the batch that brought it, and one that goes in a later one
        world.write(("within", 1), ("stays", 2), ("within", None), ("later", 3))
        if runs == 2:
            world.compact()
        world.write(("later", None), ("also stays", 4))
        world.compact()
        # then both are gone, and what else was in those batches is there
        assert world.model.keys() == {"stays", "also stays"}
        world.check()


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "row by row"])
def test_values_that_nobody_can_read_pass_untouched_and_their_deletes_count(
    tmp_path: Path, batched: bool
) -> None:
    # given values that are encrypted, say: bytes that are none of our business
    columns = {"id": "string", "v": "binary"}
    secrets = {f"k{number}": os.urandom(64) for number in range(20)}
    with World(tmp_path / "data", batched=batched, columns=columns) as world:
        world.write(*[(key, os.urandom(64)) for key in secrets])
        world.write(*secrets.items())
        world.write(("k1", None), ("k2", None), ("k2", b"\x00again"), ("k3", b""))
        end = world.view().end
        world.compact(verify=True)
        # then they are byte for byte what they were, and the last offset is the last one
        world.check()
        assert world.table.snapshot().ends == {0: end}


def test_a_row_of_nulls_is_no_delete_and_a_delete_needs_no_values(tmp_path: Path) -> None:
    columns = {"id": "string", "v": "string", "w": "int64"}
    with World(tmp_path / "data", columns=columns) as world:
        table = world.table
        table.append([{"id": key, "v": "x", "w": 1} for key in "abcd"])
        # given a row whose values are null or empty, and deletes with and without values
        table.append([{"id": "a", "v": None, "w": None}, {"id": "b", "v": "", "w": 0}])
        table.append([{"id": "c", "v": "y", "w": 7, "_change": "delete"}])
        table.append([{"id": "d", "_change": "delete"}])
        world.compact()
        # then values are values, whatever they are, and deletes are deletes
        assert table.read(compacted=True, columns=["id", "v", "w"]).to_pylist() == [
            {"id": "a", "v": None, "w": None},
            {"id": "b", "v": "", "w": 0},
        ]
        assert [table.get(key) for key in "cd"] == [None, None]
        assert [row["id"] for row in table.read(as_of="now").to_pylist()] == ["a", "b"]


# -- offsets --------------------------------------------------------------------------------------


def test_survivors_of_a_batch_keep_their_offsets(world: World) -> None:
    # given a batch of which every other row is replaced later
    world.write(*[(f"k{number}", number) for number in range(10)])
    before = dict(world.offsets())
    world.write(*[(f"k{number}", 100) for number in range(0, 10, 2)])
    world.compact()
    after = dict(world.offsets(compacted=True))
    assert {key: after[key] for key in after if int(key[1:]) % 2} == {
        key: offset for key, offset in before.items() if int(key[1:]) % 2
    }
    assert sorted(after.values()) == [1, 3, 5, 7, 9, *range(10, 15)]
    world.check()


def test_of_a_batch_that_was_replaced_as_a_whole_nothing_is_written(both: World) -> None:
    both.write(*[(f"k{number}", 1) for number in range(10)])
    both.write(*[(f"k{number}", 2) for number in range(10)])
    run = both.compact()
    (file,) = both.manifest().files
    assert (file.first, file.last, file.rows, file.dead_rows) == (10, 19, 10, 0)
    assert run.rows_live == 10
    both.check()


def test_the_end_of_a_table_stays_where_it_is_though_its_last_rows_are_gone(both: World) -> None:
    # given a last batch of which nothing survives
    both.write(("a", 1), ("b", 2))
    both.write(("b", None), ("c", None))
    both.compact()
    assert both.view().count == 0
    # when the database is opened again, then the next row has the next offset
    for _ in range(2):
        table = both.reopen()
        assert table.snapshot().ends == {0: 4}
        both.check()
    both.write(("d", 5))
    assert both.offsets(compacted=True) == [("a", 0), ("d", 4)]
    both.check()


def test_rows_whose_offsets_are_far_apart_fit_into_one_file(world: World, tmp_path: Path) -> None:
    # given survivors with more between them than 32 bits can count
    offsets = np.array([0, 2**31 - 1, 2**31, 2**33, 2**62], np.int64)
    table = world.table.descriptor
    columns = pa.record_batch({"id": [f"k{at}" for at in range(5)], "v": list(range(5))})
    store = Store(str(tmp_path / "files"))
    writer = FileWriter(store, "one.parquet", table, table.latest, pace=lambda _: None)
    writer.add(Rows(columns, offsets, offsets, np.zeros(5, np.bool_)))
    file = writer.finish()
    assert (file.first, file.last) == (0, 2**62)
    opened = OpenFile(store, file, table.latest)
    (rows,) = opened.rows()
    assert rows.offsets.tolist() == offsets.tolist()


# -- keys -----------------------------------------------------------------------------------------


def test_keys_that_look_like_our_own_words_are_keys_like_any_other(both: World) -> None:
    words = ["", " ", "\x00", "\x00\x00", "delete", "upsert", "_offset", "_change", "null", "None"]
    words += ["ledger.3.0", "compaction 1", "\U0010ffff", "k" * 2_000]
    both.write(*[(word, number) for number, word in enumerate(words)])
    both.write(*[(word, None) for word in words[::3]])
    both.write(("delete", 99))
    both.compact(verify=True)
    both.check()
    both.write(("", 1), ("\x00", None))
    both.compact(verify=True)
    both.check()


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "row by row"])
def test_rows_without_a_key_stay_in_their_order_or_are_refused(
    tmp_path: Path, batched: bool
) -> None:
    def write(table: Table, rows: list[dict[str, Any]]) -> None:
        for some in [rows] if batched else [[row] for row in rows]:
            table.append(some)

    with World(tmp_path / "data") as world:
        keep = world.db.create_table(
            "keep", COLUMNS, key="id", partitions=1, options={"keyless_rows": "keep"}
        )
        refuse = world.db.create_table("refuse", COLUMNS, key="id", partitions=1)
        rows: list[dict[str, Any]] = [
            {"id": None if number % 2 else f"k{number % 4}", "v": number} for number in range(12)
        ]
        # when rows without a key come, one table takes them, and the other one refuses
        write(keep, rows)
        with pytest.raises(Rejected):
            write(refuse, rows[1:2])
        write(refuse, rows[0:1])
        for turn in range(2):
            _compact(world, keep)
            # then all of them are there, in order, beside the last row of each key
            found = keep.read(compacted=True, columns=["id", "v"]).to_pylist()
            assert [row["v"] for row in found if row["id"] is None] == [
                row["v"] for row in rows if row["id"] is None
            ]
            assert {row["id"]: row["v"] for row in found if row["id"]} == {
                row["id"]: row["v"] for row in rows if row["id"]
            }
            assert keep.read(as_of="now").to_arrow().num_rows == len(found)
            if not turn:
                more: list[dict[str, Any]] = [{"id": None, "v": 100}, {"id": "k0", "v": 101}]
                write(keep, more)
                rows += more
        _compact(world, refuse)
        assert refuse.read(compacted=True, columns=["v"]).to_pylist() == [{"v": 0}]


def _compact(world: World, table: Table) -> None:
    world.settle(table)
    table.compact(engine="local", verify=True)


# -- memory, and large rows -----------------------------------------------------------------------


@pytest.mark.slow
def test_keys_that_do_not_fit_into_the_memory_are_worked_off_in_ranges(tmp_path: Path) -> None:
    # given more keys than a megabyte holds
    keys = [f"key number {random.Random(number).randrange(60_000):06}" for number in range(80_000)]
    deleted = sorted(set(keys))[::7]
    cost = {}
    with World(tmp_path / "data", columns={"id": "string", "v": "int32"}) as world:
        world.write(*[(key, number) for number, key in enumerate(keys)])
        world.write(*[(key, None) for key in deleted])
        for memory in [1 << 20, 1 << 30]:
            # when they are compacted with little memory, and with much, from the beginning
            other = world.db.create_table(f"m{memory}", world.table.schema, key="id", partitions=1)
            other.append(world.table.read(columns=["id", "v"], end=len(keys)).to_arrow())
            other.delete(deleted)
            world.settle(other)
            run = other.compact(engine="local", memory_bytes=memory, verify=True)
            cost[memory] = run.bytes_read
            # then both say the same
            assert folded(other.read(compacted=True)) == world.model
            assert run.rows_live == len(world.model)
    assert cost[1 << 20] > 1.3 * cost[1 << 30]


@pytest.mark.slow
def test_rows_larger_than_any_buffer_are_compacted_and_too_large_ones_refused(
    tmp_path: Path,
) -> None:
    large = {key: os.urandom(6 << 20) for key in "ab"}
    with World(tmp_path / "data", columns={"id": "string", "v": "binary"}) as world:
        world.write(("a", b"small"), ("c", b"small"))
        world.batched = False
        world.write(*large.items())
        world.batched = True
        with pytest.raises(Rejected):
            world.table.append([{"id": "d", "v": bytes(8 << 20)}])
        world.compact(verify=True)
        world.check()


# -- the files alone ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_files_alone_say_the_same_without_live_sets(both: World) -> None:
    """The highest offset of each key, without deletes, over all files of the manifest."""
    chance = random.Random(5)
    for turn in range(6):
        changes = [
            (f"k{chance.randrange(30)}", None if chance.random() < 0.3 else turn) for _ in range(20)
        ]
        both.write(*changes)
        both.compact()
        files = [both.path / "ledgers" / file.path for file in both.manifest().files]
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        last = {row["id"]: row for row in sorted(rows, key=lambda row: row["_offset"])}
        found = {key: row["v"] for key, row in last.items() if row["_change"] == "upsert"}
        assert found == both.model
        both.check()
