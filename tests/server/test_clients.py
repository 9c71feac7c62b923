"""Clients that fork, go away, or come in numbers."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

import lowmark
from eventually import eventually
from lowmark import errors
from lowmark.backend import forks, remote_read
from lowmark.backend.call_streams import STREAMS_KEPT
from lowmark.backend.protocol import CALL, HELLO, Request
from lowmark.backend.values import BatchRange
from lowmark.client import Database, Table
from lowmark.metastore.commands import Put
from lowmark.node import NodeUnreachable
from lowmark.node.listener import Listener
from lowmark.runtime import COUNTER_BITS
from lowmark.server import Server
from lowmark.server.service import Service
from server.world import COLUMNS, Served
from walls import wall_clock


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served") / "data") as one:
        yield one


@pytest.fixture
def db(served: Served) -> Iterator[Database]:
    with lowmark.connect(served.address) as database:
        yield database


@pytest.fixture
def orders(db: Database) -> Table:
    return db.create_table(f"orders_{os.urandom(4).hex()}", COLUMNS, key="id", partitions=3)


def rows(first: int, end: int) -> list[dict[str, object]]:
    return [{"id": number, "status": "new"} for number in range(first, end)]


def test_a_client_belongs_to_the_process_that_made_it(
    db: Database, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a client that was used, when its process has forked, as far as it can tell
    orders.append(rows(0, 3))
    appender = db.backend.appender(orders.descriptor.id, producer=b"p" * 16)
    mine = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: mine + 1)
    # then each use in the child says so, and none waits for a thread that is not there
    for use in (
        lambda: orders.append(rows(3, 4)),
        lambda: orders.get(1),
        orders.read,
        db.tables,
        lambda: appender.send([]),
    ):
        with pytest.raises(errors.Forked):
            use()
    db.close()
    monkeypatch.undo()
    assert db.closed


@pytest.mark.slow
def test_reads_that_are_never_begun_cost_nothing(served: Served, orders: Table) -> None:
    # given clients that ask for rows and are gone before any comes
    orders.append(rows(0, 10))
    view = served.backend.view(orders.descriptor.id, 0)
    for _ in range(20):
        with flight.FlightClient(f"grpc+tcp://{served.address}") as client:
            info = client.get_flight_info(flight.FlightDescriptor.for_path(orders.name))
            for endpoint in info.endpoints:
                client.do_get(endpoint.ticket).cancel()
    # then nothing is taken by them
    eventually(lambda: served.server.endpoint._reads.taken == 0)
    ranges = [BatchRange.of(view, at, at + 1) for at in range(view.count)]
    found = orders._backend.batches(orders.descriptor.id, 0, ranges, held=False)
    assert len(list(found)) == view.count


@pytest.mark.slow
def test_many_clients_write_and_read_one_table(served: Served, orders: Table) -> None:
    def work(base: int) -> int:
        with lowmark.connect(served.address) as mine:
            table = mine.table(orders.name)
            for first in range(base, base + 100, 20):
                table.append(rows(first, first + 20))
                assert table.get(first) == {"id": first, "status": "new"}
            with table.producer(linger_ms=0) as producer:
                producer.send_many(rows(base + 100, base + 200))
            return len([row for row in table.get_many(range(base, base + 200)) if row])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(0, 8_000, 1_000))) == [200] * 8
    assert orders.read().to_arrow().num_rows == 1_600


@pytest.mark.slow
def test_an_answer_of_many_megabytes_arrives(db: Database) -> None:
    # given values of the metastore that are long together
    backend = db.backend
    for number in range(12):
        key = b"test.%02d" % number
        assert backend.write([Put(key, bytes(1 << 20))])
    # then they come in one answer
    found = backend.range(b"test.")
    assert sum(len(entry.value) for entry in found) == 12 << 20


@pytest.mark.slow
def test_a_call_on_an_open_stream_waits_no_longer_than_it_may(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a server that has answered, and does not answer any more
    assert db.backend.now().time
    go_on, service = threading.Event(), served.server.endpoint._service
    call = service.call

    def late(body: bytes) -> bytes:
        go_on.wait(60)
        return call(body)

    monkeypatch.setattr(service, "call", late)
    # when it is asked, then its caller hears of it soon
    began = time.monotonic()
    with pytest.raises(errors.Unavailable, match="within"):
        db.backend.now(timeout_s=0.1)
    assert time.monotonic() - began < 10
    # and the next call is answered, on another stream
    monkeypatch.undo()
    go_on.set()
    assert db.backend.now().time


@pytest.mark.slow
def test_now_is_after_every_answer_of_the_server_before(tmp_path: Path) -> None:
    wall_ms = time.time_ns() // 1_000_000
    with (
        wall_clock(lambda: wall_ms),
        Served(tmp_path / "data") as served,
        lowmark.connect(served.address) as database,
    ):
        # given a client that was told the time by a server, and has a row from it
        table = database.create_table("t", {"id": "int64"})
        table.append([{"id": 1}])
        wall_ms += 400
        known = database.backend.now().time
        # when the next server's clock is behind that one's, by less than clocks may differ
        wall_ms -= 400
        served.restart()
        clock = served.backend.node.runtime.clock
        clock.alone, clock._last = False, 0  # as of another node, which knows no time of this one
        # then it gives the client no earlier time as now, and takes none for one to come
        assert known < database.backend.now().time
        assert table.count(as_of=table.snapshot().time) == 1
        moved = database.advance_watermark("now")
        assert known < moved.after == moved.wanted
        # nor one that another client has from the server before
        with lowmark.connect(served.address) as other:
            ahead = database.backend.now().time + (90 << COUNTER_BITS)
            assert other["t"].count(as_of=ahead) == 1
            assert other.advance_watermark(ahead).after == ahead
            far = ahead + (600_000 << COUNTER_BITS)
            with pytest.raises(errors.TimeInFuture):
                other["t"].count(as_of=far)
            with pytest.raises(errors.TimeInFuture):
                other.advance_watermark(far)


def test_calls_of_many_threads_have_streams_of_their_own_and_few_stay(db: Database) -> None:
    backend = db.backend
    with ThreadPoolExecutor(16) as pool:
        times = [moment.time for moment in pool.map(lambda _: backend.now(), range(200))]
    assert len(set(times)) == 200
    calls = backend._connection._calls  # type: ignore[attr-defined]
    assert 0 < len(calls._free) <= STREAMS_KEPT
    assert not calls._under_way


@pytest.mark.slow
def test_readers_of_many_partitions_are_ahead_by_a_bounded_amount(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a table of many partitions, and little that reads may be ahead by
    monkeypatch.setattr(remote_read, "AHEAD_BYTES", 400_000)
    monkeypatch.setattr(remote_read, "ANSWER_BYTES", 200_000)
    big = db.create_table("big", {"id": "int64", "body": "binary"}, key="id", partitions=8)
    for first in range(0, 400, 40):
        body = [bytes(10_000)] * 40
        big.append({"id": number, "body": body[0]} for number in range(first, first + 40))
    # when it is read slowly
    ahead = db.backend._ahead  # type: ignore[attr-defined]
    most = rows_read = 0
    with big.read(batch_bytes=100_000, columns=["id"]) as reader:
        for batch in reader:
            rows_read += batch.num_rows
            most = max(most, ahead.bytes)
            time.sleep(0.002)
    # then not much more than that is ever there, and nothing in the end
    assert rows_read == 400
    assert 0 < most <= 400_000 + 200_000
    eventually(lambda: (ahead.bytes, ahead.reads) == (0, 0))
    # and a reader that is given up leaves nothing behind
    with big.read(batch_bytes=100_000) as reader:
        next(reader)
    del reader
    eventually(lambda: (ahead.bytes, ahead.reads) == (0, 0))


def test_a_bounded_read_is_through_with_a_partition_before_it_begins_the_next(
    db: Database,
) -> None:
    # given partitions that take several reads each
    big = db.create_table("pieces", {"id": "int64", "body": "binary"}, key="id", partitions=4)
    for first in range(0, 400, 40):
        big.append({"id": number, "body": bytes(1_000)} for number in range(first, first + 40))
    # when they are read
    ahead = db.backend._ahead  # type: ignore[attr-defined]
    partitions, most = list[int](), 0
    with big.read(batch_bytes=20_000, columns=["id", "_partition"]) as reader:
        for batch in reader:
            partitions += batch.column("_partition").unique().to_pylist()
            most = max(most, ahead.reads)
    # then rows of one partition at a time were fetched, and all of them were given in a row
    assert most == 1
    assert partitions == sorted(partitions)
    assert len(partitions) > len(set(partitions)) == 4


def test_a_socket_may_be_named_from_the_folder_of_now(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Server(served.db, "unix:here") as server:
        assert (tmp_path / "here").is_socket()
        with lowmark.connect("unix:here") as one, lowmark.connect(f"unix:{tmp_path}/here") as two:
            assert one.tables() == two.tables()
    assert server.address == "unix:here"
    too_long = f"unix:{tmp_path}/{'x' * 120}"
    with pytest.raises(errors.AddressUnusable):
        Server(served.db, too_long)


def test_an_append_without_a_thread_to_send_it_is_refused_and_the_next_one_goes_through(
    orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a process that can start no more threads
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "lowmark-appends":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    # when rows are sent, then that is refused by name
    with pytest.raises(errors.Unavailable, match="no more threads"):
        orders.append([{"id": 900_001, "status": "new"}])
    # and the next append goes through
    monkeypatch.undo()
    orders.append([{"id": 900_001, "status": "new"}])
    assert orders.get(900_001) is not None


@pytest.mark.slow
def test_an_append_ends_when_the_thread_that_sends_it_has_died(
    db: Database, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a client whose thread that sends fails in a way that was not foreseen
    appends = db.backend._appends  # type: ignore[attr-defined]
    monkeypatch.setattr(appends, "_write_some", lambda: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    # when rows are sent, then they get an answer by name
    with pytest.raises(errors.AppendFailed, match="before the answer was there"):
        orders.append([{"id": 900_002, "status": "new"}])
    # and the next ones are sent by another thread
    monkeypatch.undo()
    orders.append([{"id": 900_003, "status": "new"}])
    assert orders.get(900_003) is not None


def test_a_reader_whose_client_is_closed_hears_it_by_name(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given more readers than threads that fetch for them, all of them slow
    monkeypatch.setattr(remote_read, "ANSWER_BYTES", 1)
    fetch, over = remote_read.RemoteRead._fetch, threading.Event()

    def slow(read: remote_read.RemoteRead, at: int) -> remote_read.Answer:
        if at:
            over.wait(10)
        return fetch(read, at)

    begin, begun = remote_read.RemoteRead._begin, list[int]()

    def seen(read: remote_read.RemoteRead, at: int) -> Any:
        following = begin(read, at)
        begun.append(at)
        return following

    monkeypatch.setattr(remote_read.RemoteRead, "_fetch", slow)
    monkeypatch.setattr(remote_read.RemoteRead, "_begin", seen)
    client = lowmark.connect(served.address)
    table = client.create_table("closed_meanwhile", COLUMNS, partitions=1)
    for first in range(5):
        table.append([{"id": first, "status": "x" * 1_000}])
    found: list[BaseException] = []

    def follow() -> None:
        try:
            table.read(batch_bytes=1).to_arrow()
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=follow) for _ in range(remote_read.THREADS + 2)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(begun) == len(threads))  # each waits for its second answer
    # when their client is closed, then each hears that, and nothing of threads
    client.close()
    over.set()
    for thread in threads:
        thread.join(20)
    assert [type(error) for error in found] == [errors.Closed] * len(threads)


@pytest.mark.slow
def test_a_client_that_is_dropped_and_not_closed_is_collected(served: Served, db: Database) -> None:
    db.create_table("dropped", COLUMNS, key="id")
    # given a client that was used in every way
    before = set(threading.enumerate())
    client = lowmark.connect(served.address)
    table = client["dropped"]
    table.append(rows(0, 10))
    assert table.get(1) is not None
    assert len(table.read().to_pylist()) == 10
    gone = weakref.ref(client.backend)
    connection = client.backend._connection  # type: ignore[attr-defined]
    # when it is dropped, then it is collected, and its connection and its threads end
    del client, table

    def collected() -> bool:
        gc.collect()
        return gone() is None  # a thread of its own may have it in hand for a moment

    eventually(collected)
    eventually(lambda: connection.closed)
    eventually(lambda: not _names(before) & {"lowmark-appends", "lowmark-holds"})


def _names(before: set[threading.Thread]) -> set[str]:
    return {thread.name for thread in set(threading.enumerate()) - before}


def test_no_client_is_forgotten_when_threads_connect_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given threads that make clients, each of which may be interrupted at any point
    class One:
        pass

    monkeypatch.setattr(forks, "_made", [])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        # when many are made at a time
        with ThreadPoolExecutor(8) as pool:
            all_of = list(pool.map(lambda _: forks.made(One()), range(2_000)))
    finally:
        sys.setswitchinterval(interval)
    # then a fork knows every one of them
    assert {id(ref()) for ref in forks._made} == {id(one) for one in all_of}


def test_an_action_that_is_not_known_is_asked_for_once(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a server that counts what it is asked
    asked: list[str] = []
    value = Service._value

    def counting(service: Service, request: Request) -> Any:
        asked.append(request.call)
        return value(service, request)

    monkeypatch.setattr(Service, "_value", counting)
    # when an operator's action is not there, and there is time to ask again and again
    with pytest.raises(errors.Rejected, match="there is no action 'nope'"):
        db.backend.operate("nope", b"{}", timeout_s=10.0)
    # then that is an answer
    assert asked.count("operate") == 1


def test_a_node_that_is_starting_is_asked_again(served: Served) -> None:
    # given a node that listens already, and has nothing to offer yet
    node, endpoint = Listener("127.0.0.1:0"), served.server.endpoint
    try:
        # then a client that has no time left is told so
        def told() -> str:
            with pytest.raises(NodeUnreachable) as away:
                lowmark.connect(node.address, timeout_s=0.2)
            return away.value.detail

        eventually(lambda: told() == "The node there is starting.")  # if it was asked in time
        # and another one has its answer as soon as the node has it
        with ThreadPoolExecutor(1) as pool:
            connected = pool.submit(lowmark.connect, node.address, timeout_s=60.0)
            node.actions[CALL] = lambda body, _: [endpoint.act(CALL, body)]
            node.actions[HELLO] = lambda body, _: [endpoint.act(HELLO, body)]
            with connected.result(60.0) as database:
                assert isinstance(database.tables(), list)
    finally:
        node.close()
