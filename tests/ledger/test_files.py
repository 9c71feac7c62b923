"""Ledger files: what is written comes back, of every type; what is damaged does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from ledger.making import VALUES, made_table, rows_of
from ledger.remote import remote_store
from lowmark.catalog import Table
from lowmark.errors import InvariantBroken, Unavailable
from lowmark.ledger import LedgerDamaged, LedgerFile, LedgerLost, OpenFile, open_key_file
from lowmark.ledger.digest import EMPTY, measure
from lowmark.ledger.files import SYSTEM_IDS, FileWriter, Rows, check_there, file_schema
from lowmark.runtime import DiskFull
from lowmark.runtime.disk import StoreFailed
from lowmark.runtime.store import Store
from lowmark.table import OFFSET, KeyForm

ORDERS = made_table(
    {"id": "int64", "a.b": "string", "a": "struct<b: string, n: list<int32>>"}, key=["id"]
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def some(low: int, high: int, *, deletes: Sequence[int] = ()) -> Rows:
    """Rows of the table of orders, whose ids are their offsets."""
    numbers = range(low, high)
    values: dict[str, list[Any]] = {
        "id": list(numbers),
        "a.b": [f"dotted {number}" for number in numbers],
        "a": [{"b": f"inside {number}", "n": [number, None]} for number in numbers],
    }
    return rows_of(ORDERS.latest, values, first=low, deletes=deletes)


def write(store: Store, table: Table, *parts: Rows) -> LedgerFile:
    writer = FileWriter(store, "t/one.parquet", table, table.latest, pace=lambda count: None)
    for part in parts:
        writer.add(part)
    return writer.finish()


def joined(parts: Sequence[Rows]) -> tuple[list[Any], list[int], list[int], list[bool]]:
    return (
        [row for part in parts for row in part.columns.to_pylist()],
        np.concatenate([part.offsets for part in parts]).tolist(),
        np.concatenate([part.times for part in parts]).tolist(),
        np.concatenate([part.deletes for part in parts]).tolist(),
    )


# -- writing and reading back -------------------------------------------------------------------


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_rows_of_every_type_come_back_as_they_went_in(tmp_path: Path, where: str) -> None:
    # given a column of every type, with every value of it and nulls
    store = Store(str(tmp_path)) if where == "here" else remote_store(str(tmp_path))[0]
    table = made_table({f"c{at}": kind for at, kind in enumerate(VALUES)})
    count = 1 + max(map(len, VALUES.values()))
    columns = {
        f"c{at}": [None, *values, *[None] * count][:count]
        for at, values in enumerate(VALUES.values())
    }
    rows = rows_of(table.latest, columns, first=100, step=3)
    # when they are written, in two parts
    file = write(store, table, rows.kept(rows.offsets < 110), rows.kept(rows.offsets >= 110))
    # then they are read back, to the bit
    opened = OpenFile(store, file, table.latest)
    [back] = opened.rows()
    assert back.columns.schema == rows.columns.schema
    assert back.hashes(table.latest).tolist() == rows.hashes(table.latest).tolist()
    assert repr(joined([back])) == repr(joined([rows]))  # a NaN is equal to no other
    # and the file says what is in it
    assert (file.rows, file.first, file.last) == (count, 100, 100 + 3 * (count - 1))
    assert file.digest_value() == EMPTY.plus(rows.hashes(table.latest))
    assert (file.keys_path, file.deletes, file.dead) == ("", "", "")


def test_row_groups_are_found_by_offset_and_rows_by_group(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a file with small row groups
    monkeypatch.setattr("lowmark.ledger.files.ROW_GROUP_ROWS", 4)
    parts = [some(0, 3), some(10, 13), some(20, 29), some(40, 41)]
    file = write(store, ORDERS, *parts)
    opened = OpenFile(store, file, ORDERS.latest)
    # then a group ends when it has enough
    assert opened.starts.tolist() == [0, 6, 15, 16]
    assert joined(list(opened.rows())) == joined(parts)
    # and the first group with rows at or above an offset is found
    found = {offset: opened.group_of(offset) for offset in (0, 12, 13, 20, 28, 29, 40, 41)}
    assert found == {0: 0, 12: 0, 13: 1, 20: 1, 28: 1, 29: 2, 40: 2, 41: 3}
    # and only columns that are asked for are given, in the order in which they are
    batch = opened.group(1, [OFFSET, "a.b"])
    assert batch.schema.names == [OFFSET, "a.b"]
    assert batch.column("a.b")[0].as_py() == "dotted 20"
    assert opened.group(0, ["a"]).column(0)[0].as_py() == {"b": "inside 0", "n": [0, None]}
    assert opened.group(2, []).num_rows == 1


def test_a_file_has_an_index_of_its_keys_and_a_set_of_its_deletes(store: Store) -> None:
    rows = some(0, 50, deletes=[3, 7])
    file = write(store, ORDERS, rows)
    index = open_key_file(store, file.keys_path, checksum=file.keys_checksum)
    assert file.delete_set() == BitMap([3, 7])
    keys = KeyForm.of(ORDERS).array(rows.columns)
    at = index.find(keys, KeyForm.hashes(keys, 0))
    assert index.rows[at].tolist() == list(range(50))
    assert index.digests[at].tolist() == rows.hashes(ORDERS.latest).tolist()
    assert (index.hashes[:-1] <= index.hashes[1:]).all()


@pytest.mark.parametrize(("ids", "indexed"), [([None, 5, None, 6], [1, 3]), ([None] * 4, [])])
def test_rows_without_a_key_are_in_no_index(
    store: Store, ids: list[int | None], indexed: list[int]
) -> None:
    table = made_table({"id": "int64"}, key=["id"], options={"keyless_rows": "keep"})
    file = write(store, table, rows_of(table.latest, {"id": ids}))
    if not indexed:
        assert (file.keys_path, file.keys_bytes) == ("", 0)
        return
    index = open_key_file(store, file.keys_path, checksum=file.keys_checksum)
    assert sorted(index.rows.tolist()) == indexed


def test_columns_have_the_ids_of_the_catalog_and_pages_have_checksums(store: Store) -> None:
    file = write(store, ORDERS, some(0, 5))
    stored = pq.ParquetFile(store.full_path(file.path))
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in stored.schema_arrow]
    assert ids == [*(column.id for column in ORDERS.columns), *SYSTEM_IDS.values()]
    assert stored.schema_arrow.names == file_schema(ORDERS.latest).names
    # then any program that looks at them finds damage
    path = Path(store.full_path(file.path))
    data = bytearray(path.read_bytes())
    chunk = stored.metadata.row_group(0).column(0)
    data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


@pytest.mark.parametrize("bad", [[1, 0], [0, 0], [5, 7, 6]])
def test_offsets_out_of_order_are_refused(store: Store, bad: list[int]) -> None:
    writer = FileWriter(store, "t/one.parquet", ORDERS, ORDERS.latest, pace=lambda count: None)
    rows = some(0, len(bad))
    with pytest.raises(InvariantBroken, match="order"):
        writer.add(Rows(rows.columns, np.array(bad), rows.times, rows.deletes))
    writer.add(some(10, 12))
    with pytest.raises(InvariantBroken, match="order"):
        writer.add(some(11, 13))
    writer.give_up()
    assert store.files("") == []


def test_a_file_that_comes_back_other_than_it_went_in_is_not_handed_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a library that loses the last value of a column on its way to the disk
    real = pq.ParquetWriter.write_table

    def lossy(writer: Any, table: pa.Table, **more: Any) -> None:
        column = pa.array([*table.column("id").to_pylist()[:-1], 0], pa.int64())
        field = table.schema.field("id")
        real(writer, table.set_column(0, field, column), **more)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", lossy)
    # then whoever writes the file finds out
    with pytest.raises(LedgerDamaged, match="other than they were written"):
        write(store, ORDERS, some(0, 5))


def test_a_full_store_is_told_and_nothing_is_left_there(tmp_path: Path) -> None:
    store, remote = remote_store(str(tmp_path))
    remote.space_bytes = 2_000
    with pytest.raises(DiskFull):
        write(store, ORDERS, *[some(100 * at, 100 * at + 100) for at in range(20)])
    assert store.files("") == []


def test_a_store_that_goes_away_while_a_file_is_read_says_nothing_of_the_file(
    tmp_path: Path,
) -> None:
    # given a ledger file and its index in a store elsewhere
    store, remote = remote_store(str(tmp_path))
    file = write(store, ORDERS, some(0, 40))
    opened = OpenFile(store, file, ORDERS.latest)
    reads: list[Callable[[], object]] = [
        lambda: OpenFile(store, file, ORDERS.latest),
        lambda: check_there(store, [file]),
        lambda: measure(store, file.path),
        lambda: open_key_file(store, file.path, checksum=0),
        lambda: store.read(file.path),
    ]
    # when the line dies, then that is the error, and not that the file is damaged
    remote.broken = "read"
    for read in reads:
        with pytest.raises(StoreFailed, match="the line is dead") as failed:
            read()
        assert isinstance(failed.value, Unavailable)
    # and a file that was open before is read on
    remote.broken = ""
    assert opened.group(0, ["id"]).num_rows == 40


# -- damage -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_flipped_bit_gives_other_rows_or_ends_the_process(store: Store) -> None:
    # given a file, and all that can be read from it
    file = write(store, ORDERS, some(0, 40, deletes=[3]))
    path = Path(store.full_path(file.path))
    data = path.read_bytes()
    good = joined(list(OpenFile(store, file, ORDERS.latest).rows()))
    magic = 4
    for at in range(len(data)):
        # when a bit of it is flipped
        bad = bytearray(data)
        bad[at] ^= 1 << at % 8
        path.write_bytes(bad)
        # then it is named; but nobody looks at the letters that it begins with
        if at < magic:
            assert joined(list(OpenFile(store, file, ORDERS.latest).rows())) == good
            continue
        with pytest.raises(LedgerDamaged, match=r"one\.parquet is damaged"):
            list(OpenFile(store, file, ORDERS.latest).rows())


@pytest.mark.parametrize("size", [0, 3, 11, -1])
def test_a_file_that_was_cut_is_damaged_and_one_that_is_gone_is_lost(
    store: Store, size: int
) -> None:
    file = write(store, ORDERS, some(0, 40))
    path = Path(store.full_path(file.path))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(LedgerDamaged, match="bytes"):
        OpenFile(store, file, ORDERS.latest)
    path.unlink()
    with pytest.raises(LedgerLost, match="missing"):
        OpenFile(store, file, ORDERS.latest)


def test_another_sound_file_in_its_place_is_damage(store: Store) -> None:
    # given two files of the same length, and one in the place of the other
    file = write(store, ORDERS, some(10, 15))
    other = write(store, ORDERS, some(20, 25))
    assert other.bytes == file.bytes
    # then it is not taken for what it should be
    with pytest.raises(LedgerDamaged, match="footer"):
        OpenFile(store, file, ORDERS.latest)


def test_damage_in_one_column_harms_nobody_who_reads_the_others(store: Store) -> None:
    file = write(store, ORDERS, some(0, 40))
    path = Path(store.full_path(file.path))
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    opened = OpenFile(store, file, ORDERS.latest)
    with pytest.raises(LedgerDamaged, match="column id of row group 0"):
        opened.group(0, ["a", "id"])
    assert opened.group(0, ["a"]).num_rows == 40


@pytest.mark.parametrize("kind", ["int64", "string"])
@pytest.mark.parametrize("keyless", [0, 900])
def test_a_writer_says_how_large_the_index_will_be(store: Store, kind: str, keyless: int) -> None:
    """Files are ended by that, and whether one was full is found by its index."""
    table = made_table({"k": kind}, key=["k"], options={"keyless_rows": "keep"})
    keys: list[Any] = list(range(1_000))
    keys = [key if kind == "int64" else f"{key:030}" for key in keys]
    writer = FileWriter(store, "t/one.parquet", table, table.latest, pace=lambda count: None)
    writer.add(rows_of(table.latest, {"k": [None] * keyless + keys[keyless:]}))
    said = writer.keys_bytes
    file = writer.finish()
    assert said / 2 < file.keys_bytes < 2 * said + 1_000


# -- what is live -------------------------------------------------------------------------------


def test_what_is_dead_stays_dead(store: Store) -> None:
    file = write(store, ORDERS, some(0, 6))
    dead = file.with_dead(BitMap([0, 4]), EMPTY)
    mask = dead.live_mask()
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == [1, 2, 3, 5]
    assert file.live_mask() is None
    assert (dead.live_rows, dead.rows, dead.dead_set()) == (4, 6, BitMap([0, 4]))
    with pytest.raises(InvariantBroken):
        dead.with_dead(BitMap([0]), EMPTY)
