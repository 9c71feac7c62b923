"""`lowmark bench table`, with amounts too small to mean anything, and what it feeds."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from benchmarks import table_peers
from benchmarks.suites import TABLE_FIELDS, TableSizes
from benchmarks.table_memory import anonymous_bytes, weighed
from benchmarks.table_peers import (
    MappedFiles,
    PeerMissing,
    Postgres,
    PostgresRefused,
    copy_lines,
    find_postgres,
    sqlite_insert,
    sqlite_opened,
    write_raw,
)
from benchmarks.table_workload import (
    BATCH_ROWS,
    COLUMNS,
    ROW_BYTES,
    batch_of,
    batches_of,
    dicts_of,
    id_of,
    opened_table,
    tuples_of,
)
from lowmark.cli.app import app

runner = CliRunner()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory without settings; afterwards logging is as it was."""
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith("LOWMARK_")]:
        monkeypatch.delenv(name)
    root, ours = logging.getLogger(), logging.getLogger("lowmark")
    handlers, level = root.handlers[:], ours.level
    yield tmp_path
    root.handlers[:] = handlers
    ours.setLevel(level)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that everybody may pass through, as PostgreSQL needs it when we are root."""
    with tempfile.TemporaryDirectory(prefix="lowmark-test-") as folder:
        (Path(folder) / "0001").mkdir()
        yield Path(folder) / "0001"


def bench(here: Path, *more: str) -> dict[str, object]:
    command = ["bench", "table", "--json", "--tiny", "--dir", str(here), *more]
    result = runner.invoke(app, command)
    # a miss is a result, not a failure
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert isinstance(report, dict)
    return report


# -- the command ------------------------------------------------------------------------------


def test_json_has_a_number_per_field_and_the_story_behind_it(here: Path) -> None:
    report = bench(here, "--figure", "one_row_vs_sqlite")
    assert [name for name in report if name in TABLE_FIELDS] == ["one_row_vs_sqlite"]
    details, settings = report["details"], report["settings"]
    assert isinstance(details, dict)
    assert isinstance(settings, dict)
    one = details["one_row_vs_sqlite"]
    keys = {"value", "target", "aim", "met", "ours", "peer", "unit", "spread", "runs", "notes"}
    assert keys <= set(one)
    assert one["value"] > 0
    assert one["value"] == report["one_row_vs_sqlite"]
    assert (one["target"], one["aim"], one["at_least"]) == (6.0, 3.0, False)
    assert set(one["variants"]) == {"as_arrow"}
    assert settings["mode"] == "tiny"
    assert settings["one_rows"] == TableSizes.tiny().one_rows
    assert report["skipped"] == {}
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_figure_can_be_measured(here: Path) -> None:
    report = bench(here)
    assert set(TABLE_FIELDS) <= set(report)
    skipped = report["skipped"]
    assert isinstance(skipped, dict)
    assert set(skipped) <= {"append_vs_postgres"}
    for name in TABLE_FIELDS.keys() - skipped.keys():
        assert report[name], f"{name} is a number above 0"
    assert list(here.iterdir()) == []


def test_without_postgresql_its_figure_is_left_out_with_a_clear_line(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(here))
    monkeypatch.setattr(table_peers, "POSTGRES_FOLDERS", str(here))
    report = bench(here, "--only", "append_vs_postgres")
    assert report["append_vs_postgres"] is None
    skipped = report["skipped"]
    assert isinstance(skipped, dict)
    assert "not installed" in skipped["append_vs_postgres"]
    assert "\n" not in skipped["append_vs_postgres"]
    # and for people the line stands below the figures
    shown = runner.invoke(
        app, ["bench", "table", "--tiny", "--dir", str(here), "--only", "append_vs_postgres"]
    )
    assert shown.exit_code == 0
    assert "append_vs_postgres: PostgreSQL is left out" in shown.stdout


def test_an_unknown_figure_is_wrong_use() -> None:
    result = runner.invoke(app, ["bench", "table", "--only", "append_vs_paper"])
    assert result.exit_code == 2
    assert "append_vs_raw" in result.stderr


def test_the_full_sizes_are_those_that_the_targets_name() -> None:
    full = TableSizes.full()
    assert full.keys == 1_000_000
    assert (full.memory_rows, full.memory_rows_few) == (20_000_000, 5_000_000)
    assert full.roll_overs > 1
    # the WAL rolls over as often as promised
    rows = full.appended(full.append_wal_bytes)
    assert rows * ROW_BYTES > full.roll_overs * full.append_wal_bytes


# -- what is fed ------------------------------------------------------------------------------


def test_a_row_has_100_bytes_and_an_id_of_its_own() -> None:
    batch = batch_of(20_000)
    assert batch.num_rows == BATCH_ROWS
    assert round(batch.nbytes / batch.num_rows) == ROW_BYTES
    assert batch.column("id")[7].as_py() == id_of(20_007)
    for scattered in (False, True):
        batches = batches_of(25_000, scattered=scattered)
        ids = pa.Table.from_batches(batches).column("id").to_pylist()
        assert len(set(ids)) == 25_000
        assert (ids == sorted(ids)) is not scattered


def test_dicts_tuples_and_lines_are_the_same_rows() -> None:
    batch = batch_of(0, 3)
    dicts = dicts_of(batch)
    assert [list(row) for row in dicts] == [list(COLUMNS)] * 3
    assert [tuple(row.values()) for row in dicts] == tuples_of(batch)
    lines = copy_lines(batch).decode().splitlines()
    assert [line.split("\t") for line in lines] == [
        [str(v) for v in row] for row in tuples_of(batch)
    ]


# -- the peers --------------------------------------------------------------------------------


@pytest.mark.parametrize("synced_every", [1, 2, 9])
def test_a_bare_file_holds_all_messages(here: Path, synced_every: int) -> None:
    messages = [batch.serialize() for batch in batches_of(25_000)]
    write_raw(here / "raw", messages, synced_every=synced_every)
    assert (here / "raw").read_bytes() == b"".join(messages)


def test_sqlite_takes_tuples_and_dicts(here: Path) -> None:
    first, second = batch_of(0, 5), batch_of(5, 5)
    with sqlite_opened(here / "peer") as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        sqlite_insert(db, [tuples_of(first), dicts_of(second)])
        stored = db.execute("SELECT * FROM rows ORDER BY id").fetchall()
    assert stored == [*tuples_of(first), *tuples_of(second)]


def test_mapped_files_give_the_batches_back(here: Path) -> None:
    mapped, batches = MappedFiles(here), batches_of(25_000)
    mapped.write(0, batches[:2], batches[0].schema)
    mapped.write(1, batches[2:], batches[0].schema)
    assert list(mapped) == batches


def test_postgresql_takes_rows_and_leaves_nothing_behind(open_to_all: Path) -> None:
    try:
        find_postgres()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    first, second = batch_of(0, 100), batch_of(100, 50)
    with Postgres(open_to_all) as postgres:
        client, sockets = postgres.client, postgres.sockets
        assert sockets.exists()
        client.run("CREATE TABLE rows (id text PRIMARY KEY, b bigint, c bigint, d text)")
        # a COPY of two pieces, and one of one
        client.copy("rows", [[copy_lines(first), copy_lines(second)], [copy_lines(batch_of(150))]])
        # then all are there: division by zero says no, and the client goes on after an error
        client.run(f"SELECT 1 / (count(*) = {150 + BATCH_ROWS})::int FROM rows")
        with pytest.raises(PostgresRefused, match="division by zero"):
            client.run("SELECT 1 / (count(*) = 0)::int FROM rows")
        with pytest.raises(PostgresRefused, match="duplicate key"):
            client.copy("rows", [[copy_lines(first)]])
        client.run("SELECT 1")
        pid = postgres.pid
    assert not sockets.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_folder_that_postgresql_cannot_reach_leaves_it_out(here: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has to step down")
    try:
        find_postgres()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    closed = here / "closed"
    (closed / "root" / "0001").mkdir(parents=True)
    closed.chmod(0o700)
    with pytest.raises(PeerMissing, match="nobody can't reach"), Postgres(closed / "root" / "0001"):
        raise AssertionError


# -- ours -------------------------------------------------------------------------------------


def test_a_table_comes_to_rest_and_can_be_opened_again(here: Path) -> None:
    with opened_table(here / "data") as opened:
        opened.table.append(batch_of(0, 50))
        opened.rest()
        assert opened.rolled == 0
    with opened_table(here / "data") as opened:
        assert sum(opened.table.snapshot().ends.values()) == 50


@pytest.mark.slow
def test_a_process_of_its_own_says_what_it_weighs(here: Path) -> None:
    few, many = weighed(here, 1 << 20, [500, 1_000])
    assert 10_000_000 < few
    assert 10_000_000 < many
    assert anonymous_bytes() > 10_000_000
