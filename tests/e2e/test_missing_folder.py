"""A folder that is not there for one start, as when its disk is not mounted: no row is lost.

The start names the folder to each caller of its table, keeps what the WAL has of it, and makes no
empty copy in its place; other tables go on. When the folder is back, every row is.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lowmark
from inside import backend_of
from lowmark.client import Database
from lowmark.errors import FolderMissing, MetastoreMissing
from lowmark.group import GroupConfig
from lowmark.inspect import verify_log
from lowmark.log import LogConfig
from lowmark.node import Settings
from lowmark.runtime import RealDisk

ROWS = 100
SETTINGS = Settings(
    log=LogConfig(disk_reserved_bytes=0, disk_low_bytes=0),
    group=GroupConfig(request_timeout_ms=2_000),
)
FILL = """
    import os, signal, sys, lowmark
    from lowmark.table.partition import group_name
    db = lowmark.open(sys.argv[1])
    for name in ("orders", "others"):
        table = db.create_table(name, {"id": "int64"}, key="id", partitions=1)
        table.append([{"id": at} for at in range(100)])
    print(group_name(db.table("orders").descriptor.id, 0), flush=True)
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    db.close()
"""


def fill(data: Path, end: str) -> Path:
    """A hundred acknowledged rows in each of two tables, then the end of the process.

    Gives the folder of the first table.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FILL), str(data), end],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == (-signal.SIGKILL if end == "kill" else 0), done.stderr
    return data / "groups" / done.stdout.strip()


def open_again(data: Path) -> Database:
    return lowmark.open(data, settings=SETTINGS)


def ids(db: Database, table: str) -> list[int]:
    return sorted(one for batch in db.table(table).read() for one in batch["id"].to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "close"])
@pytest.mark.parametrize("leaves", ["nothing", "an empty folder", "no roster either"])
def test_a_folder_that_is_away_for_one_start_costs_no_row(
    tmp_path: Path, end: str, leaves: str
) -> None:
    # given acknowledged rows, and one table's folder on a disk that is not mounted now
    data, away = tmp_path / "data", tmp_path / "away"
    folder = fill(data, end)
    shutil.move(folder, away)
    if leaves == "an empty folder":
        folder.mkdir()
    if leaves == "no roster either":
        shutil.rmtree(data / "roster")
    # when the database is opened, each caller of that table hears which folder is missing
    with open_again(data) as db:
        orders = db.table("orders")
        with pytest.raises(FolderMissing, match=str(folder)) as told:
            orders.append([{"id": 7}])
        assert "mount" in told.value.hint
        with pytest.raises(FolderMissing, match=str(folder)):
            list(orders.read())
        # and other tables go on, in newer WAL files, too
        assert db.table("others").append([{"id": 1_000}]).parts[0].first == ROWS
        assert ids(db, "others") == [*range(ROWS), 1_000]
        backend_of(db).ask_now(backend_of(db).node.log.roll)
        db.table("others").append([{"id": 1_001}])
    # and `lowmark log verify` names it
    assert ("missing", str(folder)) in {(f.kind, f.path) for f in verify_log(RealDisk(str(data)))}
    assert not away.joinpath("quarantine").exists()
    # then all rows are there when the folder is, and the next one comes after them
    shutil.rmtree(folder, ignore_errors=True)
    shutil.move(away, folder)
    with open_again(data) as db:
        assert ids(db, "orders") == list(range(ROWS))
        assert db.table("orders").append([{"id": 7}]).parts[0].first == ROWS
        assert len(ids(db, "others")) == ROWS + 2
    assert list(verify_log(RealDisk(str(data)))) == []


@pytest.mark.parametrize("leaves", ["nothing", "an empty folder"])
def test_a_metastore_whose_folder_is_away_for_one_start_is_named_and_comes_back(
    tmp_path: Path, leaves: str
) -> None:
    data, away = tmp_path / "data", tmp_path / "away"
    with open_again(data) as db:
        db.create_table("orders", {"id": "int64"}, key="id", partitions=1).append([{"id": 1}])
    folder = data / "groups" / "metastore"
    shutil.move(folder, away)
    if leaves == "an empty folder":
        folder.mkdir()
    with pytest.raises(MetastoreMissing, match=str(folder)) as told:
        open_again(data)
    assert "mount" in told.value.hint
    shutil.rmtree(folder, ignore_errors=True)
    shutil.move(away, folder)
    with open_again(data) as db:
        assert ids(db, "orders") == [1]
