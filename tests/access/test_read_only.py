"""A directory that is opened to be read: with an owner, without one, and when one comes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lowmark
from lowmark.access import opening
from lowmark.client import Database
from lowmark.errors import (
    DirectoryChanged,
    NoOwner,
    NotADatabase,
    ReadOnly,
    Rejected,
)
from lowmark.node import Settings
from lowmark.node.settings import LedgerSettings
from lowmark.runtime import RealDisk

KILLED = """
import os, sys, lowmark
db = lowmark.open(sys.argv[1])
db["t"].append([{"id": n, "who": "killed"} for n in range(200, 300)])
os.kill(os.getpid(), 9)
"""


def listing(root: Path) -> dict[str, tuple[int, int, int, str]]:
    """Every name with its time, its mode, its inode, and what is in it."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        digest = hashlib.sha256(content).hexdigest()
        found[str(path)] = (stat.st_mtime_ns, stat.st_mode, stat.st_ino, digest)
    return found


def ids(db: Database) -> list[int]:
    rows = db["t"].read(columns=["id"], as_of="now")
    return sorted(row["id"] for row in rows.to_pylist())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A database with rows in a ledger and in the backlog, which no process has open."""
    path = tmp_path / "d"
    with lowmark.open(path) as db:
        table = db.create_table("t", {"id": "int64", "who": "string"}, key="id", partitions=2)
        table.append([{"id": n, "who": "old"} for n in range(100)])
        db.advance_watermark("now")
        assert table.compact(engine="local").state == "done"
        table.append([{"id": n, "who": "new"} for n in range(50, 150)])
    return path


@pytest.fixture
def can_t_be_written(data: Path) -> Iterator[Path]:
    modes = {path: path.stat().st_mode for path in [data, *data.rglob("*")]}
    for path in modes:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield data
    for path, mode in modes.items():
        path.chmod(mode)


@pytest.mark.slow
def test_a_database_without_an_owner_is_read_and_not_a_byte_of_it_changes(
    can_t_be_written: Path,
) -> None:
    data = can_t_be_written
    before = listing(data)
    # when it is opened to be read
    with lowmark.open(data, read_only=True) as db:
        table = db["t"]
        # then all ways to read give what is there
        assert ids(db) == list(range(150))
        assert table.count() == 150
        assert table.get(3) == {"id": 3, "who": "old"}
        assert table.get(60) == {"id": 60, "who": "new"}
        assert len(table.read(compacted=True).to_pylist()) == 200
        assert table.explain().rows == 100
        # and it may be open several times at once
        with lowmark.open(data, read_only=True) as other:
            assert ids(other) == list(range(150))
    assert listing(data) == before


@pytest.mark.slow
def test_what_an_owner_left_that_was_killed_is_read_as_it_is(data: Path) -> None:
    # given rows that are in the WAL alone, and a lock file that names a dead process
    ran = subprocess.run([sys.executable, "-c", KILLED, str(data)], check=False)
    assert ran.returncode == -9
    assert (data / "LOCK").read_bytes()
    before = listing(data)
    # when it is opened to be read, then they are there
    with lowmark.open(data, read_only=True) as db:
        assert ids(db) == [*range(150), *range(200, 300)]
    # and nothing was mended on the disk
    assert listing(data) == before
    # and an owner has it all
    with lowmark.open(data, owner=True) as db:
        assert len(ids(db)) == 250


CHANGES: list[Callable[[Database], object]] = [
    lambda db: db["t"].append([{"id": 1, "who": "x"}]),
    lambda db: db["t"].upsert([{"id": 1, "who": "x"}]),
    lambda db: db["t"].delete([{"id": 1}]),
    lambda db: db.create_table("u", {"id": "int64"}),
    lambda db: db["t"].alter(add={"n": "int64"}),
    lambda db: db.drop_table("t"),
    lambda db: db.set_history("1 day"),
    lambda db: db.advance_watermark("now"),
    lambda db: db["t"].cursors.create("c"),
    lambda db: db["t"].read(follow=True, lease_ms=5_000),
    lambda db: db["t"].producer(name="p"),
    lambda db: db["t"].trim({0: 50}),
    lambda db: db.cluster.pause(),
    lambda db: db.cluster.cancel(),
    lambda db: db.cluster.remove("n1"),
    lambda db: db.cluster.drain("n1"),
    lambda db: db.cluster.baseline("default", "auto"),
]


@pytest.mark.slow
@pytest.mark.parametrize("owned", [False, True])
def test_whatever_would_change_it_is_refused_by_name(data: Path, *, owned: bool) -> None:
    owner = lowmark.open(data, owner=True) if owned else None
    try:
        with lowmark.open(data, read_only=True) as db:
            before = listing(data)
            for change in CHANGES:
                with pytest.raises(ReadOnly, match="is open read-only"):
                    change(db)
            # and looking at the cluster is no change
            assert db.cluster.rebalance().moves == ()
            [node] = db.cluster.baseline("default").nodes
            assert db.cluster.drained(node).partitions > 0
            assert db.cluster.plan(add=["n2"]).moves
            if not owned:
                assert listing(data) == before
            assert ids(db) == list(range(150))
    finally:
        if owner is not None:
            assert ids(owner) == list(range(150))
            owner.close()


@pytest.mark.slow
def test_beside_an_owner_it_is_read_through_the_owner_and_never_taken_over(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_AWAY_S", 0.1)
    owner = lowmark.open(data, owner=True)
    with lowmark.open(data, read_only=True) as db:
        # when the owner appends, then it is seen at once
        owner["t"].append([{"id": 500, "who": "owner"}])
        assert 500 in ids(db)
        # when the owner is closed, then it is not owned here, and the caller hears what to do
        owner.close()
        with pytest.raises(NoOwner, match="no process has"):
            ids(db)
        assert RealDisk(str(data)).holder("LOCK") is None
        # when there is another owner, then it goes on
        with lowmark.open(data, owner=True) as next_owner:
            next_owner["t"].append([{"id": 501, "who": "owner"}])
            assert {500, 501} <= set(ids(db))


@pytest.mark.slow
def test_an_owner_that_comes_is_not_kept_out_and_what_was_there_is_read_on(data: Path) -> None:
    with lowmark.open(data, read_only=True) as db:
        reader = db["t"].read(follow=True, compacted=True)
        first = next(reader)
        # when a process opens the directory and appends
        with lowmark.open(data, owner=True) as owner:
            owner["t"].append([{"id": 500, "who": "owner"}])
            # then what was there is read, and nothing else
            assert ids(db) == list(range(150))
            assert db["t"].count() == 150
            # and one that waits for more rows hears why none will come
            assert first.num_rows
            with pytest.raises(DirectoryChanged, match="another process has opened"):
                list(reader)
            # and it gets them when it opens the directory again
            with lowmark.open(data, read_only=True) as again:
                assert 500 in ids(again)


@pytest.mark.slow
def test_files_that_an_owner_removes_are_no_damage(data: Path) -> None:
    with lowmark.open(data, read_only=True) as db:
        # when an owner compacts and removes the files of the older ledger
        settings = Settings(ledger=LedgerSettings(grace_ms=0))
        with lowmark.open(data, owner=True, settings=settings) as owner:
            owner["t"].append([{"id": n, "who": "newest"} for n in range(100)])
            owner.advance_watermark("now")
            assert owner["t"].compact(engine="local", rewrite=True).state == "done"
            owner["t"].sweep()
        # then a read of them says what happened, and what to do
        with pytest.raises(DirectoryChanged, match="another process has opened") as changed:
            ids(db)
        assert "Open it again" in changed.value.hint
    with lowmark.open(data, read_only=True) as again:
        assert ids(again) == list(range(150))


def test_a_path_without_a_database_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    before = listing(tmp_path)
    for path in (tmp_path / "missing", tmp_path / "empty", tmp_path / "other"):
        with pytest.raises(NotADatabase) as refused:
            lowmark.open(path, read_only=True)
        assert "create=False" not in refused.value.hint
    assert listing(tmp_path) == before
    with pytest.raises(Rejected, match="neither owned nor compacted"):
        lowmark.open(tmp_path, read_only=True, owner=True)


@pytest.mark.slow
def test_one_that_opens_while_owners_come_and_go_has_all_or_says_so(data: Path) -> None:
    # given a process that opens the directory, appends and closes it, again and again
    code = (
        "import sys, lowmark\n"
        "for n in range(1_000, 1_012):\n"
        "    with lowmark.open(sys.argv[1]) as db: db['t'].append([{'id': n, 'who': 'o'}])\n"
        "    print(n, flush=True)\n"
    )
    words, said = [sys.executable, "-c", code, str(data)], data.with_name("said")
    with said.open("wb") as out, subprocess.Popen(words, stdout=out) as process:
        opened = 0
        while process.poll() is None:
            last = len(said.read_text().splitlines())
            # when it is opened to be read, then all that was there before is there
            try:
                with lowmark.open(data, read_only=True) as db:
                    found = ids(db)
            except (DirectoryChanged, NoOwner):
                continue
            assert found[:150] == list(range(150))
            assert found[150:] == list(range(1_000, 1_000 + len(found) - 150))
            assert len(found) - 150 >= last
            opened += 1
    assert process.returncode == 0
    assert opened


@pytest.mark.slow
def test_commands_that_only_read_leave_the_directory_as_it_is(data: Path) -> None:
    before = listing(data)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lowmark", *words, "--read-only"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    found = run("get", "t", "60", "--json", "--data", str(data))
    assert json.loads(found.stdout) == {"id": 60, "who": "new"}
    # and it is for directories
    assert "--read-only is for a directory" in run("get", "t", "1", "--node", "127.0.0.1:1").stderr
    assert listing(data) == before
