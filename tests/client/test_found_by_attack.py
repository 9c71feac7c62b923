"""What an attack on tables found, one after another: each was wrong once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lowmark
from eventually import eventually
from inside import backend_of, proposed
from lowmark.catalog import (
    AddColumns,
    AlterColumn,
    DropColumns,
    NewColumn,
    RenameColumn,
    parse_type,
)
from lowmark.client import Database, GapFound, Table, TableUnknown, ValueRefused
from lowmark.errors import Rejected
from lowmark.table import Trim


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", {"id": "int64", "v": "int32"}, key="id", partitions=1)


def new(name: str, kind: str, **more: Any) -> NewColumn:
    return NewColumn(name=name, type=parse_type(kind), **more)


# -- other columns --------------------------------------------------------------------------------


def test_get_sees_the_columns_of_now_whatever_was_called_before(db: Database, table: Table) -> None:
    table.append([{"id": 1, "v": 1}])
    assert table.get(1) == {"id": 1, "v": 1}
    db.execute([RenameColumn(table="t", column="v", to="value")])
    table.append([{"id": 2, "value": 2}])  # this takes note of the new columns, too
    assert table.get(1) == {"id": 1, "value": 1}
    assert table.get(2) == {"id": 2, "value": 2}
    # a column that is dropped and added again is another one
    db.execute([DropColumns(table="t", columns=("value",))])
    db.execute([AddColumns(table="t", columns=(new("value", "int32", default=5),))])
    assert table.name == "t"
    assert table.get(1) == {"id": 1, "value": 5}
    db.drop_table("t")
    assert table.name == "t"
    with pytest.raises(TableUnknown):
        table.get(1)


def test_a_follower_goes_on_with_its_columns_when_the_table_has_others(
    db: Database, table: Table
) -> None:
    reader = table.read(follow=True, columns=["id", "v"])
    table.append([{"id": 1, "v": 1}])
    assert next(reader).to_pylist() == [{"id": 1, "v": 1}]
    db.execute([AddColumns(table="t", columns=(new("w", "string"),))])
    table.append([{"id": 2, "v": 2, "w": "x"}])
    assert next(reader).to_pylist() == [{"id": 2, "v": 2}]
    db.execute([RenameColumn(table="t", column="v", to="value")])
    table.append([{"id": 3, "value": 3}])
    assert next(reader).to_pylist() == [{"id": 3, "v": 3}]
    db.execute([DropColumns(table="t", columns=("value",))])
    table.append([{"id": 4}])
    assert next(reader).to_pylist() == [{"id": 4, "v": None}]


def test_a_follower_is_told_when_values_no_longer_fit_its_columns(
    db: Database, table: Table
) -> None:
    reader = table.read(follow=True)
    db.execute([AlterColumn(table="t", column="v", type=parse_type("int64"))])
    table.append([{"id": 1, "v": 7}])
    assert next(reader).to_pylist() == [{"id": 1, "v": 7, "_change": "upsert"}]
    table.append([{"id": 2, "v": 1 << 40}])
    with pytest.raises(Rejected, match="v"):
        next(reader)


# -- arguments ------------------------------------------------------------------------------------


def test_one_key_is_not_several(db: Database) -> None:
    table = db.create_table("s", {"id": "string"}, key="id")
    table.append([{"id": "o"}, {"id": "o-1"}])
    for keys in ("o-1", b"o-1", {"id": "o-1"}, 5, None):
        with pytest.raises(Rejected, match="several"):
            table.delete(keys)
        with pytest.raises(Rejected, match="several"):
            table.get_many(keys)
    table.delete(pa.array(["o-1"]))
    assert table.get_many(pa.array(["o", "o-1"])) == [{"id": "o"}, None]


def test_keys_of_numpy_are_keys(table: Table) -> None:
    table.append([{"id": 5, "v": 1}])
    assert table.get(np.int64(5)) == table.get(5.0) == table.get(5) == {"id": 5, "v": 1}
    with pytest.raises(Rejected):
        table.get(5.5)


@pytest.mark.parametrize(
    "wish",
    [
        {"on_gap": "bogus"},
        {"limit": 1.5},
        {"limit": -1},
        {"partitions": 0},
        {"partitions": "0"},
        {"start": {"0": 1}},
        {"start": {7: 1}},
        {"start": {0: 1.5}},
        {"start": {0: "a"}},
        {"end": {0: True}},
        {"lease_ms": 10, "follow": True},
    ],
)
def test_wishes_that_mean_nothing_are_refused(table: Table, wish: dict[str, Any]) -> None:
    with pytest.raises(Rejected):
        table.read(**wish)


def test_nothing_but_numbers_goes_into_the_log(table: Table) -> None:
    table.append([{"id": 1}])
    table.cursors.create("c", start={0: np.int64(0)})  # type: ignore[dict-item]
    for offsets in ({0: 1.5}, {0: "1"}, {0: -1}, {3: 0}, {"0": 0}, 5):
        with pytest.raises(Rejected):
            table.cursors.commit("c", offsets)  # type: ignore[arg-type]
        with pytest.raises(Rejected):
            table.trim(offsets)  # type: ignore[arg-type]
    with pytest.raises(Rejected):
        table.cursors.create("d", max_lag_rows=5.5)  # type: ignore[arg-type]
    with pytest.raises(Rejected):
        table.cursors.create(5)  # type: ignore[arg-type]
    with pytest.raises(Rejected):
        lowmark.open("")


# -- values ---------------------------------------------------------------------------------------


def poisoned(kind: pa.DataType, value: bytes) -> pa.Array:
    """A good value, and one whose bytes are not what the type says."""
    if pa.types.is_string(kind):
        offsets = np.array([0, 1, 1 + len(value)], np.int32)
        return pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(b"a" + value))
    good = bytes(len(value))
    return pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(good + value)])


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("string", pa.string(), b"\xff\xfe"),
        ("date", pa.date32(), (2**31 - 1).to_bytes(4, "little")),
        ("timestamp", pa.timestamp("us", tz="UTC"), (2**60).to_bytes(8, "little")),
        ("timestamp_ntz", pa.timestamp("us"), (-(2**60)).to_bytes(8, "little", signed=True)),
        ("decimal(5,2)", pa.decimal128(5, 2), (10**20).to_bytes(16, "little")),
    ],
)
def test_values_that_are_not_what_their_type_says_are_refused(
    db: Database, column: str, kind: pa.DataType, value: bytes
) -> None:
    table = db.create_table("p", {"id": "int64", "x": column}, key="id")
    batch = pa.record_batch({"id": pa.array([1, 2]), "x": poisoned(kind, value)})
    with pytest.raises(ValueRefused) as refused:
        table.append(batch)
    assert (refused.value.row, refused.value.column) == (1, "x")
    assert table.read().to_pylist() == []
    table.append(batch.slice(0, 1))
    assert table.get(1) is not None


# -- looking back, and gaps -----------------------------------------------------------------------


def expire(table: Table, offset: int) -> None:
    proposed(table, Trim(offset, expire=True))


def test_rows_that_retention_took_are_no_secret_of_an_as_of_read(db: Database) -> None:
    events = db.create_table("events", {"n": "int64"}, partitions=1)
    (part,) = events.append([{"n": number} for number in range(10)]).parts
    assert events.read(as_of=part.time).to_arrow().num_rows == 10
    expire(events, 4)
    with pytest.raises(GapFound):
        events.read(as_of=part.time).to_arrow()
    reader = events.read(as_of=part.time, on_gap="skip")
    assert reader.to_arrow().num_rows == 6
    assert [(gap.first, gap.last) for gap in reader.gaps] == [(0, 3)]
    # who has read the table as it was goes on from there
    events.append([{"n": 10}])
    assert events.read(start=reader.position).to_pylist() == [{"n": 10}]


def test_a_gap_ends_where_the_read_does(db: Database) -> None:
    events = db.create_table("events", {"n": "int64"}, partitions=1)
    events.append([{"n": number} for number in range(30)])
    expire(events, 21)
    reader = events.read(start={0: 5}, end={0: 10}, on_gap="skip")
    assert reader.to_pylist() == []
    assert [(gap.first, gap.last) for gap in reader.gaps] == [(5, 9)]
    assert reader.position == {0: 10}


def test_a_time_is_read_from_and_up_to(table: Table) -> None:
    times = [table.append([{"id": number}]).parts[0].time for number in range(3)]

    def ids(**how: Any) -> list[int]:
        return [one["id"] for one in table.read(columns=["id"], **how).to_pylist()]

    assert ids(start=times[1]) == [1, 2]
    assert ids(end=times[1]) == [0, 1]
    assert sorted(ids(as_of=times[1])) == [0, 1]


# -- the end --------------------------------------------------------------------------------------


def test_closing_stores_what_producers_were_given(tmp_path: Path) -> None:
    db = lowmark.open(tmp_path)
    table = db.create_table("t", {"id": "int64"}, key="id", partitions=1)
    producer = table.producer(linger_ms=60_000)
    producer.send({"id": 1})
    db.close()
    with lowmark.open(tmp_path) as db:
        assert db["t"].get(1) == {"id": 1}


@pytest.mark.slow
def test_an_interpreter_that_ends_stores_what_producers_were_given(tmp_path: Path) -> None:
    program = f"""
import lowmark
table = lowmark.open({str(tmp_path)!r}).create_table("t", {{"id": "int64"}}, key="id", partitions=1)
producer = table.producer(linger_ms=60_000)
producer.send({{"id": 1}})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with lowmark.open(tmp_path) as db:
        assert db["t"].get(1) == {"id": 1}


@pytest.mark.slow
def test_ctrl_c_right_after_a_hold_was_taken_leaves_none(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.create_table("held", {"id": "int64"}, key="id", partitions=1)
    table.append([{"id": 1}])
    backend = backend_of(db)
    for name in ("hold_history", "hold"):
        take = getattr(backend, name)

        def interrupted(*given: Any, take: Any = take, **more: Any) -> None:
            take(*given, **more)
            raise KeyboardInterrupt

        # when a reader is interrupted before it has heard of its hold
        with monkeypatch.context() as patch:
            patch.setattr(backend, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                table.read(as_of=table.snapshot().time)
        # then nothing is held for it
        eventually(lambda: not backend._kept)
        eventually(lambda: not db.watermark().holds)


def test_a_close_that_was_interrupted_is_made_good_by_the_next_one(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.create_table("held", {"id": "int64"}, key="id", partitions=1)
    table.append([{"id": 1}])
    reader, backend = table.read(as_of=table.snapshot().time), backend_of(db)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(backend, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader.close()
    assert backend._kept
    reader.close()
    eventually(lambda: not backend._kept)
