"""What this process or this machine has run out of is named, with the directory: it is neither a
majority that did not answer, nor a node that is silent, nor an error of Python's.

Whoever waits for the deadline of a request here waits an hour.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lowmark
from eventually import eventually
from inside import backend_of
from lowmark.client import Database, DiskFailed, NoMemory, NoThreads, Table
from lowmark.errors import LowmarkError
from lowmark.group import Future, GroupConfig
from lowmark.log import Damaged
from lowmark.node import NodeSilent, Settings

PATIENT = Settings(group=GroupConfig(request_timeout_ms=3_600_000))
NEVER_SAID = ("majority", "no answer")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def db(data: Path) -> Iterator[Database]:
    with lowmark.open(data, settings=PATIENT) as database:
        yield database


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", {"id": "int64", "note": "string"}, key="id")


def check(error: BaseException, data: Path) -> None:
    assert str(data) in str(error), error
    assert not any(word in str(error) for word in NEVER_SAID), error


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [MemoryError(), pa.ArrowMemoryError("malloc of 8 failed")])
def test_memory_that_runs_out_in_a_call_is_named(
    table: Table, data: Path, raised: MemoryError
) -> None:
    def rows() -> Iterator[dict[str, object]]:
        yield {"id": 1, "note": "x"}
        raise raised

    with pytest.raises(NoMemory) as caught:
        table.append(rows())
    check(caught.value, data)
    assert caught.value.__cause__ is raised
    # and the database goes on
    table.append([{"id": 2, "note": "x"}])
    assert table.get(2) is not None


def test_memory_that_runs_out_on_the_loop_is_named(db: Database, data: Path) -> None:
    def fail() -> None:
        raise MemoryError

    # given a request whose work on the loop gets no memory
    with pytest.raises(MemoryError):
        backend_of(db).ask_now(fail)
    # when the loop itself gets none, then the node ends, and whoever asks is told why
    backend_of(db).tell(fail)
    backend_of(db)._thread.join(30)
    for ask in (db.watermark, db.tables):
        with pytest.raises(NoMemory) as caught:
            ask()
        check(caught.value, data)
        assert "open it again" in caught.value.hint
    with lowmark.open(data, settings=PATIENT) as again:
        assert again.tables() == []


# -- threads --------------------------------------------------------------------------------------


@pytest.fixture
def no_threads() -> Iterator[None]:
    """No thread gets a stack of a tebibyte, so none starts."""
    before = threading.stack_size(1 << 40)
    yield
    threading.stack_size(before)


@pytest.mark.usefixtures("no_threads")
def test_a_database_that_gets_no_thread_says_so(data: Path) -> None:
    with pytest.raises(NoThreads) as caught:
        lowmark.open(data, settings=PATIENT)
    check(caught.value, data)
    # and leaves nothing behind: with threads, it opens
    threading.stack_size(0)
    with lowmark.open(data, settings=PATIENT) as db:
        assert db.tables() == []


def test_a_node_that_gets_no_thread_for_its_lanes_says_so(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "lowmark-segments":
            raise RuntimeError("can't start new thread")
        begin(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(NoThreads) as caught:
            lowmark.open(data, settings=PATIENT)
    check(caught.value, data)
    with lowmark.open(data, settings=PATIENT) as db:
        assert db.tables() == []


def test_a_producer_that_gets_no_thread_says_so(table: Table, data: Path, no_threads: None) -> None:
    with pytest.raises(NoThreads) as caught:
        table.producer()
    check(caught.value, data)


# -- handles and space ----------------------------------------------------------------------------


WITHOUT_HANDLES = """
import os, resource, sys, time
import lowmark
from lowmark.group import GroupConfig
from lowmark.log import LogConfig
from lowmark.node import Settings
patient = Settings(
    group=GroupConfig(request_timeout_ms=3_600_000), log=LogConfig(retry_ms=50)
)
data = sys.argv[1]
db = lowmark.open(data, settings=patient)
table = db.create_table("t", {"id": "int64", "note": "string"}, key="id")
table.append([{"id": 1, "note": "x"}])
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
taken = []

def take():
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass

def said(what):
    try:
        what()
    except Exception as error:
        for one in (error, error.__cause__):
            print(type(one).__name__, "|", str(one).replace(chr(10), " "))
    else:
        print("done")

take()
said(lambda: table.append([{"id": 2, "note": "x" * 1_000_000}]))
said(lambda: table.append([{"id": 3, "note": "x"}]))
said(lambda: table.delete([1]))
said(lambda: table.read(as_of="now").to_pylist())
said(lambda: lowmark.open(data + "-other", settings=patient))
for handle in taken:
    os.close(handle)
while table.get(2) is None:
    time.sleep(0.01)
table.append([{"id": 3, "note": "x"}])
said(lambda: print(sorted(row["id"] for row in table.read().to_pylist())))
db.close()
"""


@pytest.mark.slow
def test_a_process_without_handles_says_so_and_goes_on_when_it_has_some(data: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_HANDLES), str(data)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    kinds = [line.partition(" | ")[0] for line in lines]
    # the first may yet be written; the others were refused
    assert kinds == [
        *("AppendFailed", "NotWritten"),
        *("NoHandles", "NoneType"),
        *("NoHandles", "NoneType"),
        *("NoHandles", "NoneType"),
        *("NoHandles", "OSError"),
        "[1, 2, 3]",
        "done",
    ], done.stdout
    for line in lines[:3] + lines[4:5] + lines[6:7] + lines[8:9]:
        assert "Too many open files" in line
        assert str(data) in line
        assert not any(word in line for word in NEVER_SAID)


# -- damage and silence ---------------------------------------------------------------------------


def test_a_metastore_that_can_not_be_read_any_more_is_named(db: Database, data: Path) -> None:
    node = backend_of(db).node
    # given a copy of the metastore that turns out to be damaged while it is open
    damage = Damaged("groups/metastore/1.segment", offset=7, what="a checksum is wrong")
    backend_of(db).ask_now(lambda: node.groups.quarantine("metastore", damage))
    # when something is asked that needs it, then the cause is told, and not after a deadline
    eventually(lambda: node.cluster.metastore.group.stopped is not None)
    for ask in (
        lambda: db.create_table("t", {"id": "int64"}),
        lambda: db.advance_watermark("now"),
    ):
        with pytest.raises(LowmarkError) as caught:
            ask()
        assert "a checksum is wrong" in str(caught.value)
        assert not any(word in str(caught.value) for word in NEVER_SAID), caught.value


def test_a_node_that_is_silent_for_a_cause_names_it(db: Database, data: Path) -> None:
    # given a node that gives no answer, and a disk that has failed again and again
    wal = backend_of(db).node.log.wal
    nothing: Future[None] = Future()
    eventually(lambda: wal.idle)  # what the start wrote shows that the disk works
    wal._failures, wal.stopped = 5, DiskFailed("wal/1.wal", call="write", reason="gone")
    try:
        with pytest.raises(DiskFailed, match="gone") as caught:
            backend_of(db).ask(lambda: nothing, timeout_s=0.05)
        check(caught.value, data)
        assert "may have been carried out" in caught.value.detail
    finally:
        wal._failures, wal.stopped = 0, None
    # and without a cause, it is the node that is silent
    with pytest.raises(NodeSilent):
        backend_of(db).ask(lambda: nothing, timeout_s=0.05)
