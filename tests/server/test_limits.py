"""What clients may have under way, and what becomes of those that do not let go."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import lowmark
from eventually import eventually
from lowmark import errors
from lowmark.backend.protocol import (
    APPEND,
    CALLS,
    COMMANDS,
    Request,
    commands_batch,
    encode_places,
    encode_request,
)
from lowmark.backend.values import BatchRange, Numbered, ReadRange
from lowmark.client import Database, Table
from lowmark.node import NodeClient
from lowmark.node.addresses import location_of
from lowmark.node.messages import BODY_BYTES_MAX, Nothing
from lowmark.node.slots import Slots
from lowmark.server import Limits, appending
from lowmark.server.appending import AppendStream
from server.world import COLUMNS, Served

SMALL = Limits(calls=2, waits=1, reads=1, streams=1, append_bytes=300_000, stall_ms=300)


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/socket"


@pytest.fixture
def served(tmp_path: Path, address: str) -> Iterator[Served]:
    with Served(tmp_path / "data", address, limits=SMALL) as one:
        yield one


@pytest.fixture
def db(served: Served) -> Iterator[Database]:
    with lowmark.connect(served.address) as database:
        yield database


def _wait_for(event: threading.Event) -> None:
    event.wait(30)


def rows(first: int, end: int, status: str = "new") -> list[dict[str, object]]:
    return [{"id": number, "status": status} for number in range(first, end)]


def much(db: Database, name: str = "orders") -> Table:
    """A table with 24 MB in it."""
    table = db.create_table(name, {"id": "int64", "body": "binary"}, partitions=1)
    for number in range(12):
        body = pa.array([bytes(1 << 20)] * 2, pa.binary())
        table.append(pa.table({"id": [number, number], "body": body}))
    return table


def stalled(served: Served, table: Table) -> tuple[flight.FlightClient, flight.FlightStreamReader]:
    """A client that asks for all of a table, takes a little, and then nothing more."""
    client = flight.FlightClient(location_of(served.address))
    view = served.backend.view(table.descriptor.id, 0)
    wanted = tuple(BatchRange.of(view, at, at + 1) for at in range(view.count))
    named = {"held": False, "timeout_s": 60.0}
    cluster = served.backend.info.cluster
    request = Request(cluster, 1, "batches", (table.descriptor.id, 0, wanted), named)
    reader = client.do_get(flight.Ticket(encode_request(request)))
    reader.read_chunk()
    return client, reader


def test_more_waits_than_allowed_are_refused_by_name(served: Served, db: Database) -> None:
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    backend = db.backend
    held = backend.hold(
        orders.descriptor.id, {0: ReadRange(0, None)}, holder="a test", why="it follows"
    )
    seen = backend.wait(held.hold, 0)
    waits = served.server.endpoint._service._waits
    eventually(lambda: waits.taken == 0)  # the answer is there before its place is free
    over = threading.Event()

    def follow() -> None:
        at = seen
        while not over.is_set():  # a partition has other changes than rows, too
            at = backend.wait(held.hold, 60, seen=at)

    waiting = threading.Thread(target=follow)
    waiting.start()
    eventually(lambda: waits.taken == 1)
    with pytest.raises(errors.ServerFull, match="waits") as full:
        backend._connection.call("wait", held.hold, 0.1, timeout_s=0.1)  # type: ignore[attr-defined]
    assert (full.value.what, full.value.limit) == ("waits for rows", 1)
    over.set()
    orders.append(rows(0, 1))
    waiting.join(30)


@pytest.mark.slow
def test_a_client_that_stops_to_read_is_cut_off_and_others_go_on(
    served: Served, db: Database
) -> None:
    # given a client that takes nothing more of what it asked for, and the only read there may be
    table = much(db)
    client, reader = stalled(served, table)
    assert served.server.endpoint._reads.taken == 1
    with pytest.raises(errors.ServerFull, match="1 reads"):
        next(
            db.backend.batches(
                table.descriptor.id, 0, [_first(served, table)], held=False, timeout_s=0.05
            )
        )
    # when that has taken too long, then it costs nothing any more
    eventually(lambda: served.server.endpoint._reads.taken == 0)
    with pytest.raises(flight.FlightError):
        reader.read_all()
    client.close()
    # and others read on: they connect again by themselves
    assert table.read(columns=["id"]).to_arrow().num_rows == 24


def _first(served: Served, table: Table) -> BatchRange:
    return BatchRange.of(served.backend.view(table.descriptor.id, 0), 0, 1)


@pytest.mark.slow
def test_a_server_closes_in_time_beside_clients_that_do_not_let_go(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given clients that read no more, that wait for rows, and that could append
    monkeypatch.setattr(served.server.endpoint, "limits", Limits())
    served.server.endpoint._reads._limit = 8
    table = much(db)
    stuck = [stalled(served, table) for _ in range(3)]
    reader = table.read(follow=True, start="latest")
    following = threading.Thread(target=lambda: list(reader), daemon=True)
    following.start()
    eventually(lambda: served.server.endpoint._service._waits.taken == 1)
    # when the server is closed, then it ends within five seconds
    began = time.monotonic()
    served.server.close()
    assert time.monotonic() - began < 5
    assert served.server.endpoint._reads.taken == 0
    # and its address can be used at once by another one, which all but those use
    served.serve()
    assert db.backend.now().time
    reader.close()
    following.join(30)
    for client, _ in stuck:
        client.close()


def test_bytes_under_way_are_limited_and_go_on_when_there_is_room(
    served: Served, db: Database
) -> None:
    # given a server that takes little at a time, and a database that stores nothing for a moment
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 1))
    busy = threading.Event()
    served.backend.tell(partial(_wait_for, busy))
    done = threading.Event()

    def append() -> None:
        for first in range(0, 4_000, 1_000):
            orders.append(rows(first, first + 1_000, "x" * 200))
        done.set()

    thread = threading.Thread(target=append)
    thread.start()
    eventually(lambda: served.server.endpoint._append_bytes.taken > 0)
    busy.set()
    # then all of it is stored in the end, and nothing is under way
    thread.join(60)
    assert done.is_set()
    assert len(orders.read().to_pylist()) == 4_001
    eventually(lambda: served.server.endpoint._append_bytes.taken == 0)


def test_a_batch_beyond_the_bytes_in_flight_is_refused_by_name(
    served: Served, db: Database
) -> None:
    slots = served.server.endpoint._append_bytes
    slots.take(250_000)
    with pytest.raises(errors.ServerFull, match="300,000 bytes of rows"):
        slots.take(60_000, wait_s=0.01)
    slots.give(250_000)
    slots.take(900_000)  # one always may: else it would wait for ever
    slots.give(900_000)
    assert db.backend.now().time


@pytest.mark.slow
def test_more_streams_than_allowed_are_refused_by_name(served: Served, db: Database) -> None:
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 1))
    with lowmark.connect(served.address) as other:
        theirs = other.table("orders")
        appender = other.backend.appender(theirs.descriptor.id, producer=b"p" * 16)
        appender._producing._timeout_ms = 200  # type: ignore[attr-defined]
        theirs._writer._appends[1]._appender = appender
        with pytest.raises(errors.LowmarkError, match="streams of appends"):
            theirs.append(rows(1, 2))


def test_bytes_are_given_back_when_a_message_fails_by_a_mistake(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a message of several batches, and no memory for the second one, once
    orders = db.create_table("orders", COLUMNS, key="id", partitions=4)
    orders.append(rows(0, 1))
    asked = itertools.count(1)

    def failing(*given: Any) -> Numbered:
        if next(asked) == 2:
            raise MemoryError
        return Numbered(*given)

    monkeypatch.setattr(appending, "Numbered", failing)
    # when all was stored, since the client sent it again, then no bytes are taken any more
    orders.append(rows(0, 1_000))
    assert next(asked) > 5
    eventually(lambda: served.server.endpoint._append_bytes.taken == 0)


def test_streams_on_which_no_call_is_made_cost_no_calls(served: Served, db: Database) -> None:
    # given more open streams than calls may be carried out at a time
    db.create_table("orders", COLUMNS, key="id", partitions=1).append(rows(0, 1))
    clients = [lowmark.connect(served.address) for _ in range(SMALL.calls + 1)]
    for client in clients:
        assert client["orders"].get(0) is not None
    endpoint = served.server.endpoint
    assert endpoint._call_streams.taken > SMALL.calls
    assert endpoint._service.calls == 0
    # when another client comes, then it is answered
    assert db["orders"].get(0) is not None
    for client in clients:
        client.close()


def test_more_streams_of_calls_than_allowed_are_refused_by_name(
    served: Served, db: Database
) -> None:
    db.create_table("orders", COLUMNS, key="id", partitions=1)
    served.server.endpoint._call_streams = Slots("streams of calls", 1)
    descriptor = flight.FlightDescriptor.for_command(CALLS + _request(served, "calls"))
    with flight.FlightClient(location_of(served.address)) as client:
        streams = [client.do_exchange(descriptor) for _ in range(2)]
        said = [_answer(writer, reader, _request(served, "now")) for writer, reader in streams]
        assert sorted("1 streams of calls" in one for one in said) == [False, True]
        for _, reader in streams:
            reader.cancel()


def _request(served: Served, call: str) -> bytes:
    return encode_request(Request(served.backend.info.cluster, 5, call, (), {}))


def _answer(
    writer: flight.FlightStreamWriter, reader: flight.FlightStreamReader, request: bytes
) -> str:
    try:
        writer.write_metadata(pa.py_buffer(request))
        return str(reader.read_chunk())
    except flight.FlightError as error:
        return str(error)


@pytest.mark.slow
def test_a_client_that_takes_no_answers_to_its_appends_is_cut_off(
    served: Served, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a client that sends batches, each of which is refused, and takes no answers
    monkeypatch.setattr(appending, "STREAM_MESSAGES", 1_000)
    unsent, done = list[int](), appending.AppendStream._done

    def seeing(stream: AppendStream, *given: Any) -> None:
        done(stream, *given)
        unsent.append(len(stream._acks))

    monkeypatch.setattr(appending.AppendStream, "_done", seeing)
    descriptor = flight.FlightDescriptor.for_command(APPEND + _request(served, "append"))
    message = commands_batch([b"x"] * 256)
    places = pa.py_buffer(encode_places([(one, 1, 0) for one in range(256)]))
    with flight.FlightClient(location_of(served.address)) as client:
        writer, _ = client.do_exchange(descriptor)
        writer.begin(COMMANDS)
        # when it goes on so, then it is cut off
        with pytest.raises((flight.FlightError, OSError)):
            _repeat(lambda: writer.write_with_metadata(message, places))
    # and never were there many more answers than allowed
    assert max(unsent) < 1_000 + 2 * 256
    eventually(lambda: served.server.endpoint._streams.taken == 0)


@pytest.mark.slow
def test_a_client_that_takes_no_answers_to_its_calls_is_cut_off(
    served: Served, db: Database
) -> None:
    descriptor = flight.FlightDescriptor.for_command(CALLS + _request(served, "calls"))
    request = pa.py_buffer(_request(served, "x" * 100))
    with flight.FlightClient(location_of(served.address)) as client:
        writer, _ = client.do_exchange(descriptor)
        with pytest.raises((flight.FlightError, OSError)):
            _repeat(lambda: writer.write_metadata(request))
    eventually(lambda: served.server.endpoint._call_streams.taken == 0)


def _repeat(send: Callable[[], None]) -> None:
    ends_at = time.monotonic() + 30
    while time.monotonic() < ends_at:
        send()


def test_quick_calls_go_on_beside_clients_that_have_all_streams_of_calls(
    served: Served, db: Database
) -> None:
    # given clients that have all streams of calls, and use none of them
    orders = db.create_table("orders", COLUMNS, key="id", partitions=1)
    orders.append(rows(0, 5))
    others = [lowmark.connect(served.address) for _ in range(SMALL.calls)]
    for other in others:
        eventually(lambda other=other: other.table("orders").get(1))  # type: ignore[misc]
    assert served.server.endpoint._call_streams.taken == SMALL.calls
    # when one more client looks up a row, then it has it at once
    with lowmark.connect(served.address) as late:
        began = time.monotonic()
        assert late.table("orders").get(2) == {"id": 2, "status": "new"}
        assert time.monotonic() - began < 5
    for other in others:
        other.close()


def test_the_actions_of_an_embedded_node_have_the_limits_of_a_served_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NodeClient(served.address) as client:
        # given an action with a body that is too long, then it is refused before anything happens
        with pytest.raises(errors.Rejected, match="too long"):
            client.put(b"k", bytes(BODY_BYTES_MAX))
        # and so is one that nobody knows, and one more than may be under way
        with pytest.raises(errors.Rejected, match=r"no action 'meta\.forget'"):
            client.ask("meta.forget", Nothing(), Nothing)
        watch = client.watch(b"")
        next(watch)
        monkeypatch.setattr(served.server.listener._calls, "_limit", 1)
        with pytest.raises(errors.ServerFull, match="1 calls under way"):
            client.status()
        with pytest.raises(errors.ServerFull, match="1 calls under way"):
            lowmark.connect(served.address, timeout_s=0.5)
        monkeypatch.undo()
        assert client.status().nodes
