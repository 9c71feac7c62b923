"""What a sink says of columns and rows that its table can't take, and when: without a JVM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from frames.alone import in_task
from lowmark.client import Database, Table
from lowmark.errors import CatalogTable, ColumnRefused, OptionRefused, ValueRefused
from lowmark.frames import LowmarkSource
from lowmark.frames.columns import spark_schema


@pytest.fixture
def table(db: Database) -> Table:
    columns = {"o_id": "int64", "c_id": "int64", "v": "string"}
    return db.create_table("t", columns, key="o_id", partitions=2)


def writer(place: str, columns: str, *, stream: bool = True, **options: str) -> Any:
    source = LowmarkSource({"path": place, "table": "t", **options})
    kinds = {"bigint": pa.int64(), "string": pa.string(), "array": pa.list_(pa.string())}
    pairs = [one.split() for one in columns.split(", ")]
    schema = spark_schema(pa.schema([(name, kinds[kind]) for name, kind in pairs]))
    return source.streamWriter(schema, False) if stream else source.writer(schema, False)


@pytest.mark.parametrize("stream", [False, True], ids=["write", "stream"])
def test_columns_are_looked_at_before_any_task_runs(place: str, table: Table, stream: bool) -> None:
    writer(place, "o_id bigint, v string, _change string", stream=stream)
    for columns, why in (
        ("o_id bigint, w string", "the table has no column w"),
        ("v string", "column o_id is required"),
        ("o_id bigint, _change array", "column _change is of Arrow's type list"),
    ):
        with pytest.raises(ColumnRefused, match=why):
            writer(place, columns, stream=stream)


def test_a_column_that_was_renamed_under_a_sink_is_named_as_it_is_now(
    place: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a stream that writes a column, and its table, where that is called something else now
    columns = "o_id bigint, c_id bigint"
    begun = writer(place, columns)
    table.alter(rename={"c_id": "customer_id"})
    # when its next batch is planned, and when a task of this one runs
    with pytest.raises(ColumnRefused) as planned:
        writer(place, columns)
    batch = pa.record_batch({"o_id": [1], "c_id": [2]})
    with pytest.raises(ColumnRefused) as ran, in_task():
        begun.write(iter([batch]))
    # then both say so
    for one in (planned, ran):
        assert one.value.message == "the table has no column c_id"
        assert one.value.hint == "It was renamed, and is now customer_id."
    # and what was staged before that can still be committed, or dropped
    runner = "pyspark.sql.worker.python_streaming_sink_runner"
    monkeypatch.setitem(sys.modules, runner, ModuleType(runner))
    writer(place, columns)


@pytest.mark.parametrize("change", [None, "c", "Upsert"])
def test_a_row_without_a_change_is_named_by_its_key(
    place: str, table: Table, change: str | None
) -> None:
    # given a task with many rows, of which one says nothing that is a change
    def batches() -> Iterator[pa.RecordBatch]:
        for at in range(0, 100_000, 10_000):
            keys = list(range(at, at + 10_000))
            changes = [change if key == 70_007 else "upsert" for key in keys]
            yield pa.record_batch({"o_id": keys, "_change": pa.array(changes, pa.string())})

    # when it is written
    one = writer(place, "o_id bigint, _change string", stream=False)
    with pytest.raises(ValueRefused) as refused, in_task(partition=3):
        one.write(batches())
    # then the row is told from all others of the frame
    assert refused.value.message.startswith(
        f"row 70007, column _change: {change!r} is not a change"
    )
    assert refused.value.detail == "It is of partition 3 of the frame: o_id = 70007."


def test_a_stream_into_a_table_of_sparks_catalog_is_refused(place: str, table: Table) -> None:
    one = writer(place, "o_id bigint")
    rows = pa.record_batch({"o_id": [1]})
    with pytest.raises(CatalogTable, match=r"use start\(\)"), in_task(query="q", call="toTable"):
        one.write(iter([rows]))
    # and of such a table, and one of saveAsTable, Spark hands on no options when it is read
    with pytest.raises(OptionRefused) as refused:
        LowmarkSource({"provider": "lowmark", "owner": "me"}).schema()
    assert "also one of saveAsTable, writeTo or toTable" in refused.value.detail
    assert "Write by save() and start()" in refused.value.hint
