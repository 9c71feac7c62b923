"""Tables inside real processes that are killed, interrupted, forked, and end in every other way.

What was acknowledged is there afterwards, once, without a gap; and the directory opens again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import lowmark
from eventually import eventually
from inside import backend_of
from lowmark.client import Database
from lowmark.group import GroupConfig
from lowmark.log import LogConfig
from lowmark.node import Settings
from lowmark.table import Trim

pytestmark = pytest.mark.slow

SOON_S = 30.0
OPENS = """
import os, signal, sys, threading, time
import lowmark
from lowmark.errors import LowmarkError
db = lowmark.open(sys.argv[1])
table = db.create_table("t", {"id": "int64", "note": "string"}, key="id", if_not_exists=True,
                        partitions=3)

def row(number):
    return {"id": number, "note": "x" * (number % 300)}

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""

# Each prints what it was told is stored, right after it was told.
APPENDS = """
number = int(sys.argv[2])
while True:
    count = 1 + number % 40
    table.append([row(at) for at in range(number, number + count)])
    say("stored", number, number + count)
    number += count
"""
PRODUCES = """
number = int(sys.argv[2])
producer = table.producer(linger_ms=1, batch_rows=50)
while True:
    count = 1 + number % 170
    producer.send_many(row(at) for at in range(number, number + count))
    producer.flush()
    say("stored", number, number + count)
    number += count
"""
FOLLOWS = """
table.append([row(1)])
say("stored", 1, 2)
for batch in table.read(follow=True):
    say("read", batch.num_rows)
"""


class Process:
    """A process with a database, and what it said."""

    def __init__(self, data: Path, code: str, *arguments: object) -> None:
        self.data = data
        self._said = data.parent / f"said-{len(list(data.parent.iterdir()))}"
        self._errors = self._said.with_suffix(".err")
        with self._said.open("wb") as out, self._errors.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(code), str(data), *map(str, arguments)],
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def said(self) -> list[str]:
        lines = self._said.read_text().splitlines(keepends=True)
        return [line.strip() for line in lines if line.endswith("\n")]

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def wait_for(self, words: str) -> None:
        def there() -> bool:
            assert self.process.poll() is None or words in self.said, self.errors
            return words in self.said

        eventually(there)

    def wait_for_lines(self, count: int) -> None:
        def there() -> bool:
            assert self.process.poll() is None, self.errors
            return len(self.said) >= count

        eventually(there)

    def end(self, number: signal.Signals | None = None) -> int:
        """Send a signal, if one is given; how the process ended, and it must do so soon."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(SOON_S)

    @property
    def acknowledged(self) -> set[int]:
        """The rows that it was told are stored."""
        ids: set[int] = set()
        for line in self.said:
            if line.startswith("stored "):
                _, low, high = line.split()
                ids |= set(range(int(low), int(high)))
        return ids


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def stored_in(db: Database) -> list[int]:
    """All rows, checked: each as it was sent, and no gap in the offsets of any partition."""
    rows = db["t"].read(columns=["id", "note", "_partition", "_offset"]).to_pylist()
    for one in rows:
        assert one["note"] == "x" * (one["id"] % 300)
    for number in range(3):
        offsets = [one["_offset"] for one in rows if one["_partition"] == number]
        assert offsets == list(range(len(offsets)))
    return [one["id"] for one in rows]


def check_directory(process: Process) -> list[int]:
    """It opens at once, everything acknowledged is there, once, and it can be used."""
    with lowmark.open(process.data) as db:
        ids = stored_in(db)
        assert len(ids) == len(set(ids))
        assert process.acknowledged <= set(ids)
        some = sorted(process.acknowledged)[:50]
        assert [one["id"] for one in db["t"].get_many(some) if one is not None] == some
    return ids


# -- killed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(APPENDS, id="append"),
        pytest.param(PRODUCES, id="producer", marks=pytest.mark.release),
    ],
)
def test_a_process_killed_again_and_again_loses_nothing_it_was_told_is_stored(
    data: Path, code: str
) -> None:
    acknowledged: set[int] = set()
    dice = Random(code)
    for life in range(4):
        # given a process that stores rows and says which it was told are stored
        first = life * 1_000_000
        process = Process(data, OPENS + code, first)
        process.wait_for_lines(dice.choice([1, 3, 20, 60]))
        # when it is killed at some moment
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
        # then all of these are there, once, and at most what was under way besides
        acknowledged |= process.acknowledged
        ids = check_directory(process)
        assert acknowledged <= set(ids)
        more = sorted(set(ids) - acknowledged)
        assert len(more) <= (life + 1) * 200
        acknowledged |= set(ids)


def test_a_process_killed_while_it_compacts_and_alters_loses_nothing(data: Path) -> None:
    code = """
    from lowmark.catalog import AddColumns, NewColumn, parse_type
    number = int(sys.argv[2])
    while True:
        table.append([row(at) for at in range(number, number + 10)])
        say("stored", number, number + 10)
        number += 10
        if number % 100 == 0:
            def snapshot():
                for partition in db._backend.node.tables.all():
                    partition.group.snapshot()
                    partition.group.rewrite()
                    partition.group.log.compact()
            db._backend.ask_now(snapshot)
            column = NewColumn(name=f"c{number}", type=parse_type("string"))
            db.execute([AddColumns(table="t", columns=(column,))])
    """
    dice = Random(7)
    for life in range(3):
        process = Process(data, OPENS + textwrap.dedent(code), life * 1_000_000)
        process.wait_for_lines(dice.randint(5, 60))
        process.end(signal.SIGKILL)
        check_directory(process)


# -- ended in another way -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "code", "says"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise ValueError('of the caller')", 1, "ValueError: of the caller"),
        ("reader = table.read(follow=True); next(reader)", 0, ""),
        ("producer = table.producer(); producer.send(row(7)); producer.flush()", 0, ""),
        ("db.close(); db.close()", 0, ""),
        ("del db, table", 0, ""),
    ],
)
def test_a_process_that_ends_without_close_ends_soon_and_well(
    data: Path, ending: str, code: int, says: str
) -> None:
    process = Process(data, f"{OPENS}table.append([row(1)])\nsay('stored', 1, 2)\n{ending}\n")
    assert process.end() == code
    # and says nothing that is not the caller's
    assert says in process.errors
    assert process.errors.count("Traceback") == (1 if says else 0)
    assert "lowmark" not in process.errors
    check_directory(process)


WITHIN = f"with db:\n{textwrap.indent(APPENDS, '    ')}"
UNDER_WAY = {"append": APPENDS, "producer": PRODUCES, "follow": FOLLOWS, "with": WITHIN}


@pytest.mark.parametrize(
    ("code", "number"),
    [
        *(pytest.param(code, signal.SIGINT, id=f"{name}-2") for name, code in UNDER_WAY.items()),
        # No code of ours runs at SIGTERM: one of them tells.
        pytest.param(APPENDS, signal.SIGTERM, id="append-15"),
        *(
            pytest.param(code, signal.SIGTERM, id=f"{name}-15", marks=pytest.mark.release)
            for name, code in list(UNDER_WAY.items())[1:]
        ),
    ],
)
def test_ctrl_c_and_sigterm_end_whatever_is_under_way(
    data: Path, code: str, number: signal.Signals
) -> None:
    # given a process in the middle of something
    process = Process(data, OPENS + code, 0)
    process.wait_for_lines(2)
    # when it is interrupted, then it ends soon
    assert process.end(number) == -number
    # and the one thing that it says is that
    if number is signal.SIGINT:
        assert process.errors.count("Traceback") == 1
        assert process.errors.strip().endswith("KeyboardInterrupt")
    else:
        assert process.errors == ""
    check_directory(process)


def test_after_ctrl_c_the_same_process_goes_on(data: Path) -> None:
    code = """
    stored = 0
    for _ in range(5):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            while True:
                table.append([row(stored)])
                stored += 1
        except KeyboardInterrupt:
            say("stored", 0, stored)
            stored += 1  # of that one nobody knows
    table.append([row(stored)])
    ids = sorted(one["id"] for one in table.read(columns=["id"]).to_pylist())
    say("twice", len(ids) - len(set(ids)))
    """
    process = Process(data, OPENS + textwrap.dedent(code))
    assert process.end() == 0
    assert process.said[-1] == "twice 0"
    assert process.errors == ""


def test_ctrl_c_while_it_opens_leaves_the_directory_free(tmp_path: Path) -> None:
    """A node that nobody had yet kept its lock: nobody could close it, or open another."""
    code = """
    import os, signal, sys, threading, time
    import lowmark
    lowmark.open(sys.argv[1]).close()
    for number in range(25):
        path = f"{sys.argv[1]}-{number}"
        db = None
        timer = threading.Timer(0.002 * (number + 1), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            db = lowmark.open(path)
            timer.join()
            time.sleep(10)
        except KeyboardInterrupt:
            if db is not None:
                db.close()
        lowmark.open(path).close()
    print("opened", threading.active_count(), flush=True)
    """
    process = Process(tmp_path / "data", code)
    assert process.end() == 0, process.errors
    assert process.said == ["opened 1"]


# -- while the log is compacted -------------------------------------------------------------------

SMALL = Settings(
    log=LogConfig(
        wal_bytes_max=64 << 10,
        segment_bytes_max=8 << 10,
        segment_entries_max=32,
        large_entry_bytes_min=4 << 10,
        compaction_interval_ms=50,
        compaction_dead_ratio=0.3,
        link_grace_ms=0,
    ),
    group=GroupConfig(snapshot_entries=100, rewrite_bytes_per_s=0),
)


class Compacting:
    """A database with a small log, and all that shakes it up."""

    def __init__(self, data: Path, *, partitions: int) -> None:
        self.db = lowmark.open(data, settings=SMALL)
        self.table = self.db.create_table(
            "t", {"id": "int64", "n": "int64", "note": "string"}, key="id", partitions=partitions
        )
        self._backend = backend_of(self.db)
        node = self._backend.node
        assert node.tables is not None
        self.log, self.partitions = node.log, node.tables.all()

    def settle(self) -> None:
        eventually(lambda: self._backend.ask_now(lambda: self.log.idle))

    def all_phases(self) -> None:
        for what in ("rewrite", "snapshot", "roll", "compact"):
            self._backend.ask_now(partial(self._do, what))
            self.settle()

    def _do(self, what: str) -> None:
        for one in self.partitions:
            match what:
                case "rewrite":
                    one.group.rewrite()
                case "snapshot":
                    one.group.snapshot()
                case "roll":
                    self.log.roll()
                case _:
                    one.group.log.compact()

    def trim(self, keep: int) -> None:
        def cut() -> None:
            for one in self.partitions:
                one.ask(Trim(max(0, one.view.end - keep), expire=True))

        self._backend.ask_now(cut)

    def shake(self, dice: Random) -> None:
        """One of the things that may happen to the log."""
        what = dice.choice(["rewrite", "snapshot", "roll", "compact", "trim", "trim"])
        if what == "trim":
            self.trim(dice.choice([20, 200, 1_000]))
        else:
            self._backend.ask_now(partial(self._do, what))


def test_a_bounded_reader_gives_all_that_was_there_whatever_is_cut_meanwhile(data: Path) -> None:
    """It read beyond its end, found that gone, and ended as if there had been nothing."""
    # given readers of a part, of everything and of an earlier time
    here = Compacting(data, partitions=1)
    with here.db:
        for number in range(200):
            here.table.append([{"id": number % 70, "n": number, "note": "x" * 100}])
        part = here.table.read(columns=["n"], end={0: 50})
        whole = here.table.read(columns=["n"])
        time = here.table.snapshot().time
        then = here.table.read(columns=["n"], as_of=time, on_gap="skip")
        started = here.table.read(columns=["n"], batch_bytes=1)
        first = next(started).to_pylist()
        # when everything is cut off, and the log compacted
        here.all_phases()
        here.trim(0)
        here.all_phases()
        assert here.table.read().to_pylist() == []
        # then they give what they were made for
        assert [one["n"] for one in part.to_pylist()] == list(range(50))
        assert [one["n"] for one in whole.to_pylist()] == list(range(200))
        assert sorted(one["n"] for one in then.to_pylist()) == list(range(130, 200))
        assert [one["n"] for one in first + started.to_pylist()] == list(range(200))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.release)])
def test_readers_and_look_ups_go_on_while_the_log_is_compacted_under_them(
    data: Path, seed: int
) -> None:
    here = Compacting(data, partitions=2)
    table, over, written = here.table, threading.Event(), dict[int, int]()
    failures: list[BaseException] = []

    def goes_on(work: Callable[[Random], None]) -> threading.Thread:
        def run() -> None:
            dice = Random(f"{seed} {work}")
            try:
                while not over.is_set():
                    work(dice)
            except BaseException as failure:
                failures.append(failure)
                over.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(dice: Random) -> None:
        keys = dice.sample(range(100), dice.choice([1, 5, 30]))
        number = max(written.values(), default=0) + 1
        note = "x" * dice.choice([0, 50, 500])
        table.append([{"id": key, "n": number, "note": note} for key in keys])
        written.update(dict.fromkeys(keys, number))

    def look_up(dice: Random) -> None:
        check_rows(dice.sample(range(100), 10), table.get_many)

    def look_one_up(dice: Random) -> None:
        check_rows(dice.sample(range(100), 3), lambda keys: [table.get(key) for key in keys])

    def check_rows(keys: list[int], get: Callable[[list[int]], list[Any]]) -> None:
        known = {key: written.get(key, 0) for key in keys}
        for key, found in zip(keys, get(keys), strict=True):
            # It may be cut off by now; but it is not another one's, nor an older one.
            assert found is None or (found["id"] == key and found["n"] >= known[key])

    def read(dice: Random) -> None:
        reader = table.read(
            columns=["_partition", "_offset"], batch_bytes=dice.choice([1, 3_000, 1 << 20])
        )
        offsets: dict[int, list[int]] = {0: [], 1: []}
        for batch in reader:
            for one in batch.to_pylist():
                offsets[one["_partition"]].append(one["_offset"])
        for given in offsets.values():
            assert not given or given == list(range(given[0], given[0] + len(given)))

    following = table.read(follow=True, columns=["_partition", "_offset"], on_gap="skip")
    at = {0: 0, 1: 0}

    def follow(_: Random) -> None:
        for one in next(following).to_pylist():
            number, offset = one["_partition"], one["_offset"]
            missed = (number, at[number], offset - 1)
            gaps = [(gap.partition, gap.first, gap.last) for gap in following.gaps]
            assert offset == at[number] or missed in gaps
            at[number] = offset + 1

    def look_back(_: Random) -> None:
        time = table.snapshot().time
        one, other = (
            {row["id"]: row["n"] for row in table.read(as_of=time, on_gap="skip").to_pylist()}
            for _ in range(2)
        )
        assert other.items() <= one.items()  # unless rows are cut off in between

    with here.db:
        write(Random(seed))
        works = (write, look_up, look_up, look_one_up, read, follow, look_back)
        threads = [goes_on(work) for work in works]
        dice = Random(seed)
        for _ in range(150):
            here.shake(dice)
            if over.wait(0.01):
                break
        over.set()
        write(Random(seed))  # for whoever follows
        write(Random(seed + 1))
        for thread in threads:
            thread.join(SOON_S)
            assert not thread.is_alive()
        assert failures == []


# -- other processes ------------------------------------------------------------------------------


def test_a_second_process_that_wants_to_own_is_refused_by_name_and_does_no_harm(data: Path) -> None:
    # given a process that has the directory open
    first = Process(data, OPENS + APPENDS, 0)
    first.wait_for_lines(3)
    # when another one wants it for itself
    insists = OPENS.replace("lowmark.open(sys.argv[1])", "lowmark.open(sys.argv[1], owner=True)")
    second = Process(data, insists + "say('opened')")
    # then it is told who has it
    assert second.end() == 1
    assert "Locked" in second.errors
    assert f"process {first.process.pid}" in second.errors
    assert second.said == []
    # and the first one goes on
    before = len(first.said)
    first.wait_for_lines(before + 3)
    first.end(signal.SIGKILL)
    check_directory(first)
    # and when it is gone, even by kill -9, the directory is free
    third = Process(data, insists + "say('opened')")
    assert third.end() == 0
    assert third.said == ["opened"]


def test_a_child_can_t_use_what_its_parent_opened_and_the_parent_goes_on(data: Path) -> None:
    code = """
    table.append([row(0)])
    producer, reader = table.producer(batch_rows=5), table.read(follow=True)
    next(reader)

    def tried(what):
        try:
            what()
        except LowmarkError as error:
            return type(error).__name__
        return "nothing"

    if os.fork() == 0:
        signal.alarm(20)
        say("child", *[tried(what) for what in (
            lambda: table.append([row(5)]),
            lambda: table.get(0),
            lambda: table.read(),
            lambda: db.table("t"),
            lambda: db.create_table("u", {"id": "string"}),
            lambda: producer.send(row(6)),
            lambda: producer.send_many([row(7)] * 100),
            lambda: producer.flush(),
            lambda: next(reader),
            lambda: lowmark.open(sys.argv[1]),
        )])
        reader.close()
        db.close()
        sys.exit(0)  # with all that the interpreter does at its end
    _, status = os.wait()
    table.append([row(1)])
    producer.send(row(2))
    producer.close()
    say("parent", status, len(table.read().to_arrow()))
    """
    process = Process(data, OPENS + textwrap.dedent(code))
    assert process.end() == 0, process.errors
    assert process.said == ["child" + " Forked" * 10, "parent 0 3"]
    assert process.errors == ""
    with lowmark.open(data) as db:
        assert sorted(stored_in(db)) == [0, 1, 2]


def test_a_child_does_not_keep_the_directory_from_others(data: Path) -> None:
    # given a child that lives on after its parent has closed the database
    code = """
    table.append([row(1)])
    say("stored", 1, 2)
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(1)
    db.close()
    say("child", child)
    """
    process = Process(data, OPENS + textwrap.dedent(code))
    assert process.end() == 0
    child = int(process.said[-1].split()[1])
    try:
        os.kill(child, 0)
        # then anybody can open it
        check_directory(process)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_of_a_parent_that_was_killed_does_not_either(data: Path) -> None:
    code = """
    table.append([row(1)])
    say("stored", 1, 2)
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(1)
    say("child", child)
    time.sleep(100)
    """
    process = Process(data, OPENS + textwrap.dedent(code))
    process.wait_for_lines(2)
    child = int(process.said[-1].split()[1])
    try:
        process.end(signal.SIGKILL)
        check_directory(process)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_may_open_another_directory(data: Path) -> None:
    code = """
    table.append([row(1)])
    if os.fork() == 0:
        signal.alarm(20)
        with lowmark.open(sys.argv[1] + "-2") as other:
            mine = other.create_table("t", {"id": "int64"})
            mine.append([{"id": 7}])
            say("child", len(mine.read().to_arrow()))
        os._exit(0)
    _, status = os.wait()
    say("parent", status, len(table.read().to_arrow()))
    """
    process = Process(data, OPENS + textwrap.dedent(code))
    assert process.end() == 0, process.errors
    assert process.said == ["child 1", "parent 0 1"]


SPAWNS = """
import multiprocessing, sys
import lowmark
from lowmark.errors import LowmarkError

def work(path, number):
    with lowmark.open(f"{path}-{number}") as db:
        db.create_table("t", {"id": "int64"}).append([{"id": number}])
    try:
        lowmark.open(path, owner=True)
    except LowmarkError as error:
        owned = type(error).__name__
    with lowmark.open(path) as db:  # through its owner
        return owned, db["t"].read().to_pylist()[0]["id"]

if __name__ == "__main__":
    with lowmark.open(sys.argv[1]) as db:
        db.create_table("t", {"id": "int64"}).append([{"id": 1}])
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            print(*pool.starmap(work, [(sys.argv[1], number) for number in range(2)]), flush=True)
        print(len(db["t"].read().to_arrow()), flush=True)
"""


def test_processes_that_are_spawned_have_databases_of_their_own(data: Path, tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS)
    ran = subprocess.run(
        [sys.executable, str(script), str(data)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["('Locked', 1) ('Locked', 1)", "1"]
    assert ran.stderr == ""
    for number in range(2):
        with lowmark.open(f"{data}-{number}") as db:
            assert db["t"].read().to_pylist() == [{"id": number}]
