"""One directory, many processes: the owner, its guests, and who comes after the owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lowmark
from eventually import eventually, suspend
from lowmark.access import opening
from lowmark.backend.remote import RemoteBackend
from lowmark.cli.app import app
from lowmark.client import Database
from lowmark.errors import LowmarkError, Rejected
from lowmark.log import LogConfig
from lowmark.node import Settings
from lowmark.node.owner import Owner
from lowmark.runtime import Locked, RealDisk

OPENS = """
import sys, lowmark
db = lowmark.open(sys.argv[1])
table = db["t"] if "t" in db.tables() else db.create_table(
    "t", {"id": "int64", "who": "string"}, key="id", partitions=2)
def say(*words): print(*words, flush=True)
"""


class Other:
    """Another process that has the directory open, and does what it is told line by line."""

    def __init__(self, data: Path, code: str = "") -> None:
        loop = "say('open')\nfor line in sys.stdin:\n    exec(line)\n    say('done')\n"
        words = [sys.executable, "-c", OPENS + textwrap.dedent(code) + loop, str(data)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.line() == "open"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, code: str) -> list[str]:
        """Have it do something; gives what it said."""
        assert self.process.stdin is not None
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()
        said: list[str] = []
        while (line := self.line()) != "done":
            assert line or self.process.poll() is None, "it ended"
            said.append(line)
        return said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(30)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "d"


@pytest.fixture
def others() -> Iterator[list[Other]]:
    made: list[Other] = []
    yield made
    for one in made:
        one.kill()
        for pipe in (one.process.stdin, one.process.stdout):
            if pipe is not None:
                pipe.close()


def owner_of(data: Path) -> int:
    """The process that the lock file names."""
    return int((data / "LOCK").read_text()[:32])


def ids(db: Database) -> list[int]:
    return sorted(row["id"] for row in db["t"].read(columns=["id"]).to_pylist())


@pytest.mark.slow
def test_each_process_sees_what_the_others_have_stored(data: Path, others: list[Other]) -> None:
    # given an owner and a guest
    owner = Other(data)
    others.append(owner)
    assert owner_of(data) == owner.process.pid
    with lowmark.open(data) as db:
        # when both append
        owner.do("table.append([{'id': 1, 'who': 'owner'}])")
        db["t"].append([{"id": 2, "who": "guest"}])
        # then both read all of it
        assert ids(db) == [1, 2]
        assert owner.do("say(table.get(2)['who'], table.count())") == ["guest 2"]
        # and changes of the catalog reach the other side
        owner.do("db.create_table('u', {'id': 'int64'})")
        assert db.tables() == ["t", "u"]
    assert owner.end() == 0
    assert list((data / "endpoint").iterdir()) == []


@pytest.mark.slow
def test_a_guest_takes_over_when_the_owner_closes_and_goes_on_where_it_was(
    data: Path, others: list[Other]
) -> None:
    # given a guest with a reader that follows, in the middle of its rows
    owner = Other(data, "table.append([{'id': n, 'who': 'o'} for n in range(10)])\n")
    others.append(owner)
    with lowmark.open(data) as db:
        reader = db["t"].read(columns=["id"], follow=True)
        seen = list(next(reader)["id"].to_pylist())
        # when the owner closes
        assert owner.end() == 0
        # then the next call makes this process the owner
        db["t"].append([{"id": 10, "who": "g"}])
        assert owner_of(data) == os.getpid()
        # and the reader has all rows, each once
        while len(seen) < 11:
            seen += next(reader)["id"].to_pylist()
        assert sorted(seen) == list(range(11))
        reader.close()
        # and serves others in turn
        third = Other(data)
        others.append(third)
        assert third.do("say(table.count())") == ["11"]
        assert third.end() == 0
    assert (data / "LOCK").read_bytes() == b""


@pytest.mark.slow
def test_of_two_guests_one_takes_over_and_the_other_finds_it(
    data: Path, others: list[Other]
) -> None:
    owner = Other(data)
    others.append(owner)
    guests = [Other(data), Other(data)]
    others += guests
    # when the owner is killed
    owner.kill()
    for number, guest in enumerate(guests):
        guest.do(f"table.append([{{'id': {number}, 'who': 'g'}}])")
    # then one of them owns the directory, and both have all rows
    assert owner_of(data) in {guest.process.pid for guest in guests}
    for guest in guests:
        assert guest.do("say(sorted(row['id'] for row in table.read().to_pylist()))") == ["[0, 1]"]


def test_a_process_of_its_own_opens_it_a_second_time(data: Path) -> None:
    with lowmark.open(data) as first:
        first.create_table("t", {"id": "int64"}, key="id")
        with lowmark.open(data) as second:
            second["t"].append([{"id": 1}])
            first["t"].append([{"id": 2}])
            assert ids(second) == ids(first) == [1, 2]
            # when the first is closed, then the second goes on
            first.close()
            second["t"].append([{"id": 3}])
            assert ids(second) == [1, 2, 3]
    with lowmark.open(data, owner=True) as again:
        assert ids(again) == [1, 2, 3]


@pytest.mark.slow
def test_a_guest_takes_over_the_directory_that_it_opened_wherever_it_is_by_then(
    data: Path, others: list[Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a guest that opened it by a relative path, and is in another folder now
    owner = Other(data, "table.append([{'id': 1, 'who': 'o'}])\n")
    others.append(owner)
    monkeypatch.chdir(data.parent)
    with lowmark.open(data.name) as db:
        (data.parent / "elsewhere").mkdir()
        monkeypatch.chdir(data.parent / "elsewhere")
        # when the owner is killed
        owner.kill()
        # then it takes over the one that it had, and makes no other
        assert ids(db) == [1]
        assert list(Path().iterdir()) == []


@pytest.mark.slow
def test_a_guest_makes_no_database_in_the_place_of_one_that_is_gone(
    data: Path, others: list[Other]
) -> None:
    owner = Other(data)
    others.append(owner)
    with lowmark.open(data) as db:
        # when the directory is moved, and its owner killed
        data.rename(data.with_name("moved"))
        owner.kill()
        # then the guest says so
        with pytest.raises(LowmarkError, match="there is no directory"):
            db["t"].read()
        assert not data.exists()


@pytest.mark.slow
def test_an_owner_that_does_not_answer_is_named(
    data: Path, others: list[Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an owner that is suspended
    owner = Other(data)
    others.append(owner)
    suspend(owner.process.pid)
    monkeypatch.setattr(opening, "HELLO_S", 0.5)
    # when another process wants the directory
    with pytest.raises(Locked) as refused:
        lowmark.open(data)
    # then it hears which process that is, on which machine, of which release, and what to do
    text = str(refused.value)
    for word in (f"process {owner.process.pid}", os.uname().nodename, lowmark.__version__):
        assert word in text
    assert "suspended" in text
    # and when the owner goes on, so does everything
    os.kill(owner.process.pid, signal.SIGCONT)
    with lowmark.open(data) as db:
        assert ids(db) == []


@pytest.mark.slow
def test_a_guest_hears_which_owner_does_not_answer_any_more(
    data: Path, others: list[Other]
) -> None:
    # given a guest whose owner is suspended
    owner = Other(data)
    others.append(owner)
    with lowmark.open(data) as db:
        backend = db.backend
        assert isinstance(backend, RemoteBackend)
        table, backend._timeout_s = db["t"], 0.3
        suspend(owner.process.pid)
        # when it asks for something, then it hears what one hears that opens the directory
        for ask in (table.explain, table.read):
            with pytest.raises(Locked) as refused:
                ask()
            for word in (f"process {owner.process.pid}", lowmark.__version__, "suspended"):
                assert word in str(refused.value)
        # and when the owner goes on, so does the guest
        os.kill(owner.process.pid, signal.SIGCONT)
        backend._timeout_s = 15
        assert ids(db) == []


@pytest.mark.slow
def test_commands_that_look_at_a_node_ask_the_owner(data: Path, others: list[Other]) -> None:
    owner = Other(data, "table.append([{'id': 7, 'who': 'o'}])\n")
    others.append(owner)

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--data", str(data)])
        assert done.exit_code == 0, done.output
        return done.stdout

    # when commands are given a directory that a process has open, then it answers
    found = json.loads(run("status", "--json"))
    assert [table["rows"] for table in found["tables"]] == [1]
    assert [node["up"] for node in found["nodes"]] == [True]
    assert "catalog." in run("meta", "range")
    assert "who" in run("catalog", "show")
    # and one that does not answer is named
    owner.kill()
    gone = Owner.here("unix:/gone", {})
    lock = RealDisk(str(data)).lock("LOCK", note=lambda _: gone.note())
    # (in a process of its own: this one has the lock)
    command = [sys.executable, "-m", "lowmark", "status", "--data", str(data)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    lock.release()
    assert refused.returncode == 1
    assert str(gone) in refused.stderr
    assert "suspended" in refused.stderr


@pytest.mark.slow
def test_a_holder_that_does_not_say_where_it_is_keeps_the_directory(
    data: Path, others: list[Other]
) -> None:
    # given a process of a release that says nothing of itself but its number
    owner = Other(data)
    others.append(owner)
    (data / "LOCK").write_text(str(owner.process.pid))
    # then the directory is locked, and the error says by which process
    with pytest.raises(Locked, match=f"process {owner.process.pid}"):
        lowmark.open(data)


@pytest.mark.slow
def test_other_settings_than_the_owner_s_are_refused_by_name(
    data: Path, others: list[Other]
) -> None:
    others.append(Other(data))
    other = Settings(log=LogConfig(wal_bytes_max=8 << 20))
    with pytest.raises(Rejected, match=r"log.wal_bytes_max \(as usual there, 8388608 here\)"):
        lowmark.open(data, settings=other)
    with pytest.raises(Rejected, match="keeps history exact"):
        lowmark.open(data, watermark_availability_ms=1)
    # and the same settings are not
    lowmark.open(data, settings=Settings()).close()


@pytest.mark.slow
def test_whoever_insists_on_owning_gets_the_directory_or_an_error(
    data: Path, others: list[Other]
) -> None:
    owner = Other(data)
    others.append(owner)
    with pytest.raises(Locked, match=r"is owned by process \d+ on .*, release"):
        lowmark.open(data, owner=True)
    assert owner.end() == 0
    lowmark.open(data, owner=True).close()


@pytest.mark.slow
def test_a_command_gets_in_beside_the_owner_and_owns_nothing_after_it(
    data: Path, others: list[Other]
) -> None:
    owner = Other(data, "table.append([{'id': 7, 'who': 'o'}])\n")
    others.append(owner)
    command = ["get", "t", "7", "--data", str(data), "--json"]
    ran = CliRunner().invoke(app, command)
    assert json.loads(ran.stdout)["who"] == "o"
    assert owner_of(data) == owner.process.pid
    # when there is no owner, then the command is one for its own time alone
    assert owner.end() == 0
    ran = CliRunner().invoke(app, command)
    assert json.loads(ran.stdout)["who"] == "o"
    assert (data / "LOCK").read_bytes() == b""


def test_a_child_by_fork_can_t_open_what_its_parent_uses_but_ends_well(data: Path) -> None:
    with lowmark.open(data) as db:
        db.create_table("t", {"id": "int64"}, key="id")
        child = os.fork()
        if child == 0:
            try:
                lowmark.open(data)
            except LowmarkError as error:
                os._exit(7 if type(error).__name__ == "Forked" else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        # and the parent goes on
        db["t"].append([{"id": 1}])
        assert ids(db) == [1]


def test_a_child_by_fork_has_a_directory_of_its_own_for_itself(data: Path) -> None:
    with lowmark.open(data):
        child = os.fork()
        if child == 0:
            with lowmark.open(f"{data}-2") as db:
                db.create_table("t", {"id": "int64"}, key="id").append([{"id": 1}])
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with lowmark.open(f"{data}-2") as db:
        assert ids(db) == [1]


WRITES = """
import itertools
who = sys.argv[2]
for number in itertools.count(int(sys.argv[3])):
    table.append([{"id": number, "who": who}])
    say(number)
"""
FOLLOWS = """
for batch in table.read(columns=["id", "_partition", "_offset"], follow=True):
    for row in batch.to_pylist():
        say(row["_partition"], row["_offset"], row["id"])
"""
LOOKS = """
from lowmark.errors import LowmarkError
while True:
    try:
        table.explain()
        table.compact(engine=sys.argv[2], trim=False)
        say("compacted")
    except LowmarkError as error:
        say(type(error).__name__)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("followers", "engine"),
    [
        (3, "local"),
        pytest.param(
            10,
            "spark",
            marks=[pytest.mark.release, pytest.mark.spark, pytest.mark.xdist_group("spark")],
        ),
    ],
)
def test_rows_of_many_processes_are_all_there_whenever_the_owner_is_killed(
    data: Path, tmp_path: Path, followers: int, engine: str
) -> None:
    # given two writers, some followers and one that compacts and explains, on one directory
    running: list[subprocess.Popen[bytes]] = []

    def start(code: str, *arguments: object) -> Path:
        said = tmp_path / f"said-{len(running)}"
        words = [sys.executable, "-c", OPENS + code, str(data), *map(str, arguments)]
        with said.open("wb") as out:
            running.append(subprocess.Popen(words, stdout=out))
        return said

    with lowmark.open(data) as db:
        db.create_table("t", {"id": "int64", "who": "string"}, key="id", partitions=2)
    try:
        written = [start(WRITES, f"w{n}", n * 1_000_000) for n in range(2)]
        followed = [start(FOLLOWS) for _ in range(followers)]
        looked = start(LOOKS, engine)
        files = [*written, *followed, looked]

        def lines(path: Path) -> list[str]:
            whole = path.read_bytes().rpartition(b"\n")[0]
            return whole.decode().splitlines()

        def all_go_on() -> None:
            before = [len(lines(path)) for path in files]
            alive = [at for at, one in enumerate(running) if one.poll() is None]
            eventually(
                lambda: all(len(lines(files[at])) > before[at] for at in alive), deadline_s=240
            )

        all_go_on()
        # when the owner is killed, again and again
        for _ in range(4):
            victims = {one.pid: one for one in running if one.poll() is None}
            eventually(lambda victims=victims: named(data) in victims)  # type: ignore[misc]
            victim = victims[named(data)]
            victim.kill()
            victim.wait()
            all_go_on()
        survivors = [at for at, one in enumerate(running) if one.poll() is None]
    finally:
        for one in running:
            one.kill()
            one.wait()
    # then every row that a writer was told is stored is there, once, and each follower has read
    # what there is, with no gap and no repeat
    with lowmark.open(data) as db:
        columns = ["id", "_partition", "_offset"]
        there = {
            (row["_partition"], row["_offset"]): row["id"]
            for row in db["t"].read(columns=columns).to_pylist()
        }
    stored = sorted(there.values())
    assert len(set(stored)) == len(stored)
    assert {int(line) for path in written for line in lines(path)} <= set(stored)
    assert len(survivors) >= 2
    for path in followed:
        seen = [tuple(map(int, line.split())) for line in lines(path)]
        for partition in range(2):
            offsets = [offset for number, offset, _ in seen if number == partition]
            assert offsets == list(range(len(offsets)))
        assert all(there[number, offset] == row for number, offset, row in seen)


def named(data: Path) -> int:
    """The process that the lock file names; 0 if it names none."""
    return int((data / "LOCK").read_text()[:32].strip() or 0)
