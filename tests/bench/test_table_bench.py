"""What `lowmark bench table` feeds, its peers, and the process that it weighs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.figure import PeerMissing
from benchmarks.held_memory import anonymous_bytes
from benchmarks.table_memory import weighed
from benchmarks.table_peers import (
    MappedFiles,
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


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that everybody may pass through, as PostgreSQL needs it when we are root."""
    with tempfile.TemporaryDirectory(prefix="lowmark-test-") as folder:
        (Path(folder) / "0001").mkdir()
        yield Path(folder) / "0001"


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


@pytest.mark.slow
@pytest.mark.release  # SQLite and files take the same rows, above
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
@pytest.mark.release  # a table that comes to rest is above, what is weighed in `test_upkeep_bench`
def test_a_process_of_its_own_says_what_it_weighs(here: Path) -> None:
    few, many = weighed(here, 1 << 20, [500, 1_000])
    assert 10_000_000 < few
    assert 10_000_000 < many
    assert anonymous_bytes() > 10_000_000
