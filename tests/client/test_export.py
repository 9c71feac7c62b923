"""A table in a directory of files: the same rows as of one time, whole or not there at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable

import lowmark
from inside import on_loop, partition_of, proposed
from lowmark.client import Database, Exported, ExportProgress, Table, parse_time
from lowmark.errors import (
    BelowWatermark,
    ColumnUnfit,
    DestinationRefused,
    GapFound,
    LowmarkError,
    PackageMissing,
    Rejected,
)
from lowmark.export import files as export_files
from lowmark.export import write_files
from lowmark.export.columns import columns_in
from lowmark.table import Trim

EVERYTHING = {
    "id": "int64",
    "flag": "bool",
    "tiny": "int8",
    "small": "int16",
    "plain": "int32",
    "short_real": "float32",
    "real": "float64",
    "price": "decimal(12,2)",
    "digits": "decimal(38,10)",
    "name": "string not null",
    "data": "binary",
    "who": "uuid",
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "tags": "list<string>",
    "ids": "list<uuid>",
    "place": "struct<city: string, zip: int16 not null, owner: uuid>",
    "counts": "map<string, int8>",
    "owners": "map<uuid, list<decimal(5,2)>>",
}
FULL: dict[str, Any] = {
    "id": 9_007_199_254_740_993,
    "flag": True,
    "tiny": -128,
    "small": 32_767,
    "plain": -1,
    "short_real": 0.5,
    "real": 0.1,
    "price": "-12.50",
    "digits": "1234567890123456789012345678.1234567890",
    "name": "größe",
    "data": b"\x00\xff",
    "who": "00000000-0000-0000-0000-000000000007",
    "day": "1582-10-04",
    "at": "2026-07-01T12:00:00.123456Z",
    "local": "0001-01-01T00:00:00",
    "tags": ["a", None, ""],
    "ids": ["00000000-0000-0000-0000-000000000008", None],
    "place": {"city": "Köln", "zip": 123, "owner": "00000000-0000-0000-0000-000000000009"},
    "counts": {"a": 1, "b": None},
    "owners": {"00000000-0000-0000-0000-00000000000a": ["1.50", None]},
}
EMPTY: dict[str, Any] = dict.fromkeys(FULL) | {"id": 1, "name": ""}


def read_parquet(path: Path) -> pa.Table:
    return pq.read_table(path)


def read_delta(path: Path) -> pa.Table:
    table = DeltaTable(path)
    assert table.version() == 0  # one commit
    return table.to_pyarrow_table()


def read_iceberg(path: Path) -> pa.Table:
    table = StaticTable.from_metadata(str(path))
    assert len(table.snapshots()) == 1  # one commit
    return table.scan().to_arrow()


READ: dict[str, Callable[[Path], pa.Table]] = {
    "parquet": read_parquet,
    "delta": read_delta,
    "iceberg": read_iceberg,
}
"""How a program that knows nothing of Lowmark reads each format."""

NEEDS = {"delta": "deltalake", "iceberg": "pyiceberg"}
formats = pytest.mark.parametrize("form", sorted(READ))


def plain(rows: pa.Table) -> pa.Table:
    """Rows in one order, with the types that a table has for them."""
    return rows.sort_by("id")


def read_back(form: str, path: Path, like: pa.Schema) -> pa.Table:
    """What is in an export, in the table's own types: a value that is lost, or another one, shows.

    The cast is Arrow's, and safe: it goes through only if each value fits.
    """
    found = READ[form](path)
    assert found.schema.names == like.names
    return plain(found.cast(loose(like)))


def loose(schema: pa.Schema) -> pa.Schema:
    """The same types; anything within a column may be null."""
    return columns_in(schema, lambda kind: kind, format_name="")


def rows_of(table: Table, **options: Any) -> pa.Table:
    with table.read(as_of=options.pop("as_of", "now"), **options) as reader:
        rows = pa.Table.from_batches(list(reader), reader.schema)
        return plain(rows.cast(loose(reader.schema)))


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def changed(orders: Table) -> Table:
    """Orders with updates and deletes, in the ledger and behind it."""
    orders.append([{"id": f"o-{n}", "status": "new", "amount": n} for n in range(200)])
    orders.delete([f"o-{n}" for n in range(0, 200, 3)])
    orders.append([{"id": f"o-{n}", "status": "paid", "amount": 7} for n in range(0, 200, 4)])
    return orders


@formats
def test_every_type_comes_out_as_it_went_in(form: str, db: Database, tmp_path: Path) -> None:
    # given a table with a column of each type, and a row with nothing but nulls
    table = db.create_table("everything", EVERYTHING, key="id", partitions=2)
    table.append([FULL, EMPTY])
    # when it is exported
    done = table.export(tmp_path / "out", format=form)
    # then another program reads equal values
    assert read_back(form, tmp_path / "out", table.schema) == rows_of(table)
    assert (done.rows, done.table, done.format) == (2, "everything", form)


@formats
def test_of_each_key_the_last_row_is_there_and_deletes_are_not(
    form: str, orders: Table, tmp_path: Path
) -> None:
    # given rows that were replaced and deleted
    changed(orders)
    # when
    done = orders.export(tmp_path / "out", format=form)
    # then
    found = read_back(form, tmp_path / "out", orders.schema)
    assert found == rows_of(orders)
    assert done.rows == found.num_rows == orders.count() == 150
    assert 1 <= done.files <= 4
    data = list((tmp_path / "out").rglob("*.parquet"))
    assert (done.files, done.bytes) == (len(data), sum(path.stat().st_size for path in data))


@formats
def test_a_table_that_was_compacted_is_the_same_table(
    form: str, db: Database, tmp_path: Path
) -> None:
    # given orders of which most are in ledgers, some died there, and some came later
    orders = changed(
        db.create_table(
            "orders", {"id": "string", "amount": "int64", "status": str}, key="id", partitions=2
        )
    )
    db.advance_watermark("now")
    assert orders.compact(engine="local").state == "done"
    orders.delete(["o-1", "o-2"])
    orders.append([{"id": "o-5", "amount": 99}, {"id": "late", "amount": 1}])
    # when
    orders.export(tmp_path / "out", format=form)
    # then
    assert read_back(form, tmp_path / "out", orders.schema) == rows_of(orders)


@formats
def test_an_export_is_as_of_a_time_with_the_columns_of_then(
    form: str, orders: Table, tmp_path: Path
) -> None:
    # given a time, and what changed after it: rows and columns
    orders.append([{"id": "a", "amount": 1}, {"id": "b", "amount": 2}])
    then = orders.snapshot().time
    before = rows_of(orders, as_of=then)
    orders.delete(["a"])
    orders.alter(add={"note": "string"}, rename={"status": "state"})
    orders.append([{"id": "c", "note": "later"}])
    # when the table is exported as of then, and as of now
    past = orders.export(tmp_path / "past", format=form, as_of=then)
    now = orders.export(tmp_path / "now", format=form)
    # then each has its own rows and columns, and says its time
    assert past.time == then < now.time
    assert past.datetime <= now.datetime
    assert read_back(form, tmp_path / "past", before.schema) == before
    assert READ[form](tmp_path / "past").schema.names == ["id", "status", "amount"]
    assert read_back(form, tmp_path / "now", orders.schema) == rows_of(orders)
    assert READ[form](tmp_path / "now").schema.names == ["id", "state", "amount", "note"]


@formats
def test_rows_of_older_schema_versions_have_the_columns_of_today(
    form: str, db: Database, tmp_path: Path
) -> None:
    # given rows from before columns were added, dropped, renamed and widened
    table = db.create_table("t", {"id": "int32", "old": "string", "n": "int16"}, key="id")
    table.append([{"id": 1, "old": "x", "n": 7}, {"id": 2, "n": 8}])
    table.alter(add={"extra": "uuid"}, drop="old", rename={"n": "number"}, widen={"n": "int64"})
    table.append([{"id": 2, "number": 1 << 40, "extra": FULL["who"]}])
    # when
    table.export(tmp_path / "out", format=form)
    # then
    assert read_back(form, tmp_path / "out", table.schema) == rows_of(table)


@formats
def test_an_empty_table_is_a_table_with_columns(form: str, orders: Table, tmp_path: Path) -> None:
    done = orders.export(tmp_path / "out", format=form)
    found = read_back(form, tmp_path / "out", orders.schema)
    assert (done.rows, found.num_rows) == (0, 0)


@formats
def test_a_table_without_a_key_has_all_its_rows(form: str, db: Database, tmp_path: Path) -> None:
    events = db.create_table("events", {"id": "int64", "what": "string"}, partitions=3)
    events.append([{"id": n % 5, "what": "x"} for n in range(100)])
    assert events.export(tmp_path / "out", format=form).rows == 100
    assert READ[form](tmp_path / "out").num_rows == 100


@formats
def test_only_the_columns_that_were_asked_for_are_there(
    form: str, orders: Table, tmp_path: Path
) -> None:
    changed(orders)
    wanted = ["amount", "id", "_time", "_offset", "_change"]
    orders.export(tmp_path / "out", format=form, columns=wanted)
    found = plain(READ[form](tmp_path / "out"))
    expected = rows_of(orders, columns=wanted)
    assert found.schema.names == wanted
    assert found.to_pylist() == expected.to_pylist()


@formats
def test_required_columns_are_required_there(form: str, db: Database, tmp_path: Path) -> None:
    table = db.create_table("t", {"id": "int64", "a": "string not null", "b": "string"}, key="id")
    table.append([{"id": 1, "a": "x"}])
    table.export(tmp_path / "out", format=form)
    nullable = {field.name: field.nullable for field in READ[form](tmp_path / "out").schema}
    assert nullable == {"id": False, "a": False, "b": True}


# -- the directory ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("notes.txt", "is not empty"),
        ("_delta_log/0.json", "is a Delta table already"),
        ("metadata/version-hint.text", "is an Iceberg table already"),
    ],
)
@formats
def test_a_directory_that_is_not_empty_is_refused_and_left_alone(
    form: str, there: str, said: str, orders: Table, tmp_path: Path
) -> None:
    # given a directory with something in it
    out = tmp_path / "out"
    (out / there).parent.mkdir(parents=True)
    (out / there).write_text("mine")
    # when
    with pytest.raises(DestinationRefused, match=said):
        orders.export(out, format=form)
    # then
    assert [path.read_text() for path in out.rglob("*") if path.is_file()] == ["mine"]
    assert left_over(tmp_path) == []


def test_an_empty_directory_is_taken_with_its_mode(orders: Table, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir(mode=0o750)
    orders.append([{"id": "a"}])
    orders.export(out)
    assert READ["parquet"](out).num_rows == 1
    assert out.stat().st_mode & 0o777 == 0o750


def test_folders_above_are_made_and_links_are_followed(orders: Table, tmp_path: Path) -> None:
    orders.append([{"id": "a"}])
    done = orders.export(tmp_path / "far" / "away" / "out")
    assert done.path == str(tmp_path / "far" / "away" / "out")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert orders.export(tmp_path / "link").path == str(tmp_path / "real")
    assert (tmp_path / "link").is_symlink()
    assert READ["parquet"](tmp_path / "link").num_rows == 1


@pytest.mark.parametrize("to", ["", " ", "s3://bucket/orders", "a\0b"])
def test_what_is_no_directory_is_refused(to: str, orders: Table) -> None:
    with pytest.raises(DestinationRefused):
        orders.export(to)


def test_a_file_and_what_lies_below_it_are_refused(orders: Table, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for to in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(DestinationRefused, match="is a file, or lies below one"):
            orders.export(to)


def test_the_directory_of_the_database_is_not_exported_into(
    db: Database, orders: Table, tmp_path: Path
) -> None:
    with pytest.raises(DestinationRefused, match="in the directory of the database"):
        orders.export(tmp_path / "data" / "out")
    assert not (tmp_path / "data" / "out").exists()


def test_a_format_that_there_is_not_is_refused(orders: Table, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="format can't be 'orc'"):
        orders.export(tmp_path / "out", format="orc")


def test_a_time_that_is_not_known_any_more_leaves_nothing(
    db: Database, orders: Table, tmp_path: Path
) -> None:
    orders.append([{"id": "a"}])
    then = orders.snapshot().time
    orders.append([{"id": "b"}])
    db.advance_watermark("now")
    with pytest.raises(BelowWatermark):
        orders.export(tmp_path / "out", as_of=then)
    assert not (tmp_path / "out").exists()
    assert left_over(tmp_path) == []


# -- whole or not at all ---------------------------------------------------------------------------


class Enough(Exception):
    """Of a progress callback that has seen enough."""


@formats
def test_an_export_that_fails_in_the_middle_leaves_nothing(
    form: str, orders: Table, tmp_path: Path
) -> None:
    # given an export that has written some of its rows
    changed(orders)
    seen: list[list[str]] = []

    def stop(now: ExportProgress) -> None:
        if now.partitions_done:
            seen.append([path.name for path in tmp_path.rglob("*.parquet")])
            assert not (tmp_path / "out").exists()
            raise Enough

    # when it fails
    with pytest.raises(Enough):
        orders.export(tmp_path / "out", format=form, progress=stop)
    # then there were files, and nothing of them is left, neither to be seen nor hidden
    assert seen[0]
    assert not (tmp_path / "out").exists()
    assert left_over(tmp_path) == []


@pytest.mark.slow
def test_a_killed_export_leaves_nothing_readable_and_the_next_one_removes_it(
    orders: Table, tmp_path: Path
) -> None:
    # given a process that is killed in the middle of an export
    changed(orders)
    script = (
        "import lowmark, os, signal, sys\n"
        "def stop(now):\n"
        "    if now.partitions_done == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "lowmark.open(sys.argv[1])['orders'].export(sys.argv[2], progress=stop)\n"
    )
    out = tmp_path / "out"
    words = [sys.executable, "-c", script, str(tmp_path / "data"), str(out)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    # then there is no directory, and what was written is hidden
    assert not out.exists()
    [hidden] = left_over(tmp_path)
    assert hidden.startswith(".out.export-")
    # when the export is made again
    orders.export(out)
    # then it is whole, and what was left is gone
    assert read_back("parquet", out, orders.schema) == rows_of(orders)
    assert left_over(tmp_path) == []


def test_of_two_exports_to_one_directory_one_is_there_and_one_is_refused(
    orders: Table, tmp_path: Path
) -> None:
    # given an export that waits in its middle
    changed(orders)
    outcomes: list[Exported | LowmarkError] = []
    waits, goes_on = threading.Event(), threading.Event()

    def wait(_: ExportProgress) -> None:
        waits.set()
        assert goes_on.wait(60)

    def slow() -> None:
        try:
            outcomes.append(orders.export(tmp_path / "out", progress=wait))
        except LowmarkError as error:
            outcomes.append(error)

    thread = threading.Thread(target=slow)
    thread.start()
    assert waits.wait(60)
    # when another one begins and ends meanwhile
    then = orders.export(tmp_path / "out", columns=["id"])
    goes_on.set()
    thread.join(60)
    # then it neither took the other's files for left behind, nor was it replaced
    [refused] = outcomes
    assert isinstance(refused, DestinationRefused)
    assert READ["parquet"](tmp_path / "out").schema.names == ["id"]
    assert then.rows == 150
    assert left_over(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_named_and_leaves_nothing(
    orders: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a disk without space: files are opened on the device that has none
    changed(orders)
    real = open
    monkeypatch.setattr(
        export_files, "open", lambda _, mode: real("/dev/full", mode, buffering=0), raising=False
    )
    # when
    with pytest.raises(lowmark.errors.DiskFull, match=str(tmp_path / "out")):
        orders.export(tmp_path / "out")
    # then
    assert left_over(tmp_path) == []


def test_rows_that_come_meanwhile_are_not_in_it(orders: Table, tmp_path: Path) -> None:
    # given a table that is written to while it is exported
    changed(orders)
    before = rows_of(orders)

    def more(now: ExportProgress) -> None:
        orders.append([{"id": f"m-{n}"} for n in range(20)])
        orders.delete(["o-1", "o-2", "o-4", "o-5"])

    # when
    done = orders.export(tmp_path / "out", progress=more)
    # then it has the rows of its time, in all partitions
    assert read_back("parquet", tmp_path / "out", orders.schema) == before
    assert done.rows == before.num_rows


@pytest.mark.slow
def test_what_an_export_reads_stays_while_the_watermark_and_a_compaction_go_on(
    db: Database, orders: Table, tmp_path: Path
) -> None:
    changed(orders)
    before = rows_of(orders)

    def compact(now: ExportProgress) -> None:
        orders.append([{"id": "o-1", "status": "late"}])
        db.advance_watermark("now")
        orders.compact(engine="local")

    orders.export(tmp_path / "out", progress=compact)
    assert read_back("parquet", tmp_path / "out", orders.schema) == before


def test_rows_that_retention_has_removed_are_a_gap(db: Database, tmp_path: Path) -> None:
    # given a table whose first rows went by retention
    events = db.create_table("events", {"id": "int64"}, partitions=1)
    for n in range(3):
        events.append([{"id": n}])
    proposed(events, Trim(2, expire=True))
    on_loop(events, partition_of(events).group.snapshot)
    # when it is exported without a word on gaps
    with pytest.raises(GapFound):
        events.export(tmp_path / "out")
    # then nothing is there; and with one, there is what is left, and what is not
    assert not (tmp_path / "out").exists()
    done = events.export(tmp_path / "out", on_gap="skip")
    assert READ["parquet"](tmp_path / "out")["id"].to_pylist() == [2]
    assert [(gap.first, gap.last, gap.kind) for gap in done.gaps] == [(0, 1, "expired")]
    with pytest.raises(Rejected, match="on_gap can't be 'no'"):
        events.export(tmp_path / "out", on_gap="no")  # type: ignore[arg-type]


def test_progress_counts_bytes_and_partitions(orders: Table, tmp_path: Path) -> None:
    changed(orders)
    told: list[ExportProgress] = []
    done = orders.export(tmp_path / "out", progress=told.append)
    assert told[-1].partitions_done == told[-1].partitions == 4
    counted = [one.bytes_done for one in told]
    assert counted == sorted(counted)
    assert 0 < counted[-1] <= done.bytes


# -- Delta ----------------------------------------------------------------------------------------


def test_a_delta_table_says_what_it_is_of_and_may_be_moved(orders: Table, tmp_path: Path) -> None:
    # given
    changed(orders)
    done = orders.export(tmp_path / "out", format="delta")
    # when its directory is renamed
    (tmp_path / "out").rename(tmp_path / "moved")
    # then Delta's own engine reads all of it
    table = DeltaTable(tmp_path / "moved")
    counted = QueryBuilder().register("t", table).execute("select count(*) as n from t")
    assert pa.table(counted)["n"].to_pylist() == [150]
    # and it knows its name and its time
    assert table.metadata().name == "orders"
    [commit] = table.history()
    assert commit["lowmark.table"] == "orders"
    assert parse_time(commit["lowmark.asOf"], now=done.time) >> 16 == done.time >> 16


def test_a_package_that_is_not_installed_is_named_before_anything_is_written(
    orders: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form, package in NEEDS.items():
        with monkeypatch.context() as without:
            for name in [one for one in sys.modules if one.partition(".")[0] == package]:
                without.setitem(sys.modules, name, None)  # as Python notes what is not there
            without.delitem(sys.modules, f"lowmark.export.{form}", raising=False)
            with pytest.raises(PackageMissing, match=f"needs the package {package}") as refused:
                orders.export(tmp_path / "out", format=form)
        assert f"pip install {package}" in refused.value.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "columns",
    [{"id": "int64", "a b": "int64"}, {"id": "int64", "s": "struct<`x;y`: list<string>>"}],
)
def test_a_name_that_delta_can_not_have_is_refused_and_may_be_left_out(
    columns: dict[str, str], db: Database, tmp_path: Path
) -> None:
    table = db.create_table("t", columns, key="id")
    table.append([{"id": 1}])
    bad = list(columns)[-1]
    with pytest.raises(
        ColumnUnfit, match=f"column {bad} can't be exported: names of a Delta table"
    ):
        table.export(tmp_path / "out", format="delta")
    assert left_over(tmp_path) == []
    assert table.export(tmp_path / "out", format="delta", columns=["id"]).rows == 1


# -- Iceberg --------------------------------------------------------------------------------------


def test_an_iceberg_table_is_opened_by_its_metadata_and_pruned_by_statistics(
    orders: Table, tmp_path: Path
) -> None:
    # given
    changed(orders)
    done = orders.export(tmp_path / "out", format="iceberg")
    # when it is opened by the file that a catalog would register
    table = StaticTable.from_metadata(str(tmp_path / "out" / "metadata" / "v1.metadata.json"))
    # then it has its ids, its statistics and its origin
    [snapshot] = table.snapshots()
    assert snapshot.summary is not None
    assert snapshot.summary["total-records"] == str(done.rows)
    assert table.properties["lowmark.table"] == "orders"
    [one] = table.scan(row_filter="id == 'o-7'").to_arrow().to_pylist()
    assert one == {"id": "o-7", "status": "new", "amount": 7}
    assert not list(table.scan(row_filter="id == 'zzz'").plan_files())
    # and all paths that it names are those of the directory, not of what was aside
    for task in table.scan().plan_files():
        assert Path(task.file.file_path.removeprefix("file://")).parent == tmp_path / "out" / "data"


@pytest.mark.parametrize("column", ["_pos", "_FILE", "_partition"])
def test_a_column_that_iceberg_has_by_itself_is_refused(
    column: str, db: Database, tmp_path: Path
) -> None:
    own = {} if column == "_partition" else {column: "string"}
    table = db.create_table("t", {"id": "int64"} | own, key="id")
    with pytest.raises(ColumnUnfit, match=f"column {column} can't be exported"):
        table.export(tmp_path / "out", format="iceberg", columns=["id", column])
    assert left_over(tmp_path) == []


def test_a_path_that_is_no_url_is_refused_for_iceberg_alone(orders: Table, tmp_path: Path) -> None:
    with pytest.raises(DestinationRefused, match="its path has a '#'"):
        orders.export(tmp_path / "a#b", format="iceberg")
    for form in ("parquet", "delta"):
        assert orders.export(tmp_path / f"a#b %c {form}", format=form).rows == 0
    orders.append([{"id": "a"}])
    orders.export(tmp_path / "with space", format="iceberg")
    assert READ["iceberg"](tmp_path / "with space").num_rows == 1


# -- files -----------------------------------------------------------------------------------------


def test_files_end_when_they_are_large_enough_and_small_batches_make_large_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given batches of one row, and row groups of 100
    monkeypatch.setattr(export_files, "GROUP_ROWS", 100)
    batches = [pa.record_batch({"n": pa.array([n])}) for n in range(1_050)]
    # when files end at any size above nothing but their first bytes
    files = write_files(batches, batches[0].schema, str(tmp_path), "part", file_bytes=5)
    # then each has one group
    assert [file.rows for file in files] == [100] * 10 + [50]
    assert [pq.read_metadata(tmp_path / file.name).num_row_groups for file in files] == [1] * 11
    assert pq.read_table(tmp_path)["n"].to_pylist() == list(range(1_050))
    # and with a large size there is one file of eleven groups
    (tmp_path / "one").mkdir()
    [file] = write_files(batches, batches[0].schema, str(tmp_path / "one"), "part")
    assert pq.read_metadata(tmp_path / "one" / file.name).num_row_groups == 11


@pytest.mark.slow
def test_rows_are_written_before_the_next_ones_are_read(tmp_path: Path) -> None:
    # given rows of which each batch is one row group
    made = wrote = 0
    ahead = []
    one = pa.record_batch({"n": pa.array(range(export_files.GROUP_ROWS))})

    def batches() -> Any:
        nonlocal made
        for _ in range(10):
            made += 1
            ahead.append(made - wrote)
            yield one

    def count(rows: int, size: int) -> None:
        nonlocal wrote
        wrote += 1

    # when
    write_files(batches(), one.schema, str(tmp_path), "part", wrote=count)
    # then never more than one was waiting
    assert max(ahead) == 1


def test_a_type_that_a_format_does_not_have_is_refused_with_its_column() -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("parts", pa.list_(pa.struct([("at", pa.time64("us"))])))]
    )
    with pytest.raises(
        ColumnUnfit, match=r"column parts can't be exported: Parquet has no type for time64\[us\]"
    ):
        columns_in(schema, lambda kind: kind, format_name="Parquet")
