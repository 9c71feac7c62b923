"""Looking keys up: the index is built from chunks, outlives a change of the schema, holds no file.

And looking back, which reads keys the same way.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lowmark
from eventually import eventually
from inside import backend_of, commands_of, lose_history, on_loop, partition_of, proposed
from lowmark.catalog import AddColumns, NewColumn, RenameColumn, parse_type
from lowmark.client import Database, RowsLost, Table
from lowmark.client.looking_back import AsOfReader
from lowmark.client.lookup import Lookup
from lowmark.errors import Corrupt
from lowmark.log import EntryGone, LogConfig
from lowmark.node import Settings
from lowmark.table import Backlog, BelowWatermark, KeyReader, Shape, Trim, View

NOTE = AddColumns(table="t", columns=(NewColumn(name="note", type=parse_type("string")),))


def numbers(db: Database, **more: Any) -> Table:
    return db.create_table("t", {"k": "int64", "v": "int64"}, key="k", partitions=1, **more)


def expire(table: Table, offset: int) -> None:
    """Cut as retention does."""
    proposed(table, Trim(offset, expire=True))
    on_loop(table, partition_of(table).group.snapshot)


def small_chunks(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    monkeypatch.setattr("lowmark.table.backlog.FITTING_MAX", batches)


# -- the index ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 2, 7, 8_192])
def test_an_index_of_batches_of_every_kind_finds_the_last_row_of_each_key(
    db: Database, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    # given upserts, deletes, both at once and rows without a key, under two schema versions
    table = numbers(db, options={"keyless_rows": "keep"})
    chance, latest = random.Random(chunk), dict[int, int]()

    def fill(first: int) -> None:
        for value in range(first, first + 60):
            key, other = chance.randrange(12), chance.randrange(12)
            match chance.randrange(4):
                case 0:
                    table.delete([key])
                    latest.pop(key, None)
                case 1:
                    both = [("upsert", key), ("delete", other)]
                    table.append([{"k": k, "v": value, "_change": change} for change, k in both])
                    latest[key] = value
                    latest.pop(other, None)
                case 2:
                    table.append([{"k": None, "v": value}, {"k": key, "v": value}])
                    latest[key] = value
                case _:
                    table.append([{"k": key, "v": value}])
                    latest[key] = value

    fill(0)
    db.execute([NOTE, RenameColumn(table="t", column="k", to="id")])
    db.execute([RenameColumn(table="t", column="id", to="k")])
    fill(100)
    # when it is indexed so many batches at a time
    small_chunks(monkeypatch, chunk)
    found = {key: table.get(key) for key in range(12)}
    # then each key has its last row, or none
    assert {key: row["v"] for key, row in found.items() if row is not None} == latest
    many = table.get_many(range(12))
    assert many == [*found.values()]
    # and so has the table as it was
    rows = table.read(as_of="now", columns=["k", "v"]).to_pylist()
    assert {row["k"]: row["v"] for row in rows if row["k"] is not None} == latest
    assert sum(row["k"] is not None for row in rows) == len(latest)


@pytest.mark.parametrize("chunk", [1, 8_192])
def test_a_first_batch_that_a_cut_goes_through_is_indexed_from_the_cut_on(
    db: Database, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    # given batches of ten, and a cut within the first
    small_chunks(monkeypatch, chunk)
    table = numbers(db)
    for first in (0, 10, 20):
        table.append([{"k": key, "v": key} for key in range(first, first + 10)])
    expire(table, 4)
    # when keys are looked up, then those before the cut are gone, and no others
    there = [key for key in range(30) if table.get(key) is not None]
    assert there == [*range(4, 30)]
    rows = table.read(as_of="now", on_gap="skip").to_pylist()
    assert [row["k"] for row in rows] == there
    # and what comes later is found, too
    table.append([{"k": 2, "v": 7}])
    assert table.get(2) == {"k": 2, "v": 7}


def test_keys_of_every_type_are_indexed_over_many_batches(db: Database) -> None:
    # given keys of types that are stored in different ways
    kinds: dict[str, list[Any]] = {
        "uuid": [f"00000000-0000-0000-0000-{number:012}" for number in range(5)],
        "decimal(20,2)": [f"{number}.50" for number in range(5)],
        "binary": [bytes([number]) for number in range(5)],
        "date": [f"2026-01-0{number}" for number in range(1, 6)],
    }
    for at, (kind, keys) in enumerate(kinds.items()):
        name = f"t{at}"
        table = db.create_table(name, {"k": kind, "n": "string", "v": "int64"}, key=("k", "n"))
        for number, key in enumerate(keys):
            table.append([{"k": key, "n": "ü" * number, "v": number}])
        # then each is found
        for number, key in enumerate(keys):
            found = table.get((key, "ü" * number))
            assert found is not None
            assert found["v"] == number


def test_rows_of_a_schema_version_that_nobody_knows_are_corrupt(db: Database) -> None:
    # given rows that were written with a newer schema version than a reader of keys has
    table = numbers(db)
    old = table.descriptor
    db.execute([NOTE])
    table.append([{"k": 1, "v": 1, "note": "x"}])
    view = partition_of(table).view
    commands = commands_of(table, view, 0, 1)
    # when it reads them, then that is no fault of the caller
    with pytest.raises(Corrupt, match="schema version 2"):
        list(KeyReader(old).read(view, 0, commands))


# -- schema versions ------------------------------------------------------------------------------


def test_rows_of_a_version_that_came_meanwhile_are_looked_up_as_the_older_one_says(
    db: Database,
) -> None:
    # given somebody who looks keys up, and just then the table gets a column, and rows with it
    table = numbers(db)
    lookup = Lookup(backend_of(table), table.descriptor, newest=lambda: table.descriptor)
    db.execute([NOTE])
    table.append([{"k": 1, "v": 1, "note": "x"}])
    # when the key is looked up, then it is found, with the columns of before
    assert lookup.get([1]) == {"k": 1, "v": 1}


def looking_up(table: Table, known: Lookup | None = None) -> Lookup:
    return Lookup(backend_of(table), table.descriptor, known=known)


def test_a_change_of_the_schema_keeps_the_index_and_not_the_rows(db: Database) -> None:
    # given an index, and rows at hand
    table = numbers(db)
    table.append([{"k": key, "v": key} for key in range(100)])
    old = looking_up(table)
    assert old.get([7]) == {"k": 7, "v": 7}
    assert old.size().cached_bytes > 0
    # when a column is added
    db.execute([NOTE])
    new = looking_up(table, old)
    # then the index is there before anybody asks, and rows are as the newer version says
    assert (new.size().keys, new.size().cached_bytes) == (100, 0)
    assert new.get([7]) == {"k": 7, "v": 7, "note": None}
    assert old.get([7]) == {"k": 7, "v": 7}
    # and what one of them brings up to date is so for both
    table.append([{"k": 7, "v": 8}, {"k": 100, "v": 1}])
    assert new.get([100]) is not None
    assert old.size().keys == new.size().keys


def test_an_index_of_another_table_is_not_taken_over(db: Database) -> None:
    # given an index of one table
    table = numbers(db)
    table.append([{"k": 1, "v": 1}])
    old = looking_up(table)
    assert old.get([1]) is not None
    # when it is offered to another one, then that begins with none
    other = db.create_table("other", {"k": "int64"}, key="k", partitions=1)
    new = looking_up(other, old)
    assert new.size().keys == 0
    assert new.get([1]) is None


def test_older_and_newer_versions_look_up_at_once_while_rows_come(db: Database) -> None:
    # given two versions that share an index, and somebody who appends
    table = numbers(db)
    table.append([{"k": key, "v": 0} for key in range(50)])
    old = looking_up(table)
    new = looking_up(table, old)
    over, wrong = threading.Event(), list[object]()

    def look(lookup: Lookup) -> None:
        last = 0
        while not over.wait(0.001):
            row = lookup.get([7])
            if row is None or row["v"] < last:
                wrong.append((row, last))
                return
            last = row["v"]

    threads = [threading.Thread(target=look, args=(one,)) for one in (old, old, new, new)]
    for thread in threads:
        thread.start()
    # when rows come
    for value in range(1, 30):
        table.append([{"k": 7, "v": value}])
    over.set()
    for thread in threads:
        thread.join()
    # then nobody sees an older row after a newer one
    assert wrong == []
    assert old.get([7]) == new.get([7]) == {"k": 7, "v": 29}


# -- what it keeps --------------------------------------------------------------------------------


@pytest.fixture
def filed(tmp_path: Path) -> Iterator[Table]:
    """A table whose batches do not stay in memory: they stand in small files."""
    config = LogConfig(wal_bytes_max=4 << 10, segment_bytes_max=4 << 10)
    with lowmark.open(tmp_path / "data", settings=Settings(log=config)) as db:
        table = numbers(db)
        for key in range(40):
            table.append([{"k": key, "v": key}])
        yield table


def test_the_cache_counts_what_a_small_batch_really_takes(db: Database) -> None:
    # given batches of one row
    table = numbers(db)
    for key in range(10):
        table.append([{"k": key, "v": key}])
    # when they are at hand
    for key in range(10):
        table.get(key)
    # then each counts with what it takes besides its two numbers
    size = table.index_size
    assert size is not None
    assert 10 * 500 < size.cached_bytes < 10 * 5_000


def test_batches_below_a_cut_are_at_hand_no_longer(db: Database) -> None:
    # given batches that look-ups keep at hand
    table, sizes = numbers(db), list[int]()
    for first in range(0, 50, 10):
        table.append([{"k": key, "v": key} for key in range(first, first + 10)])
        assert table.get(first) == {"k": first, "v": first}
        # when each is cut, but for its last row, before the next one comes
        expire(table, first + 9)
        size = table.index_size
        assert size is not None
        sizes.append(size.cached_bytes)
    # then those of which no row is left take no memory: at hand are the newest, and the one before
    assert sizes[2:] == [sizes[1]] * 3
    assert table.get(39) is None
    assert table.get(49) == {"k": 49, "v": 49}


# -- chunks ---------------------------------------------------------------------------------------


def test_as_many_batches_are_read_together_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    # given batches of 10 bytes each
    backlog = Backlog()
    for index in range(6):
        backlog.add(index, rows=1, time=1, schema=1, size=10, change=0)
    backlog.publish(0)
    view = backlog.view
    # then so many fit as are not larger together; at least one, and none beyond the end
    assert [view.fitting(0, 6, size) for size in (1, 10, 19, 20, 60, 1_000)] == [1, 1, 1, 2, 6, 6]
    assert view.fitting(2, 4, 1_000) == 4
    assert view.fitting(5, 6, 1) == 6
    # and not too many, however small
    small_chunks(monkeypatch, 3)
    assert [view.fitting(low, 6, 1_000) for low in (0, 3, 5)] == [3, 6, 6]


def test_a_batch_is_read_as_the_view_says(db: Database) -> None:
    # given a second batch
    table = numbers(db)
    table.append([{"k": 1, "v": 1}])
    table.append([{"k": key, "v": key} for key in (2, 3, 4)])
    view, command = stored(table, 1)
    shape = Shape(table.descriptor, ["k", "_offset", "_partition", "_time"])
    # when some of its rows are read
    some = shape.read_at(view, 1, command, partition=0, low=1, high=2)
    kept = shape.read_at(view, 1, command, partition=0, keep=np.array([True, False, True]))
    # then they have their places
    time = int(view.time[1])
    assert some.to_pylist() == [{"k": 3, "_offset": 2, "_partition": 0, "_time": time}]
    assert [row["_offset"] for row in kept.to_pylist()] == [1, 3]


def stored(table: Table, at: int) -> tuple[View, Any]:
    view = partition_of(table).view
    (command,) = commands_of(table, view, at, at + 1)
    return view, command


# -- looking back ---------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_who_looks_back_is_told_that_the_time_was_not_held(db: Database, limit: int | None) -> None:
    # given a reader whose hold was lost, as when its node is taken for gone
    table = numbers(db)
    (first,) = table.append([{"k": 1, "v": 1}, {"k": 2, "v": 2}]).parts
    (second,) = table.append([{"k": 1, "v": 2}]).parts
    reader = table.read(as_of=first.time, limit=limit)
    assert isinstance(reader, AsOfReader)
    assert reader._history is not None
    lose_history(db, reader._history)
    assert db.advance_watermark(second.time).after == second.time
    # when it has given its last row, then it says so
    with pytest.raises(BelowWatermark):
        reader.to_arrow()


def test_rows_that_go_while_somebody_looks_back_are_an_error_with_a_name(filed: Table) -> None:
    # given a reader for which nothing is held, though it should be
    reader = filed.read(as_of="now")
    backend_of(filed).release(reader._hold)
    expire(filed, 40)
    partition, (place, *_) = partition_of(filed), reader._parts[0].view.places.tolist()

    def gone() -> bool:
        partition.group.log.compact()
        try:
            partition.plan([place], held=True)
        except EntryGone:
            return True
        return False

    eventually(lambda: on_loop(filed, gone))
    # when it reads what is gone, then the error has a name
    with pytest.raises(RowsLost, match="offsets 0 to 39 of partition 0 are gone"):
        reader.to_arrow()


@pytest.mark.parametrize("key", [None, "k"])
def test_looking_back_over_many_chunks_gives_what_was_there(
    db: Database, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    # given many small batches, of which a cut went through the first, and small chunks
    small_chunks(monkeypatch, 3)
    table = db.create_table("t", {"k": "int64", "v": "int64"}, key=key, partitions=1)
    for first in range(0, 40, 4):
        keys = [number % 10 for number in range(first, first + 4)]
        table.append(pa.table({"k": keys, "v": [*range(first, first + 4)]}))
    expire(table, 2)
    # when the table is read as it was, then it has the last row of each key, or all rows
    rows = table.read(as_of="now", columns=["v"], on_gap="skip").to_pylist()
    assert [row["v"] for row in rows] == [*range(30 if key else 2, 40)]
