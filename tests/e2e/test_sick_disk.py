"""A database on a real directory whose disk is sick for a while: nothing acknowledged is lost.

A folder that can't be written, an identity that can't be read once, a process without a file handle
left: each lasts longer than every retry, and is over when the database is opened again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lowmark
from eventually import eventually
from inside import backend_of
from lowmark.client import Database
from lowmark.errors import LowmarkError
from lowmark.group import GroupConfig
from lowmark.ids import group_name
from lowmark.log import GroupUnwritable, Log, LogConfig
from lowmark.node import Settings
from lowmark.runtime import DiskFailed, RealDisk
from lowmark.runtime.disk import File, Mode

ROWS = 100
SETTINGS = Settings(
    log=LogConfig(retry_ms=20, disk_reserved_bytes=0, disk_low_bytes=0),
    group=GroupConfig(request_timeout_ms=500),
)


class SickDisk(RealDisk):
    """The machine's disk, but for one folder that can't be written, or one file not read."""

    unwritable = ""
    unreadable = ""

    def open(self, path: str, mode: Mode) -> File:  # type: ignore[override]
        if mode != "read":
            self._refuse(path)
        if self.unreadable and path == self.unreadable:
            raise DiskFailed(path, call="read", reason="Input/output error")
        return super().open(path, mode)

    def rename(self, old: str, new: str) -> None:
        self._refuse(new)
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._refuse(path)
        super().unlink(path)

    def make_dir(self, path: str) -> None:
        self._refuse(path)
        super().make_dir(path)

    def _refuse(self, path: str) -> None:
        if self.unwritable and path.startswith(f"{self.unwritable}/"):
            raise DiskFailed(path, call="open", reason="Read-only file system")


@pytest.fixture
def sick(monkeypatch: pytest.MonkeyPatch) -> type[SickDisk]:
    """The disk of every database that is opened now; well at first."""
    monkeypatch.setattr("lowmark.runtime.machine.RealDisk", SickDisk)
    monkeypatch.setattr(SickDisk, "unwritable", "")
    monkeypatch.setattr(SickDisk, "unreadable", "")
    return SickDisk


def log_of(db: Database) -> Log:
    return backend_of(db).node.log


def roll(db: Database) -> None:
    """Close the WAL file, as a full one is closed."""
    backend_of(db).ask_now(log_of(db).roll)


def folder_of(db: Database, table: str) -> str:
    return f"groups/{group_name(db.table(table).descriptor.id, 0)}"


def two_tables(data: Path) -> Database:
    """A hundred acknowledged rows in one table, some in another; all in one WAL file."""
    db = lowmark.open(data, settings=SETTINGS)
    for name in ("orders", "others"):
        db.create_table(name, {"id": "int64"}, key="id", partitions=1)
    db.table("orders").append([{"id": at} for at in range(ROWS)])
    db.table("others").append([{"id": at} for at in range(5)])
    return db


def ids(db: Database, table: str) -> list[int]:
    return sorted(one for batch in db.table(table).read() for one in batch["id"].to_pylist())


@pytest.mark.slow
def test_a_folder_that_can_not_be_written_for_a_while_costs_no_row(
    tmp_path: Path, sick: type[SickDisk]
) -> None:
    db = two_tables(tmp_path / "data")
    # given the folder of a table's group that can't be written, while the WAL file is closed
    sick.unwritable = folder_of(db, "orders")
    group = sick.unwritable.removeprefix("groups/")
    roll(db)
    eventually(lambda: log_of(db).group(group).unwritable is not None)
    # then the log says so, with the folder and the cause, and the other table goes on
    refused = log_of(db).group(group).unwritable
    assert isinstance(refused, GroupUnwritable)
    assert f"{tmp_path}/data/{sick.unwritable} can't be written" in str(refused)
    assert "Read-only file system" in str(refused)
    with pytest.raises(LowmarkError):
        db.table("orders").append([{"id": ROWS}])
    db.table("others").append([{"id": 5}])
    assert len(ids(db, "orders")) >= ROWS
    # when it is closed, can be written again, and is opened: every row is there, and offsets go on
    db.close()
    sick.unwritable = ""
    with lowmark.open(tmp_path / "data", settings=SETTINGS) as db:
        assert set(ids(db, "orders")) >= set(range(ROWS))
        assert ids(db, "others") == list(range(6))
        [part] = db.table("orders").append([{"id": ROWS + 1}]).parts
        assert part.first >= ROWS
        assert ids(db, "orders")[-1] == ROWS + 1


def test_a_folder_that_can_be_written_again_is_used_again_without_a_restart(
    tmp_path: Path, sick: type[SickDisk]
) -> None:
    with two_tables(tmp_path / "data") as db:
        sick.unwritable = folder_of(db, "orders")
        group = sick.unwritable.removeprefix("groups/")
        roll(db)
        eventually(lambda: log_of(db).group(group).unwritable is not None)
        sick.unwritable = ""
        eventually(lambda: log_of(db).group(group).unwritable is None)
        db.table("orders").append([{"id": ROWS}])
        assert ids(db, "orders") == list(range(ROWS + 1))


@pytest.mark.parametrize("how", ["an error", "a bit"])
def test_an_identity_that_can_not_be_read_once_costs_no_row(
    tmp_path: Path, sick: type[SickDisk], how: str
) -> None:
    db = two_tables(tmp_path / "data")
    identity = f"{folder_of(db, 'orders')}/group"
    db.close()
    # given one start at which reading who the group is fails
    file = tmp_path / "data" / identity
    intact = file.read_bytes()
    if how == "a bit":
        file.write_bytes(bytes([*intact[:20], intact[20] ^ 4, *intact[21:]]))
    else:
        sick.unreadable = identity
    with lowmark.open(tmp_path / "data", settings=SETTINGS) as db:
        # then whoever asks for its table hears which file it is, and what is wrong with it
        why = "is damaged" if how == "a bit" else "Input/output error"
        with pytest.raises(LowmarkError, match=f"{identity}.*{why}"):
            db.table("orders").append([{"id": ROWS}])
        with pytest.raises(LowmarkError, match=f"{identity}.*{why}"):
            ids(db, "orders")
        # and the others go on, and work off the WAL
        db.table("others").append([{"id": 5}])
        roll(db)
        eventually(lambda: log_of(db).idle)
    # when it can be read at the next start, then every row is there
    file.write_bytes(intact)
    sick.unreadable = ""
    with lowmark.open(tmp_path / "data", settings=SETTINGS) as db:
        assert ids(db, "orders") == list(range(ROWS))
        assert ids(db, "others") == list(range(6))


# -- in a process of its own ---------------------------------------------------------------------

BEGINS = """
import os, resource, subprocess, sys, threading, time
import lowmark
from lowmark.errors import LowmarkError
from lowmark.group import GroupConfig
from lowmark.log import LogConfig
from lowmark.node import Settings
from lowmark.ids import group_name

data = sys.argv[1]
settings = Settings(
    log=LogConfig(retry_ms=20, disk_reserved_bytes=0, disk_low_bytes=0, wal_bytes_max=1 << 16),
    group=GroupConfig(request_timeout_ms=500),
)

def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)

def ids(db, name):
    return sorted(one for batch in db.table(name).read() for one in batch["id"].to_pylist())
"""

READ_ONLY = """
db = lowmark.open(data, settings=settings)
table = db.create_table("orders", {"id": "int64"}, key="id", partitions=1)
other = db.create_table("others", {"id": "int64"}, key="id", partitions=1)
table.append([{"id": at} for at in range(100)])
log = db._backend.node.log
group = group_name(table.descriptor.id, 0)
folder = f"{data}/groups/{group}"
subprocess.run(["mount", "--bind", folder, folder], check=True)
subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
db._backend.ask_now(log.roll)
until(lambda: log.group(group).unwritable is not None)
other.append([{"id": 1}])
print(log.group(group).unwritable)
db.close()
subprocess.run(["umount", folder], check=True)
db = lowmark.open(data, settings=settings)
assert ids(db, "orders") == list(range(100)), len(ids(db, "orders"))
db.close()
"""

HANDLES = """
db = lowmark.open(data, settings=settings)
names = [f"t{at}" for at in range(6)]
for name in names:
    db.create_table(name, {"id": "int64"}, key="id", partitions=2)
log = db._backend.node.log
# The process may have what it has, and 20 more. Somebody takes all of them, and gives them back for
# a moment now and then: so files are rolled, flushed, named and removed with and without handles.
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
open_now = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 20, limit[1]))
over = threading.Event()

def greedy():
    while not over.is_set():
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            over.wait(0.3)
        for one in held:
            os.close(one)
        over.wait(0.02)

thread = threading.Thread(target=greedy)
thread.start()
stored = {name: 0 for name in names}
causes = set()
end = time.monotonic() + 3

def both():
    # rows were stored, and others refused: on a busy machine, that takes longer
    return any(stored.values()) and any("Too many open files" in cause for cause in causes)

while time.monotonic() < end or not both():
    for name in names:
        first = stored[name]
        try:
            db.table(name).append([{"id": at} for at in range(first, first + 200)])
            stored[name] = first + 200
        except LowmarkError as error:
            causes.add(str(error))
        causes |= {str(group.unwritable) for group in log.groups() if group.unwritable}
        causes |= {str(log.wal.refusal)} if log.wal.refusal else set()
over.set()
thread.join()
assert not [group.quarantined for group in log.groups() if group.quarantined]
# that says nothing about any group's folder
assert not any("takes no writes now" in cause for cause in causes), causes
assert any("Too many open files" in cause for cause in causes), causes
assert not any("damaged" in cause for cause in causes), causes
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
db.close()
db = lowmark.open(data, settings=settings)
log = db._backend.node.log
assert not [group.quarantined for group in log.groups() if group.quarantined]
for name in names:
    assert set(ids(db, name)) >= set(range(stored[name])), name
    db.table(name).append([{"id": 1_000_000}])
db.close()
print(sum(stored.values()))
"""


def run(code: str, data: Path, *before: str) -> str:
    script = textwrap.dedent(BEGINS + code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*before, sys.executable, "-c", script, str(data)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def can_mount() -> bool:
    try:
        tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
        return tried.returncode == 0
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="mounts of one's own are not allowed here")
def test_a_folder_that_is_mounted_read_only_for_a_while_costs_no_row(tmp_path: Path) -> None:
    said = run(READ_ONLY, tmp_path / "data", "unshare", "-m")
    assert "Read-only file system" in said


@pytest.mark.slow
def test_a_process_that_runs_out_of_file_handles_loses_no_row(tmp_path: Path) -> None:
    assert int(run(HANDLES, tmp_path / "data")) > 0
