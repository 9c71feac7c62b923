"""Other users of the machine: they see no row, and can't lock the owner out unseen."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

import lowmark
from lowmark.access.directory import owner_of
from lowmark.cli.app import app
from lowmark.node import Settings
from lowmark.node.owner import Owner
from lowmark.node.settings import LedgerSettings
from lowmark.runtime import Locked, NotAllowed, RealDisk
from lowmark.runtime.store import Store
from lowmark.server import Server

STRANGER = 65_534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """What is below a folder, with its mode; symlinks have none."""
    return {
        str(path.relative_to(root)): path.lstat().st_mode & 0o777
        for path in [root, *root.rglob("*")]
        if not path.is_symlink()
    }


def fill(data: Path, settings: Settings | None = None) -> None:
    """A database with rows, a snapshot of them, and a ledger."""
    with lowmark.open(data, settings=settings, watermark_availability_ms=None) as db:
        table = db.create_table("t", {"id": "int64"}, key="id", partitions=1)
        table.append([{"id": 1}])
        db.advance_watermark("now")
        table.compact(engine="local")
        table.append([{"id": 2}])


def succeeds_as_stranger(what: Callable[[], object]) -> bool:
    """Whether another user of the machine can do something; in a child, which is ended after."""
    child = os.fork()
    if not child:
        done = 1
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            what()
            done = 0
        os._exit(done)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@contextlib.contextmanager
def locked_by_stranger(path: Path) -> Iterator[int]:
    """A process that has a file locked, of another user where this one may make it so."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            handle = os.open(path, os.O_RDONLY)
            if os.getuid() == 0:
                os.setuid(STRANGER)
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.write(writing, b"x")
            signal.pause()
        os._exit(1)
    try:
        assert os.read(reading, 1) == b"x"
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


@pytest.mark.slow
def test_all_that_is_made_is_its_users_alone(tmp_path: Path) -> None:
    # given the usual umask, by which all users may read what is made
    with umask(0o022):
        # when a database is made, has rows and a ledger, and is opened again
        fill(tmp_path / "data")
        lowmark.open(tmp_path / "data").close()
        # then folders are 0700 and files 0600, all of them
        found = modes(tmp_path / "data")
        # and in a folder that its user has made so is everything, but for the folder itself
        own = tmp_path / "own"
        own.mkdir()
        fill(own)
        there = modes(own)
    assert set(found.values()) == {0o600, 0o700}
    assert {name.split("/")[0] for name in found} >= {"LOCK", "wal", "groups", "ledgers", "node"}
    assert there.pop(".") == 0o755
    assert set(there.values()) == {0o600, 0o700}


@as_root
def test_another_user_reads_no_row_and_can_t_lock_the_owner_out() -> None:
    with tempfile.TemporaryDirectory() as folder, umask(0o022):  # pytest's own is closed to others
        os.chmod(folder, 0o755)
        # given a database in a folder that others can enter, for its user made it
        data = Path(folder)
        lowmark.open(data).close()
        # then another user sees names, and nothing of what is behind them
        assert succeeds_as_stranger(lambda: os.listdir(data))
        assert not succeeds_as_stranger(lambda: os.listdir(data / "wal"))
        found = [path for path in data.rglob("*") if path.is_file()]
        assert not succeeds_as_stranger(lambda: any_of(found))
        # and can't get at what it would lock
        assert not succeeds_as_stranger(lambda: os.open(data / "LOCK", os.O_RDONLY))


def any_of(paths: list[Path]) -> None:
    """Read any of some files; an error, if none can be."""
    for path in paths:
        with contextlib.suppress(PermissionError):
            path.read_bytes()
            return
    raise PermissionError


def test_a_folder_that_others_can_look_into_is_named_with_what_closes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "a folder"

    def verified() -> tuple[int, list[dict[str, str]]]:
        ran = CliRunner().invoke(app, ["log", "verify", str(data), "--json"])
        return ran.exit_code, json.loads(ran.stdout)["findings"]

    # given a database as an earlier release has made it
    lowmark.open(data).close()
    assert verified() == (0, [])
    assert "other users" not in caplog.text
    for path in [data, *data.rglob("*")]:
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    # when it is opened and verified, then it is named
    lowmark.open(data).close()
    command = f"chmod -R go= {shlex.quote(str(data))}"
    assert f"may read rows in {data}; close it to them: {command}" in caplog.text
    code, (found,) = verified()
    assert code == 1
    assert found["kind"] == "open to others"
    assert found["path"] == str(data)
    assert command in found["hint"]
    # and the command that is named closes it
    caplog.clear()
    subprocess.run(command, shell=True, check=True)
    lowmark.open(data).close()
    assert "other users" not in caplog.text
    assert verified() == (0, [])
    # and a folder of which only names can be seen is told as that
    data.chmod(0o755)
    lowmark.open(data).close()
    assert f"may see the names of files in {data};" in caplog.text
    assert verified()[1][0]["what"] == "other users of this machine can see the names in it"
    # and one that others may write to as that: they can remove a file that they can't read
    data.chmod(0o777)
    lowmark.open(data).close()
    assert f"may change and remove files in {data};" in caplog.text
    assert "change and remove" in verified()[1][0]["what"]


@as_root
def test_another_user_that_opens_a_directory_hears_whose_it_is() -> None:
    with tempfile.TemporaryDirectory() as folder, umask(0o022):
        os.chmod(folder, 0o755)
        # given a database in a folder that others can enter
        lowmark.open(folder).close()

        # when another user opens it, then it is told that the directory is not its own
        def open_it() -> None:
            with pytest.raises(NotAllowed) as refused:
                lowmark.open(folder).close()
            assert "as the user whose directory it is" in str(refused.value.hint)

        assert succeeds_as_stranger(open_it)


@pytest.mark.slow
def test_a_stranger_that_has_the_lock_is_named_with_its_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    # given a database whose owner died, so that its name is left in the lock file
    lowmark.open(data).close()
    disk = RealDisk(str(data))
    gone = replace(Owner.here("unix:/gone", {}), pid=4_194_304)
    (data / "LOCK").write_bytes(str(gone.pid).encode().ljust(32) + gone.note())
    # when another program locks that file
    with locked_by_stranger(data / "LOCK") as pid:
        # then that program is named, and not the owner that is gone
        with pytest.raises(Locked, match=rf"\(process {pid}, .* of user ") as refused:
            lowmark.open(data)
        assert f"chmod -R go= {data}" in refused.value.hint
        with pytest.raises(Locked, match=rf"\(process {pid}, "):
            lowmark.open(data, owner=True)
        # also if no owner has left its name
        (data / "LOCK").write_bytes(b"")
        with pytest.raises(Locked, match=rf"\(process {pid}, "):
            disk.lock("LOCK", sign=False)
    disk.lock("LOCK", sign=False).release()


@pytest.mark.parametrize("address", ["unix", "tcp"])
def test_an_owner_that_has_another_number_in_its_container_is_no_stranger(
    tmp_path: Path, address: str
) -> None:
    data = tmp_path / "data"
    # given an owner in a container with the host's name: the system names it by another number
    with lowmark.open(data) as db, contextlib.ExitStack() as stack:
        db.create_table("t", {"id": "int64"})
        owner = owner_of(str(data))
        assert owner is not None
        if address == "tcp":
            server = stack.enter_context(Server(db, "127.0.0.1:0"))
            owner = replace(owner, address=server.address)
        owner = replace(owner, pid=7)
        with (data / "LOCK").open("r+b") as lock:
            lock.truncate(lock.write(b"7".ljust(32) + owner.note()))
        # when another process opens the directory, then it goes through that owner
        with lowmark.open(data) as guest:
            assert guest.tables() == ["t"]


def test_ledgers_at_a_place_of_their_own_are_their_users_or_a_groups(tmp_path: Path) -> None:
    def made_in(folder: Path) -> dict[str, int]:
        store = Store(str(folder))
        store.write("1/0/a", b"rows")
        store.hint("1/hint", b"h")
        return modes(folder)

    with umask(0o022):
        # given a place that is not there, or that others may read: all in it is the user's alone
        private = {"1": 0o700, "1/0": 0o700, "1/0/a": 0o600, "1/hint": 0o600}
        assert made_in(tmp_path / "new" / "place") == {".": 0o700} | private
        (tmp_path / "read").mkdir()
        assert made_in(tmp_path / "read") == {".": 0o755} | private
        # given one that its group may write to: it is shared with the group, and with no others
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o2775)
        found = made_in(shared)
        assert (shared / "1" / "0").stat().st_mode & 0o2000
    assert found == {".": 0o775, "1": 0o770, "1/0": 0o770, "1/0/a": 0o640, "1/hint": 0o640}
    # and it works with a database
    assert Settings(ledger=LedgerSettings(location=str(shared))).ledger.location == str(shared)
